# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which kernel module which GPU takes, by PCI device id, and in which branches.

Sources: README of NVIDIA/open-gpu-kernel-modules (the ids that it supports), nvidia-installer (the ids without a GSP).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, FrozenSet, List, Optional, Sequence, Tuple

from ...core.facts import OPEN, PROPRIETARY, Gpu
from ...core.refusal import Refusal
from .branches import FIRST_OPEN_BY_DEFAULT, FIRST_OPEN_ONLY

EITHER = frozenset((OPEN, PROPRIETARY))


@dataclass(frozen=True)
class GpuArchitecture:
    """A range of PCI device ids and the kernel modules that drive it.

    A branch limit of 0 is none.
    """

    first: int
    last: int
    generation: str
    modules: FrozenSet[str]
    first_branch: int = 0
    last_branch: int = 0


# Narrow ranges come before the wide ones that enclose them.
GPU_ARCHITECTURES: Tuple[GpuArchitecture, ...] = (
    GpuArchitecture(0x3182, 0x3182, "Blackwell Ultra", frozenset((OPEN,)), 580),
    GpuArchitecture(0x31C2, 0x31C3, "Blackwell Ultra with Grace", frozenset((OPEN,)), 580),
    GpuArchitecture(0x2340, 0x237F, "Grace Hopper", frozenset((OPEN,))),
    GpuArchitecture(0x2940, 0x297F, "Grace Blackwell", frozenset((OPEN,)), 570),
    GpuArchitecture(0x31A1, 0x31A1, "Grace Blackwell", frozenset((OPEN,)), 570),
    GpuArchitecture(0x31C0, 0x31FF, "Grace Blackwell", frozenset((OPEN,)), 570),
    GpuArchitecture(0x0000, 0x133F, "Kepler or older", frozenset(), 0, 470),
    GpuArchitecture(0x1340, 0x1DFF, "Maxwell, Pascal or Volta", frozenset((PROPRIETARY,)), 0, 580),
    GpuArchitecture(0x1E00, 0x28FF, "Turing, Ampere, Hopper or Ada", EITHER),
    GpuArchitecture(0x2900, 0x2FFF, "Blackwell", frozenset((OPEN,)), 570),
    GpuArchitecture(0x3000, 0xFFFF, "newer than Blackwell", frozenset((OPEN,)), 580),
)


def architecture_of(device_id: str) -> GpuArchitecture:
    number = int(device_id, 16)
    return next(row for row in GPU_ARCHITECTURES if row.first <= number <= row.last)


@dataclass(frozen=True)
class ModuleChoice:
    """The kernel module for a set of GPUs, or why there is none."""

    module: str = ""
    refusal: Optional[Refusal] = None


def choose_module(gpus: Sequence[Gpu], wanted: str, branch: int) -> ModuleChoice:
    """open or proprietary for these GPUs in this branch; wanted is 'auto', 'open' or 'proprietary'."""
    refusal = _outside_branch(gpus, branch) or _no_common_module(gpus)
    if refusal is not None:
        return ModuleChoice(refusal=refusal)
    allowed = set(EITHER)
    for gpu in gpus:
        allowed &= architecture_of(gpu.device_id).modules
    if wanted != "auto" and wanted not in allowed:
        return ModuleChoice(refusal=Refusal(
            "driver.kernel_module_not_for_gpu",
            found=_named(gpus, lambda row: wanted not in row.modules),
            wanted="the %s kernel module" % wanted,
            remedy="set `kernel_module` to `auto` or `%s`" % next(iter(sorted(allowed))),
            option="kernel_module",
        ))
    if branch >= FIRST_OPEN_ONLY:
        if wanted == PROPRIETARY:
            return ModuleChoice(refusal=Refusal(
                "driver.kernel_module_not_in_branch",
                found="driver branch %d, whose packages hold the open kernel module only" % branch,
                wanted="the proprietary kernel module",
                remedy="set `kernel_module` to `open`, or take a branch before %d" % FIRST_OPEN_ONLY,
                option="kernel_module",
            ))
        return ModuleChoice(OPEN)
    if wanted != "auto":
        return ModuleChoice(wanted)
    if PROPRIETARY not in allowed or (OPEN in allowed and branch >= FIRST_OPEN_BY_DEFAULT):
        return ModuleChoice(OPEN)
    return ModuleChoice(PROPRIETARY)


def _outside_branch(gpus: Sequence[Gpu], branch: int) -> Optional[Refusal]:
    rows = {architecture_of(gpu.device_id) for gpu in gpus}
    first = max((row.first_branch for row in rows), default=0)
    last = min((row.last_branch for row in rows if row.last_branch), default=0)
    if branch < first:
        return Refusal(
            "driver.branch_too_old",
            found=_named(gpus, lambda row: branch < row.first_branch),
            wanted="driver branch %d" % branch,
            remedy="set `version` to branch %d or newer; NVIDIA's own repository has it" % first,
            option="version",
        )
    if last and branch > last:
        return Refusal(
            "driver.branch_too_new",
            found=_named(gpus, lambda row: bool(row.last_branch) and branch > row.last_branch),
            wanted="driver branch %d" % branch,
            remedy="set `version` to branch %d or older" % last,
            option="version",
        )
    return None


def _no_common_module(gpus: Sequence[Gpu]) -> Optional[Refusal]:
    allowed = set(EITHER)
    for gpu in gpus:
        allowed &= architecture_of(gpu.device_id).modules
    if allowed:
        return None
    return Refusal(
        "driver.no_common_kernel_module",
        found=_named(gpus, lambda row: row.modules != EITHER),
        wanted="one kernel module for all GPUs of this host",
        remedy="keep GPUs of these generations in different hosts",
    )


def _named(gpus: Sequence[Gpu], concerns: Callable[[GpuArchitecture], bool]) -> str:
    """The GPUs that a limit concerns, with the reason, in the words of a person."""
    addresses: Dict[str, List[str]] = {}
    for gpu in gpus:
        if concerns(architecture_of(gpu.device_id)):
            addresses.setdefault(gpu.device_id, []).append(gpu.address)
    return ", ".join(
        "GPU%s %s (10de:%s, %s: %s)" % ("s" if len(same) > 1 else "", " ".join(same), device_id,
                                        architecture_of(device_id).generation, _limits(architecture_of(device_id)))
        for device_id, same in addresses.items()
    )


def _limits(row: GpuArchitecture) -> str:
    words = ["%s module only" % next(iter(row.modules))] if len(row.modules) == 1 else []
    if row.first_branch:
        words.append("branch %d or newer" % row.first_branch)
    if row.last_branch:
        words.append("branch %d or older" % row.last_branch)
    return ", ".join(words) or "either module"
