# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a kernel is kept as it is where packages are rpm's: the command that locks it.

Sources: dnf's manual of the plugin versionlock; zypper(8), package locks; kernel.spec of CentOS Stream, kernel-uek.spec
of Oracle, the user guide of Amazon Linux 2023 and SUSE's documentation (which packages a kernel is). apt's preferences
are in driver/kernel_hold.py.
"""
from __future__ import annotations

import re
from typing import Tuple

from . import amazon, suse
from .systems import AMAZON, ZYPPER, System

# What of a kernel is installed side by side, and has its release for a version
_PARTS = ("", "-core", "-modules")
# Oracle's own kernel, and those whose pages are larger
_KIND = re.compile(r"(uek)\.|\+(\w+)$")


def lock(system: System, kernel: str) -> Tuple[str, ...]:
    """The command that keeps a kernel, by its release.

    dnf takes no other version of what is locked to one: newer kernels are not seen any more. zypper's lock is of names.
    """
    if system.manager == ZYPPER:
        return ("zypper", "addlock", "kernel-" + suse.flavour_of(kernel))
    if system.family == AMAZON:
        base = amazon.headers((kernel,))[0][:-len("-devel")]
        return ("dnf", "versionlock", "add", *("%s-%s" % (name, kernel) for name in (base, base + "-devel")))
    kind = _KIND.search(kernel)
    base = "kernel" + ("-" + (kind.group(1) or kind.group(2)) if kind else "")
    version = kernel.partition("+")[0]
    return ("dnf", "versionlock", "add", *("%s%s-%s" % (base, part, version) for part in _PARTS))
