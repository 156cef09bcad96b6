# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How each distribution is told arguments of its kernels.

Sources: Debian and Ubuntu, grub-mkconfig(8) and update-grub(8), which read /etc/default/grub.d; Red Hat Enterprise
Linux, "Managing, monitoring, and updating the kernel" (grubby); pbl(8) of openSUSE/perl-bootloader.
"""
from __future__ import annotations

from typing import Dict, Sequence, Tuple

from .systems import AMAZON, DEBIAN, ENTERPRISE, FEDORA, SUSE, UBUNTU

# The last of them, since another one may set the variable that ours adds to
GRUB_FILE = "/etc/default/grub.d/zz-gpuops-nvidia.cfg"
UPDATE_GRUB = ("update-grub",)
ARGUMENTS = "ARGUMENTS"
_GRUBBY = ("grubby", "--update-kernel=ALL", "--args=" + ARGUMENTS)
_COMMANDS: Dict[str, Tuple[str, ...]] = {
    DEBIAN: UPDATE_GRUB, UBUNTU: UPDATE_GRUB, ENTERPRISE: _GRUBBY, FEDORA: _GRUBBY, AMAZON: _GRUBBY,
}


def command(family: str, arguments: Sequence[str]) -> Tuple[str, ...]:
    """What makes a family's boot loader start all kernels with these; on Debian and Ubuntu it reads GRUB_FILE."""
    if family == SUSE:
        # One each time, and GRUB's own configuration is not written by itself
        return ("pbl", *(word for each in arguments for word in ("--add-option", each)), "--config")
    return tuple(word.replace(ARGUMENTS, " ".join(arguments)) for word in _COMMANDS[family])
