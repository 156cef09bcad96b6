# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which hosts a playbook touches, what it asks before, and what tags leave out."""
from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from canned import Hosts, planned
from cluster_api import Api
from cluster_objects import node
from controller import LOCAL, VARIABLES, Controller
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    Disruption,
    Plan,
    Requirement,
    Step,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.pci import read_bus
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import deferred_of, told_of
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import SOURCES, options_of

PLAYBOOKS = sorted(path.stem for path in (REPOSITORY / "playbooks").glob("*.yml"))
# Nobody answers there: a playbook that goes to its hosts is found out.
NOWHERE = {"ansible_connection": "ssh", "ansible_host": "192.0.2.1", "ansible_ssh_common_args": "-o ConnectTimeout=1"}
GPU = {"nvidia.com/gpu.present": "true"}
has_gpu = len(read_bus(Host()).gpus) > 0


def plays(name: str) -> List[Dict[str, Any]]:
    """Its own: what it imports is a playbook that is looked at by its own name."""
    loaded: List[Dict[str, Any]] = yaml.safe_load((REPOSITORY / "playbooks" / (name + ".yml")).read_text())
    return [play for play in loaded if "ansible.builtin.import_playbook" not in play]


def listed(controller: Controller, name: str, *options: str) -> str:
    done = controller.play("gpuops.nvidia." + name, "--list-tasks", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", sorted(set(PLAYBOOKS) - {"manifests"}))
def test_variables_that_ansible_keeps_from_the_plays_are_refused(controller: Controller, name: str) -> None:
    done = controller.play("gpuops.nvidia." + name, "--check", environment={"ANSIBLE_PRIVATE_ROLE_VARS": "true"})
    assert done.returncode == 2 and "[playbook.variables_are_private]" in done.stdout, done.stdout + done.stderr
    assert "ok=0 " in done.stdout.rpartition("PLAY RECAP")[2]


@pytest.mark.parametrize("name", PLAYBOOKS)
class TestEveryPlay:
    def test_it_works_on_the_hosts_that_were_asked_for(self, name: str) -> None:
        """Groups that a play makes live as long as the run: those of another import are in them too."""
        for play in plays(name):
            hosts = play["hosts"] if isinstance(play["hosts"], list) else [play["hosts"]]
            # Those in their order were of a play before
            assert hosts[0] in ("{{ gpu_hosts | default('all') }}", "{{ gpu_hosts_in_order }}",
                                "{{ gpu_hosts_of_no_cluster_in_order }}"), play["name"]
            assert all(re.fullmatch(r"\{\{ '&(gpuops_run_\w+)' if '\1' in groups else '!all' }}", pattern)
                       for pattern in hosts[1:]), play["name"]

    def test_nothing_of_it_stays_for_the_next_playbook_of_the_run(self, name: str) -> None:
        """But what each begins by forgetting, or works out anew whatever it finds."""
        text = (REPOSITORY / "playbooks" / (name + ".yml")).read_text()
        keep = [task for play in plays(name) for task in play.get("tasks", ()) if "ansible.builtin.set_fact" in task]
        assert text.count("set_fact") == len(keep) and "cacheable" not in text
        assert all(fact == {} or ("when" not in task and "tags" not in task and task["run_once"] is True)
                   for task in keep for fact in task["ansible.builtin.set_fact"].values())

    def test_what_is_done_once_is_done_once_under_every_strategy(self, name: str) -> None:
        """Roles of the cluster write with run_once, which another strategy does once a host.

        The callback ansible.posix.json knows the short name alone, and takes a play with the long one for a free one:
        what a task has said of a host is lost then where a condition of `meta` follows.
        """
        for play in plays(name):
            if "gpu_components" in yaml.safe_dump(play) or "run_once" in yaml.safe_dump(play):
                assert play["strategy"] == "linear", play["name"]


def test_the_modules_that_change_hosts_wait_for_each_other_as_long_as_one_variable_says() -> None:
    groups = yaml.safe_load((REPOSITORY / "meta" / "runtime.yml").read_text())["action_groups"]
    writers = sorted(path.stem for path in (REPOSITORY / "plugins" / "modules").glob("*.py")
                     if re.search(r"^  - gpuops\.nvidia\.writer$", path.read_text(), re.MULTILINE))
    assert writers and groups["host"] == writers
    assert yaml.safe_load((REPOSITORY / "playbooks/roles/gpu/vars/main.yml").read_text())["gpu_host_options"] == {
        "lock_timeout": "{{ gpu_lock_timeout | default(600) }}",
        "progress_interval": "{{ gpu_progress_interval | default(30) }}"}
    for name in ("site", "uninstall"):
        defaults = [play["module_defaults"]["group/gpuops.nvidia.host"] for play in plays(name) if "serial" in play]
        assert defaults == ["{{ gpu_host_options }}"]


def test_check_mode_takes_pods_to_be_gone_that_a_run_evicts() -> None:
    """Of every module that asks who has a GPU; what repairs is not asked in check mode."""
    asking = {"gpuops.nvidia." + path.stem for path in (REPOSITORY / "plugins" / "modules").glob("*.py")
              if re.search(r"^  assume_pods_evicted:$", path.read_text(), re.MULTILINE)} - {"gpuops.nvidia.gpu_repair"}
    changing = [play for name in ("site", "uninstall") for play in plays(name)
                if "gpuops.nvidia.mig" in play.get("module_defaults", {})]
    assert len(asking) == 3 and len(changing) == 3
    for play in changing:
        given = {name: options["assume_pods_evicted"] for name, options in play["module_defaults"].items()
                 if "group/" not in name}
        assert given == dict.fromkeys(asking, "{{ ansible_check_mode and gpu_in_cluster | bool }}")


@pytest.mark.parametrize("paths", [["tasks/apply.yml", "tasks/mend.yml"], ["uninstall.yml"]])
def test_what_a_host_is_planned_with_is_applied_and_taken_back(paths: List[str]) -> None:
    """What mends a host is a run's of its own."""
    included = re.findall(r"name: gpuops\.nvidia\.(\w+)\n(?:\s+tasks_from: (\w+)\n)?",
                          "".join((REPOSITORY / "playbooks" / path).read_text() for path in paths))
    done = "".join((REPOSITORY / "roles" / role / "tasks" / ((point or "main") + ".yml")).read_text()
                   for role, point in included)
    assert set(re.findall(r"^ +gpuops\.nvidia\.(\w+):", done, re.MULTILINE)) >= set(SOURCES) - {"gpu_validation"}


@pytest.mark.skipif(has_gpu, reason="this machine has an NVIDIA GPU")
def test_site_leaves_out_hosts_without_a_gpu_and_names_them(controller: Controller) -> None:
    done = controller.play("gpuops.nvidia.site", "-e", "gpu_hosts=plain-1,plain-2",
                           hosts=("plain-1", "plain-2", "plain-3"), environment={
                               "ANSIBLE_STRATEGY": "free", "ANSIBLE_HOST_PATTERN_MISMATCH": "error"})
    assert done.returncode == 0, done.stdout
    assert "left out: plain-1, plain-2\"" in done.stdout
    assert "TASK [Refuse what cannot be done" not in done.stdout and "plain-3" not in done.stdout
    assert "Could not match" not in done.stderr
    assert "changed=0" in done.stdout and "failed=1" not in done.stdout


@pytest.mark.skipif(has_gpu, reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize("why", [
    "gpu_validation_expected_gpus", pytest.param("a label of ours", marks=pytest.mark.variation)])
def test_site_does_not_leave_out_a_host_whose_gpu_fell_off_the_bus(
    controller: Controller, api: Api, why: str
) -> None:
    """It ended well, and the node was offered on."""
    ours = {"gpuops.nvidia.com/labels": json.dumps(GPU)}
    api.state.nodes = [node("gpu-1", labels=GPU, annotations=ours), node("cpu-1")]
    done = controller.play(
        "gpuops.nvidia.site", hosts=("gpu-1", "cpu-1"), variables={
            "gpu_driver_source": "preinstalled", "container_toolkit_source": "preinstalled",
            **({"gpu_cluster_kubeconfig": str(api.kubeconfig)} if why == "a label of ours" else {
                "gpu_validation_expected_gpus": "{{ 8 if inventory_hostname == 'gpu-1' else 0 }}"})})
    assert done.returncode != 0
    assert re.search(r"gpu-1\]: FAILED! => .*no NVIDIA GPU on the PCI bus", done.stdout), done.stdout
    assert "left out: cpu-1\"" in done.stdout


@pytest.mark.skipif(has_gpu, reason="this machine has an NVIDIA GPU")
@pytest.mark.parametrize("name", ["site", pytest.param("validate", marks=pytest.mark.variation)])
def test_a_host_whose_cluster_cannot_be_told_is_not_taken_for_one_of_none(
    controller: Controller, api: Api, name: str
) -> None:
    """It would be changed with the pods of others on it. The others have nothing to do with it."""
    api.state.nodes = [node("gpu-1"), node("gpu-2")]
    broken = controller.directory / "broken.json"
    broken.write_text(json.dumps({"all": {"hosts": {"gpu-2": {"gpu_cluster_kubeconfig": "{{ nobody_says_it }}"}}}}))
    done = controller.play(
        "gpuops.nvidia." + name, "--inventory", str(broken), *(("--tags", "components") if name == "validate" else ()),
        hosts=("gpu-1", "gpu-2"), variables={"gpu_cluster_kubeconfig": str(api.kubeconfig)})
    assert re.search(r"gpu-2\]: FAILED! => .*variables\.not_worked_out", done.stdout), done.stdout
    assert not re.search(r"gpu-1\]: FAILED", done.stdout) and done.returncode != 0
    assert name == "validate" or not re.search("ok: .gpu-2.$", done.stdout.partition("TASK [Plan the host]")[2], re.M)


def test_labels_that_are_to_stay_stay_in_site_too(controller: Controller, api: Api) -> None:
    ours = {"example.com/theirs": "x", "nvidia.com/mig.config.state": "success", "gone": "x"}
    api.state.nodes = [node("host-1", labels={**ours, "nvidia.com/mig.config": "all-1g.10gb"},
                            annotations={"gpuops.nvidia.com/labels": json.dumps(ours)})]
    play = controller.directory / "play.json"
    play.write_text(json.dumps([{
        "hosts": "all", "gather_facts": False,
        "vars_files": [str(VARIABLES)], "tasks": [
            {"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "check"}},
            {"gpuops.nvidia.gpu_node": {"hosts": "{{ ansible_play_batch }}"}, "run_once": True}]}]))
    done = controller.play(str(play), variables={
        "gpu_cluster_kubeconfig": str(api.kubeconfig), "gpu_mig_labels": True, "node_maintenance_purge_labels": True,
        "node_maintenance_keep_labels": ["example.com/theirs"]})
    assert done.returncode == 0, done.stdout
    assert set(ours) & set(api.state.nodes[0]["metadata"]["labels"]) == set(ours) - {"gone"}


class TestAStartupTaint:
    """A node keeps it until the host and the cluster have passed; only who asks for it has it set on what failed."""

    KEY = "gpuops.nvidia.com/not-ready"
    JOINED = {"key": KEY, "value": "true", "effect": "NoExecute"}
    THEIRS = {"key": "example.com/theirs", "effect": "NoSchedule"}

    def ran(self, controller: Controller, api: Api, taints: List[Dict[str, str]], tasks: List[Dict[str, Any]],
            **variables: Any) -> List[Dict[str, str]]:
        api.state.nodes = [node("host-1", taints=taints)]
        play = controller.directory / "taint.json"
        play.write_text(json.dumps([{
            "hosts": "all", "gather_facts": False,
            "vars_files": [str(VARIABLES)], "tasks": tasks}]))
        done = controller.play(str(play), variables={"gpu_cluster_kubeconfig": str(api.kubeconfig), **variables})
        assert done.returncode == 0, done.stdout
        found: List[Dict[str, str]] = api.state.nodes[0]["spec"].get("taints") or []
        return found

    @pytest.mark.parametrize("variables, left", [
        ({}, [JOINED, THEIRS]), ({"gpu_startup_taint": ""}, [JOINED, THEIRS]), ({"gpu_startup_taint": KEY}, [THEIRS])])
    def test_is_taken_off_by_its_key_alone(
        self, controller: Controller, api: Api, variables: Dict[str, Any], left: List[Dict[str, str]]
    ) -> None:
        task = {"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_maintenance", "tasks_from": "untaint"}}
        assert self.ran(controller, api, [self.JOINED, self.THEIRS], [task], **variables) == left

    @pytest.mark.parametrize("variables, left", [
        ({"gpu_startup_taint": KEY}, []), ({"gpu_startup_taint_on_failure": True}, []),
        ({"gpu_startup_taint": KEY, "gpu_startup_taint_on_failure": True}, [{"key": KEY, "effect": "NoSchedule"}])])
    def test_is_set_on_what_failed_where_that_is_asked_for(
        self, controller: Controller, api: Api, variables: Dict[str, Any], left: List[Dict[str, str]]
    ) -> None:
        task = {"ansible.builtin.import_tasks": str(REPOSITORY / "playbooks" / "tasks" / "taint.yml")}
        assert self.ran(controller, api, [], [task], **variables) == left

    @pytest.mark.parametrize("planned, host, validated", [
        (False, {}, False), (True, {}, True), (False, {"gpu_validation_host": {"devices": {}}}, True)])
    def test_a_host_that_no_check_has_passed_is_not_validated(
        self, controller: Controller, api: Api, planned: bool, host: Dict[str, Any], validated: bool
    ) -> None:
        task = {"ansible.builtin.assert": {"that": "(gpu_host_is_validated | bool) == %s" % validated}}
        self.ran(controller, api, [], [task], gpu_planned={"validated": planned}, **host)

    def test_goes_last_of_all_that_site_does_to_a_node(self) -> None:
        """After what the cluster offers is checked, which nothing else is between."""
        plays = yaml.safe_load((REPOSITORY / "playbooks" / "site.yml").read_text())
        names = [play["name"] for play in plays]
        place = names.index("Validate what the clusters offer")
        assert names[place + 1:] == [
            "Conclude what was found of these nodes", "Close the rollout", "Say what was left out",
            # These have no node
            "Change hosts of no cluster, one after another", "Say what waits for somebody",
            "Say what is left to a later run"]
        [validate], [_remember, taint, stop, untaint] = plays[place]["tasks"], plays[place + 1]["tasks"]
        assert validate["ansible.builtin.import_tasks"] == "tasks/validate_clusters.yml"
        assert taint["ansible.builtin.import_tasks"] == "tasks/taint.yml" and "ansible.builtin.fail" in stop
        assert taint["when"] == stop["when"] == "gpu_offer.failed"
        assert untaint["ansible.builtin.import_role"]["tasks_from"] == "untaint"
        assert (REPOSITORY / "playbooks" / "site.yml").read_text().count("tasks_from: untaint") == 1


def refused(controller: Controller, plan: Plan, **variables: Any) -> List[str]:
    """What site says of a host with this plan before it takes it out of service; what it puts off comes last."""
    planned = {"refusals": [refusal.to_dict() for refusal in plan.refusals], "converged": not plan.steps,
               **told_of(list(by_capability(plan, variables)))}
    play = controller.directory / "refuse.json"
    play.write_text(json.dumps([{
        "hosts": "all", "gather_facts": False, "vars_files": [str(VARIABLES)],
        "vars": {"gpu_planned": planned, "node_maintenance_clusters": {"of_hosts": {"host-1": {"present": True}}}},
        "tasks": [
            {"ansible.builtin.import_tasks": str(REPOSITORY / "playbooks" / "tasks" / "refuse.yml")},
            {"ansible.builtin.debug": {"msg": "out={{ gpu_takes_node_out | bool }} put off="
                                              "{{ gpu_deferred | map(attribute='id') | join(',') }}"}}]}]))
    done = controller.play(str(play), variables=variables, environment={
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
    return [result["msg"] for told in json.loads(done.stdout)["plays"] for task in told["tasks"]
            for result in task["hosts"].values() if result["action"].endswith(("debug", "fail")) and "msg" in result
            and not result.get("skipped")]


def by_capability(plan: Plan, variables: Mapping[str, Any]) -> Iterator[Any]:
    """Each writer's part of a plan, and what it leaves of it with what the variables allow."""
    for module, source in SOURCES.items():
        if module != "gpu_validation":
            options, _misspelt = options_of(module, {}, variables, Templar(DataLoader()))
            part = Plan(steps=tuple(step for step in plan.steps if step.capability == source.capability),
                        requirements=tuple(each for each in plan.requirements if each.capability == source.capability))
            yield part, deferred_of(part, Disruption[options["allowed_disruption"]])


def test_what_several_capabilities_refuse_is_said_once(controller: Controller) -> None:
    refusals = [Refusal("host.no_gpu", "no GPU", "one", "add it")] * 2
    refusals.append(Refusal("host.another_run", "a lock", "none", "wait"))
    assert refused(controller, Plan(refusals=tuple(refusals))) == [
        "Found: no GPU. Wanted: one. Do: add it. [host.no_gpu] "
        "Found: a lock. Wanted: none. Do: wait. [host.another_run]"]


PACKAGES = Step("driver", "packages.install", "driver 580", "Driver 580.", Disruption.none)
SWAPPED = replace(PACKAGES, disruption=Disruption.driver_reload)
RESTART = Step("runtime", "service.restart", "containerd.service", "It reads the file.", Disruption.runtime_restart)
RELOAD = Step("runtime", "service.reload", "docker.service", "It reads the file.", Disruption.service_restart)
REBOOT = Requirement("activation", "reboot", "nouveau", "nouveau holds the GPUs.", Disruption.reboot)


class TestANodeIsTakenOutOnlyForWhatCanBeFinished:
    """A drained node whose plan then ends in what is not allowed was drained for nothing."""

    CLUSTER = {"gpu_cluster_kubeconfig": "/etc/kubernetes/admin.conf"}

    @pytest.mark.parametrize("parts, allowed, named, remedy", [
        ([PACKAGES, RESTART, REBOOT], {}, "activation/reboot/nouveau (reboot: nouveau holds the GPUs.)", "reboot"),
        ([SWAPPED, RESTART], {"gpu_allowed_disruption": "runtime_restart"}, "driver/packages.install/driver 580",
         "driver_reload"),
        ([SWAPPED, RESTART], {"container_runtime_allowed_disruption": "none"}, "service.restart/containerd.service",
         "runtime_restart"),
    ])
    def test_it_is_refused_before(
        self, controller: Controller, parts: Any, allowed: Dict[str, str], named: str, remedy: str
    ) -> None:
        (told,) = refused(controller, plan_of(parts), **self.CLUSTER, **allowed)
        assert named in told and "-e gpu_allowed_disruption=%s," % remedy in told

    @pytest.mark.parametrize("parts, variables, outcome", [
        ([PACKAGES, RESTART, REBOOT], {**CLUSTER, "gpu_allowed_disruption": "reboot"}, "out=True put off="),
        ([SWAPPED, RESTART], CLUSTER, "out=True put off="),
        ([PACKAGES, RELOAD], CLUSTER, "out=False put off="),
        ([SWAPPED, RESTART, RELOAD], {**CLUSTER, "gpu_allowed_disruption": "service_restart"},
         "out=False put off=driver/packages.install/driver 580,runtime/service.restart/containerd.service"),
        ([PACKAGES, RESTART, REBOOT], {}, "out=False put off=activation/reboot/nouveau"),
        ([SWAPPED, RESTART], {"gpu_cluster_kubeconfig": ""}, "out=False put off="),
        ([SWAPPED, RESTART], {"gpu_cluster_kubeconfig": None}, "out=False put off="),
    ])
    def test_the_rest_is_put_off_where_no_node_has_to_leave(
        self, controller: Controller, parts: Any, variables: Dict[str, Any], outcome: str
    ) -> None:
        assert refused(controller, plan_of(parts), **variables) == [outcome]


def plan_of(parts: Any) -> Plan:
    return Plan(steps=tuple(part for part in parts if isinstance(part, Step)),
                requirements=tuple(part for part in parts if isinstance(part, Requirement)))


class TestUninstall:
    def test_it_does_nothing_without_a_word(self, controller: Controller) -> None:
        done = controller.play("gpuops.nvidia.uninstall", hosts=("host-1", "host-2"), variables=NOWHERE)
        assert done.returncode != 0
        assert "add -e gpu_uninstall_confirmed=true for all 2 host(s)" in done.stdout
        assert done.stdout.count("failed=1") == 2 and "unreachable=1" not in done.stdout

    @pytest.mark.parametrize("word", [("--check",), ("-e", "gpu_uninstall_confirmed=true")])
    def test_with_the_word_or_in_check_mode_it_goes_to_the_hosts(self, controller: Controller, word: Any) -> None:
        done = controller.play("gpuops.nvidia.uninstall", *word, variables=NOWHERE)
        assert "unreachable=1" in done.stdout, done.stdout


class TestTags:
    def test_the_components_alone_change_no_host(self, controller: Controller) -> None:
        text = listed(controller, "site", "--tags", "components")
        assert "bring them" in text and "Plan the host" in text
        assert "Take the node out of service" not in text and "Load the installed driver" not in text

    def test_the_hosts_alone_deploy_nothing(self, controller: Controller) -> None:
        text = listed(controller, "site", "--tags", "hosts")
        assert not re.search("bring them.*TAGS: .components", text)
        assert all(task in text for task in (
            "Read who manages the nodes", "Plan the host", "Load the installed driver", "Give the node back"))

    def test_an_uninstall_is_whole_whatever_the_tags(self, controller: Controller) -> None:
        assert listed(controller, "uninstall", "--tags", "hosts") == listed(controller, "uninstall")


def has_run(told: str, task: str) -> bool:
    """Whether a task was done for a host."""
    return any(re.search("^(ok|changed|fatal): ", each.partition("\n\n")[0], re.M)
               for each in told.split("TASK [") if task in each.partition("]")[0])


TAKEN, GIVEN_BACK = ("node_maintenance : %s" % name for name in ("Take the node out of service", "Give the node back"))


def uninstalled(
    in_words: Hosts, *hosts: str, gpus: int = 1, environment: Optional[Mapping[str, str]] = None, **variables: Any
) -> str:
    """What is told, in check mode, of hosts with so many GPUs on which nothing of ours is."""
    return in_words.controller.play(
        "gpuops.nvidia.uninstall", "--check", hosts=hosts,
        environment={"ANSIBLE_COLLECTIONS_PATH": str(in_words.root), **(environment or {})}, variables={
            "gpu_cluster_kubeconfig": str(in_words.api.kubeconfig), "gpu_uninstall_components": False,
            "canned": {"gpu_plan": planned(Plan(), gpus=gpus)}, **variables}).stdout


class TestUninstallAsksBeforeItDrains:
    """Against a cluster's API, in check mode; the host is this machine, one in words, or none."""

    def said(
        self, controller: Controller, api: Api, *options: str, variables: Any = None, hosts: Any = ("host-1",),
        own: Any = None
    ) -> str:
        """own: {host: variables of its own}."""
        path = controller.directory / "own.json"
        path.write_text(json.dumps({"all": {"hosts": own or {}}}))
        words = ("--inventory", str(path)) if own else ()
        return controller.play("gpuops.nvidia.uninstall", "--check", *words, *options, hosts=hosts, variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), **(variables or {})}).stdout

    def test_that_is_asked_too_where_the_first_host_is_in_no_cluster(self, controller: Controller, api: Api) -> None:
        api.state.nodes = [node("host-1", labels=GPU), node("gpu-9", labels=GPU)]
        told = self.said(controller, api, hosts=("alone", "host-1"), variables={
            **NOWHERE,
            "gpu_cluster_kubeconfig": "{{ '' if inventory_hostname == 'alone' else '%s' }}" % api.kubeconfig})
        assert "1 other GPU node(s) in the cluster: gpu-9" in told and "fatal: [host-1]: FAILED" in told, told
        assert "fatal: [alone]: FAILED" not in told, told

    def test_a_host_that_is_down_stays_in_service(self, controller: Controller, api: Api) -> None:
        api.state.nodes = [node("host-1")]
        told = self.said(controller, api, variables=NOWHERE)
        assert "unreachable=1" in told and TAKEN not in told, told

    def test_so_does_one_without_become(self, controller: Controller, api: Api, unprivileged: Path) -> None:
        api.state.nodes = [node("host-1")]
        told = self.said(controller, api, variables={
            "ansible_python_interpreter": str(unprivileged), "ansible_pipelining": True})
        assert "runs as uid 65534" in told and TAKEN not in told, told

    @pytest.mark.variation
    def test_one_that_answers_is_drained(self, controller: Controller, api: Api) -> None:
        api.state.nodes = [node("host-1", labels=GPU)]
        told = self.said(controller, api, "-e", "gpu_uninstall_components=false")
        assert has_run(told, TAKEN) and "failed=0" in told, told

    def test_one_whose_cordon_is_ours_is_given_back(self, in_words: Hosts) -> None:
        """A run that was killed before its last task leaves nothing else of ours."""
        in_words.api.state.nodes = [
            node("host-1", annotations={"gpuops.nvidia.com/cordoned-by": "gpuops"}, unschedulable=True)]
        told = uninstalled(in_words, "host-1")
        assert has_run(told, GIVEN_BACK) and "failed=0" in told, told

    def test_one_without_gpus_stays_in_service_be_it_a_node_or_none(self, in_words: Hosts) -> None:
        in_words.api.state.nodes = [node("cpu-1")]
        told = uninstalled(in_words, "cpu-1", "storage-1", gpus=0)
        assert not (has_run(told, TAKEN) or has_run(told, GIVEN_BACK)) and told.count("failed=0") == 2, told

    @pytest.mark.variation
    def test_what_the_inventory_wants_of_its_hosts_is_not_brought(self, controller: Controller, api: Api) -> None:
        """A toolkit that was present in group_vars was planned, fetched and installed by an uninstallation."""
        api.state.nodes = [node("host-1", labels=GPU)]
        told = self.said(controller, api, "-e", "gpu_uninstall_components=false", variables={
            "gpu_state": "present", "gpu_driver_state": "staged", "container_toolkit_state": "present",
            "container_runtime_state": "present", "container_toolkit_repository_key": "/no/key"})
        assert has_run(told, GIVEN_BACK) and "failed=0" in told, told

    def test_what_extra_variables_want_is_refused(self, controller: Controller, api: Api) -> None:
        told = self.said(controller, api, "-e", "gpu_driver_state=staged", "-e", "gpu_state=present")
        assert "extra variables with gpu_state, gpu_driver_state" in told and api.state.requests == [], told

    def test_components_leave_other_nodes_only_when_that_is_said(self, controller: Controller, api: Api) -> None:
        api.state.nodes = [node("host-1"), node("gpu-9", allocatable={"nvidia.com/gpu": "8"},
                                                capacity={"nvidia.com/gpu": "8"})]
        told = self.said(controller, api)
        assert "1 other GPU node(s) in the cluster: gpu-9" in told and "gpu_uninstall_components=false" in told, told
        assert "Plan the host" not in told

    def test_a_host_that_is_down_is_a_node_that_stays(self, controller: Controller, api: Api) -> None:
        """Its node is in service, and the components of the cluster would leave it too."""
        api.state.nodes = [node("host-1", labels=GPU), node("down", labels=GPU)]
        told = self.said(controller, api, hosts=("host-1", "down"), variables={
            "ansible_host": "{{ '192.0.2.1' if inventory_hostname == 'down' else 'localhost' }}",
            "ansible_connection": "{{ 'ssh' if inventory_hostname == 'down' else 'local' }}", "ansible_timeout": 1})
        assert "1 other GPU node(s) in the cluster: down" in told and "unreachable=1" in told, told
        assert TAKEN not in told and "Remove the cluster components" not in told, told

    @pytest.mark.variation
    def test_a_cluster_that_is_to_keep_them_does(
        self, controller: Controller, api: Api, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        """Whatever another cluster of the run says."""
        other = Api(tmp_path_factory.mktemp("other"))
        try:
            api.state.nodes = [node("host-1", labels=GPU), node("gpu-9", labels=GPU)]
            other.state.nodes = [node("host-2", labels=GPU)]
            told = self.said(controller, api, hosts=("host-1", "host-2"), variables={
                "gpu_cluster_kubeconfig": "{{ '%s' if inventory_hostname == 'host-1' else '%s' }}" % (
                    api.kubeconfig, other.kubeconfig)}, own={"host-1": {"gpu_uninstall_components": False}})
        finally:
            other.close()
        assert "fatal: [host-1]" not in told, told
        asked = "/api/v1/namespaces"
        assert any(asked == request.path for request in other.state.requests)
        assert not any(asked == request.path for request in api.state.requests)

    def test_one_hosts_word_is_its_own(self, controller: Controller, api: Api) -> None:
        api.state.nodes = [node("host-1"), node("host-2")]
        told = controller.play("gpuops.nvidia.uninstall", hosts=("host-1", "host-2"), variables={
            "gpu_cluster_kubeconfig": str(api.kubeconfig), **NOWHERE,
            "gpu_uninstall_confirmed": "{{ inventory_hostname == 'host-1' }}"}).stdout
        assert "fatal: [host-2]: FAILED" in told and "fatal: [host-1]: UNREACHABLE" in told, told


def named_by_a_script(controller: Controller, *names: str) -> List[str]:
    """The words that add hosts with names that an inventory of another kind would not let."""
    (controller.directory / "names.json").write_text(json.dumps(
        {"all": {"hosts": names}, "racks": {"hosts": ["gpu-4"]}, "_meta": {"hostvars": {}}}))
    script = controller.directory / "inventory.sh"
    script.write_text('#!/bin/sh\ncat "$(dirname "$0")/names.json"\n')
    script.chmod(0o755)
    return ["--inventory", str(script)]


def test_a_name_that_ansible_would_cut_is_refused(controller: Controller, api: Api) -> None:
    told = controller.play("gpuops.nvidia.site", *named_by_a_script(controller, "rack1:2"), "--check", variables={
        "gpu_cluster_kubeconfig": str(api.kubeconfig), "ansible_connection": "local"}).stdout
    assert "end with a colon and a number: rack1:2" in told, told


@pytest.mark.parametrize("names, strange", [
    (["2001:db8::7", "paris:gpu-3", "paris", "gpu-3", "racks:x", "gpu*:*", "!gpu-3", "ab:cd", "a,b"],
     "ab:cd paris:gpu-3 racks:x gpu*:* !gpu-3 a,b"),
    (["2001:db8::7", "::1", "gpu*", "gpu_5.example"], "")])
def test_a_name_that_ansible_reads_as_a_pattern_of_others_is_refused(
    controller: Controller, names: List[str], strange: str
) -> None:
    """The others would be changed in the place of its host."""
    play = controller.directory / "names_play.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"import_tasks": str(REPOSITORY / "playbooks" / "tasks" / "names.yml")}]}]))
    done = controller.play(str(play), *named_by_a_script(controller, *names))
    told = " ".join(done.stdout.split())
    assert done.returncode == (2 if strange else 0), told
    assert ("patterns of others: %s. Wanted" % strange in told) == bool(strange), told


def test_a_plan_refuses_what_site_would_refuse_of_names(controller: Controller) -> None:
    done = controller.play("gpuops.nvidia.plan", *named_by_a_script(controller, "paris:gpu-3"), "--limit", "host-1",
                           "--check")
    assert "playbook.name_is_a_pattern" not in done.stdout
    done = controller.play("gpuops.nvidia.plan", *named_by_a_script(controller, "paris:gpu-3"))
    assert done.returncode == 2 and "[playbook.name_is_a_pattern]" in done.stdout, done.stdout


def test_a_switch_that_is_neither_on_nor_off_is_refused_before_a_drain(controller: Controller) -> None:
    (told,) = refused(controller, Plan(), gpu_rollout_health="enabled")
    assert 'gpu_rollout_health is "enabled"' in told and told.endswith("[playbook.switch_is_no_boolean]")


def test_a_time_to_wait_that_is_no_number_is_refused_before_a_drain(controller: Controller) -> None:
    (told,) = refused(controller, Plan(), gpu_lock_timeout="10m")
    assert "gpu_lock_timeout is 10m" in told
    (told,) = refused(controller, Plan(), gpu_progress_interval="-1")
    assert "gpu_progress_interval -1" in told
    assert refused(controller, Plan(), gpu_lock_timeout="0", gpu_progress_interval=0) == ["out=False put off="]


@pytest.mark.parametrize("how", ["it failed", "it failed and could not be cordoned", "it does not answer any more"])
def test_no_batch_follows_one_in_which_a_host_failed(controller: Controller, how: str) -> None:
    """Ansible itself goes on as long as one host of a batch is well: a bad version would go through the whole fleet."""
    gone = how == "it does not answer any more"
    begins, change = (task for task in yaml.safe_load((REPOSITORY / "playbooks/tasks/change.yml").read_text())
                      if "its change begins" in task["name"] or task["name"] == "Change the host")
    play = controller.directory / "batches.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "serial": 2, "tasks": [
        {"ansible.builtin.import_tasks": str(REPOSITORY / "playbooks" / "tasks" / "go_on.yml")},
        begins,
        {"block": [{"ansible.builtin.command": "false", "changed_when": False,
                    "when": "inventory_hostname == 'bad'"}, change["block"][-1]],
         "rescue": [change["rescue"][0], *([{"ansible.builtin.fail": {"msg": "no API"}}] if "cordoned" in how else []),
                    change["rescue"][-1]]},
        {"ansible.builtin.debug": {"msg": "changed {{ inventory_hostname }}"}}]}]))
    done = controller.play(str(play), hosts=("good", "bad", "next", "later", "last"), variables={
        name: "{{ '%s' if inventory_hostname == 'bad' else '%s' }}" % (value, LOCAL.get(name, ""))
        for name, value in NOWHERE.items()} if gone else None)
    assert done.returncode != 0
    assert ("unreachable=1" in done.stdout) == gone
    assert "changed good" in done.stdout and "the change of bad failed in this run" in done.stdout
    assert not any("changed " + name in done.stdout for name in ("bad", "next", "later", "last")), done.stdout
    assert "last" not in done.stdout


def test_batches_follow_while_all_is_well(controller: Controller) -> None:
    begins, change = (task for task in yaml.safe_load((REPOSITORY / "playbooks/tasks/change.yml").read_text())
                      if "its change begins" in task["name"] or task["name"] == "Change the host")
    play = controller.directory / "batches.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "serial": 2, "strategy": strategy, "tasks": [
        {"ansible.builtin.import_tasks": str(REPOSITORY / "playbooks" / "tasks" / "go_on.yml")},
        begins, change["block"][-1]]} for strategy in ("free", "linear")]))
    done = controller.play(str(play), hosts=("one", "two", "three"))
    assert done.returncode == 0 and "failed=1" not in done.stdout, done.stdout


@pytest.fixture
def other(tmp_path_factory: Any) -> Iterator[Api]:
    server = Api(tmp_path_factory.mktemp("other"))
    yield server
    server.close()


@pytest.mark.parametrize("name, mode", [("site", "--diff"), ("uninstall", "--check")])
def test_what_cannot_be_done_to_one_cluster_stops_its_own_hosts_alone(
    controller: Controller, api: Api, other: Api, name: str, mode: str
) -> None:
    """Each is read once. The host of the other one goes on, until it is found out to be down."""
    api.state.nodes = [node("one", labels={"nvidia.com/gpu.deploy.operator-validator": "true"})]
    done = controller.play("gpuops.nvidia." + name, mode, hosts=("one", "two", "three"), variables={
        **NOWHERE, "gpu_cluster_kubeconfig":
            "{{ {'one': '%s', 'two': '%s'}.get(inventory_hostname, '/no') }}" % (api.kubeconfig, other.kubeconfig)})
    told = {line.split()[0]: line for line in done.stdout.splitlines() if " unreachable=" in line}
    assert "failed=1" in told["one"] and "failed=1" in told["three"] and "unreachable=1" in told["two"], done.stdout
    assert "[cluster.managed_by_gpu_operator]" in done.stdout and "[cluster.kubeconfig_unusable]" in done.stdout
    assert api.count("GET", "/api/v1/nodes") == other.count("GET", "/api/v1/nodes") == 1


@pytest.mark.parametrize("environment", [
    "K8S_AUTH_KUBECONFIG", pytest.param("K8S_AUTH_HOST", marks=pytest.mark.variation)])
def test_one_of_them_may_be_that_of_the_environment(
    controller: Controller, api: Api, other: Api, environment: str
) -> None:
    credential = {"K8S_AUTH_API_KEY": "a-token", "K8S_AUTH_HOST": api.url}
    controller.play(
        "gpuops.nvidia.uninstall", "--check", hosts=("one", "two"),
        environment=credential if environment.endswith("HOST") else {environment: str(api.kubeconfig)},
        variables={**NOWHERE, "gpu_cluster_kubeconfig":
                   "{{ '%s' if inventory_hostname == 'two' else '' }}" % other.kubeconfig})
    assert api.count("GET", "/api/v1/nodes") == other.count("GET", "/api/v1/nodes") == 1


def test_a_credential_in_the_environment_is_a_cluster(in_words: Hosts) -> None:
    """AWX gives playbooks a cluster in this way, and no kubeconfig."""
    in_words.api.state.nodes = [node("host-1", labels=GPU)]
    told = uninstalled(in_words, "host-1", gpu_cluster_kubeconfig="", environment={
        "K8S_AUTH_HOST": in_words.api.url, "K8S_AUTH_API_KEY": "a-token", "K8S_AUTH_VERIFY_SSL": "false"})
    assert has_run(told, TAKEN), told
    assert in_words.api.state.requests
