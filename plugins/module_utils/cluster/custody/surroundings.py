# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is looked up beside a Node: the marks of others in objects of their own, and the Machine behind the Node.

None of it has to be there, and who may not read it is not kept from working: others are seen by the Node then.
"""
from __future__ import annotations

import math
import time
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ..client import ApiError, Client
from ..observation import DAEMON_SETS
from . import marks
from .claims import Apply, claims, said_of, withdrawal
from .leases import GROUP
from .run import Run

# https://cluster-api.sigs.k8s.io/reference/api/labels-and-annotations
_MACHINE = "cluster.x-k8s.io/machine"
_MACHINE_NAMESPACE = "cluster.x-k8s.io/cluster-namespace"
_SKIP_REMEDIATION = "cluster.x-k8s.io/skip-remediation"
MACHINES = "cluster.x-k8s.io"
_MACHINE_VERSIONS = ("v1beta2", "v1beta1")
# Seconds for which the DaemonSets count as they were listed where Nodes are listed again and again
LIST_SECONDS = 30.0

Object = Dict[str, Any]


def marks_of(cluster: Client, node: Mapping[str, Any], now: Callable[[], float]) -> List[marks.Mark]:
    """All that others have written about a node, wherever they have. now: seconds since the epoch."""
    name = str(node["metadata"]["name"])
    lease = _readable(lambda: cluster.find("/apis/%s/v1/namespaces/%s/leases/node-%s" % (
        GROUP, marks.MEDIK8S_NAMESPACE, name)))
    daemon_sets = _listed(cluster, DAEMON_SETS, metadata_only=not marks.wants_reboot(node))
    found = [*marks.on_node(node), *marks.of_medik8s(lease, now()), *marks.of_kured(daemon_sets, node, now()),
             *marks.of_machine(machine_of(cluster, node))]
    for path, who in marks.MAINTENANCES.items():
        found += marks.of_maintenances(who, _listed(cluster, path), name)
    return found


class MarksInLists:
    """Marks of Nodes that are listed, many at a time: by what each says, and by kured's lock for one that says that
    kured wants to reboot it."""

    def __init__(self, cluster: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._kureds: List[Object] = []
        self._read_at = -math.inf

    def of(self, node: Mapping[str, Any]) -> List[marks.Mark]:
        kureds: Sequence[Object] = ()
        if marks.wants_reboot(node):
            if self._clock() - self._read_at > LIST_SECONDS:
                self._kureds = [each for each in _listed(self._cluster, DAEMON_SETS) if marks.is_kureds(each)]
                self._read_at = self._clock()
            kureds = self._kureds
        return [*marks.on_node(node), *marks.of_kured(kureds, node, self._cluster.now().timestamp())]


def names_machine(node: Mapping[str, Any]) -> bool:
    """Whether a Node is one of Cluster API's."""
    annotations = node["metadata"].get("annotations") or {}
    return bool(annotations.get(_MACHINE) and annotations.get(_MACHINE_NAMESPACE))


def machine_of(cluster: Client, node: Mapping[str, Any]) -> Optional[Object]:
    """The Machine of Cluster API, where it is kept in this cluster and may be read."""
    if not names_machine(node):
        return None
    annotations = node["metadata"]["annotations"]
    for version in _MACHINE_VERSIONS:
        path = "/apis/%s/%s/namespaces/%s/machines/%s" % (
            MACHINES, version, annotations[_MACHINE_NAMESPACE], annotations[_MACHINE])
        machine: Optional[Object] = _readable(lambda path=path: cluster.find(path))  # type: ignore[misc]
        if machine is not None:
            return machine
    return None


def machine_path(machine: Mapping[str, Any]) -> str:
    return "/apis/%s/namespaces/%s/machines/%s" % (
        machine["apiVersion"], machine["metadata"]["namespace"], machine["metadata"]["name"])


def is_claimed(machine: Optional[Mapping[str, Any]]) -> bool:
    """Whether runs of ours say anything of a Machine."""
    return machine is not None and bool(claims(machine))


def protected(machine: Mapping[str, Any], run: Run) -> Optional[Apply]:
    """What a run says so that a MachineHealthCheck does not replace the Machine; None where it is said already.

    The annotation counts by being there, whoever has set it. But one of another run of ours goes with that run, which
    may find out only later that the node is not its own any more: it is said beside it.
    """
    there, runs = machine["metadata"].get("annotations") or {}, claims(machine)
    if run.manager in runs or (_SKIP_REMEDIATION in there and not runs):
        return None
    return Apply(run.manager, said_of(machine, {_SKIP_REMEDIATION: there.get(_SKIP_REMEDIATION, "")}, {}))


def next_unprotected(machine: Mapping[str, Any], run: Optional[Run] = None) -> Optional[Apply]:
    """The next of our claims on a Machine to withdraw. run: the only one whose claim it is to be."""
    there = [manager for manager in sorted(claims(machine)) if run is None or manager == run.manager]
    return withdrawal(machine, there[0]) if there else None


def _listed(cluster: Client, path: str, metadata_only: bool = False) -> List[Object]:
    return _readable(lambda: cluster.items(path, metadata_only=metadata_only)) or []


def _readable(read: Callable[[], Any]) -> Any:
    """None where there is no such kind, or it may not be read."""
    try:
        return read()
    except ApiError as error:
        if error.status in (403, 404):
            return None
        raise
