# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cluster's half of the validation, over the Kubernetes API."""
from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ..module_utils.cluster.client import ApiError, Client, Connection
from ..module_utils.cluster.drain.observation import read_pods
from ..module_utils.cluster.observation import published
from ..module_utils.cluster.offer import MIG, SINGLE, offered, strategy_of
from ..module_utils.cluster.playbook_rights import probe_rights
from ..module_utils.cluster.pods import gpu_pods
from ..module_utils.cluster.repeating import ALWAYS, CONFLICT
from ..module_utils.cluster.rights import may, require
from ..module_utils.cluster.startup_taint import tolerations
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.waiting import wait_for
from ..module_utils.validation.checks import Check
from ..module_utils.validation.compute.levels import NONE, QUICK
from ..module_utils.validation.on_cluster import (
    PROBE_LABELS,
    Probe,
    all_in_use,
    allocatable,
    ended,
    free_resource,
    is_probe,
    left_behind,
    not_ready,
    offered_otherwise,
    offers_none,
    pod_computed,
    pod_got_its_device,
    probe_pod,
    proof_of,
    proved,
    state_of,
    unproved,
    unschedulable,
)
from ..module_utils.validation.status import FAILED, PASSED
from ..module_utils.validation.verdict import raise_if_unhealthy
from .probe_program import probe_program

Proof = Dict[str, Any]
SLICES = ("resource.k8s.io", "resourceslices")
POLL_S = 1.0
# How much longer than it is waited for a pod lives that nobody has taken away
LEFT_BEHIND_S = 60
# What of the time a node has whose turn comes late: its device plugin may be on the way from one pod to the next
LATE = 0.1


@dataclass(frozen=True)
class ClusterScope:
    """What to check of a node; see the options of the module gpu_validation.

    expected: {extended resource: devices}; only: whether the node must offer no other resource of the device plugin.
    divided:  whether what is offered by the name of GPUs are MIG devices.
    compute:  how thoroughly the pod computes on the device that it got, one of validation.compute.levels.
    proof:    what a pod has proved earlier; pod_trusted_for: for how many seconds that counts while nothing changes.
    """

    node: str
    expected: Mapping[str, int]
    only: bool
    divided: bool
    compute: str
    runtime_class: str
    pod: bool
    pod_image: str
    pod_namespace: str
    pod_tolerations: Sequence[Mapping[str, Any]]
    pod_trusted_for: int
    proof: Mapping[str, Any]
    startup_taint: str
    timeout: float
    access: Connection

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ClusterScope:
        """The scope of checked options.

        Raises GpuOpsError where one is missing that only this scope needs, or the plugin cannot offer the devices.
        """
        if not options["node_name"]:
            raise _missing("node_name")
        return cls(
            node=options["node_name"],
            expected=_expected(options),
            only=bool(options["expected_resources"] or options["devices"]),
            divided=bool((options["devices"] or {}).get("divided"))
            and strategy_of(options["device_plugin_config"]) == SINGLE,
            # One container need not show again what the host has: that the runtime has given it all that it needs
            compute=NONE if options["compute"] == NONE else QUICK,
            runtime_class=options["runtime_class"] or options["handler"],
            pod=options["pod"],
            pod_image=options["pod_image"],
            pod_namespace=options["pod_namespace"],
            pod_tolerations=options["pod_tolerations"],
            pod_trusted_for=options["pod_trusted_for"],
            proof=options["proof"],
            startup_taint=options["startup_taint"],
            timeout=float(options["timeout"]),
            access=Connection.from_options(options),
        )


def _expected(options: Mapping[str, Any]) -> Dict[str, int]:
    """{extended resource: devices that the node must offer}: as told, else what the plugin makes of the devices."""
    if options["expected_resources"]:
        return {name: _number(name, count) for name, count in options["expected_resources"].items()}
    if options["devices"]:
        return offered(options["devices"], options["device_plugin_config"], options["device_plugin_version"])
    if options["expected_gpus"] is None:
        raise _missing("expected_gpus")
    return {options["resource"]: options["expected_gpus"]}


def _number(resource: str, count: Any) -> int:
    """A template that has text around it, or is of an Ansible before 2.19, says '8'."""
    try:
        return int(count)
    except (TypeError, ValueError) as error:
        raise GpuOpsError(
            "validation.no_number_of_devices",
            found="`expected_resources` says %r for %s" % (count, resource),
            wanted="a number of devices",
            remedy="correct it, as in {%s: 8}" % resource,
            option="expected_resources",
        ) from error


def _missing(name: str) -> GpuOpsError:
    return GpuOpsError(
        "validation.option_missing",
        found="no `%s`" % name,
        wanted="the node and the number of devices that it must offer, for the scope 'cluster'",
        remedy="set `%s`" % name,
        option=name,
    )


def validate_cluster(
    cluster: Client, scope: ClusterScope, check_mode: bool, since: Optional[float] = None
) -> Tuple[Tuple[Check, ...], Proof]:
    """Wait for the devices to be on offer, then run the probe pod, unless what one has proved earlier still counts.

    (the checks, what is proved now). Raises GpuOpsError naming what fails.
    since: when the wait for devices began (time.monotonic()): of many nodes none is waited for anew, as each brings
           its devices while the others are looked at.
    """
    waited = 0.0 if since is None else time.monotonic() - since
    check, node = _wait_for_devices(cluster, scope, max(scope.timeout - waited, scope.timeout * LATE))
    checks: List[Check] = [check]
    proof: Proof = unproved(scope.proof)
    raise_if_unhealthy(checks, "node %s" % scope.node)
    if check.status == PASSED and scope.pod and not check_mode and sum(scope.expected.values()) > 0:
        of_pod, proof = _pod(cluster, scope, node)
        checks += of_pod
        raise_if_unhealthy(checks, "node %s" % scope.node)
    return tuple(checks), proof


def _wait_for_devices(cluster: Client, scope: ClusterScope, limit: float) -> Tuple[Check, Dict[str, Any]]:
    """(the check, the Node that it is of)."""
    node: Dict[str, Any] = {}
    by_claims: Optional[bool] = None

    def judge() -> Tuple[Check, bool]:
        nonlocal node, by_claims
        node = cluster.get("/api/v1/nodes/%s" % scope.node)
        unheard = not_ready(node)
        if unheard:
            return unheard, False
        check = allocatable(node, scope.expected, scope.only)
        if check.status == FAILED and offers_none(node, scope.expected):
            by_claims = _are_claimed(cluster, scope.node) if by_claims is None else by_claims
            check = offered_otherwise(node, by_claims) or check
        return check, check.status != FAILED

    return _wait(judge, limit), node


def _are_claimed(cluster: Client, node: str) -> bool:
    """Whether a DRA driver has published the node's GPUs. Who only validates needs no right to see that."""
    return may(cluster, "list", *SLICES) and bool(published(cluster, node))


def _pod(cluster: Client, scope: ClusterScope, node: Mapping[str, Any]) -> Tuple[List[Check], Proof]:
    """A node whose devices are all at work is well: a probe would wait until its time is over."""
    there = read_pods(cluster, scope.node)
    runtime_class = cluster.find("/apis/node.k8s.io/v1/runtimeclasses/%s" % scope.runtime_class)
    state = state_of(node, there, Probe(
        expected=scope.expected, divided=scope.divided, image=scope.pod_image, namespace=scope.pod_namespace,
        tolerations=list(scope.pod_tolerations), runtime_class=scope.runtime_class,
        compute=scope.compute), runtime_class)
    known = proved(scope.proof, state, int(time.time()), scope.pod_trusted_for)
    if known is not None:
        return [known], dict(scope.proof)
    ends = time.monotonic() + scope.timeout
    while True:
        left = ends - time.monotonic()
        free = _free(node, scope, there)
        if free is None:
            checks = [all_in_use(node, scope.expected, [str(pod) for pod in gpu_pods(there)], _at_work(there))]
            final = checks[0].status != FAILED
        else:
            # One that we may make and not take away would stay
            require(cluster, probe_rights(scope.pod_namespace))
            _sweep(cluster, scope)
            checks, final = _probe(cluster, scope, node, free, runtime_class is not None, max(left, POLL_S))
        if final or left <= 0:
            break
        time.sleep(POLL_S)
        there = read_pods(cluster, scope.node)
    return checks, proof_of(checks, state, int(time.time()), scope.proof)


def _free(node: Mapping[str, Any], scope: ClusterScope, there: Sequence[Mapping[str, Any]]) -> Optional[str]:
    taken: Dict[str, int] = {}
    for pod in gpu_pods(there):
        for resource, count in pod.resources.items():
            taken[resource] = taken.get(resource, 0) + count
    return free_resource(node, taken, scope.expected)


def _at_work(there: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a pod of others has started with its devices."""
    return any(pod.phase == "Running" for pod in gpu_pods([each for each in there if not is_probe(each)]))


def _sweep(cluster: Client, scope: ClusterScope) -> None:
    """Take away what killed runs have left, on this node and on others, and what has never come to one."""
    selector = ",".join("%s=%s" % label for label in PROBE_LABELS.items())
    pods = "/api/v1/namespaces/%s/pods" % scope.pod_namespace
    for pod in cluster.items(pods, labelSelector=selector):
        if left_behind(pod, time.time()):
            cluster.delete("%s/%s" % (pods, pod["metadata"]["name"]), pod["metadata"]["uid"])


def _probe(
    cluster: Client, scope: ClusterScope, node: Mapping[str, Any], resource: str, has_class: bool, limit: float
) -> Tuple[List[Check], bool]:
    """(the checks, whether they say something of the node: a pod that lost its place to another one's does not).

    has_class: whether the cluster has the RuntimeClass; without it, the pod asks for none.
    limit: seconds that it is waited for.
    """
    runtime_class: Optional[str] = scope.runtime_class if has_class else None
    pods = "/api/v1/namespaces/%s/pods" % scope.pod_namespace
    name = "gpuops-validation-%s" % secrets.token_hex(4)
    wanted = probe_pod(name, scope.pod_namespace, scope.node, resource, scope.pod_image, runtime_class,
                       int(scope.timeout) + LEFT_BEHIND_S, [*tolerations(scope.startup_taint), *scope.pod_tolerations],
                       [] if scope.compute == NONE else probe_program(scope.timeout))
    divided = scope.divided or resource.startswith(MIG)
    displaced = Check("pod", FAILED, "pods of others came before the one that was to ask for a device, and again",
                      "validate again when the node's queue is shorter")

    def judge() -> Tuple[Tuple[List[Check], bool], bool]:
        pod = cluster.find("%s/%s" % (pods, name))
        if pod is None or (unschedulable(pod) and _free(node, scope, read_pods(cluster, scope.node)) is None):
            return ([displaced], False), True
        checks = [pod_got_its_device(pod, time.monotonic() - started, divided)]
        if checks[0].status == PASSED:
            checks.append(pod_computed(pod, scope.compute, scope.pod_image))
        return (checks, True), ended(pod)

    uid = _created(cluster, pods, wanted)
    started = time.monotonic()
    try:
        (told, _final), _taken = wait_for(judge, lambda answer: answer[1], limit, POLL_S)
        return told
    finally:
        cluster.delete("%s/%s" % (pods, name), uid)


def _created(cluster: Client, pods: str, wanted: Dict[str, Any]) -> str:
    """The uid of the new pod. Nobody else has its name: where it is there already, the answer of a request was lost."""
    try:
        made = cluster.create(pods, wanted, repetition=ALWAYS)
    except ApiError as error:
        if error.status != CONFLICT:
            raise
        made = cluster.get("%s/%s" % (pods, wanted["metadata"]["name"]))
    return str(made["metadata"]["uid"])


def _wait(judge: Callable[[], Tuple[Check, bool]], timeout: float) -> Check:
    """The check's last verdict once it is final, or when the time is over."""
    (check, _final), _taken = wait_for(judge, lambda told: told[1], timeout, POLL_S)
    return check
