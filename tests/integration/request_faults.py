# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Spoils a request of the cluster's part of site or uninstall, or kills the controller at it, and sees what becomes.

The API server is real; a proxy stands between. There is no host: Nodes are objects without a kubelet. A case is a
kind of fault, and a seed draws what it leaves open. The two phases take turns, so that each begins where the other has
ended.

Every request meets every kind in an ansible-playbook that is kept at its beginning (warm_ansible.py): the same
playbook, tasks and plugins in one process, which is forked for each run, for one of two Nodes. A sample of them meets
it in ansible-playbook as people start it, for both Nodes, and with the pauses that it has for them.
"""
from __future__ import annotations

import json
import queue
import random
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

import warm_ansible
import yaml
from api_proxy import Proxy, answers
from host_cuts import kill_controller
from laboratory import Fleet, Played, Running
from workspace import collections_root

from gpulab.topology import Topology, parse

NODES = ("node-1", "node-2")
NAMESPACE = "gpuops"
# Those that need no node to be rolled out
COMPONENTS = ("gpu_feature_discovery", "device_plugin", "dcgm_exporter")
NEW, OURS_THERE = "not gpu_node_has_ours | bool", "gpu_node_has_ours | bool"
# What is done: the tasks of site and of uninstall that are the cluster's, in their order, and which Nodes they are for
PHASES: Dict[str, Tuple[Tuple[str, str], ...]] = {
    "bring": (("cluster", ""), ("taint", NEW), ("take", NEW), ("give_back", ""), ("components", ""), ("untaint", "")),
    "remove": (("cluster", ""), ("take", OURS_THERE), ("components", ""), ("give_back", OURS_THERE)),
}
Request = Tuple[str, str]
OURS = "app.kubernetes.io/managed-by=gpuops"
TAINT = "gpuops.nvidia.com/not-ready"
# No pod of a DaemonSet comes to a Node that has it
THEIR_TAINT = {"key": "example.com/theirs", "value": "kept", "effect": "NoSchedule"}
# Longer than the client waits for an answer
SILENCE_SECONDS = 300.0
WELL_TOLD = re.compile(r"Found: .+ Wanted: .+ Do: .+ \[[a-z_]+\.[a-z_]+\]", re.DOTALL)


# How long a kept ansible-playbook waits for an answer, and before it asks again; people's waits a minute, and 8 seconds
CLIENT = "ansible_collections.gpuops.nvidia.plugins.module_utils.cluster."
CONSTANTS = {CLIENT + "client": {"READ_TIMEOUT_S": 1.0}, CLIENT + "repeating": {"FIRST_PAUSE_SECONDS": 0.02}}


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    faults:  what the proxy is told, of which one is drawn.
    parts:   into how many cases its requests are divided, so that none takes longer than five minutes.
    sample:  one of so many parts of them is a sample, for the same reason.
    silent:  the connection stays open without an answer.
    kills:   the controller dies at the request.
    lasting: all requests from that one on meet it, so that the run has to fail, and to say why.
    """

    name: str
    faults: Tuple[str, ...]
    parts: int = 3
    sample: int = 12
    silent: bool = False
    kills: bool = False
    lasting: bool = False


KINDS = (
    Kind("killed before", ("reset",), kills=True), Kind("killed after", ("lost",), kills=True),
    Kind("409", ("409",), 1, 3), Kind("410", ("410",), 1, 6),
    Kind("lost", ("lost",)), Kind("reset", ("reset",)),
    Kind("429", ("429",)), Kind("500", ("500",)), Kind("503", ("503",)), Kind("504", ("504",)),
    Kind("down", ("503", "reset"), sample=20, lasting=True),
    Kind("silent", ("reset", "lost"), sample=60, silent=True),
)


@dataclass(frozen=True)
class Case:
    """part: the requests whose number leaves this one when divided by the parts. shared: others use our namespace.

    sampled: ansible-playbook is started as people do, and the seed draws the part.
    """

    kind: Kind
    part: int
    shared: bool
    sampled: bool = False

    def __str__(self) -> str:
        return "%s, %s, namespace %s" % (
            self.kind.name, "a sample" if self.sampled else "part %d of %d" % (self.part + 1, self.kind.parts),
            "shared" if self.shared else "ours")

    def numbers(self, requests: Sequence[Request], drawn: int) -> List[int]:
        """Which of a run's requests meet the fault. drawn: the part of a sample."""
        parts, part = (self.kind.sample, drawn) if self.sampled else (self.kind.parts, self.part)
        return [number for number, request in enumerate(requests, 1) if number % parts == part
                and any(answers(fault, *request) for fault in self.kind.faults)]


# Others use our namespace in every other kind, and in its sample where they do not in the kind. Both for each kind
# would take twice as long, and the runs differ in a few requests.
CASES = (*(Case(kind, part, place % 2 == 0) for part in range(max(each.parts for each in KINDS))
           for place, kind in enumerate(KINDS) if part < kind.parts),
         *(Case(kind, 0, place % 2 == 1, sampled=True) for place, kind in enumerate(KINDS)))


def topology() -> Topology:
    return parse({"name": "requests", "control_plane": True, "hosts": []}, __file__)


class Bed:
    """A cluster of Nodes without hosts, and a proxy before it."""

    def __init__(self, fleet: Fleet, proxy: Proxy) -> None:
        from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster import client
        from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components import kinds

        self.fleet, self.proxy = fleet, proxy
        self.client = client.Client(client.Connection(kubeconfig=str(fleet.lab.kubeconfig)))
        self.kinds = kinds.KINDS
        plane = fleet.lab.control_plane
        assert plane is not None
        self.plane = plane
        plane.leave_nodes_alone()
        self.one, self.both = (self._inventory(NODES[:count]) for count in (1, 2))
        self.kubeconfig = proxy.kubeconfig(fleet.scratch / "kubeconfig")
        for phase, steps in PHASES.items():
            self._playbook(phase).write_text(json.dumps(play(steps)))
        self.kept = {phase: warm_ansible.Controller(
            fleet.command(*self._words(phase, self.one), **self._variables(phase)),
            fleet.environment(*self._reports(phase)), fleet.scratch, CONSTANTS) for phase in PHASES}
        # Of ansible-playbook as people start it; without one, it is that which is kept
        self.inventory: Optional[Path] = None
        self.compared: Set[bool] = set()
        self.theirs: Dict[str, str] = {}
        self.wanted: Dict[str, Dict[str, Any]] = {}
        self.requests: Dict[str, List[Request]] = {}

    # A case

    def attack(self, case: Case, seed: int) -> List[str]:
        """Every request of the case in turn, in both phases. Raises AssertionError with all that went wrong."""
        chance = random.Random(seed)
        drawn = chance.randrange(case.kind.sample)
        self.prepare(case)
        numbers = {phase: case.numbers(self.requests[phase], drawn) for phase in PHASES}
        assert any(numbers.values()), "%s: no request to spoil among %s" % (
            case, ", ".join("%d of %s" % (len(self.requests[phase]), phase) for phase in PHASES))
        met: Dict[str, List[int]] = {phase: [] for phase in PHASES}
        wrong = []
        for turn in range(max(map(len, numbers.values()))):
            for phase in PHASES:
                number = numbers[phase][turn] if turn < len(numbers[phase]) else 0
                fault = chance.choice(case.kind.faults)
                try:
                    if number:
                        met[phase] += [number] if self.disturb(phase, case.kind, fault, number) else []
                    else:
                        self.play(phase)
                except AssertionError as error:
                    wrong.append("%s, %s at request %d of %d (%s): %s" % (
                        phase, fault, number, len(self.requests[phase]), case, error))
                    self.prepare(case)
                    if phase == "bring":
                        self.play("bring")
        told = ["%s: %s" % (case, "; ".join(
            "%s has %d requests, %d were to be spoiled, %d were" % (
                phase, len(self.requests[phase]), len(numbers[phase]), len(met[phase]))
            + told_missed(sorted({*numbers[phase]} - {*met[phase]})) for phase in PHASES))]
        assert not wrong, "\n".join([*wrong, *told])
        return told

    def disturb(self, phase: str, kind: Kind, fault: str, number: int) -> bool:
        """Spoil a request of a phase and do it again where that failed; whether there was such a request."""
        begun: "queue.Queue[Running]" = queue.Queue()
        over = threading.Event()

        def meanwhile() -> None:
            if kind.kills:
                kill_controller(begun.get(), self.fleet.scratch)
            elif kind.silent:
                over.wait(SILENCE_SECONDS)

        self.proxy.spoil(fault, number, kind.lasting, meanwhile)
        running = self.start(phase)
        begun.put(running)
        played = running.wait()
        met = self.proxy.met
        over.set()
        self.proxy.spoil("")
        if not met or not (kind.kills or kind.lasting):
            assert played.code == 0, "it failed: %s" % played.failures()
        elif kind.lasting:
            assert played.code != 0, "it ended well, and had no answer any more"
            untold = [line for line in messages(played) if not WELL_TOLD.search(line)]
            assert messages(played) and not untold, "it says: %s" % (untold or played.output[-2000:])
        if met and played.code != 0:
            self.play(phase)
        self.assert_end(phase)
        return met

    def assert_end(self, phase: str) -> None:
        """All is as after an undisturbed run, and one more changes nothing."""
        wrong = differences(self.wanted[phase], self.state())
        assert not wrong, "not as undisturbed: %s" % json.dumps(wrong)
        assert self.stored() == self.theirs, "what others have has changed"
        changes = self.play(phase).changes()
        assert changes == [], "a further run changed: %s" % changes
        assert not differences(self.wanted[phase], self.state()), "a further run made it other"

    # The cluster

    def prepare(self, case: Case) -> None:
        """A cluster bare of ours, and how each phase ends in it undisturbed."""
        self._clean()
        theirs = {"name": "theirs", "namespace": NAMESPACE if case.shared else "default"}
        objects: List[Dict[str, Any]] = [
            {"kind": "ConfigMap", "metadata": {**theirs, "labels": dict([OURS.split("=")])}, "data": {"a": "b"}},
            {"kind": "Secret", "metadata": theirs}]
        if case.shared:
            objects.insert(0, {"kind": "Namespace", "metadata": {"name": NAMESPACE}})
        objects += [node(name) for name in NODES]
        for each in objects:
            self.fleet.lab.kubectl(["create", "--filename=-"], feed=json.dumps({"apiVersion": "v1", **each}))
        self.theirs = self.stored()
        bare = nodes_of(self.state())
        # Twice: what a server remembers of who wrote what is complete after the first time.
        for _each in range(2):
            self._undisturbed(self.both if case.sampled else None)
        if not case.sampled and case.shared not in self.compared:
            self._compare()
            self.compared.add(case.shared)
        wrong = differences(bare, nodes_of(self.wanted["remove"]))
        assert not wrong, "an uninstallation leaves on Nodes: %s" % json.dumps(wrong)

    def _undisturbed(self, inventory: Optional[Path]) -> None:
        """Note what each phase asks, and how it ends. inventory: of ansible-playbook as people start it."""
        self.inventory = inventory
        for phase in PHASES:
            self.proxy.spoil("")
            self.play(phase)
            self.requests[phase] = list(self.proxy.seen)
            self.wanted[phase] = self.state()

    def _compare(self) -> None:
        """ansible-playbook as people start it has to do what the one that is kept has done."""
        kept = dict(self.requests), dict(self.wanted)
        self._undisturbed(self.one)
        assert (self.requests, self.wanted) == kept, "an ansible-playbook that is kept does something else"
        self.inventory = None

    def _clean(self) -> None:
        for kind in reversed(self.kinds):
            for item in self._items(kind.list_path(), OURS):
                self.client.delete(kind.path(item["metadata"].get("namespace", ""), item["metadata"]["name"]))
        for kind, name in (("configmap", "theirs"), ("secret", "theirs"), ("namespace", NAMESPACE),
                           *(("node", name) for name in NODES)):
            self.fleet.lab.kubectl(["delete", kind, name, "--ignore-not-found", "--timeout=60s"])

    def stored(self) -> Dict[str, str]:
        """What others have, byte for byte."""
        return {key: value for kind in ("configmaps", "secrets")
                for key, value in self.plane.stored("/registry/%s/" % kind).items() if key.endswith("/theirs")}

    def state(self) -> Dict[str, Any]:
        """{object of ours, or Node: what it is}."""
        found = [each for kind in self.kinds for each in self._items(kind.list_path(), OURS)]
        found += self._items("/api/v1/nodes")
        return {self._name(each): steady(each) for each in found}

    def _items(self, path: str, selector: str = "") -> List[Dict[str, Any]]:
        """Each with its kind, which lists leave out; none of a kind that the server does not know."""
        kind = path.rpartition("/")[2]
        page = self.client.find("%s?labelSelector=%s" % (path, selector)) or {}
        return [{"kind": kind, **item} for item in page.get("items", ())]

    @staticmethod
    def _name(item: Mapping[str, Any]) -> str:
        return "%s %s/%s" % (item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])

    # Runs

    def play(self, phase: str) -> Played:
        """A phase undisturbed, which must end well."""
        played = self.start(phase).wait()
        assert played.code == 0, "an undisturbed run failed: %s" % played.failures()
        return played

    def start(self, phase: str) -> Running:
        """As the case wants it started."""
        if self.inventory:
            return self.fleet.start(*self._words(phase, self.inventory), **self._variables(phase))
        results, calls = self._reports(phase)
        return Running(self.kept[phase].start(results, calls), results, calls)

    def close(self) -> None:
        for controller in self.kept.values():
            controller.close()

    def _words(self, phase: str, inventory: Path) -> Tuple[str, ...]:
        """Node after node, so that a number is the same request in every run."""
        return str(self._playbook(phase)), "--inventory", str(inventory), "--forks=1"

    def _inventory(self, nodes: Sequence[str]) -> Path:
        path = self.fleet.scratch / ("%d.ini" % len(nodes))
        path.write_text("".join("%s ansible_connection=local\n" % name for name in nodes))
        return path

    def _variables(self, phase: str) -> Dict[str, Any]:
        return {"gpu_cluster_kubeconfig": str(self.kubeconfig), "gpu_components": list(COMPONENTS),
                "gpu_startup_taint": TAINT, **({"gpu_state": "absent"} if phase == "remove" else {})}

    def _reports(self, phase: str) -> Tuple[Path, Path]:
        return self.fleet.scratch / (phase + ".results"), self.fleet.scratch / (phase + ".calls")

    def _playbook(self, phase: str) -> Path:
        return self.fleet.scratch / (phase + ".json")


def play(steps: Sequence[Tuple[str, str]]) -> List[Dict[str, Any]]:
    """A play of tasks of the playbooks and of entries of node_maintenance. steps: names, and conditions."""
    playbooks = collections_root() / "ansible_collections" / "gpuops" / "nvidia" / "playbooks"
    shared = {name: {"ansible.builtin.include_tasks": "%s/tasks/%s.yml" % (playbooks, name)}
              for name in ("cluster", "components")}
    tasks = [{**(shared.get(step) or {"ansible.builtin.include_role": {
        "name": "gpuops.nvidia.node_maintenance", "tasks_from": step}}), **({"when": condition} if condition else {})}
        for step, condition in steps]
    # Not as a file of variables, which Ansible reads anew for every task of every host
    variables = yaml.safe_load((playbooks / "roles" / "gpu" / "vars" / "main.yml").read_text())
    return [{"hosts": "node-*", "gather_facts": False, "tasks": tasks,
             "vars": {**variables, "node_maintenance_rights": ["nodes", "pods"]}}]


def told_missed(numbers: Sequence[int]) -> str:
    """Requests that a run did not send, or not under their numbers."""
    return " (not %s)" % ", ".join(map(str, numbers)) if numbers else ""


def node(name: str) -> Dict[str, Any]:
    """A Node that others use too."""
    return {"kind": "Node", "metadata": {
        "name": name, "labels": {"example.com/theirs": "kept"}, "annotations": {"example.com/theirs": "kept"}},
        "spec": {"taints": [THEIR_TAINT]}}


def steady(item: Mapping[str, Any]) -> Dict[str, Any]:
    """An object without what is another each time it is made, addresses of services too, and without its status."""
    kept = {name: value for name, value in item["metadata"].items()
            if name not in ("resourceVersion", "uid", "creationTimestamp", "managedFields")}
    managed = [{name: value for name, value in each.items() if name != "time"}
               for each in item["metadata"].get("managedFields", ()) if each.get("subresource") != "status"]
    managed.sort(key=lambda each: (each["manager"], each["operation"]))
    told = {name: value for name, value in item.items() if name != "status"}
    if item["kind"] == "services":
        told["spec"] = {name: value for name, value in item["spec"].items() if name not in ("clusterIP", "clusterIPs")}
    return {**told, "metadata": {**kept, "managedFields": managed}}


def nodes_of(state: Mapping[str, Any]) -> Dict[str, Any]:
    """What is for others to see of Nodes: nothing of who wrote it."""
    return {name: {**item, "metadata": {**item["metadata"], "managedFields": []}}
            for name, item in state.items() if item["kind"] == "nodes"}


def differences(wanted: Mapping[str, Any], found: Mapping[str, Any], place: str = "") -> Dict[str, Tuple[Any, Any]]:
    """{place in nested dictionaries: (as it should be, as it is)}."""
    told: Dict[str, Tuple[Any, Any]] = {}
    for name in sorted({*wanted, *found}):
        before, after = wanted.get(name), found.get(name)
        if isinstance(before, dict) and isinstance(after, dict):
            told.update(differences(before, after, place + name + ": "))
        elif before != after:
            told[place + name] = (before, after)
    return told


def messages(played: Played) -> List[str]:
    """What each task that failed says."""
    return [str(result.get("msg", "")) for each in played.report["plays"] for task in each["tasks"]
            for result in task["hosts"].values() if result.get("failed") and not result.get("ignore_errors")]
