# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the cluster must show of a validated node: GPUs on offer, and a pod that gets what it asked for and computes on
it. Pure."""
from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from ..core.plan import digest
from ..core.quantities import nvidia_resources
from ..core.times import epoch
from .checks import Check
from .compute.carried import LACKS, THERE, UNABLE, proof_in
from .compute.levels import NONE
from .compute.verdict import IN_CONTAINER, judged
from .status import FAILED, PASSED, SKIPPED, UNKNOWN

# Writes down what the kubelet reports in the pod's status: on the first line the device nodes of GPUs and MIG instances
# that the container was given; then what its arguments, those of a Python, have computed, where there are any.
PROBE = """
{ ls /dev /dev/nvidia-caps 2>/dev/null | grep -E '^nvidia(-cap)?[0-9]+$' | sort -u | tr '\\n' ' '; echo; } \\
    > /dev/termination-log || exit 1
[ $# -eq 0 ] && exit 0
{
    if command -v python3 > /dev/null; then
        python3 -I -B -c "$@" || echo "python3 ended with $?"
    else
        echo '{"unable": "it has no python3"}'
    fi
} >> /dev/termination-log
exit 0
"""
PROBE_CONTAINER = "probe"
# By default our device plugin comes where it is "true", and whoever sets it otherwise is obeyed
ADMITS_PLUGIN = "nvidia.com/gpu.deploy.device-plugin"
# "false" keeps off the one, and all that the GPU Operator brings
_KEEP_OFF = (ADMITS_PLUGIN, "nvidia.com/gpu.deploy.operands")
PROBE_LABELS = {"app.kubernetes.io/name": "gpuops-validation"}
# What the device plugin offers of GPUs, whole or in instances: beside what is expected of these there must be none
OFFERED = re.compile(r"nvidia\.com/(gpu(\.shared)?|mig-.*)")

# Istio's and Linkerd's marks of a pod that gets no proxy; the former reads the label, the latter the annotation
ALONE = {"sidecar.istio.io/inject": "false", "linkerd.io/inject": "disabled"}
NOBODY = 65534
# What a container may have, of which it is promised the first. The driver's library and its compiler take some hundred
# MiB of the host's memory, and seconds of a processor
_AMOUNTS = {"cpu": "100m", "memory": "64Mi"}
_AMOUNTS_TO_COMPUTE = {"cpu": "1", "memory": "1Gi"}

# Conditions under which a kubelet starts no pod, while the node offers what it did
OF_KUBELET = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")


def not_ready(node: Mapping[str, Any]) -> Optional[Check]:
    """That its kubelet starts no pod, as the control plane sees it; None where it does.

    What a node offers stays what it was when its kubelet was last heard of
    (https://kubernetes.io/docs/reference/node/node-status/).
    """
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready" and condition.get("status") != "True":
            return Check("ready", FAILED, "%s is not ready: %s" % (node["metadata"]["name"], "; ".join(
                str(condition[key]) for key in ("reason", "message") if condition.get(key)) or condition.get("status")),
                "see what the kubelet and the container runtime log on the host")
    return None


def allocatable(node: Mapping[str, Any], expected: Mapping[str, int], only: bool) -> Check:
    """Whether the node offers as many of each resource as were expected, and has none beside that are not healthy.

    only: and no other resource of the device plugin's.
    """
    name = "allocatable"
    offered, known = _counts(node), nvidia_resources((node.get("status") or {}).get("capacity"))
    others = [resource for resource, count in offered.items()
              if only and count and resource not in expected and OFFERED.fullmatch(resource)]
    sick = {resource: known[resource] - offered.get(resource, 0) for resource in expected
            if known.get(resource, 0) > offered.get(resource, 0)}
    told = ["%s: %d allocatable, %d expected%s" % (
        resource, offered.get(resource, 0), expected.get(resource, 0),
        ", %d not healthy" % sick[resource] if resource in sick else "")
        for resource in (*sorted(expected), *sorted(others))]
    seen = "%s offers %s" % (node["metadata"]["name"], "; ".join(told))
    if others or sick or any(offered.get(resource, 0) != count for resource, count in expected.items()):
        return Check(name, FAILED, seen, "when the host passes its own checks, delete the device plugin's pod on this "
                                         "node: it keeps a GPU that once failed unhealthy, and the MIG devices that it "
                                         "found, until it is restarted; otherwise mend what the scope 'host' names")
    return Check(name, PASSED, seen)


def offers_none(node: Mapping[str, Any], expected: Mapping[str, int]) -> bool:
    offered = _counts(node)
    return not any(offered.get(resource, 0) for resource in expected)


def offered_otherwise(node: Mapping[str, Any], by_claims: bool) -> Optional[Check]:
    """That no device plugin is to offer what the node does not; None where one is.

    by_claims: whether a DRA driver has published the node's GPUs.
    """
    name = "allocatable"
    if by_claims:
        return Check(name, SKIPPED, "not looked at: pods get the GPUs of %s by claims (DRA driver gpu.nvidia.com)"
                     % node["metadata"]["name"])
    labels = (node.get("metadata") or {}).get("labels") or {}
    off = [key for key in _KEEP_OFF if labels.get(key) == "false"]
    if off:
        return Check(name, SKIPPED, "not looked at: %s has %s=false" % (node["metadata"]["name"], off[0]))
    return None


def free_resource(node: Mapping[str, Any], taken: Mapping[str, int], expected: Mapping[str, int]) -> Optional[str]:
    """A resource of which the node has a device that no pod was promised; None where all are."""
    offered = _counts(node)
    free = [resource for resource in sorted(expected) if offered.get(resource, 0) > taken.get(resource, 0)]
    return free[0] if free else None


def all_in_use(
    node: Mapping[str, Any], expected: Mapping[str, int], holding: Sequence[str], is_at_work: bool
) -> Check:
    """Of a node all of whose devices these pods hold or were promised, so that a probe would wait for one to end.

    is_at_work: whether one of them has started, which shows what a probe would. Those that wait show nothing.
    """
    name, offered = "pod", _counts(node)
    count = sum(offered.get(resource, 0) for resource in expected)
    if not is_at_work:
        return Check(name, FAILED, "all %d are promised to %s, and no pod that got one has started" % (
            count, ", ".join(holding)), "kubectl describe these pods: they wait for an image, or for their devices; "
                                        "validate again when one has started or gone")
    return Check(name, SKIPPED, "not probed: all %d in use by %s" % (count, ", ".join(holding)))


@dataclass(frozen=True)
class Probe:
    """What a probe asks for, and what the node is expected to offer; see the options of the module gpu_validation.

    compute: how thoroughly it computes, one of compute.levels.
    """

    expected: Mapping[str, int]
    divided: bool
    image: str
    namespace: str
    tolerations: Sequence[Mapping[str, Any]]
    runtime_class: str
    compute: str


def state_of(
    node: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], asked: Probe,
    runtime_class: Optional[Mapping[str, Any]]
) -> str:
    """A digest of all in the cluster that the success of a probe depends on, the same while that is the same.

    pods: those of the node; runtime_class: the object that the probe names, None where there is none.
    """
    system = (node.get("status") or {}).get("nodeInfo") or {}
    return digest({
        "asked": vars(asked),
        "runtime_class": None if runtime_class is None else {
            key: runtime_class.get(key) for key in ("handler", "overhead", "scheduling")},
        "node": (node.get("metadata") or {}).get("uid"),
        "system": {key: system.get(key) for key in (
            "bootID", "kernelVersion", "kubeletVersion", "containerRuntimeVersion")},
        "kubelet": {condition["type"]: condition.get("status") for condition in (
            (node.get("status") or {}).get("conditions") or ()) if condition.get("type") in OF_KUBELET},
        "offered": _counts(node),
        "offered_by": sorted(_offerers(pods)),
    })


def _offerers(pods: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The containers, as they run now, of pods that see the kubelet's directory of device plugins."""
    for pod in pods:
        paths = [(volume.get("hostPath") or {}).get("path") or "" for volume in pod["spec"].get("volumes") or ()]
        if any(path.rstrip("/").endswith("/device-plugins") for path in paths):
            yield str(pod["metadata"].get("uid"))
            yield from (str(container.get("containerID"))
                        for container in (pod.get("status") or {}).get("containerStatuses") or ())


def unproved(proof: Mapping[str, Any]) -> Dict[str, Any]:
    """What is left of a proof that does not count: what the host was when it was read."""
    return {name: value for name, value in proof.items() if name == "changes"}


def proof_of(checks: Sequence[Check], state: str, at: int, before: Mapping[str, Any]) -> Dict[str, Any]:
    """What a probe proves: nothing, unless it got its device, and nothing that it should have shown is unknown.

    at: when, in seconds since the epoch; before: what the host said.
    """
    if checks[0].status != PASSED or any(check.status not in (PASSED, SKIPPED) for check in checks):
        return unproved(before)
    return {**unproved(before), "of": state, "at": at, "evidence": "; ".join(check.evidence for check in checks)}


def proved(proof: Mapping[str, Any], state: str, now: int, trusted_for: int) -> Optional[Check]:
    """That no probe is needed, as one has passed under the same state and not longer ago, in seconds; else None."""
    at = proof.get("at")
    if proof.get("of") != state or not isinstance(at, int) or not 0 <= now - at < trusted_for:
        return None
    return Check("pod", SKIPPED, "not probed again: %d minutes ago %s, and the node has been the same since" % (
        (now - at) // 60, proof.get("evidence")))


def _counts(node: Mapping[str, Any]) -> Dict[str, int]:
    return nvidia_resources((node.get("status") or {}).get("allocatable"))


def probe_pod(
    name: str, namespace: str, node: str, resource: str, image: str, runtime_class: Optional[str], seconds: int,
    tolerations: Sequence[Mapping[str, Any]] = (), program: Sequence[str] = ()
) -> Dict[str, Any]:
    """A pod that asks for one device on one node, says which it got, and computes on it.

    It is one that a namespace takes with the restricted Pod Security Standard and with quotas for what it computes
    with (https://kubernetes.io/docs/concepts/security/pod-security-standards/), and wants no proxy beside it. It goes
    to its node as the pods of a DaemonSet do, for the label with the host's name may be another than the Node's.
    seconds: after which the kubelet ends it, so that it gives its device back also where nobody lives to delete it.
    tolerations: beside those of its own. program: what its Python is given to compute with, nothing where it is not to.
    """
    amounts = _AMOUNTS_TO_COMPUTE if program else _AMOUNTS
    spec: Dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": seconds,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}}},
        "securityContext": {"runAsNonRoot": True, "runAsUser": NOBODY, "runAsGroup": NOBODY,
                            "seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule"},
            *tolerations,
        ],
        "containers": [
            {
                "name": PROBE_CONTAINER,
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["/bin/sh", "-c", PROBE, "probe", *program],
                "resources": {"requests": dict(_AMOUNTS), "limits": {**amounts, resource: "1"}},
                "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
            }
        ],
    }
    if runtime_class:
        spec["runtimeClassName"] = runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {**PROBE_LABELS, **ALONE},
                     "annotations": dict(ALONE)},
        "spec": spec,
    }


def is_probe(pod: Mapping[str, Any]) -> bool:
    labels = (pod.get("metadata") or {}).get("labels") or {}
    return PROBE_LABELS.items() <= labels.items()


def left_behind(pod: Mapping[str, Any], now: float) -> bool:
    """Whether it is a probe that nobody waits for any more. now: seconds since the epoch."""
    made = (pod.get("metadata") or {}).get("creationTimestamp")
    lives = (pod.get("spec") or {}).get("activeDeadlineSeconds")
    if not is_probe(pod) or not made or not lives:
        return False
    return bool(now > epoch(made) + lives)


def unschedulable(pod: Mapping[str, Any]) -> bool:
    return any(condition.get("type") == "PodScheduled" and condition.get("status") == "False"
               for condition in (pod.get("status") or {}).get("conditions") or ())


def ended(pod: Mapping[str, Any]) -> bool:
    """Whether the probe has ended, be there another container in its pod that has not."""
    status = pod.get("status") or {}
    return status.get("phase") in ("Succeeded", "Failed") or _termination(status)[1] is not None


def pod_got_its_device(pod: Mapping[str, Any], waited_s: float, divided: bool) -> Check:
    """Whether the probe saw exactly one GPU. divided: and the two nodes that open one MIG device on it."""
    name, status = "pod", pod.get("status") or {}
    if not ended(pod):
        seen = "the pod is %s after %.0f s%s" % (status.get("phase", "unknown"), waited_s, _why(status))
        if any("running" in state for state in _states(status)):
            return Check(name, FAILED, "%s, and its container runs" % seen,
                         "where it had only just begun, raise `gpu_validation_timeout`; one that does not end sleeps "
                         "in the driver: read the kernel log for NVRM and Xid messages, drain the node and reboot it")
        return Check(name, FAILED, seen, "kubectl describe the pod's node and the device plugin's pod on it")
    message, code = _termination(status)
    nodes = message.partition("\n")[0]
    devices, capabilities = re.findall(r"nvidia\d+", nodes), re.findall(r"nvidia-cap\d+", nodes)
    if code != 0 or len(devices) != 1 or (divided and len(capabilities) != 2):
        return Check(name, FAILED, "the pod ended with %s and saw %s%s"
                     % (code, " ".join([*devices, *capabilities]) or "no GPU", _why(status)),
                     "check the CDI spec and the runtime handler of the node (scope host)")
    return Check(name, PASSED, "a pod that asked for one device got %s" % ", ".join(
        ["/dev/" + devices[0], *("/dev/nvidia-caps/" + each for each in capabilities if divided)]))


def pod_computed(pod: Mapping[str, Any], compute: str, image: str) -> Check:
    """What computing in a pod has shown that got its device. An image that cannot compute says nothing of the node."""
    name = "pod_compute"
    if compute == NONE:
        return Check(name, SKIPPED, "computing was not asked for")
    line = _termination(pod.get("status") or {})[0].partition("\n")[2].strip()
    said = _read(line)
    if UNABLE in said:
        return Check(name, SKIPPED, "the pod could not compute, %s: %s" % (image, said[UNABLE]),
                     "set `gpu_validation_pod_image` to an image with glibc and Python 3.9 or newer, such as the "
                     "default, or `gpu_validation_compute` to none")
    proof = proof_in(said)
    if proof is None:
        return Check(name, UNKNOWN, "the pod said of its computing: %s" % (line[:200] or "nothing"))
    verdict = judged(proof, IN_CONTAINER)
    told = [verdict.evidence, *(["the container has no %s" % _listed(said[LACKS])] if said.get(LACKS) else []),
            *(["it has %s, which its loader does not find" % _listed(said[THERE])] if said.get(THERE) else [])]
    if verdict.status == PASSED and proof.board:
        told.append(proof.board)
    return Check(name, verdict.status, "; ".join(told), verdict.remedy)


def _read(line: str) -> Mapping[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _listed(words: Sequence[Any]) -> str:
    return ", ".join(map(str, words))


def _termination(status: Mapping[str, Any]) -> Tuple[str, Any]:
    for state in _states(status):
        terminated = state.get("terminated")
        if terminated:
            return terminated.get("message") or "", terminated.get("exitCode")
    return "", None


def _states(status: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The state of the probe's container, where the pod has one already."""
    for container in status.get("containerStatuses") or ():
        if container.get("name") == PROBE_CONTAINER:
            yield container.get("state") or {}


def _why(status: Mapping[str, Any]) -> str:
    reasons = [status.get("reason"), status.get("message")]
    for container in status.get("containerStatuses") or ():
        for state in (container.get("state") or {}).values():
            reasons += [state.get("reason"), state.get("message")]
    reasons += [condition.get("message") for condition in status.get("conditions") or ()
                if condition.get("status") == "False"]
    words = "; ".join(str(reason) for reason in reasons if reason)
    return " (%s)" % words if words else ""
