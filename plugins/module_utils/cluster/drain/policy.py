# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is asked of a drain."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Mapping, Optional, Tuple

from ...core.errors import GpuOpsError
from ...core.quantities import is_gpu, prefixed
from ..selectors import Requirements, parsed, selects

# Which pods of a node a drain is about: those that use GPUs, or all of them
SCOPES = GPUS, NODE = ("gpus", "node")
# By which the full drain of NVIDIA's own upgrade controller leaves a pod where it is (pkg/upgrade/consts.go of
# NVIDIA/k8s-operator-libs); pods with GPUs it has taken off by then, label or not (pod_manager.go)
SKIPPED_BY_DEFAULT = "nvidia.com/gpu-driver-upgrade-drain.skip=true"

ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "scope": {"type": "str", "choices": list(SCOPES), "default": GPUS},
    "pods": {"type": "list", "elements": "str"},
    "holders": {"type": "list", "elements": "str", "default": []},
    "gpu_resources": {"type": "list", "elements": "str", "default": []},
    "force": {"type": "bool", "default": False},
    "delete_emptydir_data": {"type": "bool", "default": False},
    "ignore_daemonsets": {"type": "bool", "default": True},
    "skip_selector": {"type": "str", "default": SKIPPED_BY_DEFAULT},
    "wait_for_completion": {"type": "str", "default": ""},
    "wait_for_completion_timeout": {"type": "int", "default": 0},
    "disable_eviction": {"type": "bool", "default": False},
    "skip_wait_for_delete_timeout": {"type": "int", "default": 0},
    "grace_period": {"type": "int"},
    "timeout": {"type": "int", "default": 300},
    "progress_interval": {"type": "int", "default": 30},
}


@dataclass(frozen=True)
class DrainPolicy:
    """How nodes are drained. Times are in seconds.

    scope:                GPUS or NODE.
    pods:                 the only ones that go, by any name that Pod.known_as has; they use GPUs, whatever the API says
                          of them. None for all that the scope has.
    holders:              pods that hosts have seen with GPUs, by any of these names: they use GPUs too.
    gpu_resources:        whole names of resources that are GPUs beside those that is_gpu() knows.
    force:                whether pods go that no controller starts again.
    delete_emptydir_data: whether pods go that keep data in an emptyDir.
    ignore_daemonsets:    whether pods of DaemonSets stay; else they are a reason to refuse.
    skipped:              what the labels of pods meet that stay. None for no pod.
    completing:           what the labels of pods meet that are waited for until they end by themselves. None for none.
    completion_timeout:   how long; after that they go as others do. 0: as long as the drain has time.
    disable_eviction:     whether pods are deleted, without a question to any disruption budget.
    skip_after:           how long after its grace a terminating pod is waited for; 0: as long as the drain has time.
    grace_period:         what pods get to end; None for their own.
    timeout:              of the whole drain.
    interval:             between two lines about what is waited for; 0 for no line.
    """

    scope: str = GPUS
    pods: Optional[FrozenSet[str]] = None
    holders: FrozenSet[str] = frozenset()
    gpu_resources: FrozenSet[str] = frozenset()
    force: bool = False
    delete_emptydir_data: bool = False
    ignore_daemonsets: bool = True
    skipped: Optional[Requirements] = None
    completing: Optional[Requirements] = None
    completion_timeout: float = 0
    disable_eviction: bool = False
    skip_after: float = 0
    grace_period: Optional[int] = None
    timeout: float = 300
    interval: float = 30

    def is_gpu(self, resource: str) -> bool:
        return is_gpu(resource) or resource in self.gpu_resources

    def skips(self, labels: Mapping[str, str]) -> bool:
        return selects(self.skipped, labels)

    def completes(self, labels: Mapping[str, str]) -> bool:
        return selects(self.completing, labels)


def policy_of(options: Mapping[str, Any]) -> DrainPolicy:
    """The policy of a module's options, of which those of ARGUMENTS count.

    Raises GpuOpsError for what cannot be meant.
    """
    given: Dict[str, Any] = {name: options.get(name, spec.get("default")) for name, spec in ARGUMENTS.items()}
    _refuse_negative(given)
    if not given["timeout"]:
        raise GpuOpsError(
            "cluster.drain_without_time", found="`timeout` is 0", wanted="the seconds that the whole drain may take",
            remedy="set `timeout` to the longest time that pods may take to go. Nothing waits without a limit here, as "
            "kubectl does with 0", option="timeout")
    completion, timeout = given["wait_for_completion_timeout"], given["timeout"]
    if given["wait_for_completion"] and completion and completion >= timeout:
        raise GpuOpsError(
            "cluster.completion_outlasts_drain",
            found="`wait_for_completion_timeout` is %d s, and `timeout` %d s" % (completion, timeout),
            wanted="time left to evict the pods that have not completed by then",
            remedy="raise `timeout`, which the whole drain has, or lower `wait_for_completion_timeout`",
            option="timeout")
    return DrainPolicy(
        scope=given["scope"],
        pods=None if given["pods"] is None else frozenset(given["pods"]),
        holders=frozenset(given["holders"]),
        gpu_resources=frozenset(map(prefixed, given["gpu_resources"])),
        force=given["force"],
        delete_emptydir_data=given["delete_emptydir_data"],
        ignore_daemonsets=given["ignore_daemonsets"],
        skipped=_selector(given, "skip_selector"),
        completing=_selector(given, "wait_for_completion"),
        completion_timeout=completion,
        disable_eviction=given["disable_eviction"],
        skip_after=given["skip_wait_for_delete_timeout"],
        grace_period=given["grace_period"],
        timeout=timeout,
        interval=given["progress_interval"],
    )


def _selector(given: Mapping[str, Any], option: str) -> Optional[Tuple[Mapping[str, Any], ...]]:
    """An empty selector selects no pod here: to skip all of them, or to wait for all, is no drain."""
    return parsed(given[option], option) or None


def _refuse_negative(given: Mapping[str, Any]) -> None:
    for name, spec in ARGUMENTS.items():
        if spec["type"] == "int" and given[name] is not None and given[name] < 0:
            raise GpuOpsError(
                "cluster.time_negative", found="`%s` is %d" % (name, given[name]), wanted="seconds, 0 or more",
                remedy="correct `%s`" % name, option=name)
