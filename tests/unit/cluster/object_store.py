# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the API server does with objects, as far as tests need it: server-side apply with its book of fields, lists by
label, deletion, discovery, reviews of rights. It keeps no watch and knows a handful of kinds.
"""
from __future__ import annotations

import copy
import json
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Mapping, Optional, Set, Tuple

from list_selectors import Unreadable, selector

Object = Dict[str, Any]
Answer = Tuple[int, Dict[str, Any]]
Fields = Set[Tuple[str, ...]]

# {kind: (group/version, plural, namespaced)}
KINDS: Dict[str, Tuple[str, str, bool]] = {
    "Namespace": ("v1", "namespaces", False),
    "RuntimeClass": ("node.k8s.io/v1", "runtimeclasses", False),
    "CustomResourceDefinition": ("apiextensions.k8s.io/v1", "customresourcedefinitions", False),
    "ServiceAccount": ("v1", "serviceaccounts", True),
    "ClusterRole": ("rbac.authorization.k8s.io/v1", "clusterroles", False),
    "ClusterRoleBinding": ("rbac.authorization.k8s.io/v1", "clusterrolebindings", False),
    "Role": ("rbac.authorization.k8s.io/v1", "roles", True),
    "RoleBinding": ("rbac.authorization.k8s.io/v1", "rolebindings", True),
    "ResourceQuota": ("v1", "resourcequotas", True),
    "ConfigMap": ("v1", "configmaps", True),
    "Secret": ("v1", "secrets", True),
    "Service": ("v1", "services", True),
    "Pod": ("v1", "pods", True),
    "Event": ("v1", "events", True),
    "NetworkPolicy": ("networking.k8s.io/v1", "networkpolicies", True),
    "Deployment": ("apps/v1", "deployments", True),
    "DaemonSet": ("apps/v1", "daemonsets", True),
    "Job": ("batch/v1", "jobs", True),
    "Lease": ("coordination.k8s.io/v1", "leases", True),
}
KEYS = {"containers": ("name",), "env": ("name",), "volumes": ("name",), "volumeMounts": ("mountPath",)}
# Fields that never change: {kind: path}
IMMUTABLE = {"DaemonSet": ("spec", "selector"), "Deployment": ("spec", "selector"), "RoleBinding": ("roleRef",),
             "ClusterRoleBinding": ("roleRef",), "RuntimeClass": ("handler",), "Job": ("spec", "template")}


def status(code: int, message: str) -> Answer:
    return code, {"kind": "Status", "status": "Failure", "code": code, "message": message}


@dataclass
class Store:
    """Objects by their path.

    lingers: {kind: how often an object is still found after its deletion}.
    denied:  {(verb, plural)} that the user may not.
    writes:  (method, path) of every request that changed something.
    has_controllers: whether Deployments run as soon as they are there.
    more:    kinds beside KINDS, as that of Nodes, which are the server's state without it.
    """

    objects: Dict[str, Object] = field(default_factory=dict)
    lingers: Dict[str, int] = field(default_factory=dict)
    denied: Set[Tuple[str, str]] = field(default_factory=set)
    writes: List[Tuple[str, str]] = field(default_factory=list)
    version: int = 100
    leaving: Dict[str, int] = field(default_factory=dict)
    aggregated: bool = True
    has_controllers: bool = False
    more: Dict[str, Tuple[str, str, bool]] = field(default_factory=dict)

    # As a test sees it

    def put(self, item: Object, manager: str = "kubectl-create") -> Object:
        """An object that somebody else has made."""
        path = self.path_of(item)
        made = copy.deepcopy(item)
        made["metadata"].update(uid="uid-%d" % self._next(), resourceVersion=str(self.version), managedFields=[
            {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
             "fieldsV1": _written(_paths(_said(item)))}])
        self._default(made)
        self.objects[path] = made
        return made

    def edit(self, kind: str, namespace: str, name: str, manager: str = "kubectl-edit", **changes: Any) -> Object:
        """Top-level fields changed by hand; who had them before has them no more."""
        made = self.objects[self._path(kind, namespace, name)]
        for key, value in changes.items():
            changed = {path for path in _paths({key: value}) if _at(made, path) != _at({key: value}, path)}
            made[key] = _merged(made.get(key), value)
            self._take(made, changed, manager)
            made["metadata"]["managedFields"].append(
                {"manager": manager, "operation": "Update", "fieldsV1": _written(changed)})
        made["metadata"]["resourceVersion"] = str(self._next())
        return made

    def get(self, kind: str, namespace: str, name: str) -> Optional[Object]:
        return self.objects.get(self._path(kind, namespace, name))

    def snapshot(self) -> Dict[str, Any]:
        """Every object without what differs between two ways to the same end."""
        def bare(item: Object) -> Object:
            own = ("uid", "resourceVersion", "managedFields", "generation")
            metadata = {key: value for key, value in item["metadata"].items() if key not in own}
            return {**item, "metadata": metadata}
        return {path: bare(item) for path, item in sorted(self.objects.items())}

    # As a client sees it

    def answer(self, method: str, path: str, query: Mapping[str, str], body: Any, applied: bool = True
               ) -> Optional[Answer]:
        """applied: whether a PATCH is a server-side apply; others are merged."""
        if path in ("/api", "/apis"):
            return 200, self._discovery(path)
        if path.endswith("/selfsubjectaccessreviews"):
            asked = body["spec"]["resourceAttributes"]
            return 201, {"status": {"allowed": (asked["verb"], asked["resource"]) not in self.denied}}
        place = self._place(path)
        if place is None:
            return None if path.startswith("/api/v1/nodes") else (404, {"message": "404 page not found"})
        kind, namespace, name = place
        verb = {"GET": "get" if name else "list", "PATCH": "patch", "DELETE": "delete", "POST": "create"}[method]
        if (verb, self._kinds()[kind][1]) in self.denied:
            return status(403, '%s is forbidden: User "ann" cannot %s resource "%s"'
                          % (self._kinds()[kind][1], verb, self._kinds()[kind][1]))
        if method == "GET":
            return self._find(path) if name else self._list(kind, namespace, query)
        dry, manager = query.get("dryRun") == "All", query.get("fieldManager", "gpuops.nvidia")
        if method == "PATCH":
            return self._apply(path, kind, namespace, body, dry, manager) if applied else \
                self._patch(path, body, dry, manager)
        if method == "POST":
            return self._create(path, namespace, body, dry, manager)
        return self._delete(path, body)

    def _kinds(self) -> Dict[str, Tuple[str, str, bool]]:
        found = {**KINDS, **self.more}
        for item in list(self.objects.values()):
            if item["kind"] == "CustomResourceDefinition":
                spec = item["spec"]
                found[spec["names"]["kind"]] = (
                    "%s/%s" % (spec["group"], spec["versions"][0]["name"]), spec["names"]["plural"],
                    spec["scope"] == "Namespaced")
        return found

    def _path(self, kind: str, namespace: str, name: str) -> str:
        version, plural, namespaced = self._kinds()[kind]
        return "%s%s/%s/%s" % ("/apis/" if "/" in version else "/api/",
                               version + ("/namespaces/" + namespace if namespaced else ""), plural, name)

    def path_of(self, item: Object) -> str:
        return self._path(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"])

    def _place(self, path: str) -> Optional[Tuple[str, str, str]]:
        """(kind, namespace, name); '' for what the path does not say."""
        for kind, (version, plural, namespaced) in self._kinds().items():
            prefix = ("/apis/" if "/" in version else "/api/") + version + "/"
            if not path.startswith(prefix):
                continue
            parts = path[len(prefix):].split("/")
            namespace = ""
            if namespaced and parts[0] == "namespaces" and len(parts) > 2:
                namespace, parts = parts[1], parts[2:]
            if parts[0] == plural and len(parts) <= 2:
                return kind, namespace, parts[1] if len(parts) == 2 else ""
        return None

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _find(self, path: str) -> Answer:
        item = self.objects.get(path)
        if item is None:
            return status(404, "%s not found" % path)
        answer = copy.deepcopy(item)
        if path in self.leaving:
            self.leaving[path] -= 1
            if self.leaving[path] <= 0:
                self._forget(path)
        if item["kind"] == "Job" and "status" not in item:
            item["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
        return 200, answer

    def _list(self, kind: str, namespace: str, query: Mapping[str, str]) -> Answer:
        try:
            is_selected = selector(kind, query)
        except Unreadable as error:
            return status(400, str(error))
        items = [copy.deepcopy(item) for item in self.objects.values()
                 if item["kind"] == kind and namespace in ("", item["metadata"].get("namespace", ""))
                 and is_selected(item)]
        for item in items:
            del item["kind"], item["apiVersion"]
        start = int(query.get("continue") or 0)
        end = start + int(query.get("limit") or len(items) or 1)
        return 200, {"kind": kind + "List", "items": items[start:end],
                     "metadata": {"continue": str(end)} if end < len(items) else {}}

    def _create(self, path: str, namespace: str, body: Object, dry: bool, manager: str) -> Answer:
        if namespace and self._path("Namespace", "", namespace) not in self.objects:
            return status(404, 'namespaces "%s" not found' % namespace)
        path = "%s/%s" % (path, body["metadata"]["name"])
        if path in self.objects:
            return status(409, "%s already exists" % path)
        if dry:
            return 201, copy.deepcopy(body)
        self.writes.append(("POST", path))
        return 201, copy.deepcopy(self.put(body, manager))

    def _patch(self, path: str, body: Object, dry: bool, manager: str) -> Answer:
        before = self.objects.get(path)
        if before is None:
            return status(404, "%s not found" % path)
        if _is_outdated(before, body):
            return status(409, "the object has been modified; please apply your changes to the latest version")
        made = self.patched(before, body, manager)
        if made == before:
            return 200, made
        if not dry:
            made["metadata"]["resourceVersion"] = str(self._next())
            self.objects[path] = made
            self.writes.append(("PATCH", path))
        return 200, copy.deepcopy(made)

    def patched(self, before: Object, body: Object, manager: str) -> Object:
        """RFC 7386. What is taken away is said by nobody any more; what is set anew by this manager alone."""
        made: Object = merged_patch(copy.deepcopy(before), _said(body))
        changed = {each for each in _paths(_said(body)) if _at(made, each) != _at(before, each)}
        self._take(made, changed, "")
        said = {each for each in changed if _at(made, each) is not None}
        if said:
            entries = made["metadata"].setdefault("managedFields", [])
            own = next((each for each in entries
                        if (each["manager"], each.get("operation")) == (manager, "Update")), None)
            if own is None:
                own = {"manager": manager, "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {}}
                entries.append(own)
            own["fieldsV1"] = _written(_read(own["fieldsV1"]) | said)
        return made

    def _apply(self, path: str, kind: str, namespace: str, body: Object, dry: bool, manager: str) -> Answer:
        known = self.objects.get(path)
        if known is not None and _is_outdated(known, body):
            return status(409, "the object has been modified; please apply your changes to the latest version")
        if known is None and body["metadata"].get("uid"):
            return status(409, "uid mismatch: the provided object specified uid, and no existing object was found")
        if namespace:
            home = self.objects.get(self._path("Namespace", "", namespace))
            if home is None:
                return status(404, 'namespaces "%s" not found' % namespace)
            if home["metadata"].get("deletionTimestamp") and path not in self.objects:
                return status(403, "unable to create new content in namespace %s because it is being terminated"
                              % namespace)
        before = self.objects.get(path)
        if before is not None and kind in IMMUTABLE:
            where = IMMUTABLE[kind]
            if _at(before, where) != _at(body, where) and _at(body, where) is not None:
                return status(422, "%s is invalid: %s: field is immutable" % (path, ".".join(where)))
        made = self.applied(before, body, manager)
        if before is not None and {**made, "metadata": {**made["metadata"], "resourceVersion": ""}} == \
                {**before, "metadata": {**before["metadata"], "resourceVersion": ""}}:
            return 200, copy.deepcopy(before)
        if not dry:
            made["metadata"]["resourceVersion"] = str(self._next())
            self.objects[path] = made
            self.writes.append(("PATCH", path))
        return (200 if before else 201), copy.deepcopy(made)

    def applied(self, before: Optional[Object], body: Object, manager: str) -> Object:
        made = copy.deepcopy(before) if before else {"metadata": {"uid": "uid-%d" % self._next()}}
        mine = _paths(_said(body)) - {("f:metadata",)}
        entries = made["metadata"].setdefault("managedFields", [])
        if before and not entries:
            # Nobody kept book before the first apply (apimachinery, managedfields/internal/skipnonapplied.go)
            entries.append({"manager": "before-first-apply", "operation": "Update",
                            "fieldsV1": _written(_paths(_said(made)))})
        own = next((each for each in entries if (each["manager"], each.get("operation")) == (manager, "Apply")), None)
        if own is not None:
            others: Fields = set()
            for each in entries:
                if each is not own:
                    others |= _read(each.get("fieldsV1") or {})
            before_it = _read(own["fieldsV1"])
            for gone in sorted(before_it - mine - others, key=_is_key):
                _drop(made, gone)
            # What is below a field that nobody says any more goes with it, though it was nobody's
            for parent in (("f:spec",), ("f:metadata", "f:annotations")):
                was, is_said = (any(path[:len(parent)] == parent for path in paths)
                                for paths in (before_it, mine | others))
                if was and not is_said:
                    _drop(made, parent)
        changed = {path for path in mine if _at(made, path) != _at(body, path)}
        made = _merged(made, {**body, "metadata": {key: value for key, value in body["metadata"].items()
                                                   if key not in ("uid", "resourceVersion")}})
        self._take(made, changed, manager)
        entries = [each for each in made["metadata"]["managedFields"]
                   if (each["manager"], each.get("operation")) != (manager, "Apply")]
        if mine:
            entries.append({"manager": manager, "operation": "Apply", "apiVersion": body["apiVersion"],
                            "fieldsType": "FieldsV1", "fieldsV1": _written(mine)})
        made["metadata"]["managedFields"] = entries
        self._default(made)
        return made

    def _take(self, made: Object, paths: Fields, manager: str) -> None:
        """Whoever else said these fields says them no more."""
        for entry in made["metadata"].get("managedFields", []):
            if entry["manager"] != manager:
                entry["fieldsV1"] = _written(_read(entry.get("fieldsV1") or {}) - paths)
        if made["metadata"].get("managedFields"):
            # A manager that says nothing any more is no more (structured-merge-diff, merge/update.go)
            made["metadata"]["managedFields"] = [
                each for each in made["metadata"]["managedFields"] if each.get("fieldsV1") or "fieldsV1" not in each]

    def _default(self, made: Object) -> None:
        if made["kind"] in ("DaemonSet", "Deployment"):
            made["spec"].setdefault("revisionHistoryLimit", 10)
            for container in made["spec"].get("template", {}).get("spec", {}).get("containers", []):
                container.setdefault("terminationMessagePath", "/dev/termination-log")
                for amounts in (container.get("resources") or {}).values():
                    for name, amount in amounts.items():
                        amounts[name] = {"0.5": "500m", "1024Mi": "1Gi"}.get(str(amount), amount)
        if made["kind"] == "Service":
            made["spec"].setdefault("clusterIP", "10.96.0.%d" % (self.version % 250))
        if self.has_controllers and made["kind"] == "Deployment":
            replicas = made["spec"].get("replicas", 1)
            made["status"] = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
        if made["kind"] == "CustomResourceDefinition":
            made["status"] = {"conditions": [{"type": "Established", "status": "True"}]}

    def _delete(self, path: str, body: Any) -> Answer:
        item = self.objects.get(path)
        if item is None:
            return status(404, "%s not found" % path)
        preconditions = (body or {}).get("preconditions") or {}
        uid = preconditions.get("uid")
        if preconditions.get("resourceVersion") not in (None, item["metadata"]["resourceVersion"]):
            return status(409, "Precondition failed: ResourceVersion in precondition")
        if uid not in (None, item["metadata"]["uid"]):
            return status(409, "Precondition failed: UID in precondition: %s, UID in object meta: %s"
                          % (uid, item["metadata"]["uid"]))
        self.writes.append(("DELETE", path))
        often = self.lingers.get(item["kind"], 0)
        if often:
            item["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
            self.leaving.setdefault(path, often)
        else:
            self._forget(path)
        return 200, {"kind": "Status", "status": "Success"}

    def _forget(self, path: str) -> None:
        item = self.objects.pop(path)
        self.leaving.pop(path, None)
        if item["kind"] == "Namespace":
            name = item["metadata"]["name"]
            for other in [each for each, held in self.objects.items() if held["metadata"].get("namespace") == name]:
                del self.objects[other]
        if item["kind"] == "CustomResourceDefinition":
            kind = item["spec"]["names"]["kind"]
            for other in [each for each, held in self.objects.items() if held["kind"] == kind]:
                del self.objects[other]

    def _discovery(self, root: str) -> Dict[str, Any]:
        groups: Dict[str, List[Dict[str, Any]]] = {}
        for kind, (version, plural, namespaced) in self._kinds().items():
            if ("/" in version) == (root == "/apis"):
                groups.setdefault(version, []).append({
                    "resource": plural, "responseKind": {"kind": kind}, "verbs": ["get", "list"],
                    "scope": "Namespaced" if namespaced else "Cluster"})
        return {"kind": "APIGroupDiscoveryList", "items": [
            {"metadata": {"name": version.rpartition("/")[0]},
             "versions": [{"version": version.rpartition("/")[2], "resources": resources}]}
            for version, resources in groups.items()]}


# Fields and their paths

def _is_outdated(there: Object, body: Object) -> bool:
    """Whether a request names another version than the one there is."""
    wanted = (body.get("metadata") or {}).get("resourceVersion")
    return wanted not in (None, there["metadata"].get("resourceVersion"))


def merged_patch(target: Any, patch: Mapping[str, Any]) -> Any:
    target = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        else:
            target[key] = merged_patch(target.get(key), value) if isinstance(value, dict) else copy.deepcopy(value)
    return target


def _said(item: Object) -> Object:
    own = ("name", "namespace", "uid", "resourceVersion")
    metadata = {key: value for key, value in (item.get("metadata") or {}).items() if key not in own}
    return {**{key: value for key, value in item.items() if key not in ("apiVersion", "kind", "status")},
            "metadata": metadata}


def _key(name: str, element: Any) -> Optional[str]:
    keys = KEYS.get(name)
    if keys is None or not isinstance(element, dict):
        return None
    return "k:" + json.dumps({key: element[key] for key in keys}, separators=(",", ":"))


def _paths(value: Any, path: Tuple[str, ...] = ()) -> Fields:
    """The leaves of a value; a list without keys is one."""
    if isinstance(value, dict) and value:
        return {each for name, below in value.items() for each in _paths(below, (*path, "f:" + name))}
    if isinstance(value, list) and value and path and _key(path[-1][2:], value[0]):
        return {each for element in value for each in _paths(element, (*path, str(_key(path[-1][2:], element))))}
    return {path}


def _written(paths: Fields) -> Dict[str, Any]:
    tree: Dict[str, Any] = {}
    for path in sorted(paths):
        below = tree
        for part in path:
            below = below.setdefault(part, {})
            if part.startswith("k:"):
                below.setdefault(".", {})
    return tree


def _read(tree: Mapping[str, Any], path: Tuple[str, ...] = ()) -> Fields:
    below = {part: each for part, each in tree.items() if part != "."}
    if not below:
        return {path} if path else set()
    return {each for part, inside in below.items() for each in _read(inside, (*path, part))}


def _steps(path: Tuple[str, ...]) -> Iterator[str]:
    for part in path:
        yield part[2:] if part.startswith("f:") else part


def _at(value: Any, path: Tuple[str, ...]) -> Any:
    for part in _steps(path):
        if isinstance(value, list):
            keys = json.loads(part[2:])
            value = next((each for each in value if keys.items() <= each.items()), None)
        else:
            value = (value or {}).get(part)
    return value


def _drop(value: Any, path: Tuple[str, ...]) -> None:
    *before, last = path
    holder = _at(value, tuple(before))
    if not isinstance(holder, dict):
        return
    keys = json.loads(before[-1][2:]) if before and before[-1].startswith("k:") else {}
    if last[2:] in keys:
        # An element goes with its key, when nothing else is left of it
        if holder.keys() <= keys.keys():
            _at(value, tuple(before[:-1])).remove(holder)
        return
    holder.pop(last[2:], None)
    if not holder and len(before) > 2:
        _drop(value, tuple(before))


def _is_key(path: Tuple[str, ...]) -> bool:
    return len(path) > 1 and path[-2].startswith("k:") and path[-1][2:] in json.loads(path[-2][2:])


def _merged(there: Any, said: Any, name: str = "") -> Any:
    if isinstance(said, dict):
        base = dict(there) if isinstance(there, dict) else {}
        for key, value in said.items():
            base[key] = _merged(base.get(key), value, key)
        return base
    if isinstance(said, list) and said and _key(name, said[0]) and isinstance(there, list):
        known = {_key(name, element): element for element in there}
        for element in said:
            known[_key(name, element)] = _merged(known.get(_key(name, element)), element)
        return list(known.values())
    return copy.deepcopy(said)
