/* Copyright (c) gpuops.nvidia contributors
 * SPDX-License-Identifier: GPL-3.0-or-later
 *
 * The laboratory's stand-in for NVIDIA's vectorAdd sample. Simulated silicon computes nothing, so this does the part of
 * the sample that a node can get wrong: load the driver's libcuda as the container sees it, initialise it, and open
 * every device that it reports. It ends with the sample's own last line, by which scripts tell success.
 */
#include <dlfcn.h>
#include <stdio.h>

typedef int (*init_fn)(unsigned int);
typedef int (*count_fn)(int *);
typedef int (*device_fn)(int *, int);
typedef int (*name_fn)(char *, int, int);

static void *symbol(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        fprintf(stderr, "Failed: libcuda.so.1 has no %s\n", name);
    return found;
}

static int open_devices(void *library)
{
    init_fn init = (init_fn)symbol(library, "cuInit");
    count_fn count = (count_fn)symbol(library, "cuDeviceGetCount");
    device_fn get = (device_fn)symbol(library, "cuDeviceGet");
    name_fn get_name = (name_fn)symbol(library, "cuDeviceGetName");
    int devices = 0;

    if (init == NULL || count == NULL || get == NULL || get_name == NULL)
        return 1;
    int code = init(0);
    if (code != 0) {
        fprintf(stderr, "Failed: cuInit answered %d\n", code);
        return 1;
    }
    code = count(&devices);
    if (code != 0 || devices < 1) {
        fprintf(stderr, "Failed: cuDeviceGetCount answered %d with %d devices\n", code, devices);
        return 1;
    }
    for (int index = 0; index < devices; index++) {
        int device = 0;
        char name[256] = "";
        code = get(&device, index);
        if (code == 0)
            code = get_name(name, sizeof name, device);
        if (code != 0) {
            fprintf(stderr, "Failed: device %d answered %d\n", index, code);
            return 1;
        }
        printf("device %d: %s\n", index, name);
    }
    return 0;
}

int main(void)
{
    printf("[laboratory stand-in for vectorAdd: opens the devices, computes nothing]\n");
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "Failed: %s\n", dlerror());
        return 1;
    }
    if (open_devices(library) != 0)
        return 1;
    printf("Test PASSED\nDone\n");
    return 0;
}
