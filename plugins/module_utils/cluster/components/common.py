# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What objects of all components have in common, written once: options, labels, images, parts of pods. Pure."""
from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ansible.module_utils.common.yaml import yaml_dump

from ...core.errors import GpuOpsError
from ..startup_taint import tolerations
from .kinds import RBAC

Object = Dict[str, Any]
Parameters = Mapping[str, Any]

NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "gpuops.nvidia.com/component"
CHECKSUM = "gpuops.nvidia.com/config-checksum"
OURS = "gpuops"
# Of a whole cluster: https://kubernetes.io/docs/setup/best-practices/cluster-large/
MOST_PODS = 150000
# Pod Security Admission's modes; pods that read their node's devices and files are for privileged namespaces
POD_SECURITY = ("enforce", "audit", "warn")


def group(options: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """The specification of an option whose keys have types and defaults of their own."""
    return {"type": "dict", "options": dict(options),
            "default": {name: option.get("default") for name, option in options.items()}}


SHARED_ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "namespace": {"type": "str", "default": "gpuops"},
    "runtime_class": {"type": "str", "default": "nvidia"},
    "runtime_handler": {"type": "str", "default": "nvidia"},
    "runtime_class_scheduling": group({
        "node_selector": {"type": "dict", "default": {}},
        "tolerations": {"type": "list", "elements": "dict", "default": []},
    }),
    "registry": {"type": "str", "default": ""},
    "image_pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "adopt": {"type": "bool", "default": False},
    "patches": {"type": "list", "elements": "dict", "default": [], "options": {
        "kind": {"type": "str", "required": True},
        "name": {"type": "str", "required": True},
        "patch": {"type": "dict", "required": True},
    }},
    "wait_timeout": {"type": "int", "default": 180},
}

GPU_TOLERATION: Dict[str, Any] = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}
# Of programs that write nothing but what is mounted for them
CONFINED: Dict[str, Any] = {
    "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
# Of programs that need nothing of their node but files to read
UNPRIVILEGED: Dict[str, Any] = {**CONFINED, "runAsNonRoot": True}
# The parts of an object that two components can say otherwise: {field: option}
_SHARED_FIELDS = {"handler": "runtime_handler", "scheduling": "runtime_class_scheduling"}
# A host, a port, a path, as in the name of an image
_PREFIX = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?(:[0-9]+)?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def pod_arguments(
    repository: str, tag: str, node_selector: Mapping[str, str], update_strategy: Mapping[str, Any],
    resources: Mapping[str, Any], tolerations: List[Dict[str, Any]],
) -> Dict[str, Any]:
    """Options that every component with pods has."""
    return {
        "image": group({
            "repository": {"type": "str", "default": repository},
            "tag": {"type": "str", "default": tag},
            "digest": {"type": "str", "default": ""},
        }),
        "image_pull_policy": {"type": "str", "choices": ["Always", "IfNotPresent", "Never"], "default": "IfNotPresent"},
        "node_selector": {"type": "dict", "default": dict(node_selector)},
        "affinity": {"type": "dict", "default": {}},
        "tolerations": {"type": "list", "elements": "dict", "default": tolerations},
        "startup_taint": {"type": "str", "default": ""},
        "priority_class": {"type": "str", "default": "system-node-critical"},
        "resource_quota": group({
            "enabled": {"type": "bool", "default": False},
            "pods": {"type": "int", "default": MOST_PODS},
        }),
        "pod_annotations": {"type": "dict", "default": {}},
        "pod_labels": {"type": "dict", "default": {}},
        "update_strategy": {"type": "dict", "default": dict(update_strategy)},
        "resources": {"type": "dict", "default": dict(resources)},
    }


def shared_objects(parameters: Parameters) -> List[Object]:
    """What all components of a cluster share: the Namespace and the RuntimeClass.

    parameters: those of any component; `namespace`, `runtime_class`, `runtime_handler` and `runtime_class_scheduling`
    of them.
    """
    ours = {MANAGED_BY: OURS, PART_OF: OURS}
    security = {"pod-security.kubernetes.io/%s" % mode: "privileged" for mode in POD_SECURITY}
    return [
        {"apiVersion": "v1", "kind": "Namespace",
         "metadata": {"name": parameters["namespace"], "labels": {**ours, **security}}},
        {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
         "metadata": {"name": parameters["runtime_class"], "labels": ours}, "handler": parameters["runtime_handler"],
         **scheduling(parameters)},
    ]


def scheduling(parameters: Parameters) -> Dict[str, Any]:
    """What a RuntimeClass adds to the pods that name it; nothing where nothing is asked for.

    https://kubernetes.io/docs/concepts/containers/runtime-class/#scheduling
    """
    given = parameters["runtime_class_scheduling"]
    parts = {"nodeSelector": given.get("node_selector"), "tolerations": given.get("tolerations")}
    found = {name: part for name, part in parts.items() if part}
    return {"scheduling": found} if found else {}


def shared_of(components: Mapping[str, Parameters]) -> List[Object]:
    """What these components share, each object once. components: {name: its parameters}; they may be in several
    namespaces.

    Raises GpuOpsError where two of them say different things of one object: each would undo the other's.
    """
    found: Dict[str, Object] = {}
    first: Dict[str, str] = {}
    for name, parameters in components.items():
        for made in shared_objects(parameters):
            key = "%s %s" % (made["kind"], made["metadata"]["name"])
            known = found.setdefault(key, made)
            first.setdefault(key, name)
            for part, option in _SHARED_FIELDS.items():
                if known.get(part) != made.get(part):
                    raise GpuOpsError(
                        "cluster.components_disagree",
                        found="%s is to have the %s %s for %s and %s for %s" % (
                            key, part, _shown(known.get(part)), first[key], _shown(made.get(part)), name),
                        wanted="one word for all components, as they share it",
                        remedy="set `%s` alike for both, or give one of them another `runtime_class`" % option,
                        option=option)
    return list(found.values())


def _shown(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, sort_keys=True)


def labels(app: str) -> Dict[str, str]:
    return {NAME: app, PART_OF: OURS, MANAGED_BY: OURS}


def selector(app: str) -> Dict[str, str]:
    """What a workload knows its pods by. Kubernetes never lets it change."""
    return {NAME: app, PART_OF: OURS}


def cluster_object(api: str, kind: str, name: str, app: str, **body: Any) -> Object:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels(app)}, **body}


def namespaced(api: str, kind: str, name: str, app: str, parameters: Parameters, **body: Any) -> Object:
    metadata = {"name": name, "namespace": parameters["namespace"], "labels": labels(app)}
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **body}


def service_account(name: str, parameters: Parameters) -> Object:
    """An account whose token is mounted only in pods that ask for it."""
    return namespaced("v1", "ServiceAccount", name, name, parameters, automountServiceAccountToken=False)


def resource_quota(app: str, parameters: Parameters) -> List[Object]:
    """Leave for the component's priority class in its namespace, where an administrator has limited that class.

    An API server whose admission configuration limits a class (`limitedResources` of the plugin ResourceQuota) takes
    pods of it only where a quota is scoped to it:
    https://kubernetes.io/docs/concepts/policy/resource-quotas/#limit-priority-class-consumption-by-default
    """
    quota, priority_class = parameters["resource_quota"], parameters["priority_class"]
    if not quota["enabled"] or not priority_class:
        return []
    return [namespaced("v1", "ResourceQuota", app, app, parameters, spec={
        "hard": {"pods": str(quota["pods"])},
        "scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": [priority_class]}]}})]


def role(account: str, parameters: Parameters, rules: List[Dict[str, Any]]) -> List[Object]:
    """A Role of the account's name, and its binding to the account."""
    return [
        namespaced(RBAC + "/v1", "Role", account, account, parameters, rules=rules),
        namespaced(RBAC + "/v1", "RoleBinding", account, account, parameters,
                   roleRef={"apiGroup": RBAC, "kind": "Role", "name": account},
                   subjects=[_account(account, parameters)]),
    ]


def cluster_role(account: str, parameters: Parameters, rules: List[Dict[str, Any]]) -> List[Object]:
    """A ClusterRole with our name before the account's, as a cluster has many, and its binding to the account."""
    name = "%s-%s" % (OURS, account)
    return [
        cluster_object(RBAC + "/v1", "ClusterRole", name, account, rules=rules),
        cluster_object(RBAC + "/v1", "ClusterRoleBinding", name, account,
                       roleRef={"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
                       subjects=[_account(account, parameters)]),
    ]


def _account(name: str, parameters: Parameters) -> Dict[str, str]:
    return {"kind": "ServiceAccount", "name": name, "namespace": parameters["namespace"]}


def rule(api_group: str, resources: List[str], verbs: List[str], names: Iterable[str] = ()) -> Dict[str, Any]:
    """One rule of a role. names: of the only objects that it is about."""
    only = {"resourceNames": list(names)} if names else {}
    return {"apiGroups": [api_group], "resources": resources, "verbs": verbs, **only}


def config_map(name: str, parameters: Parameters, data: Mapping[str, str]) -> Object:
    return namespaced("v1", "ConfigMap", name, name, parameters, data=dict(data))


def as_yaml(value: Any) -> str:
    return str(yaml_dump(value, indent=4, allow_unicode=True, default_flow_style=False, sort_keys=True))


def checksum(value: Any) -> Dict[str, str]:
    """The annotation that makes new pods of what they read only when they start."""
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return {CHECKSUM: hashlib.sha256(text.encode()).hexdigest()}


def image_of(parameters: Parameters, arguments: Mapping[str, Any]) -> str:
    """The reference of a component's image. A digest decides instead of the tag.

    Raises GpuOpsError where there is neither, or where a part is not of the form that a registry takes.
    """
    image, registry = parameters["image"], parameters["registry"].rstrip("/")
    repository = image.get("repository") or ""
    if registry and not _PREFIX.fullmatch(registry):
        raise GpuOpsError(
            "cluster.registry_malformed", found="`registry` is %r" % registry,
            wanted="a host, with a port and a path where there are any, such as mirror.example:5000/nvidia",
            remedy="correct `registry`; it has no scheme", option="registry")
    if registry and repository == arguments["image"]["default"]["repository"]:
        repository = "%s/%s" % (registry, repository.partition("/")[2])
    if image.get("digest"):
        if not _DIGEST.fullmatch(image["digest"]):
            raise _no_image("the digest %r" % image["digest"])
        return "%s@%s" % (repository, image["digest"])
    if not repository or not image.get("tag"):
        raise _no_image("the repository %r and the tag %r" % (repository, image.get("tag") or ""))
    return "%s:%s" % (repository, image["tag"])


def _no_image(found: str) -> GpuOpsError:
    return GpuOpsError(
        "cluster.image_malformed", found="in `image`: %s" % found,
        wanted="a repository, and a tag or a digest such as sha256:0123... of 64 digits",
        remedy="correct `image`", option="image")


def container(name: str, image: str, parameters: Parameters, **more: Any) -> Dict[str, Any]:
    """A container with what every one has. image: its reference, as image_of() says it."""
    return {"name": name, "image": image, "imagePullPolicy": parameters["image_pull_policy"],
            "resources": parameters["resources"], **more}


def environment(ours: Mapping[str, Any], given: Optional[Mapping[str, Any]] = None) -> List[Dict[str, Any]]:
    """The variables of a container, ours first. A mapping among ours says where a value comes from; given ones win."""
    given = given or {}
    rest = {name: value for name, value in ours.items() if name not in given}
    return [{"name": name, **({"valueFrom": value} if isinstance(value, Mapping) else {"value": value})}
            for name, value in rest.items()] + [
        {"name": name, "value": _variable(given[name])} for name in sorted(given)]


def _variable(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def field(path: str) -> Dict[str, Any]:
    """A variable's value from a field of its pod."""
    return {"fieldRef": {"fieldPath": path}}


def mount(name: str, path: str, read_only: bool = False, propagation: str = "") -> Dict[str, Any]:
    found: Dict[str, Any] = {"name": name, "mountPath": path}
    if read_only:
        found["readOnly"] = True
    if propagation:
        found["mountPropagation"] = propagation
    return found


def host_path(name: str, path: str, kind: str = "") -> Dict[str, Any]:
    """A volume of the node's. kind: what must be there ('Directory'), or is made ('DirectoryOrCreate')."""
    return {"name": name, "hostPath": {"path": path, "type": kind} if kind else {"path": path}}


def config_volume(name: str, config: str) -> Dict[str, Any]:
    return {"name": name, "configMap": {"name": config}}


def pod_spec(
    parameters: Parameters, account: str, containers: List[Dict[str, Any]], volumes: Iterable[Dict[str, Any]] = (),
    token: bool = False, node_selector: Optional[Mapping[str, str]] = None,
    affinity: Optional[Mapping[str, Any]] = None, **more: Any,
) -> Dict[str, Any]:
    """A pod's specification. What is empty is left out, as the API server would leave it out of its answer."""
    spec: Dict[str, Any] = {
        "serviceAccountName": account,
        "automountServiceAccountToken": token,
        "enableServiceLinks": False,
        "containers": containers,
    }
    optional = {
        "priorityClassName": parameters["priority_class"],
        "nodeSelector": dict(parameters["node_selector"] if node_selector is None else node_selector),
        "affinity": dict(parameters["affinity"] if affinity is None else affinity),
        "tolerations": [*parameters["tolerations"], *tolerations(parameters["startup_taint"])],
        "imagePullSecrets": pull_secrets(parameters),
        "volumes": list(volumes),
        **more,
    }
    return {**spec, **{key: value for key, value in optional.items() if value}}


def pull_secrets(parameters: Parameters) -> List[Dict[str, str]]:
    return [{"name": name} for name in parameters["image_pull_secrets"]]


def pod_template(
    app: str, parameters: Parameters, spec: Dict[str, Any], annotations: Optional[Mapping[str, str]] = None
) -> Dict[str, Any]:
    """Raises GpuOpsError where the user's labels or annotations are some that are ours."""
    ours, theirs = labels(app), parameters["pod_labels"]
    _refuse_taken("pod_labels", theirs, ours)
    metadata: Dict[str, Any] = {"labels": {**theirs, **ours}}
    _refuse_taken("pod_annotations", parameters["pod_annotations"], annotations or {})
    if annotations or parameters["pod_annotations"]:
        metadata["annotations"] = {**parameters["pod_annotations"], **(annotations or {})}
    return {"metadata": metadata, "spec": spec}


def _refuse_taken(option: str, given: Mapping[str, Any], ours: Mapping[str, str]) -> None:
    taken = sorted(key for key in given if key in ours)
    if taken:
        raise GpuOpsError(
            "cluster.pod_metadata_of_ours", found="`%s` has %s" % (option, ", ".join(taken)),
            wanted="none that the component's objects carry already: workloads and Services find pods by them",
            remedy="take %s out of `%s`" % (", ".join(taken), option), option=option)


def daemon_set(name: str, parameters: Parameters, template: Dict[str, Any]) -> Object:
    strategy = dict(parameters["update_strategy"])
    if strategy.get("type") == "OnDelete":
        # It would be kept from the default, and means nothing there
        strategy.pop("rollingUpdate", None)
    spec: Dict[str, Any] = {"selector": {"matchLabels": selector(name)}, "template": template}
    if strategy:
        spec["updateStrategy"] = strategy
    return namespaced("apps/v1", "DaemonSet", name, name, parameters, spec=spec)


def deployment(name: str, parameters: Parameters, template: Dict[str, Any], replicas: int = 1) -> Object:
    return namespaced("apps/v1", "Deployment", name, name, parameters, spec={
        "replicas": replicas, "selector": {"matchLabels": selector(name)}, "template": template})
