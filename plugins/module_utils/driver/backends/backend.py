# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the planner asks of a package manager's driver: the steps and the words that are the manager's own.

Everything else of a plan (which driver, its kernels, signatures, parameters, the order of what is done) is the same
with each of them. Methods are pure.
"""
from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Optional, Protocol, Sequence, Tuple

from ...core.facts import HostFacts
from ...core.plan import Step
from ...core.refusal import Refusal
from ...core.steps import file_step
from ...packages.manager import PackageManager
from ..observation import Observation
from ..policy import Policy
from ..target import Target

NAME = "driver"


class Backend(Protocol):
    """One a package manager."""

    @property
    def manager(self) -> PackageManager:
        """Whose backend it is."""

    @property
    def builds_ahead(self) -> bool:
        """Whether a module can be built of its packages before these are installed."""

    @property
    def make_room(self) -> Mapping[str, str]:
        """{directory: how room is made on its file system}."""

    def foreign(self, policy: Policy, installed: Mapping[str, str]) -> List[str]:
        """Names of installed packages that came from another source than the policy's."""

    @property
    def replaces_foreign(self) -> bool:
        """Whether its transaction can take packages of another source away as it brings ours."""

    def purging(self, names: Sequence[str]) -> str:
        """The command that removes packages, for people."""

    def refuse_host(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Refusal]:
        """What of the manager forbids any installation here."""

    def refuse_target(self, policy: Policy, facts: HostFacts, target: Target) -> List[Refusal]:
        """Why the manager's packages cannot have this driver."""

    def refuse_broken(self, observation: Observation) -> List[Refusal]:
        """Why what a stopped transaction has left is not ours to finish."""

    def enabled_first(self, policy: Policy, facts: HostFacts, target: Target) -> Tuple[str, ...]:
        """Further repositories without which a transaction could not be."""

    def repository_steps(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        """The repository, its key and who we are for it."""

    def finishing_steps(
        self, observation: Observation, facts: HostFacts, transaction_follows: bool, repository: List[Step],
        goes_back: bool = False
    ) -> List[Step]:
        """End what a stopped transaction began; what that takes may come from our repository.

        goes_back: whether the repository is that of the driver before.
        """

    def download_step(self, observation: Observation, target: Target, packages: Step) -> Step:
        """Fetch what a package step asks for."""

    def steps_before(
        self, observation: Observation, policy: Policy, facts: HostFacts, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        """What decides which versions there are to choose from, before the transaction: streams, locks; and what keeps
        others from changing the driver."""

    def steps_after(
        self, observation: Observation, policy: Policy, target: Target, packages: Optional[Step]
    ) -> List[Step]:
        """What holds the version once it is there."""

    def finish_before_removal(
        self, observation: Observation, facts: HostFacts, leaving: Collection[str]
    ) -> List[Step]:
        """End what a stopped transaction of ours began, so that packages (leaving) can go."""

    def removal_parameters(self, observation: Observation, leaving: Collection[str]) -> Dict[str, Any]:
        """Of the transaction in which packages (leaving) go, what is this manager's own."""

    def notes(
        self, observation: Observation, coming: Mapping[str, str], facts: HostFacts, target: Target
    ) -> List[str]:
        """What is to be known of these packages on this host."""

    def steps_back(self, observation: Observation, policy: Policy, facts: HostFacts) -> List[Step]:
        """Everything but packages, taken back: files, keys, lists."""


def own_file(
    observation: Observation, path: str, text: str, why: str, requires: Tuple[str, ...] = ()
) -> List[Step]:
    before = observation.files.get(path)
    return [] if before == text else [file_step(NAME, path, before, text, why, requires=requires)]
