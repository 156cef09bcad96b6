/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * The board: one text file of key=value lines that every process of a host shares.
 */
#ifndef GPUSIM_BOARD_H
#define GPUSIM_BOARD_H

#include <stddef.h>

/* Between board_open() and board_close() the caller holds the board: no other process and no other thread changes it. */
int board_open(int for_writing);
void board_close(void);

const char *board_text(const char *fallback, const char *key_format, ...) __attribute__((format(printf, 2, 3)));
long long board_number(long long fallback, const char *key_format, ...) __attribute__((format(printf, 2, 3)));
void board_set(const char *value, const char *key_format, ...) __attribute__((format(printf, 2, 3)));
void board_set_number(long long value, const char *key_format, ...) __attribute__((format(printf, 2, 3)));
/* Removes the key and every key below it (KEY.*). */
void board_remove(const char *key_format, ...) __attribute__((format(printf, 1, 2)));
/* Walks over all keys that start with prefix; *position starts at 0. Returns 0 at the end. */
int board_next(const char *prefix, size_t *position, const char **key, const char **value);

int board_writable(void);
/* In a container that the toolkit has handed a read-only board: makes it writable, if this process may mount. So may a
 * privileged one, which could also set the modes of a real GPU; any other is left as it is. */
void board_want_writable(void);
const char *board_path(void);
/* Directory of the board when it is the host's own, or NULL in a container that was handed only the board file. */
const char *board_directory(void);
/* Prefix of /dev, /proc ... : empty, or the test directory that GPUSIM_DIR names. */
const char *board_root(void);
/* One line in the log of writes beside the board; silently nothing where that directory is not to be had. */
void board_log(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Version that the file carries which this code was loaded from (libNAME.so.VERSION), or NULL. */
const char *board_library_version(void);

#endif
