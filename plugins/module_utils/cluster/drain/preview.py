# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the drain of one node, or of many at the same time, would come to. Pure.

A drain has two halves: which pods go, stay, are waited for or left behind and what is refused; and the going itself.

policy.py        what is asked for, in the words of `kubectl drain` where it has one
observation.py   one look at the cluster: the nodes' pods, and what decides about them
users.py         which pods use GPUs, by what the API says and by what the hosts have seen
judgement.py     the fate of each pod: goes, waits, stays, is left behind or refused
budgets.py       evictions added up, per PodDisruptionBudget, over all pods and nodes
preview.py       all of that as one answer, before anything is touched
carrying_out.py  evictions, each of one pod on one node, until nothing is left to wait for

All but observation.py and carrying_out.py is pure. A preview never evicts, and a drain never cordons: whose cordon a
node has is not a matter of its pods. What kubectl does otherwise, docs/drain.md lists.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, Dict, FrozenSet, List, Mapping, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.refusal import Refusal
from ..pods import Pod
from .budgets import Budget, Sum, add_up
from .judgement import GOES, LEFT, STAYS, WAITS, Fate, Surroundings, judge, loss_refusals
from .policy import DrainPolicy
from .users import Claim, uses

_BUDGETS_OBEYED = "evictions that the pods' disruption budgets let pass sooner or later"


@dataclass(frozen=True)
class NodeState:
    """What the control plane knows of a node's kubelet.

    is_silent: whether it has not been heard of for so long that the node counts as unreachable.
    since:     since when, as the API writes times; '' where it is not.
    """

    is_silent: bool = False
    since: str = ""


@dataclass(frozen=True)
class Observation:
    """One look at a cluster, for the drain of some of its nodes.

    pods:    all pods of these nodes.
    nodes:   {name: state}; a node that is not there has none.
    claims:  {'namespace/name': ResourceClaim} of those that the pods have.
    budgets: of the whole cluster.
    """

    pods: Tuple[Pod, ...]
    nodes: Mapping[str, NodeState] = field(default_factory=dict)
    claims: Mapping[str, Claim] = field(default_factory=dict)
    budgets: Tuple[Budget, ...] = ()
    surroundings: Surroundings = field(default_factory=lambda: Surroundings({}, frozenset(), 0))


@dataclass(frozen=True)
class Preview:
    """What the drains would come to.

    fates:    of every pod that they are about, by node in the order of the nodes, then by name.
    tally:    what disruption budgets say of all the evictions together.
    refusals: why they may not begin. () promises that every pod that goes can go, as far as the API tells: at once, or
              once the budgets allow it.
    users:    UIDs of all pods that use GPUs, whether the drains are about them or not.
    """

    fates: Mapping[str, Tuple[Fate, ...]]
    tally: Sum
    refusals: Tuple[Refusal, ...]
    users: FrozenSet[str] = frozenset()

    def of(self, node: str, verdict: str) -> Tuple[Fate, ...]:
        return tuple(fate for fate in self.fates.get(node, ()) if fate.verdict == verdict)

    @property
    def may_pass(self) -> bool:
        """Whether it is refused, and another look a moment later may not be: budgets count the pods that there are, or
        those that the controllers of these want, and one that is being replaced is missing among them for a moment
        (getExpectedScale in pkg/controller/disruption of kubernetes/kubernetes)."""
        return bool(self.refusals) and list(self.refusals) == _hopeless(self.tally)

    def require(self) -> None:
        """Raises GpuOpsError where anything stands against it."""
        if self.refusals:
            raise GpuOpsError.because(list(map(self._of_all, self.refusals)), pods=[
                _told(fate) for fates in self.fates.values() for fate in fates if fate.verdict not in (STAYS, LEFT)])

    def _of_all(self, refusal: Refusal) -> Refusal:
        """Whoever drains one of several nodes is told that a pod may be on another one."""
        if len(self.fates) < 2:
            return refusal
        return replace(refusal, found="of nodes %s, which are drained at the same time: %s" % (
            ", ".join(self.fates), refusal.found))

    def result(self, node: str) -> Dict[str, Any]:
        """The keys of a module's result about one of the nodes."""
        later = self.tally.later
        return {
            "changed": bool(self.of(node, GOES)),
            "evicted": [_told(fate) for fate in self.of(node, GOES)],
            "stayed": [dict(_told(fate), reason=fate.why) for fate in self.of(node, STAYS)],
            "waiting": [dict(_told(fate), reason=fate.why) for fate in self.of(node, WAITS)],
            "left": [dict(_told(fate), reason=fate.why) for fate in self.of(node, LEFT)],
            "blocked": [{"pod": str(fate.pod), "reason": later[fate.pod.uid]} for fate in self.of(node, GOES)
                        if fate.pod.uid in later],
            "budgets": [charge.result() for charge in self.tally.charges],
        }


def preview(observation: Observation, policies: Mapping[str, DrainPolicy]) -> Preview:
    """What the drains of these nodes, all at the same time, would come to. policies: {node: how it is drained}, in the
    order in which the nodes are to have what their pods' budgets allow."""
    fates: Dict[str, Tuple[Fate, ...]] = {}
    there = [(pod, uses(pod, observation.claims, policies[pod.node]))
             for pod in sorted(observation.pods, key=str) if pod.node in policies]
    for node, policy in policies.items():
        judged = (judge(pod, ways, policy, observation.surroundings) for pod, ways in there if pod.node == node)
        fates[node] = tuple(fate for fate in judged if fate is not None)
    tally = add_up([fate.pod for is_asked in (_goes_now, _goes_later) for node, found in fates.items()
                    for fate in found if is_asked(fate, policies[node])], observation.budgets)
    every = [fate for found in fates.values() for fate in found]
    refusals = [*loss_refusals(every), *_rivals(tally), *_hopeless(tally), *_silent(observation, policies, fates)]
    return Preview(fates, tally, tuple(refusals), frozenset(pod.uid for pod, ways in there if ways))


def _goes_now(fate: Fate, policy: DrainPolicy) -> bool:
    return fate.would_go and not policy.disable_eviction


def _goes_later(fate: Fate, policy: DrainPolicy) -> bool:
    """One that is evicted if it does not complete in its time: what its budgets never allow is known now."""
    return fate.completes and bool(policy.completion_timeout) and not policy.disable_eviction


def _rivals(tally: Sum) -> List[Refusal]:
    if not tally.rivals:
        return []
    return [Refusal(
        "cluster.pods_of_several_budgets",
        "pods that several disruption budgets cover, which the eviction API lets none go of: %s" % "; ".join(
            "%s (%s)" % (pod, ", ".join(budget.name for budget in budgets)) for pod, budgets in tally.rivals),
        _BUDGETS_OBEYED,
        "narrow the budgets' selectors until one covers each pod, or delete the pods without asking any budget with "
        "`disable_eviction`", option="disable_eviction")]


def _hopeless(tally: Sum) -> List[Refusal]:
    if not tally.hopeless:
        return []
    return [Refusal(
        "cluster.budget_never_allows",
        "; ".join("disruption budget %s %s, for %s" % (
            charge.budget, _why_hopeless(charge.budget), ", ".join(map(str, charge.later)))
            for charge in tally.hopeless),
        _BUDGETS_OBEYED,
        "raise the replicas, loosen the budget or correct what it selects, or delete the pods without asking it with "
        "`disable_eviction`", option="disable_eviction")]


def _why_hopeless(budget: Budget) -> str:
    if budget.broken:
        return "cannot be worked out by the control plane (%s), which may be so while pods end whose controller is " \
            "gone" % budget.broken
    return "lets no pod go even while all of them are healthy: it %s" % budget.numbers()


def _silent(observation: Observation, policies: Mapping[str, DrainPolicy],
            fates: Mapping[str, Sequence[Fate]]) -> List[Refusal]:
    held: Dict[str, List[Pod]] = {}
    for node, found in fates.items():
        if observation.nodes.get(node, NodeState()).is_silent and not policies[node].skip_after:
            held[node] = [fate.pod for fate in found
                          if (fate.would_go or fate.verdict == WAITS) and not fate.pod.is_finished]
    held = {node: pods for node, pods in held.items() if pods}
    return [silent_refusal({node: observation.nodes[node] for node in held}, held)] if held else []


def silent_refusal(states: Mapping[str, NodeState], held: Mapping[str, Sequence[Pod]]) -> Refusal:
    """That nobody ends the pods of some nodes. states, held: of each such node."""
    return Refusal(
        "cluster.kubelet_silent",
        "; ".join("node %s, whose kubelet has not been heard of since %s, has %s" % (
            node, states[node].since or "long ago", ", ".join(map(str, pods))) for node, pods in held.items()),
        "a kubelet that ends the pods it is told to",
        "see to the node and its kubelet, or leave these pods behind with `skip_wait_for_delete_timeout`, seconds past "
        "their grace; `disable_eviction` too where a disruption budget lets none go because they count as unhealthy",
        option="skip_wait_for_delete_timeout")


def _told(fate: Fate) -> Dict[str, Any]:
    return dict(fate.pod.result(), uses=list(fate.uses))
