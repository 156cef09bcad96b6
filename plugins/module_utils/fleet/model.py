# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is known of each host and cluster, and the fleet's plan that is made of it. Pure.

fleet_of() puts each host into one part. What several hosts have in common is there once, with their names.

  alike.py     what plans of hosts have in common, and one digest for plans that read alike
  model.py     Note (what is known of one host), Fleet, and fleet_of(), which makes one of the notes
  approval.py  what an approval of a fleet's plan is an approval of, and whether a host's plan is among it
  names.py     many hosts in few words: gpu[001-412]
  text.py      the plan for a terminal
  course.py    how far a run is, in a line where the change of a host begins or ends
  page.py      the same whole, as a page in Markdown or HTML

Each host is in one part of a Fleet, and each plan that several hosts have is in it once. A fleet's plan says what is
done to hosts; in which order that is, the rollout decides, and may be shown with it.
"""
from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Hashable, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar

from ..core.plan import Plan, digest
from ..core.refusal import Refusal
from ..core.secrets import hidden
from .alike import PUT_OFF, UNFINISHED, plan_in
from .approval import index_of

# What a line begins with that says why nothing of a rollout is begun any more
STOPPED = "stopped: "
_Each = TypeVar("_Each")
_Key = TypeVar("_Key", bound=Hashable)


class Standing(enum.Enum):
    """What became of the planning of a host."""

    planned = "planned"
    refused = "refused"
    failed = "failed"
    unreachable = "unreachable"
    left_out = "left_out"
    unshown = "unshown"


@dataclass(frozen=True)
class Note:
    """A host, in few words: text that hosts share is kept apart, once.

    standing: 'refused' is a plan that cannot be carried out, 'failed' is none; 'left_out' has no GPU and is not to have
              one; 'unshown' has a plan that may not be seen.
    alike:    digest of what its plan has in common with others (see alike.common()), '' where there is none.
    promise:  digest of what an approval of its plan is an approval of, '' where there is nothing to approve.
    pods:     those that leave before, as far as the plan names them.
    seconds:  how long the plan's steps are expected to take, None where nobody knows.
    refusals: why there is no plan, where it failed.
    why:      the same where it cannot be reached.
    """

    host: str
    standing: Standing
    alike: str = ""
    promise: str = ""
    pods: Tuple[str, ...] = ()
    seconds: Optional[int] = None
    refusals: Tuple[Refusal, ...] = ()
    why: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return {"host": self.host, "standing": self.standing.value, "alike": self.alike, "promise": self.promise,
                "pods": list(self.pods), "seconds": self.seconds,
                "refusals": [refusal.to_dict() for refusal in self.refusals], "why": self.why}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Note:
        return cls(data["host"], Standing(data["standing"]), data["alike"], data["promise"], tuple(data["pods"]),
                   data["seconds"], tuple(Refusal.from_dict(each) for each in data["refusals"]), data["why"])


@dataclass(frozen=True)
class ClusterNote:
    """A cluster, its plan, and why nothing can be done to it.

    uid:     what tells it from others; '' where nobody had to know.
    promise: as that of a host; by which name the cluster goes is no part of it.
    """

    name: str
    uid: str = ""
    promise: str = ""
    plan: Optional[Plan] = None
    refusals: Tuple[Refusal, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return {"name": self.name, "uid": self.uid, "promise": self.promise, "plan": self.plan and self.plan.to_dict(),
                "refusals": [refusal.to_dict() for refusal in self.refusals]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ClusterNote:
        return cls(data["name"], data["uid"], data["promise"], data["plan"] and Plan.from_dict(data["plan"]),
                   tuple(Refusal.from_dict(each) for each in data["refusals"]))


@dataclass(frozen=True)
class Group:
    """Hosts whose plans read alike.

    hosts:      sorted.
    plan:       of no host.
    put_off:    ids of its steps and requirements that disturb more than is allowed.
    unfinished: ids of steps that an earlier run has begun, and that are to be closed.
    pods:       those that are known to leave before, on all hosts together.
    seconds:    (least, most) that one host is expected to take; None where nobody knows of any.
    """

    hosts: Tuple[str, ...]
    plan: Plan
    put_off: Tuple[str, ...] = ()
    unfinished: Tuple[str, ...] = ()
    pods: Tuple[str, ...] = ()
    seconds: Optional[Tuple[int, int]] = None

    @property
    def is_idle(self) -> bool:
        return not (self.plan.steps or self.plan.requirements or self.unfinished)


@dataclass(frozen=True)
class Reason:
    """Hosts of which the same is refused or failed.

    refusals: those of the first host.
    others:   how many hosts say the same in other words, as where a process has a number.
    """

    hosts: Tuple[str, ...]
    refusals: Tuple[Refusal, ...]
    others: int = 0


@dataclass(frozen=True)
class Silent:
    """Hosts that could not be reached, and what Ansible says of the first. others: as in Reason."""

    hosts: Tuple[str, ...]
    why: str
    others: int = 0


@dataclass(frozen=True)
class Turn:
    """Hosts that are changed after those before them.

    why:     why they stand there, for people.
    units:   how many turns these are, one after another, of hosts that stand there for the same reason.
    seconds: how long one host is expected to take, the longest of them; None where nobody knows.
    jobs:    names of the jobs that end or wait for it.
    """

    hosts: Tuple[str, ...]
    why: str
    units: int = 1
    seconds: Optional[int] = None
    jobs: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Order:
    """In which order hosts of one cluster are changed.

    name:  of the cluster; '' for hosts that are in none.
    head:  how its rollout stands as the plan is made, for people, a line each. No part of what is approved.
    alone: whether all hosts that were to be put in an order are in it, so that it needs no name.
    """

    name: str
    head: Tuple[str, ...] = ()
    turns: Tuple[Turn, ...] = ()
    alone: bool = True

    @property
    def is_stopped(self) -> bool:
        return any(line.startswith(STOPPED) for line in self.head)


@dataclass(frozen=True)
class Fleet:
    """The fleet's plan. digest: of what an approval of it is an approval of.

    idle:        where nothing is to be done, or nothing yet.
    changing:    where something is, the most hosts first.
    refused:     whose plans cannot be carried out; failed: those without one.
    unasked:     of which nobody knows anything: their planning has not begun.
    orders:      in which order the hosts of each cluster are changed, where that is known.
    """

    digest: str
    idle: Tuple[Group, ...] = ()
    changing: Tuple[Group, ...] = ()
    refused: Tuple[Reason, ...] = ()
    failed: Tuple[Reason, ...] = ()
    unreachable: Tuple[Silent, ...] = ()
    left_out: Tuple[str, ...] = ()
    unshown: Tuple[str, ...] = ()
    unasked: Tuple[str, ...] = ()
    orders: Tuple[Order, ...] = ()
    clusters: Tuple[ClusterNote, ...] = ()

    @property
    def parts(self) -> Dict[str, Tuple[str, ...]]:
        """{name of the part: its hosts}; each host is in one."""
        return {
            "idle": _all(self.idle), "changing": _all(self.changing), "refused": _all(self.refused),
            "failed": _all(self.failed), "unreachable": _all(self.unreachable), "left_out": self.left_out,
            "unshown": self.unshown, "unasked": self.unasked,
        }

    def to_dict(self) -> Dict[str, Any]:
        """For programs: each plan once, with the hosts that have it."""
        return {
            "digest": self.digest,
            "hosts": {name: list(hosts) for name, hosts in self.parts.items()},
            "plans": [{"hosts": list(group.hosts), "plan": group.plan.to_dict(), "put_off": list(group.put_off),
                       "unfinished": list(group.unfinished), "seconds": group.seconds and list(group.seconds)}
                      for group in (*self.idle, *self.changing)],
            "refusals": [{"hosts": list(reason.hosts), "refusals": [each.to_dict() for each in reason.refusals]}
                         for reason in (*self.refused, *self.failed)],
            "orders": [{"name": order.name, "head": list(order.head), "turns": [
                {"hosts": list(turn.hosts), "why": turn.why, "units": turn.units, "seconds": turn.seconds,
                 "jobs": list(turn.jobs)} for turn in order.turns]} for order in self.orders],
            "clusters": [cluster.to_dict() for cluster in self.clusters],
        }


def fleet_of(
    hosts: Iterable[str], notes: Iterable[Note], plans: Mapping[str, Mapping[str, Any]],
    clusters: Iterable[ClusterNote] = (), rollouts: Iterable[Mapping[str, Any]] = (),
) -> Fleet:
    """The plan of these hosts, in any order.

    notes:    of other hosts are left out; of two of one host, the later counts.
    plans:    {digest: what alike.common() has told} of the notes' plans.
    rollouts: {'name', 'head', 'alone', 'rollout': {'units': [{'hosts', 'why', 'seconds', 'jobs'}, ...]}} of each
              cluster, the units in order; all but 'rollout', 'units', 'hosts' and 'why' may be missing.
    """
    known = {note.host: note for note in notes}
    asked = sorted(set(hosts))
    there = [known[host] for host in asked if host in known]
    by = {standing: [note for note in there if note.standing is standing] for standing in Standing}
    groups = [_group(members, plans[key]) for key, members in _alike(by[Standing.planned], lambda each: each.alike)]
    groups.sort(key=lambda group: (-len(group.hosts), group.hosts))
    served = tuple(sorted((_shown(cluster) for cluster in clusters), key=lambda each: (each.name, each.uid)))
    return Fleet(
        digest=digest(index_of(there, served)),
        idle=tuple(group for group in groups if group.is_idle),
        changing=tuple(group for group in groups if not group.is_idle),
        refused=_reasons([(note, plan_in(plans[note.alike]).refusals) for note in by[Standing.refused]]),
        failed=_reasons([(note, _hidden(note.refusals)) for note in by[Standing.failed]]),
        unreachable=_silent(by[Standing.unreachable]),
        left_out=tuple(note.host for note in by[Standing.left_out]),
        unshown=tuple(note.host for note in by[Standing.unshown]),
        unasked=tuple(host for host in asked if host not in known),
        orders=_orders(rollouts, set(asked)),
        clusters=served,
    )


def _alike(each: Iterable[_Each], by: Callable[[_Each], _Key]) -> List[Tuple[_Key, List[_Each]]]:
    found: Dict[_Key, List[_Each]] = {}
    for one in each:
        found.setdefault(by(one), []).append(one)
    return list(found.items())


def _group(notes: Sequence[Note], found: Mapping[str, Any]) -> Group:
    seconds = sorted(note.seconds for note in notes if note.seconds is not None)
    return Group(tuple(note.host for note in notes), plan_in(found), tuple(found[PUT_OFF]), tuple(found[UNFINISHED]),
                 tuple(sorted({pod for note in notes for pod in note.pods})),
                 (seconds[0], seconds[-1]) if seconds else None)


def _reasons(refused: Sequence[Tuple[Note, Tuple[Refusal, ...]]]) -> Tuple[Reason, ...]:
    """By which refusals they are; the one that most hosts have first."""
    found = [Reason(tuple(note.host for note, _refusals in members), members[0][1],
                    sum(refusals != members[0][1] for _note, refusals in members))
             for _codes, members in _alike(refused, lambda each: tuple(refusal.code for refusal in each[1]))]
    return tuple(sorted(found, key=lambda reason: (-len(reason.hosts), reason.hosts)))


def _silent(notes: Sequence[Note]) -> Tuple[Silent, ...]:
    """By what is said of them, but for their own names and addresses."""
    found = [Silent(tuple(note.host for note in members), hidden(members[0].why),
                    sum(note.why != members[0].why for note in members))
             for _why, members in _alike(notes, lambda note: "".join(
                 each for each in note.why.replace(note.host, "") if not each.isdigit()))]
    return tuple(sorted(found, key=lambda silent: (-len(silent.hosts), silent.hosts)))


def _orders(rollouts: Iterable[Mapping[str, Any]], asked: "set[str]") -> Tuple[Order, ...]:
    """Clusters take turns with each other, so that each has a list of its own."""
    given = list(rollouts)
    orders = [Order(hidden(str(each.get("name") or "")), tuple(hidden(str(line)) for line in each.get("head") or ()),
                    _turns(each["rollout"]["units"], asked), len(given) == 1 and each.get("alone") is not False)
              for each in given]
    return tuple(order for order in orders if order.turns or order.head)


def _turns(given: Iterable[Mapping[str, Any]], asked: "set[str]") -> Tuple[Turn, ...]:
    """Those of one reason that follow each other as one."""
    turns: List[Turn] = []
    for each in given:
        seconds = each.get("seconds")
        turn = Turn(tuple(sorted(asked.intersection(each["hosts"]))), hidden(str(each["why"])), 1,
                    None if seconds is None else int(seconds), tuple(sorted(set(hidden(each.get("jobs") or ())))))
        if not turn.hosts:
            continue
        last = turns[-1] if turns else None
        if last is not None and last.why == turn.why:
            known = [one for one in (last.seconds, turn.seconds) if one is not None]
            turns[-1] = Turn(tuple(sorted({*last.hosts, *turn.hosts})), turn.why, last.units + 1,
                             max(known) if known else None, tuple(sorted({*last.jobs, *turn.jobs})))
        else:
            turns.append(turn)
    return tuple(turns)


def _shown(cluster: ClusterNote) -> ClusterNote:
    plan = cluster.plan
    return replace(cluster, name=hidden(cluster.name), plan=plan and Plan.from_dict(hidden(plan.to_dict())),
                   refusals=_hidden(cluster.refusals))


def _hidden(refusals: Iterable[Refusal]) -> Tuple[Refusal, ...]:
    return tuple(Refusal.from_dict(hidden(refusal.to_dict())) for refusal in refusals)


def _all(groups: Iterable[Any]) -> Tuple[str, ...]:
    return tuple(sorted(host for group in groups for host in group.hosts))
