# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which of our packages can go without any of somebody else's.

Told from dpkg's database alone. apt simulates no removal while a package is torn, a dependency unmet or its marks
unreadable, and what it then does not say it would remove, it removes later.

Where a dependency could be met by a package of ours, it counts as met without that only by a package that meets it
beyond doubt: of the same architecture or open to all, in order, in a version that is asked for (Debian Policy 7.1, 7.5;
deb-control(5), Multi-Arch). So of two answers it is the one that leaves a package of ours behind.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, List, Mapping, Sequence, Tuple

from ...core.host import Host
from ..model import Package
from . import database
from .versions import compare

_RELATION = re.compile(r"^([^\s:(]+)(?::(\S+?))?\s*(?:\(\s*([<>=]+)\s*(\S+?)\s*\))?$")
_MEETS: Mapping[str, Sequence[int]] = {
    "<<": (-1,), "<=": (-1, 0), "<": (-1, 0), "=": (0,), ">=": (0, 1), ">": (0, 1), ">>": (1,)}


@dataclass(frozen=True)
class Need:
    """A dependency that a package of ours may meet.

    of:  who has it.
    may: packages that have the name, or provide it, in whatever version and architecture.
    do:  those of them that meet it beyond doubt.
    """

    of: str
    may: FrozenSet[str]
    do: FrozenSet[str]


def removable(host: Host, packages: Mapping[str, Package], installed_by_us: Iterable[str]) -> Tuple[str, ...]:
    """A dependency that our transaction brought in may serve a package that somebody installed since."""
    there = frozenset(name for name in installed_by_us if name in packages and packages[name].there)
    return going(needs(database.status(host, {}), packages, there, database.native(host)), there) if there else ()


def going(found: Sequence[Need], ours: FrozenSet[str]) -> Tuple[str, ...]:
    """Pure: those of ours that take nobody else's package along."""
    if _taken_along(found, ours) <= ours:
        return tuple(sorted(ours))
    # One more each time: somebody's package may do with either of two, and not without both
    together: List[str] = []
    for name in sorted(ours):
        if _taken_along(found, [*together, name]) <= ours:
            together.append(name)
    return tuple(together)


def _taken_along(found: Sequence[Need], names: Iterable[str]) -> FrozenSet[str]:
    """What is gone once these are, they included."""
    gone = set(names)
    while True:
        more = {need.of for need in found if need.may & gone and not need.do - gone}.difference(gone)
        if not more:
            return frozenset(gone)
        gone |= more


def needs(
    status: str, packages: Mapping[str, Package], ours: FrozenSet[str], native_architecture: str
) -> List[Need]:
    """Pure. status: dpkg's database; native_architecture: '' when dpkg knows no other one."""
    stanzas: Dict[str, Dict[str, str]] = {}
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^([A-Za-z-]+): *(.*)$", stanza))
        name = database.full_name(fields.get("Package", ""), fields.get("Architecture", ""), native_architecture)
        if name in packages and packages[name].there:
            stanzas[name] = fields
    offers: Dict[str, List[Tuple[str, str]]] = {}
    for name, fields in stanzas.items():
        offers.setdefault(fields["Package"], []).append((name, fields.get("Version", "")))
        for provided in _split(fields.get("Provides", ""), ","):
            bare, _arch, _relation, version = _relation_of(provided)
            offers.setdefault(bare, []).append((name, version))
    found = []
    for name, fields in stanzas.items():
        for group in _split(", ".join((fields.get("Depends", ""), fields.get("Pre-Depends", ""))), ","):
            relations = [_relation_of(each) for each in _split(group, "|")]
            may = frozenset(each for told in relations for each, _version in offers.get(told[0], ()))
            if may & ours:
                do = frozenset(
                    each for bare, arch, relation, asked in relations for each, version in offers.get(bare, ())
                    if packages[each].installed and _is_met(relation, version, asked)
                    and _is_open(stanzas[each], arch, fields.get("Architecture", ""), native_architecture))
                found.append(Need(name, may, do - {name}))
    return found


def _split(text: str, sign: str) -> List[str]:
    return [each.strip() for each in text.split(sign) if each.strip()]


def _relation_of(written: str) -> Tuple[str, str, str, str]:
    """(name, architecture, relation, version) of 'name:arch (>= 1)', '' for each that is not there."""
    match = _RELATION.match(written)
    name, arch, relation, version = match.groups("") if match else (written.split()[0].split("(")[0], "", "?", "?")
    return name, arch, relation, version


def _is_met(relation: str, version: str, asked: str) -> bool:
    """Whether a version is one that is asked for; what provides a name without a version meets no relation."""
    return not relation or bool(version) and compare(version, asked) in _MEETS.get(relation, ())


def _is_open(fields: Mapping[str, str], asked: str, of: str, native_architecture: str) -> bool:
    """Whether a package serves one of this architecture (of); asked: the one that the dependency names, which alone
    counts then."""
    arch, several = fields.get("Architecture", ""), fields.get("Multi-Arch", "no")
    if asked == "any":
        return several == "allowed"
    if not asked and (several == "foreign" or not native_architecture):
        return True
    wanted = asked or of
    return (native_architecture if arch == "all" else arch) == (native_architecture if wanted == "all" else wanted)
