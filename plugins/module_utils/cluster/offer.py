# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NVIDIA's device plugin offers of a host's devices, by its configuration. Pure.

Strategies, names and replicas as in internal/rm of the repository NVIDIA/k8s-device-plugin. Of a layout that its
strategy cannot offer, the plugin offers nothing at all: it ends, or waits, with a line in its log.
"""
from __future__ import annotations

import re
from typing import Any, Dict, Mapping

from ..core.errors import GpuOpsError
from ..core.quantities import GPU, PREFIX, prefixed

MIG = PREFIX + "mig-"
SHARED = ".shared"
_PLAIN = re.compile(r"(?:\d+c\.)?(\d+g\.\d+gb).*")
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.")
# The first version that takes a MIG device for its whole name (pull request 1807 of the plugin's repository)
_WHOLE_NAMES = (0, 20)
# The plugin takes the first for its default, the role device_plugin the last
NO_STRATEGY, SINGLE, MIXED = STRATEGIES = ("none", "single", "mixed")


def offered(devices: Mapping[str, Any], config: Mapping[str, Any], version: str = "") -> Dict[str, int]:
    """{extended resource: count}.

    devices: as hardware.devices.devices_of() has them.
    config:  of the device plugin, version v1.
    version: of the device plugin, as tags of its image have it; another word counts as one before 0.20.
    Raises GpuOpsError where the plugin cannot offer such devices.
    """
    strategy = strategy_of(config)
    mixed = _mixed_by_whole_names if _goes_by_whole_names(version) else _mixed
    resources = {NO_STRATEGY: _physical, SINGLE: _single, MIXED: mixed}[strategy](devices)
    sharing = config.get("sharing") or {}
    # With both, the plugin takes this one
    block = sharing.get("mps") or sharing.get("timeSlicing") or {}
    shared = _replicas(block)
    if sharing.get("mps") and devices["divided"]:
        # Where MIG is on, feature discovery ends under every strategy, so that no daemon of MPS runs to wait for
        raise _impossible(strategy, devices, "GPUs that are not divided: MPS does not share MIG devices",
                          "share by timeSlicing, or divide no GPU")
    renamed = SHARED if block.get("renameByDefault") else ""
    return {name + (renamed if name in shared else ""): count * shared.get(name, 1)
            for name, count in resources.items()}


def _replicas(block: Mapping[str, Any]) -> Dict[str, int]:
    """{resource: how often each device of it is offered}; what else an entry says, the plugin does not heed."""
    found: Dict[str, int] = {}
    for entry in block.get("resources") or ():
        name = prefixed(entry["name"])
        found[name] = max(found.get(name, 1), int(entry["replicas"]))
    return found


def strategy_of(config: Mapping[str, Any]) -> str:
    """One of STRATEGIES. Raises GpuOpsError for another word."""
    strategy = str((config.get("flags") or {}).get("migStrategy") or NO_STRATEGY)
    if strategy not in STRATEGIES:
        raise GpuOpsError(
            "cluster.mig_strategy_unknown",
            found="in the device plugin's configuration: flags.migStrategy=%s" % strategy,
            wanted="one of %s" % ", ".join(STRATEGIES), remedy="correct it")
    return strategy


def _physical(devices: Mapping[str, Any]) -> Dict[str, int]:
    return {GPU: devices["whole"] + devices["divided"]}


def _single(devices: Mapping[str, Any]) -> Dict[str, int]:
    """MIG devices go by the name of GPUs, so that they must be alike, and nothing else there."""
    if not devices["divided"]:
        return {GPU: devices["whole"]}
    if devices["whole"] or devices["empty"] or len(devices["mig"]) > 1:
        raise _impossible(SINGLE, devices, "every GPU divided into instances of one profile, or none divided",
                          "divide all GPUs alike, or set migStrategy to mixed")
    return {GPU: sum(devices["mig"].values())}


def _mixed(devices: Mapping[str, Any]) -> Dict[str, int]:
    """Before 0.20, each by slices and memory alone: the pattern of a plain profile, '1g.10gb', is found in the name of
    every device that has more to it, '1g.10gb+me' and '1c.1g.10gb', and it is tried first
    (api/config/v1/resources.go)."""
    resources: Dict[str, int] = {}
    for name, count in devices["mig"].items():
        plain = MIG + _PLAIN.sub(r"\1", name)
        resources[plain] = resources.get(plain, 0) + count
    return _beside_whole(devices, resources)


def _mixed_by_whole_names(devices: Mapping[str, Any]) -> Dict[str, int]:
    """No pattern is made for a smaller compute instance, and the plugin ends over a device that matches none."""
    if any("c." in name for name in devices["mig"]):
        raise _impossible(MIXED, devices, "GPU instances with one compute instance that takes all of it",
                          "leave compute instances out of the layout, or set migStrategy to single")
    return _beside_whole(devices, {MIG + name.replace("+", "."): count for name, count in devices["mig"].items()})


def _beside_whole(devices: Mapping[str, Any], resources: Dict[str, int]) -> Dict[str, int]:
    return {**({GPU: devices["whole"]} if devices["whole"] or not resources else {}), **resources}


def _goes_by_whole_names(version: str) -> bool:
    found = _VERSION.match(version)
    return found is not None and tuple(map(int, found.groups())) >= _WHOLE_NAMES


def _impossible(strategy: str, devices: Mapping[str, Any], wanted: str, remedy: str) -> GpuOpsError:
    told = ["%d %s" % (count, name) for name, count in devices["mig"].items()]
    told += ["%d %s" % (devices[key], word) for key, word in (
        ("whole", "GPU(s) not divided"), ("empty", "GPU(s) divided into nothing")) if devices[key]]
    return GpuOpsError(
        "cluster.devices_not_offerable",
        found="%s; with migStrategy=%s the device plugin offers nothing of that" % (", ".join(told), strategy),
        wanted=wanted, remedy=remedy,
    )
