# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fate of each pod of a node that is drained, and why. Pure.

A pod passes FILTERS in their order; the first that knows its fate decides it. One that is to go is then looked at for
all that it would lose: what is not allowed is a reason to refuse the whole drain, before anything is touched.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from ...core.refusal import Refusal
from ..pods import Pod
from .policy import NODE, DrainPolicy

# It is evicted; it is waited for, as it goes by itself; it stays where it is; it should have ended, and is left behind;
# the drain is refused because of it
VERDICTS = GOES, WAITS, STAYS, LEFT, REFUSED = ("goes", "waits", "stays", "left", "refused")
WITHOUT_LOSS = "pods that can leave the node without loss"
_APPS = "apps/v1"
# How a pod uses GPUs, () where it does not
Uses = Tuple[str, ...]
# Whether something else makes the pod anew, what it keeps on the node, and what keeps it there
BARE, ORPHANED, OF_DAEMONSET, WITH_DATA = LOSSES = ("bare", "orphaned", "of_daemonset", "with_data")


@dataclass(frozen=True)
class Fate:
    """What becomes of a pod.

    verdict:   one of VERDICTS.
    why:       a sentence's part, to be read after the pod's name: 'belongs to DaemonSet/x, which ...'.
    losses:    which of LOSSES are not allowed, of one that is refused.
    completes: whether it is waited for until it ends by itself, and goes after that time.
    """

    pod: Pod
    verdict: str
    why: str
    uses: Uses = ()
    losses: Tuple[str, ...] = ()
    completes: bool = False

    @property
    def would_go(self) -> bool:
        """Whether it goes, or would once its loss is allowed: all that stands against it is told at once."""
        return self.verdict == GOES or (self.verdict == REFUSED and OF_DAEMONSET not in self.losses)


@dataclass(frozen=True)
class Surroundings:
    """What beside a pod decides about it.

    daemonsets:  {'namespace/name': UID} of those that there are.
    terminating: namespaces that are being deleted.
    now:         seconds since the epoch.
    """

    daemonsets: Mapping[str, str]
    terminating: FrozenSet[str]
    now: float


def judge(pod: Pod, uses: Uses, policy: DrainPolicy, there: Surroundings) -> Optional[Fate]:
    """The fate of one pod; None for one that the drain is not about."""
    if not _is_concerned(pod, uses, policy):
        return None
    for each in FILTERS:
        fate = each(pod, uses, policy, there)
        if fate is not None:
            return replace(fate, uses=uses)
    losses = tuple(loss for loss, has, allowed in (
        (BARE, not pod.owner, policy.force),
        (ORPHANED, pod.daemonset and not pod.is_finished, policy.force),
        (WITH_DATA, pod.local_data, policy.delete_emptydir_data)) if has and not allowed and not pod.is_finished)
    completes = policy.completes(pod.labels) and not pod.is_finished
    if losses and not (completes and not policy.completion_timeout):
        return Fate(pod, REFUSED, "would be lost", uses, losses)
    if completes:
        return Fate(pod, WAITS, "is waited for until it completes", uses, completes=True)
    return Fate(pod, GOES, "is deleted" if policy.disable_eviction else "is evicted", uses)


def _is_concerned(pod: Pod, uses: Uses, policy: DrainPolicy) -> bool:
    """Components of ours are no matter of a drain: they leave with the labels of their node."""
    if pod.is_component or not (uses or policy.scope == NODE):
        return False
    return policy.pods is None or bool(policy.pods & pod.known_as)


def _mirror(pod: Pod, _uses: Uses, _policy: DrainPolicy, _there: Surroundings) -> Optional[Fate]:
    if not pod.mirror:
        return None
    return Fate(pod, STAYS, "is a static pod, which its kubelet starts from a file of the node")


def _skipped(pod: Pod, _uses: Uses, policy: DrainPolicy, _there: Surroundings) -> Optional[Fate]:
    if not policy.skips(pod.labels):
        return None
    return Fate(pod, STAYS, "has a label that `skip_selector` names, so that drains leave it alone")


def _daemonset(pod: Pod, uses: Uses, policy: DrainPolicy, there: Surroundings) -> Optional[Fate]:
    """One that is being deleted is followed by another, so that its end frees nothing but the GPUs that it has."""
    if not comes_again(pod, there.daemonsets) or (pod.terminating and uses):
        return None
    if not policy.ignore_daemonsets:
        return Fate(pod, REFUSED, "belongs to %s" % pod.owner, losses=(OF_DAEMONSET,))
    return Fate(pod, STAYS, "belongs to %s, which would start it again at once" % pod.owner)


def _terminating(pod: Pod, _uses: Uses, policy: DrainPolicy, there: Surroundings) -> Optional[Fate]:
    if not pod.terminating:
        return None
    if pod.has_outstayed(policy.skip_after, there.now):
        return Fate(pod, LEFT, "should have ended by %s, and is not waited for any longer" % pod.terminating)
    return Fate(pod, WAITS, "is being deleted already")


def _namespace(pod: Pod, _uses: Uses, _policy: DrainPolicy, there: Surroundings) -> Optional[Fate]:
    """The API server evicts nothing there, and the namespace's own end deletes it."""
    if pod.namespace not in there.terminating:
        return None
    return Fate(pod, WAITS, "goes with its namespace, which is being deleted")


FILTERS: Tuple[Callable[[Pod, Uses, DrainPolicy, Surroundings], Optional[Fate]], ...] = (
    _mirror, _skipped, _daemonset, _terminating, _namespace)


def comes_again(pod: Pod, daemonsets: Mapping[str, str]) -> bool:
    """Whether a DaemonSet that is there would start the pod again at once.

    Only Kubernetes' own can be asked for; with another API's, as OpenKruise has it, the pod comes again as well.
    daemonsets: as of Surroundings.
    """
    if not pod.daemonset or pod.is_finished:
        return False
    known = daemonsets.get("%s/%s" % (pod.namespace, pod.owner.partition("/")[2]))
    return pod.owner_api != _APPS or known == pod.owner_uid


def loss_refusals(fates: Sequence[Fate]) -> List[Refusal]:
    """What stands against a drain with these fates, one refusal for each kind of loss."""
    lost: Dict[str, List[Pod]] = {loss: [fate.pod for fate in fates if loss in fate.losses] for loss in LOSSES}
    refusals = []
    if lost[BARE]:
        refusals.append(Refusal(
            "cluster.pods_without_controller",
            "pods that no controller starts again: %s" % _names(lost[BARE]), WITHOUT_LOSS,
            "finish or delete these pods, or allow the loss with `force`", option="force"))
    if lost[ORPHANED]:
        refusals.append(Refusal(
            "cluster.pods_of_absent_daemonset",
            "pods whose DaemonSet is not there any more, so that nothing starts them again: %s" % ", ".join(
                "%s (of %s)" % (pod, pod.owner) for pod in lost[ORPHANED]), WITHOUT_LOSS,
            "delete these pods, or allow the loss with `force`", option="force"))
    if lost[OF_DAEMONSET]:
        refusals.append(Refusal(
            "cluster.pods_of_daemonsets",
            "pods that their DaemonSets would start again at once: %s" % ", ".join(
                "%s (of %s)" % (pod, pod.owner) for pod in lost[OF_DAEMONSET]),
            "a node without pods that an eviction cannot take away",
            "have these DaemonSets leave the node out by their node selectors, or let their pods stay with "
            "`ignore_daemonsets`", option="ignore_daemonsets"))
    if lost[WITH_DATA]:
        refusals.append(Refusal(
            "cluster.pods_with_local_data",
            "pods that keep data in an emptyDir: %s" % ", ".join(
                "%s%s" % (pod, " (in memory)" if pod.in_memory else "") for pod in lost[WITH_DATA]), WITHOUT_LOSS,
            "finish or delete these pods, or allow the loss with `delete_emptydir_data`",
            option="delete_emptydir_data"))
    return refusals


def _names(pods: Sequence[Pod]) -> str:
    return ", ".join(map(str, pods))
