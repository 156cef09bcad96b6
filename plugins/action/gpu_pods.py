# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.drain.observation import read_users
from ..module_utils.cluster.drain.policy import ARGUMENTS as OF_DRAINS
from ..module_utils.cluster.drain.policy import policy_of
from ..module_utils.cluster.observation import wait_for_components_gone
from ..plugin_utils.cluster_action import ClusterAction


class ActionModule(ClusterAction):
    """Lists the pods that use GPUs."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "node": {"type": "str", "default": ""},
        "wait_for_components": {"type": "int", "default": 0},
        "holders": OF_DRAINS["holders"],
        "gpu_resources": OF_DRAINS["gpu_resources"],
    }

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        if options["wait_for_components"]:
            wait_for_components_gone(cluster, options["node"], options["wait_for_components"])
        users = read_users(cluster, options["node"], policy_of(options))
        return {"changed": False, "pods": [dict(pod.result(), uses=list(ways)) for pod, ways in users]}
