# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the GPUs are divided into, who has which part, and what restores it at a boot."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Iterable, Mapping, Optional, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.interrupted import STOPPED, remembered
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..hardware.holders import FABRIC_MANAGER_UNIT, WATCHERS, Users
from ..hardware.mig import Mig
from ..hardware.nvml import NvmlGpu, reading_of
from ..hardware.pci import read_bus
from ..hardware.reset import can_be_reset, unfinished_steps
from . import boot, former
from .former import Former
from .model import Board
from .policy import Policy

# Ampere's compute capabilities: the only generation whose MIG mode takes a reset of the GPU (NVIDIA MIG User Guide)
AMPERE = "8."
# A file of the driver's for each instance tells the minor of its device node (NVIDIA MIG User Guide, device nodes and
# capabilities)
FILES = "/proc/driver/nvidia/capabilities/gpu*/mig/gi*/"
NODE = "/dev/nvidia-caps/nvidia-cap%d"
MODPROBE = "nvidia-modprobe"
# What starts the host's unit of mig-parted's package at a boot, which divides GPUs by a file of its own
RIVAL = "/etc/systemd/system/*.wants/nvidia-mig-manager.service"
# Of the journal's notes: UUIDs of GPUs whose mode we switch on to divide them, until that is over
SWITCHED = "switched"
_PLACE = re.compile(r"/gpu(\d+)/mig/gi(\d+)/(?:ci(\d+)/)?access$")
_MINOR = re.compile(r"^DeviceFileMinor:\s*(\d+)", re.MULTILINE)

# (minor of the GPU, GPU instance, compute instance or -1 for the GPU instance itself)
Place = Tuple[int, int, int]


@dataclass(frozen=True)
class Observation:
    """What is there.

    boards:     GPUs that answer.
    silent:     (GPU, why it does not answer), with those whose MIG cannot be read.
    error:      why NVML does not answer, '' when it does.
    driver:     version of the driver that answered.
    nodeless:   capability files of instances that have no device node.
    modprobe:   whether nvidia-modprobe is installed, which makes them.
    files:      {path: text or None} of our own files for the boot.
    enabled:    whether our unit is.
    restore:    steps that put back the files that we changed (only read when MIG is to go).
    stopped:    watchers that an earlier run stopped since the boot and did not start again, and that do not run.
    former:     {UUID: what the GPU was before our first change} of those on which something of ours may be left.
    rival:      file by which a boot starts nvidia-mig-manager.service, '' where none does.
    fabric:     state of the fabric manager's service, '' where no GPU that is reset needs it.
    unfinished: steps that bring back what a reset of a run that was killed has stopped and lost.
    """

    boards: Tuple[Board, ...] = ()
    silent: Tuple[Tuple[str, str], ...] = ()
    error: str = ""
    driver: str = ""
    nodeless: Tuple[str, ...] = ()
    modprobe: bool = False
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    enabled: bool = False
    restore: Tuple[Step, ...] = ()
    stopped: Tuple[str, ...] = ()
    former: Mapping[str, Former] = field(default_factory=dict)
    rival: str = ""
    fabric: str = ""
    unfinished: Tuple[Step, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        # Processes and pods come and go without any meaning for the plan beyond what it tells of them
        return dict(asdict(replace(self, boards=(), restore=(), unfinished=())),
                    boards=[[board.uuid, board.mig and replace(board.mig, instances=tuple(
                        replace(instance, compute=tuple(replace(each, processes=(), holders=())
                                                        for each in instance.compute))
                        for instance in board.mig.instances)).to_dict()] for board in self.boards],
                    restore=[step.to_dict() for step in self.restore],
                    unfinished=[step.to_dict() for step in self.unfinished])


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    memory = remembered(host, journal, "mig")
    noted = Observation(unfinished=unfinished_steps(host, journal, "mig"), former=former.read(memory), stopped=tuple(
        unit for unit in memory.get(STOPPED, ()) if _is_down(host.unit(unit))))
    if not policy.managed:
        return noted
    restore = tuple(restore_steps("mig", host, journal)) if policy.state == "absent" else ()
    files = {path: host.read(path) for path in (boot.SCRIPT, boot.UNIT_FILE)}
    enabled = host.exists(boot.WANTS)
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    if reading.error and not reading.gpus:
        return replace(noted, error=reading.error, files=files, enabled=enabled, restore=restore)
    capabilities = _capabilities(host)
    boards = _boards(host, [gpu for gpu in reading.gpus if not (gpu.error or gpu.mig_error)], _minors_of(capabilities))
    listed = {gpu.pci_address for gpu in reading.gpus}
    # One that fails may be listed without its address
    missing = [gpu.address for gpu in facts.gpus if gpu.address not in listed] \
        if len(facts.gpus) > len(reading.gpus) else []
    return replace(
        noted,
        rival=next(iter(host.glob(RIVAL)), ""),
        boards=boards,
        silent=(*(("GPU %d%s" % (gpu.index, gpu.pci_address and " (%s)" % gpu.pci_address),
                   gpu.error or gpu.mig_error) for gpu in reading.gpus if gpu.error or gpu.mig_error),
                *(("GPU %s" % address, "NVML does not list it") for address in missing)),
        driver=reading.driver_version,
        nodeless=_without_nodes(host, capabilities),
        modprobe=host.which(MODPROBE) is not None,
        files=files, enabled=enabled, restore=restore,
        fabric=host.unit(FABRIC_MANAGER_UNIT).get("ActiveState", "") if facts.fabric and any(
            board.resets for board in boards) else "",
    )


def without_nodes(host: Host) -> Tuple[str, ...]:
    """Capability files of instances whose device node is missing: nvidia-modprobe(1) makes it by the file."""
    return _without_nodes(host, _capabilities(host))


def _without_nodes(host: Host, capabilities: Mapping[Place, Tuple[str, int]]) -> Tuple[str, ...]:
    return tuple(path for _place, (path, minor) in sorted(capabilities.items()) if not host.exists(NODE % minor))


def _capabilities(host: Host) -> Dict[Place, Tuple[str, int]]:
    """{instance: (its capability file, minor of its device node)} of those that there are."""
    found = {}
    for path in (*host.glob(FILES + "access"), *host.glob(FILES + "ci*/access")):
        match, minor = _PLACE.search(path), _MINOR.search(host.read(path) or "")
        if match:
            gpu, instance, compute = match.groups()
            place = int(gpu), int(instance), int(compute) if compute else -1
            found[place] = path, int(minor.group(1)) if minor else -1
    return found


def _is_down(unit: Mapping[str, str]) -> bool:
    """One that is gone cannot be started, and one that runs need not."""
    return unit.get("LoadState") == "loaded" and unit.get("ActiveState") not in ("active", "activating", "reloading")


class InstanceUsers(Users):
    """With those who have parts of the GPUs."""

    def __init__(self, host: Host, minors: Mapping[Place, int]) -> None:
        super().__init__(host)
        self._minors = minors

    def told(self, minor: int, mig: Mig) -> Mig:
        """The instances of a GPU, with those who have them."""
        return replace(mig, instances=tuple(replace(instance, compute=tuple(
            replace(each, holders=self.of(
                each.uuid, NODE % self._minors.get((minor, instance.id, each.id), -1), each.processes))
            for each in instance.compute)) for instance in mig.instances))


def users(host: Host) -> InstanceUsers:
    return InstanceUsers(host, _minors_of(_capabilities(host)))


def _minors_of(capabilities: Mapping[Place, Tuple[str, int]]) -> Dict[Place, int]:
    return {place: minor for place, (_path, minor) in capabilities.items()}


def _boards(host: Host, gpus: Iterable[NvmlGpu], minors: Mapping[Place, int]) -> Tuple[Board, ...]:
    devices = {device.address: device for device in read_bus(host).gpus}
    now = InstanceUsers(host, minors)
    return tuple(Board(
        index=gpu.index, uuid=gpu.uuid, address=gpu.pci_address, name=gpu.name,
        device_id=_as_filter("10de:" + devices[gpu.pci_address].device_id) if gpu.pci_address in devices else "",
        subsystem_id=_as_filter(devices[gpu.pci_address].subsystem) if gpu.pci_address in devices else "",
        memory_mib=gpu.memory_mib, mig=gpu.mig and now.told(gpu.minor, gpu.mig),
        resets=gpu.compute_capability.startswith(AMPERE),
        resettable=can_be_reset(host, gpu.pci_address),
        holders=now.of(gpu.uuid, "/dev/nvidia%d" % gpu.minor),
        watchers=tuple(unit for unit in WATCHERS if any(
            holder.unit == unit and "/dev/nvidia%d" % gpu.minor in holder.devices for holder in now.everybody)),
    ) for gpu in gpus)


def _as_filter(device: str) -> str:
    """'10de:2330' as files of mig-parted have it."""
    vendor, _colon, number = device.partition(":")
    return "0x%s%s" % (number.upper(), vendor.upper()) if number else ""
