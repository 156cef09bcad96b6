# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One reading of the whole host: facts, PCI, NVML, services and kernel modules, as JSON-able data."""
from __future__ import annotations

from typing import Any, Dict

from ..core.errors import HostFailed
from ..core.features import FEATURE_FILE, parse_features
from ..core.host import Host
from .boot import kernels
from .devices import devices_of, layouts_of
from .node import facts_of
from .nvml import reading_of
from .pci import read_bus

SERVICES = (
    "nvidia-persistenced.service",
    "nvidia-fabricmanager.service",
    "nvidia-imex.service",
    "nvidia-cdi-refresh.path",
    "containerd.service",
    "crio.service",
    "kubelet.service",
)


def read_host(host: Host) -> Dict[str, Any]:
    """Everything that can be told of the host without changing it."""
    bus = read_bus(host)
    facts = facts_of(host, bus)
    nvml = reading_of(facts.driver_userspace, facts.driver_loaded)
    return {
        "host": facts.but(hung=nvml.hung).to_dict(),
        "kernels": list(kernels(host)),
        "pci": {
            "gpus": [device.to_dict() for device in bus.gpus],
            "other_gpus": [device.to_dict() for device in bus.other_gpus],
            "nvswitches": [device.to_dict() for device in bus.nvswitches],
            "nvlink_bridges": [device.to_dict() for device in bus.bridges],
        },
        "nvml": nvml.to_dict(),
        "devices": devices_of(len(bus.gpus), nvml),
        "layouts": layouts_of(nvml),
        "services": {name: service_state(host, name) for name in SERVICES},
        "features": _features(host),
        "modules": {name: _module(host, name) for name in host.list("/sys/module") if name.startswith("nvidia")},
    }


def _features(host: Host) -> Dict[str, str]:
    """None for a user who may not look there: of all that is read, only the node's labels are made of them."""
    try:
        return parse_features(host.read(FEATURE_FILE) or "")
    except HostFailed as failure:
        if failure.is_denial:
            return {}
        raise


def compact(reading: Dict[str, Any]) -> Dict[str, Any]:
    """The few facts worth keeping in a fact cache: small, and stable while nothing changes."""
    gpus = reading["nvml"]["gpus"]
    return {
        "gpu_count": len(reading["pci"]["gpus"]),
        "gpu_device_ids": sorted({gpu["device_id"] for gpu in reading["pci"]["gpus"]}),
        "gpu_names": sorted({gpu["name"] for gpu in gpus if gpu["name"]}),
        "nvswitch_count": len(reading["pci"]["nvswitches"]),
        "fabric": reading["host"]["fabric"],
        # As the label nvidia.com/gpu.clique of NVIDIA's feature discovery has them
        "fabric_cliques": sorted({"%s.%d" % (gpu["fabric_cluster"], gpu["fabric_clique"])
                                  for gpu in gpus if gpu["fabric_cluster"]}),
        "driver_loaded": reading["host"]["driver_loaded"],
        "driver_installed": reading["host"]["driver_installed"],
        "toolkit": reading["host"]["toolkit"],
    }


def service_state(host: Host, name: str) -> str:
    """'not-found', or systemd's active state."""
    state = host.unit(name)
    return "not-found" if state.get("LoadState") != "loaded" else state.get("ActiveState", "")


def _module(host: Host, name: str) -> Dict[str, str]:
    directory = "/sys/module/" + name
    return {key: (host.read("%s/%s" % (directory, key)) or "").strip() for key in ("version", "refcnt")}
