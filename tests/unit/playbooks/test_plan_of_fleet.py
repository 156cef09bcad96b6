# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plan of many hosts as ansible-playbook shows it, and that only what was approved of it is done.

Playbooks and action plugins are the real ones. What the module finds on a host is a stored result: the hosts are not
asked.
"""
from __future__ import annotations

import json
import re
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from canned import Hosts, planned
from cluster_api import Api
from cluster_objects import node
from controller import Controller
from object_store import Store
from stand_ins import STORED_PLAN

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Kept, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.text import MOST_LINES

# The most memory that Ansible's own process had
PEAK = '''
import resource
from ansible.plugins.callback import CallbackBase


class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_TYPE, CALLBACK_NAME = 2.0, "aggregate", "peak"

    def v2_playbook_on_stats(self, stats):
        self._display.display("peak %d MiB" % (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024), stderr=True)
'''
UPGRADE = Plan(steps=(
    Step("driver", "packages.install", "driver 595.91.07", "580.178.04 is installed.", Disruption.driver_reload,
         {"before": {"nvidia-open": "580.178.04-1"}, "after": {"nvidia-open": "595.91.07-1"}}),
    Step("runtime", "file.write", "/etc/containerd/conf.d/nvidia.toml", "The handler is not there.",
         Disruption.runtime_restart, {"before": None, "after": "[plugins]\n"})))
REFUSED = Plan(refusals=(Refusal("driver.version_not_offered", "no driver 595.91.07", "that", "take another"),))
SECRET = "http://me:s3cret@mirror.example/x"


class Fleet(Hosts):
    """Hosts whose plans are stored."""

    def __init__(self, controller: Controller, api: Api) -> None:
        super().__init__(controller, api)
        self.stored = controller.directory / "stored"
        self.stored.mkdir()
        self.hosts: List[str] = []
        self.put(gpu_plan=STORED_PLAN)
        self.err = ""

    def add(self, *hosts: str, plan: Optional[Plan] = None, **more: Any) -> None:
        """more: of the module's result, or with what the connection fails ('raised')."""
        for host in hosts:
            own = replace(plan or Plan(), host=host)
            found = more if "raised" in more else {"result": planned(
                own, observation={"pci": {"gpus": [1]}}, **more)}
            (self.stored / (host + ".json")).write_text(json.dumps(found))
            self.hosts.append(host)

    def play(self, name: str, *options: str, environment: Any = None, expect: int = 0, **variables: Any) -> str:
        """What the standard output has."""
        done = self.controller.play(
            "gpuops.nvidia." + name, *options, hosts=self.hosts,
            environment={"ANSIBLE_COLLECTIONS_PATH": str(self.root), "ANSIBLE_FORKS": "8", **(environment or {})},
            variables={"stored": str(self.stored), **variables})
        self.err = done.stderr
        assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
        return done.stdout

    def plan(self, *options: str, **given: Any) -> List[str]:
        """The lines of the fleet's plan."""
        told = self.play("plan", *options, **given)
        after = told[told.index("TASK [Say it of all hosts and clusters]"):]
        shown = re.split(r"\n(?:ok|skipping|changed): \[", after, maxsplit=1)[0]
        return shown.splitlines()[1:]

    @property
    def plans(self) -> Path:
        return self.controller.here / "plans"


@pytest.fixture
def fleet(controller: Controller, api: Api) -> Fleet:
    return Fleet(controller, api)


@pytest.mark.variation
def test_the_plan_of_500_hosts_is_read_in_a_page_and_each_host_is_in_it(fleet: Fleet) -> None:
    fleet.add(*("gpu-%03d" % number for number in range(1, 413)))
    fleet.add(*("gpu-%03d" % number for number in range(413, 489)), plan=UPGRADE, expected_seconds=840)
    for number in range(489, 493):
        fleet.add("gpu-%03d" % number, plan=replace(UPGRADE, notes=("It is hot.", "Slot %d." % number)))
    fleet.add(*("gpu-%03d" % number for number in range(493, 498)), plan=REFUSED)
    fleet.add("gpu-498", "gpu-499", raised="ssh: connect to host x port 22: No route to host")
    (fleet.stored / "gpu-500.json").write_text(json.dumps({"result": {"failed": True, "msg": "no Python there"}}))
    fleet.hosts.append("gpu-500")
    lines = fleet.plan(gpu_plan_dir="plans", expect=4)
    assert len(lines) <= MOST_LINES and lines[0] == "500 hosts", lines
    for line in ("412 hosts: nothing to do: gpu-[001-412]",
                 "76 hosts: 2 steps, disruption driver_reload: gpu-[413-488]",
                 "  expected to take 14 min 0 s a host", "5 hosts: refused: gpu-[493-497]",
                 "2 hosts: unreachable: gpu-[498-499]", "gpu-500: no plan could be made", "  note: Slot 489."):
        assert line in lines, lines
    assert sum(int(line.split()[0]) if " hosts: " in line else 1
               for line in lines if re.match(r"\d+ hosts: |gpu-\d+: ", line)) == 500
    index = json.loads((fleet.plans / "fleet.index").read_text())
    assert len(index["hosts"]) == 500 and sum(map(bool, index["hosts"].values())) == 492
    files = {path.name for path in fleet.plans.iterdir()}
    assert len(files) == 497 + 3 and {"fleet.md", "fleet.html", "gpu-001.json"} <= files
    assert {stat.S_IMODE(path.stat().st_mode) for path in fleet.plans.iterdir()} == {0o600}
    assert re.fullmatch(r"Saved in plans\. .* -e gpu_plan_dir=plans -e gpu_approved_fleet=[0-9a-f]{16}", lines[-1])
    for name in ("fleet.md", "fleet.html"):
        page = (fleet.plans / name).read_text().replace("\\", "")
        assert "gpu-[001-412]" in page and "580.178.04-1" in page and lines[-1][-16:] in page


@pytest.mark.variation
def test_memory_does_not_grow_with_the_text_of_equal_plans(fleet: Fleet) -> None:
    """Of 40 hosts: what Ansible held of each it would hold 40 times, and a copy as it is registered."""
    plugins = fleet.controller.directory / "callbacks"
    plugins.mkdir()
    (plugins / "peak.py").write_text(PEAK)
    hosts = ["gpu-%02d" % number for number in range(40)]

    def peak(length: int) -> int:
        step = Step("runtime", "file.write", "/etc/x", "It is wanted.", change={
            "before": None, "after": "x\n" * length})
        whole = json.dumps(planned(Plan(steps=(step,)), observation={"pci": {"gpus": [1]}}))
        (fleet.stored / "whole").write_text(whole)
        for host in hosts:
            (fleet.stored / (host + ".json")).write_text(json.dumps({"same_as": "whole"}))
        fleet.hosts = hosts
        fleet.plan(environment={"ANSIBLE_CALLBACK_PLUGINS": str(plugins), "ANSIBLE_CALLBACKS_ENABLED": "peak"})
        found = re.search(r"peak (\d+) MiB", fleet.err)
        assert found, fleet.err
        return int(found.group(1))

    small, large = peak(10), peak(500_000)
    assert large - small < 40, (small, large)


def test_few_hosts_are_told_with_every_step_and_its_change(fleet: Fleet) -> None:
    fleet.add("gpu-1", plan=replace(UPGRADE, kept=(Kept("package dkms", "others need it"),)))
    fleet.add("gpu-2")
    lines = fleet.plan()
    assert lines[:4] == ["2 hosts", "gpu-2: nothing to do", "gpu-1: 2 steps, disruption driver_reload",
                         "  1. [driver_reload] packages.install driver 595.91.07"]
    assert {"     580.178.04 is installed.", "       nvidia-open: 580.178.04-1 -> 595.91.07-1",
            "  kept: package dkms: others need it"} <= set(lines)


@pytest.mark.variation
def test_many_hosts_are_told_whole_where_that_is_asked_for(fleet: Fleet) -> None:
    steps = tuple(Step("runtime", "file.write", "/etc/%d" % number, "It is wanted.") for number in range(100))
    fleet.add(*("gpu-%02d" % number for number in range(12)), plan=Plan(steps=steps))
    short, whole = fleet.plan(), fleet.plan("-v")
    assert len(short) <= MOST_LINES and short[-1].startswith("Shortened. With -v ")
    assert "     and 80 more" in short and "100. [none] file.write /etc/99" in whole


def test_it_is_data_where_the_output_is_data(fleet: Fleet) -> None:
    fleet.add("gpu-1", "gpu-2", plan=UPGRADE)
    told = json.loads(fleet.play("plan", environment={"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"}))
    results = {task["task"]["name"]: task["hosts"] for play in told["plays"] for task in play["tasks"]}
    found = results["Say it of all hosts and clusters"]["gpu-1"]["fleet"]
    assert found["hosts"]["changing"] == ["gpu-1", "gpu-2"] and len(found["plans"]) == 1
    assert results["Plan the host"]["gpu-2"]["plan"]["steps"]


@pytest.mark.parametrize("task", [{"no_log": True}, {"gpuops.nvidia.gpu_fleet_plan": {"show": False}}])
def test_nothing_is_shown_where_nothing_may_be(fleet: Fleet, task: Dict[str, Any]) -> None:
    fleet.add("gpu-1", plan=UPGRADE)
    play = fleet.controller.directory / "play.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.gpu_plan": {"for_fleet": True}}, {"gpuops.nvidia.gpu_fleet_plan": {}, **task}]}]))
    done = fleet.controller.play(str(play), hosts=fleet.hosts, variables={"stored": str(fleet.stored)}, environment={
        "ANSIBLE_COLLECTIONS_PATH": str(fleet.root)})
    assert done.returncode == 0 and "595.91.07" not in done.stdout + done.stderr, done.stdout


def test_a_plan_that_may_not_be_seen_is_counted_and_not_shown(fleet: Fleet) -> None:
    fleet.add("gpu-1", "gpu-2", plan=UPGRADE)
    play = fleet.controller.directory / "play.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [
        {"gpuops.nvidia.gpu_plan": {"for_fleet": True}, "no_log": True}, {"gpuops.nvidia.gpu_fleet_plan": {
            "save_to": "plans"}, "run_once": True}]}]))
    done = fleet.controller.play(str(play), hosts=fleet.hosts, variables={"stored": str(fleet.stored)}, environment={
        "ANSIBLE_COLLECTIONS_PATH": str(fleet.root)})
    assert "2 hosts: planned, and not shown, as no_log says: gpu-[1-2]" in done.stdout, done.stdout + done.stderr
    texts = [done.stdout, done.stderr, *(path.read_text() for path in fleet.plans.iterdir())]
    assert not any("595.91.07" in text for text in texts)


def test_nothing_that_is_shown_or_saved_for_people_has_a_password_of_a_url(fleet: Fleet) -> None:
    step = Step("driver", "file.write", SECRET, "From %s." % SECRET, change={"before": None, "after": SECRET})
    fleet.add("gpu-1", plan=Plan(steps=(step,), notes=(SECRET,)))
    fleet.add("gpu-2", plan=Plan(refusals=(Refusal("driver.version_not_offered", SECRET, SECRET, SECRET),)))
    (fleet.stored / "gpu-3.json").write_text(json.dumps({"result": {"failed": True, "msg": "x", "refusals": [
        Refusal("a.b", SECRET, "b", "c").to_dict()]}}))
    fleet.hosts.append("gpu-3")
    for options in ((), ("-v",)):
        lines = fleet.plan(*options, gpu_plan_dir="plans", expect=2)
        texts = ["\n".join(lines), *((fleet.plans / name).read_text() for name in ("fleet.md", "fleet.html"))]
        assert all("mirror.example/x" in text.replace("\\", "") and "s3cret" not in text for text in texts), texts


class TestApproved:
    # By the last run of site
    told = ""

    @staticmethod
    def digest(fleet: Fleet, **more: Any) -> str:
        return fleet.plan(gpu_plan_dir="plans", **more)[-1].rpartition("=")[2]

    @staticmethod
    def site(fleet: Fleet, digest: str, **more: Any) -> Dict[str, str]:
        """{host: its refusal}."""
        told = TestApproved.told = fleet.play("site", "--check", "--tags", "hosts", **{
            "gpu_plan_dir": "plans", "gpu_approved_fleet": digest, "canned": {}, **more})
        return dict(re.findall(r"^fatal: \[([^\]]+)\]: FAILED! => .*\[(approval\.\w+)\]", told, re.MULTILINE))

    @pytest.mark.variation
    def test_what_was_approved_goes_on(self, fleet: Fleet) -> None:
        fleet.add("gpu-1", plan=UPGRADE)
        fleet.add("gpu-2")
        assert self.site(fleet, self.digest(fleet)) == {}

    def test_the_same_plans_have_the_same_digest(self, fleet: Fleet) -> None:
        fleet.add("gpu-1", plan=UPGRADE)
        fleet.add("gpu-2")
        first = self.digest(fleet)
        fleet.hosts.reverse()
        assert self.digest(fleet) == first
        fleet.add("gpu-2", plan=UPGRADE)
        fleet.hosts.pop()
        assert self.digest(fleet) != first

    def test_hosts_are_refused_whose_plan_was_not_approved(self, fleet: Fleet) -> None:
        fleet.add("gpu-1", "gpu-2", plan=UPGRADE)
        fleet.add("gpu-3", plan=REFUSED)
        digest = self.digest(fleet, expect=2)
        fleet.add("gpu-4", plan=UPGRADE)
        (fleet.plans / "gpu-2.json").write_text(json.dumps(replace(UPGRADE, host="gpu-2", steps=()).to_dict()))
        fleet.add("gpu-3", plan=UPGRADE)
        fleet.hosts.pop()
        assert self.site(fleet, digest, expect=2) == {
            "gpu-2": "approval.plan_exchanged", "gpu-3": "approval.nothing_approved",
            "gpu-4": "approval.not_of_this_fleet"}

    @pytest.mark.variation
    def test_another_digest_approves_nothing(self, fleet: Fleet) -> None:
        fleet.add("gpu-1", plan=UPGRADE)
        digest = self.digest(fleet)
        assert self.site(fleet, "0" * 16, expect=2) == {"gpu-1": "approval.of_another_fleet"}
        assert self.site(fleet, digest, gpu_plan_dir="", expect=2) == {"gpu-1": "approval.fleet_without_plans"}
        assert "set `gpu_plan_dir` to the directory" in self.told
        (fleet.plans / "fleet.index").unlink()
        assert self.site(fleet, digest, expect=2) == {"gpu-1": "approval.no_plan_of_the_fleet"}


class TestClusters:
    @pytest.fixture
    def api(self, api: Api) -> Api:
        api.state.store = Store(has_controllers=True)
        api.state.store.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}})
        api.state.nodes = [node("gpu-1")]
        return api

    def test_their_plans_come_after_those_of_the_hosts_and_are_part_of_what_is_approved(
        self, fleet: Fleet, api: Api
    ) -> None:
        fleet.add("gpu-1", plan=UPGRADE)
        given = {"gpu_cluster_kubeconfig": str(api.kubeconfig), "gpu_components": ["device_plugin"],
                 "gpu_plan_dir": "plans"}
        lines = fleet.plan(**given)
        cluster = next(number for number, line in enumerate(lines) if line.startswith("cluster %s: " % api.kubeconfig))
        assert cluster > lines.index("gpu-1: 2 steps, disruption driver_reload")
        assert any("object.create" in line for line in lines[cluster:]), lines
        first = lines[-1].rpartition("=")[2]
        index = json.loads((fleet.plans / "fleet.index").read_text())
        assert len(index["clusters"]) == 1 and all(index["clusters"].values())
        assert fleet.plan(**dict(given, gpu_components=["dcgm_exporter"]))[-1].rpartition("=")[2] != first

    def test_how_the_rollout_stands_is_told_over_its_order(self, fleet: Fleet, api: Api) -> None:
        """In all that is printed and saved, and by the words of whoever reads it."""
        api.state.nodes.append(node("gpu-2"))
        fleet.add("gpu-1", plan=UPGRADE)
        fleet.add("gpu-2", raised="ssh: connect to host gpu-2 port 22: No route to host")
        lines = fleet.plan(gpu_cluster_kubeconfig=str(api.kubeconfig), gpu_components=[], gpu_plan_dir="plans",
                           gpu_rollout_max_unreachable=0, gpu_rollout_unit_modes={"llama": "rolling"}, expect=4)
        assert "`gpu_rollout_unit_modes` has llama, and no host" in " ".join(fleet.err.split())
        stopped, at_once, places, turn = lines[lines.index("In this order:") + 1:][:4]
        assert stopped.startswith("  stopped: 1 hosts cannot be reached: gpu-2; do: ") and stopped.endswith(
            "or raise `gpu_rollout_max_unreachable` [rollout.too_many_unreachable]"), lines
        assert (at_once, places) == ("  at once: 1 in all", "  places: 0 of 1 free; 1 unreachable (gpu-2)"), lines
        assert turn.startswith("  1. gpu-1: ")
        for name in ("fleet.md", "fleet.html"):
            assert "rollout.too_many_unreachable" in (fleet.plans / name).read_text().replace("\\", "")

    def test_one_that_is_refused_is_told_with_the_others_and_fails_its_hosts(self, fleet: Fleet, api: Api) -> None:
        fleet.add("gpu-1")
        lines = fleet.plan(gpu_cluster_kubeconfig="/nowhere/config", gpu_components=["device_plugin"], expect=2)
        assert lines[0] == "gpu-1: nothing to do" and lines[1] == "cluster /nowhere/config: refused", lines
        assert "/nowhere/config" in lines[2] and lines[2].startswith("  found "), lines

    def test_another_plan_than_was_approved_is_refused(self, fleet: Fleet, api: Api) -> None:
        fleet.add("gpu-1")
        given = {"gpu_cluster_kubeconfig": str(api.kubeconfig), "gpu_components": ["device_plugin"],
                 "gpu_plan_dir": "plans"}
        digest = fleet.plan(**given)[-1].rpartition("=")[2]
        bring = fleet.controller.directory / "bring.json"
        bring.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{
            "gpuops.nvidia.gpu_components": {"from_variables": True, "approved_from": "plans",
                                             "approved_fleet": "{{ digest }}"}, "run_once": True}]}]))

        def brought(digest: str) -> str:
            done = fleet.controller.play(str(bring), "--check", hosts=fleet.hosts, environment={
                "ANSIBLE_COLLECTIONS_PATH": str(fleet.root)}, variables={**given, "digest": digest})
            return done.stdout

        assert "failed=0" in brought(digest) and "approval.of_another_fleet" in brought("0" * 16)
        (saved,) = fleet.plans.glob("cluster-*.json")
        told = json.loads(saved.read_text())
        saved.write_text(json.dumps(dict(told, steps=told["steps"][1:])))
        assert "approval.plan_exchanged" in brought(digest)


class TestProgress:
    STEP = Step("toolkit", "packages.install", "toolkit", "Toolkit.", Disruption.none)

    def told(self, in_words: Hosts, *options: str, failing: str = "", left: str = "", **variables: Any) -> List[str]:
        """left: a host that is to be changed and may not be."""
        hosts = ("gpu-1", "gpu-2", *([left] if left else []))
        done = in_words.controller.play(
            "gpuops.nvidia.site", "--tags", "hosts", *options, hosts=hosts, groups={"others": hosts[:2]},
            environment={"ANSIBLE_COLLECTIONS_PATH": str(in_words.root)}, variables={
                "canned": {"gpu_plan": planned(Plan(steps=(self.STEP,)), expected_seconds=60), **{host: {
                    "gpu_plan": planned(Plan(steps=(self.STEP,))), "container_toolkit": {"failed": True, "msg": "no"}}
                    for host in (failing,) if failing}, **{host: {"gpu_plan": planned(UPGRADE)}
                    for host in (left,) if left}, "gpu_validation": {"changed": False, "checks": []}},
                "gpu_serial": 1, **variables})
        return [line for line in done.stderr.splitlines() if re.match(r"gpu-\d: ", line)]

    def test_a_line_says_where_the_change_of_a_host_begins_and_ends(self, in_words: Hosts) -> None:
        first, second, third, last = self.told(in_words)
        assert re.fullmatch(r"gpu-1: its change begins \(1 of 2\), expected until \S+( \S+)?", first)
        assert re.fullmatch(r"gpu-1: done in \d+ s; 1 of 2 done, the rest expected until \S+( \S+)?", second)
        assert third.startswith("gpu-2: its change begins (2 of 2)")
        assert re.fullmatch(r"gpu-2: done in \d+ s; 2 of 2 done", last)

    @pytest.mark.variation
    def test_one_that_fails_is_told_too(self, in_words: Hosts) -> None:
        told = self.told(in_words, failing="gpu-1")
        assert re.fullmatch(r"gpu-1: failed after \d+ s; 0 of 2 done, 1 failed", told[1])

    def test_those_without_a_turn_are_not_waited_for(self, in_words: Hosts) -> None:
        """No window is ever open for it."""
        told = self.told(in_words, left="gpu-3", gpu_rollout_windows=[
            {"days": "sat", "start": "22:00", "duration": "8h", "zone": "UTC", "groups": ["others"]}])
        assert len(told) == 4 and "(1 of 2)" in told[0] and told[-1].endswith("; 2 of 2 done"), told

    @pytest.mark.variation
    def test_nothing_is_said_where_that_is_wanted(self, in_words: Hosts) -> None:
        assert self.told(in_words, gpu_progress_interval=0) == self.told(in_words, "--check") == []
