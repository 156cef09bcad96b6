# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.drain.carrying_out import drain_node
from ..module_utils.cluster.drain.policy import ARGUMENTS, policy_of
from ..plugin_utils.cluster_action import ClusterAction
from ..plugin_utils.following import on_screen


class ActionModule(ClusterAction):
    """Drains a node, of the pods that use GPUs or of all."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {"node": {"type": "str", "required": True}, **ARGUMENTS}

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        return drain_node(cluster, options["node"], policy_of(options), check_mode, tell=on_screen)
