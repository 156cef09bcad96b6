# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The device plugin's effective configuration: what the user gives, merged into a default. Pure."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Optional

from .components.merging import merged
from .device_plugin import checked_config

IMAGE = "nvcr.io/nvidia/k8s-device-plugin"
VERSION = "v0.19.3"
MPS_ROOT = "/run/nvidia/mps"
# Of a Node, and as NVIDIA's config-manager reads it: the name of the configuration that the node has
CONFIG_LABEL = "nvidia.com/device-plugin.config"
DEFAULT: Dict[str, Any] = {
    "version": "v1",
    "flags": {
        "migStrategy": "mixed",
        "failOnInitError": False,
        "nvidiaDriverRoot": "/",
        "plugin": {
            "deviceListStrategy": ["cdi-annotations", "cdi-cri"],
            "containerDriverRoot": "/driver-root",
            "nvidiaCTKPath": "/usr/bin/nvidia-cdi-hook",
        },
    },
}


def completed(config: Mapping[str, Any], base: Optional[Mapping[str, Any]] = None, mps_root: str = MPS_ROOT
              ) -> Dict[str, Any]:
    """The configuration as the plugin gets it.

    config:   what is given; lists replace those of the base, null removes a key.
    base:     what it is merged into; DEFAULT where none is given.
    mps_root: what flags.mpsRoot is where GPUs are shared by MPS and the configuration does not say.
    Raises GpuOpsError (cluster.device_plugin_config_malformed) where the plugin would not read it as it is meant.
    """
    whole = {"version": "v1", **merged(DEFAULT if base is None else base, config)}
    if "mps" in (whole.get("sharing") or {}):
        whole = merged({"flags": {"mpsRoot": mps_root}}, whole)
    return checked_config(whole)
