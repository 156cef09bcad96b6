# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Lease of a node: which run works on it, and when its holder counts as dead. Pure.

As client-go's leader election has it (tools/leaderelection): who waits notes the time on his own clock when he sees the
record change, and counts the record's own duration from there. The times that a holder writes are for people.
"""
from __future__ import annotations

import datetime
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional

from ..components.common import MANAGED_BY, OURS, PART_OF
from .run import Run

GROUP = "coordination.k8s.io"
_PREFIX = "custody-"
LABELS = {MANAGED_BY: OURS, PART_OF: OURS, "app.kubernetes.io/component": "custody"}
SELECTOR = ",".join("%s=%s" % each for each in sorted(LABELS.items()))
# Of MicroTime: with fewer digits the API server refuses it
_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"

Object = Dict[str, Any]


@dataclass(frozen=True)
class Record:
    """What a Lease says. holder: '' for nobody; seconds: how long it counts from when it was seen to change.

    version and uid: of the object.
    """

    holder: str
    seconds: int
    acquired: str
    renewed: str
    transitions: int
    version: str
    uid: str


class Watch:
    """What one who waits has seen of a Lease, by his own clock.

    has_changed: whether its holder, or another one, has written it since it was seen first.
    """

    def __init__(self) -> None:
        self._seen: Optional[Record] = None
        self._since = 0.0
        self.has_changed = False

    def has_run_out(self, record: Record, now: float) -> bool:
        """Whether the holder counts as dead. now: seconds of a clock that only goes forward."""
        if record != self._seen:
            self.has_changed = self._seen is not None
            self._seen, self._since = record, now
        return now - self._since > record.seconds

    def seconds_left(self, now: float) -> float:
        """Until what was seen last has run out."""
        return self._since + (self._seen.seconds if self._seen else 0) - now


def name_of(node: str) -> str:
    """Of the Lease of a node."""
    return _PREFIX + node


def path_of(namespace: str, node: str = "") -> str:
    """Of the Lease of a node, or of all in a namespace."""
    all_of_them = "/apis/%s/v1/namespaces/%s/leases" % (GROUP, namespace)
    return "%s/%s" % (all_of_them, name_of(node)) if node else all_of_them


def record_of(lease: Mapping[str, Any]) -> Record:
    metadata, spec = lease.get("metadata") or {}, lease.get("spec") or {}
    return Record(
        str(spec.get("holderIdentity") or ""), int(spec.get("leaseDurationSeconds") or 0),
        str(spec.get("acquireTime") or ""), str(spec.get("renewTime") or ""), int(spec.get("leaseTransitions") or 0),
        str(metadata.get("resourceVersion") or ""), str(metadata.get("uid") or ""))


def new(node: Mapping[str, Any], namespace: str, run: Run, seconds: int, now: float) -> Object:
    """A Lease that goes with its Node. now: seconds since the epoch."""
    metadata = node["metadata"]
    return {
        "apiVersion": GROUP + "/v1", "kind": "Lease",
        "metadata": {
            "name": name_of(metadata["name"]), "namespace": namespace, "labels": dict(LABELS),
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": metadata["name"],
                                 "uid": metadata["uid"]}]},
        "spec": {"holderIdentity": run.identity, "leaseDurationSeconds": seconds, "acquireTime": timestamp(now),
                 "renewTime": timestamp(now), "leaseTransitions": 0}}


def taken_over(record: Record, node: Mapping[str, Any], run: Run, seconds: int, now: float) -> Object:
    """The patch by which another run has it; also where the Node was made anew meanwhile."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}
    return {"metadata": {"resourceVersion": record.version, "ownerReferences": [owner]},
            "spec": {"holderIdentity": run.identity, "leaseDurationSeconds": seconds, "acquireTime": timestamp(now),
                     "renewTime": timestamp(now), "leaseTransitions": record.transitions + 1}}


def renewed(record: Record, seconds: int, now: float) -> Object:
    """The patch by which its holder shows that he lives."""
    return {"metadata": {"resourceVersion": record.version},
            "spec": {"leaseDurationSeconds": seconds, "renewTime": timestamp(now)}}


def timestamp(now: float) -> str:
    """With all six decimals, which isoformat() leaves out where they are zero."""
    return datetime.datetime.fromtimestamp(now, datetime.timezone.utc).strftime(_TIME)
