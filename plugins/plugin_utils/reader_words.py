# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A result in the words of who reads it: where a role's variables were set, refusals name them in place of options."""
from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, Collection, Dict, Mapping

from ..module_utils.core.plan import Plan, render
from ..module_utils.core.refusal import Refusal, as_result
from .role_variables import SOURCES

COLLECTION = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
# Options that the playbooks set for every module
OF_PLAYBOOKS = {"lock_timeout": "gpu_lock_timeout"}


def is_of_roles(task_path: str) -> bool:
    """Whether a task is one of the collection's own, whose options are variables of roles. task_path: FILE:LINE."""
    return os.path.realpath(task_path.rpartition(":")[0]).startswith(COLLECTION + os.sep)


def in_variables(result: Mapping[str, Any], capability: str, known: Collection[str]) -> Dict[str, Any]:
    """The result with variables in place of options.

    capability: whose module it is, '' where several are in one result; known: names of the variables that there are.
    """
    told = dict(result)
    refusals = [refusal.named(_variables(capability or refusal.capability, known))
                for refusal in map(Refusal.from_dict, told.get("refusals") or ())]
    if refusals and told.get("failed"):
        told.update(as_result(refusals))
    elif refusals:
        plan = replace(Plan.from_dict(told["plan"]), refusals=tuple(refusals))
        told.update(plan=plan.to_dict(), text=render(plan), refusals=[refusal.to_dict() for refusal in refusals])
    return told


def _variables(capability: str, known: Collection[str]) -> Dict[str, str]:
    """{option: variable} of a capability's module; a variable that is this module's alone counts before its role's."""
    variables = dict(OF_PLAYBOOKS)
    for source in SOURCES.values():
        if source.capability == capability:
            for prefix in (source.role + "_", source.prefix):
                variables.update({name[len(prefix):]: name for name in known if name.startswith(prefix)})
    return variables
