# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""MIG over NVML: read and changed, in the child that calls it (hardware/nvml.py).

Facts of the interface: nvml.h of the CUDA toolkit and its binding nvidia-ml-py (module pynvml).
"""
from __future__ import annotations

import ctypes
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .mig import ComputeInstance, GpuInstance, Mig, Profile

# Profiles are listed by numbers from 0 (nvml.h, NVML_GPU_INSTANCE_PROFILE_* and NVML_COMPUTE_INSTANCE_PROFILE_*). A
# binding knows those of its own release, so that numbers are asked beyond; a driver says INVALID_ARGUMENT to one that
# it does not know, which is no word on the next (NVIDIA/go-nvlib, VisitGpuInstanceProfiles).
PROFILE_NUMBERS = range(32)
COMPUTE_PROFILE_NUMBERS = range(16)
# GPU instances of one profile, compute instances of one GPU instance: more than any board has
MOST = 16
# Number of the compute instance profile that is made for so many slices
COMPUTE_NUMBERS = {1: 0, 2: 1, 3: 2, 4: 3, 7: 4, 8: 5, 6: 6}
SECOND_OF_ONE_SLICE = 7
SHARED_ENGINES = 0
# nvml.h: the numbers of profiles that are not the plain ones; drivers that tell no names tell of no others
_ATTRIBUTES = {7: "+me", 8: "+me", 10: "+gfx", 11: "+gfx", 12: "+gfx", 13: "-me", 14: "-me", 15: "+me.all",
               16: "+me.all", 17: "+gfx"}
_NAME = re.compile(r"(?:MIG )?\d+g\.\d+gb(.*)")


def read_mig(nvml: Any, handle: Any) -> Optional[Mig]:
    """MIG of a GPU; None where it has none. Raises the binding's NVMLError where it has MIG that cannot be read."""
    try:
        return _read_mig(nvml, handle)
    except nvml.NVMLError:
        # What was listed may be gone, by whoever divides the GPU meanwhile
        return _read_mig(nvml, handle)


def _read_mig(nvml: Any, handle: Any) -> Optional[Mig]:
    try:
        current, pending = nvml.nvmlDeviceGetMigMode(handle)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound):
        return None
    profiles = _profiles(nvml, handle)
    if not current:
        return Mig(False, bool(pending), profiles)
    devices = _mig_devices(nvml, handle)
    return Mig(True, bool(pending), profiles, _instances(nvml, handle, profiles, devices), tuple(devices.values()))


def _profiles(nvml: Any, handle: Any) -> Tuple[Profile, ...]:
    found = []
    for number in PROFILE_NUMBERS:
        try:
            info, name = _profile_info(nvml, handle, number)
            starts, size = _placements(nvml, handle, info.id)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        named = _NAME.fullmatch(name)
        found.append(Profile(
            id=info.id, name=name[len("MIG "):] if name.startswith("MIG ") else name,
            attributes=named.group(1) if named else _ATTRIBUTES.get(number, ""),
            slices=info.sliceCount, memory_mib=info.memorySizeMB, most=info.instanceCount, size=size, starts=starts,
            engines=(info.copyEngineCount, info.decoderCount, info.encoderCount, info.jpegCount, info.ofaCount)))
    return tuple(sorted(found, key=lambda profile: (-profile.size, -profile.slices, profile.id)))


def _profile_info(nvml: Any, handle: Any, number: int) -> Tuple[Any, str]:
    """(what NVML tells of a profile, its name; '' from drivers before 515)."""
    try:
        info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, 2)
    except nvml.NVMLError_FunctionNotFound:
        return nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, number, 1), ""
    return info, _text(info.name)


def _placements(nvml: Any, handle: Any, profile: int) -> Tuple[Tuple[int, ...], int]:
    """(units at which an instance may begin, units that it takes).

    ((), 0) for who is not root, and from drivers before 495.
    """
    count = ctypes.c_uint(0)
    try:
        nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, None, ctypes.byref(count))
    except (nvml.NVMLError_NoPermission, nvml.NVMLError_FunctionNotFound):
        return (), 0
    places = (nvml.c_nvmlGpuInstancePlacement_t * max(1, count.value))()
    nvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile, places, ctypes.byref(count))
    found = sorted((places[number].start, places[number].size) for number in range(count.value))
    return tuple(start for start, _size in found), found[0][1] if found else 0


def _instances(
    nvml: Any, handle: Any, profiles: Tuple[Profile, ...], devices: Mapping[Tuple[int, int], str]
) -> Tuple[GpuInstance, ...]:
    processes = _processes(nvml, handle)
    found = []
    for profile in profiles:
        for instance in gpu_instances(nvml, handle, profile.id):
            info = nvml.nvmlGpuInstanceGetInfo(instance)
            found.append(GpuInstance(
                id=info.id, profile=info.profileId, start=info.placement.start, size=info.placement.size,
                compute=tuple(sorted((
                    ComputeInstance(each.id, each.placement.start, each.placement.size,
                                    devices.get((info.id, each.id), ""),
                                    tuple(sorted(processes.get((info.id, each.id), ()))))
                    for each in compute_instances(nvml, instance)), key=lambda each: each.start))))
    return tuple(sorted(found, key=lambda instance: instance.start))


def gpu_instances(nvml: Any, handle: Any, profile: int) -> List[Any]:
    """Handles of a GPU's instances of one profile."""
    return _listed(nvml.c_nvmlGpuInstance_t, nvml.nvmlDeviceGetGpuInstances, handle, profile)


def compute_instances(nvml: Any, instance: Any) -> List[Any]:
    """What NVML tells of a GPU instance's compute instances."""
    found: List[Any] = []
    for number in COMPUTE_PROFILE_NUMBERS:
        try:
            profile = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, number, SHARED_ENGINES, 1)
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            continue
        found += map(nvml.nvmlComputeInstanceGetInfo_v2, _listed(
            nvml.c_nvmlComputeInstance_t, nvml.nvmlGpuInstanceGetComputeInstances, instance, profile.id))
    return found


def _listed(kind: Any, ask: Callable[..., Any], parent: Any, profile: int) -> List[Any]:
    places, count = (kind * MOST)(), ctypes.c_uint(MOST)
    ask(parent, profile, places, ctypes.byref(count))
    return [places[number] for number in range(count.value)]


def _mig_devices(nvml: Any, handle: Any) -> Dict[Tuple[int, int], str]:
    """{(GPU instance, compute instance): UUID of the MIG device}, in NVML's order."""
    found = {}
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument, nvml.NVMLError_NotSupported,
                nvml.NVMLError_NoPermission):
            # No device of this index; drivers differ in how they say so (NVIDIA/go-nvlib, VisitMigDevices)
            continue
        place = nvml.nvmlDeviceGetGpuInstanceId(device), nvml.nvmlDeviceGetComputeInstanceId(device)
        found[place] = nvml.nvmlDeviceGetUUID(device)
    return found


def _processes(nvml: Any, handle: Any) -> Dict[Tuple[int, int], List[int]]:
    """{(GPU instance, compute instance): processes}; {} from drivers before 510, and for who is not root."""
    found: Dict[Tuple[int, int], List[int]] = {}
    try:
        for process in nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle):
            found.setdefault((process.gpuInstanceId, process.computeInstanceId), []).append(process.pid)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return {}
    return found


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


# changes, each one call that changes something


def get(nvml: Any, handle: Any) -> Optional[Dict[str, Any]]:
    found = read_mig(nvml, handle)
    return None if found is None else found.to_dict()


def minor(nvml: Any, handle: Any) -> int:
    """Of the GPU's device node, by which its capability files are named."""
    return int(nvml.nvmlDeviceGetMinorNumber(handle))


def set_mode(nvml: Any, handle: Any, enabled: bool) -> int:
    """nvmlReturn_t of the activation: 0 is active now, IN_USE and RESET_REQUIRED leave the mode pending."""
    return int(nvml.nvmlDeviceSetMigMode(handle, int(enabled)))


def create(nvml: Any, handle: Any, profile: int, start: int, size: int) -> int:
    """Id of the new GPU instance."""
    place = nvml.c_nvmlGpuInstancePlacement_t(start, size)
    instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, profile, ctypes.byref(place))
    return int(nvml.nvmlGpuInstanceGetInfo(instance).id)


def create_compute(nvml: Any, handle: Any, instance: int, slices: Sequence[int]) -> None:
    """Make compute instances of so many slices in a GPU instance, each where it leaves room for the others.

    Left to the driver, the order in which they are made decides whether there is room for all.
    """
    parent = nvml.nvmlDeviceGetGpuInstanceById(handle, instance)
    taken = {unit for info in compute_instances(nvml, parent)
             for unit in range(info.placement.start, info.placement.start + info.placement.size)}
    profiles = {each: _compute_profile(nvml, parent, each) for each in set(slices)}
    places = {each: _compute_places(nvml, parent, profile) for each, profile in profiles.items()}
    for each, start in _apart(sorted(slices, reverse=True), places, taken):
        if start is None:
            nvml.nvmlGpuInstanceCreateComputeInstance(parent, profiles[each])
        else:
            place = nvml.c_nvmlComputeInstancePlacement_t(start, each)
            nvml.nvmlGpuInstanceCreateComputeInstanceWithPlacement(parent, profiles[each], ctypes.byref(place))


def _compute_profile(nvml: Any, parent: Any, slices: int) -> int:
    try:
        info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, COMPUTE_NUMBERS[slices], SHARED_ENGINES, 1)
    except nvml.NVMLError_NotSupported:
        if slices != 1:
            raise
        info = nvml.nvmlGpuInstanceGetComputeInstanceProfileInfo(parent, SECOND_OF_ONE_SLICE, SHARED_ENGINES, 1)
    return int(info.id)


def _compute_places(nvml: Any, parent: Any, profile: int) -> Tuple[int, ...]:
    """Slices at which a compute instance may begin; () from drivers before 525, which choose themselves."""
    count = ctypes.c_uint(MOST)
    places = (nvml.c_nvmlComputeInstancePlacement_t * MOST)()
    try:
        nvml.nvmlGpuInstanceGetComputeInstancePossiblePlacements(parent, profile, places, ctypes.byref(count))
    except nvml.NVMLError_FunctionNotFound:
        return ()
    return tuple(sorted(places[number].start for number in range(count.value)))


def _apart(
    sizes: Sequence[int], places: Mapping[int, Sequence[int]], taken: Set[int]
) -> List[Tuple[int, Optional[int]]]:
    """(size, start) of each so that none is in another's way; start is None where the driver has to choose."""
    if not sizes:
        return []
    first, *others = sizes
    for start in places[first]:
        units = set(range(start, start + first))
        if not units & taken:
            rest = _apart(others, places, taken | units)
            if not any(each is None for _size, each in rest):
                return [(first, start), *rest]
    return [(size, None) for size in sizes]


def destroy(nvml: Any, handle: Any, instance: int) -> None:
    nvml.nvmlGpuInstanceDestroy(nvml.nvmlDeviceGetGpuInstanceById(handle, instance))


def destroy_compute(nvml: Any, handle: Any, instance: int, compute: int) -> None:
    parent = nvml.nvmlDeviceGetGpuInstanceById(handle, instance)
    nvml.nvmlComputeInstanceDestroy(nvml.nvmlGpuInstanceGetComputeInstanceById(parent, compute))


REQUESTS: Mapping[str, Callable[..., Any]] = {
    "get": get, "minor": minor, "set_mode": set_mode, "create": create, "create_compute": create_compute,
    "destroy": destroy, "destroy_compute": destroy_compute,
}
