# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Counts, host by host, the tasks that really went to the host: what a converged fleet costs."""
from __future__ import annotations

import json
import os
from collections import defaultdict
from typing import Any, Dict, List

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
    name: remote_calls
    type: aggregate
    short_description: count remote calls
    description: Writes the modules that were called on each host to the JSON file REMOTE_CALLS_FILE.
    requirements: []
"""

# Actions that never open a connection to the host
CONTROLLER_ONLY = {
    "add_host", "assert", "debug", "fail", "group_by", "include_role", "include_tasks", "include_vars", "import_role",
    "import_tasks", "meta", "pause", "set_fact", "set_stats", "validate_argument_spec",
    "dcgm_exporter", "device_plugin", "gpu_cluster_info", "gpu_components", "gpu_feature_discovery", "gpu_fleet_plan",
    "gpu_fleet_progress", "gpu_node", "gpu_node_custody", "gpu_pod_eviction", "gpu_pods", "gpu_rollout",
    "node_feature_discovery",
}


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "remote_calls"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.calls: Dict[str, List[str]] = defaultdict(list)

    def _count(self, result: Any, **unused: Any) -> None:
        action = result._task.action.rsplit(".", 1)[-1]
        delegate = result._task.delegate_to
        if action in CONTROLLER_ONLY or (delegate and delegate != result._host.get_name()):
            return
        if result._result.get("controller_only"):
            return
        self.calls[result._host.get_name()] += [action] * len(result._result.get("results", [None]))

    v2_runner_on_ok = _count
    v2_runner_on_failed = _count
    v2_runner_on_unreachable = _count

    def v2_playbook_on_stats(self, stats: Any) -> None:
        with open(os.environ["REMOTE_CALLS_FILE"], "w", encoding="utf-8") as handle:
            json.dump(self.calls, handle)
