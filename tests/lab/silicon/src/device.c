/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * NVML calls on the system and on whole devices.
 */
#define _GNU_SOURCE
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, ANY_DEVICE = IS_DEVICE | IS_MIG_DEVICE };

/* ---- library and system ---- */

const char *nvmlErrorString(nvmlReturn_t result) {
    static const struct {
        nvmlReturn_t code;
        const char *text;
    } texts[] = {
        {0, "Success"},
        {1, "Uninitialized"},
        {2, "Invalid Argument"},
        {3, "Not Supported"},
        {4, "Insufficient Permissions"},
        {5, "Already Initialized"},
        {6, "Not Found"},
        {7, "Insufficient Size"},
        {8, "Insufficient External Power"},
        {9, "Driver Not Loaded"},
        {10, "Timeout"},
        {11, "Interrupt Request Issue"},
        {12, "NVML Shared Library Not Found"},
        {13, "Function Not Found"},
        {14, "Corrupted infoROM"},
        {15, "GPU is lost"},
        {16, "GPU requires reset"},
        {17, "The operating system has blocked the request."},
        {18, "Driver/library version mismatch"},
        {19, "In use by another client"},
        {20, "Insufficient Memory"},
        {21, "No data"},
        {22, "The requested vgpu operation is not available on target device, because ECC is enabled"},
        {23, "Insufficient Resources"},
        {24, "Frequency not supported"},
        {25, "Argument version mismatch"},
        {26, "The requested functionality has been deprecated"},
        {27, "System is not ready for the request"},
        {28, "No GPUs were found"},
        {29, "Resource not in correct state to perform requested operation"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i].code == result)
            return texts[i].text;
    return "Unknown Error";
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, u32 length) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    return finish(copy_text(board_text(NULL, "module.nvidia.version"), version, length));
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, u32 length) {
    char text[96];
    int cuda_major = 13;
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (atoi(gpusimLibraryVersion()) < 580)
        cuda_major = 12;
    snprintf(text, sizeof text, "%d.%s", cuda_major, gpusimLibraryVersion());
    return finish(copy_text(text, version, length));
}

/* The CUDA version that a driver branch supports (NVIDIA's CUDA toolkit release notes, driver table). */
static int cuda_of_branch(int branch) {
    static const int table[][2] = {{615, 13040}, {610, 13030}, {595, 13020}, {590, 13010}, {580, 13000},
                                   {575, 12090}, {570, 12080}, {565, 12070}, {560, 12060}, {555, 12050},
                                   {550, 12040}, {545, 12030}, {535, 12020}, {530, 12010}, {525, 12000}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (branch >= table[i][0])
            return table[i][1];
    return 11080;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (version == NULL)
        return finish(INVALID_ARGUMENT);
    *version = cuda_of_branch(atoi(board_text("0", "module.nvidia.version")));
    return finish(SUCCESS);
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

nvmlReturn_t nvmlSystemGetDriverBranch(void *branch_info, u32 length) {
    struct {
        u32 version;
        char branch[80];
    } *info = branch_info;
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL || length < 16)
        return finish(INVALID_ARGUMENT);
    snprintf(info->branch, sizeof info->branch, "r%d_00", atoi(board_text("0", "module.nvidia.version")));
    return finish(SUCCESS);
}

nvmlReturn_t nvmlSystemGetProcessName(u32 pid, char *name, u32 length) {
    char path[64];
    char text[256] = "";
    FILE *file;
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    file = fopen(path, "re");
    if (file == NULL || fread(text, 1, sizeof text - 1, file) == 0)
        answer = NOT_FOUND;
    if (file != NULL)
        fclose(file);
    return finish(answer != SUCCESS ? answer : copy_text(text, name, length));
}

/* ---- finding devices ---- */

static int visible_by_index(u32 index) {
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (gpu_visible(gpu) && index-- == 0)
            return gpu;
    return -1;
}

static u32 index_of(int wanted) {
    u32 index = 0;

    for (int gpu = 0; gpu < wanted; gpu++)
        index += (u32)gpu_visible(gpu);
    return index;
}

nvmlReturn_t nvmlDeviceGetCount_v2(u32 *count) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL)
        return finish(INVALID_ARGUMENT);
    *count = index_of(gpu_count());
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCount(u32 *count) {
    return nvmlDeviceGetCount_v2(count);
}

/* A GPU that fell off the bus is still counted, but gives no handle. */
static nvmlReturn_t hand_out(int gpu, nvmlDevice_t *device) {
    if (device == NULL)
        return INVALID_ARGUMENT;
    if (gpu < 0)
        return NOT_FOUND;
    if (fault_present("lost", gpu))
        return GPU_IS_LOST;
    *device = device_handle(gpu);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(u32 index, nvmlDevice_t *device) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (index >= index_of(gpu_count()))
        return finish(INVALID_ARGUMENT);
    return finish(hand_out(visible_by_index(index), device));
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(u32 index, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

static int gpu_by_property(const char *name, const char *value) {
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (gpu_visible(gpu) && strcasecmp(gpu_text(gpu, "", name), value) == 0)
            return gpu;
    return -1;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    struct handle *mig_device;
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (uuid == NULL || device == NULL)
        return finish(INVALID_ARGUMENT);
    mig_device = mig_device_by_uuid(uuid);
    if (mig_device == NULL)
        return finish(hand_out(gpu_by_property("uuid", uuid), device));
    *device = mig_device;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    return finish(serial == NULL ? INVALID_ARGUMENT : hand_out(gpu_by_property("serial", serial), device));
}

struct address {
    u32 domain, bus, device;
};

static int parse_address(const char *text, struct address *address) {
    u32 function = 0;

    if (sscanf(text, "%x:%x:%x.%x", &address->domain, &address->bus, &address->device, &function) >= 3)
        return 1;
    address->domain = 0;
    return sscanf(text, "%x:%x.%x", &address->bus, &address->device, &function) >= 2;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device) {
    struct address wanted;
    struct address own;
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (text == NULL || !parse_address(text, &wanted))
        return finish(INVALID_ARGUMENT);
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (gpu_visible(gpu) && parse_address(gpu_text(gpu, "", "bus"), &own) && own.domain == wanted.domain &&
            own.bus == wanted.bus && own.device == wanted.device)
            return finish(hand_out(gpu, device));
    return finish(NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

/* A number that is worked out of `device`. */
#define NUMBER(call, type, kinds, worked_out)                          \
    nvmlReturn_t call(nvmlDevice_t device, type *value) {              \
        nvmlReturn_t answer = begin(__func__, device, kinds, READING); \
        if (answer != SUCCESS)                                         \
            return answer;                                             \
        if (value == NULL)                                             \
            return finish(INVALID_ARGUMENT);                           \
        *value = (type)(worked_out);                                   \
        return finish(SUCCESS);                                        \
    }

NUMBER(nvmlDeviceGetIndex, u32, ANY_DEVICE, index_of(device->gpu))

/* ---- identity ---- */

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, u32 length) {
    char text[96];
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (device->kind == IS_MIG_DEVICE) {
        int used = snprintf(text, sizeof text, "%s ", gpu_text(device->gpu, "", "name"));
        mig_device_name(device->gpu, device->gpu_instance, device->compute_instance, text + used,
                        sizeof text - (size_t)used);
    } else {
        snprintf(text, sizeof text, "%s", gpu_text(device->gpu, "", "name"));
    }
    return finish(copy_text(text, name, length));
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, u32 length) {
    char text[64];
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (device->kind == IS_MIG_DEVICE)
        mig_device_uuid(device->gpu, device->gpu_instance, device->compute_instance, text, sizeof text);
    else
        snprintf(text, sizeof text, "%s", gpu_text(device->gpu, "", "uuid"));
    return finish(copy_text(text, uuid, length));
}

#define TEXT_PROPERTY(call, name)                                                     \
    nvmlReturn_t call(nvmlDevice_t device, char *buffer, u32 length) {                \
        nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);            \
        if (answer != SUCCESS)                                                        \
            return answer;                                                            \
        return finish(copy_text(gpu_text(device->gpu, NULL, name), buffer, length)); \
    }

TEXT_PROPERTY(nvmlDeviceGetSerial, "serial")
TEXT_PROPERTY(nvmlDeviceGetVbiosVersion, "vbios")
TEXT_PROPERTY(nvmlDeviceGetBoardPartNumber, "part_number")
TEXT_PROPERTY(nvmlDeviceGetInforomImageVersion, "inforom")

nvmlReturn_t nvmlDeviceGetGspFirmwareVersion(nvmlDevice_t device, char *version) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    return finish(copy_text(board_text(NULL, "module.nvidia.version"), version, 80));
}

/* A number that is a property of the board or of the GPU; a board without it answers NOT_SUPPORTED. */
#define NUMBER_PROPERTY(call, type, name, scale)                          \
    nvmlReturn_t call(nvmlDevice_t device, type *value) {                 \
        const char *text;                                                 \
        nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING); \
        if (answer != SUCCESS)                                            \
            return answer;                                                \
        text = gpu_text(device->gpu, NULL, name);                         \
        if (value == NULL || text == NULL)                                \
            return finish(value == NULL ? INVALID_ARGUMENT : NOT_SUPPORTED); \
        *value = (type)(strtoll(text, NULL, 0) * (scale));                \
        return finish(SUCCESS);                                           \
    }

NUMBER_PROPERTY(nvmlDeviceGetMinorNumber, u32, "minor", 1)
NUMBER_PROPERTY(nvmlDeviceGetBrand, u32, "brand", 1)
NUMBER_PROPERTY(nvmlDeviceGetArchitecture, u32, "arch", 1)
NUMBER_PROPERTY(nvmlDeviceGetModuleId, u32, "module_id", 1)
NUMBER_PROPERTY(nvmlDeviceGetBoardId, u32, "board_id", 1)
NUMBER_PROPERTY(nvmlDeviceGetMultiGpuBoard, u32, "multi_gpu_board", 1)
NUMBER_PROPERTY(nvmlDeviceGetNumGpuCores, u32, "cores", 1)
NUMBER_PROPERTY(nvmlDeviceGetMemoryBusWidth, u32, "memory_bus_width", 1)
NUMBER_PROPERTY(nvmlDeviceGetMaxPcieLinkGeneration, u32, "pcie_generation", 1)
NUMBER_PROPERTY(nvmlDeviceGetGpuMaxPcieLinkGeneration, u32, "pcie_generation", 1)
NUMBER_PROPERTY(nvmlDeviceGetCurrPcieLinkGeneration, u32, "pcie_generation", 1)
NUMBER_PROPERTY(nvmlDeviceGetMaxPcieLinkWidth, u32, "pcie_width", 1)
NUMBER_PROPERTY(nvmlDeviceGetCurrPcieLinkWidth, u32, "pcie_width", 1)
NUMBER_PROPERTY(nvmlDeviceGetPcieReplayCounter, u32, "pcie_replays", 1)
NUMBER_PROPERTY(nvmlDeviceGetNumFans, u32, "fans", 1)
NUMBER_PROPERTY(nvmlDeviceGetFanSpeed, u32, "fan_percent", 1)
NUMBER_PROPERTY(nvmlDeviceGetPowerManagementMode, u32, "power_management", 1)
NUMBER_PROPERTY(nvmlDeviceGetPowerManagementLimit, u32, "power_limit_w", 1000)
NUMBER_PROPERTY(nvmlDeviceGetEnforcedPowerLimit, u32, "power_limit_w", 1000)
NUMBER_PROPERTY(nvmlDeviceGetPowerManagementDefaultLimit, u32, "power_default_w", 1000)
NUMBER_PROPERTY(nvmlDeviceGetPersistenceMode, u32, "persistence", 1)
NUMBER_PROPERTY(nvmlDeviceGetDisplayActive, u32, "display", 1)
NUMBER_PROPERTY(nvmlDeviceGetDisplayMode, u32, "display", 1)
NUMBER_PROPERTY(nvmlDeviceGetVirtualizationMode, u32, "virtualization", 1)
NUMBER_PROPERTY(nvmlDeviceGetNumaNodeId, u32, "numa", 1)
NUMBER_PROPERTY(nvmlDeviceGetRetiredPagesPendingStatus, u32, "retired_pending", 1)
NUMBER_PROPERTY(nvmlDeviceGetDefaultEccMode, u32, "ecc_default", 1)

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (major == NULL || minor == NULL)
        return finish(INVALID_ARGUMENT);
    if (sscanf(gpu_text(device->gpu, "", "compute_capability"), "%d.%d", major, minor) != 2)
        return finish(NOT_SUPPORTED);
    return finish(SUCCESS);
}

static void fill_pci(int gpu, nvmlPciInfo_t *pci) {
    struct address address = {0, 0, 0};

    parse_address(gpu_text(gpu, "", "bus"), &address);
    memset(pci, 0, sizeof *pci);
    pci->domain = address.domain;
    pci->bus = address.bus;
    pci->device = address.device;
    pci->pciDeviceId = (u32)gpu_number(gpu, 0, "pci_device") << 16 | 0x10de;
    pci->pciSubSystemId = (u32)gpu_number(gpu, 0, "pci_subsystem");
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", address.domain, address.bus, address.device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", address.domain & 0xffff,
             address.bus & 0xff, address.device & 0xff);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (pci == NULL)
        return finish(INVALID_ARGUMENT);
    fill_pci(device->gpu, pci);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

/* The GPU that is number `index` of those that the driver leaves out; -1 where there are not so many. */
static int excluded_by_index(u32 index) {
    for (int gpu = 0; gpu < gpu_count(); gpu++)
        if (fault_present("excluded", gpu) && index-- == 0)
            return gpu;
    return -1;
}

nvmlReturn_t nvmlGetExcludedDeviceCount(u32 *count) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL)
        return finish(INVALID_ARGUMENT);
    for (*count = 0; excluded_by_index(*count) >= 0; (*count)++)
        ;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlGetExcludedDeviceInfoByIndex(u32 index, nvmlExcludedDeviceInfo_t *info) {
    int gpu;
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    gpu = excluded_by_index(index);
    if (gpu < 0 || info == NULL)
        return finish(INVALID_ARGUMENT);
    fill_pci(gpu, &info->pci);
    return finish(copy_text(gpu_text(gpu, "", "uuid"), info->uuid, sizeof info->uuid));
}

/* ---- memory ---- */

static u64 used_mib(int gpu, int gpu_instance) {
    u64 used = 0;
    size_t position = 0;
    const char *key;
    const char *value;
    int id;

    while (board_next("process.", &position, &key, &value)) {
        if (strstr(key, ".mib") == NULL || sscanf(key, "process.%d.mib", &id) != 1)
            continue;
        if (board_number(-1, "process.%d.gpu", id) == gpu &&
            (gpu_instance < 0 || board_number(-1, "process.%d.gi", id) == gpu_instance))
            used += (u64)strtoull(value, NULL, 0);
    }
    return used;
}

static u64 total_mib(const struct handle *device) {
    if (device->kind == IS_MIG_DEVICE)
        return (u64)instance_memory_mib(device->gpu, device->gpu_instance);
    return (u64)gpu_number(device->gpu, 0, "memory_mib");
}

static u64 reserved_mib(const struct handle *device) {
    return device->kind == IS_MIG_DEVICE ? 0 : (u64)gpu_number(device->gpu, 0, "reserved_mib");
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (memory == NULL)
        return finish(INVALID_ARGUMENT);
    memory->total = total_mib(device) * MIB;
    memory->used = (reserved_mib(device) + used_mib(device->gpu, device->gpu_instance)) * MIB;
    memory->free = memory->total - memory->used;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (memory == NULL)
        return finish(INVALID_ARGUMENT);
    if (memory->version != STRUCT_VERSION(sizeof *memory, 2))
        return finish(ARGUMENT_VERSION_MISMATCH);
    memory->total = total_mib(device) * MIB;
    memory->reserved = reserved_mib(device) * MIB;
    memory->used = used_mib(device->gpu, device->gpu_instance) * MIB;
    memory->free = memory->total - memory->reserved - memory->used;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetBAR1MemoryInfo(nvmlDevice_t device, nvmlBAR1Memory_t *memory) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (memory == NULL)
        return finish(INVALID_ARGUMENT);
    memory->total = (u64)gpu_number(device->gpu, 0, "bar1_mib") * MIB;
    memory->used = MIB;
    memory->free = memory->total - memory->used;
    return finish(SUCCESS);
}

/* ---- processes ---- */

typedef int (*process_writer)(void *infos, u32 index, const nvmlProcessInfo_t *info);

static nvmlReturn_t list_processes(const char *call, nvmlDevice_t device, u32 *count, void *infos, process_writer write) {
    size_t position = 0;
    u32 found = 0;
    const char *key;
    const char *value;
    nvmlReturn_t answer = begin(call, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL)
        return finish(INVALID_ARGUMENT);
    while (board_next("process.", &position, &key, &value)) {
        nvmlProcessInfo_t info;
        int id;

        if (strstr(key, ".gpu") == NULL || sscanf(key, "process.%d.gpu", &id) != 1 || atoi(value) != device->gpu)
            continue;
        info.pid = (u32)board_number(id, "process.%d.pid", id);
        info.usedGpuMemory = (u64)board_number(0, "process.%d.mib", id) * MIB;
        info.gpuInstanceId = (u32)board_number(-1, "process.%d.gi", id);
        info.computeInstanceId = (u32)board_number(-1, "process.%d.ci", id);
        if (device->kind == IS_MIG_DEVICE && (int)info.gpuInstanceId != device->gpu_instance)
            continue;
        if (infos != NULL && found < *count)
            write(infos, found, &info);
        found++;
    }
    answer = found > *count || (infos == NULL && found > 0) ? INSUFFICIENT_SIZE : SUCCESS;
    *count = found;
    return finish(answer);
}

static int write_process(void *infos, u32 index, const nvmlProcessInfo_t *info) {
    ((nvmlProcessInfo_t *)infos)[index] = *info;
    return 0;
}

static int write_process_v1(void *infos, u32 index, const nvmlProcessInfo_t *info) {
    ((nvmlProcessInfo_v1_t *)infos)[index].pid = info->pid;
    ((nvmlProcessInfo_v1_t *)infos)[index].usedGpuMemory = info->usedGpuMemory;
    return 0;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, u32 *count, nvmlProcessInfo_t *infos) {
    return list_processes(__func__, device, count, infos, write_process);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, u32 *count, nvmlProcessInfo_t *infos) {
    return list_processes(__func__, device, count, infos, write_process);
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, u32 *count, nvmlProcessInfo_v1_t *infos) {
    return list_processes(__func__, device, count, infos, write_process_v1);
}

static nvmlReturn_t no_processes(const char *call, nvmlDevice_t device, u32 *count) {
    nvmlReturn_t answer = begin(call, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL)
        return finish(INVALID_ARGUMENT);
    *count = 0;
    return finish(SUCCESS);
}

#define NO_PROCESSES(call)                                             \
    nvmlReturn_t call(nvmlDevice_t device, u32 *count, void *infos) { \
        (void)infos;                                                   \
        return no_processes(__func__, device, count);                  \
    }

NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

/* ---- sensors: an idle GPU, or a busy one while a process is declared on it ---- */

static int busy(int gpu) {
    return used_mib(gpu, -1) > 0;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (rates == NULL)
        return finish(INVALID_ARGUMENT);
    if (mig_enabled(device->gpu))
        return finish(NOT_SUPPORTED);
    rates->gpu = (u32)gpu_number(device->gpu, busy(device->gpu) ? 98 : 0, "utilization");
    rates->memory = busy(device->gpu) ? 45 : 0;
    return finish(SUCCESS);
}

#define ENGINE_UTILIZATION(call)                                               \
    nvmlReturn_t call(nvmlDevice_t device, u32 *utilization, u32 *period_us) { \
        nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);     \
        if (answer != SUCCESS)                                                 \
            return answer;                                                     \
        if (utilization == NULL || period_us == NULL)                          \
            return finish(INVALID_ARGUMENT);                                   \
        *utilization = 0;                                                      \
        *period_us = 167000;                                                   \
        return finish(SUCCESS);                                                \
    }

ENGINE_UTILIZATION(nvmlDeviceGetEncoderUtilization)
ENGINE_UTILIZATION(nvmlDeviceGetDecoderUtilization)
ENGINE_UTILIZATION(nvmlDeviceGetJpgUtilization)
ENGINE_UTILIZATION(nvmlDeviceGetOfaUtilization)

static u32 temperature(int gpu) {
    return (u32)gpu_number(gpu, busy(gpu) ? 58 : 31, "temperature");
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, u32 sensor, u32 *celsius) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (celsius == NULL || sensor != 0)
        return finish(INVALID_ARGUMENT);
    *celsius = temperature(device->gpu);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureV(nvmlDevice_t device, void *request) {
    struct {
        u32 version, sensor;
        int celsius;
    } *reading = request;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (reading == NULL || reading->sensor != 0)
        return finish(INVALID_ARGUMENT);
    reading->celsius = (int)temperature(device->gpu);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t device, u32 threshold, u32 *celsius) {
    static const char *const names[] = {"temperature_shutdown", "temperature_slowdown", "temperature_memory_max",
                                        "temperature_max"};
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (celsius == NULL)
        return finish(INVALID_ARGUMENT);
    if (threshold >= 4 || gpu_text(device->gpu, NULL, names[threshold]) == NULL)
        return finish(NOT_SUPPORTED);
    *celsius = (u32)gpu_number(device->gpu, 0, names[threshold]);
    return finish(SUCCESS);
}

static long long milliwatts(int gpu) {
    long long limit = gpu_number(gpu, 300, "power_limit_w");

    return (busy(gpu) ? limit * 9 / 10 : limit / 7) * 1000;
}

NUMBER(nvmlDeviceGetPowerUsage, u32, IS_DEVICE, milliwatts(device->gpu))
/* In millijoules, as if it had been idle all the time. */
NUMBER(nvmlDeviceGetTotalEnergyConsumption, u64, IS_DEVICE,
       (time(NULL) - board_number(0, "boot.time")) * gpu_number(device->gpu, 300, "power_limit_w") * 1000 / 7)

nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, u32 *least, u32 *most) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (least == NULL || most == NULL)
        return finish(INVALID_ARGUMENT);
    *least = (u32)gpu_number(device->gpu, 100, "power_min_w") * 1000;
    *most = (u32)gpu_number(device->gpu, 300, "power_default_w") * 1000;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, u32 milliwatts) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    if (milliwatts < gpu_number(device->gpu, 100, "power_min_w") * 1000 ||
        milliwatts > gpu_number(device->gpu, 300, "power_default_w") * 1000)
        answer = INVALID_ARGUMENT;
    else
        board_set_number(milliwatts / 1000, "gpu.%d.power_limit_w", device->gpu);
    board_log("%s gpu=%d milliwatts=%u -> %d", __func__, device->gpu, milliwatts, answer);
    return finish(answer);
}

static nvmlReturn_t clock_property(const char *call, nvmlDevice_t device, u32 type, u32 *mhz, int maximum) {
    nvmlReturn_t answer = begin(call, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (mhz == NULL || type > 3)
        return finish(INVALID_ARGUMENT);
    if (type == 2)
        *mhz = (u32)gpu_number(device->gpu, 1593, "clock_memory_mhz");
    else if (gpu_text(device->gpu, NULL, "locked_gpu_clocks") != NULL && !maximum)
        sscanf(gpu_text(device->gpu, "0,0", "locked_gpu_clocks"), busy(device->gpu) ? "%*u,%u" : "%u", mhz);
    else if (maximum || busy(device->gpu))
        *mhz = (u32)gpu_number(device->gpu, 1410, "clock_sm_mhz");
    else
        *mhz = (u32)gpu_number(device->gpu, 210, "clock_idle_mhz");
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, u32 type, u32 *mhz) {
    return clock_property(__func__, device, type, mhz, 0);
}

nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, u32 type, u32 *mhz) {
    return clock_property(__func__, device, type, mhz, 1);
}

/* "memory,graphics" where somebody has set them. */
nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t device, u32 type, u32 *mhz) {
    nvmlReturn_t answer = clock_property(__func__, device, type, mhz, 1);

    if (answer == SUCCESS && begin("", device, IS_DEVICE, READING) == SUCCESS) {
        if (gpu_text(device->gpu, NULL, "application_clocks") != NULL)
            sscanf(gpu_text(device->gpu, "", "application_clocks"), type == 2 ? "%u" : "%*u,%u", mhz);
        finish(SUCCESS);
    }
    return answer;
}

nvmlReturn_t nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, u32 type, u32 *mhz) {
    return clock_property(__func__, device, type, mhz, 1);
}

nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t device, u32 type, u32 id, u32 *mhz) {
    return clock_property(__func__, device, type, mhz, id != 0);
}

nvmlReturn_t nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, u32 type, u32 *mhz) {
    return clock_property(__func__, device, type, mhz, 1);
}

NUMBER(nvmlDeviceGetPerformanceState, u32, IS_DEVICE,
       busy(device->gpu) ? 0 : gpu_number(device->gpu, 0, "idle_pstate"))

nvmlReturn_t nvmlDeviceGetPowerState(nvmlDevice_t device, u32 *state) {
    return nvmlDeviceGetPerformanceState(device, state);
}

enum { IDLE_REASON = 1, POSSIBLE_REASONS = 0x1ff };

NUMBER(nvmlDeviceGetCurrentClocksEventReasons, u64, IS_DEVICE, gpu_number(device->gpu, IDLE_REASON, "clock_reasons"))
NUMBER(nvmlDeviceGetCurrentClocksThrottleReasons, u64, IS_DEVICE, gpu_number(device->gpu, IDLE_REASON, "clock_reasons"))
NUMBER(nvmlDeviceGetSupportedClocksEventReasons, u64, IS_DEVICE, POSSIBLE_REASONS)
NUMBER(nvmlDeviceGetSupportedClocksThrottleReasons, u64, IS_DEVICE, POSSIBLE_REASONS)

nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, u32 counter, u32 *kilobytes) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (kilobytes == NULL || counter > 1)
        return finish(INVALID_ARGUMENT);
    *kilobytes = busy(device->gpu) ? 250000 : 0;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetViolationStatus(nvmlDevice_t device, u32 policy, void *times) {
    u64 *violation = times;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (violation == NULL || policy > 10)
        return finish(INVALID_ARGUMENT);
    violation[0] = (u64)time(NULL) * 1000000;
    violation[1] = 0;
    return finish(SUCCESS);
}

/* ---- modes ---- */

static nvmlReturn_t set_mode(const char *call, nvmlDevice_t device, const char *name, u32 value, u32 most) {
    nvmlReturn_t answer = begin(call, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    if (value > most)
        answer = INVALID_ARGUMENT;
    else
        board_set_number(value, "gpu.%d.%s", device->gpu, name);
    board_log("%s gpu=%d value=%u -> %d", call, device->gpu, value, answer);
    return finish(answer);
}

nvmlReturn_t nvmlDeviceSetPersistenceMode(nvmlDevice_t device, u32 mode) {
    return set_mode(__func__, device, "persistence", mode, 1);
}

NUMBER(nvmlDeviceGetComputeMode, u32, ANY_DEVICE, compute_mode(device))

nvmlReturn_t nvmlDeviceSetComputeMode(nvmlDevice_t device, u32 mode) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    if (mode > 3)
        answer = INVALID_ARGUMENT;
    else if (device->kind == IS_MIG_DEVICE)
        board_set_number(mode, "gpu.%d.gi.%d.ci.%d.compute_mode", device->gpu, device->gpu_instance,
                         device->compute_instance);
    else
        board_set_number(mode, "gpu.%d.compute_mode", device->gpu);
    board_log("%s gpu=%d value=%u -> %d", __func__, device->gpu, mode, answer);
    return finish(answer);
}

/* ---- locked clocks ---- */

enum { ARCH_VOLTA = 5, ARCH_AMPERE = 7 };

static nvmlReturn_t lock_clocks(const char *call, nvmlDevice_t device, const char *name, int supported, u32 least,
                                u32 most, long long fastest) {
    nvmlReturn_t answer = begin(call, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    if (!supported) {
        answer = NOT_SUPPORTED;
    } else if (least > most || most > fastest) {
        answer = INVALID_ARGUMENT;
    } else {
        char text[32];

        snprintf(text, sizeof text, "%u,%u", least, most);
        board_set(text, "gpu.%d.%s", device->gpu, name);
    }
    board_log("%s gpu=%d mhz=%u,%u -> %d", call, device->gpu, least, most, answer);
    return finish(answer);
}

static nvmlReturn_t unlock_clocks(const char *call, nvmlDevice_t device, const char *name) {
    nvmlReturn_t answer = begin(call, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    board_remove("gpu.%d.%s", device->gpu, name);
    board_log("%s gpu=%d -> %d", call, device->gpu, answer);
    return finish(answer);
}

/* A property of a GPU, outside of a call. */
static long long asked_number(nvmlDevice_t device, long long fallback, const char *name) {
    long long number = fallback;

    if (begin("", device, IS_DEVICE, READING) == SUCCESS) {
        number = gpu_number(device->gpu, fallback, name);
        finish(SUCCESS);
    }
    return number;
}

nvmlReturn_t nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, u32 memory, u32 graphics) {
    char text[32];
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    snprintf(text, sizeof text, "%u,%u", memory, graphics);
    if (memory != gpu_number(device->gpu, 1593, "clock_memory_mhz") ||
        graphics > gpu_number(device->gpu, 1410, "clock_sm_mhz"))
        answer = INVALID_ARGUMENT;
    else
        board_set(text, "gpu.%d.application_clocks", device->gpu);
    board_log("%s gpu=%d mhz=%s -> %d", __func__, device->gpu, text, answer);
    return finish(answer);
}

NUMBER(nvmlDeviceGetAccountingMode, u32, IS_DEVICE, gpu_number(device->gpu, 0, "accounting"))

/* Of a divided GPU it is off, and stays so. */
nvmlReturn_t nvmlDeviceSetAccountingMode(nvmlDevice_t device, u32 mode) {
    if (asked_number(device, 0, "mig") != 0)
        return NOT_SUPPORTED;
    return set_mode(__func__, device, "accounting", mode, 1);
}

nvmlReturn_t nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, u32 least, u32 most) {
    return lock_clocks(__func__, device, "locked_gpu_clocks", asked_number(device, 0, "arch") >= ARCH_VOLTA, least, most,
                       asked_number(device, 1410, "clock_sm_mhz"));
}

nvmlReturn_t nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) {
    return unlock_clocks(__func__, device, "locked_gpu_clocks");
}

/* On Hopper they are only set in the deferred form, from the next start of the driver on. */
nvmlReturn_t nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, u32 least, u32 most) {
    long long arch = asked_number(device, 0, "arch");

    return lock_clocks(__func__, device, "locked_memory_clocks", arch >= ARCH_AMPERE && arch != ARCH_HOPPER, least, most,
                       asked_number(device, 1593, "clock_memory_mhz"));
}

nvmlReturn_t nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device) {
    return unlock_clocks(__func__, device, "locked_memory_clocks");
}

/* What nvidia-smi asks the driver without NVML. mhz: 0 takes it back. */
nvmlReturn_t gpusimDeferMemoryClock(nvmlDevice_t device, u32 mhz) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    if (mhz == 0)
        board_remove("gpu.%d.deferred_memory_clock", device->gpu);
    else if (mhz > gpu_number(device->gpu, 1593, "clock_memory_mhz"))
        answer = INVALID_ARGUMENT;
    else
        board_set_number(mhz, "gpu.%d.deferred_memory_clock", device->gpu);
    board_log("%s gpu=%d mhz=%u -> %d", __func__, device->gpu, mhz, answer);
    return finish(answer);
}

/* ---- ECC, retired pages, remapped rows ---- */

static int has_ecc(int gpu) {
    return gpu_text(gpu, NULL, "ecc_default") != NULL;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, u32 *current, u32 *pending) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (current == NULL || pending == NULL)
        return finish(INVALID_ARGUMENT);
    if (!has_ecc(device->gpu))
        return finish(NOT_SUPPORTED);
    *current = (u32)gpu_number(device->gpu, gpu_number(device->gpu, 1, "ecc_default"), "ecc");
    *pending = (u32)gpu_number(device->gpu, *current, "ecc_pending");
    return finish(SUCCESS);
}

/* From the next reset on; that of HBM on Ampere and later dies is always on. */
nvmlReturn_t nvmlDeviceSetEccMode(nvmlDevice_t device, u32 mode) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (!has_ecc(device->gpu) || gpu_number(device->gpu, 0, "ecc_fixed") != 0)
        return finish(NOT_SUPPORTED);
    finish(SUCCESS);
    return set_mode(__func__, device, "ecc_pending", mode, 1);
}

static u64 ecc_count(int gpu, u32 error_type, u32 counter_type) {
    return (u64)board_number(0, "gpu.%d.ecc_errors.%s.%s", gpu, error_type ? "uncorrected" : "corrected",
                             counter_type ? "aggregate" : "volatile");
}

nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t device, u32 error_type, u32 counter_type, u64 *count) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL || error_type > 1 || counter_type > 1)
        return finish(INVALID_ARGUMENT);
    if (!has_ecc(device->gpu))
        return finish(NOT_SUPPORTED);
    *count = ecc_count(device->gpu, error_type, counter_type);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t device, u32 error_type, u32 counter_type, u32 location,
                                             u64 *count) {
    enum { DEVICE_MEMORY = 2 };
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL || error_type > 1 || counter_type > 1 || location > 7)
        return finish(INVALID_ARGUMENT);
    if (!has_ecc(device->gpu))
        return finish(NOT_SUPPORTED);
    *count = location == DEVICE_MEMORY ? ecc_count(device->gpu, error_type, counter_type) : 0;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t device, u32 error_type, u32 counter_type,
                                            nvmlEccErrorCounts_t *counts) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (counts == NULL || error_type > 1 || counter_type > 1)
        return finish(INVALID_ARGUMENT);
    if (!has_ecc(device->gpu))
        return finish(NOT_SUPPORTED);
    memset(counts, 0, sizeof *counts);
    counts->deviceMemory = ecc_count(device->gpu, error_type, counter_type);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceClearEccErrorCounts(nvmlDevice_t device, u32 counter_type) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    if (counter_type > 1)
        return finish(INVALID_ARGUMENT);
    board_remove("gpu.%d.ecc_errors.corrected.%s", device->gpu, counter_type ? "aggregate" : "volatile");
    board_remove("gpu.%d.ecc_errors.uncorrected.%s", device->gpu, counter_type ? "aggregate" : "volatile");
    board_log("%s gpu=%d counter=%u -> 0", __func__, device->gpu, counter_type);
    return finish(SUCCESS);
}

/* Row remapping came with Ampere's A100; older boards retire pages instead. */
static int remaps_rows(int gpu) {
    return gpu_number(gpu, 0, "remaps_rows") != 0;
}

/* nvml.h: a GPU with MIG instances does not tell. */
static int has_instances(int gpu) {
    for (int instance = 0; mig_enabled(gpu) && instance < MAX_GPU_INSTANCES; instance++)
        if (instance_exists(gpu, instance))
            return 1;
    return 0;
}

nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (corrected == NULL || uncorrected == NULL || pending == NULL || failed == NULL)
        return finish(INVALID_ARGUMENT);
    if (!remaps_rows(device->gpu) || has_instances(device->gpu))
        return finish(NOT_SUPPORTED);
    *corrected = (u32)gpu_number(device->gpu, 0, "remapped.corrected");
    *uncorrected = (u32)gpu_number(device->gpu, 0, "remapped.uncorrected");
    *pending = (u32)gpu_number(device->gpu, 0, "remapped.pending");
    *failed = (u32)gpu_number(device->gpu, 0, "remapped.failed");
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetSramEccErrorStatus(nvmlDevice_t device, nvmlEccSramErrorStatus_t *status) {
    u32 version;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (status == NULL)
        return finish(INVALID_ARGUMENT);
    version = status->version;
    if (version != STRUCT_VERSION(sizeof *status, 1))
        return finish(ARGUMENT_VERSION_MISMATCH);
    if (!remaps_rows(device->gpu))
        return finish(NOT_SUPPORTED);
    memset(status, 0, sizeof *status);
    status->version = version;
    status->bThresholdExceeded = (u32)gpu_number(device->gpu, 0, "sram_threshold");
    return finish(SUCCESS);
}

/* A virtual GPU needs a license; the service of the guest driver tells the board that it has fetched one. */
nvmlReturn_t nvmlDeviceGetGridLicensableFeatures_v4(nvmlDevice_t device, nvmlGridLicensableFeatures_t *features) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (features == NULL)
        return finish(INVALID_ARGUMENT);
    memset(features, 0, sizeof *features);
    if (*board_text("", "vgpu.manager") == '\0')
        return finish(SUCCESS);
    features->isGridLicenseSupported = 1;
    features->licensableFeaturesCount = 1;
    nvmlGridLicensableFeature_t *feature = &features->gridLicensableFeatures[0];
    feature->featureCode = (u32)board_number(1, "vgpu.feature");
    feature->featureEnabled = 1;
    feature->featureState = (u32)board_number(0, "vgpu.licensed");
    snprintf(feature->productName, sizeof feature->productName, "NVIDIA Virtual Compute Server");
    if (feature->featureState)
        feature->licenseExpiry = (nvmlGridLicenseExpiry_t){2027, 1, 2, 3, 4, 5, 2};
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRowRemapperHistogram(nvmlDevice_t device, nvmlRowRemapperHistogramValues_t *values) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (values == NULL)
        return finish(INVALID_ARGUMENT);
    if (!remaps_rows(device->gpu))
        return finish(NOT_SUPPORTED);
    memset(values, 0, sizeof *values);
    values->max = (u32)gpu_number(device->gpu, 640, "remap_banks");
    return finish(SUCCESS);
}

static nvmlReturn_t retired_pages(const char *call, nvmlDevice_t device, u32 cause, u32 *count) {
    nvmlReturn_t answer = begin(call, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL || cause > 1)
        return finish(INVALID_ARGUMENT);
    if (remaps_rows(device->gpu) || !has_ecc(device->gpu))
        return finish(NOT_SUPPORTED);
    *count = 0;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t device, u32 cause, u32 *count, u64 *addresses) {
    (void)addresses;
    return retired_pages(__func__, device, cause, count);
}

nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t device, u32 cause, u32 *count, u64 *addresses, u64 *times) {
    (void)addresses;
    (void)times;
    return retired_pages(__func__, device, cause, count);
}

/* ---- topology, NVLink, fabric ---- */

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t other, u32 *level) {
    enum { INTERNAL = 0, SINGLE = 10, NODE = 40, SYSTEM = 50 };
    nvmlReturn_t answer = begin(__func__, one, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (other == NULL || level == NULL || other->gpu < 0 || other->gpu >= gpu_count())
        return finish(INVALID_ARGUMENT);
    if (one->gpu == other->gpu)
        *level = INTERNAL;
    else if (gpu_number(one->gpu, -1, "pcie_switch") >= 0 &&
             gpu_number(one->gpu, -1, "pcie_switch") == gpu_number(other->gpu, -2, "pcie_switch"))
        *level = SINGLE;
    else
        *level = gpu_number(one->gpu, 0, "numa") == gpu_number(other->gpu, 0, "numa") ? NODE : SYSTEM;
    return finish(SUCCESS);
}

static nvmlReturn_t check_link(nvmlDevice_t device, u32 link) {
    enum { MAX_LINKS = 18 };

    if (link >= MAX_LINKS)
        return INVALID_ARGUMENT;
    return link < gpu_number(device->gpu, 0, "nvlinks") ? SUCCESS : NOT_SUPPORTED;
}

/* A100 trains its links off while MIG is on; later generations keep them up. */
static int links_up(int gpu) {
    return gpu_number(gpu, 0, "arch") >= ARCH_HOPPER || !mig_enabled(gpu);
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, u32 link, u32 *active) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (active == NULL)
        return finish(INVALID_ARGUMENT);
    answer = check_link(device, link);
    if (answer == SUCCESS)
        *active = links_up(device->gpu) && (gpu_number(device->gpu, 0, "nvlinks_down") >> link & 1) == 0;
    return finish(answer);
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, u32 link, u32 *version) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (version == NULL)
        return finish(INVALID_ARGUMENT);
    *version = (u32)gpu_number(device->gpu, 0, "nvlink_version");
    return finish(check_link(device, link));
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, u32 link, u32 capability, u32 *result) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (result == NULL || capability > 5)
        return finish(INVALID_ARGUMENT);
    *result = capability != 4;
    return finish(check_link(device, link));
}

nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, u32 link, u32 counter, u64 *value) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (value == NULL || counter > 4)
        return finish(INVALID_ARGUMENT);
    *value = 0;
    return finish(check_link(device, link));
}

/* Where a link ends: a switch that the host sees on its PCI bus, or the next GPU. */
nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, u32 link, nvmlPciInfo_t *pci) {
    long long switches;
    struct address address;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (pci == NULL)
        return finish(INVALID_ARGUMENT);
    answer = check_link(device, link);
    switches = board_number(0, "nvswitch.count");
    memset(pci, 0, sizeof *pci);
    if (answer == SUCCESS && switches > 0) {
        const char *bus = board_text("", "nvswitch.%lld.bus", link % switches);

        parse_address(bus, &address);
        pci->domain = address.domain;
        pci->bus = address.bus;
        pci->device = address.device;
        pci->pciDeviceId = (u32)board_number(0, "nvswitch.pci_device") << 16 | 0x10de;
        snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", address.domain, address.bus, address.device);
        snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%s", bus);
    } else if (answer == SUCCESS) {
        fill_pci(device->gpu ^ 1, pci);
    }
    return finish(answer);
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, u32 link, u32 *type) {
    enum { LINK_TO_GPU = 0, LINK_TO_SWITCH = 2 };
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (type == NULL)
        return finish(INVALID_ARGUMENT);
    *type = strcmp(board_text("none", "board.fabric"), "none") == 0 ? LINK_TO_GPU : LINK_TO_SWITCH;
    return finish(check_link(device, link));
}

struct fabric {
    unsigned char cluster[16];
    u32 state, clique, health;
    nvmlReturn_t status;
};

static void parse_uuid(const char *text, unsigned char *bytes) {
    for (int i = 0; i < 16 && *text != '\0';) {
        unsigned value;

        if (*text == '-') {
            text++;
        } else if (sscanf(text, "%2x", &value) == 1) {
            bytes[i++] = (unsigned char)value;
            text += 2;
        } else {
            return;
        }
    }
}

static void read_fabric(int gpu, struct fabric *fabric) {
    memset(fabric, 0, sizeof *fabric);
    fabric->state = (u32)gpu_number(gpu, 0, "fabric.state");
    fabric->status = (nvmlReturn_t)gpu_number(gpu, SUCCESS, "fabric.status");
    fabric->clique = (u32)gpu_number(gpu, 0, "fabric.clique");
    fabric->health = (u32)gpu_number(gpu, 0, "fabric.health");
    parse_uuid(gpu_text(gpu, "", "fabric.cluster"), fabric->cluster);
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfo(nvmlDevice_t device, nvmlGpuFabricInfo_t *info) {
    struct fabric fabric;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    read_fabric(device->gpu, &fabric);
    memcpy(info->clusterUuid, fabric.cluster, sizeof info->clusterUuid);
    info->status = fabric.status;
    info->cliqueId = fabric.clique;
    info->state = (unsigned char)fabric.state;
    return finish(SUCCESS);
}

/* Version 3's summary of the two-bit fields of the health mask: any that says "true" means unhealthy, but the first,
 * of bandwidth, by itself means limited capacity. */
static unsigned char health_summary(u32 health) {
    enum { NOT_TOLD = 0, HEALTHY = 1, UNHEALTHY = 2, LIMITED = 3 };

    if (health == 0)
        return NOT_TOLD;
    for (int shift = 2; shift < 8; shift += 2)
        if (((health >> shift) & 3) == 1)
            return UNHEALTHY;
    if (((health >> 8) & 0xf) > 1)
        return UNHEALTHY;
    return (health & 3) == 1 ? LIMITED : HEALTHY;
}

nvmlReturn_t nvmlDeviceGetGpuFabricInfoV(nvmlDevice_t device, nvmlGpuFabricInfoV_t *info) {
    struct fabric fabric;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    if (info->version != STRUCT_VERSION(36, 2) && info->version != STRUCT_VERSION(40, 3))
        return finish(ARGUMENT_VERSION_MISMATCH);
    read_fabric(device->gpu, &fabric);
    memcpy(info->clusterUuid, fabric.cluster, sizeof info->clusterUuid);
    info->status = fabric.status;
    info->cliqueId = fabric.clique;
    info->state = (unsigned char)fabric.state;
    info->healthMask = fabric.health;
    if (info->version == STRUCT_VERSION(40, 3))
        info->healthSummary = health_summary(fabric.health);
    return finish(SUCCESS);
}

/* ---- fields, affinity ---- */

struct field_value {
    u32 field, scope;
    long long timestamp, latency;
    u32 type;
    nvmlReturn_t answer;
    u64 value;
};

nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, void *values) {
    enum { FIELD_NVLINK_COUNT = 91, FIELD_RECOVERY_ACTION = 230, SINCE = 565, UNSIGNED_INT = 1 };
    struct field_value *fields = values;
    int tells;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count < 0 || fields == NULL)
        return finish(INVALID_ARGUMENT);
    tells = atoi(gpusimLibraryVersion()) >= SINCE;
    for (int i = 0; i < count; i++) {
        int of_recovery = fields[i].field == FIELD_RECOVERY_ACTION;

        fields[i].timestamp = (long long)time(NULL) * 1000000;
        fields[i].answer = fields[i].field == FIELD_NVLINK_COUNT || (of_recovery && tells) ? SUCCESS : NOT_SUPPORTED;
        fields[i].type = UNSIGNED_INT;
        fields[i].value = (u64)gpu_number(device->gpu, 0, of_recovery ? "recovery_action" : "nvlinks");
    }
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t device, u32 size, unsigned long *set) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (set == NULL || size == 0)
        return finish(INVALID_ARGUMENT);
    memset(set, 0, size * sizeof *set);
    for (long cpu = 0; cpu < sysconf(_SC_NPROCESSORS_CONF) && cpu < (long)(size * 64); cpu++)
        set[cpu / 64] |= 1UL << (cpu % 64);
    return finish(SUCCESS);
}

/* ---- reset ---- */

/* by_bus: a reset of another kind, for which a driver may ask (recovery action 6), and which the usual one is not. */
nvmlReturn_t gpusimResetGpu(nvmlDevice_t device, u32 by_bus) {
    enum { BUS_RESET = 6 };
    int gpu;
    int user;
    nvmlReturn_t answer = begin("gpusimResetGpu", device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    gpu = device->gpu;
    user = gpu_user(gpu);
    /* Persistence mode is a client of its own. */
    if (user != 0 || gpu_number(gpu, 0, "persistence") != 0) {
        answer = IN_USE;
    } else {
        forget_instances(gpu);
        board_set_number(gpu_number(gpu, 0, "mig_pending"), "gpu.%d.mig", gpu);
        if (gpu_text(gpu, NULL, "ecc_pending") != NULL)
            board_set(gpu_text(gpu, "1", "ecc_pending"), "gpu.%d.ecc", gpu);
        board_remove("gpu.%d.ecc_errors.corrected.volatile", gpu);
        board_remove("gpu.%d.ecc_errors.uncorrected.volatile", gpu);
        board_remove("gpu.%d.remapped.pending", gpu);
        if (by_bus || gpu_number(gpu, 0, "recovery_action") != BUS_RESET)
            board_remove("gpu.%d.recovery_action", gpu);
        board_remove("gpu.%d.nvlinks_down", gpu);
        board_remove("gpu.%d.compute_mode", gpu);
        board_remove("gpu.%d.accounting", gpu);
        board_remove("gpu.%d.application_clocks", gpu);
        board_remove("gpu.%d.power_limit_w", gpu);
        board_remove("gpu.%d.locked_gpu_clocks", gpu);
        board_remove("gpu.%d.locked_memory_clocks", gpu);
    }
    board_log("reset gpu=%d user=%d%s -> %d", gpu, user, by_bus ? " by its bus" : "", answer);
    return finish(answer);
}
