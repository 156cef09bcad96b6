/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-gridd, the service of a vGPU guest: with a token that its server knows it gives the board's virtual
 * GPUs a license, which ends with it. vgpu.server on the board is 'down' for a server that does not answer, else the
 * beginning of the tokens that it knows.
 */
#define _GNU_SOURCE
#include "board.h"

#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <unistd.h>

#define CONFIGURATION "/etc/nvidia/gridd.conf"
#define TOKENS "/etc/nvidia/ClientConfigToken/client_configuration_token*.tok"

static volatile sig_atomic_t ending;

static void end(int signal_number) {
    (void)signal_number;
    ending = 1;
}

static int feature_asked(void) {
    char line[512];
    int feature = 0;
    FILE *file = fopen(CONFIGURATION, "re");

    if (file == NULL)
        return 0;
    while (fgets(line, sizeof line, file) != NULL)
        sscanf(line, " FeatureType = %d", &feature);
    fclose(file);
    return feature;
}

static int token_fits(const char *beginning) {
    char token[4096] = "";
    glob_t found;
    FILE *file;

    if (glob(TOKENS, 0, NULL, &found) != 0)
        return 0;
    file = fopen(found.gl_pathv[0], "re");
    if (file != NULL) {
        if (fgets(token, sizeof token, file) == NULL)
            token[0] = '\0';
        fclose(file);
    }
    globfree(&found);
    return token[0] != '\0' && strncmp(token, beginning, strlen(beginning)) == 0;
}

static void set_license(int feature, int licensed) {
    if (board_open(1) == 0) {
        board_set_number(feature, "vgpu.feature");
        board_set_number(licensed, "vgpu.licensed");
        board_log("nvidia-gridd licensed=%d", licensed);
        board_close();
    }
}

static void fetch(void) {
    char server[64] = "down";
    int feature = feature_asked();

    if (board_open(0) == 0) {
        snprintf(server, sizeof server, "%s", board_text("", "vgpu.server"));
        board_close();
    }
    if (feature == 0)
        syslog(LOG_NOTICE, "Unlicensed state: no feature is asked for");
    else if (strcmp(server, "down") == 0 || !token_fits(server))
        syslog(LOG_ERR, "Failed to acquire license: no answer from the server that the token names");
    else {
        set_license(feature, 1);
        syslog(LOG_NOTICE, "License acquired successfully");
    }
}

int main(void) {
    struct sigaction action = {.sa_handler = end};

    openlog("nvidia-gridd", LOG_PID, LOG_DAEMON);
    if (daemon(0, 0) != 0)
        return 1;
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    set_license(0, 0);
    fetch();
    while (!ending)
        pause();
    set_license(0, 0);
    return 0;
}
