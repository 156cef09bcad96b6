# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the journal notes of settings: what a GPU had before us, what we have set, and which clocks are locked.

{'former': {UUID: {setting: [what it had, what we set last]}},
 'locked': {UUID: {setting: [least, most]}}, 'driver': what was loaded then,
 'resets': {UUID: number of the last reset of ours before that},
 'machines': {UUID: which has noted it, where that can be told}}
Locked clocks cannot be read. They are taken for locked as long as the driver is loaded that they were given to and no
reset of ours came, and once the unit has given them to what came after it: it says so in /run, with the number of the
driver's directory. It gives what its script has, which may be older than the note where a run was killed between them.
"""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ..core.host import Host
from ..core.journal import Journal
from ..hardware.loaded import load_of, number_of_load
from ..hardware.resets import Reset, last_of, resets
from .boot import SCRIPT, STAMP, gives, lines_of
from .model import Change

NAME = "settings"
FORMER, LOCKED, DRIVER, RESETS, MACHINES = "former", "locked", "driver", "resets", "machines"


def restored(host: Host) -> Dict[str, str]:
    """{UUID of a GPU that the unit has set up since the driver was loaded: its line of the script}."""
    number = number_of_load(host)
    lines = [line.split() for line in (host.read(STAMP) or "").splitlines()]
    script = lines_of(host.read(SCRIPT) or "")
    return {words[0]: script.get(words[0], "") for words in lines if len(words) == 2 and words[1] == number}


def elsewhere(host: Host, memory: Mapping[str, Any]) -> Tuple[str, ...]:
    """UUIDs of GPUs of another machine, whose disk was copied."""
    mine = host.machine()
    return tuple(sorted(uuid for uuid, machine in memory.get(MACHINES, {}).items() if mine and machine != mine))


def former(memory: Mapping[str, Any]) -> Dict[str, Dict[str, Change]]:
    return {uuid: {name: Change(*pair) for name, pair in values.items()}
            for uuid, values in memory.get(FORMER, {}).items()}


def locked(
    memory: Mapping[str, Any], driver: str, restored_gpus: Mapping[str, str], known_resets: Sequence[Reset]
) -> Dict[str, Dict[str, Any]]:
    numbers = memory.get(RESETS, {})
    found = {}
    for uuid, values in memory.get(LOCKED, {}).items():
        stays = memory.get(DRIVER) == driver and numbers.get(uuid, 0) == last_of(known_resets, uuid)
        line = restored_gpus.get(uuid, "")
        found[uuid] = {name: clocks for name, clocks in values.items() if stays or gives(line, name, clocks)}
    return {uuid: values for uuid, values in found.items() if values}


def note_former(journal: Journal, uuid: str, before: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Before a change. What a GPU had before our first one stays noted."""
    memory = journal.recall(NAME)
    known = {name: list(pair) for name, pair in memory.get(FORMER, {}).get(uuid, {}).items()}
    for name, value in wanted.items():
        known[name] = [known[name][0] if name in known else before.get(name), value]
    machines = {**memory.get(MACHINES, {}), uuid: journal.host.machine()}
    journal.remember(NAME, {**memory, FORMER: {**memory.get(FORMER, {}), uuid: known},
                            MACHINES: {each: machine for each, machine in machines.items() if machine}})


def note_locked(host: Host, journal: Journal, uuid: str, values: Mapping[str, Any]) -> None:
    """values: {setting: clocks, None where they are not locked any more}."""
    memory, driver = journal.recall(NAME), load_of(host)
    known_resets = resets(host)
    known = locked(memory, driver, restored(host), known_resets)
    mine = {name: clocks for name, clocks in {**known.get(uuid, {}), **values}.items() if clocks is not None}
    known = {each: found for each, found in {**known, uuid: mine}.items() if found}
    numbers = {each: last_of(known_resets, each) for each in known}
    journal.remember(NAME, {**memory, LOCKED: known, DRIVER: driver, RESETS: numbers})


def forget(journal: Journal, uuid: str, names: Optional[Sequence[str]]) -> None:
    """Nothing of ours is left of these settings of a GPU, or of any."""
    memory = journal.recall(NAME)
    kept = {}
    for key in (FORMER, LOCKED):
        mine = {name: value for name, value in memory.get(key, {}).get(uuid, {}).items()
                if names is not None and name not in names}
        kept[key] = {each: values for each, values in {**memory.get(key, {}), uuid: mine}.items() if values}
    kept[MACHINES] = {each: machine for each, machine in memory.get(MACHINES, {}).items() if each in kept[FORMER]}
    journal.remember(NAME, {**memory, **kept} if any(kept.values()) else {})
