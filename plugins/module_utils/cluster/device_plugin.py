# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The configuration file of NVIDIA's device plugin, checked before a cluster sees it.

The plugin itself takes unknown and misspelled keys in silence, lets MPS win over time-slicing when both are given, and
ends at start-up for most other mistakes, one crash at a time on every node. Keys, defaults and limits are those of
api/config/v1 in the repository NVIDIA/k8s-device-plugin.
"""
from __future__ import annotations

import re
from typing import Any, Callable, Dict, List, Mapping, Tuple

from ..core.errors import GpuOpsError
from ..core.quantities import GPU, prefixed

Check = Callable[[str, Any, List[str]], None]

LIST_STRATEGIES = ("envvar", "volume-mounts", "cdi-annotations", "cdi-cri")
DURATION = re.compile(r"^(infinite|([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+)$")
_PART = r"[a-z0-9]([a-z0-9-]*[a-z0-9])?"
# A subdomain of DNS behind the prefix, or the plugin does not read the file
RESOURCE_NAME = re.compile(r"(nvidia\.com/)?%s(\.%s)*" % (_PART, _PART))
RESOURCE_NAME_LENGTH = 63
# The MPS server's own limits: 48 clients from compute capability 7.5 on, 16 before.
MPS_CLIENTS = 48


def checked_config(config: Any) -> Dict[str, Any]:
    """The configuration unchanged, if the plugin will read it as its author meant it."""
    faults: List[str] = []
    _mapping("config", config, CONFIG, faults)
    if not faults:
        _whole(config, faults)
    if faults:
        raise GpuOpsError(
            "cluster.device_plugin_config_malformed",
            found="in the device plugin's configuration: " + "; ".join(faults),
            wanted="a configuration of version v1 that the device plugin reads as it is meant",
            remedy="correct these keys; leave the block `sharing` out where GPUs are not shared",
            faults=faults,
        )
    return dict(config)


def _whole(config: Mapping[str, Any], faults: List[str]) -> None:
    """What only shows when the parts are seen together."""
    sharing, flags = config.get("sharing") or {}, config.get("flags") or {}
    if "timeSlicing" in sharing and "mps" in sharing:
        faults.append("sharing has both timeSlicing and mps, of which the plugin would take mps in silence")
    if "mps" in sharing:
        if not flags.get("mpsRoot"):
            faults.append("sharing.mps needs flags.mpsRoot")
        if flags.get("migStrategy") == "mixed":
            faults.append("sharing.mps does not work with flags.migStrategy=mixed")
        named = [prefixed(resource["name"]) for resource in sharing["mps"]["resources"]]
        if GPU not in named:
            # Whatever else there is, the plugin waits for the daemon of each resource that it has devices of, and MIG
            # devices it never shares so.
            faults.append("sharing.mps names %s and not %s, so that the plugin would wait for ever" % (
                ", ".join(named), GPU))
        for resource in sharing["mps"]["resources"]:
            if resource["replicas"] > MPS_CLIENTS:
                faults.append("sharing.mps: replicas=%d, at most %d" % (resource["replicas"], MPS_CLIENTS))
    for kind, block in sharing.items():
        names = [prefixed(resource["name"]) for resource in block["resources"]]
        for name in sorted({name for name in names if names.count(name) > 1}):
            faults.append("sharing.%s names %s more than once" % (kind, name))


def _mapping(
    path: str, value: Any, keys: Mapping[str, Check], faults: List[str], required: Tuple[str, ...] = ()
) -> None:
    if not isinstance(value, Mapping):
        faults.append("%s is %s, not a mapping" % (path, type(value).__name__))
        return
    for key in value:
        if key not in keys:
            faults.append("%s has the unknown key %s (known: %s)" % (path, key, ", ".join(sorted(keys))))
        else:
            keys[key]("%s.%s" % (path, key) if path != "config" else str(key), value[key], faults)
    faults.extend("%s lacks %s" % (path, key) for key in required if key not in value)


def _one_of(*choices: str) -> Check:
    def check(path: str, value: Any, faults: List[str]) -> None:
        if value not in choices:
            faults.append("%s=%s, not one of %s" % (path, value, ", ".join(choices)))

    return check


def _boolean(path: str, value: Any, faults: List[str]) -> None:
    if not isinstance(value, bool):
        faults.append("%s=%s, not true or false" % (path, value))


def _text(path: str, value: Any, faults: List[str]) -> None:
    if not isinstance(value, str):
        faults.append("%s=%s, not text" % (path, value))


def _absolute(path: str, value: Any, faults: List[str]) -> None:
    if not isinstance(value, str) or not value.startswith("/"):
        faults.append("%s=%s, not an absolute path" % (path, value))


def _duration(path: str, value: Any, faults: List[str]) -> None:
    if not isinstance(value, str) or not DURATION.match(value):
        faults.append("%s=%s, not a duration such as 60s, 1m30s or infinite" % (path, value))


def _list_strategy(path: str, value: Any, faults: List[str]) -> None:
    strategies = value if isinstance(value, list) else [value]
    unknown = [str(strategy) for strategy in strategies if strategy not in LIST_STRATEGIES]
    if unknown or not strategies:
        faults.append("%s=%s, not of %s" % (path, ", ".join(unknown) or "[]", ", ".join(LIST_STRATEGIES)))


def _channels(path: str, value: Any, faults: List[str]) -> None:
    if value not in ([], [0]):
        faults.append("%s=%s, not [] or [0]" % (path, value))


def _ignored(path: str, value: Any, faults: List[str]) -> None:
    if value:
        faults.append("%s is set, which the plugin ignores: resources cannot be renamed" % path)


def _replicas(path: str, value: Any, faults: List[str]) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 2:
        faults.append("%s=%s, not a number from 2 on" % (path, value))


def _resource_name(path: str, value: Any, faults: List[str]) -> None:
    if not isinstance(value, str) or not RESOURCE_NAME.fullmatch(value) or len(prefixed(value)) > RESOURCE_NAME_LENGTH:
        faults.append("%s=%s, not a resource name such as nvidia.com/gpu or nvidia.com/mig-1g.10gb" % (path, value))


def _devices(path: str, value: Any, faults: List[str]) -> None:
    if value != "all":
        faults.append("%s=%s, which the plugin replaces by 'all': sharing is for the whole node" % (path, value))


def _nested(keys: Mapping[str, Check]) -> Check:
    def check(path: str, value: Any, faults: List[str]) -> None:
        _mapping(path, value, keys, faults)

    return check


def _shared_resources(path: str, value: Any, faults: List[str]) -> None:
    if not isinstance(value, list) or not value:
        faults.append("%s is empty; leave the sharing block out instead" % path)
        return
    for number, resource in enumerate(value):
        _mapping("%s[%d]" % (path, number), resource, SHARED_RESOURCE, faults, ("name", "replicas"))


def _sharing_block(path: str, value: Any, faults: List[str]) -> None:
    _mapping(path, value, SHARING_BLOCK, faults, ("resources",))


SHARED_RESOURCE: Dict[str, Check] = {
    "name": _resource_name, "replicas": _replicas, "devices": _devices, "rename": _ignored,
}
SHARING_BLOCK: Dict[str, Check] = {
    "renameByDefault": _boolean, "failRequestsGreaterThanOne": _boolean, "resources": _shared_resources,
}
PLUGIN_FLAGS: Dict[str, Check] = {
    "passDeviceSpecs": _boolean,
    "deviceListStrategy": _list_strategy,
    "deviceIDStrategy": _one_of("uuid", "index"),
    "cdiAnnotationPrefix": _text,
    "nvidiaCTKPath": _absolute,
    "containerDriverRoot": _absolute,
    "sharedDevicesAllocationPolicy": _one_of("distributed", "packed"),
}
GFD_FLAGS: Dict[str, Check] = {
    "oneshot": _boolean,
    "noTimestamp": _boolean,
    "sleepInterval": _duration,
    "outputFile": _text,
    "machineTypeFile": _absolute,
}
FLAGS: Dict[str, Check] = {
    "migStrategy": _one_of("none", "single", "mixed"),
    "failOnInitError": _boolean,
    "mpsRoot": _absolute,
    "nvidiaDriverRoot": _absolute,
    "nvidiaDevRoot": _absolute,
    "gdrcopyEnabled": _boolean,
    "gdsEnabled": _boolean,
    "mofedEnabled": _boolean,
    "useNodeFeatureAPI": _boolean,
    "deviceDiscoveryStrategy": _one_of("auto", "nvml", "tegra"),
    "plugin": _nested(PLUGIN_FLAGS),
    "gfd": _nested(GFD_FLAGS),
}
CONFIG: Dict[str, Check] = {
    "version": _one_of("v1"),
    "flags": _nested(FLAGS),
    "sharing": _nested({"timeSlicing": _sharing_block, "mps": _sharing_block}),
    "resources": _ignored,
    "imex": _nested({"channelIDs": _channels, "required": _boolean}),
}
