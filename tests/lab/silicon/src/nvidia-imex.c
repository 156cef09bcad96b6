/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-imex: reads its node list, marks the local daemon ready on the board, waits.
 *   nvidia-imex -c CONFIGURATION
 */
#define _GNU_SOURCE
#include "board.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const volatile char version_stamp[64] = "GPUSIM_VERSION=unpackaged";
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

static int read_setting(const char *path, const char *name, char *value, size_t size) {
    char line[512];
    size_t length = strlen(name);
    FILE *file = fopen(path, "re");

    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, name, length) == 0 && line[length] == '=') {
            line[strcspn(line, "\r\n")] = '\0';
            snprintf(value, size, "%s", line + length + 1);
        }
    fclose(file);
    return 1;
}

static void set_ready(int ready) {
    if (board_open(1) == 0) {
        board_set_number(ready, "imex.ready");
        board_log("nvidia-imex ready=%d", ready);
        board_close();
    }
}

static int driver_fits(void) {
    int fits = 0;

    if (board_open(0) != 0)
        return 0;
    fits = strcmp(board_text("", "module.nvidia.version"), own_version()) == 0;
    if (!fits)
        fprintf(stderr, "IMEX version %s does not match the driver version %s\n", own_version(),
                board_text("(not loaded)", "module.nvidia.version"));
    board_close();
    return fits;
}

int main(int argc, char **argv) {
    struct sigaction action = {.sa_handler = end};
    const char *configuration = "/etc/nvidia-imex/config.cfg";
    char nodes[256] = "/etc/nvidia-imex/nodes_config.cfg";
    char daemonize[16] = "1";
    static const struct option names[] = {{"version", no_argument, NULL, 'v'}, {NULL, 0, NULL, 0}};
    int option;

    while ((option = getopt_long(argc, argv, "c:vh", names, NULL)) != -1) {
        if (option == 'c')
            configuration = optarg;
        if (option == 'v') {
            printf("IMEX version is: %s\n", own_version());
            return 0;
        }
        if (option == '?')
            return 1;
    }
    if (!read_setting(configuration, "IMEX_NODE_CONFIG_FILE", nodes, sizeof nodes)) {
        fprintf(stderr, "cannot read %s: %s\n", configuration, strerror(errno));
        return 1;
    }
    read_setting(configuration, "DAEMONIZE", daemonize, sizeof daemonize);
    if (access(nodes, R_OK) != 0) {
        fprintf(stderr, "cannot read node list %s: %s\n", nodes, strerror(errno));
        return 1;
    }
    if (!driver_fits())
        return 1;
    if (atoi(daemonize) != 0 && daemon(0, 0) != 0)
        return 1;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    set_ready(1);
    while (!ending)
        pause();
    set_ready(0);
    return 0;
}
