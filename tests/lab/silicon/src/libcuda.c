/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of libcuda: NVIDIA's container tools look for its file and name; nothing is computed with it.
 */
enum { CUDA_ERROR_NO_DEVICE = 100 };

int cuInit(unsigned int flags);

int cuInit(unsigned int flags) {
    (void)flags;
    return CUDA_ERROR_NO_DEVICE;
}
