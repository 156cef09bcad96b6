# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A plan that stays on its host is root's alone, is the one that its name says, and is one of few."""
from __future__ import annotations

import json
import multiprocessing
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import kept
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step

# A module is a process of its own
FORK = multiprocessing.get_context("fork")


def plan(subject: str = "/etc/x", capability: str = "small") -> Plan:
    step = Step(capability, "file.write", subject, "It is wanted.", change={"before": None, "after": "x"})
    return Plan(host="host-1", policies={capability: "0" * 16}, steps=(step,))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


def test_what_was_kept_is_what_is_held_to(host: Host) -> None:
    assert kept.approved(host, kept.keep(host, plan())) == plan()


def test_a_capability_gets_its_part(host: Host) -> None:
    both = plan().merged(plan("/etc/y", "other"))
    part = kept.approved(host, kept.keep(host, both), "other")
    assert [step.subject for step in part.steps] == ["/etc/y"] and list(part.policies) == ["other"]


def test_root_alone_may_read_it_whatever_the_umask(host: Host) -> None:
    before = os.umask(0)
    try:
        path = Path(host.path(kept.keep(host, plan())))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(directory.stat().st_mode) for directory in path.parents[:2]] == [0o700, 0o700]


def test_the_newest_are_kept_and_one_that_is_kept_again_is_new(host: Host) -> None:
    first = kept.keep(host, plan("/etc/0"))
    for number in range(1, kept.NEWEST):
        kept.keep(host, plan("/etc/%d" % number))
    kept.keep(host, plan("/etc/0"))
    kept.keep(host, plan("/etc/last"))
    left = [path for path in Path(host.path(kept.DIRECTORY)).iterdir() if path.suffix == ".json"]
    assert len(left) == kept.NEWEST
    assert kept.approved(host, first) == plan("/etc/0")


def test_a_clock_that_was_wrong_forgets_no_plan_of_now(host: Host) -> None:
    for number in range(kept.NEWEST):
        os.utime(host.path(kept.keep(host, plan("/etc/%d" % number))), (4e9, 4e9))
    paths = [kept.keep(host, plan("/etc/now/%d" % number)) for number in range(kept.NEWEST)]
    assert [kept.approved(host, path).steps[0].subject for path in paths] == [
        "/etc/now/%d" % number for number in range(kept.NEWEST)]
    assert len(host.glob(kept.DIRECTORY + "/*.json")) == kept.NEWEST


def test_what_a_killed_run_left_half_written_goes(host: Host) -> None:
    host.write(kept.DIRECTORY + "/.gpuops-0123456789abcdef.json", '{"sch')
    path = kept.keep(host, plan())
    assert host.list(kept.DIRECTORY) == [".guard", os.path.basename(path)]


def test_many_at_once_keep_the_same_plan(host: Host) -> None:
    writers = [FORK.Process(target=kept.keep, args=(host, plan())) for _number in range(16)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 16
    assert kept.approved(host, kept.keep(host, plan())) == plan()


@pytest.mark.parametrize("content, says", [
    (None, "no plan /var/lib/gpuops/plans/"),
    ("", "is no JSON"),
    (json.dumps(plan().to_dict())[:-40], "is no JSON"),
    (json.dumps(plan("/etc/shadow").to_dict()), "holds plan"),
    (json.dumps(dict(plan().to_dict(), schema="gpuops.nvidia/plan/v1")), "schema gpuops.nvidia/plan/v1"),
    ("[]", "schema unknown"),
])
def test_one_that_is_gone_or_is_another_is_refused(host: Host, content: Any, says: str) -> None:
    path = kept.keep(host, plan())
    if content is None:
        host.remove(path)
    else:
        host.write(path, content)
    with pytest.raises(GpuOpsError) as refused:
        kept.approved(host, path)
    assert says in refused.value.found and refused.value.remedy


@pytest.mark.parametrize("name", ["/var/lib/gpuops/plans/../state.json", "/var/lib/gpuops/plans/x.json",
                                  "/var/lib/gpuops/plans/"])
def test_no_other_file_is_read(host: Host, name: str) -> None:
    kept.keep(host, plan())
    host.write("/var/lib/gpuops/state.json", json.dumps(plan().to_dict()))
    with pytest.raises(GpuOpsError) as refused:
        kept.approved(host, name)
    assert "no plan %s" % name in refused.value.found


def test_a_plan_may_be_given_itself_as_data_or_as_text(host: Host) -> None:
    assert kept.approved(host, plan().to_dict()) == kept.approved(host, json.dumps(plan().to_dict())) == plan()


@pytest.mark.parametrize("given", [{}, [], 7, "nonsense", "7"])
def test_what_is_no_plan_is_refused(host: Host, given: Any) -> None:
    with pytest.raises(GpuOpsError):
        kept.approved(host, given)
