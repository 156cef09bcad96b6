# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the installed programs say of the configuration that is to be written."""
from __future__ import annotations

from typing import Sequence

from ..core.host import Host
from ..core.plan import Plan
from ..core.refusal import Refusal
from . import catalogue, planner
from .observation import Observation
from .policy import Policy
from .rewriting import objection


def judge(host: Host, observation: Observation, policy: Policy, plan: Plan) -> Sequence[Refusal]:
    """A file that stays as it is, or that another version will read, is not judged."""
    if not policy.present or not planner.is_installed(observation, policy):
        return ()
    texts = [step.change["after"] for step in plan.steps if step.subject == catalogue.CONFIGURATION]
    against = objection(host, texts[-1]) if texts and texts[-1] != observation.configuration else ""
    if not against:
        return ()
    return (Refusal(
        "toolkit.configuration_not_taken",
        "nvidia-container-runtime does not take the new %s: %s" % (catalogue.CONFIGURATION, against),
        "a configuration with which it starts containers",
        "correct the value in the file or in `settings`; nothing was changed", option="settings"),)
