/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nv-fabricmanager: refuses a driver of another version, finds the switches, completes the GPUs' fabric.
 *   nv-fabricmanager -c CONFIGURATION [-g FM_SM_GUID]      (-v and --version print the version)
 * Its version is the word after the marker below, which the packager writes over with the package's version.
 */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PID_DIRECTORY "/var/run/nvidia-fabricmanager"
#define PID_FILE PID_DIRECTORY "/nv-fabricmanager.pid"

/* volatile, so that the compiler reads what the packager wrote and not what stands here */
static const volatile char version_stamp[64] = "GPUSIM_VERSION=unpackaged";

static char log_file[256] = "/var/log/fabricmanager.log";
static int stay_resident;
static volatile sig_atomic_t ending;

static void end(int signal_number) {
    (void)signal_number;
    ending = 1;
}

static const char *own_version(void) {
    static char version[sizeof version_stamp];

    for (size_t i = 0; i < sizeof version; i++)
        version[i] = version_stamp[i];
    return version + strlen("GPUSIM_VERSION=");
}

static void say(const char *format, ...) {
    char when[64];
    char text[512];
    time_t now = time(NULL);
    va_list arguments;
    FILE *file = fopen(log_file, "ae");

    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    strftime(when, sizeof when, "%b %d %Y %H:%M:%S", localtime(&now));
    fprintf(stderr, "%s\n", text);
    if (file != NULL) {
        fprintf(file, "[%s] [INFO] [tid %d] %s\n", when, getpid(), text);
        fclose(file);
    }
}

static void read_configuration(const char *path) {
    char line[512];
    char value[256];
    FILE *file = fopen(path, "re");

    if (file == NULL) {
        fprintf(stderr, "failed to open config file %s: %s\n", path, strerror(errno));
        exit(1);
    }
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "LOG_FILE_NAME=%255s", value) == 1)
            snprintf(log_file, sizeof log_file, "%s", value);
        if (sscanf(line, "FM_STAY_RESIDENT_ON_FAILURES=%255s", value) == 1)
            stay_resident = atoi(value) != 0;
    }
    fclose(file);
}

/* The switches of NVLink 5 are reached by InfiniBand; without it the board looks like one of before. */
static int sees_nvlink5(const char *fabric) {
    return strcmp(fabric, "nvlink5") == 0 && board_text(NULL, "module.mlx5_ib.version") != NULL &&
           board_text(NULL, "module.ib_umad.version") != NULL;
}

static void set_fabric(int state) {
    for (int gpu = 0; gpu < board_number(0, "gpu.count"); gpu++) {
        const char *reports = board_text("0", "board.fabric.reports");

        if (atoi(reports) == 0)
            continue;
        board_set_number(state, "gpu.%d.fabric.state", gpu);
        board_set_number(state == 3 ? board_number(0, "board.fabric.healthy") : 0, "gpu.%d.fabric.health", gpu);
    }
    board_set_number(state == 3, "fabric_manager.running");
    board_log("nv-fabricmanager fabric state %d", state);
}

static int has_fault(void) {
    size_t position = 0;
    const char *key;
    const char *value;

    while (board_next("fault.", &position, &key, &value))
        if (strstr(key, ".kind") != NULL && strcmp(value, "fabric") == 0)
            return 1;
    return 0;
}

/* Nothing to manage, no driver, or another driver: what the real program says and ends with. */
static int start(void) {
    const char *fabric;
    const char *loaded;

    if (board_open(1) != 0) {
        say("request to query NVSwitch device information from NVSwitch driver failed");
        return 1;
    }
    fabric = board_text("none", "board.fabric");
    loaded = board_text(NULL, "module.nvidia.version");
    if (loaded == NULL) {
        say("failed to initialize NVIDIA driver: driver is not loaded");
    } else if (strcmp(loaded, own_version()) != 0) {
        say("fabric manager NVIDIA GPU driver interface version %s don't match with driver version %s. "
            "Please update with matching NVIDIA driver package.", own_version(), loaded);
    } else if (strncmp(fabric, "nvswitch", 8) != 0 && !sees_nvlink5(fabric)) {
        say("Detected Pre-NVL5 system");
        say("NV_WARN_NOTHING_TO_DO: no NVSwitch or NVLink fabric to manage on this system");
    } else if (has_fault()) {
        say("failed to configure all the available GPUs or NVSwitches");
    } else {
        say("Fabric Manager version %s is running with the following configuration options", own_version());
        say("%s", strcmp(fabric, "nvlink5") == 0 ? "Detected NVL5+ system" : "Detected Pre-NVL5 system");
        set_fabric(3);
        say("Successfully configured all the available GPUs and NVSwitches to route NVLink traffic.");
        board_close();
        return 0;
    }
    board_close();
    return 1;
}

/* While it runs it has the driver's nodes open, so that the module cannot be removed; see session.c for O_PATH. */
static void hold_driver(void) {
    static const char *const nodes[] = {"/dev/nvidiactl", "/dev/nvidia-nvswitchctl"};

    for (size_t i = 0; i < sizeof nodes / sizeof *nodes; i++)
        if (open(nodes[i], O_PATH) < 0 && errno != ENOENT)
            say("cannot open %s: %s", nodes[i], strerror(errno));
}

static void write_pid(void) {
    FILE *file;

    mkdir(PID_DIRECTORY, 0755);
    file = fopen(PID_FILE, "we");
    if (file != NULL) {
        fprintf(file, "%d\n", getpid());
        fclose(file);
    }
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = end};
    const char *configuration = "/usr/share/nvidia/nvswitch/fabricmanager.cfg";
    static const struct option names[] = {{"version", no_argument, NULL, 'v'}, {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "c:g:p:rvh", names, NULL)) != -1) {
        if (option == 'c')
            configuration = optarg;
        if (option == 'v') {
            printf("Fabric Manager version is : %s\n", own_version());
            return 0;
        }
        if (option == '?')
            return 1;
    }
    read_configuration(configuration);
    if (start() != 0 && !stay_resident)
        return 1;
    if (daemon(0, 0) != 0)
        return 1;
    write_pid();
    hold_driver();
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    while (!ending)
        pause();
    if (board_open(1) == 0) {
        board_set_number(0, "fabric_manager.running");
        board_close();
    }
    unlink(PID_FILE);
    return 0;
}
