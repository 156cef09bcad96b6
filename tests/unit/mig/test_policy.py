# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the options of the module mean, and which of them contradict each other."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest
from mig_boards import document, entry, policy

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.configuration import Entry, Instances
from ansible_collections.gpuops.nvidia.plugins.module_utils.mig.policy import BALANCED, Policy


def codes(**options: Any) -> List[str]:
    with pytest.raises(GpuOpsError) as error:
        policy(**options)
    return [refusal.code for refusal in error.value.refusals]


def layout(*instances: Dict[str, Any], **more: Any) -> Dict[str, Any]:
    return {"layout": [dict(more, instances=list(instances))]}


def test_without_a_layout_mig_is_not_managed() -> None:
    assert policy() == Policy() and not policy().managed
    assert not policy(configs=document(entry())).managed


def test_absent_needs_no_layout_and_judges_none() -> None:
    gone = policy(state="absent", config="x", configs={"version": "v9"}, layout=[{"gpus": []}],
                  assume_pods_evicted=True)
    assert gone == Policy(state="absent", assume_pods_evicted=True) and gone.managed


def test_a_label_is_one_of_the_document() -> None:
    made = policy(config="mine", configs=document(entry(profiles={"1g.10gb": 7})))
    assert made.entries == (Entry("entry 1 of 'mine' in `configs`", instances=(Instances("1g.10gb", 7),)),)
    assert (made.option, made.called) == ("configs", "`config` 'mine'")


@pytest.mark.parametrize("config", ["all-disabled", "all-enabled", "all-balanced", "all-1g.10gb"])
def test_a_label_wins_over_a_layout_of_the_same_name(config: str) -> None:
    made = policy(config=config, configs=document(entry([3], {"2g.20gb": 1}), label=config))
    assert made.fill == "" and made.entries[0].gpus == ("3",)


@pytest.mark.parametrize("config, enabled, instances, fill", [
    ("all-disabled", False, (), ""),
    ("all-enabled", True, (), ""),
    ("all-balanced", True, None, BALANCED),
    ("all-1g.10gb", True, None, "1g.10gb"),
    (" all-1g.24gb.me.all ", True, None, "1g.24gb.me.all"),
    ("all-1g.24gb-me", True, None, "1g.24gb-me"),
    ("all-3g", True, None, "3g"),
    ("all-19", True, None, "19"),
])
def test_layouts_that_need_no_document(config: str, enabled: bool, instances: Any, fill: str) -> None:
    made = policy(config=config)
    assert made == Policy(config=config.strip(), fill=fill, entries=(
        Entry("`config` '%s'" % config.strip(), enabled=enabled, instances=instances),))


@pytest.mark.parametrize("config", ["all", "all-", "all-balancd", "all-1c.3g.40gb", "mine", "1g.10gb"])
def test_an_unknown_layout_is_refused(config: str) -> None:
    assert codes(config=config) == ["mig.config_unknown"]
    assert codes(config=config, configs=document(entry(), label="other")) == ["mig.config_unknown"]


def test_what_is_alike_and_what_there_is_is_said() -> None:
    with pytest.raises(GpuOpsError) as error:
        policy(config="all-balancd", configs=document(entry(), label="training"))
    assert "all-balanced" in error.value.found and "(training)" in error.value.wanted


def test_a_broken_document_is_refused_whichever_layout_is_used() -> None:
    broken = document(entry("some"), label="other")
    assert codes(configs=broken) == codes(config="all-disabled", configs=broken) == ["mig.devices_malformed"]


def test_a_layout_written_out() -> None:
    made = policy(layout=[
        {"gpus": [0, "GPU-c0ffee01"], "device_filter": ["0x20B210DE"], "instances": [
            {"profile": "3g", "start": 4, "compute": ["1c", "2"]}, {"profile": 19, "count": 2}]},
        {"gpus": ["2"], "enabled": False},
        {"gpus": ["3"]},
        {"gpus": ["4"], "instances": []},
    ])
    assert (made.option, made.called) == ("layout", "`layout`")
    assert made.entries == (
        Entry("entry 1 of `layout`", ("0", "GPU-c0ffee01"), ("0x20b210de",), True,
              (Instances("3g", 1, 4, (2, 1)), Instances("19", 2))),
        Entry("entry 2 of `layout`", ("2",), (), False, ()),
        Entry("entry 3 of `layout`", ("3",), (), True, None),
        Entry("entry 4 of `layout`", ("4",), (), True, ()),
    )


@pytest.mark.parametrize("options, code", [
    (dict(layout({"profile": "1g"}), config="all-1g"), "mig.config_and_layout"),
    ({"layout": [{"gpus": []}]}, "mig.layout_without_gpus"),
    ({"layout": [{"device_filter": ["A100"]}]}, "mig.device_filter_malformed"),
    (layout({"profile": "1g"}, enabled=False), "mig.layout_without_mode"),
    (layout({"profile": "one"}), "mig.profile_malformed"),
    (layout({"profile": ""}), "mig.profile_malformed"),
    (layout({"profile": "1g", "count": 0}), "mig.layout_count"),
    (layout({"profile": "1g", "count": -2}), "mig.layout_count"),
    (layout({"profile": "1g", "start": -1}), "mig.layout_start"),
    (layout({"profile": "1g", "count": 2, "start": 0}), "mig.layout_start"),
    (layout({"profile": "1c.3g", "start": 0}), "mig.layout_start"),
    (layout({"profile": "1c.3g", "compute": ["1c"]}), "mig.layout_compute_twice"),
    (layout({"profile": "3g", "compute": ["1g"]}), "mig.compute_malformed"),
    (layout({"profile": "3g", "compute": ["1c", "-1"]}), "mig.compute_malformed"),
])
def test_contradictions_are_refused(options: Dict[str, Any], code: str) -> None:
    assert codes(**options) == [code]


def test_all_contradictions_are_said_at_once() -> None:
    assert codes(config="x", layout=[{"gpus": []}, {"instances": [{"profile": "x", "count": 0}]}]) == [
        "mig.config_and_layout", "mig.layout_without_gpus", "mig.profile_malformed", "mig.layout_count",
        "mig.config_unknown"]
