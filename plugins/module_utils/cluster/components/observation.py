# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a cluster has of our components, read by few requests: one list of each kind, and what is in the way by name."""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from ...core.errors import GpuOpsError
from ...core.plan import Plan
from ..client import FIELD_MANAGER, ApiError, Client
from ..rights import EVERYTHING, may
from .common import COMPONENT, MANAGED_BY, NAME, OURS, Object, Parameters, shared_objects
from .fields import applied_fields
from .kinds import BY_NAME, CRD, KINDS, Key, Kind, key_of
from .model import Component, objects
from .occupants import others_in, others_of
from .steps import CREATE, REPLACE, RUN, TAKES_AWAY, key_of_step

NAMESPACE = "Namespace"
RUNTIME_CLASS = "RuntimeClass"
FORBIDDEN = 403


@dataclass(frozen=True)
class Live:
    """What is there. Of plan_component() it is all that is known of the cluster.

    objects:   what carries our label, of whichever component, and what others have made under a name that is wanted.
    missing:   kinds that the API does not have.
    wanted:    shared objects (Namespace, RuntimeClass) that the components want which were asked about.
    strangers: what gpuops has made and none of these components: it may need what is shared.
    contents:  {namespace of ours that may go: 'Kind name' of each thing of others in it}.
    instances: {CustomResourceDefinition of ours that may go: names of its objects that are not ours}.
    foretold:  objects that are not there yet, but once plans before this one are done.
    """

    objects: Mapping[Key, Object] = field(default_factory=dict)
    missing: FrozenSet[str] = frozenset()
    wanted: FrozenSet[Key] = frozenset()
    strangers: FrozenSet[Key] = frozenset()
    contents: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    instances: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    foretold: FrozenSet[Key] = frozenset()

    def ours(self, key: Key) -> bool:
        """Whether gpuops has applied it. The label alone says nothing: it is in every copy that somebody makes."""
        return key in self.foretold or (key in self.objects and applied_fields(self.objects[key]) is not None)

    def after(self, plan: Plan) -> Live:
        """As it will be once the plan is done: what the next component of the same cluster is planned with."""
        known, foretold, missing = dict(self.objects), set(self.foretold), set(self.missing)
        for step in plan.steps:
            key = key_of_step(step)
            if step.action == RUN:
                known.pop(key, None)
            elif step.action in TAKES_AWAY:
                gone = known.pop(key, None)
                if key.kind == CRD.name and gone is not None:
                    missing.add(gone["spec"]["names"]["kind"])
            else:
                made = step.parameters["object"]
                if step.action in (CREATE, REPLACE):
                    foretold.add(key)
                known[key] = {**made, "metadata": {**made["metadata"], "managedFields": [
                    {"manager": FIELD_MANAGER, "operation": "Apply"}]}}
                if key.kind == CRD.name:
                    missing.discard(made["spec"]["names"]["kind"])
        return replace(self, objects=known, foretold=frozenset(foretold & set(known)), missing=frozenset(missing))


def belongs(component: Component, item: Object) -> bool:
    """Whether an object is one of this component's; those of older releases are known by their app."""
    labels = item["metadata"].get("labels") or {}
    if labels.get(MANAGED_BY) != OURS or item["kind"] == NAMESPACE:
        return False
    if COMPONENT in labels:
        return bool(labels[COMPONENT] == component.name)
    return labels.get(NAME) in component.apps


def shared(key: Key, item: Object) -> bool:
    """Whether an object is of all components: the Namespace, and the RuntimeClass that is none's own."""
    return key.kind == NAMESPACE or (
        key.kind == RUNTIME_CLASS and COMPONENT not in (item["metadata"].get("labels") or {}))


def provider(component: Component, live: Live) -> Optional[Key]:
    """The object of others that says that they provide this component."""
    for kind, name in component.provided_by:
        key = Key(kind, "", name)
        if key in live.objects and not live.ours(key):
            return key
    return None


def wanted_objects(component: Component, parameters: Parameters) -> Dict[Key, Object]:
    """What a component is made of, in the order in which it is applied: what all share first."""
    return {key_of(item): item for item in (*shared_objects(parameters), *objects(component, parameters))}


def observe(client: Client, components: Sequence[Component], parameters: Mapping[str, Parameters]) -> Live:
    """Look at a cluster once, for all of these components.

    parameters: {name of a component: its complete parameters}, `state` included. Reads only. A kind that may not be
    listed is an error that names verb and resource (cluster.right_missing).
    """
    found, missing = _ours(client, [namespace for component in components
                                    for namespace in namespaces_of(component, parameters[component.name])])
    live = Live(found, frozenset(missing))
    wanted = {component.name: {} if parameters[component.name]["state"] == "absent"
              else wanted_objects(component, parameters[component.name]) for component in components}
    nowhere: Set[Key] = set()
    _find(client, found, nowhere, [key for component in components for key in providers(component)])
    for component in components:
        if provider(component, live) is None:
            keys = [*namespaces_of_others(wanted[component.name]), *wanted[component.name]]
            _find(client, found, nowhere, [key for key in keys if key.kind not in missing])
    live = replace(
        live,
        wanted=frozenset(key for made in wanted.values() for key, item in made.items() if shared(key, item)),
        strangers=frozenset(key for key, item in found.items() if live.ours(key) and not shared(key, item)
                            and not any(belongs(component, item) for component in components)))
    return replace(live, contents=_contents(client, live), instances=_instances(client, components, wanted, live))


def _ours(client: Client, namespaces: Sequence[str]) -> Tuple[Dict[Key, Object], Set[str]]:
    """(everything with our label, kinds that the API does not have).

    Who may list everything is shown it by one list of each kind. Others are not asked to have such rights: where
    accounts and workloads are, in namespaces that we have made and in these, there the rest is.
    """
    found: Dict[Key, Object] = {}
    missing: Set[str] = set()
    everywhere = may(client, "list", EVERYTHING, EVERYTHING)
    for kind in sorted(KINDS, key=lambda kind: not kind.is_everywhere):
        known = {key.namespace or key.name for key in found
                 if key.kind == NAMESPACE or (key.namespace and not BY_NAME[key.kind].scattered)}
        for namespace in [""] if everywhere or kind.is_everywhere else sorted(known.union(namespaces)):
            listed = _listed(client, kind, namespace)
            if listed is None:
                missing.add(kind.name)
                break
            found.update((key_of(item), item) for item in listed)
    return found, missing


def _listed(client: Client, kind: Kind, namespace: str) -> Optional[List[Object]]:
    """Everything of a kind with our label; None where the API does not have the kind."""
    try:
        items = client.items(kind.list_path(namespace), labelSelector="%s=%s" % (MANAGED_BY, OURS))
    except ApiError as error:
        if error.status == 404 and kind.optional:
            return None
        raise
    # Elements of a list do not say what they are.
    return [{**item, "apiVersion": kind.api_version, "kind": kind.name} for item in items]


def namespaces_of(component: Component, parameters: Parameters) -> Set[str]:
    """The namespaces that a component's options name, and in which it may have anything."""
    named = {str(parameters["namespace"])}
    try:
        return named.union(key.namespace for key in wanted_objects(component, parameters)
                           if key.namespace and not BY_NAME[key.kind].scattered)
    except GpuOpsError:
        if parameters["state"] != "absent":
            raise
        return named


def namespaces_among(keys: Iterable[Key]) -> FrozenSet[str]:
    """The namespaces that these objects are, or are in."""
    return frozenset(key.name if key.kind == NAMESPACE else key.namespace for key in keys) - {""}


def namespaces_of_others(wanted: Iterable[Key]) -> List[Key]:
    """The namespaces that these objects are in and that are not among them: they have to be there."""
    keys = frozenset(wanted)
    named = {Key(NAMESPACE, "", key.namespace) for key in keys if key.namespace}
    return sorted(named - keys)


def providers(component: Component) -> List[Key]:
    """Objects that tell whether others provide the component."""
    return [Key(kind, "", name) for kind, name in component.provided_by]


def _find(client: Client, found: Dict[Key, Object], nowhere: Set[Key], keys: Sequence[Key]) -> None:
    """Add those of these objects that are there and lack our label; what is nowhere is asked for once.

    A namespace that is not there holds none.
    """
    for key in keys:
        if key in found or key in nowhere or Key(NAMESPACE, "", key.namespace) in nowhere:
            continue
        item = client.find(key.path)
        if item is None:
            nowhere.add(key)
        else:
            found[key] = item


def _contents(client: Client, live: Live) -> Dict[str, Tuple[str, ...]]:
    """Of each namespace of ours that these components, and nobody else of ours, may leave."""
    known = {}
    for key in live.objects:
        if key.kind != NAMESPACE or key in live.wanted or not live.ours(key):
            continue
        if not any(other.namespace == key.name for other in live.strangers):
            known[key.name] = others_in(client, key.name, [other for other in live.objects if live.ours(other)])
    return known


def _instances(client: Client, components: Sequence[Component], wanted: Mapping[str, Mapping[Key, Object]],
               live: Live) -> Dict[str, Tuple[str, ...]]:
    """Of each CustomResourceDefinition of ours that a component does not want any more."""
    ours = [key for key in live.objects if live.ours(key)]
    places = namespaces_among(ours)
    return {key.name: others_of(client, live.objects[key], ours, places) for component in components for key in ours
            if key.kind == CRD.name and key not in wanted[component.name] and belongs(component, live.objects[key])}


class ServerDryRun:
    """planner.DryRun by server-side apply with dryRun=All: nothing is written.

    only_looks: whether nothing of it will be done. Who only looks may have rights to read and no others: what he may
                not change is not tried, as his administrators would find each try among what was denied.
    forbidden:  the server's answers, of what was tried, that this user may not.
    """

    def __init__(self, client: Client, only_looks: bool = False) -> None:
        self._client = client
        self._only_looks = only_looks
        self.forbidden: List[ApiError] = []

    def apply(self, wanted: Object) -> Optional[Object]:
        key = key_of(wanted)
        if self._only_looks and not self._may_change(key):
            return None
        try:
            return self._client.apply(key.path, wanted, dry_run=True)
        except ApiError as error:
            if error.status != FORBIDDEN:
                raise
            self.forbidden.append(error)
            return None

    def _may_change(self, key: Key) -> bool:
        kind = BY_NAME[key.kind]
        return may(self._client, "patch", kind.group, kind.plural, key.namespace, key.name, default=True)
