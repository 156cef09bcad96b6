# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Playbooks as a user without root's rights runs them: plans kept and held to, several in one run, one host spared."""
from __future__ import annotations

import json
import stat
from dataclasses import replace
from typing import Dict, Iterator, List

import pytest
import yaml
from laboratory import Fleet, Played, developer, new_lab
from workspace import REPOSITORY

from gpulab.hosts import ADMIN
from gpulab.topology import parse

TOPOLOGY = {"name": "playbooks", "control_plane": True, "hosts": [
    {"name": "one", "board": "t4", "gpus": 1}, {"name": "two", "board": "t4", "gpus": 1}, {"name": "plain"}]}

# The components are other tests' matter.
HOSTS_ALONE = ("--skip-tags", "components")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("playbooks")
    lab.up(parse(TOPOLOGY, __file__))
    yield Fleet(lab, tmp_path_factory.mktemp("playbooks"), replace(developer(), user=ADMIN))
    lab.down()


def in_one_run(fleet: Fleet, *imports: Dict[str, str]) -> Played:
    """Playbooks of the collection, one after another in one run of ansible-playbook: {'site': 'pattern of hosts'}."""
    path = fleet.scratch / "several.json"
    path.write_text(json.dumps([
        {"ansible.builtin.import_playbook": "gpuops.nvidia." + name, "vars": {"gpu_hosts": hosts}}
        for each in imports for name, hosts in each.items()]))
    return fleet.play(str(path), *HOSTS_ALONE, gpu_uninstall_components=False)


def cordoned(fleet: Fleet, host: str) -> bool:
    return bool(fleet.node(host)["spec"].get("unschedulable"))


def messages(played: Played, host: str) -> List[str]:
    return [str(result.get("msg", "")) for result in played.results(host) if result.get("failed")]


def test_without_become_there_is_no_plan(fleet: Fleet) -> None:
    played = fleet.run("gpuops.nvidia.plan", "--limit", "one", ansible_become=False)
    assert played.code != 0
    (message,) = messages(played, "one")
    assert "uid 1000" in message and "become: true" in message and "Traceback" not in message


def test_the_plan_is_saved_where_its_reader_is_and_another_policy_is_not_it(fleet: Fleet) -> None:
    planned = fleet.play("gpuops.nvidia.plan", "--limit", "one,two", gpu_plan_dir="plans")
    for host in ("one", "two"):
        saved = fleet.scratch / "plans" / (host + ".json")
        assert json.loads(saved.read_text()) == planned.result(host, "gpu_plan")["plan"]
        assert stat.S_IMODE(saved.stat().st_mode) == 0o600
    (fleet.scratch / "plans" / "two.json").write_text((fleet.scratch / "plans" / "one.json").read_text())
    refused = fleet.run("gpuops.nvidia.site", "--limit", "one,two", gpu_plan_dir="plans",
                        container_runtime_handler="nvidia-gpu")
    assert refused.code != 0
    assert "the options of runtime are others than those of the approved plan" in messages(refused, "one")[0]
    assert "the approved plan is that of host 'one', and this is 'two'" in messages(refused, "two")[0]
    for host in ("one", "two"):
        assert not cordoned(fleet, host)
        assert fleet.say(host, "ls", "-A", "/var/lib/gpuops") == ""


@pytest.mark.variation
def test_a_host_that_changed_since_its_plan_is_refused_before_its_cordon(fleet: Fleet) -> None:
    """Somebody is there between the plan of all hosts and the turn of this one."""
    fleet.play("gpuops.nvidia.plan", "--limit", "one", gpu_plan_dir="approved")
    site = yaml.safe_load((REPOSITORY / "playbooks" / "site.yml").read_text())
    changing = next(position for position, play in enumerate(site) if play["hosts"] == "{{ gpu_hosts_in_order }}")
    somebody = {"name": "Somebody is there", "hosts": "one", "gather_facts": False, "tasks": [
        {"ansible.builtin.copy": {"content": "# mine\n", "dest": "/etc/modprobe.d/gpuops-nouveau.conf"}}]}
    path = fleet.scratch / "site-and-somebody.yml"
    path.write_text(yaml.safe_dump([*site[:changing], somebody, *site[changing:]]))
    for directory in ("roles", "tasks"):
        (fleet.scratch / directory).symlink_to(REPOSITORY / "playbooks" / directory)
    try:
        refused = fleet.run(str(path), "--limit", "one", gpu_plan_dir="approved")
    finally:
        fleet.say("one", "rm", "-f", "/etc/modprobe.d/gpuops-nouveau.conf")
    assert refused.code != 0
    assert "/etc/modprobe.d/gpuops-nouveau.conf" in messages(refused, "one")[0], refused.failures()
    assert refused.results("one", "gpu_node_custody") == []
    assert not cordoned(fleet, "one")


@pytest.mark.variation
def test_several_playbooks_of_one_run_know_nothing_of_each_other(fleet: Fleet) -> None:
    played = in_one_run(fleet, {"site": "two,plain"}, {"uninstall": "one"})
    states = [each["custody"] for each in played.results("two", "gpu_node_custody") if "custody" in each]
    assert states[:2] == ["taken", "taken"] and states[-1] == "returned", "asked, done"
    assert len(played.results("one", "gpu_plan")) == 1, "the uninstallation's own"
    assert not any(cordoned(fleet, host) for host in ("one", "two"))
    assert fleet.say("two", "cat", "/sys/module/nvidia/version") == "580.178.04"
    assert fleet.say("one", "sh", "-c", "dpkg-query -W 'nvidia-*'; ls /sys/module/nvidia /etc/modprobe.d/gpuops*") == ""
    assert any("left out: plain" in str(result.get("msg")) for result in played.results("plain"))
    assert [result["action"].rpartition(".")[2] for result in played.results("plain")
            if "gpuops" in result["action"]] == ["gpu_plan"]


@pytest.mark.variation
def test_a_converged_host_is_validated_and_stays_in_service(fleet: Fleet) -> None:
    again = fleet.play("gpuops.nvidia.site", "--limit", "two", *HOSTS_ALONE)
    assert again.changes() == []
    assert again.calls["two"] == ["gpu_plan"]


@pytest.mark.variation
def test_the_validation_of_an_unprivileged_login_needs_become(fleet: Fleet) -> None:
    assert fleet.play("gpuops.nvidia.validate", "--tags", "hosts", "--limit", "two").result("two", "gpu_validation")
    refused = fleet.run("gpuops.nvidia.validate", "--tags", "hosts", "--limit", "two", ansible_become=False)
    assert refused.code != 0 and "become: true" in messages(refused, "two")[0]
