# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hosts as a rollout sees them, what it makes of them, and how it stands at an instant. Pure data.

A rollout is of one cluster, or of hosts that are in none. All names are those of hosts; a node with GPUs that is no
host of this run is a Host too, by the name that node_name() gives it: it is not changed, and counts wherever nodes do.
"""
from __future__ import annotations

import enum
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Dict, FrozenSet, Iterable, Mapping, Optional, Tuple

from ..core.plan import Disruption
from ..core.refusal import Refusal
from .change import concerned_by
from .policy import Policy, policy_of

SCHEMA = "gpuops.nvidia/rollout/v1"
# A part of the fleet with a limit of its own: all of it, or one failure domain
ALL = "all"
UNKNOWN_DOMAIN = "unknown"
_DOMAIN = "domain "


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

    node:        name of its Node, there already or to come; '' where it is to be in no cluster.
    plan:        digest of what its plan does, the same for hosts to which the same is done; '' is nothing to do.
    policy:      what is asked of it, as Change.policy has it.
    disruption:  the highest of its plan.
    takes_out:   whether pods have to leave for it, or may have to for what only the loaded driver tells.
    loaded:      whether its driver is loaded, so that its GPUs may be at work.
    domain:      what fails together with it (a rack, a zone); hosts of which that is not known are in one, ''.
    clique:      its IMEX domain, '' none.
    job_group:   hosts that work on one job; not looked at where there is a clique.
    groups:      host groups that windows may name.
    reachable:   False where the host could not be asked: nothing is known of its plan.
    ready:       the Node's condition; True where there is no Node.
    cordoned_by: who took it out of service, where that was not us; '' nobody.
    marks:       what other managers have written on the Node while they are at work, or want it left alone.
    half_done:   a run of ours began with it and did not end; the node is still ours to give back.
    ours:        whether a run of ours has its Node out of service, be it for what failed there.
    kept:        of one that is half done, whether it is out of service for checks that failed: nothing is to go on.
    failed:      what failed when this policy was tried, or any one where nothing is asked of it now; '' nothing. It
                 stands until a person takes it away.
    refusal:     why its own plan cannot be carried out.
    in_service:  False for a node that has not taken work yet.
    seconds:     how long its change is expected to take, drain and checks included.
    jobs:        names of the jobs that end or wait for it; one that is on several hosts has one name.
    of_run:      False for a node that is no host of this run.
    """

    name: str
    node: str = ""
    plan: str = ""
    policy: str = ""
    disruption: Disruption = Disruption.none
    takes_out: bool = False
    loaded: bool = False
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
    ours: bool = False
    kept: bool = False
    failed: str = ""
    refusal: Optional[Refusal] = None
    in_service: bool = True
    seconds: int = 0
    jobs: FrozenSet[str] = frozenset()
    of_run: bool = True

    @property
    def group(self) -> str:
        """What it restarts with, '' where it stands alone."""
        return self.clique or self.job_group

    @property
    def waits_for_nobody(self) -> bool:
        """Whether its change takes no work away from it, and does not end with a node that is opened."""
        return not self.plan or (not self.ours and self._disturbs_nobody)

    @property
    def is_out_anyway(self) -> bool:
        """Whether its change takes no work away from it, and its node is out of service by us already."""
        return bool(self.plan) and self.ours and self.refusal is None and self._disturbs_nobody

    @property
    def _disturbs_nobody(self) -> bool:
        return (self.kept or not self.half_done) and (
            self.disruption <= Disruption.service_restart and not self.takes_out)

    @property
    def proof(self) -> str:
        """What a canary proves that it stands for: this policy, on this kind."""
        return "%s: %s" % (concerned_by(self.policy), self.kind)

    def to_dict(self) -> Dict[str, Any]:
        told = {name: value for name, value in self.__dict__.items() if value != _DEFAULTS.get(name)}
        told["disruption"] = self.disruption.name
        told["kind"] = asdict(self.kind)
        told["jobs"] = sorted(self.jobs)
        if self.refusal is not None:
            told["refusal"] = self.refusal.to_dict()
        return {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Host:
        refusal = data.get("refusal")
        return cls(**{**data, "disruption": Disruption[data["disruption"]], "kind": Kind(**data["kind"]),
                      "jobs": frozenset(data["jobs"]), "groups": tuple(data.get("groups", ())),
                      "marks": tuple(data.get("marks", ())),
                      "refusal": None if refusal is None else Refusal.from_dict(refusal)})


_DEFAULTS = Host("").__dict__


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
    seconds:    how long the slowest of its hosts is expected to take.
    jobs:       names of the jobs that end or wait for it, sorted.
    """

    name: str
    hosts: Tuple[str, ...]
    place: Place
    why: str
    one_by_one: str = ""
    seconds: int = 0
    jobs: Tuple[str, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return {"name": self.name, "hosts": list(self.hosts), "place": self.place.name, "why": self.why,
                "one_by_one": self.one_by_one, "seconds": self.seconds, "jobs": list(self.jobs)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Unit:
        return cls(data["name"], tuple(data["hosts"]), Place[data["place"]], data["why"], data["one_by_one"],
                   data["seconds"], tuple(data["jobs"]))


@dataclass(frozen=True)
class Limits:
    """How many hosts may be out of service at once: in all, and in each failure domain; {} is no limit of domains."""

    total: int
    domains: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Rollout:
    """What becomes of each host: it waits for nobody, it is refused, or it is in one unit.

    hosts:     {name: host} of all, nodes that are no hosts of this run included.
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

    @property
    def order(self) -> Tuple[str, ...]:
        """The hosts that are to ask, in the order in which they do best."""
        return (*self.beside, *(name for unit in self.units for name in unit.hosts))

    @property
    def of_run(self) -> Dict[str, Host]:
        return {name: host for name, host in self.hosts.items() if host.of_run}

    @property
    def is_counted(self) -> bool:
        """Whether limits hold for it: hosts that are in no cluster have no record that counts them."""
        return any(host.node for host in self.hosts.values())

    def unit_of(self, host: str) -> Optional[Unit]:
        return next((unit for unit in self.units if host in unit.hosts), None)

    def waits_as(self, host: str) -> Unit:
        """Its unit; that of a host which disturbs nobody is itself."""
        return self.unit_of(host) or Unit("host %s" % host, (host,), Place.in_order, "")

    def to_dict(self) -> Dict[str, Any]:
        """All that from_dict() needs. Nodes that are no hosts of this run are read anew, and are not in it."""
        return {
            "schema": SCHEMA,
            "policy": dict(self.policy.given),
            "hosts": {name: host.to_dict() for name, host in self.of_run.items()},
            "beside": list(self.beside),
            "refused": {name: refusal.to_dict() for name, refusal in self.refused.items()},
            "units": [unit.to_dict() for unit in self.units],
            "limits": {"total": self.limits.total, "domains": dict(self.limits.domains)},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Rollout:
        """Raises ValueError, KeyError or TypeError where it is none of ours, GpuOpsError where its policy is none."""
        if data.get("schema") != SCHEMA:
            raise ValueError("not a rollout of schema %s: %r" % (SCHEMA, data.get("schema")))
        return cls(
            policy_of(data["policy"]),
            {name: Host.from_dict(host) for name, host in data["hosts"].items()},
            tuple(data["beside"]),
            {name: Refusal.from_dict(refusal) for name, refusal in data["refused"].items()},
            tuple(Unit.from_dict(unit) for unit in data["units"]),
            Limits(data["limits"]["total"], dict(data["limits"]["domains"])),
        )


@dataclass(frozen=True)
class Present:
    """How things stand at an instant, read anew for each question. All of what is out of service is in it.

    now:              aware.
    in_progress:      hosts that are out of service for a change now, those of other runs included.
    half_done:        hosts that are out of service by a run which is no more.
    kept:             those of half_done that are so for checks which failed: nothing is to go on.
    stays:            those of half_done that nobody goes on with: their checks failed, or this run has refused them.
    uncordoned:       those of half_done whose Node is in service all the same, or will be once it is Ready, or whoever
                      has it gives it back: they have their places, and are to be taken out of service yet.
    repaired:         those of half_done of which a repair is half done, while this is none.
    done:             hosts that this rollout has changed, and that are back in service.
    left:             hosts that turned out not to be changed in this rollout.
    failed:           {host: what failed} by a change of this policy; they keep their places.
    otherwise:        those of failed that this run changes in another way, or that somebody has begun with so since:
                      they failed for others, and for themselves it is not over.
    failed_before:    the same by another policy: they keep their places, and say nothing of this one.
    failed_canaries:  those of failed that were to prove the change.
    unhealthy:        {changed host: what is wrong with it since}.
    found:            those of unhealthy of which checks have found something: a person takes it away, or their change.
    cordoned:         {host: who took it out of service}, where that was not us.
    by_themselves:    those that their own hosts took out of service, which may begin all the same.
    marked:           {host: the mark of another manager}: it is not begun with, and takes no place.
    not_ready:        hosts whose Node is not Ready.
    unreachable:      hosts that could not be reached.
    passed:           Host.proof of all for which a canary has gone well, its soak included.
    proving:          {Host.proof: who proves it now}.
    disproved:        those of proving whose canary checks have found something of.
    soaking:          {host that was a canary: until when it is watched}.
    watched:          {Host.proof: until when the canary that is to prove it is watched}.
    claims:           {part of the fleet: the unit that waits for places there before all others}.
    canaries:         units that are canaries, wait for what ends by itself, and have asked lately.
    patience_is_over: whether canaries that do not ask were waited for long enough.
    since:            what Decision.since told before: so waits keep the instant of their beginning.
    """

    now: datetime
    in_progress: FrozenSet[str] = frozenset()
    half_done: FrozenSet[str] = frozenset()
    kept: FrozenSet[str] = frozenset()
    stays: FrozenSet[str] = frozenset()
    uncordoned: FrozenSet[str] = frozenset()
    repaired: FrozenSet[str] = frozenset()
    done: FrozenSet[str] = frozenset()
    left: FrozenSet[str] = frozenset()
    failed: Mapping[str, str] = field(default_factory=dict)
    otherwise: FrozenSet[str] = frozenset()
    failed_before: Mapping[str, str] = field(default_factory=dict)
    failed_canaries: FrozenSet[str] = frozenset()
    unhealthy: Mapping[str, str] = field(default_factory=dict)
    found: FrozenSet[str] = frozenset()
    cordoned: Mapping[str, str] = field(default_factory=dict)
    by_themselves: FrozenSet[str] = frozenset()
    marked: Mapping[str, str] = field(default_factory=dict)
    not_ready: FrozenSet[str] = frozenset()
    unreachable: FrozenSet[str] = frozenset()
    passed: FrozenSet[str] = frozenset()
    proving: Mapping[str, str] = field(default_factory=dict)
    disproved: FrozenSet[str] = frozenset()
    soaking: Mapping[str, datetime] = field(default_factory=dict)
    watched: Mapping[str, datetime] = field(default_factory=dict)
    claims: Mapping[str, str] = field(default_factory=dict)
    canaries: FrozenSet[str] = frozenset()
    patience_is_over: bool = False
    since: Mapping[str, Tuple[str, datetime]] = field(default_factory=dict)


class Cause(enum.Enum):
    """What a unit waits for."""

    stopped = "stopped"
    rollout = "rollout"
    run = "run"
    others = "others"
    unreachable = "unreachable"
    canary = "canary"
    group = "group"
    window = "window"
    slots = "slots"
    turn = "turn"
    person = "person"


# What does not end by itself within the time that anybody waits
WITHOUT_END = (Cause.stopped, Cause.others, Cause.unreachable, Cause.person)


@dataclass(frozen=True)
class Waiting:
    """A unit that may not start.

    why:    for people.
    since:  from when on it has waited for this cause.
    until:  when it may start at the earliest, where that is known.
    claims: the part of the fleet whose next places are to be its own: it needs several, and nobody may overtake it.
    lasts:  whether it may well not end by itself, as where a node is not Ready; what never does has a cause of its own.
    """

    unit: Unit
    cause: Cause
    why: str
    since: datetime
    until: Optional[datetime] = None
    claims: str = ""
    lasts: bool = False

    def to_dict(self) -> Dict[str, Any]:
        return {"unit": self.unit.name, "cause": self.cause.value, "why": self.why, "since": self.since.isoformat(),
                "until": self.until.isoformat() if self.until else ""}


@dataclass(frozen=True)
class Slots:
    """Who takes the places of the limit in all, each host once, by the first reason that holds. Sorted names."""

    limit: int
    in_progress: Tuple[str, ...] = ()
    failed: Tuple[str, ...] = ()
    half_done: Tuple[str, ...] = ()
    unhealthy: Tuple[str, ...] = ()
    cordoned: Tuple[str, ...] = ()
    by_themselves: Tuple[str, ...] = ()
    not_ready: Tuple[str, ...] = ()
    unreachable: Tuple[str, ...] = ()

    @property
    def taken(self) -> int:
        return sum(map(len, (self.in_progress, self.failed, self.half_done, self.unhealthy, self.cordoned,
                             self.by_themselves, self.not_ready, self.unreachable)))

    @property
    def free(self) -> int:
        return max(0, self.limit - self.taken)

    def __str__(self) -> str:
        kinds = (("in progress", self.in_progress), ("failed", self.failed), ("half done", self.half_done),
                 ("changed and not healthy", self.unhealthy), ("cordoned by others", self.cordoned),
                 ("cordoned by their own hosts", self.by_themselves),
                 ("not Ready", self.not_ready), ("unreachable", self.unreachable))
        told = ["%d %s (%s)" % (len(names), what, some(names)) for what, names in kinds if names]
        return "%d of %d free%s" % (self.free, self.limit, "".join("; " + each for each in told))


@dataclass(frozen=True)
class Decision:
    """What may be begun now. All of may_start may be: the limits hold for them together.

    stopped:   why nothing is begun any more; what is in progress goes on to its end.
    under_way: units of which a host is in progress.
    over:      units whose hosts are done, failed or left as they are.
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


def some(names: Iterable[str], most: int = 3) -> str:
    """'a, b, c and 4 more'."""
    listed = list(names)
    more = len(listed) - most
    return ", ".join(listed[:most]) + (" and %d more" % more if more > 0 else "")


def node_name(node: str) -> str:
    """The name of a node that is no host of the run: none of a host's."""
    return "node " + node


def part_of(domain: str) -> str:
    """The part of the fleet that a failure domain is."""
    return _DOMAIN + domain


def domain_of(part: str) -> Optional[str]:
    """The failure domain that a part is, None for all of them."""
    return None if part == ALL else part[len(_DOMAIN):]
