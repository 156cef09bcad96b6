# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The configuration of the device plugin that a host has: what its variables say, as the plugin gets it."""
from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

from ..module_utils.cluster.components.merging import merged
from ..module_utils.cluster.plugin_config import DEFAULT, completed
from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.refusal import Refusal
from .role_variables import worked_out

CONFIG = "device_plugin_config"
CONFIGS = "device_plugin_configs"
CHOSEN = "device_plugin_config_name"


def configuration_of(task_vars: Mapping[str, Any], templar: Any) -> Dict[str, Any]:
    """Of the host that these variables are of. Raises GpuOpsError where it cannot be: see completed()."""
    templar = templar.copy_with_new_env(available_variables=task_vars)
    config, configs, name = (worked_out(each, task_vars.get(each), templar) for each in (CONFIG, CONFIGS, CHOSEN))
    base = merged(DEFAULT, config or {})
    if not name:
        return completed({}, base)
    if name not in (configs or {}):
        raise GpuOpsError.because([unknown_choice(
            CHOSEN, str(name), [str(task_vars["inventory_hostname"])], CONFIGS, configs or {})])
    return completed(configs[name] or {}, base)


def unknown_choice(variable: str, name: str, hosts: Sequence[str], choices: str, known: Mapping[str, Any]) -> Refusal:
    """Why hosts cannot have what they choose by a name. choices: the variable that has what can be chosen."""
    return Refusal(
        "cluster.unknown_choice",
        "`%s` is %s on %s" % (variable, name, ", ".join(hosts)),
        "one of the names in `%s`: %s" % (choices, ", ".join(sorted(known)) or "it has none"),
        "correct the name, or add it to `%s`" % choices,
    )
