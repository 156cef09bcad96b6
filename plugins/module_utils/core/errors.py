# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The collection's one error family: every refusal says what was found, what was wanted and what to do."""
from __future__ import annotations

import errno
import os
from typing import Any, Dict, Tuple


class GpuOpsError(Exception):
    """A refusal or a failure that a person can act on.

    found:   what is there, in the words of the field, with the value that was read.
    wanted:  what the policy or the step asked for.
    remedy:  what the reader should do next.
    details: further keys for the module's result (command, rc, stderr ...).
    """

    def __init__(self, found: str, wanted: str, remedy: str, **details: Any) -> None:
        super().__init__(found, wanted, remedy)
        self.found = found
        self.wanted = wanted
        self.remedy = remedy
        self.details = details

    def __str__(self) -> str:
        return "Found: %s. Wanted: %s. Do: %s." % tuple(
            part.rstrip(".") for part in (self.found, self.wanted, self.remedy)
        )

    def result(self) -> Dict[str, Any]:
        """The keys of a failed module result."""
        return dict(self.details, msg=str(self), found=self.found, wanted=self.wanted, remedy=self.remedy)


# What is wrong with the host, by what the kernel said (errno(3)): what is wanted, and what a person does about it.
_CAUSES: Dict[int, Tuple[str, str]] = {
    errno.ENOSPC: ("room for it", "free space on {mount} (see df -h and df -i {mount}), and run again"),
    errno.EDQUOT: ("room for it", "raise the quota on {mount} or free space there, and run again"),
    errno.EACCES: ("the rights of root", "run with 'become: true'; as root, see lsattr, the mount's options and the "
                                         "audit log of SELinux or AppArmor"),
    errno.EPERM: ("the rights of root", "run with 'become: true'; as root, see whether it is immutable (lsattr), or "
                                        "whether this is a container that may not do it"),
    errno.EROFS: ("a file system that can be written", "see why {mount} is mounted read-only (findmnt {mount}; the "
                                                       "kernel does it after errors: dmesg), and run again"),
    errno.EIO: ("a disk that answers", "look at dmesg and at the health of the disk under {mount} (smartctl), and run "
                                       "again"),
    errno.EISDIR: ("a file", "move the directory out of the way, and run again"),
    errno.ENOTDIR: ("a directory on the way to it", "move the file that stands in a directory's place, and run again"),
    errno.ELOOP: ("a path that ends", "correct the symbolic link that leads back to itself, and run again"),
    errno.ENOMEM: ("memory", "see what fills the memory of this host (free, dmesg), and run again"),
    errno.EMFILE: ("a file descriptor", "raise the limit of open files (ulimit -n), and run again"),
    errno.ENFILE: ("a file descriptor", "raise fs.file-max of this host, and run again"),
    errno.EBUSY: ("it not in use", "see what holds it (fuser, findmnt), and run again"),
}


class HostFailed(GpuOpsError):
    """The host did not let itself be read or changed: a full disk, a lack of rights, a device in a file's place.

    path:   what it happened to, as the caller named it.
    number: the errno behind it, 0 where we refused by ourselves.
    reason: the kernel's words for it, or ours.
    """

    def __init__(self, found: str, wanted: str, remedy: str, path: str = "", number: int = 0, reason: str = "") -> None:
        super().__init__(found, wanted, remedy, path=path, errno=errno.errorcode.get(number, ""))
        self.path = path
        self.number = number
        self.reason = reason or found

    @classmethod
    def of(cls, error: OSError, path: str, tried: str, mount: str = "/") -> HostFailed:
        """The failure behind an OSError. tried: what could not be done, as a participle ('read', 'written')."""
        number = error.errno or 0
        reason = os.strerror(number) if number else str(error)
        wanted, remedy = _CAUSES.get(number, ("a host that lets it be %s" % tried, "look at dmesg, and run again"))
        return cls("%s cannot be %s: %s" % (path, tried, reason), wanted, remedy.format(mount=mount),
                   path, number, reason)
