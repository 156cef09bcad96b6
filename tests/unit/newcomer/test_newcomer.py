# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a capability of three functions gets from the engine without a line for it.

Its plans as text are in plans/; core/test_injected.py kills it at every system call; playbooks/test_new_capability.py
has its documentation and its role.
"""
from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any, Dict, List

import newcomer_world
import pytest
from newcomer_world import CAPABILITY, COLLECTION, FILE, THEIRS, WISHES

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import writer_result
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Outcome
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan

INSTALL, UPGRADE, UNINSTALL = WISHES.values()
MOST_LINES = 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    newcomer_world.furnish(tmp_path)
    return tmp_path


def everything(root: Path) -> Dict[str, Any]:
    """All files of a root, the record included, with their modes."""
    return {str(path.relative_to(root)): (path.read_bytes(), path.stat().st_mode)
            for path in root.rglob("*") if path.is_file()}


def apply(root: Path, policy: Dict[str, Any], approved: Any = None) -> Outcome:
    return newcomer_world.run(str(root), approved, **policy).apply()


def preview(root: Path, policy: Dict[str, Any]) -> Outcome:
    return newcomer_world.run(str(root), **policy).preview()


def code_lines(path: Path) -> int:
    """Lines of statements, without imports and docstrings."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text and not isinstance(node, (ast.Import, ast.ImportFrom)):
            found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    text = path.read_text().splitlines()
    return sum(1 for number in found if text[number - 1].strip())


def test_it_is_small() -> None:
    package = COLLECTION / "plugins" / "module_utils" / "sysctl"
    assert 20 < sum(code_lines(path) for path in package.glob("*.py")) <= MOST_LINES
    assert dict(CAPABILITY.executors) == {}


def test_check_mode_changes_nothing_and_tells_what_the_run_does(root: Path) -> None:
    before = everything(root)
    foretold = writer_result(preview(root, INSTALL), with_diff=True)
    assert everything(root) == before
    assert foretold["changed"] and foretold["applied"]
    assert writer_result(apply(root, INSTALL), with_diff=True) == foretold


def test_the_diff_is_the_text_before_and_after(root: Path) -> None:
    apply(root, INSTALL)
    (shown,) = writer_result(preview(root, UPGRADE), with_diff=True)["diff"]
    before = (root / FILE.lstrip("/")).read_text()
    apply(root, UPGRADE)
    after = (root / FILE.lstrip("/")).read_text()
    assert (shown["before"], shown["after"]) == (before, after)
    assert "swappiness = 10\n" in before and "swappiness = 1\n" in after
    assert "diff" not in writer_result(preview(root, INSTALL), with_diff=False)


def test_the_journal_has_the_steps_of_the_plan_event_by_event(root: Path) -> None:
    plan = preview(root, INSTALL).plan
    apply(root, INSTALL)
    events: List[Dict[str, Any]] = [json.loads(line) for line in (
        root / "var/lib/gpuops/journal.jsonl").read_text().splitlines()]
    assert [(event["event"], event["step"]) for event in events] == [
        (event, step.to_dict()) for step in plan.steps for event in ("started", "done")]
    assert {event["policy"] for event in events if event["event"] == "started"} == {plan.policy}


def test_a_second_run_changes_nothing(root: Path) -> None:
    assert writer_result(apply(root, INSTALL), False)["changed"]
    before = everything(root)
    assert not writer_result(apply(root, INSTALL), False)["changed"]
    assert everything(root) == before


def test_taken_back_it_is_byte_by_byte_what_the_user_had(root: Path) -> None:
    before = everything(root)
    for policy in (INSTALL, UPGRADE, UNINSTALL):
        assert apply(root, policy).applied
    left = {name: data for name, data in everything(root).items() if not name.startswith(("var/lib/gpuops", "run/"))}
    assert left == before and left[FILE.lstrip("/")][0] == THEIRS
    assert not apply(root, UNINSTALL).applied


def test_an_approved_plan_is_done_and_another_is_not(root: Path) -> None:
    approved = Plan.from_dict(json.loads(json.dumps(preview(root, INSTALL).plan.to_dict())))
    before = everything(root)
    with pytest.raises(GpuOpsError) as caught:
        apply(root, UPGRADE, approved)
    assert caught.value.code.startswith("approval.") and caught.value.result()["changed"] is False
    assert {name: data for name, data in everything(root).items() if name in before} == before
    assert apply(root, INSTALL, approved).applied == [step.id for step in approved.steps]


def test_an_approved_plan_is_held_to_the_file_that_it_was_made_for(root: Path) -> None:
    approved = preview(root, INSTALL).plan
    Host(str(root)).write(FILE, "vm.swappiness = 100\n")
    with pytest.raises(GpuOpsError) as caught:
        apply(root, INSTALL, approved)
    assert caught.value.code.startswith("approval.") and FILE in caught.value.found
    assert Host(str(root)).read(FILE) == "vm.swappiness = 100\n"


def test_its_own_refusal_has_a_code_and_comes_before_the_first_write(root: Path) -> None:
    before = everything(root)
    for act in (preview, apply):
        with pytest.raises(GpuOpsError) as caught:
            act(root, dict(INSTALL, lines=["vm.swappiness"]))
        told = caught.value.result()
        assert (told["code"], told["option"]) == ("sysctl.no_setting", "lines")
    assert everything(root) == before


def test_the_engine_refuses_for_it_what_cannot_be_written(root: Path) -> None:
    path = root / FILE.lstrip("/")
    path.unlink()
    path.symlink_to("/dev/null")
    with pytest.raises(GpuOpsError) as caught:
        preview(root, INSTALL)
    assert caught.value.code.startswith("host.") and FILE in caught.value.found
