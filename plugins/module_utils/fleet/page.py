# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fleet's plan as a page of its own, in Markdown or HTML, whole. Pure.

What a page says is worked out once, as a list of blocks; a format only writes blocks. All that comes from a host is
escaped: in HTML by the standard library, in Markdown by a backslash (CommonMark, "Backslash escapes") or a fence that
is longer than any in the text.
"""
from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Sequence, Tuple, Union

from ..core.plan import Plan, alike, change_lines, headline, way_back
from ..core.refusal import Refusal
from .model import Fleet, Group
from .names import listed
from .text import DEVICES_OF_EACH, NOT_SHOWN, counted, facts_of, of_cluster, of_hosts, order_line, plain, turn_line


@dataclass(frozen=True)
class _Heading:
    level: int
    words: str


@dataclass(frozen=True)
class _Paragraph:
    words: str


@dataclass(frozen=True)
class _Items:
    each: Tuple[str, ...]


@dataclass(frozen=True)
class _Table:
    heads: Tuple[str, ...]
    rows: Tuple[Tuple[str, ...], ...]


@dataclass(frozen=True)
class _Change:
    """Text of a file, or what differs of a set. what: whose it is."""

    what: str
    text: str


_Block = Union[_Heading, _Paragraph, _Items, _Table, _Change]


def markdown(fleet: Fleet, taken: str = "") -> str:
    """taken: when the plan was made, for people."""
    return plain("\n\n".join(_in_markdown(block) for block in _blocks(fleet, taken)) + "\n")


def as_html(fleet: Fleet, taken: str = "") -> str:
    """The same in one file that needs no other, and runs nothing."""
    body = "\n".join(_in_html(block) for block in _blocks(fleet, taken))
    return plain(_HTML % {"title": html.escape(_title(fleet)), "style": _STYLE, "body": body})


# What is said


def _title(fleet: Fleet) -> str:
    return "Plan of %s" % counted(sum(map(len, fleet.parts.values())), "host")


def _blocks(fleet: Fleet, taken: str) -> Iterator[_Block]:
    yield _Heading(1, _title(fleet))
    yield _Paragraph("%sDigest of the plan: %s" % ("Made %s. " % taken if taken else "", fleet.digest))
    yield _Table(("Hosts", "Stand so", "Names"), tuple(_overview(fleet)))
    yield _Paragraph(DEVICES_OF_EACH)
    for order in fleet.orders:
        yield _Heading(2, order_line(order))
        if order.head:
            yield _Items(order.head)
        if order.turns:
            yield _Table(("Hosts", "Why here", "Names"), tuple(
                (str(len(turn.hosts)), turn_line(turn, with_names=True), listed(turn.hosts)) for turn in order.turns))
    for group in fleet.changing:
        yield _Heading(2, "%s: %s" % (of_hosts(group.hosts), _what(group)))
        yield from _of_group(group)
    for word, reasons in (("refused", fleet.refused), ("no plan could be made", fleet.failed)):
        for reason in reasons:
            yield _Heading(2, "%s: %s" % (of_hosts(reason.hosts), word))
            yield _Paragraph(listed(reason.hosts))
            yield _refusals(reason.refusals)
            if reason.others:
                yield _Paragraph("In other words on %s." % counted(reason.others, "host"))
    for silent in fleet.unreachable:
        yield _Heading(2, "%s: unreachable" % of_hosts(silent.hosts))
        yield _Items((listed(silent.hosts), silent.why))
    for group in fleet.idle:
        if group.plan.kept or group.plan.notes:
            yield _Heading(2, "%s: %s" % (of_hosts(group.hosts), _what(group)))
            yield from _of_group(group)
    for cluster in fleet.clusters:
        yield _Heading(2, "Cluster %s: %s" % (cluster.name, of_cluster(cluster)))
        if cluster.refusals:
            yield _refusals(cluster.refusals)
        elif cluster.plan is not None:
            yield from _of_plan(cluster.plan)


def _overview(fleet: Fleet) -> Iterator[Tuple[str, str, str]]:
    """Each host in one row."""
    idle: Dict[str, List[str]] = {}
    for group in fleet.idle:
        idle.setdefault(_what(group), []).extend(group.hosts)
    rows: List[Tuple[Sequence[str], str]] = [
        *((hosts, what) for what, hosts in idle.items()),
        *((group.hosts, _what(group)) for group in fleet.changing),
        *((reason.hosts, "refused: %s" % reason.refusals[0].code) for reason in fleet.refused),
        *((reason.hosts, "no plan: %s" % reason.refusals[0].code) for reason in fleet.failed),
        *((silent.hosts, "unreachable") for silent in fleet.unreachable),
        (fleet.left_out, "no GPU for NVIDIA's driver, left out"),
        (fleet.unshown, NOT_SHOWN),
        (fleet.unasked, "not asked"),
    ]
    return ((str(len(hosts)), what, listed(hosts)) for hosts, what in rows if hosts)


def _what(group: Group) -> str:
    return headline(group.plan) if group.plan.steps or group.plan.requirements or group.is_idle else "nothing to do"


def _of_group(group: Group) -> Iterator[_Block]:
    yield _Items((listed(group.hosts), *facts_of(group, with_names=True)))
    yield from _of_plan(group.plan)


def _of_plan(plan: Plan) -> Iterator[_Block]:
    if plan.steps:
        yield _Table(("", "Step", "Disturbs", "Why"), tuple(
            (str(number), "%s %s" % (step.action, step.subject), step.disruption.name, step.why)
            for number, step in enumerate(plan.steps, 1)))
    for number, step in enumerate(plan.steps, 1):
        change = list(change_lines(step.change))
        if step.id in plan.returns_to:
            change.append(way_back(plan.returns_to[step.id]))
        if change:
            yield _Change("%d. %s %s" % (number, step.action, step.subject), "\n".join(change))
    for same in alike(plan.requirements):
        yield _Paragraph("Then a %s for %s, which disturbs: %s. %s" % (
            same[0].kind, same[0].subject, same[0].disruption.name, same[0].why))
        change = list(dict.fromkeys(line for each in same for line in change_lines(each.change)))
        if change:
            yield _Change("a %s for %s" % (same[0].kind, same[0].subject), "\n".join(change))
    told = (*("Kept: %s" % kept for kept in plan.kept), *("Note: %s" % note for note in plan.notes))
    if told:
        yield _Items(told)


def _refusals(refusals: Sequence[Refusal]) -> _Table:
    return _Table(("Found", "Wanted", "Do", "Code"), tuple(
        (refusal.found, refusal.wanted, refusal.remedy, refusal.code) for refusal in refusals))


# In Markdown

_MEANT = re.compile(r"([\\`*_{}\[\]()<>#+!|~&$:@^=-]|(?<=www)[.])", re.IGNORECASE)


def _in_markdown(block: _Block) -> str:
    if isinstance(block, _Heading):
        return "%s %s" % ("#" * block.level, _words(block.words))
    if isinstance(block, _Paragraph):
        return _words(block.words)
    if isinstance(block, _Items):
        return "\n".join("- %s" % _words(each) for each in block.each if each)
    if isinstance(block, _Change):
        longest = max(map(len, re.findall("`+", block.text)), default=0)
        fence = "`" * max(3, longest + 1)
        return "### %s\n\n%s\n%s\n%s" % (_words(block.what), fence, block.text, fence)
    rows = [block.heads, tuple("---" for _head in block.heads)]
    return "\n".join("| %s |" % " | ".join(cells) for cells in (
        *rows, *(tuple(map(_words, row)) for row in block.rows)))


def _words(words: str) -> str:
    """On one line, with nothing that Markdown would read as more than text; a number at the start is no list's.

    A name that begins with www and a dot is made a link by GitHub and GitLab without any markup, so its dot is escaped.
    """
    escaped = _MEANT.sub(r"\\\1", " ".join(words.split()))
    return re.sub(r"^([0-9]+)([.)])", r"\1\\\2", escaped)


# In HTML

_HTML = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width">
<title>%(title)s</title>
<style>%(style)s</style>
</head>
<body>
%(body)s
</body>
</html>
"""
_STYLE = """
:root { color-scheme: light dark; --line: #bbb; --soft: #f3f3f3; --text: #1a1a1a; --page: #fff; }
@media (prefers-color-scheme: dark) { :root { --line: #555; --soft: #262626; --text: #e6e6e6; --page: #161616; } }
body { color: var(--text); background: var(--page); font: 15px/1.5 sans-serif; max-width: 75em; margin: 2em auto;
  padding: 0 1em; }
h1 { font-size: 1.6em; } h2 { font-size: 1.2em; border-top: 1px solid var(--line); padding-top: 1em; }
table { border-collapse: collapse; width: 100%; }
th, td { border: 1px solid var(--line); padding: .3em .6em; text-align: left; vertical-align: top;
  overflow-wrap: anywhere; }
th { background: var(--soft); }
h3 { font-size: 1em; margin: 1em 0 .2em; }
pre { border: 1px solid var(--line); margin: 0; padding: .6em; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 20em; overflow-y: auto; }
li { overflow-wrap: anywhere; }
@media print {
  :root { --line: #999; --soft: #eee; --text: #000; --page: #fff; }
  body { max-width: none; margin: 0; font-size: 10pt; }
  pre { max-height: none; overflow: visible; }
  h2, h3 { break-after: avoid; } tr { break-inside: avoid; } thead { display: table-header-group; }
}
"""


def _in_html(block: _Block) -> str:
    if isinstance(block, _Heading):
        return "<h%d>%s</h%d>" % (block.level, html.escape(block.words), block.level)
    if isinstance(block, _Paragraph):
        return "<p>%s</p>" % html.escape(block.words)
    if isinstance(block, _Items):
        return "<ul>%s</ul>" % "".join("<li>%s</li>" % html.escape(each) for each in block.each if each)
    if isinstance(block, _Change):
        return "<h3>%s</h3><pre>%s</pre>" % (html.escape(block.what), html.escape(block.text))
    heads = "".join("<th>%s</th>" % html.escape(head) for head in block.heads)
    rows = "".join("<tr>%s</tr>" % "".join("<td>%s</td>" % html.escape(cell) for cell in row) for row in block.rows)
    return "<table><thead><tr>%s</tr></thead><tbody>%s</tbody></table>" % (heads, rows)
