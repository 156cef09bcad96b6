# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A fleet that is changed while hosts fail, die, hang and come back NotReady, admins cordon and uncordon, budgets block
drains, the API server goes, and controllers are killed or stand still.

The API server, its Nodes, Kubernetes' own controllers, the playbook and all that it asks of the cluster are real; what
is done to a host is a stand-in of moments, and so are kubelets with their device plugin, and what a container finds of
a GPU. What happened is read from the API server's audit log, and judged when it is over.
"""
from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from canned import WAY, Hosts, planned
from controller import Controller
from real_api import RealApi, node

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import MERGE_PATCH, Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import CORDON_REASON
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"
SETS = "/apis/apps/v1/namespaces/default/replicasets"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/gpuops/leases"
FLOW = "/apis/flowcontrol.apiserver.k8s.io/v1"
ZONE = "topology.kubernetes.io/zone"
PLUGIN, GPU = "nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu"
RUNS = "runs"
SERVICE = "trainer"
STEP = Step("driver", "packages.install", "driver 595.91.07", "Driver 595.", Disruption.driver_reload)
LEASE_SECONDS, PATIENCE_SECONDS = 6, 90
# For the drain of a node, and for its way back
NODE_SECONDS = 30
# After which a run counts as one that hangs: in all, and for each of its hosts
RUN_SECONDS, HOST_SECONDS = 600, 15
# Runs after which everything has to be over, once nobody disturbs them any more
MOST_REPETITIONS = 5
# How many nodes the admin has cordoned at most at a time
MOST_CORDONS = 1
# In how many of a hundred storms with room for it a node is out of service by an admin from the beginning
STANDS = 40
# The storm is over so long after it began
STORM_SECONDS = 40
# What becomes of a host whose change is at work: how many of a hundred
BEHAVIOURS = {"fine": 78, "fails": 5, "dies": 4, "hangs": 3, "not ready": 6, "no container": 4}
# What else happens: in how many storms of a hundred
MISFORTUNES = {"kill": 60, "stand still": 40, "hang": 30, "restart": 20, "crash": 20, "shed": 30}
# In how many of a hundred canaries are watched, and how long; in how many changes may begin from the next minute on
SOAKS, SOAK, WINDOWS = 20, "1m", 20
LOG_SECONDS = 20
# Of the API server's places for requests those of the runs, where all that they ask is shed and where nothing is
SHARES = {True: 0, False: 100}

# Says of a host what has been done to it, and does it: 'behaviour' is a variable of the host
PLAN = '''
import pathlib
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        done = pathlib.Path(task_vars["place"]) / ("done." + task_vars["inventory_hostname"])
        return dict(self._templar.template(task_vars["plans"])["after" if done.exists() else "before"])
'''
CHANGE = '''
import pathlib, time
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        begun = pathlib.Path(task_vars["place"]) / ("begun." + task_vars["inventory_hostname"])
        begun.write_text("")
        time.sleep(task_vars["seconds"])
        behaviour = self._templar.template(task_vars["behaviour"])
        own = pathlib.Path(task_vars["place"])
        if behaviour == "hangs":
            time.sleep(20 * task_vars["seconds"])
        if behaviour == "fails":
            return {"failed": True, "msg": "Xid 79", "changed": True}
        if behaviour == "dies":
            return {"unreachable": True, "msg": "no route to host", "changed": False}
        if behaviour == "not ready":
            asked = own / ("ill." + task_vars["inventory_hostname"])
            asked.write_text("")
            while asked.exists():
                time.sleep(0.1)
        (own / ("done." + task_vars["inventory_hostname"])).write_text("")
        return {"changed": True, "reboot_required": False, "applied": []}
'''
# The driver goes back where it is what failed
DRIVER = '''
import pathlib
from ansible.plugins.action import ActionBase


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        if self._task.args.get("state") == "rolled_back":
            done = pathlib.Path(task_vars["place"]) / ("done." + task_vars["inventory_hostname"])
            done.unlink(missing_ok=True)
        return {"changed": True, "reboot_required": False, "applied": []}
'''
# Writes down that a host's cluster was looked at, and how its node was then
VALIDATION = '''
import pathlib
from ansible.plugins.action import ActionBase
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import Client, Connection
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError


class ActionModule(ActionBase):
    def run(self, tmp=None, task_vars=None):
        name = task_vars["inventory_hostname"]
        if "cluster" not in self._task.args.get("scope", ()):
            return {"changed": False, "checks": [], "proof": {},
                    "devices": {"whole": 1, "divided": 0, "empty": 0, "mig": {}}}
        try:
            node = Client(Connection(kubeconfig=task_vars["gpu_cluster_kubeconfig"])).get("/api/v1/nodes/" + name)
        except GpuOpsError as error:
            return {"failed": True, "code": error.code, "msg": str(error), "checks": []}
        offers = (node["status"].get("allocatable") or {}).get(%(gpu)r, "nothing")
        (pathlib.Path(task_vars["place"]) / ("gate." + name)).write_text(offers)
        if self._templar.template(task_vars["behaviour"]) == "no container":
            return {"failed": True, "code": "validation.check_failed", "msg": "no device", "checks": []}
        return {"changed": False, "checks": [], "proof": {}, "proof_is_new": False}
''' % {"gpu": GPU}


@dataclass(frozen=True)
class Seen:
    """A Node as a request has left it, who asked, and when."""

    by: str
    name: str
    zone: str
    version: int
    cordoned: bool
    ours: bool
    others: bool
    reason: str
    at: str = ""


@dataclass(frozen=True)
class Stood:
    """A host when all runs of a storm had ended.

    begun, done: whether its change was at work, and came to its end.
    failed:      why the record says that its change failed, None where it does not say so.
    is_broken:   whether no container would get its GPUs.
    is_promised: whether its run has ended well, which says that nothing is left to be done to any of its hosts.
    """

    begun: bool = False
    done: bool = False
    failed: Optional[str] = None
    is_broken: bool = False
    is_promised: bool = False


class Audit:
    """What was asked of the API server since."""

    def __init__(self, api: RealApi) -> None:
        self._api, self._client = api, api.client()
        self._from = api.audit_log.stat().st_size
        self._first = [seen(each, "") for each in self._client.items(NODES)]

    def nodes(self) -> List[Seen]:
        """Every version of every Node, in their order; the last ones are those of now."""
        now = {int(each["metadata"]["resourceVersion"]) for each in self._client.items(NODES)}
        deadline = time.monotonic() + LOG_SECONDS
        while True:
            found = {each.version: each for each in self._first}
            for event in self._events():
                item = event.get("responseObject") or {}
                if item.get("kind") == "Node" and event["verb"] != "delete":
                    version = seen(item, event["requestURI"], event["requestReceivedTimestamp"])
                    found.setdefault(version.version, version)
            if now <= set(found):
                return [found[version] for version in sorted(found)]
            assert time.monotonic() < deadline, "versions %s are not in the log" % (now - set(found))
            time.sleep(0.2)

    def deleted_pods(self) -> List[str]:
        """Those that a run has deleted, where an eviction would have asked their budget."""
        return [event["objectRef"]["name"] for event in self._events()
                if event["objectRef"]["resource"] == "pods" and not event["objectRef"].get("subresource")
                and event["verb"] == "delete" and event["user"]["username"] == RUNS]

    def evictions(self) -> Tuple[List[str], int]:
        """(the pods that went, how often a budget refused)."""
        asked = [(event["objectRef"]["name"], event["responseStatus"]["code"]) for event in self._events()
                 if event["objectRef"].get("subresource") == "eviction" and "dryRun" not in event["requestURI"]]
        return [name for name, code in asked if code < 300], sum(code == 429 for _name, code in asked)

    def _events(self) -> Iterator[Dict[str, Any]]:
        with self._api.audit_log.open("rb") as log:
            log.seek(self._from)
            for line in log:
                # The last one may be being written: what is read behind its beginning would be its end
                if not line.endswith(b"\n"):
                    return
                event = json.loads(line)
                if event.get("objectRef") and event.get("responseStatus"):
                    yield event


def seen(item: Mapping[str, Any], asked: str, at: str = "") -> Seen:
    metadata, spec = item["metadata"], item.get("spec") or {}
    said = claims.claims(item)
    return Seen(asked, metadata["name"], (metadata.get("labels") or {}).get(ZONE, ""),
                int(metadata["resourceVersion"]), bool(spec.get("unschedulable")),
                any(each.cordons for each in said.values()), bool(claims.cordoned_by_others(item)),
                (metadata.get("annotations") or {}).get(CORDON_REASON, ""), at)


def judge(nodes: Sequence[Seen], limit: int, of_zone: int, opens: str = "") -> List[str]:
    """What was wrong with these versions, in words. opens: when a change may begin, as the audit log has times.

    What an admin has taken out of service since before the first request counts whenever a run takes another one. What
    he takes meanwhile may come between a run's question and its cordon.
    """
    wrong: List[str] = []
    now: Dict[str, Seen] = {}
    standing: Set[str] = set()
    for each in nodes:
        before = now.get(each.name)
        was_theirs = before is not None and before.others and before.cordoned
        if was_theirs and not each.cordoned and Admin.UNCORDONS not in each.by:
            wrong.append("version %d of %s: a cordon of others is gone: %s" % (each.version, each.name, each.by))
        if each.ours and not each.reason:
            wrong.append("version %d of %s: cordoned, and nobody is told why: %s" % (each.version, each.name, each.by))
        is_taken = each.ours and not (before and before.ours)
        if is_taken and each.at < opens:
            wrong.append("version %d of %s: cordoned at %s, before its window opens" % (
                each.version, each.name, each.at))
        now[each.name] = each
        if not each.cordoned:
            standing.discard(each.name)
        elif each.others and not each.at:
            standing.add(each.name)
        ours = [one for one in now.values() if one.ours or (is_taken and one.name in standing)]
        if each.ours and len(ours) > limit:
            wrong.append("version %d: %d of %d are out of service: %s" % (
                each.version, len(ours), limit, ", ".join(sorted(one.name for one in ours))))
        there = [one for one in ours if one.zone == each.zone]
        if each.ours and len(there) > of_zone:
            wrong.append("version %d: %d of %d of zone %s" % (each.version, len(there), of_zone, each.zone))
    return wrong


def judge_end(nodes: Sequence[Seen], hosts: Mapping[str, Stood]) -> List[str]:
    """What was wrong with these hosts when all runs of a storm had ended, and nobody had freed any. Legal is

    | The change                            | The node                                                            |
    |---------------------------------------|---------------------------------------------------------------------|
    | never began                           | as it was, or cordoned by us, of a run that was killed in its drain. |
    |                                       | Its run did not end well, and so says that something is left         |
    | began and came to no end (failed, the | cordoned by us                                                      |
    | host was lost, its run was killed)    |                                                                     |
    | is done, and no container gets a GPU  | cordoned by us: that is seen before the node is opened              |
    | is done, and it failed behind that    | cordoned by us: its way back is what failed                         |
    | is done                               | back; or cordoned by us where its run was killed, or could not reach |
    |                                       | the API server, before it was given back: the next run completes it  |

    Whatever we cordon has its reason in every version: see judge(). A node that an admin has opened, which we had
    cordoned, may be open in any state, or cordoned by him. Cordons of others may be there beside ours.
    """
    wrong: List[str] = []
    now = {each.name: each for each in nodes}
    opened = opened_by(nodes)
    for name, host in sorted(hosts.items()):
        is_half = host.begun and (not host.done or host.failed is not None or host.is_broken)
        if is_half and not now[name].ours and Admin.UNCORDONS not in opened.get(name, ""):
            wrong.append("%s is in service, though %s; our cordon went by: %s" % (
                name, "its change failed: " + host.failed if host.failed is not None
                else "its change came to no end" if not host.done else "no container gets its GPUs",
                opened.get(name, "nothing, there was none")))
        if host.failed == "":
            wrong.append("%s failed, and the record does not say why" % name)
        if host.is_promised and (not host.done or host.failed is not None or now[name].ours):
            wrong.append("the run of %s ended well, and it is not done and back" % name)
    return wrong


def judge_gates(nodes: Sequence[Seen], gates: Mapping[str, Optional[str]]) -> List[str]:
    """What was wrong with how each node was when its cluster was looked at.

    gates: {node: how many GPUs it offered then, None where nobody has looked}. Whoever opens a node himself, which a
    run had cordoned and not looked at yet, has decided that.
    """
    opened = opened_by(nodes)
    return [*("%s was given back unseen" % name for name, offered in gates.items()
              if offered is None and Admin.UNCORDONS not in opened.get(name, "")),
            *("%s offered %s when its cluster was looked at" % (name, offered) for name, offered in gates.items()
              if offered not in (None, "1"))]


def opened_by(nodes: Sequence[Seen]) -> Dict[str, str]:
    """{node: the request that took our cordon away last}, of those that had one."""
    was_ours: Dict[str, bool] = {}
    opened: Dict[str, str] = {}
    for each in nodes:
        if was_ours.get(each.name) and not each.ours:
            opened[each.name] = each.by
        was_ours[each.name] = each.ours
    return opened


class Beside:
    """Somebody who acts every now and then, beside everything else, and tries again where the API server is away."""

    def __init__(self, act: Callable[[], None], pause: Callable[[], float]) -> None:
        self._act, self._pause = act, pause
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_error: Any) -> None:
        self._over.set()
        self._thread.join(120)

    def _work(self) -> None:
        while not self._over.wait(self._pause()):
            with suppress(GpuOpsError):
                self._act()


class Admin:
    """Cordons and uncordons nodes by kubectl's means."""

    UNCORDONS = "fieldManager=kubectl-uncordon"

    def __init__(self, client: Client, names: Sequence[str], dice: random.Random) -> None:
        self._theirs: Set[str] = set()
        self._client, self._names, self._dice = client, list(names), dice

    def at_work(self) -> Beside:
        return Beside(self._act, lambda: self._dice.uniform(0.3, 2.0))

    def _act(self) -> None:
        name = self._dice.choice(self._names)
        is_cordoned = cordoned(self._client, name)
        if is_cordoned and self._dice.random() < 0.3:
            self.uncordon(name)
            self._theirs.discard(name)
        elif not is_cordoned and len(self._theirs) < MOST_CORDONS and self._dice.random() < 0.5:
            self._theirs.add(name)
            self.cordon(name)
        elif len(self._theirs) == MOST_CORDONS:
            # What he has taken out of service counts: with more of them nothing would ever begin
            self.uncordon(next(iter(self._theirs)))
            self._theirs.clear()

    def cordon(self, name: str) -> None:
        self._write(name, True, "kubectl-cordon")

    def uncordon(self, name: str) -> None:
        self._write(name, None, "kubectl-uncordon")

    def _write(self, name: str, value: Optional[bool], manager: str) -> None:
        self._client._request("PATCH", "%s/%s" % (NODES, name), {"fieldManager": manager},
                              {"spec": {"unschedulable": value}}, MERGE_PATCH)


class Kubelets:
    """Scheduler and kubelets of all nodes: pods run at once and end when they are told to, a device plugin offers a GPU
    where it is let, and an ill node recovers."""

    def __init__(self, client: Client, place: Path, dice: random.Random) -> None:
        self._client, self._place, self._dice = client, place, dice
        self._ill: Dict[str, float] = {}

    def at_work(self) -> Beside:
        return Beside(self._act, lambda: 0.3)

    def _act(self) -> None:
        for pod in self._client.items(PODS):
            path = "%s/%s" % (PODS, pod["metadata"]["name"])
            if pod["metadata"].get("deletionTimestamp"):
                self._client.delete(path, pod["metadata"]["uid"], "Background", 0)
            elif not pod["spec"].get("nodeName"):
                self._bind(path)
            elif pod["status"].get("phase") == "Pending":
                self._client.patch(path + "/status", {"status": {"phase": "Running", "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-07-01T12:00:00Z"}]}})
        for asked in self._place.glob("ill.*"):
            name = asked.name[len("ill."):]
            self._ready(name, "False")
            self._ill[name] = time.monotonic() + self._dice.uniform(1, 1.5 * NODE_SECONDS)
            asked.unlink()
        for name, until in list(self._ill.items()):
            if time.monotonic() > until:
                self._ready(name, "True")
                del self._ill[name]
        for each in self._client.items(NODES):
            count = {GPU: "1" if (each["metadata"].get("labels") or {}).get(PLUGIN) == "true" else "0"}
            if each["status"].get("allocatable") != count:
                self._client.patch("%s/%s/status" % (NODES, each["metadata"]["name"]),
                                   {"status": {"allocatable": count, "capacity": count}})

    def _bind(self, path: str) -> None:
        free = [each["metadata"]["name"] for each in self._client.items(NODES)
                if not (each.get("spec") or {}).get("unschedulable")]
        if free:
            self._client.create(path + "/binding", {
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": path.rpartition("/")[2]},
                "target": {"kind": "Node", "name": self._dice.choice(free)}})

    def _ready(self, name: str, status: str) -> None:
        condition = dict(node(name)["status"]["conditions"][0], status=status)
        self._client.patch("%s/%s/status" % (NODES, name), {"status": {"conditions": [condition]}})


def cordoned(client: Client, name: str) -> bool:
    return bool((client.get("%s/%s" % (NODES, name)).get("spec") or {}).get("unschedulable"))


class Bed:
    """One API server, whose Nodes are a storm's."""

    def __init__(self, scratch: Path) -> None:
        self.api = RealApi(scratch, audited=("nodes", "pods"))
        self._scratch = scratch
        self._storms = 0

    def start(self) -> None:
        self.api.start()
        self.api.manage("replicaset-controller", "disruption-controller")
        everything = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}
        self.kubelets = Client(Connection(kubeconfig=str(self.api.user("kubelets", everything))))
        # Nobody sheds what system:masters ask for
        self.runs = self.api.user(RUNS, everything)
        client = self.api.client()
        client.create(FLOW + "/prioritylevelconfigurations", {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration",
            "metadata": {"name": RUNS}, "spec": {"type": "Limited", "limited": {
                "nominalConcurrencyShares": SHARES[False], "lendablePercent": 0, "borrowingLimitPercent": 0,
                "limitResponse": {"type": "Reject"}}}})
        client.create(FLOW + "/flowschemas", {
            "apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": RUNS}, "spec": {
                "matchingPrecedence": 2, "priorityLevelConfiguration": {"name": RUNS}, "rules": [{
                    "subjects": [{"kind": "User", "user": {"name": RUNS}}],
                    "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True,
                                       "namespaces": ["*"]}],
                    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}]}]}})

    def shed(self, seconds: float) -> None:
        """Refuse whatever the runs ask for so long, with 429."""
        for is_shed, then in ((True, seconds), (False, 0.0)):
            self.api.client().patch("%s/prioritylevelconfigurations/%s" % (FLOW, RUNS), {"spec": {"limited": {
                "nominalConcurrencyShares": SHARES[is_shed]}}})
            time.sleep(then)

    def stop(self) -> None:
        self.api.stop()

    def storm(self, seed: int, hosts: Optional[int] = None) -> List[str]:
        """A fleet is changed by one to three controllers in bad weather, and then to its end in good."""
        dice = random.Random(seed)
        self._storms += 1
        count = hosts or (100 if seed % 10 == 0 else dice.randrange(12, 25))
        storm = Storm(self, self._scratch / ("storm-%d" % self._storms), count, dice, "s%d" % seed)
        try:
            return storm.blow()
        finally:
            storm.clear()


class Storm:
    def __init__(self, bed: Bed, place: Path, count: int, dice: random.Random, namespace: str) -> None:
        self.bed, self.api, self.dice, self.namespace = bed, bed.api, dice, namespace
        self.names = ["gpu-%03d" % number for number in range(count)]
        self.limit, self.of_zone = dice.randrange(2, 6), dice.randrange(1, 4)
        self.client = self.api.client()
        self.place = place
        place.mkdir(parents=True)
        self.controllers = []
        for number in range(dice.randrange(1, 4)):
            directory = place / ("controller-%d" % number)
            directory.mkdir()
            self.controllers.append(Controller(directory))
        self.hosts = Hosts(self.controllers[0], self.api)  # type: ignore[arg-type]
        self.hosts.put(gpu_plan=PLAN, gpu_driver_activation=CHANGE, gpu_driver=DRIVER, gpu_validation=VALIDATION)
        for number, name in enumerate(self.names):
            self.client.create(NODES, node(name, **{ZONE: "zone-%d" % (number % 4), PLUGIN: "true"}))
        self.replicas = 1 + count // 3
        self.serve()
        self.behaviours = {name: self.behaviour() for name in self.names}
        self.soak: Any = SOAK if dice.random() * 100 < SOAKS else 0
        self.opens = (datetime.now(timezone.utc).replace(second=0, microsecond=0) + timedelta(minutes=1)
                      if dice.random() * 100 < WINDOWS else None)

    def behaviour(self) -> str:
        return self.dice.choices(list(BEHAVIOURS), list(BEHAVIOURS.values()))[0]

    def serve(self) -> None:
        """A service of GPU pods, of which one may be away."""
        labels = {"matchLabels": {"app": SERVICE}}
        self.client.create(BUDGETS, {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": SERVICE},
            "spec": {"maxUnavailable": 1, "selector": labels}})
        self.client.create(SETS, {
            "apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": SERVICE},
            "spec": {"replicas": self.replicas, "selector": labels, "template": {
                "metadata": {"labels": labels["matchLabels"]},
                "spec": {"containers": [{"name": "main", "image": "localhost/none",
                                         "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}}}})

    def blow(self) -> List[str]:
        told = ["%d hosts, limits %d and %d of a zone, %d controllers%s%s" % (
            len(self.names), self.limit, self.of_zone, len(self.controllers),
            ", canaries are watched" if self.soak else "",
            ", from %s on" % self.opens.strftime("%H:%M") if self.opens else "")]
        admin = Admin(self.api.client(), self.names, random.Random(self.dice.random()))
        if self.limit > 2 and self.of_zone > 1 and self.dice.random() * 100 < STANDS:
            admin.cordon(self.dice.choice(self.names))
            told[0] += ", one cordoned before"
        kubelets = Kubelets(self.bed.kubelets, self.place, random.Random(self.dice.random()))
        audit = Audit(self.api)
        with kubelets.at_work():
            served = self.served()
            with admin.at_work(), ThreadPoolExecutor(len(self.controllers)) as pool:
                runs = [self.start(controller, self.names[number::len(self.controllers)])
                        for number, controller in enumerate(self.controllers)]
                ends = [pool.submit(self.end, run) for run in runs]
                told += self.disturb(runs, ends)
                ended = [each.result() for each in ends]
            wrong = judge_end(audit.nodes(), self.stood([code for code, _text in ended]))
            # Nobody disturbs any more, and what failed was looked at
            for name in self.names:
                if cordoned(self.client, name):
                    admin.uncordon(name)
            self.behaviours = dict.fromkeys(self.names, "fine")
            repetitions, code, text = 0, 1, ""
            while code and repetitions < MOST_REPETITIONS:
                repetitions += 1
                for name in self.failed():
                    self.free(name)
                code, text = self.end(self.start(self.controllers[0], self.names))
        evicted, refused = audit.evictions()
        told += ["repeated %d times" % repetitions,
                 "%d pods were evicted, %d times a budget refused" % (len(evicted), refused)]
        nodes = audit.nodes()
        wrong += judge(nodes, self.limit, self.of_zone,
                       self.opens.strftime("%Y-%m-%dT%H:%M") if self.opens else "")
        wrong += judge_gates(nodes, self.gates())
        # Each had a node that was to be changed
        wrong += ["pod %s was there before the storm, and nobody has evicted it" % name
                  for name in sorted(served.difference(evicted))]
        undone = [name for name in self.names if not (self.place / ("done." + name)).exists()]
        if undone or code:
            wrong.append("not done: %s (%d)\n%s\n%s" % (", ".join(undone), code, text[-3000:],
                                                      "\n".join(each[1][-1500:] for each in ended)))
        last = {each.name: each for each in nodes}
        wrong += ["%s stays cordoned: %s" % (each.name, each.reason) for each in last.values() if each.cordoned]
        wrong += ["pod %s was deleted, not evicted" % name for name in audit.deleted_pods()]
        wrong += ["when all was over, %s" % said for pool in self.pools() for said in (
            *("%s had a place" % name for name in pool["slots"]), *(["a rollout was open"] if pool["rollout"] else []))]
        assert not wrong, "\n".join([*wrong, *told])
        return told

    def gates(self) -> Dict[str, Optional[str]]:
        paths = {name: self.place / ("gate." + name) for name in self.names}
        return {name: path.read_text() if path.exists() else None for name, path in paths.items()}

    def served(self) -> Set[str]:
        """The pods of the service, once each has its node."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            there = {each["metadata"]["name"] for each in self.client.items(PODS) if each["spec"].get("nodeName")}
            if len(there) == self.replicas:
                return there
            assert time.monotonic() < deadline, "%d of %d pods have a node" % (len(there), self.replicas)
            time.sleep(0.1)

    def stood(self, codes: Sequence[int]) -> Dict[str, Stood]:
        """codes: with which the runs have ended."""
        failed = self.failed()
        return {name: Stood((self.place / ("begun." + name)).exists(), (self.place / ("done." + name)).exists(),
                            failed.get(name), self.behaviours[name] == "no container",
                            codes[number % len(codes)] == 0)
                for number, name in enumerate(self.names)}

    def disturb(self, runs: Sequence[Any], ends: Sequence[Future[Tuple[int, str]]]) -> List[str]:
        """One misfortune after the other, while any run is at work."""
        told: List[str] = []
        begun = time.monotonic()
        drawn = sorted((self.dice.uniform(3, STORM_SECONDS), what) for what, often in MISFORTUNES.items()
                       if self.dice.random() * 100 < often)
        for at, what in drawn:
            while time.monotonic() < begun + at and not all(end.done() for end in ends):
                time.sleep(0.1)
            if all(end.done() for end in ends):
                break
            victim, seconds = self.dice.choice(runs), self.dice.uniform(0.5, 3 * LEASE_SECONDS)
            told.append("%s (%.0f s after the start, %.0f s)" % (what, at, seconds))
            if what == "kill":
                victim.send_signal(signal.SIGKILL)
            elif what == "stand still":
                stand_still(victim.pid, seconds)
            elif what == "hang":
                self.api.hang(seconds)
            elif what == "shed":
                self.bed.shed(seconds)
            else:
                self.api.restart(seconds / 3, whole=what == "restart")
        return told

    def start(self, controller: Controller, names: Sequence[str]) -> Any:
        before = Plan(steps=(STEP,))
        boards = {name: "%d x 10de:2330" % (1 + number % 2) for number, name in enumerate(self.names)}
        own = controller.directory / "own.json"
        own.write_text(json.dumps({"all": {"hosts": {name: {
            "behaviour": self.behaviours[name], "board": boards[name]} for name in names}}}))
        plan = planned(before, returns_to=WAY)
        plan["change"] = dict(plan["change"], board="{{ board }}")
        return controller.start(
            "gpuops.nvidia.site", "--tags", "hosts", "--forks", "8", "--inventory", str(own), hosts=names,
            environment={"ANSIBLE_COLLECTIONS_PATH": str(self.hosts.root)}, variables={
                "gpu_cluster_kubeconfig": str(self.bed.runs), "node_maintenance_timeout": NODE_SECONDS,
                "node_maintenance_offer_timeout": NODE_SECONDS, "gpu_components": [],
                "gpu_rollout_soak": self.soak,
                "gpu_rollout_windows": [{
                    "days": [self.opens.strftime("%a").lower()], "start": self.opens.strftime("%H:%M"),
                    "duration": "12h", "zone": "UTC"}] if self.opens else [],
                "canned": {}, "place": str(self.place), "seconds": 0.3,
                "plans": {"before": plan, "after": planned(Plan())},
                "node_maintenance_lease_seconds": LEASE_SECONDS, "node_maintenance_wait_timeout": PATIENCE_SECONDS,
                "gpu_rollout_limit": self.limit, "gpu_rollout_domain_limit": self.of_zone,
                "gpu_rollout_max_failures": "100", "gpu_rollout_max_unreachable": "100%",
                "gpu_rollout_namespace": self.namespace, "gpu_rollout_interval": 1, "gpu_rollout_timeout": 240})

    def end(self, run: Any) -> Tuple[int, str]:
        try:
            out, err = run.communicate(timeout=RUN_SECONDS + HOST_SECONDS * len(self.names))
        finally:
            run.kill()
        return run.returncode, out + err

    def failed(self) -> Dict[str, str]:
        """{node: why} of the places that failed changes keep."""
        return {name: str(slot.get("reason") or "") for pool in self.pools()
                for name, slot in pool["slots"].items() if slot.get("state") == "failed"}

    def pools(self) -> List[Dict[str, Any]]:
        found = self.client.find("/api/v1/namespaces/%s/configmaps/gpuops-rollout" % self.namespace)
        record = json.loads(((found or {}).get("data") or {}).get("record") or "{}")
        return list((record.get("pools") or {}).values())

    def free(self, name: str) -> None:
        self.controllers[0].tasks([{"gpuops.nvidia.gpu_rollout": {
            "state": "ended", "name": name, "outcome": "freed", "kubeconfig": str(self.api.kubeconfig),
            "namespace": self.namespace}}], hosts=("localhost",))

    def clear(self) -> None:
        for path in (SETS, BUDGETS):
            self.client.delete("%s/%s" % (path, SERVICE))
        for path in (NODES, LEASES):
            for each in self.client.items(path):
                self.client.delete("%s/%s" % (path, each["metadata"]["name"]))
        for each in self.client.items(PODS):
            self.client.delete("%s/%s" % (PODS, each["metadata"]["name"]), each["metadata"]["uid"], "Background", 0)


def stand_still(pid: int, seconds: float) -> None:
    """A run and its workers, as on a machine that is suspended."""
    stopped = list(of_a_run(pid))
    for number in stopped:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGSTOP)
    time.sleep(seconds)
    for number in stopped:
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGCONT)


def of_a_run(pid: int) -> Iterator[int]:
    yield pid
    with suppress(FileNotFoundError):
        for child in Path("/proc/%d/task/%d/children" % (pid, pid)).read_text().split():
            yield from of_a_run(int(child))
