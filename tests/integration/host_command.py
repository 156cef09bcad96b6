# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command gpuops on a host of any distribution."""
from __future__ import annotations

from typing import Any, Mapping

from laboratory import Fleet, succeeded

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import canonical


def assert_command_brings_the_driver(fleet: Fleet, host: str, driver: Mapping[str, Any]) -> None:
    """What a controller would plan, the command on the host plans and does, by the host's own package manager.

    driver: options of gpu_driver. The command goes again, the driver stays.
    """
    wanted = {"gpu_driver_" + name: value for name, value in driver.items()}
    wanted.update(node_agent_state="present", container_toolkit_state="absent", container_runtime_state="absent",
                  gpu_validation_expected_gpus=2)
    agent = [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_agent"}}]
    asked = succeeded(fleet.tasks(host, [*agent, {"gpuops.nvidia.gpu_plan": {"from_variables": True}}], **wanted))
    code, told = fleet.gpuops(host, "plan")
    assert code == 0 and canonical(told["plan"]) == canonical(asked.result(host, "gpu_plan")["plan"])
    assert "packages.install" in [step["action"] for step in told["plan"]["steps"]]
    code, told = fleet.gpuops(host, "apply")
    assert code == 0, told
    code, told = fleet.gpuops(host, "plan")
    assert code == 0 and told["converged"], told
    wanted["node_agent_state"] = "absent"
    succeeded(fleet.tasks(host, agent, **wanted))
