/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * NVML calls on MIG: mode, GPU instances, compute instances, MIG devices. What fits where comes from the board's own
 * profile table; instances live on the board as gpu.N.gi.ID and gpu.N.gi.ID.ci.ID.
 */
#define _GNU_SOURCE
#include "library.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_PLACEMENTS = 8, MAX_PROFILES = 24, PROFILE_ENUM_END = 0x12, ANY_DEVICE = IS_DEVICE | IS_MIG_DEVICE };
enum { ALL_MEDIA_FIRST = 0x0f, ALL_MEDIA_LAST = 0x10, NO_MEDIA_FIRST = 0x0d, NO_MEDIA_LAST = 0x0e };

struct profile {
    int number; /* the NVML enumeration */
    int id;
    char name[48];
    int slices, most, multiprocessors;
    long long memory_mib;
    int copy, decode, encode, jpeg, ofa, size, capabilities;
    int starts[MAX_PLACEMENTS];
    int start_count;
};

/* ---- the profile table ---- */

static int parse_profile(const char *text, struct profile *profile) {
    char starts[64] = "";
    char *rest = starts;
    char *word;

    memset(profile, 0, sizeof *profile);
    if (sscanf(text, "%d,%d,%47[^,],%d,%d,%d,%lld,%d,%d,%d,%d,%d,%d,%d,%63s", &profile->number, &profile->id,
               profile->name, &profile->slices, &profile->most, &profile->multiprocessors, &profile->memory_mib,
               &profile->copy, &profile->decode, &profile->encode, &profile->jpeg, &profile->ofa,
               &profile->capabilities, &profile->size, starts) != 15)
        return 0;
    while ((word = strsep(&rest, "+")) != NULL && profile->start_count < MAX_PLACEMENTS)
        profile->starts[profile->start_count++] = atoi(word);
    return 1;
}

static int profile_at(int position, struct profile *profile) {
    const char *text = board_text(NULL, "board.gpu_instance_profile.%d", position);
    return text != NULL && parse_profile(text, profile);
}

static int profile_by_id(int id, struct profile *profile) {
    for (int i = 0; profile_at(i, profile); i++)
        if (profile->id == id)
            return 1;
    return 0;
}

static int profile_by_enum(int number, struct profile *profile) {
    for (int i = 0; profile_at(i, profile); i++)
        if (profile->number == number)
            return 1;
    return 0;
}

static int capable(int gpu) {
    return gpu_text(gpu, NULL, "mig_units") != NULL;
}

int mig_enabled(int gpu) {
    return capable(gpu) && gpu_number(gpu, 0, "mig") != 0;
}

/* ---- instances on the board ---- */

static long long instance_number(int gpu, int gi, const char *name) {
    return board_number(-1, "gpu.%d.gi.%d.%s", gpu, gi, name);
}

static long long compute_number(int gpu, int gi, int ci, const char *name) {
    return board_number(-1, "gpu.%d.gi.%d.ci.%d.%s", gpu, gi, ci, name);
}

int instance_exists(int gpu, int gi) {
    return instance_number(gpu, gi, "profile") >= 0;
}

int compute_instance_exists(int gpu, int gi, int ci) {
    return compute_number(gpu, gi, ci, "profile") >= 0;
}

/* ---- capability files, which the kernel module shows for each instance (python/gpusim/files.py makes the fixed ones) ---- */

static int capability_path(char *path, size_t size, int gpu, int gi, int ci) {
    int used;

    if (board_directory() == NULL)
        return 0;
    used = snprintf(path, size, "%s/proc/driver/nvidia/capabilities/gpu%lld/mig/gi%d", board_directory(),
                    gpu_number(gpu, gpu, "minor"), gi);
    if (ci >= 0)
        snprintf(path + used, size - (size_t)used, "/ci%d", ci);
    return 1;
}

static void make_directories(char *path) {
    for (char *slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0755);
        *slash = '/';
    }
}

static void show_capability(int gpu, int gi, int ci) {
    enum { FIRST_MINOR = 3, MINORS_OF_INSTANCE = 9, INSTANCES_OF_GPU = 15 };
    char path[PATH_MAX];
    long long number = gpu_number(gpu, gpu, "minor");
    FILE *file;

    if (!capability_path(path, sizeof path - 8, gpu, gi, ci))
        return;
    strcat(path, "/access");
    make_directories(path);
    file = fopen(path, "we");
    if (file == NULL)
        return;
    fprintf(file, "DeviceFileMinor: %lld\nDeviceFileMode: 292\nDeviceFileModify: 1\n",
            FIRST_MINOR + (number * INSTANCES_OF_GPU + gi) * MINORS_OF_INSTANCE + ci + 1);
    fclose(file);
}

static void hide_capability(int gpu, int gi, int ci) {
    char path[PATH_MAX];
    char *end;

    if (!capability_path(path, sizeof path - 8, gpu, gi, ci))
        return;
    end = path + strlen(path);
    strcpy(end, "/access");
    unlink(path);
    *end = '\0';
    rmdir(path);
}

void forget_instances(int gpu) {
    for (int gi = 0; gi < MAX_GPU_INSTANCES; gi++) {
        for (int ci = 0; instance_exists(gpu, gi) && ci < MAX_COMPUTE_INSTANCES; ci++)
            if (compute_instance_exists(gpu, gi, ci))
                hide_capability(gpu, gi, ci);
        if (instance_exists(gpu, gi))
            hide_capability(gpu, gi, -1);
    }
    board_remove("gpu.%d.gi", gpu);
}

static int has_instances(int gpu) {
    for (int gi = 0; gi < MAX_GPU_INSTANCES; gi++)
        if (instance_exists(gpu, gi))
            return 1;
    return 0;
}

static int instance_profile(int gpu, int gi, struct profile *profile) {
    return profile_by_id((int)instance_number(gpu, gi, "profile"), profile);
}

long long instance_memory_mib(int gpu, int gi) {
    struct profile profile;
    return instance_profile(gpu, gi, &profile) ? profile.memory_mib : 0;
}

/* A process that was declared on an instance (gi, and ci unless it is -1) keeps it. */
static int instance_in_use(int gpu, int gi, int ci) {
    size_t position = 0;
    const char *key;
    const char *value;
    int id;

    while (board_next("process.", &position, &key, &value)) {
        if (strstr(key, ".gpu") == NULL || sscanf(key, "process.%d.gpu", &id) != 1 || atoi(value) != gpu)
            continue;
        if (board_number(-1, "process.%d.gi", id) == gi && (ci < 0 || board_number(0, "process.%d.ci", id) == ci))
            return 1;
    }
    return 0;
}

/* ---- mode ---- */

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, u32 *current, u32 *pending) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (current == NULL || pending == NULL)
        return finish(INVALID_ARGUMENT);
    if (!capable(device->gpu))
        return finish(NOT_SUPPORTED);
    *current = (u32)gpu_number(device->gpu, 0, "mig");
    *pending = (u32)gpu_number(device->gpu, *current, "mig_pending");
    return finish(SUCCESS);
}

/* Ampere activates a mode by a reset of the GPU, which NVML does by itself when nobody uses the GPU; in a virtual
 * machine it cannot. Later generations need no reset, but no running work either. */
static nvmlReturn_t activation(int gpu) {
    if (fault_present("mig-pending", gpu))
        return RESET_REQUIRED;
    if (fault_present("mig-in-use", gpu) || gpu_user(gpu) != 0)
        return IN_USE;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceSetMigMode(nvmlDevice_t device, u32 mode, nvmlReturn_t *status) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, WRITING);
    int gpu;

    if (answer != SUCCESS)
        return answer;
    gpu = device->gpu;
    if (status == NULL || mode > 1)
        return finish(INVALID_ARGUMENT);
    if (!capable(gpu))
        return finish(NOT_SUPPORTED);
    *status = SUCCESS;
    if (mode != (u32)gpu_number(gpu, 0, "mig")) {
        *status = has_instances(gpu) ? IN_USE : activation(gpu);
        if (*status == SUCCESS)
            board_set_number(mode, "gpu.%d.mig", gpu);
    }
    board_set_number(mode, "gpu.%d.mig_pending", gpu);
    board_log("%s gpu=%d mode=%u status=%d -> 0", __func__, gpu, mode, *status);
    return finish(SUCCESS);
}

/* ---- GPU instance profiles and placements ---- */

static nvmlReturn_t find_profile(struct handle *device, u32 number, struct profile *profile) {
    if (!capable(device->gpu))
        return NOT_SUPPORTED;
    if (number >= PROFILE_ENUM_END)
        return INVALID_ARGUMENT;
    return profile_by_enum((int)number, profile) ? SUCCESS : NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfo(nvmlDevice_t device, u32 number, nvmlGpuInstanceProfileInfo_t *info) {
    struct profile profile;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    answer = find_profile(device, number, &profile);
    if (answer != SUCCESS)
        return finish(answer);
    *info = (nvmlGpuInstanceProfileInfo_t){
        .id = (u32)profile.id,
        .isP2pSupported = (u32)profile.capabilities & 1,
        .sliceCount = (u32)profile.slices,
        .instanceCount = (u32)profile.most,
        .multiprocessorCount = (u32)profile.multiprocessors,
        .copyEngineCount = (u32)profile.copy,
        .decoderCount = (u32)profile.decode,
        .encoderCount = (u32)profile.encode,
        .jpegCount = (u32)profile.jpeg,
        .ofaCount = (u32)profile.ofa,
        .memorySizeMB = (u64)profile.memory_mib,
    };
    return finish(SUCCESS);
}

static nvmlReturn_t fill_versioned(const struct profile *profile, void *buffer) {
    u32 version = *(u32 *)buffer;

    if (version == STRUCT_VERSION(sizeof(nvmlGpuInstanceProfileInfo_v2_t), 2)) {
        nvmlGpuInstanceProfileInfo_v2_t *info = buffer;
        *info = (nvmlGpuInstanceProfileInfo_v2_t){
            .version = version,
            .id = (u32)profile->id,
            .isP2pSupported = (u32)profile->capabilities & 1,
            .sliceCount = (u32)profile->slices,
            .instanceCount = (u32)profile->most,
            .multiprocessorCount = (u32)profile->multiprocessors,
            .copyEngineCount = (u32)profile->copy,
            .decoderCount = (u32)profile->decode,
            .encoderCount = (u32)profile->encode,
            .jpegCount = (u32)profile->jpeg,
            .ofaCount = (u32)profile->ofa,
            .memorySizeMB = (u64)profile->memory_mib,
        };
        snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
        return SUCCESS;
    }
    if (version == STRUCT_VERSION(sizeof(nvmlGpuInstanceProfileInfo_v3_t), 3)) {
        nvmlGpuInstanceProfileInfo_v3_t *info = buffer;
        *info = (nvmlGpuInstanceProfileInfo_v3_t){
            .version = version,
            .id = (u32)profile->id,
            .sliceCount = (u32)profile->slices,
            .instanceCount = (u32)profile->most,
            .multiprocessorCount = (u32)profile->multiprocessors,
            .copyEngineCount = (u32)profile->copy,
            .decoderCount = (u32)profile->decode,
            .encoderCount = (u32)profile->encode,
            .jpegCount = (u32)profile->jpeg,
            .ofaCount = (u32)profile->ofa,
            .memorySizeMB = (u64)profile->memory_mib,
            .capabilities = (u32)profile->capabilities,
        };
        snprintf(info->name, sizeof info->name, "MIG %s", profile->name);
        return SUCCESS;
    }
    return ARGUMENT_VERSION_MISMATCH;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoV(nvmlDevice_t device, u32 number, void *info) {
    struct profile profile;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    answer = find_profile(device, number, &profile);
    return finish(answer != SUCCESS ? answer : fill_versioned(&profile, info));
}

nvmlReturn_t nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvmlDevice_t device, u32 id, void *info) {
    struct profile profile;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    if (!capable(device->gpu))
        return finish(NOT_SUPPORTED);
    return finish(profile_by_id((int)id, &profile) ? fill_versioned(&profile, info) : INVALID_ARGUMENT);
}

static nvmlReturn_t profile_to_use(int gpu, u32 id, struct profile *profile) {
    if (!capable(gpu))
        return NOT_SUPPORTED;
    return profile_by_id((int)id, profile) ? SUCCESS : INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvmlDevice_t device, u32 id, nvmlPlacement_t *placements,
                                                           u32 *count) {
    struct profile profile;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL)
        return finish(INVALID_ARGUMENT);
    answer = profile_to_use(device->gpu, id, &profile);
    if (answer != SUCCESS)
        return finish(answer);
    if (placements != NULL && *count < (u32)profile.start_count)
        answer = INSUFFICIENT_SIZE;
    *count = (u32)profile.start_count;
    for (int i = 0; placements != NULL && answer == SUCCESS && i < profile.start_count; i++)
        placements[i] = (nvmlPlacement_t){(u32)profile.starts[i], (u32)profile.size};
    return finish(answer);
}

nvmlReturn_t nvmlDeviceGetGpuInstancePossiblePlacements(nvmlDevice_t device, u32 id, nvmlPlacement_t *placements,
                                                        u32 *count) {
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, placements, count);
}

static u32 occupied_units(int gpu) {
    u32 units = 0;

    for (int gi = 0; gi < MAX_GPU_INSTANCES; gi++)
        if (instance_exists(gpu, gi))
            units |= ((1u << instance_number(gpu, gi, "size")) - 1) << instance_number(gpu, gi, "start");
    return units;
}

static u32 units_of(int start, int size) {
    return ((1u << size) - 1) << start;
}

static int is_between(int number, int first, int last) {
    return number >= first && number <= last;
}

/* A profile with all media engines leaves none for others but those that ask for none. */
static int media_allows(int gpu, const struct profile *wanted) {
    struct profile other;

    for (int gi = 0; gi < MAX_GPU_INSTANCES; gi++) {
        if (!instance_exists(gpu, gi) || !instance_profile(gpu, gi, &other))
            continue;
        if (is_between(other.number, ALL_MEDIA_FIRST, ALL_MEDIA_LAST) &&
            !is_between(wanted->number, NO_MEDIA_FIRST, NO_MEDIA_LAST))
            return 0;
        if (is_between(wanted->number, ALL_MEDIA_FIRST, ALL_MEDIA_LAST) &&
            !is_between(other.number, NO_MEDIA_FIRST, NO_MEDIA_LAST))
            return 0;
    }
    return 1;
}

static int instances_of(int gpu, int id) {
    int count = 0;

    for (int gi = 0; gi < MAX_GPU_INSTANCES; gi++)
        count += instance_number(gpu, gi, "profile") == id;
    return count;
}

static int room_for_one_more(int gpu, const struct profile *profile) {
    return instances_of(gpu, profile->id) < profile->most && media_allows(gpu, profile);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceRemainingCapacity(nvmlDevice_t device, u32 id, u32 *count) {
    struct profile profile;
    u32 occupied;
    int left;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL)
        return finish(INVALID_ARGUMENT);
    answer = profile_to_use(device->gpu, id, &profile);
    if (answer == SUCCESS && !mig_enabled(device->gpu))
        answer = NOT_SUPPORTED;
    if (answer != SUCCESS)
        return finish(answer);
    occupied = occupied_units(device->gpu);
    left = media_allows(device->gpu, &profile) ? profile.most - instances_of(device->gpu, profile.id) : 0;
    *count = 0;
    for (int i = 0; i < profile.start_count && left > 0; i++) {
        u32 units = units_of(profile.starts[i], profile.size);

        if ((occupied & units) == 0) {
            occupied |= units;
            (*count)++;
            left--;
        }
    }
    return finish(SUCCESS);
}

/* How many placements of the base profiles, possible until now, a new instance on these units would take away. */
static int placements_lost(u32 occupied, u32 units) {
    enum { LAST_BASE_PROFILE = 4 };
    struct profile profile;
    int lost = 0;

    for (int p = 0; profile_at(p, &profile); p++)
        for (int i = 0; profile.number <= LAST_BASE_PROFILE && i < profile.start_count; i++) {
            u32 other = units_of(profile.starts[i], profile.size);
            lost += (other & occupied) == 0 && (other & units) != 0;
        }
    return lost;
}

/* The driver's own choice as NVIDIA's MIG guide shows it: take the place that spoils least, the lowest of equals. */
static int choose_start(int gpu, const struct profile *profile) {
    u32 occupied = occupied_units(gpu);
    int best = -1;
    int best_lost = 0;

    for (int i = 0; i < profile->start_count; i++) {
        u32 units = units_of(profile->starts[i], profile->size);
        int lost = placements_lost(occupied, units);

        if ((units & occupied) == 0 && (best < 0 || lost < best_lost)) {
            best = profile->starts[i];
            best_lost = lost;
        }
    }
    return best;
}

static int instance_id_for(int gpu, int start, int size) {
    int units = (int)gpu_number(gpu, 8, "mig_units");

    if (size == units)
        return 0;
    if (size * 2 == units)
        return 1 + start / size;
    if (size * 4 == units)
        return 3 + start / size;
    return 7 + start;
}

static int legal_start(const struct profile *profile, const nvmlPlacement_t *placement) {
    if ((int)placement->size != profile->size)
        return 0;
    for (int i = 0; i < profile->start_count; i++)
        if (profile->starts[i] == (int)placement->start)
            return 1;
    return 0;
}

static nvmlReturn_t create_instance(int gpu, u32 id, const nvmlPlacement_t *placement, int *created) {
    struct profile profile;
    int start;
    int gi;
    nvmlReturn_t answer = profile_to_use(gpu, id, &profile);

    if (answer != SUCCESS)
        return answer;
    if (!mig_enabled(gpu))
        return NOT_SUPPORTED;
    if (placement != NULL && !legal_start(&profile, placement))
        return INVALID_ARGUMENT;
    if (!room_for_one_more(gpu, &profile))
        return INSUFFICIENT_RESOURCES;
    start = placement != NULL ? (int)placement->start : choose_start(gpu, &profile);
    if (start < 0 || (occupied_units(gpu) & units_of(start, profile.size)) != 0)
        return INSUFFICIENT_RESOURCES;
    gi = instance_id_for(gpu, start, profile.size);
    board_set_number(profile.id, "gpu.%d.gi.%d.profile", gpu, gi);
    board_set_number(start, "gpu.%d.gi.%d.start", gpu, gi);
    board_set_number(profile.size, "gpu.%d.gi.%d.size", gpu, gi);
    *created = gi;
    return SUCCESS;
}

static nvmlReturn_t create_gpu_instance(const char *call, nvmlDevice_t device, u32 id, const nvmlPlacement_t *placement,
                                        nvmlGpuInstance_t *instance) {
    int gi = -1;
    nvmlReturn_t answer = begin(call, device, IS_DEVICE, WRITING);
    if (answer != SUCCESS)
        return answer;
    answer = instance == NULL ? INVALID_ARGUMENT : create_instance(device->gpu, id, placement, &gi);
    if (answer == SUCCESS) {
        *instance = gpu_instance_handle(device->gpu, gi);
        show_capability(device->gpu, gi, -1);
    }
    board_log("%s gpu=%d profile=%u start=%d gi=%d -> %d", call, device->gpu, id,
              placement != NULL ? (int)placement->start : -1, gi, answer);
    return finish(answer);
}

nvmlReturn_t nvmlDeviceCreateGpuInstance(nvmlDevice_t device, u32 id, nvmlGpuInstance_t *instance) {
    return create_gpu_instance(__func__, device, id, NULL, instance);
}

nvmlReturn_t nvmlDeviceCreateGpuInstanceWithPlacement(nvmlDevice_t device, u32 id, const nvmlPlacement_t *placement,
                                                      nvmlGpuInstance_t *instance) {
    if (placement == NULL)
        return INVALID_ARGUMENT;
    return create_gpu_instance(__func__, device, id, placement, instance);
}

nvmlReturn_t nvmlGpuInstanceDestroy(nvmlGpuInstance_t instance) {
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, WRITING);
    if (answer != SUCCESS)
        return answer;
    for (int ci = 0; ci < MAX_COMPUTE_INSTANCES; ci++)
        if (compute_instance_exists(instance->gpu, instance->gpu_instance, ci))
            answer = IN_USE;
    if (instance_in_use(instance->gpu, instance->gpu_instance, -1))
        answer = IN_USE;
    if (answer == SUCCESS) {
        board_remove("gpu.%d.gi.%d", instance->gpu, instance->gpu_instance);
        hide_capability(instance->gpu, instance->gpu_instance, -1);
    }
    board_log("%s gpu=%d gi=%d -> %d", __func__, instance->gpu, instance->gpu_instance, answer);
    return finish(answer);
}

nvmlReturn_t nvmlDeviceGetGpuInstances(nvmlDevice_t device, u32 id, nvmlGpuInstance_t *instances, u32 *count) {
    struct profile profile;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (instances == NULL || count == NULL)
        return finish(INVALID_ARGUMENT);
    answer = profile_to_use(device->gpu, id, &profile);
    if (answer == SUCCESS && !mig_enabled(device->gpu))
        answer = NOT_SUPPORTED;
    *count = 0;
    for (int gi = 0; answer == SUCCESS && gi < MAX_GPU_INSTANCES; gi++)
        if (instance_number(device->gpu, gi, "profile") == (int)id)
            instances[(*count)++] = gpu_instance_handle(device->gpu, gi);
    return finish(answer);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceById(nvmlDevice_t device, u32 id, nvmlGpuInstance_t *instance) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (instance == NULL)
        return finish(INVALID_ARGUMENT);
    if (!mig_enabled(device->gpu))
        return finish(NOT_SUPPORTED);
    if (id >= MAX_GPU_INSTANCES || !instance_exists(device->gpu, (int)id))
        return finish(NOT_FOUND);
    *instance = gpu_instance_handle(device->gpu, (int)id);
    return finish(SUCCESS);
}

static nvmlPlacement_t placement_of(int gpu, int gi) {
    return (nvmlPlacement_t){(u32)instance_number(gpu, gi, "start"), (u32)instance_number(gpu, gi, "size")};
}

nvmlReturn_t nvmlGpuInstanceGetInfo(nvmlGpuInstance_t instance, nvmlGpuInstanceInfo_t *info) {
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    info->device = device_handle(instance->gpu);
    info->id = (u32)instance->gpu_instance;
    info->profileId = (u32)instance_number(instance->gpu, instance->gpu_instance, "profile");
    info->placement = placement_of(instance->gpu, instance->gpu_instance);
    return finish(SUCCESS);
}

/* ---- compute instances: the profile's number is its id; a compute slice is a slice of the GPU instance ---- */

enum { COMPUTE_SEVEN_NVL = 8, COMPUTE_PROFILE_END = 9 };

static const int compute_slices[COMPUTE_PROFILE_END] = {1, 2, 3, 4, 7, [COMPUTE_SEVEN_NVL] = 7};

static int compute_profile_fits(int number, const struct profile *parent) {
    int slices;

    if (number < 0 || number >= COMPUTE_PROFILE_END || compute_slices[number] == 0 ||
        (number == COMPUTE_SEVEN_NVL && !board_number(0, "mig.nvl")))
        return 0;
    slices = compute_slices[number];
    return slices == parent->slices || (slices < parent->slices && (slices != 3 || parent->slices == 7));
}

static int compute_multiprocessors(const struct profile *parent, int slices) {
    struct profile single;

    if (slices == parent->slices)
        return parent->multiprocessors;
    return profile_by_enum(0, &single) ? single.multiprocessors * slices : parent->multiprocessors * slices / parent->slices;
}

static void compute_profile_name(const struct profile *parent, int slices, char *name, size_t size) {
    if (slices == parent->slices)
        snprintf(name, size, "MIG %s", parent->name);
    else
        snprintf(name, size, "MIG %dc.%s", slices, parent->name);
}

static nvmlReturn_t compute_profile(struct handle *instance, u32 number, u32 engines, struct profile *parent,
                                    nvmlComputeInstanceProfileInfo_t *info) {
    int slices;

    if (number >= COMPUTE_PROFILE_END || engines != 0)
        return INVALID_ARGUMENT;
    if (!instance_profile(instance->gpu, instance->gpu_instance, parent) ||
        !compute_profile_fits((int)number, parent))
        return NOT_SUPPORTED;
    slices = compute_slices[number];
    *info = (nvmlComputeInstanceProfileInfo_t){
        .id = number,
        .sliceCount = (u32)slices,
        .instanceCount = (u32)(parent->slices / slices),
        .multiprocessorCount = (u32)compute_multiprocessors(parent, slices),
        .sharedCopyEngineCount = (u32)parent->copy,
        .sharedDecoderCount = (u32)parent->decode,
        .sharedEncoderCount = (u32)parent->encode,
        .sharedJpegCount = (u32)parent->jpeg,
        .sharedOfaCount = (u32)parent->ofa,
    };
    return SUCCESS;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfo(nvmlGpuInstance_t instance, u32 number, u32 engines,
                                                          nvmlComputeInstanceProfileInfo_t *info) {
    struct profile parent;
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    return finish(info == NULL ? INVALID_ARGUMENT : compute_profile(instance, number, engines, &parent, info));
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvmlGpuInstance_t instance, u32 number, u32 engines,
                                                           nvmlComputeInstanceProfileInfoV_t *info) {
    struct profile parent;
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    if (info->version != STRUCT_VERSION(136, 2) && info->version != STRUCT_VERSION(140, 3))
        return finish(ARGUMENT_VERSION_MISMATCH);
    answer = compute_profile(instance, number, engines, &parent, &info->info);
    if (answer != SUCCESS)
        return finish(answer);
    compute_profile_name(&parent, (int)info->info.sliceCount, info->name, sizeof info->name);
    if (info->version == STRUCT_VERSION(140, 3))
        info->capabilities = (u32)parent.capabilities >> 1 & 1;
    return finish(SUCCESS);
}

static u32 occupied_slices(int gpu, int gi) {
    u32 slices = 0;

    for (int ci = 0; ci < MAX_COMPUTE_INSTANCES; ci++)
        if (compute_instance_exists(gpu, gi, ci))
            slices |= units_of((int)compute_number(gpu, gi, ci, "start"), (int)compute_number(gpu, gi, ci, "size"));
    return slices;
}

/* Starts of a compute profile inside its GPU instance; 3-slice ones sit where the 3-slice GPU instances would. */
static int compute_starts(int slices, int parent_slices, int *starts) {
    int step = slices == 3 ? 4 : slices;
    int count = 0;

    for (int start = 0; start + slices <= parent_slices; start += step)
        starts[count++] = start;
    return count;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstancePossiblePlacements(nvmlGpuInstance_t instance, u32 id,
                                                                 nvmlPlacement_t *placements, u32 *count) {
    struct profile parent;
    nvmlComputeInstanceProfileInfo_t info;
    int starts[MAX_COMPUTE_INSTANCES];
    u32 room;
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    answer = count == NULL ? INVALID_ARGUMENT : compute_profile(instance, id, 0, &parent, &info);
    if (answer != SUCCESS)
        return finish(answer);
    room = *count;
    *count = (u32)compute_starts((int)info.sliceCount, parent.slices, starts);
    if (placements != NULL && room < *count)
        return finish(INSUFFICIENT_SIZE);
    for (u32 i = 0; placements != NULL && i < *count; i++)
        placements[i] = (nvmlPlacement_t){(u32)starts[i], info.sliceCount};
    return finish(SUCCESS);
}

static int first_free_start(int gpu, int gi, int slices, int parent_slices) {
    int starts[MAX_COMPUTE_INSTANCES];
    int count = compute_starts(slices, parent_slices, starts);

    for (int i = 0; i < count; i++)
        if ((occupied_slices(gpu, gi) & units_of(starts[i], slices)) == 0)
            return starts[i];
    return -1;
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceRemainingCapacity(nvmlGpuInstance_t instance, u32 id, u32 *count) {
    struct profile parent;
    nvmlComputeInstanceProfileInfo_t info;
    int starts[MAX_COMPUTE_INSTANCES];
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    answer = count == NULL ? INVALID_ARGUMENT : compute_profile(instance, id, 0, &parent, &info);
    if (answer != SUCCESS)
        return finish(answer);
    *count = 0;
    for (int i = compute_starts((int)info.sliceCount, parent.slices, starts) - 1; i >= 0; i--)
        *count += (occupied_slices(instance->gpu, instance->gpu_instance) &
                   units_of(starts[i], (int)info.sliceCount)) == 0;
    return finish(SUCCESS);
}

static nvmlReturn_t create_compute(struct handle *instance, u32 id, const nvmlPlacement_t *placement, int *created) {
    struct profile parent;
    nvmlComputeInstanceProfileInfo_t info;
    int gpu = instance->gpu;
    int gi = instance->gpu_instance;
    int start;
    int ci = 0;
    nvmlReturn_t answer = compute_profile(instance, id, 0, &parent, &info);

    if (answer != SUCCESS)
        return answer;
    if (placement != NULL && (placement->size != info.sliceCount || placement->start + placement->size > (u32)parent.slices))
        return INVALID_ARGUMENT;
    start = placement != NULL ? (int)placement->start
                              : first_free_start(gpu, gi, (int)info.sliceCount, parent.slices);
    if (start < 0 || (occupied_slices(gpu, gi) & units_of(start, (int)info.sliceCount)) != 0)
        return INSUFFICIENT_RESOURCES;
    while (compute_instance_exists(gpu, gi, ci))
        ci++;
    board_set_number(board_number(0, "mig.created") + 1, "mig.created");
    board_set_number(id, "gpu.%d.gi.%d.ci.%d.profile", gpu, gi, ci);
    board_set_number(start, "gpu.%d.gi.%d.ci.%d.start", gpu, gi, ci);
    board_set_number(info.sliceCount, "gpu.%d.gi.%d.ci.%d.size", gpu, gi, ci);
    board_set_number(board_number(0, "mig.created"), "gpu.%d.gi.%d.ci.%d.serial", gpu, gi, ci);
    *created = ci;
    return SUCCESS;
}

static nvmlReturn_t create_compute_instance(const char *call, nvmlGpuInstance_t instance, u32 id,
                                            const nvmlPlacement_t *placement, nvmlComputeInstance_t *created) {
    int ci = -1;
    nvmlReturn_t answer = begin(call, instance, IS_GPU_INSTANCE, WRITING);
    if (answer != SUCCESS)
        return answer;
    answer = created == NULL ? INVALID_ARGUMENT : create_compute(instance, id, placement, &ci);
    if (answer == SUCCESS) {
        *created = compute_instance_handle(instance->gpu, instance->gpu_instance, ci);
        show_capability(instance->gpu, instance->gpu_instance, ci);
    }
    board_log("%s gpu=%d gi=%d profile=%u ci=%d -> %d", call, instance->gpu, instance->gpu_instance, id, ci, answer);
    return finish(answer);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstance(nvmlGpuInstance_t instance, u32 id, nvmlComputeInstance_t *created) {
    return create_compute_instance(__func__, instance, id, NULL, created);
}

nvmlReturn_t nvmlGpuInstanceCreateComputeInstanceWithPlacement(nvmlGpuInstance_t instance, u32 id,
                                                               const nvmlPlacement_t *placement,
                                                               nvmlComputeInstance_t *created) {
    if (placement == NULL)
        return INVALID_ARGUMENT;
    return create_compute_instance(__func__, instance, id, placement, created);
}

nvmlReturn_t nvmlComputeInstanceDestroy(nvmlComputeInstance_t compute) {
    nvmlReturn_t answer = begin(__func__, compute, IS_COMPUTE_INSTANCE, WRITING);
    if (answer != SUCCESS)
        return answer;
    if (instance_in_use(compute->gpu, compute->gpu_instance, compute->compute_instance))
        answer = IN_USE;
    if (answer == SUCCESS) {
        board_remove("gpu.%d.gi.%d.ci.%d", compute->gpu, compute->gpu_instance, compute->compute_instance);
        hide_capability(compute->gpu, compute->gpu_instance, compute->compute_instance);
    }
    board_log("%s gpu=%d gi=%d ci=%d -> %d", __func__, compute->gpu, compute->gpu_instance, compute->compute_instance,
              answer);
    return finish(answer);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstances(nvmlGpuInstance_t instance, u32 id, nvmlComputeInstance_t *computes,
                                                u32 *count) {
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    if (computes == NULL || count == NULL)
        return finish(INVALID_ARGUMENT);
    *count = 0;
    for (int ci = 0; ci < MAX_COMPUTE_INSTANCES; ci++)
        if (compute_number(instance->gpu, instance->gpu_instance, ci, "profile") == (int)id)
            computes[(*count)++] = compute_instance_handle(instance->gpu, instance->gpu_instance, ci);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlGpuInstanceGetComputeInstanceById(nvmlGpuInstance_t instance, u32 id, nvmlComputeInstance_t *compute) {
    nvmlReturn_t answer = begin(__func__, instance, IS_GPU_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    if (compute == NULL)
        return finish(INVALID_ARGUMENT);
    if (id >= MAX_COMPUTE_INSTANCES || !compute_instance_exists(instance->gpu, instance->gpu_instance, (int)id))
        return finish(NOT_FOUND);
    *compute = compute_instance_handle(instance->gpu, instance->gpu_instance, (int)id);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlComputeInstanceGetInfo_v2(nvmlComputeInstance_t compute, nvmlComputeInstanceInfo_t *info) {
    nvmlReturn_t answer = begin(__func__, compute, IS_COMPUTE_INSTANCE, READING);
    if (answer != SUCCESS)
        return answer;
    if (info == NULL)
        return finish(INVALID_ARGUMENT);
    info->device = device_handle(compute->gpu);
    info->gpuInstance = gpu_instance_handle(compute->gpu, compute->gpu_instance);
    info->id = (u32)compute->compute_instance;
    info->profileId = (u32)compute_number(compute->gpu, compute->gpu_instance, compute->compute_instance, "profile");
    info->placement.start = (u32)compute_number(compute->gpu, compute->gpu_instance, compute->compute_instance, "start");
    info->placement.size = (u32)compute_number(compute->gpu, compute->gpu_instance, compute->compute_instance, "size");
    return finish(SUCCESS);
}

/* The first version of the structure ends before the placement. */
nvmlReturn_t nvmlComputeInstanceGetInfo(nvmlComputeInstance_t compute, void *info) {
    nvmlComputeInstanceInfo_t whole;
    nvmlReturn_t answer = info == NULL ? INVALID_ARGUMENT : nvmlComputeInstanceGetInfo_v2(compute, &whole);

    if (answer == SUCCESS)
        memcpy(info, &whole, sizeof whole - sizeof whole.placement);
    return answer;
}

/* ---- MIG devices ---- */

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, u32 *answer_is) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (answer_is == NULL)
        return finish(INVALID_ARGUMENT);
    *answer_is = device->kind == IS_MIG_DEVICE;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, u32 *id) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (id == NULL || device->kind != IS_MIG_DEVICE)
        return finish(id == NULL ? INVALID_ARGUMENT : NOT_SUPPORTED);
    *id = (u32)device->gpu_instance;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, u32 *id) {
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (id == NULL || device->kind != IS_MIG_DEVICE)
        return finish(id == NULL ? INVALID_ARGUMENT : NOT_SUPPORTED);
    *id = (u32)device->compute_instance;
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, u32 *count) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (count == NULL)
        return finish(INVALID_ARGUMENT);
    *count = (u32)gpu_number(device->gpu, 0, "mig_slices");
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, u32 index, nvmlDevice_t *mig_device) {
    u32 seen = 0;
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (mig_device == NULL || !capable(device->gpu))
        return finish(mig_device == NULL ? INVALID_ARGUMENT : NOT_SUPPORTED);
    if (index >= (u32)gpu_number(device->gpu, 0, "mig_slices"))
        return finish(INVALID_ARGUMENT);
    for (int gi = 0; gi < MAX_GPU_INSTANCES; gi++)
        for (int ci = 0; ci < MAX_COMPUTE_INSTANCES; ci++)
            if (compute_instance_exists(device->gpu, gi, ci) && seen++ == index) {
                *mig_device = mig_device_handle(device->gpu, gi, ci);
                return finish(SUCCESS);
            }
    return finish(NOT_FOUND);
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig_device, nvmlDevice_t *device) {
    nvmlReturn_t answer = begin(__func__, mig_device, IS_MIG_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (device == NULL)
        return finish(INVALID_ARGUMENT);
    *device = device_handle(mig_device->gpu);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    struct profile parent;
    int slices;
    nvmlReturn_t answer = begin(__func__, device, ANY_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (attributes == NULL)
        return finish(INVALID_ARGUMENT);
    if (device->kind != IS_MIG_DEVICE || !instance_profile(device->gpu, device->gpu_instance, &parent))
        return finish(NOT_SUPPORTED);
    slices = (int)compute_number(device->gpu, device->gpu_instance, device->compute_instance, "size");
    *attributes = (nvmlDeviceAttributes_t){
        .multiprocessorCount = (u32)compute_multiprocessors(&parent, slices),
        .sharedCopyEngineCount = (u32)parent.copy,
        .sharedDecoderCount = (u32)parent.decode,
        .sharedEncoderCount = (u32)parent.encode,
        .sharedJpegCount = (u32)parent.jpeg,
        .sharedOfaCount = (u32)parent.ofa,
        .gpuInstanceSliceCount = (u32)parent.slices,
        .computeInstanceSliceCount = (u32)slices,
        .memorySizeMB = (u64)parent.memory_mib,
    };
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceGetAttributes(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes) {
    return nvmlDeviceGetAttributes_v2(device, attributes);
}

void mig_device_name(int gpu, int gi, int ci, char *name, size_t size) {
    struct profile parent;

    if (instance_profile(gpu, gi, &parent))
        compute_profile_name(&parent, (int)compute_number(gpu, gi, ci, "size"), name, size);
    else
        snprintf(name, size, "MIG");
}

static u64 mix(u64 hash, const char *text) {
    for (; *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211ULL;
    return hash;
}

/* A MIG device gets a UUID of its own each time it is created. */
void mig_device_uuid(int gpu, int gi, int ci, char *uuid, size_t size) {
    char seed[160];
    u64 high;
    u64 low;

    snprintf(seed, sizeof seed, "%s/%d/%d/%lld", gpu_text(gpu, "", "uuid"), gi, ci, compute_number(gpu, gi, ci, "serial"));
    high = mix(14695981039346656037ULL, seed);
    low = mix(high, seed);
    snprintf(uuid, size, "MIG-%08x-%04x-5%03x-a%03x-%012llx", (u32)(high >> 32), (u32)(high >> 16 & 0xffff),
             (u32)(high & 0xfff), (u32)(low >> 52), low & 0xffffffffffffULL);
}

struct handle *mig_device_by_uuid(const char *wanted) {
    char uuid[64];

    if (strncmp(wanted, "MIG-", 4) != 0)
        return NULL;
    for (int gpu = 0; gpu < gpu_count() && gpu < MAX_GPUS; gpu++)
        for (int gi = 0; gpu_visible(gpu) && gi < MAX_GPU_INSTANCES; gi++)
            for (int ci = 0; ci < MAX_COMPUTE_INSTANCES; ci++) {
                if (!compute_instance_exists(gpu, gi, ci))
                    continue;
                mig_device_uuid(gpu, gi, ci, uuid, sizeof uuid);
                if (strcasecmp(uuid, wanted) == 0)
                    return mig_device_handle(gpu, gi, ci);
            }
    return NULL;
}
