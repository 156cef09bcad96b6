# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hold of the kernel that runs: no other one comes while the policy says so. Pure.

A file of preferences, as the driver's hold is. Each kernel of Debian and Ubuntu is a set of packages with its release
in their names, beside those of other kernels, and metapackages bring the next one. So three things are said of them,
and apt takes the first that fits a version (apt_preferences(5)): the packages of the running kernel and the
metapackages stay in their versions, other packages of this release may come (its headers, a further part), those of
every other kernel may not. What is installed of those stays, to be booted if need be. For rpm see
tables/kernel_locks.py.
"""
from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Sequence

from ..core.facts import HostFacts
from ..core.plan import Step
from ..core.refusal import Refusal
from ..core.steps import file_step, managed, restore_step
from . import catalogue
from .files import KERNEL_FILE
from .policy import Policy
from .prebuilt import follows

NAME = "driver"
# '6.8.0-90' of '6.8.0-90-generic', '6.12.107+deb13' of '6.12.107+deb13-amd64': headers of all flavours have it alone
_BASE = re.compile(r"^(.+?)-[a-z].*$")
_OF_KERNELS = ("linux-image-[0-9]*", "linux-image-unsigned-[0-9]*", "linux-headers-[0-9]*", "linux-modules-[0-9]*",
               "linux-modules-extra-[0-9]*")


def base_of(release: str) -> str:
    match = _BASE.match(release)
    return match.group(1) if match else release


def metapackages(installed: Mapping[str, str]) -> List[str]:
    """Those that bring the next kernel, or follow it."""
    return [name % kind for kind in follows(installed)
            for name in ("linux-%s", "linux-image-%s", "linux-headers-%s", "linux-modules-extra-%s")
            if name % kind in installed]


def packages_of(installed: Mapping[str, str], release: str) -> Dict[str, str]:
    """{package: version} of a kernel; headers may come later, in whatever version there is."""
    return {name: version for name, version in installed.items() if name.endswith("-" + release)
            and name.startswith(("linux-image-", "linux-modules-")) and not catalogue.FAMILY.match(name)}


def text(installed: Mapping[str, str], facts: HostFacts) -> str:
    """installed: packages of kernels at least."""
    kept = {**packages_of(installed, facts.kernel), **{name: installed[name] for name in metapackages(installed)}}
    versions: Dict[str, List[str]] = {}
    for name, version in sorted(kept.items()):
        versions.setdefault(version, []).append(name)
    base = base_of(facts.kernel)
    return managed("\n".join(
        [_record(names, version, 1000) for version, names in versions.items()]
        + [_record(["linux-*-" + base, "linux-*-%s-*" % base], "*", 500), _record(_OF_KERNELS, "*", -1)]))


def _record(names: Sequence[str], version: str, priority: int) -> str:
    return "Package: %s\nPin: version %s\nPin-Priority: %d\n" % (" ".join(names), version, priority)


def wanted(policy: Policy, installed: Mapping[str, str], files: Mapping[str, Optional[str]], facts: HostFacts) -> str:
    """The text that counts once the plan is done, '' for none. Whoever returns to a driver leaves it as it is."""
    if policy.state == "rolled_back":
        return files.get(KERNEL_FILE) or ""
    return text(installed, facts) if policy.kernel_hold and policy.state != "absent" else ""


def refusals(installed: Mapping[str, str], policy: Policy, facts: HostFacts) -> List[Refusal]:
    """What cannot be held: a kernel that the next boot leaves, and one that no package brought."""
    if not policy.kernel_hold:
        return []
    if facts.boot_kernel and facts.boot_kernel != facts.kernel:
        return [Refusal(
            "driver.kernel_hold_of_another", "kernel %s runs, and kernel %s boots next" % (
                facts.kernel, facts.boot_kernel),
            "one kernel to hold (`kernel_hold`): the one that runs, and runs after the next boot too",
            "reboot into kernel %s first, or make %s the default of the boot loader, or set `kernel_hold` to false" % (
                facts.boot_kernel, facts.kernel), option="kernel_hold")]
    if not any(name.startswith("linux-image-") for name in packages_of(installed, facts.kernel)):
        return [Refusal(
            "driver.kernel_hold_without_package", "kernel %s runs, and no package linux-image-%s is installed" % (
                facts.kernel, facts.kernel),
            "a kernel of the package manager to hold (`kernel_hold`)",
            "boot a kernel that was installed as a package, or set `kernel_hold` to false", option="kernel_hold")]
    return []


def steps(
    hold: str, files: Mapping[str, Optional[str]], originals: Mapping[str, Optional[str]], facts: HostFacts
) -> List[Step]:
    """Before the transaction, which otherwise might bring the next kernel along. hold: the text that is wanted."""
    there = files.get(KERNEL_FILE)
    if hold:
        return [] if there == hold else [file_step(
            NAME, KERNEL_FILE, there, hold,
            "Kernel %s stays, and no other one comes, until the policy does not hold it any more." % facts.kernel)]
    return [restore_step(NAME, KERNEL_FILE, there, originals[KERNEL_FILE])] if KERNEL_FILE in originals else []
