# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fleet's plan for a terminal: whole, or in so many lines, with what is left out counted. Pure."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, Iterable, Iterator, List, Sequence, Tuple, TypeVar

from ..core.plan import Plan, alike, headline, lines, refusal_line, requirement_line, step_line
from ..core.progress import duration
from .model import ClusterNote, Fleet, Group, Order, Reason, Silent, Turn
from .names import listed

# Fits a terminal that shows a page of text
MOST_LINES = 60

DEVICES_OF_EACH = "GPU-#1, MIG-#1 and so on stand for devices of each host's own."
NOT_SHOWN = "planned, and not shown, as no_log says"
_DEVICE = re.compile(r"(?:GPU|MIG)-#[0-9]")
_LONGEST_LIST, _LONGEST_LINE = 100, 240
# A terminal acts on them, or shows what follows in another order: nobody could say what was approved
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_NO_LIMIT = 1 << 30
_Each = TypeVar("_Each")
_Hosts = TypeVar("_Hosts", Group, Reason, Silent)


@dataclass(frozen=True)
class _Detail:
    """How much is told.

    names:   every host, pod and job, and each line to its end; else they are counted where they are many.
    reasons: each step with its reason and its change, and every refusal.
    each:    plans, reasons, turns and clusters, each kind by itself.
    parts:   steps and requirements of one plan.
    notes:   of one plan.
    head:    lines of how one rollout stands.
    """

    names: bool = False
    reasons: bool = False
    each: int = _NO_LIMIT
    parts: int = _NO_LIMIT
    notes: int = _NO_LIMIT
    head: int = _NO_LIMIT


_WHOLE = _Detail(names=True, reasons=True)
# From much to little. Of the last one are fewer lines than MOST_LINES, whatever the fleet is.
_DETAILS = (
    _Detail(reasons=True), _Detail(), *(_Detail(False, False, *limits) for limits in (
        (20, 20, 10, 6), (12, 16, 6, 6), (8, 12, 4, 6), (6, 8, 3, 6), (5, 5, 2, 6), (4, 3, 1, 4), (3, 2, 0, 3),
        (2, 0, 0, 3))))


def text(fleet: Fleet, most_lines: int = 0, where: str = "", ending: str = "") -> str:
    """The plan for people.

    most_lines: MOST_LINES or more; 0 is the whole.
    where:      how to come by the whole, as a sentence.
    ending:     a line that is always the last one.
    """
    whole = found = list(_told(fleet, _WHOLE))
    for detail in _DETAILS if most_lines else ():
        found = [_cut(line) for line in _told(fleet, detail)]
        if found != whole:
            found.append(("Shortened. %s" % where).strip())
        if len(found) + bool(ending) <= most_lines:
            break
    return plain("\n".join([*found, *([ending] if ending else [])]))


def plain(words: str) -> str:
    """Without what would move the cursor of a terminal, or turn the words around."""
    return _CONTROL.sub("?", words)


def of_hosts(hosts: Sequence[str]) -> str:
    """'gpu-1' or '12 hosts', before what is said of them."""
    return hosts[0] if len(hosts) == 1 else "%d hosts" % len(hosts)


def counted(number: int, what: str) -> str:
    return "%d %s%s" % (number, what, "" if number == 1 else "s")


def of_cluster(cluster: ClusterNote) -> str:
    """What its plan comes to, in a few words."""
    if cluster.refusals:
        return "refused"
    return NOT_SHOWN if cluster.plan is None else headline(cluster.plan)


def facts_of(group: Group, with_names: bool) -> List[str]:
    """What is to be known of a group beside its plan, a clause each. with_names: of pods and steps, too."""
    found = []
    if group.seconds is not None:
        least, most = map(duration, group.seconds)
        found.append("expected to take %s" % (least if least == most else "%s to %s" % (least, most))
                     + (" a host" if len(group.hosts) > 1 else ""))
    for names, what in ((group.pods, "pods that leave before"),
                        (group.put_off, "put off, as more is disturbed than is allowed"),
                        (group.unfinished, "begun by an earlier run and to be closed")):
        if names:
            found.append("%s: %s" % (what, ", ".join(names) if with_names else len(names)))
    return found


def turn_line(turn: Turn, with_names: bool) -> str:
    """with_names: of jobs, too."""
    found = [turn.why]
    if turn.units > 1:
        found.append("%d turns" % turn.units)
    if turn.seconds is not None:
        found.append("expected to take %s%s" % (duration(turn.seconds), " each" if turn.units > 1 else ""))
    if turn.jobs:
        found.append("%s hit%s" % (counted(len(turn.jobs), "job"),
                                   ": %s" % ", ".join(turn.jobs) if with_names else ""))
    return "; ".join(found)


def order_line(order: Order) -> str:
    """What stands over it, with its cluster where hosts are in others, too."""
    what = "In this order" if order.turns else "The rollout"
    if order.alone:
        return what
    return "%s, %s" % (what, "in cluster %s" % order.name if order.name else "of hosts in no cluster")


def _told(fleet: Fleet, detail: _Detail) -> Iterator[str]:
    body = [*_hosts(fleet, detail), *_orders(fleet.orders, detail),
            *_clusters(fleet.clusters, detail)]
    hosts = sum(map(len, fleet.parts.values()))
    if hosts > 1:
        yield "%s%s" % (counted(hosts, "host"), ", %s" % counted(len(fleet.clusters), "cluster")
                        if fleet.clusters else "")
    yield from body
    if any(_DEVICE.search(line) for line in body):
        yield DEVICES_OF_EACH


def _hosts(fleet: Fleet, detail: _Detail) -> Iterator[str]:
    idle: Dict[str, List[Group]] = {}
    for group in fleet.idle:
        idle.setdefault(headline(group.plan), []).append(group)
    for what, groups in idle.items():
        yield from _idle(what, groups, detail)
    yield from _some(fleet.changing, detail, _changing, "hosts with %d other plans")
    yield from _some(fleet.refused, detail, _refused, "hosts, refused for %d other reasons")
    yield from _some(fleet.failed, detail, _failed, "hosts without a plan, for %d other reasons")
    yield from _some(fleet.unreachable, detail, _silent, "hosts, unreachable for %d other reasons")
    for what, hosts in (("no GPU for NVIDIA's driver, left out", fleet.left_out),
                        (NOT_SHOWN, fleet.unshown), ("not asked", fleet.unasked)):
        if hosts:
            yield _line(hosts, what, detail)


def _idle(what: str, groups: Sequence[Group], detail: _Detail) -> Iterator[str]:
    hosts = sorted(host for group in groups for host in group.hosts)
    yield _line(hosts, what, detail)
    notes: Dict[str, List[str]] = {}
    for group in groups:
        for note in (*map("kept: %s".__mod__, group.plan.kept), *map("note: %s".__mod__, group.plan.notes)):
            notes.setdefault(note, []).extend(group.hosts)
    shown = list(notes.items())[:detail.notes]
    for note, members in shown:
        yield "  %s%s" % (note, "" if len(members) == len(hosts) else " (%s)" % _names(members, detail))
    if len(shown) < len(notes) and detail.notes:
        yield "  and %s" % counted(len(notes) - len(shown), "other note")


def _changing(group: Group, detail: _Detail) -> Iterator[str]:
    yield _line(group.hosts, headline(group.plan) if not _only_closes(group) else "nothing to do", detail)
    if detail.reasons:
        yield from ("  %s" % fact for fact in facts_of(group, detail.names))
        yield from lines(group.plan, group.put_off)
        return
    facts = facts_of(group, with_names=False)
    if facts:
        yield "  %s" % "; ".join(facts)
    yield from _parts(group.plan, detail)


def _only_closes(group: Group) -> bool:
    return not (group.plan.steps or group.plan.requirements)


def _parts(plan: Plan, detail: _Detail) -> Iterator[str]:
    """Steps, requirements and notes of a plan without their reasons."""
    parts = [*(step_line(number, step) for number, step in enumerate(plan.steps, 1)),
             *("  then: %s" % requirement_line(same[0]) for same in alike(plan.requirements))]
    yield from parts[:detail.parts]
    if detail.parts and len(parts) > detail.parts:
        yield "     and %d more" % (len(parts) - detail.parts)
    yield from ("  note: %s" % note for note in plan.notes[:detail.notes])
    if detail.notes and len(plan.notes) > detail.notes:
        yield "  and %s" % counted(len(plan.notes) - detail.notes, "other note")


def _refused(reason: Reason, detail: _Detail) -> Iterator[str]:
    yield _line(reason.hosts, "refused", detail)
    yield from _why(reason, detail)


def _failed(reason: Reason, detail: _Detail) -> Iterator[str]:
    yield _line(reason.hosts, "no plan could be made", detail)
    yield from _why(reason, detail)


def _why(reason: Reason, detail: _Detail) -> Iterator[str]:
    shown = reason.refusals if detail.reasons else reason.refusals[:1]
    for refusal in shown:
        yield "  %s" % refusal_line(refusal)
    more = len(reason.refusals) - len(shown)
    if more:
        yield "  and %s" % counted(more, "other reason")
    if reason.others and detail.reasons:
        yield "  in other words on %s" % counted(reason.others, "host")


def _silent(silent: Silent, detail: _Detail) -> Iterator[str]:
    yield _line(silent.hosts, "unreachable", detail)
    if silent.why:
        yield "  %s" % silent.why


def _orders(orders: Sequence[Order], detail: _Detail) -> Iterator[str]:
    shown, others = _urgent_first(orders, detail, lambda order: order.is_stopped)
    for order in shown:
        # Of several, all together have as many turns as one has
        most = max(1, detail.each // len(shown))
        yield "%s:" % order_line(order)
        yield from ("  %s" % line for line in order.head[:detail.head])
        for number, turn in enumerate(order.turns[:most], 1):
            yield "%3d. %s" % (number, _line(turn.hosts, turn_line(turn, detail.names), detail))
        left = order.turns[most:]
        if left:
            yield "     then %s" % counted(sum(len(turn.hosts) for turn in left), "host")
    if others:
        yield "and %s in %s%s" % (counted(sum(len(turn.hosts) for order in others for turn in order.turns), "host"),
                                  counted(len(others), "other cluster"),
                                  _of_them(sum(order.is_stopped for order in others), "stopped"))


def _clusters(clusters: Sequence[ClusterNote], detail: _Detail) -> Iterator[str]:
    shown, others = _urgent_first(clusters, detail, lambda cluster: bool(cluster.refusals))
    for cluster in shown:
        yield from _cluster(cluster, detail)
    if others:
        yield "and %s%s" % (counted(len(others), "other cluster"),
                            _of_them(sum(bool(cluster.refusals) for cluster in others), "refused"))


def _urgent_first(
    each: Sequence[_Each], detail: _Detail, is_urgent: Callable[[_Each], bool]
) -> Tuple[List[_Each], List[_Each]]:
    """Those that are shown, and the others: what waits for a person is among the first where not all fit."""
    found = list(each) if len(each) <= detail.each else sorted(each, key=lambda one: not is_urgent(one))
    return found[:detail.each], found[detail.each:]


def _of_them(number: int, what: str) -> str:
    return ", %d of them %s" % (number, what) if number else ""


def _cluster(cluster: ClusterNote, detail: _Detail) -> Iterator[str]:
    yield "cluster %s: %s" % (cluster.name, of_cluster(cluster))
    for refusal in cluster.refusals if detail.reasons else cluster.refusals[:1]:
        yield "  %s" % refusal_line(refusal)
    if cluster.plan is not None and not cluster.refusals:
        yield from lines(cluster.plan) if detail.reasons else _parts(cluster.plan, detail)


def _some(
    each: Sequence[_Hosts], detail: _Detail, say: Callable[[_Hosts, _Detail], Iterator[str]], others: str
) -> Iterator[str]:
    """Those first that are the most; of the others how many they are. others: what they are."""
    for one in each[:detail.each]:
        yield from say(one, detail)
    left = each[detail.each:]
    if left:
        yield "and %d %s" % (sum(len(one.hosts) for one in left), others % len(left))


def _line(hosts: Sequence[str], what: str, detail: _Detail) -> str:
    if len(hosts) == 1:
        return "%s: %s" % (hosts[0], what)
    return "%s: %s: %s" % (of_hosts(hosts), what, _names(hosts, detail))


def _names(hosts: Iterable[str], detail: _Detail) -> str:
    return listed(hosts, 0 if detail.names else _LONGEST_LIST)


def _cut(line: str) -> str:
    """One line of it, and not too long."""
    indent = line[:len(line) - len(line.lstrip(" "))]
    words = " ".join(line.split())
    return indent + (words if len(words) <= _LONGEST_LINE else words[:_LONGEST_LINE - 3] + "...")
