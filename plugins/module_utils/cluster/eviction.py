# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Evicting the pods that hold GPUs from one node, and waiting until they are gone."""
from __future__ import annotations

import time
from typing import Any, Callable, Dict, List, Optional, Sequence

from ..core.errors import GpuOpsError
from ..core.waiting import wait_for
from .client import ApiError, Client
from .pods import FINISHED, EvictionPlan, GpuPod, gpu_pods, plan_eviction, uncounted
from .repeating import CONFLICT, EVICTED

BUDGET_BLOCKS = 429
GONE = 404
PATIENCE_S = 5.0


def read_gpu_pods(cluster: Client, node: str) -> List[GpuPod]:
    """The pods that hold GPUs on a node, or in the whole cluster for an empty name."""
    return gpu_pods(read_pods(cluster, node))


def read_pods(cluster: Client, node: str) -> List[Dict[str, Any]]:
    """All pods of a node, or of the whole cluster for an empty name."""
    return list(cluster.items("/api/v1/pods", fieldSelector="spec.nodeName=%s" % node if node else None))


class Eviction:
    """One node's eviction; clock and sleep are given so that tests need not wait."""

    def __init__(
        self,
        cluster: Client,
        grace_period: Optional[int] = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = cluster
        self._grace_period = grace_period
        self._clock = clock
        self._sleep = sleep

    def preview(self, plan: EvictionPlan) -> Dict[str, Any]:
        """What an eviction would do now; the server answers, disruption budgets included."""
        blocked = {str(pod): reason for pod in plan.evict for reason in [self._evict(pod, dry_run=True)] if reason}
        return _result(plan, blocked, bool(plan.evict))

    def run(self, plan: EvictionPlan, timeout: float) -> Dict[str, Any]:
        """Evict and wait; a disruption budget that blocks is asked again until the time is up."""
        waiting = list(plan.evict)
        remaining = list(plan.evict) + list(plan.leaving)

        def evict() -> Dict[str, str]:
            """Why pods stay; what is asked again, and what is there yet, is told outside."""
            answers = {str(pod): self._evict(pod, dry_run=False) for pod in waiting}
            remaining[:] = [pod for pod in remaining if self._there(pod)]
            waiting[:] = [pod for pod in waiting if answers[str(pod)] and pod in remaining]
            return {pod: reason for pod, reason in answers.items() if reason}

        blocked, gone = wait_for(evict, lambda _blocked: not remaining, timeout, PATIENCE_S, self._clock, self._sleep)
        if not gone:
            raise _too_late(remaining, blocked, timeout)
        return _result(plan, {}, bool(plan.evict))

    def _evict(self, pod: GpuPod, dry_run: bool) -> str:
        """Empty when the pod goes, else why the server keeps it."""
        body: Dict[str, Any] = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        if self._grace_period is not None:
            body["deleteOptions"]["gracePeriodSeconds"] = self._grace_period
        try:
            self._cluster.create("%s/eviction" % _path(pod), body, dry_run, EVICTED)
        except ApiError as error:
            if error.status == GONE:
                return ""
            if error.status == BUDGET_BLOCKS:
                return error.message
            if error.status == CONFLICT:
                # Another pod may have the name by now, as one of a StatefulSet has that came back elsewhere
                return error.message if self._there(pod) else ""
            raise
        return ""

    def _there(self, pod: GpuPod) -> bool:
        current = self._cluster.find(_path(pod))
        return current is not None and (current.get("metadata") or {}).get("uid") == pod.uid and not _finished(current)


def evict_gpu_pods(
    cluster: Client, node: str, pods: Optional[Sequence[str]], force: bool, delete_emptydir_data: bool,
    grace_period: Optional[int], timeout: float, dry_run: bool,
) -> Dict[str, Any]:
    """Evict the GPU pods of a node, all or those named ('namespace/name' or UID); those of DaemonSets and static ones
    stay and are told, and so are those of the named ones that hold no GPU as the cluster counts them."""
    there = read_pods(cluster, node)
    found = [pod for pod in gpu_pods(there) if pods is None or {str(pod), pod.uid}.intersection(pods)]
    plan = plan_eviction(found, force, delete_emptydir_data)
    eviction = Eviction(cluster, grace_period)
    result = eviction.preview(plan) if dry_run else eviction.run(plan, timeout)
    return dict(result, uncounted=uncounted(there, pods or ()))


def _finished(pod: Dict[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in FINISHED


def _path(pod: GpuPod) -> str:
    return "/api/v1/namespaces/%s/pods/%s" % (pod.namespace, pod.name)


def _result(plan: EvictionPlan, blocked: Dict[str, str], changed: bool) -> Dict[str, Any]:
    return {
        "changed": changed,
        "evicted": [pod.result() for pod in plan.evict],
        "stayed": [dict(pod.result(), reason=reason) for pod, reason in plan.stay],
        "blocked": [{"pod": name, "reason": reason} for name, reason in sorted(blocked.items())],
    }


def _too_late(remaining: Sequence[GpuPod], blocked: Dict[str, str], timeout: float) -> GpuOpsError:
    lines = ["%s (%s)" % (pod, blocked.get(str(pod), "still terminating")) for pod in remaining]
    return GpuOpsError(
        "cluster.pods_not_evicted",
        found="after %d s these pods still hold GPUs: %s" % (timeout, "; ".join(lines)),
        wanted="no pod that holds a GPU on the node",
        remedy="raise the replicas or loosen the disruption budget that is named, give more time "
        "(`timeout`), or finish the pods by hand",
        option="timeout",
        pods=[pod.result() for pod in remaining],
    )
