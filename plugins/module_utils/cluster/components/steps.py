# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The steps of a component's plan: what each does, and which object it is about. Pure."""
from __future__ import annotations

from ...core.plan import Step
from .kinds import Key, key_of

CREATE, CHANGE, ADOPT, REPLACE = "object.create", "object.change", "object.adopt", "object.replace"
PRUNE, REMOVE, RUN = "object.prune", "object.remove", "job.run"
TAKES_AWAY = (PRUNE, REMOVE)


def key_of_step(step: Step) -> Key:
    """The object that a step is about."""
    if "object" in step.parameters:
        return key_of(step.parameters["object"])
    return Key(*(str(step.parameters[part]) for part in Key._fields))


def uid_of_step(step: Step) -> str:
    """Of the object that a step takes away; '' where it takes none away."""
    return str(step.parameters.get("uid") or "")
