/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * A GPU's instructions on the processor: PTX as text, of the part that integer, float, shared memory and tensor
 * programs need. A block's threads go in step, so a branch has to be taken by all of them or by none.
 */
#ifndef GPUSIM_PTX_H
#define GPUSIM_PTX_H

#include <stddef.h>
#include <stdint.h>

enum { PTX_OK = 0, PTX_BAD_TEXT, PTX_TOO_NEW, PTX_WRONG_TARGET, PTX_BAD_ADDRESS, PTX_UNSUPPORTED };

struct ptx_module;
struct ptx_kernel;

/* What a launch meets beside its instructions. */
struct ptx_launch {
    unsigned blocks, threads;
    void **parameters;
    /* Which multiprocessor a block runs on. */
    unsigned (*multiprocessor)(unsigned block, void *context);
    /* A word that a block's thread writes to global memory, as this silicon writes it. */
    uint32_t (*written)(uint32_t word, uint64_t address, unsigned multiprocessor, unsigned thread, void *context);
    /* Are these bytes the program's to use? */
    int (*permitted)(uint64_t address, size_t size, void *context);
    void *context;
};

/* newest: PTX version that the compiler knows, as 60 for 6.0; capability: the GPU's, as 90 for 9.0. The log says what
 * was wrong. */
int ptx_load(const char *text, int newest, int capability, struct ptx_module **module, char *log, size_t log_size);
struct ptx_kernel *ptx_kernel(struct ptx_module *module, const char *name);
int ptx_run(const struct ptx_kernel *kernel, const struct ptx_launch *launch);
void ptx_unload(struct ptx_module *module);

#endif
