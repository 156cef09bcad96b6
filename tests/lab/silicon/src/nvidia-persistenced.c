/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-persistenced: sets persistence mode, keeps every GPU's handle open, unsets the mode at its end.
 *   nvidia-persistenced [--user NAME] [--persistence-mode | --no-persistence-mode] [--verbose] [--nvidia-cfg-path DIR]
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <pwd.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "nvml-client.h"

#define RUN_DIRECTORY "/var/run/nvidia-persistenced"
#define PID_FILE RUN_DIRECTORY "/nvidia-persistenced.pid"
#define SOCKET_FILE RUN_DIRECTORY "/socket"

static volatile sig_atomic_t ending;

static void end(int signal_number) {
    (void)signal_number;
    ending = 1;
}

static void set_all(unsigned mode) {
    nvmlDevice_t device;
    u32 count = 0;

    NVML(nvmlDeviceGetCount_v2, u32 *)(&count);
    for (u32 i = 0; i < count; i++)
        if (NVML(nvmlDeviceGetHandleByIndex_v2, u32, nvmlDevice_t *)(i, &device) == SUCCESS)
            NVML(nvmlDeviceSetPersistenceMode, nvmlDevice_t, u32)(device, mode);
}

static void listen_on_socket(const char *user) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = SOCKET_FILE};
    struct passwd *account = user != NULL ? getpwnam(user) : NULL;
    int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    unlink(SOCKET_FILE);
    if (descriptor < 0 || bind(descriptor, (struct sockaddr *)&address, sizeof address) != 0 || listen(descriptor, 8) != 0)
        syslog(LOG_ERR, "cannot listen on %s: %s", SOCKET_FILE, strerror(errno));
    chmod(SOCKET_FILE, 0666);
    if (account != NULL && chown(RUN_DIRECTORY, account->pw_uid, account->pw_gid) != 0)
        syslog(LOG_ERR, "cannot give %s to %s: %s", RUN_DIRECTORY, user, strerror(errno));
}

static void write_pid(void) {
    FILE *file = fopen(PID_FILE, "we");

    if (file != NULL) {
        fprintf(file, "%d\n", getpid());
        fclose(file);
    }
}

static const char *read_options(int argc, char **argv, unsigned *mode) {
    static const struct option options[] = {{"user", required_argument, NULL, 'u'},
                                            {"group", required_argument, NULL, 'g'},
                                            {"persistence-mode", no_argument, NULL, 'p'},
                                            {"no-persistence-mode", no_argument, NULL, 'n'},
                                            {"uvm-persistence-mode", no_argument, NULL, 'x'},
                                            {"verbose", no_argument, NULL, 'V'},
                                            {"nvidia-cfg-path", required_argument, NULL, 'c'},
                                            {NULL, 0, NULL, 0}};
    const char *user = NULL;
    int option;

    while ((option = getopt_long(argc, argv, "u:g:pxVc:", options, NULL)) != -1) {
        if (option == 'u')
            user = optarg;
        else if (option == 'p' || option == 'n')
            *mode = option == 'p';
        else if (option == '?')
            exit(1);
    }
    return user;
}

int main(int argc, char **argv) {
    unsigned mode = 1;
    const char *user = read_options(argc, argv, &mode);
    struct sigaction action = {.sa_handler = end};
    nvmlReturn_t answer;

    mkdir(RUN_DIRECTORY, 0755);
    openlog("nvidia-persistenced", LOG_PID, LOG_DAEMON);
    /* Before the daemon leaves: a start that fails must be seen by the one who started it. */
    answer = nvml_load() ? NVML(nvmlInit_v2, void)() : LIBRARY_NOT_FOUND;
    if (answer != SUCCESS) {
        syslog(LOG_ERR, "Failed to query NVIDIA devices. Please ensure that the NVIDIA device files (/dev/nvidia*) "
                        "exist, and that user %d has read and write permissions for those files.", getuid());
        return 1;
    }
    if (daemon(0, 0) != 0)
        return 1;
    write_pid();
    listen_on_socket(user);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    set_all(mode);
    syslog(LOG_NOTICE, "Started (%d)", getpid());
    while (!ending)
        pause();
    set_all(0);
    NVML(nvmlShutdown, void)();
    unlink(SOCKET_FILE);
    unlink(PID_FILE);
    return 0;
}
