# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the journal notes of settings: what a GPU had before us, and which clocks we have locked.

{'former': {UUID: {setting: value}}, 'locked': {UUID: {setting: [least, most]}}, 'driver': what was loaded then}
Locked clocks cannot be read. They are taken for locked as long as the driver that they were given to is loaded.
"""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Sequence

from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import digest

NAME = "settings"
FORMER, LOCKED, DRIVER = "former", "locked", "driver"
# The kernel makes this directory anew with each load
_LOADED = "/sys/module/nvidia"


def loaded(host: Host) -> str:
    """What tells one load of the driver from another; '' without one."""
    found = host.stat(_LOADED)
    return "" if found is None else digest([host.boot(), found.st_ino, found.st_mtime_ns])


def former(memory: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    return {uuid: dict(values) for uuid, values in memory.get(FORMER, {}).items()}


def locked(memory: Mapping[str, Any], driver: str) -> Dict[str, Dict[str, Any]]:
    if memory.get(DRIVER) != driver:
        return {}
    return {uuid: dict(values) for uuid, values in memory.get(LOCKED, {}).items()}


def note_former(journal: Journal, uuid: str, values: Mapping[str, Any]) -> None:
    """What a GPU has before our first change of it; what was noted before stays."""
    memory = journal.recall(NAME)
    known = former(memory)
    known[uuid] = {**values, **known.get(uuid, {})}
    journal.remember(NAME, {**memory, FORMER: known})


def note_locked(journal: Journal, driver: str, uuid: str, values: Mapping[str, Any]) -> None:
    """values: {setting: clocks, None where they are not locked any more}."""
    memory = journal.recall(NAME)
    known = locked(memory, driver)
    mine = {name: clocks for name, clocks in {**known.get(uuid, {}), **values}.items() if clocks is not None}
    known = {each: found for each, found in {**known, uuid: mine}.items() if found}
    journal.remember(NAME, {**memory, LOCKED: known, DRIVER: driver})


def forget(journal: Journal, uuid: str, names: Optional[Sequence[str]]) -> None:
    """Nothing of ours is left of these settings of a GPU, or of any."""
    memory = journal.recall(NAME)
    kept = {}
    for key in (FORMER, LOCKED):
        mine = {name: value for name, value in memory.get(key, {}).get(uuid, {}).items()
                if names is not None and name not in names}
        kept[key] = {each: values for each, values in {**memory.get(key, {}), uuid: mine}.items() if values}
    journal.remember(NAME, {**memory, **kept} if any(kept.values()) else {})
