# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUs with their settings, and what is wanted of them. Pure data."""
from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple

from ..hardware.reset_plan import Resettable

ALL = "all"
_DEVICE_ID = re.compile(r"[0-9a-f]{4}")
# In the order in which they are set: what keeps the others comes first
SETTINGS = ("persistence", "power_limit", "gpu_clocks", "memory_clocks", "compute_mode")
CLOCKS = ("gpu_clocks", "memory_clocks")
# What is lost with the last process that has the GPU open, where no persistence keeps it (nvidia-smi(1), -pm)
KEPT_BY_PERSISTENCE = ("power_limit", "gpu_clocks", "memory_clocks")
# Changes with a reset, which the GPU keeps it over by itself, and over boots
ECC = "ecc"
TITLES = {"persistence": "persistence mode", "power_limit": "power limit", "gpu_clocks": "GPU clocks",
          "memory_clocks": "memory clocks", "compute_mode": "compute mode", ECC: "ECC"}
# nvml.h, nvmlDeviceArchitecture_t
VOLTA = 5


@dataclass(frozen=True)
class Gpu:
    """A GPU that answers. Power in watts, clocks in MHz; None is what it does not have.

    device_id: four hexadecimal digits.
    divided:   whether MIG mode is on.
    values:    {setting: value} that can be read: all but the clocks, and those that we have locked.
    power:     (least, default, most).
    fastest:   (GPU, memory) clocks.
    reset:     what a reset of it takes; None where nothing is wanted or noted of the ECC of any GPU.
    """

    uuid: str
    name: str
    address: str
    index: int
    device_id: str
    architecture: int = 0
    divided: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    power: Tuple[Optional[int], Optional[int], Optional[int]] = (None, None, None)
    fastest: Tuple[int, int] = (0, 0)
    reset: Optional[Resettable] = None

    def named(self) -> str:
        return "GPU %d (%s)" % (self.index, self.address)


@dataclass(frozen=True)
class Entry:
    """Settings for the GPUs that it names: 'all', UUIDs, PCI device ids and names of boards."""

    match: Tuple[str, ...]
    values: Mapping[str, Any]


def told(setting: str, value: Any) -> str:
    """A value for people: '500 W', '1200 to 1980 MHz', 'on'."""
    if value is None:
        return "not locked" if setting.endswith("clocks") else "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if setting == "power_limit":
        return "%d W" % value
    if setting.endswith("clocks"):
        return "%d to %d MHz" % tuple(value)
    return str(value)


def wanted_of(entries: Tuple[Entry, ...], gpu: Gpu) -> Dict[str, Any]:
    """{setting: value} for a GPU: of two entries that are for it, the later one decides."""
    found: Dict[str, Any] = {}
    for entry in entries:
        if any(matches(word, gpu) for word in entry.match):
            found.update(entry.values)
    return found


def matches(word: str, gpu: Gpu) -> bool:
    text = word.strip().lower()
    return text in (ALL, gpu.uuid.lower(), gpu.device_id.lower(), gpu.name.lower())


def may_match(word: str, device_id: str) -> bool:
    """The same of a GPU of which nothing but its PCI device id is known yet."""
    text = word.strip().lower()
    return text == device_id.lower() or not _DEVICE_ID.fullmatch(text)


@dataclass(frozen=True)
class Change:
    """What we have changed of a GPU. before: what it had; ours: what we set last."""

    before: Any
    ours: Any
