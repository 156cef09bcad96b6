/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * What the parts of the simulated library share: handles, the way into a call and out of it, a GPU's properties.
 */
#ifndef GPUSIM_LIBRARY_H
#define GPUSIM_LIBRARY_H

#include "board.h"
#include "nvml.h"

enum { MAX_GPUS = 32, MAX_GPU_INSTANCES = 16, MAX_COMPUTE_INSTANCES = 8 };
enum { IS_DEVICE = 1, IS_MIG_DEVICE = 2, IS_GPU_INSTANCE = 4, IS_COMPUTE_INSTANCE = 8 };
enum { READING = 0, WRITING = 1 };

struct handle {
    int kind, gpu, gpu_instance, compute_instance;
};

struct handle *device_handle(int gpu);
struct handle *mig_device_handle(int gpu, int gpu_instance, int compute_instance);
struct handle *gpu_instance_handle(int gpu, int gpu_instance);
struct handle *compute_instance_handle(int gpu, int gpu_instance, int compute_instance);

/* Opens a call: library initialised, handle of one of these kinds and alive, faults applied. On success the board is
 * held and finish() must end the call; otherwise the answer is the call's. handle may be NULL for calls without one. */
nvmlReturn_t begin(const char *call, struct handle *handle, int kinds, int mode);
nvmlReturn_t finish(nvmlReturn_t answer);
/* Is there a fault of this kind for this GPU? */
int fault_present(const char *kind, int gpu);
/* A detail of the first such fault, or the fallback where there is none or it does not say. */
long long fault_number(const char *kind, int gpu, long long fallback, const char *detail);

/* A property of one GPU: its own value, else that of its board. */
const char *gpu_text(int gpu, const char *fallback, const char *name);
long long gpu_number(int gpu, long long fallback, const char *name);
/* A MIG device has its own. */
long long compute_mode(const struct handle *handle);
int gpu_count(void);
int gpu_visible(int gpu);
/* Does a process other than the caller use this GPU? Its pid, or 0. */
int gpu_user(int gpu);

nvmlReturn_t copy_text(const char *text, char *buffer, u32 length);
void raise_event(int gpu, u64 type, u64 data);

int mig_enabled(int gpu);
int instance_exists(int gpu, int gpu_instance);
int compute_instance_exists(int gpu, int gpu_instance, int compute_instance);
void forget_instances(int gpu);
long long instance_memory_mib(int gpu, int gpu_instance);
void mig_device_name(int gpu, int gpu_instance, int compute_instance, char *name, size_t size);
void mig_device_uuid(int gpu, int gpu_instance, int compute_instance, char *uuid, size_t size);
struct handle *mig_device_by_uuid(const char *uuid);

/* What libcuda asks, as a program would: the board is not to be held. */
nvmlReturn_t nvmlInit_v2(void);
nvmlReturn_t nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes);
nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory);

#endif
