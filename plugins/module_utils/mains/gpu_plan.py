# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from typing import Any

from ..core.host import Host
from ..core.module import run_reader
from ..core.rights import TO_READ, require_root
from ..hardware.pci import read_bus
from ..hardware.report import compact
from ..registry import CAPABILITIES, plan_host, secrets_of

# The action plugin's own: they never reach the host.
OF_CONTROLLER = {
    "approved_fleet": {"type": "str"},
    "approved_from": {"type": "path"},
    "brief": {"type": "bool", "default": False},
    "for_fleet": {"type": "bool", "default": False},
    "from_variables": {"type": "bool", "default": False},
    "only": {"type": "list", "elements": "str"},
    "save_to": {"type": "path"},
    "show": {"type": "bool", "default": False},
}


def read(host: Host, parameters: dict[str, Any]) -> dict[str, Any]:
    # Whether there is a GPU anybody may see
    if not parameters["gpus_only"] or read_bus(host).gpus:
        require_root(host, TO_READ)
    result = plan_host(host, parameters)
    return dict(result, ansible_facts={"gpuops": compact(result["observation"])})


def main() -> None:
    arguments = {capability.name: {"type": "dict"} for capability in CAPABILITIES}
    own = {
        "approved_plan": {"type": "raw"},
        "gpus_only": {"type": "bool", "default": False},
        "keep": {"type": "bool", "default": False},
        "lock_timeout": {"type": "int", "default": 600},
        "validation": {"type": "dict"},
    }
    run_reader(dict(arguments, **own, **OF_CONTROLLER), read, secrets_of)
