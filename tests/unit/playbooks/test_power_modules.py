# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is asked of the modules that switch a host's power is what they take. They are of another collection, and have
switched nothing here yet."""
from __future__ import annotations

import ast
import re
from importlib.metadata import distribution
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Tuple

import pytest
import yaml
from workspace import REPOSITORY

COLLECTION = "community.general."
MODULES = Path(str(distribution("ansible").locate_file("ansible_collections/community/general/plugins/modules")))
Asked = Tuple[str, Mapping[str, Any]]


def asked(tasks: List[Dict[str, Any]]) -> Iterator[Asked]:
    for task in tasks:
        yield from ((name[len(COLLECTION):], given) for name, given in task.items() if name.startswith(COLLECTION))
        yield from asked([*task.get("block", []), *task.get("always", [])])


ASKED = list(asked(yaml.safe_load((REPOSITORY / "playbooks/tasks/power_cycle.yml").read_text())))


def options_of(name: str) -> Dict[str, Any]:
    for node in ast.parse((MODULES / (name + ".py")).read_text()).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "DOCUMENTATION":
            return dict(yaml.safe_load(ast.literal_eval(node.value))["options"])
    raise AssertionError(name)


@pytest.mark.parametrize("name, given", ASKED)
def test_each_option_is_one_of_the_module(name: str, given: Mapping[str, Any]) -> None:
    options = options_of(name)
    assert set(given) <= set(options)
    assert {option for option, told in options.items() if told.get("required")} <= set(given)
    for option, value in given.items():
        assert "{{" in str(value) or value in options[option].get("choices", [value]), option


def test_both_ways_are_asked_for_and_redfish_knows_a_cycle() -> None:
    assert [(name, given.get("state")) for name, given in ASKED] == [
        ("redfish_command", None), ("ipmi_power", "off"), ("ipmi_power", "on")]
    ((_name, given), *_others) = ASKED
    (default,) = re.findall(r"default\('(\w+)'\)", given["command"])
    (systems,) = re.findall(r'"%s": \[(.*?)\]' % given["category"], (MODULES / "redfish_command.py").read_text(),
                            re.DOTALL)[:1]
    assert '"%s"' % default in systems
