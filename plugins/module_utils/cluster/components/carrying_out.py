# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carries a plan of a component out, step by step. May be killed between any two requests and run again.

Nothing is noted anywhere: the next plan is made of what is there. So every request brings the cluster nearer to the
wish, or does nothing, and what must come first (a job that needs an account, an object that is to be replaced) is
found by what is still there.
"""
from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ...core.errors import GpuOpsError
from ...core.plan import Plan, Step
from ...core.waiting import wait_for
from ..client import ApiError, Client
from ..observation import wait_for_rollout
from ..readiness import rolled_out
from .common import Object, Parameters
from .fields import differences
from .kinds import BY_NAME, CRD, WORKLOADS, Key, key_of
from .model import Component, objects
from .observation import NAMESPACE, Live, namespaces_among, provider
from .occupants import others_in, others_of
from .rights import require_rights
from .steps import REPLACE, RUN, TAKES_AWAY, key_of_step, uid_of_step

PAUSE_SECONDS = 2.0
# What goes with the last of its dependents; of others nothing has to be waited for.
_FOREGROUND = (*WORKLOADS, "Job")
# An object, and the uid of the one that is meant
_Leaving = Tuple[Key, str]


def apply(client: Client, plan: Plan, timeout: float, clock: Callable[[], float] = time.monotonic,
          sleep: Callable[[float], None] = time.sleep) -> None:
    """Do the steps of a plan in order; they have all that is needed.

    timeout: seconds for each thing that is awaited (a CustomResourceDefinition established, an object gone, a job
    complete). Raises the plan's refusals, and cluster.rights_missing, before the first write.
    """
    if plan.refusals:
        raise GpuOpsError.because(plan.refusals)
    if plan.steps:
        require_rights(client, plan)
        _Work(client, timeout, clock, sleep).do(plan.steps)


def await_rollout(client: Client, component: Component, parameters: Parameters, timeout: float,
                  seen: Optional[Live] = None, clock: Callable[[], float] = time.monotonic,
                  sleep: Callable[[float], None] = time.sleep) -> Tuple[str, ...]:
    """Return once the component's DaemonSets and Deployments run their newest version everywhere they should.

    seen: an observation after which nothing was written: what is rolled out there is not asked for again, so that a
    component that rests needs no request.
    Names of nodes that are NotReady and were not waited for. Refuses (cluster.pods_not_ready) when the time is up.
    Nothing is awaited of a component that is absent, or that others provide.
    """
    if parameters["state"] == "absent" or (seen is not None and provider(component, seen) is not None):
        return ()
    workloads: Dict[str, List[str]] = {}
    for key in map(key_of, objects(component, parameters)):
        known = None if seen is None else seen.objects.get(key)
        if key.kind in WORKLOADS and (known is None or not rolled_out(known)):
            workloads.setdefault(key.namespace, []).append("%s/%s" % (key.kind, key.name))
    unready: List[str] = []
    for namespace, names in workloads.items():
        unready += wait_for_rollout(client, namespace, names, timeout, clock, sleep)
    return tuple(sorted(set(unready)))


@dataclass
class _Work:
    client: Client
    timeout: float
    clock: Callable[[], float]
    sleep: Callable[[float], None]

    def do(self, steps: Sequence[Step]) -> None:
        definitions: List[Key] = []
        leaving: List[_Leaving] = []
        unwanted = [key_of_step(step) for step in steps if step.action in TAKES_AWAY]
        for step in steps:
            key = key_of_step(step)
            if step.action in TAKES_AWAY:
                # Each Namespace is looked at once more, when what was in it is gone.
                if leaving and key.kind in (NAMESPACE, CRD.name):
                    leaving = self._await_gone(leaving)
                self._refuse_company(key, unwanted)
                leaving.append(self._begin_removal(key, uid_of_step(step)))
                continue
            leaving = self._await_gone(leaving)
            if definitions and key.kind != CRD.name:
                definitions = self._await_established(definitions)
            if step.action == RUN:
                self._run(key, step.parameters["object"])
                continue
            if step.action == REPLACE:
                self._remove(key, uid_of_step(step))
            self._apply(key, step.parameters["object"])
            if key.kind == CRD.name:
                definitions.append(key)
        self._await_gone(leaving)
        self._await_established(definitions)

    def _apply(self, key: Key, item: Object) -> None:
        """A kind that has just been established is not served at once by every part of the API server."""
        limit = self.timeout if BY_NAME[key.kind].optional else 0.0
        error = self._waited(lambda: self._tried(key, item), lambda error: error is None, limit)
        if error is not None:
            raise error

    def _tried(self, key: Key, item: Object) -> Optional[ApiError]:
        try:
            self.client.apply(key.path, item)
        except ApiError as error:
            if error.status == 404:
                return error
            raise
        return None

    # Removal

    def _remove(self, key: Key, uid: str) -> None:
        self._await_gone([self._begin_removal(key, uid)])

    def _begin_removal(self, key: Key, uid: str) -> _Leaving:
        self.client.delete(key.path, uid, "Foreground" if key.kind in _FOREGROUND else "Background")
        return key, uid

    def _refuse_company(self, key: Key, gone: Sequence[Key]) -> None:
        """What others have put into a namespace, or made of a kind, since the plan was made, would go with it.

        gone: what this run takes away, and has by now.
        """
        if key.kind == NAMESPACE:
            others = others_in(self.client, key.name, (), gone)
        elif key.kind == CRD.name:
            definition = self.client.find(key.path)
            others = others_of(self.client, definition, (), namespaces_among(gone)) if definition else ()
        else:
            return
        if others:
            raise GpuOpsError(
                "cluster.held_by_others",
                found="%s holds by now what gpuops has not made: %s" % (key, ", ".join(others)),
                wanted="to remove it with the last thing of gpuops in it",
                remedy="run again, and it stays; or remove what is in it",
            )

    def _await_gone(self, leaving: Sequence[_Leaving]) -> List[_Leaving]:
        """[]: all of it is gone."""
        left = self._waited(lambda: self._still_there(leaving), lambda left: not left, self.timeout)
        if left:
            raise self._stays(*left[0])
        return []

    def _still_there(self, leaving: Sequence[_Leaving]) -> List[Tuple[Key, Object]]:
        left = []
        for key, uid in leaving:
            there = self.client.find(key.path)
            if there is not None and there["metadata"].get("uid") == uid:
                left.append((key, there))
                if not there["metadata"].get("deletionTimestamp"):
                    self._begin_removal(key, uid)
        return left

    def _stays(self, key: Key, there: Mapping[str, Any]) -> GpuOpsError:
        metadata = there["metadata"]
        held = ", ".join(metadata.get("finalizers") or ()) or "none"
        # Of a namespace what holds it, such as a kind that cannot be listed, stands in its conditions alone
        said = [str(each.get("message")) for each in (there.get("status") or {}).get("conditions") or ()
                if each.get("status") == "True" and each.get("message")] if key.kind == NAMESPACE else []
        return GpuOpsError(
            "cluster.object_stays",
            found="%s is still there after %d s; its deletion began at %s, its finalizers: %s%s"
            % (key, self.timeout, metadata.get("deletionTimestamp") or "no time", held,
               "; " + "; ".join(said) if said else ""),
            wanted="it to be gone",
            remedy="see what holds it with `kubectl describe`, and its pods; run again then, or raise `wait_timeout`",
            option="wait_timeout",
        )

    # What is awaited

    def _await_established(self, keys: Sequence[Key]) -> List[Key]:
        """[]: the API serves these kinds."""
        waiting = self._waited(lambda: [key for key in keys if not _has(self.client.find(key.path), "Established")],
                               lambda waiting: not waiting, self.timeout)
        if waiting:
            raise GpuOpsError(
                "cluster.kind_not_established",
                found="after %d s not established: %s" % (self.timeout, ", ".join(map(str, waiting))),
                wanted="kinds that the API serves",
                remedy="see their conditions with `kubectl describe customresourcedefinition`",
            )
        return []

    def _run(self, key: Key, job: Object) -> None:
        """An earlier attempt that has ended goes first: what it did is done again. One that is still at work goes on:
        what takes longer than the time limit would else begin anew with every run, and never end."""
        there = self.client.find(key.path)
        if there is not None and not _is_at_work(there, job):
            self._remove(key, str(there["metadata"].get("uid")))
            there = None
        if there is None:
            self._apply(key, job)
        ended = self._waited(lambda: self.client.find(key.path),
                             lambda found: found is None or _has(found, "Complete") or _has(found, "Failed"),
                             self.timeout)
        if not _has(ended, "Complete"):
            became = "has failed" if _has(ended, "Failed") else "is not complete after %d s" % self.timeout
            raise GpuOpsError(
                "cluster.job_not_done",
                # As another run takes it away that does the same at the same time
                found="%s %s" % (key, "was taken away by others before it was seen complete" if ended is None
                                 else became),
                wanted="its work done before the rights that it needs are removed",
                remedy="see `kubectl --namespace %s logs job/%s` and its pods, and run again; what it is for is still "
                "there, and a job that only needs longer goes on: raise `wait_timeout` for it. Where it can never run, "
                "as its image is not to be had, delete ServiceAccount %s: the rest goes without it"
                % (key.namespace, key.name, job["spec"]["template"]["spec"].get("serviceAccountName")),
                option="wait_timeout",
            )
        self._clear(key)

    def _clear(self, key: Key) -> None:
        there = self.client.find(key.path)
        if there is not None:
            self._remove(key, str(there["metadata"].get("uid")))

    def _waited(self, ask: Callable[[], Any], judge: Callable[[Any], bool], limit: float) -> Any:
        answer, _taken = wait_for(ask, judge, limit, PAUSE_SECONDS, self.clock, self.sleep)
        return answer


def _is_at_work(there: Object, job: Object) -> bool:
    """Whether it is this job, as it is wanted now, and has not ended."""
    return not (there["metadata"].get("deletionTimestamp") or _has(there, "Complete") or _has(there, "Failed")
                or differences(job, there))


def _has(item: Optional[Mapping[str, Any]], condition: str) -> bool:
    conditions = ((item or {}).get("status") or {}).get("conditions") or []
    return any(each.get("type") == condition and each.get("status") == "True" for each in conditions)
