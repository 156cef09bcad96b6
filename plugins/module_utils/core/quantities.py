# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Numbers of devices as Kubernetes prints them. Pure.

An extended resource is a whole number, which the API prints in its shortest form: 2000 shares of GPUs are '2k'
(pkg/api/resource/quantity.go of kubernetes/apimachinery).
"""
from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Optional

PREFIX = "nvidia.com/"
GPU = PREFIX + "gpu"
# What NVIDIA's device plugin calls GPUs and their parts: 'gpu', 'gpu.shared', 'mig-1g.10gb', and whatever it renames
# because it is shared (api/config/v1 of the repository NVIDIA/k8s-device-plugin). Network adapters, RDMA devices and
# what KubeVirt passes through have other names of NVIDIA's.
_GPUS = (GPU, PREFIX + "mig-")
_SHARED = ".shared"
_QUANTITY = re.compile(r"(\d+)(?:[eE](\d+)|(k|Ki|[MGTPE]i?))?")


def prefixed(name: str) -> str:
    """A resource's whole name, of which the device plugin's configuration may leave out the prefix."""
    return name if name.startswith(PREFIX) else PREFIX + name


def whole(quantity: Any) -> Optional[int]:
    """The number; None for what is no whole number of anything."""
    found = _QUANTITY.fullmatch(str(quantity).strip())
    if found is None:
        return None
    digits, exponent, unit = found.groups()
    if unit is None:
        return int(digits) * 10 ** int(exponent or 0)
    return int(digits) * (1024 if unit.endswith("i") else 1000) ** ("kmgtpe".index(unit[0].lower()) + 1)


def nvidia_resources(resources: Optional[Mapping[str, Any]]) -> Dict[str, int]:
    """{extended resource of NVIDIA's: how many} of a node's or a container's resources."""
    return {name: whole(amount) or 0 for name, amount in (resources or {}).items() if name.startswith(PREFIX)}


def is_gpu(resource: str) -> bool:
    """Whether an extended resource is GPUs or parts of them, by a name that NVIDIA's device plugin gives by itself."""
    return resource.startswith(_GPUS) or (resource.startswith(PREFIX) and resource.endswith(_SHARED))
