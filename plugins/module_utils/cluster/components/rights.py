# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rights that the steps of a plan need, asked for before the first of them is done."""
from __future__ import annotations

from typing import Dict, List, Mapping, Optional, Set, Tuple

from ...core.errors import GpuOpsError
from ...core.plan import Plan, Step
from ..client import ApiError, Client
from .kinds import BY_NAME, Key, key_of

_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# A server-side apply needs both where the object is not there yet. {action: verbs}
_VERBS: Mapping[str, Tuple[str, ...]] = {
    "object.create": ("get", "create", "patch"),
    "object.change": ("patch",),
    "object.adopt": ("patch",),
    "object.replace": ("get", "delete", "create", "patch"),
    "object.prune": ("get", "delete"),
    "object.remove": ("get", "delete"),
    "job.run": ("get", "create", "patch", "delete"),
}
# (verb, kind, namespace)
_Right = Tuple[str, str, str]


def key_of_step(step: Step) -> Key:
    """The object that a step is about."""
    if "object" in step.parameters:
        return key_of(step.parameters["object"])
    return Key(*(str(step.parameters[part]) for part in Key._fields))


def require_rights(client: Client, plan: Plan) -> None:
    """Refuse a plan that would stop half-way for the lack of a right; each right is asked for once.

    A cluster that does not say what its users may do is taken at the word of its answers.
    """
    needed: Dict[_Right, Set[str]] = {}
    for step in plan.steps:
        key = key_of_step(step)
        for verb in _VERBS[step.action]:
            needed.setdefault((verb, key.kind, key.namespace), set()).add(key.name)
    try:
        missing = [right for right, names in needed.items() if not _allowed(client, right, names)]
    except ApiError as error:
        if error.status in (403, 404):
            return
        raise
    if missing:
        raise GpuOpsError(
            "cluster.rights_missing",
            found="this user may not %s" % "; ".join(_spoken(missing)),
            wanted="the rights that the plan needs, before its first step",
            remedy="grant them, for example by the ClusterRole that the documentation has, or use other credentials",
        )


def _allowed(client: Client, right: _Right, names: Set[str]) -> bool:
    """For the whole kind, or else for each of these objects: a role may name them."""
    return _asked(client, right, None) or all(_asked(client, right, name) for name in sorted(names))


def _asked(client: Client, right: _Right, name: Optional[str]) -> bool:
    verb, kind_name, namespace = right
    kind = BY_NAME[kind_name]
    attributes = {"verb": verb, "group": kind.api_version.rpartition("/")[0], "resource": kind.plural}
    if namespace:
        attributes["namespace"] = namespace
    if name is not None:
        attributes["name"] = name
    answer = client.ask(_REVIEWS, {
        "apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes}})
    return bool((answer.get("status") or {}).get("allowed"))


def _spoken(missing: List[_Right]) -> List[str]:
    """'create, patch daemonsets.apps in namespace gpuops', a line for each resource."""
    verbs: Dict[Tuple[str, str], List[str]] = {}
    for verb, kind, namespace in missing:
        verbs.setdefault((kind, namespace), []).append(verb)
    return ["%s %s%s" % (", ".join(names), BY_NAME[kind].resource, " in namespace %s" % namespace if namespace else "")
            for (kind, namespace), names in verbs.items()]
