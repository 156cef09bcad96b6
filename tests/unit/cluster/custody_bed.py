# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A node that runs take and give back, an admin beside them, and a clock that only sleeping moves.

All of it over HTTP, so that the same tests are held against the API server's double and against the real one.
"""
from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.client import (
    MERGE_PATCH,
    SERVER_SIDE_APPLY,
    ApiError,
    Client,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody import claims, leases
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.custody import (
    Custody,
    Returning,
    Taking,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.custody.run import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import NodePolicy

NODE = "gpu-1"
PATH = "/api/v1/nodes/" + NODE
NAMESPACE = "gpuops"
ADMITTING = {"nvidia.com/gpu.deploy.device-plugin": "true", "nvidia.com/gpu.present": "true"}
NOT_READY = "gpuops.nvidia.com/not-ready"
LEASE_SECONDS = 600
# More than a Lease lasts
PATIENCE = 1000.0
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


class Blocked(Exception):
    """No refusal of ours, but an error all the same."""


@dataclass
class Drained:
    """A drain that says what it was asked for."""

    asked: List[bool] = field(default_factory=list)
    preview: Optional[Exception] = None
    fails: Optional[Exception] = None
    meanwhile: Callable[[], Any] = lambda: None

    def __call__(self, dry_run: bool) -> Dict[str, Any]:
        self.asked.append(dry_run)
        error = self.preview if dry_run else self.fails
        if not dry_run:
            self.meanwhile()
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

    def give_back(self, name: str, *failures: str, uid: str = "", **options: Any) -> Dict[str, Any]:
        return self.custody(name, **options).give_back(NODE, returning(*failures, uid=uid))

    # The admin and other programs

    def merge(self, path: str, body: Mapping[str, Any], manager: str) -> Dict[str, Any]:
        return self.client._request("PATCH", path, {"fieldManager": manager}, dict(body), MERGE_PATCH)

    def cordon(self) -> None:
        """As `kubectl cordon`, which sends nothing where the node is cordoned."""
        if not self.node()["spec"].get("unschedulable"):
            self.merge(PATH, {"spec": {"unschedulable": True}}, "kubectl-cordon")

    def uncordon(self) -> None:
        self.merge(PATH, {"spec": {"unschedulable": None}}, "kubectl-uncordon")

    def annotate(self, **annotations: Optional[str]) -> None:
        """Dots of a key as two underlines, and its slash as three."""
        self.merge(PATH, {"metadata": {"annotations": {
            key.replace("___", "/").replace("__", ".").replace("_", "-"): value
            for key, value in annotations.items()}}}, "kubectl-annotate")

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

    def is_open(self) -> bool:
        return not self.node()["spec"].get("unschedulable")

    def end(self) -> Dict[str, Any]:
        """All that a run may leave behind: it is the same for every way to the same end."""
        node = self.node()
        metadata = {key: value for key, value in node["metadata"].items() if key not in OWN}
        metadata["annotations"] = metadata.get("annotations") or {}
        return {"metadata": metadata, "spec": node["spec"], "claims": sorted(claims.claims(node)),
                "lease": self.lease() is not None}


def taking(drain: Optional[Drained] = None, reason: str = "driver upgrade") -> Taking:
    return Taking(reason, NodePolicy(unset_labels=[*ADMITTING, "nvidia.com/mig.config.state"]), drain or Drained(),
                  timeout=30)


def returning(*failures: str, uid: str = "") -> Returning:
    without = NodePolicy(unset_labels=list(ADMITTING), startup_taint=NOT_READY, tainted=True if failures else None)
    return Returning(NodePolicy(labels=ADMITTING, startup_taint=NOT_READY, tainted=False), without, failures, uid)


def errors_of(act: Callable[[], Any]) -> str:
    """The code of the error that it ends in; '' where it ends well."""
    try:
        act()
    except ApiError as error:
        return "%s %d" % (error.code, error.status)
    except Exception as error:
        return str(getattr(error, "code", type(error).__name__))
    return ""


def shown(item: Mapping[str, Any]) -> str:
    return json.dumps(item, sort_keys=True, indent=1)
