# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Makes `ansible_collections.gpuops.nvidia` importable from a checkout that lies anywhere, and what tests share.

Scenarios of plans (<capability>/plans/*.txt, see plan_scenarios.py) are collected as tests.
"""
from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Iterator, Optional, Tuple

import pytest
from hypothesis import HealthCheck, settings
from workspace import collections_root

sys.path.insert(0, str(collections_root()))
sys.path.insert(0, str(Path(__file__).parent))
for _model in sorted(Path(__file__).parent.glob("*/*_world.py")):
    sys.path.insert(0, str(_model.parent))

# A busy machine is no defect, and a gate must not find today what it did not find yesterday.
settings.register_profile("gates", deadline=None, derandomize=True, database=None,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gates")


class Differs(Exception):
    """A plan is not the one that the file has; its words are the difference."""


class PlanFile(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        # here: what it imports is found only now
        import plan_scenarios

        world = importlib.import_module(self.path.parents[1].name + "_world").World
        for scenario in plan_scenarios.scenarios(world, self.path):
            yield PlanItem.from_parent(self, name=scenario.title, scenario=scenario)


class PlanItem(pytest.Item):
    def __init__(self, scenario: Any, **options: Any) -> None:
        super().__init__(**options)
        self.scenario = scenario

    def runtest(self) -> None:
        import plan_scenarios

        told = plan_scenarios.check(self.scenario, self.path)
        if told:
            raise Differs(told)

    def repr_failure(self, excinfo: Any, style: Any = None) -> Any:
        if isinstance(excinfo.value, Differs):
            return "%s\n(GPUOPS_REWRITE_PLANS=1 writes the plans of now)" % excinfo.value
        if isinstance(excinfo.value, AssertionError):
            last = excinfo.traceback[-1]
            return "%s:%d: %s" % (last.path.name, last.lineno + 1, excinfo.exconly())
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> Tuple[Any, Optional[int], str]:
        return self.path, None, "%s: %s" % (self.path.name, self.name)


def pytest_collect_file(file_path: Path, parent: Any) -> Optional[pytest.File]:
    if file_path.suffix == ".txt" and file_path.parent.name == "plans":
        return PlanFile.from_parent(parent, path=file_path)
    return None
