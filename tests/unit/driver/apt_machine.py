# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host below a directory, with the real apt and dpkg, whose driver is planned and changed."""
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict, List

from driver_world import policy

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    Disruption,
    Plan,
    Step,
    split_by_disruption,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import generic_executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import observing, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.executors import EXECUTORS, secret_executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.staging_executors import Books
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import install_words

sys.path.append(str(Path(__file__).parents[1] / "packages"))
from scratch_apt import Repository, Root  # noqa: E402

NAMES = ("nvidia-kernel-open-dkms", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-modprobe")
CONTROLLER = ("packages.install", "packages.remove")


def trusting(path: Path, repository: Repository) -> Root:
    """A host below a directory whose administrator has the repository too: our own entry names a key below /, which
    this apt does not find."""
    root = Root(path)
    root.trust(repository)
    entry = root.path / "etc/apt/sources.list.d/other.list"
    entry.write_text(entry.read_text().replace("127.0.0.1", "localhost"))
    return root


class Machine:
    """A host whose driver steps are carried out as the engine and ansible.builtin.apt would."""

    def __init__(self, root: Root, repository: Repository) -> None:
        self.root, self.host, self.repository = root, root.host, repository
        self.journal = Journal(self.host)

    def wanted(self, **changes: Any) -> Any:
        return policy(**{"repository_url": self.repository.url, "repository_key": self.repository.key.public,
                         "kernel_headers": False, **changes})

    def plan(self, there: HostFacts, **changes: Any) -> Plan:
        wanted = self.policy = self.wanted(**changes)
        return planner.plan(observing.observe(self.host, self.journal, wanted, there), wanted, there)

    def apply(self, plan: Plan, allowed: Disruption = Disruption.reboot) -> None:
        assert not plan.refusals, plan.refusals
        executors = {**generic_executors(), **EXECUTORS, **secret_executors(self.policy),
                     "dkms.build": lambda *_words: None}
        done: List[str] = []
        for step in split_by_disruption(plan.steps, allowed)[0]:
            if step.action in CONTROLLER:
                self._transaction(step, done)
            else:
                executors[step.action](self.host, self.journal, step)
            done.append(step.id)

    def _transaction(self, step: Step, done: List[str]) -> None:
        opened = Books().opened(self.host, step, done)
        try:
            if step.action == "packages.remove":
                self.root.apt("remove", "--purge", *step.parameters["request"])
            else:
                self.root.apt(*install_words(step.parameters["request"], step.parameters["allow_downgrade"]))
        finally:
            Books().settle(self.host, self.journal, step, opened)

    def driver(self) -> Dict[str, str]:
        return {name: version for name, version in self.root.installed().items() if name in (*NAMES, "libnvidia-new")}
