# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which modules are built ahead of an exchange, what forbids it, and what of it is not needed any more. Pure."""
from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.facts import HostFacts
from ..core.plan import Step
from . import building
from .observation import Observation
from .staged_build import StagedBuild
from .target import Target

NAME = "driver"
STAGE, WITHDRAW = "module.stage", "module.withdraw"
# Ubuntu's archive has the source apart from the package whose script has DKMS build it
_SOURCE_ALONE = re.compile(r"nvidia-kernel-source-")
# Modules that the distribution has built
_PRECOMPILED = re.compile(r"linux-(modules|objects)-nvidia-")


def sources(coming: Mapping[str, Optional[str]]) -> Dict[str, str]:
    """{package: version} of those that bring the source of the driver's module."""
    return {name: version for name, version in sorted(coming.items())
            if version is not None and (building.loses([name]) or _SOURCE_ALONE.match(name))}


def stage_steps(
    observation: Observation, facts: HostFacts, target: Target, packages: Optional[Step], fetched: Sequence[Step],
    obstacle: str = ""
) -> Tuple[List[Step], List[str]]:
    """(steps, notes): build for each kernel that the exchange would build for, beside the driver that runs.

    obstacle: why packages of this source are not to be had ahead, '' where they are.
    """
    coming = packages.change["after"] if packages else {}
    source = sources(coming)
    obstacle = _obstacle(observation, coming, source) or (obstacle if source else "")
    if obstacle or not building.loses(source):
        return [], ["The kernel module cannot be built ahead: %s." % obstacle] if obstacle else []
    steps, notes = [], []
    there = {build.kernel: build for build in observation.staged}
    for kernel in observation.kernels:
        before = there.get(kernel.release, StagedBuild(kernel.release))
        essential = building.essential(kernel, facts)
        why = before.why if before.is_for(target.version, source) else ""
        if not kernel.headers:
            why = "it has no headers yet"
        elif kernel.failed == target.version and not essential:
            why = "it does not build for this kernel, which neither runs nor boots next"
        elif not before.is_for(target.version, source):
            steps.append(Step(
                NAME, STAGE, kernel.release,
                "It is built beside the driver that is there, so that the exchange compiles nothing.",
                change={"before": {"nvidia": _told(before, source)}, "after": {"nvidia": target.version}},
                parameters={"packages": source, "essential": essential, "timeout": 3600},
                depends_on=tuple(step.id for step in fetched)))
        if why:
            notes.append("The module for kernel %s cannot be built ahead: %s." % (kernel.release, why))
    return steps, notes


def _told(build: StagedBuild, source: Mapping[str, str]) -> Optional[str]:
    if not build.whole or build.why:
        return None
    return build.version if set(build.packages) == set(source) else "%s of %s" % (
        build.version, ", ".join(sorted(build.packages)))


def _obstacle(
    observation: Observation, coming: Mapping[str, Optional[str]], source: Mapping[str, str]
) -> str:
    """Why none can be built on this host, '' where nothing forbids it, or nothing is to be built."""
    if any(map(_PRECOMPILED.match, coming)):
        return "the packages bring one that is built already"
    if not source:
        return ""
    if observation.lacking_tools:
        return "this host has no %s; they come with the driver" % ", no ".join(observation.lacking_tools)
    return ""


def withdraw_steps(
    observation: Observation, version: str, packages: Optional[Step], replacing: Sequence[Step] = ()
) -> List[Step]:
    """Take back what no exchange to this version will use; version: '' where no driver stays.

    What an exchange has used goes with it: it is planned before it is known what will have been built ahead for it.
    replacing: steps that put another build in the place of what is there.
    """
    kept = {step.subject for step in replacing}
    awaited = {kernel.release for kernel in observation.kernels if packages is not None or kernel.module != version}
    return [Step(
        NAME, WITHDRAW, build.kernel, "No exchange of the driver will use it any more.",
        change={"before": {"nvidia": build.version or "unfinished"}, "after": {"nvidia": None}})
        for build in observation.staged if build.kernel not in kept
        # One that was not finished is of no version, and so is what is awaited where no driver is wanted
        and not (build.version and build.version == version and build.kernel in awaited)]


def is_usable(
    staged: Sequence[StagedBuild], kernel: str, version: str, packages: Mapping[str, Optional[str]]
) -> bool:
    """Whether DKMS will take what was built ahead for a kernel. packages: those that are there in the end."""
    return any(build.kernel == kernel and not build.why and build.is_for(version, packages) for build in staged)
