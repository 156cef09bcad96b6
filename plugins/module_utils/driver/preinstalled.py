# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a driver that others have brought is the one that the policy means, whole and of one version. Pure.

Nothing of it is changed: what is missing or differs is refused, each part by itself. The driver that is loaded is the
concern of gpu_driver_activation, which loads what is on disk or says what keeps it from that.
"""
from __future__ import annotations

from typing import List, Sequence, Tuple

from ..core.facts import OPEN, HostFacts
from ..core.refusal import Refusal
from ..core.versions import bounds_of, within
from ..hardware.boot import kind_of
from . import catalogue
from .kernels import Kernel
from .policy import Policy
from .preinstalled_parts import DAEMONS, NODES_PROGRAM, Parts


def refusals(kernels: Sequence[Kernel], parts: Parts, policy: Policy, facts: HostFacts) -> Tuple[Refusal, ...]:
    """kernels: those that can be booted, and the running one."""
    version = facts.driver_installed or facts.driver_boots
    if not version or not facts.driver_userspace:
        missing = "kernel module for %s" % facts.kernel if not version else "libnvidia-ml.so.1"
        # Where the image carries everything, no other source installs anything
        remedy = facts.image_remedy or "build the driver into the image" if facts.immutable else \
            "install the driver into the image, or set `source` to `nvidia_repository` or `distribution`"
        return (Refusal("driver.not_preinstalled", "no %s" % missing, _wanted(policy), remedy, option="source"),)
    found = _of_version(version, parts, policy, facts) + _of_kernels(kernels, version, policy, facts)
    return tuple(found + _of_user_space(version, parts, facts) + _of_firmware(kernels, version, parts, facts)
                 + _of_nodes_program(parts, facts) + _of_daemons(version, parts, facts))


def notes(parts: Parts, facts: HostFacts) -> Tuple[str, ...]:
    told: Tuple[str, ...] = ("The driver was brought by %s." % parts.brought_by,) if parts.brought_by else ()
    if facts.driver_loaded and facts.driver_installed and facts.driver_loaded != facts.driver_installed:
        told += ("Driver %s is loaded, and %s is on disk: `gpu_driver_activation` exchanges them, or the next boot "
                 "does." % (facts.driver_loaded, facts.driver_installed),)
    return told


def fits(version: str, wanted: str) -> bool:
    """Whether a driver is the wanted version, of the wanted branch, or within the wanted range; '' wants none."""
    bounds = bounds_of(wanted)
    return within(version, bounds) if bounds else catalogue.matches(version, wanted)


def _wanted(policy: Policy) -> str:
    return "a driver that is installed already%s" % (" in version " + policy.version if policy.version else "")


def _renewed(facts: HostFacts) -> str:
    """What brings another driver, or a part of it, to the host."""
    return facts.image_remedy or "bring it by what has installed this driver (its packages, or the image)"


def _of_version(version: str, parts: Parts, policy: Policy, facts: HostFacts) -> List[Refusal]:
    if fits(version, policy.version):
        return []
    by = " of %s" % parts.brought_by if parts.brought_by else ""
    return [Refusal("driver.preinstalled_in_another_version", "kernel module %s%s" % (version, by), _wanted(policy),
                    "correct `version`, or %s" % _renewed(facts), option="version")]


def _of_kernels(kernels: Sequence[Kernel], version: str, policy: Policy, facts: HostFacts) -> List[Refusal]:
    """A kernel that can be booted is one that a node wakes up with, some day."""
    found = []
    without = ["%s (%s)" % (kernel.release, kernel.module or "none") for kernel in kernels if kernel.module != version]
    if without:
        found.append(Refusal(
            "driver.preinstalled_kernel_without_module",
            "kernels that can be booted with another module than %s: %s" % (version, ", ".join(without)),
            "the module of driver %s for every kernel that can be booted" % version,
            "build it for them (`dkms autoinstall -k KERNEL`), remove kernels that are not booted any more, or %s"
            % _renewed(facts)))
    kinds = {kernel.release: kind_of(kernel.license) for kernel in kernels if kernel.module == version}
    others = [release for release, kind in kinds.items() if policy.kernel_module not in ("auto", kind) and kind]
    if others:
        found.append(Refusal(
            "driver.preinstalled_with_another_kernel_module",
            "the %s kernel module, for kernel %s" % (kinds[others[0]], ", ".join(others)),
            "the %s kernel module" % policy.kernel_module,
            "set `kernel_module` to `auto`, or %s" % _renewed(facts), option="kernel_module"))
    return found


def _of_user_space(version: str, parts: Parts, facts: HostFacts) -> List[Refusal]:
    libraries = {"libnvidia-ml.so.1": facts.driver_userspace, "libcuda.so.1": parts.cuda}
    others = ["%s %s" % (name, there or "missing") for name, there in libraries.items() if there != version]
    if not others:
        return []
    return [Refusal("driver.preinstalled_user_space_differs",
                    "%s beside kernel module %s" % (", ".join(others), version),
                    "libraries of exactly the kernel module's version: NVML refuses any other",
                    "%s; a copy that an installer has left hides the packages' (`ldconfig -p`)" % _renewed(facts))]


def _of_firmware(kernels: Sequence[Kernel], version: str, parts: Parts, facts: HostFacts) -> List[Refusal]:
    """The open module does nothing without it; of the proprietary one that depends on GPU and parameters."""
    is_open = facts.module_installed == OPEN or any(kind_of(kernel.license) == OPEN for kernel in kernels)
    if not is_open or version in parts.firmware:
        return []
    return [Refusal("driver.preinstalled_without_firmware",
                    "firmware of the GPUs' own processor (gsp_*.bin) for %s" % (
                        "driver " + ", ".join(parts.firmware) if parts.firmware else "no driver"),
                    "/lib/firmware/nvidia/%s: the open kernel module loads it" % version, _renewed(facts))]


def _of_nodes_program(parts: Parts, facts: HostFacts) -> List[Refusal]:
    if parts.nodes_program:
        return []
    return [Refusal("driver.preinstalled_without_nodes_program", "no %s" % NODES_PROGRAM,
                    "the program that makes the GPUs' device nodes before anything has opened one", _renewed(facts))]


def _of_daemons(version: str, parts: Parts, facts: HostFacts) -> List[Refusal]:
    return [Refusal("driver.preinstalled_daemon_differs",
                    "%s %s beside driver %s" % (DAEMONS[name][1], there or "missing", version),
                    "%s in exactly the driver's version: the board needs it, and it ends at once with any other"
                    % DAEMONS[name][1],
                    "%s, or set `%s` to `absent` where others run it" % (_renewed(facts), name), option=name)
            for name, there in parts.daemons if there != version]
