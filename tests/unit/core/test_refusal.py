# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a refusal says, alone and among others, to people and to machines, in the words of who reads it."""
from __future__ import annotations

import errno
import json
from typing import List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError, HostFailed
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.refusal import Refusal, named

FIRST = Refusal("driver.no_version", "no version", "a version", "set `version`, as in `580`.", option="version")
SECOND = Refusal("host.driver_hangs", "GPU 3 hangs", "one that answers", "reboot it")
VARIABLES = {"version": "gpu_driver_version"}


def test_it_ends_in_its_code() -> None:
    assert str(FIRST) == ("Found: no version. Wanted: a version. Do: set `version`, as in `580`. "
                          "[driver.no_version]")


def test_it_belongs_to_the_capability_or_area_that_its_code_begins_with() -> None:
    assert (FIRST.capability, SECOND.capability) == ("driver", "host")


def test_it_survives_json() -> None:
    assert Refusal.from_dict(json.loads(json.dumps(FIRST.to_dict()))) == FIRST


def test_it_names_the_variable_that_the_reader_has_set() -> None:
    shown = FIRST.named(VARIABLES)
    assert (shown.remedy, shown.option) == ("set `gpu_driver_version`, as in `580`.", "gpu_driver_version")
    assert FIRST.named({}) == FIRST


@pytest.mark.parametrize("text, expected", [
    ("set `version`", "set `gpu_driver_version`"),
    ("the version", "the version"),
    ("run `apt list version`", "run `apt list version`"),
    ("`versions` and `version`", "`versions` and `gpu_driver_version`"),
])
def test_only_what_stands_alone_in_backticks_is_an_option(text: str, expected: str) -> None:
    assert named(text, VARIABLES) == expected


@pytest.mark.parametrize("refusals, more", [
    ([FIRST], ""), ([FIRST, SECOND], " And 1 more, in `refusals` of this result: GPU 3 hangs [host.driver_hangs].")])
def test_an_error_tells_the_first_and_carries_all(refusals: List[Refusal], more: str) -> None:
    error = GpuOpsError.because(refusals, rc=7)
    result = error.result()
    assert str(error) == result["msg"] == str(FIRST) + more
    assert result["refusals"] == [refusal.to_dict() for refusal in refusals]
    assert {key: result[key] for key in FIRST.to_dict()} == FIRST.to_dict() and result["rc"] == 7
    assert (error.code, error.found, error.wanted, error.remedy) == (
        FIRST.code, FIRST.found, FIRST.wanted, FIRST.remedy)


def test_an_error_of_one_refusal_carries_it_as_well() -> None:
    error = GpuOpsError(FIRST.code, FIRST.found, FIRST.wanted, FIRST.remedy, FIRST.option)
    assert error.refusals == (FIRST,)


@pytest.mark.parametrize("number, code", [
    (errno.ENOSPC, "host.no_space"), (errno.EIO, "host.disk_error"), (errno.EXDEV, "host.system_error")])
def test_an_error_of_the_system_has_the_code_of_its_cause(number: int, code: str) -> None:
    failed = HostFailed.of(OSError(number, ""), "/etc/{x}", "written", "/var")
    assert failed.code == code and failed.found.startswith("/etc/{x} cannot be written: ")
    assert "{" not in failed.wanted + failed.remedy
