# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What was tried is on the disk before it is tried, and a record that is damaged is never taken for an empty one."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair import attempts as record
from ansible_collections.gpuops.nvidia.plugins.module_utils.repair.attempts import BEGUN, DONE, FAILED, Part

PART = Part("gpu GPU-0", "1650", "0000:3b:00.0")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


def begin(host: Host, rung: str = "reset") -> int:
    return record.begin(host, rung, "load", "ann", [PART], ["gpu GPU-0: xid 95"])


def test_an_attempt_is_kept_with_its_part_and_its_end(host: Host) -> None:
    assert record.attempts(host) == ()
    assert [begin(host), begin(host)] == [1, 2]
    record.end(host, 2, FAILED, "it hangs")
    first, second = record.attempts(host)
    assert (first.end, second.end, second.why) == (BEGUN, FAILED, "it hangs")
    assert first.parts == (PART,) and first.keys == ("gpu GPU-0",) and first.boot == host.boot()
    assert host.mode(record.PATH) == 0o600


def test_the_newest_are_kept_and_numbers_go_on(host: Host) -> None:
    for _each in range(record.KEPT + 3):
        begin(host)
    found = record.attempts(host)
    assert len(found) == record.KEPT and (found[0].number, found[-1].number) == (4, record.KEPT + 3)


def test_a_reboot_that_has_come_is_written_down_with_the_next_attempt(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Host, "boot", lambda self: "first")
    begin(host, "reboot")
    begin(host, "reset")
    assert [each.end for each in record.attempts(host)] == [BEGUN, BEGUN]
    monkeypatch.setattr(Host, "boot", lambda self: "second")
    begin(host, "reset")
    assert [each.end for each in record.attempts(host)] == [DONE, BEGUN, BEGUN], "nobody knows of the reset"


@pytest.mark.parametrize("text", [
    "", "{", "[]", "null", '{"schema": 2, "attempts": []}', '{"schema": 1}', '{"schema": 1, "attempts": [{}]}',
    '{"schema": 1, "attempts": 3}', '{"schema": 1, "attempts": ["reset"]}',
])
def test_a_damaged_record_is_refused_with_what_to_do(host: Host, text: str) -> None:
    host.write(record.PATH, text)
    for read in (record.attempts, begin):
        with pytest.raises(GpuOpsError) as raised:
            read(host)
        assert raised.value.code == "repair.record_damaged" and "move the file away" in raised.value.remedy
    assert host.read(record.PATH) == text, "it is left as it is"


def test_every_cut_of_a_record_is_damaged_or_whole(host: Host) -> None:
    begin(host)
    text = host.read(record.PATH) or ""
    for length in range(len(text) - 1):
        host.write(record.PATH, text[:length])
        with pytest.raises(GpuOpsError):
            record.attempts(host)


@pytest.mark.parametrize("name, value", [("rung", "exorcism"), ("end", "perhaps"), ("time", "noon"), ("parts", [{}])])
def test_what_another_release_has_written_is_not_understood(host: Host, name: str, value: object) -> None:
    begin(host)
    data = json.loads(host.read(record.PATH) or "")
    data["attempts"][0][name] = value
    host.write(record.PATH, json.dumps(data))
    with pytest.raises(GpuOpsError):
        record.attempts(host)
