# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the GPUs are divided into, who has which part, and what restores it at a boot."""
from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.plan import Step
from ..core.steps import restore_steps
from ..hardware.boards import AMPERE
from ..hardware.holders import Holder, pods_with_devices, read_holders
from ..hardware.mig import Mig
from ..hardware.nvml import NvmlGpu, reading_of
from ..hardware.pci import read_bus
from . import boot
from .model import Board
from .policy import Policy

# Who may have a GPU open while its MIG mode changes (NVIDIA MIG User Guide)
UNDISTURBED = ("nvidia-persistenced.service",)
# {what a capability file stands for: minor of its device node} (open-gpu-kernel-modules, kernel-open/nvidia-caps)
MINORS = "/proc/driver/nvidia-caps/mig-minors"
_MINOR = re.compile(r"^gpu(\d+)/gi(\d+)(?:/ci(\d+))?/access (\d+)$", re.MULTILINE)

# (minor of the GPU, GPU instance, compute instance or -1 for the GPU instance itself)
Place = Tuple[int, int, int]


@dataclass(frozen=True)
class Observation:
    """What is there.

    boards:  GPUs that answer.
    silent:  (GPU, why it does not answer).
    error:   why NVML does not answer, '' when it does.
    driver:  version of the driver that answered.
    nodeless: capability files of instances that have no device node.
    files:   {path: text or None} of our own files for the boot.
    enabled: whether our unit is.
    restore: steps that put back the files that we changed (only read when MIG is to go).
    """

    boards: Tuple[Board, ...] = ()
    silent: Tuple[Tuple[str, str], ...] = ()
    error: str = ""
    driver: str = ""
    nodeless: Tuple[str, ...] = ()
    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    enabled: bool = False
    restore: Tuple[Step, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        # Processes and pods come and go without any meaning for the plan beyond what it tells of them
        return dict(asdict(replace(self, boards=(), restore=())),
                    boards=[[board.uuid, board.mig and replace(board.mig, instances=tuple(
                        replace(instance, compute=tuple(replace(each, processes=(), holders=())
                                                        for each in instance.compute))
                        for instance in board.mig.instances)).to_dict()] for board in self.boards],
                    restore=[step.to_dict() for step in self.restore])


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    if not policy.managed:
        return Observation()
    restore = tuple(restore_steps("mig", host, journal)) if policy.state == "absent" else ()
    files = {path: host.read(path) for path in (boot.SCRIPT, boot.UNIT_FILE)}
    enabled = host.exists(boot.WANTS)
    reading = reading_of(facts.driver_userspace, facts.driver_loaded)
    if reading.error and not reading.gpus:
        return Observation(error=reading.error, files=files, enabled=enabled, restore=restore)
    minors = _minors(host)
    return Observation(
        boards=_boards(host, [gpu for gpu in reading.gpus if not gpu.error], minors),
        silent=tuple(("GPU %d%s" % (gpu.index, gpu.pci_address and " (%s)" % gpu.pci_address), gpu.error)
                     for gpu in reading.gpus if gpu.error),
        driver=reading.driver_version,
        nodeless=tuple(capability_file(place) for place, number in sorted(minors.items())
                       if not host.exists("/dev/nvidia-caps/nvidia-cap%d" % number)),
        files=files, enabled=enabled, restore=restore,
    )


def capability_file(place: Place) -> str:
    """What nvidia-modprobe(1) makes the device node of an instance by."""
    minor, instance, compute = place
    return "/proc/driver/nvidia/capabilities/gpu%d/mig/gi%d%s/access" % (
        minor, instance, "" if compute < 0 else "/ci%d" % compute)


def _minors(host: Host) -> Dict[Place, int]:
    """{instance: minor of its device node} of those that there are."""
    found = {}
    for gpu, instance, compute, minor in _MINOR.findall(host.read(MINORS) or ""):
        place = int(gpu), int(instance), int(compute) if compute else -1
        # The table is of all that there may ever be
        if host.exists(capability_file(place)):
            found[place] = int(minor)
    return found


def _boards(host: Host, gpus: Iterable[NvmlGpu], minors: Mapping[Place, int]) -> Tuple[Board, ...]:
    devices = {device.address: device for device in read_bus(host).gpus}
    holders, _opened = read_holders(host)
    pods = pods_with_devices(host)
    found = []
    for gpu in gpus:
        device = devices.get(gpu.pci_address)
        found.append(Board(
            index=gpu.index, uuid=gpu.uuid, address=gpu.pci_address, name=gpu.name,
            device_id="0x%s10DE" % device.device_id.upper() if device else "",
            subsystem_id=device.subsystem_id if device else "",
            memory_mib=gpu.memory_mib, mig=gpu.mig and _held(gpu, gpu.mig, holders, pods, minors), minor=gpu.minor,
            resets=gpu.compute_capability.startswith(AMPERE),
            resettable=host.exists("/sys/bus/pci/devices/%s/reset" % gpu.pci_address),
            holders=_holders_of(gpu, holders, pods),
        ))
    return tuple(found)


def _holders_of(gpu: NvmlGpu, holders: Iterable[Holder], pods: Mapping[str, Tuple[str, ...]]) -> Tuple[str, ...]:
    """Who has the whole GPU, by name."""
    node = "/dev/nvidia%d" % gpu.minor
    named = [holder.named() for holder in holders if node in holder.devices and holder.unit not in UNDISTURBED]
    return (*("pod %s" % pod for pod in pods.get(gpu.uuid, ())), *named)


def _held(gpu: NvmlGpu, mig: Mig, holders: Iterable[Holder], pods: Mapping[str, Tuple[str, ...]],
          minors: Mapping[Place, int]) -> Mig:
    """MIG of a GPU with who has which of its compute instances, by name."""
    known = {holder.pid: holder.named() for holder in holders}
    openers: Dict[str, List[int]] = {}
    for holder in holders:
        for device in holder.devices:
            openers.setdefault(device, []).append(holder.pid)
    instances = []
    for instance in mig.instances:
        compute = []
        for each in instance.compute:
            minor = minors.get((gpu.minor, instance.id, each.id), -1)
            pids = {*each.processes, *openers.get("/dev/nvidia-caps/nvidia-cap%d" % minor, ())}
            compute.append(replace(each, holders=(
                *("pod %s" % pod for pod in pods.get(each.uuid, ())),
                *(known.get(pid, "process %d" % pid) for pid in sorted(pids)))))
        instances.append(replace(instance, compute=tuple(compute)))
    return replace(mig, instances=tuple(instances))
