/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 */
#define _GNU_SOURCE
#include "ptx.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_KERNELS = 16, MAX_PARAMETERS = 8, MAX_INSTRUCTIONS = 512, MAX_REGISTERS = 192, MAX_LABELS = 32 };
enum { MAX_OPERANDS = 32, MAX_PARTS = 8, WARP = 32, MAX_THREADS = 1024, NAME = 64 };

enum operation {
    LOAD_PARAMETER, MOVE, ADD, SUBTRACT, MULTIPLY_LOW, MULTIPLY_WIDE, MULTIPLY_ADD, AND, OR, XOR, SHIFT_LEFT,
    SHIFT_RIGHT, CONVERT, FUSED, COMPARE, BRANCH, BARRIER, LOAD, STORE, LOAD_SHARED, STORE_SHARED, ATOMIC_ADD, RETURN,
    MATRIX_LOAD, MATRIX_MULTIPLY, MATRIX_STORE
};
enum type { U32, U64, F32, F64, PREDICATE };
enum special { NOT_SPECIAL, THREAD, BLOCK, THREADS, BLOCKS, MULTIPROCESSOR };

struct operand {
    int is_register;
    enum special special;
    uint64_t value; /* the register's number, or what is written there */
};

struct instruction {
    enum operation operation;
    enum type type, from;
    int guard, guard_is_false; /* a predicate's register, or -1 */
    int count;
    struct operand operands[MAX_OPERANDS];
    uint64_t offset; /* of a memory operand */
    int vector;
    char detail[8]; /* how two are compared; which matrix */
    char label[NAME];
    int target;
    int of_block; /* whether what it does differs from block to block */
};

struct named {
    char name[NAME];
    int at;
    size_t size;
};

struct ptx_kernel {
    char name[NAME];
    int parameter_count, instruction_count, register_count, label_count, shared_count;
    struct named parameters[MAX_PARAMETERS], registers[MAX_REGISTERS], labels[MAX_LABELS], shared[4];
    size_t shared_size;
    int alike; /* whether blocks differ by what stands outside of loops alone */
    struct instruction instructions[MAX_INSTRUCTIONS];
};

struct ptx_module {
    int count;
    struct ptx_kernel kernels[MAX_KERNELS];
};

struct reader {
    const char *at;
    int line;
    char *log;
    size_t log_size;
    int failure;
};

static int fail(struct reader *reader, int failure, const char *format, ...) __attribute__((format(printf, 3, 4)));

static int fail(struct reader *reader, int failure, const char *format, ...) {
    va_list arguments;
    int length;

    if (reader->failure != PTX_OK)
        return reader->failure;
    reader->failure = failure;
    if (reader->log == NULL || reader->log_size == 0)
        return failure;
    length = snprintf(reader->log, reader->log_size, "ptxas application ptx input, line %d; error   : ", reader->line);
    if (length >= 0 && (size_t)length < reader->log_size) {
        va_start(arguments, format);
        vsnprintf(reader->log + length, reader->log_size - (size_t)length, format, arguments);
        va_end(arguments);
    }
    return failure;
}

static void skip_blanks(struct reader *reader) {
    while (*reader->at != '\0') {
        if (*reader->at == '\n')
            reader->line++;
        if (isspace((unsigned char)*reader->at)) {
            reader->at++;
        } else if (strncmp(reader->at, "//", 2) == 0) {
            while (*reader->at != '\0' && *reader->at != '\n')
                reader->at++;
        } else {
            return;
        }
    }
}

static int accept(struct reader *reader, char wanted) {
    skip_blanks(reader);
    if (*reader->at != wanted)
        return 0;
    reader->at++;
    return 1;
}

static void expect(struct reader *reader, char wanted) {
    if (!accept(reader, wanted))
        fail(reader, PTX_BAD_TEXT, "'%c' expected near '%.12s'", wanted, reader->at);
}

/* A word of PTX: names, mnemonics with their dots, numbers. */
static const char *word(struct reader *reader, char *into) {
    size_t length = 0;

    skip_blanks(reader);
    while (isalnum((unsigned char)*reader->at) || (*reader->at != '\0' && strchr("._%$-", *reader->at) != NULL)) {
        if (length + 1 < NAME)
            into[length++] = *reader->at;
        reader->at++;
    }
    into[length] = '\0';
    if (length == 0)
        fail(reader, PTX_BAD_TEXT, "unexpected '%.12s'", reader->at);
    return into;
}

static struct named *find(struct named *table, int count, const char *name) {
    for (int index = 0; index < count; index++)
        if (strcmp(table[index].name, name) == 0)
            return &table[index];
    return NULL;
}

static void add(struct reader *reader, struct named *table, int *count, int most, const char *name, int at) {
    if (*count == most || find(table, *count, name) != NULL) {
        fail(reader, PTX_BAD_TEXT, "too many names, or '%s' twice", name);
        return;
    }
    snprintf(table[*count].name, NAME, "%s", name);
    table[*count].at = at;
    (*count)++;
}

static void read_parameters(struct reader *reader, struct ptx_kernel *kernel) {
    char text[NAME], type[NAME];

    expect(reader, '(');
    while (reader->failure == PTX_OK && !accept(reader, ')')) {
        if (strcmp(word(reader, text), ".param") != 0)
            fail(reader, PTX_BAD_TEXT, "'.param' expected, not '%s'", text);
        word(reader, type);
        add(reader, kernel->parameters, &kernel->parameter_count, MAX_PARAMETERS, word(reader, text),
            kernel->parameter_count);
        if (reader->failure == PTX_OK)
            kernel->parameters[kernel->parameter_count - 1].size = strcmp(type, ".u64") == 0 ? 8 : 4;
        accept(reader, ',');
    }
}

/* .reg .b32 %r<24>; */
static void read_registers(struct reader *reader, struct ptx_kernel *kernel) {
    char type[NAME], name[NAME], full[2 * NAME];
    int count;

    word(reader, type);
    word(reader, name);
    expect(reader, '<');
    count = (int)strtol(reader->at, (char **)&reader->at, 10);
    expect(reader, '>');
    expect(reader, ';');
    for (int index = 0; index < count && reader->failure == PTX_OK; index++) {
        snprintf(full, sizeof full, "%s%d", name, index);
        add(reader, kernel->registers, &kernel->register_count, MAX_REGISTERS, full, kernel->register_count);
    }
}

/* .shared .align 4 .b8 name[512]; */
static void read_shared(struct reader *reader, struct ptx_kernel *kernel) {
    char text[NAME];

    word(reader, text);
    word(reader, text);
    word(reader, text);
    add(reader, kernel->shared, &kernel->shared_count, 4, word(reader, text), (int)kernel->shared_size);
    expect(reader, '[');
    kernel->shared_size += (size_t)strtol(reader->at, (char **)&reader->at, 10);
    expect(reader, ']');
    expect(reader, ';');
}

static void read_operand(struct reader *reader, struct ptx_kernel *kernel, struct instruction *made, const char *text) {
    static const char *const names[] = {"", "%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x", "%smid"};
    struct operand *operand;
    struct named *found;
    char *end;

    if (made->count == MAX_OPERANDS) {
        fail(reader, PTX_UNSUPPORTED, "too many operands");
        return;
    }
    operand = &made->operands[made->count++];
    if ((found = find(kernel->registers, kernel->register_count, text)) != NULL) {
        operand->is_register = 1;
        operand->value = (uint64_t)found->at;
        return;
    }
    for (int special = THREAD; special <= MULTIPROCESSOR; special++)
        if (strcmp(text, names[special]) == 0) {
            operand->special = (enum special)special;
            return;
        }
    if ((found = find(kernel->shared, kernel->shared_count, text)) != NULL ||
        (made->operation == LOAD_PARAMETER &&
         (found = find(kernel->parameters, kernel->parameter_count, text)) != NULL)) {
        operand->value = (uint64_t)found->at;
        return;
    }
    if (text[0] == '0' && text[1] == 'f') {
        operand->value = strtoull(text + 2, NULL, 16);
        return;
    }
    operand->value = strtoull(text, &end, 0);
    if (*text == '\0' || *end != '\0')
        fail(reader, PTX_BAD_TEXT, "Unknown symbol '%s'", text);
}

static void read_operands(struct reader *reader, struct ptx_kernel *kernel, struct instruction *made) {
    char text[NAME];
    int in_vector = 0;

    while (reader->failure == PTX_OK && !accept(reader, ';')) {
        if (accept(reader, ',')) {
            continue;
        } else if (accept(reader, '{')) {
            in_vector = 1;
        } else if (accept(reader, '}')) {
            in_vector = 0;
        } else if (accept(reader, '[')) {
            read_operand(reader, kernel, made, word(reader, text));
            if (accept(reader, '+'))
                made->offset = strtoull(word(reader, text), NULL, 0);
            expect(reader, ']');
        } else {
            word(reader, text);
            if (made->operation == BRANCH)
                snprintf(made->label, NAME, "%s", text);
            else
                read_operand(reader, kernel, made, text);
            made->vector += in_vector;
        }
    }
}

static int is_type(const char *text, enum type *type) {
    static const struct { const char *name; enum type type; } types[] = {
        {"u32", U32}, {"b32", U32}, {"s32", U32}, {"u64", U64}, {"b64", U64}, {"f32", F32}, {"f64", F64},
        {"pred", PREDICATE}};

    for (size_t index = 0; index < sizeof types / sizeof types[0]; index++)
        if (strcmp(text, types[index].name) == 0) {
            *type = types[index].type;
            return 1;
        }
    return 0;
}

/* The mnemonic's parts that decide what is done; those that only say how the compiler may order it are passed over. */
static int understand(struct instruction *made, char *mnemonic) {
    static const struct { const char *name; enum operation operation; } plain[] = {
        {"add", ADD}, {"sub", SUBTRACT}, {"and", AND}, {"or", OR}, {"xor", XOR}, {"shl", SHIFT_LEFT},
        {"shr", SHIFT_RIGHT}, {"mov", MOVE}, {"cvta", MOVE}, {"cvt", CONVERT}, {"fma", FUSED}, {"setp", COMPARE},
        {"bra", BRANCH}, {"bar", BARRIER}, {"ret", RETURN}, {"atom", ATOMIC_ADD}, {"mad", MULTIPLY_ADD},
        {"mul", MULTIPLY_LOW}, {"ld", LOAD}, {"st", STORE}, {"wmma", MATRIX_LOAD}};
    char *parts[MAX_PARTS], *position = NULL;
    int count = 0, types = 0, known = 0;

    for (char *part = strtok_r(mnemonic, ".", &position); part != NULL && count < MAX_PARTS;
         part = strtok_r(NULL, ".", &position))
        parts[count++] = part;
    for (size_t index = 0; index < sizeof plain / sizeof plain[0] && count > 0; index++)
        if (strcmp(parts[0], plain[index].name) == 0) {
            made->operation = plain[index].operation;
            known = 1;
        }
    for (int index = 1; index < count; index++) {
        const char *part = parts[index];

        if (is_type(part, types == 0 ? &made->type : &made->from)) {
            types++;
        } else if (made->operation == COMPARE || made->operation == MATRIX_LOAD) {
            if (strcmp(part, "mma") == 0)
                made->operation = MATRIX_MULTIPLY;
            else if (strcmp(part, "store") == 0)
                made->operation = MATRIX_STORE;
            else if (strlen(part) <= 2)
                snprintf(made->detail, sizeof made->detail, "%s", part);
        } else if (strcmp(part, "wide") == 0) {
            made->operation = MULTIPLY_WIDE;
        } else if (strcmp(part, "param") == 0) {
            made->operation = LOAD_PARAMETER;
        } else if (strcmp(part, "shared") == 0) {
            made->operation = made->operation == LOAD ? LOAD_SHARED : STORE_SHARED;
        }
    }
    return known;
}

static void read_instruction(struct reader *reader, struct ptx_kernel *kernel, char *mnemonic, int guard, int is_false) {
    struct instruction *made = &kernel->instructions[kernel->instruction_count];
    char whole[NAME];

    if (kernel->instruction_count == MAX_INSTRUCTIONS) {
        fail(reader, PTX_UNSUPPORTED, "too many instructions");
        return;
    }
    snprintf(whole, sizeof whole, "%s", mnemonic);
    memset(made, 0, sizeof *made);
    made->guard = guard;
    made->guard_is_false = is_false;
    if (!understand(made, mnemonic)) {
        fail(reader, PTX_UNSUPPORTED, "this GPU is simulated, and does not know '%s'", whole);
        return;
    }
    read_operands(reader, kernel, made);
    kernel->instruction_count++;
}

static void resolve_labels(struct reader *reader, struct ptx_kernel *kernel) {
    for (int index = 0; index < kernel->instruction_count; index++) {
        struct instruction *made = &kernel->instructions[index];
        struct named *label;

        if (made->operation != BRANCH)
            continue;
        label = find(kernel->labels, kernel->label_count, made->label);
        if (label == NULL)
            fail(reader, PTX_BAD_TEXT, "Unknown label '%s'", made->label);
        else
            made->target = label->at;
    }
}

/* How many operands an instruction writes: the first ones. */
static int written_by(const struct instruction *made) {
    switch (made->operation) {
    case STORE:
    case STORE_SHARED:
    case MATRIX_STORE:
    case BRANCH:
    case BARRIER:
    case RETURN: return 0;
    case LOAD: return made->vector > 0 ? made->vector : 1;
    case MATRIX_LOAD:
    case MATRIX_MULTIPLY: return 8;
    default: return 1;
    }
}

static int depends_on_block(const struct instruction *made, const char *differing) {
    if (made->guard >= 0 && differing[made->guard])
        return 1;
    for (int index = written_by(made); index < made->count; index++) {
        const struct operand *operand = &made->operands[index];

        if (operand->special == BLOCK || operand->special == MULTIPROCESSOR ||
            (operand->is_register && differing[operand->value]))
            return 1;
    }
    return 0;
}

static int writes(const struct instruction *made, uint64_t number) {
    for (int index = 0; index < written_by(made); index++)
        if (made->operands[index].value == number)
            return 1;
    return 0;
}

/* Is a register that is alike in all blocks, and that this instruction reads, written again after it? */
static int reads_what_changes(const struct ptx_kernel *kernel, int at) {
    const struct instruction *made = &kernel->instructions[at];

    for (int later = at + 1; later < kernel->instruction_count; later++) {
        const struct instruction *other = &kernel->instructions[later];

        if (other->of_block)
            continue;
        if (made->guard >= 0 && writes(other, (uint64_t)made->guard))
            return 1;
        for (int index = written_by(made); index < made->count; index++)
            if (made->operands[index].is_register && writes(other, made->operands[index].value))
                return 1;
    }
    return 0;
}

/* Most of a program may be the same in every block: it is done once then, and each block does what is its own. */
static void compare_blocks(struct ptx_kernel *kernel) {
    char differing[MAX_REGISTERS] = {0};

    for (int changed = 1; changed;) {
        changed = 0;
        for (int at = 0; at < kernel->instruction_count; at++) {
            struct instruction *made = &kernel->instructions[at];

            if (made->of_block || !depends_on_block(made, differing))
                continue;
            changed = made->of_block = 1;
            for (int index = 0; index < written_by(made); index++)
                differing[made->operands[index].value] = 1;
        }
    }
    kernel->alike = 1;
    for (int at = 0; at < kernel->instruction_count; at++) {
        const struct instruction *made = &kernel->instructions[at];

        if (made->operation == LOAD || made->operation == ATOMIC_ADD || (made->operation == STORE && !made->of_block) ||
            (made->operation == BRANCH && made->target > at))
            kernel->alike = 0;
        if (made->of_block && (made->operation == BRANCH || made->operation == STORE_SHARED ||
                               made->operation == LOAD_SHARED || reads_what_changes(kernel, at)))
            kernel->alike = 0;
        for (int within = made->operation == BRANCH ? made->target : at; within < at; within++)
            if (kernel->instructions[within].of_block)
                kernel->alike = 0;
    }
}

static void read_body(struct reader *reader, struct ptx_kernel *kernel) {
    char text[NAME];

    while (reader->failure == PTX_OK && !accept(reader, '}')) {
        int guard = -1, is_false = 0;

        if (accept(reader, '@')) {
            struct named *found;

            is_false = accept(reader, '!');
            found = find(kernel->registers, kernel->register_count, word(reader, text));
            if (found == NULL)
                fail(reader, PTX_BAD_TEXT, "Unknown symbol '%s'", text);
            else
                guard = found->at;
        }
        word(reader, text);
        if (strcmp(text, ".reg") == 0)
            read_registers(reader, kernel);
        else if (strcmp(text, ".shared") == 0)
            read_shared(reader, kernel);
        else if (accept(reader, ':'))
            add(reader, kernel->labels, &kernel->label_count, MAX_LABELS, text, kernel->instruction_count);
        else
            read_instruction(reader, kernel, text, guard, is_false);
    }
    resolve_labels(reader, kernel);
    compare_blocks(kernel);
}

static void read_kernel(struct reader *reader, struct ptx_module *module) {
    struct ptx_kernel *kernel = &module->kernels[module->count];
    char text[NAME];

    if (module->count == MAX_KERNELS) {
        fail(reader, PTX_UNSUPPORTED, "too many kernels");
        return;
    }
    word(reader, text);
    snprintf(kernel->name, NAME, "%s", word(reader, text));
    read_parameters(reader, kernel);
    while (reader->failure == PTX_OK && !accept(reader, '{')) { /* .reqntid 128, 1, 1 */
        word(reader, text);
        accept(reader, ',');
    }
    read_body(reader, kernel);
    module->count++;
}

static void read_head(struct reader *reader, int newest, int capability, const char *directive) {
    char text[NAME];
    int major = 0, minor = 0;

    word(reader, text);
    if (strcmp(directive, ".version") == 0) {
        if (sscanf(text, "%d.%d", &major, &minor) != 2)
            fail(reader, PTX_BAD_TEXT, "no version '%s'", text);
        else if (major * 10 + minor > newest)
            fail(reader, PTX_TOO_NEW, "Unsupported .version %s; current version is '%d.%d'", text, newest / 10, newest % 10);
    } else if (strcmp(directive, ".target") == 0) {
        if (sscanf(text, "sm_%d", &major) != 1)
            fail(reader, PTX_BAD_TEXT, "no target '%s'", text);
        else if (major > capability)
            fail(reader, PTX_WRONG_TARGET, "SM version specified by .target is higher than default SM version assumed");
    }
}

int ptx_load(const char *text, int newest, int capability, struct ptx_module **module, char *log, size_t log_size) {
    struct reader reader = {text, 1, log, log_size, PTX_OK};
    struct ptx_module *made = calloc(1, sizeof *made);
    char directive[NAME];

    for (skip_blanks(&reader); made != NULL && reader.failure == PTX_OK && *reader.at != '\0'; skip_blanks(&reader)) {
        word(&reader, directive);
        if (strcmp(directive, ".visible") == 0)
            read_kernel(&reader, made);
        else
            read_head(&reader, newest, capability, directive);
    }
    if (made == NULL || reader.failure != PTX_OK || made->count == 0) {
        free(made);
        return reader.failure != PTX_OK ? reader.failure : PTX_BAD_TEXT;
    }
    *module = made;
    return PTX_OK;
}

struct ptx_kernel *ptx_kernel(struct ptx_module *module, const char *name) {
    for (int index = 0; index < module->count; index++)
        if (strcmp(module->kernels[index].name, name) == 0)
            return &module->kernels[index];
    return NULL;
}

void ptx_unload(struct ptx_module *module) {
    free(module);
}

/* Where the machine has them, the processor's own instructions for what is done to all threads alike. */
#ifdef __x86_64__
#define FAST __attribute__((target_clones("arch=haswell", "default")))
#else
#define FAST
#endif

/* A block at work. A register has a value for every thread; a matrix lies in the registers of its warp as this file
 * pleases, which PTX leaves open. */
struct block {
    const struct ptx_kernel *kernel;
    const struct ptx_launch *launch;
    unsigned number, multiprocessor;
    uint64_t (*registers)[MAX_THREADS];
    unsigned char *shared;
    uint64_t scratch[3][MAX_THREADS];
};

static float as_float(uint64_t bits) {
    uint32_t low = (uint32_t)bits;
    float value;

    memcpy(&value, &low, sizeof value);
    return value;
}

static uint64_t float_bits(float value) {
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static double as_double(uint64_t bits) {
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint64_t double_bits(double value) {
    uint64_t bits;

    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* IEEE 754 binary16 */
static float half(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float value = exponent == 0 ? ldexpf((float)fraction, -24) : ldexpf((float)(fraction | 1024), exponent - 25);

    return bits >> 15 ? -value : value;
}

/* An operand's value for every thread of the block. */
static const uint64_t *values(struct block *block, const struct operand *operand, int slot) {
    uint64_t *filled = block->scratch[slot];
    unsigned threads = block->launch->threads;
    uint64_t value = operand->value;

    if (operand->is_register)
        return block->registers[operand->value];
    if (operand->special == THREAD) {
        for (unsigned thread = 0; thread < threads; thread++)
            filled[thread] = thread;
        return filled;
    }
    if (operand->special == BLOCK)
        value = block->number;
    else if (operand->special == THREADS)
        value = threads;
    else if (operand->special == BLOCKS)
        value = block->launch->blocks;
    else if (operand->special == MULTIPROCESSOR)
        value = block->multiprocessor;
    for (unsigned thread = 0; thread < threads; thread++)
        filled[thread] = value;
    return filled;
}

static int is_guarded_off(const struct block *block, const struct instruction *now, unsigned thread) {
    return now->guard >= 0 && (block->registers[now->guard][thread] != 0) == now->guard_is_false;
}

static int compared(const char *how, uint64_t left, uint64_t right) {
    if (strcmp(how, "lt") == 0)
        return left < right;
    if (strcmp(how, "ge") == 0)
        return left >= right;
    if (strcmp(how, "eq") == 0)
        return left == right;
    return left != right;
}

#define EACH(expression)                                                          \
    for (unsigned thread = 0; thread < threads; thread++)                         \
        if (now->guard < 0 || !is_guarded_off(block, now, thread))                \
            to[thread] = (expression)

FAST static void compute(struct block *block, const struct instruction *now) {
    unsigned threads = block->launch->threads;
    uint64_t *to = block->registers[now->operands[0].value];
    const uint64_t *a = values(block, &now->operands[1], 0);
    const uint64_t *b = now->count > 2 ? values(block, &now->operands[2], 1) : a;
    const uint64_t *c = now->count > 3 ? values(block, &now->operands[3], 2) : a;
    uint64_t mask = now->type == U64 || now->type == F64 ? UINT64_MAX : UINT32_MAX;
    unsigned bits = mask == UINT32_MAX ? 32 : 64;

    switch (now->operation) {
    case MOVE: EACH(a[thread] & mask); break;
    case ADD: EACH((a[thread] + b[thread]) & mask); break;
    case SUBTRACT: EACH((a[thread] - b[thread]) & mask); break;
    case MULTIPLY_LOW: EACH((a[thread] * b[thread]) & mask); break;
    case MULTIPLY_WIDE: EACH((a[thread] & UINT32_MAX) * (b[thread] & UINT32_MAX)); break;
    case MULTIPLY_ADD: EACH((a[thread] * b[thread] + c[thread]) & mask); break;
    case AND: EACH(a[thread] & b[thread]); break;
    case OR: EACH(a[thread] | b[thread]); break;
    case XOR: EACH(a[thread] ^ b[thread]); break;
    case SHIFT_LEFT: EACH(b[thread] >= bits ? 0 : (a[thread] << b[thread]) & mask); break;
    case SHIFT_RIGHT: EACH(b[thread] >= bits ? 0 : (a[thread] & mask) >> b[thread]); break;
    case CONVERT:
        if (now->from == U32 && now->type == F32) {
            EACH(float_bits((float)(uint32_t)a[thread]));
        } else if (now->from == U32 && now->type == F64) {
            EACH(double_bits((double)(uint32_t)a[thread]));
        } else if (now->from == F32) {
            EACH((uint32_t)as_float(a[thread]));
        } else if (now->from == F64) {
            EACH((uint64_t)as_double(a[thread]));
        } else {
            EACH(a[thread] & mask);
        }
        break;
    case COMPARE: EACH((uint64_t)compared(now->detail, a[thread], b[thread])); break;
    case FUSED:
        if (now->type == F32) {
            EACH(float_bits(fmaf(as_float(a[thread]), as_float(b[thread]), as_float(c[thread]))));
        } else {
            EACH(double_bits(fma(as_double(a[thread]), as_double(b[thread]), as_double(c[thread]))));
        }
        break;
    default: break;
    }
}

static void load_parameter(struct block *block, const struct instruction *now) {
    const struct named *parameter = &block->kernel->parameters[now->operands[1].value];
    const void *given = block->launch->parameters[parameter->at];
    uint64_t value = 0;

    memcpy(&value, given, parameter->size);
    for (unsigned thread = 0; thread < block->launch->threads; thread++)
        block->registers[now->operands[0].value][thread] = value;
}

static int in_shared(struct block *block, const struct instruction *now) {
    const struct operand *place = &now->operands[now->operation == LOAD_SHARED ? 1 : 0];
    const struct operand *data = &now->operands[now->operation == LOAD_SHARED ? 0 : 1];
    const uint64_t *base = values(block, place, 0), *stored = values(block, data, 1);

    for (unsigned thread = 0; thread < block->launch->threads; thread++) {
        uint64_t at = base[thread] + now->offset;
        uint32_t value;

        if (is_guarded_off(block, now, thread))
            continue;
        if (at + sizeof value > block->kernel->shared_size)
            return PTX_BAD_ADDRESS;
        if (now->operation == STORE_SHARED) {
            value = (uint32_t)stored[thread];
            memcpy(block->shared + at, &value, sizeof value);
        } else {
            memcpy(&value, block->shared + at, sizeof value);
            block->registers[data->value][thread] = value;
        }
    }
    return PTX_OK;
}

static int in_memory(struct block *block, const struct instruction *now) {
    const struct ptx_launch *launch = block->launch;
    int is_store = now->operation == STORE;
    int words = now->vector > 0 ? now->vector : 1;
    const struct operand *place = &now->operands[is_store ? 0 : words];
    const struct operand *data = &now->operands[is_store ? 1 : 0];
    size_t size = now->type == U64 ? 8 : 4;
    const uint64_t *base = values(block, place, 0);

    for (unsigned thread = 0; thread < launch->threads; thread++) {
        uint64_t address = base[thread] + now->offset;

        if (is_guarded_off(block, now, thread))
            continue;
        if (!launch->permitted(address, size * (size_t)words, launch->context))
            return PTX_BAD_ADDRESS;
        for (int index = 0; index < words; index++) {
            unsigned char *at = (unsigned char *)(uintptr_t)address + size * (size_t)index;
            uint64_t value = 0;

            if (is_store) {
                value = values(block, &data[index], 1)[thread];
                value = launch->written((uint32_t)value, address + size * (size_t)index, block->multiprocessor, thread,
                                        launch->context) |
                        (value & ~(uint64_t)UINT32_MAX);
                memcpy(at, &value, size);
            } else {
                memcpy(&value, at, size);
                block->registers[data[index].value][thread] = value;
            }
        }
    }
    return PTX_OK;
}

static int add_in_memory(struct block *block, const struct instruction *now) {
    const struct ptx_launch *launch = block->launch;
    const uint64_t *base = values(block, &now->operands[1], 0);
    const uint64_t *added = values(block, &now->operands[2], 1);

    for (unsigned thread = 0; thread < launch->threads; thread++) {
        uint64_t address = base[thread] + now->offset;
        uint32_t old, sum;

        if (is_guarded_off(block, now, thread))
            continue;
        if (!launch->permitted(address, sizeof old, launch->context))
            return PTX_BAD_ADDRESS;
        memcpy(&old, (void *)(uintptr_t)address, sizeof old);
        sum = old + (uint32_t)added[thread];
        memcpy((void *)(uintptr_t)address, &sum, sizeof sum);
        block->registers[now->operands[0].value][thread] = old;
    }
    return PTX_OK;
}

/* A 16x16 matrix in a warp: lane L has row L/2, of it the eight elements from (L%2)*8 on; halves are kept as floats. */
static int load_matrix(struct block *block, const struct instruction *now) {
    const struct ptx_launch *launch = block->launch;
    int by_columns = now->detail[0] == 'b';
    const uint64_t *base = values(block, &now->operands[8], 0);

    for (unsigned thread = 0; thread < launch->threads; thread++) {
        unsigned row = thread % WARP / 2, first = thread % 2 * 8;

        if (!launch->permitted(base[thread], 512, launch->context))
            return PTX_BAD_ADDRESS;
        for (unsigned index = 0; index < 8; index++) {
            unsigned column = first + index, at = by_columns ? column * 16 + row : row * 16 + column;
            uint16_t bits;

            memcpy(&bits, (unsigned char *)(uintptr_t)base[thread] + 2 * at, sizeof bits);
            block->registers[now->operands[index].value][thread] = float_bits(half(bits));
        }
    }
    return PTX_OK;
}

static float element(const struct block *block, const struct operand *matrix, unsigned warp, unsigned row,
                     unsigned column) {
    return as_float(block->registers[matrix[column % 8].value][warp * WARP + row * 2 + column / 8]);
}

FAST static void multiply_matrices(struct block *block, const struct instruction *now) {
    const struct operand *to = now->operands, *a = to + 8, *b = to + 16, *c = to + 24;

    for (unsigned warp = 0; warp * WARP < block->launch->threads; warp++) {
        float left[16][16], right[16][16], sums[16][16];

        for (unsigned row = 0; row < 16; row++)
            for (unsigned column = 0; column < 16; column++) {
                left[row][column] = element(block, a, warp, row, column);
                right[row][column] = element(block, b, warp, row, column);
                sums[row][column] = element(block, c, warp, row, column);
            }
        for (unsigned row = 0; row < 16; row++)
            for (unsigned inner = 0; inner < 16; inner++)
                for (unsigned column = 0; column < 16; column++)
                    sums[row][column] += left[row][inner] * right[inner][column];
        for (unsigned row = 0; row < 16; row++)
            for (unsigned column = 0; column < 16; column++)
                block->registers[to[column % 8].value][warp * WARP + row * 2 + column / 8] =
                    float_bits(sums[row][column]);
    }
}

static int store_matrix(struct block *block, const struct instruction *now) {
    const struct ptx_launch *launch = block->launch;
    const uint64_t *base = values(block, &now->operands[0], 0);

    for (unsigned thread = 0; thread < launch->threads; thread++) {
        unsigned at = thread % WARP / 2 * 16 + thread % 2 * 8;

        if (!launch->permitted(base[thread], 1024, launch->context))
            return PTX_BAD_ADDRESS;
        for (unsigned index = 0; index < 8; index++) {
            uint64_t address = base[thread] + 4 * (at + index);
            uint32_t bits = launch->written((uint32_t)block->registers[now->operands[1 + index].value][thread], address,
                                            block->multiprocessor, thread, launch->context);

            memcpy((void *)(uintptr_t)address, &bits, sizeof bits);
        }
    }
    return PTX_OK;
}

/* Whether the branch is taken: -1 where the block's threads do not agree. */
static int taken(const struct block *block, const struct instruction *now) {
    int first = !is_guarded_off(block, now, 0);

    for (unsigned thread = 1; now->guard >= 0 && thread < block->launch->threads; thread++)
        if (is_guarded_off(block, now, thread) == first)
            return -1;
    return first;
}

static int run_block(struct block *block, int only_own) {
    int result = PTX_OK;

    for (int at = 0; at < block->kernel->instruction_count && result == PTX_OK; at++) {
        const struct instruction *now = &block->kernel->instructions[at];
        int is_taken;

        if (only_own && !now->of_block)
            continue;
        switch (now->operation) {
        case RETURN: return PTX_OK;
        case BRANCH:
            is_taken = taken(block, now);
            if (is_taken < 0)
                return PTX_UNSUPPORTED;
            if (is_taken)
                at = now->target - 1;
            break;
        case BARRIER: break;
        case LOAD_PARAMETER: load_parameter(block, now); break;
        case LOAD_SHARED:
        case STORE_SHARED: result = in_shared(block, now); break;
        case LOAD:
        case STORE: result = in_memory(block, now); break;
        case ATOMIC_ADD: result = add_in_memory(block, now); break;
        case MATRIX_LOAD: result = load_matrix(block, now); break;
        case MATRIX_MULTIPLY: multiply_matrices(block, now); break;
        case MATRIX_STORE: result = store_matrix(block, now); break;
        default: compute(block, now);
        }
    }
    return result;
}

int ptx_run(const struct ptx_kernel *kernel, const struct ptx_launch *launch) {
    struct block *block = calloc(1, sizeof *block);
    int result = launch->threads > MAX_THREADS ? PTX_UNSUPPORTED : PTX_OK;

    block->kernel = kernel;
    block->launch = launch;
    block->registers = calloc(MAX_REGISTERS, sizeof *block->registers);
    block->shared = calloc(1, kernel->shared_size + 1);
    for (unsigned number = 0; number < launch->blocks && result == PTX_OK; number++) {
        block->number = number;
        block->multiprocessor = launch->multiprocessor(number, launch->context);
        result = run_block(block, kernel->alike && number > 0);
    }
    free(block->shared);
    free(block->registers);
    free(block);
    return result;
}
