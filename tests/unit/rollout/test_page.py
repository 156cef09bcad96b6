# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/rollout.md: its example is a policy, its defaults are those of the code, and its refusals are there."""
from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from typing import Any, Dict

import yaml
from refusals import sites
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.policy import OPTIONS, Policy, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.rollout.windows import ask

PAGE = (REPOSITORY / "docs" / "rollout.md").read_text()
PREFIX = "gpu_rollout_"


def example() -> Dict[str, Any]:
    (block,) = re.findall(r"^```yaml\n(gpu_.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    given = yaml.safe_load(block)
    assert all(name.startswith(PREFIX) for name in given)
    return {name[len(PREFIX):]: value for name, value in given.items()}


def test_its_example_is_a_policy() -> None:
    policy = policy_of(example())
    assert len(policy.windows.windows) == 2 and policy.windows.freezes[0].reason == "year's end"
    assert policy.limit.of(119) == 5 and policy.limit.of(12) == 1


def test_each_option_has_a_line_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `%s(\w+)` \| (\S+) \|" % PREFIX, PAGE, re.MULTILINE))
    assert set(rows) == set(OPTIONS)
    told = {name: yaml.safe_load(text.strip("`")) for name, text in rows.items() if text.startswith("`")}
    assert policy_of(told) == policy_of({}) == Policy()
    assert {name for name, text in rows.items() if not text.startswith("`")} == {"domain_limit", "seed"}


def test_the_refusals_of_a_rollout_are_there() -> None:
    of_planner = {site.code for site in sites() if site.path.endswith("rollout/planner.py")}
    assert set(re.findall(r"`(rollout\.\w+)`", PAGE)) == {*of_planner, "rollout.record_unreadable"}


def test_the_wait_that_it_shows_is_told_so() -> None:
    now = datetime(2026, 7, 2, 12, 0, tzinfo=timezone.utc)
    calendar = policy_of(dict(example(), windows=[dict(example()["windows"][0], days="sat")])).windows.calendar()
    assert "host gpu-7: %s\n" % ask([calendar], now, now + timedelta(hours=1)).why in PAGE
