/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Sessions of the library, handles, visibility of GPUs, and faults: everything that happens before a call's own work.
 */
#define _GNU_SOURCE
#include "library.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { NVIDIA_MAJOR = 195, CONTROL_MINOR = 255 };

static struct handle devices[MAX_GPUS];
static struct handle mig_devices[MAX_GPUS][MAX_GPU_INSTANCES][MAX_COMPUTE_INSTANCES];
static struct handle gpu_instances[MAX_GPUS][MAX_GPU_INSTANCES];
static struct handle compute_instances[MAX_GPUS][MAX_GPU_INSTANCES][MAX_COMPUTE_INSTANCES];

static pthread_mutex_t session_mutex = PTHREAD_MUTEX_INITIALIZER;
static int sessions;
static int control_descriptor = -1;
static int gpu_descriptors[MAX_GPUS];

static struct handle *filled(struct handle *handle, int kind, int gpu, int gpu_instance, int compute_instance) {
    handle->kind = kind;
    handle->gpu = gpu;
    handle->gpu_instance = gpu_instance;
    handle->compute_instance = compute_instance;
    return handle;
}

/* A process that has a GPU's handle has its node open: that is what keeps the module loaded and the GPU from a reset.
 * The nodes belong to no driver here, so they are opened as paths; /proc/PID/fd shows them all the same. */
static void hold_node(int gpu) {
    char path[PATH_MAX];

    if (gpu_descriptors[gpu] > 0)
        return;
    snprintf(path, sizeof path, "%s/dev/nvidia%lld", board_root(), gpu_number(gpu, gpu, "minor"));
    gpu_descriptors[gpu] = open(path, O_PATH | O_CLOEXEC);
}

struct handle *device_handle(int gpu) {
    hold_node(gpu);
    return filled(&devices[gpu], IS_DEVICE, gpu, -1, -1);
}

struct handle *mig_device_handle(int gpu, int gi, int ci) {
    return filled(&mig_devices[gpu][gi][ci], IS_MIG_DEVICE, gpu, gi, ci);
}

struct handle *gpu_instance_handle(int gpu, int gi) {
    return filled(&gpu_instances[gpu][gi], IS_GPU_INSTANCE, gpu, gi, -1);
}

struct handle *compute_instance_handle(int gpu, int gi, int ci) {
    return filled(&compute_instances[gpu][gi][ci], IS_COMPUTE_INSTANCE, gpu, gi, ci);
}

static int in_table(const void *handle, const void *table, size_t size) {
    size_t offset = (size_t)((const char *)handle - (const char *)table);

    return (const char *)handle >= (const char *)table && offset < size && offset % sizeof(struct handle) == 0;
}

static int is_handle(const struct handle *handle) {
    return in_table(handle, devices, sizeof devices) || in_table(handle, mig_devices, sizeof mig_devices) ||
           in_table(handle, gpu_instances, sizeof gpu_instances) ||
           in_table(handle, compute_instances, sizeof compute_instances);
}

static int is_alive(const struct handle *handle) {
    if (handle->gpu >= gpu_count() || !gpu_visible(handle->gpu))
        return 0;
    if (handle->kind == IS_GPU_INSTANCE)
        return instance_exists(handle->gpu, handle->gpu_instance);
    if (handle->kind == IS_MIG_DEVICE || handle->kind == IS_COMPUTE_INSTANCE)
        return compute_instance_exists(handle->gpu, handle->gpu_instance, handle->compute_instance);
    return 1;
}

const char *gpu_text(int gpu, const char *fallback, const char *name) {
    const char *own = board_text(NULL, "gpu.%d.%s", gpu, name);
    return own != NULL ? own : board_text(fallback, "board.%s", name);
}

long long gpu_number(int gpu, long long fallback, const char *name) {
    const char *text = gpu_text(gpu, NULL, name);
    return text != NULL && text[0] != '\0' ? strtoll(text, NULL, 0) : fallback;
}

long long compute_mode(const struct handle *handle) {
    if (handle->kind == IS_MIG_DEVICE)
        return board_number(0, "gpu.%d.gi.%d.ci.%d.compute_mode", handle->gpu, handle->gpu_instance,
                            handle->compute_instance);
    return gpu_number(handle->gpu, 0, "compute_mode");
}

int gpu_count(void) {
    return (int)board_number(0, "gpu.count");
}

static int node_exists(const char *name) {
    char path[PATH_MAX];
    struct stat status;

    snprintf(path, sizeof path, "%s/dev/%s", board_root(), name);
    return stat(path, &status) == 0;
}

static int nodes_matter(void) {
    return board_root()[0] == '\0' || node_exists("nvidiactl");
}

int gpu_visible(int gpu) {
    char name[32];

    if (fault_present("absent", gpu) || fault_present("excluded", gpu))
        return 0;
    snprintf(name, sizeof name, "nvidia%lld", gpu_number(gpu, gpu, "minor"));
    return !nodes_matter() || node_exists(name);
}

static int process_uses(const char *pid, const char *node) {
    char directory[64];
    char link[384];
    char target[PATH_MAX];
    struct dirent *entry;
    DIR *descriptors;
    int uses = 0;

    snprintf(directory, sizeof directory, "/proc/%s/fd", pid);
    descriptors = opendir(directory);
    if (descriptors == NULL)
        return 0;
    while (!uses && (entry = readdir(descriptors)) != NULL) {
        ssize_t length;

        snprintf(link, sizeof link, "%s/%s", directory, entry->d_name);
        length = readlink(link, target, sizeof target - 1);
        if (length > 0) {
            target[length] = '\0';
            uses = strcmp(target, node) == 0;
        }
    }
    closedir(descriptors);
    return uses;
}

static int is_persistence_daemon(const char *pid) {
    char path[64];
    char name[32] = "";
    FILE *file;

    snprintf(path, sizeof path, "/proc/%s/comm", pid);
    file = fopen(path, "re");
    if (file == NULL)
        return 0;
    if (fgets(name, sizeof name, file) == NULL)
        name[0] = '\0';
    fclose(file);
    return strncmp(name, "nvidia-persiste", 15) == 0;
}

static int declared_user(int gpu) {
    size_t position = 0;
    const char *key;
    const char *value;
    int id;

    while (board_next("process.", &position, &key, &value))
        if (sscanf(key, "process.%d.gpu", &id) == 1 && strstr(key, ".gpu") != NULL && atoi(value) == gpu)
            return (int)board_number(id, "process.%d.pid", id);
    return 0;
}

int gpu_user(int gpu) {
    char node[PATH_MAX];
    struct dirent *entry;
    DIR *processes;
    int user = declared_user(gpu);

    snprintf(node, sizeof node, "%s/dev/nvidia%lld", board_root(), gpu_number(gpu, gpu, "minor"));
    processes = user == 0 ? opendir("/proc") : NULL;
    if (processes == NULL)
        return user;
    while (user == 0 && (entry = readdir(processes)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0]) && atoi(entry->d_name) != getpid() &&
            process_uses(entry->d_name, node) && !is_persistence_daemon(entry->d_name))
            user = atoi(entry->d_name);
    closedir(processes);
    return user;
}

/* Faults are groups of keys: fault.ID.kind, .gpu (absent: every GPU), and for calls .call .nth .times .code .ms .seen. */
static int fault_matches(int id, const char *kind, int gpu) {
    long long wanted_gpu = board_number(-1, "fault.%d.gpu", id);

    return strcmp(board_text("", "fault.%d.kind", id), kind) == 0 && (wanted_gpu < 0 || gpu < 0 || wanted_gpu == gpu);
}

static int next_fault(size_t *position) {
    const char *key;
    const char *value;
    int id;
    int end;

    while (board_next("fault.", position, &key, &value)) {
        end = 0;
        if (sscanf(key, "fault.%d.kind%n", &id, &end) == 1 && end > 0 && key[end] == '\0')
            return id;
    }
    return -1;
}

int fault_present(const char *kind, int gpu) {
    size_t position = 0;
    int id;

    while ((id = next_fault(&position)) >= 0)
        if (fault_matches(id, kind, gpu))
            return 1;
    return 0;
}

long long fault_number(const char *kind, int gpu, long long fallback, const char *detail) {
    size_t position = 0;
    int id;

    while ((id = next_fault(&position)) >= 0)
        if (fault_matches(id, kind, gpu))
            return board_number(fallback, "fault.%d.%s", id, detail);
    return fallback;
}

static long long delay_of(const char *call, int gpu) {
    size_t position = 0;
    long long delay = 0;
    int id;

    while ((id = next_fault(&position)) >= 0)
        if (fault_matches(id, "slow", gpu) && strcmp(board_text(call, "fault.%d.call", id), call) == 0)
            delay += board_number(1000, "fault.%d.ms", id);
    return delay;
}

static int has_call_fault(const char *call, int gpu) {
    size_t position = 0;
    int id;

    while ((id = next_fault(&position)) >= 0)
        if (fault_matches(id, "call", gpu) && strcmp(board_text("", "fault.%d.call", id), call) == 0)
            return 1;
    return 0;
}

/* The n-th call fails (and times-1 more after it; times 0: all from then on). */
static nvmlReturn_t answer_of_call_fault(const char *call, int gpu) {
    size_t position = 0;
    int id;

    while ((id = next_fault(&position)) >= 0) {
        long long seen;
        long long first;
        long long times;

        if (!fault_matches(id, "call", gpu) || strcmp(board_text("", "fault.%d.call", id), call) != 0)
            continue;
        seen = board_number(0, "fault.%d.seen", id) + 1;
        first = board_number(1, "fault.%d.nth", id);
        times = board_number(1, "fault.%d.times", id);
        board_set_number(seen, "fault.%d.seen", id);
        if (seen >= first && (times == 0 || seen < first + times))
            return (nvmlReturn_t)board_number(UNKNOWN_ERROR, "fault.%d.code", id);
    }
    return SUCCESS;
}

static void sleep_ms(long long ms) {
    struct timespec left = {ms / 1000, (ms % 1000) * 1000000};

    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

static nvmlReturn_t open_with_faults(const char *call, int gpu, int mode) {
    nvmlReturn_t answer;
    long long delay;
    int counting;

    if (board_open(mode) != 0)
        return DRIVER_NOT_LOADED;
    delay = delay_of(call, gpu);
    counting = has_call_fault(call, gpu);
    if (delay == 0 && !counting)
        return SUCCESS;
    board_close();
    sleep_ms(delay);
    if (board_open(counting ? WRITING : mode) != 0)
        return DRIVER_NOT_LOADED;
    answer = answer_of_call_fault(call, gpu);
    if (answer != SUCCESS)
        board_close();
    return answer;
}

nvmlReturn_t begin(const char *call, struct handle *handle, int kinds, int mode) {
    int gpu = -1;
    nvmlReturn_t answer;

    if (sessions == 0)
        return UNINITIALIZED;
    if (kinds != 0) {
        if (handle == NULL || !is_handle(handle) || (handle->kind & kinds) == 0)
            return INVALID_ARGUMENT;
        gpu = handle->gpu;
    }
    if (mode == WRITING)
        board_want_writable();
    answer = open_with_faults(call, gpu, mode);
    if (answer != SUCCESS)
        return answer;
    if (kinds != 0 && fault_present("lost", gpu) && gpu >= 0)
        return finish(GPU_IS_LOST);
    if (kinds != 0 && !is_alive(handle))
        return finish(INVALID_ARGUMENT);
    if (mode == WRITING && (geteuid() != 0 || !board_writable()))
        return finish(NO_PERMISSION);
    return SUCCESS;
}

nvmlReturn_t finish(nvmlReturn_t answer) {
    board_close();
    return answer;
}

nvmlReturn_t copy_text(const char *text, char *buffer, u32 length) {
    if (buffer == NULL)
        return INVALID_ARGUMENT;
    if (text == NULL)
        return NOT_SUPPORTED;
    if (strlen(text) + 1 > length)
        return INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return SUCCESS;
}

const char *gpusimLibraryVersion(void) {
    const char *version = board_library_version();
    return version != NULL ? version : board_text("", "module.nvidia.version");
}

/* The real library has nvidia-modprobe make nodes that are missing; only the host itself has the board's directory. */
static void make_missing_nodes(void) {
    char path[64];

    if (geteuid() != 0 || board_directory() == NULL || strcmp(board_directory(), "/var/lib/gpusim") != 0)
        return;
    if (!node_exists("nvidiactl") && mknod("/dev/nvidiactl", S_IFCHR | 0666, makedev(NVIDIA_MAJOR, CONTROL_MINOR)) == 0)
        chmod("/dev/nvidiactl", 0666);
    for (int gpu = 0; gpu < gpu_count(); gpu++) {
        unsigned minor = (unsigned)gpu_number(gpu, gpu, "minor");

        snprintf(path, sizeof path, "/dev/nvidia%u", minor);
        if (!fault_present("absent", gpu) && mknod(path, S_IFCHR | 0666, makedev(NVIDIA_MAJOR, minor)) == 0)
            chmod(path, 0666);
    }
}

static nvmlReturn_t driver_state(void) {
    const char *loaded = board_text(NULL, "module.nvidia.version");
    const char *own = board_library_version();

    if (loaded == NULL)
        return DRIVER_NOT_LOADED;
    if (own != NULL && strcmp(own, loaded) != 0)
        return LIB_RM_VERSION_MISMATCH;
    make_missing_nodes();
    if (board_root()[0] == '\0' && !node_exists("nvidiactl"))
        return DRIVER_NOT_LOADED;
    return SUCCESS;
}

/* A GPU that no process has open is not initialised, and has then lost what it was told, where nothing keeps it: no
 * persistence mode and no daemon. The board is held. */
static const char *const lost_settings[] = {
    "gpu.%d.power_limit_w", "gpu.%d.locked_gpu_clocks", "gpu.%d.locked_memory_clocks", "gpu.%d.application_clocks",
    "gpu.%d.accounting",
};

static int has_lost_settings(int gpu) {
    int set = 0;

    for (size_t each = 0; each < sizeof lost_settings / sizeof *lost_settings; each++)
        set = set || board_text(NULL, lost_settings[each], gpu) != NULL;
    return set && gpu_number(gpu, 0, "persistence") == 0 && gpu_user(gpu) == 0;
}

static void forget_lost_settings(void) {
    int lost = 0;

    for (int gpu = 0; gpu < gpu_count(); gpu++)
        lost = lost || has_lost_settings(gpu);
    if (!lost || !board_writable())
        return;
    board_close();
    if (board_open(WRITING) != 0)
        return;
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (has_lost_settings(gpu))
            for (size_t each = 0; each < sizeof lost_settings / sizeof *lost_settings; each++)
                board_remove(lost_settings[each], gpu);
}

nvmlReturn_t nvmlInitWithFlags(u32 flags) {
    nvmlReturn_t answer;
    char path[PATH_MAX];

    (void)flags;
    pthread_mutex_lock(&session_mutex);
    answer = open_with_faults("nvmlInit_v2", -1, READING);
    if (answer == SUCCESS) {
        answer = driver_state();
        if (answer == SUCCESS && sessions++ == 0) {
            forget_lost_settings();
            snprintf(path, sizeof path, "%s/dev/nvidiactl", board_root());
            control_descriptor = open(path, O_PATH | O_CLOEXEC);
        }
        board_close();
    }
    pthread_mutex_unlock(&session_mutex);
    return answer;
}

nvmlReturn_t nvmlInit_v2(void) {
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit(void) {
    return nvmlInitWithFlags(0);
}

static void release(int *descriptor) {
    if (*descriptor > 0)
        close(*descriptor);
    *descriptor = -1;
}

nvmlReturn_t nvmlShutdown(void) {
    nvmlReturn_t answer = UNINITIALIZED;

    pthread_mutex_lock(&session_mutex);
    if (sessions > 0) {
        answer = SUCCESS;
        if (--sessions == 0) {
            release(&control_descriptor);
            for (int gpu = 0; gpu < MAX_GPUS; gpu++)
                release(&gpu_descriptors[gpu]);
        }
    }
    pthread_mutex_unlock(&session_mutex);
    return answer;
}
