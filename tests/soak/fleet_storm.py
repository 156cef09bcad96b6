# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A fleet that is changed while hosts fail, die and hang, admins cordon and uncordon, and controllers are killed.

The API server, its Nodes, the playbook and all that it asks of the cluster are real; what is done to a host is a
stand-in of moments. Everything that happens to Nodes is taken down as the API server tells it, and judged when it is
over.
"""
from __future__ import annotations

import json
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set

for room in ("cluster", "playbooks"):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit" / room))

from canned import Hosts, planned  # noqa: E402
from controller import Controller  # noqa: E402
from real_api import RealApi, node  # noqa: E402

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import MERGE_PATCH, Client  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims  # noqa: E402
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step  # noqa: E402

NODES = "/api/v1/nodes"
ZONE = "topology.kubernetes.io/zone"
STEP = Step("driver", "packages.install", "driver 595.91.07", "Driver 595.", Disruption.driver_reload)
LEASE_SECONDS, PATIENCE_SECONDS = 6, 90
RUN_SECONDS = 600
# Runs after which everything has to be over, once nobody disturbs them any more
MOST_REPETITIONS = 5
# How many nodes the admin has cordoned at most at a time
MOST_CORDONS = 1
# What becomes of a host whose change is at work: how many of a hundred
BEHAVIOURS = {"fine": 88, "fails": 5, "dies": 4, "hangs": 3}

# Says of a host what has been done to it, and does it: 'behaviour' is a variable of the host
PLAN = '''
import pathlib
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        done = pathlib.Path(__file__).parent / ("done." + task_vars["inventory_hostname"])
        return dict(self._templar.template(task_vars["plans"])["after" if done.exists() else "before"])
'''
CHANGE = '''
import pathlib, time
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        time.sleep(task_vars["seconds"])
        behaviour = self._templar.template(task_vars["behaviour"])
        if behaviour == "hangs":
            time.sleep(20 * task_vars["seconds"])
        if behaviour == "fails":
            return {"failed": True, "msg": "Xid 79", "changed": True}
        if behaviour == "dies":
            return {"unreachable": True, "msg": "no route to host", "changed": False}
        (pathlib.Path(__file__).parent / ("done." + task_vars["inventory_hostname"])).write_text("")
        return {"changed": True, "reboot_required": False, "applied": []}
'''


@dataclass
class Seen:
    """A Node as it was for a moment."""

    name: str
    zone: str
    version: int
    cordoned: bool
    ours: bool
    others: bool
    reason: str


class Auditor:
    """Takes down every version of every Node, from start to stop."""

    def __init__(self, client: Client) -> None:
        self.seen: List[Seen] = []
        self._client = client
        self._over = threading.Event()
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Auditor:
        self._thread.start()
        assert self._begun.wait(30)
        return self

    def __exit__(self, *_error: Any) -> None:
        self._over.set()
        self._client.patch("%s/%s" % (NODES, self.seen[0].name), {"metadata": {"annotations": {"over": "true"}}})
        self._thread.join(30)
        assert not self._thread.is_alive()

    def _watch(self) -> None:
        there = self._client.get(NODES)
        self.seen += [seen(each) for each in there["items"]]
        query = {"watch": "1", "timeoutSeconds": "36000", "resourceVersion": there["metadata"]["resourceVersion"]}
        answer = self._client._api.rest_client.pool_manager.request(
            "GET", self._client.url + NODES, fields=query, preload_content=False)
        self._begun.set()
        text = b""
        for part in answer.stream(1 << 16):
            text += part
            *lines, text = text.split(b"\n")
            self.seen += [seen(json.loads(line)["object"]) for line in lines]
            if self._over.is_set():
                return

    def judge(self, limit: int, of_zone: int, freed_by_admins: Set[int]) -> List[str]:
        """What was wrong, in words."""
        wrong: List[str] = []
        now: Dict[str, Seen] = {}
        for each in self.seen:
            before = now.get(each.name)
            was_theirs = before is not None and before.others and before.cordoned
            if was_theirs and not each.cordoned and each.version not in freed_by_admins:
                wrong.append("version %d of %s: a cordon of others is gone" % (each.version, each.name))
            now[each.name] = each
            ours = [one for one in now.values() if one.ours]
            if each.ours and len(ours) > limit:
                wrong.append("version %d: %d of %d are out of service: %s" % (
                    each.version, len(ours), limit, ", ".join(sorted(one.name for one in ours))))
            there = [one for one in ours if one.zone == each.zone]
            if each.ours and len(there) > of_zone:
                wrong.append("version %d: %d of %d of zone %s" % (each.version, len(there), of_zone, each.zone))
        return wrong


def seen(item: Mapping[str, Any]) -> Seen:
    metadata, spec = item["metadata"], item.get("spec") or {}
    said = claims.claims(item)
    return Seen(metadata["name"], (metadata.get("labels") or {}).get(ZONE, ""), int(metadata["resourceVersion"]),
                bool(spec.get("unschedulable")), any(each.cordons for each in said.values()),
                bool(claims.cordoned_by_others(item)),
                (metadata.get("annotations") or {}).get("gpuops.nvidia.com/cordon-reason", ""))


class Admin:
    """Cordons and uncordons nodes by kubectl's means, beside everything else."""

    def __init__(self, client: Client, names: Sequence[str], dice: random.Random) -> None:
        self.freed: Set[int] = set()
        self._theirs: Set[str] = set()
        self._client, self._names, self._dice = client, list(names), dice
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Admin:
        self._thread.start()
        return self

    def __exit__(self, *_error: Any) -> None:
        self._over.set()
        self._thread.join(60)

    def _work(self) -> None:
        while not self._over.wait(self._dice.uniform(0.3, 2.0)):
            name = self._dice.choice(self._names)
            is_cordoned = bool((self._client.get("%s/%s" % (NODES, name)).get("spec") or {}).get("unschedulable"))
            if is_cordoned and self._dice.random() < 0.3:
                self.uncordon(name)
                self._theirs.discard(name)
            elif not is_cordoned and len(self._theirs) < MOST_CORDONS and self._dice.random() < 0.5:
                self._write(name, True, "kubectl-cordon")
                self._theirs.add(name)
            elif len(self._theirs) == MOST_CORDONS:
                # What he has taken out of service counts: with more of them nothing would ever begin
                self.uncordon(self._theirs.pop())

    def uncordon(self, name: str) -> None:
        self.freed.add(self._write(name, None, "kubectl-uncordon"))

    def _write(self, name: str, value: Optional[bool], manager: str) -> int:
        told = self._client._request("PATCH", "%s/%s" % (NODES, name), {"fieldManager": manager},
                                     {"spec": {"unschedulable": value}}, MERGE_PATCH)
        return int(told["metadata"]["resourceVersion"])


@dataclass
class Bed:
    """One API server, whose Nodes are a case's."""

    api: RealApi
    scratch: Path
    cases: int = field(default=0)

    def storm(self, seed: int) -> List[str]:
        """A fleet is changed by one to three controllers in bad weather, and then to its end in good."""
        dice = random.Random(seed)
        self.cases += 1
        place = self.scratch / ("case-%d" % self.cases)
        count = 100 if seed % 10 == 0 else dice.randrange(12, 25)
        names = ["gpu-%03d" % number for number in range(count)]
        limit, of_zone = dice.randrange(2, 6), dice.randrange(1, 4)
        storm = Storm(self.api, place, names, dice, limit, of_zone, "s%d" % seed)
        try:
            return storm.blow()
        finally:
            storm.clear()


class Storm:
    def __init__(self, api: RealApi, place: Path, names: Sequence[str], dice: random.Random, limit: int, of_zone: int,
                 namespace: str) -> None:
        self.api, self.names, self.dice, self.namespace = api, list(names), dice, namespace
        self.limit, self.of_zone = limit, of_zone
        self.client = api.client()
        place.mkdir(parents=True)
        self.controllers = []
        for number in range(dice.randrange(1, 4)):
            directory = place / ("controller-%d" % number)
            directory.mkdir()
            self.controllers.append(Controller(directory))
        self.hosts = Hosts(self.controllers[0], api)  # type: ignore[arg-type]
        (self.hosts.actions / "gpu_plan.py").write_text(PLAN)
        (self.hosts.actions / "gpu_driver_activation.py").write_text(CHANGE)
        for number, name in enumerate(names):
            self.client.create(NODES, node(name, **{ZONE: "zone-%d" % (number % 4)}))
        self.behaviours = {name: self._behaviour() for name in names}

    def _behaviour(self) -> str:
        return self.dice.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))[0]

    def blow(self) -> List[str]:
        told = ["%d hosts, limits %d and %d of a zone, %d controllers" % (
            len(self.names), self.limit, self.of_zone, len(self.controllers))]
        with Auditor(self.client) as auditor:
            with Admin(self.client, self.names, self.dice) as admin:
                runs = [self.start(controller, self.names[number::len(self.controllers)])
                        for number, controller in enumerate(self.controllers)]
                if self.dice.random() < 0.6:
                    time.sleep(self.dice.uniform(3, 40))
                    victim = self.dice.choice(runs)
                    victim.send_signal(signal.SIGKILL)
                    told.append("a controller was killed")
                ended = [self.end(run) for run in runs]
            # Nobody disturbs any more, and what failed was looked at
            for name in self.names:
                if (self.client.get("%s/%s" % (NODES, name)).get("spec") or {}).get("unschedulable"):
                    admin.uncordon(name)
            self.behaviours = dict.fromkeys(self.names, "fine")
            repetitions, code, text = 0, 1, ""
            while code and repetitions < MOST_REPETITIONS:
                repetitions += 1
                for name in self.failed():
                    self.free(name)
                code, text = self.end(self.start(self.controllers[0], self.names))
            told.append("repeated %d times" % repetitions)
        wrong = auditor.judge(self.limit, self.of_zone, admin.freed)
        undone = [name for name in self.names if not (self.hosts.actions / ("done." + name)).exists()]
        if undone or code:
            wrong.append("not done: %s (%d)\n%s\n%s" % (", ".join(undone), code, text[-3000:],
                                                      "\n".join(each[1][-1500:] for each in ended)))
        last = {each.name: each for each in auditor.seen}
        wrong += ["%s stays cordoned: %s" % (each.name, each.reason) for each in last.values() if each.cordoned]
        assert not wrong, "\n".join([*wrong, *told])
        return told

    def start(self, controller: Controller, names: Sequence[str]) -> Any:
        before = Plan(steps=(STEP,))
        boards = {name: "%d x 10de:2330" % (1 + number % 2) for number, name in enumerate(self.names)}
        own = controller.directory / "own.json"
        own.write_text(json.dumps({"all": {"hosts": {name: {
            "behaviour": self.behaviours[name], "board": boards[name]} for name in names}}}))
        plan = planned(before)
        plan["change"] = dict(plan["change"], board="{{ board }}")
        return controller.start(
            "gpuops.nvidia.site", "--tags", "hosts", "--forks", "8", "--inventory", str(own), hosts=names,
            environment={"ANSIBLE_COLLECTIONS_PATH": str(self.hosts.root)}, variables={
                "gpu_cluster_kubeconfig": str(self.api.kubeconfig), "node_maintenance_timeout": 30, "canned": {},
                "plans": {"before": plan, "after": planned(Plan())}, "seconds": 0.3,
                "node_maintenance_lease_seconds": LEASE_SECONDS, "node_maintenance_wait_timeout": PATIENCE_SECONDS,
                "gpu_rollout_limit": self.limit, "gpu_rollout_domain_limit": self.of_zone,
                "gpu_rollout_max_failures": "100", "gpu_rollout_max_unreachable": "100%",
                "gpu_rollout_namespace": self.namespace, "gpu_rollout_interval": 1, "gpu_rollout_timeout": 240})

    @staticmethod
    def end(run: Any) -> Any:
        try:
            out, err = run.communicate(timeout=RUN_SECONDS)
        finally:
            run.kill()
        return run.returncode, out + err

    def failed(self) -> List[str]:
        found = self.client.find("/api/v1/namespaces/%s/configmaps/gpuops-rollout" % self.namespace)
        record = json.loads(((found or {}).get("data") or {}).get("record") or "{}")
        pools = (record.get("pools") or {}).values()
        return [name for pool in pools for name, slot in (pool.get("slots") or {}).items()
                if slot.get("state") == "failed"]

    def free(self, name: str) -> None:
        self.controllers[0].tasks([{"gpuops.nvidia.gpu_rollout": {
            "state": "ended", "name": name, "outcome": "freed", "kubeconfig": str(self.api.kubeconfig),
            "namespace": self.namespace}}], hosts=("localhost",))

    def clear(self) -> None:
        for each in self.client.items(NODES):
            self.client.delete("%s/%s" % (NODES, each["metadata"]["name"]))
        for each in self.client.items("/apis/coordination.k8s.io/v1/namespaces/gpuops/leases"):
            self.client.delete("/apis/coordination.k8s.io/v1/namespaces/gpuops/leases/" + each["metadata"]["name"])
