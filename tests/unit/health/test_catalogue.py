# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every number of NVIDIA's catalog, and what it may not do: an application's error takes no node out."""
from __future__ import annotations

from typing import Any, Dict, List

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.recovery import LADDER, REMEDIES
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.catalogue import (
    KINDS,
    MENDED,
    XIDS,
    meaning_of,
    overrides_of,
    sxid,
    xid,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.kernel_log import Event
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import policy_of

# (numbers, NVIDIA's action in its catalog, what it comes to here, its remedy)
ROWS: List[Any] = [
    ((13, 31), "RESTART_APP", "suspicion", ""),
    ((8, 11, 25, 32, 68, 69, 80, 39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "RESTART_APP", "event",
     ""),
    ((60, *range(82, 85), 86, 88, 89, *range(96, 106), 139), "RESTART_APP", "event", ""),
    ((47, 65, 73, 142), "encoders of video; CONTACT, for boards that have none of these", "event", ""),
    ((37, 38, 43, 44, 66, 67, 93, 106, 107, 108, 137, 141, 152, 153), "IGNORE", "event", ""),
    ((45,), "follow the other Xid", "event", ""),
    ((46, 62, 109, 110, 119, 120, 136, 140, 143, 155, 158), "RESET_GPU", "sick", "reset"),
    ((48, 95), "RESET_GPU", "sick", "reset"),
    ((63,), "IGNORE", "pending", "reset"),
    ((94,), "RESTART_APP, contained", "pending", "reset"),
    ((64,), "CONTACT", "sick", "out"),
    ((92, 121, 157), "IGNORE, else CONTACT", "warning", ""),
    ((54,), "CHECK_MECHANICALS", "sick", "out"),
    ((61, 122, 123, 124, 125), "CONTACT", "sick", "out"),
    ((74,), "workflow of NVLink", "sick", "board_reset"),
    ((79,), "restart the machine", "sick", "reboot"),
    (tuple(range(144, 151)), "by severity and bit table", "sick", "reset"),
    ((151,), "RESTART_VM", "sick", "reboot"),
    ((156, 160, 161), "RESET, else IGNORE", "pending", "reset"),
    ((154,), "the driver's own word", "warning", ""),
    ((78, 159, 162, 163, 164, 165), "update", "warning", ""),
    ((167, 168, 169, 173, 174, 175, 176, 999), "not in the catalog", "warning", ""),
    ((171, 172), "where the memory is that 48 tells of", "warning", ""),
]
NUMBERS = [(number, kind, remedy) for numbers, _action, kind, remedy in ROWS for number in numbers]


@pytest.mark.parametrize("number, kind, remedy", NUMBERS)
def test_each_number_of_the_catalog(number: int, kind: str, remedy: str) -> None:
    assert (xid(number).kind, xid(number).remedy) == (kind, remedy)


def test_no_number_of_ours_is_without_a_row_here() -> None:
    assert set(XIDS) <= {number for number, _kind, _remedy in NUMBERS}


@pytest.mark.parametrize("number", [13, 31, 43, 45, 47, 65, 68, 69, 73, 80, 142])
def test_an_application_takes_no_node_out(number: int) -> None:
    assert xid(number).kind in ("event", "suspicion") and xid(number).remedy == ""


@pytest.mark.parametrize("number, says_fatal, kind, remedy", [
    (10003, False, "sick", "reboot"), (12020, False, "sick", "reboot"), (23017, False, "sick", "reboot"),
    (22011, True, "sick", "reboot"), (20009, True, "warning", ""), (19049, True, "sick", "board_reset"),
    (19049, False, "warning", ""), (19084, False, "sick", "board_reset"), (10006, False, "sick", "reboot"),
    (26006, False, "sick", "reboot"), (10004, False, "warning", ""), (27001, False, "warning", "")])
def test_a_switch_is_judged_by_the_guide_and_then_by_its_own_word(
    number: int, says_fatal: bool, kind: str, remedy: str
) -> None:
    assert (sxid(number, says_fatal).kind, sxid(number, says_fatal).remedy) == (kind, remedy)


# NVIDIA Fabric Manager User Guide, appendix D
ALWAYS_FATAL = (10003, 12020, 22003, 22011, *range(23001, 23018))
SINGLE_BIT = (11012, 11021, 11022, 11023, 12021, 12023, 15008, 15011, 19049, 19055, 19057, 19059, 19062, 19065, 19068,
              19071, 24001, 24002, 24003)
BY_PORT = (11001, 11009, 11013, 11018, 11019, 11020, 12001, 12002, 12022, *range(12024, 12028), *range(12030, 12033),
           14017, 15001, 15006, 15009, 15010, 15012, 15013, 19047, 19048, 19054, 19056, 19058, 19060, 19061, 19063,
           19064, 19066, 19067, 19069, 19070, 20034, 22012, *range(24004, 24008))


@pytest.mark.parametrize("says_fatal", [True, False])
def test_each_error_of_a_switch_that_the_guide_has(says_fatal: bool) -> None:
    assert {number: (sxid(number, says_fatal).kind, sxid(number, says_fatal).remedy) for number in (
        *ALWAYS_FATAL, *SINGLE_BIT, *BY_PORT, 20001, 20009, 20012, 22013)} == {
        **dict.fromkeys(ALWAYS_FATAL, ("sick", "reboot")),
        **dict.fromkeys((*SINGLE_BIT, *BY_PORT), ("sick", "board_reset") if says_fatal else ("warning", "")),
        **dict.fromkeys((20001, 20009, 20012, 22013), ("warning", ""))}


@pytest.mark.parametrize("says_fatal", [True, False])
@pytest.mark.parametrize("number", [11004, 12028])
def test_a_link_that_may_be_stalled_asks_for_a_compute_check(number: int, says_fatal: bool) -> None:
    found = sxid(number, says_fatal)
    assert (found.kind, found.remedy, found.check) == ("warning", "", "long")


def test_whatever_has_to_be_mended_has_a_remedy_and_nothing_else_has_one() -> None:
    assert {(meaning.kind in MENDED) == (meaning.remedy != "") for meaning in XIDS.values()} == {True}
    assert {meaning.remedy for meaning in XIDS.values()} <= set(LADDER) == set(REMEDIES)


@pytest.mark.parametrize("number", [61, 122, 123, 124, 125])
def test_what_a_single_occurrence_does_not_show_takes_two(number: int) -> None:
    assert xid(number).after == 2
    assert {each for each, meaning in XIDS.items() if meaning.after > 1} == {61, 122, 123, 124, 125}


def event(number: int, **changes: Any) -> Event:
    return Event("0000:3b:00.0", number, **changes)


def test_an_override_changes_what_it_names_and_nothing_beside() -> None:
    overrides = overrides_of({"xid": {"63": {"kind": "sick", "remedy": "reboot"}, 92: {"kind": "event"},
                                      61: {"after": 5}, 79: {"remedy": "power_cycle"}, 4711: {
                                          "kind": "pending", "remedy": "reset"}},
                              "sxid": {20034: {"kind": "warning"}}})
    found = {number: meaning_of(event(number), overrides) for number in (63, 92, 61, 79, 4711, 64)}
    assert {number: (each.kind, each.remedy, each.after) for number, each in found.items()} == {
        63: ("sick", "reboot", 1), 92: ("event", "", 1), 61: ("sick", "out", 5), 79: ("sick", "power_cycle", 1),
        4711: ("pending", "reset", 1), 64: ("sick", "out", 1)}
    assert found[63].text == xid(63).text
    switch = event(20034, is_switch=True, is_fatal=True)
    assert (meaning_of(switch, overrides).kind, meaning_of(switch, {}).kind) == ("warning", "sick")
    assert meaning_of(event(20034), overrides) == meaning_of(event(20034), {})


def test_what_a_policy_says_decides_in_place_of_the_driver_and_never_makes_more_of_a_line_than_that() -> None:
    overrides = overrides_of({"xid": {94: {"kind": "sick", "remedy": "reboot"}, 95: {"remedy": "reboot"},
                                      48: {"after": 2}, 145: {"kind": "event"}, 146: {"kind": "sick"}}})
    found = {number: meaning_of(event(number), overrides) for number in (94, 95, 48, 109)}
    assert {number: (each.kind, each.remedy, each.by_action) for number, each in found.items()} == {
        94: ("sick", "reboot", False), 95: ("sick", "reboot", False), 48: ("sick", "reset", True),
        109: ("sick", "reset", True)}
    lines = {(number, is_fatal): meaning_of(event(number, is_fatal=is_fatal), overrides).kind
             for number in (145, 146) for is_fatal in (True, False)}
    assert lines == {(145, True): "event", (145, False): "event", (146, True): "sick", (146, False): "warning"}


SLIPS: List[Any] = [
    ("not_understood", []), ("not_understood", {"xids": {}}), ("not_understood", {"xid": [63]}),
    ("not_understood", {"xid": {"x": {"kind": "warning"}}}), ("not_understood", {"xid": {-1: {"kind": "warning"}}}),
    ("not_understood", {"xid": {63: "warning"}}), ("not_understood", {"xid": {63: {"kinds": "warning"}}}),
    ("not_understood", {"xid": {63: {"kind": "bad"}}}), ("not_understood", {"xid": {63: {"remedy": "pray"}}}),
    ("not_understood", {"xid": {63: {"after": 0}}}), ("not_understood", {"xid": {63: {"after": True}}}),
    ("not_understood", {"xid": {63: {"after": "2"}}}),
    ("without_end", {"xid": {92: {"kind": "sick"}}}), ("without_end", {"xid": {79: {"remedy": ""}}}),
    ("without_end", {"xid": {92: {"remedy": "reset"}}}), ("without_end", {"xid": {45: {"remedy": "reset"}}}),
    *(("of_an_application", {"xid": {number: {"kind": "sick", "remedy": "reset"}}}) for number in (13, 31, 43, 45)),
]


@pytest.mark.parametrize("code, given", SLIPS)
def test_an_override_with_a_slip_is_refused(code: str, given: Any) -> None:
    with pytest.raises(GpuOpsError) as refused:
        overrides_of(given)
    assert refused.value.code == "health.override_%s" % code


def test_every_slip_of_a_policy_is_told_at_once() -> None:
    given: Dict[str, Any] = {"rounds": 0, "silence": "60", "interval": 3, "overrides": {"xid": {
        63: {"kind": "bad"}, 31: {"kind": "sick", "remedy": "reset"}}}}
    with pytest.raises(GpuOpsError) as refused:
        policy_of(given)
    assert [each.code for each in refused.value.refusals] == [
        *["health.policy_not_understood"] * 3, "health.override_not_understood", "health.override_of_an_application"]
    assert set(KINDS) == {"event", "suspicion", "warning", "pending", "sick"}
