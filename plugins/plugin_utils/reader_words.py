# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A result in the words of who reads it: where variables were set, its refusals name them in place of options."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, Mapping

from ..module_utils.core.plan import Plan, render
from ..module_utils.core.refusal import Refusal, as_result

# Options that the playbooks set for every module
OF_PLAYBOOKS = {"lock_timeout": "gpu_lock_timeout"}


def in_variables(
    result: Mapping[str, Any], variables: Mapping[str, Mapping[str, str]], capability: str = ""
) -> Dict[str, Any]:
    """The result with variables in place of options.

    variables: {capability: {option: variable}}; capability: whose module it is, '' where several are in one result.
    """
    told = dict(result)
    refusals = [refusal.named({**OF_PLAYBOOKS, **variables.get(capability or refusal.capability, {})})
                for refusal in map(Refusal.from_dict, told.get("refusals") or ())]
    if refusals and told.get("failed"):
        told.update(as_result(refusals))
    elif refusals:
        plan = replace(Plan.from_dict(told["plan"]), refusals=tuple(refusals))
        told.update(plan=plan.to_dict(), text=render(plan), refusals=[refusal.to_dict() for refusal in refusals])
    return told
