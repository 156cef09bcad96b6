# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One run of a capability on a host: alone, told to who follows it, and what comes of it as data."""
from __future__ import annotations

from typing import Any, Dict, Sequence, Tuple

from . import libraries
from .capability import LEFT_AT_WORK, Outcome, Run
from .errors import GpuOpsError
from .lock import HostLock, package_manager_works
from .plan import Disruption, Step, render
from .startup import await_startup
from .telling import Telling

WRITER_ARGUMENTS: Dict[str, Any] = {
    "allowed_disruption": {"type": "str", "default": "driver_reload", "choices": Disruption.names()},
    "approved_plan": {"type": "raw"},
    "from_variables": {"type": "bool", "default": False},
    "lock_timeout": {"type": "int", "default": 600},
    "progress_interval": {"type": "int", "default": 30},
    "resumed_step": {"type": "str", "default": ""},
    "run_id": {"type": "str", "default": ""},
    "transaction_failed": {"type": "bool", "default": False},
}


def apply_alone(run: Run, lock: HostLock, timeout: float) -> Tuple[Outcome, str]:
    """(what the run did, another run that it waited for); the lock is held from before it observes.

    Where the controller has to go on, or a package manager does, the lock is its own until the next call of the same
    run, or until that has ended.
    """
    with lock.held(timeout) as waited:
        outcome = apply_held(run, lock)
        if outcome.awaiting is not None:
            lock.hand_over()
        libraries.keep(run.host)
    return outcome, waited


def apply_held(run: Run, lock: HostLock) -> Outcome:
    """What the run did, under a lock that its process holds; a package manager that goes on keeps it."""
    telling, told = Telling(run.host, lock.token, bool(run.resumed)), run.step_begins

    def step_begins(step: Step, number: int, total: int, after: Sequence[Step]) -> None:
        telling.step(step, number, total, after)
        told(step, number, total, after)

    telling.reading()
    run.step_begins, run.host.fetches = step_begins, telling.fetches
    await_startup(run.host)
    try:
        outcome = run.apply()
    except GpuOpsError as error:
        if LEFT_AT_WORK in error.details:
            lock.hand_over()
        raise
    except KeyboardInterrupt:
        if package_manager_works(run.host):
            lock.hand_over()
        raise
    if outcome.left_at_work:
        lock.hand_over()
    return outcome


def writer_result(outcome: Outcome, with_diff: bool) -> Dict[str, Any]:
    """The keys of a writer's result, the same in check mode."""
    result: Dict[str, Any] = {
        "changed": bool(outcome.applied) or outcome.awaiting is not None,
        "plan": outcome.plan.to_dict(),
        "text": render(outcome.plan, {step.id for step in outcome.deferred}),
        "applied": outcome.applied,
        "deferred": [step.to_dict() for step in outcome.deferred],
        "reboot_required": outcome.plan.reboot_required,
        "returns_to": dict(next(iter(outcome.plan.returns_to.values()), {})),
    }
    if outcome.awaiting is not None:
        result["awaiting"] = outcome.awaiting.to_dict()
    if outcome.left_at_work:
        result[LEFT_AT_WORK] = outcome.left_at_work
    if outcome.why_failed:
        result["why_failed"] = outcome.why_failed
    if with_diff:
        result["diff"] = outcome.plan.diff()
    return result
