# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What forms, -e and inventories say of how the plays go: texts for numbers, nothing at all, what has no meaning."""
from __future__ import annotations

from typing import Any, Dict

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from controller import VARIABLES
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import defaults, trust_as_template

# A host that is to be changed, in a cluster
HOST: Dict[str, Any] = {
    "inventory_hostname": "host-1", "gpu_cluster_kubeconfig": "/admin.conf", "ansible_check_mode": False,
    "gpu_planned": {"disruption": "driver_reload", "waiting": [], "returns_to": {"how": "archive"}},
    "ansible_failed_task": {"action": "gpuops.nvidia.gpu_driver"}}
NOTHING = ["", None]
NO_LIMITS = ['{"percent": 100}', 5, [1], "many", {"percent": "50%"}, {"percent": -1}, {"nodes": ""}, {"percnt": 5}]
TASKS = REPOSITORY / "roles" / "node_maintenance" / "tasks"


def asked(name: str, to: str = "bool", **variables: Any) -> Any:
    """What one of the plays' variables comes to, as one of Ansible's filters makes it a value."""
    texts = {each: trust_as_template(text) if isinstance(text, str) else text
             for each, text in yaml.safe_load(VARIABLES.read_text()).items()}
    templar = Templar(DataLoader(), variables={**texts, **HOST, **variables})
    return templar.template(trust_as_template("{{ %s | %s }}" % (name, to)))


@pytest.mark.parametrize("said, is_done", [
    *((each, True) for each in (*NOTHING, {}, {"percent": "50"}, True, "yes")), (False, False), ("no", False)])
def test_what_a_form_leaves_empty_says_nothing_of_nodes_that_are_not_well(said: Any, is_done: bool) -> None:
    assert asked("gpu_cordons_unwell", gpu_cordon_unwell=said) == is_done
    assert not asked("gpu_cordon_unwell_is_malformed", gpu_cordon_unwell=said)
    assert asked("gpu_cordons_unwell") and not asked("gpu_cordon_unwell_is_malformed")


@pytest.mark.parametrize("said", NO_LIMITS)
def test_limits_that_are_none_are_refused_and_not_taken_for_others(said: Any) -> None:
    planned = {**HOST["gpu_planned"], "refusals": [], "drain": "none", "converged": True}
    assert asked("gpu_is_refused", gpu_cordon_unwell=said, gpu_planned=planned)
    assert not asked("gpu_is_refused", gpu_planned=planned)


def test_a_repair_takes_no_node_out_of_service_that_it_does_nothing_to() -> None:
    """What its host fails by may be what site has not brought yet."""
    assert not asked("gpu_cordons_unwell", gpu_run_repairs=True)


@pytest.mark.parametrize("variable, of", [
    ("gpu_rollout_health", "gpu_is_looked_at"), ("gpu_roll_back", "gpu_rolls_back")])
def test_what_a_form_leaves_empty_switches_nothing_off(variable: str, of: str) -> None:
    assert all(asked(of, **{variable: each}) for each in (*NOTHING, True, "true"))
    assert not any(asked(of, **{variable: each}) for each in (False, "false", "no"))


@pytest.mark.parametrize("variable", ["gpu_rollout_health", "gpu_roll_back"])
def test_a_word_for_yes_that_ansible_takes_for_no_is_refused(variable: str) -> None:
    planned = {**HOST["gpu_planned"], "refusals": [], "drain": "none", "converged": True}
    wrong, right = ("true ", "enabled", "ja", 2, " "), (*NOTHING, True, False, "True", "no", "off", 1, 0, "0")
    assert all(asked("gpu_is_refused", gpu_planned=planned, **{variable: each}) for each in wrong)
    assert not any(asked("gpu_is_refused", gpu_planned=planned, **{variable: each}) for each in right)


@pytest.mark.parametrize("variable, wrong, right", [
    ("gpu_rollout_timeout", ("1h", " ", "-1"), (0, "3600", *NOTHING)),
    ("gpu_rollout_interval", ("0", 0, " ", "0.5"), (1, "10", *NOTHING))])
def test_a_wait_for_a_place_that_is_no_time_is_refused(variable: str, wrong: Any, right: Any) -> None:
    assert all(asked("gpu_waits_for_no_number", **{variable: each}) for each in wrong)
    assert not any(asked("gpu_waits_for_no_number", **{variable: each}) for each in right)


@pytest.mark.parametrize("variable, of, task, option, default, least", [
    ("gpu_rollout_timeout", "gpu_waits_at_most", "change", "gpu_rollout_waits", 3600, 0),
    ("gpu_rollout_interval", "gpu_asks_every", "turn", "interval", 10, 1)])
def test_a_wait_that_a_form_leaves_empty_is_the_default(
    variable: str, of: str, task: str, option: str, default: int, least: int
) -> None:
    assert [asked(of, "int", **{variable: each}) for each in (*NOTHING, least, str(least), "20")] == [
        default, default, least, least, 20]
    assert asked(of, "int") == default
    [asks, *_others] = yaml.safe_load((REPOSITORY / "playbooks" / "tasks" / (task + ".yml")).read_text())
    assert {**asks.get("vars", {}), **asks.get("gpuops.nvidia.gpu_rollout", {})}[option] == "{{ %s }}" % of


@pytest.mark.parametrize("said, name", [("", "host-1"), ("node-7", "node-7")])
def test_a_node_without_a_name_has_its_host_s(said: str, name: str) -> None:
    [gate] = [task["gpuops.nvidia.gpu_validation"] for task in yaml.safe_load(
        (REPOSITORY / "playbooks" / "tasks" / "gate.yml").read_text()) if "gpuops.nvidia.gpu_validation" in task]
    templar = Templar(DataLoader(), variables={**HOST, "gpu_cluster_node_name": said})
    assert [templar.template(trust_as_template(str(each))) for each in (
        gate["node_name"], defaults("node_maintenance")["node_maintenance_node_name"])] == [name, name]


@pytest.mark.parametrize("first, second, is_other", [(True, False, True), (False, True, True), (False, False, False)])
def test_a_layout_that_came_before_what_had_to_wait_is_another_one(first: bool, second: bool, is_other: bool) -> None:
    """Else the node would have to offer what it had before."""
    waited = {**HOST["gpu_planned"], "waiting": ["imex"]}
    assert asked("gpu_layout_has_changed", gpu_planned=waited, mig_applied={"changed": second},
                 gpu_layout_had_changed=first) == is_other
    [*_others, apply] = yaml.safe_load((REPOSITORY / "playbooks" / "tasks" / "rest.yml").read_text())
    told = [str(task) for task in apply["block"]]
    assert ["gpu_layout_had_changed" in each for each in told] == [False, True, False] and "apply.yml" in told[-1]
    # Of a site that was imported before this one
    assert not asked("gpu_layout_has_changed", mig_applied={"changed": False}, gpu_layout_had_changed=True)


@pytest.mark.parametrize("later", ["renew", "admit", "retake", "give_back"])
def test_what_is_asked_of_a_node_later_is_seen_to_be_malformed_before_it_is_taken(later: str) -> None:
    """All but what the change itself comes to."""
    options = {name: yaml.safe_load((TASKS / (name + ".yml")).read_text())[0]["gpuops.nvidia.gpu_node_custody"]
               for name in ("take", later)}
    assert options[later].keys() - options["take"].keys() <= {"uid", "offers", "was_taken", "failures", "drain",
                                                              "startup_taint"}
