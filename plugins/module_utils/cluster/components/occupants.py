# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What of others lives in a namespace, or is of a kind, that may go with the last component. Reads only.

The API's own discovery says which kinds there are: what is of a kind that nobody here has heard of would be missed too.
"""
from __future__ import annotations

from typing import Any, Collection, Dict, FrozenSet, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from ..client import ApiError, Client
from .common import MANAGED_BY, OURS, Object
from .kinds import Key

_AGGREGATED = ",".join("application/json;g=apidiscovery.k8s.io;v=%s;as=APIGroupDiscoveryList" % version
                       for version in ("v2", "v2beta1")) + ",application/json"
_DISCOVERY = "APIGroupDiscoveryList"

# Made for every namespace, or out of what is in it: nobody has put these there. {(group, plural)}
_DERIVED = (("", "events"), ("events.k8s.io", "events"), ("packages.operators.coreos.com", "packagemanifests"))
_VIRTUAL_GROUPS = ("metrics.k8s.io", "authorization.openshift.io")
_OF_EVERY_NAMESPACE = {
    "ConfigMap": ("kube-root-ca.crt", "openshift-service-ca.crt", "istio-ca-root-cert"),
    "ServiceAccount": ("default", "builder", "deployer"),
    "RoleBinding": ("system:image-pullers", "system:image-builders", "system:deployers"),
}
_SERVICE_OF_SLICE = "kubernetes.io/service-name"
_ACCOUNT_OF_TOKEN = "kubernetes.io/service-account.name"
# Leader election of nfd-master (leader-elect.go of its release).
_LEASES_OF_NFD = "nfd.kubernetes.io"


class Resource(NamedTuple):
    """A kind that can be listed in a namespace. version: 'v1' or 'group/version'."""

    group: str
    version: str
    plural: str
    kind: str

    def path(self, namespace: str) -> str:
        root = "/apis/" if self.group else "/api/"
        return "%s%s/namespaces/%s/%s" % (root, self.version, namespace, self.plural)


def others_in(client: Client, namespace: str, ours: Collection[Key], gone: Collection[Key] = ()) -> Tuple[str, ...]:
    """'Kind name' of everything in a namespace that is not ours and that somebody would miss.

    A kind that cannot be listed is named as well: nobody knows what there is of it.
    gone: what was ours a moment ago, so that what Kubernetes made for it may be there yet.
    """
    found: List[str] = []
    resources = _resources(client)
    # What owns something in a namespace is in it too, and told by itself, or is of the whole cluster, and stays
    kinds = frozenset(resource.kind for resource in resources)
    for resource in resources:
        try:
            items = client.items(resource.path(namespace), metadata_only=True)
        except ApiError as error:
            if error.status in (404, 405):
                continue
            found.append("%s, which cannot be listed (HTTP %d)" % (resource.plural, error.status))
            continue
        found += ["%s %s" % (resource.kind, item["metadata"]["name"]) for item in items
                  if not (_is_leaving(item) or _owners(item) & kinds
                          or _passing(resource, item, namespace, ours, gone))]
    return tuple(sorted(set(found)))


def others_of(client: Client, definition: Object, ours: Collection[Key],
              namespaces: Collection[str]) -> Tuple[str, ...]:
    """Names of the objects of a CustomResourceDefinition that are neither ours nor a by-product of ours.

    namespaces: where we are: what has an owner there, or one of these as its owner, is what our programs have found.
    """
    spec = definition["spec"]
    version = next((each["name"] for each in spec["versions"] if each.get("served")), None)
    if version is None:
        return ()
    try:
        items = client.items("/apis/%s/%s/%s" % (spec["group"], version, spec["names"]["plural"]), metadata_only=True)
    except ApiError as error:
        if error.status == 404:
            return ()
        raise
    known = {(key.namespace, key.name) for key in ours if key.kind == spec["names"]["kind"]}
    places = [(str(item["metadata"].get("namespace") or ""), str(item["metadata"]["name"])) for item in items
              if not (_is_leaving(item) or _is_found(item, namespaces))]
    return tuple(sorted("/".join(filter(None, place)) for place in places if place not in known))


def _is_leaving(item: Object) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _owners(item: Object) -> FrozenSet[str]:
    """The kinds of what it goes with."""
    return frozenset(str(owner.get("kind")) for owner in item["metadata"].get("ownerReferences") or ())


def _is_found(item: Object, namespaces: Collection[str]) -> bool:
    """Whether it goes with something in one of these namespaces, or with one of them."""
    metadata = item["metadata"]
    owners = metadata.get("ownerReferences") or ()
    if metadata.get("namespace"):
        return bool(owners) and metadata["namespace"] in namespaces
    return any(owner.get("kind") == "Namespace" and owner.get("name") in namespaces for owner in owners)


def _passing(resource: Resource, item: Object, namespace: str, ours: Collection[Key], gone: Collection[Key]) -> bool:
    metadata = item["metadata"]
    name = str(metadata["name"])
    if name in _OF_EVERY_NAMESPACE.get(resource.kind, ()):
        return True
    if Key(resource.kind, namespace, name) in ours:
        return True
    if resource.kind in ("Endpoints", "EndpointSlice"):
        service = (metadata.get("labels") or {}).get(_SERVICE_OF_SLICE, name)
        return Key("Service", namespace, service) in (*ours, *gone)
    if resource.kind == "Secret":
        account = (metadata.get("annotations") or {}).get(_ACCOUNT_OF_TOKEN)
        return account in _OF_EVERY_NAMESPACE["ServiceAccount"] or (
            account is not None and Key("ServiceAccount", namespace, account) in (*ours, *gone))
    return resource.kind == "Lease" and (
        name.endswith(_LEASES_OF_NFD) or (metadata.get("labels") or {}).get(MANAGED_BY) == OURS)


def _resources(client: Client) -> List[Resource]:
    """Every kind that can be listed in a namespace, each in one version."""
    found: Dict[Tuple[str, str], Resource] = {}
    for resource in _discovered(client):
        derived = (resource.group, resource.plural) in _DERIVED or resource.group.endswith(_VIRTUAL_GROUPS)
        if not derived:
            found.setdefault((resource.group, resource.plural), resource)
    return list(found.values())


def _discovered(client: Client) -> Iterator[Resource]:
    for root in ("/api", "/apis"):
        answer = client.get(root, accept=_AGGREGATED)
        if answer.get("kind") == _DISCOVERY:
            for group in answer.get("items") or ():
                yield from _of_group(group)
        else:
            yield from _one_by_one(client, root, answer)


def _of_group(group: Mapping[str, Any]) -> Iterator[Resource]:
    name = str(group["metadata"].get("name") or "")
    for version in group.get("versions") or ():
        whole = "%s/%s" % (name, version["version"]) if name else str(version["version"])
        for resource in version.get("resources") or ():
            if resource.get("scope") == "Namespaced" and "list" in (resource.get("verbs") or ()):
                yield Resource(name, whole, resource["resource"], resource["responseKind"]["kind"])


def _one_by_one(client: Client, root: str, answer: Mapping[str, Any]) -> Iterator[Resource]:
    """As servers before Kubernetes 1.27 tell it: one document a group and version."""
    groups: List[Tuple[str, str]] = [("", version) for version in answer.get("versions") or ()]
    for group in answer.get("groups") or ():
        groups += [(group["name"], version["groupVersion"]) for version in group["versions"]]
    for group_name, version in groups:
        listed: Optional[Mapping[str, Any]] = client.find("%s/%s" % (root, version))
        for resource in (listed or {}).get("resources") or ():
            if resource.get("namespaced") and "list" in (resource.get("verbs") or ()) and "/" not in resource["name"]:
                yield Resource(group_name, version, resource["name"], resource["kind"])
