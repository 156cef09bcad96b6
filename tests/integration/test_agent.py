# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command gpuops on hosts: what it plans and does is what a controller plans and does, and needs none.

Two hosts alike: one is installed by `site`, the other by itself from its policy alone. Its packages come by apt.
"""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Tuple

import pytest
from laboratory import Fleet, assert_journal_is_plan, changed_by_us, new_lab

from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.policy import POLICY_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import canonical
from gpulab.topology import parse

ASKED, ALONE = "asked", "alone"
AGENT = [{"ansible.builtin.include_role": {"name": "gpuops.nvidia.node_agent"}}]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("agent")
    lab.up(parse({"name": "agent", "control_plane": False,
                  "hosts": [{"name": name, "board": "a30", "gpus": 2} for name in (ASKED, ALONE)]}, "test_agent.py"))
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
