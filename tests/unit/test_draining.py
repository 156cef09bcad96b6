# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which pods have to leave a node for a plan: no more than it disturbs."""
from __future__ import annotations

from typing import Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Requirement, Step, render
from ansible_collections.gpuops.nvidia.plugins.module_utils.registry import drain_of

WHY = "It is wanted."


def step(disruption: Disruption, subject: str = "x") -> Step:
    return Step("mig", "mig.divide", subject, WHY, disruption)


STEP = step(Disruption.none).id
REBOOT = Requirement("mig", "reboot", "x", WHY, Disruption.reboot)


@pytest.mark.parametrize("plan, put_off, drain", [
    (Plan(), (), ("none", ())),
    (Plan(steps=(step(Disruption.service_restart),)), (), ("none", ())),
    (Plan(steps=(step(Disruption.runtime_restart),)), (), ("node", ())),
    (Plan(steps=(step(Disruption.driver_reload),)), (step(Disruption.driver_reload),), ("none", ())),
    (Plan(steps=(step(Disruption.none),), leaving={STEP: ()}), (), ("pods", ())),
    (Plan(steps=(step(Disruption.gpu_reset),), leaving={STEP: ("team/a",)}), (), ("pods", ("team/a",))),
    (Plan(steps=(step(Disruption.gpu_reset),), leaving={STEP: ("team/a",)}), (step(Disruption.gpu_reset),),
     ("none", ())),
    (Plan(steps=(step(Disruption.none),), requirements=(REBOOT,), leaving={STEP: ("team/a",)}), (), ("node", ())),
    (Plan(steps=(step(Disruption.none),), requirements=(REBOOT,), leaving={STEP: ("team/a",)}), (REBOOT,),
     ("pods", ("team/a",))),
])
def test_a_plan_drains_no_more_than_it_disturbs(
    plan: Plan, put_off: Tuple[Step, ...], drain: Tuple[str, Tuple[str, ...]]
) -> None:
    assert drain_of(plan, put_off) == drain


def test_the_pods_of_what_is_put_off_stay() -> None:
    idle, busy = step(Disruption.none, "idle"), step(Disruption.gpu_reset, "busy")
    plan = Plan(steps=(idle, busy), leaving={idle.id: (), busy.id: ("team/a",)})
    assert drain_of(plan, (busy,)) == ("pods", ()) and drain_of(plan, ()) == ("pods", ("team/a",))


def test_pods_that_leave_are_told_of_all_parts() -> None:
    plan = Plan(leaving={"a": ("team/b",)}).merged(Plan(leaving={"b": ("team/a", "team/b")})).merged(Plan())
    assert "pods that leave before: team/a, team/b" in render(plan)
    assert "pods that leave" not in render(Plan(leaving={"a": ()}))


def test_pods_of_what_is_put_off_are_not_told_as_leaving() -> None:
    plan = Plan(leaving={"a": ("team/a", "team/b"), "b": ("team/b", "team/c")})
    assert "pods that leave before: team/b, team/c" in render(plan, {"a"})
    assert "pods that leave" not in render(plan, {"a", "b"})
