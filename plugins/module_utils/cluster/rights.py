# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rights in a cluster, as rules of RBAC, and whether this user has them.

Rules are data. The API server says of a user what the user may do (SelfSubjectAccessReview), which every user may ask
unless a cluster has taken that away.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from ..core.errors import GpuOpsError
from .client import ApiError, Client

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_UNKNOWN = (403, 404)
EVERYTHING = "*"
# As kubectl and Kubernetes' own roles have them
_ORDER = ("get", "list", "watch", "create", "patch", "update", "delete")


@dataclass(frozen=True)
class Rule:
    """Verbs on one resource.

    group:    of the API; '' is the core's.
    resource: in its plural, with the subresource where there is one: 'pods/eviction'.
    purpose:  what the right is for, to be read after 'to'.
    names:    of the only objects that it is about; () for all of them.
    place:    a namespace; '' for the whole cluster.
    """

    verbs: Tuple[str, ...]
    group: str
    resource: str
    purpose: str = ""
    names: Tuple[str, ...] = ()
    place: str = ""

    @property
    def called(self) -> str:
        """As kubectl names it: 'daemonsets.apps'."""
        return "%s.%s" % (self.resource, self.group) if self.group else self.resource

    @property
    def target(self) -> Tuple[str, str, str, Tuple[str, ...]]:
        """What it is about."""
        return self.place, self.group, self.resource, tuple(sorted(self.names))


def merged(rules: Iterable[Rule]) -> List[Rule]:
    """The same rights with one rule a target, and without those that a wider rule among them grants already."""
    verbs: Dict[Any, Dict[str, None]] = {}
    purposes: Dict[Any, Dict[str, None]] = {}
    for rule in rules:
        verbs.setdefault(rule.target, {}).update(dict.fromkeys(rule.verbs))
        purposes.setdefault(rule.target, {}).setdefault(rule.purpose)
    whole = [Rule(tuple(sorted(each, key=_place_of_verb)), group, resource,
                  "; ".join(filter(None, purposes[place, group, resource, names])), names, place)
             for (place, group, resource, names), each in verbs.items()]
    found: List[Rule] = []
    for place, rule in enumerate(whole):
        found += beyond([rule], [*found, *whole[place + 1:]])
    return found


def _place_of_verb(verb: str) -> Tuple[int, str]:
    return (_ORDER.index(verb) if verb in _ORDER else len(_ORDER), verb)


def beyond(rules: Iterable[Rule], granted: Iterable[Rule]) -> List[Rule]:
    """What of the rules is not granted."""
    have = list(granted)
    found = []
    for rule in rules:
        left: Dict[Tuple[str, ...], List[str]] = {}
        for verb in rule.verbs:
            wider = [each for each in have if verb in each.verbs and _reaches(each, rule)]
            if not rule.names and all(each.names for each in wider):
                left.setdefault((), []).append(verb)
            names = tuple(name for name in rule.names if not any(not each.names or name in each.names
                                                                 for each in wider))
            if names:
                left.setdefault(names, []).append(verb)
        found += [replace(rule, verbs=tuple(verbs), names=names) for names, verbs in left.items()]
    return found


def _reaches(rule: Rule, wanted: Rule) -> bool:
    return (rule.group, rule.resource) == (wanted.group, wanted.resource) and rule.place in ("", wanted.place)


def granted_by(role: Mapping[str, Any], purpose: str = "") -> List[Rule]:
    """What a Role or a ClusterRole grants to whom it is bound."""
    place = str(role["metadata"].get("namespace") or "") if role["kind"] == "Role" else ""
    return [Rule(tuple(rule["verbs"]), group, resource, purpose, tuple(rule.get("resourceNames") or ()), place)
            for rule in role.get("rules") or () for group in rule.get("apiGroups") or ()
            for resource in rule.get("resources") or ()]


def require(client: Client, rules: Iterable[Rule]) -> None:
    """Refuse where this user lacks any of these rights, all of which are named.

    A cluster that does not say what its users may do is taken at the word of its answers.
    """
    lacking: List[Rule] = []
    try:
        for rule in merged(rules):
            verbs = tuple(verb for verb in rule.verbs if not _has(client, verb, rule))
            if verbs:
                lacking.append(replace(rule, verbs=verbs))
    except ApiError as error:
        if error.status in _UNKNOWN:
            return
        raise
    if lacking:
        raise GpuOpsError(
            "cluster.rights_missing",
            found="this user may not %s" % "; ".join(dict.fromkeys(map(spoken, lacking))),
            wanted="the rights to do all of it, before anything is changed",
            remedy="grant them, as the roles in `docs/rbac` do, or use other credentials",
        )


def spoken(rule: Rule) -> str:
    """'create, patch daemonsets.apps in namespace gpuops'."""
    return "%s %s%s" % (", ".join(rule.verbs), rule.called, " in namespace %s" % rule.place if rule.place else "")


def may(client: Client, verb: str, group: str, resource: str, namespace: str = "", name: str = "",
        default: bool = False) -> bool:
    """Whether this user may do that; what counts where the cluster does not say is the default."""
    try:
        return allowed(client, verb, group, resource, namespace, name)
    except ApiError as error:
        if error.status in _UNKNOWN:
            return default
        raise


def _has(client: Client, verb: str, rule: Rule) -> bool:
    """A role may grant the whole kind, or name objects: then each of them has to be named."""
    if len(rule.names) != 1 and allowed(client, verb, rule.group, rule.resource, rule.place):
        return True
    return bool(rule.names) and all(allowed(client, verb, rule.group, rule.resource, rule.place, name)
                                    for name in rule.names)


def allowed(client: Client, verb: str, group: str, resource: str, namespace: str = "",
            name: str = "") -> bool:
    """The server's word. Raises ApiError."""
    plural, _separator, subresource = resource.partition("/")
    attributes = {"verb": verb, "group": group, "resource": plural, "subresource": subresource,
                  "namespace": namespace, "name": name}
    answer = client.ask(_REVIEWS, {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value or key == "group"}}})
    return bool((answer.get("status") or {}).get("allowed"))
