# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What has been tried on this host to mend it, and what became of it.

/var/lib/gpuops/repairs.json, root's alone: {'schema': 1, 'attempts': [the fields of Attempt]}, the newest last; the
newest KEPT are kept. An attempt is on the disk before it is made. Without the record nobody knows what has been tried
in vain: where it cannot be read, nothing is repaired.
"""
from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Dict, List, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.journal import DIRECTORY
from ..hardware.loaded import load_of
from ..hardware.recovery import LADDER, POWER_CYCLE, REBOOT, RELOAD

PATH = DIRECTORY + "/repairs.json"
SCHEMA = 1
# More than one host can be tried in a time that anybody would count in
KEPT = 256
# Of one that was begun and has no end, nobody knows what it has done
BEGUN, DONE, FAILED = ENDS = ("begun", "done", "failed")
# They are written down here, and done by others: nothing on the host outlives a boot, and to load a driver is what
# activation is for
BY_OTHERS = (RELOAD, REBOOT, POWER_CYCLE)


@dataclass(frozen=True)
class Part:
    """What an attempt is to mend.

    key:     of a finding's subject: 'gpu GPU-9da9...', 'switch 0000:c1:00.0' or 'host'.
    serial:  of its board, '' where it has none.
    address: on the PCI bus; '' of the host.
    """

    key: str
    serial: str = ""
    address: str = ""


@dataclass(frozen=True)
class Attempt:
    """One act, on one part or on several at once.

    number:   counted up from 1.
    rung:     of the ladder (hardware/recovery.py). OUT is no act: all rungs were tried in vain by then.
    boot:     the boot in which it was begun. load: the load of the driver, '' without one.
    time:     when it was begun, in seconds since 1970.
    who:      who asked for it, for people.
    parts:    what it is to mend.
    findings: keys of the findings that it is for.
    end:      BEGUN, DONE or FAILED. why: what failed.
    """

    number: int
    rung: str
    boot: str
    load: str
    time: float
    who: str
    parts: Tuple[Part, ...]
    findings: Tuple[str, ...]
    end: str = BEGUN
    why: str = ""

    @property
    def keys(self) -> Tuple[str, ...]:
        return tuple(part.key for part in self.parts)


def is_at_hand(attempt: Attempt, boot: str, load: str) -> bool:
    """Whether an attempt waits for what it is: that has not come yet. boot, load: those that are now."""
    return attempt.end == BEGUN and attempt.rung in BY_OTHERS and _is_of(attempt, boot, load)


def has_come(attempt: Attempt, boot: str, load: str) -> bool:
    """Whether what an attempt was written down for has come since. Who begins the next one writes that down."""
    return attempt.end == BEGUN and attempt.rung in BY_OTHERS and not _is_of(attempt, boot, load)


def _is_of(attempt: Attempt, boot: str, load: str) -> bool:
    """A load that is none is one that is being exchanged."""
    return attempt.boot == boot and (attempt.rung != RELOAD or load in ("", attempt.load))


def attempts(host: Host) -> Tuple[Attempt, ...]:
    """Those that are kept, oldest first. Raises GpuOpsError where the record cannot be understood."""
    text = host.read(PATH)
    if text is None:
        return ()
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise ValueError("schema %s, and not %d" % (data["schema"], SCHEMA))
        return tuple(map(_of, data["attempts"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise GpuOpsError(
            "repair.record_damaged",
            found="%s cannot be understood: %s" % (PATH, error),
            wanted="the record of what has been tried to mend this host: without it the same would be tried again and "
                   "again",
            remedy="use the release that wrote it; or see for yourself what was tried (`journalctl`, "
                   "/var/lib/gpuops/journal.jsonl), move the file away, and run again: nothing counts as tried then",
        ) from error


def begin(
    host: Host, rung: str, load: str, who: str, parts: Sequence[Part], findings: Sequence[str]
) -> int:
    """Write down what is about to be tried; its number. It is on the disk when this returns."""
    known = attempts(host)
    number = known[-1].number + 1 if known else 1
    _write(host, [*known, Attempt(number, rung, host.boot(), load, time.time(), who, tuple(parts), tuple(findings))])
    return number


def end(host: Host, number: int, how: str, why: str = "") -> None:
    _write(host, [replace(each, end=how, why=why) if each.number == number else each for each in attempts(host)])


def _of(data: Dict[str, Any]) -> Attempt:
    if data["rung"] not in LADDER or data["end"] not in ENDS:
        raise ValueError("an attempt of another release")
    return Attempt(int(data["number"]), str(data["rung"]), str(data["boot"]), str(data["load"]), float(data["time"]),
                   str(data["who"]), tuple(Part(**each) for each in data["parts"]), tuple(map(str, data["findings"])),
                   str(data["end"]), str(data["why"]))


def _write(host: Host, known: List[Attempt]) -> None:
    host.make_directory(DIRECTORY, 0o700)
    boot, load = host.boot(), load_of(host)
    closed = [replace(each, end=DONE) if has_come(each, boot, load) else each for each in known[-KEPT:]]
    data = {"schema": SCHEMA, "attempts": [asdict(each) for each in closed]}
    host.write(PATH, json.dumps(data, sort_keys=True) + "\n", 0o600)
