# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from ..core.module import run_reader
from ..registry import CAPABILITIES, plan_host

# The action plugin's own: they never reach the host.
OF_CONTROLLER = {
    "approved_from": {"type": "path"},
    "save_to": {"type": "path"},
    "show": {"type": "bool", "default": False},
}


def main() -> None:
    arguments = {capability.name: {"type": "dict"} for capability in CAPABILITIES}
    own = {"approved_plan": {"type": "dict"}, "lock_timeout": {"type": "int", "default": 600}}
    run_reader(dict(arguments, **own, **OF_CONTROLLER), plan_host, as_root=True)
