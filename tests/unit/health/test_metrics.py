# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The text is what Prometheus and node_exporter's collector take, and says what the state says."""
from __future__ import annotations

import re
from dataclasses import replace
from typing import Dict, List, Tuple

import pytest
from health_world import HealthWorld

from ansible_collections.gpuops.nvidia.plugins.module_utils.health.metrics import METRICS, metrics_text
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import State, Unknown

# Exposition formats, text-based, of Prometheus' documentation
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(r"(%s)(?:\{(%s(?:,%s)*)\})? (\S+)" % (NAME, LABEL, LABEL))
VALUE = re.compile(r"[+-]?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|Inf|NaN)")

Samples = Dict[Tuple[str, Tuple[Tuple[str, str], ...]], float]


def parsed(text: str) -> Samples:
    """Strictly: HELP, TYPE and samples of a family in one piece, no timestamps, no sample twice."""
    assert text.endswith("\n")
    found: Samples = {}
    family, seen = "", []
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            family = line.split(" ")[2]
            assert re.fullmatch(NAME, family) and family not in seen and line.split(" ", 3)[3]
            seen.append(family)
        elif line.startswith("# TYPE "):
            _hash, _type, name, kind = line.split(" ")
            assert name == family and kind in ("gauge", "counter")
            assert name.endswith("_total") == (kind == "counter")
        else:
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] == family and VALUE.fullmatch(line.rsplit(" ", 1)[1]), line
            labels = tuple(sorted(re.findall(LABEL, match[2] or "")))
            assert len({name for name, _value in labels}) == len(labels) and (family, labels) not in found
            found[family, labels] = float(line.rsplit(" ", 1)[1])
    return found


def of(samples: Samples, name: str) -> List[Tuple[Dict[str, str], float]]:
    return [(dict(labels), value) for (family, labels), value in samples.items() if family == name]


def test_a_finding_is_one_with_what_mends_it() -> None:
    world = HealthWorld()
    world.round()
    world.xid(79)
    world.xid(31, 1, "pid=7, name=secret, Fault")
    world.xid(31, 1, "pid=7, name=secret, Fault")
    world.log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 11012, Non-fatal, Link 46 Single bit ECC errors")
    text = metrics_text(world.round(), {})
    samples = parsed(text)
    assert of(samples, "gpuops_health_findings") == [
        ({"gpu": "0000:3b:00.0", "uuid": "GPU-0", "subject": "gpu", "source": "kernel_log", "kind": "sick",
          "remedy": "reboot", "code": "xid 79"}, 1.0),
        ({"gpu": "0000:05:00.0", "uuid": "", "subject": "switch", "source": "kernel_log", "kind": "warning",
          "remedy": "", "code": "sxid 11012"}, 1.0)]
    assert of(samples, "gpuops_health_xid_errors_total") == [
        ({"gpu": "0000:3b:00.0", "uuid": "GPU-0", "xid": "79"}, 1.0),
        ({"gpu": "0000:5e:00.0", "uuid": "GPU-1", "xid": "31"}, 2.0)]
    assert of(samples, "gpuops_health_sxid_errors_total") == [({"switch": "0000:05:00.0", "sxid": "11012"}, 1.0)]
    assert of(samples, "gpuops_health_last_look_seconds") == [({}, world.clock)]
    assert "secret" not in text


@pytest.mark.parametrize("verdict", ["well", "unknown", "warning", "sick"])
def test_exactly_one_verdict_is_so(verdict: str) -> None:
    world = HealthWorld()
    if verdict in ("warning", "sick"):
        world.xid({"warning": 92, "sick": 79}[verdict])
    world.round(**({"records": None} if verdict == "unknown" else {}))
    samples = parsed(metrics_text(world.state, {}))
    assert {labels["verdict"] for labels, value in of(samples, "gpuops_health_verdict") if value} == {verdict}
    assert [labels["what"] for labels, value in of(samples, "gpuops_health_unknown") if value] == (
        ["kernel_log"] if verdict == "unknown" else [])


def test_help_and_type_are_there_and_equal_without_any_sample() -> None:
    def heads(text: str) -> List[str]:
        return [line for line in text.splitlines() if line.startswith("#")]

    world = HealthWorld()
    world.xid(79)
    assert heads(metrics_text(State(), {})) == heads(metrics_text(world.round(), {"state": "failed", "reason": "x"}))
    assert len(heads(metrics_text(State(), {}))) == 2 * len(METRICS)


def test_no_text_of_a_board_breaks_the_file() -> None:
    world = HealthWorld()
    world.xid(79)
    world.round()
    (key, found), = world.state.findings.items()
    odd = replace(found, subject=replace(found.subject, uuid='a"b\\c\nd'))
    text = metrics_text(replace(world.state, findings={key: odd}, unknown={"nvml": Unknown(0, "x\ny")}), {})
    assert of(parsed(text), "gpuops_health_findings")[0][0]["uuid"] == 'a\\"b\\\\c\\nd'


@pytest.mark.parametrize("of_boot, state, reason", [
    ({}, [], []), ({"state": "validated", "reason": ""}, ["validated"], []), ({"state": "late"}, ["late"], []),
    ({"state": "working", "reason": ""}, ["working"], []),
    ({"state": "failed", "reason": 'no driver "580"\n  for \u20ac'}, ["failed"], ['no driver \\"580\\" for ?']),
    ({"state": "failed", "reason": "x" * 9000}, ["failed"], ["x" * 512])])
def test_what_became_of_the_boot_is_told_with_its_reason(
    of_boot: Dict[str, str], state: List[str], reason: List[str]
) -> None:
    samples = parsed(metrics_text(State(), of_boot))
    assert [labels["state"] for labels, value in of(samples, "gpuops_boot_state") if value] == state
    assert of(samples, "gpuops_boot_failure") == [({"reason": each}, 1.0) for each in reason]
