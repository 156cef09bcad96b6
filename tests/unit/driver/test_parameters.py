# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parameters of the kernel modules: written, compared with what is loaded, given back."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict

import pytest
from driver_world import World, made, policy
from gpu_hosts import A100, GB200, GH200, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.policy import policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.parameters import (
    COHERENT_MODE,
    PARAMETERS_FILE,
    configuration_files,
    differing,
    loaded_parameters,
    parameters_in,
    stale_parameters,
)

PROFILING = "nvidia.NVreg_RestrictProfilingToAdminUsers"
MODE = "nvidia.NVreg_CoherentGPUMemoryMode"
# As /proc/driver/nvidia/params has it
PARAMS = """\
ResmanDebugLevel: 4294967295
RestrictProfilingToAdminUsers: 1
CoherentGPUMemoryMode: "numa"
RegistryDwords: ""
"""


def written(plan: Any) -> str:
    """The options in our file of modprobe.d, '' where no step writes it."""
    texts = [step.change["after"] for step in plan.steps if step.subject == PARAMETERS_FILE and step.change["after"]]
    return "".join(line + "\n" for text in texts for line in text.splitlines() if not line.startswith("#"))


@pytest.mark.parametrize("given, text", [
    ({"NVreg_RestrictProfilingToAdminUsers": 0}, "options nvidia NVreg_RestrictProfilingToAdminUsers=0\n"),
    ({"nvidia-drm.modeset": False, "nvidia_uvm.uvm_debug_prints": "1"},
     "options nvidia-drm modeset=0\noptions nvidia-uvm uvm_debug_prints=1\n"),
    ({}, ""),
])
def test_parameters_are_options_of_their_modules(given: Dict[str, Any], text: str) -> None:
    assert written(made(World(), policy(module_parameters=given), facts(A100))) == text


def test_debians_own_module_has_the_name_of_its_file() -> None:
    wanted = policy_of({"source": "distribution", "module_parameters": {"NVreg_EnableMSI": 1, "nvidia-uvm.x": 2}})
    text = written(made(World(versions=("550.163.01",)), wanted, facts(A100)))
    assert text == "options nvidia-current NVreg_EnableMSI=1\noptions nvidia-current-uvm x=2\n"
    assert parameters_in(text) == {"nvidia.NVreg_EnableMSI": "1", "nvidia_uvm.x": "2"}


@pytest.mark.parametrize("name, value", [
    ("NVreg-X", "1"), ("NVreg_X=1 NVreg_Y", "1"), ("nouveau.modeset", "0"), ("NVreg_X", "a b"), ("NVreg_X", "1\nalias"),
    ("NVreg_X", ""), ("", "1"), ("NVreg_X\n", "1"), ("NVreg_X", "1\n"),
])
def test_what_is_no_parameter_is_refused(name: str, value: str) -> None:
    with pytest.raises(GpuOpsError) as error:
        policy(module_parameters={name: value})
    assert error.value.code == "driver.module_parameter_malformed"


def test_a_preinstalled_driver_is_left_as_it_is() -> None:
    with pytest.raises(GpuOpsError) as error:
        policy_of({"source": "preinstalled", "module_parameters": {"NVreg_EnableMSI": 1}})
    assert error.value.code == "driver.parameters_of_preinstalled"


def test_a_converged_host_has_nothing_to_do_and_absent_gives_back() -> None:
    world, there = World(), facts(A100)
    wanted = policy(module_parameters={"NVreg_EnableMSI": 1})
    world.apply(made(world, wanted, there))
    assert not made(world, wanted, there).steps
    changed = made(world, policy(module_parameters={"NVreg_EnableMSI": 0}), there)
    assert [step.subject for step in changed.steps] == [PARAMETERS_FILE]
    world.apply(made(world, policy(state="absent"), there))
    assert world.observe(wanted, there).files[PARAMETERS_FILE] is None


def test_what_the_policy_names_no_more_is_given_back_and_told() -> None:
    world, there = World(), facts(A100)
    world.apply(made(world, policy(module_parameters={"NVreg_EnableMSI": 1}), there))
    plan = made(world, policy(), there.but(driver_loaded="580.178.04"))
    assert [(step.action, step.subject) for step in plan.steps] == [("file.restore", PARAMETERS_FILE)]
    assert any("nvidia.NVreg_EnableMSI" in note for note in plan.notes)


def test_another_file_that_says_otherwise_is_named() -> None:
    elsewhere = {PROFILING: {"/etc/modprobe.d/site.conf": "1"}}
    world = World(more={"set_elsewhere": elsewhere})
    (refusal,) = made(world, policy(module_parameters={"NVreg_RestrictProfilingToAdminUsers": 0}), facts(A100)).refusals
    assert refusal.code == "driver.parameter_set_elsewhere"
    assert "/etc/modprobe.d/site.conf" in refusal.found
    assert not made(world, policy(module_parameters={"NVreg_RestrictProfilingToAdminUsers": "0x1"}),
                    facts(A100)).refusals
    assert not made(world, policy(), facts(A100)).refusals, "what the policy does not name is theirs"


def test_the_way_back_leads_to_the_parameters_of_that_driver() -> None:
    """What came with the newer driver may be what it failed by."""
    old = "580.126.09"
    world = World(facts=facts(A100, driver_installed=old, driver_boots=old, driver_loaded=old))
    world.apply(world.plan(policy(version=old, module_parameters={"NVreg_EnableMSI": 1})))
    before = dict(world.files)
    failed = {"module_parameters": {"NVreg_EnableMSI": 0}}
    world.apply(world.plan(policy(**failed)))
    assert world.files[PARAMETERS_FILE] != before[PARAMETERS_FILE]
    world.apply(world.plan(policy(state="rolled_back", **failed)))
    assert world.files == before
    assert not world.plan(policy(state="rolled_back", **failed)).steps


class TestCoherentMemory:
    def test_a_file_that_says_whose_it_is_counts_where_the_policy_does_not_say_it(self) -> None:
        theirs = World(more={"set_elsewhere": {COHERENT_MODE: {"/etc/modprobe.d/site.conf": "numa"}}})
        plan = made(theirs, policy(), facts(GH200))
        assert not plan.refusals
        assert PARAMETERS_FILE not in [step.subject for step in plan.steps]
        (refusal,) = made(theirs, policy(coherent_memory="driver"), facts(GH200)).refusals
        assert refusal.code == "driver.parameter_set_elsewhere"

    @pytest.mark.parametrize("gpu, version, option, text", [
        (GH200, "580.178.04", "auto", "driver"), (GB200, "595.91.07", "auto", "driver"),
        (GH200, "580.178.04", "numa", "numa"), (GH200, "575.57.08", "auto", ""), (A100, "580.178.04", "auto", ""),
    ])
    def test_the_mode_of_a_board(self, gpu: str, version: str, option: str, text: str) -> None:
        plan = made(World(versions=(version,)), policy(version=version, coherent_memory=option), facts(gpu))
        assert not plan.refusals
        assert written(plan) == ("options nvidia NVreg_CoherentGPUMemoryMode=%s\n" % text if text else "")

    @pytest.mark.parametrize("gpu, version, option", [
        (A100, "580.178.04", "driver"), (A100, "580.178.04", "numa"), (GH200, "575.57.08", "driver"),
    ])
    def test_a_mode_that_cannot_be_is_refused(self, gpu: str, version: str, option: str) -> None:
        (refusal,) = made(World(versions=(version,)), policy(version=version, coherent_memory=option),
                          facts(gpu)).refusals
        assert refusal.code == "driver.memory_not_coherent"

    def test_the_parameter_itself_wins_over_auto(self) -> None:
        wanted = policy(module_parameters={"NVreg_CoherentGPUMemoryMode": "numa"})
        assert "=numa" in written(made(World(), wanted, facts(GH200)))


class TestLoaded:
    @pytest.fixture
    def host(self, tmp_path: Path) -> Host:
        for name, text in {
            "proc/driver/nvidia/params": PARAMS, "sys/module/nvidia_drm/parameters/modeset": "Y\n",
            PARAMETERS_FILE[1:]: "options nvidia NVreg_RestrictProfilingToAdminUsers=0\noptions nvidia-drm modeset=1\n",
            "etc/modprobe.d/site.conf": "options nvidia \\\n NVreg_EnableMSI=1\n",
            "usr/lib/modprobe.d/site.conf": "options nvidia NVreg_EnableMSI=0\n",
        }.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Host(str(tmp_path))

    def test_loaded_values_are_read_from_where_the_module_tells_them(self, host: Host) -> None:
        names = [PROFILING, MODE, "nvidia_drm.modeset", "nvidia.NVreg_Unknown"]
        assert loaded_parameters(host, names) == {PROFILING: "1", MODE: "numa", "nvidia_drm.modeset": "Y"}

    def test_a_file_hides_those_of_its_name(self, host: Host) -> None:
        assert "/usr/lib/modprobe.d/site.conf" not in configuration_files(host)
        assert parameters_in(host.read("/etc/modprobe.d/site.conf") or "") == {"nvidia.NVreg_EnableMSI": "1"}

    def test_a_value_that_waits_for_a_load_is_told(self, host: Host) -> None:
        assert stale_parameters(host) == (PROFILING + "=0",)

    def test_what_is_not_told_does_not_differ(self) -> None:
        assert differing({PROFILING: "0"}, {}) == ()

    @pytest.mark.parametrize("loaded, differ", [
        ({PROFILING: "1"}, (PROFILING + "=0",)), ({PROFILING: "0"}, ()), ({}, ())])
    def test_the_plan_foretells_what_waits_for_a_load(self, loaded: Dict[str, str], differ: tuple) -> None:
        world, wanted = World(), policy(module_parameters={"NVreg_RestrictProfilingToAdminUsers": 0})
        there = facts(A100, driver_loaded="580.178.04")
        world.more = {"loaded_parameters": loaded}
        seen = world.observe(wanted, there)
        after = planner.facts_after(seen, wanted, there, planner.plan(seen, wanted, there))
        assert after.parameters_differ == differ
