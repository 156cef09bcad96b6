# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pods on a node that is drained, by kubectl and by us, and what comes of it. docs/drain.md has the same table.

Of each case there are two nodes with the same pods, one for each. The first pod is the one that the case is about.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Tuple

# What becomes of the pod: it is gone; it is there as before; it is terminating and nobody waits for it; nothing was
# touched; the time was over with the pod there; the drain had begun, and ended in an error
OUTCOMES = GONE, STAYS, LEFT, REFUSED, WAITS, FAILS = ("gone", "stays", "left behind", "refused", "waits", "fails")
# Seconds that a drain has that is to run out of time, and that any other has
SHORT, LONG = 3, 30
# What happens while the drain goes on
COMPLETES, RECREATED = ("completes", "recreated")
CONTROLLER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "owner", "uid": "0a", "controller": True}
STATEFUL = {**CONTROLLER, "kind": "StatefulSet"}
# The UID of the DaemonSet that is there is put in its place
DAEMON = {**CONTROLLER, "kind": "DaemonSet", "name": "daemon", "uid": ""}
ORPHANED = {**DAEMON, "name": "absent", "uid": "0b"}
REMADE = {**DAEMON, "uid": "0c"}
OF_ANOTHER_API = {**DAEMON, "apiVersion": "apps.kruise.io/v1alpha1", "uid": "0d"}
WEB = {"app": "web"}


@dataclass(frozen=True)
class Made:
    """A pod that is there when the drain begins.

    owner:      its one reference to a controller, {} for none.
    spec:       what its spec has beside one container; resources: of that.
    is_ready:   as its status says it.
    is_deleted: whether somebody has asked for its end before.
    ends:       whether its kubelet ends it when it is to.
    elsewhere:  whether it is on another node, and counts for a budget only.
    finalizers: what keeps its object when it has been deleted.
    """

    name: str = "subject"
    owner: Mapping[str, Any] = field(default_factory=lambda: CONTROLLER)
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    phase: str = "Running"
    is_ready: bool = True
    is_deleted: bool = False
    ends: bool = True
    elsewhere: bool = False
    finalizers: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A drain of a node with these pods.

    kubectl, ours: the outcomes, of OUTCOMES. why: of a difference, for the page.
    flags:         of kubectl beside those of every case. options: of gpu_pod_eviction beside those of every case;
                   HOLDERS stands for the UID of the pod, as its host would have told it.
    budgets:       specs of PodDisruptionBudgets by name. counted: how many pods they count, -1 for those they select.
    """

    kubectl: str
    ours: str
    pods: Tuple[Made, ...] = (Made(),)
    flags: Tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    counted: int = -1
    is_silent: bool = False
    namespace_ends: bool = False
    claim: str = ""
    meanwhile: str = ""
    why: str = ""


HOLDERS = "holders"
FORCED = ("--force",)
BARE = Made(owner={})
# Time for both drains to begin
SLOW = {"terminationGracePeriodSeconds": 6}
SCRATCH = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
SHM = {"volumes": [{"name": "dshm", "emptyDir": {"medium": "Memory"}}]}
IN_BUDGET = Made(labels=WEB)
BESIDE = Made("beside", labels=WEB, elsewhere=True)


def at_least(count: int, **spec: Any) -> Mapping[str, Any]:
    return {"minAvailable": count, "selector": {"matchLabels": WEB}, **spec}


CASES: Mapping[str, Case] = {
    "A pod of a controller": Case(GONE, GONE),
    "A pod without a controller": Case(REFUSED, REFUSED, (BARE,)),
    "A pod without a controller, `force`": Case(GONE, GONE, (BARE,), FORCED, {"force": True}),
    "An emptyDir": Case(REFUSED, REFUSED, (Made(spec=SCRATCH),)),
    "An emptyDir in memory, such as /dev/shm": Case(REFUSED, REFUSED, (Made(spec=SHM),)),
    "An emptyDir, `delete_emptydir_data`": Case(
        GONE, GONE, (Made(spec=SHM),), ("--delete-emptydir-data",), {"delete_emptydir_data": True}),
    "A pod of a DaemonSet": Case(
        REFUSED, STAYS, (Made(owner=DAEMON),),
        why="Every node has such pods, and an eviction takes none away. They stay, and are told."),
    "A pod of a DaemonSet, `ignore_daemonsets`": Case(
        STAYS, STAYS, (Made(owner=DAEMON),), ("--ignore-daemonsets",), {"ignore_daemonsets": True}),
    "A terminating pod of a DaemonSet that does not end, `ignore_daemonsets`": Case(
        LEFT, LEFT, (Made(owner=DAEMON, is_deleted=True, ends=False),), ("--ignore-daemonsets",),
        {"ignore_daemonsets": True}),
    "A pod of a DaemonSet of another API, as OpenKruise has it": Case(
        GONE, STAYS, (Made(owner=OF_ANOTHER_API),), ("--ignore-daemonsets",),
        why="kubectl compares the API version too. This one starts its pod again at once as well."),
    "A pod of a DaemonSet that is gone": Case(REFUSED, REFUSED, (Made(owner=ORPHANED),), ("--ignore-daemonsets",)),
    "A pod of a DaemonSet that is gone, `force`": Case(
        GONE, GONE, (Made(owner=ORPHANED),), ("--ignore-daemonsets", *FORCED), {"force": True}),
    "A pod of a DaemonSet whose name another one has now": Case(
        STAYS, REFUSED, (Made(owner=REMADE),), ("--ignore-daemonsets",),
        why="kubectl compares the name, we the UID. The new one does not start this pod again."),
    "A static pod": Case(
        STAYS, STAYS, (Made(owner={}, annotations={"kubernetes.io/config.mirror": "x"}),)),
    "A finished pod, without a controller and with an emptyDir": Case(
        GONE, GONE, (Made(owner={}, spec=SCRATCH, phase="Succeeded", is_ready=False),)),
    "A finished pod that a finalizer keeps": Case(
        WAITS, LEFT, (Made(phase="Succeeded", is_ready=False, ends=False, finalizers=("example.com/counted",)),),
        why="Its containers have ended and hold nothing. kubectl waits for its object."),
    "A terminating pod": Case(GONE, GONE, (Made(is_deleted=True, spec=SLOW),)),
    "A terminating pod without a controller": Case(
        REFUSED, GONE, (Made(owner={}, is_deleted=True, spec=SLOW),),
        why="It is lost already. It is waited for, and nothing is asked of it again."),
    "A terminating pod that does not end": Case(WAITS, WAITS, (Made(is_deleted=True, ends=False),)),
    "A terminating pod that does not end, `skip_wait_for_delete_timeout`": Case(
        LEFT, LEFT, (Made(is_deleted=True, ends=False),), ("--skip-wait-for-delete-timeout=1",),
        {"skip_wait_for_delete_timeout": 1}),
    "A disruption budget that allows it": Case(
        GONE, GONE, (IN_BUDGET, BESIDE), budgets={"web": at_least(1)}),
    "A disruption budget that allows none now": Case(
        WAITS, WAITS, (IN_BUDGET, Made("beside", labels=WEB, elsewhere=True, is_ready=False)),
        budgets={"web": at_least(1)}),
    "A disruption budget that never allows one": Case(
        WAITS, REFUSED, (IN_BUDGET,), budgets={"web": at_least(1)},
        why="All its pods have to be healthy, so that asking again is of no use. kubectl asks for ever."),
    "A disruption budget that never allows one, `disable_eviction`": Case(
        GONE, GONE, (IN_BUDGET,), ("--disable-eviction",), {"disable_eviction": True}, {"web": at_least(1)}),
    "A disruption budget that cannot be worked out": Case(
        WAITS, REFUSED, (IN_BUDGET,), budgets={"web": {"maxUnavailable": 1, "selector": {"matchLabels": WEB}}},
        why="Its condition says SyncFailed, and nothing goes until somebody corrects it, or pods have ended whose "
        "controller is gone. kubectl asks for ever."),
    "A disruption budget that counts none of its pods": Case(
        WAITS, REFUSED, (Made(owner={}, labels=WEB),), FORCED, {"force": True},
        {"web": {"maxUnavailable": 1, "selector": {"matchLabels": WEB}}}, counted=0,
        why="With `maxUnavailable` pods without a controller count for nothing, and none goes. kubectl asks for ever."),
    "Two disruption budgets": Case(
        FAILS, REFUSED, (IN_BUDGET, BESIDE), budgets={"one": at_least(1), "two": at_least(1)},
        why="The eviction API lets no such pod go. We know before others have gone."),
    "A pod that is not ready, under a budget that has enough others": Case(
        GONE, GONE, (Made(labels=WEB, is_ready=False), BESIDE), budgets={"web": at_least(1)}),
    "A pod that is not ready, under a budget that has not": Case(
        WAITS, WAITS, (Made(labels=WEB, is_ready=False), BESIDE, Made("other", labels=WEB, elsewhere=True,
                                                                       is_ready=False)),
        budgets={"web": at_least(2)}),
    "The same, unhealthyPodEvictionPolicy AlwaysAllow": Case(
        GONE, GONE, (Made(labels=WEB, is_ready=False), BESIDE, Made("other", labels=WEB, elsewhere=True,
                                                                     is_ready=False)),
        budgets={"web": at_least(2, unhealthyPodEvictionPolicy="AlwaysAllow")}),
    "A pending pod under a budget that allows none": Case(
        GONE, GONE, (Made(labels=WEB, phase="Pending", is_ready=False),), budgets={"web": at_least(1)}),
    "A pod of a namespace that is being deleted": Case(WAITS, WAITS, namespace_ends=True),
    "A finished pod of a namespace that is being deleted": Case(
        WAITS, STAYS, (Made(phase="Succeeded", is_ready=False),), namespace_ends=True,
        why="Its containers have ended, and its namespace takes the object. kubectl asks for its eviction until then."),
    "A pod of a DaemonSet that is gone, of a namespace that is being deleted": Case(
        REFUSED, WAITS, (Made(owner=ORPHANED),), ("--ignore-daemonsets",), namespace_ends=True,
        why="Its namespace, which took its DaemonSet first, takes it too. It is waited for, and not evicted."),
    "A pod that is deleted meanwhile and comes back elsewhere under its name": Case(
        GONE, STAYS, (Made(owner=STATEFUL, labels=WEB), Made("beside", labels=WEB, elsewhere=True, is_ready=False)),
        budgets={"web": at_least(1)}, meanwhile=RECREATED,
        why="kubectl evicts by name, on whatever node the new pod is. We compare UID and node each time."),
    "A job that is to end by itself": Case(
        GONE, STAYS, (Made(labels={"job": "x"}),), options={"wait_for_completion": "job"},
        meanwhile=COMPLETES, why="kubectl cannot wait for a pod. Ours is never evicted, and finished when we go on."),
    "A pod with NVIDIA's label to be skipped": Case(
        GONE, STAYS, (Made(labels={"nvidia.com/gpu-driver-upgrade-drain.skip": "true"}),),
        why="kubectl has to be told (`--pod-selector`). NVIDIA's upgrade controller has it for its full drain alone, "
        "and takes pods with GPUs off before."),
    "A dead kubelet": Case(
        WAITS, REFUSED, (Made(ends=False),), is_silent=True,
        why="Nobody ends the pod. kubectl waits for ever; we say so before, and name the way out."),
    "A dead kubelet, `skip_wait_for_delete_timeout`": Case(
        LEFT, LEFT, (Made(ends=False, spec={"terminationGracePeriodSeconds": 1}),),
        ("--skip-wait-for-delete-timeout=1",), {"skip_wait_for_delete_timeout": 1},
        is_silent=True),
    "A dead kubelet, `skip_wait_for_delete_timeout`, under a budget": Case(
        WAITS, REFUSED, (Made(labels=WEB, ends=False, is_ready=False),), ("--skip-wait-for-delete-timeout=1",),
        {"skip_wait_for_delete_timeout": 1}, {"web": at_least(1)}, is_silent=True,
        why="The pod counts as unhealthy, so that its budget lets it go never."),
    "The same, `disable_eviction`": Case(
        LEFT, LEFT, (Made(labels=WEB, ends=False, is_ready=False, spec={"terminationGracePeriodSeconds": 1}),),
        ("--skip-wait-for-delete-timeout=1", "--disable-eviction"),
        {"skip_wait_for_delete_timeout": 1, "disable_eviction": True}, {"web": at_least(1)},
        is_silent=True),
    "`scope: gpus`, a pod that asks for GPUs": Case(
        GONE, GONE, (Made(resources={"nvidia.com/gpu": "1"}),), options={"scope": "gpus"}),
    "`scope: gpus`, a pod that asks for none": Case(
        GONE, STAYS, options={"scope": "gpus"},
        why="It is in nobody's way. kubectl knows nothing of GPUs."),
    "`scope: gpus`, a pod that asks for a network adapter of NVIDIA's": Case(
        GONE, STAYS, (Made(resources={"nvidia.com/hostdev": "1"}),), options={"scope": "gpus"},
        why="No GPU is any matter of it."),
    "`scope: gpus`, a RuntimeClass alone, seen by the host": Case(
        GONE, GONE, (Made(spec={"runtimeClassName": "nvidia"}),), options={"scope": "gpus", HOLDERS: HOLDERS}),
    "`scope: gpus`, a hostPath alone, seen by the host": Case(
        GONE, GONE, (Made(spec={"volumes": [{"name": "dev", "hostPath": {"path": "/dev"}}]}),),
        options={"scope": "gpus", HOLDERS: HOLDERS}),
    "`scope: gpus`, a ResourceClaim": Case(GONE, GONE, options={"scope": "gpus"}, claim="gpu.nvidia.com"),
    "`scope: gpus`, a ResourceClaim of another driver": Case(
        GONE, STAYS, options={"scope": "gpus"}, claim="dra.net", why="Its devices are no GPUs."),
}


def rows() -> List[Tuple[str, str, str, str]]:
    """The table of the page: (case, kubectl's outcome, ours, why they differ)."""
    return [(name, case.kubectl, case.ours, case.why) for name, case in CASES.items()]
