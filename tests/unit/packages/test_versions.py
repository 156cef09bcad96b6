# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The order of versions is dpkg's own."""
from __future__ import annotations

import random
import subprocess
from typing import List, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.versions import compare, newest_first

PAIRS = 4000
ALPHABET = "0123459aZb.+~-"


def made(seed: int) -> List[Tuple[str, str]]:
    """Pairs of versions that share beginnings, as versions of one package do."""
    chance = random.Random(seed)

    def version() -> str:
        epoch = "%d:" % chance.randint(0, 2) if chance.random() < 0.3 else ""
        return epoch + "1" + "".join(chance.choice(ALPHABET) for _ in range(chance.randint(0, 6))) + "1"

    def neighbour(first: str) -> str:
        at = chance.randint(first.index(":") + 2 if ":" in first else 1, len(first))
        return first[:at] + chance.choice(["", "~", "0", "00", "+b1", "-1", "~rc1", "a", "."]) + first[at:]

    firsts = [version() for _ in range(PAIRS)]
    return [(first, neighbour(first) if chance.random() < 0.7 else version()) for first in firsts]


def judged(pairs: List[Tuple[str, str]]) -> List[int]:
    """What dpkg says of each pair, by one shell for all of them."""
    lines = "\n".join("%s %s" % pair for pair in pairs) + "\n"
    script = ('while read a b; do if dpkg --compare-versions "$a" lt "$b"; then echo -1; '
              'elif dpkg --compare-versions "$a" eq "$b"; then echo 0; else echo 1; fi; done')
    told = subprocess.run(["sh", "-c", script], input=lines, capture_output=True, text=True, check=True).stdout
    return [int(line) for line in told.split()]


def test_thousands_of_pairs_are_ordered_as_dpkg_orders_them() -> None:
    pairs = made(9)
    ours = [compare(*pair) for pair in pairs]
    assert {-1, 0, 1} == set(ours)
    assert [pair for pair, mine, theirs in zip(pairs, ours, judged(pairs)) if mine != theirs] == []


@pytest.mark.parametrize("older, newer", [
    ("580.126.09-1~deb12u1", "580.126.09-1"),
    ("580.126.09-1", "1:535.1-1"),
    ("580.126.9-1", "580.126.10-1"),
    ("1.20.1~rc.1-1", "1.20.1-1"),
    ("550.163.01-2", "550.163.01-2+b1"),
    ("1-1", "1-1a"),
])
def test_what_the_numbers_alone_do_not_tell(older: str, newer: str) -> None:
    assert (compare(older, newer), compare(newer, older), compare(newer, newer)) == (-1, 1, 0)
    assert newest_first([older, newer]) == [newer, older]


@given(st.text(ALPHABET + ":", max_size=8), st.text(ALPHABET + ":", max_size=8))
def test_it_is_an_order(first: str, second: str) -> None:
    assert compare(first, second) == -compare(second, first)
