/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * How the stand-in programs reach NVML: through libnvidia-ml.so.1, loaded when the program runs, as NVIDIA's own do.
 */
#ifndef GPUSIM_NVML_CLIENT_H
#define GPUSIM_NVML_CLIENT_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "nvml.h"

enum { LIBRARY_NOT_FOUND = 12, FUNCTION_NOT_FOUND = 13 };

static void *nvml_library;

static inline int nvml_load(void) {
    nvml_library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    return nvml_library != NULL;
}

static inline void *nvml_symbol(const char *name) {
    void *symbol = dlsym(nvml_library, name);
    if (symbol == NULL) {
        fprintf(stderr, "libnvidia-ml.so.1 has no %s\n", name);
        exit(FUNCTION_NOT_FOUND);
    }
    return symbol;
}

/* NVML(nvmlDeviceGetName, nvmlDevice_t, char *, u32)(device, name, sizeof name) */
#define NVML(name, ...) ((nvmlReturn_t(*)(__VA_ARGS__))nvml_symbol(#name))

static inline const char *nvml_error(nvmlReturn_t code) {
    return ((const char *(*)(nvmlReturn_t))nvml_symbol("nvmlErrorString"))(code);
}

#endif
