# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From what a cluster has to what a component makes: create, change, adopt, replace, prune, remove, or refuse. Pure.

The order of a plan: what all components share, CustomResourceDefinitions, accounts, rights and configuration; then
workloads that are no longer wanted, as two of them on one node would take each other's sockets away; then workloads;
then the rest that is no longer wanted. A removal begins with the workloads, so that nobody writes what is taken away.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, FrozenSet, List, Mapping, Optional, Protocol

from ...core.plan import Kept, Plan, Step, digest
from ...core.refusal import Refusal
from ..client import ApiError
from .common import Object, Parameters
from .fields import (
    Path,
    applied_fields,
    differences,
    holders,
    managers,
    overlaid,
    plain,
    spoken,
    text,
    unsaid,
    without_nulls,
)
from .kinds import BY_NAME, CRD, JOB, KINDS, WORKLOADS, Key, key_of
from .model import Component, removal_jobs
from .observation import (
    NAMESPACE,
    RUNTIME_CLASS,
    Live,
    belongs,
    namespaces_of_others,
    provider,
    shared,
    wanted_objects,
)
from .steps import ADOPT, CHANGE, CREATE, PRUNE, REMOVE, REPLACE, RUN

_ENFORCE = "pod-security.kubernetes.io/enforce"
_PRIVILEGED = "privileged"
_INVALID = 422
_NOT_FOUND = 404
# The API server's words for a field that cannot be changed (apimachinery's validation, and rbac's).
_IMMUTABLE = ("immutable", "cannot change roleRef")
_NO_DRY_RUN = "does not support dry run"
_RANK = {kind.name: number for number, kind in enumerate(KINDS)}
# How many fields a reason names.
_NAMED_FIELDS = 3


class DryRun(Protocol):
    """Answers what the server would make of an object."""

    def apply(self, wanted: Object) -> Optional[Object]:
        """The object as it would be after a server-side apply; None where this user may not try. Raises ApiError where
        the server refuses it."""


def plan_component(component: Component, parameters: Parameters, live: Live, dry_run: DryRun) -> Plan:
    """The plan of one component on one cluster; parameters are complete, and their `state` says which way it goes.

    Steps have the component's name as capability and 'Kind namespace/name' as subject. plan.host is '': the caller
    names the cluster (dataclasses.replace). Components of one cluster are planned in their order with one observation:

        live = observe(client, components, parameters)
        for component in components:
            plan = plan_component(component, parameters[component.name], live, ServerDryRun(client))
            live = live.after(plan)

    What waits for a namespace of users is told in a note, and the plan is not complete then; the rest is planned.
    What we refuse is in plan.refusals. What the server refuses, as a value that is not valid, is the ApiError of the
    dry run. Where this user may not try, a note says so, and the plan is what it would be without the server's word.
    """
    draft = _Draft(component, parameters, live, dry_run)
    if parameters["state"] == "absent":
        draft.remove()
    else:
        draft.bring()
    if draft.untried:
        draft.notes.append("this user may not change %s: what the server would make of it, or refuse, is not known"
                           % ", ".join(map(str, draft.untried)))
    policy = digest(dict(parameters))
    return Plan(policy=policy, policies={component.name: policy}, observation=_observation(component, live),
                steps=tuple(draft.steps), refusals=tuple(draft.refusals), kept=tuple(draft.kept),
                notes=tuple(draft.notes), complete=not draft.waiting,
                waiting=(component.name,) if draft.waiting else ())


def _observation(component: Component, live: Live) -> str:
    """Of what it has been planned from."""
    return digest(sorted((str(key), item["metadata"].get("resourceVersion") or "")
                         for key, item in live.objects.items() if belongs(component, item) or shared(key, item)))


@dataclass
class _Draft:
    """A plan while it is being made."""

    component: Component
    parameters: Parameters
    live: Live
    dry_run: DryRun
    steps: List[Step] = field(default_factory=list)
    refusals: List[Refusal] = field(default_factory=list)
    kept: List[Kept] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    # What this user may not have the server try
    untried: List[Key] = field(default_factory=list)
    # What is wanted in a namespace of users that takes nothing now
    waiting: FrozenSet[Key] = frozenset()

    # What is wanted

    def bring(self) -> None:
        others = provider(self.component, self.live)
        if others is not None:
            self.kept.append(Kept(str(others), "%s is made by %s and used as it is"
                                  % (self.component.title, _makers(self.live.objects[others]))))
            return
        made = wanted_objects(self.component, self.parameters)
        wanted = {key: without_nulls(item) for key, item in made.items()}
        self._check_namespaces(wanted)
        if self.refusals:
            return
        kinds = _kinds_of(wanted)
        leftovers = self._leftovers(frozenset(wanted))
        for key, item in wanted.items():
            if key.kind not in WORKLOADS and key not in self.waiting:
                self._bring_one(key, item, kinds)
        # A Job of a removal that was not finished would go on to undo what the workloads do
        running = [key for key in leftovers if key.kind in (*WORKLOADS, JOB.name)]
        self._take_away(running, PRUNE, "is no longer wanted")
        for key, item in wanted.items():
            if key.kind in WORKLOADS:
                self._bring_one(key, item, kinds)
        self._take_away([key for key in leftovers if key not in running], PRUNE, "is no longer wanted")
        self._leave_shared(frozenset(wanted), PRUNE)

    def _check_namespaces(self, wanted: Mapping[Key, Object]) -> None:
        """A namespace that takes no objects, or no pods as ours are, is refused before anything is tried in it."""
        self._check_namespaces_of_others(wanted)
        has_pods = any(key.kind in WORKLOADS for key in wanted)
        for key in wanted:
            there = self.live.objects.get(key)
            if key.kind != NAMESPACE or there is None:
                continue
            level = (there["metadata"].get("labels") or {}).get(_ENFORCE, _PRIVILEGED)
            if there["metadata"].get("deletionTimestamp"):
                self._refuse_leaving([key.name], "name another `namespace`", "namespace")
            elif has_pods and level != _PRIVILEGED and not self.live.ours(key):
                self.refusals.append(Refusal(
                    "cluster.namespace_is_restricted",
                    "namespace %s, made by %s, takes pods of the level %s only" % (key.name, _makers(there), level),
                    "a namespace whose pods may use the host's devices and directories",
                    "set its label `%s` to %s, or name another `namespace`" % (_ENFORCE, _PRIVILEGED),
                    "namespace"))

    def _check_namespaces_of_others(self, wanted: Mapping[Key, Object]) -> None:
        """What belongs in a namespace of somebody else waits for its owner to make it.

        Users' namespaces come and go, and what is in them is nothing that the component needs: the rest does not wait.
        Another namespace that is not there is one that the component's options name wrongly, or too early.
        """
        there = {key.name: self.live.objects.get(key) for key in namespaces_of_others(wanted)}
        closed = {name: item for name, item in there.items()
                  if item is None or item["metadata"].get("deletionTimestamp")}
        self.waiting = frozenset(key for key in wanted if key.namespace in closed and BY_NAME[key.kind].scattered)
        self.notes += ["%s: %s waits for it, and comes with a run after it is made" % (
            "there is no namespace %s" % key.namespace if closed[key.namespace] is None
            else "namespace %s is being deleted" % key.namespace, key) for key in sorted(self.waiting)]
        needed = {key.namespace for key in wanted if key not in self.waiting}
        missing = [name for name, item in closed.items() if item is None and name in needed]
        leaving = [name for name, item in closed.items() if item is not None and name in needed]
        if missing:
            objects = sorted({"%s %s" % (key.kind, key.name) for key in wanted if key.namespace in missing})
            self.refusals.append(Refusal(
                "cluster.namespace_missing",
                "there is no namespace %s, where %s is to be" % (", ".join(missing), ", ".join(objects)),
                "namespaces that are there: of namespaces gpuops makes none but its own",
                "make them (`kubectl create namespace`), or take them out of the options of %s"
                % self.component.title))
        if leaving:
            self._refuse_leaving(leaving, "take it out of the options of %s" % self.component.title)

    def _refuse_leaving(self, namespaces: List[str], otherwise: str, option: str = "") -> None:
        self.refusals.append(Refusal(
            "cluster.namespace_is_leaving",
            "namespace %s is being deleted" % ", ".join(namespaces),
            "a namespace that takes new objects",
            "wait until it is gone (`kubectl get namespace %s -o yaml` says what holds it), or %s"
            % (namespaces[0], otherwise),
            option))

    def _bring_one(self, key: Key, item: Object, kinds: FrozenSet[str]) -> None:
        there = self.live.objects.get(key)
        if key.kind in self.live.missing and key.kind not in kinds:
            self._refuse_kind(key, item)
        elif there is None:
            self._create(key, item)
        elif not self.live.ours(key):
            self._meet(key, item, there)
        elif there["metadata"].get("deletionTimestamp"):
            self._step(REPLACE, key, "is being deleted, and made again once it is gone", there, item, item)
        else:
            self._change(key, item, there)

    def _refuse_kind(self, key: Key, item: Object) -> None:
        self.refusals.append(Refusal(
            "cluster.kind_missing",
            "the API has no kind %s (%s)" % (key.kind, item["apiVersion"]),
            "to make %s" % str(key),
            "install what brings the CustomResourceDefinition %s, or leave out the option that asks for it"
            % BY_NAME[key.kind].resource))

    def _create(self, key: Key, item: Object) -> None:
        if self._can_be_tried(key):
            try:
                if self.dry_run.apply(item) is None:
                    self.untried.append(key)
            except ApiError as error:
                # What it refers to, as the role of a binding, may be made by a step before it.
                if error.status != _NOT_FOUND and _NO_DRY_RUN not in error.message:
                    raise
        self._step(CREATE, key, "is not there", None, item, item)

    def _can_be_tried(self, key: Key) -> bool:
        """Whether the server knows the namespace and the kind already."""
        namespace = Key(NAMESPACE, "", key.namespace)
        in_place = not key.namespace or (namespace in self.live.objects and namespace not in self.live.foretold)
        return in_place and key.kind not in self.live.missing

    def _meet(self, key: Key, item: Object, there: Object) -> None:
        """An object of others under a name of ours."""
        if key.kind == NAMESPACE:
            self.kept.append(Kept(str(key), "made by %s and used as it is" % _makers(there)))
        elif shared(key, item):
            self._meet_runtime_class(key, item, there)
        elif self.parameters["adopt"]:
            self._change(key, item, there, ADOPT)
        elif not self._same(item, there):
            self.refusals.append(Refusal(
                "cluster.object_of_another",
                "%s, made by %s" % (key, _makers(there)),
                "an object that gpuops has made, or none of this name",
                "set `adopt` to have gpuops take it over as a part of %s, or remove it" % self.component.title,
                "adopt"))
        else:
            self.kept.append(Kept(str(key), "made by %s as it is wanted" % _makers(there)))

    def _meet_runtime_class(self, key: Key, item: Object, there: Object) -> None:
        if there.get("handler") == item["handler"]:
            if item.get("scheduling", there.get("scheduling")) != there.get("scheduling"):
                self.notes.append("%s, made by %s, has another scheduling than was asked for, and keeps it"
                                  % (key, _makers(there)))
            self.kept.append(Kept(str(key), "made by %s and used as it is" % _makers(there)))
            return
        self.refusals.append(Refusal(
            "cluster.runtime_class_of_another",
            "%s, made by %s, with handler %s" % (key, _makers(there), there.get("handler")),
            "handler %s" % item["handler"],
            "remove that RuntimeClass, or choose another name with `runtime_class`",
            "runtime_class"))

    def _same(self, item: Object, there: Object) -> bool:
        """True where it is certain that an apply would change nothing."""
        said = applied_fields(there)
        return not differences(item, there) and (said is None or next(unsaid(said, item), None) is None)

    def _change(self, key: Key, item: Object, there: Object, action: str = CHANGE) -> None:
        if action == CHANGE and self._same(item, there):
            return
        if key in self.live.foretold:
            self._step(action, key, "another component has it otherwise", there, item, item)
            return
        why = self._reason(item, there, action)
        try:
            tried = self.dry_run.apply(item)
        except ApiError as error:
            if _NO_DRY_RUN in error.message:
                self._step(action, key, why, there, overlaid(there, item), item)
                self.notes.append("a webhook of this cluster takes no dry runs, so that what becomes of %s is not "
                                  "known before: %s" % (key, error.message))
            elif error.status == _INVALID and key.kind != CRD.name and any(
                    words in error.message for words in _IMMUTABLE):
                self._step(REPLACE, key, "has another value in a field that cannot be changed: %s" % error.message,
                           there, item, item)
            else:
                raise
            return
        if tried is None:
            self.untried.append(key)
            self._step(action, key, why, there, overlaid(there, item), item)
        elif action == ADOPT or plain(tried) != plain(there):
            self._step(action, key, why, there, tried, item)

    def _reason(self, item: Object, there: Object, action: str) -> str:
        paths = differences(item, there)
        if action == ADOPT:
            return "is taken over from %s" % _makers(there)
        others = holders(there, paths)
        if others:
            return "has been changed by %s: %s" % (", ".join(others), _fields(paths))
        dropped = list(unsaid(applied_fields(there) or {}, item))
        return "is to have other values: %s" % _fields([*paths, *dropped]) if paths or dropped else "is to be as asked"

    # What is not wanted

    def remove(self) -> None:
        mine = self._leftovers(frozenset())
        jobs = self._jobs(mine)
        self._take_away([key for key in mine if key.kind in WORKLOADS], REMOVE, "goes with its component")
        for key, job in jobs.items():
            self._step(RUN, key, "puts in order what the component leaves behind, before its rights go", None, job, job)
        rest = [key for key in mine if key.kind not in WORKLOADS and key not in jobs]
        self._take_away(rest, REMOVE, "goes with its component")
        self._leave_shared(frozenset(), REMOVE)

    def _jobs(self, mine: List[Key]) -> Dict[Key, Object]:
        """What runs before the rest goes, where its account still is: in the namespace that the component is in."""
        found: Dict[Key, Object] = {}
        for job in removal_jobs(self.component, self.parameters):
            account = job["spec"]["template"]["spec"].get("serviceAccountName")
            for key in mine:
                if key.kind != "ServiceAccount" or key.name != account:
                    continue
                namespace = self.live.objects.get(Key(NAMESPACE, "", key.namespace))
                if namespace is not None and namespace["metadata"].get("deletionTimestamp"):
                    self.notes.append("namespace %s is being deleted: %s cannot run in it any more"
                                      % (key.namespace, job["metadata"]["name"]))
                    continue
                here = without_nulls({**job, "metadata": {**job["metadata"], "namespace": key.namespace}})
                found[key_of(here)] = here
        return found

    def _leftovers(self, wanted: FrozenSet[Key]) -> List[Key]:
        """Objects of this component that are not wanted, those first that are made last."""
        found = []
        for key, item in self.live.objects.items():
            if key in wanted or not belongs(self.component, item) or shared(key, item):
                continue
            if self.live.ours(key):
                found.append(key)
            else:
                self.kept.append(Kept(str(key), "has our label, but was made by %s" % _makers(item)))
        return sorted(found, key=lambda key: (-_RANK[key.kind], key))

    def _take_away(self, keys: List[Key], action: str, why: str) -> None:
        for key in keys:
            instances = self.live.instances.get(key.name, ()) if key.kind == CRD.name else ()
            if instances:
                self.kept.append(Kept(str(key), "there are objects of this kind that gpuops has not made: %s"
                                      % ", ".join(instances)))
            else:
                self._gone(key, action, why)

    def _leave_shared(self, wanted: FrozenSet[Key], action: str) -> None:
        """What all components share goes with the last thing that needs it."""
        left = self.live.after(Plan(steps=tuple(self.steps))).objects
        for key, item in sorted(left.items(), key=lambda each: (-_RANK[each[0].kind], each[0])):
            if not shared(key, item) or key in wanted or key in self.live.wanted or not self.live.ours(key):
                continue
            if key.kind == RUNTIME_CLASS:
                needed = self._runtime_class_needed(key.name, left)
            else:
                needed = any(other.namespace == key.name for other in left) or key.name not in self.live.contents
            others = self.live.contents.get(key.name, ()) if key.kind == NAMESPACE else ()
            if others and not needed:
                self.kept.append(Kept(str(key), "holds what gpuops has not made: %s" % ", ".join(others)))
            elif not needed:
                self._gone(key, action, "goes with the last thing that gpuops has in it" if key.kind == NAMESPACE
                           else "goes with the last component that needs it")

    def _runtime_class_needed(self, name: str, left: Mapping[Key, Object]) -> bool:
        """A component that nobody asks about may want it, whether or not it has a pod that uses it."""
        rest = {key: item for key, item in left.items() if not shared(key, item) and self.live.ours(key)}
        users = [key for key, item in rest.items() if key.kind in WORKLOADS
                 and item["spec"]["template"]["spec"].get("runtimeClassName") == name]
        return bool(users or self.live.strangers)

    # Steps

    def _gone(self, key: Key, action: str, why: str) -> None:
        there = self.live.objects[key]
        self.steps.append(Step(
            self.component.name, action, str(key), why, change={"before": text(there), "after": None},
            parameters={**key._asdict(), "uid": there["metadata"].get("uid", "")}, reversible=False))

    def _step(self, action: str, key: Key, why: str, before: Optional[Object], after: Object, item: Object) -> None:
        parameters: Dict[str, Any] = {"object": item}
        if action == REPLACE and before is not None:
            parameters["uid"] = before["metadata"].get("uid", "")
        self.steps.append(Step(
            self.component.name, action, str(key), why,
            change={"before": None if before is None else text(before), "after": text(after)},
            parameters=parameters, reversible=False))


def _makers(item: Object) -> str:
    return ", ".join(managers(item)) or "somebody"


def _kinds_of(wanted: Mapping[Key, Object]) -> FrozenSet[str]:
    """Kinds that CustomResourceDefinitions among these objects bring."""
    return frozenset(item["spec"]["names"]["kind"] for key, item in wanted.items() if key.kind == CRD.name)


def _fields(paths: List[Path]) -> str:
    told = list(dict.fromkeys(map(spoken, paths)))
    more = len(told) - _NAMED_FIELDS
    return ", ".join(told[:_NAMED_FIELDS]) + (" and %d more" % more if more > 0 else "")
