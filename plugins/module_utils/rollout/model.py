# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hosts as a rollout sees them, what it makes of them, and how it stands at an instant. Pure data.

A rollout is of one cluster, or of hosts that are in none. All names are those of hosts; a node that is no host of ours
may stand by its own name where it takes a place in a limit.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple

from ..core.plan import Disruption
from ..core.refusal import Refusal
from .policy import Policy


@dataclass(frozen=True, order=True)
class Kind:
    """What has to go well once before it is done to all: hosts of one kind are changed alike. '' is unknown or none."""

    board: str = ""
    system: str = ""
    runtime: str = ""
    driver_from: str = ""
    driver_to: str = ""

    def __str__(self) -> str:
        what = ", ".join(part for part in (self.board, self.system, self.runtime) if part) or "hosts"
        if self.driver_from == self.driver_to:
            return what
        return "%s, driver %s to %s" % (what, self.driver_from or "none", self.driver_to or "none")


@dataclass(frozen=True)
class Host:
    """A host, its plan, and what its Node says.

    node:        name of its Node, '' where it is in no cluster.
    plan:        digest of what its plan does, the same for hosts to which the same is done; '' is nothing to do.
    disruption:  the highest of its plan.
    domain:      what fails together with it (a rack, a zone); hosts of which that is not known are in one, ''.
    clique:      its IMEX domain, '' none.
    job_group:   hosts that work on one job; not looked at where there is a clique.
    groups:      host groups that windows may name.
    reachable:   False where the host could not be asked: nothing is known of its plan.
    ready:       the Node's condition; True where there is no Node.
    cordoned_by: who took it out of service, where that was not us; '' nobody.
    marks:       what other managers have written on the Node while they are at work, or want it left alone.
    half_done:   a run of ours began with it and did not end; the node is still ours to give back.
    failed:      what failed when this very plan was tried, '' nothing; it stands until a person takes it away.
    in_service:  False for a node that has not taken work yet.
    seconds:     how long its change is expected to take, drain and checks included.
    jobs:        names of the jobs that end or wait for it; one that is on several hosts has one name.
    """

    name: str
    node: str = ""
    plan: str = ""
    disruption: Disruption = Disruption.none
    kind: Kind = Kind()
    domain: str = ""
    clique: str = ""
    job_group: str = ""
    groups: Tuple[str, ...] = ()
    reachable: bool = True
    ready: bool = True
    cordoned_by: str = ""
    marks: Tuple[str, ...] = ()
    half_done: bool = False
    failed: str = ""
    in_service: bool = True
    seconds: int = 0
    jobs: FrozenSet[str] = frozenset()

    @property
    def group(self) -> str:
        """What it restarts with, '' where it stands alone."""
        return self.clique or self.job_group

    @property
    def waits_for_nobody(self) -> bool:
        """Whether its change takes no work away from it."""
        return not self.half_done and (not self.plan or self.disruption <= Disruption.service_restart)


class Place(enum.IntEnum):
    """Why a unit stands where it does, in the order in which they go."""

    half_done = 0
    canary = 1
    in_order = 2


@dataclass(frozen=True)
class Unit:
    """Hosts that are changed at once.

    name:       'host gpu-1', 'clique X' or 'job group X'.
    hosts:      sorted.
    why:        why it stands at its place, for people.
    one_by_one: the clique or job group of which only one unit is changed at a time; '' none.
    """

    name: str
    hosts: Tuple[str, ...]
    place: Place
    why: str
    one_by_one: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return {"name": self.name, "hosts": list(self.hosts), "place": self.place.name, "why": self.why,
                "one_by_one": self.one_by_one}


@dataclass(frozen=True)
class Limits:
    """How many hosts may be out of service at once: in all, and in each failure domain; {} is no limit of domains."""

    total: int
    domains: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """What becomes of each host: it waits for nobody, it is refused, or it is in one unit.

    hosts:     {name: host} of all.
    beside:    those that nobody waits for and that wait for nobody.
    refused:   {host: why it is not changed}.
    units:     in order.
    """

    policy: Policy
    hosts: Mapping[str, Host]
    beside: Tuple[str, ...]
    refused: Mapping[str, Refusal]
    units: Tuple[Unit, ...]
    limits: Limits

    def to_dict(self) -> Dict[str, Any]:
        return {
            "beside": list(self.beside),
            "refused": {name: refusal.to_dict() for name, refusal in self.refused.items()},
            "units": [unit.to_dict() for unit in self.units],
            "limits": {"total": self.limits.total, "domains": dict(self.limits.domains)},
        }


@dataclass(frozen=True)
class Present:
    """How things stand at an instant, read anew for each question.

    now:         aware.
    in_progress: hosts that are out of service for a change now, those of other runs included.
    done:        hosts that this rollout has changed, and that are back in service.
    failed:      {host: what failed}; they keep their places.
    unhealthy:   {changed host: what is wrong with it since}.
    cordoned:    {host: who took it out of service}, where that was not us.
    marked:      {host: the mark of another manager}: it is not begun with, and takes no place.
    not_ready:   hosts whose Node is not Ready.
    unreachable: hosts that could not be reached.
    since:       what Decision.since told before: so waits keep the instant of their beginning.
    """

    now: datetime
    in_progress: FrozenSet[str] = frozenset()
    done: FrozenSet[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    cordoned: Mapping[str, str] = field(default_factory=dict)
    marked: Mapping[str, str] = field(default_factory=dict)
    not_ready: FrozenSet[str] = frozenset()
    unreachable: FrozenSet[str] = frozenset()
    since: Mapping[str, Tuple[str, datetime]] = field(default_factory=dict)


class Cause(enum.Enum):
    """What a unit waits for."""

    stopped = "stopped"
    others = "others"
    unreachable = "unreachable"
    canary = "canary"
    group = "group"
    window = "window"
    slots = "slots"
    turn = "turn"


@dataclass(frozen=True)
class Waiting:
    """A unit that may not start. why: for people. since: from when on it has waited for this cause."""

    unit: Unit
    cause: Cause
    why: str
    since: datetime

    def to_dict(self) -> Dict[str, Any]:
        return {"unit": self.unit.name, "cause": self.cause.value, "why": self.why, "since": self.since.isoformat()}


@dataclass(frozen=True)
class Slots:
    """Who takes the places of the limit in all, each host once, by the first reason that holds. Sorted names."""

    limit: int
    in_progress: Tuple[str, ...] = ()
    failed: Tuple[str, ...] = ()
    half_done: Tuple[str, ...] = ()
    unhealthy: Tuple[str, ...] = ()
    cordoned: Tuple[str, ...] = ()
    not_ready: Tuple[str, ...] = ()
    unreachable: Tuple[str, ...] = ()

    @property
    def taken(self) -> int:
        return sum(map(len, (self.in_progress, self.failed, self.half_done, self.unhealthy, self.cordoned,
                             self.not_ready, self.unreachable)))

    @property
    def free(self) -> int:
        return max(0, self.limit - self.taken)

    def __str__(self) -> str:
        kinds = (("in progress", self.in_progress), ("failed", self.failed), ("half done", self.half_done),
                 ("changed and not healthy", self.unhealthy), ("cordoned by others", self.cordoned),
                 ("not Ready", self.not_ready), ("unreachable", self.unreachable))
        told = ["%d %s (%s)" % (len(names), what, some(names)) for what, names in kinds if names]
        return "%d of %d free%s" % (self.free, self.limit, "".join("; " + each for each in told))


@dataclass(frozen=True)
class Decision:
    """What may be begun now. All of may_start may be: the limits hold for them together.

    stopped:   why nothing is begun any more; what is in progress goes on to its end.
    under_way: units of which a host is in progress.
    over:      units whose hosts are done or failed.
    slots:     as they are before any of may_start is begun.
    """

    stopped: Tuple[Refusal, ...]
    may_start: Tuple[Unit, ...]
    waiting: Tuple[Waiting, ...]
    under_way: Tuple[Unit, ...]
    over: Tuple[Unit, ...]
    slots: Slots

    @property
    def since(self) -> Dict[str, Tuple[str, datetime]]:
        """{unit: (cause, since when)}, for the next Present."""
        return {each.unit.name: (each.cause.value, each.since) for each in self.waiting}

    def to_dict(self) -> Dict[str, Any]:
        return {
            "stopped": [refusal.to_dict() for refusal in self.stopped],
            "may_start": [unit.name for unit in self.may_start],
            "waiting": [each.to_dict() for each in self.waiting],
            "under_way": [unit.name for unit in self.under_way],
            "over": [unit.name for unit in self.over],
            "slots": str(self.slots),
        }


def some(names: Tuple[str, ...], most: int = 3) -> str:
    """'a, b, c and 4 more'."""
    more = len(names) - most
    return ", ".join(names[:most]) + (" and %d more" % more if more > 0 else "")


def present_of(hosts: Tuple[Host, ...], now: datetime, since: Optional[Mapping[str, Tuple[str, datetime]]] = None,
               **seen: Any) -> Present:
    """How things stood when these hosts were read. seen: what is known beside, as fields of Present."""
    return Present(
        now=now,
        cordoned={host.name: host.cordoned_by for host in hosts if host.cordoned_by},
        marked={host.name: ", ".join(host.marks) for host in hosts if host.marks},
        not_ready=frozenset(host.name for host in hosts if not host.ready),
        unreachable=frozenset(host.name for host in hosts if not host.reachable),
        since=since or {},
        **seen,
    )
