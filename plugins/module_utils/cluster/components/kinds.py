# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The kinds of objects that components are made of, and where the API has them. Pure.

An object's place in a cluster is its Key; what it is made from and what the server has of it share one.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, NamedTuple, Tuple


@dataclass(frozen=True)
class Kind:
    """A kind as the API serves it.

    plural:    its name in paths.
    optional:  by a CRD, so that a cluster may lack it.
    leads:     it is looked for in every namespace by whoever looks, and tells in which the others are looked for.
    scattered: it is looked for in every namespace too, and where it is nothing else need be.
    """

    api_version: str
    name: str
    plural: str
    namespaced: bool = True
    optional: bool = False
    leads: bool = False
    scattered: bool = False

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def is_everywhere(self) -> bool:
        return self.leads or self.scattered or not self.namespaced

    @property
    def prefix(self) -> str:
        return ("/apis/" if "/" in self.api_version else "/api/") + self.api_version

    @property
    def resource(self) -> str:
        """As RBAC and kubectl name it: 'daemonsets.apps'."""
        return "%s.%s" % (self.plural, self.group) if self.group else self.plural

    def list_path(self, namespace: str = "") -> str:
        """All of them, in one namespace or, for '', in every one."""
        inside = "/namespaces/%s" % namespace if namespace else ""
        return "%s%s/%s" % (self.prefix, inside, self.plural)

    def path(self, namespace: str, name: str) -> str:
        """One of them."""
        inside = "/namespaces/%s" % namespace if self.namespaced else ""
        return "%s%s/%s/%s" % (self.prefix, inside, self.plural, name)


RBAC = "rbac.authorization.k8s.io"
_RBAC_V1 = RBAC + "/v1"
CRD = Kind("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", namespaced=False)
JOB = Kind("batch/v1", "Job", "jobs")
# Every kind that a component may make: what is of a kind that is not here could not be found again.
KINDS: Tuple[Kind, ...] = (
    Kind("v1", "Namespace", "namespaces", namespaced=False),
    Kind("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", namespaced=False),
    CRD,
    # Whatever has pods has one, which goes last of what is in a namespace
    Kind("v1", "ServiceAccount", "serviceaccounts", leads=True),
    Kind(_RBAC_V1, "ClusterRole", "clusterroles", namespaced=False),
    Kind(_RBAC_V1, "ClusterRoleBinding", "clusterrolebindings", namespaced=False),
    Kind(_RBAC_V1, "Role", "roles"),
    Kind(_RBAC_V1, "RoleBinding", "rolebindings"),
    # Of users' namespaces, in which we have nothing else
    Kind("v1", "ResourceQuota", "resourcequotas", scattered=True),
    Kind("v1", "ConfigMap", "configmaps"),
    Kind("v1", "Service", "services"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("apps/v1", "Deployment", "deployments", leads=True),
    Kind("apps/v1", "DaemonSet", "daemonsets", leads=True),
    JOB,
    Kind("nfd.k8s-sigs.io/v1alpha1", "NodeFeatureRule", "nodefeaturerules", namespaced=False, optional=True),
    Kind("monitoring.coreos.com/v1", "ServiceMonitor", "servicemonitors", optional=True),
    Kind("monitoring.coreos.com/v1", "PrometheusRule", "prometheusrules", optional=True),
)
BY_NAME: Dict[str, Kind] = {kind.name: kind for kind in KINDS}
WORKLOADS = ("DaemonSet", "Deployment")


class Key(NamedTuple):
    """Which object it is. namespace: '' where the kind has none."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        place = "%s/%s" % (self.namespace, self.name) if self.namespace else self.name
        return "%s %s" % (self.kind, place)

    @property
    def path(self) -> str:
        return BY_NAME[self.kind].path(self.namespace, self.name)


def key_of(item: Mapping[str, Any]) -> Key:
    """The place of an object, made or read."""
    metadata = item["metadata"]
    kind = BY_NAME[item["kind"]]
    return Key(kind.name, str(metadata.get("namespace") or "") if kind.namespaced else "", str(metadata["name"]))
