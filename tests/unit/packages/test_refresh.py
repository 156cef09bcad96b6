# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How often a run has the host's apt ask its sources what is new, as a real web server counts it."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import (
    PACKAGES_DOWNLOAD,
    command_step,
    packages_step,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import executors
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import install_words
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

REQUEST = {"driver": "1.0"}


@dataclass(frozen=True)
class Seen:
    fetched: bool

    def to_dict(self) -> Dict[str, Any]:
        return {"fetched": self.fetched}


def observe(host: Host, journal: Journal, policy: Any, facts: HostFacts) -> Seen:
    return Seen(any(name.startswith("driver_") for name in host.list("/var/cache/apt/archives")))


def plan(observation: Seen, policy: Any, facts: HostFacts) -> Plan:
    download = command_step(
        "driver", PACKAGES_DOWNLOAD, "driver 1.0", ["--download-only", *install_words(REQUEST, False)],
        "a test", change={"before": dict.fromkeys(REQUEST), "after": REQUEST})
    install = packages_step("driver", "driver 1.0", dict.fromkeys(REQUEST), REQUEST, "a test", manager="apt",
                            update_cache=True)
    return Plan(steps=(install,) if observation.fetched else (download, install))


def fetch_for_nothing(host: Host, journal: Journal, step: Step) -> None:
    executors.download_packages(host, journal, step)
    for name in host.list("/var/lib/apt/lists"):
        if "_Packages" in name or "InRelease" in name:
            host.remove("/var/lib/apt/lists/" + name)


# One package, fetched and then installed, by the steps of the driver; and the same, where somebody empties apt's lists
# between the two.
FETCHING = Capability("driver", {}, dict, observe, plan, executors.EXECUTORS, transactions=Provenance())
MEDDLED = replace(FETCHING, executors={PACKAGES_DOWNLOAD: fetch_for_nothing})


@pytest.fixture(autouse=True)
def configured(root: Root, repository: Repository) -> None:
    build(repository.directory, "driver", "1.0")
    repository.publish()
    root.trust(repository)


def handed_over(root: Root, capability: Capability[Any, Any]) -> None:
    """Run until the controller's turn to install."""
    outcome = Run(capability, {}, root.host, lambda host: HostFacts()).apply()
    assert outcome.awaiting is not None and outcome.awaiting.action == "packages.install"


def readings(repository: Repository) -> int:
    return repository.fetched("InRelease") + repository.fetched("InRelease", 304)


def test_a_run_that_has_just_fetched_the_packages_asks_no_second_time(root: Root, repository: Repository) -> None:
    handed_over(root, FETCHING)
    assert readings(repository) == 1
    root.install("driver=1.0")


def test_what_an_earlier_run_has_fetched_is_looked_for_anew(root: Root, repository: Repository) -> None:
    """A staged host may be weeks older than its staging."""
    handed_over(root, FETCHING)
    handed_over(root, FETCHING)
    assert readings(repository) == 2


def test_lists_that_went_meanwhile_are_read_again(root: Root, repository: Repository) -> None:
    handed_over(root, MEDDLED)
    assert readings(repository) == 2
    root.install("driver=1.0")
