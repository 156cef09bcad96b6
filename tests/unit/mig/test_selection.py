# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which GPUs are meant, and what is said of those that are not there."""
from __future__ import annotations

from dataclasses import replace
from typing import List, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as some
from mig_boards import board, boards, refused

from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.configuration import Entry
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.model import Board
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.selection import choices, meant_by

EIGHT = boards("a100-80gb-sxm", 8)
MIXED = [board("a100-80gb-sxm", 0), board("a30", 1), board("t4", 2)]


def meant(word: str, gpus: Sequence[Board] = EIGHT) -> List[int]:
    return [gpu.index for gpu in meant_by(word, gpus)]


def chosen(entries: Sequence[Entry], gpus: Sequence[Board] = EIGHT) -> List[int]:
    found, refusals = choices(entries, gpus, "layout")
    assert refusals == ()
    return [choice.board.index for choice in found]


@given(some.sampled_from(EIGHT), some.data())
def test_every_name_of_a_gpu_means_it(gpu: Board, data: some.DataObject) -> None:
    domain, rest = gpu.address.split(":", 1)
    names = (str(gpu.index), " %d " % gpu.index, gpu.uuid, gpu.uuid.upper(), gpu.address, gpu.address.upper(), rest,
             "%08x:%s" % (int(domain, 16), rest), "%08X:%s" % (int(domain, 16), rest.upper()))
    # Of these eight the first eight digits tell which one it is
    prefix = gpu.uuid[:data.draw(some.integers(len("GPU-") + 8, len(gpu.uuid)))]
    for name in (*names, prefix):
        assert meant_by(name, EIGHT) == (gpu,)


def test_a_domain_of_more_than_four_digits_is_another_gpu() -> None:
    far = replace(EIGHT[0], address="10000:07:00.0")
    assert meant("00010000:07:00.0", [far]) == [0] and meant("0000:07:00.0", [far]) == meant("07:00.0", [far]) == []


@pytest.mark.parametrize("word", ["", "8", "-1", "0x0", "GPU-", "GPU", "GPU-dead", "MIG-c0ffee00", "ffff:07:00.0",
                                  "07:00", "420.0", "all"])
def test_other_words_mean_none(word: str) -> None:
    assert meant(word) == []


def test_too_short_a_uuid_means_several() -> None:
    assert meant("GPU-c0ffee0") == list(range(8))
    assert meant("GPU-c0ffee0", EIGHT[:1]) == [0]


@pytest.mark.parametrize("entry, expected", [
    (Entry(""), [0, 1, 2]),
    (Entry("", ("1", "0")), [0, 1]),
    (Entry("", ("all", "1")), [0, 1, 2]),
    (Entry("", filters=("0x20b710de",)), [1]),
    (Entry("", filters=("0x20b710de", "0x20b210de:0x146310de")), [0, 1]),
    (Entry("", filters=("0x20b210de:0x000110de",)), []),
    (Entry("", filters=("0x233010de",)), []),
    (Entry("", ("0", "1"), ("0x20b710de",)), [1]),
])
def test_what_an_entry_is_for(entry: Entry, expected: List[int]) -> None:
    assert chosen([entry], MIXED) == expected


def test_an_entry_for_boards_of_other_hosts_may_name_what_is_not_here() -> None:
    assert chosen([Entry("", ("7",), ("0x233010de",)), Entry("", ("0",), ("0x20b210de",))], MIXED) == [0]


def test_the_last_entry_decides() -> None:
    found, _refusals = choices([Entry("a"), Entry("b", ("1",)), Entry("c", ("1", "2")), Entry("d", ("2",))],
                               EIGHT[:3], "layout")
    assert [(choice.entry.where, choice.by_name) for choice in found] == [("a", False), ("c", True), ("d", True)]


def test_an_index_beyond_the_last_gpu_is_refused() -> None:
    """Fault e of nvidia-mig-parted: success, and nothing done."""
    error = refused(MIXED, layout=[{"gpus": ["0", "3", "17:00.0"]}])
    assert [refusal.code for refusal in error.refusals] == ["mig.unknown_gpu"]
    assert "'3', '17:00.0'" in error.found and "quotes" in error.remedy
    for gpu in MIXED:
        for name in (gpu.uuid, gpu.address, gpu.device_id, gpu.name):
            assert name in error.found


def test_a_uuid_of_several_is_refused_with_all_of_them() -> None:
    error = refused(EIGHT, layout=[{"gpus": ["GPU-c0ffee0"]}])
    assert error.code == "mig.ambiguous_gpu" and all(gpu.uuid in error.found for gpu in EIGHT)


def test_what_several_entries_name_in_vain_is_said_of_each() -> None:
    error = refused(MIXED, layout=[{"gpus": ["8"]}, {"gpus": ["GPU-c0ffee0", "9"]}])
    assert [refusal.code for refusal in error.refusals] == [
        "mig.unknown_gpu", "mig.unknown_gpu", "mig.ambiguous_gpu"]
