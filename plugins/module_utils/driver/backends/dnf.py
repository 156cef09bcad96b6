# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's packages with dnf: the module stream, and what rpm.py has.

A stream leaves the versions of a branch to choose from, so it goes with the locks: it is written before the transaction
that changes the version, and deferred with it. dnf-automatic is dnf with its plugins, and heeds both.
"""
from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any, ClassVar, Dict, List, Mapping, Optional

from ...core.facts import HostFacts
from ...core.plan import Disruption, Step
from ...core.refusal import Refusal
from ...core.steps import file_step
from ...packages import space
from ...packages.apt import credentials as apt_credentials
from ...packages.dnf import credentials, history, locks
from ...packages.dnf.manager import DNF
from ...packages.manager import PackageManager
from .. import catalogue
from ..files import PASSWORD_FILE, STREAM_FILE
from ..observation import Observation
from ..origin import Origin
from ..policy import Policy
from ..tables import kernel_locks
from ..tables.enterprise import DISPLAY
from ..target import Target, wanted_of
from .backend import NAME, Backend
from .rpm import Rpm

_CLEAN = " (`dnf clean packages`)"


class Dnf(Rpm):
    """One of a kind: BACKEND."""

    manager: PackageManager = DNF
    reinstalls: ClassVar[str] = "dnf reinstall"
    stream_file: ClassVar[str] = STREAM_FILE
    history: ClassVar[Any] = history
    make_room: Mapping[str, str] = {
        space.SYSTEM: _CLEAN, space.DNF_ARCHIVES: _CLEAN, space.BOOT: ": remove kernels that are not booted any more"}

    def refuse_host(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
        refusals = super().refuse_host(observation, policy, facts)
        objection = credentials.objection(policy.credentials) if policy.credentials else ""
        if objection:
            refusals.append(Refusal(
                "driver.credentials_not_with_dnf", "%s in `repository_url`, on %s %s" % (
                    objection, facts.os_id, facts.os_version),
                "a user name that dnf takes as it stands: it would put a variable in its place",
                "choose another user for this repository", option="repository_url"))
        return refusals

    def login_steps(self, observation: Observation, origin: Origin) -> List[Step]:
        return apt_credentials.steps(NAME, PASSWORD_FILE, origin.url, origin.credentials, observation.auth,
                                     credentials.FORM, manager=self.manager.name)

    def logout_steps(self, observation: Observation) -> List[Step]:
        return [] if observation.auth.shown is None else [
            apt_credentials.removal(NAME, PASSWORD_FILE, observation.auth)]

    def steps_before(
        self, observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        disruption = packages.disruption if packages else Disruption.none
        return [*_stream_steps(observation, policy, facts, target, disruption),
                *super().steps_before(observation, policy, facts, target, packages)]

    def notes(
        self, observation: Observation, coming: Mapping[str, str], facts: HostFacts, target: Target
    ) -> List[str]:
        """Beside the packages for displays NVIDIA's plugin of dnf keeps kernels off for which there are no modules
        (yum-packaging-nvidia-plugin, nvidia-dnf.py; nvidia-driver.spec requires it up to branch 560)."""
        system = catalogue.system_of(facts.os_id, facts.os_version, facts.arch)
        if system is None or DISPLAY in target.packages.names or not any(map(catalogue.EL_MODULES.match, coming)):
            return []
        return ["An update of the kernel brings no module of this driver: run this again before that kernel boots, or "
                "keep it off (`%s`)." % shlex.join(kernel_locks.lock(system, facts.kernel))]


def _stream_steps(
    observation: Observation, policy: Policy, facts: HostFacts, target: Target, disruption: Disruption
) -> List[Step]:
    """The stream of the branch. dnf writes the file itself when it likes, so its words are compared."""
    there = observation.files.get(STREAM_FILE)
    has_streams = bool(observation.offer.streams) if observation.offer and observation.offer.versions else (
        STREAM_FILE in observation.originals)
    wanted = streams_wanted(policy, facts, target) if has_streams else {}
    if not wanted or locks.streams_of({STREAM_FILE: there}) == wanted:
        return []
    return [file_step(NAME, STREAM_FILE, there, DNF.choose(wanted)[STREAM_FILE],
                      "Packages of this branch are chosen from, with this kernel module.", disruption)]


def streams_wanted(policy: Policy, facts: HostFacts, target: Target) -> Dict[str, str]:
    """{module: stream} of a driver, {} on a system that has no streams, and of a driver that is in no package."""
    if target.of_installer:
        return {}
    stream = catalogue.stream_of(replace(wanted_of(
        policy, facts, catalogue.branch_wanted(target.version), target.module), build=target.build))
    module, _colon, name = stream.partition(":")
    return {module: name} if stream else {}


BACKEND: Backend = Dnf()
