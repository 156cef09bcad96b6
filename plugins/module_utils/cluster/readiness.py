# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a DaemonSet or Deployment is rolled out, and what keeps its pods."""
from __future__ import annotations

from typing import Any, Collection, Dict, List, Mapping, Sequence, Set, Tuple


def rolled_out(workload: Mapping[str, Any]) -> bool:
    """True when the controller has seen the newest version and all of its pods are ready.

    Of a DaemonSet with the strategy OnDelete somebody else decides when a pod is of the newest version.
    """
    metadata, status = workload.get("metadata") or {}, workload.get("status") or {}
    if not metadata or status.get("observedGeneration") != metadata.get("generation"):
        return False
    if workload.get("kind") == "Deployment":
        wanted = (workload.get("spec") or {}).get("replicas", 1)
        counts: Tuple[str, ...] = ("replicas", "updatedReplicas", "availableReplicas")
    else:
        wanted = status.get("desiredNumberScheduled", 0)
        strategy = ((workload.get("spec") or {}).get("updateStrategy") or {}).get("type")
        counts = ("numberReady",) if strategy == "OnDelete" else ("updatedNumberScheduled", "numberReady")
    return all((status.get(count) or 0) == wanted for count in counts)


def left_out(workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], unready: Collection[str]) -> Set[str]:
    """The NotReady nodes that are all that a DaemonSet waits for; none where it waits for anything else.

    pods: those of the DaemonSet; unready: names of all nodes that are NotReady.
    """
    metadata, status = workload.get("metadata") or {}, workload.get("status") or {}
    if workload.get("kind") != "DaemonSet" or status.get("observedGeneration") != metadata.get("generation"):
        return set()
    places = {str((pod.get("spec") or {}).get("nodeName")): _ready(pod) for pod in pods}
    troubled = {place for place in places if place in unready}
    wanted = status.get("desiredNumberScheduled", 0) - len(troubled)
    rest = [ready for place, ready in places.items() if place not in troubled]
    done = len(rest) == wanted and all(rest) and (status.get("updatedNumberScheduled") or 0) >= wanted
    return troubled if done else set()


def pod_troubles(pods: Sequence[Mapping[str, Any]], selector: Mapping[str, str]) -> List[str]:
    """For each pod of a workload that is not ready, where it is and what the kubelet says."""
    troubles = []
    for pod in pods:
        labels = (pod.get("metadata") or {}).get("labels") or {}
        if selector and all(labels.get(key) == value for key, value in selector.items()) and not _ready(pod):
            troubles.append("pod %s on node %s: %s" % (
                pod["metadata"]["name"], (pod.get("spec") or {}).get("nodeName") or "none", _reason(pod)))
    return sorted(troubles)


def _conditions(pod: Mapping[str, Any]) -> Dict[str, Mapping[str, Any]]:
    return {str(each.get("type")): each for each in (pod.get("status") or {}).get("conditions") or []}


def _ready(pod: Mapping[str, Any]) -> bool:
    return (_conditions(pod).get("Ready") or {}).get("status") == "True"


def _reason(pod: Mapping[str, Any]) -> str:
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        last = (container.get("lastState") or {}).get("terminated") or (container.get("state") or {}).get("terminated")
        if last:
            words = (last.get("reason"), "exit code %s" % last.get("exitCode"), last.get("message"))
            return ", ".join(str(word) for word in words if word)
        waiting = (container.get("state") or {}).get("waiting")
        if waiting:
            return ": ".join(str(word) for word in (waiting.get("reason"), waiting.get("message")) if word)
    scheduled = _conditions(pod).get("PodScheduled") or {}
    if scheduled.get("status") == "False":
        return "not scheduled, %s" % scheduled.get("message")
    return "not ready yet"
