# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who set a role's variable is told of that variable, and who gave a module an option is told of the option."""
from __future__ import annotations

import json
import shlex
from typing import Any, Dict

import pytest
from ansible.parsing.splitter import parse_kv

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, render
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.reader_words import in_variables, typed
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.role_variables import variables_behind

VARIABLES = variables_behind({"gpu_driver": {}, "gpu_driver_activation": {}, "container_toolkit": {"mode": "cdi"},
                              "cdi_spec": {}})


def refusal(area: str, option: str) -> Refusal:
    return Refusal("%s.wrong" % area, "no `%s`" % option, "one", "set `%s`" % option, option)


@pytest.mark.parametrize("capability, area, option, variable", [
    ("driver", "driver", "version", "gpu_driver_version"),
    ("activation", "activation", "state", "gpu_driver_state"),
    ("toolkit", "toolkit", "version", "container_toolkit_version"),
    ("cdi", "cdi", "device_links", "container_runtime_cdi_device_links"),
    ("cdi", "cdi", "state", "container_runtime_state"),
    ("driver", "host", "lock_timeout", "gpu_lock_timeout"),
    ("driver", "driver", "no_option", "no_option"),
    ("toolkit", "toolkit", "mode", "mode"),
    ("", "toolkit", "version", "container_toolkit_version"),
])
def test_a_failure_names_the_variable_behind_the_option(
    capability: str, area: str, option: str, variable: str
) -> None:
    failed = dict(GpuOpsError.because([refusal(area, option), refusal("host", "x")], rc=3).result(), failed=True)
    told = in_variables(failed, VARIABLES, capability, {"lock_timeout": 5})
    expected = dict(GpuOpsError.because([refusal(area, variable), refusal("host", "x")], rc=3).result(), failed=True)
    assert told == dict(expected, code="%s.wrong" % area)


def test_what_a_playbook_sets_is_none_of_its_variables_where_a_role_is_used_alone() -> None:
    failed = dict(GpuOpsError.because([refusal("host", "lock_timeout")]).result(), failed=True)
    assert in_variables(failed, VARIABLES, "driver") == failed


def test_a_plan_names_those_of_each_capability() -> None:
    def result(*refusals: Refusal) -> Dict[str, Any]:
        plan = Plan(host="h", refusals=refusals)
        return {"changed": False, "plan": plan.to_dict(), "text": render(plan), "digest": "d",
                "refusals": [each.to_dict() for each in refusals]}

    assert in_variables(result(refusal("driver", "version"), refusal("toolkit", "version")), VARIABLES) == result(
        refusal("driver", "gpu_driver_version"), refusal("toolkit", "container_toolkit_version"))


@pytest.mark.parametrize("result", [
    {"changed": False, "plan": {}, "refusals": []}, {"failed": True, "msg": "no such option"}, {"skipped": True}])
def test_what_refuses_nothing_stays_as_it_is(result: Dict[str, Any]) -> None:
    assert in_variables(result, VARIABLES, "driver") == result


@pytest.mark.parametrize("given, is_plain", [
    ({"gpu_plan_dir": "plans"}, True), ({"gpu_plan_dir": "/srv/pl\u00e4ne/2026=1"}, True),
    ({"a": "x", "b": "y:z"}, True),
    ({"gpu_plan_dir": "/srv/gpu plans"}, False), ({"gpu_plan_dir": "/srv/it's"}, False),
    ({"gpu_plan_dir": "C:\\new"}, False), ({"gpu_plan_dir": 'a "b"'}, False), ({"gpu_plan_dir": ""}, False),
    ({"gpu_plan_dir": "{{ x"}, False)])
def test_what_is_typed_is_read_back_as_it_is(given: Dict[str, Any], is_plain: bool) -> None:
    (word,) = shlex.split(typed(given))
    assert word.startswith("{") != is_plain
    assert (parse_kv(word) if is_plain else json.loads(word)) == given
