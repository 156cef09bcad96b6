# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The only door to the host's files, commands and services."""
from __future__ import annotations

import contextlib
import glob as globbing
import os
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from .errors import GpuOpsError


@dataclass(frozen=True)
class Done:
    """A finished command."""

    argv: Sequence[str]
    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Ownership:
    """Who may do what with a file: permission bits, owner, and its SELinux label, '' where it has none."""

    mode: int
    uid: int
    gid: int
    label: str = ""


class CommandFailed(GpuOpsError):
    """A command ended with a code that was not expected; the result keeps its output."""


class Host:
    """Files, commands and services of the machine that the module runs on.

    root: prefix of every path ('/' on a real host, a scratch directory in tests of file logic).
    """

    def __init__(self, root: str = "/") -> None:
        self.root = root

    def path(self, name: str) -> str:
        """The real path of an absolute name under the root."""
        return os.path.join(self.root, name.lstrip("/")) if self.root != "/" else name

    # files, read

    def read(self, name: str) -> Optional[str]:
        """Text of a file, None when it (or a directory of its path) is not there."""
        data = self.read_bytes(name)
        return None if data is None else data.decode("utf-8", "surrogateescape")

    def read_bytes(self, name: str) -> Optional[bytes]:
        try:
            with open(self.path(name), "rb") as handle:
                return handle.read()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            # sysfs and procfs answer some reads with an error of the driver behind them
            if error.filename is None:
                return None
            raise

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def is_dir(self, name: str) -> bool:
        return os.path.isdir(self.path(name))

    def is_executable(self, name: str) -> bool:
        return os.path.isfile(self.path(name)) and os.access(self.path(name), os.X_OK)

    def list(self, name: str) -> List[str]:
        """Names in a directory, sorted; empty when it is not there."""
        try:
            return sorted(os.listdir(self.path(name)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def glob(self, pattern: str) -> List[str]:
        """Absolute names that match, sorted, without the root prefix."""
        prefix = "" if self.root == "/" else self.root.rstrip("/")
        return sorted(name[len(prefix):] for name in globbing.glob(self.path(pattern), recursive=True))

    def link(self, name: str) -> Optional[str]:
        """Target of a symbolic link as written, None when it is none."""
        try:
            return os.readlink(self.path(name))
        except OSError:
            return None

    def resolve(self, name: str) -> str:
        """The name with every symbolic link followed, without the root prefix."""
        real = os.path.realpath(self.path(name))
        if self.root == "/":
            return real
        return "/" + os.path.relpath(real, os.path.realpath(self.root))

    def mode(self, name: str) -> Optional[int]:
        """Permission bits of a file, None when it is not there."""
        try:
            return stat.S_IMODE(os.stat(self.path(name)).st_mode)
        except FileNotFoundError:
            return None

    def is_read_only(self, folder: str) -> bool:
        """Whether a directory lies, or would lie, on a file system that is mounted read-only."""
        while folder != "/" and not self.is_dir(folder):
            folder = os.path.dirname(folder)
        return bool(os.statvfs(self.path(folder)).f_flag & os.ST_RDONLY)

    def free(self, folder: str) -> int:
        """Bytes that root can still write on the file system on which a directory lies, or would lie."""
        while folder != "/" and not self.is_dir(folder):
            folder = os.path.dirname(folder)
        found = os.statvfs(self.path(folder))
        return found.f_bavail * found.f_frsize

    def ownership(self, name: str) -> Optional[Ownership]:
        """Permission bits, owner and SELinux label of a file, None when it is not there."""
        try:
            return _ownership(self.path(name))
        except FileNotFoundError:
            return None

    def stat(self, name: str) -> Optional[os.stat_result]:
        try:
            return os.stat(self.path(name))
        except OSError:
            return None

    # files, write

    def write(
        self,
        name: str,
        text: str,
        mode: int = 0o644,
        check: Optional[Callable[[str], None]] = None,
        ownership: Optional[Ownership] = None,
    ) -> None:
        """Write beside, check, rename. An existing file keeps its mode, owner and SELinux label.

        ownership is what a new file gets in place of mode and the owner of this process.
        check is called with the path of the complete new file before it takes its place; what it raises leaves
        the old file as it was. A symbolic link is followed: its target is replaced, the link stays.
        """
        self.write_bytes(name, text.encode("utf-8", "surrogateescape"), mode, check, ownership)

    def write_bytes(
        self,
        name: str,
        data: bytes,
        mode: int = 0o644,
        check: Optional[Callable[[str], None]] = None,
        ownership: Optional[Ownership] = None,
    ) -> None:
        target = os.path.realpath(self.path(name))
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        beside = _beside(target)
        _unlink_if_there(beside)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(data)
                _take_after(target, handle.fileno(), mode, ownership)
                handle.flush()
                os.fsync(handle.fileno())
            if check is not None:
                check(beside)
            os.replace(beside, target)
        except BaseException:
            _unlink_if_there(beside)
            raise
        _sync_folder(folder)

    def append(self, name: str, text: str, mode: int = 0o600) -> None:
        """Append to a file and wait until it is on the disk."""
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, mode)
        with os.fdopen(descriptor, "a", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(text)
            handle.flush()
            os.fsync(handle.fileno())

    def remove(self, name: str) -> None:
        """Remove a file or link; it is no error when it is gone already."""
        path = self.path(name)
        if os.path.lexists(path):
            _unlink_if_there(path)
            _sync_folder(os.path.dirname(path))

    def remove_empty_dir(self, name: str) -> None:
        """Remove a directory if it is empty; leave it otherwise."""
        try:
            os.rmdir(self.path(name))
        except OSError:
            return

    # commands

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        """A directory that only its owner can enter and that is gone afterwards."""
        with tempfile.TemporaryDirectory(prefix="gpuops-") as folder:
            yield folder

    def which(self, program: str) -> Optional[str]:
        """Absolute name of a program in the system's directories, None when it is not installed."""
        for folder in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
            name = "%s/%s" % (folder, program)
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
    ) -> Done:
        """Run a command in the C locale; with check, another end than 0 raises CommandFailed."""
        try:
            # AnsibleModule.run_command knows no time limit, and an observation has no AnsibleModule.
            ended = subprocess.run(  # pylint: disable=ansible-bad-function
                list(argv),
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                timeout=timeout,
                env=_environment(env),
                encoding="utf-8",
                errors="replace",
                check=False,
            )
            done = Done(tuple(argv), ended.returncode, ended.stdout, ended.stderr)
        except FileNotFoundError:
            done = Done(tuple(argv), 127, "", "%s: not found" % argv[0])
        except subprocess.TimeoutExpired as expired:
            raise CommandFailed(
                found="%s had not ended after %.0f s" % (" ".join(argv), timeout),
                wanted="the command to end in time",
                remedy="run it by hand to see what it waits for",
                cmd=list(argv),
            ) from expired
        if check and done.rc != 0:
            raise CommandFailed(
                found="'%s' ended with %d: %s" % (" ".join(argv), done.rc, _last_words(done)),
                wanted="exit code 0",
                remedy="run it by hand on this host; its whole output is in this result",
                cmd=list(argv),
                rc=done.rc,
                stdout=done.stdout,
                stderr=done.stderr,
            )
        return done

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

    def systemctl(self, *words: str, timeout: float = 180) -> Done:
        return self.run(["systemctl", *words], timeout=timeout)


def _environment(extra: Optional[Mapping[str, str]]) -> Dict[str, str]:
    environment = dict(os.environ, LC_ALL="C", LANG="C")
    environment["PATH"] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    environment.update(extra or {})
    return environment


def _last_words(done: Done) -> str:
    lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
    return " | ".join(lines[-3:])


def _beside(target: str) -> str:
    """Where the new file is written before it takes its place.

    The name is the same each time, so that what a killed run left there is replaced by the next one. It is not in a
    folder of drop-ins, where some programs (CRI-O) read every file, whatever its name.
    """
    folder, name = os.path.split(target)
    above = os.path.dirname(folder)
    if folder.endswith(".d") and os.stat(above).st_dev == os.stat(folder).st_dev:
        folder = above
    return os.path.join(folder, ".gpuops-%s" % name)


def _unlink_if_there(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def _ownership(path: str) -> Ownership:
    found = os.stat(path)
    try:
        label = os.getxattr(path, "security.selinux").decode("ascii", "surrogateescape")
    except OSError:
        label = ""
    return Ownership(stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid, label)


def _take_after(target: str, descriptor: int, mode: int, new: Optional[Ownership]) -> None:
    """Give the new file the mode, owner and SELinux label of the one it replaces, or those asked for."""
    try:
        wanted = _ownership(target)
    except FileNotFoundError:
        if new is None:
            os.fchmod(descriptor, mode)
            return
        wanted = new
    os.fchmod(descriptor, wanted.mode)
    if os.geteuid() == 0:
        os.fchown(descriptor, wanted.uid, wanted.gid)
    if wanted.label:
        os.setxattr(descriptor, "security.selinux", wanted.label.encode("ascii", "surrogateescape"))


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
