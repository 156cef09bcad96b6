# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver that a container brings: who runs it on this host, and what it has left here.

NVIDIA's driver container, which the GPU Operator runs, builds the kernel modules inside of itself and loads them from
there: none is on the host's disk. It locks PID_FILE for as long as it lives, has the kernel look for firmware below
ROOT, and mounts its own file system there. Told to end, it unloads the driver and unmounts ROOT where nothing uses a
GPU; else it is killed, and modules and mount stay. The path of firmware, and what says how it was configured, stay in
either case (gpu-driver-container 06a208ca, ubuntu24.04/nvidia-driver: _load_driver, _mount_rootfs, _shutdown,
_store_driver_digest; gpu-operator v26.7.0, assets/state-driver: both containers, the probe, preStop).
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Tuple

from ..core.host import Host
from ..core.refusal import Refusal
from .holders import named_pod, pods_with_processes, process_of

RUN = "/run/nvidia"
ROOT = RUN + "/driver"
FIRMWARE = ROOT + "/lib/firmware"
FIRMWARE_PATH = "/sys/module/firmware_class/parameters/path"
PID_FILE = RUN + "/nvidia-driver.pid"
# The program of the container, in its file system (its Dockerfiles)
PROGRAM = ROOT + "/usr/local/bin/nvidia-driver"
# Containers of the pod: the one that takes the driver before it away, and the driver's own
CONTAINERS = ("k8s-driver-manager", "nvidia-driver-ctr")
# What others take for a driver container at work: its process, the configuration that makes the next one keep whatever
# is loaded, and that it is ready
FILES = (PID_FILE, RUN + "/nvidia-driver.state", RUN + "/validations/.driver-ctr-ready",
         RUN + "/validations/.driver-daemons-status")
# Of the operator's validator, or of ours: where the driver is. Its readers source it
DRIVER_READY = RUN + "/validations/driver-ready"
# The GPU Operator keeps either label as it is set (controllers/state_manager.go, addGPUStateLabels and
# updateGPUStateLabels), and its DaemonSets want the one of the driver to be 'true'
HOW = ("`kubectl label node NODE nvidia.com/gpu.deploy.operands=false --overwrite`; or "
       "`nvidia.com/gpu.deploy.driver=false`, which leaves all else of the GPU Operator there; or "
       "`driver.enabled: false` in its ClusterPolicy, for every node")
_IN_CONTAINER = re.compile(r"(?m)^NVIDIA_DRIVER_ROOT=%s/?$" % ROOT)
# A DaemonSet names its pods (k8s.io/apiserver, storage/names)
_OF_DAEMON_SET = re.compile(r"(.*)-[a-z0-9]{5}")


@dataclass(frozen=True)
class DriverContainer:
    """What a driver container does on this host, and what one has left.

    pods:     'namespace/name' of the pods of which anything runs that bring a driver, or are about to.
    process:  the container's process where none of these pods has it, '' for none.
    mounted:  whether a container's file system is mounted at ROOT.
    stranger: what else is mounted there ('ext4 /dev/sdb1'), '' for nothing.
    firmware: whether the kernel looks for firmware in it.
    files:    those that say that a driver container is at work, or that the driver is in it.
    """

    pods: Tuple[str, ...] = ()
    process: str = ""
    mounted: bool = False
    stranger: str = ""
    firmware: bool = False
    files: Tuple[str, ...] = ()

    @property
    def is_at_work(self) -> bool:
        return bool(self.pods or self.process)

    @property
    def who(self) -> str:
        """Who runs it, with the DaemonSet that makes the pod anew; '' where nobody does."""
        return " and ".join([*map(_with_daemon_set, self.pods), *([self.process] if self.process else [])])


def read_driver_container(host: Host) -> DriverContainer:
    """Reading it changes nothing, and asks neither a container runtime nor a cluster."""
    pods = _pods(host)
    mount = _mount(host)
    is_containers = bool(mount) and host.exists(PROGRAM)
    in_container = _IN_CONTAINER.search(host.read(DRIVER_READY) or "")
    return DriverContainer(
        pods=pods,
        process="" if pods else _process(host),
        mounted=is_containers,
        stranger="" if is_containers else mount,
        firmware=(host.read(FIRMWARE_PATH) or "").strip("\0\n ").rstrip("/") == FIRMWARE,
        files=(*filter(host.exists, FILES), *([DRIVER_READY] if in_container else [])),
    )


def refusal_of_work(container: DriverContainer) -> Refusal:
    """Why a driver that a container serves is not taken away: who runs the container would bring it back."""
    return Refusal(
        "host.driver_container_at_work", "a driver container is at work: %s" % container.who,
        "no driver container on this host, before its driver goes",
        "take it off this node (%s), wait until its pod is gone, and run this again" % HOW)


def is_in_container(path: str) -> bool:
    """Whether a path on the host leads into the file system of a driver container."""
    return (path + "/").startswith(ROOT + "/")


def _with_daemon_set(pod: str) -> str:
    name = _OF_DAEMON_SET.fullmatch(pod.partition("/")[2])
    return "pod %s%s" % (pod, " of DaemonSet %s" % name.group(1) if name else "")


def _pods(host: Host) -> Tuple[str, ...]:
    """The kubelet has a directory of logs for each container that it has begun to start, as long as the pod is there
    (pkg/kubelet/kuberuntime/helpers.go, BuildContainerLogsDirectory)."""
    uids = {path.split("/")[4].rsplit("_", 1)[-1] for name in CONTAINERS
            for path in host.glob("/var/log/pods/*/" + name)}
    there = pods_with_processes(host) if uids else frozenset()
    return tuple(sorted(named_pod(host, uid) for uid in uids if uid in there))


def _process(host: Host) -> str:
    """A file of a container that was killed stays, and its process id may be another's by now: the lock tells."""
    if not host.is_locked(PID_FILE):
        return ""
    told = (host.read(PID_FILE) or "").strip()
    return process_of(host, int(told)).named() if told.isdigit() else "a process that has locked " + PID_FILE


def _mount(host: Host) -> str:
    """What is mounted at ROOT, the topmost of several: its type and source (proc(5), mountinfo)."""
    found: List[str] = []
    for line in (host.read("/proc/self/mountinfo") or "").splitlines():
        words = line.split(" ")
        if len(words) > 9 and words[4] == ROOT and "-" in words:
            end = words.index("-")
            found.append(" ".join(words[end + 1:end + 3]))
    return found[-1] if found else ""
