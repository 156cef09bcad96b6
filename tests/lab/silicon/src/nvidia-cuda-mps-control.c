/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of nvidia-cuda-mps-control: with -d the control daemon of MPS, without it a client that sends the commands of
 * its standard input to the daemon and prints the answers. Both find each other by CUDA_MPS_PIPE_DIRECTORY; the daemon
 * writes control.log into CUDA_MPS_LOG_DIRECTORY. The client's exit status says whether there is a daemon, whatever the
 * daemon thinks of the command.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_GPUS = 64, MOST_WORDS = 8, COMMANDS_SIZE = 4096 };

static const char *pipe_directory;
static FILE *control_log;
static double thread_percentage = 100.0;
static char memory_limits[MOST_GPUS][32];
static pid_t server;

static const char *directory_of(const char *variable, const char *fallback) {
    const char *told = getenv(variable);
    return told != NULL && told[0] != '\0' ? told : fallback;
}

static void place(char *path, size_t size, const char *directory, const char *name) {
    snprintf(path, size, "%s/%s", directory, name);
}

static __attribute__((format(printf, 1, 2))) void tell(const char *format, ...) {
    time_t now = time(NULL);
    struct tm parts;
    char stamp[32];
    va_list arguments;

    if (control_log == NULL)
        return;
    strftime(stamp, sizeof stamp, "%Y-%m-%d %H:%M:%S", localtime_r(&now, &parts));
    fprintf(control_log, "[%s.000 Control %5d] ", stamp, getpid());
    va_start(arguments, format);
    vfprintf(control_log, format, arguments);
    va_end(arguments);
    fputc('\n', control_log);
    fflush(control_log);
}

static int socket_at(struct sockaddr_un *address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    snprintf(address->sun_path, sizeof address->sun_path, "%s/control", pipe_directory);
    return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

/* ---- the daemon ---- */

static int server_runs(void) {
    if (server > 0 && waitpid(server, NULL, WNOHANG) != 0)
        server = 0;
    return server > 0;
}

static void start_server(void) {
    if (server_runs())
        return;
    server = fork();
    if (server == 0) {
        execlp("nvidia-cuda-mps-server", "nvidia-cuda-mps-server", (char *)NULL);
        /* Without PATH, as a program starts it that hands over two variables */
        execl("/usr/bin/nvidia-cuda-mps-server", "nvidia-cuda-mps-server", (char *)NULL);
        _exit(127);
    }
    tell("Starting new server %d", (int)server);
}

static void end_server(void) {
    if (!server_runs())
        return;
    kill(server, SIGTERM);
    waitpid(server, NULL, 0);
    tell("Server %d exited", (int)server);
    server = 0;
}

static void limit_memory(FILE *answer, const char *gpu, const char *limit) {
    int index = gpu != NULL ? atoi(gpu) : -1;

    if (index < 0 || index >= MOST_GPUS || limit == NULL) {
        fputs("Invalid argument\n", answer);
        return;
    }
    snprintf(memory_limits[index], sizeof memory_limits[index], "%s", limit);
}

static void say_memory_limit(FILE *answer, const char *gpu) {
    int index = gpu != NULL ? atoi(gpu) : -1;

    if (index >= 0 && index < MOST_GPUS && memory_limits[index][0] != '\0')
        fprintf(answer, "%s\n", memory_limits[index]);
}

/* Whether the daemon is to go on. */
static int obey(char *line, FILE *answer) {
    char *words[MOST_WORDS] = {NULL};
    char *rest = NULL;
    size_t count = 0;

    tell("NEW UI CONNECTION: %s", line);
    for (char *word = strtok_r(line, " \t\r", &rest); word != NULL && count < MOST_WORDS;
         word = strtok_r(NULL, " \t\r", &rest))
        words[count++] = word;
    if (count == 0)
        return 1;
    if (strcmp(words[0], "quit") == 0)
        return 0;
    if (strcmp(words[0], "get_default_active_thread_percentage") == 0) {
        fprintf(answer, "%.1f\n", thread_percentage);
    } else if (strcmp(words[0], "set_default_active_thread_percentage") == 0 && count > 1) {
        thread_percentage = atof(words[1]);
        fprintf(answer, "%.1f\n", thread_percentage);
    } else if (strcmp(words[0], "set_default_device_pinned_mem_limit") == 0) {
        limit_memory(answer, words[1], words[2]);
    } else if (strcmp(words[0], "get_default_device_pinned_mem_limit") == 0) {
        say_memory_limit(answer, words[1]);
    } else if (strcmp(words[0], "start_server") == 0) {
        start_server();
    } else if (strcmp(words[0], "get_server_list") == 0) {
        if (server_runs())
            fprintf(answer, "%d\n", (int)server);
    } else {
        fprintf(answer, "Unrecognized command: %s\n", words[0]);
    }
    return 1;
}

static int serve(int connection) {
    char commands[COMMANDS_SIZE];
    char *rest = commands;
    char *line;
    size_t length = 0;
    ssize_t got;
    int goes_on = 1;
    FILE *answer = fdopen(dup(connection), "w");

    while (length < sizeof commands - 1 &&
           (got = read(connection, commands + length, sizeof commands - 1 - length)) > 0)
        length += (size_t)got;
    commands[length] = '\0';
    while (goes_on && answer != NULL && (line = strsep(&rest, "\n")) != NULL)
        goes_on = obey(line, answer);
    if (answer != NULL)
        fclose(answer);
    return goes_on;
}

/* The lock ends with its process, the socket's file does not: what a killed daemon left is put away by the next one. */
static int hold_lock(void) {
    char path[4096];
    int descriptor;

    place(path, sizeof path, pipe_directory, "control_lock");
    descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    return descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) == 0 ? descriptor : -1;
}

static void write_pid(pid_t pid) {
    char path[4096];
    FILE *file;

    place(path, sizeof path, pipe_directory, "nvidia-cuda-mps-control.pid");
    file = fopen(path, "we");
    if (file != NULL) {
        fprintf(file, "%d\n", (int)pid);
        fclose(file);
    }
}

/* Who started the daemon finds its number there when it is started; daemon() would leave that to the child's leisure. */
static void leave(void) {
    pid_t child = fork();
    int nothing;

    if (child != 0) {
        if (child > 0)
            write_pid(child);
        _exit(child > 0 ? 0 : 1);
    }
    setsid();
    nothing = open("/dev/null", O_RDWR);
    for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; descriptor++)
        dup2(nothing, descriptor);
    if (nothing > STDERR_FILENO)
        close(nothing);
}

static void forget(const char *name) {
    char path[4096];

    place(path, sizeof path, pipe_directory, name);
    unlink(path);
}

static int run_daemon(void) {
    struct sockaddr_un address;
    int listening = socket_at(&address);
    char path[4096];
    int goes_on = 1;

    mkdir(pipe_directory, 0755);
    mkdir(directory_of("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"), 0755);
    place(path, sizeof path, directory_of("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps"), "control.log");
    if (hold_lock() < 0) {
        puts("An instance of this daemon is already running");
        return 1;
    }
    unlink(address.sun_path);
    if (listening < 0 || bind(listening, (struct sockaddr *)&address, sizeof address) != 0 || listen(listening, 16) != 0) {
        printf("Cannot listen on %s: %s\n", address.sun_path, strerror(errno));
        return 1;
    }
    /* Clients of every user connect. */
    chmod(address.sun_path, 0666);
    leave();
    control_log = fopen(path, "ae");
    tell("Starting control daemon using socket %s", address.sun_path);
    tell("To connect CUDA applications to this daemon, set env CUDA_MPS_PIPE_DIRECTORY=%s", pipe_directory);
    while (goes_on) {
        int connection = accept4(listening, NULL, NULL, SOCK_CLOEXEC);

        if (connection < 0)
            continue;
        goes_on = serve(connection);
        if (!goes_on) {
            end_server();
            forget("control");
            forget("nvidia-cuda-mps-control.pid");
            tell("Exit");
        }
        close(connection); /* who asked to quit waits for this */
    }
    return 0;
}

/* ---- the client ---- */

static int copy(int from, int to) {
    char block[4096];
    ssize_t got;

    while ((got = read(from, block, sizeof block)) > 0)
        if (write(to, block, (size_t)got) != got)
            return -1;
    return got < 0 ? -1 : 0;
}

static int ask(void) {
    struct sockaddr_un address;
    int connection = socket_at(&address);

    if (connection < 0 || connect(connection, (struct sockaddr *)&address, sizeof address) != 0) {
        puts("Cannot find MPS control daemon process");
        return 1;
    }
    if (copy(STDIN_FILENO, connection) != 0)
        return 1;
    shutdown(connection, SHUT_WR);
    return copy(connection, STDOUT_FILENO) == 0 ? 0 : 1;
}

int main(int argc, char **argv) {
    pipe_directory = directory_of("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps");
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "-d") == 0)
        return run_daemon();
    if (argc == 1)
        return ask();
    puts("usage: nvidia-cuda-mps-control [-d]");
    return 1;
}
