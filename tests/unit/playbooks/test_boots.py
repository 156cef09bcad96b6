# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A boot that a plan needs is done by the role of whoever needs it, and by no other."""
from __future__ import annotations

import ast
import shutil
from dataclasses import replace
from typing import Any, Dict, Iterator

import pytest
import yaml
from canned import ACTION, Hosts, planned
from cluster_objects import pod
from controller import Controller
from sites import Site, names
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import (
    CONFIRMATION,
    REBOOT,
    Disruption,
    Plan,
    Requirement,
    Step,
)
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import SOURCES

CHANNELS = Requirement("imex", REBOOT, "4096 IMEX channels", "The loaded driver has 2048.", Disruption.reboot)
ARGUMENTS = Requirement("driver", REBOOT, "kernel arguments", "It was started without iommu=pt.", Disruption.reboot)
KEY = Requirement("activation", CONFIRMATION, "key", "Confirm it at the console.", Disruption.none)
BOOTS = "reboot with local connection would reboot the control node"
NOTHING = {"changed": False, "reboot_required": False, "plan": Plan().to_dict()}


@pytest.fixture
def booting(in_words: Hosts) -> Hosts:
    """Hosts whose boots are counted, as no connection of theirs outlives one."""
    in_words.put(boot=ACTION)
    roles = in_words.root / "ansible_collections/gpuops/nvidia/roles"
    if roles.is_symlink():
        roles.unlink()
        shutil.copytree(REPOSITORY / "roles", roles)
        for path in roles.glob("*/tasks/*.yml"):
            path.write_text(path.read_text().replace("ansible.builtin.reboot:", "gpuops.nvidia.boot:"))
    return in_words


def told_by(needed: Requirement, module: str, more: Plan = Plan()) -> Dict[str, Any]:  # noqa: B008
    """What the modules tell of a plan in which nothing is left but this."""
    plan = Plan(requirements=(needed,))
    return {"gpu_plan": planned(replace(plan, requirements=(needed, *more.requirements)), Disruption.reboot),
            module: {"changed": False, "reboot_required": True, "plan": plan.to_dict()},
            "gpu_driver_activation": {"changed": False, "reboot_required": False, "plan": more.to_dict()}}


@pytest.mark.parametrize("needed, module", [(CHANNELS, "imex"), (ARGUMENTS, "gpu_driver")])
def test_one_that_is_allowed_is_done_once_nobody_is_at_work(
    in_words: Hosts, needed: Requirement, module: str
) -> None:
    site = Site(in_words, names(1))
    in_words.api.state.pods = [pod("trainer")]
    done = site.run(told_by(needed, module), gpu_allowed_disruption="reboot")
    assert BOOTS in done.stdout and in_words.api.state.pods == [], done.stdout


@pytest.mark.parametrize("needed, module", [(CHANNELS, "imex"), (ARGUMENTS, "gpu_driver")])
def test_one_that_is_not_is_told(in_words: Hosts, needed: Requirement, module: str) -> None:
    site = Site(in_words, names(1))
    in_words.api.state.pods = [pod("trainer")]
    told = {**told_by(needed, module), "gpu_plan": planned(Plan(requirements=(needed,)))}
    done = site.run(told)
    assert done.returncode == 0 and BOOTS not in done.stdout and in_words.api.state.pods != [], done.stdout
    assert "Put off, as gpu_allowed_disruption says: %s (reboot: " % needed.id in done.stdout, done.stdout


def test_none_comes_before_what_a_person_confirms_at_the_console(in_words: Hosts) -> None:
    """One that nobody watches would lose the request."""
    site = Site(in_words, names(1))
    more = Plan(requirements=(KEY,))
    done = site.run(told_by(ARGUMENTS, "gpu_driver", more), gpu_allowed_disruption="reboot")
    assert "[activation.key_unconfirmed]" in done.stdout and BOOTS not in done.stdout, done.stdout


def test_the_way_back_needs_none_for_what_it_takes_back(in_words: Hosts) -> None:
    site = Site(in_words, names(1))
    driver = Step("driver", "packages.install", "driver", "Driver.", Disruption.driver_reload)
    way = {"version": "580.178.04", "kernel_module": "open", "source": "distribution", "how": "archive", "why": ""}
    plan = Plan(steps=(driver,), requirements=(ARGUMENTS,))
    told = {**told_by(ARGUMENTS, "gpu_driver"), "gpu_plan": planned(plan, Disruption.reboot, returns_to=way),
            "gpu_driver_activation": [{"failed": True, "msg": "it does not load"},
                                      {"changed": True, "reboot_required": False, "plan": Plan().to_dict()}]}
    done = site.run(told, gpu_allowed_disruption="reboot")
    assert "Rolled back to driver 580.178.04" in done.stdout and BOOTS not in done.stdout, done.stdout


def steps_of(node: Any) -> Iterator[Dict[str, Any]]:
    """The tasks of a file, those of its blocks too."""
    for task in node:
        yield task
        yield from steps_of(task.get("block", ()))


@pytest.mark.parametrize("path, result, code", [
    ("gpu_driver/tasks/activate.yml", "gpu_driver_brought", "driver"),
    ("imex/tasks/main.yml", "imex_resumed", "imex"), ("mig/tasks/main.yml", "mig_resumed", "mig")])
def test_one_that_was_in_vain_ends_the_change(controller: Controller, path: str, result: str, code: str) -> None:
    """Another run would take the node out of service for the next one."""
    (stops,) = [task for task in steps_of(yaml.safe_load((REPOSITORY / "roles" / path).read_text()))
                if task["name"] == "Stop at what the boot has not brought"]
    of = {"reboot_required": True, "plan": Plan(requirements=(ARGUMENTS,)).to_dict()}
    for found, fails in ((of, True), ({"skipped": True}, False)):
        ((told,),) = controller.tasks([{**stops, "ignore_errors": True}], hosts=names(1), variables={result: found})
        assert bool(told.get("failed")) is fails, told
        assert not fails or "It was started without iommu=pt. Wanted:" in told["msg"], told
        assert not fails or told["msg"].endswith("[%s.boot_in_vain]" % code), told


def test_whoever_may_need_one_has_a_role_that_does_it() -> None:
    roles = {source.capability: source.role for source in SOURCES.values()}
    needing = {path.relative_to(REPOSITORY / "plugins/module_utils").parts[0]
               for path in (REPOSITORY / "plugins/module_utils").rglob("*.py")
               for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
               if node.level and node.module == "core.plan" and "REBOOT" in [alias.name for alias in node.names]}
    # They look at the requirements of all
    needing -= {"gpuops", "registry.py"}
    assert needing >= {"activation", "driver", "imex", "mig", "nouveau", "repair"}
    assert [name for name in needing if not any(
        "ansible.builtin.reboot:" in path.read_text()
        for path in (REPOSITORY / "roles" / roles[name] / "tasks").glob("*.yml"))] == []


@pytest.mark.parametrize("needed, module, role", [
    (CHANNELS, "imex", "imex"), (ARGUMENTS, "gpu_driver", "gpu_driver_activation")])
def test_the_role_goes_on_after_it(booting: Hosts, needed: Requirement, module: str, role: str) -> None:
    site = Site(booting, names(1))
    told = told_by(needed, module)
    # The driver's packages are fetched before, twice, and the boot is looked at before and after
    calls = 2 if module == "imex" else 5
    told[module] = [*[told[module]] * (calls - 1), NOTHING]
    done = site.run(told, gpu_allowed_disruption="reboot")
    assert done.returncode == 0 and booting.calls("boot") == 1, done.stdout
    assert booting.calls(module) == calls and booting.calls(role) == 2, done.stdout
    assert site.held() == {} and site.cordoned() == []


def test_who_has_rebooted_the_host_since_need_not_do_it_again(booting: Hosts) -> None:
    site = Site(booting, names(1))
    told = told_by(ARGUMENTS, "gpu_driver")
    told["gpu_driver"] = [*[told["gpu_driver"]] * 3, NOTHING]
    done = site.run(told, gpu_allowed_disruption="reboot")
    assert done.returncode == 0 and booting.calls("boot") == 0 and booting.calls("gpu_driver") == 4, done.stdout


def test_one_that_brings_nothing_ends_the_change_and_keeps_the_node(booting: Hosts) -> None:
    site = Site(booting, names(1))
    done = site.run(told_by(ARGUMENTS, "gpu_driver"), gpu_allowed_disruption="reboot")
    assert done.returncode == 2 and "[driver.boot_in_vain]" in done.stdout and booting.calls("boot") == 1, done.stdout
    assert site.held() == {"gpu-1": "failed"} and site.cordoned() == ["gpu-1"]


def test_each_has_the_time_of_its_own_lease() -> None:
    """At most one of those that reboot is between two renewals."""
    tasks = yaml.safe_load((REPOSITORY / "playbooks/tasks/apply.yml").read_text())
    boots = 0
    for task in tasks:
        role = task.get("ansible.builtin.import_role", {"name": ""})
        path = REPOSITORY / "roles" / role["name"].rpartition(".")[2] / "tasks" / (
            role.get("tasks_from", "main") + ".yml")
        boots = 0 if "renew.yml" in str(task) else boots + (path.is_file() and "builtin.reboot:" in path.read_text())
        assert boots < 2, task["name"]
