# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""apt-get and dpkg on the host itself: they wait for whoever holds their locks, and dpkg is never killed."""
from __future__ import annotations

import re
import sys
import time
from typing import Callable, List, Match, Optional, Sequence

from ...core.errors import GpuOpsError
from ...core.host import CommandFailed, CommandResult, Host, held_up
from ...core.steps import PACKAGE_ENVIRONMENT
from ...core.waiting import wait_for
from .database import archive_begins, archives_directory, own
from .transaction import ANSWERS, LOCK_SECONDS

# Where a dpkg that we started says how it ended; it may outlive us.
CONFIGURING = "/run/gpuops/dpkg"
_PAUSE = 1.0

# What it says first while it waits is not how it ended
_LOCKED = re.compile(r"(?<!Waiting for cache lock: )(?:Could not get lock|Unable to lock directory"
                     r"|Unable to acquire the dpkg frontend lock|lock was locked by another process"
                     r"|is locked by another process)[^\n]*")
# dpkg names a package in one line, and in the next what is wrong with it
_ERROR = re.compile(r"(?m)^(?:E:.*|dpkg: error.*(?:\n .*)?)")
# What apt and dpkg say of who holds a lock
_HOLDER = re.compile(r"lock\b[^\n]*?(?:process|with pid) (\d+)")
# apt-get(8), --print-uris: 'URI' FILE SIZE HASH of each file that is not there yet
_TO_FETCH = re.compile(r"^'[^']+' \S+ (\d+)(?: |$)", re.MULTILINE)
_SHELL = 'cd "$1" && shift && { echo $$ >pid; "$@" <asked >log 2>&1; echo $? >ended.new; mv ended.new ended; }'


def apt_get(host: Host, *words: str, timeout: float = 600, lock_seconds: float = LOCK_SECONDS, check: bool = True
            ) -> CommandResult:
    """apt-get on the host's own state.

    DPkg::Lock::Timeout makes apt wait for dpkg's locks alone: at the lock of the lists and of the archives it fails at
    once, so it is asked again. Raises GpuOpsError that names the holder when the lock is not free in time.
    """
    argv = ["apt-get", *own(host), "-q", "-o", "DPkg::Lock::Timeout=%d" % lock_seconds, *words]
    done = unlocked(lambda: host.run(argv, check=False, timeout=timeout + lock_seconds,
                                     env=PACKAGE_ENVIRONMENT), lock_seconds)
    if check:
        complain(done)
    return done


def complain(done: CommandResult) -> None:
    """Raises what a program of apt or dpkg says of a bad end; in a session of its own it says all on one stream."""
    if done.rc == 0:
        return
    said = (done.stderr or done.stdout).replace("\r\n", "\n")
    told = [" ".join(each.split()) for each in _ERROR.findall(said)] or said.splitlines()[-3:]
    raise CommandFailed(
        "packages.apt_failed",
        found="'%s' ended with %d: %s" % (" ".join(done.argv), done.rc, " | ".join(told) or "no output"),
        wanted="exit code 0",
        remedy="run it by hand on this host; its whole output is in this result",
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr,
    )


def to_fetch(host: Host, *words: str) -> int:
    """Bytes of packages that apt-get would fetch for these words; 0 where it cannot tell."""
    done = host.run(["apt-get", *own(host), "-q", "--print-uris", *words], check=False, env=PACKAGE_ENVIRONMENT)
    return sum(map(int, _TO_FETCH.findall(done.stdout))) if done.rc == 0 else 0


def kept(host: Host, name: str, version: str) -> List[str]:
    """Files of a package among those that apt keeps, whatever is in them."""
    return _kept(host, archives_directory(host), name, version)


def archive(host: Host, name: str, version: str) -> Optional[str]:
    """The package's file among those that apt keeps, fetched where it is not there; None where it cannot be had.

    apt checks what is there before it takes it: a power cut leaves empty files. Of a version that no list has any more
    it knows nothing; then the file counts that can be unpacked.
    """
    directory = archives_directory(host)
    done = host.run(["env", "-C", host.path(directory), "apt-get", *own(host), "-q", "download",
                     "%s=%s" % (name, version)], check=False, timeout=1800, env=PACKAGE_ENVIRONMENT)
    for path in _kept(host, directory, name, version):
        if done.rc == 0 or host.run(["dpkg-deb", "--contents", host.path(path)], check=False).rc == 0:
            return host.path(path)
    return None


def _kept(host: Host, directory: str, name: str, version: str) -> List[str]:
    return host.glob("%s/%s*.deb" % (directory, archive_begins(name, version)))


def dpkg(host: Host) -> List[str]:
    """dpkg on this host's own state, with the answers that apt gives it."""
    root = [] if host.root == "/" else ["--root=" + host.root]
    return ["dpkg", *root, *ANSWERS]


def has_bindings(host: Host) -> bool:
    """Whether ansible.builtin.apt finds python3-apt: with the module's own interpreter, or else with the system's."""
    return any(host.run([python, "-c", "import apt, apt_pkg"], check=False).rc == 0
               for python in dict.fromkeys((sys.executable, "/usr/bin/python3", "/usr/bin/python")))


def configure(
    host: Host, argv: Sequence[str], timeout: float, lock_seconds: float = LOCK_SECONDS, stdin: str = "",
    called: Sequence[str] = ()
) -> CommandResult:
    """dpkg --configure, or what else changes packages, in a session of its own: when time is up, the waiting ends and
    not dpkg. called: words that stand for a longer argv in messages.

    A dpkg that is killed leaves packages half configured, and its children (DKMS, update-initramfs) half written files.
    """
    return unlocked(lambda: _in_own_session(host, argv, timeout, stdin, called or argv), lock_seconds)


def unlocked(act: Callable[[], CommandResult], lock_seconds: float = LOCK_SECONDS) -> CommandResult:
    """What a program of apt or dpkg ended with, asked again for as long as another one holds its lock.

    Raises GpuOpsError that names the holder when the lock is not free in time.
    """
    def locked(done: CommandResult) -> Optional[Match[str]]:
        return _LOCKED.search(done.stderr or done.stdout) if done.rc != 0 else None

    done, _free = wait_for(act, lambda done: locked(done) is None, lock_seconds, _PAUSE)
    refused = locked(done)
    if refused is not None:
        raise _held(refused.group(0), lock_seconds, done)
    return done


def _in_own_session(
    host: Host, argv: Sequence[str], timeout: float, stdin: str, called: Sequence[str]
) -> CommandResult:
    directory = "%s/%d" % (CONFIGURING, time.monotonic_ns())
    host.write(directory + "/log", "", mode=0o600)
    host.write(directory + "/asked", stdin, mode=0o600)
    host.run(["setsid", "--fork", "sh", "-c", _SHELL, "sh", host.path(directory), *argv], env=PACKAGE_ENVIRONMENT)
    told: List[int] = []

    def ended() -> Optional[str]:
        status = host.read(directory + "/ended")
        process = "" if told or status is not None else host.read(directory + "/pid") or ""
        if process.endswith("\n"):
            # If this process is killed, the host's lock is not free before that one has ended
            host.tell_command(int(process))
            told.append(int(process))
        return status

    status, in_time = wait_for(ended, lambda status: status is not None, timeout, _PAUSE)
    if not in_time:
        raise GpuOpsError(
            "packages.configuring_takes_long",
            found="'%s' had not ended after %.0f s; it goes on, and was not disturbed%s" % (
                " ".join(called), timeout,
                held_up([each for process in told for each in host.at_work_in(process)],
                        host.read(directory + "/log") or "")),
            wanted="packages that configure in time",
            remedy="see what it does (%s/log on this host), wait until it has ended, and run again" % directory,
            cmd=list(called), stdout=host.read(directory + "/log") or "",
        )
    done = CommandResult(tuple(called), int(status or "1"), host.read(directory + "/log") or "", "")
    for name in ("asked", "log", "ended", "pid"):
        host.remove("%s/%s" % (directory, name))
    host.remove_empty_dir(directory)
    return done


def _held(told: str, seconds: float, done: CommandResult) -> GpuOpsError:
    # Of dpkg's own lock apt names him while it waits, and not at the end
    named = _HOLDER.findall(done.stdout + done.stderr)
    holder = Host().process_told(int(named[-1])) if named else ""
    return GpuOpsError(
        "packages.manager_locked",
        found="%s; waited %.0f s%s" % (told.strip(), seconds, " for %s" % holder if holder else ""),
        wanted="the package manager's locks",
        remedy="let that process end (or stop it: unattended upgrades and other installations hold these locks), and "
               "run again",
        cmd=list(done.argv), rc=done.rc, stdout=done.stdout, stderr=done.stderr,
    )
