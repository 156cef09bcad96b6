# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, Dict, List

from ansible.errors import AnsibleActionFail

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.capability_action import CapabilityAction
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.cluster_validation import ClusterScope, validate_cluster


class ActionModule(CapabilityAction):
    """The scope 'host' is the module's; the scope 'cluster' is checked from here, over the API."""

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        scope = self._task.args.get("scope", ["host"])
        scope = [scope] if isinstance(scope, str) else list(scope)
        if not set(scope) <= {"host", "cluster"} or not scope:
            raise AnsibleActionFail(
                "Found: scope %s. Wanted: a list of 'host' and 'cluster'. Do: name one or both." % scope
            )
        result: Dict[str, Any] = {"changed": False, "checks": []}
        if "host" in scope:
            result = super().run(tmp, task_vars)
            if result.get("failed"):
                return result
        if "cluster" in scope:
            return self._with_cluster(result, controller_only="host" not in scope)
        return result

    def _with_cluster(self, result: Dict[str, Any], controller_only: bool) -> Dict[str, Any]:
        checks: List[Dict[str, Any]] = list(result.get("checks", []))
        try:
            validated = validate_cluster(ClusterScope.from_arguments(self._task.args), self._task.check_mode)
        except GpuOpsError as error:
            failure = error.result()
            checks += failure.pop("checks", [])
            return dict(result, failed=True, checks=checks, controller_only=controller_only, **failure)
        return dict(result, checks=checks + [check.to_dict() for check in validated], controller_only=controller_only)
