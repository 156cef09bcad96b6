# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NVIDIA's and the distributions' driver packages are called, and which kernel module which GPU takes.

Tables and pure functions. Sources: NVIDIA Driver Installation Guide (repositories, keys, package names, branches),
README of NVIDIA/open-gpu-kernel-modules and nvidia-installer (PCI ids that the kernel modules support).
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import OPEN, PROPRIETARY, Gpu
from ..core.refusal import Refusal
from ..core.versions import branch_of, version_key

EITHER = frozenset((OPEN, PROPRIETARY))

FIRST_UNSUFFIXED_BRANCH = 590
FIRST_UNSUFFIXED_COMPANIONS = 580
FIRST_OPEN_BY_DEFAULT = 560
FIRST_OPEN_ONLY = 615

# What a fabric of NVLink 5 needs beside the fabric manager (NVIDIA Fabric Manager User Guide); versions of their own
OF_NVLINK5 = ("nvlsm", "infiniband-diags")

NVIDIA_BASE = "https://developer.download.nvidia.com/compute/cuda/repos"


@dataclass(frozen=True)
class RepositoryKey:
    """The key of one directory of NVIDIA's repository: file name beside the packages, and its fingerprint."""

    file: str
    fingerprint: str


# NVIDIA never rotated the key of a directory since 2022, and gives every new directory a new one.
REPOSITORY_KEYS: Dict[str, RepositoryKey] = {
    "ubuntu2204": RepositoryKey("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    "ubuntu2404": RepositoryKey("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    "debian12": RepositoryKey("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC"),
    "debian13": RepositoryKey("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
}

REPOSITORY_DIRECTORIES: Dict[Tuple[str, str], str] = {
    ("debian", "12"): "debian12",
    ("debian", "13"): "debian13",
    ("ubuntu", "22.04"): "ubuntu2204",
    ("ubuntu", "24.04"): "ubuntu2404",
    ("ubuntu", "26.04"): "ubuntu2604",
}

# Servers of the arm64 architecture have a directory of their own; 'arm64' there is Jetson's.
REPOSITORY_MACHINES: Dict[str, str] = {"x86_64": "x86_64", "aarch64": "sbsa"}


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


@dataclass(frozen=True)
class PackageSet:
    """The packages of one driver.

    anchor:   the package whose version is the driver's.
    required: names that must be there, the anchor included.
    optional: names that are taken where the repository has them.
    floating: names whose version is not the driver's.
    """

    anchor: str
    required: Tuple[str, ...]
    optional: Tuple[str, ...] = ()
    floating: FrozenSet[str] = frozenset()


def package_set(
    os_id: str, source: str, branch: int, module: str, flavour: str, fabric_manager: bool, extra: Sequence[str] = (),
    subnet_manager: bool = False, imex: bool = False,
) -> PackageSet:
    """Names of the driver's packages on Debian and Ubuntu. subnet_manager: the fabric manager of an NVLink 5 board."""
    if source == "distribution":
        named = _of_debian(module, flavour) if os_id == "debian" else _of_ubuntu(branch, module, flavour)
    elif os_id == "debian" or branch >= FIRST_UNSUFFIXED_BRANCH:
        named = _of_nvidia_unsuffixed(os_id, module, flavour)
    else:
        named = _of_nvidia_suffixed(branch, module, flavour)
    required, optional = list(named.required), list(named.optional)
    suffix = _companion_suffix(os_id, source, branch)
    if imex:
        required.append("nvidia-imex" + suffix)
    if fabric_manager:
        required.append("nvidia-fabricmanager" + suffix)
        optional.append("libnvidia-nscq" + suffix)
    floating = named.floating
    if fabric_manager and subnet_manager:
        # Its start script asks ibstat of infiniband-diags which board it is on
        required.extend(OF_NVLINK5[:1])
        optional.extend(OF_NVLINK5[1:])
        floating = floating.union(OF_NVLINK5)
    required.extend(name for name in extra if name not in required)
    return PackageSet(named.anchor, tuple(required), tuple(optional), floating)


def _companion_suffix(os_id: str, source: str, branch: int) -> str:
    if source == "distribution" and os_id == "ubuntu":
        return "-%d" % branch
    return "-%d" % branch if branch < FIRST_UNSUFFIXED_COMPANIONS else ""


def _of_nvidia_unsuffixed(os_id: str, module: str, flavour: str) -> PackageSet:
    if os_id == "debian":
        anchor = "nvidia-kernel-open-dkms" if module == OPEN else "nvidia-kernel-dkms"
        user_space: Tuple[str, ...] = ("nvidia-driver-cuda",)
        optional: Tuple[str, ...] = ()
    else:
        anchor = "nvidia-dkms-open" if module == OPEN else "nvidia-dkms"
        user_space = ("libnvidia-compute",)
        optional = ("nvidia-utils",)
    full = ("nvidia-open" if module == OPEN else "cuda-drivers",) if flavour == "full" else ()
    return PackageSet(anchor, (anchor,) + user_space + ("nvidia-persistenced", "nvidia-modprobe") + full, optional)


def _of_nvidia_suffixed(branch: int, module: str, flavour: str) -> PackageSet:
    anchor = "nvidia-dkms-%d%s" % (branch, "-open" if module == OPEN else "")
    full = ("nvidia-open-%d" if module == OPEN else "cuda-drivers-%d",) if flavour == "full" else ()
    names = (anchor, "libnvidia-compute-%d" % branch, "nvidia-utils-%d" % branch)
    return PackageSet(anchor, names + tuple(name % branch for name in full), ("nvidia-persistenced", "nvidia-modprobe"))


def _of_debian(module: str, flavour: str) -> PackageSet:
    anchor = "nvidia-open-kernel-dkms" if module == OPEN else "nvidia-kernel-dkms"
    names = (anchor, "nvidia-smi", "libcuda1", "nvidia-persistenced")
    full = ("nvidia-driver",) if flavour == "full" else ()
    floating = frozenset(("nvidia-persistenced", "nvidia-modprobe", "nvidia-settings", "nvidia-xconfig"))
    return PackageSet(anchor, names + full, ("nvidia-modprobe",), floating)


def _of_ubuntu(branch: int, module: str, flavour: str) -> PackageSet:
    kind = "nvidia-headless" if flavour == "headless" else "nvidia-driver"
    anchor = "%s-%d-server%s" % (kind, branch, "-open" if module == OPEN else "")
    return PackageSet(anchor, (anchor, "nvidia-utils-%d-server" % branch), ("nvidia-modprobe",),
                      frozenset(("nvidia-modprobe", "nvidia-settings")))


FAMILY = re.compile(
    r"^(nvidia-(?!container|docker|ctk)|libnvidia-(?!container)|libcuda1$|libcudadebugger|libnvcuvid|libnvoptix"
    r"|libnvsdm|firmware-nvidia|cuda-drivers|linux-(modules|objects|signatures)-nvidia-|xserver-xorg-video-nvidia)"
)
# What apt's preferences and unattended-upgrades understand of the same family.
FAMILY_GLOBS = (
    "nvidia-*", "libnvidia-*", "libcuda1", "libcudadebugger*", "libnvcuvid*", "libnvoptix*", "libnvsdm*",
    "firmware-nvidia-*", "cuda-drivers*", "xserver-xorg-video-nvidia*",
)
FAMILY_EXPRESSIONS = (
    "nvidia-(?!container)", "libnvidia-(?!container)", "libcuda1", "libcudadebugger", "libnvcuvid", "libnvoptix",
    "libnvsdm", "firmware-nvidia-", "cuda-drivers", "linux-modules-nvidia-", "linux-objects-nvidia-",
    "linux-signatures-nvidia-", "xserver-xorg-video-nvidia",
)
_DRIVER_VERSION = re.compile(r"^\d{3}(\.\d+){1,2}$")

# Names that only one of the two sources has: their presence tells where an installed driver came from.
ONLY_IN_DISTRIBUTION = re.compile(r"^(nvidia-smi|nvidia-open-kernel-dkms|nvidia-.*-server(-open)?)$")
ONLY_AT_NVIDIA = re.compile(r"^(nvidia-driver-cuda|nvidia-kernel-open-dkms|nvidia-dkms-open|libnvidia-compute"
                            r"|nvidia-dkms-\d+(-open)?)$")


def upstream(version: str) -> str:
    """'580.178.04' of a package version '1:580.178.04-1ubuntu2'."""
    return version.split(":", 1)[-1].split("-", 1)[0].split("+", 1)[0].split("~", 1)[0]


def is_driver_version(version: str) -> bool:
    return bool(_DRIVER_VERSION.match(upstream(version)))


def family(installed: Mapping[str, str], floating: Iterable[str] = ()) -> Dict[str, str]:
    """Installed packages that carry a driver version and belong to one driver.

    Those with a version in their name (Ubuntu's nvidia-firmware-580-580.126.09) stay beside those of the next driver
    until somebody removes them.
    """
    apart = set(floating)
    return {name: version for name, version in installed.items()
            if name not in apart and FAMILY.match(name) and is_driver_version(version)
            and not name.endswith("-" + upstream(version))}


def matches(version: str, wanted: str) -> bool:
    """Whether a driver version is the wanted one, or of the wanted branch; every version is, if none is named."""
    if not wanted:
        return True
    return version == wanted or ("." not in wanted and version.split(".")[0] == wanted)


def newest(versions: Iterable[str], wanted: str) -> str:
    """The newest version that is wanted, '' if there is none."""
    fitting = [version for version in versions if matches(version, wanted)]
    return max(fitting, key=version_key, default="")


def default_repository(os_id: str, os_version: str, arch: str) -> str:
    """URL of NVIDIA's directory for a distribution, '' when NVIDIA has none."""
    directory = REPOSITORY_DIRECTORIES.get((os_id, os_version), "")
    machine = REPOSITORY_MACHINES.get(arch, "")
    return "%s/%s/%s/" % (NVIDIA_BASE, directory, machine) if directory and machine else ""


def default_key(os_id: str, os_version: str) -> Optional[RepositoryKey]:
    return REPOSITORY_KEYS.get(REPOSITORY_DIRECTORIES.get((os_id, os_version), ""))


def branch_wanted(version: str) -> int:
    """Branch of a policy's version, 0 if it names none."""
    return branch_of(version) if version else 0
