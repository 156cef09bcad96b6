# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each GPU is to be, and what stands against it."""
from __future__ import annotations

from dataclasses import replace
from typing import Any, Dict, List, Sequence, Tuple

import pytest
from hypothesis import given
from hypothesis import strategies as some
from mig_boards import (
    WITH_MIG,
    board,
    boards,
    codes,
    contents,
    document,
    entry,
    made,
    notes,
    policy,
    refused,
    untold,
)

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import ComputeInstance, GpuInstance
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.former import Former
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.model import Board, Target, Wanted
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.planner import plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.target import _packed, given_back, targets

A100, A30, T4 = board("a100-80gb-sxm", 0), board("a30", 1), board("t4", 2)


def with_instances(gpu: Board, *placed: Tuple[int, int, int]) -> Board:
    """In MIG mode, with instances of three slices: (profile, start, units)."""
    assert gpu.mig is not None
    return replace(gpu, mig=replace(gpu.mig, current=True, pending=True, instances=tuple(
        GpuInstance(number, *each, (ComputeInstance(0, 0, 3),)) for number, each in enumerate(placed))))


def of(gpu: Board, **options: Any) -> List[str]:
    """What one GPU is to hold."""
    found = contents(made([gpu], **options)[gpu.index], gpu)
    assert found is not None
    return found


def by_profile(gpu: Board, **profiles: int) -> List[str]:
    """What a file gives a GPU. profiles: {name with '_' for '.' and '__' in front: count}."""
    named = {name.strip("_").replace("_", "."): count for name, count in profiles.items()}
    return of(gpu, config="mine", configs=document(entry(profiles=named)))


def test_what_is_not_managed_has_no_target() -> None:
    assert targets(policy(), [A100, T4]) == ({}, ())


def test_a_removal_leaves_what_was_there_before_us() -> None:
    divided = with_instances(A100, (9, 0, 4), (9, 4, 4))
    whole, partly = Former(False), Former(True, ((9, 4), (19, 0)))
    assert given_back([divided, A30, T4], {divided.uuid: whole}) == {divided.uuid: Target(False, ())}
    assert given_back([divided], {divided.uuid: partly}) == {divided.uuid: Target(True, (Wanted(9, (3,), 4),))}
    assert given_back([divided], {divided.uuid: Former(True, ((9, 4), (9, 0)))}) == {}
    assert given_back([divided, A30], {}) == {}


def test_instances_are_those_of_the_file() -> None:
    assert by_profile(A100, __1g_10gb=2, __2g_20gb=1, __3g_40gb=1) == ["1g.10gb", "1g.10gb", "2g.20gb", "3g.40gb"]


def test_an_empty_map_takes_all_away_and_none_leaves_them() -> None:
    assert made([A100], config="mine", configs=document(entry())) == {0: Target(True, ())}
    assert made([A100], layout=[{"instances": []}]) == {0: Target(True, ())}
    assert made([A100], layout=[{}]) == {0: Target(True, None)}


def test_one_compute_instance_takes_the_whole_unless_said_otherwise() -> None:
    instances = [{"profile": "3g"}, {"profile": "3g", "compute": [1, "2c"], "start": 4}]
    assert made([A100], layout=[{"instances": instances}]) == {
        0: Target(True, (Wanted(9, (3,)), Wanted(9, (2, 1), 4)))}


def test_a_count_is_of_gpu_instances() -> None:
    instances = [{"profile": "2g", "count": 3, "compute": ["1c", "1c"]}]
    assert made([A100], layout=[{"instances": instances}]) == {0: Target(True, (Wanted(14, (1, 1)),) * 3)}


def test_names_of_compute_instances_share_gpu_instances() -> None:
    """As nvidia-mig-parted makes them: a second one goes into the GPU instance of the first where it has room."""
    shared = made([A100], config="mine", configs=document(entry(profiles={
        "1c.3g.40gb": 2, "2c.3g.40gb": 1, "1g.10gb": 1})))
    assert shared == {0: Target(True, (Wanted(19, (1,)), Wanted(9, (2, 1)), Wanted(9, (1,))))}
    assert made([A100], layout=[{"instances": [{"profile": "1c.3g", "count": 3}]}]) == {
        0: Target(True, (Wanted(9, (1, 1, 1)),))}
    assert of(A100, layout=[{"instances": [{"profile": "3c.3g.40gb"}]}]) == ["3g.40gb"]


@given(some.lists(some.integers(1, 7), max_size=12), some.integers(1, 7))
def test_compute_instances_are_shared_out_whole(sizes: Sequence[int], slices: int) -> None:
    packed = _packed(sizes, slices)
    assert sorted(size for each in packed for size in each) == sorted(sizes)
    assert all(sum(each) <= slices or len(each) == 1 for each in packed)
    assert all(list(each) == sorted(each, reverse=True) for each in packed)
    assert all(sum(one) + sum(other) > slices for number, one in enumerate(packed) for other in packed[:number])


@pytest.mark.parametrize("instances", [
    {"profile": "3g", "compute": ["2c", "2c"]},
    {"profile": "3g", "compute": ["4c"]},
    {"profile": "4g", "compute": ["3c"]},
    {"profile": "7g", "compute": ["6c"]},
    {"profile": "1g", "compute": ["0"]},
    {"profile": "4c.3g.40gb"},
    {"profile": "3c.4g.40gb"},
    {"profile": "0c.3g"},
])
def test_compute_instances_that_no_gpu_instance_holds_are_refused(instances: Dict[str, Any]) -> None:
    assert codes([A100], layout=[{"instances": [instances]}]) == ["mig.compute_does_not_fit"]


def test_a_start_that_the_profile_does_not_have_is_refused_with_those_it_has() -> None:
    error = refused([A100], layout=[{"instances": [{"profile": "2g", "start": 1}]}])
    assert error.code == "mig.start_not_offered" and error.wanted == "one of 0, 2, 4"


def test_a_profile_that_the_gpu_lacks_is_refused_with_those_it_has() -> None:
    """Fault a of nvidia-mig-parted: instances wiped, nothing created, success."""
    error = refused([A100], config="mine", configs=document(entry(profiles={"1g.10gb": 1, "1g.5gb": 1})))
    assert [refusal.code for refusal in error.refusals] == ["mig.profile_unknown"]
    assert "entry 1 of 'mine' in `configs` asks for '1g.5gb' on GPU 0" in error.found
    assert "7g.80gb, 4g.40gb, 3g.40gb, 2g.20gb, 1g.20gb, 1g.10gb, 1g.10gb+me" in error.found


def test_what_is_true_of_eight_gpus_is_said_once() -> None:
    eight = boards("a100-80gb-sxm", 8)
    error = refused([*eight[:7], replace(board("a30"), index=8, uuid="GPU-other"), eight[7]], config="all-2g.10gb")
    assert [refusal.found.partition(", which")[0] for refusal in error.refusals] == [
        "`config` 'all-2g.10gb' asks for '2g.10gb' on GPUs 0, 1, 2, 3, 4, 5, 6, 7 (NVIDIA A100-SXM4-80GB)",
        "`config` 'all-2g.10gb' asks for '2g.10gb' on GPU 8 (0000:17:00.0, NVIDIA A30)"]


def test_one_of_several_gpus_may_have_other_profiles() -> None:
    """Issue 157 of NVIDIA/mig-parted: GPUs of one model differ on one node."""
    odd = board("a30", 1)
    assert odd.mig is not None
    odd = replace(odd, mig=replace(odd.mig, profiles=odd.mig.profiles[:1]))
    error = refused([board("a30", 0), odd], config="all-1g.6gb")
    assert [refusal.found.partition(",")[0] for refusal in error.refusals] == [
        "`config` 'all-1g.6gb' asks for '1g.6gb' on GPU 1 (0000:3d:00.0"]


def test_a_name_of_another_driver_is_told_once() -> None:
    gpus = boards("gb200-nvl72", 4)
    (note,) = notes(gpus, config="all-7g.189gb")
    assert note.startswith("'7g.189gb' is taken for 7g.186gb on GPUs 0, 1, 2, 3 (NVIDIA GB200)")
    assert notes(gpus, config="all-7g.186gb") == ()


def test_gpus_without_mig_are_left_out_of_all_and_told_of() -> None:
    """Fault b of nvidia-mig-parted: everything made anew on each run."""
    options = {"config": "mine", "configs": document(entry(profiles={"1g.10gb": 7}))}
    assert list(made([A100, T4], **options)) == [0]
    assert notes([A100, T4], **options) == ("Left as they are, without MIG: GPU 2 (%s, Tesla T4)." % T4.address,)


def test_a_layout_for_this_host_of_which_no_gpu_has_mig_is_refused() -> None:
    assert codes([T4], layout=[{}]) == ["mig.nowhere"]


@pytest.mark.parametrize("config", ["all-1g", "all-enabled", "all-balanced"])
def test_a_fleets_layout_leaves_a_host_without_mig_alone(config: str) -> None:
    assert made([T4], config=config) == {}
    assert "without MIG" in notes([T4], config=config)[0]


def test_a_gpu_without_mig_that_is_named_is_refused() -> None:
    assert codes([A100, T4], layout=[{"gpus": ["0", "2"]}]) == ["mig.without_mig"]
    assert codes([A100, T4], config="mine", configs=document(entry([2]))) == ["mig.without_mig"]
    assert codes([T4], layout=[{"gpus": ["2"]}]) == ["mig.without_mig"]


def test_where_mig_is_to_be_off_a_gpu_may_have_none() -> None:
    assert made([A100, T4], config="all-disabled") == {0: Target(False, ())}
    assert made([T4], config="all-disabled") == {}
    assert made([A100, T4], layout=[{"gpus": ["2"], "enabled": False}]) == {}
    assert notes([A100, T4], config="all-disabled") == ()


def test_a_gpu_that_no_entry_is_for_stays_as_it_is() -> None:
    """Fault c of nvidia-mig-parted: its assert wants every GPU to be covered."""
    assert made([A100, A30], layout=[{"gpus": ["1"], "instances": [{"profile": "1g"}]}]) == {
        1: Target(True, (Wanted(14, (1,)),))}


def test_a_file_for_other_boards_is_refused_with_those_there_are() -> None:
    options = {"config": "mine", "configs": document(entry(device_filter="0x233010DE"))}
    error = refused([A100], **options)
    assert error.code == "mig.layout_for_no_gpu" and "0x20B210DE" in error.found and "'mine'" in error.found


def test_a_file_for_other_boards_leaves_hosts_without_mig_as_they_are() -> None:
    """NVIDIA's own, in group_vars of a fleet with T4."""
    options = {"config": "mine", "configs": document(entry(device_filter="0x233010DE"))}
    assert made([T4], **options) == {} and "without MIG" in notes([T4], **options)[0]
    assert codes([A100, T4], **options) == ["mig.layout_for_no_gpu"]


def test_a_host_without_gpus_has_none_to_divide() -> None:
    assert codes([], config="all-1g") == ["mig.layout_for_no_gpu"]


def test_an_entry_of_a_layout_for_other_boards_is_told_of() -> None:
    layout = [{"device_filter": ["0x233010DE"], "instances": [{"profile": "1g"}]}, {"gpus": ["0"], "enabled": False}]
    assert made([A100], layout=layout) == {0: Target(False, ())}
    assert notes([A100], layout=layout) == ("No GPU of this host has a device id of entry 1 of `layout` (0x233010de).",)
    file = document(entry(device_filter="0x233010DE"), entry(device_filter="0x20B210DE"))
    assert notes([A100], config="mine", configs=file) == ()


def test_what_a_later_entry_decides_is_not_judged_by_an_earlier_one() -> None:
    file = document(entry("all", {"1g.6gb": 4}), entry([0], {"1g.10gb": 7}), {"devices": [2], "mig-enabled": False})
    found = made([A100, A30, T4], config="mine", configs=file)
    assert [contents(found[0], A100), contents(found[1], A30)] == [["1g.10gb"] * 7, ["1g.6gb"] * 4]
    assert codes([A100, A30], config="mine", configs=document(entry("all", {"1g.6gb": 4}))) == ["mig.profile_unknown"]


@given(some.lists(some.tuples(some.sampled_from(["all", 0, 1, 2]),
                              some.sampled_from(["1g", "2g", "4g", "off", "leave"])), min_size=1, max_size=5))
def test_the_last_entry_for_a_gpu_is_all_that_counts(given_entries: List[Any]) -> None:
    gpus = boards("a30", 3)
    layout: List[Dict[str, Any]] = [
        {"gpus": [gpu], "enabled": what != "off", **(
            {"instances": [{"profile": what}]} if what not in ("off", "leave") else {})}
        for gpu, what in given_entries]
    alone: Dict[int, Target] = {}
    for each in layout:
        alone.update(made(gpus, layout=[each]))
    assert made(gpus, layout=layout) == alone


@pytest.mark.parametrize("options", [
    {"config": "all-1g"}, {"config": "all-balanced"}, {"layout": [{"instances": [{"profile": "9g"}]}]}])
def test_where_profiles_are_told_in_mig_mode_only_the_mode_comes_first(options: Dict[str, Any]) -> None:
    gpus = [untold(gpu) for gpu in boards("a100-80gb-sxm", 2)]
    assert made(gpus, **options) == {0: Target(True, None), 1: Target(True, None)}
    (note,) = notes(gpus, **options)
    assert "GPUs 0, 1 (NVIDIA A100-SXM4-80GB)" in note and "once it is on" in note


def test_what_needs_no_profile_needs_no_second_run() -> None:
    gpus = [untold(A100)]
    assert made(gpus, config="all-enabled") == {0: Target(True, ())} and notes(gpus, config="all-enabled") == ()
    assert made(gpus, config="all-disabled") == {0: Target(False, ())}
    assert made(gpus, layout=[{}]) == {0: Target(True, None)}


def test_in_mig_mode_a_driver_without_profiles_is_refused() -> None:
    assert A100.mig is not None
    gpu = replace(A100, mig=replace(A100.mig, profiles=()))
    error = refused([gpu], config="all-1g")
    assert error.code == "mig.profile_unknown" and "none that the driver tells" in error.found
    assert codes([gpu], config="all-balanced") == ["mig.no_balanced_layout"]


@pytest.mark.parametrize("name, expected", [
    ("a100-40gb-sxm", ["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]),
    ("h200-sxm", ["1g.18gb", "1g.18gb", "2g.35gb", "3g.71gb"]),
    ("a30", ["1g.6gb", "1g.6gb", "2g.12gb"]),
    ("rtx-pro-6000-server", ["1g.24gb", "1g.24gb", "2g.48gb"]),
])
def test_balanced(name: str, expected: List[str]) -> None:
    assert of(board(name), config="all-balanced") == expected


def test_a_board_of_other_slices_has_no_balanced_layout() -> None:
    """RTX PRO 5000: 1g.24gb twice, or 2g.48gb."""
    gpu = board("rtx-pro-6000-server")
    assert gpu.mig is not None
    small = replace(gpu, mig=replace(gpu.mig, profiles=tuple(
        profile for profile in gpu.mig.profiles if profile.slices < 4)))
    assert codes([small], config="all-balanced") == ["mig.no_balanced_layout"]


@pytest.mark.parametrize("name", WITH_MIG)
def test_a_board_is_filled_with_each_of_its_profiles(name: str) -> None:
    gpu = board(name)
    assert gpu.mig is not None
    for profile in gpu.mig.profiles:
        assert of(gpu, config="all-" + profile.name.replace("+", ".")) == [profile.name] * profile.most
        assert of(gpu, config="all-%d" % profile.id) == [profile.name] * profile.most


def test_refusals_name_options_as_the_reader_knows_them() -> None:
    """So that a role's variable stands in their place."""
    for options, option in (({"config": "all-9g"}, "config"),
                            ({"layout": [{"instances": [{"profile": "9g"}]}]}, "layout")):
        error = refused([A100], **options)
        assert error.refusals[0].option == option and "`%s`" % option in error.remedy


OF_OTHERS = document(entry(device_filter="0x233010DE"))


@pytest.mark.parametrize("options, option", [
    ({"label": "all-9g"}, "label"),
    ({"label": "all-balancd"}, "label"),
    ({"label": "mine", "configs": document(entry(profiles={"9g.90gb": 1}))}, "configs"),
    ({"config": "mine", "configs": document(entry(profiles={"9g.90gb": 1}))}, "configs"),
    ({"label": "mine", "configs": OF_OTHERS}, "configs"),
])
def test_refusals_name_what_the_reader_has_written(options: Dict[str, Any], option: str) -> None:
    """A layout by the Node's label is in no variable, and one of a file in another than its name."""
    (refusal,) = refused([A100], **options).refusals
    told = refusal.found + refusal.remedy
    assert refusal.option == option and "`label`" not in told
    assert ("kubectl label --overwrite node" in told) == (option == "label")
    assert ("`config`" in told) == ("config" in options and "9g" not in str(options))


def test_without_the_label_a_node_is_not_left_as_it_is() -> None:
    assert refused([A100], label="mine", configs=OF_OTHERS).remedy == "add one; give the Node another layout"


def test_a_file_of_which_nothing_is_chosen_is_told_of() -> None:
    made_of = policy(configs=OF_OTHERS)
    assert plan(Observation(), made_of, HostFacts()).notes and not made_of.managed
    assert plan(Observation(), policy(), HostFacts()).notes == ()
