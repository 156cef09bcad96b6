# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which pods hold GPUs, and which of them may be evicted."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.quantities import nvidia_resources
from ..core.refusal import Refusal
from .components.common import OURS, PART_OF

WITHOUT_LOSS = "GPU pods that can be evicted without loss"
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class GpuPod:
    """A pod that holds extended resources of NVIDIA's."""

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    resources: Dict[str, int]
    owner: str
    daemonset: bool
    mirror: bool
    local_data: bool
    terminating: bool

    def result(self) -> Dict[str, Any]:
        """The pod as a module returns it."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "node": self.node,
            "phase": self.phase,
            "resources": self.resources,
            "owner": self.owner,
            "daemonset": self.daemonset,
            "mirror": self.mirror,
            "local_data": self.local_data,
            "terminating": self.terminating,
        }

    def __str__(self) -> str:
        return "%s/%s" % (self.namespace, self.name)


@dataclass(frozen=True)
class EvictionPlan:
    """Which GPU pods go and which stay, with the reason."""

    evict: Tuple[GpuPod, ...]
    leaving: Tuple[GpuPod, ...]
    stay: Tuple[Tuple[GpuPod, str], ...]


def gpu_pod(pod: Mapping[str, Any]) -> Optional[GpuPod]:
    """The pod if it holds GPUs now: finished pods hold none."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    phase = str((pod.get("status") or {}).get("phase") or "Unknown")
    resources = gpu_resources(spec)
    if not resources or phase in FINISHED:
        return None
    owner = _controller(metadata)
    return GpuPod(
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid") or ""),
        node=str(spec.get("nodeName") or ""),
        phase=phase,
        resources=resources,
        owner="%s/%s" % (owner.get("kind"), owner.get("name")) if owner else "",
        daemonset=owner.get("kind") == "DaemonSet",
        mirror=MIRROR_ANNOTATION in (metadata.get("annotations") or {}),
        local_data=any("emptyDir" in volume for volume in spec.get("volumes") or []),
        terminating=bool(metadata.get("deletionTimestamp")),
    )


def gpu_pods(pods: Sequence[Mapping[str, Any]]) -> List[GpuPod]:
    """The GPU pods of a list, ordered by name."""
    found = [holder for holder in map(gpu_pod, pods) if holder is not None]
    return sorted(found, key=lambda pod: (pod.namespace, pod.name))


def uncounted(pods: Sequence[Mapping[str, Any]], names: Collection[str]) -> List[str]:
    """'namespace/name' of those of these names or UIDs that have a GPU past the scheduler, without a resource: the host
    tells of them, and no eviction takes them away."""
    found = []
    for pod in pods:
        metadata = pod.get("metadata") or {}
        name = "%s/%s" % (metadata.get("namespace") or "default", metadata.get("name"))
        if (name in names or metadata.get("uid") in names) and not (
                gpu_resources(pod.get("spec") or {}) or (pod.get("status") or {}).get("phase") in FINISHED
                or metadata.get("deletionTimestamp") or (metadata.get("labels") or {}).get(PART_OF) == OURS):
            found.append(name)
    return sorted(found)


def gpu_resources(spec: Mapping[str, Any]) -> Dict[str, int]:
    """The nvidia.com/* resources of a pod as the scheduler counts them.

    Containers add up; an init container needs its share only while it runs, unless it is a sidecar
    (restartPolicy Always), which stays and adds up too.
    """
    running: Dict[str, int] = {}
    peak: Dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        wanted = _container_resources(container)
        if container.get("restartPolicy") == "Always":
            running = _add(running, wanted)
            wanted = {}
        peak = _highest(peak, _add(running, wanted))
    for container in spec.get("containers") or []:
        running = _add(running, _container_resources(container))
    return _highest(peak, running)


def plan_eviction(pods: Sequence[GpuPod], force: bool, delete_emptydir_data: bool) -> EvictionPlan:
    """Which pods to evict; refuses as a whole when a pod would lose something that cannot come back."""
    evict: List[GpuPod] = []
    stay: List[Tuple[GpuPod, str]] = []
    for pod in pods:
        if pod.terminating:
            continue
        if pod.daemonset:
            stay.append((pod, "belongs to %s, which would start it again at once" % pod.owner))
        elif pod.mirror:
            stay.append((pod, "is a static pod of the node's kubelet"))
        else:
            evict.append(pod)
    refusals = _losses([pod for pod in evict if not pod.owner and not force],
                       [pod for pod in evict if pod.local_data and not delete_emptydir_data])
    if refusals:
        raise GpuOpsError.because(refusals, pods=[pod.result() for pod in evict])
    return EvictionPlan(tuple(evict), tuple(pod for pod in pods if pod.terminating), tuple(stay))


def _losses(unowned: Sequence[GpuPod], with_data: Sequence[GpuPod]) -> List[Refusal]:
    """Of pods that no controller starts again, and of such that keep data on the node."""
    refusals = []
    if unowned:
        refusals.append(Refusal(
            "cluster.pods_without_controller",
            "pods that no controller starts again: %s" % ", ".join(str(pod) for pod in unowned), WITHOUT_LOSS,
            "finish or delete these pods, or allow the loss with `force`", option="force"))
    if with_data:
        refusals.append(Refusal(
            "cluster.pods_with_local_data",
            "pods that keep data in an emptyDir: %s" % ", ".join(str(pod) for pod in with_data), WITHOUT_LOSS,
            "finish or delete these pods, or allow the loss with `delete_emptydir_data`",
            option="delete_emptydir_data"))
    return refusals


def _controller(metadata: Mapping[str, Any]) -> Dict[str, Any]:
    for reference in metadata.get("ownerReferences") or []:
        if reference.get("controller"):
            return dict(reference)
    return {}


def _container_resources(container: Mapping[str, Any]) -> Dict[str, int]:
    resources = container.get("resources") or {}
    # Extended resources have equal requests and limits; a manifest may name either.
    wanted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    return {name: count for name, count in nvidia_resources(wanted).items() if count}


def _add(left: Mapping[str, int], right: Mapping[str, int]) -> Dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in [*left, *right]}


def _highest(left: Mapping[str, int], right: Mapping[str, int]) -> Dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in [*left, *right]}
