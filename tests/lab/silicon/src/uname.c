/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Preloaded into every process of a simulated host: uname() answers the kernel that the host booted, and /proc/modules,
 * which a kernel without loadable modules does not have, is the board's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define KERNEL_FILE "/var/lib/gpusim/kernel"
#define MODULES_FILE "/var/lib/gpusim/proc/modules"

/* Two lines: the release, and optionally the version string of that kernel. */
int uname(struct utsname *name) {
    char text[256];
    char *rest = text;
    char *line;
    ssize_t length;
    int saved = errno;
    int file;

    if (syscall(SYS_uname, name) != 0)
        return -1;
    file = (int)syscall(SYS_openat, AT_FDCWD, KERNEL_FILE, O_RDONLY | O_CLOEXEC, 0);
    if (file >= 0) {
        length = read(file, text, sizeof text - 1);
        close(file);
        text[length > 0 ? length : 0] = '\0';
        line = strsep(&rest, "\n");
        if (line[0] != '\0')
            snprintf(name->release, sizeof name->release, "%s", line);
        line = rest != NULL ? strsep(&rest, "\n") : NULL;
        if (line != NULL && line[0] != '\0')
            snprintf(name->version, sizeof name->version, "%s", line);
    }
    errno = saved;
    return 0;
}

static const char *redirected(const char *path) {
    if (path == NULL || strcmp(path, "/proc/modules") != 0)
        return path;
    return syscall(SYS_faccessat, AT_FDCWD, MODULES_FILE, F_OK) == 0 ? MODULES_FILE : path;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(mode, last, flags)                       \
    mode_t mode = 0;                                  \
    if ((flags) & (O_CREAT | __O_TMPFILE)) {          \
        va_list arguments;                            \
        va_start(arguments, last);                    \
        mode = va_arg(arguments, mode_t);             \
        va_end(arguments);                            \
    }

int open(const char *path, int flags, ...) {
    MODE(mode, flags, flags)
    return (int)syscall(SYS_openat, AT_FDCWD, redirected(path), flags, mode);
}

int open64(const char *path, int flags, ...) {
    MODE(mode, flags, flags)
    return (int)syscall(SYS_openat, AT_FDCWD, redirected(path), flags, mode);
}

int openat(int directory, const char *path, int flags, ...) {
    MODE(mode, flags, flags)
    return (int)syscall(SYS_openat, directory, redirected(path), flags, mode);
}

int openat64(int directory, const char *path, int flags, ...) {
    MODE(mode, flags, flags)
    return (int)syscall(SYS_openat, directory, redirected(path), flags, mode);
}

FILE *fopen(const char *path, const char *mode) {
    return NEXT(fopen)(redirected(path), mode);
}

FILE *fopen64(const char *path, const char *mode) {
    return NEXT(fopen64)(redirected(path), mode);
}

int access(const char *path, int mode) {
    return NEXT(access)(redirected(path), mode);
}

int stat(const char *path, struct stat *status) {
    return NEXT(stat)(redirected(path), status);
}

int stat64(const char *path, struct stat64 *status) {
    return NEXT(stat64)(redirected(path), status);
}

int fstatat(int directory, const char *path, struct stat *status, int flags) {
    return NEXT(fstatat)(directory, redirected(path), status, flags);
}

int fstatat64(int directory, const char *path, struct stat64 *status, int flags) {
    return NEXT(fstatat64)(directory, redirected(path), status, flags);
}

int statx(int directory, const char *restrict path, int flags, unsigned mask, struct statx *restrict status) {
    return NEXT(statx)(directory, redirected(path), flags, mask, status);
}
