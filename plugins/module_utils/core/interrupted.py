# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is stopped for a while, remembered before it is: a run that is killed in between is followed by one that starts
it again. A memory of the journal for each capability, {key: names}, with the boot that it is of.
"""
from __future__ import annotations

from typing import Any, Dict, List, Mapping

from .host import Host
from .journal import Journal
from .plan import Step
from .steps import control_service

STOPPED, UNLOADED, UNDIVIDED, LOADED_WITH = PASSING = ("stopped", "unloaded", "undivided", "loaded_with")
_BOOT = "boot"


def remembered(host: Host, journal: Journal, capability: str) -> Dict[str, Any]:
    """What is remembered, without what another boot has ended.

    A boot starts and loads what is to run by itself; what does not run any time after it is an administrator's choice.
    """
    memory = journal.recall(capability)
    if memory.get(_BOOT, host.boot()) == host.boot():
        return dict(memory)
    return {key: value for key, value in memory.items() if key not in (*PASSING, _BOOT)}


def note(host: Host, journal: Journal, capability: str, key: str, name: str) -> None:
    known = _known(host, journal, capability, key)
    _put(host, journal, capability, key, known + [name] if name not in known else known)


def forget(host: Host, journal: Journal, capability: str, key: str, name: str) -> None:
    _put(host, journal, capability, key, [each for each in _known(host, journal, capability, key) if each != name])


def forget_all(host: Host, journal: Journal, capability: str) -> None:
    for key in PASSING:
        _put(host, journal, capability, key, [])


def stop_service(host: Host, journal: Journal, step: Step) -> None:
    note(host, journal, step.capability, STOPPED, step.subject)
    control_service(host, journal, step)


def start_service(host: Host, journal: Journal, step: Step) -> None:
    # A unit that failed too often in a row meanwhile is refused by systemd until it is reset.
    host.run(["systemctl", "reset-failed", step.subject], check=False)
    control_service(host, journal, step)
    forget(host, journal, step.capability, STOPPED, step.subject)


def _known(host: Host, journal: Journal, capability: str, key: str) -> List[str]:
    known: List[str] = remembered(host, journal, capability).get(key, [])
    return known


def _put(host: Host, journal: Journal, capability: str, key: str, names: List[str]) -> None:
    memory: Mapping[str, Any] = {**remembered(host, journal, capability), _BOOT: host.boot(), key: names}
    passing = any(memory.get(each) for each in PASSING)
    journal.remember(capability, {name: value for name, value in memory.items()
                                  if value and (passing or name != _BOOT)})
