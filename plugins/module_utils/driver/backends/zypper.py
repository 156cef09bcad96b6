# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver's packages with zypper: what rpm.py has.

Packages of NVIDIA's generations (G06, G07) have the same files, so those of one leave in the transaction that brings
those of the other (tables/suse.py).
"""
from __future__ import annotations

from typing import Any, ClassVar, List, Mapping

from ...core.facts import HostFacts
from ...core.refusal import Refusal
from ...packages import space
from ...packages.manager import PackageManager
from ...packages.zypper import history
from ...packages.zypper.locks import NO_VERSION
from ...packages.zypper.manager import ZYPPER
from .. import building, catalogue
from ..observation import Observation, installer_runs
from ..policy import Policy
from ..target import Target
from .backend import Backend
from .rpm import Rpm

_CLEAN = " (`zypper clean`)"


class Zypper(Rpm):
    """One of a kind: BACKEND."""

    manager: PackageManager = ZYPPER
    reinstalls: ClassVar[str] = "zypper install --force"
    history: ClassVar[Any] = history
    make_room: Mapping[str, str] = {
        space.SYSTEM: _CLEAN, space.ZYPPER_ARCHIVES: _CLEAN,
        space.BOOT: ": remove kernels that are not booted any more (`zypper purge-kernels`)"}

    def refuse_host(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
        refusals = super().refuse_host(observation, policy, facts)
        if policy.credentials is not None:
            refusals.append(Refusal(
                "driver.credentials_not_with_zypper", "credentials in `repository_url`, on %s %s" % (
                    facts.os_id, facts.os_version),
                "a repository that this host reaches without them: zypper's file of credentials is not written by us",
                "let a mirror or a proxy of yours log in, and leave `repository_url` to one without them",
                option="repository_url"))
        return refusals

    def kept_away(self, observation: Observation, target: Target) -> Mapping[str, str]:
        return kept_away(observation, target)

    def notes(
        self, observation: Observation, coming: Mapping[str, str], facts: HostFacts, target: Target
    ) -> List[str]:
        """Whether the packages allow it themselves, only they tell; of a driver that is there already, nobody is told.
        """
        path, comes = observation.of_rpm.unsupported, target.of_installer and installer_runs(observation, target)
        if not path or not (comes or building.loses(coming)):
            return []
        return ["modprobe loads no module here that SUSE does not support, as are those that DKMS builds "
                "(allow_unsupported_modules 0 in %s). Where the driver does not load for that reason, allow it: "
                "`echo allow_unsupported_modules 1 >/etc/modprobe.d/%s`" % (path, path.rsplit("/", 1)[1])]


def kept_away(observation: Observation, target: Target) -> Mapping[str, str]:
    """Modules that SUSE has signed, where DKMS builds them."""
    return dict.fromkeys(catalogue.instead_of(
        target.packages.names, [kernel.release for kernel in observation.kernels]), NO_VERSION)


BACKEND: Backend = Zypper()
