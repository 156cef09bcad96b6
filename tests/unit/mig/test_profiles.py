# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How people name a profile, and which profile of a GPU they mean."""
from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as some
from mig_boards import WITH_MIG, board, profiles

from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import Mig, Profile
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.filling import most_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.model import Board
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.profiles import compute_sizes, match, name_of, parse

EVERY = [(name, profile) for name in WITH_MIG for profile in profiles(name)]


def ids(value: object) -> str:
    return value.name if isinstance(value, Profile) else str(value)


def nameless(gpu: Board) -> Board:
    """Under a driver before 515, whose profiles have no names."""
    assert gpu.mig is not None
    return replace(gpu, mig=replace(gpu.mig, profiles=tuple(replace(each, name="") for each in gpu.mig.profiles)))


def renamed(gpu: Board, **names: str) -> Board:
    """Under a driver with other names. names: {'_' and id: name}."""
    assert gpu.mig is not None
    return replace(gpu, mig=replace(gpu.mig, profiles=tuple(
        replace(each, name=names.get("_%d" % each.id, each.name)) for each in gpu.mig.profiles)))


def named(word: str, gpu: Board) -> Optional[int]:
    found = match(word, gpu)
    return found.profile.id if found else None


@pytest.mark.parametrize("name, profile", EVERY, ids=ids)
def test_every_profile_has_its_names(name: str, profile: Profile) -> None:
    gpu = board(name)
    label = profile.name.replace("+", ".")
    for word in (str(profile.id), profile.name, "MIG " + profile.name, profile.name.upper(), label,
                 " %s " % profile.name, name_of(profile, nameless(gpu))):
        found = match(word, gpu)
        assert found is not None and found.profile == profile and found.compute is None and not found.near


@pytest.mark.parametrize("name, profile", EVERY, ids=ids)
def test_nvidias_formula_gives_the_names_of_a_driver_that_has_none(name: str, profile: Profile) -> None:
    assert name_of(replace(profile, name=""), board(name)) == profile.name


@pytest.mark.parametrize("name, profile", EVERY, ids=ids)
def test_a_name_of_a_smaller_compute_instance_is_the_profiles(name: str, profile: Profile) -> None:
    found = match("1c." + profile.name, board(name))
    assert found is not None and (found.profile, found.compute) == (profile, 1)


@pytest.mark.parametrize("name, word, expected", [
    ("a100-80gb-sxm", "1g", 19),
    ("a100-80gb-sxm", "1g+me", 20),
    ("a100-80gb-sxm", "1g.me", 20),
    ("a100-80gb-sxm", "3g", 9),
    ("a100-80gb-sxm", "7g", 0),
    ("a100-80gb-sxm", "1c.3g", 9),
    ("a100-80gb-sxm", "MIG 3g", 9),
    ("a30", "1g", 14),
    ("a30", "2g+me", 6),
    ("rtx-pro-6000-server", "1g.gfx", 47),
    ("rtx-pro-6000-server", "1g.me.all", 65),
    ("rtx-pro-6000-server", "2g-me", 66),
    ("rtx-pro-6000-server", "4g", 0),
])
def test_a_bare_shape_is_the_profile_with_the_least_memory(name: str, word: str, expected: int) -> None:
    assert named(word, board(name)) == expected


@pytest.mark.parametrize("name, word, expected", [
    ("gb200-nvl72", "7g.189gb", 0),
    ("gb200-nvl72", "3g.95gb", 9),
    ("gb200-nvl72", "4g.95gb", 5),
    ("gb200-nvl72", "1g.24gb", 19),
    ("gb200-nvl72", "1g.24gb.me", 20),
    ("a100-40gb-sxm", "3g.19gb", 9),
    ("a100-80gb-sxm", "7g.79gb", 0),
    ("h200-sxm", "1g.16gb", 19),
    ("h200-sxm", "1c.3g.70gb", 9),
])
def test_a_name_of_another_driver_is_taken_and_said(name: str, word: str, expected: int) -> None:
    found = match(word, board(name))
    assert found is not None and found.profile.id == expected and found.near


def test_names_that_a_board_lost_with_a_driver_still_name_its_profiles() -> None:
    """GB300: 1g.35gb, 2g.70gb, 3g.139gb and 7g.278gb under 590, and other numbers under 610."""
    gpu = renamed(board("b300-hgx"), _19="1g.31gb", _14="2g.63gb", _15="1g.63gb", _9="3g.126gb", _5="4g.126gb",
                  _0="7g.251gb")
    words = ("1g.35gb", "2g.70gb", "1g.70gb", "3g.139gb", "4g.139gb", "7g.278gb")
    assert [named(word, gpu) for word in words] == [19, 14, 15, 9, 5, 0]


@pytest.mark.parametrize("name, word", [
    ("a100-80gb-sxm", "1g.5gb"),
    ("a100-80gb-sxm", "1g.15gb"),
    ("a100-80gb-sxm", "3g.47gb"),
    ("a100-80gb-sxm", "7g.94gb"),
    ("a100-80gb-sxm", "5g.60gb"),
    ("a100-80gb-sxm", "1g.10gb+gfx"),
    ("a100-80gb-sxm", "2g.20gb+me"),
    ("a100-80gb-sxm", "2g+me"),
    ("a100-80gb-sxm", "1g.10"),
    ("a100-80gb-sxm", "1g.10gb+"),
    ("a100-80gb-sxm", "all"),
    ("a100-80gb-sxm", ""),
    ("a100-80gb-sxm", "99"),
    ("a100-80gb-sxm", "21"),
    ("rtx-pro-6000-server", "1g.24gb+me+gfx"),
    ("a30", "7g.80gb"),
    ("t4", "1g.5gb"),
    ("t4", "19"),
])
def test_other_words_name_none(name: str, word: str) -> None:
    assert match(word, board(name)) is None


def test_a_name_in_a_grammar_of_tomorrow_is_taken_as_the_driver_writes_it() -> None:
    gpu = renamed(board("a30"), _14="Eighth of 24")
    assert named("MIG eighth of 24", gpu) == 14


def test_a_word_that_could_mean_two_profiles_names_none() -> None:
    gpu = board("a30")
    assert gpu.mig is not None
    twin = replace(gpu.mig.profiles[0], id=99, name="4g.25gb", memory_mib=24100)
    assert named("4g.23gb", replace(gpu, mig=replace(gpu.mig, profiles=(*gpu.mig.profiles, twin)))) is None


@given(some.sampled_from(WITH_MIG), some.integers(1, 8), some.integers(0, 300),
       some.sampled_from(["", "+me", "+me.all", "+gfx", "-me", ".me", ".gfx", "+me,gfx"]))
def test_near_is_never_another_shape_and_never_far(name: str, slices: int, memory: int, attributes: str) -> None:
    gpu = board(name)
    found = match("%dg.%dgb%s" % (slices, memory, attributes), gpu)
    if found is not None:
        of_found = parse(found.profile.name)
        assert of_found is not None and of_found.memory is not None
        assert (of_found.slices, of_found.attributes) == (slices, attributes.replace(".", "+", 1)
                                                          if attributes.startswith(".") else attributes)
        assert abs(of_found.memory - memory) * 8 <= max(of_found.memory, memory)
        assert found.near == (of_found.memory != memory)


@given(some.text(max_size=12) | some.from_regex(r"(MIG )?[0-9]c?\.?[0-9]g(\.[0-9]+gb)?[+.-]?[a-z.,]*", fullmatch=True),
       some.sampled_from((*WITH_MIG, "t4")))
def test_every_word_is_a_name_or_none(word: str, name: str) -> None:
    found = match(word, board(name))
    assert found is None or found.profile in profiles(name)


def test_memory_that_is_the_hosts_has_no_size() -> None:
    """Jetson Thor: 1g.0gb."""
    thor = Profile(id=3, name="", attributes="", slices=1, memory_mib=0, most=2, size=1, starts=(0, 1))
    gpu = replace(board("a30"), memory_mib=0, mig=Mig(True, True, (thor,)))
    assert name_of(thor, gpu) == "1g.0gb" and named("1g.0gb", gpu) == 3 and named("1g", gpu) == 3


@pytest.mark.parametrize("slices, expected", [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)),
                                              (7, (1, 2, 3, 4, 7))])
def test_sizes_of_compute_instances(slices: int, expected: object) -> None:
    assert compute_sizes(slices) == expected


@pytest.mark.parametrize("name, profile", EVERY, ids=ids)
def test_as_many_fit_as_nvidia_says(name: str, profile: Profile) -> None:
    mig = board(name).mig
    assert mig is not None and most_of(profile, mig) == profile.most


def test_a_driver_that_tells_too_few_is_not_believed() -> None:
    gpu = board("a30")
    assert gpu.mig is not None
    wrong = replace(gpu.mig, profiles=tuple(replace(each, most=1) for each in gpu.mig.profiles))
    assert [most_of(each, wrong) for each in wrong.profiles] == [each.most for each in gpu.mig.profiles]
