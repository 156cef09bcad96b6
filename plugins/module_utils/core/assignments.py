# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Files of lines KEY=VALUE that a package brings and a user owns: some values are ours, the rest stays as it is.

What a value was before ours is remembered value by value, not as a file: the package replaces the file in an upgrade,
and edits of others are kept when ours are taken back. A value that is not the one we set any more is not ours.
"""
from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .errors import GpuOpsError
from .host import Host
from .journal import Journal
from .plan import Step

WRITE = "settings.write"
RESTORE = "settings.restore"
# Of the journal's notes of a capability: {key: {'before', 'ours'}}
MEMORY = "settings"
WAS = "was"
# In place of the value that is there: a plan that is approved before the package brings the file cannot know it
ANOTHER = "another value"
_LINE = re.compile(r"^\s*(?P<comment>#\s*)?(?P<key>[A-Z][A-Za-z0-9_]*)[ \t]*=[ \t]*(?P<value>[^\r\n]*?)\s*$")


def values(text: str) -> Dict[str, str]:
    """{key: value} in effect: of a key that is there twice, the last one counts."""
    return {key: value for key, value, is_comment in _lines(text) if not is_comment}


def keys(text: str) -> Tuple[str, ...]:
    """Keys that the file has, those in comments included."""
    return tuple(sorted({key for key, _value, _is_comment in _lines(text)}))


def edited(text: str, changes: Mapping[str, Optional[str]]) -> str:
    """The text with other values, each where the key stands, else below the comment that shows it, else at the end.
    None takes the key's last line away."""
    lines = text.splitlines(keepends=True)
    for key, value in changes.items():
        place = _place(lines, key, in_comment=False)
        if value is None:
            if place is not None:
                del lines[place]
        elif place is not None:
            lines[place] = _with_value(lines[place], value)
        else:
            below = _place(lines, key, in_comment=True)
            place = len(lines) if below is None else below + 1
            if place and not lines[place - 1].endswith("\n"):
                lines[place - 1] += "\n"
            lines.insert(place, "%s=%s\n" % (key, value))
    return "".join(lines)


def _lines(text: str) -> List[Tuple[str, str, bool]]:
    found = filter(None, (_LINE.match(line) for line in text.splitlines()))
    return [(match["key"], match["value"], match["comment"] is not None) for match in found]


def _with_value(line: str, value: str) -> str:
    match = _LINE.match(line)
    begin, end = match.span("value") if match else (len(line), len(line))
    return line[:begin] + value + line[end:]


def _place(lines: List[str], key: str, in_comment: bool) -> Optional[int]:
    matches = [(number, _LINE.match(line)) for number, line in enumerate(lines)]
    return max((number for number, match in matches
                if match and match["key"] == key and (match["comment"] is not None) == in_comment), default=None)


# a capability's policy


def wanted_of(given: Mapping[str, Any]) -> Dict[str, str]:
    """{key: value} of an option, as text; yes and no of YAML are 1 and 0. ValueError names what is no such value."""
    wanted = {}
    for key, value in given.items():
        text = str(int(value) if isinstance(value, bool) else "" if value is None else value).strip()
        if isinstance(value, (dict, list)) or "\n" in text:
            raise ValueError("%s: %r" % (key, value))
        wanted[str(key)] = text
    return wanted


# steps


def write_step(
    capability: str, path: str, there: Mapping[str, str], wanted: Mapping[str, str], memory: Mapping[str, Any],
    requires: Tuple[str, ...] = (),
) -> List[Step]:
    """Give keys other values; one that is ours and not wanted any more gets the value that it had before.

    there: {key: value} in effect. memory: the journal's notes of the capability.
    """
    changes: Dict[str, Optional[str]] = {key: value for key, value in wanted.items() if there.get(key) != value}
    changes.update({key: before for key, before in _ours(there, memory).items() if key not in wanted})
    if not changes:
        return []
    now = ", ".join("%s=%s" % (key, there[key]) for key in changes if key in there)
    return [Step(
        capability, WRITE, path, "The policy wants it so; the file has %s." % (now or "no value for it"),
        change={"before": dict.fromkeys(changes, ANOTHER), "after": changes}, depends_on=requires)]


def restore_step(capability: str, path: str, there: Mapping[str, str], memory: Mapping[str, Any]) -> List[Step]:
    """Put back what the values were, of those that are ours still. there and memory: as of write_step()."""
    if not memory.get(MEMORY):
        return []
    ours = _ours(there, memory)
    why = "It is as it was before our first change of it." if ours else "Others have changed it; only our record goes."
    return [Step(capability, RESTORE, path, why,
                 change={"before": {key: there[key] for key in ours}, "after": ours})]


def _ours(there: Mapping[str, str], memory: Mapping[str, Any]) -> Dict[str, Optional[str]]:
    """{key: value before ours} of the values that are as we set them."""
    noted: Mapping[str, Mapping[str, Any]] = memory.get(MEMORY, {})
    return {key: each["before"] for key, each in noted.items() if there.get(key) in _of_us(each)}


def _of_us(noted: Mapping[str, Any]) -> Tuple[Any, ...]:
    """Values of ours: the one that is there, and while it is written the one that was."""
    return (noted["ours"], *([noted[WAS]] if WAS in noted else []))


def noted_after(
    noted: Mapping[str, Mapping[str, Any]], there: Mapping[str, str], changes: Mapping[str, Optional[str]]
) -> Dict[str, Dict[str, Any]]:
    """What is noted of the values once they are changed: what each was before the first change of ours."""
    after = {key: {name: value for name, value in each.items() if name != WAS} for key, each in noted.items()}
    for key, value in changes.items():
        known = noted.get(key)
        after.pop(key, None)
        before = known["before"] if known and there.get(key) in _of_us(known) else there.get(key)
        if value != before:
            after[key] = {"before": before, "ours": value}
    return after


def write(host: Host, journal: Journal, step: Step) -> None:
    """Noted before it is done: what a killed run has not written is not ours, which its value tells."""
    text, memory, changes = _read(host, step), journal.recall(step.capability), step.change["after"]
    noted = noted_after(memory.get(MEMORY, {}), values(text), changes)
    # What is put back, or given another value, is ours until it is done
    known: Mapping[str, Mapping[str, Any]] = memory.get(MEMORY, {})
    kept = {key: each for key, each in known.items() if key not in noted}
    coming = {key: {**each, WAS: known[key]["ours"]} if key in known else each for key, each in noted.items()}
    journal.remember(step.capability, {**memory, MEMORY: {**kept, **coming}})
    host.write(step.subject, edited(text, changes))
    _remember(journal, step.capability, noted)


def restore(host: Host, journal: Journal, step: Step) -> None:
    if step.change["after"]:
        host.write(step.subject, edited(_read(host, step), step.change["after"]))
    _remember(journal, step.capability, {})


def _remember(journal: Journal, capability: str, noted: Mapping[str, Any]) -> None:
    memory = dict(journal.recall(capability), **{MEMORY: noted})
    journal.remember(capability, {name: value for name, value in memory.items() if value})


def _read(host: Host, step: Step) -> str:
    text = host.read(step.subject)
    if text is None:
        raise GpuOpsError(
            "host.settings_file_missing",
            found="no file %s" % step.subject,
            wanted="the file that its package brings",
            remedy="reinstall the package that owns it (`dpkg -S %s`)" % step.subject,
            path=step.subject)
    return text
