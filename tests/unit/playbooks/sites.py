# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A cluster of hosts that exist only in words, and site run on them."""
from __future__ import annotations

import subprocess
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from canned import Hosts, planned
from cluster_objects import node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.budget import Budget, NodeReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import run as custody
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import Custody, Taking
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Refusal, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.budget import (
    DEFAULT_POOL,
    OpenRollout,
    Pool,
    Record,
    Run,
    Slot,
)

MODULE = "gpuops.nvidia.gpu_rollout"
DRIVER = Step("driver", "packages.install", "driver", "Driver.", Disruption.driver_reload)
FILE = Step("node_agent", "file.write", "/etc/x", "x", Disruption.service_restart)
CHANGE, SMALL, NOTHING = planned(Plan(steps=(DRIVER,))), planned(Plan(steps=(FILE,))), planned(Plan(), proof={})

# Nothing is to be done, and the checks that come with the plan did not pass
SICK = planned(Plan(), proof={}, validated=False)
WELL: Dict[str, Any] = {"changed": False, "checks": []}
BROKEN = {**WELL, "failed": True, "msg": "level 1 fails"}
REFUSED = planned(Plan(refusals=(Refusal("driver.held", "the driver is held", "one that is not", "let it go"),)))


def names(number: int) -> List[str]:
    return ["gpu-%d" % each for each in range(1, number + 1)]


def freeze() -> Dict[str, str]:
    """That closes every window of these days."""
    now = datetime.now(timezone.utc)
    return {"from": (now - timedelta(days=2)).strftime("%Y-%m-%d"),
            "to": (now + timedelta(days=20)).strftime("%Y-%m-%d"), "reason": "year's end", "zone": "UTC"}


def held(*slots: Slot, seen: datetime, seconds: int = 600, **more: Any) -> Pool:
    """What runs hold, of an open rollout of theirs."""
    opened = OpenRollout("x", seen, {slot.run: Run("other", seen, seen, seconds) for slot in slots})
    return Pool(limit="1", rollout=opened, slots={slot.host: slot for slot in slots}, **more)


class Site:
    """A cluster of these hosts, and site run on them."""

    def __init__(self, hosts: Hosts, there: Sequence[str], **of_nodes: Mapping[str, Any]) -> None:
        self.hosts, self.there = hosts, tuple(there)
        offer = {"nvidia.com/gpu": "1"}
        hosts.api.state.nodes = [node(name, allocatable=offer, capacity=offer, **of_nodes.get(
            name.replace("-", "_"), {})) for name in there]
        self.client = Client(Connection(kubeconfig=str(hosts.api.kubeconfig)))

    def run(self, canned: Mapping[str, Any], *options: str, cluster: bool = True, playbook: str = "site",
            tags: Sequence[str] = ("--tags", "hosts"), groups: Optional[Mapping[str, Sequence[str]]] = None,
            **variables: Any) -> "subprocess.CompletedProcess[str]":
        return self.hosts.controller.play(
            "gpuops.nvidia." + playbook, *tags, *options, hosts=self.there, groups=groups,
            environment={"ANSIBLE_COLLECTIONS_PATH": str(self.hosts.root)}, variables={
                **({"gpu_cluster_kubeconfig": str(self.hosts.api.kubeconfig)} if cluster else {}), "canned": canned,
                "node_maintenance_timeout": 1, "gpu_components": [], "gpu_rollout_timeout": 2,
                "gpu_rollout_interval": 1, **variables})

    def changed(self) -> List[str]:
        """Hosts whose driver was exchanged, in any order."""
        return [name for name in self.there if self.hosts.calls("gpu_driver_activation", name)]

    def cordoned(self) -> List[str]:
        return [each["metadata"]["name"] for each in self.hosts.api.state.nodes if each["spec"].get("unschedulable")]

    def held(self) -> Dict[str, str]:
        """{Node: state} of the places that the record has."""
        return {each["node"]: each["state"] for each in self.tell(state="closed", run="nobody")["held"]}

    def tell(self, **options: Any) -> Dict[str, Any]:
        [[result, *_same]] = self.hosts.controller.tasks(
            [{MODULE: {"kubeconfig": str(self.hosts.api.kubeconfig), **options}}], hosts=["localhost"])
        assert not result.get("failed"), result
        return result

    def record(
        self, what: Callable[[Record], Record] = lambda record: record, namespace: str = "gpuops"
    ) -> Pool:
        """The pool as the record has it, once it is changed so."""
        budget = Budget(self.client, namespace, DEFAULT_POOL, NodeReading(), lambda run: True)
        return budget.change(what).pool(DEFAULT_POOL)


def left_by_a_dead_run(hosts: Hosts, now: datetime, seconds: int) -> Site:
    """Two hosts; a run has taken the first one, has its place, and was killed. seconds: how long its word counts."""
    site, run = Site(hosts, names(2)), custody.Run("a", "other")
    site.record(lambda record: record.but(DEFAULT_POOL, held(
        Slot("gpu-1", run.identity, now), seen=now, seconds=seconds)))
    Custody(site.client, run, "gpuops", seconds, 0, str).take("gpu-1", Taking("maintenance"))
    return site
