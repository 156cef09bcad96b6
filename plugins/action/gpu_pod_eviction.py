# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.eviction import evict_gpu_pods
from ..plugin_utils.cluster_action import ClusterAction


class ActionModule(ClusterAction):
    """Evicts the pods that hold GPUs."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "node": {"type": "str", "required": True},
        "pods": {"type": "list", "elements": "str"},
        "force": {"type": "bool", "default": False},
        "delete_emptydir_data": {"type": "bool", "default": False},
        "grace_period": {"type": "int"},
        "timeout": {"type": "int", "default": 300},
    }

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        return evict_gpu_pods(cluster, dry_run=check_mode, **{name: options[name] for name in self.ARGUMENTS})
