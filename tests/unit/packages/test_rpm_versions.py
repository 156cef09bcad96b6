# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Order of rpm's versions, with rpm as the judge."""
from __future__ import annotations

import json
import random
import subprocess
from typing import List, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm.versions import (
    compare,
    compare_part,
    joined,
    newest_first,
    split,
)

OFTEN = ["1.0", "1.0~rc1", "1.0~~", "1.0^git1", "1.0^", "1.0^~", "1.0.1", "1.0a", "1.0.a", "10", "010", "1_0", "a", "b",
         "1.el9", "1.el9_4", "1.fc42", "580.126.09", "580.126.9", "580.178.04", "595.91.07", "~", "^", "1~", "1..0",
         "A", "1.0.", "6.12.0", "2xyz", "xyz2"]


def judged(pairs: List[Tuple[str, str]]) -> List[int]:
    code = ("import json, rpm, sys\n"
            "pairs = json.load(sys.stdin)\n"
            "print(json.dumps([rpm.labelCompare(('0', one, '1'), ('0', other, '1')) for one, other in pairs]))")
    told = subprocess.run(["/usr/bin/python3", "-c", code], input=json.dumps(pairs), capture_output=True, text=True,
                          check=True).stdout
    return [int(verdict) for verdict in json.loads(told)]


def test_the_order_is_that_of_rpm() -> None:
    pairs = [(first, second) for first in OFTEN for second in OFTEN]
    drawn = random.Random(4)
    words = ["".join(drawn.choice("019ab.~^_") for _sign in range(drawn.randrange(1, 9))) for _word in range(2000)]
    pairs += list(zip(words[::2], words[1::2])) + list(zip(words, [word[:-1] + "1" for word in words]))
    pairs = [pair for pair in pairs if all(pair)]
    told = judged(pairs)
    wrong = [(pair, verdict) for pair, verdict in zip(pairs, told) if compare_part(*pair) != verdict]
    assert wrong == []
    assert {1, 0, -1} == set(told)


@pytest.mark.parametrize("older, newer", [
    ("9:1-1", "10:0-1"),
    ("999.99-1.el9", "3:580.178.04-1.el9"),
    ("3:580.178.04-1.el9", "3:580.178.04-2.el9"),
    ("3:580.178.04-1.el9", "3:595.91.07-1.el9"),
    ("0:1-1", "1-2"),
])
def test_epoch_counts_before_version_before_release(older: str, newer: str) -> None:
    assert (compare(older, newer), compare(newer, older), compare(older, older)) == (-1, 1, 0)


def test_a_version_without_a_release_is_met_by_each() -> None:
    assert compare("3:580.178.04", "3:580.178.04-7.el9") == 0


def test_an_epoch_of_nought_is_not_written() -> None:
    assert [joined("0", "1", "2"), joined("3", "1", "2"), joined("", "1", "2")] == ["1-2", "3:1-2", "1-2"]
    assert split("3:1-2") == (3, "1", "2")


def test_the_newest_comes_first() -> None:
    assert newest_first(["3:580.178.04-1", "3:610.57.04-1", "3:595.91.07-1"]) == [
        "3:610.57.04-1", "3:595.91.07-1", "3:580.178.04-1"]
