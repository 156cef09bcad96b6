# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""TOML as text: where each statement stands, and lines of ours that go in and out without touching another byte.

tomlkit says what a file means; the text is changed here, line by line, so that removing our lines gives the bytes
back, ends of lines as the file has them. Whoever changes a text parses it again and compares.
"""
from __future__ import annotations

import contextlib
import copy
import functools
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from ..core import libraries
from ..core.errors import GpuOpsError

Path = Tuple[str, ...]

BEGIN = "# BEGIN gpuops.nvidia"
END = "# END gpuops.nvidia"
FORMER = "# former: "
NO_END = " (the line before had no end)"

# What no TOML has outside of strings and comments, and every Go template
_TEMPLATE = re.compile(r"^(?!\s*#).*?(\{\{.*?(?:\}\}|$))", re.MULTILINE)

# A bare key and a value that can only be on its line: no array, no inline table, no string of several lines
_ON_ONE_LINE = re.compile(r"""\s*[A-Za-z0-9_-]+\s*=\s*(?:[^\s\[{"']|"(?!"")|'(?!''))""")


@dataclass(frozen=True)
class Statement:
    """A table header or a key, with its lines [first, last] (counted from 0).

    path:    of the table, or of the key in its table's path.
    table:   whether it is a header.
    several: whether it is the header of one of several tables of a name ([[...]]).
    depth:   how many parts of a key's path are its table's.
    """

    path: Path
    table: bool
    first: int
    last: int
    several: bool = False
    depth: int = 0


class BadLine(ValueError):
    """A line, counted from 1, that is no TOML."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line = line


def parse(path: str, text: str) -> Dict[str, Any]:
    """The file as plain data. Raises GpuOpsError that names file and line when it is no TOML.

    tomlkit reads the values, statement by statement; as a whole it refuses some files that containerd accepts, such as
    a table that stands behind one of its sub-tables.
    """
    total: Dict[str, Any] = {}
    seen: Set[Path] = set()
    closed: Set[Path] = set()
    lines = _bare_lines(text)
    try:
        for statement in statements(text):
            with _line(statement.first):
                if statement.path in seen and not statement.several:
                    raise ValueError("'%s' is there twice" % ".".join(statement.path))
                seen.add(statement.path)
                if any(statement.path[:length] in closed for length in range(1, len(statement.path) + 1)):
                    raise ValueError("'%s' extends an inline table" % ".".join(statement.path))
                if statement.table:
                    _open_table(total, statement, seen)
                else:
                    snippet = "\n".join(lines[statement.first:statement.last + 1])
                    if isinstance(_set_key(total, statement, snippet), dict):
                        closed.add(statement.path)
    except BadLine as error:
        raise _not_toml(path, text, error) from error
    return total


def flat(data: Mapping[str, Any], prefix: Path = ()) -> Dict[Path, Any]:
    """{path: value} of everything in nested tables that is no table itself."""
    found: Dict[Path, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            found.update(flat(value, prefix + (key,)))
        else:
            found[prefix + (key,)] = value
    return found


def line_of(text: str, path: Path) -> int:
    """The line, counted from 1, where a table or key begins; where it is not there, the next thing around it."""
    stands = statements(text)
    for length in range(len(path), 0, -1):
        found = [each.first for each in stands if each.path[:length] == path[:length]]
        if found:
            return found[0] + 1
    return 1


def _not_toml(path: str, text: str, error: BadLine) -> GpuOpsError:
    template = _TEMPLATE.search(text)
    if template:
        line = text.count("\n", 0, template.start(1)) + 1
        return GpuOpsError(
            "runtime.go_template",
            found="%s:%d: '%s' belongs to a Go template, this is no TOML" % (path, line, template.group(1).strip()),
            wanted="the configuration that the runtime reads, not what it is made from",
            remedy="name the file that the distribution renders from the template, and the distribution with `runtime` "
                   "where it is not found; nothing was changed",
            option="runtime",
            file=path,
            line=line,
        )
    # tomlkit reads a NUL behind the last character
    told = "the statement is not complete" if "'\\x00'" in str(error) else str(error).partition(" at line ")[0]
    return GpuOpsError(
        "runtime.no_toml",
        found="%s:%d: %s" % (path, error.line, told),
        wanted="valid TOML",
        remedy="correct the file by hand (`containerd config dump` or `crio config` shows whether it is read); nothing "
               "was changed",
        file=path,
        line=error.line,
    )


@contextlib.contextmanager
def _line(before: int) -> Iterator[None]:
    """Turns what tomlkit says of a snippet into the line of the file; before: lines in front of the snippet."""
    try:
        yield
    except (ValueError, KeyError, TypeError) as error:
        raise BadLine(before + getattr(error, "line", 1), str(error)) from error


def _open_table(total: Dict[str, Any], statement: Statement, seen: Set[Path]) -> None:
    table = _descend(total, statement.path[:-1])
    name = statement.path[-1]
    if statement.several:
        table.setdefault(name, []).append({})
        for path in [path for path in seen if path[:-1] and path[:len(statement.path)] == statement.path]:
            seen.discard(path)
    elif not isinstance(table.setdefault(name, {}), dict):
        raise ValueError("'%s' is no table" % ".".join(statement.path))


def _set_key(total: Dict[str, Any], statement: Statement, snippet: str) -> Any:
    value: Any = _read(snippet)
    for part in statement.path[statement.depth:]:
        value = value[part]
    if isinstance(value, (dict, list)):
        value = copy.deepcopy(value)
    _descend(total, statement.path[:-1])[statement.path[-1]] = value
    return value


def _descend(table: Dict[str, Any], path: Path) -> Dict[str, Any]:
    """The table at a path, made where it is not there; of an array of tables, the last one."""
    for part in path:
        inner = table.setdefault(part, {})
        table = inner[-1] if isinstance(inner, list) else inner
        if not isinstance(table, dict):
            raise ValueError("'%s' is no table" % part)
    return table


def statements(text: str) -> List[Statement]:
    """Headers and keys of a file, in order. Raises BadLine."""
    lines = _bare_lines(text)
    found: List[Statement] = []
    table: Path = ()
    number = 0
    while number < len(lines):
        stripped = lines[number].strip()
        if not stripped or stripped.startswith("#"):
            number += 1
            continue
        if stripped.startswith("["):
            with _line(number):
                table = _header_path(stripped)
            found.append(Statement(table, True, number, number, stripped.startswith("[[")))
            number += 1
            continue
        last = _last_line(lines, number)
        with _line(number):
            key = _key_path(stripped)
        found.append(Statement(table + key, False, number, last, depth=len(table)))
        number = last + 1
    return found


def render_value(value: Any) -> str:
    """A string, boolean, integer or list of strings as TOML."""
    return str(libraries.require("tomlkit").item(value).as_string())


def render_tables(tables: Mapping[Path, Mapping[str, Any]]) -> str:
    """Tables of plain values, one after the other."""
    blocks = []
    for path, values in tables.items():
        lines = ["[%s]" % ".".join(_bare_or_quoted(part) for part in path)]
        lines.extend("  %s = %s" % (_bare_or_quoted(key), render_value(value)) for key, value in values.items())
        blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def with_keys(text: str, table: Path, values: Mapping[str, Any]) -> Optional[str]:
    """The text with these keys in a table that has a header (or, for the path (), at its top).

    A key that is there is kept as a comment beside ours. None when the table has no header of its own.
    """
    stands = statements(text)
    header = next((each for each in stands if each.table and each.path == table), None)
    if table and header is None:
        return None
    lines, end = _lines(text), _line_end(text)
    for key, value in values.items():
        ours = "%s = %s" % (_bare_or_quoted(key), render_value(value))
        old = next((each for each in stands if not each.table and each.path == table + (key,)), None)
        if old is None:
            position = header.last + 1 if header else _top(lines, stands)
            lines = _insert(lines, position, [BEGIN, ours, END], end)
        else:
            former = [FORMER + line + ("" if line.endswith("\n") else end) for line in lines[old.first:old.last + 1]]
            ended = lines[old.last].endswith("\n")
            lines[old.first:old.last + 1] = [BEGIN + end, *former, ours + end, END + (end if ended else "")]
        stands = statements("".join(lines))
        header = next((each for each in stands if each.table and each.path == table), None)
    return "".join(lines)


def with_block(text: str, block: str) -> str:
    """The text with a marked block at its end. A last line without an end gets one, which removal takes away."""
    end = _line_end(text)
    glue = "" if not text or text.endswith("\n") else end
    mark = BEGIN + (NO_END if glue else "")
    return text + glue + ("%s\n%s%s\n" % (mark, block, END)).replace("\n", end)


def without_ours(text: str) -> str:
    """The text as it is without our lines, with the former ones in their place."""
    kept: List[str] = []
    inside = False
    without_end = 0
    for line in _lines(text):
        bare = line.strip()
        if not inside and bare.startswith(BEGIN):
            inside = True
            if bare.endswith(NO_END):
                without_end = len(kept)
            former: List[str] = []
            continue
        if not inside:
            kept.append(line)
        elif bare == END:
            inside = False
            if former and not line.endswith("\n"):
                former[-1] = former[-1].rstrip("\r\n")
            kept.extend(former)
        elif line.startswith(FORMER):
            former.append(line[len(FORMER):])
    if kept and len(kept) == without_end:
        # unless somebody has written behind it since
        kept[-1] = kept[-1].rstrip("\r\n")
    return "".join(kept)


def our_lines(text: str) -> str:
    """Only our lines and the former ones beside them: what a plan may show of a file that holds secrets."""
    shown: List[str] = []
    inside = False
    for line in _bare_lines(text):
        bare = line.strip()
        inside = inside or bare.startswith(BEGIN)
        if inside:
            shown.append(line)
        if bare == END:
            inside = False
    return "".join(line + "\n" for line in shown)


def _lines(text: str) -> List[str]:
    """Lines with their ends; str.splitlines would also cut at separators that TOML allows inside a string."""
    return [line + "\n" for line in text.split("\n")[:-1]] + [last for last in text.split("\n")[-1:] if last]


def _bare_lines(text: str) -> List[str]:
    """Lines without their ends, whether LF or CRLF: TOML knows both."""
    return text.replace("\r\n", "\n").split("\n")


def _line_end(text: str) -> str:
    return "\r\n" if text.partition("\n")[0].endswith("\r") and "\n" in text else "\n"


def _insert(lines: List[str], position: int, new: Sequence[str], end: str) -> List[str]:
    """Lines at a position; a line before them without an end is the file's last and is given one by with_block only."""
    before, after = list(lines[:position]), list(lines[position:])
    ended = not before or before[-1].endswith("\n")
    if ended:
        return before + [line + end for line in new] + after
    marked = [new[0] + NO_END, *new[1:]]
    return before[:-1] + [before[-1] + end] + [line + end for line in marked] + after


def _top(lines: Sequence[str], stands: Sequence[Statement]) -> int:
    """Where a top-level key can go: behind 'version', which people look for first; else before every other key."""
    version = next((each for each in stands if not each.table and each.path == ("version",)), None)
    if version is None:
        return 0 if stands else len(lines)
    behind = version.last + 1
    return behind + 1 if behind < len(lines) and lines[behind].strip() == END else behind


def _header_path(line: str) -> Path:
    opened = line.startswith("[[")
    data: Any = _read(line)
    path: List[str] = []
    while isinstance(data, dict) and data:
        key = next(iter(data))
        path.append(key)
        data = data[key]
        if opened and isinstance(data, list):
            break
    return tuple(path)


def _key_path(line: str) -> Path:
    data: Any = _read(line[:_equals(line)] + "= 0")
    path: List[str] = []
    while isinstance(data, dict):
        key = next(iter(data))
        path.append(key)
        data = data[key]
    return tuple(path)


@functools.lru_cache(maxsize=8192)
def _read(snippet: str) -> Any:
    """What tomlkit makes of a statement, to be read only: a file before and after a change has most lines in common."""
    return libraries.require("tomlkit").parse(snippet).unwrap()


def _equals(line: str) -> int:
    """Position of the sign between key and value; a quoted key may hold one too."""
    quote = ""
    for position, character in enumerate(line):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character == "=":
            return position
    return len(line)


def _last_line(lines: Sequence[str], first: int) -> int:
    """Last line of the statement that begins at a line: multi-line strings and arrays go on."""
    if _ON_ONE_LINE.match(lines[first]):
        return first
    text = "\n".join(lines[first:])
    position = _equals(text) + 1
    depth = 0
    closing = ""
    while position < len(text):
        rest = text[position:position + 3]
        character = text[position]
        if closing:
            if character == "\\" and closing[0] == '"':
                position += 2
                continue
            if text.startswith(closing, position):
                position += len(closing)
                # a multi-line string may end in up to two more quotes of its own
                while len(closing) == 3 and text.startswith(closing[0], position):
                    position += 1
                closing = ""
                continue
        elif rest in ('"""', "'''"):
            closing = rest
            position += 3
            continue
        elif character in "\"'":
            closing = character
        elif character == "#":
            end = text.find("\n", position)
            position = len(text) if end < 0 else end
            continue
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        elif character == "\n" and depth == 0:
            break
        position += 1
    return first + text[:position].count("\n")


def _bare_or_quoted(key: str) -> str:
    if key and all(character.isalnum() and character.isascii() or character in "-_" for character in key):
        return key
    return '"%s"' % key.replace("\\", "\\\\").replace('"', '\\"')
