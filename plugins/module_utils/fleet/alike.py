# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What plans of many hosts have in common: two that a person would read alike have one digest. Pure.

Left out is what is each host's own and says nothing of what is done: its name, digests of what was read and asked for,
and which pods leave. Of what is left, GPUs and MIG devices are named by their UUIDs, which no two hosts
share: they are numbered as they come, so that plans are alike where one becomes the other by renaming devices. Nothing
else is renamed: an address, a version or a name that differs makes a plan that differs.

This is for reading. What an approval covers is each host's plan as it is, see approval.py.
"""
from __future__ import annotations

import re
from typing import Any, Collection, Dict, List, Mapping, Match, Tuple

from ..core.plan import Plan, canonical
from ..core.secrets import hidden

# All of a plan that its text depends on, but what is each host's own
_COMMON = ("schema", "disruption", "steps", "requirements", "refusals", "kept", "notes", "complete", "waiting",
           "returns_to")
PUT_OFF, UNFINISHED = "put_off", "unfinished"
# How many devices were numbered: a plan in which a person has written GPU-#1 is another than one with a device
_DEVICES = "devices"
# nvml.h: a device is named GPU-, or MIG- since release 470, with a UUID behind it
_DEVICE = re.compile(r"(?<![0-9A-Za-z])(GPU|MIG)-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])")
_NUMBERED = re.compile(r"(?:GPU|MIG)-#[0-9]")


def common(
    plan: Mapping[str, Any], put_off: Collection[str] = (), unfinished: Collection[str] = ()
) -> Dict[str, Any]:
    """What the plan has in common with those that read alike, without secrets of URLs.

    put_off:    ids of what is not done of it, as it disturbs more than is allowed.
    unfinished: ids of steps that an earlier run has begun, and the next one closes.
    """
    told = {name: plan[name] for name in _COMMON}
    told.update({PUT_OFF: sorted(put_off), UNFINISHED: sorted(unfinished)})
    found, devices = devices_numbered(hidden(told))
    return {**found, _DEVICES: devices}


def plan_in(found: Mapping[str, Any]) -> Plan:
    """The plan that common() has told, of no host."""
    nobody = Plan().to_dict()
    return Plan.from_dict({**nobody, **{name: found[name] for name in _COMMON}})


def devices_numbered(data: Any) -> Tuple[Any, int]:
    """(the data with GPU-#1, GPU-#2 ... and MIG-#1 ... in place of devices' UUIDs, in the order in which they come; how
    many these are). What has such words already is left as it is, as one could not be told from the other.
    """
    if _NUMBERED.search(canonical(data)):
        return data, 0
    numbers: Dict[str, str] = {}

    def number(found: Match[str]) -> str:
        uuid, kind = found.group(), found.group(1)
        if uuid not in numbers:
            numbers[uuid] = "%s-#%d" % (kind, 1 + sum(name.startswith(kind) for name in numbers))
        return numbers[uuid]

    def renamed(part: Any) -> Any:
        if isinstance(part, Mapping):
            pairs: List[Tuple[Any, Any]] = sorted(part.items(), key=_whatever_its_devices)
            return {renamed(name): renamed(value) for name, value in pairs}
        if isinstance(part, (list, tuple)):
            return [renamed(value) for value in part]
        return _DEVICE.sub(number, part) if isinstance(part, str) else part

    return renamed(data), len(numbers)


def _whatever_its_devices(pair: Tuple[Any, Any]) -> Tuple[str, str]:
    """The place of a key and its value, which no device's UUID decides."""
    name, value = pair
    blank = _DEVICE.sub(r"\1-", str(name))
    return blank, "" if blank == name else _DEVICE.sub(r"\1-", canonical(value))
