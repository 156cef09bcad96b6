# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node that runs take and give back, an admin beside them, and a clock that only sleeping moves.

All of it over HTTP, so that the same tests are held against the API server's double and against the real one.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import (
    MERGE_PATCH,
    SERVER_SIDE_APPLY,
    Client,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims, leases
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import (
    Custody,
    Met,
    Returning,
    Taking,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import (
    CORDON_REASON,
    CORDONED_BY,
    NodePolicy,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError

NODE = "gpu-1"
PATH = "/api/v1/nodes/" + NODE
NAMESPACE = "gpuops"
ADMITTING = {"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/gpu.present": "true"}
NOT_READY = "gpuops.nvidia.com/not-ready"
LEASE_SECONDS = 60
# More than a Lease lasts
PATIENCE = 200.0
# In which a node is to offer its GPUs
OFFER_SECONDS = 20
# What the API server's book has of a Node's fields, but for its status
OWN = ("uid", "resourceVersion", "managedFields", "creationTimestamp")


class Time:
    """A clock that only sleeping moves. meanwhile: what happens while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: List[Callable[[], Any]] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.meanwhile:
            self.meanwhile.pop(0)()

    def wall(self) -> float:
        return 1800000000.0 + self.now


class Killed(BaseException):
    """The process is no more."""


class Blocked(Exception):
    """No refusal of ours, but an error all the same."""


@dataclass
class Drained:
    """A drain that says what it was asked for."""

    asked: List[bool] = field(default_factory=list)
    preview: Optional[Exception] = None
    fails: Optional[Exception] = None
    previewing: Callable[[], Any] = lambda: None
    meanwhile: Callable[[], Any] = lambda: None

    def __call__(self, dry_run: bool, proof: Callable[[], None]) -> Dict[str, Any]:
        self.asked.append(dry_run)
        error = self.preview if dry_run else self.fails
        (self.previewing if dry_run else self.meanwhile)()
        if error is not None:
            raise error
        return {"changed": True, "evicted": []}


class Bed:
    """The cluster's part of it."""

    def __init__(self, client: Client) -> None:
        self.client, self.time, self.told = client, Time(), []  # type: ignore[var-annotated]

    # Runs

    def custody(self, name: str, wait: float = PATIENCE, client: Optional[Client] = None) -> Custody:
        return Custody(client or self.client, Run(name, "ctrl-1"), NAMESPACE, LEASE_SECONDS, wait, self.told.append,
                       self.time.clock, self.time.sleep, self.time.wall)

    def take(self, name: str, drain: Optional[Drained] = None, **options: Any) -> Dict[str, Any]:
        return self.custody(name, **options).take(NODE, taking(drain))

    def admit(self, name: str, offers: Optional[Mapping[str, int]] = None, wait: float = PATIENCE,
              was_taken: bool = True) -> Dict[str, Any]:
        """As site asks: the start-up taint stays until the node is opened."""
        return self.custody(name, wait).admit(NODE, Returning(
            NodePolicy(labels=ADMITTING), offers=offers or {}, timeout=OFFER_SECONDS, was_taken=was_taken))

    def retake(self, name: str) -> Dict[str, Any]:
        """As site asks before it exchanges the driver of a node once more that it has admitted."""
        return self.custody(name).take(NODE, replace(taking(), drain=None, was_taken=True))

    def hold(self, name: str, wait: float = PATIENCE) -> Dict[str, Any]:
        return self.custody(name, wait).hold(NODE)

    def give_back(self, name: str, *failures: str, uid: str = "", was_taken: bool = False, opens: bool = True,
                  unchanged: Callable[[Met], None] = lambda met: None, **options: Any) -> Dict[str, Any]:
        return self.custody(name, **options).give_back(NODE, replace(
            returning(*failures, uid=uid), was_taken=was_taken, opens=opens, unchanged=unchanged))

    # The admin and other programs

    def merge(self, path: str, body: Mapping[str, Any], manager: str) -> Dict[str, Any]:
        return self.client._request("PATCH", path, {"fieldManager": manager}, dict(body), MERGE_PATCH)

    def cordon(self) -> None:
        """As `kubectl cordon`, which sends nothing where the node is cordoned."""
        if not self.node()["spec"].get("unschedulable"):
            self.merge(PATH, {"spec": {"unschedulable": True}}, "kubectl-cordon")

    def uncordon(self) -> None:
        self.merge(PATH, {"spec": {"unschedulable": None}}, "kubectl-uncordon")

    def free(self) -> None:
        """As docs/custody.md has an admin put a node back into service that no run has any more, but for its Lease."""
        self.uncordon()
        self.write("kubectl-annotate", annotations=dict.fromkeys(
            (CORDONED_BY, CORDON_REASON, claims.OFFERS, claims.SCALE_DOWN_DISABLED, claims.DO_NOT_DISRUPT)))

    def write(self, manager: str, **metadata: Any) -> None:
        """Labels or annotations, by their names as they are."""
        self.merge(PATH, {"metadata": metadata}, manager)

    def applied_cordon(self, manager: str, cordoned: bool = True) -> None:
        """As another program that cordons by server-side apply."""
        body: Dict[str, Any] = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}
        if cordoned:
            body["spec"] = {"unschedulable": True}
        self.client._request("PATCH", PATH, {"fieldManager": manager, "force": "true"}, body, SERVER_SIDE_APPLY)

    # What is there

    def node(self) -> Dict[str, Any]:
        return self.client.get(PATH)

    def lease(self) -> Optional[Dict[str, Any]]:
        return self.client.find(leases.path_of(NAMESPACE, NODE))

    def holder(self) -> str:
        found = self.lease()
        return str(found["spec"]["holderIdentity"]) if found else ""

    def taints(self) -> List[str]:
        """Their keys."""
        return [taint["key"] for taint in self.node()["spec"].get("taints") or ()]

    def is_open(self) -> bool:
        return not self.node()["spec"].get("unschedulable")

    def end(self) -> Dict[str, Any]:
        """All that a run may leave behind: it is the same for every way to the same end."""
        node = self.node()
        metadata = {key: value for key, value in node["metadata"].items() if key not in OWN}
        metadata["annotations"] = metadata.get("annotations") or {}
        return {"metadata": metadata, "spec": node["spec"], "claims": sorted(claims.claims(node)),
                "lease": self.lease() is not None}


def kill(client: Client, number: int, after: bool) -> None:
    """Have the process die at this request of the client, before it is sent or after it was carried out."""
    real, sent = client._answer, [0]

    def request(*arguments: Any, **options: Any) -> Any:
        sent[0] += 1
        if sent[0] == number and not after:
            raise Killed
        try:
            return real(*arguments, **options)
        finally:
            if sent[0] == number:
                raise Killed

    client._answer = request  # type: ignore[method-assign]


# The ways that a node goes, each from the beginning to an end that is the beginning

def out_and_back(bed: Bed, run: str) -> None:
    bed.take(run)
    bed.custody(run).renew(NODE)
    bed.admit(run)
    bed.give_back(run, was_taken=True)


def out_and_failed(bed: Bed, run: str) -> None:
    """One that is of no use to its components, and is completed by a later run."""
    bed.take(run)
    bed.admit(run)
    bed.retake(run)
    bed.give_back(run, "xid 79", was_taken=True)
    bed.take(run + "-2")
    bed.give_back(run + "-2", was_taken=True)


def out_and_not_drained(bed: Bed, run: str) -> None:
    error = GpuOpsError("cluster.pods_not_evicted", "a", "b", "c")
    try:
        bed.take(run, Drained(fails=error))
    except GpuOpsError as told:
        if told.code != error.code or told.details["remains"]:
            raise


def taken_over(bed: Bed, run: str) -> None:
    bed.take(run + "-dead")
    bed.take(run)
    bed.give_back(run, was_taken=True)


def left_and_finished(bed: Bed, run: str) -> None:
    bed.take(run + "-dead")
    bed.hold(run)
    bed.admit(run, was_taken=False)
    bed.give_back(run)
    bed.custody(run).release(NODE)


WAYS: Dict[str, Callable[[Bed, str], None]] = {
    "out and back": out_and_back, "out and failed": out_and_failed, "not drained": out_and_not_drained,
    "taken over": taken_over, "finished": left_and_finished}
# By whom a way is completed that ended half-way: a run that goes all of it, and one whose host needs nothing any more
COMPLETIONS: Tuple[Callable[[Bed], Any], ...] = (
    lambda bed: out_and_back(bed, "next"), lambda bed: bed.give_back("next"))


def taking(drain: Optional[Drained] = None, reason: str = "driver upgrade") -> Taking:
    return Taking(reason, NodePolicy(unset_labels=[*ADMITTING, "nvidia.com/mig.config.state"]), drain or Drained(),
                  timeout=30)


def returning(*failures: str, uid: str = "") -> Returning:
    without = NodePolicy(unset_labels=list(ADMITTING), startup_taint=NOT_READY, tainted=True if failures else None)
    return Returning(NodePolicy(labels=ADMITTING, startup_taint=NOT_READY, tainted=False), without, failures, uid)


def refused(code: str, act: Callable[..., Any], *arguments: Any, **options: Any) -> GpuOpsError:
    with pytest.raises(GpuOpsError) as error:
        act(*arguments, **options)
    assert error.value.code == code, str(error.value)
    return error.value
