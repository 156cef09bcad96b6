# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parameters that the loaded modules do not have yet."""
from __future__ import annotations

from dataclasses import replace

from gpu_hosts import A100, facts
from test_activation import CONVERGED, PRESENT

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import Holder

V = "580.178.04"
RUNS = facts(A100, driver_installed=V, driver_boots=V, driver_userspace=V, driver_loaded=V)
WAITS = RUNS.but(parameters_differ=("nvidia.NVreg_EnableMSI",))


def test_parameters_that_differ_are_loaded_by_an_exchange() -> None:
    plan = planner.plan(CONVERGED, PRESENT, WAITS)
    loads = [step for step in plan.steps if step.action == planner.LOAD]
    unloads = [step for step in plan.steps if step.action == "module.unload"]
    assert [step.subject for step in loads][0] == "nvidia"
    assert unloads[0].change["before"] == {"nvidia_uvm": V + " with another nvidia.NVreg_EnableMSI"}
    assert planner.facts_after(CONVERGED, PRESENT, WAITS, plan).parameters_differ == ()
    assert not any(step.action == "module.unload" for step in planner.plan(CONVERGED, PRESENT, RUNS).steps)


def test_who_holds_the_driver_makes_a_reboot_of_it() -> None:
    holder = Holder(pid=7, command="python", devices=("/dev/nvidia0",))
    plan = planner.plan(replace(CONVERGED, holders=(holder,)), PRESENT, WAITS)
    (requirement,) = plan.requirements
    assert plan.reboot_required
    assert "nvidia.NVreg_EnableMSI" in requirement.why


def test_nothing_is_unloaded_that_could_not_be_loaded_again() -> None:
    plan = planner.plan(CONVERGED, PRESENT, WAITS.but(driver_installed=""))
    assert not any(step.action == "module.unload" for step in plan.steps)
