/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-modprobe: loads the module through modprobe and makes device nodes.
 *   nvidia-modprobe [-u] [-m] [-s] [-c MINOR]... [-f CAPABILITY_FILE]... [-v] [-h]
 */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FRONTEND_MAJOR = 195, MODESET_MINOR = 254, CONTROL_MINOR = 255 };

static int module_loaded(const char *name) {
    int loaded;

    if (board_open(0) != 0)
        return 0;
    loaded = board_text(NULL, "module.%s.version", name) != NULL;
    board_close();
    return loaded;
}

static int load(const char *name) {
    pid_t child;
    int status = 1;

    if (module_loaded(name))
        return 1;
    child = fork();
    if (child == 0) {
        execl("/sbin/modprobe", "modprobe", name, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        return 0;
    return status == 0 && module_loaded(name);
}

static int make_node(const char *path, unsigned major_number, unsigned minor_number) {
    struct stat status;

    if (stat(path, &status) == 0 && S_ISCHR(status.st_mode) && status.st_rdev == makedev(major_number, minor_number))
        return 1;
    unlink(path);
    if (mknod(path, S_IFCHR | 0666, makedev(major_number, minor_number)) != 0) {
        fprintf(stderr, "nvidia-modprobe: cannot create %s: %s\n", path, strerror(errno));
        return 0;
    }
    return chmod(path, 0666) == 0;
}

/* The major that /proc/devices gives to a name, or 0. */
static unsigned major_of(const char *wanted) {
    char line[128];
    char name[64];
    unsigned number;
    unsigned found = 0;
    FILE *file = fopen("/proc/devices", "re");

    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "%u %63s", &number, name) == 2 && strcmp(name, wanted) == 0)
            found = number;
    if (file != NULL)
        fclose(file);
    return found;
}

static int make_uvm_nodes(void) {
    unsigned number = major_of("nvidia-uvm");

    return number != 0 && make_node("/dev/nvidia-uvm", number, 0) && make_node("/dev/nvidia-uvm-tools", number, 1);
}

/* A capability file names the minor of its node: "DeviceFileMinor: 3". */
static int make_capability_node(const char *path) {
    char line[128];
    char node[64];
    unsigned minor_number;
    int made = 0;
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        fprintf(stderr, "nvidia-modprobe: cannot read %s: %s\n", path, strerror(errno));
        return 0;
    }
    mkdir("/dev/nvidia-caps", 0755);
    while (fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "DeviceFileMinor: %u", &minor_number) == 1) {
            snprintf(node, sizeof node, "/dev/nvidia-caps/nvidia-cap%u", minor_number);
            made = make_node(node, major_of("nvidia-caps"), minor_number);
        }
    fclose(file);
    return made;
}

static int make_minor(unsigned minor_number) {
    char path[64];

    if (minor_number == CONTROL_MINOR)
        return make_node("/dev/nvidiactl", FRONTEND_MAJOR, CONTROL_MINOR);
    snprintf(path, sizeof path, "/dev/nvidia%u", minor_number);
    return make_node(path, FRONTEND_MAJOR, minor_number) && make_node("/dev/nvidiactl", FRONTEND_MAJOR, CONTROL_MINOR);
}

int main(int argc, char **argv) {
    int ok = load("nvidia");
    int option;

    while ((option = getopt(argc, argv, "c:f:umsvhil")) != -1) {
        if (option == 'c')
            ok = ok && make_minor((unsigned)atoi(optarg));
        else if (option == 'f')
            ok = ok && make_capability_node(optarg);
        else if (option == 'u')
            ok = ok && load("nvidia_uvm") && make_uvm_nodes();
        else if (option == 'm')
            ok = ok && load("nvidia_modeset") && make_node("/dev/nvidia-modeset", FRONTEND_MAJOR, MODESET_MINOR);
        else if (option == 'h' || option == 'v')
            printf("nvidia-modprobe: stand-in of a simulated host\n");
        else if (option == '?')
            return 1;
    }
    return ok ? 0 : 1;
}
