# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The board file, shared with the C library (src/board.c): key=value lines, the generation first, flock around all."""
from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from typing import Dict, Iterator, List, Optional


class BoardError(RuntimeError):
    """The board file is missing or not a board."""


class Board:
    """The values of a board while its file is locked."""

    def __init__(self, values: Dict[str, str]) -> None:
        self.values = values

    def text(self, key: str, fallback: str = "") -> str:
        return self.values.get(key, fallback)

    def number(self, key: str, fallback: int = 0) -> int:
        text = self.values.get(key, "")
        return int(text, 0) if text else fallback

    def set(self, key: str, value: object) -> None:
        self.values[key] = str(value)

    def remove(self, key: str) -> None:
        """Remove the key and every key below it."""
        for name in [name for name in self.values if name == key or name.startswith(key + ".")]:
            del self.values[name]

    def below(self, prefix: str) -> List[str]:
        return [name for name in self.values if name.startswith(prefix + ".")]

    @property
    def gpus(self) -> int:
        return self.number("gpu.count")

    def gpu(self, index: int, name: str, fallback: str = "") -> str:
        """A property of one GPU: its own value, else its board's."""
        return self.text("gpu.%d.%s" % (index, name), self.text("board.%s" % name, fallback))

    def faults(self, kind: str) -> List[int]:
        """Ids of the faults of a kind."""
        found = [key.split(".")[1] for key in self.below("fault") if key.endswith(".kind") and self.values[key] == kind]
        return [int(number) for number in found]

    def has_fault(self, kind: str, gpu: int) -> bool:
        wanted = [self.text("fault.%d.gpu" % number) for number in self.faults(kind)]
        return any(text in ("", str(gpu)) for text in wanted)

    def raise_event(self, gpu: int, event_type: int, data: int) -> None:
        """Append to the ring of events that NVML event sets read."""
        number = self.number("event.last") + 1
        self.set("event.%d" % (number % 32), "%d,%d,%d,%d" % (number, gpu, event_type, data))
        self.set("event.last", number)


def parse(text: str) -> Dict[str, str]:
    values: Dict[str, str] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            values[key] = value
    return values


def render(values: Dict[str, str], generation: int) -> str:
    lines = ["generation=%d" % generation]
    lines += ["%s=%s" % (key, value) for key, value in values.items() if key != "generation"]
    return "\n".join(lines) + "\n"


def create(path: Path, values: Dict[str, str]) -> None:
    """Write a new board file, or the whole of an old one anew (in place: containers hold it as a bind mount)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    with path.open("r+", encoding="utf-8") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        generation = int(parse(handle.read()).get("generation", "0")) + 1
        _rewrite(handle.fileno(), render(values, generation))


def _rewrite(descriptor: int, text: str) -> None:
    data = text.encode()
    os.pwrite(descriptor, data, 0)
    os.ftruncate(descriptor, len(data))


@contextlib.contextmanager
def opened(directory: Path) -> Iterator[Board]:
    """The board of a silicon directory, locked; what the block changed is written at its end."""
    path = directory / "board"
    try:
        handle = path.open("r+", encoding="utf-8")
    except OSError as problem:
        raise BoardError("no board at %s: %s" % (path, problem.strerror)) from problem
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        values = parse(handle.read())
        if "gpu.count" not in values:
            raise BoardError("%s is not a board: it has no gpu.count" % path)
        before = dict(values)
        board = Board(values)
        yield board
        if values != before:
            _rewrite(handle.fileno(), render(values, int(before.get("generation", "0")) + 1))


def read(directory: Path) -> Board:
    with opened(directory) as board:
        return Board(dict(board.values))


def log(directory: Path, message: str, program: Optional[str] = None) -> None:
    """One line in the log of writes, beside those of the C library."""
    with (directory / "calls.log").open("a", encoding="utf-8") as handle:
        handle.write("%.3f %d %s %s\n" % (time.time(), os.getpid(), program or "gpusim", message))
