# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The custom resources of Node Feature Discovery, as its API is in v0.18 and v0.19. Pure.

The schemas are those of deployment/base/nfd-crds and noderesourcetopologies-crd in the repository
kubernetes-sigs/node-feature-discovery, without their descriptions; what v0.17 knows is a part of them. NodeFeatureGroup
is left out: nfd-master serves it behind a feature gate that is off.
"""
from __future__ import annotations

from typing import Any, Dict, List

Schema = Dict[str, Any]

TEXT: Schema = {"type": "string"}


def _object(required: List[str], properties: Dict[str, Schema]) -> Schema:
    return {"type": "object", **({"required": required} if required else {}), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _definition(group: str, kind: str, singular: str, plural: str, scope: str, short: List[str],
                versions: List[Dict[str, Any]], annotations: Dict[str, str]) -> Dict[str, Any]:
    """Everything of a CustomResourceDefinition but its labels."""
    return {
        "metadata": {"name": "%s.%s" % (plural, group), **({"annotations": annotations} if annotations else {})},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "listKind": kind + "List", "plural": plural, "singular": singular,
                      **({"shortNames": short} if short else {})},
            "versions": versions,
        },
    }


def _version(name: str, required: List[str], properties: Dict[str, Schema], storage: bool = True) -> Dict[str, Any]:
    every = {"apiVersion": TEXT, "kind": TEXT, "metadata": {"type": "object"}}
    return {"name": name, "served": True, "storage": storage,
            "schema": {"openAPIV3Schema": _object(required, {**every, **properties})}}


def node_feature() -> Dict[str, Any]:
    def feature(elements: Schema) -> Schema:
        return _map(_object(["elements"], {"elements": elements}))

    spec = _object([], {
        "labels": _map(TEXT),
        "features": _object([], {
            "flags": feature(_map({"type": "object"})),
            "attributes": feature(_map(TEXT)),
            "instances": feature(_list(_object(["attributes"], {"attributes": _map(TEXT)}))),
        }),
    })
    return _definition("nfd.k8s-sigs.io", "NodeFeature", "nodefeature", "nodefeatures", "Namespaced", [],
                       [_version("v1alpha1", ["spec"], {"spec": spec})], {})


def node_feature_rule() -> Dict[str, Any]:
    expression = _object(["op"], {
        "op": {"type": "string", "enum": [
            "In", "NotIn", "InRegexp", "Exists", "DoesNotExist", "Gt", "Ge", "Lt", "Le", "GtLt", "GeLe", "IsTrue",
            "IsFalse"]},
        "type": TEXT,
        "value": _list(TEXT),
    })
    matches = _list(_object(["feature"], {
        "feature": TEXT, "matchExpressions": _map(expression), "matchName": expression}))
    taint = _object(["effect", "key"], {
        "effect": TEXT, "key": TEXT, "timeAdded": {"type": "string", "format": "date-time"}, "value": TEXT})
    rule = _object(["name"], {
        "name": TEXT,
        "annotations": _map(TEXT),
        "extendedResources": _map(TEXT),
        "labels": _map(TEXT),
        "labelsTemplate": TEXT,
        "matchAny": _list(_object(["matchFeatures"], {"matchFeatures": matches})),
        "matchFeatures": matches,
        "taints": _list(taint),
        "vars": _map(TEXT),
        "varsTemplate": TEXT,
    })
    return _definition("nfd.k8s-sigs.io", "NodeFeatureRule", "nodefeaturerule", "nodefeaturerules", "Cluster", ["nfr"],
                       [_version("v1alpha1", ["spec"], {"spec": _object(["rules"], {"rules": _list(rule)})})], {})


def node_resource_topology() -> Dict[str, Any]:
    """What nfd-topology-updater publishes. Its group is Kubernetes' own, and says so by an annotation."""
    quantity: Schema = {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)"
                   r"|(\.[0-9]+))))?$",
        "x-kubernetes-int-or-string": True,
    }
    attributes = _list(_object(["name", "value"], {"name": TEXT, "value": TEXT}))
    zones = _list(_object(["name", "type"], {
        "name": TEXT,
        "type": TEXT,
        "parent": TEXT,
        "attributes": attributes,
        "costs": _list(_object(["name", "value"], {"name": TEXT, "value": {"type": "integer", "format": "int64"}})),
        "resources": _list(_object(["allocatable", "available", "capacity", "name"], {
            "name": TEXT, "allocatable": quantity, "available": quantity, "capacity": quantity})),
    }))
    policies = _list(TEXT)
    return _definition(
        "topology.node.k8s.io", "NodeResourceTopology", "noderesourcetopology", "noderesourcetopologies", "Cluster",
        ["node-res-topo"],
        [_version("v1alpha1", ["topologyPolicies", "zones"], {"topologyPolicies": policies, "zones": zones}, False),
         _version("v1alpha2", ["zones"], {"attributes": attributes, "topologyPolicies": policies, "zones": zones})],
        {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/1870"})
