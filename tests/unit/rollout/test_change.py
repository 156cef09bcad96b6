# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What hosts have in common that are changed alike, whatever they are called."""
from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Requirement, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.change import (
    Change,
    asked_by,
    change_of,
    concerned_by,
    is_of_one_policy,
    runtime_of,
)

STEP = Step("driver", "packages.install", "driver", "It is wanted.")
PLAN = Plan(host="gpu-1", policies={"driver": "d1", "mig": "m1"}, steps=(STEP,), observation="o1")
BEFORE = HostFacts(hostname="gpu-1", os_id="ubuntu", os_version="24.04", arch="x86_64", driver_loaded="570.1",
                   driver_installed="580.2", gpus=(Gpu("0000:01:00.0", "2330"), Gpu("0000:02:00.0", "2330"),
                                                   Gpu("0000:03:00.0", "20b2")))
AFTER = BEFORE.but(driver_installed="595.1")


def of(plan: Plan = PLAN, before: HostFacts = BEFORE, after: HostFacts = AFTER) -> Change:
    return change_of(plan, before, after, "containerd", ["c.1"])


def test_it_is_told_in_short() -> None:
    told = of()
    assert told == Change(told.digest, told.policy, "1 x 10de:20b2, 2 x 10de:2330", "ubuntu-24.04 x86_64", "containerd",
                          "570.1", "595.1")
    assert told.digest and told.policy and set(told.to_dict()) == set(Change.__dataclass_fields__)


@pytest.mark.parametrize("same", [
    {"host": "gpu-2"}, {"observation": "o2"}, {"notes": ("a warning",)}, {"steps": (replace(STEP, why="Because."),)}])
def test_hosts_that_are_changed_alike_have_the_same(same: Any) -> None:
    assert of(replace(PLAN, **same)) == of()


def test_what_is_asked_of_others_is_no_part_of_what_is_done() -> None:
    other = of(replace(PLAN, policies={"driver": "d1", "mig": "m2"}))
    assert concerned_by(of().policy) == concerned_by(other.policy) == "driver=d1"
    assert is_of_one_policy(of().policy, other.policy)


def test_what_is_asked_is_the_same_once_it_is_done() -> None:
    done = of(replace(PLAN, steps=())).policy
    assert (of().policy, done) == ("driver=d1 -mig=m1", "-driver=d1 -mig=m1")
    assert asked_by(done) == asked_by(of().policy) and not concerned_by(done)


def test_another_remedy_and_another_try_of_one_are_another_change() -> None:
    """A host whose change has failed is left alone by another one of the same policy."""
    reset = Step("repair", "repair.reset", "0000:01:00.0", "It is sick.", change={"before": {}, "after": {"try": 1}})
    plan = Plan(policies={"repair": "r1", "driver": "d1"}, steps=(reset,))
    first = of(plan).policy
    assert is_of_one_policy(first, of(replace(plan, steps=(replace(reset, why="Of another Xid."),))).policy)
    assert not is_of_one_policy(first, of(replace(plan, steps=(replace(reset, change={
        "before": {}, "after": {"try": 2}}),))).policy)
    boot = Requirement("repair", "reboot", "0000:01:00.0", "It is sick.")
    assert not is_of_one_policy(first, of(replace(plan, steps=(), requirements=(boot,))).policy)
    assert of(replace(plan, steps=())).policy == "-driver=d1 -repair=r1"


def test_those_that_are_not_have_another() -> None:
    other = of(replace(PLAN, steps=(replace(STEP, subject="other"),)))
    assert other.digest != of().digest and other.policy == of().policy
    reboot = of(replace(PLAN, requirements=(Requirement("driver", "reboot", "kernel", "It is new."),)))
    assert reboot.digest != of().digest
    assert of(replace(PLAN, policies={"driver": "d2"})).policy != of().policy


def test_nothing_to_do_is_nothing() -> None:
    assert of(replace(PLAN, steps=())).digest == ""


def test_only_hosts_of_a_rack_restart_with_their_clique() -> None:
    assert of().clique == "" and of(before=BEFORE.but(imex=True)).clique == "c.1"
    assert change_of(PLAN, BEFORE.but(imex=True), AFTER, "", []).clique == ""


def test_the_driver_of_the_next_boot_is_the_one_that_it_comes_to() -> None:
    assert of(after=AFTER.but(driver_boots="600.1")).driver_to == "600.1"
    assert of(before=BEFORE.but(driver_loaded="")).driver_from == "580.2"


@pytest.mark.parametrize("services, runtime", [
    ({"containerd.service": "active", "crio.service": "inactive"}, "containerd"), ({"crio.service": "active"}, "crio"),
    ({"containerd.service": "failed"}, ""), ({}, "")])
def test_what_starts_containers_is_the_daemon_at_work(services: Any, runtime: str) -> None:
    assert runtime_of(services) == runtime
