# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection's one error family: every refusal says what was found, what was wanted and what to do."""
from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any, Dict, Mapping, Sequence, Tuple

from .refusal import Refusal, as_result, told
from .secrets import hidden


class GpuOpsError(Exception):
    """A refusal or a failure that a person can act on; see Refusal for its parts.

    refusals: all of them; the first is the one that code, found, wanted and remedy tell of.
    details:  further keys for the module's result (command, rc, stderr ...).
    """

    def __init__(self, code: str, found: str, wanted: str, remedy: str, option: str = "", **details: Any) -> None:
        super().__init__(code, found, wanted, remedy)
        self.refusals: Tuple[Refusal, ...] = (Refusal(code, found, wanted, remedy, option),)
        self.details = details

    @classmethod
    def because(cls, refusals: Sequence[Refusal], **details: Any) -> GpuOpsError:
        """The error of one or several refusals that are data already."""
        first = refusals[0]
        error = GpuOpsError(first.code, first.found, first.wanted, first.remedy, first.option, **details)
        error.refusals = tuple(refusals)
        return error

    def add(self, found: str) -> None:
        """Tell this too of what was found; '' adds nothing."""
        if found:
            first = self.refusals[0]
            self.refusals = (replace(first, found="%s; %s" % (first.found, found)), *self.refusals[1:])

    @property
    def code(self) -> str:
        return self.refusals[0].code

    @property
    def found(self) -> str:
        return self.refusals[0].found

    @property
    def wanted(self) -> str:
        return self.refusals[0].wanted

    @property
    def remedy(self) -> str:
        return self.refusals[0].remedy

    def __str__(self) -> str:
        return told(self.refusals)

    def named(self, variables: Mapping[str, str]) -> GpuOpsError:
        """With the reader's variables in place of options. variables: {option: variable}."""
        return GpuOpsError.because([each.named(variables) for each in self.refusals], **self.details)

    def result(self) -> Dict[str, Any]:
        """The keys of a failed module result; commands tell of addresses whose passwords nobody here was given."""
        result: Dict[str, Any] = hidden(dict(self.details, **as_result(self.refusals)))
        return result


# What is wrong with the host, by what the kernel said (errno(3)). {path}: what was used; {tried}: what could not be
# done to it; {reason}: the kernel's words; {mount}: where its file system is mounted.
_FOUND = "{path} cannot be {tried}: {reason}"
_CAUSES: Dict[int, Refusal] = {
    errno.ENOSPC: Refusal("host.no_space", _FOUND, "space for it",
                          "free space on {mount} (see `df -h` and `df -i {mount}`), and run again"),
    errno.EDQUOT: Refusal("host.quota_exceeded", _FOUND, "space for it",
                          "raise the quota on {mount} or free space there, and run again"),
    errno.EACCES: Refusal("host.access_denied", _FOUND, "the rights of root",
                          "run with `become: true`; as root, see `lsattr`, the mount's options and the audit log of "
                          "SELinux or AppArmor"),
    errno.EPERM: Refusal("host.not_permitted", _FOUND, "the rights of root",
                         "run with `become: true`; as root, see whether it is immutable (`lsattr`), or whether this is "
                         "a container that may not do it"),
    errno.EROFS: Refusal("host.read_only_file_system", _FOUND, "a file system that can be written",
                         "see why {mount} is mounted read-only (`findmnt {mount}`; the kernel does it after errors: "
                         "`dmesg`), and run again"),
    errno.EIO: Refusal("host.disk_error", _FOUND, "a disk that answers",
                       "look at `dmesg` and at the health of the disk under {mount} (`smartctl`), and run again"),
    errno.EISDIR: Refusal("host.directory_in_the_way", _FOUND, "a file",
                          "move the directory out of the way, and run again"),
    errno.ENOTDIR: Refusal("host.file_in_the_way", _FOUND, "a directory on the way to it",
                           "move the file that stands in a directory's place, and run again"),
    errno.ELOOP: Refusal("host.endless_link", _FOUND, "a path that ends",
                         "correct the symbolic link that leads back to itself, and run again"),
    errno.ENOMEM: Refusal("host.no_memory", _FOUND, "memory",
                          "see what fills the memory of this host (`free`, `dmesg`), and run again"),
    errno.EMFILE: Refusal("host.process_file_limit", _FOUND, "a file descriptor",
                          "raise the limit of open files (`ulimit -n`), and run again"),
    errno.ENFILE: Refusal("host.system_file_limit", _FOUND, "a file descriptor",
                          "raise `fs.file-max` of this host, and run again"),
    errno.EBUSY: Refusal("host.busy", _FOUND, "it not in use",
                         "see what holds it (`fuser`, `findmnt`), and run again"),
}
_ANOTHER_CAUSE = Refusal("host.system_error", _FOUND, "a host that lets it be {tried}",
                         "look at `dmesg`, and run again")


class HostFailed(GpuOpsError):
    """The host did not let itself be read or changed: a full disk, a lack of rights, a device in a file's place.

    path:   what it happened to, as the caller named it.
    number: the errno behind it, 0 where we refused by ourselves.
    reason: the kernel's words for it, or ours.
    """

    def __init__(self, code: str, found: str, wanted: str, remedy: str, path: str = "", number: int = 0,
                 reason: str = "") -> None:
        super().__init__(code, found, wanted, remedy, path=path, errno=errno.errorcode.get(number, ""))
        self.path = path
        self.number = number
        self.reason = reason or found

    @property
    def is_denial(self) -> bool:
        """Whether somebody with more rights could have done it."""
        return self.number in (errno.EACCES, errno.EPERM)

    @classmethod
    def of(cls, error: OSError, path: str, tried: str, mount: str = "/") -> HostFailed:
        """The failure behind an OSError. tried: what could not be done, as a participle ('read', 'written')."""
        number = error.errno or 0
        reason = os.strerror(number) if number else str(error)
        cause = _CAUSES.get(number, _ANOTHER_CAUSE)
        found, wanted, remedy = (part.format(path=path, tried=tried, reason=reason, mount=mount)
                                 for part in (cause.found, cause.wanted, cause.remedy))
        return cls(cause.code, found, wanted, remedy, path, number, reason)
