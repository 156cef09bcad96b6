# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One laboratory, and its states in the order in which they follow each other: bare, installed, uninstalled.

Makes `ansible_collections.gpuops.nvidia` importable too. A test asks for the state that it needs; what it does to the
hosts it undoes. So the long way is gone once. Other files have laboratories of their own and may run beside it.
"""
from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping

import accounts
import pytest
from laboratory import DEMO_HOSTS, Fleet, Played, Tree, new_lab
from workspace import collections_root
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

sys.path.insert(0, str(collections_root()))

# Tests that need a bare host come before those that need an installed one, and the way back comes last. This is also
# the longest way, so that it begins first.
ACCEPTANCE = ("test_check_mode", "test_site", "test_pods", "test_faults", "test_problem_detector", "test_repair",
              "test_upgrade", "test_uninstall")
# Those that take longest begin next: at the end one of them alone would leave processors idle
LONG = ("test_driver", "test_agent", "test_zypper_hosts", "test_cdi", "test_mig", "test_crio", "test_drain",
        "test_kernels", "test_cores", "test_approval", "test_rights")
ORDER = (*ACCEPTANCE, *LONG)


def pytest_collection_modifyitems(items: List[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        name = item.path.stem
        return ORDER.index(name) if name in ORDER else len(ORDER)

    if os.geteuid() != 0:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="boots hosts: needs root"))
    items.sort(key=place)


class ByLaboratory(LoadScopeScheduling):
    """Tests that share a laboratory go to one worker: those of the long way, and each other file."""

    def _split_scope(self, nodeid: str) -> str:
        name = Path(nodeid.split("::", 1)[0]).stem
        return "acceptance" if name in ACCEPTANCE else name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByLaboratory:
    return ByLaboratory(config, log)


@dataclass(frozen=True)
class Bare:
    """The hosts as they were delivered, and what the plan says about them."""

    trees: Mapping[str, Tree]
    packages: Mapping[str, Dict[str, str]]
    nodes: Mapping[str, Dict[str, Any]]
    plans: Mapping[str, Dict[str, Any]]


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """The hosts of the demo, with their cluster, in which each playbook is a user with its roles and no other right."""
    lab = new_lab("acceptance")
    lab.up("demo")
    yield Fleet(lab, tmp_path_factory.mktemp("demo"), accounts=accounts.prepare(lab))
    lab.down()


@pytest.fixture(scope="session")
def bare(demo: Fleet) -> Bare:
    trees = {host: demo.fingerprint(host) for host in DEMO_HOSTS}
    packages = {host: demo.packages(host) for host in DEMO_HOSTS}
    nodes = {host: demo.node(host) for host in DEMO_HOSTS}
    planned = demo.play("gpuops.nvidia.plan")
    plans = {host: planned.result(host, "gpu_plan")["plan"] for host in DEMO_HOSTS}
    return Bare(trees, packages, nodes, plans)


@pytest.fixture(scope="session")
def installed(demo: Fleet, bare: Bare) -> Played:
    """The first run of site, of which the hosts are GPU nodes."""
    return demo.play("gpuops.nvidia.site")

