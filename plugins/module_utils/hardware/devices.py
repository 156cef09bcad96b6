# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of a host can be given to a container: its GPUs and its MIG devices. Pure."""
from __future__ import annotations

from collections import Counter
from typing import Any, Dict, List

from .mig_layout import drawn
from .nvml import NvmlGpu, NvmlReading


def devices_of(gpus_on_bus: int, reading: NvmlReading) -> Dict[str, Any]:
    """{'whole', 'divided', 'empty', 'mig'}: GPUs whose MIG mode is off, on, and on without a MIG device; and how many
    MIG devices there are of each name ('1g.10gb', '1c.3g.40gb').

    gpus_on_bus: a GPU that does not answer is one that should, and counts as whole.
    """
    divided = [gpu for gpu in reading.gpus if gpu.is_divided]
    return {
        "whole": max(0, gpus_on_bus - len(divided)),
        "divided": len(divided),
        "empty": sum(not gpu.mig_devices for gpu in divided),
        "mig": dict(sorted(Counter(name for gpu in divided for name in _names(gpu)).items())),
    }


def layouts_of(reading: NvmlReading) -> Dict[str, str]:
    """{PCI address of a divided GPU: its instances, drawn in their places}."""
    return {gpu.pci_address: _layout(gpu) for gpu in reading.gpus if gpu.is_divided}


def _names(gpu: NvmlGpu) -> List[str]:
    mig = gpu.mig
    if mig is None:
        return []
    found = []
    for instance in mig.instances:
        profile = mig.profile(instance.profile)
        if profile is not None:
            found += [profile.device_name(gpu.memory_mib, each.slices) for each in instance.compute]
    return found


def _layout(gpu: NvmlGpu) -> str:
    mig = gpu.mig
    if mig is None:
        return ""
    parts = []
    for instance in mig.instances:
        profile = mig.profile(instance.profile)
        parts.append((instance.start, instance.size, "?" if profile is None else profile.name or
                      profile.formal_name(gpu.memory_mib)))
    return drawn(parts, mig.units)
