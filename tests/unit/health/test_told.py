# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a look tells a controller, and what it fails on: never on what is only told."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, List, Tuple

import pytest
from health_world import EPOCH

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health import told
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.findings import GPU, Finding, Moment, Subject
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import State

SEEN = Moment(EPOCH, "boot")
SICK = Finding(Subject(GPU, "GPU-0", "1650", "0000:3b:00.0"), "kernel_log", "xid 95", "sick", "reset", "said so", SEEN,
               SEEN)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> List[Tuple[str, ...]]:
    """What was kept, in its order."""
    calls: List[Tuple[str, ...]] = []
    monkeypatch.setattr(told, "note_remedy", lambda _host, _policy, remedy, subject, text, _directory: calls.append(
        ("noted", remedy, subject)))
    return calls


def looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *findings: Finding, check_mode: bool = False, **options: Any
) -> Any:
    state = State(boot="boot", rounds=1, findings={each.key: each for each in findings})
    monkeypatch.setattr(told, "look_and_keep", lambda *_words: state)
    monkeypatch.setattr(told, "kept", lambda _host: replace(state, rounds=0))
    given = {name: option.get("default") for name, option in told.ARGUMENTS.items()}
    return told.looked(Host(str(tmp_path)), {**given, **options}, check_mode)


@pytest.mark.parametrize("finding, fail_on, fails", [
    (SICK, "nothing", False),
    (SICK, "unmended", True),
    (SICK, "sick", True),
    (replace(SICK, mended="a reset"), "unmended", False),
    (replace(SICK, mended="a reset"), "sick", True),
    (replace(SICK, kind="pending"), "sick", False),
    (replace(SICK, kind="warning", remedy=""), "sick", False),
])
def test_what_it_fails_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finding: Finding, fail_on: str, fails: bool
) -> None:
    if not fails:
        assert looked(tmp_path, monkeypatch, finding, fail_on=fail_on)["findings"][0]["code"] == "xid 95"
        return
    with pytest.raises(GpuOpsError) as raised:
        looked(tmp_path, monkeypatch, finding, fail_on=fail_on)
    assert raised.value.code == "health.sick" and "serial number 1650" in raised.value.found
    assert ("not proved" in raised.value.found) == bool(finding.mended)


NAMELESS = replace(SICK, subject=replace(SICK.subject, uuid=""))


@pytest.mark.parametrize("known, news", [
    ([SICK.key], ["fabric_degraded"]),
    # Before the driver was there, nobody knew the GPU by more than its place
    ([NAMELESS.key], ["fabric_degraded"]),
    ([SICK.key.replace("xid 95", "xid 48")], ["xid 95", "fabric_degraded"]),
    ([], ["xid 95", "fabric_degraded"]),
], ids=("by its name", "by its place", "of another kind", "of nothing"))
def test_what_an_earlier_look_has_told_is_no_news_and_fails_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: List[str], news: List[str]
) -> None:
    # Of two GPUs the same is one word
    more = replace(SICK, subject=Subject(GPU, "GPU-1"), code="fabric_degraded", kind="warning", remedy="")
    found = (SICK, more, replace(more, subject=Subject(GPU, "GPU-2")))
    assert looked(tmp_path, monkeypatch, *found, known=known)["news"] == news
    if SICK.code in news:
        with pytest.raises(GpuOpsError):
            looked(tmp_path, monkeypatch, *found, known=known, fail_on="unmended")
    else:
        told = looked(tmp_path, monkeypatch, *found, known=known, fail_on="sick")
        assert told["verdict"] == "sick" and len(told["findings"]) == 3


def test_a_healthy_host_fails_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked(tmp_path, monkeypatch, fail_on="sick")["verdict"] == "well"


def test_what_was_done_is_written_down_before_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: List[Tuple[str, ...]]
) -> None:
    looked(tmp_path, monkeypatch, remedy="power_cycle")
    assert asked == [("noted", "power_cycle", "")]


def test_check_mode_looks_at_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: List[Tuple[str, ...]]
) -> None:
    assert looked(tmp_path, monkeypatch, check_mode=True, remedy="power_cycle")["verdict"] == "unknown"
    assert asked == []
