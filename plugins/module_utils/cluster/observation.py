# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cluster as our components meet it: GPU nodes, who manages them, and what is there already."""
from __future__ import annotations

import functools
import time
from typing import Any, Callable, Collection, Dict, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from ..core.errors import GpuOpsError
from ..core.refusal import Refusal
from ..core.waiting import wait_for
from .client import ApiError, Client
from .components.common import MANAGED_BY, NAME, OURS, PART_OF
from .components.device_plugin import DEVICE_PLUGIN
from .components.fields import applied_fields
from .components.node_feature_discovery import NODE_FEATURE_DISCOVERY
from .nodes import (
    is_ready,
    managed_by_operator,
    node_facts,
    offer_refusal,
    operator_is_active,
    operator_refusal,
    resource_shortfall,
    skew_finding,
    usual_drivers,
)
from .placement import admits
from .pods import Pod, pod_of
from .readiness import left_out, pod_troubles, rolled_out

PAUSE_SECONDS = 2.0
# Seconds without any progress after which it is asked whether nodes that are NotReady are the reason.
STANDSTILL_SECONDS = 10.0

NODES = "/api/v1/nodes"
# Most of a Node's text, and nothing that is asked for
UNREAD = ("images", "managedFields")
DAEMON_SETS = "/apis/apps/v1/daemonsets"
# Of the API of dynamic resource allocation, the newest first
RESOURCE_VERSIONS = ("v1", "v1beta2", "v1beta1")
CLUSTER_POLICIES = "/apis/nvidia.com/v1/clusterpolicies"
# One of them is on every node that it manages, by a ClusterPolicy or by a GPUCluster
OPERATOR_VALIDATES = ("nvidia.com/gpu.deploy.operator-validator", "nvidia.com/gpu.deploy.dra-validator")


def observe(
    cluster: Client, selector: Optional[str], namespace: str, runtime_class: str,
    only: Optional[Collection[str]] = None,
) -> Dict[str, Any]:
    """One look at the cluster, by one list of its nodes.

    only: the nodes whose facts are wanted, where that is not all of them; with each is told then whether the GPU
    Operator manages it and who offers its GPUs. Of the others is known whether they have GPUs ('others').
    """
    policies = _policies(cluster)
    nodes = cluster.items(NODES, keep=functools.partial(_seen, policies, only), leave_out=UNREAD,
                          labelSelector=selector)
    facts = {str(each.facts["name"]): each.facts for each in sorted(nodes, key=lambda each: str(each.facts["name"]))}
    usual = usual_drivers((each["product"], each["driver_version"]) for each in facts.values())
    for each in facts.values():
        finding = skew_finding(each, usual)
        if finding is not None:
            each.setdefault("findings", []).append(finding.to_dict())
    whole = {name: each for name, each in facts.items() if only is None or name in only}
    managed = {str(each.facts["name"]) for each in nodes if each.managed}
    if only is None:
        told: Dict[str, Any] = {
            "nodes": list(whole.values()), "operator_refusal": operator_refusal(policies, managed)}
    else:
        _tell_who_offers(cluster, whole, operator_is_active(policies))
        for name, each in whole.items():
            each["operator_refusal"] = operator_refusal(policies, managed.intersection([name]))
        told = {"of_nodes": whole, "others": [
            name for name, each in facts.items() if name not in only and each["present"]]}
    return {
        **told,
        "namespace": _namespace(cluster, namespace) if namespace else None,
        "runtime_class": _runtime_class(cluster, runtime_class) if runtime_class else None,
    }


class _Seen(NamedTuple):
    """What is kept of a Node. managed: by the GPU Operator."""

    facts: Dict[str, Any]
    managed: bool


def _seen(policies: Sequence[Mapping[str, Any]], only: Optional[Collection[str]], node: Mapping[str, Any]) -> _Seen:
    facts = node_facts(node)
    if only is not None and facts["name"] not in only:
        facts = {name: facts[name] for name in ("name", "present", "product", "driver_version")}
    return _Seen(facts, managed_by_operator(policies, node))


def _policies(cluster: Client) -> List[Dict[str, Any]]:
    return (cluster.find(CLUSTER_POLICIES) or {}).get("items") or []


def refuse_other_managers(cluster: Client) -> None:
    """Refuse a cluster whose GPU nodes the NVIDIA GPU Operator manages, without a look at all of its nodes.

    Where its ClusterPolicy is gone, the labels that it left on nodes tell.
    """
    policies = _policies(cluster)

    def name_if_managed(node: Mapping[str, Any]) -> Optional[str]:
        return str(node["metadata"]["name"]) if managed_by_operator(policies, node) else None

    refusal = operator_refusal(policies, sorted({
        name for selector in ((None,) if policies else OPERATOR_VALIDATES)
        for name in cluster.items(NODES, keep=name_if_managed, leave_out=UNREAD, labelSelector=selector)}))
    if refusal:
        raise GpuOpsError.because([Refusal.from_dict(refusal)])


def _tell_who_offers(cluster: Client, nodes: Mapping[str, Dict[str, Any]], operator: bool) -> None:
    """Add 'offer_refusal' to the facts of each node."""
    ours: List[Mapping[str, str]] = []
    if any(any(facts["allocatable"].values()) for facts in nodes.values()):
        ours = cluster.items(DAEMON_SETS, keep=_selector_of_plugin, labelSelector="%s=%s" % (MANAGED_BY, OURS))
    by_claims = published(cluster) if nodes else []
    for facts in nodes.values():
        facts["offer_refusal"] = offer_refusal(facts, ours, by_claims, operator)


def _selector_of_plugin(workload: Mapping[str, Any]) -> Optional[Mapping[str, str]]:
    if not str(workload["metadata"]["name"]).startswith(DEVICE_PLUGIN.apps[0]):
        return None
    return workload["spec"]["template"]["spec"].get("nodeSelector") or {}


def published(cluster: Client, node: Optional[str] = None) -> List[str]:
    """Nodes of which a DRA driver has published GPUs; none where the API does not know how. node: the one asked for."""
    selector = "spec.driver=gpu.nvidia.com" + (",spec.nodeName=" + node if node else "")
    for version in RESOURCE_VERSIONS:
        try:
            return cluster.items("/apis/resource.k8s.io/%s/resourceslices" % version, keep=_node_of_slice,
                                 fieldSelector=selector)
        except ApiError as error:
            if error.status != 404:
                raise
    return []


def _node_of_slice(resources: Mapping[str, Any]) -> Optional[str]:
    return resources["spec"].get("nodeName") if resources["spec"].get("devices") else None


def wait_for_resources(
    cluster: Client,
    expected: Mapping[str, Mapping[str, int]],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Return once every node offers exactly what is expected of it; refuse when the time is up."""
    waiting = dict(expected)

    def shortfall() -> List[str]:
        found = [cluster.find("%s/%s" % (NODES, name)) for name in waiting]
        facts = [node_facts(node) for node in found if node is not None]
        for name in [name for name in waiting if not resource_shortfall({name: waiting[name]}, facts)]:
            del waiting[name]
        return resource_shortfall(waiting, facts)

    lines, offered = wait_for(shortfall, lambda lines: not lines, timeout, PAUSE_SECONDS, clock, sleep)
    if not offered:
        raise GpuOpsError(
            "cluster.devices_not_offered",
            found="after %d s: %s" % (timeout, "; ".join(lines)),
            wanted="the allocatable resources that the hosts' GPUs and the policy make up",
            remedy="read the device plugin's log on the node (`kubectl logs`), and see that the node carries the "
            "label `nvidia.com/gpu.deploy.device-plugin=true`",
        )


def components_leaving(cluster: Client, name: str, node: Optional[Mapping[str, Any]] = None) -> List[Pod]:
    """Those of our pods that hold the driver and are about to leave a node.

    That is what is being deleted, and what the node's labels admit no more. A pod that they admit all the same, by a
    node selector of the user's or a label that others have set, stays.

    node: with the labels that it is to have; None for those that it has.
    """
    # Node Feature Discovery has nothing to do with the driver, and runs on every node
    selector = "%s=%s,%s notin (%s)" % (PART_OF, OURS, NAME, ",".join(NODE_FEATURE_DISCOVERY.apps))
    found = cluster.items("/api/v1/pods", fieldSelector="spec.nodeName=%s" % name, labelSelector=selector)
    if node is None and found:
        node = cluster.find("%s/%s" % (NODES, name))
    return [pod_of(each) for each in found
            if each["metadata"].get("deletionTimestamp") or not admits(node or {}, each["spec"])]


def wait_for_components_gone(
    cluster: Client,
    node: str,
    timeout: float,
    skip_after: float = 0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time,
) -> List[Pod]:
    """Return once no component of ours is about to leave the node; refuse when the time is up.

    skip_after: how long after its grace a terminating pod is waited for; 0: as long as there is time. Given back are
    those that are left behind. now: as time.time.
    """
    def leaving() -> Tuple[List[Pod], List[Pod]]:
        """Those that are waited for, and those that are not any more."""
        pods = components_leaving(cluster, node)
        left = [pod for pod in pods if pod.has_outstayed(skip_after, now())]
        return [pod for pod in pods if pod not in left], left

    (pods, left), gone = wait_for(leaving, lambda seen: not seen[0], timeout, PAUSE_SECONDS, clock, sleep)
    if not gone:
        raise GpuOpsError(
            "cluster.components_stay",
            found="after %d s on node %s: %s" % (timeout, node, ", ".join(map(str, pods))),
            wanted="no component of the cluster that holds the driver, as the node has lost the labels that admit them",
            remedy="see `kubectl describe` of these pods, and whether the node's kubelet answers. Where it is dead, "
            "take the node with `skip_wait_for_delete_timeout`, seconds past their grace until they are left behind",
            option="skip_wait_for_delete_timeout",
        )
    return left


def wait_for_rollout(
    cluster: Client,
    namespace: str,
    workloads: Sequence[str],
    timeout: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Tuple[str, ...]:
    """Return once every 'DaemonSet/NAME' and 'Deployment/NAME' runs its newest version everywhere it should.

    Names of the nodes that are NotReady and keep a pod of theirs back: they are not waited for.
    """
    rollout = _Rollout(cluster, namespace, workloads, min(STANDSTILL_SECONDS, timeout / 4), clock)
    waiting, ready = wait_for(rollout.waiting, lambda waiting: not waiting, timeout, PAUSE_SECONDS, clock, sleep)
    if not ready:
        raise _not_rolled_out(cluster, namespace, waiting, timeout)
    return tuple(sorted(rollout.left_out))


class _Rollout:
    """A roll-out that is awaited: one request for each workload that is not there yet, until none of them moves."""

    def __init__(self, cluster: Client, namespace: str, workloads: Sequence[str], standstill: float,
                 clock: Callable[[], float]) -> None:
        self.left_out: Set[str] = set()
        self._cluster = cluster
        self._namespace = namespace
        self._waiting = list(workloads)
        self._standstill = standstill
        self._clock = clock
        self._seen: Dict[str, Any] = {}
        self._since = clock()

    def waiting(self) -> List[str]:
        """Those that are not rolled out."""
        found = {name: _workload(self._cluster, self._namespace, name) for name in self._waiting}
        found = {name: workload for name, workload in found.items() if not rolled_out(workload)}
        seen = {name: workload.get("status") for name, workload in found.items()}
        if seen != self._seen:
            self._seen, self._since = seen, self._clock()
        elif found and self._clock() - self._since >= self._standstill:
            self._since = self._clock()
            found = self._without_dead_nodes(found)
        self._waiting = list(found)
        return self._waiting

    def _without_dead_nodes(self, found: Mapping[str, Dict[str, Any]]) -> Dict[str, Dict[str, Any]]:
        unready = set(self._cluster.items(NODES, keep=_name_if_unready, leave_out=UNREAD))
        rest = {}
        for name, workload in found.items():
            labels = ((workload.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
            pods = self._cluster.items(
                "/api/v1/namespaces/%s/pods" % self._namespace,
                labelSelector=",".join("%s=%s" % label for label in sorted(labels.items()))) if unready else []
            nodes = left_out(workload, pods, unready)
            self.left_out |= nodes
            if not nodes:
                rest[name] = workload
        return rest


def _name_if_unready(node: Mapping[str, Any]) -> Optional[str]:
    return None if is_ready(node) else str(node["metadata"]["name"])


def _workload(cluster: Client, namespace: str, name: str) -> Dict[str, Any]:
    kind, _separator, bare = name.partition("/")
    return cluster.find("/apis/apps/v1/namespaces/%s/%ss/%s" % (namespace, kind.lower(), bare)) or {}


def _not_rolled_out(cluster: Client, namespace: str, waiting: Sequence[str], timeout: float) -> GpuOpsError:
    pods = cluster.items("/api/v1/namespaces/%s/pods" % namespace)
    lines = []
    for name in waiting:
        selector = ((_workload(cluster, namespace, name).get("spec") or {}).get("selector") or {}).get("matchLabels")
        troubles = pod_troubles(pods, selector or {})
        lines.append("%s (%s)" % (name, "; ".join(troubles) if troubles else "no pod yet"))
    return GpuOpsError(
        "cluster.pods_not_ready",
        found="after %d s not all pods in namespace %s are ready: %s" % (timeout, namespace, ", ".join(lines)),
        wanted="every pod ready in its newest version",
        remedy="see `kubectl --namespace %s describe pods`, and the pods' logs" % namespace,
    )


def _namespace(cluster: Client, name: str) -> Dict[str, Any]:
    found = cluster.find("/api/v1/namespaces/" + name)
    # A namespace that is going away cannot take new objects and counts as gone.
    leaving = bool(found and (found.get("metadata") or {}).get("deletionTimestamp"))
    return {
        "name": name,
        "exists": found is not None and not leaving,
        "terminating": leaving,
        "ours": _ours(found),
    }


def _runtime_class(cluster: Client, name: str) -> Dict[str, Any]:
    found = cluster.find("/apis/node.k8s.io/v1/runtimeclasses/" + name)
    return {
        "name": name,
        "exists": found is not None,
        "ours": _ours(found),
        "handler": (found or {}).get("handler"),
    }


def _ours(found: Optional[Dict[str, Any]]) -> bool:
    return found is not None and applied_fields(found) is not None
