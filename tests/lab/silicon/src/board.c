/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Reading and writing the shared board file.
 *
 * The file is rewritten in place and never renamed: containers get it as a bind mount of one file, and a rename would
 * leave them with the old one. Its first line carries a generation number, so that an unchanged board is not parsed again.
 */
#define _GNU_SOURCE
#include "board.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { KEY_SIZE = 128 };

struct entry {
    char *key;
    char *value;
};

static struct {
    pthread_mutex_t mutex;
    char path[PATH_MAX];
    char directory[PATH_MAX];
    char root[PATH_MAX];
    char library_version[64];
    int descriptor;
    int writable;
    int dirty;
    pid_t owner;
    long long generation;
    struct entry *entries;
    size_t count;
    size_t room;
} board = {.mutex = PTHREAD_MUTEX_INITIALIZER, .descriptor = -1};

static void find_own_version(char *own_path) {
    Dl_info info;
    const char *mark;
    char resolved[PATH_MAX];

    own_path[0] = '\0';
    if (dladdr((void *)find_own_version, &info) == 0 || info.dli_fname == NULL)
        return;
    if (realpath(info.dli_fname, resolved) == NULL)
        return;
    snprintf(own_path, PATH_MAX, "%s", resolved);
    mark = strstr(resolved, ".so.");
    if (mark != NULL && strchr(mark + 4, '.') != NULL)
        snprintf(board.library_version, sizeof board.library_version, "%s", mark + 4);
}

static int try_path(const char *directory, const char *name, int directory_is_ours) {
    snprintf(board.path, sizeof board.path, "%s/%s", directory, name);
    board.descriptor = open(board.path, O_RDWR | O_CLOEXEC);
    board.writable = board.descriptor >= 0;
    if (board.descriptor < 0)
        board.descriptor = open(board.path, O_RDONLY | O_CLOEXEC);
    if (board.descriptor < 0)
        return 0;
    if (directory_is_ours)
        snprintf(board.directory, sizeof board.directory, "%s", directory);
    return 1;
}

/* The container toolkit may mount the board at the host's path; then the rest of the directory is missing. */
static int is_host_directory(const char *directory) {
    char path[PATH_MAX + 8];

    snprintf(path, sizeof path, "%s/proc", directory);
    return access(path, F_OK) == 0;
}

/* Where the board may be: a test's directory, the host, the host's root as privileged pods mount it, and last the file
 * that the container toolkit mounted because it lies beside the library and carries the driver's version. */
static int find_board(void) {
    static const char *const host_roots[] = {"", "/driver-root", "/host", "/run/nvidia/driver", NULL};
    const char *test_directory = secure_getenv("GPUSIM_DIR");
    char own_path[PATH_MAX];
    char directory[PATH_MAX];
    char *slash;

    find_own_version(own_path);
    if (test_directory != NULL) {
        snprintf(board.root, sizeof board.root, "%s", test_directory);
        return try_path(test_directory, "board", 1);
    }
    for (size_t i = 0; host_roots[i] != NULL; i++) {
        snprintf(directory, sizeof directory, "%s/var/lib/gpusim", host_roots[i]);
        if (try_path(directory, "board", is_host_directory(directory)))
            return 1;
    }
    slash = strrchr(own_path, '/');
    if (slash == NULL || board.library_version[0] == '\0')
        return 0;
    *slash = '\0';
    snprintf(directory, sizeof directory, "nvidia-gpusim.so.%s", board.library_version);
    return try_path(own_path, directory, 0);
}

static void forget(void) {
    for (size_t i = 0; i < board.count; i++) {
        free(board.entries[i].key);
        free(board.entries[i].value);
    }
    board.count = 0;
}

static void append(const char *key, const char *value) {
    if (board.count == board.room) {
        board.room = board.room ? board.room * 2 : 256;
        board.entries = realloc(board.entries, board.room * sizeof *board.entries);
        if (board.entries == NULL)
            abort();
    }
    board.entries[board.count].key = strdup(key);
    board.entries[board.count].value = strdup(value);
    board.count++;
}

static char *read_all(size_t *length) {
    struct stat status;
    char *text;
    ssize_t got;

    if (fstat(board.descriptor, &status) != 0)
        return NULL;
    text = malloc((size_t)status.st_size + 1);
    if (text == NULL)
        return NULL;
    got = pread(board.descriptor, text, (size_t)status.st_size, 0);
    if (got < 0) {
        free(text);
        return NULL;
    }
    text[got] = '\0';
    *length = (size_t)got;
    return text;
}

static int load(void) {
    char head[64] = "";
    size_t length;
    char *text;
    char *line;
    char *rest;

    if (pread(board.descriptor, head, sizeof head - 1, 0) <= 0)
        return -1;
    if (board.count > 0 && strncmp(head, "generation=", 11) == 0 && atoll(head + 11) == board.generation)
        return 0;
    text = read_all(&length);
    if (text == NULL)
        return -1;
    forget();
    rest = text;
    while ((line = strsep(&rest, "\n")) != NULL) {
        char *equals = strchr(line, '=');

        if (line[0] == '#' || equals == NULL)
            continue;
        *equals = '\0';
        if (strcmp(line, "generation") == 0)
            board.generation = atoll(equals + 1);
        else
            append(line, equals + 1);
    }
    free(text);
    return board.count > 0 ? 0 : -1;
}

static void save(void) {
    size_t size = 64;
    size_t used;
    char *text;

    for (size_t i = 0; i < board.count; i++)
        size += strlen(board.entries[i].key) + strlen(board.entries[i].value) + 2;
    text = malloc(size);
    if (text == NULL)
        return;
    board.generation++;
    used = (size_t)snprintf(text, size, "generation=%lld\n", board.generation);
    for (size_t i = 0; i < board.count; i++)
        used += (size_t)snprintf(text + used, size - used, "%s=%s\n", board.entries[i].key, board.entries[i].value);
    if (pwrite(board.descriptor, text, used, 0) == (ssize_t)used && ftruncate(board.descriptor, (off_t)used) != 0)
        board.generation = -1;
    free(text);
}

static int have_descriptor(void) {
    if (board.descriptor >= 0 && board.owner != getpid()) {
        close(board.descriptor); /* a forked child must not share its parent's lock */
        board.descriptor = -1;
    }
    if (board.descriptor < 0 && !find_board())
        return 0;
    board.owner = getpid();
    return 1;
}

void board_want_writable(void) {
    int descriptor;

    pthread_mutex_lock(&board.mutex);
    if (have_descriptor() && !board.writable && mount(NULL, board.path, NULL, MS_REMOUNT | MS_BIND, NULL) == 0 &&
        (descriptor = open(board.path, O_RDWR | O_CLOEXEC)) >= 0) {
        close(board.descriptor);
        board.descriptor = descriptor;
        board.writable = 1;
    }
    pthread_mutex_unlock(&board.mutex);
}

int board_open(int for_writing) {
    pthread_mutex_lock(&board.mutex);
    if (!have_descriptor()) {
        pthread_mutex_unlock(&board.mutex);
        return -1;
    }
    while (flock(board.descriptor, for_writing && board.writable ? LOCK_EX : LOCK_SH) != 0) {
        if (errno != EINTR) {
            pthread_mutex_unlock(&board.mutex);
            return -1;
        }
    }
    board.dirty = 0;
    if (load() != 0) {
        board_close();
        return -1;
    }
    return 0;
}

void board_close(void) {
    if (board.dirty && board.writable)
        save();
    flock(board.descriptor, LOCK_UN);
    pthread_mutex_unlock(&board.mutex);
}

static struct entry *find(const char *key) {
    for (size_t i = 0; i < board.count; i++)
        if (strcmp(board.entries[i].key, key) == 0)
            return &board.entries[i];
    return NULL;
}

#define FORMAT_KEY(key, key_format)                                   \
    char key[KEY_SIZE];                                               \
    do {                                                              \
        va_list arguments;                                            \
        va_start(arguments, key_format);                              \
        vsnprintf(key, sizeof key, key_format, arguments);            \
        va_end(arguments);                                            \
    } while (0)

const char *board_text(const char *fallback, const char *key_format, ...) {
    FORMAT_KEY(key, key_format);
    struct entry *entry = find(key);
    return entry != NULL ? entry->value : fallback;
}

long long board_number(long long fallback, const char *key_format, ...) {
    FORMAT_KEY(key, key_format);
    struct entry *entry = find(key);
    return entry != NULL && entry->value[0] != '\0' ? strtoll(entry->value, NULL, 0) : fallback;
}

static void put(const char *key, const char *value) {
    struct entry *entry = find(key);

    board.dirty = 1;
    if (entry == NULL) {
        append(key, value);
        return;
    }
    char *copy = strdup(value); /* before the free: value may be the entry's own text */
    free(entry->value);
    entry->value = copy;
}

void board_set(const char *value, const char *key_format, ...) {
    FORMAT_KEY(key, key_format);
    put(key, value);
}

void board_set_number(long long value, const char *key_format, ...) {
    char text[32];
    FORMAT_KEY(key, key_format);
    snprintf(text, sizeof text, "%lld", value);
    put(key, text);
}

void board_remove(const char *key_format, ...) {
    FORMAT_KEY(key, key_format);
    size_t length = strlen(key);
    size_t kept = 0;

    for (size_t i = 0; i < board.count; i++) {
        const char *name = board.entries[i].key;

        if (strncmp(name, key, length) == 0 && (name[length] == '\0' || name[length] == '.')) {
            free(board.entries[i].key);
            free(board.entries[i].value);
            board.dirty = 1;
        } else {
            board.entries[kept++] = board.entries[i];
        }
    }
    board.count = kept;
}

int board_next(const char *prefix, size_t *position, const char **key, const char **value) {
    size_t length = strlen(prefix);

    while (*position < board.count) {
        struct entry *entry = &board.entries[(*position)++];

        if (strncmp(entry->key, prefix, length) == 0) {
            *key = entry->key;
            *value = entry->value;
            return 1;
        }
    }
    return 0;
}

int board_writable(void) {
    return board.writable;
}

const char *board_path(void) {
    return board.path;
}

const char *board_directory(void) {
    return board.directory[0] != '\0' ? board.directory : NULL;
}

const char *board_root(void) {
    return board.root;
}

void board_log(const char *format, ...) {
    char path[PATH_MAX + 16];
    char line[512];
    struct timespec now;
    va_list arguments;
    int descriptor;
    int used;

    if (board.directory[0] == '\0')
        return;
    snprintf(path, sizeof path, "%s/calls.log", board.directory);
    descriptor = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (descriptor < 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    used = snprintf(line, sizeof line, "%lld.%03ld %d %s ", (long long)now.tv_sec, now.tv_nsec / 1000000, getpid(),
                    program_invocation_short_name);
    va_start(arguments, format);
    vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    strcat(line, "\n");
    if (write(descriptor, line, strlen(line)) < 0)
        used = 0; /* a log that cannot be written must not change what the call answers */
    close(descriptor);
}

const char *board_library_version(void) {
    return board.library_version[0] != '\0' ? board.library_version : NULL;
}
