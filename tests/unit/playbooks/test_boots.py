# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A boot that a plan needs is done by the role of whoever needs it, and by no other."""
from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Iterator

import pytest
import yaml
from canned import Hosts, planned
from cluster_objects import pod
from controller import Controller
from sites import Site, names

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
HERE = Path(__file__).resolve().parents[3]


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
    ("gpu_driver/tasks/activate.yml", "gpu_driver_installed", "driver"),
    ("imex/tasks/main.yml", "imex_resumed", "imex"), ("mig/tasks/main.yml", "mig_resumed", "mig")])
def test_one_that_was_in_vain_ends_the_change(controller: Controller, path: str, result: str, code: str) -> None:
    """Another run would take the node out of service for the next one."""
    (stops,) = [task for task in steps_of(yaml.safe_load((HERE / "roles" / path).read_text()))
                if task["name"] == "Stop at what the boot has not brought"]
    of = {"reboot_required": True, "plan": Plan(requirements=(ARGUMENTS,)).to_dict()}
    for found, fails in ((of, True), ({"skipped": True}, False)):
        ((told,),) = controller.tasks([{**stops, "ignore_errors": True}], hosts=names(1), variables={result: found})
        assert bool(told.get("failed")) is fails, told
        assert not fails or "It was started without iommu=pt. Wanted:" in told["msg"], told
        assert not fails or told["msg"].endswith("[%s.boot_in_vain]" % code), told


def test_whoever_may_need_one_has_a_role_that_does_it() -> None:
    roles = {source.capability: source.role for source in SOURCES.values()}
    needing = {path.relative_to(HERE / "plugins/module_utils").parts[0]
               for path in (HERE / "plugins/module_utils").rglob("*.py")
               for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
               if node.level and node.module == "core.plan" and "REBOOT" in [alias.name for alias in node.names]}
    assert needing - {"gpuops"} >= {"activation", "driver", "imex", "mig", "nouveau", "repair"}
    assert [name for name in needing - {"gpuops"} if not any(
        "ansible.builtin.reboot:" in path.read_text()
        for path in (HERE / "roles" / roles[name] / "tasks").glob("*.yml"))] == []
