# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure: Docker's daemon.json as text. Values go in and out without another byte, key or indentation changing.

JSON has no comments, so nothing in the file can mark what is ours. Each change therefore comes with a record of what
stood there before, and the record takes it back, also when others have written to the file since.
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ....core.errors import GpuOpsError

FILE = "/etc/docker/daemon.json"
MARK = "\ufeff"
BLANK = re.compile(r"[ \t\r\n]*")
SCALAR = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")

Path = Tuple[str, ...]
Setting = Tuple[Path, Any]
Record = List[Dict[str, Any]]

# Docker injects CDI devices since 25.0 when the feature is on, since 28.2 unless it is off (pull request 49963 of moby)
CDI_SINCE = (25, 0)
CDI_ON_SINCE = (28, 2)

# dockerd refuses an option that is both a flag and in the file, but for 'runtimes', which it merges
# (skipDuplicates in daemon/config/config.go of moby)
FLAGS = {"default-runtime": "--default-runtime", "features": "--feature"}


@dataclass(frozen=True)
class Node:
    """A value and where it stands; members are None when it is no object."""

    start: int
    end: int
    members: Optional[Tuple[Member, ...]] = None


@dataclass(frozen=True)
class Member:
    key: str
    start: int
    value: Node


class BadPlace(ValueError):
    def __init__(self, position: int, what: str) -> None:
        super().__init__(what)
        self.position = position


def parse(path: str, text: str) -> Dict[str, Any]:
    """The file as plain data; an empty one is like none. Raises GpuOpsError that names the line."""
    if not text.strip().strip(MARK):
        return {}
    try:
        node = _document(text)
    except BadPlace as error:
        line = text.count("\n", 0, error.position) + 1
        raise GpuOpsError(
            "runtime.no_json",
            found="%s:%d: %s" % (path, line, error),
            wanted="a JSON object whose keys are there once",
            remedy="correct the file by hand; nothing was changed",
            file=path,
            line=line,
        ) from error
    return dict(json.loads(text[node.start:node.end]))


def table(data: Mapping[str, Any], key: str) -> Dict[str, Any]:
    """An object among the file's values; what is none counts as empty, and is told by contradictions()."""
    value = data.get(key)
    return value if isinstance(value, dict) else {}


def settings(
    handlers: Mapping[str, str], default: str, cdi: bool, release: Tuple[int, int], base: Mapping[str, Any]
) -> List[Setting]:
    """What daemon.json has to say.

    handlers: binary by name; default: handler that is the default, '' for none; base: the file without what is ours.
    """
    wanted: List[Setting] = [
        (("runtimes", name), {"path": binary, "args": []}) for name, binary in handlers.items()
    ]
    if cdi and release >= CDI_SINCE and not injects_cdi(base, release):
        wanted.append((("features", "cdi"), True))
    if default:
        wanted.append((("default-runtime",), default))
    return wanted


def injects_cdi(data: Mapping[str, Any], release: Tuple[int, int]) -> bool:
    """Whether a daemon of this release that starts with this file injects CDI devices."""
    switch = _value(data, ("features", "cdi"), release >= CDI_ON_SINCE)
    return release >= CDI_SINCE and switch is True


def contradictions(data: Mapping[str, Any], wanted: Sequence[Setting]) -> List[str]:
    """Runtimes that somebody else defined otherwise, and containers of another type than an object."""
    found = []
    for path, value in wanted:
        for length in range(1, len(path)):
            if not isinstance(_value(data, path[:length], {}), dict):
                found.append("'%s' is no object" % ".".join(path[:length]))
        if path[0] == "runtimes":
            there = _value(data, path, None)
            if there is not None and not _same_runtime(there, value):
                found.append("runtime '%s' is %s" % (path[1], json.dumps(there)))
    return found


def flag_conflicts(arguments: Sequence[str], wanted: Sequence[Setting]) -> List[str]:
    """Flags of the daemon's command line that exclude a wanted setting in the file."""
    keys = {path[0] for path, _value_there in wanted}
    return [
        flag for key, flag in FLAGS.items()
        if key in keys and any(word == flag or word.startswith(flag + "=") for word in arguments)
    ]


def without_flag(argv: Sequence[str], flag: str) -> List[str]:
    """A command line's words without a flag and its value."""
    kept: List[str] = []
    skip = False
    for word in argv:
        if not skip and word != flag and not word.startswith(flag + "="):
            kept.append(word)
        skip = word == flag
    return kept


def with_settings(path: str, text: Optional[str], wanted: Sequence[Setting]) -> Tuple[Optional[str], Record]:
    """The text with the settings, and the record that takes them back. Raises GpuOpsError for a broken file."""
    parse(path, text or "")
    record: Record = []
    changed = text
    if not (text or "").strip().strip(MARK) and wanted:
        record.append({"path": [], "former": text})
        changed = "{}\n"
    for place, value in wanted:
        there = _value(parse(path, changed or ""), place, None)
        if there == value or place[0] == "runtimes" and there is not None and _same_runtime(there, value):
            continue
        changed, entry = _with_value(changed or "", place, value)
        record.append(entry)
    return changed, record


def without_settings(path: str, text: Optional[str], record: Record) -> Optional[str]:
    """The text with what the record says taken back; None when no file was there and nothing else is in it now."""
    changed = text
    for entry in reversed(record):
        if not entry["path"]:
            return entry["former"] if not parse(path, changed or "") else changed
        changed = _taken_back(path, changed or "", entry)
    return changed


def restart_causes(
    path: str, before: Optional[str], after: Optional[str], release: Tuple[int, int]
) -> List[str]:
    """Keys whose change a SIGHUP does not bring about.

    dockerd takes runtimes and the default one by it (daemon/reload_unix.go of moby), but only those that the file
    names: a default that is no longer named stays. The CDI driver is registered at its start only.
    """
    former, now = (parse(path, text or "") for text in (before, after))
    causes = []
    if injects_cdi(former, release) != injects_cdi(now, release):
        causes.append("features")
    if "default-runtime" in former and "default-runtime" not in now:
        causes.append("default-runtime")
    return causes


def _same_runtime(there: Any, wanted: Mapping[str, Any]) -> bool:
    if not isinstance(there, dict):
        return False
    name = str(wanted["path"]).rsplit("/", 1)[-1]
    return there.get("path") in (wanted["path"], name) and not there.get("runtimeArgs") and not there.get("args")


def _taken_back(path: str, text: str, entry: Mapping[str, Any]) -> str:
    """The text without an entry's value. What somebody else has changed or put beside it since is theirs."""
    there, value = _value(parse(path, text), tuple(entry["path"]), None), entry["value"]
    if there == value:
        return _without_value(text, entry)
    if entry["former"] is None and isinstance(there, dict) and isinstance(value, dict):
        for key, inner in value.items():
            text = _taken_back(path, text, {"path": [*entry["path"], key], "value": inner, "former": None, "blank": ""})
    return text


def _value(data: Any, path: Path, absent: Any) -> Any:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return absent
        data = data[part]
    return data


def _with_value(text: str, path: Path, value: Any) -> Tuple[str, Dict[str, Any]]:
    node = _document(text)
    depth = 0
    while depth < len(path):
        member = _member(node, path[depth])
        if member is None:
            break
        node = member.value
        depth += 1
    if depth == len(path):
        former = text[node.start:node.end]
        changed = text[:node.start] + _rendered(value, text, depth) + text[node.end:]
        return changed, {"path": list(path), "value": value, "former": former, "blank": None}
    # the outermost part that is missing is what goes in, and what comes out again when it is empty by then
    for part in reversed(path[depth + 1:]):
        value = {part: value}
    changed, blank = _inserted(text, node, path[depth], value, depth)
    return changed, {"path": list(path[:depth + 1]), "value": value, "former": None, "blank": blank}


def _inserted(text: str, node: Node, key: str, value: Any, depth: int) -> Tuple[str, Optional[str]]:
    """The text with a member at the end of an object; with the blank that filled the object if it was empty."""
    unit, line = _indent(text), _line_end(text)
    own = "%s: %s" % (json.dumps(key, ensure_ascii=False), _rendered(value, text, depth + 1))
    members = node.members or ()
    if members:
        last = members[-1]
        before = text[:last.start].rpartition("\n")[2]
        glue = line + before if not before.strip() and "\n" in text[node.start:last.start] else " "
        return text[:last.value.end] + "," + glue + own + text[last.value.end:], None
    blank = text[node.start + 1:node.end - 1]
    inner = line + unit * (depth + 1) + own + line + unit * depth
    return text[:node.start + 1] + inner + text[node.end - 1:], blank


def _without_value(text: str, entry: Mapping[str, Any]) -> str:
    parent, path = _document(text), entry["path"]
    for part in path[:-1]:
        inner = _member(parent, part)
        parent = inner.value if inner else parent
    members = parent.members or ()
    place = next(number for number, member in enumerate(members) if member.key == path[-1])
    member = members[place]
    if entry["former"] is not None:
        return text[:member.value.start] + entry["former"] + text[member.value.end:]
    if place:
        return text[:members[place - 1].value.end] + text[member.value.end:]
    if len(members) > 1:
        return text[:member.start] + text[members[1].start:]
    return text[:parent.start + 1] + (entry["blank"] or "") + text[parent.end - 1:]


def _rendered(value: Any, text: str, depth: int) -> str:
    unit, line = _indent(text), _line_end(text)
    if isinstance(value, dict) and value:
        inner = ("," + line).join(
            "%s%s: %s" % (unit * (depth + 1), json.dumps(key, ensure_ascii=False), _rendered(each, text, depth + 1))
            for key, each in value.items())
        return "{" + line + inner + line + unit * depth + "}"
    return json.dumps(value, ensure_ascii=False)


def _indent(text: str) -> str:
    found = re.search(r'\n([ \t]+)"', text)
    return found.group(1) if found else "    "


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _member(node: Node, key: str) -> Optional[Member]:
    return next((member for member in node.members or () if member.key == key), None)


def _document(text: str) -> Node:
    # dockerd reads a file with a byte order mark, too
    node = _scan(text, _skip(text, 1 if text.startswith(MARK) else 0))
    end = _skip(text, node.end)
    if end < len(text):
        raise BadPlace(end, "something stands behind the end of the object")
    if node.members is None:
        raise BadPlace(node.start, "the file holds no JSON object")
    return node


def _skip(text: str, position: int) -> int:
    found = BLANK.match(text, position)
    return found.end() if found else position


def _scan(text: str, start: int) -> Node:
    character = text[start:start + 1]
    if character == '"':
        return Node(start, _string(text, start)[1])
    if character == "{":
        return _object(text, start)
    if character == "[":
        return _array(text, start)
    found = SCALAR.match(text, start)
    if found is None or not found.group():
        raise BadPlace(start, "no JSON value: %s" % (text[start:start + 12] or "the file ends"))
    return Node(start, found.end())


def _string(text: str, start: int) -> Tuple[str, int]:
    try:
        value, end = json.JSONDecoder().raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise BadPlace(start, error.msg) from error
    return str(value), end


def _object(text: str, start: int) -> Node:
    members: List[Member] = []
    position = _skip(text, start + 1)
    if text[position:position + 1] == "}":
        return Node(start, position + 1, ())
    while True:
        if text[position:position + 1] != '"':
            raise BadPlace(position, "a key in double quotes is missing")
        key, end = _string(text, position)
        if any(member.key == key for member in members):
            raise BadPlace(position, "the key '%s' is there twice" % key)
        colon = _skip(text, end)
        if text[colon:colon + 1] != ":":
            raise BadPlace(colon, "':' is missing behind the key '%s'" % key)
        value = _scan(text, _skip(text, colon + 1))
        members.append(Member(key, position, value))
        position, closed = _next(text, value.end, "}")
        if closed:
            return Node(start, position, tuple(members))


def _array(text: str, start: int) -> Node:
    position = _skip(text, start + 1)
    if text[position:position + 1] == "]":
        return Node(start, position + 1)
    while True:
        position, closed = _next(text, _scan(text, position).end, "]")
        if closed:
            return Node(start, position)


def _next(text: str, end: int, closing: str) -> Tuple[int, bool]:
    """(position of the next element, False) or (end of the container, True)."""
    position = _skip(text, end)
    character = text[position:position + 1]
    if character == closing:
        return position + 1, True
    if character != ",":
        raise BadPlace(position, "',' or '%s' is missing" % closing)
    return _skip(text, position + 1), False
