# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What becomes of each host where one task does something for all of them, and of what is said of it."""
from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Sequence, Tuple

import pytest
import yaml
from canned import Hosts, planned
from cluster_api import Api
from cluster_objects import node
from controller import Controller
from object_store import Store
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.labels import CORDON_REASON
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal

TAINT = "gpuops.nvidia.com/not-ready"
# Of the validation only the cluster's half is real
VALIDATION = '''
from ansible_collections.gpuops.nvidia.plugins.action import of_gpu_validation


class ActionModule(of_gpu_validation.ActionModule):
    def run(self, tmp=None, task_vars=None):
        if self._task.args.get("scope") == ["cluster"]:
            return super().run(tmp, task_vars)
        kept = "proved" if self._task.args.get("state") == "proved" else "checked"
        return dict(self._templar.template(task_vars["canned"]).get(kept, {"changed": False, "checks": []}))
'''


class Fleet(Hosts):
    """Hosts in words, nodes of clusters that are asked what they offer."""

    def __init__(self, controller: Controller, api: Api) -> None:
        super().__init__(controller, api)
        api.state.store = Store(has_controllers=True)
        self.put(gpu_validation=VALIDATION)

    def play(self, name: str, *options: str, hosts: Sequence[str], **variables: Any) -> str:
        environment = {"ANSIBLE_COLLECTIONS_PATH": str(self.root), **variables.pop("environment", {})}
        done = self.controller.play(name, *options, hosts=hosts, environment=environment, variables={
            "gpu_cluster_kubeconfig": str(self.api.kubeconfig), "gpu_components": [], "gpu_validation_pod": False,
            "gpu_validation_timeout": 0, **variables})
        return done.stdout + done.stderr


@pytest.fixture
def fleet(controller: Controller, api: Api) -> Fleet:
    return Fleet(controller, api)


def offers(name: str, count: int = 1, **more: Any) -> Dict[str, Any]:
    there = {"nvidia.com/gpu": str(count)}
    return node(name, allocatable=there, capacity=there, **more)


def taints(api: Api, number: int) -> List[str]:
    return [taint["key"] for taint in api.state.nodes[number]["spec"].get("taints") or ()]


CORDONED = {"gpuops.nvidia.com/cordoned-by": "gpuops"}
WELL = {"gpu_plan": planned(Plan(), proof={})}
# A host that cannot be told, and one that cannot remember it
NOT_KEPT = pytest.mark.parametrize("kept", [
    {"unreachable": True, "msg": "no route"},
    pytest.param({"failed": True, "msg": "nothing can be written"}, marks=pytest.mark.variation)])


@pytest.mark.variation
@NOT_KEPT
def test_a_node_that_is_not_well_is_tainted_though_its_host_can_be_told_nothing(
    fleet: Fleet, kept: Dict[str, Any]
) -> None:
    fleet.api.state.nodes = [offers("gpu-1"), offers("gpu-2", 0), offers("gpu-3")]
    told = fleet.play("gpuops.nvidia.site", hosts=("gpu-1", "gpu-2", "gpu-3"), canned={**WELL, "proved": kept},
                      gpu_startup_taint=TAINT, gpu_startup_taint_on_failure=True)
    assert [taints(fleet.api, number) for number in range(3)] == [[], [TAINT], []], told
    assert "gpu-2 offers nvidia.com/gpu: 0 allocatable, 1 expected" in told, told
    assert told.count("failed=1") == 1, told


@NOT_KEPT
def test_a_node_that_is_well_is_so_though_its_host_cannot_remember_it(fleet: Fleet, kept: Dict[str, Any]) -> None:
    fleet.api.state.nodes = [offers("gpu-1", taints=[{"key": TAINT, "effect": "NoSchedule"}])]
    told = fleet.play("gpuops.nvidia.site", hosts=("gpu-1",), gpu_startup_taint=TAINT, canned={
        "gpu_plan": planned(Plan(), proof={"of": "earlier", "at": 1}), "proved": kept})
    assert taints(fleet.api, 0) == [] and "failed=0" in told, told


def test_a_host_whose_proof_nobody_has_read_is_told_of_none(fleet: Fleet) -> None:
    """It would take the place of one that still counts."""
    fleet.api.state.nodes = [offers("gpu-1")]
    told = fleet.play("gpuops.nvidia.site", hosts=("gpu-1",), canned=WELL)
    assert "failed=0" in told and "TASK [Have the host remember" not in told, told


def test_the_diff_of_many_nodes_names_each(fleet: Fleet) -> None:
    fleet.api.state.nodes = [offers("gpu-1"), offers("gpu-2", unschedulable=True, annotations=CORDONED)]
    told = fleet.play("gpuops.nvidia.site", "--check", "--diff", hosts=("gpu-1", "gpu-2"), canned=WELL)
    assert re.search(r"^--- .*gpu-1", told, re.M) and re.search(r"^\+\+\+ .*gpu-2", told, re.M), told


def test_it_is_said_of_each_node_whether_it_is_changed(fleet: Fleet) -> None:
    def changed(*options: str) -> List[str]:
        told = fleet.play("gpuops.nvidia.site", *options, hosts=("gpu-1", "gpu-2", "gpu-3"), canned=WELL)
        assert told.count("failed=0") == 3, told
        return re.findall(r"^(gpu-\d) .* changed=[1-9]", told, re.MULTILINE)

    fleet.api.state.nodes = [offers("gpu-%d" % number) for number in (1, 2, 3)]
    assert changed() == ["gpu-1", "gpu-2", "gpu-3"]
    fleet.api.state.nodes[1]["spec"]["unschedulable"] = True
    fleet.api.state.nodes[1]["metadata"]["annotations"].update(CORDONED)
    assert changed("--check") == ["gpu-2"] and changed() == ["gpu-2"] and changed() == []


def test_what_a_host_says_of_other_tasks_is_not_asked(fleet: Fleet) -> None:
    """As where the role labels a single Node."""
    fleet.api.state.nodes = [offers("gpu-1")]
    told = fleet.play("gpuops.nvidia.site", hosts=("gpu-1",), canned=WELL,
                      node_maintenance_reason="change {{ ticket_of_the_change }}")
    assert "failed=0" in told, told


@pytest.mark.parametrize("variable", ["gpu_cluster_kubeconfig", *(
    pytest.param(name, marks=pytest.mark.variation) for name in (
        "gpu_cluster_impersonate_user", "gpu_cluster_node_name"))])
@pytest.mark.parametrize("playbook", ["site", "validate"])
def test_a_host_whose_variables_cannot_be_read_keeps_nobody_back(fleet: Fleet, playbook: str, variable: str) -> None:
    fleet.api.state.nodes = [offers("gpu-1"), offers("gpu-2"), offers("gpu-3")]
    there = {"gpu_cluster_kubeconfig": str(fleet.api.kubeconfig), "gpu_cluster_node_name": "{{ inventory_hostname }}"}
    told = fleet.play("gpuops.nvidia." + playbook, hosts=("gpu-1", "gpu-2", "gpu-3"), canned={**WELL, "gpu_info": {
        "observation": {"pci": {"gpus": [1]}, "devices": WELL["gpu_plan"]["devices"]}}}, **{
            variable: "{%% if inventory_hostname == 'gpu-2' %%}{{ lookup('ansible.builtin.file', '/nowhere/token') }}"
                      "{%% else %%}%s{%% endif %%}" % there.get(variable, "")})
    assert re.findall(r"^(gpu-\d) .* failed=0", told, re.MULTILINE) == ["gpu-1", "gpu-3"], told
    assert "gpu-2]: FAILED" in told and "/nowhere/token" in told, told


@pytest.mark.parametrize("playbook", ["site", pytest.param("validate", marks=pytest.mark.variation)])
def test_the_first_host_may_be_in_no_cluster_and_all_may(fleet: Fleet, playbook: str) -> None:
    observed = {"observation": {"pci": {"gpus": [1]}, "devices": WELL["gpu_plan"]["devices"]}}
    for kubeconfig, reads in (("", 0), ("{{ '' if inventory_hostname == 'gpu-1' else '%s' }}", 1)):
        fleet.api.state.nodes = [offers("gpu-2")]
        told = fleet.play("gpuops.nvidia." + playbook, hosts=("gpu-1", "gpu-2"), gpu_cluster_kubeconfig=(
            kubeconfig and kubeconfig % fleet.api.kubeconfig), canned={**WELL, "gpu_info": observed},
            environment={"KUBECONFIG": str(fleet.api.kubeconfig)})
        assert told.count("failed=0") == 2 and bool(fleet.api.state.requests) == bool(reads), told


STEP = Step("driver", "packages.install", "driver 580", "Driver 580.", Disruption.none)
LAST_PLAY = "PLAY [Say what was left out]"


def of_host(fleet: Fleet, host: str, **variables: Any) -> Tuple[str, str]:
    """The words that give one host variables of its own."""
    path = fleet.controller.directory / "of_host.json"
    path.write_text(json.dumps({"all": {"hosts": {host: variables}}}))
    return "--inventory", str(path)


def cordons(fleet: Fleet) -> Dict[str, str]:
    """{node that is out of service: why}."""
    return {each["metadata"]["name"]: (each["metadata"].get("annotations") or {}).get(CORDON_REASON, "")
            for each in fleet.api.state.nodes if each["spec"].get("unschedulable")}


def unwell(fleet: Fleet, *hosts: str, **variables: Any) -> str:
    """What site says where nothing is to be done to any host, and these have failed their checks."""
    found = {host: planned(Plan(), proof={}, validated=False) for host in hosts}
    return fleet.play(
        "gpuops.nvidia.site", hosts=[each["metadata"]["name"] for each in fleet.api.state.nodes],
        unwell=found, canned={"gpu_plan": "{{ unwell[inventory_hostname] | default(well) }}", "checked": {
            "failed": True, "msg": "it fell off"}}, well=WELL["gpu_plan"], **variables)


def test_a_host_that_fails_its_checks_where_nothing_is_to_be_done_is_taken_out_of_service(fleet: Fleet) -> None:
    """Or stays so, and comes back once it is well; whom somebody has uncordoned since stays in service."""
    fleet.api.state.nodes = [
        offers("gpu-1", unschedulable=True, annotations=CORDONED), offers("gpu-2"), offers("gpu-3"),
        offers("gpu-4", annotations=CORDONED)]
    told = unwell(fleet, "gpu-1", "gpu-3", "gpu-4", gpu_cordon_unwell={"percent": "100"}, gpu_startup_taint=TAINT,
                  gpu_startup_taint_on_failure=True,
                  # As of a site that was imported before
                  node_maintenance_taken={"custody": "taken", "node": {"uid": ""}})
    assert set(re.findall("(gpu-.)]: FAILED.*it fell off", told)) == {"gpu-1", "gpu-3", "gpu-4"}, told
    assert cordons(fleet).keys() == {"gpu-1", "gpu-3"} and "it fell off" in cordons(fleet)["gpu-3"], told
    assert "somebody has uncordoned it since gpuops has cordoned it" in " ".join(told.split()), told
    assert [taints(fleet.api, number) for number in range(4)] == [[TAINT], [], [TAINT], [TAINT]], told
    assert re.search("^gpu-2 .* failed=0", told, re.MULTILINE) and LAST_PLAY in told, told
    told = unwell(fleet, "gpu-1")
    assert cordons(fleet).keys() == {"gpu-1"}, told


@pytest.mark.parametrize("hosts, allowed", [
    (4, {}), pytest.param(1, False, marks=pytest.mark.variation), pytest.param(1, "no", marks=pytest.mark.variation)])
def test_many_that_fail_at_once_have_one_cause_and_stay_in_service(fleet: Fleet, hosts: int, allowed: Any) -> None:
    names = ["gpu-%d" % number for number in range(1, hosts + 1)]
    fleet.api.state.nodes = [offers(name) for name in names]
    told = unwell(fleet, *names[:3], gpu_cordon_unwell=allowed)
    assert cordons(fleet) == {} and told.count("it fell off") >= min(hosts, 3), told
    assert ("have 3 of 4 hosts" in " ".join(told.split())) == (hosts == 4), told


@pytest.mark.parametrize("why", [pytest.param("its checks", marks=pytest.mark.variation), "its Node"])
def test_the_only_host_where_nothing_had_to_be_done_does_not_end_the_others(fleet: Fleet, why: str) -> None:
    """Ansible ends the run with a play all of whose hosts fail: the changed one kept its taint."""
    fleet.api.state.nodes = [offers("gpu-2", taints=[{"key": TAINT, "effect": "NoSchedule"}]),
                             *([offers("gpu-1")] if why == "its checks" else [])]
    well = {"changed": False, "proof": {}, "devices": WELL["gpu_plan"]["devices"]}
    told = fleet.play(
        "gpuops.nvidia.site", hosts=("gpu-1", "gpu-2"), gpu_startup_taint=TAINT,
        plans={"gpu-1": WELL["gpu_plan"], "gpu-2": planned(Plan(steps=(STEP,)), proof={})},
        checks={"gpu-1": {"failed": why == "its checks", "msg": "it fell off", **well}, "gpu-2": well},
        canned={"gpu_plan": "{{ plans[inventory_hostname] }}", "checked": "{{ checks[inventory_hostname] }}"})
    assert re.search("^gpu-1 .* failed=1", told, re.MULTILINE) and taints(fleet.api, 0) == [], told


def test_a_playbook_that_imports_site_may_say_that_nodes_join_with_a_taint(fleet: Fleet) -> None:
    """What a play says is a variable of none of its hosts."""
    fleet.api.state.nodes = [offers("gpu-1", taints=[{"key": TAINT, "effect": "NoSchedule"}])]
    path = fleet.controller.directory / "importing.json"
    path.write_text(json.dumps([{"import_playbook": "gpuops.nvidia.site", "vars": {"gpu_startup_taint": TAINT}}]))
    told = fleet.play(str(path), hosts=("gpu-1",), canned=WELL)
    assert taints(fleet.api, 0) == [], told


@pytest.mark.parametrize("host, variable", [
    ("gpu-1", "gpu_startup_taint"), ("gpu-2", "gpu_feature_discovery_use_node_feature_api")])
def test_what_decides_whom_a_play_is_about_and_cannot_be_worked_out_is_its_host_s(
    fleet: Fleet, host: str, variable: str
) -> None:
    fleet.api.state.nodes = [offers("gpu-1"), offers("gpu-2")]
    told = fleet.play("gpuops.nvidia.site", "--check", *of_host(
        fleet, host, **{variable: "{{ lookup('ansible.builtin.file', '/nowhere') }}"}),
        hosts=("gpu-1", "gpu-2"), canned=WELL)
    assert host + "]: FAILED" in told and told.count("failed=0") == 1 and LAST_PLAY in told, told


def test_a_host_that_is_no_node_is_refused_before_it_is_changed(fleet: Fleet) -> None:
    """Its name in the inventory is another than in the cluster: what it is changed for could not be offered."""
    step = Step("toolkit", "packages.install", "toolkit", "Toolkit.", Disruption.none)
    fleet.api.state.nodes = [offers("gpu-1")]
    told = fleet.play("gpuops.nvidia.site", hosts=("gpu-1", "gpu-2"), canned={
        "gpu_plan": planned(Plan(steps=(step,)), proof={}), "checked": {"changed": False, "checks": []}})
    assert "no Node gpu-2 in the cluster of this host" in told, told
    assert "(K8S_AUTH_KUBECONFIG or K8S_AUTH_HOST, as a credential of AWX does)" in told, told
    assert "Install and configure the container toolkit] *" in told and "changed: [gpu-2]" not in told, told
    assert re.search(r"^gpu-1 .* failed=0", told, re.M), told


@pytest.mark.parametrize("limit", [(), pytest.param(("--limit", "gpu-1"), marks=pytest.mark.variation)])
def test_a_node_that_the_gpu_operator_is_to_leave_alone_is_done_beside_those_that_it_manages(
    fleet: Fleet, limit: Tuple[str, ...]
) -> None:
    """As long as there are such nodes, no components of ours come, and nobody offers the GPUs of the others."""
    gpus = {"nvidia.com/gpu.present": "true"}
    fleet.api.state.nodes = [
        node("gpu-1", labels={**gpus, "nvidia.com/gpu.deploy.operands": "false"}, capacity={}),
        node("gpu-2", labels={**gpus, "nvidia.com/gpu.deploy.driver": "true"})]
    told = fleet.play("gpuops.nvidia.site", *limit, hosts=("gpu-1", "gpu-2"), canned=WELL)
    assert re.search(r"^gpu-1 .* failed=0", told, re.M), told
    assert limit or re.search(r"^gpu-2 .* failed=1", told, re.M) and "manages gpu-2 (" in told, told


@pytest.mark.parametrize("of_first", [pytest.param("play", marks=pytest.mark.variation), "own"])
def test_what_a_play_says_counts_for_each_host_whatever_the_first_one_says(fleet: Fleet, of_first: str) -> None:
    """Also where that one says the same."""
    fleet.api.state.nodes = [offers("gpu-1"), offers("gpu-2")]
    directory = fleet.controller.directory
    importing, own = directory / "importing.json", directory / "own.json"
    importing.write_text(json.dumps([
        {"import_playbook": "gpuops.nvidia.site", "vars": {"node_maintenance_labels": {"of": "play"}}}]))
    own.write_text(json.dumps({"all": {"hosts": {
        "gpu-1": {"node_maintenance_labels": {"of": of_first}},
        "gpu-2": {"node_maintenance_labels": {"of": "own"}}}}}))
    told = fleet.play(str(importing), "--inventory", str(own), hosts=("gpu-1", "gpu-2"), canned=WELL)
    assert [each["metadata"]["labels"].get("of") for each in fleet.api.state.nodes] == ["play", "play"], told


@pytest.mark.variation
def test_two_of_one_run_know_nothing_of_each_other(fleet: Fleet) -> None:
    step = Step("toolkit", "packages.install", "toolkit", "Toolkit.", Disruption.none)
    fleet.api.state.nodes = [offers("gpu-1"), offers("gpu-2")]
    path = fleet.controller.directory / "importing.json"
    path.write_text(json.dumps([{"import_playbook": "gpuops.nvidia.site", "vars": {"gpu_hosts": host}}
                                for host in ("gpu-1", "gpu-2")]))
    told = fleet.play(str(path), hosts=("gpu-1", "gpu-2"), canned={
        "gpu_plan": planned(Plan(steps=(step,)), proof={}), "checked": {"changed": False, "checks": []}})
    assert told.count("failed=0") == 2, told
    first, second = ([fleet.calls(module, host) for module in ("gpu_plan", "container_toolkit", "gpu_driver")]
                     for host in ("gpu-1", "gpu-2"))
    assert first == second and first[1] == 1, told


def test_what_is_staged_disturbs_nobody(fleet: Fleet) -> None:
    """Some need a driver, one nothing, one is refused, one cannot have it; whether nodes are in service is all one."""
    step = Step("driver", "packages.install", "driver", "Driver.", Disruption.driver_reload)
    refusal = Refusal("driver.held", "found", "wanted", "remedy")
    hosts = ["gpu-%d" % number for number in (1, 2, 3, 4, 5)]
    fleet.api.state.nodes = [offers(name) for name in hosts]
    told = fleet.play("gpuops.nvidia.stage", hosts=hosts, plans={
        "gpu-2": WELL["gpu_plan"], "gpu-3": planned(Plan(steps=(step,), refusals=(refusal,)))},
        needed=planned(Plan(steps=(step,))), staged={"gpu-1": {"failed": True, "msg": "no such kernel headers"}},
        canned={"gpu_plan": "{{ plans[inventory_hostname] | default(needed) }}",
                "gpu_driver": "{{ staged[inventory_hostname] | default({'changed': true}) }}"})
    assert re.findall(r"^(gpu-\d) .* failed=0", told, re.MULTILINE) == ["gpu-2", "gpu-4", "gpu-5"], told
    assert "[driver.held]" in told and "gpu-1]: FAILED" in told and "no such kernel headers" in told, told
    assert [fleet.calls("gpu_driver", name) for name in hosts] == [1, 0, 0, 1, 1], told
    assert fleet.writes() == []


def test_the_groups_of_a_run_have_names_that_no_inventory_has() -> None:
    def names(tasks: Any) -> List[str]:
        found = []
        for task in tasks or ():
            found += names([*task.get("block", ()), *task.get("rescue", ()), *task.get("tasks", ())])
            grouped = task.get("ansible.builtin.group_by") or {}
            found += [grouped["key"], *(grouped["parents"] if isinstance(grouped.get("parents"), list) else
                                        re.findall(r"\['(.+?)'\]", grouped.get("parents", "")))] if grouped else []
            found += [task["vars"]["gpu_group"]] if "gpu_group" in task.get("vars", ()) else []
        return found

    playbooks = REPOSITORY / "playbooks"
    groups = [name for path in (*playbooks.glob("*.yml"), *(playbooks / "tasks").glob("*.yml"))
              for name in names(yaml.safe_load(path.read_text()))]
    assert len(groups) > 10 and [name for name in groups if not name.startswith("gpuops_run_")] == []
