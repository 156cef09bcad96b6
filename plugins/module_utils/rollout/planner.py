# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""In which order a fleet is changed, and what of it may begin now. Pure: the same input has the same answer.

plan() puts each host in one place. decide() is asked again before anything begins, with what is known then: so a run
that died is continued by any other, and a limit that was lowered meanwhile holds at once.

A host takes a place of the limits while it is in progress, and for as long as it is failed, half done, changed and not
healthy, cordoned by others, not Ready or unreachable. It counts once, so that to begin with one that is down already
takes no further place; what is in progress or failed through us never exceeds a limit. A bad change stops itself: every
host that it breaks makes the next step smaller (Cluster API counts so too), and failed hosts keep their places (a lock
that passes on with time takes one node after another).

The nouns of a rollout:
Policy   what the user says of it (policy.py), windows among it (windows.py).
Change   what a host's plan does, without its name: what hosts have in common that are changed alike (change.py).
Host     a host with its change, its Node, and what the cluster's record knows of it (hosts.py makes it).
Unit     hosts that are changed at once: one, a clique, or a job group.
Rollout  the units of a run in their order, and who is beside it or refused: plan() of planner.py.
Present  how things stand; decide() of planner.py says who may begin then.
Record   what all controllers share (budget.py): the limits, the open rollout, the slots, what canaries have proved.

A host that begins asks; nobody pushes. So a run that dies, a slice that is late and a person who runs it by hand keep
to the same limits, and what is decided is decided of the record and the Nodes as they are then.
"""
from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from typing import AbstractSet, Collection, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.refusal import Refusal
from .model import (
    ALL,
    UNKNOWN_DOMAIN,
    Cause,
    Decision,
    Host,
    Kind,
    Limits,
    Place,
    Present,
    Rollout,
    Slots,
    Unit,
    Waiting,
    domain_of,
    part_of,
    some,
)
from .policy import EVERY_KIND, PARALLEL, Limit, Policy
from .windows import Answer, ask, instant_text


def plan(hosts: Iterable[Host], policy: Policy, now: datetime, passed: Iterable[str] = ()) -> Rollout:
    """What becomes of these hosts. passed: Host.proof of all for which a canary has gone well.

    Raises ValueError where two have the same name.
    """
    by_name: Dict[str, Host] = {}
    for host in sorted(hosts, key=lambda host: host.name):
        if host.name in by_name:
            raise ValueError("two hosts with the name %s" % host.name)
        by_name[host.name] = host
    limits = _limits(by_name.values(), policy)
    own = {name: host for name, host in by_name.items() if host.of_run}
    beside = {name for name, host in own.items() if _stands_beside(host)}
    refused = {name: refusal for name, host in own.items() if name not in beside
               for refusal in (_refusal(host),) if refusal}
    refused.update(_left_by_their_group(own, policy, beside, refused, [
        host for host in by_name.values() if not host.of_run]))
    units = []
    clock = _Clock(by_name, policy, now)
    for unit in _units(own, policy, {*beside, *refused}):
        refusal = _too_large(unit, by_name, limits) or (
            None if _is_out_anyway(unit, by_name) else _without_window(unit, clock))
        if refusal:
            refused.update(dict.fromkeys(unit.hosts, refusal))
        else:
            units.append(unit)
    return Rollout(policy, by_name, tuple(sorted(beside)), {name: refused[name] for name in sorted(refused)},
                   _ordered(units, by_name, policy, frozenset(passed)), limits)


def renewed(
    rollout: Rollout, hosts: Mapping[str, Host], policy: Policy, caps: Tuple[Optional[Limit], Optional[Limit]]
) -> Rollout:
    """The same order with hosts as they are now, nodes beside them included, and with the limits of those.

    policy: whose limits count, which may be others than those that it was planned with.
    caps:   the most that the limits in all and of each failure domain may be, None as they are.
    """
    return replace(rollout, policy=policy, hosts=hosts, limits=_limits(hosts.values(), policy, caps))


def decide(rollout: Rollout, present: Present, asking: Optional[Collection[str]] = None) -> Decision:
    """What may begin at this instant, and what everything else waits for.

    asking: names of the units that ask, where others are silent: a host that is gone would keep its place in the order
            for ever else. None is all of them.
    """
    return _Standing(rollout, present).decision(asking)


def decide_again(rollout: Rollout, present: Present, unit: Unit) -> Decision:
    """Whether a unit that has its places, and has not begun, may begin still.

    A rollout that was stopped since keeps it from that, what others have come to do with its nodes, and its window;
    places and canaries do not, as it has what others wait for.
    """
    return _Standing(rollout, present).again(unit)


def closed_now(rollout: Rollout, name: str, now: datetime) -> Optional[Waiting]:
    """What a host waits for that no budget limits: its window. None where that is open."""
    answer = _Clock(rollout.hosts, rollout.policy, now).answer([name])
    if answer.allowed:
        return None
    return Waiting(rollout.waits_as(name), Cause.window, answer.why, now, until=answer.opens)


def to_prove(rollout: Rollout, unit: Unit, is_proved: Collection[str]) -> Tuple[str, ...]:
    """Host.proof of what a unit is the canary of where it begins now."""
    if rollout.policy.canaries != EVERY_KIND:
        return ()
    return tuple(sorted({host.proof for host in _hosts_of([unit], rollout.hosts)
                         if not host.is_out_anyway}.difference(is_proved)))


def proved(rollout: Rollout, present: Present) -> FrozenSet[str]:
    """Host.proof of all that has gone well once: on a canary, or on any host of this rollout since."""
    well = present.done.difference(present.unhealthy, present.soaking)
    return present.passed.union(rollout.hosts[name].proof for name in well)


def _stands_beside(host: Host) -> bool:
    """Another manager's mark stands against every step, however small, and a failure even where none is left."""
    return host.waits_for_nobody and host.reachable and host.refusal is None and not host.failed and not (
        host.plan and host.marks)


def _refusal(host: Host) -> Optional[Refusal]:
    if host.marks:
        return Refusal(
            "rollout.managed_by_others",
            found="another manager is at work on %s: %s" % (_named(host), ", ".join(host.marks)),
            wanted="a node that nobody else changes",
            remedy="let it end, or take its mark away where it has died or was left behind (`docs/custody.md` has "
            "them), and run again",
        )
    if host.failed:
        return failed_before(host, host.failed)
    if host.refusal is not None:
        return host.refusal
    if not host.reachable:
        return Refusal(
            "rollout.unreachable",
            found="%s could not be asked what is to be done to it" % _named(host),
            wanted="a host that answers",
            remedy="see to it, or leave it out of this run",
        )
    if host.cordoned_by:
        return Refusal(
            "rollout.cordoned_by_others",
            found="%s was taken out of service by %s" % (_named(host), host.cordoned_by),
            wanted="a node in service, which we may take out and give back",
            remedy="uncordon it when its cause is gone, and run again",
        )
    return None


def failed_before(host: Host, reason: str) -> Refusal:
    """Why a host is not tried again."""
    return Refusal(
        "rollout.failed_before",
        found="the change of %s has failed before: %s" % (_named(host), reason),
        wanted="a host that a person has looked at since",
        remedy="find the cause, free it, and run again; another policy is another change",
    )


def interrupted(host: Host) -> Refusal:
    """Why a host is not repaired."""
    return Refusal(
        "rollout.change_unfinished",
        found="a change of %s that is no repair was begun, and did not end" % _named(host),
        wanted="a host that is in the middle of no other change",
        remedy="let the run that began it go on, or run `gpuops.nvidia.site` for this host; then repair what is sick "
               "still",
    )


def _left_by_their_group(
    hosts: Mapping[str, Host], policy: Policy, beside: Set[str], refused: Mapping[str, Refusal],
    strangers: Iterable[Host]
) -> Dict[str, Refusal]:
    """Hosts whose clique or job group cannot be changed as a whole, where it is to be.

    strangers: nodes that are no hosts of this run, of which nobody knows whether they are to be changed.
    """
    missing: Dict[Tuple[bool, str], List[str]] = {}
    why = {name: refusal.found for name, refusal in refused.items()}
    for host in (*(hosts[name] for name in refused), *strangers):
        if _is_parallel(host, policy):
            missing.setdefault(_group(host), []).append(host.name)
            why.setdefault(host.name, "it is no host of this run")
    left = {}
    for name, host in hosts.items():
        others = missing.get(_group(host), []) if _is_parallel(host, policy) else []
        if others and name not in refused and name not in beside:
            left[name] = incomplete(_group_text(host), {other: why[other] for other in others})
    return left


def incomplete(group: str, missing: Mapping[str, str]) -> Refusal:
    """Why a host is left with its clique or job group. missing: {host of it that cannot be changed: why}."""
    return Refusal(
        "rollout.unit_incomplete",
        found="of its %s, which is changed as a whole, %s cannot be changed: %s" % (
            group, some(missing), next(iter(missing.values()))),
        wanted="all hosts that restart together, so that they never run mixed drivers",
        remedy="see to that host first, have all of them in one run (a slice of a job has every nth host), or "
               "let `unit_modes` have the group changed host by host (`rolling`)",
        option="unit_modes",
    )


def _units(hosts: Mapping[str, Host], policy: Policy, others: Set[str]) -> List[Unit]:
    """Without their places, which need all of them."""
    together: Dict[Tuple[bool, str], List[str]] = {}
    units = []
    for name, host in hosts.items():
        if name in others:
            continue
        if _is_parallel(host, policy):
            together.setdefault(_group(host), []).append(name)
        else:
            one_by_one = _group_text(host) if host.group and not host.is_out_anyway else ""
            units.append(_unit("host %s" % name, [host], one_by_one))
    units += [_unit(_group_text(hosts[names[0]]), [hosts[name] for name in names]) for names in together.values()]
    return units


def _unit(name: str, hosts: Sequence[Host], one_by_one: str = "") -> Unit:
    return Unit(name, tuple(host.name for host in hosts), Place.in_order, "", one_by_one,
                max(host.seconds for host in hosts), tuple(sorted(_jobs(hosts))))


def _too_large(unit: Unit, hosts: Mapping[str, Host], limits: Limits) -> Optional[Refusal]:
    # Hosts that are in no cluster are counted by nobody
    needed = [hosts[name] for name in unit.hosts if hosts[name].in_service and hosts[name].node]
    too_small = ["%d of failure domain %s" % (limits.domains[domain], domain or UNKNOWN_DOMAIN)
                 for domain, number in sorted(Counter(host.domain for host in needed).items())
                 if number > limits.domains.get(domain, number)]
    if len(needed) > limits.total:
        too_small.insert(0, "%d in all" % limits.total)
    if not too_small:
        return None
    return Refusal(
        "rollout.unit_above_limit",
        found="the %d hosts of %s, which are changed at once, are more than may be out of service: %s" % (
            len(needed), unit.name, ", ".join(too_small)),
        wanted="limits that let it be changed as a whole",
        remedy="raise `limit` or `domain_limit`, or let `unit_modes` have it changed host by host (`rolling`)",
        option="limit",
    )


def _without_window(unit: Unit, clock: _Clock) -> Optional[Refusal]:
    answer = clock.answer(unit.hosts)
    if answer.opens is not None:
        return None
    return Refusal(
        "rollout.no_window",
        found="%s: %s" % (unit.name, answer.why),
        wanted="a maintenance window for all its hosts that is as long as the change",
        remedy="lengthen a window of `windows`, let one hold for the groups of these hosts, or say by "
               "`expected_duration` how long the change takes at most",
        option="windows",
    )


def _ordered(
    units: Sequence[Unit], hosts: Mapping[str, Host], policy: Policy, passed: FrozenSet[str]
) -> Tuple[Unit, ...]:
    """Half-done ones, a canary of every kind, then what is out of service by a run, then few jobs first, domain by
    domain, the rest by a stable shuffle."""
    half_done = [unit for unit in units if _is_half_done(unit, hosts)]
    blocks = _blocks([unit for unit in units if not _is_half_done(unit, hosts)])
    canaries = _canaries(blocks, hosts, passed, policy.seed) if policy.canaries == EVERY_KIND else {}

    def key(block: Sequence[Unit]) -> Tuple[bool, int, List[str], str]:
        return _key(_hosts_of(block, hosts), policy.seed)

    def inside(block: Sequence[Unit]) -> List[Unit]:
        return sorted(block, key=lambda unit: key([unit]))

    ordered = [replace(unit, place=Place.half_done, why="a run began with it and did not end")
               for unit in sorted(half_done, key=lambda unit: key([unit]))]
    for number in sorted(canaries, key=lambda number: key(blocks[number])):
        why = "canary of %s" % "; ".join(dict.fromkeys(map(str, canaries[number])))
        ordered += [replace(unit, place=Place.canary, why=why) for unit in inside(blocks[number])]
    for block in sorted((block for number, block in enumerate(blocks) if number not in canaries), key=key):
        ordered += [replace(unit, why=_place_text(_hosts_of([unit], hosts))) for unit in inside(block)]
    return tuple(ordered)


def _is_half_done(unit: Unit, hosts: Mapping[str, Host]) -> bool:
    return _is_begun(unit.hosts, {name for name in unit.hosts if hosts[name].half_done},
                     {name for name in unit.hosts if hosts[name].kept})


def _is_begun(names: Sequence[str], half_done: AbstractSet[str], kept: AbstractSet[str]) -> bool:
    """Whether what is half done of some hosts that restart together is a change of them, or takes no other of them out
    of service. One that is kept for its checks is no reason for the rest to go before a canary."""
    all_of_them = frozenset(names)
    there = half_done & all_of_them
    return bool(there) and (not there <= kept or there == all_of_them)


def _blocks(units: Sequence[Unit]) -> List[List[Unit]]:
    """Units that follow each other: those of a clique or a job group that is changed host by host."""
    blocks: Dict[str, List[Unit]] = {}
    for unit in units:
        blocks.setdefault(unit.one_by_one or unit.name, []).append(unit)
    return list(blocks.values())


def _canaries(
    blocks: Sequence[Sequence[Unit]], hosts: Mapping[str, Host], passed: FrozenSet[str], seed: str
) -> Dict[int, List[Kind]]:
    """{number of a block: the kinds that it is the canary of}. A host that is Ready and has few jobs is a good one."""
    kinds_of = [{(host.kind, host.proof) for host in _hosts_of(block, hosts)
                 if host.proof not in passed and not host.is_out_anyway} for block in blocks]
    candidates = sorted(range(len(blocks)), key=lambda number: (
        any(not host.ready for host in _hosts_of(blocks[number], hosts)), _key(_hosts_of(blocks[number], hosts), seed)))
    chosen: Dict[int, List[Kind]] = {}
    for kind in sorted({kind for kinds in kinds_of for kind in kinds}):
        number = next((number for number in chosen if kind in kinds_of[number]),
                      next(number for number in candidates if kind in kinds_of[number]))
        chosen.setdefault(number, []).append(kind[0])
    return chosen


def _key(hosts: Sequence[Host], seed: str) -> Tuple[bool, int, List[str], str]:
    """What a run has left out of service comes first: nobody else makes room for it."""
    shuffled = hashlib.sha256("\0".join([seed, *("%s\0%s" % (host.name, host.plan) for host in hosts)]).encode())
    return (not all(host.ours for host in hosts), len(_jobs(hosts)), sorted({host.domain for host in hosts}),
            shuffled.hexdigest())


def _jobs(hosts: Sequence[Host]) -> Set[str]:
    """A job on several of them is one."""
    return {job for host in hosts for job in host.jobs}


def _place_text(hosts: Sequence[Host]) -> str:
    jobs = len(_jobs(hosts))
    domains = ", ".join(sorted({host.domain or UNKNOWN_DOMAIN for host in hosts}))
    new = "; not in service yet" if not any(host.in_service for host in hosts) else ""
    return "%s, failure domain %s%s" % ("no jobs" if not jobs else "1 job" if jobs == 1 else "%d jobs" % jobs,
                                        domains, new)


def _hosts_of(units: Sequence[Unit], hosts: Mapping[str, Host]) -> List[Host]:
    return [hosts[name] for name in sorted(name for unit in units for name in unit.hosts)]


def _limits(
    hosts: Iterable[Host], policy: Policy, caps: Tuple[Optional[Limit], Optional[Limit]] = (None, None)
) -> Limits:
    """Of the hosts in service: a new node makes no limit larger."""
    domains = Counter({host.domain: 0 for host in hosts})
    domains.update(host.domain for host in hosts if host.in_service)

    def lowest(given: Iterable[Optional[Limit]], number: int) -> int:
        return min(limit.of(number) for limit in given if limit is not None)

    total = lowest((policy.limit, caps[0]), sum(domains.values()))
    of_domain = (policy.domain_limit, caps[1])
    if of_domain == (None, None):
        return Limits(total)
    return Limits(total, {domain: lowest(of_domain, number) for domain, number in sorted(domains.items())})


def _group(host: Host) -> Tuple[bool, str]:
    """A clique and a job group may have the same name."""
    return bool(host.clique), host.group


def _is_out_anyway(unit: Unit, hosts: Mapping[str, Host]) -> bool:
    """Whether there is little to do to what is out of service already: its group runs on as it is, and no window and
    no canary is waited for."""
    return all(hosts[name].is_out_anyway for name in unit.hosts)


def _is_parallel(host: Host, policy: Policy) -> bool:
    return bool(host.group) and not host.is_out_anyway and policy.mode(host.group) == PARALLEL


def _group_text(host: Host) -> str:
    return "%s %s" % ("clique" if host.clique else "job group", host.group)


def _named(host: Host) -> str:
    return "node %s" % host.node if host.node else "host %s" % host.name


class _Clock:
    """Whether changes may begin at one instant. Asked once for hosts of the same groups that take equally long."""

    def __init__(self, hosts: Mapping[str, Host], policy: Policy, now: datetime) -> None:
        self._hosts = hosts
        self._windows = policy.windows
        self._now = now
        self._answers: Dict[Tuple[FrozenSet[Tuple[str, ...]], int], Answer] = {}

    def answer(self, names: Iterable[str]) -> Answer:
        """For hosts that are changed at once."""
        hosts = [self._hosts[name] for name in names]
        groups, seconds = frozenset(host.groups for host in hosts), max(host.seconds for host in hosts)
        if (groups, seconds) not in self._answers:
            calendars = [self._windows.calendar(each) for each in sorted(groups)]
            self._answers[groups, seconds] = ask(calendars, self._now, self._now + timedelta(seconds=seconds))
        return self._answers[groups, seconds]


class _Standing:
    """How a rollout stands at an instant. Begins with the units in their order, and counts each that it lets begin."""

    def __init__(self, rollout: Rollout, present: Present) -> None:
        self._rollout = rollout
        self._present = present
        hosts = rollout.hosts
        self._new = frozenset(name for name, host in hosts.items() if not host.in_service)
        goes_on = present.half_done & present.otherwise
        self._failed: Mapping[str, str] = {
            name: why for name, why in {**present.failed_before, **present.failed}.items() if name not in goes_on}
        self._slots = self._slots_of(present.half_done)
        self._stopped = tuple(self._reasons_to_stop()) if rollout.is_counted else ()
        # What is in progress or failed through us, and all that is out of service
        self._active: Set[str] = {*self._slots.in_progress, *self._slots.failed}
        self._out: Set[str] = {*self._active, *self._slots.half_done, *self._slots.unhealthy, *self._slots.cordoned,
                               *self._slots.by_themselves, *self._slots.not_ready, *self._slots.unreachable}
        # What ends by itself: nothing that went out of reach in the middle of it
        self._passing: Set[str] = set(self._slots.in_progress) - present.unreachable
        # What only a person ends. A node that is not Ready, or offers too little after its change, may come back, and
        # so may one in the hands of another manager; what is half done is taken over by the run that has its host
        self._lasting = self._out.intersection({
            *self._failed, *present.stays, *present.cordoned.keys() - present.marked.keys(), *present.unreachable,
            *present.found}) - self._passing
        # Of what is half done, what serves pods. One that lacks GPUs has them on the others, and one that offers none
        # may have them all the same, as while its device plugin is started again
        self._serving = present.uncordoned - present.not_ready - present.unreachable - present.by_themselves - (
            present.cordoned.keys())
        # {group: why it waits}: for what is under way in it, or not well; and for what has failed there
        self._busy: Dict[str, Tuple[Cause, str]] = {}
        self._broken: Dict[str, str] = {}
        self._proved = proved(rollout, present)
        self._proving: Dict[str, str] = dict(present.proving)
        # Until when canaries of this rollout are watched at least
        self._watched = max((present.soaking[name] for unit in self._canaries() for name in unit.hosts
                             if name in present.soaking), default=None)
        # {part of the fleet: the first unit that waits there for places which become free by themselves}
        self._first: Dict[str, str] = dict(present.claims)
        self._clock = _Clock(hosts, rollout.policy, present.now)
        self._note_groups()
        self._lasting -= self._tried_anew()

    def decision(self, asking: Optional[Collection[str]]) -> Decision:
        under_way, over, open_units = [], [], []
        for unit in self._rollout.units:
            left = set(unit.hosts) - self._present.done - self._present.left
            if left & self._present.in_progress:
                under_way.append(unit)
            elif not left or any(self._failed_now(name) for name in left):
                over.append(unit)
            elif asking is None or unit.name in asking:
                open_units.append(unit)
        canary = self._canary_awaited()
        may_start, waiting = [], []
        for unit in open_units:
            found = self._cause(unit, canary)
            if found is None:
                may_start.append(unit)
                self._begin(unit)
            else:
                waiting.append(found)
        return Decision(self._stopped, tuple(may_start), tuple(waiting), tuple(under_way), tuple(over), self._slots)

    def again(self, unit: Unit) -> Decision:
        found = self._kept_from(unit) or self._closed(unit)
        return Decision(self._stopped, () if found else (unit,), (found,) if found else (), (), (), self._slots)

    def _failed_now(self, name: str) -> bool:
        """One that failed by another policy may be tried by this one."""
        return name in self._present.failed and name not in self._present.otherwise

    def _slots_of(self, half_done: FrozenSet[str]) -> Slots:
        present, seen = self._present, set(self._new)

        def first(names: Iterable[str]) -> Tuple[str, ...]:
            found = tuple(sorted(set(names) - seen))
            seen.update(found)
            return found

        return Slots(self._rollout.limits.total, first(present.in_progress), first(self._failed), first(half_done),
                     first(present.unhealthy), first(present.cordoned), first(present.by_themselves),
                     first(present.not_ready), first(present.unreachable))

    def _reasons_to_stop(self) -> Iterable[Refusal]:
        policy, present = self._rollout.policy, self._present
        failed = tuple(sorted(present.failed))
        if len(failed) > policy.max_failures:
            yield Refusal(
                "rollout.too_many_failures",
                found="%d failed: %s (%s)" % (len(failed), some(failed), present.failed[failed[0]]),
                wanted="not more than %d" % policy.max_failures,
                remedy="find the cause, see to these hosts and free them (module gpu_rollout, `state` ended, `outcome` "
                       "freed); or raise `max_failures`",
                option="max_failures",
            )
        planned = {name for unit in self._rollout.units if unit.place is Place.canary for name in unit.hosts}
        canaries = tuple(sorted((planned - present.otherwise | present.failed_canaries).intersection(present.failed)))
        if canaries:
            yield Refusal(
                "rollout.canary_failed",
                found="the canary %s failed: %s" % (some(canaries), present.failed[canaries[0]]),
                wanted="a change that goes well once before it is done to others",
                remedy="find the cause before any other host is changed so; then free the canary (module gpu_rollout, "
                       "`state` ended, `outcome` freed)",
            )
        unreachable = tuple(sorted(present.unreachable))
        most = policy.max_unreachable.of(len(self._rollout.of_run))
        if len(unreachable) > most:
            yield Refusal(
                "rollout.too_many_unreachable",
                found="%d hosts cannot be reached: %s" % (len(unreachable), some(unreachable)),
                wanted="not more than %d: so many at once are rather a broken network than broken hosts" % most,
                remedy="see to the network, or raise `max_unreachable`",
                option="max_unreachable",
            )

    def _note_groups(self) -> None:
        """Why a clique or a job group that is changed host by host has to wait; hosts of earlier runs count too."""
        for name, host in self._rollout.hosts.items():
            group = _group_text(host)
            if host.group and name in self._present.failed and name in self._failed:
                self._broken[group] = "%s failed: %s" % (name, self._failed[name])
            elif host.group and name in {*self._present.in_progress, *self._present.unhealthy}:
                cause, why = self._not_over(name)
                if cause is Cause.person or group not in self._busy:
                    self._busy[group] = Cause.person if cause is Cause.person else Cause.group, "%s %s" % (name, why)

    def _not_over(self, name: str) -> Tuple[Cause, str]:
        """How it stands with a host that is being changed, or was and is not well."""
        present = self._present
        if name in present.in_progress and name in present.unreachable:
            return Cause.person, "is in progress, and cannot be reached any more"
        if name in present.in_progress:
            return Cause.canary, "is in progress"
        return (Cause.person if name in present.found else Cause.canary,
                "is changed and not healthy: %s" % present.unhealthy[name])

    def _canaries(self) -> List[Unit]:
        return [unit for unit in self._rollout.units
                if unit.place is Place.canary and not self._present.left.issuperset(unit.hosts)]

    def _canary_awaited(self) -> Optional[Tuple[Cause, str]]:
        """Why the first canary that has not gone well yet keeps others waiting. One that asks is waited for, however
        long, and none whose window is closed: of its kind another one that may begin is the canary."""
        present = self._present
        for unit in self._canaries():
            if (present.in_progress | present.done).isdisjoint(unit.hosts) and self._closed(unit) is not None:
                continue
            for name in unit.hosts:
                if name in present.unhealthy or (name in present.in_progress and name not in present.soaking):
                    cause, why = self._not_over(name)
                    return cause, "%s, which %s" % (unit.name, why)
                if name in present.soaking:
                    return Cause.canary, "%s, which is changed, and watched until %s" % (
                        unit.name, instant_text(present.soaking[name]))
                if not (name in present.done or name in present.left
                        or (present.patience_is_over and unit.name not in present.canaries)
                        or self._rollout.hosts[name].proof in self._proved):
                    return Cause.canary, "%s, which is not changed yet" % unit.name
        return None

    def _cause(self, unit: Unit, canary: Optional[Tuple[Cause, str]]) -> Optional[Waiting]:
        """What it waits for; None where it may begin."""
        if not self._rollout.is_counted:
            return self._closed(unit)
        found = self._kept_from(unit)
        if found is not None:
            return found
        present = self._present
        # Nobody waits for another one who could not begin after it
        kept = self._closed(unit) or self._kept_by_a_person(unit)
        if kept is not None:
            return kept
        begun = self._was_begun(unit) or _is_out_anyway(unit, self._rollout.hosts)
        if canary is not None and unit.place is Place.in_order and not begun:
            cause, why = canary
            return self._waiting(unit, cause, "waits for the canary %s" % why, self._watched)
        # What a repair began is out of service already, and has nothing of this change yet
        is_new = not begun or not present.repaired.isdisjoint(self._left(unit))
        for proof in to_prove(self._rollout, unit, self._proved) if is_new else ():
            if proof in self._proving:
                return self._waiting(
                    unit, Cause.person if proof in present.disproved else Cause.canary,
                    "waits for another canary of its kind, %s" % self._proving[proof], present.watched.get(proof))
        return self._kept_by_its_group(unit) or self._room_for(unit)

    def _was_begun(self, unit: Unit) -> bool:
        """Whether a run that is no more has begun with it. That may be known only since the order was made: what has a
        place already waits for none that waits for places."""
        return unit.place is Place.half_done or _is_begun(
            self._left(unit), self._present.half_done, self._present.kept)

    def _kept_from(self, unit: Unit) -> Optional[Waiting]:
        """What keeps it from beginning whether it has places or not."""
        if self._stopped:
            return self._waiting(unit, Cause.stopped, "; ".join(refusal.found for refusal in self._stopped))
        present = self._present
        for name in self._left(unit):
            if name in present.cordoned:
                return self._waiting(unit, Cause.others, "%s was taken out of service by %s" % (
                    name, present.cordoned[name]))
            if name in present.marked:
                return self._waiting(unit, Cause.others, "another manager is at work on %s: %s" % (
                    name, present.marked[name]))
            if name in present.unreachable:
                return self._waiting(unit, Cause.unreachable, "%s cannot be reached" % name)
        return None

    def _closed(self, unit: Unit) -> Optional[Waiting]:
        if _is_out_anyway(unit, self._rollout.hosts):
            return None
        answer = self._clock.answer(self._left(unit))
        return None if answer.allowed else self._waiting(unit, Cause.window, answer.why, answer.opens)

    def _left(self, unit: Unit) -> List[str]:
        return [name for name in unit.hosts if name not in self._present.done and name not in self._present.left]

    def _kept_by_its_group(self, unit: Unit) -> Optional[Waiting]:
        """Where it is one of a clique or a job group that is changed host by host. What has failed there waits for no
        other failure if it is to be changed in another way, but for whatever is under way."""
        held = self._busy.get(unit.one_by_one)
        if unit.one_by_one in self._broken and not self._is_tried_anew(unit):
            held = Cause.person, self._broken[unit.one_by_one]
        if held is None:
            return None
        cause, why = held
        return self._waiting(unit, cause, "%s is changed host by host, and %s" % (unit.one_by_one, why))

    def _is_tried_anew(self, unit: Unit) -> bool:
        return any(name in self._present.failed and not self._failed_now(name) for name in unit.hosts)

    def _tried_anew(self) -> Set[str]:
        """Of what failed by another policy, what this rollout begins with: its place is free where that goes well."""
        present, hosts = self._present, self._rollout.hosts
        others = self._failed.keys() - present.cordoned.keys() - present.unreachable - present.found
        anew = {name for name in others if name in hosts and hosts[name].ours and not self._failed_now(name)}
        return {name for unit in self._rollout.units
                if not anew.isdisjoint(unit.hosts) and self._may_begin_yet(unit) and not self._filled(unit)
                for name in anew.intersection(unit.hosts)}

    def _may_begin_yet(self, unit: Unit) -> bool:
        left = self._left(unit)
        if not left or not self._present.left.isdisjoint(unit.hosts) or any(map(self._failed_now, left)):
            return False
        of_group = self._kept_by_its_group(unit)
        return self._kept_from(unit) is None and self._closed(unit) is None and (
            of_group is None or of_group.cause is not Cause.person)

    def _kept_by_a_person(self, unit: Unit) -> Optional[Waiting]:
        """Where its group, or the room for it, waits for a person."""
        of_group = self._kept_by_its_group(unit)
        if of_group is not None and of_group.cause is Cause.person:
            return of_group
        filled = self._filled(unit)
        return None if filled is None else self._waiting(unit, Cause.person, filled)

    def _filled(self, unit: Unit) -> Optional[str]:
        """What is filled by what only a person ends, and by what; None where there is room beside that."""
        for part, names, limit in self._parts(self._needed(unit)):
            lasting = self._lasting_for(part, names)
            # What is out of service already takes no further place
            out = lasting | (names & self._within(part, self._out))
            if not self._fits(names, lasting & self._active, out, limit):
                return "%s; %s" % (self._told(part, names, limit), self._for_a_person(lasting)
                                   if lasting else "it is larger than that limit")
        return None

    def _lasting_for(self, part: str, names: Iterable[str]) -> AbstractSet[str]:
        """What of this part only a person ends, for these hosts: see _fits() of what is half done. Once it is Ready, it
        is in service."""
        lasting = self._within(part, self._lasting)
        if self._present.half_done.isdisjoint(names):
            return lasting
        return lasting - (self._present.uncordoned - self._present.unreachable - self._active)

    def _for_a_person(self, names: AbstractSet[str]) -> str:
        """With what was found of those that were changed, as no refusal of their own tells it."""
        return "a person has to see to %s" % some([
            "%s (%s)" % (name, self._present.unhealthy[name]) if name in self._present.found else name
            for name in sorted(names)])

    def _room_for(self, unit: Unit) -> Optional[Waiting]:
        parts = list(self._parts(self._needed(unit)))
        for part, _names, _limit in parts:
            if self._first.get(part, unit.name) != unit.name:
                return self._waiting(unit, Cause.turn, "%s is before it, and waits for places" % self._first[part])
        for part, names, limit in parts:
            active, out = self._within(part, self._active), self._within(part, self._out)
            if self._fits(names, active, out, limit):
                continue
            waiting = self._waiting(unit, Cause.slots, self._told(part, names, limit))
            if not self._fits(names, active - self._passing, out - self._passing, limit):
                return self._deadlock(unit, part, limit) or replace(waiting, lasts=True)
            self._first[part] = unit.name
            return replace(waiting, claims=part if len(names - out) > 1 else "")
        return None

    def _deadlock(self, unit: Unit, part: str, limit: int) -> Optional[Waiting]:
        """Where units that are half done keep each other waiting: a limit is lower than when they were begun with."""
        present = self._present
        half_done = {each.name: frozenset(self._within(part, self._needed(each))) for each in self._rollout.units
                     if self._was_begun(each) and not any(map(self._failed_now, each.hosts))}
        half_done = {name: names - self._passing for name, names in half_done.items() if names - self._passing}
        active, out = (self._within(part, names) - self._passing for names in (self._active, self._out))
        # What nobody else gives back. All else that is out of service may come back, and is not what keeps them waiting
        held = {name for names in half_done.values() for name in names}.intersection(
            present.half_done - present.uncordoned - present.cordoned.keys())
        stays = (self._lasting_for(part, unit.hosts) | held) - self._passing
        stuck = [name for name, names in half_done.items() if not (
            self._fits(names, active, out, limit)
            or self._fits(names, stays & active, stays | (names & out), limit))]
        if unit.name not in stuck or len(stuck) < 2 or len(stuck) < len(half_done):
            return None
        return self._waiting(unit, Cause.person, (
            "%s; %s are half done, and none of them has room beside the others: a person has to raise the limit, or to "
            "let `unit_modes` have them changed host by host (`rolling`)") % (
                self._told(part, half_done[unit.name], limit), some(stuck)))

    def _parts(self, needed: FrozenSet[str]) -> Iterable[Tuple[str, FrozenSet[str], int]]:
        """(part of the fleet, those of these hosts that are in it, its limit). Nothing where none counts."""
        hosts, limits = self._rollout.hosts, self._rollout.limits
        if needed:
            yield ALL, needed, limits.total
        for domain in sorted({hosts[name].domain for name in needed} if limits.domains else ()):
            yield part_of(domain), frozenset(
                name for name in needed if hosts[name].domain == domain), limits.domains[domain]

    def _needed(self, unit: Unit) -> FrozenSet[str]:
        return frozenset(unit.hosts) - self._present.done - self._present.left - self._new

    def _within(self, part: str, names: AbstractSet[str]) -> AbstractSet[str]:
        hosts, domain = self._rollout.hosts, domain_of(part)
        return names if domain is None else {
            name for name in names if name in hosts and hosts[name].domain == domain}

    def _told(self, part: str, names: FrozenSet[str], limit: int) -> str:
        out = self._within(part, self._out)
        needs = "needs %d, and " % len(names - (out - self._serving))
        began = tuple(sorted(self._passing.difference(self._slots.in_progress)))
        beginning = "; %d about to begin (%s)" % (len(began), some(began)) if began else ""
        domain = domain_of(part)
        if domain is None:
            return "%sin all there are %s%s" % (needs, self._slots, beginning)
        return "%sfailure domain %s has %d of %d free; out of service: %s" % (
            needs, domain or UNKNOWN_DOMAIN, max(0, limit - len(out)), limit, some(tuple(sorted(out))) or "none")

    def _begin(self, unit: Unit) -> None:
        names = self._needed(unit)
        self._active |= names
        self._out |= names
        self._passing |= names
        self._proving.update(dict.fromkeys(to_prove(self._rollout, unit, self._proved), unit.name))
        if unit.one_by_one:
            self._busy[unit.one_by_one] = Cause.group, "%s is about to begin" % unit.name

    def _waiting(self, unit: Unit, cause: Cause, why: str, until: Optional[datetime] = None) -> Waiting:
        before = self._present.since.get(unit.name)
        since = before[1] if before and before[0] == cause.value else self._present.now
        return Waiting(unit, cause, why, since, until)

    def _fits(self, names: FrozenSet[str], active: AbstractSet[str], out: AbstractSet[str], limit: int) -> bool:
        """Whether they may begin: those at work stay within the limit, and none more is out of service than it says.
        Of what is half done, others that are in service and wait as well have no part in that: each would wait for the
        other."""
        if not names.isdisjoint(self._present.half_done):
            out = out - (self._serving - self._active)
        return len(active | names) <= limit and (names <= out or len(out | names) <= limit)
