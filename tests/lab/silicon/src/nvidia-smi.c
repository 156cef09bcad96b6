/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-smi, written against NVML's interface: what people and programs ask of it about nodes.
 *   nvidia-smi [-L] [-q] [-i IDS] [--query-gpu=FIELDS --format=csv[,noheader][,nounits]] [--query-compute-apps=...]
 *              [-r] [-mig 0|1] [-pm 0|1] [-c MODE] [topo -m] [--version]
 *              [mig -lgip|-lgi|-lci|-cgi PROFILE[:START],... [-C]|-gi ID -cci PROFILES|-dci|-dgi]
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <string.h>
#include <strings.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "nvml-client.h"

enum { BAD_ARGUMENT = 2, MAX_GPUS = 32, MIB = 1 << 20 };

static u32 gpu_indices[MAX_GPUS];
static nvmlDevice_t gpus[MAX_GPUS];
static u32 gpu_total;

/* ---- session ---- */

static const char *library_version(void) {
    return ((const char *(*)(void))nvml_symbol("gpusimLibraryVersion"))();
}

static void start(void) {
    nvmlReturn_t answer;

    if (!nvml_load()) {
        puts("NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display "
             "Driver is properly installed and present in your system.\n"
             "Please also try adding directory that contains libnvidia-ml.so to your system PATH.");
        exit(LIBRARY_NOT_FOUND);
    }
    answer = NVML(nvmlInitWithFlags, u32)(0);
    if (answer == SUCCESS)
        return;
    if (answer == DRIVER_NOT_LOADED) {
        puts("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
             "NVIDIA driver is installed and running.\n");
    } else {
        printf("Failed to initialize NVML: %s\n", nvml_error(answer));
        if (answer == LIB_RM_VERSION_MISMATCH) {
            char branch[16];
            snprintf(branch, sizeof branch, "%.*s", (int)strcspn(library_version(), "."), library_version());
            printf("NVML library version: %s.%s\n", branch, strchr(library_version(), '.') + 1);
        }
    }
    exit(answer);
}

static char *text_of(nvmlReturn_t answer, char *text) {
    if (answer != SUCCESS)
        strcpy(text, answer == NOT_SUPPORTED ? "[N/A]" : "[Unknown Error]");
    return text;
}

static void add_gpu(u32 index) {
    nvmlDevice_t device = NULL;
    nvmlReturn_t answer = NVML(nvmlDeviceGetHandleByIndex_v2, u32, nvmlDevice_t *)(index, &device);

    if (answer == INVALID_ARGUMENT) {
        puts("No devices were found");
        exit(NOT_FOUND);
    }
    if (answer != SUCCESS) {
        printf("Unable to determine the device handle for GPU%u: %s.  Reboot the system to recover this GPU\n", index,
               nvml_error(answer));
        exit(answer);
    }
    gpu_indices[gpu_total] = index;
    gpus[gpu_total++] = device;
}

static void add_named(const char *name) {
    nvmlDevice_t device = NULL;
    u32 index = 0;
    nvmlReturn_t answer;

    if (isdigit((unsigned char)name[0]) && strchr(name, ':') == NULL) {
        add_gpu((u32)atoi(name));
        return;
    }
    if (strncmp(name, "GPU-", 4) == 0)
        answer = NVML(nvmlDeviceGetHandleByUUID, const char *, nvmlDevice_t *)(name, &device);
    else
        answer = NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *, nvmlDevice_t *)(name, &device);
    if (answer != SUCCESS) {
        puts("No devices were found");
        exit(NOT_FOUND);
    }
    NVML(nvmlDeviceGetIndex, nvmlDevice_t, u32 *)(device, &index);
    add_gpu(index);
}

static void choose(const char *ids) {
    u32 count = 0;

    if (ids == NULL) {
        NVML(nvmlDeviceGetCount_v2, u32 *)(&count);
        for (u32 i = 0; i < count && i < MAX_GPUS; i++)
            add_gpu(i);
    } else {
        char *copy = strdup(ids);
        char *rest = copy;
        char *word;

        while ((word = strsep(&rest, ",")) != NULL)
            add_named(word);
        free(copy);
    }
    if (gpu_total == 0) {
        puts("No devices were found");
        exit(NOT_FOUND);
    }
}

/* ---- properties as text: one function a field, so that the table, -q and --query-gpu agree ---- */

typedef void (*field_writer)(u32 position, char *text, size_t size);

#define TEXT_FIELD(function, call)                                                                         \
    static void function(u32 position, char *text, size_t size) {                                          \
        text_of(NVML(call, nvmlDevice_t, char *, u32)(gpus[position], text, (u32)size), text);             \
    }
#define NUMBER_FIELD(function, call, format, divisor)                                                      \
    static void function(u32 position, char *text, size_t size) {                                          \
        u32 value = 0;                                                                                     \
        nvmlReturn_t answer = NVML(call, nvmlDevice_t, u32 *)(gpus[position], &value);                     \
        snprintf(text, size, format, value / (divisor));                                                   \
        text_of(answer, text);                                                                             \
    }

TEXT_FIELD(get_name, nvmlDeviceGetName)
TEXT_FIELD(get_uuid, nvmlDeviceGetUUID)
TEXT_FIELD(get_serial, nvmlDeviceGetSerial)
TEXT_FIELD(get_vbios, nvmlDeviceGetVbiosVersion)
TEXT_FIELD(get_inforom, nvmlDeviceGetInforomImageVersion)
NUMBER_FIELD(get_minor, nvmlDeviceGetMinorNumber, "%u", 1)
NUMBER_FIELD(get_module_id, nvmlDeviceGetModuleId, "%u", 1)
NUMBER_FIELD(get_link_generation, nvmlDeviceGetCurrPcieLinkGeneration, "%u", 1)
NUMBER_FIELD(get_link_width, nvmlDeviceGetCurrPcieLinkWidth, "%u", 1)
NUMBER_FIELD(get_fan, nvmlDeviceGetFanSpeed, "%u", 1)

static void get_index(u32 position, char *text, size_t size) {
    snprintf(text, size, "%u", gpu_indices[position]);
}

static void get_count(u32 position, char *text, size_t size) {
    u32 count = 0;

    (void)position;
    NVML(nvmlDeviceGetCount_v2, u32 *)(&count);
    snprintf(text, size, "%u", count);
}

static void get_driver(u32 position, char *text, size_t size) {
    (void)position;
    NVML(nvmlSystemGetDriverVersion, char *, u32)(text, (u32)size);
}

static void get_pci(u32 position, nvmlPciInfo_t *pci) {
    memset(pci, 0, sizeof *pci);
    NVML(nvmlDeviceGetPciInfo_v3, nvmlDevice_t, nvmlPciInfo_t *)(gpus[position], pci);
}

static void get_bus_id(u32 position, char *text, size_t size) {
    nvmlPciInfo_t pci;

    get_pci(position, &pci);
    snprintf(text, size, "%s", pci.busId);
}

static void get_device_id(u32 position, char *text, size_t size) {
    nvmlPciInfo_t pci;

    get_pci(position, &pci);
    snprintf(text, size, "0x%08X", pci.pciDeviceId);
}

static void get_subsystem_id(u32 position, char *text, size_t size) {
    nvmlPciInfo_t pci;

    get_pci(position, &pci);
    snprintf(text, size, "0x%08X", pci.pciSubSystemId);
}

static void get_capability(u32 position, char *text, size_t size) {
    int major = 0;
    int minor = 0;

    NVML(nvmlDeviceGetCudaComputeCapability, nvmlDevice_t, int *, int *)(gpus[position], &major, &minor);
    snprintf(text, size, "%d.%d", major, minor);
}

static nvmlMemory_v2_t memory_of(u32 position) {
    nvmlMemory_v2_t memory = {.version = STRUCT_VERSION(sizeof memory, 2)};

    NVML(nvmlDeviceGetMemoryInfo_v2, nvmlDevice_t, nvmlMemory_v2_t *)(gpus[position], &memory);
    return memory;
}

#define MEMORY_FIELD(function, member)                                      \
    static void function(u32 position, char *text, size_t size) {           \
        snprintf(text, size, "%llu MiB", memory_of(position).member / MIB); \
    }

MEMORY_FIELD(get_memory_total, total)
MEMORY_FIELD(get_memory_reserved, reserved)
MEMORY_FIELD(get_memory_used, used)
MEMORY_FIELD(get_memory_free, free)

static void get_temperature(u32 position, char *text, size_t size) {
    u32 celsius = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetTemperature, nvmlDevice_t, u32, u32 *)(gpus[position], 0, &celsius);

    snprintf(text, size, "%u", celsius);
    text_of(answer, text);
}

static void watts(nvmlReturn_t answer, u32 milliwatts, char *text, size_t size) {
    snprintf(text, size, "%.2f W", milliwatts / 1000.0);
    text_of(answer, text);
}

static void get_power(u32 position, char *text, size_t size) {
    u32 value = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetPowerUsage, nvmlDevice_t, u32 *)(gpus[position], &value);
    watts(answer, value, text, size);
}

static void get_power_limit(u32 position, char *text, size_t size) {
    u32 value = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetEnforcedPowerLimit, nvmlDevice_t, u32 *)(gpus[position], &value);
    watts(answer, value, text, size);
}

static void get_clock(u32 position, u32 type, char *text, size_t size) {
    u32 mhz = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetClockInfo, nvmlDevice_t, u32, u32 *)(gpus[position], type, &mhz);

    snprintf(text, size, "%u MHz", mhz);
    text_of(answer, text);
}

static void get_clock_sm(u32 position, char *text, size_t size) {
    get_clock(position, 1, text, size);
}

static void get_clock_memory(u32 position, char *text, size_t size) {
    get_clock(position, 2, text, size);
}

static void get_utilization(u32 position, char *text, size_t size) {
    nvmlUtilization_t rates = {0, 0};
    nvmlReturn_t answer = NVML(nvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlUtilization_t *)(gpus[position], &rates);

    snprintf(text, size, "%u %%", rates.gpu);
    text_of(answer, text);
}

static void get_utilization_memory(u32 position, char *text, size_t size) {
    nvmlUtilization_t rates = {0, 0};
    nvmlReturn_t answer = NVML(nvmlDeviceGetUtilizationRates, nvmlDevice_t, nvmlUtilization_t *)(gpus[position], &rates);

    snprintf(text, size, "%u %%", rates.memory);
    text_of(answer, text);
}

static void on_or_off(nvmlReturn_t answer, u32 value, char *text, size_t size) {
    snprintf(text, size, "%s", value ? "Enabled" : "Disabled");
    text_of(answer, text);
}

static void get_persistence(u32 position, char *text, size_t size) {
    u32 mode = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetPersistenceMode, nvmlDevice_t, u32 *)(gpus[position], &mode);
    on_or_off(answer, mode, text, size);
}

static void get_mig_current(u32 position, char *text, size_t size) {
    u32 current = 0;
    u32 pending = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetMigMode, nvmlDevice_t, u32 *, u32 *)(gpus[position], &current, &pending);
    on_or_off(answer, current, text, size);
}

static void get_mig_pending(u32 position, char *text, size_t size) {
    u32 current = 0;
    u32 pending = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetMigMode, nvmlDevice_t, u32 *, u32 *)(gpus[position], &current, &pending);
    on_or_off(answer, pending, text, size);
}

static void get_ecc_current(u32 position, char *text, size_t size) {
    u32 current = 0;
    u32 pending = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetEccMode, nvmlDevice_t, u32 *, u32 *)(gpus[position], &current, &pending);
    on_or_off(answer, current, text, size);
}

static void get_ecc_pending(u32 position, char *text, size_t size) {
    u32 current = 0;
    u32 pending = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetEccMode, nvmlDevice_t, u32 *, u32 *)(gpus[position], &current, &pending);
    on_or_off(answer, pending, text, size);
}

static void get_errors(u32 position, u32 type, u32 counter, char *text, size_t size) {
    u64 count = 0;
    nvmlReturn_t answer =
        NVML(nvmlDeviceGetTotalEccErrors, nvmlDevice_t, u32, u32, u64 *)(gpus[position], type, counter, &count);

    snprintf(text, size, "%llu", count);
    text_of(answer, text);
}

static void get_uncorrected_volatile(u32 position, char *text, size_t size) {
    get_errors(position, 1, 0, text, size);
}

static void get_uncorrected_aggregate(u32 position, char *text, size_t size) {
    get_errors(position, 1, 1, text, size);
}

static void get_corrected_volatile(u32 position, char *text, size_t size) {
    get_errors(position, 0, 0, text, size);
}

static void get_corrected_aggregate(u32 position, char *text, size_t size) {
    get_errors(position, 0, 1, text, size);
}

static void get_compute_mode(u32 position, char *text, size_t size) {
    static const char *const names[] = {"Default", "Exclusive_Thread", "Prohibited", "Exclusive_Process"};
    u32 mode = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetComputeMode, nvmlDevice_t, u32 *)(gpus[position], &mode);

    snprintf(text, size, "%s", names[mode & 3]);
    text_of(answer, text);
}

static void get_pstate(u32 position, char *text, size_t size) {
    u32 state = 0;
    nvmlReturn_t answer = NVML(nvmlDeviceGetPerformanceState, nvmlDevice_t, u32 *)(gpus[position], &state);

    snprintf(text, size, "P%u", state);
    text_of(answer, text);
}

static nvmlReturn_t fabric_of(u32 position, nvmlGpuFabricInfoV_t *info) {
    memset(info, 0, sizeof *info);
    info->version = STRUCT_VERSION(40, 3);
    return NVML(nvmlDeviceGetGpuFabricInfoV, nvmlDevice_t, nvmlGpuFabricInfoV_t *)(gpus[position], info);
}

static void get_fabric_state(u32 position, char *text, size_t size) {
    static const char *const names[] = {"N/A", "Not Started", "In Progress", "Completed"};
    nvmlGpuFabricInfoV_t info;
    nvmlReturn_t answer = fabric_of(position, &info);

    snprintf(text, size, "%s", answer == SUCCESS ? names[info.state & 3] : "N/A");
}

static void get_fabric_status(u32 position, char *text, size_t size) {
    nvmlGpuFabricInfoV_t info;
    nvmlReturn_t answer = fabric_of(position, &info);

    snprintf(text, size, "%s", answer == SUCCESS && info.state == 3 ? nvml_error(info.status) : "N/A");
}

static void get_timestamp(u32 position, char *text, size_t size) {
    time_t now = time(NULL);

    (void)position;
    strftime(text, size, "%Y/%m/%d %H:%M:%S.000", localtime(&now));
}

static const struct {
    const char *name;
    field_writer write;
    const char *header; /* NULL: the name */
} fields[] = {
    {"timestamp", get_timestamp, NULL},
    {"driver_version", get_driver, NULL},
    {"count", get_count, NULL},
    {"name", get_name, NULL},
    {"gpu_name", get_name, "name"},
    {"index", get_index, NULL},
    {"uuid", get_uuid, NULL},
    {"gpu_uuid", get_uuid, "uuid"},
    {"serial", get_serial, NULL},
    {"gpu_serial", get_serial, "serial"},
    {"minor_number", get_minor, NULL},
    {"module_id", get_module_id, NULL},
    {"gpu_bus_id", get_bus_id, "pci.bus_id"},
    {"pci.bus_id", get_bus_id, NULL},
    {"pci.device_id", get_device_id, NULL},
    {"pci.sub_device_id", get_subsystem_id, NULL},
    {"pcie.link.gen.current", get_link_generation, NULL},
    {"pcie.link.width.current", get_link_width, NULL},
    {"vbios_version", get_vbios, NULL},
    {"inforom.img", get_inforom, NULL},
    {"compute_cap", get_capability, NULL},
    {"compute_mode", get_compute_mode, NULL},
    {"pstate", get_pstate, NULL},
    {"fan.speed", get_fan, "fan.speed [%]"},
    {"memory.total", get_memory_total, "memory.total [MiB]"},
    {"memory.reserved", get_memory_reserved, "memory.reserved [MiB]"},
    {"memory.used", get_memory_used, "memory.used [MiB]"},
    {"memory.free", get_memory_free, "memory.free [MiB]"},
    {"utilization.gpu", get_utilization, "utilization.gpu [%]"},
    {"utilization.memory", get_utilization_memory, "utilization.memory [%]"},
    {"temperature.gpu", get_temperature, NULL},
    {"power.draw", get_power, "power.draw [W]"},
    {"power.limit", get_power_limit, "power.limit [W]"},
    {"enforced.power.limit", get_power_limit, "enforced.power.limit [W]"},
    {"clocks.sm", get_clock_sm, "clocks.current.sm [MHz]"},
    {"clocks.current.sm", get_clock_sm, "clocks.current.sm [MHz]"},
    {"clocks.gr", get_clock_sm, "clocks.current.graphics [MHz]"},
    {"clocks.mem", get_clock_memory, "clocks.current.memory [MHz]"},
    {"clocks.current.memory", get_clock_memory, "clocks.current.memory [MHz]"},
    {"persistence_mode", get_persistence, NULL},
    {"mig.mode.current", get_mig_current, NULL},
    {"mig.mode.pending", get_mig_pending, NULL},
    {"ecc.mode.current", get_ecc_current, NULL},
    {"ecc.mode.pending", get_ecc_pending, NULL},
    {"ecc.errors.corrected.volatile.total", get_corrected_volatile, NULL},
    {"ecc.errors.corrected.aggregate.total", get_corrected_aggregate, NULL},
    {"ecc.errors.uncorrected.volatile.total", get_uncorrected_volatile, NULL},
    {"ecc.errors.uncorrected.aggregate.total", get_uncorrected_aggregate, NULL},
    {"fabric.state", get_fabric_state, NULL},
    {"fabric.status", get_fabric_status, NULL},
};

static int field_named(const char *name) {
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (strcasecmp(fields[i].name, name) == 0)
            return (int)i;
    return -1;
}

static int query_gpus(const char *names, const char *format) {
    int chosen[64];
    int count = 0;
    char *copy = strdup(names);
    char *rest = copy;
    char *word;
    char text[128];

    while ((word = strsep(&rest, ",")) != NULL && count < 64) {
        while (*word == ' ')
            word++;
        chosen[count] = field_named(word);
        if (chosen[count++] < 0) {
            printf("Field \"%s\" is not a valid field to query.\n\n", word);
            return BAD_ARGUMENT;
        }
    }
    free(copy);
    if (strstr(format, "noheader") == NULL) {
        for (int i = 0; i < count; i++) {
            const char *header = fields[chosen[i]].header != NULL ? fields[chosen[i]].header : fields[chosen[i]].name;
            printf("%s%s", i ? ", " : "", header);
        }
        putchar('\n');
    }
    for (u32 position = 0; position < gpu_total; position++) {
        for (int i = 0; i < count; i++) {
            fields[chosen[i]].write(position, text, sizeof text);
            if (strstr(format, "nounits") != NULL && strncmp(text, "GPU-", 4) != 0 && isdigit((unsigned char)text[0]) &&
                fields[chosen[i]].header != NULL)
                text[strcspn(text, " ")] = '\0';
            printf("%s%s", i ? ", " : "", text);
        }
        putchar('\n');
    }
    return 0;
}

static int query_processes(const char *format) {
    if (strstr(format, "noheader") == NULL)
        puts("pid, process_name, gpu_uuid, used_gpu_memory [MiB]");
    for (u32 position = 0; position < gpu_total; position++) {
        nvmlProcessInfo_t infos[64];
        char uuid[96];
        char name[128];
        u32 count = 64;

        get_uuid(position, uuid, sizeof uuid);
        if (NVML(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t, u32 *, nvmlProcessInfo_t *)(
                gpus[position], &count, infos) != SUCCESS)
            continue;
        for (u32 i = 0; i < count; i++) {
            if (NVML(nvmlSystemGetProcessName, u32, char *, u32)(infos[i].pid, name, sizeof name) != SUCCESS)
                strcpy(name, "[Not Found]");
            printf("%u, %s, %s, %llu%s\n", infos[i].pid, name, uuid, infos[i].usedGpuMemory / MIB,
                   strstr(format, "nounits") != NULL ? "" : " MiB");
        }
    }
    return 0;
}

/* ---- -L, -q, table ---- */

/* The module cannot make the nodes of its MIG capabilities; nvidia-smi has nvidia-modprobe make those that are missing. */
static void make_capability_node(u32 gpu_minor, u32 gi, int ci) {
    char path[128];
    int used = snprintf(path, sizeof path, "/proc/driver/nvidia/capabilities/gpu%u/mig/gi%u", gpu_minor, gi);
    pid_t child;

    if (ci >= 0)
        used += snprintf(path + used, sizeof path - (size_t)used, "/ci%d", ci);
    snprintf(path + used, sizeof path - (size_t)used, "/access");
    if (access(path, R_OK) != 0)
        return;
    child = fork();
    if (child == 0) {
        execl("/usr/bin/nvidia-modprobe", "nvidia-modprobe", "-f", path, (char *)NULL);
        _exit(127);
    }
    waitpid(child, NULL, 0);
}

static void make_capability_nodes(u32 position, nvmlDevice_t device) {
    u32 gpu_minor = 0;
    u32 gi = 0;
    u32 ci = 0;

    NVML(nvmlDeviceGetMinorNumber, nvmlDevice_t, u32 *)(gpus[position], &gpu_minor);
    NVML(nvmlDeviceGetGpuInstanceId, nvmlDevice_t, u32 *)(device, &gi);
    NVML(nvmlDeviceGetComputeInstanceId, nvmlDevice_t, u32 *)(device, &ci);
    make_capability_node(gpu_minor, gi, -1);
    make_capability_node(gpu_minor, gi, (int)ci);
}

static void list_mig_devices(u32 position) {
    u32 count = 0;

    NVML(nvmlDeviceGetMaxMigDeviceCount, nvmlDevice_t, u32 *)(gpus[position], &count);
    for (u32 i = 0; i < count; i++) {
        nvmlDevice_t device;
        char name[128];
        char uuid[96];
        const char *profile;

        if (NVML(nvmlDeviceGetMigDeviceHandleByIndex, nvmlDevice_t, u32, nvmlDevice_t *)(gpus[position], i, &device) !=
            SUCCESS)
            continue;
        NVML(nvmlDeviceGetName, nvmlDevice_t, char *, u32)(device, name, sizeof name);
        NVML(nvmlDeviceGetUUID, nvmlDevice_t, char *, u32)(device, uuid, sizeof uuid);
        make_capability_nodes(position, device);
        profile = strstr(name, "MIG ");
        printf("  MIG %-15s Device %2u: (UUID: %s)\n", profile != NULL ? profile + 4 : "", i, uuid);
    }
}

static int list_gpus(void) {
    char name[128];
    char uuid[96];

    for (u32 position = 0; position < gpu_total; position++) {
        get_name(position, name, sizeof name);
        get_uuid(position, uuid, sizeof uuid);
        printf("GPU %u: %s (UUID: %s)\n", gpu_indices[position], name, uuid);
        list_mig_devices(position);
    }
    return 0;
}

static void line(const char *label, int depth, u32 position, field_writer write) {
    char text[128];

    write(position, text, sizeof text);
    if (text[0] == '[' && strcmp(text, "[N/A]") == 0)
        strcpy(text, "N/A");
    printf("%*s%-*s: %s\n", depth * 4, "", 50 - depth * 4, label, text);
}

static void cuda_version(char *text, size_t size) {
    int version = 0;

    NVML(nvmlSystemGetCudaDriverVersion_v2, int *)(&version);
    snprintf(text, size, "%d.%d", version / 1000, version % 1000 / 10);
}

static void print_fabric(u32 position) {
    static const char *const summaries[] = {"N/A", "Healthy", "Unhealthy", "Limited Capacity"};
    static const char *const bandwidths[] = {"N/A", "Degraded", "Full", "N/A"};
    nvmlGpuFabricInfoV_t info;
    char state[32];

    get_fabric_state(position, state, sizeof state);
    puts("    Fabric");
    line("State", 2, position, get_fabric_state);
    line("Status", 2, position, get_fabric_status);
    if (strcmp(state, "Completed") != 0 || fabric_of(position, &info) != SUCCESS) {
        printf("        %-42s: N/A\n        %-42s: N/A\n", "CliqueId", "ClusterUUID");
        return;
    }
    printf("        %-42s: %u\n        %-42s: ", "CliqueId", info.cliqueId, "ClusterUUID");
    for (int i = 0; i < 16; i++)
        printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", info.clusterUuid[i]);
    printf("\n        Health\n            %-38s: %s\n", "Summary", summaries[info.healthSummary & 3]);
    printf("            %-38s: %s\n", "Bandwidth", bandwidths[info.healthMask & 3]);
}

static void print_details(u32 position) {
    char bus[64];

    get_bus_id(position, bus, sizeof bus);
    printf("\nGPU %s\n", bus);
    line("Product Name", 1, position, get_name);
    line("Persistence Mode", 1, position, get_persistence);
    puts("    MIG Mode");
    line("Current", 2, position, get_mig_current);
    line("Pending", 2, position, get_mig_pending);
    line("Serial Number", 1, position, get_serial);
    line("GPU UUID", 1, position, get_uuid);
    line("Minor Number", 1, position, get_minor);
    line("VBIOS Version", 1, position, get_vbios);
    puts("    Inforom Version");
    line("Image Version", 2, position, get_inforom);
    puts("    PCI");
    line("Device Id", 2, position, get_device_id);
    line("Bus Id", 2, position, get_bus_id);
    line("Sub System Id", 2, position, get_subsystem_id);
    line("Performance State", 1, position, get_pstate);
    puts("    FB Memory Usage");
    line("Total", 2, position, get_memory_total);
    line("Reserved", 2, position, get_memory_reserved);
    line("Used", 2, position, get_memory_used);
    line("Free", 2, position, get_memory_free);
    line("Compute Mode", 1, position, get_compute_mode);
    puts("    Utilization");
    line("GPU", 2, position, get_utilization);
    line("Memory", 2, position, get_utilization_memory);
    puts("    ECC Mode");
    line("Current", 2, position, get_ecc_current);
    line("Pending", 2, position, get_ecc_pending);
    puts("    ECC Errors\n        Volatile");
    line("DRAM Correctable", 3, position, get_corrected_volatile);
    line("DRAM Uncorrectable", 3, position, get_uncorrected_volatile);
    puts("        Aggregate");
    line("DRAM Correctable", 3, position, get_corrected_aggregate);
    line("DRAM Uncorrectable", 3, position, get_uncorrected_aggregate);
    puts("    Temperature");
    line("GPU Current Temp", 2, position, get_temperature);
    puts("    GPU Power Readings");
    line("Instantaneous Power Draw", 2, position, get_power);
    line("Current Power Limit", 2, position, get_power_limit);
    puts("    Clocks");
    line("SM", 2, position, get_clock_sm);
    line("Memory", 2, position, get_clock_memory);
    print_fabric(position);
}

static int query(void) {
    char text[128];
    u32 count = 0;
    time_t now = time(NULL);

    strftime(text, sizeof text, "%a %b %e %H:%M:%S %Y", localtime(&now));
    printf("\n==============NVSMI LOG==============\n\n%-50s: %s\n", "Timestamp", text);
    get_driver(0, text, sizeof text);
    printf("%-50s: %s\n", "Driver Version", text);
    cuda_version(text, sizeof text);
    printf("%-50s: %s\n\n", "CUDA Version", text);
    NVML(nvmlDeviceGetCount_v2, u32 *)(&count);
    printf("%-50s: %u\n", "Attached GPUs", count);
    for (u32 position = 0; position < gpu_total; position++)
        print_details(position);
    return 0;
}

static void rule(char corner, char dash, int parts) {
    static const int widths[] = {41, 24, 22};

    putchar(corner == '|' ? '|' : '+');
    for (int i = 0; i < parts; i++) {
        for (int j = 0; j < widths[i]; j++)
            putchar(dash);
        putchar(i + 1 < parts ? '+' : corner == '|' ? '|' : '+');
    }
    putchar('\n');
}

static void print_row(u32 position) {
    char a[128], b[128], c[128], d[128];

    get_name(position, a, sizeof a);
    get_persistence(position, b, sizeof b);
    get_bus_id(position, c, sizeof c);
    get_uncorrected_volatile(position, d, sizeof d);
    printf("|%4u  %-25.25s %8.8s  |   %-16s Off | %20.20s |\n", gpu_indices[position], a,
           strcmp(b, "Enabled") == 0 ? "On" : "Off", c, strcmp(d, "[N/A]") == 0 ? "Off" : d);
    get_temperature(position, a, sizeof a);
    get_pstate(position, b, sizeof b);
    get_power(position, c, sizeof c);
    get_power_limit(position, d, sizeof d);
    printf("| N/A  %3sC  %4s %11.0fW / %4.0fW  |", a, b, atof(c), atof(d));
    snprintf(a, sizeof a, "%lluMiB / %6lluMiB", memory_of(position).used / MIB, memory_of(position).total / MIB);
    get_utilization(position, b, sizeof b);
    get_compute_mode(position, c, sizeof c);
    b[strcspn(b, " ")] = '\0';
    printf(" %22s | %7s%% %11.11s |\n", a, strcmp(b, "[N/A]") == 0 ? "N/A" : b, c);
    get_mig_current(position, d, sizeof d);
    printf("| %39s |                        | %20s |\n", "", strcmp(d, "[N/A]") == 0 ? "N/A" : d);
}

static void print_processes(void) {
    int found = 0;

    puts("\n+-----------------------------------------------------------------------------------------+");
    puts("| Processes:                                                                              |");
    puts("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |");
    puts("|        ID   ID                                                               Usage      |");
    puts("|=========================================================================================|");
    for (u32 position = 0; position < gpu_total; position++) {
        nvmlProcessInfo_t infos[64];
        char name[128];
        u32 count = 64;

        if (NVML(nvmlDeviceGetComputeRunningProcesses_v3, nvmlDevice_t, u32 *, nvmlProcessInfo_t *)(
                gpus[position], &count, infos) != SUCCESS)
            continue;
        for (u32 i = 0; i < count; i++, found++) {
            if (NVML(nvmlSystemGetProcessName, u32, char *, u32)(infos[i].pid, name, sizeof name) != SUCCESS)
                strcpy(name, "[Not Found]");
            printf("|%5u  N/A  N/A   %14u      C   %-36.36s %7lluMiB |\n", gpu_indices[position], infos[i].pid, name,
                   infos[i].usedGpuMemory / MIB);
        }
    }
    if (found == 0)
        puts("|  No running processes found                                                             |");
    puts("+-----------------------------------------------------------------------------------------+");
}

static int table(void) {
    char now_text[64];
    char driver[80];
    char cuda[16];
    time_t now = time(NULL);

    strftime(now_text, sizeof now_text, "%a %b %e %H:%M:%S %Y", localtime(&now));
    get_driver(0, driver, sizeof driver);
    cuda_version(cuda, sizeof cuda);
    puts(now_text);
    puts("+-----------------------------------------------------------------------------------------+");
    printf("| NVIDIA-SMI %-22s Driver Version: %-14s CUDA Version: %-9s|\n", library_version(), driver, cuda);
    rule('|', '-', 3);
    puts("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |");
    puts("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |");
    puts("|                                         |                        |               MIG M. |");
    rule('|', '=', 3);
    for (u32 position = 0; position < gpu_total; position++) {
        print_row(position);
        rule('+', '-', 3);
    }
    print_processes();
    return 0;
}

/* ---- changes ---- */

/* Before Ampere, GPUs that NVLink joins are reset together or not at all. */
static int tell_missing_peers(void) {
    enum { AMPERE = 7, LINKS = 18 };
    int missing = 0;

    for (u32 position = 0; position < gpu_total; position++) {
        u32 architecture = AMPERE;

        NVML(nvmlDeviceGetArchitecture, nvmlDevice_t, u32 *)(gpus[position], &architecture);
        for (u32 link = 0; architecture < AMPERE && link < LINKS; link++) {
            nvmlPciInfo_t peer;
            nvmlDevice_t device = NULL;
            u32 there = 0;

            if (NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2, nvmlDevice_t, u32, nvmlPciInfo_t *)(gpus[position], link,
                                                                                            &peer) != SUCCESS ||
                NVML(nvmlDeviceGetHandleByPciBusId_v2, const char *, nvmlDevice_t *)(peer.busId, &device) != SUCCESS)
                continue;
            while (there < gpu_total && gpus[there] != device)
                there++;
            if (there == gpu_total && missing++ == 0)
                puts("GPUs with NVLink connections must be reset in the same command. Not given:");
            if (there == gpu_total)
                printf("  GPU %s\n", peer.busId);
        }
    }
    return missing;
}

static int reset(int all, u32 by_bus) {
    int worst = 0;
    char bus[64];

    if (tell_missing_peers() > 0)
        return BAD_ARGUMENT;
    for (u32 position = 0; position < gpu_total; position++) {
        nvmlReturn_t answer = NVML(gpusimResetGpu, nvmlDevice_t, u32)(gpus[position], by_bus);

        get_bus_id(position, bus, sizeof bus);
        if (answer == SUCCESS) {
            printf("GPU %s was successfully reset.\n", bus);
            continue;
        }
        worst = answer == IN_USE ? 255 : answer;
        if (answer == IN_USE)
            printf("The following GPUs could not be reset:\n  GPU %s: In use by another client\n\n"
                   "1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA "
                   "application, graphics application such as an X server, or a monitoring application such as another "
                   "instance of nvidia-smi). Please first kill all processes using this device and all compute "
                   "applications running in the system.\n", bus);
        else
            printf("Unable to reset GPU %s: %s\n", bus, nvml_error(answer));
    }
    (void)all;
    if (worst == 0)
        puts("All done.");
    return worst;
}

static int set_mig_mode(u32 mode) {
    int worst = 0;
    char bus[64];

    for (u32 position = 0; position < gpu_total; position++) {
        nvmlReturn_t status = SUCCESS;
        nvmlReturn_t answer =
            NVML(nvmlDeviceSetMigMode, nvmlDevice_t, u32, nvmlReturn_t *)(gpus[position], mode, &status);

        get_bus_id(position, bus, sizeof bus);
        if (answer != SUCCESS) {
            printf("Unable to %s MIG Mode for GPU %s: %s\n", mode ? "enable" : "disable", bus, nvml_error(answer));
            worst = answer;
        } else if (status != SUCCESS) {
            printf("Warning: MIG mode is in pending %s state for GPU %s:%s\n", mode ? "enable" : "disable", bus,
                   nvml_error(status));
        } else {
            printf("%s MIG Mode for GPU %s\n", mode ? "Enabled" : "Disabled", bus);
        }
    }
    if (worst != 0)
        printf("Terminating early due to previous errors.\n");
    else
        puts("All done.");
    return worst;
}

static int set_number(const char *call, const char *what, u32 value) {
    int worst = 0;
    char bus[64];

    for (u32 position = 0; position < gpu_total; position++) {
        nvmlReturn_t answer = ((nvmlReturn_t(*)(nvmlDevice_t, u32))nvml_symbol(call))(gpus[position], value);

        get_bus_id(position, bus, sizeof bus);
        if (answer != SUCCESS) {
            printf("Unable to set %s for GPU %s: %s\n", what, bus, nvml_error(answer));
            worst = answer;
        } else {
            printf("Set %s to %u for GPU %s.\n", what, value, bus);
        }
    }
    if (worst == 0)
        puts("All done.");
    return worst;
}

/* MIN,MAX or one number for both. */
static int lock_clocks(const char *call, const char *what, const char *clocks) {
    u32 least = 0, most = 0;
    int worst = 0;
    char bus[64];

    if (sscanf(clocks, "%u,%u", &least, &most) < 2)
        most = least;
    for (u32 position = 0; position < gpu_total; position++) {
        nvmlReturn_t answer = ((nvmlReturn_t(*)(nvmlDevice_t, u32, u32))nvml_symbol(call))(gpus[position], least, most);

        get_bus_id(position, bus, sizeof bus);
        if (answer != SUCCESS) {
            printf("Setting locked %s clocks is not supported for GPU %s: %s\n", what, bus, nvml_error(answer));
            worst = answer;
        } else {
            printf("%s clocks set to \"(%sClkMin %u, %sClkMax %u)\" for GPU %s\n", what, what, least, what, most, bus);
        }
    }
    puts(worst == 0 ? "All done." : "Terminating early due to previous errors.");
    return worst;
}

static int unlock_clocks(const char *call) {
    int worst = 0;

    for (u32 position = 0; position < gpu_total; position++) {
        nvmlReturn_t answer = ((nvmlReturn_t(*)(nvmlDevice_t))nvml_symbol(call))(gpus[position]);

        worst = answer != SUCCESS ? answer : worst;
    }
    puts(worst == 0 ? "All done." : nvml_error(worst));
    return worst;
}

/* ---- nvidia-smi mig ---- */

static int profile_info(u32 position, u32 number, nvmlGpuInstanceProfileInfo_v2_t *info) {
    memset(info, 0, sizeof *info);
    info->version = STRUCT_VERSION(sizeof *info, 2);
    return NVML(nvmlDeviceGetGpuInstanceProfileInfoV, nvmlDevice_t, u32, nvmlGpuInstanceProfileInfo_v2_t *)(
        gpus[position], number, info);
}

static int list_profiles(void) {
    nvmlGpuInstanceProfileInfo_v2_t info;
    int found = 0;

    puts("+-------------------------------------------------------------------------------+");
    puts("| GPU instance profiles:                                                        |");
    puts("| GPU   Name               ID    Instances   Memory     P2P    SM    DEC   ENC  |");
    puts("|                                Free/Total   GiB              CE    JPEG  OFA  |");
    puts("|===============================================================================|");
    for (u32 position = 0; position < gpu_total; position++)
        for (u32 number = 0; number < 0x12; number++) {
            u32 left = 0;

            if (profile_info(position, number, &info) != SUCCESS)
                continue;
            found++;
            NVML(nvmlDeviceGetGpuInstanceRemainingCapacity, nvmlDevice_t, u32, u32 *)(gpus[position], info.id, &left);
            printf("| %3u  %-18s %2u     %u/%u        %-9.2f  %-3s   %4u   %3u   %3u  |\n", gpu_indices[position], info.name,
                   info.id, left, info.instanceCount, (double)info.memorySizeMB / 1024,
                   info.isP2pSupported ? "Yes" : "No", info.multiprocessorCount, info.decoderCount, info.encoderCount);
            printf("| %60s %4u   %3u   %3u  |\n", "", info.copyEngineCount, info.jpegCount, info.ofaCount);
            puts("+-------------------------------------------------------------------------------+");
        }
    if (found == 0)
        puts("No MIG-supported devices found.");
    return found ? 0 : NOT_FOUND;
}

static int for_each_instance(void (*visit)(u32, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t *)) {
    int found = 0;

    for (u32 position = 0; position < gpu_total; position++)
        for (u32 id = 0; id < 16; id++) {
            nvmlGpuInstance_t instance;
            nvmlGpuInstanceInfo_t info;

            if (NVML(nvmlDeviceGetGpuInstanceById, nvmlDevice_t, u32, nvmlGpuInstance_t *)(gpus[position], id,
                                                                                         &instance) != SUCCESS)
                continue;
            NVML(nvmlGpuInstanceGetInfo, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t *)(instance, &info);
            visit(position, instance, &info);
            found++;
        }
    return found;
}

static nvmlReturn_t worst_answer;

static void print_instance(u32 position, nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    nvmlGpuInstanceProfileInfo_v2_t profile = {.version = STRUCT_VERSION(sizeof profile, 2)};

    (void)instance;
    NVML(nvmlDeviceGetGpuInstanceProfileInfoByIdV, nvmlDevice_t, u32, nvmlGpuInstanceProfileInfo_v2_t *)(
        gpus[position], info->profileId, &profile);
    printf("| %3u  %-20s %4u      %4u        %4u:%-4u     |\n", gpu_indices[position], profile.name, info->profileId,
           info->id, info->placement.start, info->placement.size);
}

static void destroy_instance(u32 position, nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    nvmlReturn_t answer = NVML(nvmlGpuInstanceDestroy, nvmlGpuInstance_t)(instance);

    if (answer == SUCCESS) {
        printf("Successfully destroyed GPU instance ID %2u from GPU %2u\n", info->id, gpu_indices[position]);
    } else {
        printf("Unable to destroy GPU instance ID %2u from GPU %2u: %s\n", info->id, gpu_indices[position],
               nvml_error(answer));
        worst_answer = answer;
    }
}

static void destroy_computes(u32 position, nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    for (u32 id = 0; id < 8; id++) {
        nvmlComputeInstance_t compute;
        nvmlReturn_t answer;

        if (NVML(nvmlGpuInstanceGetComputeInstanceById, nvmlGpuInstance_t, u32, nvmlComputeInstance_t *)(
                instance, id, &compute) != SUCCESS)
            continue;
        answer = NVML(nvmlComputeInstanceDestroy, nvmlComputeInstance_t)(compute);
        printf("%s compute instance ID %2u from GPU %2u GPU instance ID %2u\n",
               answer == SUCCESS ? "Successfully destroyed" : "Unable to destroy", id, gpu_indices[position], info->id);
        worst_answer = answer != SUCCESS ? answer : worst_answer;
    }
}

static void print_computes(u32 position, nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    for (u32 id = 0; id < 8; id++) {
        nvmlComputeInstance_t compute;
        nvmlComputeInstanceInfo_t details;

        if (NVML(nvmlGpuInstanceGetComputeInstanceById, nvmlGpuInstance_t, u32, nvmlComputeInstance_t *)(
                instance, id, &compute) != SUCCESS)
            continue;
        NVML(nvmlComputeInstanceGetInfo_v2, nvmlComputeInstance_t, nvmlComputeInstanceInfo_t *)(compute, &details);
        printf("| %3u    %4u     %4u      %4u        %4u:%-4u     |\n", gpu_indices[position], info->id,
               details.profileId, details.id, details.placement.start, details.placement.size);
    }
}

static u32 profile_id(u32 position, const char *word) {
    nvmlGpuInstanceProfileInfo_v2_t info;

    if (strchr(word, 'g') == NULL)
        return (u32)atoi(word);
    for (u32 number = 0; number < 0x12; number++)
        if (profile_info(position, number, &info) == SUCCESS && strcmp(info.name + 4, word) == 0)
            return info.id;
    return 0xffffffff;
}

static u32 units_of_profile(u32 position, u32 id) {
    nvmlPlacement_t places[16];
    u32 count = 16;

    return NVML(nvmlDeviceGetGpuInstancePossiblePlacements_v2, nvmlDevice_t, u32, nvmlPlacement_t *, u32 *)(
               gpus[position], id, places, &count) == SUCCESS && count > 0 ? places[0].size : 0;
}

/* word: PROFILE or PROFILE:START */
static nvmlReturn_t create_instance(u32 position, char *word, nvmlGpuInstance_t *instance) {
    char *start = strchr(word, ':');
    nvmlPlacement_t placement;
    u32 id;

    if (start != NULL)
        *start++ = '\0';
    id = profile_id(position, word);
    if (start == NULL)
        return NVML(nvmlDeviceCreateGpuInstance, nvmlDevice_t, u32, nvmlGpuInstance_t *)(gpus[position], id, instance);
    placement = (nvmlPlacement_t){(u32)atoi(start), units_of_profile(position, id)};
    return NVML(nvmlDeviceCreateGpuInstanceWithPlacement, nvmlDevice_t, u32, const nvmlPlacement_t *,
                nvmlGpuInstance_t *)(gpus[position], id, &placement, instance);
}

static nvmlReturn_t create_one(u32 position, char *word, int with_compute) {
    nvmlGpuInstance_t instance;
    nvmlGpuInstanceInfo_t info;
    nvmlComputeInstanceProfileInfo_t compute;
    nvmlComputeInstance_t created;
    nvmlReturn_t answer = create_instance(position, word, &instance);

    if (answer != SUCCESS) {
        printf("Unable to create a GPU instance on GPU %2u using profile %s: %s\n", gpu_indices[position], word,
               nvml_error(answer));
        return answer;
    }
    NVML(nvmlGpuInstanceGetInfo, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t *)(instance, &info);
    printf("Successfully created GPU instance ID %2u on GPU %2u using profile %s\n", info.id, gpu_indices[position], word);
    for (int number = 8; with_compute && number >= 0; number--)
        if (NVML(nvmlGpuInstanceGetComputeInstanceProfileInfo, nvmlGpuInstance_t, u32, u32,
                 nvmlComputeInstanceProfileInfo_t *)(instance, (u32)number, 0, &compute) == SUCCESS)
            return NVML(nvmlGpuInstanceCreateComputeInstance, nvmlGpuInstance_t, u32, nvmlComputeInstance_t *)(
                instance, compute.id, &created);
    return SUCCESS;
}

static int create_instances(const char *words, int with_compute) {
    for (u32 position = 0; position < gpu_total; position++) {
        char *copy = strdup(words);
        char *rest = copy;
        char *word;

        while ((word = strsep(&rest, ",")) != NULL) {
            nvmlReturn_t answer = create_one(position, word, with_compute);
            if (answer != SUCCESS)
                return answer;
        }
        free(copy);
    }
    return 0;
}

static int create_computes(u32 wanted, const char *words) {
    for (u32 position = 0; position < gpu_total; position++) {
        nvmlGpuInstance_t instance;
        nvmlComputeInstance_t created;
        char *copy = strdup(words);
        char *rest = copy;
        char *word;

        if (NVML(nvmlDeviceGetGpuInstanceById, nvmlDevice_t, u32, nvmlGpuInstance_t *)(gpus[position], wanted,
                                                                                     &instance) != SUCCESS)
            return NOT_FOUND;
        while ((word = strsep(&rest, ",")) != NULL) {
            nvmlReturn_t answer = NVML(nvmlGpuInstanceCreateComputeInstance, nvmlGpuInstance_t, u32,
                                       nvmlComputeInstance_t *)(instance, (u32)atoi(word), &created);
            if (answer != SUCCESS) {
                printf("Unable to create a compute instance on GPU %2u GPU instance ID %2u using profile %s: %s\n",
                       gpu_indices[position], wanted, word, nvml_error(answer));
                return answer;
            }
            printf("Successfully created compute instance on GPU %2u GPU instance ID %2u using profile %s\n",
                   gpu_indices[position], wanted, word);
        }
        free(copy);
    }
    return 0;
}

static int mig(int argc, char **argv) {
    const char *ids = NULL;
    const char *create = NULL;
    const char *create_in = NULL;
    const char *action = NULL;
    u32 parent = 0;
    int with_compute = 0;

    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "-i") == 0 && i + 1 < argc)
            ids = argv[++i];
        else if (strcmp(argv[i], "-cgi") == 0 && i + 1 < argc)
            create = argv[++i];
        else if (strcmp(argv[i], "-cci") == 0 && i + 1 < argc)
            create_in = argv[++i];
        else if (strcmp(argv[i], "-gi") == 0 && i + 1 < argc)
            parent = (u32)atoi(argv[++i]);
        else if (strcmp(argv[i], "-C") == 0)
            with_compute = 1;
        else
            action = argv[i];
    }
    start();
    choose(ids);
    if (create != NULL)
        return create_instances(create, with_compute);
    if (create_in != NULL)
        return create_computes(parent, create_in);
    if (action != NULL && strcmp(action, "-lgip") == 0)
        return list_profiles();
    if (action != NULL && strcmp(action, "-lgi") == 0) {
        puts("| GPU  Name               Profile ID  Instance ID  Start:Size    |");
        if (for_each_instance(print_instance) == 0) {
            puts("No GPU instances found: Not Found");
            return NOT_FOUND;
        }
    } else if (action != NULL && strcmp(action, "-lci") == 0) {
        puts("| GPU  Instance  Profile ID  Compute ID  Start:Size    |");
        for_each_instance(print_computes);
    } else if (action != NULL && strcmp(action, "-dci") == 0) {
        for_each_instance(destroy_computes);
    } else if (action != NULL && strcmp(action, "-dgi") == 0) {
        for_each_instance(destroy_instance);
    } else {
        printf("Option \"%s\" is not recognized.\n", action != NULL ? action : "mig");
        return BAD_ARGUMENT;
    }
    return worst_answer;
}

static int topology(void) {
    start();
    choose(NULL);
    printf("\t");
    for (u32 i = 0; i < gpu_total; i++)
        printf("GPU%u\t", gpu_indices[i]);
    putchar('\n');
    for (u32 row = 0; row < gpu_total; row++) {
        printf("GPU%u\t", gpu_indices[row]);
        for (u32 column = 0; column < gpu_total; column++) {
            u32 level = 50;
            u32 links = 0;
            u32 active = 0;

            while (NVML(nvmlDeviceGetNvLinkState, nvmlDevice_t, u32, u32 *)(gpus[row], links, &active) == SUCCESS && active)
                links++;
            NVML(nvmlDeviceGetTopologyCommonAncestor, nvmlDevice_t, nvmlDevice_t, u32 *)(gpus[row], gpus[column], &level);
            if (row == column)
                printf(" X \t");
            else if (links > 0)
                printf("NV%u\t", links);
            else
                printf("%s\t", level == 50 ? "SYS" : level == 40 ? "NODE" : "PIX");
        }
        putchar('\n');
    }
    return 0;
}

/* ---- options ---- */

struct options {
    const char *ids, *query_gpu, *query_apps, *format;
    int list, query, reset, by_bus, version;
    int mig_mode, persistence, compute_mode, power_limit, ecc, deferred_clock;
    int reset_gpu_clocks, reset_memory_clocks, reset_deferred_clock;
    const char *gpu_clocks, *memory_clocks;
};

static const char *value_of(int argc, char **argv, int *i, const char *name) {
    size_t length = strlen(name);

    if (strncmp(argv[*i], name, length) != 0)
        return NULL;
    if (argv[*i][length] == '=')
        return argv[*i] + length + 1;
    if (argv[*i][length] == '\0' && *i + 1 < argc)
        return argv[++*i];
    return NULL;
}

static int flag_option(const char *word, struct options *options) {
    if (strcmp(word, "-L") == 0 || strcmp(word, "--list-gpus") == 0)
        return options->list = 1;
    if (strcmp(word, "-q") == 0 || strcmp(word, "--query") == 0)
        return options->query = 1;
    if (strcmp(word, "-r") == 0 || strcmp(word, "--gpu-reset") == 0)
        return options->reset = 1;
    if (strcmp(word, "--version") == 0)
        return options->version = 1;
    if (strcmp(word, "-rgc") == 0 || strcmp(word, "--reset-gpu-clocks") == 0)
        return options->reset_gpu_clocks = 1;
    if (strcmp(word, "-rmc") == 0 || strcmp(word, "--reset-memory-clocks") == 0)
        return options->reset_memory_clocks = 1;
    if (strcmp(word, "-rmcd") == 0 || strcmp(word, "--reset-memory-clocks-deferred") == 0)
        return options->reset_deferred_clock = 1;
    return 0;
}

static void read_options(int argc, char **argv, struct options *options) {
    for (int i = 1; i < argc; i++) {
        const char *value;

        if (flag_option(argv[i], options)) {
            if (options->reset && i + 1 < argc && strcmp(argv[i + 1], "bus") == 0)
                options->by_bus = ++i > 0;
            continue;
        }
        if ((value = value_of(argc, argv, &i, "-i")) != NULL || (value = value_of(argc, argv, &i, "--id")) != NULL)
            options->ids = value;
        else if ((value = value_of(argc, argv, &i, "--query-gpu")) != NULL)
            options->query_gpu = value;
        else if ((value = value_of(argc, argv, &i, "--query-compute-apps")) != NULL)
            options->query_apps = value;
        else if ((value = value_of(argc, argv, &i, "--format")) != NULL)
            options->format = value;
        else if ((value = value_of(argc, argv, &i, "-mig")) != NULL ||
                 (value = value_of(argc, argv, &i, "--multi-instance-gpu")) != NULL)
            options->mig_mode = strcmp(value, "1") == 0 || strcasecmp(value, "ENABLED") == 0;
        else if ((value = value_of(argc, argv, &i, "-pm")) != NULL ||
                 (value = value_of(argc, argv, &i, "--persistence-mode")) != NULL)
            options->persistence = strcmp(value, "1") == 0 || strcasecmp(value, "ENABLED") == 0;
        else if ((value = value_of(argc, argv, &i, "-pl")) != NULL ||
                 (value = value_of(argc, argv, &i, "--power-limit")) != NULL)
            options->power_limit = atoi(value);
        else if ((value = value_of(argc, argv, &i, "-lgc")) != NULL ||
                 (value = value_of(argc, argv, &i, "--lock-gpu-clocks")) != NULL)
            options->gpu_clocks = value;
        else if ((value = value_of(argc, argv, &i, "-lmcd")) != NULL ||
                 (value = value_of(argc, argv, &i, "--lock-memory-clocks-deferred")) != NULL)
            options->deferred_clock = atoi(value);
        else if ((value = value_of(argc, argv, &i, "-lmc")) != NULL ||
                 (value = value_of(argc, argv, &i, "--lock-memory-clocks")) != NULL)
            options->memory_clocks = value;
        else if ((value = value_of(argc, argv, &i, "-e")) != NULL ||
                 (value = value_of(argc, argv, &i, "--ecc-config")) != NULL)
            options->ecc = strcmp(value, "1") == 0 || strcasecmp(value, "ENABLED") == 0;
        else if ((value = value_of(argc, argv, &i, "-c")) != NULL ||
                 (value = value_of(argc, argv, &i, "--compute-mode")) != NULL)
            options->compute_mode = strcasecmp(value, "EXCLUSIVE_PROCESS") == 0 ? 3
                                    : strcasecmp(value, "DEFAULT") == 0         ? 0
                                                                                : atoi(value);
        else {
            printf("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n");
            exit(BAD_ARGUMENT);
        }
    }
}

static int print_version(void) {
    char driver[80];
    char cuda[16];

    get_driver(0, driver, sizeof driver);
    cuda_version(cuda, sizeof cuda);
    printf("NVIDIA-SMI version  : %s\nNVML version        : %.*s\nDRIVER version      : %s\nCUDA Version        : %s\n",
           library_version(), (int)strcspn(library_version(), "."), library_version(), driver, cuda);
    return 0;
}

static int act(const struct options *options) {
    if (options->list)
        return list_gpus();
    if (options->query_gpu != NULL || options->query_apps != NULL) {
        if (options->format == NULL) {
            puts("\"--format=\" switch is missing. Please run 'nvidia-smi -h' for help.\n");
            return BAD_ARGUMENT;
        }
        return options->query_gpu != NULL ? query_gpus(options->query_gpu, options->format)
                                          : query_processes(options->format);
    }
    if (options->query)
        return query();
    if (options->reset)
        return reset(options->ids == NULL, (u32)options->by_bus);
    if (options->mig_mode >= 0)
        return set_mig_mode((u32)options->mig_mode);
    if (options->persistence >= 0)
        return set_number("nvmlDeviceSetPersistenceMode", "persistence mode", (u32)options->persistence);
    if (options->compute_mode >= 0)
        return set_number("nvmlDeviceSetComputeMode", "compute mode", (u32)options->compute_mode);
    if (options->power_limit > 0)
        return set_number("nvmlDeviceSetPowerManagementLimit", "power limit", (u32)options->power_limit * 1000);
    if (options->ecc >= 0)
        return set_number("nvmlDeviceSetEccMode", "ECC support", (u32)options->ecc);
    if (options->deferred_clock > 0 || options->reset_deferred_clock)
        return set_number("gpusimDeferMemoryClock", "deferred memory clock", (u32)options->deferred_clock);
    if (options->gpu_clocks != NULL)
        return lock_clocks("nvmlDeviceSetGpuLockedClocks", "gpu", options->gpu_clocks);
    if (options->memory_clocks != NULL)
        return lock_clocks("nvmlDeviceSetMemoryLockedClocks", "memory", options->memory_clocks);
    if (options->reset_gpu_clocks)
        return unlock_clocks("nvmlDeviceResetGpuLockedClocks");
    if (options->reset_memory_clocks)
        return unlock_clocks("nvmlDeviceResetMemoryLockedClocks");
    return table();
}

int main(int argc, char **argv) {
    struct options options = {.mig_mode = -1, .persistence = -1, .compute_mode = -1, .ecc = -1};

    if (argc > 1 && strcmp(argv[1], "mig") == 0)
        return mig(argc, argv);
    if (argc > 1 && strcmp(argv[1], "topo") == 0)
        return topology();
    if (argc > 1 && (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0)) {
        puts("NVIDIA System Management Interface -- stand-in of a simulated host\n\n"
             "nvidia-smi [-L] [-q] [-i IDS] [--query-gpu=FIELDS --format=csv[,noheader][,nounits]]\n"
             "           [--query-compute-apps=... --format=csv] [-r] [-mig 0|1] [-pm 0|1] [-c MODE]\n"
             "           [-pl WATTS] [-e 0|1] [-lgc MIN,MAX] [-rgc] [-lmc MIN,MAX] [-rmc] [-lmcd MHZ] [-rmcd]\n"
             "nvidia-smi mig [-i IDS] -lgip|-lgi|-lci|-cgi PROFILES [-C]|-dci|-dgi\nnvidia-smi topo -m\nnvidia-smi --version");
        return 0;
    }
    read_options(argc, argv, &options);
    start();
    if (options.version)
        return print_version();
    choose(options.ids);
    return act(&options);
}
