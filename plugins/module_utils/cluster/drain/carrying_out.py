# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The drain itself: each pod is read, compared and evicted, until nothing is left to wait for or the time is up.

A precondition that fails still spends the disruption budget, for two minutes (kubernetes/kubernetes,
pkg/registry/core/pod/storage/eviction.go and pkg/controller/disruption): so a pod is read first, and evicted only while
it is the same one on the same node. One of a StatefulSet that has come back elsewhere under its name is another pod.
"""
from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence

from ...core.errors import GpuOpsError
from ...core.progress import duration
from ...core.refusal import Refusal
from ...core.waiting import wait_for
from ..client import ApiError, Client
from ..playbook_rights import DELETES_PODS
from ..pods import Pod, pod_of
from ..repeating import CONFLICT, EVICTED
from ..rights import require
from .judgement import GOES, WAITS, Fate
from .observation import observe, read_state
from .policy import GPUS, DrainPolicy
from .preview import Preview, preview, silent_refusal

PATIENCE_S = 5.0
# Of a line about what is waited for
_NAMED_PODS = 5
_FORBIDDEN, _GONE, _BUSY, _BROKEN = 403, 404, 429, 500
# Causes in the API server's answers (kubernetes/api: policy/v1, core/v1)
_OF_BUDGET = "DisruptionBudget"
_OF_NAMESPACE = "NamespaceTerminating"
_SEVERAL_BUDGETS = "more than one PodDisruptionBudget"
_TOO_MANY_UNCONFIRMED = "DisruptedPods map too big"
_ENDS = "terminating"
# Keys of a result that list pods, or what they are charged to
_OF_PODS = ("evicted", "stayed", "waiting", "left", "blocked", "budgets")
# It is the same for every pod
_OF_THE_USER = ("cluster.right_missing", "cluster.credentials_refused")


def quiet(_line: str) -> None:
    """Tells nobody."""


def for_anybody() -> None:
    """Asks for no proof that the node is the caller's."""


class Drain:
    """The drain of one node.

    tell:  is given a line for people about what is waited for, now and then.
    clock: as time.monotonic, with sleep as time.sleep and now as time.time, so that tests need not wait.
    proof: raises GpuOpsError where the node is not the caller's any more; asked for each time an eviction is sent.
    """

    def __init__(
        self, cluster: Client, node: str, policy: DrainPolicy, tell: Callable[[str], None] = quiet,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time, proof: Callable[[], None] = for_anybody,
    ) -> None:
        self.node = node
        self._cluster = cluster
        self.policy = policy
        self.tell = tell
        self.clock = clock
        self._sleep = sleep
        self.now = now
        self._proof = proof

    def ask(self, seen: Preview) -> Dict[str, Any]:
        """What the preview says of this node, and what the server answers to each eviction that nothing holds up: an
        admission webhook may know better. Evicts nothing.

        Raises GpuOpsError where the preview refuses.
        """
        self._require(seen)
        result = seen.result(self.node)
        blocked = {each["pod"] for each in result["blocked"]}
        for fate in seen.of(self.node, GOES):
            if str(fate.pod) not in blocked and not self.policy.disable_eviction:
                why = self._answer(fate.pod, dry_run=True)
                result["blocked"] += [{"pod": str(fate.pod), "reason": why}] if why else []
        return result

    def run(self, seen: Preview) -> Dict[str, Any]:
        """Evict what goes and wait for it.

        Raises GpuOpsError where the preview refuses, and when the time is up; that names who is left, why, and since
        when.
        """
        self._require(seen)
        began = self.clock()
        leaving = [_Leaving(self, fate, began) for verdict in (GOES, WAITS)
                   for fate in seen.of(self.node, verdict)]
        progress = _Progress(self, len(leaving))

        def go_on() -> List[_Leaving]:
            for each in leaving:
                each.go_on()
            open_ = [each for each in leaving if each.is_open]
            progress.tell(open_)
            return open_

        open_, _done = wait_for(go_on, _nothing_more_to_come, self.policy.timeout, PATIENCE_S, self.clock,
                                self._sleep)
        if open_:
            raise self._too_late(open_, leaving, self.clock() - began)
        result = seen.result(self.node)
        return {
            **result,
            "changed": any(each.was_evicted for each in leaving),
            "evicted": [dict(each.fate.pod.result(), uses=list(each.fate.uses)) for each in leaving
                        if each.was_evicted or each.fate.verdict == GOES],
            "blocked": [],
            "left": [*result["left"], *(dict(each.fate.pod.result(), uses=list(each.fate.uses), reason=each.why)
                                        for each in leaving if each.is_left)],
        }

    def _require(self, seen: Preview) -> None:
        seen.require()
        if self.policy.disable_eviction and seen.of(self.node, GOES):
            require(self._cluster, [DELETES_PODS])

    def find(self, pod: Pod) -> Optional[Pod]:
        """The pod as it is now; None where it is gone, be another one there that has its name."""
        found = self._cluster.find(_path(pod))
        now = None if found is None else pod_of(found, self.policy.is_gpu)
        return now if now is not None and (now.uid, now.node) == (pod.uid, pod.node) else None

    def _answer(self, pod: Pod, dry_run: bool) -> str:
        """'' where the server lets it go, else why not."""
        try:
            self.evict(pod, dry_run)
        except ApiError as error:
            if error.code in _OF_THE_USER:
                raise
            return "" if error.status in (_GONE, CONFLICT) else error.message
        return ""

    def evict(self, pod: Pod, dry_run: bool = False) -> None:
        """Ask once for the eviction, or delete the pod where that is wanted. Raises ApiError, and as the proof does."""
        proof = for_anybody if dry_run else self._proof
        if self.policy.disable_eviction:
            self._cluster.delete(_path(pod), pod.uid, "Background", self.policy.grace_period, proof=proof)
            return
        options: Dict[str, Any] = {"preconditions": {"uid": pod.uid}}
        if self.policy.grace_period is not None:
            options["gracePeriodSeconds"] = self.policy.grace_period
        self._cluster.create("%s/eviction" % _path(pod), {
            "apiVersion": "policy/v1", "kind": "Eviction", "deleteOptions": options,
            "metadata": {"name": pod.name, "namespace": pod.namespace}}, dry_run, EVICTED, proof)

    def _too_late(self, open_: Sequence[_Leaving], leaving: Sequence[_Leaving], passed: float) -> GpuOpsError:
        now = self.clock()
        refusals = [Refusal(
            "cluster.pods_not_evicted",
            "after %s node %s still has %d of %d pods that were to go: %s" % (
                duration(passed), self.node, len(open_), len(leaving),
                "; ".join(each.told(now) for each in open_)),
            "none of them on the node",
            "raise the replicas or loosen the disruption budget that is named, give more time (`timeout`), or finish "
            "the pods by hand", option="timeout")]
        state = read_state(self._cluster, self.node)
        if state.is_silent:
            refusals.append(silent_refusal({self.node: state}, {self.node: [each.fate.pod for each in open_]}))
        return GpuOpsError.because(refusals, pods=[dict(
            each.fate.pod.result(), uses=list(each.fate.uses), reason=each.why) for each in open_])


class _Leaving:
    """A pod on its way.

    why:         what it is waited for at the moment. since: when that began, by the drain's clock.
    is_left:     whether it is there yet and nobody waits for it.
    is_hopeless: whether the server has said for good that it does not let it go.
    """

    def __init__(self, drain: Drain, fate: Fate, began: float) -> None:
        self.fate = fate
        self.why = fate.why
        self.since = began
        self.was_evicted = False
        self.is_open = True
        self.is_left = False
        self.is_hopeless = False
        self._drain = drain
        self._began = began
        self._stage = fate.why
        # When the server may be asked again
        self._due = began

    def go_on(self) -> None:
        """One look, and one request for its eviction where it is due."""
        if not self.is_open or self.is_hopeless:
            return
        there = self._drain.find(self.fate.pod)
        if there is None:
            self.is_open = False
        elif self._has_ended(there):
            self.is_open = False
        elif there.terminating:
            self._ends(there)
        elif not self.was_evicted and self._is_to_go() and self._drain.clock() >= self._due:
            self._evict(there)

    def told(self, now: float) -> str:
        """For people: its name, what it waits for, and for how long it has."""
        return "%s (%s, for %s)" % (self.fate.pod, self.why, duration(now - self.since))

    def _has_ended(self, there: Pod) -> bool:
        """One whose containers have ended holds nothing; what ended before the drain is asked to go all the same, once,
        where nobody has yet."""
        is_to_be_asked = self.fate.pod.is_finished and self.fate.verdict == GOES and not self.was_evicted
        return there.is_finished and (bool(there.terminating) or not is_to_be_asked)

    def _is_to_go(self) -> bool:
        if self.fate.verdict == GOES:
            return True
        limit = self._drain.policy.completion_timeout
        return self.fate.completes and bool(limit) and self._drain.clock() - self._began >= limit

    def _ends(self, there: Pod) -> None:
        if there.has_outstayed(self._drain.policy.skip_after, self._drain.now()):
            self.is_open, self.is_left = False, True
            self.why = "should have ended by %s, and was not waited for any longer" % there.terminating
        else:
            self._waits_as("terminating, to have ended by %s" % there.terminating, _ENDS)

    def _evict(self, there: Pod) -> None:
        try:
            self._drain.evict(there)
        except ApiError as error:
            self._take(error)
            return
        self.was_evicted = True
        if self.fate.pod.is_finished:
            self.is_open = False
        self._waits_as(_ENDS)

    def _take(self, error: ApiError) -> None:
        """An answer that is no yes. What stands in the way for now is asked for again; what is the same for every pod
        is raised."""
        pause = PATIENCE_S
        if error.status == _GONE:
            self.is_open = False
        elif error.status == CONFLICT:
            # Of a pod that was another one a moment later: the next look tells
            self._waits_as("changed while it was to go")
        elif error.status == _BUSY and _OF_BUDGET in error.causes:
            self._waits_as(error.message, _OF_BUDGET)
            pause = max(pause, error.retry_after or 0)
        elif error.status == _BUSY and not error.causes and error.retry_after is not None:
            self._waits_as("the API server is busy: %s" % error.message)
            pause = error.retry_after
        elif error.status == _BUSY:
            # A webhook's way to say not yet, as KubeVirt does while it moves a virtual machine away
            self._waits_as(error.message)
        elif error.status == _FORBIDDEN and _OF_NAMESPACE in error.causes:
            self._waits_as("goes with its namespace, which is being deleted")
        elif error.status == _BROKEN and _SEVERAL_BUDGETS in error.message:
            self.is_hopeless = True
            self._waits_as("several disruption budgets cover it, which the eviction API lets none go of")
        elif error.status >= _BROKEN or _TOO_MANY_UNCONFIRMED in error.message:
            self._waits_as(error.message)
        elif error.code in _OF_THE_USER:
            raise error
        else:
            self.is_hopeless = True
            self._waits_as(error.message)
        self._due = self._drain.clock() + pause

    def _waits_as(self, why: str, stage: str = "") -> None:
        """stage: what it has in common with what it was before, while which it is the same wait."""
        if (stage or why) != self._stage:
            self._stage, self.since = stage or why, self._drain.clock()
        self.why = why


def _nothing_more_to_come(open_: Sequence[_Leaving]) -> bool:
    """Pods that the server will not let go of are not waited for once all others are gone."""
    return all(each.is_hopeless for each in open_)


class _Progress:
    """Lines for people about a drain that lasts."""

    def __init__(self, drain: Drain, total: int) -> None:
        self._drain = drain
        self._total = total
        self._began = self._last = drain.clock()

    def tell(self, open_: Sequence[_Leaving]) -> None:
        interval, now = self._drain.policy.interval, self._drain.clock()
        if not open_ or not interval or now - self._last < interval:
            return
        self._last = now
        more = len(open_) - _NAMED_PODS
        self._drain.tell("%s: drains for %s, %d of %d pods are left: %s%s" % (
            self._drain.node, duration(now - self._began), len(open_), self._total,
            "; ".join(each.told(now) for each in open_[:_NAMED_PODS]), "; and %d more" % more if more > 0 else ""))


def _path(pod: Pod) -> str:
    return "/api/v1/namespaces/%s/pods/%s" % (pod.namespace, pod.name)


def look(
    cluster: Client, policies: Mapping[str, DrainPolicy], sleep: Callable[[float], None] = time.sleep,
    now: Callable[[], float] = time.time, known: FrozenSet[str] = frozenset(),
) -> Preview:
    """What the drains of these nodes would come to, by a second look where the first may have been at a moment in
    which a pod is replaced. The rest as of observe(), preview() and Drain."""
    seen = preview(observe(cluster, policies, now, known), policies)
    if not seen.may_pass:
        return seen
    sleep(PATIENCE_S)
    return preview(observe(cluster, policies, now, known), policies)


class NodeDrain:
    """The drain of one node as a module's result, and what follows it. The options are as of Drain."""

    def __init__(
        self, cluster: Client, node: str, policy: DrainPolicy, tell: Callable[[str], None] = quiet,
        clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._cluster, self._node, self._policy, self._tell = cluster, node, policy, tell
        self._clock, self._sleep, self._now = clock, sleep, now
        # Pods that had GPUs when it was looked at, and for how long it has drained
        self._users: FrozenSet[str] = frozenset()
        self._passed = 0.0

    def go(self, dry_run: bool, proof: Callable[[], None] = for_anybody,
           beside: Optional[Mapping[str, DrainPolicy]] = None) -> Dict[str, Any]:
        """dry_run: whether it is only told what would be done.

        beside: other nodes that are to be drained at the same time, each with how: what stands against one of these
                drains stands against all.
        """
        began = self._clock()
        seen = self._look({self._node: self._policy, **(beside or {})})
        drain = self._drain(self._policy, proof)
        if dry_run:
            return drain.ask(seen)
        self._users = seen.users
        done = drain.run(seen)
        self._passed = self._clock() - began
        return done

    def follow(self, done: Dict[str, Any], proof: Callable[[], None] = for_anybody) -> Dict[str, Any]:
        """Drain what has got GPUs since go(), in the time that this has left; what was done is told with it.

        A pod that tolerates the cordon comes back at once, and gets GPUs as long as the node offers any: so it is asked
        for when it offers none. What pods without GPUs do is no matter of it.
        """
        while True:
            began, left = self._clock(), max(0.0, self._policy.timeout - self._passed)
            policy = replace(self._policy, scope=GPUS, pods=None, timeout=left)
            seen = self._look({self._node: policy})
            if not seen.fates[self._node]:
                return done
            self._users |= seen.users
            more = self._drain(policy, proof).run(seen)
            done = {**done, "changed": done["changed"] or more["changed"],
                    **{key: [*done[key], *more[key]] for key in _OF_PODS}}
            self._passed += self._clock() - began

    def _look(self, policies: Mapping[str, DrainPolicy]) -> Preview:
        return look(self._cluster, policies, self._sleep, self._now, self._users)

    def _drain(self, policy: DrainPolicy, proof: Callable[[], None]) -> Drain:
        return Drain(self._cluster, self._node, policy, self._tell, self._clock, self._sleep, self._now, proof)


def drain_node(
    cluster: Client, node: str, policy: DrainPolicy, dry_run: bool, proof: Callable[[], None] = for_anybody,
    tell: Callable[[str], None] = quiet,
) -> Dict[str, Any]:
    """The drain of one node by itself."""
    return NodeDrain(cluster, node, policy, tell).go(dry_run, proof)
