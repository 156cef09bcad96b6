# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the cluster must show of a validated node: GPUs on offer, and a pod that gets what it asked for. Pure."""
from __future__ import annotations

import re
from typing import Any, Dict, Mapping, Optional, Tuple

from .checks import FAILED, PASSED, Check

# Prints the GPU device nodes that the container was given; the kubelet reports it in the pod's status.
PROBE = "ls /dev | grep -E '^nvidia[0-9]+$' | sort | tr '\\n' ' ' > /dev/termination-log"


def allocatable(node: Mapping[str, Any], resource: str, expected: int) -> Check:
    """Whether the node offers as many of the resource as were expected."""
    name = "allocatable"
    offered = int((node.get("status") or {}).get("allocatable", {}).get(resource, "0"))
    seen = "%s: %d %s allocatable, %d expected" % (node["metadata"]["name"], offered, resource, expected)
    if offered != expected:
        return Check(name, FAILED, seen, "when the host passes its own checks, delete the device plugin's pod on this "
                                         "node: it keeps a GPU that once failed unhealthy until it is restarted; "
                                         "otherwise mend what the scope 'host' names")
    return Check(name, PASSED, seen)


def probe_pod(
    name: str, namespace: str, node: str, resource: str, image: str, runtime_class: Optional[str]
) -> Dict[str, Any]:
    """A pod that asks for one device on one node and says which it got."""
    spec: Dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
        ],
        "containers": [
            {
                "name": "probe",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-c", PROBE],
                "resources": {"limits": {resource: "1"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app.kubernetes.io/name": "gpuops-validation"}},
        "spec": spec,
    }


def ended(pod: Mapping[str, Any]) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def pod_got_its_device(pod: Mapping[str, Any], waited_s: float) -> Check:
    """Whether the probe saw exactly one GPU."""
    name, status = "pod", pod.get("status") or {}
    if not ended(pod):
        seen = "the pod is %s after %.0f s%s" % (status.get("phase", "unknown"), waited_s, _why(status))
        return Check(name, FAILED, seen, "kubectl describe the pod's node and the device plugin's pod on it")
    message, code = _termination(status)
    devices = re.findall(r"nvidia\d+", message)
    if code != 0 or len(devices) != 1:
        return Check(name, FAILED, "the pod ended with %s and saw %s%s"
                     % (code, " ".join(devices) or "no GPU", _why(status)),
                     "check the CDI spec and the runtime handler of the node (scope host)")
    return Check(name, PASSED, "a pod that asked for one device got /dev/%s" % devices[0])


def _termination(status: Mapping[str, Any]) -> Tuple[str, Any]:
    for container in status.get("containerStatuses") or ():
        terminated = (container.get("state") or {}).get("terminated")
        if terminated:
            return terminated.get("message", ""), terminated.get("exitCode")
    return "", None


def _why(status: Mapping[str, Any]) -> str:
    reasons = [status.get("reason"), status.get("message")]
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}).values():
            reasons += [state.get("reason"), state.get("message")]
    reasons += [condition.get("message") for condition in status.get("conditions") or ()
                if condition.get("status") == "False"]
    words = "; ".join(str(reason) for reason in reasons if reason)
    return " (%s)" % words if words else ""
