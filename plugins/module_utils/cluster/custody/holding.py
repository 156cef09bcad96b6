# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Leases as one run has them: acquired, renewed, released."""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

from ...core.errors import GpuOpsError
from ...core.waiting import wait_for
from ..client import ApiError, Client
from ..components.common import SHARED_ARGUMENTS, shared_objects
from ..repeating import ALWAYS
from . import leases
from .leases import Record, Watch, record_of
from .run import Run

CONFLICT = 409
NOT_FOUND = 404
# Of requests that meet other writers
ATTEMPTS = 5
PAUSE_SECONDS = 5.0
# Between two lines about one and the same wait
TELL_SECONDS = 60.0

Tell = Callable[[str], None]


class Waiting:
    """Says what a wait is for: at once, when that changes, and once a minute."""

    def __init__(self, tell: Tell, clock: Callable[[], float]) -> None:
        self._tell, self._clock = tell, clock
        self._began, self._told, self._at = clock(), "", clock()

    @property
    def seconds(self) -> int:
        """How long it has been."""
        return int(self._clock() - self._began)

    def is_for(self, what: str) -> None:
        if what != self._told or self._clock() - self._at >= TELL_SECONDS:
            self._told, self._at = what, self._clock()
            self._tell("Waiting for %d s: %s" % (self.seconds, what))


@dataclass(frozen=True)
class _Own:
    """A Lease of this run as it was written last. clock and now: of when that was asked for."""

    record: Record
    clock: float
    now: float


class Holding:
    """What one run does with the Leases of nodes.

    A Lease that this object has written it renews by one request: the version that it names is no more once anybody
    else has written, so that an answer which is no conflict proves that the node is this run's still.

    namespace: ours, of the Leases. It is made where it is not there, as the components would make it.
    wait:      seconds for a Lease of another run to come free, or to run out. One that shows no life in them is waited
               for until it has run out; with 0 nothing is.
    tell:      says what is waited for.
    clock:     seconds that only go forward; now: seconds since the epoch.
    """

    def __init__(self, cluster: Client, run: Run, namespace: str, wait: float, tell: Tell,
                 clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
                 now: Callable[[], float] = time.time) -> None:
        self._cluster, self._run, self._namespace, self._wait, self._tell = cluster, run, namespace, wait, tell
        self._clock, self._sleep, self._now = clock, sleep, now
        self._own: Dict[str, _Own] = {}
        self._of_others: Dict[str, Record] = {}
        self._ended: Set[str] = set()

    def others_renewed(self, name: str) -> Tuple[str, ...]:
        """When another run had renewed the Lease of a node last before this one had it, by its clock; () none had it.
        """
        return (self._of_others[name].renewed,) if name in self._of_others and self._of_others[name].renewed else ()

    def met_one_that_ended(self, name: str) -> bool:
        """Whether another run had a node when this one asked for its Lease, and has let it go."""
        return name in self._ended

    def acquire(self, node: Mapping[str, Any], seconds: int) -> bool:
        """Have the Lease of a node, for so many seconds. True where this run had it before.

        Raises GpuOpsError where another run has it for as long as there is time to wait.
        """
        name, watch, waiting = str(node["metadata"]["name"]), Watch(), Waiting(self._tell, self._clock)
        tried: List[bool] = []

        def attempt() -> Optional[Record]:
            """None when it is ours, else what another run's says."""
            for _attempt in range(ATTEMPTS):
                record = self._record(name)
                if record is not None and record.holder not in ("", self._run.identity):
                    self._of_others[name] = record
                elif name in self._of_others and (record is None or not record.holder):
                    self._ended.add(name)
                if record is not None and record.holder not in ("", self._run.identity) \
                        and not watch.has_run_out(record, self._clock()):
                    waiting.is_for(_held_by(name, record))
                    return record
                if record is not None and record.holder == self._run.identity and tried:
                    return None
                if record is None or record.holder != self._run.identity:
                    tried.append(True)
                if self._written(node, record, seconds):
                    return None
            return record or Record("", 0, "", "", 0, "", "")

        record, _free = wait_for(attempt, lambda other: other is None, self._wait, PAUSE_SECONDS, self._clock,
                                 self._sleep)
        if record is not None and self._wait > 0 and not watch.has_changed:
            # Who goes away earlier begins to watch anew the next time, so that a dead run would have the node for ever
            record, _free = wait_for(attempt, lambda other: other is None or watch.has_changed,
                                     watch.seconds_left(self._clock()) + PAUSE_SECONDS, PAUSE_SECONDS, self._clock,
                                     self._sleep)
        if record is not None:
            raise self._is_held(name, record, waiting.seconds)
        return not tried

    def renew(self, name: str, seconds: int) -> None:
        """Show that this run lives, and have so many seconds more. Raises GpuOpsError where it has lost the Lease."""
        record: Optional[Record] = None
        for _attempt in range(ATTEMPTS):
            record = self._own[name].record if name in self._own else self._record(name)
            if record is None or record.holder != self._run.identity:
                break
            if self._patched(name, leases.renewed(record, seconds, self._now())):
                return
        raise GpuOpsError(
            "cluster.custody_lost",
            found="run %s no longer has node %s: Lease %s/%s %s" % (
                self._run.identity, name, self._namespace, leases.name_of(name),
                "is held by %s" % record.holder if record is not None and record.holder else "is not there"),
            wanted="the Lease that this run has taken, renewed before it ran out",
            remedy="let the run that has the node now complete it, or run again; with a `lease_seconds` that is longer "
            "than the longest task", option="lease_seconds",
            holder=record.holder if record is not None else "")

    def prove(self, name: str, seconds: int) -> None:
        """The same where the Lease may have run out since it was renewed; else no request.

        By both clocks, as the one that only goes forward stands still while a machine is suspended.
        """
        own = self._own.get(name)
        if own is None or max(self._clock() - own.clock, self._now() - own.now) > own.record.seconds:
            self.renew(name, seconds)

    def release(self, name: str) -> None:
        """Leave a node to others. Another run's Lease stays."""
        for _attempt in range(ATTEMPTS):
            own = self._own.pop(name, None)
            record = own.record if own is not None else self._record(name)
            if record is None or record.holder != self._run.identity:
                return
            if self._cluster.delete(leases.path_of(self._namespace, name), record.uid, "Background",
                                    version=record.version):
                return

    def holder(self, name: str) -> str:
        """Which run has a node; '' for none."""
        record = self._record(name)
        return record.holder if record is not None else ""

    def is_there(self, name: str) -> bool:
        """Whether there is a Lease of a node, be it of a run that has died."""
        return self._record(name) is not None

    def all_names(self) -> List[str]:
        """The names of all Leases of nodes; by one list."""
        return [str(item["metadata"]["name"]) for item in self._cluster.items(
            leases.path_of(self._namespace), metadata_only=True, labelSelector=leases.SELECTOR)]

    def _record(self, name: str) -> Optional[Record]:
        lease = self._cluster.find(leases.path_of(self._namespace, name))
        return None if lease is None else record_of(lease)

    def _written(self, node: Mapping[str, Any], record: Optional[Record], seconds: int) -> bool:
        """Whether the Lease was made, taken over or renewed; another writer may have come first."""
        name = str(node["metadata"]["name"])
        if record is not None:
            mine = record.holder == self._run.identity
            return self._patched(name, leases.renewed(record, seconds, self._now()) if mine else
                                 leases.taken_over(record, node, self._run, seconds, self._now()))
        clock, now = self._clock(), self._now()
        body = leases.new(node, self._namespace, self._run, seconds, now)
        try:
            made = self._cluster.create(leases.path_of(self._namespace), body, repetition=ALWAYS)
        except ApiError as error:
            if error.status == NOT_FOUND:
                self._make_namespace()
            elif error.status != CONFLICT:
                raise
            return False
        self._own[name] = _Own(record_of(made), clock, now)
        return True

    def _patched(self, name: str, body: Dict[str, Any]) -> bool:
        clock, now = self._clock(), self._now()
        self._own.pop(name, None)
        try:
            made = self._cluster.patch(leases.path_of(self._namespace, name), body)
        except ApiError as error:
            if error.status in (CONFLICT, NOT_FOUND):
                return False
            raise
        self._own[name] = _Own(record_of(made), clock, now)
        return True

    def _make_namespace(self) -> None:
        defaults = {name: option.get("default") for name, option in SHARED_ARGUMENTS.items()}
        namespace = shared_objects({**defaults, "namespace": self._namespace})[0]
        self._cluster.apply("/api/v1/namespaces/" + self._namespace, namespace)

    def _is_held(self, name: str, record: Record, waited: int) -> GpuOpsError:
        return GpuOpsError(
            "cluster.node_held",
            found="%s; waited for %d s" % (_held_by(name, record), waited),
            wanted="a node that no other run works on",
            remedy="let that run end. Where it has died, run again with a `wait_timeout` above 0, which waits until "
            "its Lease has run out, or free the node at once: kubectl delete lease %s --namespace %s" % (
                leases.name_of(name), self._namespace),
            option="wait_timeout", holder=record.holder)


def _held_by(name: str, record: Record) -> str:
    return "node %s is held by run %s, whose Lease counts for %d s and was renewed at %s" % (
        name, record.holder or "another", record.seconds, record.renewed or "no time that is known")
