# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which kernels get the driver's module, and what forbids it. Pure.

The kernel that runs and the one that boots next must have it. Any other gets it where it can be built; where it cannot,
that is said and holds up nothing.
"""
from __future__ import annotations

import re
from typing import AbstractSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.plan import REBOOT, Disruption, Requirement, Step
from ..core.refusal import Refusal
from ..hardware.boot import BootState
from ..packages.managers import APT, DNF, ZYPPER, manager_of
from .catalogue import brings_headers, headers_of
from .kernels import Kernel
from .policy import IGNORE, Policy
from .signing import SigningKey, asked_for, signed_with
from .target import Target

NAME = "driver"
BUILD = "dkms.build"
# Packages of the driver's source: 'nvidia-dkms-580-open', 'nvidia-kernel-dkms', 'nvidia-linux-grid-580',
# 'kmod-nvidia-open-dkms', 'nvidia-open-driver-G06' ...; nvidia-fs-dkms is none of them
SOURCE = re.compile(r"(kmod-)?nvidia-(?!fs-).*dkms|nvidia-linux-grid-|nvidia-(open-)?driver-G\d+$")
_OF_KERNEL = {APT.name: "linux-image and linux-headers", DNF.name: "kernel-core and kernel-devel",
              ZYPPER.name: "kernel-default and kernel-default-devel"}


def running_kernel_gone(kernels: Sequence[Kernel], facts: HostFacts) -> bool:
    """Whether the modules of the running kernel were removed under it: nothing can be built or loaded for it."""
    return facts.kernel not in [kernel.release for kernel in kernels]


def runs_already(facts: HostFacts, target: Target) -> bool:
    """Whether the driver is loaded, in its version and with the kernel module that is wanted, if that can be told."""
    return facts.driver_loaded == target.version and facts.module_loaded in ("", target.module)


def essential(kernel: Kernel, facts: HostFacts) -> bool:
    return kernel.release in (facts.kernel, facts.boot_kernel)


def buildable(kernel: Kernel, coming: Iterable[str]) -> bool:
    """Whether the kernel has headers, or gets them with the packages that come."""
    return kernel.headers or brings_headers(coming, kernel.release)


def lacking(kernel: Kernel, key: SigningKey, policy: Policy, target: Target) -> bool:
    """Whether the kernel has no module of this driver that it would load, now or once the key is confirmed."""
    return kernel.module != target.version or (
        policy.secure_boot != IGNORE and not kernel.trusted and not signed_with(kernel, key))


def loses(coming: Iterable[str]) -> bool:
    """Whether every kernel loses the module that it has: a package takes its own with it when another comes in its
    place, also where that is of the same version (open for proprietary, another revision)."""
    return any(map(SOURCE.match, coming))


# refusals


def refuse_headless(
    kernels: Sequence[Kernel], coming: Iterable[str], policy: Policy, facts: HostFacts, target: Target
) -> List[Refusal]:
    """Refuse when the kernel that runs, or the one that boots next, could not get a module."""
    for kernel in kernels:
        left = kernel.module == target.version and not loses(coming)
        if essential(kernel, facts) and not buildable(kernel, coming) and not left:
            return [Refusal(
                "driver.no_kernel_headers",
                "no headers for kernel %s, installed or in the host's sources" % kernel.release,
                "headers to build the kernel module with",
                "install %s, or update the kernel and reboot first" % headers_package(kernel.release, facts)
                + ("" if policy.kernel_headers else "; `kernel_headers` is off"),
                option="" if policy.kernel_headers else "kernel_headers")]
    return []


def refuse_gone(kernels: Sequence[Kernel], policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
    """Refuse when the running kernel's modules are gone and no other kernel boots that could have the driver."""
    if not running_kernel_gone(kernels, facts) or runs_already(facts, target):
        return []
    if any(kernel.release == facts.boot_kernel and (kernel.module == target.version or kernel.headers
                                                    or policy.kernel_headers) for kernel in kernels):
        return []
    return [Refusal(
        "driver.running_kernel_gone", "kernel %s runs and /lib/modules/%s is gone; %s" % (
            facts.kernel, facts.kernel, "no other kernel is installed" if not kernels else
            "kernel %s boots next and cannot get a module" % (facts.boot_kernel or "none that can be told")),
        "a kernel for which the driver's module can be built",
        "install a kernel with its headers (%s), reboot into it, and run this again" % (
            _OF_KERNEL[(manager_of(facts) or APT).name]))]


def headers_package(release: str, facts: HostFacts) -> str:
    """The package with a kernel's headers."""
    return headers_of(release)[(manager_of(facts) or APT).name]


# steps


def build_steps(
    kernels: Sequence[Kernel], key: SigningKey, policy: Policy, facts: HostFacts, target: Target,
    packages: Optional[Step], built_ahead: AbstractSet[str] = frozenset(),
    outdated: Optional[Mapping[str, str]] = None, peer_memory: AbstractSet[str] = frozenset(),
    finished: Iterable[str] = ()
) -> List[Step]:
    """Build for every kernel that can be booted.

    built_ahead: kernels whose module DKMS need not compile.

    The package's own script serves the running and the newest one, but may fail to or be switched off
    (/etc/dkms/no-autoinstall), which is known only after the exchange. So it is planned here too; once the script has
    done it, the step is not needed any more. A driver that is exchanged takes its modules with it first.

    outdated: {kernel: why its module is built again, although it is there}; peer_memory: kernels whose nvidia-peermem
    is to be built for their RDMA stack; finished: packages that are installed once more to finish a transaction: what
    rpm runs last then is the script of the same package that goes.
    """
    coming: Mapping[str, Optional[str]] = packages.change["after"] if packages else {}
    exchanged = loses((*coming, *finished))
    again = outdated or {}
    steps = []
    for kernel in kernels:
        lacks = exchanged or lacking(kernel, key, policy, target)
        if not (lacks or kernel.release in again) or not buildable(kernel, coming):
            continue
        if kernel.failed == target.version and not essential(kernel, facts):
            continue
        there = kernel.module == target.version and not exchanged
        steps.append(Step(
            NAME, BUILD, kernel.release,
            again[kernel.release] if not lacks else
            "Its module of driver %s is signed by no enrolled key." % target.version if there else
            "This kernel can be booted and has no module of driver %s%s." % (
                target.version, "; it was built ahead, and is not compiled again"
                if kernel.release in built_ahead else ""),
            change={"before": {"nvidia": None if exchanged or there else kernel.module or None},
                    "after": {"nvidia": target.version}},
            parameters={"essential": essential(kernel, facts), "timeout": 3600,
                        "signed": asked_for(policy, facts), "certificate": key.certificate, "exactly": key.given,
                        **({"peer_memory": True} if kernel.release in peer_memory else {})},
            depends_on=(packages.id,) if packages else ()))
    return steps


def requirements(kernels: Sequence[Kernel], facts: HostFacts, target: Target) -> Tuple[Requirement, ...]:
    """The reboot into a kernel that can have the driver, where the one that runs cannot any more."""
    if not running_kernel_gone(kernels, facts) or runs_already(facts, target):
        return ()
    return (Requirement(
        NAME, REBOOT, "kernel %s" % facts.boot_kernel,
        "Kernel %s runs and its modules are gone; driver %s is built for kernel %s, which boots next."
        % (facts.kernel, target.version, facts.boot_kernel), Disruption.reboot,
        {"before": {"kernel": facts.kernel}, "after": {"kernel": facts.boot_kernel}}),)


def notes(
    kernels: Sequence[Kernel], key: SigningKey, boot: BootState, coming: Iterable[str], policy: Policy,
    facts: HostFacts, target: Target
) -> List[str]:
    told = []
    if loses(coming) and runs_already(facts, target):
        told.append("Driver %s is loaded already: the kernel module that comes now (%s) is in use after the next boot."
                    % (target.version, target.module))
    for kernel in kernels:
        if kernel.module != target.version and not buildable(kernel, coming):
            told.append("Kernel %s has no headers and gets no kernel module: do not boot it for GPU work."
                        % kernel.release)
        elif kernel.module != target.version and kernel.failed == target.version and not essential(kernel, facts):
            told.append("The module of driver %s does not build for kernel %s, which neither runs nor boots next: do "
                        "not boot it for GPU work, or remove it." % (target.version, kernel.release))
    if boot.guess and any(lacking(kernel, key, policy, target) for kernel in kernels):
        told.append("Kernel %s is taken to boot next, as the newest: %s." % (boot.default, boot.guess))
    return told
