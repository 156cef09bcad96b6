# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Facts of hosts with GPUs, as planners get them."""
from __future__ import annotations

from typing import Any

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts

# PCI device ids
A100, T4, V100, H100, B200, B300, GH200, GB200 = "20b2", "1eb8", "1db6", "2330", "2901", "3182", "2342", "2941"


def facts(*device_ids: str, **changes: Any) -> HostFacts:
    gpus = tuple(Gpu("0000:%02x:00.0" % number, device_id) for number, device_id in enumerate(device_ids, 1))
    there = HostFacts(hostname="gpu1", os_id="debian", os_version="12", arch="x86_64", kernel="6.1.0-50-amd64",
                      boot_kernel="6.1.0-50-amd64", gpus=gpus)
    return there.but(**changes)
