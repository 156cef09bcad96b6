# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A laboratory's cluster as docs/rbac.md has an administrator prepare it, with a user for each playbook.

And what the API server's audit log says of these users, in the words of roles.
"""
from __future__ import annotations

import json
import urllib.parse
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Sequence, Set

import yaml
from workspace import REPOSITORY

from gpulab.lab import Lab

RBAC = REPOSITORY / "docs" / "rbac"
PLAYBOOKS = ("inventory", "plan", "validate", "site", "uninstall")
# {program that may be there: its namespace}
BESIDE = {"medik8s": "medik8s-leases"}
LEFT_BEHIND = "of-an-older-release"
GROUP = "rbac.authorization.k8s.io"


class Asked(NamedTuple):
    """A verb on a resource: 'pods/eviction', 'daemonsets.apps'. namespace: '' where the request named none."""

    verb: str
    resource: str
    namespace: str


def user_of(playbook: str) -> str:
    return "gpuops-" + playbook


def roles_in(name: str) -> List[Dict[str, Any]]:
    """The roles of a file below docs/rbac."""
    return list(yaml.safe_load((RBAC / name).read_text())["items"])


def prepare(lab: Lab) -> Dict[str, Path]:
    """{playbook: the kubeconfig of its user}, once the namespaces, the roles and their bindings are there."""
    made = [yaml.safe_load((RBAC / "namespace.yaml").read_text()),
            *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in BESIDE.values())]
    beside = [role for program in BESIDE for role in roles_in("options/%s.yaml" % program)]
    for playbook in PLAYBOOKS:
        roles = [*roles_in(playbook + ".yaml"), *(
            role for role in beside if role["metadata"]["name"].startswith(user_of(playbook) + "-"))]
        made += [*roles, *(binding(role, user_of(playbook)) for role in roles)]
    create(lab, made)
    plane = lab.control_plane
    assert plane
    return {playbook: plane.user(user_of(playbook)) for playbook in PLAYBOOKS}


def create(lab: Lab, made: Sequence[Mapping[str, Any]]) -> None:
    lab.kubectl(["apply", "--filename=-"], feed=json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": list(made)}))


def binding(role: Mapping[str, Any], user: str) -> Dict[str, Any]:
    namespace = role["metadata"].get("namespace")
    return {"apiVersion": GROUP + "/v1", "kind": role["kind"] + "Binding",
            "metadata": {"name": role["metadata"]["name"], **({"namespace": namespace} if namespace else {})},
            "roleRef": {"apiGroup": GROUP, "kind": role["kind"], "name": role["metadata"]["name"]},
            "subjects": [{"apiGroup": GROUP, "kind": "User", "name": user}]}


def leave_behind(lab: Lab) -> None:
    """What an older release has made in the components' namespace: one of each kind that the roles are about."""
    pod = {"metadata": {"labels": {"old": "yes"}}, "spec": {
        "nodeSelector": {"old": "yes"}, "containers": [{"name": "old", "image": "old:1"}]}}
    workload = {"selector": {"matchLabels": {"old": "yes"}}, "template": pod}
    labels = {"app.kubernetes.io/name": "nvidia-dcgm-exporter", "app.kubernetes.io/managed-by": "gpuops"}
    bodies: Dict[str, Dict[str, Any]] = {
        "v1 ServiceAccount": {}, "v1 ConfigMap": {"data": {}}, "v1 Service": {"spec": {"ports": [{"port": 1}]}},
        GROUP + "/v1 Role": {"rules": []},
        GROUP + "/v1 RoleBinding": {"roleRef": {"apiGroup": GROUP, "kind": "Role", "name": LEFT_BEHIND}},
        "apps/v1 Deployment": {"spec": workload}, "apps/v1 DaemonSet": {"spec": workload}}
    items = [{"apiVersion": word.split()[0], "kind": word.split()[1],
              "metadata": {"name": LEFT_BEHIND, "namespace": "gpuops", "labels": labels}, **body}
             for word, body in bodies.items()]
    lab.kubectl(["apply", "--server-side", "--field-manager=gpuops", "--filename=-"], feed=json.dumps(
        {"apiVersion": "v1", "kind": "List", "items": items}))


def granted(roles: Sequence[Mapping[str, Any]]) -> Set[Asked]:
    return {Asked(verb, "%s.%s" % (resource, group) if group else resource, role["metadata"].get("namespace", ""))
            for role in roles for rule in role["rules"] for group in rule["apiGroups"]
            for resource in rule["resources"] for verb in rule["verbs"]}


def denied(lab: Lab, user: str) -> List[str]:
    """What a user asked for and might not, in the server's words."""
    return [entry["responseStatus"].get("message", "") for entry in _entries(lab, user)
            if entry["responseStatus"]["code"] == 403]


def used(lab: Lab, user: str) -> Set[Asked]:
    """What a user asked for, with the right to create that an apply of what is not there yet needs."""
    found = set()
    for entry in _entries(lab, user):
        about = entry.get("objectRef") or {}
        if not about.get("resource") or entry["responseStatus"]["code"] == 403:
            continue
        resource = "/".join(filter(None, (about["resource"], about.get("subresource"))))
        group = about.get("apiGroup")
        namespace = about.get("namespace", "") if about["resource"] != "namespaces" else ""
        verbs = [entry["verb"]] + (["create"] if entry["verb"] == "patch" and entry["responseStatus"]["code"] == 201
                                   else [])
        found |= {Asked(verb, "%s.%s" % (resource, group) if group else resource, namespace) for verb in verbs}
    return found


def unused(granted_: Set[Asked], used_: Set[Asked]) -> Set[Asked]:
    """What is granted for the whole cluster is used in any namespace."""
    return {each for each in granted_ if not any(
        (each.verb, each.resource) == (other.verb, other.resource) and each.namespace in ("", other.namespace)
        for other in used_)}


def writes(lab: Lab, user: str) -> List[str]:
    """What a user has changed, or tried to: all but what was read, asked for or tried dry."""
    return ["%s %s" % (entry["verb"], entry["requestURI"]) for entry in _entries(lab, user)
            if entry["verb"] not in ("get", "list", "watch")
            and "selfsubjectaccessreviews" not in entry["requestURI"]
            and "dryRun" not in urllib.parse.parse_qs(urllib.parse.urlsplit(entry["requestURI"]).query)]


def _entries(lab: Lab, user: str) -> Iterator[Dict[str, Any]]:
    plane = lab.control_plane
    assert plane
    yield from plane.requests(user)
