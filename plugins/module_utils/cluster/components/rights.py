# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rights that components need: those of a plan, asked for before its first step, and those of any plan of theirs.

Kinds come from kinds.py and names from the components' own objects, so that a component that is new is in it.
"""
from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from ...core.plan import Plan
from ..client import Client
from ..rights import Rule, granted_by, may, require
from .common import Object, Parameters
from .kinds import BY_NAME, CRD, JOB, KINDS, Key, key_of
from .model import Component, removal_jobs
from .observation import NAMESPACE, namespaces_of, namespaces_of_others, providers, wanted_objects
from .steps import ADOPT, CHANGE, CREATE, PRUNE, REMOVE, REPLACE, RUN, key_of_step

# A server-side apply needs both where the object is not there yet; it says the name, so that a role may name objects
# that it lets somebody create. {action: verbs}
_VERBS: Mapping[str, Tuple[str, ...]] = {
    CREATE: ("get", "create", "patch"),
    # Read again until it is rolled out, or established
    CHANGE: ("get", "patch"),
    ADOPT: ("get", "patch"),
    REPLACE: ("get", "delete", "create", "patch"),
    PRUNE: ("get", "delete"),
    REMOVE: ("get", "delete"),
    RUN: ("get", "create", "patch", "delete"),
}
_ROLES = ("Role", "ClusterRole")
_BINDINGS = ("RoleBinding", "ClusterRoleBinding")


def require_rights(client: Client, plan: Plan) -> None:
    """Refuse a plan that would stop half-way for the lack of a right (cluster.rights_missing)."""
    needed = []
    made = {key_of_step(step): step.parameters["object"] for step in plan.steps if "object" in step.parameters}
    for step in plan.steps:
        key = key_of_step(step)
        needed.append(_rule(key.kind, _VERBS[step.action], key.namespace, [key.name]))
        if key in made and key.kind in _ROLES:
            needed += _to_grant(client, "escalate", key, made[key])
        elif key in made and key.kind in _BINDINGS:
            role = _role_of(key, made[key])
            # Of one that is there already, the server's dry run has told
            needed += _to_grant(client, "bind", role, made[role]) if role in made else []
    require(client, _by_target(needed))


def _role_of(binding: Key, item: Object) -> Key:
    """The role that a binding is of."""
    kind = str(item["roleRef"]["kind"])
    return Key(kind, binding.namespace if BY_NAME[kind].namespaced else "", str(item["roleRef"]["name"]))


def _to_grant(client: Client, verb: str, key: Key, role: Object) -> List[Rule]:
    """Nobody makes a role that grants what he has not, unless he may escalate, nor gives it to another, unless he may
    bind."""
    kind = BY_NAME[key.kind]
    if may(client, verb, kind.group, kind.plural, key.namespace, key.name, default=True):
        return []
    return granted_by(role)


def _rule(kind_name: str, verbs: Sequence[str], place: str, names: Iterable[str] = (), purpose: str = "") -> Rule:
    kind = BY_NAME[kind_name]
    return Rule(tuple(verbs), kind.group, kind.plural, purpose, tuple(names), place)


# Of any plan

def to_read(components: Sequence[Component], parameters: Mapping[str, Parameters]) -> List[Rule]:
    """What observe() asks. parameters: {name of a component: its complete parameters}."""
    rules: List[Rule] = []
    places: Set[str] = set()
    for component in components:
        places |= namespaces_of(component, parameters[component.name])
    for kind in KINDS:
        for place in [""] if kind.is_everywhere else sorted(places):
            rules.append(_rule(kind.name, ["list"], place, purpose="find what gpuops has made"))
    seen = "know what is there under the names of our objects"
    for component in components:
        rules += [_named(key, ["get"], "see whether others provide %s" % component.title)
                  for key in providers(component)]
        if parameters[component.name]["state"] != "absent":
            wanted = wanted_objects(component, parameters[component.name])
            rules += [_named(key, ["get"], seen) for key in wanted]
            rules += [_named(key, ["get"], "see that it is there") for key in namespaces_of_others(wanted)]
    return _by_target(rules)


def to_bring(components: Sequence[Component], parameters: Mapping[str, Parameters]) -> List[Rule]:
    """What a plan may do that brings or changes components, but for the namespace. What is of the cluster and no longer
    wanted, to_remove() has."""
    rules: List[Rule] = []
    for key, item in _without_namespace(components, parameters):
        rules.append(_named(key, _VERBS[CREATE], "make the components and change them"))
        if key.namespace:
            rules.append(_named(key, _VERBS[PRUNE], "take away what is no longer wanted"))
        if key.kind in _ROLES:
            rules += granted_by(item, "be allowed to make %s, which grants it" % str(key))
    return _by_target(rules)


def to_remove(components: Sequence[Component], parameters: Mapping[str, Parameters]) -> List[Rule]:
    """What a plan may do that takes the components away, but for the namespace."""
    rules: List[Rule] = []
    for key, item in _without_namespace(components, parameters):
        rules.append(_named(key, _VERBS[REMOVE], "take the components away"))
        if key.kind == CRD.name:
            rules.append(Rule(("list",), item["spec"]["group"], item["spec"]["names"]["plural"],
                              "keep a kind of which others have objects"))
    for component in components:
        for job in removal_jobs(component, parameters[component.name]):
            rules.append(_rule(JOB.name, _VERBS[RUN], key_of(job).namespace,
                               purpose="put in order what %s leaves behind" % component.title))
    return _by_target(rules)


def _without_namespace(components: Sequence[Component], parameters: Mapping[str, Parameters]
                       ) -> Iterator[Tuple[Key, Object]]:
    """What the components want to be there; a Namespace is made and removed by other roles than what is in it."""
    for component in components:
        for key, item in wanted_objects(component, parameters[component.name]).items():
            if key.kind != NAMESPACE:
                yield key, item


def _named(key: Key, verbs: Sequence[str], purpose: str) -> Rule:
    """Names of the cluster's objects are few and fixed; those in a namespace depend on options, and who may make one
    pod in it may make any."""
    return _rule(key.kind, verbs, key.namespace, [] if key.namespace else [key.name], purpose)


def _by_target(rules: Iterable[Rule]) -> List[Rule]:
    """Those that differ only by their names as one."""
    names: Dict[Any, Dict[str, None]] = {}
    for rule in rules:
        target = (rule.place, rule.group, rule.resource, rule.verbs, rule.purpose, bool(rule.names))
        names.setdefault(target, {}).update(dict.fromkeys(rule.names))
    return [Rule(verbs, group, resource, purpose, tuple(each), place)
            for (place, group, resource, verbs, purpose, _named), each in names.items()]
