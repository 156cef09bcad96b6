# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command gpuops on hosts: what it plans and does is what a controller plans and does, and needs none.

Three hosts alike: one is installed by `site`, another by itself from its policy, by a person; the third is an image
with the agent that boots. Its kubelet is a unit that only says that it runs: what is shown is who may start it.
"""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Tuple

import pytest
from laboratory import Fleet, assert_journal_is_plan, changed_by_us, new_lab

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.policy import POLICY_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import canonical
from gpulab import silicon
from gpulab.topology import parse

ASKED, ALONE, BORN = "asked", "alone", "born"
UNIT = "gpuops-nvidia-boot.service"
KUBELET = """[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
"""
AGENT = [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_agent"}}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("agent")
    lab.up(parse({"name": "agent", "control_plane": False,
                  "hosts": [{"name": name, "board": "a30", "gpus": 2} for name in (ASKED, ALONE, BORN)]},
                 "test_agent.py"))
    yield Fleet(lab, tmp_path_factory.mktemp("agent"))
    lab.down()


@pytest.fixture(scope="module")
def before(fleet: Fleet) -> Dict[str, str]:
    return fleet.fingerprint(ALONE)


def gpuops(fleet: Fleet, host: str, *words: str) -> Tuple[int, Dict[str, Any]]:
    done = fleet.lab.ssh(host, ["gpuops", *words, "--json"], check=False)
    assert done.stdout, done.stderr
    return done.returncode, dict(json.loads(done.stdout))


def asked_to_plan(fleet: Fleet, host: str) -> Dict[str, Any]:
    played = fleet.tasks(host, [{"gpuops.nvidia.gpu_plan": {"from_variables": True}}], node_agent_state="present")
    return dict(played.result(host, "gpu_plan")["plan"])


def done(events: List[Dict[str, Any]]) -> List[Tuple[str, str]]:
    """(event, step) of what is no agent's, without what is a host's own."""
    return [(event["event"], event["step"]["id"]) for event in events if event["step"]["capability"] != "agent"]


def test_the_role_brings_the_command_and_its_policy(fleet: Fleet, before: Dict[str, str]) -> None:
    for host in (ASKED, ALONE):
        assert fleet.tasks(host, AGENT, node_agent_state="present").code == 0
    again = fleet.tasks(f"{ASKED},{ALONE}", AGENT, node_agent_state="present")
    assert again.code == 0 and again.changes() == []
    assert fleet.say(ALONE, "stat", "-c", "%a %U", POLICY_FILE) == "600 root"
    code, told = gpuops(fleet, ALONE, "info")
    assert code == 0 and len(told["observation"]["pci"]["gpus"]) == 2


def test_its_plan_of_a_bare_host_is_the_controllers(fleet: Fleet) -> None:
    code, told = gpuops(fleet, ALONE, "plan")
    assert code == 0 and len(told["plan"]["steps"]) > 10
    assert canonical(told["plan"]) == canonical(asked_to_plan(fleet, ALONE))
    assert "packages.install" in fleet.say(ALONE, "gpuops", "plan")


def test_it_installs_a_bare_host_as_site_does(fleet: Fleet) -> None:
    planned = gpuops(fleet, ALONE, "plan")[1]["plan"]
    since = len(fleet.events(ALONE))
    code, told = gpuops(fleet, ALONE, "apply")
    assert code == 0, told
    assert_journal_is_plan(fleet.events(ALONE)[since:], planned)
    fleet.play("gpuops.nvidia.site", "--limit", ASKED, node_agent_state="present")
    assert done(fleet.events(ALONE)) == done(fleet.events(ASKED))
    assert fleet.packages(ALONE) == fleet.packages(ASKED)
    assert fleet.kept(ALONE)["packages"] == fleet.kept(ASKED)["packages"]


def test_what_it_installed_needs_nothing_more_of_either(fleet: Fleet) -> None:
    code, told = gpuops(fleet, ALONE, "plan")
    assert code == 0 and told["converged"] and told["plan"]["steps"] == []
    assert canonical(told["plan"]) == canonical(asked_to_plan(fleet, ALONE))
    code, told = gpuops(fleet, ALONE, "validate")
    assert code == 0 and {check["status"] for check in told["checks"]} == {"passed"}, told
    played = fleet.play("gpuops.nvidia.site", "--limit", ALONE, node_agent_state="present")
    assert played.changes() == []


def test_a_node_that_is_not_well_is_told_by_its_exit_code(fleet: Fleet) -> None:
    fleet.say(ALONE, "mv", "/var/run/cdi/nvidia.yaml", "/root/")
    code, told = gpuops(fleet, ALONE, "validate")
    assert code == 1 and told["failed"] and told["remedy"]
    assert gpuops(fleet, ALONE, "apply")[0] == 0
    assert gpuops(fleet, ALONE, "validate")[0] == 0


def test_it_goes_with_all_that_came_by_it(fleet: Fleet, before: Dict[str, str]) -> None:
    """By a controller: what the one has brought, the other takes back."""
    fleet.play("gpuops.nvidia.uninstall", "--limit", ALONE, gpu_uninstall_confirmed=True)
    assert changed_by_us(before, fleet.fingerprint(ALONE)) == {}
    assert fleet.say(ALONE, "ls", "/etc/gpuops", "/usr/local/sbin/gpuops", "/var/lib/gpuops/agent") == ""


# at a boot


def booted(fleet: Fleet) -> Dict[str, str]:
    """The host once it has started: states of our unit and the kubelet, and what became of it."""
    fleet.lab.reboot(BORN)
    fleet.lab.ssh(BORN, ["systemctl", "is-system-running", "--wait"], check=False)
    return {**{name: fleet.say(BORN, "systemctl", "is-active", name + ".service")
               for name in ("gpuops-nvidia-boot", "kubelet")},
            **json.loads(fleet.say(BORN, "cat", "/run/gpuops/boot.json"))}


def done_at_boot(fleet: Fleet, since: int) -> List[str]:
    return [event["step"]["capability"] for event in fleet.events(BORN)[since:] if event["event"] == "done"]


def test_a_bare_host_with_the_agent_becomes_a_validated_node_before_its_kubelet_starts(fleet: Fleet) -> None:
    policy = {"gpus": [{"match": ["all"], "power_limit": 150}]}
    assert fleet.tasks(BORN, [
        *AGENT,
        {"ansible.builtin.copy": {"content": KUBELET, "dest": "/etc/systemd/system/kubelet.service"}},
        {"ansible.builtin.command": "systemctl enable --no-reload kubelet.service"},
    ], node_agent_state="present", node_agent_boot="hold", gpu_settings_gpus=policy["gpus"],
        gpu_validation_expected_gpus=2).code == 0
    told = booted(fleet)
    assert (told["gpuops-nvidia-boot"], told["kubelet"], told["state"]) == ("active", "active", "validated"), (
        told, fleet.say(BORN, "journalctl", "-b", "-u", UNIT))
    started = [int(fleet.say(BORN, "systemctl", "show", "--value", "-p", "ActiveEnterTimestampMonotonic", name))
               for name in (UNIT, "kubelet.service")]
    assert started[0] <= started[1]
    assert fleet.say(BORN, "nvidia-smi", "--query-gpu=power.limit", "--format=csv,noheader,nounits").split() == [
        "150.00", "150.00"]


def test_what_a_boot_loses_is_back_before_the_kubelet_and_nothing_else_is_done(fleet: Fleet) -> None:
    since = len(fleet.events(BORN))
    told = booted(fleet)
    assert (told["kubelet"], told["state"]) == ("active", "validated")
    assert set(done_at_boot(fleet, since)) <= {"settings", "cdi", "mig"}
    assert told["until"] - told["since"] < 120


def test_a_node_that_computes_wrongly_starts_no_kubelet_and_says_why(fleet: Fleet) -> None:
    silicon.inject_fault(fleet.lab.host(BORN).silicon, "wrong-result", 1, sm=3)
    try:
        told = booted(fleet)
    finally:
        silicon.clear_faults(fleet.lab.host(BORN).silicon)
    assert (told["gpuops-nvidia-boot"], told["state"]) == ("failed", "failed")
    assert told["kubelet"] != "active"
    console = fleet.lab.host(BORN).console.read_text(errors="replace")
    for seen in (told["reason"], fleet.say(BORN, "journalctl", "-b", "-u", UNIT), console):
        assert "multiprocessor 3" in seen
    fleet.say(BORN, "systemctl", "start", "kubelet")
    assert fleet.say(BORN, "systemctl", "is-active", "kubelet") == "active"


def test_a_host_whose_packages_cannot_be_had_starts_no_kubelet(fleet: Fleet) -> None:
    """As an autoscaled one with a broken mirror: the driver is gone, and no repository answers."""
    fleet.play("gpuops.nvidia.uninstall", "--limit", BORN, gpu_uninstall_confirmed=True)
    nowhere = "http://packages.gpulab:1/nothing"
    assert fleet.tasks(BORN, AGENT, node_agent_state="present", node_agent_boot="hold",
                       gpu_driver_repository_url=nowhere).code == 0
    told = booted(fleet)
    assert (told["gpuops-nvidia-boot"], told["state"]) == ("failed", "failed")
    assert told["kubelet"] != "active" and nowhere in told["reason"]
