# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, ClassVar, Dict, Mapping

from ..module_utils.cluster.client import Client
from ..module_utils.cluster.observation import observe, wait_for_resources, wait_for_rollout
from ..plugin_utils.cluster_action import ClusterAction


class ActionModule(ClusterAction):
    """Reads the cluster."""

    ARGUMENTS: ClassVar[Mapping[str, Any]] = {
        "label_selector": {"type": "str", "default": ""},
        "namespace": {"type": "str", "default": ""},
        "namespace_contents": {"type": "bool", "default": False},
        "runtime_class": {"type": "str", "default": ""},
        "expected_allocatable": {"type": "dict", "default": {}},
        "rolled_out": {"type": "list", "elements": "str", "default": []},
        "wait_timeout": {"type": "int", "default": 120},
    }

    def work(self, cluster: Client, options: Mapping[str, Any], check_mode: bool) -> Dict[str, Any]:
        if options["rolled_out"]:
            wait_for_rollout(cluster, options["namespace"], options["rolled_out"], options["wait_timeout"])
        if options["expected_allocatable"]:
            wait_for_resources(cluster, options["expected_allocatable"], options["wait_timeout"])
        found = observe(cluster, options["label_selector"], options["namespace"], options["runtime_class"],
                        options["namespace_contents"])
        return dict(found, changed=False)
