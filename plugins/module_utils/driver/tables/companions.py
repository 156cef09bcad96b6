# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What goes with a driver: fabric manager, switch libraries, subnet manager, IMEX; by branch, machine and source.

Sources: NVIDIA Fabric Manager User Guide and IMEX guide; NVIDIA Driver Installation Guide (names since branch 580).
"""
from __future__ import annotations

from typing import Dict, List, Mapping

from .branches import FIRST_NVSDM, FIRST_UNSUFFIXED_COMPANIONS
from .sets import PackageSet, Wanted
from .systems import APT, SUSE, UBUNTU

# What a fabric of NVLink 5 needs beside the fabric manager (NVIDIA Fabric Manager User Guide); versions of their own.
# infiniband-diags brings the library of its management datagrams along.
OF_NVLINK5 = ("nvlsm", "infiniband-diags")


def with_companions(named: PackageSet, wanted: Wanted) -> PackageSet:
    required: List[str] = []
    optional: List[str] = []
    floating: List[str] = []
    suffix = _suffix(wanted)
    if wanted.imex:
        required.append("nvidia-imex" + suffix)
    if wanted.fabric_manager:
        required.append(_fabric_manager(wanted, suffix))
        optional.append("libnvidia-nscq" + suffix)
    if wanted.fabric_manager and wanted.subnet_manager:
        # Its start script asks ibstat of infiniband-diags which board it is on
        required.extend(OF_NVLINK5[:1])
        optional.extend(OF_NVLINK5[1:])
        floating.extend(OF_NVLINK5)
        if wanted.system.arch == "x86_64" and wanted.branch >= FIRST_NVSDM:
            optional.append("libnvsdm" + suffix)
    return named.plus((*required, *wanted.extra), optional, floating)


def lacking(wanted: Wanted) -> str:
    """What of it a source does not have at all, '' when all of it can be there."""
    if wanted.of_distribution and wanted.system.family == SUSE and (wanted.fabric_manager or wanted.imex):
        return "nvidia-fabricmanager" if wanted.fabric_manager else "nvidia-imex"
    return ""


def is_companion(name: str) -> bool:
    """Whether a package is one of these: their rpm packages have no epoch."""
    return name.startswith(("nvidia-imex", "nvidia-fabric", "libnvidia-nscq", "libnvsdm", *OF_NVLINK5))


def option_of(name: str) -> str:
    """The option of the policy that a companion is for."""
    return "imex" if name.startswith("nvidia-imex") else "fabric_manager"


def without_companions(packages: Mapping[str, str]) -> Dict[str, str]:
    """Those of the driver itself: companions share no file with it, whoever brings which."""
    return {name: version for name, version in packages.items() if not is_companion(name)}


def _suffix(wanted: Wanted) -> str:
    if wanted.of_distribution and wanted.system.family == UBUNTU:
        return "-%d" % wanted.branch
    return "-%d" % wanted.branch if wanted.branch < FIRST_UNSUFFIXED_COMPANIONS else ""


def _fabric_manager(wanted: Wanted, suffix: str) -> str:
    """Its rpm package had another name, and never a branch in it."""
    if wanted.system.manager == APT:
        return "nvidia-fabricmanager" + suffix
    return "nvidia-fabric-manager" if wanted.branch < FIRST_UNSUFFIXED_COMPANIONS else "nvidia-fabricmanager"
