# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The only interface to the host's files, commands and services."""
from __future__ import annotations

import contextlib
import errno
import fcntl
import fnmatch
import math
import os
import re
import select
import selectors
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from typing import (
    IO,
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterator,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    Union,
    cast,
)

from .errors import GpuOpsError, HostFailed
from .progress import duration
from .times import since_start
from .waiting import wait_for

# What a command says is kept up to twice this, its beginning and its end.
OUTPUT_BYTES = 16 << 20
# How long a killed command is waited for. One that hangs in the kernel (state D) does not even die.
KILL_SECONDS = 5.0
# How long the output of an ended command is read on where a daemon that it left behind holds the pipe.
LINGER_SECONDS = 1.0
PAUSE_SECONDS = 0.05
GUARD_SECONDS = 30.0
# What drivers, packages and boots are made of, each perhaps on a file system of its own
SYSTEM_DIRECTORIES = ("/", "/usr", "/var", "/var/lib", "/var/cache", "/boot")
SYNC_SECONDS = 60.0

# A kernel that writes faster than it is read is not read to its end
KERNEL_LOG_SECONDS = 10.0
# More than one record has; how many are read at once of what somebody waits for
_RECORD_BYTES, _MOST_RECORDS = 1 << 14, 1000

_NULL = os.makedev(1, 3)
# Linux' Documentation/admin-guide/devices.txt
_KMSG = os.makedev(1, 11)
_KINDS = {stat.S_IFCHR: "a character device", stat.S_IFBLK: "a block device",
          stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a link that leads back to itself"}
_STATES = {"D": ", waits in the kernel", "T": ", stopped"}
_SAID_CHARACTERS = 200
# Attributes that a file keeps when its content is replaced (xattr(7)): what users note, access lists, capabilities.
# Others belong to the content (security.ima, security.evm) or to the file system.
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access", "security.capability")


@dataclass(frozen=True)
class CommandResult:
    """A finished command."""

    argv: Sequence[str]
    rc: int
    stdout: str
    stderr: str


# Of each file its inode, its size in bytes, and when it was written, in nanoseconds since the epoch
Stamps = Tuple[Tuple[int, int, int], ...]


@dataclass(frozen=True)
class Ownership:
    """Who may do what with a file: permission bits, owner, and its SELinux label, '' where it has none.

    attributes: its other extended attributes (access lists, capabilities), each value's bytes as Latin-1 text.
    """

    mode: int
    uid: int
    gid: int
    label: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)


class CommandFailed(GpuOpsError):
    """A command ended with a code that was not expected; the result keeps its output."""


class CommandTimedOut(CommandFailed):
    """A command had not ended in its time, and was killed."""


class Host:
    """Files, commands and services of the machine that the module runs on.

    root: prefix of every path ('/' on a real host, a scratch directory in tests of file logic).

    Every error of the system comes out as HostFailed. A file is "not there" only where the system says so (ENOENT,
    ENOTDIR); below /proc and /sys also where it answers with an error of the driver or of the process behind it.
    """

    def __init__(self, root: str = "/") -> None:
        self.root = root
        # File that says which command runs: its process id and when that started, see lock.py; '' is to tell nobody
        self.commands_told_in = ""
        # Who is told how many bytes of packages are about to be fetched, see telling.py
        self.fetches: Callable[[int], None] = lambda amount: None
        # Who is told which other run is waited for, once
        self.waits: Callable[[str], None] = lambda whom: None

    def path(self, name: str) -> str:
        """The real path of an absolute name under the root."""
        if "\0" in name:
            raise HostFailed("host.zero_byte_in_path", "a path with a zero byte: %r" % name, "a path",
                             "correct the file that names it", name)
        return os.path.join(self.root, name.lstrip("/")) if self.root != "/" else name

    def is_root(self) -> bool:
        """Whether this process has the rights of root."""
        return os.geteuid() == 0

    # files, read

    def read(self, name: str) -> Optional[str]:
        """Text of a file, None when it (or a directory of its path) is not there."""
        data = self.read_bytes(name)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    def read_bytes(self, name: str) -> Optional[bytes]:
        opened = self._open(name)
        if opened is None:
            return None
        with opened as handle:
            try:
                return handle.read()
            except OSError as error:
                if _is_absent(name, error):
                    return None
                raise self._failure(error, name, "read") from error

    def kernel_log(self, first: int = 0) -> Optional[List[str]]:
        """The records of the kernel's log, oldest first, as /dev/kmsg has them; None where it cannot be read.

        first: the number of the first record that is wanted; who has read that one already sees by it that there are
        no newer ones. A container may have none, or another device or a pipe in its place. One read is one record
        (Documentation/ABI/testing/dev-kmsg); one that was overwritten meanwhile is EPIPE, and the next read goes on
        behind it.
        """
        handle = self._kernel_log()
        if handle is None:
            return None
        try:
            there = os.fstat(handle)
            if stat.S_ISREG(there.st_mode):
                with os.fdopen(os.dup(handle), "rb") as whole:
                    return whole.read().decode("utf-8", "replace").splitlines()
            return _kernel_records(handle, first) if _is_kernel_log(there) else None
        finally:
            os.close(handle)

    def new_records(self) -> Optional[NewRecords]:
        """What comes to the kernel's log from now on, for who waits for it; None where nobody can wait for that."""
        handle = self._kernel_log()
        if handle is None:
            return None
        try:
            if _is_kernel_log(os.fstat(handle)):
                found = NewRecords(handle)
                found.skip()
                return found
        except OSError:
            pass
        os.close(handle)
        return None

    def _kernel_log(self) -> Optional[int]:
        try:
            return os.open(self.path("/dev/kmsg"), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None

    def read_part(self, name: str, offset: int, length: int) -> bytes:
        """So many bytes of a file from there on; fewer where it ends before, none where it is not there."""
        handle = self._open(name)
        if handle is None:
            return b""
        with self._telling(name, "read"), handle:
            handle.seek(offset)
            return handle.read(length)

    def sha256(self, name: str, timeout: float = 600) -> str:
        """The SHA-256 of a file, as hexadecimal digits; CommandFailed where it is not there or cannot be read.

        By a command, which ends at the time-out (in seconds) also where a disk answers no more.
        """
        # Before the digits of a name that it has to escape it writes a backslash (coreutils, digest.c)
        return self.run(["sha256sum", self.path(name)], timeout=timeout).stdout.split()[0].lstrip("\\")

    def lines(self, name: str, last: Optional[int] = None) -> Iterator[str]:
        """Lines of a file one by one, none when it is not there; with last, those whole in its last so many bytes."""
        opened = self._open(name)
        if opened is None:
            return
        with opened as handle:
            try:
                length = os.fstat(handle.fileno()).st_size
                if last is not None and length > last:
                    handle.seek(length - last - 1)
                    handle.readline()
                for line in handle:
                    yield line.decode("utf-8", "surrogateescape").rstrip("\n")
            except OSError as error:
                raise self._failure(error, name, "read") from error

    def exists(self, name: str) -> bool:
        """Whether there is something of that name; a link counts, wherever it leads."""
        return self._look(name, os.lstat) is not None

    def is_file(self, name: str) -> bool:
        found = self.stat(name)
        return found is not None and stat.S_ISREG(found.st_mode)

    def is_dir(self, name: str) -> bool:
        found = self.stat(name)
        return found is not None and stat.S_ISDIR(found.st_mode)

    def is_executable(self, name: str) -> bool:
        return self.is_file(name) and os.access(self.path(name), os.X_OK)

    def list(self, name: str) -> List[str]:
        """Names in a directory, sorted; empty when it is not there."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError as error:
            if _is_absent(name, error, hidden=True):
                return []
            raise self._failure(error, name, "listed") from error

    def glob(self, pattern: str) -> List[str]:
        """Absolute names that match, sorted, without the root prefix.

        As of glob(7), and '**' is any number of directories; names with a leading dot match only a pattern with one.
        """
        found = [""]
        listed = False
        for part in pattern.strip("/").split("/"):
            if part == "**":
                found = [each for directory in found for each in self._below(directory)]
            elif any(sign in part for sign in "*?["):
                found = ["%s/%s" % (directory, name) for directory in found for name in self.list(directory or "/")
                         if fnmatch.fnmatchcase(name, part) and name.startswith(".") <= part.startswith(".")]
                listed = True
            else:
                found = ["%s/%s" % (directory, part) for directory in found]
                listed = False
        return sorted(name for name in set(found) if listed or self.exists(name))

    def _below(self, directory: str) -> Iterator[str]:
        """The directory and all those in it; links are not followed."""
        yield directory
        try:
            with os.scandir(self.path(directory or "/")) as entries:
                names = [entry.name for entry in entries
                         if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")]
        except OSError as error:
            if _is_absent(directory, error, hidden=True):
                return
            raise self._failure(error, directory, "listed") from error
        for name in names:
            yield from self._below("%s/%s" % (directory, name))

    def link(self, name: str) -> Optional[str]:
        """Target of a symbolic link as written, None when it is none."""
        try:
            return os.readlink(self.path(name))
        except OSError as error:
            if error.errno == errno.EINVAL or _is_absent(name, error, hidden=True):
                return None
            raise self._failure(error, name, "read") from error

    def resolve(self, name: str) -> str:
        """The name with every symbolic link followed, without the root prefix."""
        with self._telling(name, "read"):
            real = _real(self.path(name))
            return real if self.root == "/" else "/" + os.path.relpath(real, os.path.realpath(self.root))

    def mode(self, name: str) -> Optional[int]:
        """Permission bits of a file, None when it is not there."""
        found = self.stat(name)
        return None if found is None else stat.S_IMODE(found.st_mode)

    def is_read_only(self, directory: str) -> bool:
        """Whether a directory lies, or would lie, on a file system that is mounted read-only."""
        while directory != "/" and not self.is_dir(directory):
            directory = os.path.dirname(directory)
        with self._telling(directory, "read"):
            return bool(os.statvfs(self.path(directory)).f_flag & os.ST_RDONLY)

    def free(self, directory: str) -> int:
        """Bytes that root can still write on the file system on which a directory lies, or would lie."""
        while directory != "/" and not self.is_dir(directory):
            directory = os.path.dirname(directory)
        with self._telling(directory, "read"):
            found = os.statvfs(self.path(directory))
        return found.f_bavail * found.f_frsize

    def ownership(self, name: str) -> Optional[Ownership]:
        """Permission bits, owner, SELinux label and attributes of a file, None when it is not there."""
        path = self.path(name)
        found = self.stat(name)
        if found is None:
            return None
        with self._telling(name, "read"):
            return _ownership(path, found)

    def stat(self, name: str) -> Optional[os.stat_result]:
        """What stat(2) says of a file, links followed; None when it is not there."""
        return self._look(name, os.stat)

    def stamps(self, *names: str) -> Stamps:
        """Tell these files, as they are, from what they become; those that are not there left out."""
        found = [self.stat(name) for name in names]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found if each is not None)

    def _look(self, name: str, how: Callable[[str], os.stat_result]) -> Optional[os.stat_result]:
        try:
            return how(self.path(name))
        except OSError as error:
            if _is_absent(name, error) or error.errno == errno.ELOOP:
                return None
            raise self._failure(error, name, "read") from error

    def _open(self, name: str) -> Optional[IO[bytes]]:
        """A file opened for reading; None when it is not there. Only regular files and /dev/null are read."""
        try:
            # A FIFO without a writer would be waited for
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError as error:
            if _is_absent(name, error):
                return None
            raise self._failure(error, name, "read") from error
        with self._telling(name, "read"):
            found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode) or found.st_rdev == _NULL:
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        raise _irregular(name, found.st_mode, "read")

    # files, write

    def write(
        self,
        name: str,
        text: str,
        mode: int = 0o644,
        check: Optional[Callable[[str], None]] = None,
        ownership: Optional[Ownership] = None,
    ) -> None:
        """Write beside, check, rename. An existing file keeps its mode, owner, SELinux label and attributes.

        ownership is what a new file gets in place of mode and the owner of this process.
        check is called with the path of the complete new file before it takes its place; what it raises leaves
        the old file as it was. A symbolic link is followed: its target is replaced, the link stays. Only a regular
        file is replaced: what else stands there (a device behind the link of a masked unit) is refused.
        """
        self.write_bytes(name, _encoded(name, text), mode, check, ownership)

    def write_bytes(
        self,
        name: str,
        data: bytes,
        mode: int = 0o644,
        check: Optional[Callable[[str], None]] = None,
        ownership: Optional[Ownership] = None,
    ) -> None:
        found = self.ownership(name)
        self._replace(name, data, found or ownership or Ownership(mode, -1, -1), check)

    def check_replaceable(self, name: str) -> None:
        """Raises HostFailed where write() would refuse what stands at a path."""
        with self._telling(name, "written"):
            _refuse_irregular(name, _real(self.path(name)))

    def put_back(self, name: str, data: bytes, ownership: Ownership) -> None:
        """Write a file as it was: bytes, mode, owner, SELinux label and attributes, whatever it has by now."""
        self._replace(name, data, ownership, None)

    def _replace(self, name: str, data: bytes, ownership: Ownership, check: Optional[Callable[[str], None]]) -> None:
        with self._telling(name, "written"):
            target = _real(self.path(name))
            _refuse_irregular(name, target)
            directory = os.path.dirname(target)
            _make_directories(directory)
            beside = _beside(target)
            _unlink_if_there(beside)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with self._telling(name, "written"), os.fdopen(descriptor, "wb") as handle:
                handle.write(data)
                handle.flush()
                _give(handle.fileno(), ownership)
                os.fsync(handle.fileno())
            if check is not None:
                check(beside)
            with self._telling(name, "written"):
                os.replace(beside, target)
        except BaseException:
            with contextlib.suppress(OSError):
                _unlink_if_there(beside)
            raise
        with self._telling(name, "written"):
            _sync_directory(directory)

    def append(self, name: str, line: str, mode: int = 0o600) -> None:
        """Append a line to a file and wait until it is on the disk; a last line that was cut short is ended first."""
        path, data = self.path(name), _encoded(name, line + "\n")
        with self._telling(name, "written"):
            _make_directories(os.path.dirname(path))
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC
            with _exact_modes():
                descriptor = os.open(path, flags, mode)
            with os.fdopen(descriptor, "r+b", buffering=0) as handle:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode):
                    raise _irregular(name, found.st_mode, "written")
                if found.st_size and os.pread(descriptor, 1, found.st_size - 1) != b"\n":
                    data = b"\n" + data
                while data:
                    data = data[handle.write(data) or 0:]
                os.fsync(descriptor)

    def rename(self, name: str, new: str) -> None:
        """Give a file another name in the same file system, in place of what has it."""
        with self._telling(new, "written"):
            os.replace(self.path(name), self.path(new))
            _sync_directory(os.path.dirname(self.path(new)))

    def make_link(self, name: str, target: str) -> None:
        """Make a symbolic link, in place of the file or link that has the name."""
        path = self.path(name)
        with self._telling(name, "written"):
            _make_directories(os.path.dirname(path))
            beside = _beside(path)
            _unlink_if_there(beside)
            os.symlink(target, beside)
            os.replace(beside, path)
            _sync_directory(os.path.dirname(path))

    def make_directory(self, name: str, mode: int) -> None:
        """Make a directory of exactly these permission bits, whatever the umask; one that is there is given them."""
        path = self.path(name)
        with self._telling(name, "made"):
            _make_directories(os.path.dirname(path))
            with _exact_modes(), contextlib.suppress(FileExistsError):
                os.mkdir(path, mode)
                _sync_directory(os.path.dirname(path))
            if stat.S_IMODE(os.stat(path).st_mode) != mode:
                os.chmod(path, mode)

    def remove(self, name: str) -> None:
        """Remove a file or link, and what a killed write of it left; it is no error when it is gone already."""
        self.clear(name)
        self._unlink(name, self.path(name))

    def clear(self, name: str) -> None:
        """Remove what a killed write of a file left beside it."""
        with self._telling(name, "removed"):
            beside = _beside(_real(self.path(name)))
        self._unlink(name, beside)

    def _unlink(self, name: str, path: str) -> None:
        with self._telling(name, "removed"):
            if _unlink_if_there(path):
                _sync_directory(os.path.dirname(path))

    def remove_empty_dir(self, name: str) -> None:
        """Remove a directory if it is empty; leave it otherwise."""
        if not self.is_dir(name):
            return
        try:
            os.rmdir(self.path(name))
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.EBUSY):
                raise self._failure(error, name, "removed") from error

    # who is at work

    @contextlib.contextmanager
    def guard(self, name: str, limit: float = GUARD_SECONDS) -> Iterator[None]:
        """Hold flock(2) of a file, which is waited for up to so many seconds. The kernel releases it when this process
        dies."""
        descriptor = self._lock_file(name)
        try:
            _answer, ours = wait_for(lambda: self._locked(name, descriptor), bool, limit, PAUSE_SECONDS)
            if not ours:
                raise HostFailed("host.file_locked", "%s has been locked for %d s" % (name, limit),
                                 "a lock that is held for moments",
                                 "see which process holds it (`fuser %s`) and why it stands still" % name, name)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def occupied(self, name: str, text: str) -> Iterator[bool]:
        """Hold flock(2) of a file for as long as it takes, with a text in it for who asks whose it is; gives False,
        and holds nothing, where somebody else does. The kernel releases it when this process dies.

        A file system that is full has no place for the text: the lock holds without it.
        """
        descriptor = self._lock_file(name)
        try:
            ours = self._locked(name, descriptor)
            if ours:
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, _encoded(name, text), 0)
            yield ours
        finally:
            os.close(descriptor)

    def _lock_file(self, name: str) -> int:
        path = self.path(name)
        with self._telling(name, "opened"), _exact_modes():
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def _locked(self, name: str, descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            raise self._failure(error, name, "locked") from error
        return True

    def holder(self, name: str) -> int:
        """Process that holds a lock of fcntl(2) on a file, as apt, dpkg and rpm do; 0 when none does.

        One that this process cannot see, in another PID namespace, is -1: the kernel tells it as 0.
        """
        opened = self._open(name)
        if opened is None:
            return 0
        with opened as handle, self._telling(name, "read"):
            # struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid
            asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
            told = struct.unpack("hhqqi4x", fcntl.fcntl(handle.fileno(), fcntl.F_GETLK, asked))
        return 0 if told[0] == fcntl.F_UNLCK else told[4] or -1

    def is_locked(self, name: str) -> bool:
        """Whether anybody holds a lock of flock(2) on a file. Who took it, as flock(1) does, may have ended since.

        proc_locks(5): the file by its device, in hexadecimal digits, and its inode. No lock is tried: who begins to
        work just then would find it taken.
        """
        found = self.stat(name)
        if found is None:
            return False
        wanted = "%02x:%02x:%d" % (os.major(found.st_dev), os.minor(found.st_dev), found.st_ino)
        lines = (line.split() for line in Host().lines("/proc/locks"))
        return any(words[1:2] == ["FLOCK"] and wanted in words for words in lines)

    def process_started(self, pid: int) -> str:
        """When a process of this machine started, in clock ticks since its boot; '' when there is no such process.

        Processes are those of the machine, whatever the root. proc_pid_stat(5): field 22; a zombie (Z, X) has ended.
        """
        fields = (Host().read("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in ("Z", "X") else ""

    def process_told(self, pid: int) -> str:
        """'NAME (process ID, STATE for 2 min 10 s)' of a process of this machine, for people; '' where it has ended.

        The name is the kernel's: arguments may have a password. proc_pid_stat(5): fields 3 and 22.
        """
        started = self.process_started(pid)
        if not started:
            return ""
        name = (Host().read("/proc/%d/comm" % pid) or "?").strip()
        state = (Host().read("/proc/%d/stat" % pid) or "").rpartition(")")[2].split()[:1]
        return "%s (process %d, there for %s%s)" % (
            name, pid, duration(since_start(started)), _STATES.get("".join(state), ""))

    def at_work_in(self, session: int) -> List[str]:
        """Those processes of a session that have no child in it, as process_told() tells them: what the others wait
        for. proc_pid_stat(5): fields 4 and 6."""
        parents = {}
        for name in filter(str.isdigit, Host().list("/proc")):
            told = (Host().read("/proc/%s/stat" % name) or "").rpartition(")")[2].split()
            if len(told) > 3 and told[3] == str(session):
                parents[int(name)] = int(told[1])
        return [told for told in map(self.process_told, sorted(set(parents).difference(parents.values()))) if told]

    def boot(self) -> str:
        """The id of this boot of the machine (proc(5), random/boot_id)."""
        return (Host().read("/proc/sys/kernel/random/boot_id") or "").strip()

    def machine(self) -> str:
        """What tells this machine from one that has a copy of its disk, '' where nothing does."""
        try:
            return (self.read("/sys/class/dmi/id/product_uuid") or "").strip()
        except HostFailed:
            return ""

    def booted(self) -> float:
        """When that was (seconds since 1970, by the clock as it is set now), 0 where it cannot be told.

        When its first process began (proc_pid_stat(5), starttime): a machine in a container is younger than the kernel.
        """
        started = self.process_started(1)
        return time.time() - since_start(started) if started else 0

    # commands

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """A directory that only its owner can enter and that is gone afterwards."""
        where = os.environ.get("TMPDIR", "/tmp")
        with self._telling(where, "written"), tempfile.TemporaryDirectory(prefix="gpuops-") as directory:
            yield directory

    @contextlib.contextmanager
    def in_memory(self, data: bytes) -> Iterator[str]:
        """A path by which a library of this process reads bytes that lie in no file system, and that end with it."""
        with self._telling("/proc/self/fd", "written"):
            descriptor = os.memfd_create("gpuops", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as handle:
            with self._telling("/proc/self/fd", "written"):
                handle.write(data)
                handle.flush()
            yield "/proc/self/fd/%d" % descriptor

    def which(self, program: str) -> Optional[str]:
        """Absolute name of a program in the system's directories, None when it is not installed."""
        for directory in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
            name = "%s/%s" % (directory, program)
            if self.is_executable(name):
                return name
        return None

    def run(
        self,
        argv: Sequence[str],
        check: bool = True,
        timeout: float = 120,
        stdin: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> CommandResult:
        """Run a command in the C locale, in a session of its own; with check, another end than 0 raises CommandFailed.

        A program that is not there ends with 127, one that cannot be executed with 126, as in a shell. At the
        time-out it is killed with all its children that did not leave its session, and waited for KILL_SECONDS. Of a
        longer output the middle is left out, and said to be.
        """
        started = self._start(argv, stdin is not None, env)
        if isinstance(started, CommandResult):
            done = started
        else:
            self.tell_command(started.pid)
            done = _attend(argv, started, None if stdin is None else _encoded(argv[0], stdin), timeout)
        if check and done.rc != 0:
            raise CommandFailed(
                "host.command_failed",
                found="'%s' ended with %d: %s" % (" ".join(argv), done.rc, _last_words(done)),
                wanted="exit code 0",
                remedy="run it by hand on this host; its whole output is in this result",
                cmd=list(argv),
                rc=done.rc,
                stdout=done.stdout,
                stderr=done.stderr,
            )
        return done

    @contextlib.contextmanager
    def conversation(
        self, argv: Sequence[str], called: Sequence[str] = (), env: Optional[Mapping[str, str]] = None
    ) -> Iterator[Conversation]:
        """A command that is started once, as by run(), and asked often: it answers each line with one.

        called: words that stand for a longer argv in messages. It ends with its standard input, or is killed.
        """
        started = self._start(argv, True, env)
        if not isinstance(started, CommandResult):
            self.tell_command(started.pid)
        talk = Conversation(called or argv, started)
        try:
            yield talk
        finally:
            talk.close()

    def _start(
        self, argv: Sequence[str], is_fed: bool, env: Optional[Mapping[str, str]]
    ) -> Union[subprocess.Popen[bytes], CommandResult]:
        """The command's process, or what a shell would answer where it cannot be started."""
        try:
            # AnsibleModule.run_command knows no time limit, and an observation has no AnsibleModule.
            return subprocess.Popen(  # pylint: disable=ansible-bad-function,consider-using-with
                list(argv),
                stdin=subprocess.PIPE if is_fed else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(env),
                start_new_session=True,
                umask=0o022,
            )
        except OSError as error:
            done = _not_started(argv, error)
            if done is None:
                raise self._failure(error, argv[0], "run") from error
            return done

    def tell_command(self, pid: int) -> None:
        """Say which command runs, in one call and as long each time: this process may be killed at any instant.

        A command that is not told of is run all the same: who asks then takes it for ended.
        """
        if not self.commands_told_in:
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(self.path(self.commands_told_in),
                                 os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(descriptor, b"%20d %20s\n" % (pid, self.process_started(pid).encode()))
            finally:
                os.close(descriptor)

    def sync(self) -> None:
        """Put on the disk what other programs have written, which only few of them do themselves: dkms, depmod and the
        logs and lists of apt lie in memory for half a minute. A scratch root outlives no power cut.

        Only the system's own file systems are waited for, and not for ever: sync(2) waits for each mount, a server's
        that does not answer included.
        """
        if self.root == "/":
            with contextlib.suppress(CommandFailed):
                self.run(["sync", "--file-system", *filter(self.is_dir, SYSTEM_DIRECTORIES)], check=False,
                         timeout=SYNC_SECONDS)

    # services

    def unit(self, name: str) -> Dict[str, str]:
        """What systemd says of a unit: LoadState, ActiveState, SubState, UnitFileState, MainPID ..."""
        done = self.run(
            ["systemctl", "show", name, "--property",
             "LoadState,ActiveState,SubState,UnitFileState,MainPID,ActiveEnterTimestampMonotonic,FragmentPath"],
            check=False,
        )
        pairs = (line.partition("=") for line in done.stdout.splitlines())
        return {key: value for key, separator, value in pairs if separator}

    def systemctl(self, *words: str, timeout: float = 180) -> CommandResult:
        return self.run(["systemctl", *words], timeout=timeout)

    # errors

    @contextlib.contextmanager
    def _telling(self, name: str, tried: str) -> Iterator[None]:
        """Every error of the system in it comes out as HostFailed."""
        try:
            yield
        except OSError as error:
            raise self._failure(error, name, tried) from error

    def _failure(self, error: OSError, name: str, tried: str) -> HostFailed:
        return HostFailed.of(error, name, tried, self._mount(name))

    def _mount(self, name: str) -> str:
        """Where the file system of a path is mounted, without the root prefix."""
        while name not in ("/", "") and not os.path.ismount(self.path(name)):
            name = os.path.dirname(name)
        return name or "/"


def _environment(extra: Optional[Mapping[str, str]]) -> Dict[str, str]:
    # What is set for our Python is not for programs of the host that are written in another one, as dnf is
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment.update(LC_ALL="C", LANG="C")
    environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment.update(extra or {})
    return environment


def _last_words(done: CommandResult) -> str:
    lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
    return " | ".join(lines[-3:])


def held_up(at_work: Sequence[str], said: str) -> str:
    """What a command waits for that has not ended: its processes at work, and what it has said last."""
    lines = said.strip().splitlines()
    return "".join((
        "; at work in it: %s" % ", ".join(at_work) if at_work else "",
        "; it said last: '%s'" % lines[-1].strip()[:_SAID_CHARACTERS] if lines else ""))


def _real(path: str) -> str:
    """The path with every link followed. os.path.realpath() takes a link that it cannot read for a file, and who then
    replaces that file replaces the link."""
    real = os.path.realpath(path)
    try:
        unread = stat.S_ISLNK(os.lstat(real).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return real
    return os.path.realpath(real) if unread else real


def _beside(target: str) -> str:
    """Where the new file is written before it takes its place.

    The name is the same each time, so that what a killed run left there is replaced by the next one. It is not in a
    directory of drop-ins, where some programs (CRI-O) read every file, whatever its name.
    """
    directory, name = os.path.split(target)
    above = os.path.dirname(directory)
    if directory.endswith(".d") and _on_one_file_system(above, directory):
        directory = above
    return os.path.join(directory, ".gpuops-%s" % name)


def _on_one_file_system(above: str, directory: str) -> bool:
    """Whether a file can be renamed from one to the other; so it is where the directory is not there any more.

    rename(2) does not cross a mount, be it of the same file system: that, no device number tells.
    """
    try:
        return os.stat(above).st_dev == os.stat(directory).st_dev and os.fsencode(directory) not in _mount_points()
    except (FileNotFoundError, NotADirectoryError):
        return True


def _mount_points() -> FrozenSet[bytes]:
    """Where something is mounted for this process (proc(5), mountinfo: field 5); empty where /proc is not there."""
    try:
        with open("/proc/self/mountinfo", "rb") as mounts:
            fields = [line.split(b" ")[4] for line in mounts]
    except (FileNotFoundError, NotADirectoryError):
        return frozenset()
    return frozenset(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal.group(1), 8)]), each) for each in fields)


def _unlink_if_there(path: str) -> bool:
    """Whether it was there. On a read-only file system unlink(2) fails for what is not there as well."""
    try:
        os.lstat(path)
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _encoded(name: str, text: str) -> bytes:
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise HostFailed("host.no_unicode", "text for %s that is no Unicode: %s" % (name, error), "text",
                         "correct what it was made from", name) from error


def _is_kernel_log(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == _KMSG


def _kernel_records(handle: int, first: int) -> Optional[List[str]]:
    """A log of many thousands is read every minute, by who watches."""
    found: List[str] = []
    until = time.monotonic() + KERNEL_LOG_SECONDS
    while time.monotonic() < until:
        for _record in range(_MOST_RECORDS):
            try:
                data = os.read(handle, _RECORD_BYTES)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue
                return None
            if not data:
                return found
            if first > 0 and _number(data) < first:
                continue
            # They come in their order
            first = 0
            found.append(data.decode("utf-8", "replace"))
    return found


def _number(record: bytes) -> int:
    """Of a record; so high that it counts as new where it tells none."""
    try:
        return int(record.split(b",", 2)[1])
    except (IndexError, ValueError):
        return sys.maxsize


class NewRecords:
    """What comes to the kernel's log after the last that was read; made by Host.new_records(). To be closed."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._poll = select.poll()
        self._poll.register(handle, select.POLLIN)

    def wait(self, seconds: float) -> bool:
        """Whether there is something to be read within so many seconds."""
        return bool(self._poll.poll(max(0.0, seconds * 1000)))

    def read(self) -> Optional[List[str]]:
        """What has come, of much its beginning; None where it was overwritten before somebody read it. Raises OSError
        where the log cannot be read any more."""
        found: List[str] = []
        while len(found) < _MOST_RECORDS:
            try:
                data = os.read(self._handle, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.EPIPE:
                    raise
                self.skip()
                return None
            if not data:
                break
            found.append(data.decode("utf-8", "replace"))
        return found

    def skip(self) -> None:
        """What has come until now is not to be read."""
        os.lseek(self._handle, 0, os.SEEK_END)

    def close(self) -> None:
        os.close(self._handle)


def _is_absent(name: str, error: OSError, hidden: bool = False) -> bool:
    """Whether an error says that there is nothing. hidden: what this process may not see in /proc counts as that."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return True
    ours = (errno.EMFILE, errno.ENFILE, errno.ENOMEM) + (() if hidden else (errno.EACCES, errno.EPERM))
    return name.startswith(("/proc/", "/sys/")) and error.errno not in ours


def _irregular(name: str, mode: int, tried: str) -> HostFailed:
    if stat.S_ISDIR(mode):
        return HostFailed.of(IsADirectoryError(errno.EISDIR, ""), name, tried)
    reason = "it is %s" % _KINDS.get(stat.S_IFMT(mode), "no file")
    return HostFailed("host.no_regular_file", "%s cannot be %s: %s" % (name, tried, reason), "a regular file",
                      "move it out of the way, and run again", name, reason=reason)


def _refuse_irregular(name: str, target: str) -> None:
    """Only a regular file, or nothing, is replaced."""
    try:
        found = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return
    if found.st_rdev == _NULL and stat.S_ISCHR(found.st_mode):
        raise HostFailed("host.leads_to_a_device", "%s leads to the device %s" % (name, target),
                         "a regular file to replace",
                         "if this is a masked unit, `systemctl unmask %s`; else move the link out of the way, and run "
                         "again" % os.path.basename(name), name)
    if not stat.S_ISREG(found.st_mode):
        raise _irregular(name, found.st_mode, "replaced")


@contextlib.contextmanager
def _exact_modes() -> Iterator[None]:
    """What is made in it gets the permission bits that are asked for, whatever the umask of this process."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def _make_directories(directory: str) -> None:
    """A directory and those above it; new ones can be entered by everybody."""
    if os.path.isdir(directory):
        return
    above = os.path.dirname(directory)
    _make_directories(above)
    with _exact_modes(), contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o755)
    _sync_directory(above)


def _ownership(path: str, found: os.stat_result) -> Ownership:
    return Ownership(
        stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid,
        (_attribute(path, "security.selinux") or b"").decode("ascii", "surrogateescape"),
        {name: value.decode("latin-1") for name in _attributes(path) if name.startswith(_KEPT_ATTRIBUTES)
         for value in (_attribute(path, name),) if value is not None},
    )


def _attributes(path: str) -> Sequence[str]:
    try:
        return sorted(os.listxattr(path))
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM, errno.ENOSYS):
            return ()
        raise


def _attribute(path: str, name: str) -> Optional[bytes]:
    try:
        return os.getxattr(path, name)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.ENOTSUP, errno.EPERM, errno.ENOSYS):
            return None
        raise


def _give(descriptor: int, ownership: Ownership) -> None:
    """Give a new file an owner (-1: that of this process), permission bits, label and attributes.

    chown(2) takes the set-user-ID bits and the capabilities of a file away, so the owner comes first.
    """
    if os.geteuid() == 0:
        os.fchown(descriptor, ownership.uid, ownership.gid)
    os.fchmod(descriptor, ownership.mode)
    if ownership.label:
        os.setxattr(descriptor, "security.selinux", ownership.label.encode("ascii", "surrogateescape"))
    for name, value in ownership.attributes.items():
        os.setxattr(descriptor, name, value.encode("latin-1"))


def _sync_directory(directory: str) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_started(argv: Sequence[str], error: OSError) -> Optional[CommandResult]:
    """The answer of a program that cannot be started, as a shell tells it; None where the host is at fault."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return CommandResult(tuple(argv), 127, "", "%s: not found" % argv[0])
    if error.errno in (errno.EACCES, errno.ENOEXEC, errno.EISDIR, errno.ELOOP, errno.ELIBBAD):
        return CommandResult(tuple(argv), 126, "", "%s: cannot be executed: %s" % (argv[0], os.strerror(error.errno)))
    return None


class _Output:
    """What a command says: all of it, or its beginning and its end."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self._lost = 0

    def take(self, data: bytes) -> None:
        room = OUTPUT_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * OUTPUT_BYTES:
            self._cut()

    @property
    def ends_a_line(self) -> bool:
        return (self._tail or self._head).endswith(b"\n")

    def _cut(self) -> None:
        excess = max(0, len(self._tail) - OUTPUT_BYTES)
        self._lost += excess
        del self._tail[:excess]

    def text(self) -> str:
        self._cut()
        lost = b"\n[%d bytes are left out here]\n" % self._lost if self._lost else b""
        return (bytes(self._head) + lost + bytes(self._tail)).decode("utf-8", "replace")


def _attend(
    argv: Sequence[str], process: subprocess.Popen[bytes], stdin: Optional[bytes], timeout: float
) -> CommandResult:
    """Feed a command, read what it says, and wait for it as long as it may take."""
    outputs = (_Output(), _Output())
    try:
        if not _talk(process, stdin, outputs, time.monotonic() + timeout):
            raise _overdue(argv, process, timeout, outputs)
    except BaseException:
        _kill(process)
        raise
    finally:
        _close(process)
    return CommandResult(tuple(argv), process.returncode, *(output.text() for output in outputs))


def _overdue(
    argv: Sequence[str], process: subprocess.Popen[bytes], timeout: float, outputs: Tuple[_Output, _Output]
) -> CommandTimedOut:
    """Kill a command that has not ended in its time, and say what it was at."""
    at_work = Host().at_work_in(process.pid)
    died = _kill(process)
    stdout, stderr = (output.text() for output in outputs)
    # Which process that is, for who has to wait for it
    hangs: Dict[str, Any] = {} if died else {"hangs": [process.pid, Host().process_started(process.pid)]}
    return CommandTimedOut(
        "host.command_timed_out",
        found="%s had not ended after %.0f s%s%s" % (
            " ".join(argv), timeout, "" if died else ", and is not even ended by SIGKILL: it waits in the kernel",
            held_up(at_work, stderr.strip() or stdout)),
        wanted="the command to end in time",
        remedy="run it by hand to see what it waits for" if died else
               "see `dmesg` and `/proc/%d/stack` for what it waits for; only a reboot may end it" % process.pid,
        cmd=list(argv),
        stdout=stdout,
        stderr=stderr,
        **hangs,
    )


class Conversation:
    """A command that answers each line with one; made by Host.conversation()."""

    def __init__(self, argv: Sequence[str], program: Union[subprocess.Popen[bytes], CommandResult]) -> None:
        self._argv = argv
        self._program = program

    def ask(self, line: str, timeout: float, silence: float = math.inf) -> CommandResult:
        """Its answer, with rc 0; of one that ended before it had answered, what it said and how it ended.

        Raises CommandTimedOut at the time-out, in seconds, or when it has said nothing on its standard error for as
        long as it may be silent; it is killed then, as by Host.run().
        """
        if isinstance(self._program, CommandResult):
            return self._program
        process, outputs = self._program, (_Output(), _Output())
        begun = time.monotonic()
        has_answered = _exchange(process, _encoded(self._argv[0], line + "\n"), outputs, begun + timeout, silence)
        if has_answered:
            return CommandResult(tuple(self._argv), 0, *(output.text() for output in outputs))
        if has_answered is None:
            raise _overdue(self._argv, process, time.monotonic() - begun, outputs)
        rest = _attend(self._argv, process, None, max(0.0, begun + timeout - time.monotonic()))
        self._program = replace(rest, stdout=outputs[0].text() + rest.stdout, stderr=outputs[1].text() + rest.stderr)
        return self._program

    def close(self) -> None:
        """It has nothing to lose: what it leaves it has written when it answered."""
        if not isinstance(self._program, CommandResult):
            _kill(self._program)
            _close(self._program)


def _exchange(
    process: subprocess.Popen[bytes], question: bytes, outputs: Tuple[_Output, _Output], deadline: float,
    silence: float
) -> Optional[bool]:
    """Whether it has answered with a whole line, or ended; None where the deadline has come, or a silence of so many
    seconds."""
    stdin, stdout, stderr = (cast(IO[bytes], pipe) for pipe in (process.stdin, process.stdout, process.stderr))
    waiting = memoryview(question)
    with selectors.DefaultSelector() as selector:
        os.set_blocking(stdin.fileno(), False)
        selector.register(stdin, selectors.EVENT_WRITE)
        for pipe, output in zip((stdout, stderr), outputs):
            selector.register(pipe, selectors.EVENT_READ, output)
        spoken = time.monotonic()
        while True:
            # Asked for before the waiting: what it said until then is there to be read
            left = min(deadline, spoken + silence) - time.monotonic()
            for key, _events in selector.select(max(0.0, left)):
                if key.fileobj is stdin:
                    waiting = _written(stdin, waiting)
                    if not waiting:
                        selector.unregister(stdin)
                elif _drain(key.fd, key.data):
                    spoken = time.monotonic()
                elif key.fileobj is stdout:
                    return False
                else:
                    selector.unregister(key.fileobj)
            if outputs[0].ends_a_line:
                return True
            if left <= 0 and time.monotonic() >= min(deadline, spoken + silence):
                return None


def _talk(
    process: subprocess.Popen[bytes], stdin: Optional[bytes], outputs: Tuple[_Output, _Output], deadline: float
) -> bool:
    """Whether the command has ended by the deadline."""
    with selectors.DefaultSelector() as selector:
        for pipe, output in zip((process.stdout, process.stderr), outputs):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, output)
        if process.stdin is not None:
            os.set_blocking(process.stdin.fileno(), False)
            selector.register(process.stdin, selectors.EVENT_WRITE)
        waiting = memoryview(stdin or b"")
        until = deadline
        while selector.get_map():
            # Asked for before the waiting: what it said until its end then is there to be read. This process may get
            # no processor until long after the deadline.
            late, over = time.monotonic() >= until, process.poll() is not None
            ready = selector.select(0 if late else PAUSE_SECONDS)
            for key, _events in ready:
                if key.fileobj is process.stdin:
                    waiting = _feed(selector, key.fileobj, waiting)
                elif not _drain(key.fd, key.data):
                    selector.unregister(key.fileobj)
            if over and (late or not ready):
                return True
            if late:
                return False
            if over:
                until = min(until, time.monotonic() + LINGER_SECONDS)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.0, deadline - time.monotonic()))
    return process.returncode is not None


def _feed(selector: selectors.BaseSelector, pipe: Any, waiting: memoryview) -> memoryview:
    """Write what the pipe takes; it is closed once there is no more, or nobody reads."""
    waiting = _written(pipe, waiting)
    if not waiting:
        selector.unregister(pipe)
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return waiting


def _written(pipe: IO[bytes], waiting: memoryview) -> memoryview:
    """Write what the pipe takes: what is still to be written, nothing where nobody reads."""
    try:
        return waiting[os.write(pipe.fileno(), waiting):]
    except BlockingIOError:
        return waiting
    except BrokenPipeError:
        return waiting[:0]


def _drain(descriptor: int, output: _Output) -> bool:
    """Whether there was more to read."""
    data = os.read(descriptor, 1 << 16)
    output.take(data)
    return bool(data)


def _close(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _kill(process: subprocess.Popen[bytes]) -> bool:
    """Kill a command with its children; whether it died of it."""
    # One that has ended and was not asked of since keeps its number, and its children may be at work
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_SECONDS)
    return process.returncode is not None
