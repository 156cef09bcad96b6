# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A result in the words of who reads it: where variables were set, its refusals name them in place of options."""
from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from typing import Any, Container, Dict, Mapping

from ansible import constants as C

from ..module_utils.core.plan import Plan, render
from ..module_utils.core.refusal import Refusal, as_result

# Options that the playbooks set for every module; a role that is used alone reads none of these variables
OF_PLAYBOOKS = {"lock_timeout": "gpu_lock_timeout", "progress_interval": "gpu_progress_interval",
                "approved_from": "gpu_plan_dir", "approved_fleet": "gpu_approved_fleet"}
# Callbacks whose standard output is data: a line of ours would break it.
DATA_CALLBACKS = ("json", "jsonl", "null")
# What Ansible and its templates leave as it is in NAME=VALUE, without quotes
_PLAIN = re.compile(r"[\w@%+=:,.~/\[\]-]+")


def people_read() -> bool:
    """Whether what is shown on the screen is for people."""
    return str(C.config.get_config_value("DEFAULT_STDOUT_CALLBACK")).rsplit(".", 1)[-1] not in DATA_CALLBACKS


def typed(given: Mapping[str, Any]) -> str:
    """Options for `-a`, or variables for `-e`, as a person types them in a shell, each read back as it is.

    Ansible takes quotes away from NAME=VALUE, splits it at blanks and decodes backslashes, and a list it splits at
    commas: what is not plain is given as JSON.
    """
    words = {name: ",".join(value) if isinstance(value, list) else str(value) for name, value in given.items()}
    lists = [word for value in given.values() if isinstance(value, list) for word in value]
    if all(map(_PLAIN.fullmatch, words.values())) and not any("," in word for word in lists):
        return shlex.quote(" ".join("%s=%s" % each for each in words.items()))
    return shlex.quote(json.dumps(given, ensure_ascii=False))


def in_variables(
    result: Mapping[str, Any], variables: Mapping[str, Mapping[str, str]], capability: str = "",
    given: Container[str] = (),
) -> Dict[str, Any]:
    """The result with variables in place of options.

    variables: {capability: {option: variable}}; capability: whose module it is, '' where several are in one result.
    given: the options that the task or its play give.
    """
    told = dict(result)
    of_playbooks = {option: variable for option, variable in OF_PLAYBOOKS.items() if option in given}
    refusals = [refusal.named({**of_playbooks, **variables.get(capability or refusal.capability, {})})
                for refusal in map(Refusal.from_dict, told.get("refusals") or ())]
    if refusals and told.get("failed"):
        told.update(as_result(refusals))
    elif refusals:
        plan = replace(Plan.from_dict(told["plan"]), refusals=tuple(refusals))
        text = render(plan, {part["id"] for part in told.get("deferred") or ()})
        told.update(plan=plan.to_dict(), text=text, refusals=[refusal.to_dict() for refusal in refusals])
    return told
