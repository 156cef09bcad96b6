# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What objects of all components have in common, written once: options, labels, images, parts of pods. Pure."""
from __future__ import annotations

from typing import Any, Dict, List, Mapping

Object = Dict[str, Any]
Parameters = Mapping[str, Any]

NAME = "app.kubernetes.io/name"
PART_OF = "app.kubernetes.io/part-of"
MANAGED_BY = "app.kubernetes.io/managed-by"
COMPONENT = "gpuops.nvidia.com/component"
OURS = "gpuops"

SHARED_ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "namespace": {"type": "str", "default": "gpuops"},
    "runtime_class": {"type": "str", "default": "nvidia"},
    "runtime_handler": {"type": "str", "default": "nvidia"},
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


def group(options: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """The specification of an option whose keys have types and defaults of their own."""
    return {"type": "dict", "options": dict(options),
            "default": {name: option.get("default") for name, option in options.items()}}


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
        "priority_class": {"type": "str", "default": "system-node-critical"},
        "pod_annotations": {"type": "dict", "default": {}},
        "pod_labels": {"type": "dict", "default": {}},
        "update_strategy": {"type": "dict", "default": dict(update_strategy)},
        "resources": {"type": "dict", "default": dict(resources)},
    }


def shared_objects(parameters: Parameters) -> List[Object]:
    """What all components of a cluster share: the Namespace and the RuntimeClass."""
    raise NotImplementedError
