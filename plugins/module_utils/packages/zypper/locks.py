# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Versions that stay: zypper's locks (zypper(8), Package Locks Management; locks(5)). Pure.

A lock hides what it matches: what is installed stays as it is, what is not is never chosen. So a lock of a package
keeps its new version away as well as its old one. Ours match every version but one of what is not installed: that one
can still come, also in the place of another, and no other can.

zypper writes the file anew when somebody adds or removes a lock, in its own order and without comments. What tells
ours from those of others is therefore a second name in each, which no package has.
"""
from __future__ import annotations

import fnmatch
import re
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..rpm import database
from ..rpm.versions import compare

PATH = "/etc/zypp/locks"
# Of a package that is not to come in any version
NO_VERSION = "0"
_OURS = "gpuops.nvidia-"
_BLOCK = re.compile(r"(?:[^\n]*\S[^\n]*(?:\n|\Z))+(?:[^\S\n]*\n)?")
_LINE = re.compile(r"^([\w-]+):[^\S\n]*(.*?)[^\S\n]*$", re.MULTILINE)
_VERSION = re.compile(r"^(==|=|!=|<=|>=|<|>)?\s*(\S+)$")
_JUDGED = {"==": (0,), "=": (0,), "!=": (-1, 1), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (1, 0)}
Lock = Mapping[str, Sequence[str]]


def text(capability: str, versions: Mapping[str, str], there: Optional[str]) -> Optional[str]:
    """The file with the locks of a capability; None where nothing would be left of a file that was not there.

    versions: {package: version}; {} takes them away, and leaves what others wrote to the byte. What is there already
    stays as it is, whoever has written it anew.
    """
    wanted = {_lock(_OURS + capability, name, version) for name, version in versions.items()}
    return with_block(capability, "".join(sorted(wanted)) or None, there)


def block(capability: str, there: Optional[str]) -> Optional[str]:
    """Our locks as they stand in a file, None where there are none."""
    return "".join(_blocks(capability, there)) or None


def with_block(capability: str, ours: Optional[str], there: Optional[str]) -> Optional[str]:
    """The file with these locks in place of ours; None takes ours away."""
    blocks = _blocks(capability, there)
    if sorted(map(_canonical, blocks)) == sorted(map(_canonical, _BLOCK.findall(ours or ""))):
        return there
    rest = there or ""
    for each in blocks:
        rest = rest.replace(each, "", 1)
    whole = (ours or "") + rest
    return whole if whole or there is not None else None


def _blocks(capability: str, there: Optional[str]) -> List[str]:
    mine = _OURS + capability
    return [each for each in _BLOCK.findall(there or "") if mine in parse(each).get("solvable_name", ())]


def _lock(mine: str, name: str, version: str) -> str:
    """Of every architecture: zypper takes one among the attributes of a lock for another way to match it."""
    return "\n".join((
        "type: package", "match_type: exact", "case_sensitive: on", "solvable_name: " + _bare(name, version),
        "solvable_name: " + mine, "install_status: not-installed", "version: != " + version)) + "\n\n"


def _bare(name: str, version: str) -> str:
    return database.bare_name(database.without_version(name, version))


def _canonical(lock: str) -> List[Tuple[str, List[str]]]:
    return sorted((name, sorted(values)) for name, values in parse(lock).items())


def parse(lock: str) -> Dict[str, List[str]]:
    """{attribute: values} of one lock."""
    found: Dict[str, List[str]] = {}
    for name, value in _LINE.findall(lock):
        found.setdefault(name, []).append(value)
    return found


def of_others(there: Optional[str]) -> List[Lock]:
    locks = [parse(each) for each in _BLOCK.findall(there or "")]
    return [lock for lock in locks
            if lock and not any(name.startswith(_OURS) for name in lock.get("solvable_name", ()))]


def holds(locks: Iterable[Lock], name: str, version: str) -> bool:
    """Whether a lock keeps an installed package as it is. One of a repository is about what is offered there."""
    return any(_holds(lock, _bare(name, version), version) for lock in locks)


def _holds(lock: Lock, name: str, version: str) -> bool:
    known = {"type", "match_type", "case_sensitive", "solvable_name", "install_status", "version", "comment"}
    if not known.issuperset(lock) or "not-installed" in lock.get("install_status", ()):
        return False
    if not {"package"}.issuperset(lock.get("type", ())):
        return False
    words = lock.get("solvable_name", ())
    how = lock.get("match_type", ("substring",))[0]
    exact_case = lock.get("case_sensitive", ("off",))[0] == "on"
    return any(_matches(word, name, how, exact_case) for word in words) and all(
        _is_met(each, version) for each in lock.get("version", ()))


def _matches(word: str, name: str, how: str, exact_case: bool) -> bool:
    if how == "regex":
        try:
            return re.search(word, name, 0 if exact_case else re.IGNORECASE) is not None
        except re.error:
            return False
    if not exact_case:
        word, name = word.lower(), name.lower()
    if how == "glob":
        return fnmatch.fnmatchcase(name, word)
    return word == name if how == "exact" else word in name


def _is_met(condition: str, version: str) -> bool:
    found = _VERSION.match(condition)
    return found is None or compare(version, found.group(2)) in _JUDGED[found.group(1) or "=="]
