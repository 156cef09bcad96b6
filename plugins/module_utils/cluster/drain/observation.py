# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One look at the cluster: what decides about the pods of nodes that are drained.

Asked for is only what some pod makes a difference of: a node without pods with GPUs costs its list and its Node.
"""
from __future__ import annotations

import time
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ..client import Client
from ..pods import Pod, pod_of
from .budgets import budget_of
from .judgement import Surroundings, comes_again
from .policy import NODE, DrainPolicy
from .preview import NodeState, Observation
from .users import Claim, claim_of, uses

PODS = "/api/v1/pods"
NODES = "/api/v1/nodes"
_NAMESPACES = "/api/v1/namespaces"
_DAEMON_SETS = "/apis/apps/v1/daemonsets"
_BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
# Of the API of dynamic resource allocation, the newest first
_RESOURCE_VERSIONS = ("v1", "v1beta2", "v1beta1")


def observe(cluster: Client, policies: Mapping[str, DrainPolicy], now: Callable[[], float] = time.time,
            known: FrozenSet[str] = frozenset()) -> Observation:
    """What there is about the drains of these nodes. policies: {node: how it is drained}. now: as time.time. known:
    UIDs of pods that are left out."""
    there = (pod_of(found, policy.is_gpu)
             for node, policy in policies.items() for found in read_pods(cluster, node))
    pods = tuple(pod for pod in there if pod.uid not in known)
    claims = read_claims(cluster, pods)
    concerned = [pod for pod in pods if policies[pod.node].scope == NODE or uses(pod, claims, policies[pod.node])]
    daemonsets = _daemonsets(cluster) if any(pod.daemonset for pod in concerned) else {}
    leaves = [pod for pod in concerned if not comes_again(pod, daemonsets)]
    return Observation(
        pods=pods,
        nodes={node: read_state(cluster, node) for node in dict.fromkeys(pod.node for pod in concerned)},
        claims=claims,
        budgets=tuple(cluster.items(_BUDGETS, keep=budget_of)) if leaves else (),
        surroundings=Surroundings(
            daemonsets=daemonsets,
            terminating=_terminating(cluster) if leaves else frozenset(),
            now=now()))


def read_pods(cluster: Client, node: str) -> List[Dict[str, Any]]:
    """All pods of a node, or of the whole cluster for an empty name, as the API has them."""
    return list(cluster.items(PODS, fieldSelector="spec.nodeName=%s" % node if node else None))


def read_users(cluster: Client, node: str, policy: DrainPolicy) -> List[Tuple[Pod, Tuple[str, ...]]]:
    """(pod, how it uses GPUs) of a node's pods that do, or of the whole cluster's for an empty name, by name."""
    pods = sorted((pod_of(found, policy.is_gpu) for found in read_pods(cluster, node)), key=str)
    claims = read_claims(cluster, pods)
    found = ((pod, uses(pod, claims, policy)) for pod in pods)
    return [(pod, ways) for pod, ways in found if ways]


def read_claims(cluster: Client, pods: Sequence[Pod]) -> Dict[str, Claim]:
    """{'namespace/name': claim} of the ResourceClaims that the pods have; one that is gone is left out."""
    named = dict.fromkeys((pod.namespace, name) for pod in pods if not pod.is_finished for name in pod.claims)
    found: Dict[str, Claim] = {}
    for namespace, name in named:
        claim = _claim(cluster, namespace, name)
        if claim is not None:
            found["%s/%s" % (namespace, name)] = claim_of(claim)
    return found


def _claim(cluster: Client, namespace: str, name: str) -> Optional[Dict[str, Any]]:
    """The answer of a version that is not served and that about a claim that is not there are the same, 404."""
    for version in _RESOURCE_VERSIONS:
        claim = cluster.find("/apis/resource.k8s.io/%s/namespaces/%s/resourceclaims/%s" % (version, namespace, name))
        if claim is not None:
            return claim
    return None


def state_of(node: Mapping[str, Any]) -> NodeState:
    """What the control plane knows of a Node's kubelet."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") == "Unknown":
            return NodeState(True, str(condition.get("lastTransitionTime") or ""))
    return NodeState()


def read_state(cluster: Client, node: str) -> NodeState:
    """The same; a kubelet is not silent where there is no such node."""
    return state_of(cluster.find("%s/%s" % (NODES, node)) or {})


def _daemonsets(cluster: Client) -> Dict[str, str]:
    return dict(cluster.items(_DAEMON_SETS, keep=_named_uid, metadata_only=True))


def _named_uid(found: Dict[str, Any]) -> Tuple[str, str]:
    metadata = found["metadata"]
    return "%s/%s" % (metadata.get("namespace"), metadata.get("name")), str(metadata.get("uid") or "")


def _terminating(cluster: Client) -> FrozenSet[str]:
    return frozenset(cluster.items(_NAMESPACES, keep=_name_if_terminating, metadata_only=True))


def _name_if_terminating(found: Dict[str, Any]) -> Optional[str]:
    return str(found["metadata"]["name"]) if found["metadata"].get("deletionTimestamp") else None
