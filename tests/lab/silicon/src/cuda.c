/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * The simulated libcuda: programs in PTX really run, on the processor, over memory that is the process's own. How long
 * copies and kernels take is worked out from the board's tables, so that a measure is the board's and not this
 * machine's. Numbers and names: cuda.h of the CUDA toolkit.
 */
#define _GNU_SOURCE
#include "library.h"
#include "ptx.h"

#include <ctype.h>
#include <dlfcn.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define PUBLIC __attribute__((visibility("default")))

typedef int CUresult;
typedef int CUdevice;
typedef uint64_t CUdeviceptr;

enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
    CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
    CUDA_ERROR_INVALID_PTX = 218,
    CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_JIT_COMPILATION_DISABLED = 223,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_ILLEGAL_ADDRESS = 700,
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
    CUDA_ERROR_LAUNCH_FAILED = 719,
    CUDA_ERROR_SYSTEM_NOT_READY = 802,
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    CUDA_ERROR_UNKNOWN = 999
};
enum { MULTIPROCESSOR_COUNT = 16, INTEGRATED = 18, COMPUTE_MODE = 20, ECC_ENABLED = 32, PCI_BUS = 33, PCI_DEVICE = 34, COPY_ENGINES = 40,
       PCI_DOMAIN = 50, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76 };
enum { JIT_ERROR_LOG = 5, JIT_ERROR_LOG_SIZE = 6 };
enum { PROHIBITED = 2, EXCLUSIVE_PROCESS = 3 };
enum { MAX_ALLOCATIONS = 4096 };
#define MIB (1ULL << 20)
/* What it takes to begin a copy or a kernel. */
#define LAUNCH_MS 0.003

/* What may be computed on: a GPU, or a MIG device of one. Its rates are in bytes a second. */
struct device {
    struct handle *handle;
    int multiprocessors, capability, contexts;
    uint64_t memory, used;
    double link_rate, memory_rate, peer_rate;
    unsigned char uuid[16];
    char name[96];
    unsigned peers; /* a bit for each device whose memory this one may reach */
};

struct context {
    int device;
};

struct allocation {
    uint64_t start, size;
    int device; /* -1: the host's */
};

struct module {
    struct ptx_module *ptx;
    int device;
};

struct event {
    double at_ms;
};

static struct device devices[MAX_GPUS];
static int device_count, initialised;
static struct context contexts[MAX_GPUS];
static struct context *current;
static struct allocation allocations[MAX_ALLOCATIONS];
static int allocation_count;
static double clock_ms;

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
    {CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
    {CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable"},
    {CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {102, "CUDA_ERROR_DEVICE_NOT_LICENSED", "device doesn't have valid Grid license"},
    {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices"},
    {CUDA_ERROR_INVALID_PTX, "CUDA_ERROR_INVALID_PTX", "a PTX JIT compilation failed"},
    {220, "CUDA_ERROR_NVLINK_UNCORRECTABLE", "uncorrectable NVLink error detected during the execution"},
    {CUDA_ERROR_JIT_COMPILER_NOT_FOUND, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found"},
    {CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {CUDA_ERROR_JIT_COMPILATION_DISABLED, "CUDA_ERROR_JIT_COMPILATION_DISABLED", "PTX JIT compilation was disabled"},
    {226, "CUDA_ERROR_CONTAINED", "Invalid memory access resulting from a contained error"},
    {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {702, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {715, "CUDA_ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered"},
    {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {CUDA_ERROR_SYSTEM_NOT_READY, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"},
    {CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "system has unsupported display driver / cuda driver combination"},
    {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW"},
    {CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

PUBLIC CUresult cuGetErrorName(CUresult code, const char **name) {
    for (size_t index = 0; index < sizeof errors / sizeof errors[0]; index++)
        if (errors[index].code == code) {
            *name = errors[index].name;
            return CUDA_SUCCESS;
        }
    *name = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

PUBLIC CUresult cuGetErrorString(CUresult code, const char **text) {
    for (size_t index = 0; index < sizeof errors / sizeof errors[0]; index++)
        if (errors[index].code == code) {
            *text = errors[index].text;
            return CUDA_SUCCESS;
        }
    *text = NULL;
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult translated(nvmlReturn_t answer) {
    switch (answer) {
    case SUCCESS: return CUDA_SUCCESS;
    case UNINITIALIZED: return CUDA_ERROR_NOT_INITIALIZED;
    case DRIVER_NOT_LOADED: return CUDA_ERROR_NO_DEVICE;
    case LIB_RM_VERSION_MISMATCH: return CUDA_ERROR_SYSTEM_DRIVER_MISMATCH;
    case GPU_IS_LOST: return CUDA_ERROR_UNKNOWN;
    default: return answer; /* a fault's own code */
    }
}

static int visible_node(const char *name) {
    char path[PATH_MAX];
    struct stat status;

    snprintf(path, sizeof path, "%s/dev/nvidiactl", board_root());
    if (board_root()[0] != '\0' && stat(path, &status) != 0)
        return 1; /* a test without device nodes */
    snprintf(path, sizeof path, "%s/dev/%s", board_root(), name);
    return stat(path, &status) == 0;
}

static void parse_uuid(const char *text, unsigned char *bytes) {
    int digits = 0;

    memset(bytes, 0, 16);
    for (const char *at = strchr(text, '-'); at != NULL && *at != '\0' && digits < 32; at++)
        if (isxdigit((unsigned char)*at)) {
            int value = isdigit((unsigned char)*at) ? *at - '0' : tolower((unsigned char)*at) - 'a' + 10;

            bytes[digits / 2] |= (unsigned char)(digits % 2 == 0 ? value << 4 : value);
            digits++;
        }
}

static int cores_of_a_multiprocessor(int capability) {
    return capability == 70 || capability == 72 || capability == 75 || capability == 80 ? 64 : 128;
}

static double link_rate(int gpu) {
    static const double lanes[] = {0, 0.25e9, 0.5e9, 0.985e9, 1.969e9, 3.938e9, 7.563e9};
    long long generation = gpu_number(gpu, 3, "pcie_generation");

    return lanes[generation < 7 ? generation : 6] * (double)gpu_number(gpu, 16, "pcie_width") * 0.85;
}

static double peer_rate(int gpu) {
    static const double links[] = {0, 20e9, 25e9, 25e9, 26.5625e9, 53.125e9};
    long long version = gpu_number(gpu, 0, "nvlink_version");

    return links[version < 6 ? version : 5] * (double)gpu_number(gpu, 0, "nvlinks") * 0.8;
}

static void expose(struct handle *handle, const char *uuid) {
    struct device *device = &devices[device_count];
    int major = 0, minor = 0, gpu = handle->gpu;

    sscanf(gpu_text(gpu, "0.0", "compute_capability"), "%d.%d", &major, &minor);
    *device = (struct device){.handle = handle, .capability = major * 10 + minor};
    parse_uuid(uuid, device->uuid);
    snprintf(device->name, sizeof device->name, "%s", gpu_text(gpu, "", "name"));
    device->memory = (uint64_t)gpu_number(gpu, 0, "memory_mib") * MIB;
    device->memory_rate = (double)gpu_number(gpu, 0, "clock_memory_mhz") * 1e6 *
                          (double)gpu_number(gpu, 0, "memory_bus_width") / 4 * 0.9;
    device->link_rate = link_rate(gpu);
    device->peer_rate = handle->kind == IS_DEVICE ? peer_rate(gpu) : 0;
    device->multiprocessors = (int)gpu_number(gpu, 0, "cores") / cores_of_a_multiprocessor(device->capability);
    device_handle(gpu); /* its node is open from now on */
    device_count++;
}

/* A MIG device has a part of its GPU. */
static void apportion(struct device *device) {
    nvmlDeviceAttributes_t attributes;

    if (device->handle->kind != IS_MIG_DEVICE || nvmlDeviceGetAttributes_v2(device->handle, &attributes) != SUCCESS)
        return;
    device->memory_rate *= (double)attributes.memorySizeMB * (double)MIB / (double)device->memory;
    device->memory = attributes.memorySizeMB * MIB;
    device->multiprocessors = (int)attributes.multiprocessorCount;
}

/* The MIG devices of a GPU that is divided, the GPU itself where it is not; of all MIG devices a process sees one. */
static void expose_gpu(int gpu, const char *wanted) {
    char uuid[64];

    if (!gpu_visible(gpu) || device_count == MAX_GPUS)
        return;
    if (!mig_enabled(gpu)) {
        snprintf(uuid, sizeof uuid, "%s", gpu_text(gpu, "", "uuid"));
        if (wanted == NULL || strcasecmp(wanted, uuid) == 0)
            expose(device_handle(gpu), uuid);
        return;
    }
    for (int gi = 0; gi < MAX_GPU_INSTANCES; gi++)
        for (int ci = 0; ci < MAX_COMPUTE_INSTANCES; ci++) {
            if (!compute_instance_exists(gpu, gi, ci))
                continue;
            mig_device_uuid(gpu, gi, ci, uuid, sizeof uuid);
            if (wanted != NULL ? strcasecmp(wanted, uuid) == 0 : device_count == 0) {
                expose(mig_device_handle(gpu, gi, ci), uuid);
                return;
            }
        }
}

/* CUDA_VISIBLE_DEVICES: UUIDs; one that is none hides what comes after it. */
static void expose_devices(void) {
    const char *given = getenv("CUDA_VISIBLE_DEVICES");
    char list[4096], *position = NULL;

    if (given == NULL) {
        for (int gpu = 0; gpu < gpu_count(); gpu++)
            expose_gpu(gpu, NULL);
        return;
    }
    snprintf(list, sizeof list, "%s", given);
    for (char *wanted = strtok_r(list, ",", &position); wanted != NULL; wanted = strtok_r(NULL, ",", &position)) {
        int before = device_count;

        for (int gpu = 0; gpu < gpu_count() && device_count == before; gpu++)
            expose_gpu(gpu, wanted);
        if (device_count == before || devices[before].handle->kind == IS_MIG_DEVICE)
            return;
    }
}

/* Boards before Hopper do not report their fabric's state, and want the fabric manager all the same. */
static int waits_for_fabric(void) {
    if (board_number(0, "board.fabric.reports") == 0)
        return board_number(0, "nvswitch.count") > 0 && board_number(0, "fabric_manager.running") == 0;
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (gpu_number(gpu, 0, "fabric.state") != 3)
            return 1;
    return 0;
}

PUBLIC CUresult cuInit(unsigned int flags) {
    CUresult answer = translated(nvmlInit_v2());

    if (answer != CUDA_SUCCESS || flags != 0)
        return answer != CUDA_SUCCESS ? answer : CUDA_ERROR_INVALID_VALUE;
    answer = translated(begin(__func__, NULL, 0, READING));
    if (answer != CUDA_SUCCESS)
        return answer;
    if (!initialised) {
        device_count = 0;
        expose_devices();
    }
    if (!visible_node("nvidia-uvm"))
        answer = CUDA_ERROR_UNKNOWN;
    else if (waits_for_fabric())
        answer = CUDA_ERROR_SYSTEM_NOT_READY;
    else if (device_count == 0)
        answer = CUDA_ERROR_NO_DEVICE;
    finish(SUCCESS);
    for (int device = 0; !initialised && device < device_count; device++)
        apportion(&devices[device]);
    initialised = answer == CUDA_SUCCESS;
    return answer;
}

/* Opens a call on a device, faults applied; the board is not held afterwards. */
static CUresult enter(const char *call, int device) {
    nvmlReturn_t answer;

    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (device < 0 || device >= device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    answer = begin(call, devices[device].handle, IS_DEVICE | IS_MIG_DEVICE, READING);
    if (answer == SUCCESS)
        finish(SUCCESS);
    return translated(answer);
}

static CUresult enter_current(const char *call) {
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    return current == NULL ? CUDA_ERROR_INVALID_CONTEXT : enter(call, current->device);
}

/* The driver's version decides which CUDA it knows: 580 is CUDA 13.0. */
static int cuda_version(void) {
    static const struct { int driver, cuda; } table[] = {
        {595, 13020}, {590, 13010}, {580, 13000}, {575, 12090}, {570, 12080}, {565, 12070}, {560, 12060}, {555, 12050},
        {550, 12040}, {545, 12030}, {535, 12020}, {530, 12010}, {525, 12000}, {515, 11070}, {510, 11060}, {470, 11040}};
    const char *own = board_library_version();
    int driver = own == NULL ? 580 : atoi(own);

    for (size_t index = 0; index < sizeof table / sizeof table[0]; index++)
        if (driver >= table[index].driver)
            return table[index].cuda;
    return 11000;
}

PUBLIC CUresult cuDriverGetVersion(int *version) {
    *version = cuda_version();
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuDeviceGetCount(int *count) {
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = device_count;
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    *device = ordinal;
    return enter(__func__, ordinal);
}

PUBLIC CUresult cuDeviceGetUuid_v2(unsigned char *uuid, CUdevice device) {
    CUresult answer = enter(__func__, device);

    if (answer == CUDA_SUCCESS)
        memcpy(uuid, devices[device].uuid, 16);
    return answer;
}

PUBLIC CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CUresult answer = enter(__func__, device);

    if (answer == CUDA_SUCCESS)
        snprintf(name, (size_t)length, "%s", devices[device].name);
    return answer;
}

PUBLIC CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
    CUresult answer = enter(__func__, device);

    if (answer == CUDA_SUCCESS)
        *bytes = devices[device].memory;
    return answer;
}

static int attribute_of(int gpu, const struct device *device, int attribute) {
    unsigned domain = 0, bus = 0, slot = 0;

    sscanf(gpu_text(gpu, "", "bus"), "%x:%x:%x", &domain, &bus, &slot);
    switch (attribute) {
    case MULTIPROCESSOR_COUNT: return device->multiprocessors;
    case INTEGRATED: return (int)gpu_number(gpu, 0, "integrated");
    case COMPUTE_MODE: return (int)compute_mode(device->handle);
    case ECC_ENABLED: return (int)gpu_number(gpu, gpu_number(gpu, 0, "ecc_default"), "ecc");
    case PCI_BUS: return (int)bus;
    case PCI_DEVICE: return (int)slot;
    case PCI_DOMAIN: return (int)domain;
    case COPY_ENGINES: return 3;
    case CAPABILITY_MAJOR: return device->capability / 10;
    case CAPABILITY_MINOR: return device->capability % 10;
    default: return -1;
    }
}

PUBLIC CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    CUresult answer = enter(__func__, device);

    if (answer != CUDA_SUCCESS)
        return answer;
    if (board_open(READING) != 0)
        return CUDA_ERROR_UNKNOWN;
    *value = attribute_of(devices[device].handle->gpu, &devices[device], attribute);
    board_close();
    return *value < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

PUBLIC CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags) {
    (void)flags;
    return enter(__func__, device);
}

PUBLIC CUresult cuDevicePrimaryCtxRetain(struct context **context, CUdevice device) {
    CUresult answer = enter(__func__, device);
    long long mode;
    int user;

    if (answer != CUDA_SUCCESS)
        return answer;
    if (board_open(READING) != 0)
        return CUDA_ERROR_UNKNOWN;
    mode = compute_mode(devices[device].handle);
    user = gpu_user(devices[device].handle->gpu);
    board_close();
    if (mode == PROHIBITED || (mode == EXCLUSIVE_PROCESS && user != 0))
        return CUDA_ERROR_DEVICE_UNAVAILABLE;
    contexts[device].device = device;
    devices[device].contexts++;
    *context = &contexts[device];
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CUresult answer = enter(__func__, device);

    if (answer == CUDA_SUCCESS && --devices[device].contexts == 0 && current == &contexts[device])
        current = NULL;
    return answer;
}

PUBLIC CUresult cuCtxSetCurrent(struct context *context) {
    if (!initialised)
        return CUDA_ERROR_NOT_INITIALIZED;
    current = context;
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuCtxSynchronize(void) {
    return enter_current(__func__);
}

PUBLIC CUresult cuMemGetInfo_v2(size_t *unused, size_t *total) {
    CUresult answer = enter_current(__func__);
    nvmlMemory_v2_t memory = {.version = (u32)sizeof memory | 2U << 24};
    struct device *device;

    if (answer != CUDA_SUCCESS)
        return answer;
    device = &devices[current->device];
    *total = *unused = device->memory;
    if (nvmlDeviceGetMemoryInfo_v2(device->handle, &memory) == SUCCESS)
        *unused = memory.free;
    *unused -= device->used < *unused ? device->used : *unused;
    return CUDA_SUCCESS;
}

static CUresult allocate(uint64_t *address, size_t size, int device) {
    void *memory;

    if (size == 0 || allocation_count == MAX_ALLOCATIONS)
        return CUDA_ERROR_INVALID_VALUE;
    memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *address = (uint64_t)(uintptr_t)memory;
    allocations[allocation_count++] = (struct allocation){*address, size, device};
    return CUDA_SUCCESS;
}

static CUresult release_memory(uint64_t address) {
    for (int index = 0; index < allocation_count; index++)
        if (allocations[index].start == address) {
            munmap((void *)(uintptr_t)address, allocations[index].size);
            if (allocations[index].device >= 0)
                devices[allocations[index].device].used -= allocations[index].size;
            allocations[index] = allocations[--allocation_count];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_INVALID_VALUE;
}

PUBLIC CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    size_t unused, total;
    CUresult answer = enter_current(__func__);

    if (answer == CUDA_SUCCESS)
        answer = cuMemGetInfo_v2(&unused, &total);
    if (answer == CUDA_SUCCESS && size > unused)
        answer = CUDA_ERROR_OUT_OF_MEMORY;
    if (answer == CUDA_SUCCESS)
        answer = allocate(address, size, current->device);
    if (answer == CUDA_SUCCESS)
        devices[current->device].used += size;
    return answer;
}

PUBLIC CUresult cuMemFree_v2(CUdeviceptr address) {
    CUresult answer = enter_current(__func__);

    return answer != CUDA_SUCCESS ? answer : release_memory(address);
}

PUBLIC CUresult cuMemAllocHost_v2(void **address, size_t size) {
    uint64_t at = 0;
    CUresult answer = enter_current(__func__);

    if (answer == CUDA_SUCCESS)
        answer = allocate(&at, size, -1);
    *address = (void *)(uintptr_t)at;
    return answer;
}

PUBLIC CUresult cuMemFreeHost(void *address) {
    CUresult answer = enter_current(__func__);

    return answer != CUDA_SUCCESS ? answer : release_memory((uint64_t)(uintptr_t)address);
}

/* The allocation that these bytes lie in. */
static const struct allocation *allocation_of(uint64_t address, size_t size) {
    static int last;

    if (last < allocation_count && address >= allocations[last].start &&
        address + size <= allocations[last].start + allocations[last].size)
        return &allocations[last];
    for (int index = 0; index < allocation_count; index++)
        if (address >= allocations[index].start &&
            address + size <= allocations[index].start + allocations[index].size) {
            last = index;
            return &allocations[index];
        }
    return NULL;
}

static int gpu_of(int device) {
    return devices[device].handle->gpu;
}

/* How much of its rate a device keeps, and where its memory or its copies spoil a byte; -1 where they do not. */
static long long detail(const char *kind, int device, long long fallback, const char *name) {
    long long found;

    if (board_open(READING) != 0)
        return fallback;
    found = fault_present(kind, gpu_of(device)) ? fault_number(kind, gpu_of(device), 0, name) : fallback;
    board_close();
    return found;
}

static double slowed(const char *kind, int device) {
    return (double)detail(kind, device, 100, "percent") / 100;
}

static CUresult copied(const char *call, void *to, const void *from, size_t size, const char *spoiling) {
    CUresult answer = enter_current(call);
    long long spoilt;

    if (answer != CUDA_SUCCESS)
        return answer;
    memcpy(to, from, size);
    spoilt = detail(spoiling, current->device, -1, "at");
    if (spoilt >= 0 && (size_t)spoilt < size)
        ((unsigned char *)to)[spoilt] ^= 0x10;
    clock_ms += LAUNCH_MS + 1e3 * (double)size / (devices[current->device].link_rate * slowed("slow-copy", current->device));
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, void *stream) {
    (void)stream;
    if (allocation_of(to, size) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return copied(__func__, (void *)(uintptr_t)to, from, size, "bad-copy");
}

PUBLIC CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, void *stream) {
    (void)stream;
    if (allocation_of(from, size) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return copied(__func__, to, (const void *)(uintptr_t)from, size, "");
}

PUBLIC CUresult cuMemsetD8_v2(CUdeviceptr address, unsigned char byte, size_t size) {
    CUresult answer = enter_current(__func__);

    if (answer != CUDA_SUCCESS || allocation_of(address, size) == NULL)
        return answer != CUDA_SUCCESS ? answer : CUDA_ERROR_INVALID_VALUE;
    memset((void *)(uintptr_t)address, byte, size);
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CUresult answer = enter(__func__, device);

    if (answer != CUDA_SUCCESS || peer < 0 || peer >= device_count)
        return answer != CUDA_SUCCESS ? answer : CUDA_ERROR_INVALID_DEVICE;
    *can = device != peer && devices[device].peer_rate > 0 && devices[peer].peer_rate > 0;
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuCtxEnablePeerAccess(struct context *peer, unsigned int flags) {
    CUresult answer = enter_current(__func__);
    int can = 0;

    if (answer == CUDA_SUCCESS && flags == 0)
        answer = cuDeviceCanAccessPeer(&can, current->device, peer->device);
    if (answer != CUDA_SUCCESS)
        return answer;
    if (!can)
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if (devices[current->device].peers & 1U << peer->device)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    devices[current->device].peers |= 1U << peer->device;
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer) {
    (void)attribute;
    return cuDeviceCanAccessPeer(value, device, peer);
}

PUBLIC CUresult cuCtxDisablePeerAccess(struct context *peer) {
    CUresult answer = enter_current(__func__);

    if (answer == CUDA_SUCCESS)
        devices[current->device].peers &= ~(1U << peer->device);
    return answer;
}

PUBLIC CUresult cuMemcpyPeerAsync(CUdeviceptr to, struct context *there, CUdeviceptr from, struct context *here,
                                  size_t size, void *stream) {
    CUresult answer = enter(__func__, here->device);
    double rate, part, other;
    long long spoilt;

    (void)stream;
    if (answer != CUDA_SUCCESS || allocation_of(to, size) == NULL || allocation_of(from, size) == NULL)
        return answer != CUDA_SUCCESS ? answer : CUDA_ERROR_INVALID_VALUE;
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, size);
    spoilt = detail("bad-peer-copy", here->device, -1, "at");
    if (spoilt >= 0 && (size_t)spoilt < size)
        ((unsigned char *)(uintptr_t)to)[spoilt] ^= 0x10;
    part = slowed("slow-peer", here->device);
    other = slowed("slow-peer", there->device);
    rate = devices[here->device].peers & 1U << there->device ? devices[here->device].peer_rate
                                                             : devices[here->device].link_rate / 2;
    clock_ms += LAUNCH_MS + 1e3 * (double)size / (rate * (part < other ? part : other));
    return CUDA_SUCCESS;
}

static CUresult compiled(const char *text, int device, struct ptx_module **ptx, char *log, size_t log_size) {
    static const struct { int ptx; CUresult code; } results[] = {
        {PTX_OK, CUDA_SUCCESS}, {PTX_BAD_TEXT, CUDA_ERROR_INVALID_PTX}, {PTX_TOO_NEW, CUDA_ERROR_UNSUPPORTED_PTX_VERSION},
        {PTX_WRONG_TARGET, CUDA_ERROR_NO_BINARY_FOR_GPU}, {PTX_UNSUPPORTED, CUDA_ERROR_INVALID_PTX}};
    const char *disabled = getenv("CUDA_DISABLE_JIT");
    int version = cuda_version(), result;
    void *compiler;

    if (disabled != NULL && strcmp(disabled, "1") == 0)
        return CUDA_ERROR_JIT_COMPILATION_DISABLED;
    compiler = dlopen("libnvidia-ptxjitcompiler.so.1", RTLD_NOW);
    if (compiler == NULL)
        return CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    dlclose(compiler);
    /* PTX 7.0 came with CUDA 11.0, 8.0 with 12.0, 9.0 with 13.0 */
    result = ptx_load(text, (version / 1000 - 4) * 10 + version % 1000 / 10, devices[device].capability, ptx, log, log_size);
    for (size_t index = 0; index < sizeof results / sizeof results[0]; index++)
        if (results[index].ptx == result)
            return results[index].code;
    return CUDA_ERROR_UNKNOWN;
}

PUBLIC CUresult cuModuleLoadDataEx(struct module **module, const void *image, unsigned count, const int *options,
                                   void **option_values) {
    CUresult answer = enter_current(__func__);
    struct ptx_module *ptx = NULL;
    char *log = NULL;
    size_t log_size = 0;

    if (answer != CUDA_SUCCESS)
        return answer;
    for (unsigned index = 0; index < count; index++) {
        if (options[index] == JIT_ERROR_LOG)
            log = option_values[index];
        else if (options[index] == JIT_ERROR_LOG_SIZE)
            log_size = (size_t)(uintptr_t)option_values[index];
    }
    answer = compiled(image, current->device, &ptx, log, log_size);
    if (answer != CUDA_SUCCESS)
        return answer;
    *module = calloc(1, sizeof **module);
    (*module)->ptx = ptx;
    (*module)->device = current->device;
    return CUDA_SUCCESS;
}

PUBLIC CUresult cuModuleUnload(struct module *module) {
    CUresult answer = enter_current(__func__);

    if (answer == CUDA_SUCCESS) {
        ptx_unload(module->ptx);
        free(module);
    }
    return answer;
}

PUBLIC CUresult cuModuleGetFunction(struct ptx_kernel **function, struct module *module, const char *name) {
    CUresult answer = enter_current(__func__);

    if (answer != CUDA_SUCCESS)
        return answer;
    *function = ptx_kernel(module->ptx, name);
    return *function == NULL ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}

/* What a kernel meets: the faults of its device, and how many bytes it has asked of memory. */
struct run {
    const struct device *device;
    int wrong, idle; /* a multiprocessor that computes wrongly, one that gets no block; -1 for none */
    uint64_t spoilt; /* a word of memory that keeps nothing right; 0 for none */
    uint64_t bytes;
};

static unsigned multiprocessor_of(unsigned block, void *context) {
    const struct run *run = context;
    unsigned chosen = block % (unsigned)run->device->multiprocessors;

    return (int)chosen == run->idle ? (chosen + 1) % (unsigned)run->device->multiprocessors : chosen;
}

static uint32_t written(uint32_t word, uint64_t address, unsigned multiprocessor, unsigned thread, void *context) {
    const struct run *run = context;

    if ((int)multiprocessor == run->wrong && thread == 3)
        word ^= 0x400;
    return address == run->spoilt ? word ^ 0x4000 : word;
}

static int permitted(uint64_t address, size_t size, void *context) {
    struct run *run = context;

    run->bytes += size;
    return allocation_of(address, size) != NULL;
}

static struct run run_of(const struct device *device, int number) {
    struct run run = {.device = device, .wrong = (int)detail("wrong-result", number, -1, "sm"),
                      .idle = (int)detail("idle-sm", number, -1, "sm")};
    long long at = detail("bad-memory", number, -1, "at");
    const struct allocation *largest = NULL;

    for (int index = 0; index < allocation_count; index++)
        if (allocations[index].device == number && (largest == NULL || allocations[index].size > largest->size))
            largest = &allocations[index];
    if (at >= 0 && largest != NULL && (uint64_t)at < largest->size)
        run.spoilt = largest->start + (uint64_t)at;
    return run;
}

PUBLIC CUresult cuLaunchKernel(struct ptx_kernel *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared, void *stream,
                               void **parameters, void **extra) {
    CUresult answer = enter_current(__func__);
    struct device *device;
    struct run run;
    struct ptx_launch launch;
    int result;

    (void)shared;
    (void)stream;
    if (answer != CUDA_SUCCESS)
        return answer;
    if (grid_y * grid_z * block_y * block_z != 1 || extra != NULL || grid_x * block_x == 0)
        return CUDA_ERROR_INVALID_VALUE;
    device = &devices[current->device];
    run = run_of(device, current->device);
    launch = (struct ptx_launch){grid_x, block_x, parameters, multiprocessor_of, written, permitted, &run};
    result = ptx_run(function, &launch);
    clock_ms += LAUNCH_MS + 1e3 * (double)run.bytes / (device->memory_rate * slowed("slow-memory", current->device));
    return result == PTX_OK ? CUDA_SUCCESS : result == PTX_BAD_ADDRESS ? CUDA_ERROR_ILLEGAL_ADDRESS
                                                                        : CUDA_ERROR_LAUNCH_FAILED;
}

PUBLIC CUresult cuEventCreate(struct event **event, unsigned int flags) {
    CUresult answer = enter_current(__func__);

    (void)flags;
    if (answer == CUDA_SUCCESS)
        *event = calloc(1, sizeof **event);
    return answer;
}

PUBLIC CUresult cuEventRecord(struct event *event, void *stream) {
    (void)stream;
    event->at_ms = clock_ms;
    return enter_current(__func__);
}

PUBLIC CUresult cuEventSynchronize(struct event *event) {
    (void)event;
    return enter_current(__func__);
}

PUBLIC CUresult cuEventElapsedTime(float *ms, struct event *start, struct event *end) {
    *ms = (float)(end->at_ms - start->at_ms);
    return enter_current(__func__);
}

PUBLIC CUresult cuEventDestroy_v2(struct event *event) {
    free(event);
    return enter_current(__func__);
}
