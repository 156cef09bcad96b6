# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import time
from typing import Any, Dict, List, Mapping, Optional

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
from ..plugin_utils.clusters import NODE_NAME, PlayVariables, connection
from ..plugin_utils.many_hosts import HOSTS, Clients, for_hosts
from ..plugin_utils.plugin_configuration import CHOSEN, CONFIG, CONFIGS, configuration_of
from ..plugin_utils.role_variables import SOURCES, VALIDATION, specified, worked_out

OF_CONFIGURATION = (CONFIG, CONFIGS, CHOSEN)


class ActionModule(CapabilityAction):
    """The scope 'host' is the module's; the scope 'cluster' is checked from here, over the API.

    Options are checked here, once for both scopes, so that the host is sent only what it needs.
    """

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        began = time.time()
        with environment(environment_of(self)):
            return {**super().run(tmp, task_vars), "began": began}

    def _given(self, task_vars: Any) -> Dict[str, Any]:
        if self._task.args.get(HOSTS) is not None:
            return _checked(self._task.args)
        given = super()._given(task_vars)
        if boolean(self._task.args.get(FROM_VARIABLES) or False):
            of_host = connection(lambda name: worked_out(name, task_vars.get(name), self._templar))
            given = {**of_host, **given}
            # Only what the cluster offers is judged by it
            if CONFIG not in given and "cluster" in _checked(given)["scope"]:
                given[CONFIG] = configuration_of(task_vars, self._templar)
        return _checked(given)

    def _run(self, task_vars: Any) -> Dict[str, Any]:
        if self._options[HOSTS] is not None:
            return self._of_hosts(task_vars)
        result: Dict[str, Any] = {"changed": False, "checks": []}
        if "host" in self._options["scope"]:
            result = super()._run(task_vars)
            if result.get("failed"):
                return result
        if "cluster" in self._options["scope"]:
            return self._with_cluster(self._options, result, Clients())
        return result

    def for_host(self) -> Dict[str, Any]:
        return {name: self._options[name] for name in OF_HOST if self._options[name] is not None}

    def _of_hosts(self, task_vars: Any) -> Dict[str, Any]:
        """What the clusters offer of many hosts."""
        if self._options["scope"] != ["cluster"]:
            raise GpuOpsError(
                "validation.hosts_from_controller",
                found="`hosts` with the scope %s" % ", ".join(self._options["scope"]),
                wanted="the scope `cluster`, which is checked from the controller",
                remedy="set `scope: [cluster]`, or leave `hosts` out",
            )
        given = {name: value for name, value in self._task.args.items() if name not in (HOSTS, FROM_VARIABLES)}
        variables, clients, began = PlayVariables(task_vars, self._templar, self._task), Clients(), time.monotonic()

        def options_of(host: str) -> Dict[str, Any]:
            options = {**variables.of_role(host, VALIDATION, SOURCES).options(VALIDATION), **given}
            if CONFIG not in options:
                options[CONFIG] = configuration_of(variables.of(host), self._templar)
            return options

        def validated(options: Dict[str, Any], node: str) -> Dict[str, Any]:
            return self._with_cluster(_checked({**options, "node_name": node}), {"changed": False}, clients, began)

        return {**for_hosts(variables, self._options[HOSTS], VALIDATION, [*specified(VALIDATION), *OF_CONFIGURATION],
                            options_of, NODE_NAME, validated), "controller_only": True}

    def _with_cluster(
        self, options: Mapping[str, Any], of_host: Mapping[str, Any], clients: Clients, since: Optional[float] = None
    ) -> Dict[str, Any]:
        """The result with what the cluster shows. of_host: that of the scope 'host', where that is asked for too.

        since: as of validate_cluster().
        """
        checks: List[Dict[str, Any]] = list(of_host.get("checks", []))
        more: Dict[str, Any] = {}
        try:
            scope = ClusterScope.from_options(dict(options, devices=options["devices"] or of_host.get("devices"),
                                                   proof=options["proof"] or of_host.get("proof") or {}))
            found, proof = validate_cluster(clients.to(scope.access), scope, self._task.check_mode, since)
            more.update(proof=proof, proof_is_new=bool(scope.proof) and proof != scope.proof)
            checks += [check.to_dict() for check in found]
        except GpuOpsError as error:
            more = dict(error.result(), failed=True)
            checks += more.pop("checks", [])
        told: Dict[str, Any] = remove_values(
            {**of_host, **more, "checks": checks, "controller_only": "host" not in options["scope"]},
            secrets(Connection.from_options(options)))
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
