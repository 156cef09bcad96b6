# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parameters that the loaded modules do not have yet."""
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Sequence

from gpu_hosts import A100, facts
from test_activation import CONVERGED, PRESENT

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import executors, observation, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import Holder
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.parameters import PARAMETERS_FILE

V = "580.178.04"
RUNS = facts(A100, driver_installed=V, driver_boots=V, driver_userspace=V, driver_loaded=V)
WAITS = RUNS.but(parameters_differ=("nvidia.NVreg_EnableMSI=1",))


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


def test_a_value_that_the_driver_was_loaded_with_and_does_not_report_is_told_and_loaded_no_more() -> None:
    plan = planner.plan(replace(CONVERGED, taken=("nvidia.NVreg_EnableMSI=1",)), PRESENT, WAITS)
    assert not any(step.action == "module.unload" for step in plan.steps) and not plan.requirements
    assert "nvidia.NVreg_EnableMSI=1" in plan.notes[0]
    other = planner.plan(replace(CONVERGED, taken=("nvidia.NVreg_EnableMSI=0",)), PRESENT, WAITS)
    assert any(step.action == "module.unload" for step in other.steps)


class Loader(Host):
    """A scratch root whose driver takes the parameter, and reports another value."""

    def run(self, argv: Sequence[str], check: bool = True, **_options: Any) -> CommandResult:
        return CommandResult(tuple(argv), 0, "", "")

    def boot(self) -> str:
        return "boot"


def test_what_is_reported_otherwise_is_noted_by_who_has_loaded_it(tmp_path: Path) -> None:
    host = Loader(str(tmp_path))
    host.write(PARAMETERS_FILE, "options nvidia NVreg_EnableMSI=1 NVreg_DeviceFileMode=0666\n")
    host.write("/proc/driver/nvidia/params", "EnableMSI: 2\nDeviceFileMode: 438\n")
    host.write("/proc/uptime", "9.9 9.9\n")
    journal = Journal(host)
    assert observation.observe(host, journal, PRESENT, RUNS).taken == ()
    load = Step("activation", "module.load", "nvidia", "", parameters={"argv": ["modprobe", "nvidia"], "timeout": 9})
    executors.EXECUTORS["module.load"](host, journal, load)
    assert observation.observe(host, journal, PRESENT, RUNS).taken == ("nvidia.NVreg_EnableMSI=1",)


def test_a_boot_has_loaded_what_was_written_before_it(tmp_path: Path) -> None:
    host = Loader(str(tmp_path))
    host.write(PARAMETERS_FILE, "options nvidia NVreg_EnableMSI=1\n")
    host.write("/proc/driver/nvidia/params", "EnableMSI: 2\n")
    host.write("/proc/uptime", "60.0 9.9\n")
    os.utime(host.path(PARAMETERS_FILE), (1, 1))
    assert observation.observe(host, Journal(host), PRESENT, RUNS).taken == ("nvidia.NVreg_EnableMSI=1",)
