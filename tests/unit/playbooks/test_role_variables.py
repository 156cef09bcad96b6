# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A role's variable is the option of a module in one step, whether the role takes part in the play or not."""
from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping

import documentation
import pytest
import role_files
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from controller import Controller

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import CAPABILITIES
from ansible_collections.gpuops.nvidia.plugins.plugin_utils import component_variables, role_variables
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import OF_WRITERS, SOURCES

PLAN = "gpuops.nvidia.gpu_plan"
# Nobody answers there: a task that goes to its host is found out.
NOWHERE = {"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ConnectTimeout=1"}
WRITERS = [module for module in SOURCES if module != "gpu_validation"]
OF_HOSTS = [role for role in role_files.texts() if not role_files.of_cluster(role)]
VARIABLES = [name for role in OF_HOSTS for name in role_files.options(role)]
# Roles act on these themselves.
OF_ROLES = {"gpu_driver_reboot_timeout", "gpu_repair_reboot_timeout", "imex_reboot_timeout", "mig_reboot_timeout"}
# An element of each list of dictionaries, whole
ENTRIES = {
    "mig_layout": {"gpus": ["0"], "device_filter": [], "enabled": False, "instances": []},
    "gpu_settings_gpus": {"match": ["all"], "power_limit": 300, "gpu_clocks": [210, 1980],
                          "memory_clocks": [2619, 2619], "compute_mode": "default", "persistence": True},
}


def text(value: str) -> Any:
    return role_variables.trust_as_template(value)


def options_of(module: str, given: Mapping[str, Any] = {}, **variables: Any) -> Dict[str, Any]:  # noqa: B006
    return role_variables.options_of(module, given, variables, Templar(DataLoader()))[0]


def misspelt(module: str, **variables: Any) -> List[Any]:
    return role_variables.options_of(module, {}, variables, Templar(DataLoader()))[1]


def another(name: str) -> Any:
    """A value of a variable that is not its default."""
    option = next(role_files.options(role)[name] for role in role_files.texts() if name in role_files.options(role))
    if option["type"] == "raw":
        return {"schema": "a plan"}
    if option.get("elements") == "dict":
        return [ENTRIES.get(name, {"key": "x"})]
    if "choices" in option:
        return next(choice for choice in reversed(option["choices"]) if choice != option.get("default"))
    return {"bool": not option.get("default"), "int": 77, "list": ["/usr/bin/x"], "dict": {"x": "/usr/bin/x"}}.get(
        option["type"], "/usr/bin/y")


@pytest.mark.parametrize("name", VARIABLES)
def test_every_variable_of_a_role_is_an_option_of_its_modules(name: str) -> None:
    if name in OF_ROLES:
        return
    value, found = another(name), []
    for module, source in SOURCES.items():
        if name in role_files.options(source.role):
            option = next((each for each in (*source.options, *OF_WRITERS) if source.variable(
                each, role_files.options(source.role).keys()) == name), "")
            if option:
                read_as = source.read_as.get(option, {})
                found.append(options_of(module, **{name: value})[option] == read_as.get(str(value), value))
    assert found and all(found)


@pytest.mark.parametrize("module", component_variables.SOURCES)
def test_every_variable_of_a_component_is_an_option_of_its_module(module: str) -> None:
    source = component_variables.SOURCES[module]
    specified = role_files.options(source.role).keys()
    assert {source.variable(option, specified) for option in source.options} == set(specified)


@pytest.mark.parametrize("module", WRITERS)
def test_a_module_takes_every_option_that_its_role_has(module: str) -> None:
    source = SOURCES[module]
    capability = next(each for each in CAPABILITIES if each.name == source.capability)
    specified = role_files.options(source.role)
    without_default = {option for option in source.options
                       if "default" not in specified.get(source.variable(option, specified.keys()), {"default": None})}
    found = options_of(module, gpu_state="present", node_agent_state="present")
    left = set(capability.arguments) - set(found)
    assert left <= {"assume_pods_evicted", "repair_only", *without_default}
    capability.policy_of({name: found[name] for name in capability.arguments if name not in left}
                         | dict.fromkeys(left))


def test_the_agent_has_the_variables_of_all_others_as_its_policy() -> None:
    """And nothing that a task gives: the host is to do the same without one."""
    variables = {"node_agent_state": "present", "gpu_driver_version": "570", "gpu_validation_expected_gpus": 8}
    policy = options_of("node_agent", **variables)["policy"]
    found = json.loads(policy)
    assert set(found) == {source.capability for source in SOURCES.values()} - {"agent"}
    assert found["driver"]["version"] == "570" and found["validation"]["expected_gpus"] == 8
    assert found["driver"]["allowed_disruption"] == "driver_reload"
    assert not {"approved_plan", "startup_taint", "pod_image"} & {name for each in found.values() for name in each}
    planned = role_variables.options_of_plan(
        {"activation": {"assume_pods_evicted": True}}, variables, Templar(DataLoader()))[0]
    assert planned["agent"]["policy"] == policy
    assert "validation" not in planned


@pytest.mark.parametrize("variables", [{}, {"node_agent_state": "absent"}, {"gpu_state": "absent"}])
def test_who_wants_no_agent_sends_no_policy(variables: Mapping[str, Any]) -> None:
    assert options_of("node_agent", **variables)["state"] == "absent"
    assert "policy" not in options_of("node_agent", **variables)
    assert "policy" not in role_variables.options_of_plan({}, variables, Templar(DataLoader()))[0]["agent"]


def test_a_plan_of_some_capabilities_has_no_other() -> None:
    given = {"only": ["repair"], "repair": {"state": "repaired"}, "activation": {"assume_pods_evicted": True}}
    planned = role_variables.options_of_plan(given, {"node_agent_state": "present"}, Templar(DataLoader()))[0]
    assert planned["repair"]["state"] == "repaired" and planned["repair"]["tries"] == 2
    assert set(planned) == {"only", "repair"}, "what a task says of others beside"


def test_nobody_repairs_unless_that_is_said() -> None:
    assert options_of("gpu_repair")["state"] == "ignored"
    assert options_of("gpu_repair")["power_cycle"] is False
    assert options_of("gpu_repair", gpu_power_cycle={"via": "ipmi"})["power_cycle"] is True
    assert options_of("gpu_repair", node_agent_health={"rounds": 5})["health"] == {"rounds": 5}


def test_what_nobody_sets_is_the_default_of_the_role() -> None:
    assert options_of("gpu_driver")["version"] == "580"
    assert options_of("gpu_driver")["state"] == "present"
    assert options_of("gpu_driver", gpu_state="absent")["state"] == "absent"
    assert "approved_plan" not in options_of("gpu_driver")


def test_a_template_is_worked_out_with_the_variables_of_the_task() -> None:
    variables = {"gpu_driver_version": text("{{ branch }}"), "branch": text("{{ 570 + 10 }}")}
    assert str(options_of("gpu_driver", **variables)["version"]) == "580"


def test_what_the_task_gives_counts_before_a_variable() -> None:
    assert options_of("gpu_driver", {"state": "staged"}, gpu_driver_state="absent")["state"] == "staged"


@pytest.mark.parametrize("value", [None, text("{{ omit }}")])
def test_a_variable_that_is_nothing_leaves_the_option_out(value: Any) -> None:
    variables = {"container_runtime_handler": value, "omit": "__omit__"}
    assert "handler" not in options_of("container_runtime", **variables)


def test_what_is_nothing_further_down_is_left_out_too() -> None:
    """Before ansible-core 2.19 it would be a word, and another one in every run."""
    settings = {"debug": text("{{ omit }}"), "run": {"path": text("{{ omit }}"), "n": 1}, "l": [text("{{ omit }}"), 2]}
    found = options_of("container_toolkit", container_toolkit_settings=settings, omit="__omit__")
    assert found["settings"] == {"run": {"n": 1}, "l": [2]}


@pytest.mark.parametrize("module, variables, options", [
    ("nouveau", {"gpu_driver_state": "staged"}, {"state": "present"}),
    ("nouveau", {"gpu_driver_state": "absent"}, {"state": "absent"}),
    ("gpu_driver_activation", {"gpu_driver_state": "staged", "gpu_driver_fabric_manager": "present"},
     {"state": "present", "fabric_manager": "auto"}),
    ("gpu_driver_activation", {"gpu_driver_fabric_manager": "absent"}, {"fabric_manager": "absent"}),
    ("cdi_spec", {"container_runtime_state": "absent", "container_runtime_cdi": False}, {"state": "absent"}),
])
def test_modules_share_a_variable_each_in_its_own_words(
    module: str, variables: Dict[str, Any], options: Dict[str, Any]
) -> None:
    assert options.items() <= options_of(module, **variables).items()


@pytest.mark.parametrize("variables, says", [
    ({"gpu_driver_source": "nvidea"}, "gpu_driver_source"),
    ({"gpu_driver_reboot_timeout": "a while"}, "gpu_driver_reboot_timeout"),
    ({"gpu_driver_version": text("{{ nowhere }}")}, "variable `gpu_driver_version` cannot be worked out"),
    ({"gpu_driver_version": text("{{ 1 / 0 }}")}, "variable `gpu_driver_version` cannot be worked out"),
    ({"gpu_driver_version": text("{{ gpu_driver_version }}")}, "variable `gpu_driver_version` cannot be worked out"),
])
def test_what_is_wrong_is_told_by_the_name_of_the_variable(variables: Dict[str, Any], says: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        options_of("gpu_driver", **variables)
    assert says in refused.value.found


@pytest.mark.parametrize("layout, says", [
    ([{"gpu": ["0"]}], "there is no mig_layout.gpu. Supported parameters include: device_filter, enabled, gpus, inst"),
    ([{"instances": [{"count": 7}]}], "missing required arguments: profile found in mig_layout -> instances"),
])
def test_so_is_what_is_wrong_inside_of_it(layout: Any, says: str) -> None:
    with pytest.raises(GpuOpsError) as refused:
        options_of("mig", mig_layout=layout)
    assert says in refused.value.found
    assert options_of("mig", mig_layout=[{"gpus": [0]}])["layout"] == [{"gpus": [0]}]


def test_a_password_in_what_cannot_be_worked_out_is_not_told() -> None:
    with pytest.raises(GpuOpsError) as refused:
        options_of("gpu_driver", gpu_driver_repository_url=text("https://u:s3cret@mirror/{{ 1 + }}"))
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("variables, near", [
    ({"gpu_driver_vesion": "580"}, ["gpu_driver_version"]),
    ({"gpu_driver_kernel_modul": "open"}, ["gpu_driver_kernel_module"]),
    # Who sets both has a variable of his own.
    ({"gpu_driver_versions": ["580", "595"], "gpu_driver_version": "595"}, []),
    ({"gpu_driver_activated": {}, "gpu_driver_mirror": "x"}, []),
])
def test_a_variable_with_a_slip_in_its_name_is_found(variables: Dict[str, Any], near: List[str]) -> None:
    assert [name for _found, name in misspelt("gpu_driver", **variables)] == near


def test_a_plan_has_every_capability_with_the_variables_of_its_role() -> None:
    options, _misspelt = role_variables.options_of_plan(
        {"activation": {"assume_pods_evicted": True}, "validation": {}, "show": True},
        {"container_runtime_handler": "gpu", "gpu_allowed_disruption": "none"}, Templar(DataLoader()))
    assert {capability.name for capability in CAPABILITIES} | {"validation", "show"} == set(options)
    assert options["runtime"]["handler"] == options["validation"]["handler"] == "gpu"
    assert options["activation"]["assume_pods_evicted"] is True and options["activation"]["persistence"] is True
    assert {given["allowed_disruption"] for name, given in options.items()
            if name not in ("validation", "show")} == {"none"}


@pytest.mark.parametrize("given", [{"version": "570"}, '{"version": "570"}', "version=570"])
def test_a_plan_takes_options_in_every_form_of_a_dictionary(given: Any) -> None:
    options, _misspelt = role_variables.options_of_plan({"driver": given}, {}, Templar(DataLoader()))
    assert options["driver"]["version"] == "570" and options["driver"]["flavour"] == "headless"
    assert role_variables.options_given({"driver": given}, "gpu_driver") == {"version": "570"}


@pytest.mark.parametrize("given", [["version"], "version", "{broken", 7])
def test_what_is_no_dictionary_is_refused_by_the_name_of_the_option(given: Any) -> None:
    with pytest.raises(GpuOpsError) as refused:
        role_variables.options_of_plan({"driver": given}, {}, Templar(DataLoader()))
    assert "`driver`" in refused.value.found


class TestOnTheController:
    def test_what_is_wrong_is_found_before_the_host_is_asked(self, controller: Controller) -> None:
        wrong = {"gpu_validation_timeout": "soon"}
        ((result,),) = controller.tasks([{PLAN: {"from_variables": True, "validation": {}}}],
                                        variables={**NOWHERE, **wrong})
        assert result["failed"] and "gpu_validation_timeout" in result["found"], result

    @pytest.mark.parametrize("playbook", ["site", "plan", "uninstall"])
    def test_so_it_is_by_the_playbooks(self, controller: Controller, playbook: str) -> None:
        done = controller.play("gpuops.nvidia." + playbook, "--check", variables={
            **NOWHERE, "gpu_driver_reboot_timeout": "soon"})
        assert "gpu_driver_reboot_timeout" in done.stdout and "unreachable=0" in done.stdout, done.stdout

    def test_a_slip_is_a_warning_once_a_run(self, controller: Controller) -> None:
        done = controller.play("gpuops.nvidia.plan", hosts=("one", "two"), variables={
            "gpu_driver_vesion": "580", "gpu_driver_source": "preinstalled",
            "container_toolkit_source": "preinstalled"})
        told = " ".join((done.stdout + done.stderr).split())
        assert told.count("variable gpu_driver_vesion, which nothing reads") == 1 and "gpu_driver_version is" in told

    def test_a_role_gives_its_variables_to_its_module(self, controller: Controller) -> None:
        names = {"container_runtime_handler": "{{ 'g' ~ 'pu' }}", "container_runtime_adopt": True}
        role = {"ansible.builtin.include_role": {"name": "gpuops.nvidia.container_runtime"}}
        results = controller.tasks([role], "--check", variables=names)
        (given,) = [result["invocation"]["module_args"] for (result,) in results
                    if "handler" in result.get("invocation", {}).get("module_args", {})]
        assert (given["handler"], given["adopt"], given["state"]) == ("gpu", True, "present")

    def test_to_fetch_packages_is_held_to_no_approved_plan(self, controller: Controller) -> None:
        role = {"ansible.builtin.include_role": {"name": "gpuops.nvidia.gpu_driver", "tasks_from": "stage"}}
        results = controller.tasks([role], "--check", variables={
            "gpu_approved_plan": {"schema": "another"}, "gpu_driver_source": "preinstalled"})
        (given,) = [result["invocation"]["module_args"] for (result,) in results
                    if "kernel_headers" in result.get("invocation", {}).get("module_args", {})]
        assert given["approved_plan"] is None and given["state"] == "staged"


def test_the_tables_name_what_the_action_plugins_read() -> None:
    assert {source.role for source in role_files.sources().values()} == set(role_files.texts())
    assert set(role_files.texts()) <= set(documentation.roles())
