# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The cluster's half of the validation, over the Kubernetes API."""
from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Any, Callable, List, Mapping, Optional, Tuple

from ..module_utils.cluster.client import Client, Connection
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.waiting import wait_for
from ..module_utils.validation.checks import Check
from ..module_utils.validation.on_cluster import (
    allocatable,
    ended,
    pod_got_its_device,
    probe_pod,
)
from ..module_utils.validation.verdict import raise_if_unhealthy

POLL_S = 1.0


@dataclass(frozen=True)
class ClusterScope:
    """What to check of a node; see the options of the module gpu_validation."""

    node: str
    expected: int
    resource: str
    runtime_class: str
    pod: bool
    pod_image: str
    pod_namespace: str
    timeout: float
    access: Connection

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> ClusterScope:
        """The scope of checked options. Raises GpuOpsError where one is missing that only this scope needs."""
        for name in ("node_name", "expected_gpus"):
            if options[name] in (None, ""):
                raise GpuOpsError(
                    "validation.option_missing",
                    found="no `%s`" % name,
                    wanted="the node and the number of devices that it must offer, for the scope 'cluster'",
                    remedy="set `%s`" % name,
                    option=name,
                )
        return cls(
            node=options["node_name"],
            expected=options["expected_gpus"],
            resource=options["resource"],
            runtime_class=options["runtime_class"] or options["handler"],
            pod=options["pod"],
            pod_image=options["pod_image"],
            pod_namespace=options["pod_namespace"],
            timeout=float(options["timeout"]),
            access=Connection.from_options(options),
        )


def validate_cluster(scope: ClusterScope, check_mode: bool) -> Tuple[Check, ...]:
    """Wait for the devices to be on offer, then run the probe pod. Raises GpuOpsError naming what fails."""
    cluster = Client(scope.access)
    checks: List[Check] = [_wait_for_devices(cluster, scope)]
    raise_if_unhealthy(checks, "node %s" % scope.node)
    if scope.pod and not check_mode and scope.expected > 0:
        checks.append(_probe(cluster, scope))
        raise_if_unhealthy(checks, "node %s" % scope.node)
    return tuple(checks)


def _wait_for_devices(cluster: Client, scope: ClusterScope) -> Check:
    def judge() -> Tuple[Check, bool]:
        check = allocatable(cluster.get("/api/v1/nodes/%s" % scope.node), scope.resource, scope.expected)
        return check, check.status == "passed"

    return _wait(judge, scope.timeout)


def _probe(cluster: Client, scope: ClusterScope) -> Check:
    runtime_class: Optional[str] = scope.runtime_class
    if cluster.find("/apis/node.k8s.io/v1/runtimeclasses/%s" % scope.runtime_class) is None:
        runtime_class = None
    name = "gpuops-validation-%s" % secrets.token_hex(4)
    pods = "/api/v1/namespaces/%s/pods" % scope.pod_namespace
    cluster.create(pods, probe_pod(name, scope.pod_namespace, scope.node, scope.resource, scope.pod_image,
                                   runtime_class))
    started = time.monotonic()

    def judge() -> Tuple[Check, bool]:
        pod = cluster.get("%s/%s" % (pods, name))
        return pod_got_its_device(pod, time.monotonic() - started), ended(pod)

    try:
        return _wait(judge, scope.timeout)
    finally:
        cluster.delete("%s/%s" % (pods, name))


def _wait(judge: Callable[[], Tuple[Check, bool]], timeout: float) -> Check:
    """The check's last verdict once it is final, or when the time is over."""
    (check, _final), _taken = wait_for(judge, lambda told: told[1], timeout, POLL_S)
    return check
