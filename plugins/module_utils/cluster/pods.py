# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pods as the API has them, and the GPUs that their containers ask for. Pure.

Who uses GPUs in another way than by asking for them, drain/users.py tells.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ..core.quantities import is_gpu, whole
from ..core.times import epoch
from .components.common import OURS, PART_OF

# kubernetes/api, core/v1/annotation_key_constants.go
MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
# Of a mirror pod: the UID that the kubelet has given the static pod, which is another one than the API's
# (kubernetes/kubernetes, pkg/kubelet/types)
STATIC_ANNOTATION = "kubernetes.io/config.hash"
FINISHED = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Pod:
    """A pod, as far as it matters whether and how it leaves its node.

    phase:       as its status says it; 'Unknown' where that says nothing.
    resources:   the GPUs that it asks for, {resource: count}, as the scheduler counts them.
    owner:       kind and name of its controller, '' for a bare pod. owner_api, owner_uid: that one's.
    mirror:      whether it is what the API shows of a static pod.
    local_data:  whether it has an emptyDir of any medium. in_memory: whether all that it has are in memory.
    terminating: when it is to be gone, as the API writes times (the request to delete it plus its grace); '' while
                 nobody has deleted it.
    ready:       whether disruption budgets count it as healthy.
    claims:      ResourceClaims of its namespace that it has devices by.
    static_uid:  of a static pod, the UID that its node knows it by.
    """

    namespace: str
    name: str
    uid: str
    node: str
    phase: str
    resources: Mapping[str, int]
    owner: str = ""
    owner_api: str = ""
    owner_uid: str = ""
    mirror: bool = False
    local_data: bool = False
    in_memory: bool = False
    terminating: str = ""
    ready: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    claims: Tuple[str, ...] = ()
    static_uid: str = ""

    @property
    def is_finished(self) -> bool:
        """Whether all its containers have ended for good: it holds nothing of the node."""
        return self.phase in FINISHED

    @property
    def daemonset(self) -> bool:
        """Whether a DaemonSet, that of Kubernetes or one of another API, has made it."""
        return self.owner.startswith("DaemonSet/")

    @property
    def is_component(self) -> bool:
        """Whether it is of a cluster component of this collection, which the labels of the node admit."""
        return self.daemonset and self.labels.get(PART_OF) == OURS

    @property
    def known_as(self) -> FrozenSet[str]:
        """What users and hosts call it: 'namespace/name', its UID, the UID that the kubelet knows it by."""
        return frozenset(name for name in (str(self), self.uid, self.static_uid) if name)

    def has_outstayed(self, seconds: float, now: float) -> bool:
        """Whether it is terminating and past the time by which it was to be gone, by more than so many seconds.

        seconds: 0 for no limit. now: seconds since the epoch.
        """
        return bool(seconds and self.terminating and now - epoch(self.terminating) > seconds)

    def result(self) -> Dict[str, Any]:
        """The pod as a module returns it."""
        return {
            "namespace": self.namespace,
            "name": self.name,
            "uid": self.uid,
            "node": self.node,
            "phase": self.phase,
            "resources": dict(self.resources),
            "owner": self.owner,
            "daemonset": self.daemonset,
            "mirror": self.mirror,
            "local_data": self.local_data,
            "terminating": bool(self.terminating),
        }

    def __str__(self) -> str:
        return "%s/%s" % (self.namespace, self.name)


def pod_of(found: Mapping[str, Any], is_one: Callable[[str], bool] = is_gpu) -> Pod:
    """The pod of an object of the API. is_one: whether a resource of that name is GPUs."""
    metadata, spec, status = (found.get(part) or {} for part in ("metadata", "spec", "status"))
    annotations = metadata.get("annotations") or {}
    owner = next((dict(each) for each in metadata.get("ownerReferences") or () if each.get("controller")), {})
    directories = [volume["emptyDir"] or {} for volume in spec.get("volumes") or () if "emptyDir" in volume]
    return Pod(
        namespace=str(metadata.get("namespace") or "default"),
        name=str(metadata.get("name")),
        uid=str(metadata.get("uid") or ""),
        node=str(spec.get("nodeName") or ""),
        phase=str(status.get("phase") or "Unknown"),
        resources=gpu_resources(spec, is_one),
        owner="%s/%s" % (owner.get("kind"), owner.get("name")) if owner else "",
        owner_api=str(owner.get("apiVersion") or ""),
        owner_uid=str(owner.get("uid") or ""),
        mirror=MIRROR_ANNOTATION in annotations,
        local_data=bool(directories),
        in_memory=bool(directories) and all(each.get("medium") == "Memory" for each in directories),
        terminating=str(metadata.get("deletionTimestamp") or ""),
        ready=any(each.get("type") == "Ready" and each.get("status") == "True"
                  for each in status.get("conditions") or ()),
        labels=dict(metadata.get("labels") or {}),
        claims=_claims(spec, status),
        static_uid=str(annotations.get(STATIC_ANNOTATION) or ""),
    )


def gpu_pods(pods: Sequence[Mapping[str, Any]]) -> List[Pod]:
    """Those of a list that have GPUs by asking for them, ordered by name: finished pods have none."""
    found = [pod for pod in map(pod_of, pods) if pod.resources and not pod.is_finished]
    return sorted(found, key=lambda pod: (pod.namespace, pod.name))


def gpu_resources(spec: Mapping[str, Any], is_one: Callable[[str], bool] = is_gpu) -> Dict[str, int]:
    """The GPUs that a pod asks for, as the scheduler counts them.

    Containers add up; an init container needs its share only while it runs, unless it is a sidecar
    (restartPolicy Always), which stays and adds up too.
    """
    running: Dict[str, int] = {}
    peak: Dict[str, int] = {}
    for container in spec.get("initContainers") or []:
        wanted = _container_resources(container, is_one)
        if container.get("restartPolicy") == "Always":
            running = _add(running, wanted)
            wanted = {}
        peak = _highest(peak, _add(running, wanted))
    for container in spec.get("containers") or []:
        running = _add(running, _container_resources(container, is_one))
    return _highest(peak, running)


def _claims(spec: Mapping[str, Any], status: Mapping[str, Any]) -> Tuple[str, ...]:
    """Named by the pod, made for it from a template, or made for it as a DRA driver serves what it asks for."""
    found: List[Optional[str]] = [each.get("resourceClaimName") for each in (
        *(spec.get("resourceClaims") or ()), *(status.get("resourceClaimStatuses") or ()),
        status.get("extendedResourceClaimStatus") or {})]
    return tuple(dict.fromkeys(str(name) for name in found if name))


def _container_resources(container: Mapping[str, Any], is_one: Callable[[str], bool]) -> Dict[str, int]:
    resources = container.get("resources") or {}
    # Extended resources have equal requests and limits; a manifest may name either.
    wanted = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    counts = {name: whole(amount) or 0 for name, amount in wanted.items() if is_one(name)}
    return {name: count for name, count in counts.items() if count}


def _add(left: Mapping[str, int], right: Mapping[str, int]) -> Dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in [*left, *right]}


def _highest(left: Mapping[str, int], right: Mapping[str, int]) -> Dict[str, int]:
    return {name: max(left.get(name, 0), right.get(name, 0)) for name in [*left, *right]}
