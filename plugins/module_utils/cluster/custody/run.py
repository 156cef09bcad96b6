# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run of a playbook, as others see who has a node. Pure."""
from __future__ import annotations

import re
from dataclasses import dataclass

from ...core.errors import GpuOpsError

# Of the field managers that our claims have, and of nobody else's. A manager's name has at most 128 characters.
MANAGER = "gpuops-custody-"
# Who says a cordon that stays for the sake of the hold mark
HOLDER = "gpuops-hold"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Run:
    """name: the same in all tasks of the run, and in no other run. host: the controller, for people to find it."""

    name: str
    host: str

    @property
    def identity(self) -> str:
        """As a Lease and a Node say who has it."""
        return "%s@%s" % (self.name, self.host)

    @property
    def manager(self) -> str:
        """The field manager of its claims."""
        return MANAGER + self.name


def run_called(name: str, host: str) -> Run:
    """Raises GpuOpsError where the name cannot be one."""
    if not _NAME.fullmatch(name):
        raise GpuOpsError(
            "cluster.run_malformed", found="`run` is %r" % name,
            wanted="a name of at most 63 letters, digits, dots, dashes and underscores that no other run has",
            remedy="correct `run`, or leave it out: then the run names itself", option="run")
    return Run(name, host)
