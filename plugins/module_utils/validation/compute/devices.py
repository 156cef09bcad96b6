# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which devices of a host can be computed on, and who has them. Pure."""
from __future__ import annotations

from dataclasses import replace
from typing import Iterator, Mapping, Sequence, Tuple

from ...hardware.nvml import NvmlGpu, NvmlReading
from .model import Device


def devices_to_prove(
    reading: NvmlReading, programs: Mapping[int, str], pods: Mapping[str, Sequence[str]], switched: bool = False,
    virtual: bool = False
) -> Tuple[Device, ...]:
    """GPUs that are not divided, and MIG devices. switched, virtual: see Device.

    programs: {process id: its name} of those that NVML tells of.
    pods:     {UUID: pods that have it}. A pod that has been given a device may begin to compute at any time.
    A process that only watches a GPU is no use of it.
    """
    return tuple(replace(device, gpu=gpu.uuid, switched=switched, virtual=virtual)
                 for gpu in reading.gpus if not gpu.error for device in _devices(gpu, programs, pods))


def _devices(gpu: NvmlGpu, programs: Mapping[int, str], pods: Mapping[str, Sequence[str]]) -> Iterator[Device]:
    if gpu.mig_error:
        yield Device(gpu.uuid, gpu.named(), unknown="whether it is divided cannot be told: %s" % gpu.mig_error)
        return
    if not gpu.is_divided or gpu.mig is None:
        yield Device(gpu.uuid, gpu.named(), True, _users(gpu.uuid, gpu.processes, programs, pods))
        return
    for instance in gpu.mig.instances:
        profile = gpu.mig.profile(instance.profile)
        for each in instance.compute:
            if each.uuid:
                kind = profile.device_name(gpu.memory_mib, each.slices) if profile is not None else "MIG device"
                yield Device(each.uuid, "%s %d/%d of %s" % (kind, instance.id, each.id, gpu.named()), False,
                             _users(each.uuid, each.processes, programs, pods))


def _users(
    uuid: str, processes: Sequence[int], programs: Mapping[int, str], pods: Mapping[str, Sequence[str]]
) -> Tuple[str, ...]:
    named = [programs.get(process, "process %d" % process) for process in processes]
    return tuple(dict.fromkeys([*("pod %s" % pod for pod in pods.get(uuid, ())), *named]))
