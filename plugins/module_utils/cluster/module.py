# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From an Ansible module to the cluster and back: options in, result out, errors mapped once."""
from __future__ import annotations

from typing import Any, Callable, Dict

from ansible.module_utils.basic import AnsibleModule, env_fallback

from ..core.errors import GpuOpsError
from .client import Client, Connection, auth_argument_spec, secrets

Work = Callable[[Client, Dict[str, Any], bool], Dict[str, Any]]


def run_cluster_module(arguments: Dict[str, Any], work: Work) -> None:
    """Main function of a module: work(cluster, parameters, check_mode) gives the result's keys."""
    module = AnsibleModule(
        argument_spec=dict(arguments, **auth_argument_spec(env_fallback)), supports_check_mode=True
    )
    if isinstance(module.params["kubeconfig"], str):
        # Only a kubeconfig given as a dictionary holds secrets; errors must be able to name the file.
        module.no_log_values.discard(module.params["kubeconfig"])
    access = Connection.from_options(module.params)
    module.no_log_values.update(secrets(access))
    try:
        result = work(Client(access), module.params, module.check_mode)
    except GpuOpsError as error:
        module.fail_json(**error.result())
    for note in result.pop("warnings", ()):
        module.warn(note)
    if not module._diff:
        result.pop("diff", None)
    module.exit_json(**result)
