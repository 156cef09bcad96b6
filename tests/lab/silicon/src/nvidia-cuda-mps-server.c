/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-cuda-mps-server: has every GPU open that it sees, as the one process of a GPU in the compute mode
 * EXCLUSIVE_PROCESS, until the control daemon ends it. It serves nobody: nothing is computed here.
 */
#define _GNU_SOURCE
#include <unistd.h>

#include "nvml-client.h"

int main(void) {
    nvmlDevice_t device;
    u32 count = 0;

    if (!nvml_load() || NVML(nvmlInit_v2, void)() != SUCCESS)
        return 1;
    NVML(nvmlDeviceGetCount_v2, u32 *)(&count);
    for (u32 i = 0; i < count; i++)
        NVML(nvmlDeviceGetHandleByIndex_v2, u32, nvmlDevice_t *)(i, &device);
    while (1)
        pause();
}
