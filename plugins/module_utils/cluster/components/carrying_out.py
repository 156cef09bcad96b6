# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Carries a plan of a component out, step by step. May be killed between any two requests and run again."""
from __future__ import annotations

import time
from typing import Callable, Tuple

from ...core.plan import Plan
from ..client import Client
from .model import Component, Parameters


def apply(client: Client, plan: Plan, timeout: float, clock: Callable[[], float] = time.monotonic,
          sleep: Callable[[float], None] = time.sleep) -> None:
    """Do the steps of the plan in order; the steps have all that is needed.

    timeout: seconds for each thing that is awaited (a CRD established, an object gone, a job complete).
    Raises the plan's refusals before anything else, and cluster.right_missing for rights that the steps need and the
    user has not, before the first write.
    """
    raise NotImplementedError


def await_rollout(client: Client, component: Component, parameters: Parameters, timeout: float,
                  clock: Callable[[], float] = time.monotonic,
                  sleep: Callable[[float], None] = time.sleep) -> Tuple[str, ...]:
    """Return once the component's DaemonSets and Deployments run their newest version everywhere they should.

    Names of nodes that are NotReady and were not waited for. Refuses (cluster.pods_not_ready) when the time is up;
    returns at once for state absent, and where others provide the component. Converged: one request a workload.
    """
    raise NotImplementedError
