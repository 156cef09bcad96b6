/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Preloaded into a process: counts its system calls on files below a root, and lets the n-th one fail, or has the
 * process killed there. A process that has not armed it is left alone.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { COUNT, KILL_BEFORE, KILL_AFTER, FAIL_ONCE, FAIL_EVER };
enum { CHANGING = 1, READING = 2 };

static char root[4096];
static int classes, action, number;
static long at, seen;

/* class: which calls count. what: one of the first enum. n: at which call. error: an errno. */
void gpuops_arm(const char *below, int class, int what, long n, int error)
{
    snprintf(root, sizeof root, *below ? "%s/" : "%s", below);
    classes = class, action = what, at = n, number = error, seen = 0;
}

long gpuops_seen(void) { return seen; }

static int below(const char *path) { return root[0] && path && !strncmp(path, root, strlen(root)); }

static int below_fd(int fd)
{
    char name[64], path[4096];
    if (!root[0])
        return 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    long length = syscall(SYS_readlink, name, path, sizeof path - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return below(path);
}

static void die(void)
{
    kill(getpid(), SIGKILL);
    for (;;)
        pause();
}

/* 0: go on. 1: fail with errno. 2: go on, and die afterwards. */
static int met(int class, int ours)
{
    if (!ours || !(class & classes))
        return 0;
    seen++;
    if (action == FAIL_EVER ? seen < at : seen != at)
        return 0;
    if (action == KILL_BEFORE)
        die();
    if (action == KILL_AFTER)
        return 2;
    if (action == COUNT)
        return 0;
    errno = number;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(type, name, class, ours, parameters, arguments) \
    type name parameters                                     \
    {                                                        \
        int fate = met(class, ours);                         \
        if (fate == 1)                                       \
            return -1;                                       \
        type result = REAL(name) arguments;                  \
        if (fate == 2)                                       \
            die();                                           \
        return result;                                       \
    }

#define OPEN(name)                                                                                     \
    int name(const char *path, int flags, ...)                                                         \
    {                                                                                                  \
        va_list more;                                                                                  \
        va_start(more, flags);                                                                         \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0;                        \
        va_end(more);                                                                                  \
        int fate = met(flags & (O_CREAT | O_TRUNC) ? CHANGING : READING, below(path));                 \
        if (fate == 1)                                                                                 \
            return -1;                                                                                 \
        int result = REAL(name)(path, flags, mode);                                                    \
        if (fate == 2)                                                                                 \
            die();                                                                                     \
        return result;                                                                                 \
    }
OPEN(open)
OPEN(open64)

/* A cut in a write leaves half of it. */
ssize_t write(int fd, const void *data, size_t size)
{
    int fate = met(CHANGING, below_fd(fd));
    if (fate == 1)
        return -1;
    ssize_t result = REAL(write)(fd, data, fate == 2 ? size / 2 : size);
    if (fate == 2)
        die();
    return result;
}

WRAP(int, fsync, CHANGING, below_fd(fd), (int fd), (fd))
WRAP(int, rename, CHANGING, below(new), (const char *old, const char *new), (old, new))
WRAP(int, unlink, CHANGING, below(path), (const char *path), (path))
WRAP(int, mkdir, CHANGING, below(path), (const char *path, mode_t mode), (path, mode))
WRAP(int, rmdir, CHANGING, below(path), (const char *path), (path))
WRAP(int, symlink, CHANGING, below(path), (const char *target, const char *path), (target, path))
WRAP(int, chmod, CHANGING, below(path), (const char *path, mode_t mode), (path, mode))
WRAP(int, fchmod, CHANGING, below_fd(fd), (int fd, mode_t mode), (fd, mode))
WRAP(int, fchown, CHANGING, below_fd(fd), (int fd, uid_t user, gid_t group), (fd, user, group))
WRAP(int, fsetxattr, CHANGING, below_fd(fd), (int fd, const char *name, const void *value, size_t size, int flags),
     (fd, name, value, size, flags))
WRAP(ssize_t, read, READING, below_fd(fd), (int fd, void *data, size_t size), (fd, data, size))
WRAP(ssize_t, readlink, READING, below(path), (const char *path, char *data, size_t size), (path, data, size))
WRAP(int, stat, READING, below(path), (const char *path, struct stat *found), (path, found))
WRAP(int, lstat, READING, below(path), (const char *path, struct stat *found), (path, found))
WRAP(int, stat64, READING, below(path), (const char *path, struct stat64 *found), (path, found))
WRAP(int, lstat64, READING, below(path), (const char *path, struct stat64 *found), (path, found))
WRAP(ssize_t, pread64, READING, below_fd(fd), (int fd, void *data, size_t size, off64_t from), (fd, data, size, from))
WRAP(int, flock, CHANGING, below_fd(fd), (int fd, int how), (fd, how))
WRAP(ssize_t, listxattr, READING, below(path), (const char *path, char *data, size_t size), (path, data, size))
WRAP(ssize_t, getxattr, READING, below(path), (const char *path, const char *name, void *data, size_t size),
     (path, name, data, size))

DIR *opendir(const char *path)
{
    int fate = met(READING, below(path));
    if (fate == 1)
        return NULL;
    DIR *result = REAL(opendir)(path);
    if (fate == 2)
        die();
    return result;
}

static long pause_ms;

/* After a waiting in which nothing came, the process gets no processor for this long: what it waits for comes then. */
void gpuops_sleepy(long milliseconds) { pause_ms = milliseconds; }

int epoll_wait(int epoll, struct epoll_event *events, int most, int timeout)
{
    int ready = REAL(epoll_wait)(epoll, events, most, timeout);
    if (!ready && pause_ms)
        usleep(pause_ms * 1000);
    return ready;
}
