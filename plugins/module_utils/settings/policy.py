# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the settings of GPUs."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, NoReturn, Tuple

from ..core.errors import GpuOpsError
from ..hardware.nvml_settings import COMPUTE_MODES
from .model import CLOCKS, ECC, KEPT_BY_PERSISTENCE, SETTINGS, TITLES, Entry

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "gpus": {"type": "list", "elements": "dict", "default": [], "options": {
        "match": {"type": "list", "elements": "str", "required": True},
        "power_limit": {"type": "int"},
        "gpu_clocks": {"type": "list", "elements": "int"},
        "memory_clocks": {"type": "list", "elements": "int"},
        "compute_mode": {"type": "str", "choices": sorted(COMPUTE_MODES)},
        "persistence": {"type": "bool"},
        "ecc": {"type": "bool"},
    }},
    "assume_pods_evicted": {"type": "bool", "default": False},
}

_INDEX = re.compile(r"\d{1,3}")


@dataclass(frozen=True)
class Policy:
    """state: present, or absent, which gives back what we changed. entries: as they were given.

    assume_pods_evicted: whether pods that hold GPUs now will have been evicted by then.
    """

    state: str = "present"
    entries: Tuple[Entry, ...] = ()
    assume_pods_evicted: bool = False


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    entries = [_entry(number, given) for number, given in enumerate(parameters["gpus"] or ())]
    return Policy(parameters["state"], tuple(entries), parameters["assume_pods_evicted"])


def _entry(number: int, given: Mapping[str, Any]) -> Entry:
    where = "entry %d" % (number + 1)
    match = tuple(word.strip() for word in given["match"] if word.strip())
    by_index = [word for word in match if _INDEX.fullmatch(word)]
    if by_index:
        raise GpuOpsError(
            "settings.by_index",
            found="%s names GPU %s" % (where, ", ".join(by_index)),
            wanted="GPUs by what stays theirs: an index is another GPU's as soon as one is pulled or fails",
            remedy="in `gpus`, name them by UUID (`nvidia-smi -L`), by PCI device id such as 2330, by the board's "
                   "name, or `all`",
            option="gpus")
    values: Dict[str, Any] = {name: given[name] for name in (*SETTINGS, ECC) if given.get(name) is not None}
    if not match or not values:
        _refuse(where, "nothing to set" if match else "an empty `match`", "GPUs, and at least one setting")
    if values.get("power_limit", 1) < 1:
        _refuse(where, "a power limit of %d W" % values["power_limit"], "watts")
    for name in CLOCKS:
        if name in values:
            values[name] = _clocks(where, name, values[name])
    volatile = [TITLES[name] for name in KEPT_BY_PERSISTENCE if name in values]
    if values.get("persistence") is False and volatile:
        raise GpuOpsError(
            "settings.lost_without_persistence",
            found="%s switches persistence mode off and sets: %s" % (where, ", ".join(volatile)),
            wanted="persistence: without it they are lost whenever nobody has the GPU open (nvidia-smi(1), -pm)",
            remedy="in `gpus`, leave `persistence` out or set it to true",
            option="gpus")
    return Entry(match, values)


def _clocks(where: str, name: str, given: List[int]) -> List[int]:
    clocks = list(given) * 2 if len(given) == 1 else list(given)
    if len(clocks) != 2 or not 0 < clocks[0] <= clocks[1]:
        _refuse(where, "`%s`: %s" % (name, given), "[least, most] in MHz, or one number for both")
    return clocks


def _refuse(where: str, found: str, wanted: str) -> NoReturn:
    raise GpuOpsError("settings.malformed", found="%s has %s" % (where, found), wanted=wanted,
                      remedy="correct this entry of `gpus`", option="gpus")
