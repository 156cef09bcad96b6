# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What disruption budgets let go, added up over many evictions. Pure.

The API server answers a dry run for each eviction alone: three pods pass where one disruption is allowed. Here each one
that is let go counts for the next, as the server's own eviction does it (pkg/registry/core/pod/storage/eviction.go of
kubernetes/kubernetes).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ..pods import Pod
from ..selectors import Requirements, of_object, selects

ALWAYS_ALLOW = "AlwaysAllow"


@dataclass(frozen=True)
class Budget:
    """A PodDisruptionBudget.

    selected:    what the labels of its pods meet; None for no pod.
    allowed:     disruptions that are allowed now. expected, desired, current: pods that it is about, those of them that
                 have to be healthy, and those that are.
    is_settled:  whether its numbers are of what it asks for now.
    broken:      why the control plane cannot work its numbers out; '' where it can.
    unhealthy:   its unhealthyPodEvictionPolicy, '' for the default.
    """

    namespace: str
    name: str
    selected: Optional[Requirements]
    allowed: int = 0
    expected: int = 0
    desired: int = 0
    current: int = 0
    is_settled: bool = True
    broken: str = ""
    unhealthy: str = ""

    @property
    def never_allows(self) -> bool:
        """Whether nothing may go even while all its pods are healthy."""
        return self.is_settled and not self.allowed and self.expected <= self.desired

    def covers(self, pod: Pod) -> bool:
        return self.namespace == pod.namespace and selects(self.selected, pod.labels)

    def lets_unready_go(self) -> bool:
        """Whether a pod that is not ready goes without counting."""
        return self.unhealthy == ALWAYS_ALLOW or self.current >= self.desired > 0

    def numbers(self) -> str:
        if not self.expected:
            return "counts none of its pods, as it does without `minAvailable` where no controller is known"
        return "needs %d healthy pods of %d and has %d" % (self.desired, self.expected, self.current)

    def __str__(self) -> str:
        return "%s/%s" % (self.namespace, self.name)


def budget_of(found: Mapping[str, Any]) -> Budget:
    """The budget of an object of policy/v1."""
    metadata, spec, status = (found.get(part) or {} for part in ("metadata", "spec", "status"))
    broken = next((each for each in status.get("conditions") or ()
                   if each.get("type") == "DisruptionAllowed" and each.get("reason") == "SyncFailed"), None)
    return Budget(
        namespace=str(metadata.get("namespace")),
        name=str(metadata.get("name")),
        selected=of_object(spec.get("selector")),
        allowed=int(status.get("disruptionsAllowed") or 0),
        expected=int(status.get("expectedPods") or 0),
        desired=int(status.get("desiredHealthy") or 0),
        current=int(status.get("currentHealthy") or 0),
        is_settled=int(status.get("observedGeneration") or 0) >= int(metadata.get("generation") or 0),
        broken="" if broken is None else str(broken.get("message") or "its pods cannot be counted"),
        unhealthy=str(spec.get("unhealthyPodEvictionPolicy") or ""),
    )


@dataclass(frozen=True)
class Charge:
    """What one budget says of the pods that are to go, in their order.

    now:   those that it lets go now, each of which counts.
    later: those that wait until it allows more.
    """

    budget: Budget
    now: Tuple[Pod, ...]
    later: Tuple[Pod, ...]

    @property
    def why(self) -> str:
        """Why those that wait wait."""
        if not self.budget.is_settled:
            return "disruption budget %s is being worked out by the control plane" % self.budget.name
        if not self.now:
            return "disruption budget %s allows no disruption now: it %s" % (self.budget.name, self.budget.numbers())
        return "disruption budget %s allows %d disruption(s) now, and %d are to come" % (
            self.budget.name, len(self.now), len(self.now) + len(self.later))

    def result(self) -> Dict[str, Any]:
        return {"namespace": self.budget.namespace, "name": self.budget.name, "allowed": self.budget.allowed,
                "desired_healthy": self.budget.desired, "current_healthy": self.budget.current,
                "expected_pods": self.budget.expected, "now": [str(pod) for pod in self.now],
                "later": [str(pod) for pod in self.later]}


@dataclass(frozen=True)
class Sum:
    """What all budgets say of an ordered list of evictions.

    charges:  of each budget that any of them counts for.
    rivals:   pods that several budgets cover: the eviction API lets none of them go, in any state of the budgets.
    hopeless: charges whose budget will not allow what waits for it, however long.
    """

    charges: Tuple[Charge, ...]
    rivals: Tuple[Tuple[Pod, Tuple[Budget, ...]], ...]
    hopeless: Tuple[Charge, ...]

    @property
    def later(self) -> Dict[str, str]:
        """{UID: why it waits} of pods that will go, but not now."""
        return {pod.uid: charge.why for charge in self.charges if charge not in self.hopeless for pod in charge.later}


def add_up(pods: Sequence[Pod], budgets: Sequence[Budget]) -> Sum:
    """What the budgets say of evicting these pods, one after another, with nothing that comes back in between."""
    rivals: List[Tuple[Pod, Tuple[Budget, ...]]] = []
    counted: Dict[str, Tuple[Budget, List[Pod]]] = {}
    for pod in pods:
        covering = tuple(budget for budget in budgets if budget.covers(pod)) if _counts(pod) else ()
        if len(covering) > 1:
            rivals.append((pod, covering))
        elif covering and (pod.ready or not covering[0].lets_unready_go()):
            counted.setdefault(str(covering[0]), (covering[0], []))[1].append(pod)
    charges = tuple(_charge(budget, tuple(there)) for budget, there in counted.values())
    return Sum(charges, tuple(rivals), tuple(
        charge for charge in charges if charge.later and (charge.budget.broken or charge.budget.never_allows)))


def _charge(budget: Budget, pods: Tuple[Pod, ...]) -> Charge:
    allowed = budget.allowed if budget.is_settled and not budget.broken else 0
    return Charge(budget, pods[:allowed], pods[allowed:])


def _counts(pod: Pod) -> bool:
    """Pods that have not started, have ended or are being deleted go whatever their budgets say."""
    return not (pod.phase == "Pending" or pod.is_finished or pod.terminating)
