# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.eviction import read_gpu_pods
from ..module_utils.cluster.observation import wait_for_components_gone
from ..plugin_utils.cluster_action import ClusterAction


class ActionModule(ClusterAction):
    """Lists the pods that hold GPUs."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "node": {"type": "str", "default": ""},
        "wait_for_components": {"type": "int", "default": 0},
    }

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        if options["wait_for_components"]:
            wait_for_components_gone(cluster, options["node"], options["wait_for_components"])
        return {"changed": False, "pods": [pod.result() for pod in read_gpu_pods(cluster, options["node"])]}
