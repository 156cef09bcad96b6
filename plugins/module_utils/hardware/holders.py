# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who has a device of the driver open, and to which pods the kubelet has given which devices."""
from __future__ import annotations

import json
import os
import re
import stat
import time
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, Iterator, List, Mapping, Sequence, Tuple

from ..core.children import NAME as ASKING
from ..core.host import CommandTimedOut, Host
from ..core.quantities import PREFIX
from ..core.times import since_start

# The kubelet's record of what its device plugins have given out (pkg/kubelet/cm/devicemanager/checkpoint of Kubernetes)
CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
# How the ids begin by which NVIDIA's device plugin gives out GPUs and their parts, whatever it calls the resource: they
# are UUIDs of NVML (internal/rm of NVIDIA/k8s-device-plugin). Those of network adapters and of KubeVirt are none.
_IDS = ("GPU-", "MIG-")
# Which module serves a device; the first that fits.
SERVED_BY = (
    ("/dev/nvidia-uvm", "nvidia_uvm"), ("/dev/nvidia-modeset", "nvidia_modeset"), ("/dev/nvidia-fs", "nvidia_fs"),
    ("/dev/nvidia-vgpu", "nvidia_vgpu_vfio"), ("/dev/nvidia", "nvidia"), ("/dev/gdrdrv", "gdrdrv"),
    ("/dev/dri/", "nvidia_drm"),
)
NODES = ("/dev/nvidia*", "/dev/nvidia-caps*/*", "/dev/gdrdrv", "/dev/dri/*")
PERSISTENCED_UNIT, FABRIC_MANAGER_UNIT = "nvidia-persistenced.service", "nvidia-fabricmanager.service"
# Who watches GPUs, which keeps them from a change of their MIG mode and from a reset, and learns of instances when it
# starts (NVIDIA MIG User Guide; NVIDIA DGX User Guide). In the order in which they are stopped
WATCHERS = ("dcgm-exporter.service", "nvidia-dcgm.service", "dcgm.service", "nvsm.service", "nvsm-core.service",
            "nvsm-notifier.service", "nvsm-api-gateway.service", "nvsm-mqtt.service")
# Who may have a GPU open while its MIG mode changes (NVIDIA MIG User Guide); the fabric manager has to run where that
# resets a GPU (NVIDIA Fabric Manager User Guide)
UNDISTURBED = (PERSISTENCED_UNIT, FABRIC_MANAGER_UNIT)
# How the name of a pod begins among those who have a GPU
POD = "pod "
# Seconds in which the mappings of all processes of a large host are read many times over
MAPPED_S = 20
# Seconds in which the kubelet starts the first process of a pod that it has admitted
STARTING_S = 120.0
# Seconds after which a child of ours that asks the driver hangs, and is in the way as any other
ASKING_S = 180.0
# Below /dev of whatever root: a process in a container has its own, a driver in a container has another
_NODE = re.compile(r"/dev/(?:nvidia[^/]*(?:/[^/]+)?|gdrdrv|dri/[^/]+)$")
# Static pods are known to their node by a hash without dashes (kubernetes/kubernetes, pkg/kubelet/config/common.go)
_POD = re.compile(r"pod([0-9a-f]{8}[-_](?:[0-9a-f]{4}[-_]){3}[0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
_SERVICE = re.compile(r"/([^/]+\.(?:service|scope))(?:/|$)", re.MULTILINE)


@dataclass(frozen=True)
class Holder:
    """A process that has a device of the driver open.

    devices: as this host names their nodes. unit: its systemd unit, '' if none. pod: UID of its pod, '' if none; of a
    static pod that by which the node knows it.
    """

    pid: int
    command: str
    devices: Tuple[str, ...]
    unit: str = ""
    pod: str = ""

    def named(self) -> str:
        place = ", pod %s" % self.pod if self.pod else ", %s" % self.unit if self.unit else ""
        return "%s (pid %d%s)" % (self.command or "a process", self.pid, place)


def read_holders(host: Host) -> Tuple[Tuple[Holder, ...], Dict[str, int]]:
    """(processes with a device of the driver open, {module: open descriptors of its devices})."""
    nodes = _Nodes(host)
    found: Dict[int, List[str]] = {}
    opened: Dict[str, int] = {}
    for link in host.glob("/proc/[0-9]*/fd/*"):
        device = nodes.named(host.link(link) or "", link)
        if device:
            found.setdefault(int(link.split("/")[2]), []).append(device)
            opened[module_of(device)] = opened.get(module_of(device), 0) + 1
    return tuple(process_of(host, pid, devices) for pid, devices in sorted(found.items())), opened


def read_mapped(host: Host) -> Dict[int, Tuple[str, ...]]:
    """{process: devices that it has mapped}, which keep their modules loaded after their descriptors are closed.

    By a child that can be abandoned: who reads the mappings of a process that hangs in the driver waits for it.
    """
    argv = ["grep", "-sHoE", r"/[^ ]*dev/(nvidia|gdrdrv|dri/)[^ ]*$", *map(host.path, host.glob("/proc/[0-9]*/maps"))]
    found: Dict[int, List[str]] = {}
    nodes = _Nodes(host)
    try:
        told = host.run(argv, check=False, timeout=MAPPED_S).stdout
    except CommandTimedOut:
        return {}
    for line in told.splitlines():
        maps, _colon, path = line.partition("/maps:")
        device = nodes.named(path)
        if device and maps.rpartition("/")[2].isdigit():
            found.setdefault(int(maps.rpartition("/")[2]), []).append(device)
    return {pid: tuple(sorted(set(devices))) for pid, devices in sorted(found.items())}


def module_of(device: str) -> str:
    """The module that serves a device of the driver."""
    return next(module for beginning, module in SERVED_BY if device.startswith(beginning))


class _Nodes:
    """The device nodes of the driver on a host, by name and by number."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._displays = _displays(host)
        there = {name: host.stat(name) for pattern in NODES for name in host.glob(pattern)}
        self._by_number = {each.st_rdev: name for name, each in there.items()
                           if each is not None and stat.S_ISCHR(each.st_mode) and self._is_ours(name)}

    def named(self, path: str, link: str = "") -> str:
        """What the host calls the node that a process has by this path, '' where that is none of the driver's.

        link: leads to the node itself, wherever that is. A process may see it below a root of its own.
        """
        found = _NODE.search(path)
        if found is None:
            return ""
        there = self._host.stat(link) if link and found.start() else None
        if there is not None and not stat.S_ISCHR(there.st_mode):
            return ""
        name = self._by_number.get(there.st_rdev, "") if there is not None else ""
        return name or (found.group() if self._is_ours(found.group()) else "")

    def _is_ours(self, name: str) -> bool:
        return not name.startswith("/dev/dri/") or name in self._displays


def _displays(host: Host) -> Tuple[str, ...]:
    """Nodes of displays and renderers that the driver serves."""
    return tuple("/dev/dri/" + name for name in host.list("/sys/class/drm")
                 if os.path.basename(host.link("/sys/class/drm/%s/device/driver" % name) or "") == "nvidia")


def process_of(host: Host, pid: int, devices: Sequence[str] = ()) -> Holder:
    """A process as Holder names it; one that has ended has no name."""
    groups = host.read("/proc/%d/cgroup" % pid) or ""
    pod = _POD.search(groups)
    units = _SERVICE.findall(groups)
    return Holder(
        pid=pid,
        command=(host.read("/proc/%d/comm" % pid) or "").strip(),
        devices=tuple(sorted(set(devices))),
        unit="" if pod or not units else units[0],
        pod=pod.group(1).replace("_", "-") if pod else "",
    )


def pods_with_devices(host: Host) -> Dict[str, Tuple[str, ...]]:
    """{UUID of a GPU or MIG device: pods that have it}, whether or not a program of theirs uses it now.

    A device that is shared is given out as 'UUID::number' (NVIDIA's device plugin, replicas).
    """
    found: Dict[str, List[str]] = {}
    given = list(_given_out(host.read(CHECKPOINT) or ""))
    running = pods_with_processes(host) if given else frozenset()
    for pod, device in given:
        # An entry outlives its pod, and one whose containers have ended, until the kubelet gives out devices again
        if pod in running or _is_new(host, "/var/lib/kubelet/pods/" + pod):
            found.setdefault(device.split("::")[0], []).append(named_pod(host, pod))
    return {device: tuple(sorted(set(pods))) for device, pods in found.items()}


class Users:
    """Who has the GPUs now, by name: pods that were given them, and processes that have opened them. Whoever is only
    with them, and no work, does not count; nor does this process, which asks them while it looks."""

    def __init__(self, host: Host) -> None:
        self.everybody = tuple(holder for holder in read_holders(host)[0] if not only_asks(host, holder))
        self._pods = pods_with_devices(host)
        self._holders = [holder for holder in self.everybody if holder.unit not in (*UNDISTURBED, *WATCHERS)]
        self._names = {holder.pid: POD + named_pod(host, holder.pod) if holder.pod else holder.named()
                       for holder in self._holders}

    def of(self, device: str, node: str, processes: Iterable[int] = ()) -> Tuple[str, ...]:
        """device: UUID of a GPU or a MIG device. node: its device node. processes: further ones, as NVML tells them."""
        pids = {*processes, *(holder.pid for holder in self._holders if node in holder.devices)}
        found = [POD + pod for pod in self._pods.get(device, ())]
        found += [self._names.get(pid, "process %d" % pid) for pid in sorted(pids)]
        return tuple(dict.fromkeys(found))


def only_asks(host: Host, holder: Holder) -> bool:
    """Whether it is this process, or a child in which this or another of our processes, as one that watches the GPUs'
    health, asks the driver for moments (proc(5), stat)."""
    head, _bracket, rest = (host.read("/proc/%d/stat" % holder.pid) or "").rpartition(")")
    words = rest.split()
    if str(os.getpid()) in (str(holder.pid), *words[1:2]):
        return True
    # A process calls itself what it likes: of a pod, it is a user
    if holder.pod or head.partition("(")[2] != ASKING or len(words) < 20:
        return False
    return since_start(words[19]) < ASKING_S


def pods_with_processes(host: Host) -> FrozenSet[str]:
    """UIDs of pods of which anything runs, be it the process that keeps their namespaces."""
    return frozenset(pod.replace("_", "-") for path in host.glob("/proc/[0-9]*/cgroup")
                     for pod in _POD.findall(host.read(path) or ""))


def pods_seen(host: Host) -> Tuple[str, ...]:
    """Pods that have a device of the driver, open, mapped or given to them, as named_pod() names them."""
    holders = [*read_holders(host)[0], *(process_of(host, pid) for pid in read_mapped(host))]
    holding = {named_pod(host, holder.pod) for holder in holders if holder.pod}
    return tuple(sorted(holding.union(*pods_with_devices(host).values())))


def _is_new(host: Host, directory: str) -> bool:
    """Whether a pod was given its directory just now, and is about to be started."""
    found = host.stat(directory)
    return found is not None and time.time() - found.st_mtime < STARTING_S


def _given_out(text: str) -> Iterator[Tuple[str, str]]:
    """(UID of a pod, id of a GPU or a part of one) that it has; nothing where the record cannot be read."""
    try:
        entries = json.loads(text)["Data"]["PodDeviceEntries"] or ()
        for entry in entries:
            if entry["ResourceName"].startswith(PREFIX):
                for device in _devices(entry["DeviceIDs"]):
                    if device.startswith(_IDS):
                        yield entry["PodUID"], device
    except (ValueError, KeyError, TypeError, AttributeError):
        return


def _devices(told: Any) -> Iterator[str]:
    """{NUMA node: devices}; kubelets before 1.20 have the devices alone."""
    for each in told.values() if isinstance(told, Mapping) else (told,):
        yield from each


def named_pod(host: Host, pod: str) -> str:
    """'namespace/name' of a pod, as the kubelet names its directory of logs; its UID where there is none."""
    for name in host.list("/var/log/pods"):
        words = name.split("_")
        if words[-1] == pod and len(words) == 3:
            return "%s/%s" % (words[0], words[1])
    return pod
