# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import re
from typing import Iterator, List, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.fleet.names import listed

HOSTS = st.from_regex(r"[a-z]{0,2}-?[0-9]{0,3}[a-z]?(\.[a-z][0-9]?)?", fullmatch=True).filter(bool)


def expanded(text: str) -> List[str]:
    """As ClusterShell's nodeset reads it."""
    found: List[str] = []
    for part in re.findall(r"[^,\[\s]*(?:\[[^\]]*\])?[^,\[\s]*", text):
        if not part:
            continue
        ranges = re.fullmatch(r"(.*)\[(.*)\](.*)", part)
        found += [part] if ranges is None else [
            ranges.group(1) + number + ranges.group(3) for number in _numbers(ranges.group(2))]
    return found


def _numbers(ranges: str) -> Iterator[str]:
    for each in ranges.split(","):
        first, _dash, last = each.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield str(number).zfill(len(first))


@pytest.mark.parametrize("hosts, text", [
    ([], ""),
    (["gpu-1"], "gpu-1"),
    (["gpu001", "gpu002", "gpu003"], "gpu[001-003]"),
    (["gpu3", "gpu1", "gpu1"], "gpu[1,3]"),
    (["gpu%d" % number for number in range(8, 12)], "gpu[8-11]"),
    (["gpu08", "gpu09", "gpu10", "gpu1"], "gpu[1,08-10]"),
    (["a.example", "gpu-1.example", "gpu-2.example"], "a.example, gpu-[1-2].example"),
    (["r1-n01.dc2", "r1-n02.dc2", "r2-n01.dc2"], "r1-n[01-02].dc2, r2-n01.dc2"),
    # Their commas and brackets are no range's
    (["a,1", "a,2", "b[1", "b[2"], "a,1, a,2, b[1, b[2"),
    (["10.0.0.9", "10.0.0.10", "10.0.1.1"], "10.0.0.[9-10], 10.0.1.1"),
])
def test_hosts_stand_as_ranges(hosts: List[str], text: str) -> None:
    assert listed(hosts) == text


@given(st.sets(HOSTS, max_size=40))
def test_every_host_is_named_once_whatever_its_name(hosts: Set[str]) -> None:
    assert sorted(expanded(listed(hosts))) == sorted(hosts)


@given(st.sets(HOSTS, min_size=1, max_size=60), st.integers(1, 80))
def test_a_list_that_is_too_long_tells_how_many_more_there_are(hosts: Set[str], longest: int) -> None:
    shown, _and, more = listed(hosts, longest).partition(" and ")
    left = int(more.split()[0]) if more else 0
    assert len(expanded(shown)) + left == len(hosts)
    assert set(expanded(shown)) <= hosts
