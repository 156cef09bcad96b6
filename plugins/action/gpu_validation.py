# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any, Dict, List

from ansible.module_utils.basic import env_fallback
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.common.parameters import remove_values
from ansible.module_utils.parsing.convert_bool import boolean

from ..module_utils.cluster.client import Connection, auth_argument_spec, secrets
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.validation.arguments import ARGUMENTS, OF_HOST
from ..plugin_utils.capability_action import CapabilityAction
from ..plugin_utils.cluster_action import FROM_VARIABLES, environment, environment_of
from ..plugin_utils.cluster_validation import ClusterScope, validate_cluster
from ..plugin_utils.clusters import connection
from ..plugin_utils.plugin_configuration import configuration_of
from ..plugin_utils.role_variables import worked_out

PLUGIN_CONFIG = "device_plugin_config"


class ActionModule(CapabilityAction):
    """The scope 'host' is the module's; the scope 'cluster' is checked from here, over the API.

    Options are checked here, once for both scopes, so that the host is sent only what it needs.
    """

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        with environment(environment_of(self)):
            return super().run(tmp, task_vars)

    def _given(self, task_vars: Any) -> Dict[str, Any]:
        given = super()._given(task_vars)
        if boolean(self._task.args.get(FROM_VARIABLES) or False):
            of_host = connection(lambda name: worked_out(name, task_vars.get(name), self._templar))
            given = {**of_host, **given}
            # Only what the cluster offers is judged by it
            if PLUGIN_CONFIG not in given and "cluster" in _checked(given)["scope"]:
                given[PLUGIN_CONFIG] = configuration_of(task_vars, self._templar)
        return _checked(given)

    def _run(self, task_vars: Any) -> Dict[str, Any]:
        result: Dict[str, Any] = {"changed": False, "checks": []}
        if "host" in self._options["scope"]:
            result = super()._run(task_vars)
            if result.get("failed"):
                return result
        if "cluster" in self._options["scope"]:
            return self._with_cluster(result, controller_only="host" not in self._options["scope"])
        return result

    def for_host(self) -> Dict[str, Any]:
        return {name: self._options[name] for name in OF_HOST if self._options[name] is not None}

    def _with_cluster(self, result: Dict[str, Any], controller_only: bool) -> Dict[str, Any]:
        checks: List[Dict[str, Any]] = list(result.get("checks", []))
        failure: Dict[str, Any] = {}
        try:
            devices = self._options["devices"] or result.get("devices")
            scope = ClusterScope.from_options(dict(self._options, devices=devices))
            checks += [check.to_dict() for check in validate_cluster(scope, self._task.check_mode)]
        except GpuOpsError as error:
            failure = dict(error.result(), failed=True)
            checks += failure.pop("checks", [])
        told: Dict[str, Any] = remove_values(dict(result, checks=checks, controller_only=controller_only, **failure),
                                             secrets(Connection.from_options(self._options)))
        return told


def _checked(given: Dict[str, Any]) -> Dict[str, Any]:
    """The options as the module would have them: checked, converted, with defaults and what the environment sets."""
    validator = ArgumentSpecValidator(dict(ARGUMENTS, **auth_argument_spec(env_fallback)))
    result = validator.validate(dict(given))
    if result.error_messages or not result.validated_parameters["scope"]:
        raise GpuOpsError(
            "validation.options_malformed",
            found="; ".join(result.error_messages) or "an empty scope",
            wanted="the options of gpuops.nvidia.gpu_validation",
            remedy="correct them; `ansible-doc gpuops.nvidia.gpu_validation` describes each",
        )
    return dict(result.validated_parameters)
