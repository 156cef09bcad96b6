# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.components.registry import COMPONENTS
from ..module_utils.cluster.labels import NodePolicy
from ..module_utils.cluster.node_changes import change_node
from ..module_utils.cluster.placement import admits
from ..plugin_utils.cluster_action import ClusterAction
from ..plugin_utils.component_variables import pods_on_nodes

# Of those on nodes it is told whether this one admits them; the rest is the policy
ADMITTED = "components"


class ActionModule(ClusterAction):
    """Changes a Node."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "name": {"type": "str", "required": True},
        "cordoned": {"type": "bool"},
        "owner": {"type": "str", "default": "gpuops"},
        "reason": {"type": "str", "default": ""},
        "labels": {"type": "dict", "default": {}},
        "unset_labels": {"type": "list", "elements": "str", "default": []},
        "purge_labels": {"type": "bool", "default": False},
        "keep_labels": {"type": "list", "elements": "str", "default": []},
        "take_over": {"type": "bool", "default": False},
        "features": {"type": "dict"},
        "startup_taint": {"type": "str", "default": ""},
        "tainted": {"type": "bool"},
        ADMITTED: {"type": "list", "elements": "str", "choices": list(COMPONENTS), "default": []},
    }

    # Of the task's host
    _variables: Mapping[str, Any] = {}

    def answer(self, task_vars: Mapping[str, Any]) -> Dict[str, Any]:
        self._variables = task_vars
        return super().answer(task_vars)

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        wanted = {name: options[name] for name in self.ARGUMENTS if name not in ("name", ADMITTED)}
        # YAML's true is meant as the label value "true".
        wanted["labels"] = {key: str(value).lower() if isinstance(value, bool) else str(value)
                            for key, value in wanted["labels"].items()}
        told = change_node(cluster, options["name"], NodePolicy(**wanted), check_mode)
        if options[ADMITTED]:
            node = {"metadata": {"name": options["name"], "labels": told["node"]["labels"]}}
            told["admitted"] = [name for name in options[ADMITTED] if any(
                admits(node, pod) for pod in pods_on_nodes(name, self._variables, self._templar))]
        return told
