# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules of packages that DKMS keeps to put them back, though their package has gone.

Where a module lies that DKMS would install, it takes that away and notes its place; it brings it back once nothing of
its own is installed for the kernel any more (dkms, do_install() and do_uninstall(), original_module). Of modules that
came built on EL the package has gone by then: a file of a driver would be back that no package owns, or in the place of
those of another driver.
"""
from __future__ import annotations

import re
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import Executor
from . import catalogue
from .observation import Observation
from .record import Record

NAME = "driver"
FORGET = "dkms.forget_original"
_KEPT = "/var/lib/dkms/*/original_module/%s/*/nvidia*.ko*"
# nvidia-fs is another package's
_MODULE = re.compile(r"nvidia(?!-fs)[\w-]*\.ko(\.\w+)?$")
# Where NVIDIA's packages put together what they bring (NVIDIA/yum-packaging-precompiled-kmod, dnf-kmod-nvidia.spec)
_PLACE = "/extra/drivers/video/nvidia/"


def kernels_of(host: Host, record: Optional[Record], installed: Iterable[str]) -> Tuple[str, ...]:
    """Kernels of which DKMS keeps modules of the driver that came with a package: by their place, or as such packages
    are, or were there before the last change."""
    names = [name for name in (*installed, *(record.packages if record else ())) if catalogue.EL_MODULES.match(name)]
    found = []
    for path in host.glob(_KEPT % "*"):
        kernel, _arch, file = path.split("/")[-3:]
        if _MODULE.match(file) and (_PLACE in (host.read(path + ".origin") or "")
                                    or any(catalogue.serves(name, kernel) for name in names)):
            found.append(kernel)
    return tuple(dict.fromkeys(found))


def forget_steps(observation: Observation, transactions: Sequence[Step] = ()) -> List[Step]:
    """Where what was built here takes the place of modules that came built. transactions: they take those away, and
    what DKMS takes away in the first of them is not there yet."""
    gone = [name for step in transactions for name, version in step.change["after"].items()
            if version is None and catalogue.EL_MODULES.match(name)]
    stays = [name for name in observation.installed if catalogue.EL_MODULES.match(name) and name not in gone]
    kernels = [kernel.release for kernel in observation.kernels
               if any(catalogue.serves(name, kernel.release) for name in gone)]
    return [_forget(kernel, tuple(step.id for step in transactions))
            for kernel in dict.fromkeys((*kernels, *observation.of_rpm.originals))
            if not any(catalogue.serves(name, kernel) for name in stays)]


def forget_all(observation: Observation) -> List[Step]:
    """Before the driver goes, and DKMS puts them back."""
    return [_forget(kernel, ()) for kernel in observation.of_rpm.originals]


def _forget(kernel: str, requires: Tuple[str, ...]) -> Step:
    return Step(
        NAME, FORGET, kernel,
        "DKMS keeps the modules that came with a package and were in its way, and would put them back once it goes.",
        change={"before": {"original module": "kept"}, "after": {"original module": None}}, depends_on=requires,
        reversible=False)


def forget_original(host: Host, journal: Journal, step: Step) -> None:
    directories: Dict[str, None] = {}
    for path in host.glob(_KEPT % step.subject):
        directory, _slash, file = path.rpartition("/")
        if _MODULE.match(file[:-len(".origin")] if file.endswith(".origin") else file):
            host.remove(path)
            directories[directory] = None
    for directory in directories:
        host.remove_empty_dir(directory)


EXECUTORS: Mapping[str, Executor] = {FORGET: forget_original}
