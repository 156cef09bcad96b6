# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Cached build parts: a part is a directory whose name carries the digest of everything that went into it.

A part is built in a scratch directory beside its final place and renamed when it is complete, so a build that was
killed leaves nothing that a later build takes for a finished part. Two processes that want the same part wait for
each other on a lock file.
"""
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable, Dict, Iterator, List, Sequence, Tuple, Union

Input = Union[Path, str]

NEWS_SECONDS = 20.0
NEWS_WIDTH = 90


def cache_root() -> Path:
    """Directory that holds everything the laboratory downloads and builds (``GPUOPS_CACHE`` overrides it)."""
    return Path(os.environ.get("GPUOPS_CACHE") or Path.home() / ".cache" / "gpuops")


def parts_root() -> Path:
    return cache_root() / "lab" / "parts"


class BuildError(RuntimeError):
    """A part could not be built; the message names the part, the command and the end of its output."""


@dataclass(frozen=True)
class Part:
    """One cached build product.

    name:   directory name, also the word a user types (``lab build NAME``).
    title:  what a person reads while it is built.
    inputs: files and directories (hashed by content) and literal strings such as versions.
    build:  fills ``job.out``.
    needs:  names of the parts that ``build`` reads through ``job.part(NAME)``.
    """

    name: str
    title: str
    build: Callable[["Job"], None]
    inputs: Tuple[Input, ...] = ()
    needs: Tuple[str, ...] = ()


@dataclass
class Job:
    """What a part's build function gets: where to write, what it may read, how to run and to tell."""

    part_name: str
    out: Path
    log_file: Path
    needed: Dict[str, Path] = field(default_factory=dict)

    def part(self, name: str) -> Path:
        return self.needed[name]

    def say(self, text: str) -> None:
        print("[%s] %s" % (self.part_name, text), file=sys.stderr, flush=True)

    def run(self, argv: Sequence[Union[str, Path]], **options: object) -> None:
        """Run a command, its output going to the part's log; raise `BuildError` with the log's end on failure."""
        words = [str(word) for word in argv]
        with self.log_file.open("ab") as log:
            log.write(("\n$ %s\n" % " ".join(words)).encode())
            log.flush()
            process = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                       **options)  # type: ignore[call-overload]
            self._watch(process)
        if process.returncode != 0:
            tail = self.log_file.read_text(errors="replace").splitlines()[-30:]
            raise BuildError("part %s: %s ended with %d; the end of %s:\n%s"
                             % (self.part_name, words[0], process.returncode, self.log_file, "\n".join(tail)))

    def _watch(self, process: "subprocess.Popen[bytes]") -> None:
        """Wait for a command; while it takes long, tell now and then how far its output is."""
        started = time.monotonic()
        try:
            while True:
                try:
                    process.wait(NEWS_SECONDS)
                    return
                except subprocess.TimeoutExpired:
                    lines = self.log_file.read_text(errors="replace").split("\n")
                    news = next((line.strip() for line in reversed(lines) if line.strip()), "")
                    self.say("%.0f s: %s" % (time.monotonic() - started, news[:NEWS_WIDTH]))
        except BaseException:
            process.kill()
            process.wait()
            raise


class Workshop:
    """The set of all parts: knows their digests, builds what is missing, in the order of their needs."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts: Dict[str, Part] = {}
        for part in parts:
            if part.name in self.parts:
                raise ValueError("two parts are called %s" % part.name)
            self.parts[part.name] = part
        self._digests: Dict[str, str] = {}

    def digest(self, name: str) -> str:
        if name not in self._digests:
            part = self.parts[name]
            total = hashlib.sha256()
            source = inspect.getsourcefile(part.build)
            inputs: List[Input] = list(part.inputs)
            if source:
                inputs.append(Path(source))
            for item in inputs:
                total.update(_digest_of(item).encode())
            for need in part.needs:
                total.update(self.digest(need).encode())
            self._digests[name] = total.hexdigest()[:16]
        return self._digests[name]

    def path(self, name: str) -> Path:
        """Where the part is, or will be once it is built."""
        return parts_root() / ("%s-%s" % (name, self.digest(name)))

    def ready(self, name: str) -> bool:
        return self.path(name).is_dir()

    def order(self, names: Sequence[str]) -> List[str]:
        """The parts with all that they need, needs first."""
        ordered: List[str] = []

        def visit(name: str) -> None:
            if name not in self.parts:
                raise BuildError("there is no part called %s; there are: %s" % (name, ", ".join(sorted(self.parts))))
            for need in self.parts[name].needs:
                visit(need)
            if name not in ordered:
                ordered.append(name)

        for name in names:
            visit(name)
        return ordered

    def build(self, name: str) -> Path:
        """Build the part, and first what it needs, unless they are there; return its directory."""
        for each in self.order([name]):
            self._build_one(self.parts[each])
        return self.path(name)

    def _build_one(self, part: Part) -> None:
        target = self.path(part.name)
        if target.is_dir():
            return
        parts_root().mkdir(parents=True, exist_ok=True)
        with _locked(parts_root() / ("%s.lock" % target.name)):
            if target.is_dir():
                return
            scratch = parts_root() / (".building-%s" % target.name)
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
            log_file = parts_root() / ("%s.log" % target.name)
            log_file.unlink(missing_ok=True)
            job = Job(part.name, scratch, log_file, {need: self.path(need) for need in part.needs})
            started = time.monotonic()
            job.say("building: %s" % part.title)
            part.build(job)
            scratch.rename(target)
            job.say("built in %.0f s" % (time.monotonic() - started))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _digest_of(item: Input) -> str:
    if isinstance(item, str):
        return "text:" + item
    if item.is_dir():
        total = hashlib.sha256()
        for path in sorted(item.rglob("*")):
            if "__pycache__" in path.parts or not path.is_file():
                continue
            total.update(str(path.relative_to(item)).encode())
            total.update(path.read_bytes())
        return "dir:" + total.hexdigest()
    if not item.is_file():
        raise BuildError("a build input is missing: %s" % item)
    return "file:" + hashlib.sha256(item.read_bytes()).hexdigest()
