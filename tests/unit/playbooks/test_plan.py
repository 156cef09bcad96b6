# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""gpu_plan for people: printed as it reads, saved where its reader is, read again only when it can be held to."""
from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, Dict

import pytest
import yaml
from controller import Controller
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    SCHEMA,
    Disruption,
    Plan,
    Step,
    digest,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.plan_files import read

PLAN = "gpuops.nvidia.gpu_plan"
# Reads of this machine only what needs no network.
POLICY: Dict[str, Any] = {"nouveau": {}}


def planned(controller: Controller, *options: str, **gpu_plan: Any) -> Dict[str, Any]:
    ((result,),) = controller.tasks([{PLAN: {**POLICY, **gpu_plan}}], *options)
    return result


def shown(controller: Controller, *options: str, environment: Any = None, **task: Any) -> str:
    play = controller.directory / "play.yml"
    play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": [
        {"name": "Plan", PLAN: {**POLICY, "show": True}, **task}]}]))
    done = controller.play(str(play), *options, environment=environment)
    assert done.returncode == 0, done.stdout
    return done.stdout


def a_plan(**more: Any) -> Dict[str, Any]:
    step = Step("nouveau", "file.write", "/etc/modprobe.d/gpuops-nouveau.conf", "nouveau stays away.", Disruption.none)
    return dict(Plan(host="host-1", steps=(step,)).to_dict(), **more)


class TestSaved:
    def test_a_relative_directory_is_one_of_the_caller_and_is_made(self, controller: Controller) -> None:
        result = planned(controller, save_to="plans/today")
        saved = controller.here / "plans" / "today" / "host-1.json"
        assert result["saved_as"] == str(saved)
        assert json.loads(saved.read_text()) == result["plan"]

    def test_only_its_owner_can_read_it(self, controller: Controller) -> None:
        planned(controller, save_to="plans")
        directory = controller.here / "plans"
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert [(path.name, stat.S_IMODE(path.stat().st_mode)) for path in directory.iterdir()] == [
            ("host-1.json", 0o600)]

    def test_the_home_of_the_caller_is_known(self, controller: Controller) -> None:
        assert planned(controller, save_to="~/plans")["saved_as"] == str(controller.home / "plans" / "host-1.json")

    def test_check_mode_saves_nothing(self, controller: Controller) -> None:
        assert "saved_as" not in planned(controller, "--check", save_to="plans")
        assert list(controller.here.iterdir()) == []

    def test_a_directory_that_cannot_be_is_named(self, controller: Controller) -> None:
        (controller.here / "file").write_text("")
        result = planned(controller, save_to="file")
        assert result["failed"] and "%s/file/host-1.json" % controller.here in result["found"]


class TestBrief:
    def test_what_was_asked_for_is_shown_and_saved_and_is_not_held_on_the_controller(
        self, controller: Controller
    ) -> None:
        result = planned(controller, brief=True, save_to="plans")
        assert {"digest", "deferred", "disruption", "converged", "gpus", "refusals"} <= set(result)
        assert not {"plan", "text", "observation"} & set(result)
        saved = json.loads((controller.here / "plans" / "host-1.json").read_text())
        assert digest(Plan.from_dict(saved).promise()) == result["digest"]

    def test_check_mode_keeps_nothing_and_returns_the_plan(self, controller: Controller) -> None:
        result = planned(controller, "--check", keep=True)
        assert result["plan"]["steps"] and "kept_as" not in result

    @pytest.mark.parametrize("name", ["site", "uninstall"])
    def test_the_playbooks_hold_no_plans_of_a_fleet(self, name: str) -> None:
        plays = yaml.safe_load((REPOSITORY / "playbooks" / (name + ".yml")).read_text())
        asked = [task["vars"]["gpu_plan_brief"] for play in plays for task in play["tasks"]
                 if task.get("ansible.builtin.import_tasks") == "tasks/plan_host.yml"]
        assert asked and all(each in (True, "{{ not ansible_check_mode }}") for each in asked)


class TestApproved:
    def test_what_was_saved_is_what_is_held_to(self, controller: Controller) -> None:
        planned(controller, save_to="plans")
        assert planned(controller, approved_from="plans")["plan"]["refusals"] == []

    @pytest.mark.parametrize("content, says", [
        ("{", "is no JSON"),
        ("[]", "schema unknown"),
        (json.dumps(a_plan(schema="gpuops.nvidia/plan/v0")), "schema gpuops.nvidia/plan/v0"),
        (json.dumps({"schema": SCHEMA, "steps": []}), "KeyError"),
    ])
    def test_a_file_that_is_no_plan_to_be_held_to_is_named(self, tmp_path: Path, content: str, says: str) -> None:
        path = tmp_path / "host-1.json"
        path.write_text(content)
        with pytest.raises(GpuOpsError) as refused:
            read(str(path))
        assert says in refused.value.found and str(path) in refused.value.found

    def test_such_a_file_fails_before_the_host_is_asked(self, controller: Controller) -> None:
        (controller.here / "host-1.json").write_text("{")
        result = planned(controller, approved_from=".", cdi={"state": "neither"})
        assert result["failed"] and "%s/host-1.json" % controller.here in result["found"]

    def test_a_host_without_a_saved_plan_is_refused(self, controller: Controller) -> None:
        result = planned(controller, approved_from="plans")
        assert result["failed"] and "%s/plans/host-1.json" % controller.here in result["found"]
        assert str(controller.here) in result["remedy"]

    def test_nothing_of_the_files_travels_to_the_host(self, controller: Controller) -> None:
        planned(controller, save_to="plans")
        payloads = controller.payloads({PLAN: {**POLICY, "approved_from": "plans", "save_to": "plans", "show": True}})
        assert payloads and all(b"approved_plan" in payload for payload in payloads)
        assert not any(word in payload for payload in payloads for word in (b"approved_from", b"save_to"))


class TestShown:
    def test_the_plan_is_printed_as_it_reads(self, controller: Controller) -> None:
        lines = shown(controller).splitlines()
        text = planned(controller)["text"].splitlines()
        start = lines.index(text[0])
        assert lines[start:start + len(text)] == text

    def test_a_callback_that_writes_data_is_left_alone(self, controller: Controller) -> None:
        output = shown(controller, environment={"ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
        assert json.loads(output)["plays"]

    def test_no_log_prints_nothing(self, controller: Controller) -> None:
        text = planned(controller)["text"].splitlines()[0]
        assert text in shown(controller)
        assert text not in shown(controller, no_log=True)


def test_a_user_without_root_gets_no_plan(controller: Controller, unprivileged: Path) -> None:
    ((plan,), (facts,)) = controller.tasks([{PLAN: POLICY, "ignore_errors": True}, {"gpuops.nvidia.gpu_info": {}}],
                                           variables={"ansible_python_interpreter": str(unprivileged)},
                                           environment={"ANSIBLE_PIPELINING": "true"})
    assert plan["failed"] and "runs as uid 65534" in plan["found"] and "become: true" in plan["remedy"], plan
    assert not facts.get("failed") and "become: true" in " ".join(facts["warnings"]), facts


def test_a_host_is_asked_in_one_command(controller: Controller) -> None:
    """With pipelining: no directory is made there, which would fail where a disk is full, before code has to come."""
    play = controller.directory / "play.json"
    play.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{"gpuops.nvidia.gpu_info": {}}]}]))
    done = controller.play(str(play), "-vvv", variables={"ansible_pipelining": True})
    assert done.returncode == 0, done.stdout
    first, *_of_sending = [line for line in done.stdout.splitlines() if " EXEC " in line]
    assert "GPUOPS_LIBRARIES=" in first


@pytest.mark.variation
def test_a_refusal_names_what_the_reader_has_set(controller: Controller) -> None:
    """The role's variable where the role or the playbook called the module, the option where the reader did."""
    runfile = {"gpu_driver_source": "runfile"}
    role = {"ansible.builtin.include_role": {"name": "gpuops.nvidia.gpu_driver"}}
    module = {"gpuops.nvidia.gpu_driver": {"source": "runfile"}}
    told = [result for task in ([role], [module]) for results in controller.tasks(task, "--check", variables=runfile)
            for result in results if result.get("failed")]
    done = controller.play("gpuops.nvidia.plan", variables=runfile, environment={
        "ANSIBLE_STDOUT_CALLBACK": "ansible.posix.json"})
    told += [result for play in json.loads(done.stdout)["plays"] for task in play["tasks"]
             for result in task["hosts"].values() if result.get("failed")]
    assert [(result["code"], result["option"]) for result in told] == [
        ("driver.runfile_version_not_exact", "gpu_driver_version"), ("driver.runfile_version_not_exact", "version"),
        ("driver.runfile_version_not_exact", "gpu_driver_version")]
    assert "set `gpu_driver_version` to the one" in told[0]["msg"]
    assert "set `version` to the one" in told[1]["msg"]
