# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""An approved plan on a real host: done exactly, in check mode as in the run, or refused before the first write."""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List

import pytest
from laboratory import Fleet, assert_journal_is_plan, new_lab

from gpulab.topology import parse

HOST = "gpu"
OLD, NEW = "580.178.04", "595.91.07"
CUDA = "http://packages.gpulab:8480/cuda/repos/debian12/x86_64"
TOOLKIT = "http://packages.gpulab:8480/libnvidia-container"
MODULES = {"nouveau": "nouveau", "driver": "gpu_driver", "toolkit": "container_toolkit",
           "activation": "gpu_driver_activation", "fabric": "fabric_manager", "imex": "imex",
           "runtime": "container_runtime", "cdi": "cdi_spec"}
SKIP = "/etc/dkms/no-autoinstall"


def options(version: str) -> Dict[str, Dict[str, Any]]:
    return {
        "nouveau": {}, "activation": {}, "fabric": {}, "imex": {}, "runtime": {}, "cdi": {},
        "driver": {"version": version, "repository_url": CUDA, "repository_key": CUDA + "/gpulab.pub"},
        "toolkit": {"repository_url": TOOLKIT + "/stable/deb/amd64", "repository_key": TOOLKIT + "/gpgkey"},
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("approval")
    lab.up(parse({"name": "approval", "control_plane": False,
                  "hosts": [{"name": HOST, "board": "a100-80gb-sxm", "gpus": 2}]}, "test_approval.py"))
    yield Fleet(lab, tmp_path_factory.mktemp("approval"))
    lab.down()


def plan(fleet: Fleet, version: str, **more: Any) -> Dict[str, Any]:
    played = fleet.tasks(HOST, [{"gpuops.nvidia.gpu_plan": dict(options(version), **more)}])
    assert played.code == 0, played.failures()
    return played.result(HOST, "gpu_plan")


def write(fleet: Fleet, version: str, approved: Any, *flags: str) -> List[Dict[str, Any]]:
    """All writers, held to the plan; the last result is a failed one where one fails."""
    return fleet.tasks(HOST, [
        {"gpuops.nvidia." + module: dict(options(version)[name], approved_plan=approved)}
        for name, module in MODULES.items()], *flags).results(HOST)


def steps(results: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    return [step for result in results for step in result["plan"]["steps"]]


def checked_and_done(fleet: Fleet, version: str, approved: str) -> None:
    """Check mode shows the approved plan and the run does it; the package's script is kept from building the module.

    approved: "plan", that which the controller has, or "kept_as", that which was kept on the host.
    """
    fleet.say(HOST, "sh", "-c", "mkdir -p /etc/dkms && touch " + SKIP)
    before = len(fleet.events(HOST))
    told = plan(fleet, version, keep=approved == "kept_as")
    assert told["refusals"] == [] and told["digest"]
    checked = write(fleet, version, told["plan"], "--check")
    assert [result.get("msg") for result in checked if result.get("failed")] == []
    assert steps(checked) == told["plan"]["steps"]
    done = write(fleet, version, told[approved])
    assert [result.get("msg") for result in done if result.get("failed")] == []
    events = fleet.events(HOST)[before:]
    assert_journal_is_plan(events, told["plan"])
    built = [event["event"] for event in events if event["step"]["action"] == "dkms.build"]
    assert built == ["started", "done"], "the package's script was to leave it to us"
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == version
    again = len(fleet.events(HOST))
    assert not any(result["changed"] for result in write(fleet, version, told[approved]))
    assert len(fleet.events(HOST)) == again, "a step is noted once"
    assert plan(fleet, version, approved_plan=told["plan"])["refusals"] == []


def test_a_first_install_is_that_which_was_approved_and_kept_on_the_host(fleet: Fleet) -> None:
    checked_and_done(fleet, NEW, "kept_as")


def test_what_was_not_approved_is_refused_in_check_mode_and_in_the_run(fleet: Fleet) -> None:
    converged = plan(fleet, NEW)["plan"]
    assert converged["steps"] == []
    blacklist = "/etc/modprobe.d/gpuops-nouveau.conf"
    text = fleet.say(HOST, "cat", blacklist)
    fleet.say(HOST, "sh", "-c", "echo '# drifted' >> " + blacklist)
    try:
        assert plan(fleet, NEW, approved_plan=converged)["refusals"]
        for flags in ((), ("--check",)):
            (result,) = write(fleet, NEW, converged, *flags)
            assert result["failed"] and "the approved plan has no such step" in result["msg"]
        assert "# drifted" in fleet.say(HOST, "cat", blacklist)
    finally:
        fleet.say(HOST, "sh", "-c", "printf '%s\n' \"$1\" > " + blacklist, "sh", text)


def test_another_host_schema_or_policy_is_refused(fleet: Fleet) -> None:
    approved = plan(fleet, NEW)["plan"]
    before = len(fleet.events(HOST))
    for other, said in (({"host": "elsewhere"}, "host 'elsewhere'"), ({"schema": "gpuops.nvidia/plan/v1"}, "plan/v1")):
        (result,) = write(fleet, NEW, dict(approved, **other))
        assert result["failed"] and said in result["msg"]
    result = write(fleet, OLD, approved)[-1]
    assert result["failed"] and "the options of driver are others" in result["msg"]
    assert len(fleet.events(HOST)) == before


def test_a_module_gets_its_own_part_of_the_plan_alone(fleet: Fleet) -> None:
    secret = "not for nouveau"
    approved = json.loads(json.dumps(plan(fleet, NEW)["plan"]))
    approved["steps"].append({
        "id": "cdi/file.write/x", "capability": "cdi", "action": "file.write", "subject": "x", "why": secret,
        "disruption": "none", "change": {"before": None, "after": secret}, "parameters": {}, "reversible": True,
        "after": []})
    played = fleet.tasks(HOST, [{"gpuops.nvidia.nouveau": {"approved_plan": approved}}])
    invocation = json.dumps(played.result(HOST, "nouveau")["invocation"])
    assert secret not in invocation and approved["policies"]["nouveau"] in invocation


def test_a_plan_that_is_kept_is_that_of_its_policy_and_has_to_be_there(fleet: Fleet) -> None:
    kept = {"approved_plan": "{{ kept.kept_as }}"}
    planned, other, _removed, gone = fleet.tasks(HOST, [
        {"gpuops.nvidia.gpu_plan": {"nouveau": {"state": "absent"}, "keep": True, "brief": True}, "register": "kept"},
        {"gpuops.nvidia.nouveau": kept, "ignore_errors": True},
        {"ansible.builtin.file": {"path": "{{ kept.kept_as }}", "state": "absent"}},
        {"gpuops.nvidia.nouveau": dict(kept, state="absent"), "ignore_errors": True},
    ]).results(HOST)
    assert "plan" not in planned
    assert other["failed"] and "the options of nouveau are others" in other["msg"]
    assert gone["failed"] and "no plan %s" % planned["kept_as"] in gone["msg"]


@pytest.mark.variation
def test_an_exchange_of_the_loaded_driver_is_that_which_was_approved(fleet: Fleet) -> None:
    for version, approved in ((NEW, "kept_as"), (OLD, "plan")):
        checked_and_done(fleet, version, approved)
