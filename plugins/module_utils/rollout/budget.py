# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record that all controllers of a cluster share, and what becomes of it: record in, decision and record out. Pure.

It is written whole, by compare and swap: who has read an older one is told so, and reads and decides again. So what is
decided here holds of the record that it is written into. What it cannot hold of are the Nodes, which others change at
any time: who has reserved places lists them again, asks confirmed(), and gives the places back where they are too many.

A pool is a set of nodes with one budget. It has at most one open rollout, which runs with the same aim share, as the
slices of one job do; others wait, and are told for whom. A slot is a node that is out of service for a change, or that
failed in one: it is held by its node, not by a clock, so that no change that takes long passes it on to another node. A
slot of a run that is no more is taken over by whoever takes that node over.
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Callable, Collection, Dict, FrozenSet, Iterable, List, Mapping, Optional, Set, Tuple

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from .change import REPAIR, is_of_one_policy, repairs
from .health import Signs, worse_off
from .model import WITHOUT_END, Cause, Decision, Host, Place, Present, Rollout, Slots, Unit, Waiting, node_name
from .planner import decide, decide_again, failed_before, incomplete, interrupted, proved, renewed, to_prove
from .policy import Policy, policy_of
from .windows import instant_text

SCHEMA = "gpuops.nvidia/budget/v1"
DEFAULT_POOL = "gpus"
WORKING, FAILED = STATES = ("working", "failed")
DONE, LEFT, FREED = "done", "left", "freed"
# What becomes of a host; the last is a person's word of one that had failed
OUTCOMES = (DONE, FAILED, LEFT, FREED)
# How long a unit that needs several places, or a canary that waits, is remembered where it does not ask again
CLAIM = timedelta(minutes=2)
# How long a run may be silent before it writes down once more that it is at work
BEAT = timedelta(minutes=1)
# How long those that begin together wait for the one that has reserved their places to confirm them
CONFIRMING = timedelta(minutes=2)
# Characters of a reason: all that is shared is one object, and whoever gives the reason has said the whole
REASON = 500
# How many failures of a node by other policies than the last one's are remembered
FAILURES = 3
# How many changes of a kind the expected duration is told from, and how many proofs and kinds are remembered
REMEMBERED = 20
# How many nodes are remembered that were given back: those that can be while a fleet is looked at
RETURNED = 1000
PROOFS = 200
_POOL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")

# Whether a run is still at work, as far as anybody can tell
IsAlive = Callable[[str], bool]


@dataclass(frozen=True)
class Slot:
    """A node that is out of service for a change of ours, or that failed in one.

    host:      the host's name in the inventory of its run.
    run:       that which works on it, or did.
    begun:     False where it is only kept for a host that begins together with others.
    confirmed: False while nobody of those that begin together may begin, as the Nodes are listed again.
    counts:    False for a node that had not taken work yet: it takes no place.
    proofs:    Host.proof of what it is the canary of.
    policy:    Host.policy of the change.
    kind:      the host's, in words.
    reason:    what failed.
    before:    the slot of an earlier change that failed here, or did not end, which is there again where this one is
               left undone; of one that failed, that which failed before it by another policy.
    aim:       of the rollout that it is of; '' where that was not written down.
    joined:    of one that does not count, whether its Node has been seen in the cluster.
    domain:    the failure domain that its run knows it to be in, where its Node may not say so.
    """

    host: str
    run: str
    since: datetime
    state: str = WORKING
    begun: bool = True
    confirmed: bool = True
    counts: bool = True
    proofs: Tuple[str, ...] = ()
    policy: str = ""
    kind: str = ""
    reason: str = ""
    before: Optional[Slot] = None
    aim: str = ""
    joined: bool = False
    domain: str = ""

    @property
    def failures(self) -> Tuple[Slot, ...]:
        """What nobody has looked at yet, the last first."""
        earlier = () if self.before is None else self.before.failures
        return (self, *earlier) if self.state == FAILED else earlier

    @property
    def earlier_failure(self) -> Optional[Slot]:
        return next(iter(self.failures), None)

    @property
    def without_its_run(self) -> Optional[Slot]:
        """What is left of it with its run: what that has only reserved is as it was before."""
        return self if self.begun or self.state == FAILED else self.before

    @property
    def taken_over(self) -> Optional[Slot]:
        """The same for who goes on with its node: of what did not end there, nobody's, the failure before it stays."""
        there = self.without_its_run
        if there is None or there.state == FAILED:
            return there
        return replace(there, run="", confirmed=True, before=there.earlier_failure)


@dataclass(frozen=True)
class Run:
    """A run of a controller that takes part in a rollout.

    seen:    when it last wrote down that it is at work, by the API server's clock. Who waits sees that it changes, and
             when it does not any more.
    seconds: how long that counts; 0 leaves it to whoever looks.
    """

    controller: str
    since: datetime
    seen: datetime
    seconds: int = 0


@dataclass(frozen=True)
class Left:
    """A node that a run has left as it is. reason: why it could not be changed; '' where it needed nothing any more."""

    run: str = ""
    reason: str = ""


@dataclass(frozen=True)
class OpenRollout:
    """Runs that change nodes beside each other.

    aim:    what its runs have in common.
    done:   {node: when it was given back}.
    left:   {node: by whom it was not changed}.
    before: {node: when it was given back} in an earlier rollout of this aim.
    """

    aim: str
    since: datetime
    runs: Mapping[str, Run] = field(default_factory=dict)
    done: Mapping[str, datetime] = field(default_factory=dict)
    left: Mapping[str, Left] = field(default_factory=dict)
    before: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True)
class Proof:
    """A canary that went well. at: when it was given back."""

    node: str
    at: datetime


@dataclass(frozen=True)
class Claim:
    """A unit that waits: one of several hosts whose turn it is, or a canary. asked: when it last did."""

    unit: str
    run: str
    asked: datetime


@dataclass(frozen=True)
class Pool:
    """What is shared of a pool.

    limit, domain_limit: as they are written.
    claims:              {part of the fleet: the unit whose its next places are}.
    seconds:             {kind: how long its last changes took}.
    canaries:            {unit: the canary that waits, and asks}.
    last:                the rollout that was closed last, while none is open but one that repairs: hosts that are
                         repaired have nothing in common.
    signs:               {node: what was found of it after its last change}, of those of which something was.
    returned:            {node: when it was given back} in rollouts that are over, or by runs whose rollout was over by
                         then: the last ones.
    """

    limit: str = ""
    domain_limit: str = ""
    rollout: Optional[OpenRollout] = None
    slots: Mapping[str, Slot] = field(default_factory=dict)
    proofs: Mapping[str, Proof] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    seconds: Mapping[str, Tuple[int, ...]] = field(default_factory=dict)
    canaries: Mapping[str, Claim] = field(default_factory=dict)
    last: Optional[OpenRollout] = None
    signs: Signs = field(default_factory=dict)
    returned: Mapping[str, datetime] = field(default_factory=dict)

    def expected(self, kind: str) -> Optional[int]:
        """Seconds in which nine of ten changes of a kind were over, by the last of them; None where none has told."""
        known = sorted(self.seconds.get(kind, ()))
        return known[(len(known) * 9 + 9) // 10 - 1] if known else None


@dataclass(frozen=True)
class Record:
    """All that is shared. caps: {pool: the most that its limits may be}, which people write and no run does."""

    pools: Mapping[str, Pool] = field(default_factory=dict)
    caps: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def pool(self, name: str) -> Pool:
        return self.pools.get(name, Pool())

    def but(self, name: str, pool: Pool) -> Record:
        return replace(self, pools={**self.pools, name: pool})


@dataclass(frozen=True)
class NodeState:
    """A Node with GPUs at this instant.

    cordoned_by: who took it out of service, where that was not us; '' nobody. ours: whether it was us.
    kept:        whether that was for checks that have failed: no change is under way there.
    by_itself:   whether its own host took it out of service, and that is no obstacle, as a repair is asked for.
    in_service:  False for one that has not taken work yet.
    unhealthy:   what is wrong with its GPUs as far as the Node tells, '' nothing.
    of_pool:     False for a host's Node that the selector of the pool does not name. It counts all the same.
    had_gpus:    whether the cluster has seen GPUs at work there: pods may come to them as soon as the driver is loaded.
    """

    name: str
    ready: bool = True
    cordoned_by: str = ""
    ours: bool = False
    kept: bool = False
    by_itself: bool = False
    marks: Tuple[str, ...] = ()
    in_service: bool = True
    domain: str = ""
    clique: str = ""
    unhealthy: str = ""
    of_pool: bool = True
    had_gpus: bool = False


@dataclass(frozen=True)
class Asking:
    """A host that asks, at an instant.

    aim:              what its run has in common with others of its rollout.
    unreachable:      hosts of the run that cannot be reached; those of other rollouts do not count.
    untold:           those that it leaves as they are, as nobody could tell them whether they may begin; it may be that
                      nothing of that is written down.
    signs:            what was found of hosts, beside what the Nodes tell; see health.py. Of changed ones the record
                      has it, too.
    patience:         how long canaries that do not ask are waited for, by it, or by its run before it.
    waited:           how long it has.
    beat:             after how long its run says once more that it is at work.
    seconds:          how long that counts; 0 leaves it to whoever looks.
    unwell:           hosts of the run that need nothing and have failed their checks: what is out of service of them
                      stays so.
    """

    host: str
    run: str
    controller: str
    aim: str
    now: datetime
    unreachable: FrozenSet[str] = frozenset()
    signs: Signs = field(default_factory=dict)
    patience: timedelta = timedelta.max
    waited: timedelta = timedelta(0)
    beat: timedelta = BEAT
    seconds: int = 0
    untold: FrozenSet[str] = frozenset()
    unwell: FrozenSet[str] = frozenset()


@dataclass(frozen=True)
class Answer:
    """What a host is told.

    record:   what is to be written, None where nothing is.
    waiting:  why it may not start, None where it may.
    is_final: whether to ask again would be of no use.
    before:   the slots that were there before those that are reserved now, None where there was none.
    slots:    how the places stood.
    """

    record: Optional[Record] = None
    waiting: Optional[Waiting] = None
    refusals: Tuple[Refusal, ...] = ()
    is_final: bool = False
    before: Mapping[str, Optional[Slot]] = field(default_factory=dict)
    slots: Optional[Slots] = None
    notes: Tuple[str, ...] = ()

    @property
    def may_start(self) -> bool:
        return self.waiting is None and not self.refusals


def read_record(text: str, caps: str = "") -> Record:
    """The record of its texts; none at all is an empty one. Raises GpuOpsError where it cannot be understood."""
    read_caps = _read_caps(caps)
    if not text:
        return Record(caps=read_caps)
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError("schema %s" % data["schema"])
        if data.keys() - {"schema", "pools"}:
            # As below: what is not understood would be gone with the next write
            raise ValueError("another key than schema and pools")
        return Record({name: _read_pool(pool) for name, pool in data["pools"].items()}, read_caps)
    except (GpuOpsError, KeyError, TypeError, ValueError, AttributeError) as broken:
        raise GpuOpsError(
            "rollout.record_unreadable",
            found="the record of rollouts in the cluster cannot be read (%s: %s)" % (
                type(broken).__name__, getattr(broken, "found", broken)),
            wanted="a record of schema %s, as this release writes it" % SCHEMA,
            remedy="use one release of this collection on all controllers; where no rollout is open and no node is "
                   "held, take the key `record` out of the ConfigMap, and it is made anew; its `caps` stay",
        ) from broken


def written(record: Record) -> str:
    """The text of a record, the same for the same record."""
    return json.dumps({"schema": SCHEMA, "pools": {name: _written_pool(pool) for name, pool in record.pools.items()}},
                      sort_keys=True, separators=(",", ":"))


def asked(
    record: Record, pool_name: str, asking: Asking, rollout: Rollout, nodes: Mapping[str, NodeState], is_alive: IsAlive
) -> Answer:
    """Whether a host may begin now. Its places, and those of all that begin with it, are reserved then.

    nodes: of all that hold a place at least, for a host that goes on; else of the whole pool.
    """
    if asking.host in rollout.refused:
        return Answer(refusals=(rollout.refused[asking.host],), is_final=True)
    unit = rollout.unit_of(asking.host)
    if unit is None:
        return Answer()
    pool, node = record.pool(pool_name), rollout.hosts[asking.host].node
    has_place = goes_on(pool, node, asking.run)
    if has_place and _is_at_work(pool, asking, rollout, unit, nodes):
        return Answer()
    opened, waits = _opened(pool, asking, rollout, unit, is_alive)
    opened = _without_the_finished(opened, asking, rollout, nodes)
    if waits is None and has_place:
        decision = decide_again(*standing(record, opened, pool_name, asking, rollout, nodes, is_alive), unit)
        if decision.may_start:
            return Answer()
        return replace(_told_to_wait(decision.waiting[0], decision),
                       record=record.but(pool_name, _given_up(opened, asking.run, rollout, unit)))
    if waits is not None:
        return Answer(record.but(pool_name, _given_up(pool, asking.run, rollout, unit)) if has_place else None, waits)
    if is_held(opened, node, asking.run) and not opened.slots[node].confirmed:
        since = opened.slots[node].since
        if asking.now - since < CONFIRMING:
            return Answer(waiting=Waiting(
                unit, Cause.run, "its places were reserved, and are not confirmed yet", since))
        opened = _without_unconfirmed(opened, asking, rollout, unit)
    missing = _missing(opened, asking, rollout, unit)
    if missing is not None:
        without = replace(opened, slots=_with(opened.slots, _reserved_by(opened, asking.run, [node])))
        return Answer(record.but(pool_name, without) if without != pool else None, refusals=(missing,), is_final=True)
    if is_held(opened, node, asking.run):
        if _is_under_way(opened, asking, rollout, unit):
            return Answer(begun(record.but(pool_name, opened), pool_name, asking.run, node, ()))
        opened = replace(opened, slots=_with(opened.slots, _reserved_by(
            opened, asking.run, [rollout.hosts[name].node for name in unit.hosts])))
    current, present = standing(record, opened, pool_name, asking, rollout, nodes, is_alive)
    decision = decide(current, present, [unit.name])
    notes = notes_of(opened, rollout.policy) if pool.rollout is not None else ()
    # One that is done, or left, has nothing to begin, whatever the others of its unit have
    if decision.may_start and asking.host in _left(unit, present):
        return Answer(record.but(pool_name, _reserved(opened, asking, current, present, unit, nodes)),
                      before={current.hosts[name].node: opened.slots.get(current.hosts[name].node)
                              for name in _left(unit, present)}, slots=decision.slots, notes=notes)
    lives = _says_that_it_lives(pool, opened, asking.run)
    if decision.waiting:
        waiting = decision.waiting[0]
        told = _told_to_wait(waiting, decision)
        claimed = opened if told.is_final else _asks(_claimed(opened, waiting, asking), waiting, asking)
        return replace(told, record=record.but(pool_name, claimed) if claimed != opened or lives else None, notes=notes)
    return replace(_of_its_unit(opened, asking, current, unit), record=record.but(pool_name, opened) if lives else None,
                   slots=decision.slots, notes=notes)


def _told_to_wait(waiting: Waiting, decision: Decision) -> Answer:
    return Answer(waiting=waiting, refusals=decision.stopped if waiting.cause is Cause.stopped else (),
                  is_final=waiting.cause in WITHOUT_END, slots=decision.slots)


def confirmed(
    answer: Answer, pool_name: str, asking: Asking, rollout: Rollout, nodes: Mapping[str, NodeState], is_alive: IsAlive
) -> Answer:
    """The same question of the Nodes as they are after the places were reserved: what others took out of service
    meanwhile may have used them up."""
    written_one = answer.record or Record()
    pool = written_one.pool(pool_name)
    without = written_one.but(pool_name, replace(pool, slots=_with(pool.slots, answer.before)))
    return asked(without, pool_name, asking, rollout, nodes, is_alive)


def begun(record: Record, pool_name: str, run: str, node: str, together: Iterable[str]) -> Record:
    """With the word that those which were reserved together may begin, and that this one does."""
    pool = record.pool(pool_name)
    slots = {name: replace(slot, confirmed=True, begun=slot.begun or name == node)
             for name, slot in pool.slots.items() if name in {node, *together} and slot.run == run}
    return record.but(pool_name, replace(pool, slots={**pool.slots, **slots}))


def began_a_repair(slot: Slot) -> bool:
    """Whether the change that is under way on a node, or was, is a repair."""
    return slot.state == WORKING and repairs(slot.policy)


def unmended(slot: Slot, policy: str) -> Optional[Slot]:
    """What has failed on a node that a policy cannot mend: what a repair has left sick no other change does, and what a
    change has left no repair."""
    return next((failure for failure in slot.failures if repairs(failure.policy) != repairs(policy)), None)


def failed_by(slot: Slot, policies: Collection[str]) -> Optional[Slot]:
    """What has failed on a node by one of these policies. Another one that was begun since, and did not go well, has
    not made up for it."""
    return next((failure for failure in slot.failures
                 if any(is_of_one_policy(failure.policy, each) for each in policies)), None)


def is_no_repair(slot: Slot) -> bool:
    """Whether something else than a repair was begun on a node."""
    stands = slot.without_its_run
    return stands is not None and stands.state == WORKING and not (stands.aim == REPAIR or repairs(stands.policy))


def is_held(pool: Pool, node: str, run: str) -> bool:
    """Whether a run has the place of a node. One that counted as dead may have lost it."""
    slot = pool.slots.get(node)
    return slot is not None and slot.run == run and slot.state == WORKING


def goes_on(pool: Pool, node: str, run: str) -> bool:
    """Whether a run has begun with a node, and still has its place."""
    return is_held(pool, node, run) and pool.slots[node].begun and pool.slots[node].confirmed


def given_back(record: Record, pool_name: str, run: str, before: Mapping[str, Optional[Slot]]) -> Record:
    """Without the slots that a run had reserved, and with those that were there before; nothing was begun. Those of
    several hosts that another of them has confirmed since stay."""
    pool = record.pool(pool_name)
    ours = {node: slot for node, slot in before.items() if node in pool.slots and pool.slots[node].run == run
            and not (len(before) > 1 and pool.slots[node].confirmed)}
    return record.but(pool_name, replace(pool, slots=_with(pool.slots, ours)))


def ended(
    record: Record, pool_name: str, node: str, run: str, outcome: str, reason: str, now: datetime,
    host: Optional[Host] = None, signs: Collection[str] = ()
) -> Record:
    """What became of a node. DONE frees its slot, FAILED keeps it, LEFT says that nothing was begun, so that what had
    failed before, or had not ended, is as it was, and FREED is a person's word that a failure was looked at.

    reason: what failed, or why it was left where it could not be changed. host: whose it is, for one that failed
    without a slot. signs: what was found of it after its change; others judge by it until the next change, or FREED.

    A run says it of nodes that it holds, and of such that nobody does. Raises GpuOpsError where another run holds it.
    What another run has found since counts more than the word of one that is late: see is_late().
    """
    pool = record.pool(pool_name)
    slot = pool.slots.get(node)
    reason = _short(reason)
    if is_late(pool, node, run, outcome):
        return record
    at_work = slot is not None and slot.state == WORKING and slot.run != run
    if at_work and outcome == LEFT and pool.rollout is not None and pool.rollout.left.get(node) == Left(run, reason):
        # Said already, by a request whose answer was lost
        return record
    if slot is not None and at_work and (outcome != FREED or _takes_part(pool, slot.run)):
        raise GpuOpsError(
            "rollout.held_by_another",
            found="node %s is held by run %s since %s" % (node, slot.run, instant_text(slot.since)),
            wanted="the end of a change told by the run that began it",
            remedy="let that run end; where it is no more, close it (module gpu_rollout, `state` closed), and run "
                   "again",
        )
    slots = {name: each for name, each in pool.slots.items() if name != node}
    opened = pool.rollout
    if outcome == FAILED:
        before = slot or (Slot(node, run, now) if host is None else Slot(
            host.name, run, now, counts=host.in_service, policy=host.policy, kind=str(host.kind),
            domain=host.domain))
        slots[node] = _remembering(
            replace(before, run=run, state=FAILED, begun=True, confirmed=True, reason=reason, before=None), slot)
    elif opened is not None and outcome == DONE and _is_of(opened, slot, run):
        opened = replace(opened, done={**opened.done, node: now},
                         left={name: left for name, left in opened.left.items() if name != node},
                         before={name: at for name, at in opened.before.items() if name != node})
    elif outcome == DONE and slot is not None:
        pool = replace(pool, returned=_with_returned(pool, {node: now}))
    elif opened is not None and outcome == LEFT and (slot is not None or not _is_left(opened, node, run)):
        opened = replace(opened, left={**opened.left, node: Left(run, reason)})
    if outcome == LEFT and slot is not None:
        # What needs nothing any more is in the middle of nothing
        there = slot.before if reason else slot.earlier_failure
        slots = _with(slots, {node: slot if slot.state == FAILED else there})
    pool = replace(pool, slots=slots, rollout=opened)
    if outcome == DONE and slot is not None and slot.state == WORKING:
        proofs = {**pool.proofs, **dict.fromkeys(slot.proofs, Proof(node, now))}
        newest = sorted(proofs.items(), key=lambda each: each[1].at)[-PROOFS:]
        # How long a repair takes says nothing of a change of this kind
        pool = replace(pool, proofs=dict(newest), seconds=pool.seconds if began_a_repair(slot) else _remembered(
            pool.seconds, slot.kind, int((now - slot.since).total_seconds())))
    # A repair mends what was found, and not the change that may have brought it about
    if outcome == FREED or (outcome == DONE and (slot is None or not began_a_repair(slot))):
        others = {name: found for name, found in pool.signs.items() if name != node}
        told = {node: tuple(map(str, signs))} if signs and outcome == DONE else {}
        pool = replace(pool, signs={**others, **told})
    return record.but(pool_name, pool)


def _remembering(slot: Slot, there: Optional[Slot]) -> Slot:
    """A slot that failed, with what had failed before it by other policies, so that none of them is tried once more."""
    kept = [failure for failure in (there.failures if there is not None else ())
            if failure.policy and not is_of_one_policy(failure.policy, slot.policy)]
    for failure in reversed(kept[:FAILURES]):
        slot = replace(slot, before=replace(failure, before=slot.before))
    return slot


def _is_left(opened: OpenRollout, node: str, run: str) -> bool:
    """Whether another run that is at work yet has left a node: others of its unit go by that, and what a run says that
    never had it takes nothing from it."""
    left = opened.left.get(node, Left())
    return left.run != run and left.run in opened.runs


def _short(reason: str) -> str:
    return reason if len(reason) <= REASON else reason[:REASON - 4] + " ..."


def is_late(pool: Pool, node: str, run: str, outcome: str) -> bool:
    """Whether a run says what became of a node that another one has ended since: DONE of what that found broken, or
    FAILED of what that has done, in a rollout in which the first takes no part any more."""
    slot, opened = pool.slots.get(node), pool.rollout
    if outcome == DONE:
        return slot is not None and slot.state == FAILED and slot.run != run
    return outcome == FAILED and slot is None and opened is not None and node in opened.done and not _takes_part(
        pool, run)


def was_at_work(pool: Pool, slot: Slot, since: datetime) -> bool:
    """Whether the run of a slot began with it after an instant, or has said since that it is at work: what was known of
    its host then may be so no more."""
    run = pool.rollout.runs.get(slot.run) if pool.rollout is not None else None
    return slot.since > since or (run is not None and run.seen > since)


def _takes_part(pool: Pool, run: str) -> bool:
    return pool.rollout is not None and run in pool.rollout.runs


def _is_of(opened: OpenRollout, slot: Optional[Slot], run: str) -> bool:
    """Whether a change is of the open rollout. A run that counted as dead may end one of an earlier rollout."""
    if slot is not None and slot.state == WORKING and slot.aim:
        return slot.aim == opened.aim
    return run in opened.runs


def closed(record: Record, pool_name: str, run: str) -> Record:
    """Without a run: what it has not begun is free, what it has begun and not ended is the next run's to take over."""
    pool = record.pool(pool_name)
    opened, last, returned = pool.rollout, pool.last, pool.returned
    if opened is not None and run in opened.runs:
        opened = replace(opened, runs={name: each for name, each in opened.runs.items() if name != run})
        if not opened.runs:
            last, returned = _last(pool, opened), _with_returned(pool, opened.done)
            opened = None
    return record.but(pool_name, replace(
        _without(pool, lambda name: name == run), rollout=opened, last=last, returned=returned))


def _last(pool: Pool, over: Optional[OpenRollout]) -> Optional[OpenRollout]:
    """What others go by, where a rollout is over."""
    return pool.last if over is None or over.aim == REPAIR else over


def _with_returned(pool: Pool, more: Mapping[str, datetime]) -> Mapping[str, datetime]:
    """With what a rollout has given back that is over."""
    return dict(sorted({**pool.returned, **more}.items(), key=lambda each: (each[1], each[0]))[-RETURNED:])


def _without(pool: Pool, is_over: Callable[[str], bool]) -> Pool:
    """Without what runs have reserved and claimed that are over; what they have begun stays."""
    slots = _with(pool.slots, {node: slot.without_its_run for node, slot in pool.slots.items() if is_over(slot.run)})
    claims, canaries = ({what: claim for what, claim in claims.items() if not is_over(claim.run)}
                        for claims in (pool.claims, pool.canaries))
    return replace(pool, slots=slots, claims=claims, canaries=canaries)


def settled(record: Record, pool_name: str, over: Mapping[str, Slot]) -> Record:
    """With nodes that are back in service, and need nothing: what runs hold of them that are over is free. What has
    failed there stays so.

    over: {node: the slot of a run that is over}, as it was when that was seen. One that a run holds since stays.
    """
    pool = record.pool(pool_name)
    free = {node: slot.earlier_failure for node, slot in pool.slots.items() if slot.state == WORKING
            and node in over and (slot.run, slot.since) == (over[node].run, over[node].since)}
    return record.but(pool_name, replace(pool, slots=_with(pool.slots, free)))


def standing(
    record: Record, pool: Pool, pool_name: str, asking: Asking, rollout: Rollout, nodes: Mapping[str, NodeState],
    is_alive: IsAlive
) -> Tuple[Rollout, Present]:
    """The rollout with hosts, nodes and limits as they are, and how things stand."""
    hosts = hosts_now(rollout, pool, nodes)
    policy, limits = rollout.policy, _limits_of(pool)
    if limits is not None:
        policy = replace(policy, limit=limits.limit, domain_limit=limits.domain_limit)
    caps = record.caps.get(pool_name, {})
    cap = policy_of({name: value for name, value in caps.items() if value})
    current = renewed(rollout, hosts, policy, (cap.limit if caps.get("limit") else None, cap.domain_limit))
    return current, _present(pool, asking, current, nodes, is_alive)


def _limits_of(pool: Pool) -> Optional[Policy]:
    """The limits of the open rollout; None before the first one."""
    return policy_of({"limit": pool.limit, "domain_limit": pool.domain_limit or None}) if pool.limit else None


def hosts_now(rollout: Rollout, pool: Pool, nodes: Mapping[str, NodeState]) -> Dict[str, Host]:
    """The hosts of a rollout, and all other nodes of its pool, by name."""
    hosts = {}
    for name, host in rollout.of_run.items():
        state = nodes.get(host.node)
        in_service = counts_now(pool, state, host.node)
        hosts[name] = replace(host, in_service=in_service) if state is None else replace(
            host, in_service=in_service, ready=state.ready, cordoned_by=state.cordoned_by, marks=state.marks,
            domain=state.domain or host.domain)
    known = {host.node for host in hosts.values()}
    others = (beside(state, pool) for state in nodes.values() if state.name not in known)
    hosts.update((host.name, host) for host in others)
    return hosts


def beside(state: NodeState, pool: Pool) -> Host:
    """A node of the pool that is no host of the run."""
    slot = pool.slots.get(state.name)
    return Host(node_name(state.name), state.name, domain=state.domain or (slot.domain if slot else ""),
                clique=state.clique, ready=state.ready, cordoned_by=state.cordoned_by,
                in_service=counts_now(pool, state, state.name), of_run=False)


def counts_now(pool: Pool, state: Optional[NodeState], node: str) -> bool:
    """Whether a node takes a place: one that was new when its change began does as soon as it is at work, but for the
    run that changes it, which has it join."""
    slot = pool.slots.get(node)
    if slot is None:
        return state.in_service if state is not None else not node
    is_changed = slot.state == WORKING and pool.rollout is not None and slot.run in pool.rollout.runs
    return slot.counts or (not is_changed and state is not None and state.in_service and not state.ours)


def without_the_gone(pool: Pool, nodes: Mapping[str, NodeState]) -> Pool:
    """Without slots of Nodes that are deleted: nobody can give them back.

    nodes: of all slots, too, unless there is none. One that has not been in the cluster yet has none.
    """
    seen = {node: replace(slot, joined=True, counts=counts_now(pool, nodes[node], node))
            if node in nodes and not slot.counts else slot for node, slot in pool.slots.items()}
    return replace(pool, slots={node: slot for node, slot in seen.items()
                                if node in nodes or not (slot.counts or slot.joined)})


def _opened(
    pool: Pool, asking: Asking, rollout: Rollout, unit: Unit, is_alive: IsAlive
) -> Tuple[Pool, Optional[Waiting]]:
    """The pool with a rollout of which this run is one, or whom it waits for."""
    there = pool.rollout
    living = {name: run for name, run in there.runs.items()
              if name == asking.run or is_alive(name)} if there is not None else {}
    # What a run has reserved goes with it: should it be alive all the same, it asks for it anew
    pool = _without(pool, lambda name: name not in living)
    us = living.get(asking.run, Run(asking.controller, asking.now, asking.now, asking.seconds))
    if not timedelta(0) <= asking.now - us.seen < asking.beat or us.seconds < asking.seconds:
        # Hosts of one run may differ in this, and none of them takes from what the others were told
        us = replace(us, seen=asking.now, seconds=max(us.seconds, asking.seconds))
    if there is not None and living and there.aim != asking.aim and set(living) != {asking.run}:
        name, other = min(living.items(), key=lambda each: (each[1].since, each[0]))
        return pool, Waiting(unit, Cause.rollout, "run %s of %s has another rollout open in this pool since %s" % (
            name, other.controller, instant_text(there.since)), other.since)
    if there is not None and there.aim == asking.aim and living:
        return replace(pool, rollout=replace(there, runs={**living, asking.run: us})), None
    policy, anew = rollout.policy, as_opened(pool, asking.aim, asking.now, {asking.run: us})
    return replace(
        anew, limit=str(policy.limit), domain_limit="" if policy.domain_limit is None else str(policy.domain_limit),
        last=_last(pool, there) if asking.aim == REPAIR else None), None


def as_opened(pool: Pool, aim: str, now: datetime, runs: Mapping[str, Run]) -> Pool:
    """The pool with another rollout than the one that is open or was the last, before it has limits: what that has
    changed counts where it is of the same aim, as changed before."""
    last = _last(pool, pool.rollout)
    before = {**last.before, **last.done} if last is not None and last.aim == aim != REPAIR else {}
    returned = pool.returned if pool.rollout is None else _with_returned(pool, pool.rollout.done)
    return replace(pool, limit="", domain_limit="", claims={}, canaries={}, returned=returned,
                   rollout=OpenRollout(aim, now, runs, before=before))


def _says_that_it_lives(before: Pool, now: Pool, run: str) -> bool:
    """Whether a run that takes part already has something to write down about itself."""
    there, us = (pool.rollout.runs.get(run) if pool.rollout is not None else None for pool in (before, now))
    return there is not None and there != us


def _reserved_by(pool: Pool, run: str, nodes: Iterable[str]) -> Dict[str, Optional[Slot]]:
    """{node: what is there without the run} of those that it has only reserved."""
    return {node: pool.slots[node].without_its_run for node in nodes
            if is_held(pool, node, run) and not pool.slots[node].begun}


def _is_at_work(
    pool: Pool, asking: Asking, rollout: Rollout, unit: Unit, nodes: Mapping[str, NodeState]
) -> bool:
    """Whether the change of a unit has begun, so that it goes on to its end: a node of it is out of service for us, or
    back."""
    of_unit = {rollout.hosts[name].node for name in unit.hosts}
    return any(nodes[node].ours and not nodes[node].kept for node in of_unit if node in nodes) or (
        not of_unit.isdisjoint(_over(pool, asking)))


def _without_the_finished(pool: Pool, asking: Asking, rollout: Rollout, nodes: Mapping[str, NodeState]) -> Pool:
    """Without places that runs which are no more have of hosts of this run that need nothing, or nothing that disturbs
    anybody, and are in service: they have given the node back, or never had it. Whoever is only silent finds that his
    place is gone before he takes it.
    """
    at_work = {asking.run, *(pool.rollout.runs if pool.rollout is not None else ())}
    needless = {host.node for name, host in rollout.of_run.items() if host.reachable and host.refusal is None
                and (not host.plan or name in rollout.beside) and name not in asking.unreachable and host.node in nodes
                and not nodes[host.node].ours}
    # What a repair finds to do says nothing of changes
    return replace(pool, slots=_with(pool.slots, {
        node: slot.earlier_failure for node, slot in pool.slots.items()
        if node in needless and slot.state == WORKING and slot.run not in at_work
        and (asking.aim != REPAIR or not is_no_repair(slot))}))


def _given_up(pool: Pool, run: str, rollout: Rollout, unit: Unit) -> Pool:
    """Without the places that a run has for a unit with which it has not begun: what counted there before does again.
    """
    nodes = {rollout.hosts[name].node for name in unit.hosts}
    return replace(pool, slots=_with(pool.slots, {
        node: pool.slots[node].before for node in nodes if is_held(pool, node, run)}))


def _over(pool: Pool, asking: Asking) -> FrozenSet[str]:
    """Nodes that the open rollout has changed. What was repaired may be sick again, and is then this run's to repair,
    if that is what it has found."""
    if pool.rollout is None:
        return frozenset()
    us = pool.rollout.runs.get(asking.run)
    return frozenset(node for node, at in pool.rollout.done.items()
                     if asking.aim != REPAIR or us is None or at >= us.since)


def _is_under_way(pool: Pool, asking: Asking, rollout: Rollout, unit: Unit) -> bool:
    """Whether a run has changed hosts of a unit, or does. Where all that began turned out to need nothing, the others
    are asked about anew, as what has come about meanwhile counts for them."""
    nodes = {rollout.hosts[name].node for name in unit.hosts}
    return any(goes_on(pool, node, asking.run) for node in nodes) or not nodes.isdisjoint(_over(pool, asking))


def _without_unconfirmed(pool: Pool, asking: Asking, rollout: Rollout, unit: Unit) -> Pool:
    """Without places of a unit of which nobody knows whether they are too many: who had reserved them is gone. What a
    dead run had begun there is nobody's."""
    nodes = [node for name in unit.hosts for node in (rollout.hosts[name].node,)
             if is_held(pool, node, asking.run) and not pool.slots[node].confirmed]
    of_nobody: Dict[str, Optional[Slot]] = {node: replace(pool.slots[node], run="", confirmed=True) for node in nodes
                                            if pool.slots[node].begun}
    return replace(pool, slots=_with(pool.slots, {**of_nobody, **_reserved_by(pool, asking.run, nodes)}))


def _missing(pool: Pool, asking: Asking, rollout: Rollout, unit: Unit) -> Optional[Refusal]:
    """Why a host of a unit is not to begin that was not begun with: another one of it could not be changed, or what has
    come about there since it was planned is not this run's."""
    left = pool.rollout.left if pool.rollout is not None else {}
    is_reserved = is_held(pool, rollout.hosts[asking.host].node, asking.run)
    over = _over(pool, asking)
    why = {}
    for name in unit.hosts:
        node = rollout.hosts[name].node
        slot, of_run = pool.slots.get(node), left.get(node, Left())
        kept = None if slot is None or node in over else _not_to_go_on_with(slot, rollout.hosts[name], asking)
        if kept is not None and name == asking.host:
            return kept
        if is_reserved and slot is not None and slot.state == FAILED:
            why[name] = slot.reason
        elif name != asking.host and of_run.run == asking.run and of_run.reason:
            why[name] = of_run.reason
        elif name in asking.untold:
            why[name] = "nobody could tell it whether it may begin"
        elif kept is not None:
            why[name] = kept.found
    return incomplete(unit.name, why) if why else None


def _not_to_go_on_with(slot: Slot, host: Host, asking: Asking) -> Optional[Refusal]:
    if slot.run == asking.run:
        return None
    failure = unmended(slot, host.policy)
    if failure is not None:
        return failed_before(host, failure.reason)
    return interrupted(host) if asking.aim == REPAIR and is_no_repair(slot) else None


def _of_its_unit(pool: Pool, asking: Asking, rollout: Rollout, unit: Unit) -> Answer:
    """Why a unit that is neither to begin nor waits, is under way or over."""
    node = rollout.hosts[asking.host].node
    held = [(name, pool.slots[rollout.hosts[name].node]) for name in unit.hosts
            if rollout.hosts[name].node in pool.slots]
    host, slot = rollout.hosts[asking.host], pool.slots.get(node)
    if slot is not None and not (slot.state == WORKING and _takes_part(pool, slot.run)):
        failure = failed_by(slot, [host.policy]) or slot
        if failure.state == FAILED:
            return Answer(refusals=(failed_before(host, failure.reason),), is_final=True)
    working = [(name, each) for name, each in held if each.state == WORKING and _takes_part(pool, each.run)]
    if working:
        name, each = working[0]
        return Answer(waiting=Waiting(unit, Cause.run, "%s is at work by run %s" % (name, each.run), each.since))
    return Answer(waiting=Waiting(unit, Cause.stopped, "%s of %s failed" % (held[0][0], unit.name), held[0][1].since)
                  if held else Waiting(unit, Cause.stopped, "%s is over in this rollout" % unit.name, asking.now),
                  is_final=True)


def _left(unit: Unit, present: Present) -> List[str]:
    return [name for name in unit.hosts if name not in present.done and name not in present.left]


def _reserved(
    pool: Pool, asking: Asking, rollout: Rollout, present: Present, unit: Unit, nodes: Mapping[str, NodeState]
) -> Pool:
    proofs = to_prove(rollout, unit, proved(rollout, present))
    slots = dict(pool.slots)
    alone = len(_left(unit, present)) == 1
    for name in _left(unit, present):
        host = rollout.hosts[name]
        before, counts = slots.get(host.node), host.in_service
        slots[host.node] = Slot(
            name, asking.run, asking.now, confirmed=alone,
            begun=alone or (before is not None and before.begun and before.state == WORKING),
            counts=counts, proofs=proofs, policy=host.policy, kind=str(host.kind),
            before=_there_again(before, nodes.get(host.node)), aim=asking.aim,
            joined=not counts and host.node in nodes, domain=host.domain)
    claims = {part: claim for part, claim in pool.claims.items() if claim.unit != unit.name}
    canaries = {name: claim for name, claim in pool.canaries.items() if name != unit.name}
    return replace(pool, slots=slots, claims=claims, canaries=canaries)


def _there_again(slot: Optional[Slot], state: Optional[NodeState]) -> Optional[Slot]:
    """What counts again on a node that somebody takes over and leaves. Who was killed before he took it out of service
    has nothing there that others have to wait for."""
    if slot is None:
        return None
    return slot.taken_over if state is not None and state.ours else slot.earlier_failure


def _claimed(pool: Pool, waiting: Waiting, asking: Asking) -> Pool:
    """With the turn of a unit that needs several places, told once a while."""
    claim = Claim(waiting.unit.name, asking.run, asking.now)
    if not waiting.claims or _was_just_told(pool.claims.get(waiting.claims), claim):
        return pool
    return replace(pool, claims={**pool.claims, waiting.claims: claim})


def _asks(pool: Pool, waiting: Waiting, asking: Asking) -> Pool:
    """With the word that a canary waits and asks, told once a while: others wait for it then, however long."""
    unit, claim = waiting.unit, Claim(waiting.unit.name, asking.run, asking.now)
    if unit.place is not Place.canary or waiting.lasts or _was_just_told(pool.canaries.get(unit.name), claim):
        return pool
    others = {name: each for name, each in pool.canaries.items() if _counts(each, asking.now)}
    return replace(pool, canaries={**others, unit.name: claim})


def _was_just_told(there: Optional[Claim], claim: Claim) -> bool:
    return there is not None and there.unit == claim.unit and claim.asked - there.asked < CLAIM / 4


def _counts(claim: Claim, now: datetime) -> bool:
    return now - claim.asked < CLAIM


def notes_of(pool: Pool, policy: Policy) -> Tuple[str, ...]:
    """What who joins an open rollout should know."""
    if (pool.limit, pool.domain_limit) == (str(policy.limit), "" if policy.domain_limit is None else str(
            policy.domain_limit)):
        return ()
    return ("the limits of the open rollout count, %s in all%s, and not those of this run" % (
        pool.limit, " and %s of a domain" % pool.domain_limit if pool.domain_limit else ""),)


def _present(
    pool: Pool, asking: Asking, rollout: Rollout, nodes: Mapping[str, NodeState], is_alive: IsAlive
) -> Present:
    names = {host.node: name for name, host in rollout.hosts.items() if host.node}
    opened = pool.rollout or OpenRollout("", asking.now)
    # Of a policy of this rollout what failed speaks against it
    policies = {host.policy for host in rollout.of_run.values() if host.plan}
    soak, now = rollout.policy.soak, asking.now
    in_progress: Set[str] = set()
    elsewhere: Set[str] = set()
    half_done: Set[str] = set()
    repaired: Set[str] = set()
    canaries: Set[str] = set()
    failed: Dict[str, str] = {}
    otherwise: Set[str] = set()
    before: Dict[str, str] = {}
    proving: Dict[str, str] = {}
    for node, slot in without_the_gone(pool, nodes).slots.items():
        name = names.get(node, node_name(node))
        works = slot.state == WORKING and slot.run in opened.runs and (slot.run == asking.run or is_alive(slot.run))
        stands = slot if works else slot.without_its_run
        if stands is None:
            continue
        if works:
            in_progress.add(name)
            elsewhere.update([name] if slot.run != asking.run else ())
            proving.update(dict.fromkeys(slot.proofs, "%s, which is in progress" % name))
            continue
        failure, own = failed_by(stands, policies), rollout.of_run.get(name)
        if failure is not None:
            failed[name] = failure.reason
            canaries.update([name] if failure.proofs else ())
            goes_on_so = own is not None and (
                failed_by(stands, [own.policy]) is None if own.plan else stands.state == WORKING)
            otherwise.update([name] if goes_on_so else ())
        if stands.state == WORKING:
            half_done.add(name)
            repaired.update([name] if began_a_repair(stands) and asking.aim != REPAIR else ())
        elif failure is None:
            before[name] = stands.reason
    # What another run is changing may be out of reach for a while, as for a reboot
    unreachable = {name for name, host in rollout.of_run.items()
                   if name in asking.unreachable or not host.reachable} - elsewhere
    ours = [state for state in nodes.values() if state.ours and state.name not in pool.slots]
    half_done.update(names[state.name] for state in ours)
    kept = {names[state.name] for state in ours if state.kept}
    uncordoned = half_done.intersection(
        names[state.name] for state in nodes.values() if state.in_service and not (
            state.ours or (state.cordoned_by and not state.marks)))
    # Of what is no host of this run another one may be the run that has it
    alone = not any(run != asking.run and is_alive(run) for run in opened.runs)
    stays = {name for name in half_done if name in asking.unwell or name in rollout.refused or (
        name in kept and name not in rollout.of_run and alone)}
    over = _over(pool, asking)
    done = {names[node] for node in over if node in names}
    of_units = {name for unit in rollout.units for name in unit.hosts}
    waiting = of_units - done - in_progress - half_done - set(failed)
    # Those of earlier runs that this one is to change anew are no measure of what it does
    wanted = {host.proof for host in rollout.of_run.values() if host.plan}
    earlier = (*opened.before, *(told.node for proof, told in pool.proofs.items() if proof in wanted))
    changed = {names[node]: node for node in (*earlier, *over)
               if node in over or names.get(node) not in of_units if node in names}
    found = worse_off({**asking.signs, **{name: pool.signs[node] for name, node in changed.items()
                                          if node in pool.signs}}, list(changed), waiting)
    unhealthy = dict(found)
    for name, node in changed.items():
        state = nodes.get(node)
        if state is not None and not (state.ready and not state.unhealthy):
            unhealthy.setdefault(name, state.unhealthy or "its Node is not Ready")
    passed: Set[str] = set()
    disproved: Set[str] = set()
    soaking: Dict[str, datetime] = {}
    watched: Dict[str, datetime] = {}
    for proof, told in pool.proofs.items():
        name, until = names.get(told.node, node_name(told.node)), told.at + soak
        if until > now:
            soaking[name] = watched[proof] = until
            proving.setdefault(proof, "%s, which is changed, and watched until %s" % (name, instant_text(until)))
        elif name in unhealthy:
            proving.setdefault(proof, "%s, which is changed and not healthy: %s" % (name, unhealthy[name]))
            disproved.update([proof] if name in found else ())
        else:
            passed.add(proof)
    return Present(
        now=now, in_progress=frozenset(in_progress), half_done=frozenset(half_done),
        kept=frozenset(kept), stays=frozenset(stays), uncordoned=frozenset(uncordoned),
        repaired=frozenset(repaired), done=frozenset(done),
        left=asking.untold.union(names[node] for node, left in opened.left.items()
                                 if node in names and left.run in ("", asking.run)), failed=failed,
        otherwise=frozenset(otherwise), failed_before=before, failed_canaries=frozenset(canaries),
        unhealthy=unhealthy, found=frozenset(found),
        cordoned={names[state.name]: state.cordoned_by for state in nodes.values() if state.cordoned_by},
        by_themselves=frozenset(names[state.name] for state in nodes.values() if state.by_itself),
        marked={names[state.name]: ", ".join(state.marks) for state in nodes.values() if state.marks},
        not_ready=frozenset(names[state.name] for state in nodes.values() if not state.ready),
        unreachable=frozenset(unreachable),
        passed=frozenset(passed), proving=proving, disproved=frozenset(disproved), soaking=soaking, watched=watched,
        claims={part: claim.unit for part, claim in pool.claims.items() if _counts(claim, now)},
        canaries=frozenset(name for name, claim in pool.canaries.items() if _counts(claim, now)),
        patience_is_over=_waited(opened, asking) >= asking.patience,
    )


def _waited(opened: OpenRollout, asking: Asking) -> timedelta:
    """Hosts come one after another where there are many: none of them waits anew for what its run has waited for."""
    us = opened.runs.get(asking.run)
    return asking.waited if us is None else max(asking.waited, asking.now - us.since)


def _with(slots: Mapping[str, Slot], changes: Mapping[str, Optional[Slot]]) -> Dict[str, Slot]:
    changed = {**slots, **changes}
    return {node: slot for node, slot in changed.items() if slot is not None}


def _remembered(seconds: Mapping[str, Tuple[int, ...]], kind: str, took: int) -> Dict[str, Tuple[int, ...]]:
    """With what a change took; the kinds that were changed last are remembered."""
    known = {name: each for name, each in seconds.items() if name != kind}
    known[kind] = (*seconds.get(kind, ()), max(0, took))[-REMEMBERED:]
    return dict(list(known.items())[-REMEMBERED:])


# Forms

def checked_pool(name: str) -> str:
    """The name of a pool. Raises GpuOpsError where it cannot be one."""
    if not _POOL.fullmatch(name):
        raise GpuOpsError(
            "rollout.pool_malformed", found="`pool` is %r" % name,
            wanted="a name of letters, digits, dots, dashes and underscores, 63 at most",
            remedy="correct `pool`", option="pool")
    return name


def _read_caps(text: str) -> Dict[str, Dict[str, str]]:
    """What people have written, checked before it counts."""
    if not text.strip():
        return {}
    try:
        data = json.loads(text)
        caps = {str(name): {option: str(given) for option, given in each.items()} for name, each in data.items()}
        if any(set(each) - {"limit", "domain_limit"} for each in caps.values()):
            raise ValueError("another key than limit and domain_limit")
        if not all(most.strip() for each in caps.values() for most in each.values()):
            raise ValueError("an empty limit")
        for each in caps.values():
            policy_of(each)
        return caps
    except (GpuOpsError, AttributeError, TypeError, ValueError) as broken:
        raise GpuOpsError(
            "rollout.caps_unreadable",
            found="`caps` of the ConfigMap of rollouts cannot be read (%s)" % getattr(broken, "found", broken),
            wanted='JSON as {"gpus": {"limit": "10%", "domain_limit": "2"}}',
            remedy="correct it, or take it out",
        ) from broken


def _instant(at: datetime) -> str:
    return at.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _read_instant(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=timezone.utc)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return _instant(value)
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


def _written_pool(pool: Pool) -> Dict[str, Any]:
    told: Dict[str, Any] = _plain(pool)
    return told


def _read_pool(data: Mapping[str, Any]) -> Pool:
    # What repairs alone had given back, as an earlier release told it
    returned = data.get("returned", data.get("repaired", {}))
    pool = Pool(**{
        **{name: told for name, told in data.items() if name != "repaired"}, "rollout": _read_rollout(data["rollout"]),
        "slots": {node: _read_slot(slot) for node, slot in data["slots"].items()},
        "proofs": {proof: Proof(**{**told, "at": _read_instant(told["at"])}) for proof, told in data["proofs"].items()},
        "claims": _read_claims(data["claims"]),
        # One of an earlier release has none
        "canaries": _read_claims(data.get("canaries", {})),
        "seconds": {kind: tuple(int(each) for each in known) for kind, known in data["seconds"].items()},
        "last": _read_rollout(data.get("last")),
        "signs": {node: tuple(found) for node, found in data.get("signs", {}).items()},
        "returned": _read_instants(returned),
    })
    # Refused as the record's: where they are refused later, they look as if the user had set them
    _limits_of(pool)
    return pool


def _read_rollout(data: Optional[Mapping[str, Any]]) -> Optional[OpenRollout]:
    if data is None:
        return None
    left = data["left"]
    return OpenRollout(**{
        **data, "since": _read_instant(data["since"]),
        "runs": {name: Run(**{**run, "since": _read_instant(run["since"]), "seen": _read_instant(run["seen"])})
                 for name, run in data["runs"].items()},
        "done": _read_instants(data["done"]),
        # One of an earlier release says only which they are
        "left": {node: Left(**left[node]) for node in left} if isinstance(left, dict) else dict.fromkeys(left, Left()),
        "before": _read_instants(data.get("before", {}))})


def _read_instants(data: Mapping[str, str]) -> Dict[str, datetime]:
    return {node: _read_instant(at) for node, at in data.items()}


def _read_claims(data: Mapping[str, Any]) -> Dict[str, Claim]:
    return {what: Claim(**{**claim, "asked": _read_instant(claim["asked"])}) for what, claim in data.items()}


def _read_slot(data: Mapping[str, Any]) -> Slot:
    if data["state"] not in STATES:
        raise ValueError("a slot of state %s" % data["state"])
    # One of an earlier release has none, or only one that failed, which it calls so
    told = {name: value for name, value in data.items() if name != "failure"}
    before = data.get("before", data.get("failure"))
    return Slot(**{**told, "since": _read_instant(data["since"]), "proofs": tuple(data["proofs"]),
                   "before": None if before is None else _read_slot(before)})
