# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""MIG of a GPU, as NVML tells it: what it can be divided into, and what it is divided into now. Pure data.

Terms of NVIDIA's Multi-Instance GPU User Guide and of nvml.h.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

# Makes the recorded layout, at a boot, after a reload of the driver and after a reset, and where a boot is told to
# start it. Its script has a line 'restore UUID PROFILE:START[/COMPUTE PROFILE,...] ...' of each GPU
RESTORE_UNIT = "gpuops-nvidia-mig.service"
RESTORE_SCRIPT = "/var/lib/gpuops/mig-restore"
RESTORE_WANTED = "/etc/systemd/system/multi-user.target.wants/" + RESTORE_UNIT


@dataclass(frozen=True)
class Profile:
    """A GPU instance profile of one GPU.

    id:         what NVML creates an instance by (nvmlGpuInstanceProfileInfo_t.id), not the number that it lists it by.
    name:       the driver's own name without 'MIG ', '1g.10gb+me'; '' from drivers before 515.
    attributes: what the name says behind the memory: '+me', '+me.all', '+gfx', '-me'; '' for none.
    slices:     compute slices.
    memory_mib: memory in MiB.
    most:       how many instances of it there may be at once, as the driver tells; some tell too few (A30).
    size:       units of the board that an instance takes.
    starts:     units at which an instance may begin.
    engines:    (copy, decoder, encoder, JPEG, OFA): engines that an instance has to itself.
    """

    id: int
    name: str
    attributes: str
    slices: int
    memory_mib: int
    most: int
    size: int
    starts: Tuple[int, ...]
    engines: Tuple[int, ...] = (0, 0, 0, 0, 0)

    def memory_in_names(self, memory_mib: int) -> int:
        """Its memory as NVIDIA's formula has it in names: eighths of the GPU's, rounded up, in GiB; 0 where the GPU's
        is the host's (pkg/nvlib/device/mig_profile.go of NVIDIA/go-nvlib). memory_mib: all of the GPU."""
        if not memory_mib:
            return 0
        eighths = -(-8 * self.memory_mib // memory_mib)
        gibibytes = -(-memory_mib // 1024)
        return (eighths * gibibytes + 4) // 8

    def formal_name(self, memory_mib: int) -> str:
        """Its name by NVIDIA's formula, whatever the driver calls it: '1g.10gb+me'."""
        return "%dg.%dgb%s" % (self.slices, self.memory_in_names(memory_mib), self.attributes)

    def device_name(self, memory_mib: int, compute: int) -> str:
        """A MIG device of it with so many slices, as NVIDIA's Go programs print it: '1g.10gb', '1c.3g.40gb'."""
        return ("" if compute == self.slices else "%dc." % compute) + self.formal_name(memory_mib)


@dataclass(frozen=True)
class ComputeInstance:
    """A compute instance.

    id:            within its GPU instance.
    start, slices: compute slices of that.
    uuid:          its MIG device's.
    processes:     process ids, as NVML tells them.
    holders:       processes and pods by name, where somebody has asked for them.
    """

    id: int
    start: int
    slices: int
    uuid: str = ""
    processes: Tuple[int, ...] = ()
    holders: Tuple[str, ...] = ()

    @property
    def in_use(self) -> bool:
        return bool(self.processes or self.holders)


@dataclass(frozen=True)
class GpuInstance:
    """A GPU instance. id: NVML's, within the GPU. profile: Profile.id. start, size: units of the board."""

    id: int
    profile: int
    start: int
    size: int
    compute: Tuple[ComputeInstance, ...] = ()


@dataclass(frozen=True)
class Mig:
    """MIG of a GPU that has it.

    current, pending: whether MIG mode is on, and whether it will be after the next reset.
    profiles:         by size, the greatest first; () where the driver tells none before MIG mode is on (before 550).
    instances:        by start.
    devices:          UUIDs of the MIG devices, in NVML's order.
    """

    current: bool
    pending: bool
    profiles: Tuple[Profile, ...] = ()
    instances: Tuple[GpuInstance, ...] = ()
    devices: Tuple[str, ...] = ()

    @property
    def units(self) -> int:
        """Units of the board, as far as its profiles reach."""
        return max((start + profile.size for profile in self.profiles for start in profile.starts), default=0)

    def profile(self, number: int) -> Optional[Profile]:
        return next((profile for profile in self.profiles if profile.id == number), None)

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Mig:
        return cls(
            current=data["current"], pending=data["pending"],
            profiles=tuple(Profile(**{**profile, "starts": tuple(profile["starts"]),
                                      "engines": tuple(profile["engines"])}) for profile in data["profiles"]),
            instances=tuple(GpuInstance(**{**instance, "compute": tuple(
                ComputeInstance(**{**each, "processes": tuple(each["processes"]), "holders": tuple(each["holders"])})
                for each in instance["compute"])})
                for instance in data["instances"]),
            devices=tuple(data["devices"]),
        )
