# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every alert, judged by Prometheus' own promtool: it fires in its series, and not in the ones beside them. And what a
host tells of its health, read by it."""
from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import pytest
from alert_samples import CASES, Case
from health_world import HealthWorld

from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.alerts import ALERTS
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster.components.gpu_monitoring.component import (
    RULES_FILE,
    files,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.metrics import metrics_text


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of rules as users get it."""
    path = tmp_path_factory.mktemp("rules") / RULES_FILE
    path.write_text(files({})[RULES_FILE])
    return path


def promtool(programs: Path, *words: str, reads: str = "") -> str:
    """What it says, if it ends well."""
    ended = subprocess.run([str(programs / "promtool"), *words], check=False, text=True, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, timeout=300, input=reads)
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


def asked(case: Case, at: str, fires: Any) -> Dict[str, Any]:
    """What fires at a time. Labels that a case does not name are left out of the comparison."""
    by = ", ".join(sorted({name for labels in case.fires for name in labels}))
    firing = 'ALERTS{alertname="%s", alertstate="firing"}' % case.alert
    samples = [{"labels": "{%s}" % ", ".join('%s="%s"' % pair for pair in sorted(labels.items())), "value": 1}
               for labels in fires]
    return {"expr": "max by (%s) (%s)" % (by, firing) if case.fires else firing, "eval_time": at,
            "exp_samples": samples}


def document(cases: List[Case], rules: Path) -> Dict[str, Any]:
    tests = []
    for case in cases:
        questions = [asked(case, case.at, case.fires)]
        if case.not_yet:
            questions.append(asked(case, case.not_yet, ()))
        tests.append({
            "name": case.title, "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in case.series],
            "promql_expr_test": questions,
        })
    return {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": tests}


def test_promtool_finds_nothing_to_complain_about(programs: Path, rules: Path) -> None:
    told = promtool(programs, "check", "rules", "--lint=all", "--lint-fatal", str(rules))
    assert "%d rules found" % len(ALERTS) in told


@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_it_fires_where_it_should_and_nowhere_beside(alert: str, programs: Path, rules: Path, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.alert == alert]
    assert any(case.fires for case in cases)
    tests = tmp_path / "tests.json"
    tests.write_text(json.dumps(document(cases, rules)))
    promtool(programs, "test", "rules", str(tests))


def test_an_alert_that_does_not_fire_would_be_noticed(programs: Path, rules: Path, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.alert == "GpuHot")
    wrong = Case(case.alert, case.title, tuple((name, "40x90") for name, _values in case.series), case.at, case.fires)
    tests = tmp_path / "tests.json"
    tests.write_text(json.dumps(document([wrong], rules)))
    with pytest.raises(AssertionError, match="GpuHot"):
        promtool(programs, "test", "rules", str(tests))


def test_it_has_nothing_to_say_of_the_metrics_of_a_host(programs: Path) -> None:
    world = HealthWorld()
    world.xid(79)
    world.xid(31, 1)
    world.log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 11012, Non-fatal, Link 46 Single bit ECC errors")
    told = metrics_text(world.round(), {"state": "failed", "reason": 'no driver "580" \\ none'})
    assert promtool(programs, "check", "metrics", reads=told) == ""
    with pytest.raises(AssertionError, match="unescaped"):
        promtool(programs, "check", "metrics", reads=told.replace('"} 1.0', "} 1.0"))
