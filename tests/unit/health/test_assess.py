# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What begins a finding, and the only things that end it."""
from __future__ import annotations

from typing import Any, Callable, Dict, List, Tuple

import pytest
from health_world import PLACES, ROUND, HealthWorld, gpu, parts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import nvml
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml_codes import LOST, RESET_REQUIRED
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.recovery import (
    LADDER,
    RECOVERY_ACTIONS,
    asked_for,
    satisfies,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.assess import assess, release
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.catalogue import XIDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import Act, Service, State
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.policy import HealthPolicy, policy_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.checks import Evidence, recovery

DAY = 86400
# NVIDIA's actions in words of the ladder, of drivers that tell no recovery action
SICK_OR_PENDING: List[Tuple[int, str, str]] = [
    *((number, "sick", "reset") for number in (
        46, 48, 62, 95, 109, 110, 119, 120, 136, 140, 143, 155, 158, *range(144, 151))),
    (63, "pending", "reset"), (94, "pending", "reset"), (156, "pending", "reset"), (160, "pending", "reset"),
    (161, "pending", "reset"), (74, "sick", "board_reset"), (79, "sick", "reboot"), (151, "sick", "reboot")]
OUT = [(54, 1), (64, 1), (61, 2), (122, 2), (123, 2), (124, 2), (125, 2)]
WARNINGS = [78, 92, 121, 157, 159, 162, 163, 164, 165, 167, 168, 169, 171, 172, 173, 174, 175, 176, 999]
APPLICATIONS = [8, 11, 13, 25, 31, 32, *range(37, 42), 43, 44, 45, 47, 60, *range(65, 74), 75, 76, 77, 80,
                *range(82, 87), 88, 89, 93, *range(96, 109), *range(126, 136), 137, 139, 141, 142, 152, 153]


@pytest.fixture
def world() -> HealthWorld:
    found = HealthWorld()
    found.round()
    return found


def of_old_driver(world: HealthWorld) -> None:
    for index in (0, 1):
        world.sets(index, recovery_action=None)


# numbers of the driver

def test_every_number_of_the_catalogue_is_tried_here() -> None:
    tried = {number for number, _kind, _remedy in SICK_OR_PENDING} | {number for number, _after in OUT}
    assert set(XIDS) <= tried | set(WARNINGS) | set(APPLICATIONS) | {154}


@pytest.mark.parametrize("number, kind, remedy", SICK_OR_PENDING)
def test_a_number_ends_by_its_remedy_and_then_a_compute_check_and_by_neither_alone(
    world: HealthWorld, number: int, kind: str, remedy: str
) -> None:
    of_old_driver(world)
    world.xid(number)
    world.round()
    assert world.found() == [("xid %d" % number, kind, remedy)]
    world.clock += 40 * DAY
    world.round(5)
    assert world.codes == ["xid %d" % number], "silence ends nothing"
    world.compute()
    world.round()
    assert world.codes == ["xid %d" % number], "a check that passes before the remedy ends nothing"
    world.mend(remedy)
    world.round(3)
    assert world.codes == ["xid %d" % number], "the remedy alone ends nothing"
    world.compute()
    world.round()
    assert world.found() == [] and world.state.verdict == "well"
    assert len(world.ended()) == 1 and "a compute check" in world.ended()[0][1]


@pytest.mark.parametrize("number, after", OUT)
def test_what_goes_back_to_its_vendor_ends_by_a_person_alone(world: HealthWorld, number: int, after: int) -> None:
    for _each in range(after - 1):
        world.xid(number)
        world.round(3)
        assert world.found() == [("xid %d" % number, "warning", "")]
    world.xid(number)
    world.round()
    assert world.found() == [("xid %d" % number, "sick", "out")]
    for remedy in ("reset", "board_reset", "power_cycle", "reload", "reboot"):
        world.mend(remedy)
        world.compute(level="long")
        world.round()
    assert world.codes == ["xid %d" % number]
    world.state = release(world.state, "gpu GPU-0", "me: a new cable", world.clock)
    assert world.codes == [] and world.ended()[-1][1] == "released by me: a new cable"
    world.round(5)
    assert world.codes == [], "what was read once is not found again"


def test_what_goes_back_to_its_vendor_ends_when_another_is_in_its_place(world: HealthWorld) -> None:
    world.xid(64)
    world.xid(64, index=1)
    world.round()
    world.boot()
    world.gpus[0] = gpu(0, uuid="GPU-new", serial="1777")
    world.round()
    assert [each.subject.uuid for each in world.state.findings.values()] == ["GPU-1"]
    assert world.ended() == [("xid 64", "another GPU is in its place")]
    assert sorted(world.state.gpus) == ["GPU-1", "GPU-new"]


def test_a_gpu_that_has_moved_keeps_what_was_found_of_it(world: HealthWorld) -> None:
    world.xid(64)
    world.round()
    world.boot()
    world.gpus = [gpu(0, uuid="GPU-1", serial="1651"), gpu(1, uuid="GPU-0", serial="1650")]
    world.round(2)
    assert [(each.subject.uuid, each.subject.address) for each in world.state.findings.values()] == [
        ("GPU-0", "0000:3b:00.0")]
    assert world.state.gpus["GPU-0"].address == "0000:5e:00.0"


def test_a_gpu_that_may_be_the_one_that_does_not_answer_elsewhere_is_not_forgotten(world: HealthWorld) -> None:
    world.xid(64)
    world.round()
    world.boot()
    world.gpus = [gpu(0, uuid="GPU-new", serial="1777"), gpu(1, uuid="", serial="", error="x", error_code=999)]
    world.round(5)
    assert "xid 64" in world.codes and "GPU-0" in world.state.gpus
    world.gpus[1] = gpu(1)
    world.round()
    assert world.ended()[-1] == ("xid 64", "another GPU is in its place")


@pytest.mark.parametrize("lines", [1, 2, 50])
def test_lines_of_one_moment_are_one_occurrence(world: HealthWorld, lines: int) -> None:
    for _each in range(lines):
        world.xid(61)
    world.round()
    assert world.found() == [("xid 61", "warning", "")] and world.finding("xid 61").count == lines


def test_what_came_a_month_ago_counts_still_and_what_was_released_does_not(world: HealthWorld) -> None:
    world.xid(61)
    world.round()
    world.clock += 30 * DAY
    world.round()
    assert world.ended() == [("xid 61", "not seen again")]
    world.xid(61)
    world.round()
    assert world.found() == [("xid 61", "sick", "out")]
    world.state = release(world.state, "gpu GPU-0", "me", world.clock)
    world.clock += 3600
    world.xid(61)
    world.round()
    assert world.found() == [("xid 61", "warning", "")]


@pytest.mark.parametrize("number", WARNINGS)
def test_a_warning_ends_after_a_day_in_which_it_could_have_been_heard(world: HealthWorld, number: int) -> None:
    world.xid(number)
    world.round()
    assert world.found() == [("xid %d" % number, "warning", "")] and world.state.verdict == "warning"
    world.clock += DAY - 2 * ROUND
    world.round()
    assert world.codes
    kept, world.records = world.records, None
    world.clock += 10 * DAY
    world.round()
    assert world.codes, "nobody has listened"
    world.records = kept
    world.round()
    world.clock += DAY
    world.round()
    assert world.ended() == [("xid %d" % number, "not seen again")]


def test_a_gpu_whose_place_another_one_has_moved_to_is_not_replaced(world: HealthWorld) -> None:
    """Without a board that is dead, buses may have other numbers, and the next GPU the address of the dead one."""
    world.xid(64)
    world.round()
    world.boot()
    world.gpus = [gpu(1, pci_address=PLACES[0])]
    world.bus = {PLACES[0]: True}
    world.round(2)
    world.boot()
    world.compute()
    world.round(3)
    assert world.codes == ["missing", "xid 64"] and world.ended() == []
    world.xid(119)
    world.round()
    assert "gpu GPU-1: xid 119" in world.state.findings, "it is the one that is there now"
    world.gpus = [gpu(0, pci_address=PLACES[1]), *world.gpus]
    world.bus = dict.fromkeys(PLACES, True)
    world.boot()
    world.compute()
    world.round()
    assert world.codes == ["xid 64"]


@pytest.mark.parametrize("moved", [50 * 365 * DAY, 2 * DAY, -2 * DAY])
def test_a_clock_that_is_set_ends_no_warning_and_makes_no_second_time(world: HealthWorld, moved: int) -> None:
    """As after a boot with a clock that nobody has set yet."""
    world.boot()
    world.xid(92)
    world.xid(61)
    world.round()
    world.clock += moved
    world.booted += moved
    world.xid(61)
    world.round()
    assert [each[:2] for each in world.found()] == [("xid 61", "warning"), ("xid 92", "warning")]
    assert world.state.findings["gpu GPU-0: xid 61"].times == 1
    world.clock += DAY
    assert world.round().verdict == "well"


def test_a_warning_may_have_come_again_between_the_last_look_and_the_boot(world: HealthWorld) -> None:
    world.xid(92)
    world.round()
    world.clock += 10 * DAY
    world.boot()
    world.round()
    assert world.codes == ["xid 92"]
    world.clock += DAY
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("number", APPLICATIONS)
def test_an_application_takes_no_node_out_and_is_counted(world: HealthWorld, number: int) -> None:
    for _each in range(100):
        world.xid(number, text="pid=7, name=train, Fault")
    world.round()
    assert world.found() == [] and world.state.verdict == "well"
    assert world.state.counts == {"gpu GPU-0": {"xid %d" % number: 100}}


@pytest.mark.parametrize("number", [13, 31])
def test_processes_with_errors_on_one_gpu_ask_for_a_long_check_and_nothing_else(
    world: HealthWorld, number: int
) -> None:
    world.xid(number, text="pid=7, name=train, Fault")
    world.xid(number, 1, text="pid=8, name=train, Fault")
    world.round()
    assert world.found() == []
    world.xid(number, text="pid=9, name=infer, Fault")
    world.round()
    assert world.found() == [("suspicion", "warning", "")]
    found = world.finding("suspicion")
    assert (found.check, found.subject.uuid) == ("long", "GPU-0")
    assert "train" in found.detail and "train" not in found.text
    world.compute(level="standard")
    world.round()
    assert world.codes == ["suspicion"]
    world.compute(level="long")
    world.round()
    assert world.ended() == [("suspicion", "a compute check that passed (long)")]
    world.xid(number, text="pid=10, name=infer, Fault")
    world.round()
    assert world.found() == [], "the check has answered for what was before it"


def test_errors_of_processes_a_day_apart_make_nothing_suspect(world: HealthWorld) -> None:
    for process in range(5):
        world.xid(31, text="pid=%d, name=train, Fault" % process)
        world.round()
        world.clock += DAY
    assert world.found() == []


def test_a_flood_of_lines_is_one_finding_with_their_number(world: HealthWorld) -> None:
    for _each in range(4):
        for _line in range(25_000):
            world.xid(95, text="pid=7, name=a, Uncontained")
        world.round()
        world.records = []
    assert [(each.code, each.count, each.times) for each in world.state.findings.values()] == [("xid 95", 100_000, 1)]
    assert len(world.state.to_dict()["findings"]) == 1


def test_an_old_line_that_is_read_again_is_nothing_new(world: HealthWorld) -> None:
    world.xid(79)
    world.round(10)
    assert world.finding("xid 79").count == 1
    last = world.finding("xid 79").last
    world.round(10)
    assert world.finding("xid 79").last == last
    world.mend("reboot")
    world.compute()
    world.round(10)
    assert world.found() == [] and world.state.verdict == "well"


def test_nvlink_5_is_a_warning_unless_its_line_says_fatal(world: HealthWorld) -> None:
    of_old_driver(world)
    line = "NETIR_LINK_EVT  %s  XC0 i0 Link 08 (0x004505c6 0x0)"
    world.xid(149, text=line % "Nonfatal")
    world.round()
    assert world.found() == [("xid 149", "warning", "")]
    world.xid(149, text=line % "Fatal")
    world.xid(149, text=line % "Nonfatal")
    world.round()
    assert world.found() == [("xid 149", "sick", "reset")]
    world.xid(149, text=line % "Nonfatal")
    world.round()
    assert world.found() == [("xid 149", "sick", "reset")], "a slighter one does not lift it"


@pytest.mark.parametrize("number", [48, 109, 149])
@pytest.mark.parametrize("action, kind, remedy", [
    (0, "warning", ""), (1, "sick", "reset"), (2, "sick", "reboot"), (4, "pending", "reset")])
def test_the_drivers_own_word_outranks_the_table(
    world: HealthWorld, number: int, action: int, kind: str, remedy: str
) -> None:
    world.sets(0, recovery_action=action)
    world.xid(number)
    world.round()
    assert ("xid %d" % number, kind, remedy) in world.found()
    assert ("recovery_action" in world.codes) == bool(action)


@pytest.mark.parametrize("action, kind, remedy", [
    (0, "warning", ""), (1, "sick", "reset"), (2, "sick", "reboot"), (4, "pending", "reset"), (None, "sick", "reset")])
def test_the_drivers_own_word_decides_later_on_what_was_heard_while_nobody_asked_it(
    world: HealthWorld, action: Any, kind: str, remedy: str
) -> None:
    world.xid(48)
    world.round(nvml=None)
    assert ("xid 48", "sick", "reset") in world.found()
    world.sets(0, recovery_action=action)
    world.round()
    assert ("xid 48", kind, remedy) in world.found()


def test_the_drivers_own_word_after_a_remedy_is_none_on_what_was_before(world: HealthWorld) -> None:
    world.xid(48)
    world.round(nvml=None)
    world.did("reset", "gpu GPU-0")
    world.round()
    assert world.found() == [("xid 48", "sick", "reset")]
    world.compute()
    world.round()
    assert world.found() == []


def test_what_was_heard_by_somebody_who_asked_is_not_decided_anew(world: HealthWorld) -> None:
    world.sets(0, recovery_action=1)
    world.xid(48)
    world.round()
    world.sets(0, recovery_action=0)
    world.xid(48)
    world.round(nvml=None)
    world.round(2)
    assert world.found() == [("xid 48", "sick", "reset")]


@pytest.mark.parametrize("number", [79, 119, 63, 64])
def test_what_was_said_a_day_before_anybody_listened_is_a_warning_with_a_long_check(number: int) -> None:
    world = HealthWorld()
    world.xid(number)
    world.clock += DAY
    world.round()
    assert world.found() == [("xid %d" % number, "warning", "")]
    world.compute(level="standard")
    world.round()
    assert world.codes == ["xid %d" % number]
    world.compute(level="long")
    world.round()
    assert world.codes == []


def test_what_is_said_again_to_who_listens_is_no_old_thing(world: HealthWorld) -> None:
    world.clock += 3 * DAY
    world.xid(119)
    world.clock += 2 * DAY
    world.round()
    assert world.found() == [("xid 119", "sick", "reset")], "it was watched since the boot"


def test_an_old_line_and_a_new_one_are_a_new_one() -> None:
    world = HealthWorld()
    world.xid(119)
    world.clock += DAY
    world.xid(119)
    world.round()
    assert world.found() == [("xid 119", "sick", "reset")] and not world.finding("xid 119").check


@pytest.mark.parametrize("number", [each[0] for each in SICK_OR_PENDING] + [number for number, _after in OUT])
@pytest.mark.parametrize("capability", ["7.0", "7.5"])
def test_of_a_gpu_before_ampere_a_number_is_told_alone(world: HealthWorld, capability: str, number: int) -> None:
    """NVIDIA's catalog says nothing of what it asks for there."""
    world.sets(0, compute_capability=capability)
    world.round()
    world.xid(number)
    world.round()
    assert world.found() == [("xid %d" % number, "warning", "")]
    assert world.finding("xid %d" % number).check == "long"
    world.compute(level="long")
    world.round()
    assert world.ended() == [("xid %d" % number, "a compute check that passed (long)")]


def test_before_ampere_the_driver_and_a_person_say_what_is_to_be_done() -> None:
    world = HealthWorld(policy_of({"overrides": {"xid": {119: {"kind": "sick", "remedy": "reset"}}}}))
    world.sets(0, compute_capability="7.0")
    world.round()
    world.xid(119)
    world.xid(95)
    world.sets(0, recovery_action=2)
    world.round()
    assert world.found() == [("recovery_action", "sick", "reboot"), ("xid 119", "sick", "reset"), (
        "xid 95", "warning", "")]


@pytest.mark.parametrize("capability", ["8.0", "8.9", "9.0", "10.0", "12.0", ""])
def test_a_number_counts_from_ampere_on_and_of_a_gpu_that_has_not_told_what_it_is(
    world: HealthWorld, capability: str
) -> None:
    world.sets(0, compute_capability=capability)
    world.round()
    world.xid(119)
    world.round()
    assert world.found() == [("xid 119", "sick", "reset")]


def test_a_switch_is_found_by_its_place_and_ends_when_all_gpus_compute(world: HealthWorld) -> None:
    world.log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    world.round()
    assert world.found() == [("sxid 20034", "sick", "board_reset")]
    assert world.finding("sxid 20034").subject.named() == "NVSwitch 0000:05:00.0"
    world.mend("board_reset")
    world.compute("GPU-0")
    world.round()
    assert world.codes == ["sxid 20034"]
    world.compute()
    world.round()
    assert world.codes == []


def test_a_switch_that_says_no_word_is_heard_and_once(world: HealthWorld) -> None:
    head = "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): "
    world.log(head + "26006, SOE HALTED", head + "10004, NVSWITCH Temperature 101C",
              head + "10004, Severity 0 Engine instance 00 Sub-engine instance 00", head + "10004, Data {0x00000001}")
    world.round()
    assert world.found() == [("sxid 10004", "warning", ""), ("sxid 26006", "sick", "reboot")]
    assert world.finding("sxid 10004").count == 1


def test_a_link_that_may_be_stalled_is_a_warning_until_all_gpus_have_computed_for_long(world: HealthWorld) -> None:
    world.log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error")
    world.round()
    assert world.found() == [("sxid 12028", "warning", "")] and world.finding("sxid 12028").check == "long"
    world.compute()
    world.round()
    assert world.codes == ["sxid 12028"]
    world.compute(level="long")
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("number, action, wanted", [
    (94, 0, ("warning", "")), (94, 4, ("pending", "reset")), (94, 1, ("sick", "reset")), (95, 1, ("sick", "reset")),
    (95, 2, ("sick", "reboot")), (95, 4, ("pending", "reset"))])
def test_of_errors_of_memory_the_driver_says_what_they_ask_for(
    world: HealthWorld, number: int, action: int, wanted: Tuple[str, str]
) -> None:
    world.sets(0, recovery_action=action)
    world.xid(number)
    world.round()
    assert {code: (kind, remedy) for code, kind, remedy in world.found()}["xid %d" % number] == wanted


def test_a_gpu_that_nvml_has_never_listed_is_found_by_its_place_and_named_later() -> None:
    world = HealthWorld()
    world.gpus = [gpu(1)]
    world.xid(79)
    world.round()
    assert [each.subject.key for each in world.state.findings.values()] == ["gpu 0000:3b:00.0"]
    world.log("NVRM: GPU at PCI:0000:3b:00: GPU-9da9ea4e-4ac6-5e32-9980-e2fdfb0c79b0")
    world.round()
    assert {each.subject.uuid for each in world.state.findings.values()} == {
        "GPU-9da9ea4e-4ac6-5e32-9980-e2fdfb0c79b0"}


def test_what_a_gpu_had_proved_before_it_had_a_name_ends_nothing() -> None:
    world = HealthWorld()
    world.compute()
    world.xid(119)
    world.round(nvml=NvmlReading(error="Unknown Error (nvmlInit)"))
    world.did("board_reset")
    world.round(3)
    assert world.codes == ["xid 119"] and world.finding("xid 119").subject.uuid == "GPU-0"
    world.compute()
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("action", [None, 0, 1, 4])
def test_policy_says_what_a_number_means_whatever_the_driver_asks_for(action: Any) -> None:
    """That is found beside it."""
    world = HealthWorld(policy_of({"overrides": {"xid": {
        48: {"kind": "sick", "remedy": "out"}, 94: {"kind": "sick", "remedy": "reboot"}}}}))
    world.sets(0, recovery_action=action)
    for number in (48, 94):
        world.xid(number)
    world.round()
    found = {code: (kind, remedy) for code, kind, remedy in world.found()}
    assert (found["xid 48"], found["xid 94"]) == (("sick", "out"), ("sick", "reboot"))
    assert ("recovery_action" in found) == bool(action)


def test_policy_says_what_a_number_means() -> None:
    world = HealthWorld(policy_of({"overrides": {
        "xid": {63: {"kind": "warning"}, "92": {"kind": "sick", "remedy": "reset", "after": 2}},
        "sxid": {20034: {"kind": "event"}}}}))
    world.round()
    world.xid(63)
    world.xid(92)
    world.log("nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up")
    world.round(3)
    assert world.found() == [("xid 63", "warning", ""), ("xid 92", "warning", "")]
    world.xid(92)
    world.round()
    assert world.found() == [("xid 63", "warning", ""), ("xid 92", "sick", "reset")]


# what the driver asks for

ACTIONS = {1: ("sick", "reset"), 2: ("sick", "reboot"), 3: ("pending", "reset"), 4: ("pending", "reset"),
           5: ("sick", "service"), 6: ("sick", "reset"), 7: ("sick", "reboot"), 8: ("sick", "reboot")}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("source", ["nvml", "kernel_log"])
def test_what_a_driver_asks_for_ends_when_it_says_so(world: HealthWorld, action: int, source: str) -> None:
    def says(number: int, before: int) -> None:
        if source == "nvml":
            world.sets(0, recovery_action=number)
        else:
            world.sets(0, recovery_action=None)
            world.xid(154, text="GPU recovery action changed from 0x%x (A) to 0x%x (B)" % (before, number))

    says(action, 0)
    world.round(2)
    assert world.found() == [("recovery_action", *ACTIONS[action])]
    assert world.finding("recovery_action").source == source
    says(0, action)
    world.round()
    assert world.ended() == [("recovery_action", "the driver asks for nothing any more")]


def test_what_nvml_says_later_than_the_log_is_what_counts(world: HealthWorld) -> None:
    world.xid(154, text="GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)")
    world.round()
    assert world.found() == [] and world.ended() == []


@pytest.mark.parametrize("action", ACTIONS)
def test_what_is_a_finding_fails_the_validation_too(action: int) -> None:
    """One table says what each is, and what to do."""
    check = recovery(Evidence(HostFacts(gpus=(Gpu("0000:3b:00.0", "2330"),)), NvmlReading(
        gpus=(gpu(0, recovery_action=action),)), (), "", 0, "", "", (), "", None))
    assert (check.status, check.remedy) == ("failed", asked_for(action).do)
    assert set(RECOVERY_ACTIONS) == set(ACTIONS) - {8}


def test_a_driver_that_takes_its_word_back_ends_nothing_else(world: HealthWorld) -> None:
    world.sets(0, recovery_action=1)
    world.xid(119)
    world.round()
    assert world.codes == ["recovery_action", "xid 119"]
    world.sets(0, recovery_action=0)
    world.round(5)
    assert world.codes == ["xid 119"]


@pytest.mark.parametrize("unknown", [{"recovery_action": None}, {"error": "Unknown Error", "error_code": 999}])
def test_a_driver_that_says_nothing_takes_nothing_back(world: HealthWorld, unknown: Dict[str, Any]) -> None:
    world.sets(0, recovery_action=2)
    world.round()
    world.sets(0, **unknown)
    world.compute()
    world.round(2)
    assert "recovery_action" in world.codes


# what NVML tells

LEVELS: List[Tuple[Dict[str, Any], str, str, str]] = [
    ({"remap_failed": True}, "remap_failed", "sick", "out"),
    ({"sram_exceeded": True}, "sram_exceeded", "sick", "out"),
    ({"remap_pending": True}, "remap_pending", "pending", "reset"),
    ({"error": "GPU is lost", "error_code": LOST}, "lost", "sick", "reboot"),
    ({"error": "GPU requires reset", "error_code": RESET_REQUIRED}, "reset_required", "sick", "reset"),
]


@pytest.mark.parametrize("changes, code, kind, remedy", LEVELS)
def test_what_a_gpu_tells_of_itself_is_found_at_once(
    world: HealthWorld, changes: Dict[str, Any], code: str, kind: str, remedy: str
) -> None:
    world.sets(0, **changes)
    world.round(3)
    assert world.found() == [(code, kind, remedy)] and world.finding(code).count == 1
    world.gpus[0] = gpu(0)
    world.compute()
    world.round(3)
    assert world.codes == [code], "that it says so no more ends nothing"
    world.mend(remedy)
    world.compute()
    world.round()
    assert world.codes == ([code] if remedy == "out" else [])


def test_what_still_is_so_after_its_remedy_was_not_mended(world: HealthWorld) -> None:
    world.sets(0, remap_pending=True)
    world.round()
    world.mend("reset")
    world.compute()
    world.round()
    assert world.codes == ["remap_pending"] and world.finding("remap_pending").mended == ""
    world.sets(0, remap_pending=False)
    world.compute()
    world.round()
    assert world.codes == ["remap_pending"]


def test_uncorrected_errors_that_were_contained_are_no_finding(world: HealthWorld) -> None:
    world.sets(0, ecc_uncorrected=7)
    world.round()
    assert world.found() == []


def test_what_a_person_has_released_stays_so_until_it_has_been_otherwise(world: HealthWorld) -> None:
    world.sets(0, remap_failed=True)
    world.round()
    world.state = release(world.state, "gpu GPU-0: remap_failed", "me: it may go on", world.clock)
    world.round(5)
    assert world.codes == []
    world.sets(0, remap_failed=None)
    world.round()
    world.sets(0, remap_failed=True)
    world.round()
    assert world.codes == [], "unknown is not otherwise"
    world.sets(0, remap_failed=False)
    world.round()
    world.sets(0, remap_failed=True)
    world.round()
    assert world.codes == ["remap_failed"]


def test_what_was_released_stays_so_however_much_has_ended_since(world: HealthWorld) -> None:
    world.sets(0, remap_failed=True)
    world.round()
    world.state = release(world.state, "gpu GPU-0: remap_failed", "me: it may go on", world.clock)
    for _each in range(201):
        world.xid(92, 1)
        world.round()
        world.state = release(world.state, "gpu GPU-1", "me", world.clock)
    assert "remap_failed" not in [code for code, _why in world.ended()] and world.codes == []


FAILS: List[Tuple[str, Callable[[HealthWorld], None], Callable[[HealthWorld], None], str, str]] = [
    ("no_nvml", lambda world: world.trouble.update(error="Unknown Error (nvmlInit)"),
     lambda world: world.trouble.clear(), "sick", "reload"),
    ("no_answer", lambda world: world.sets(0, error="Unknown Error", error_code=999),
     lambda world: world.gpus.__setitem__(0, gpu(0)), "sick", "reset"),
    ("no_answer", lambda world: world.gpus.pop(0), lambda world: world.gpus.insert(0, gpu(0)), "sick", "reset"),
    ("missing", lambda world: (world.gpus.pop(0), world.bus.pop("0000:3b:00.0")) and None,
     lambda world: (world.gpus.insert(0, gpu(0)), world.bus.update({"0000:3b:00.0": True})) and None, "sick",
     "reboot"),
    ("nvlink", lambda world: world.sets(0, links_up=(0,), links_down=(1,)),
     lambda world: world.sets(0, links_up=(0, 1), links_down=()), "sick", "board_reset"),
]


@pytest.mark.parametrize("code, begin, end, kind, remedy", FAILS)
def test_a_look_that_fails_is_a_finding_the_third_time(
    world: HealthWorld, code: str, begin: Callable[[HealthWorld], None], end: Callable[[HealthWorld], None], kind: str,
    remedy: str
) -> None:
    begin(world)
    world.round(2)
    assert world.found() == []
    end(world)
    world.round()
    begin(world)
    world.round(2)
    assert world.found() == [], "it has answered between them"
    world.round()
    assert world.found() == [(code, kind, remedy)]
    end(world)
    world.round(3)
    assert world.codes == [code]
    world.mend(remedy)
    world.compute()
    world.round()
    assert world.codes == []


def test_looks_that_failed_before_a_boot_are_not_those_after_it(world: HealthWorld) -> None:
    world.trouble = {"error": "Unknown Error (nvmlInit)"}
    world.round(2)
    world.boot()
    world.round(2)
    assert world.found() == []
    world.round()
    assert world.codes == ["no_nvml"]


def test_a_lost_gpu_whose_place_nvml_does_not_tell_is_the_one_that_is_missing(world: HealthWorld) -> None:
    world.sets(0, uuid="", serial="", pci_address="", error="GPU is lost", error_code=LOST)
    world.round()
    assert world.found() == [("lost", "sick", "reboot")]
    assert world.finding("lost").subject.uuid == "GPU-0"


def test_several_nameless_gpus_that_differ_are_told_apart_by_nobody(world: HealthWorld) -> None:
    for index, code in ((0, LOST), (1, 999)):
        world.sets(index, uuid="", pci_address="", error="x", error_code=code)
    world.round(2)
    assert world.found() == []
    world.round()
    assert world.found() == [("no_answer", "sick", "reset")] * 2


def test_a_call_that_hangs_is_a_finding_at_once_and_no_gpus_failure_beside_it(world: HealthWorld) -> None:
    world.trouble = {"error": "nvmlInit had not answered after 60 s", "hung": "nvmlInit"}
    world.round(5)
    assert world.found() == [("hang", "sick", "reboot")]
    world.trouble = {}
    world.compute()
    world.round()
    world.mend("reload")
    world.compute()
    world.round()
    assert world.codes == ["hang"]
    world.mend("reboot")
    world.compute()
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("error", ["libnvidia-ml.so.1 is not installed", "no driver is loaded",
                                   "no process can be started to call NVML: Cannot allocate memory"])
def test_what_was_not_asked_is_unknown_and_no_failure(world: HealthWorld, error: str) -> None:
    world.trouble = {"error": error}
    world.round(10)
    assert world.found() == [] and world.state.verdict == "unknown"
    assert world.state.unknown["nvml"].text == error
    world.trouble = {}
    world.round()
    assert world.state.verdict == "well"


def test_a_gpu_that_was_passed_through_is_not_missing(world: HealthWorld) -> None:
    world.gpus.pop(0)
    world.bus["0000:3b:00.0"] = False
    world.round(5)
    assert world.found() == []


def test_a_gpu_that_the_driver_was_told_to_leave_out_is_not_missing(world: HealthWorld) -> None:
    world.boot()
    world.gpus.pop(0)
    world.bus["0000:3b:00.0"] = False
    world.round(5)
    assert world.found() == []


def test_a_gpu_at_an_address_that_nobody_has_named_yet_is_not_missing(world: HealthWorld) -> None:
    """Another card has come, and all addresses behind it are others."""
    world.boot()
    world.bus = {"0000:3c:00.0": True, "0000:5f:00.0": True}
    world.gpus = [gpu(index, uuid="", pci_address=place, error="Unknown Error", error_code=999)
                  for index, place in enumerate(world.bus)]
    world.round(5)
    assert world.codes == ["no_answer", "no_answer"]
    world.gpus = [gpu(0, pci_address="0000:3c:00.0")]
    world.bus = {"0000:3c:00.0": True}
    world.round(3)
    assert "missing" in world.codes and world.finding("missing").subject.uuid == "GPU-1"


def test_a_copy_of_a_disk_in_another_machine_knows_nothing_of_it() -> None:
    world = HealthWorld()
    world.xid(119)
    world.round(machine="a")
    assert world.round(machine="").verdict == "sick", "who cannot tell is no other"
    world.boot()
    world.gpus = [gpu(0, uuid="GPU-8"), gpu(1, uuid="GPU-9")]
    state = world.round(3, machine="b")
    assert state.verdict == "well" and sorted(state.gpus) == ["GPU-8", "GPU-9"] and state.machine == "b"


def test_a_gpu_that_was_taken_out_is_forgotten_by_a_person(world: HealthWorld) -> None:
    world.gpus.pop(0)
    world.bus.pop("0000:3b:00.0")
    world.round(3)
    assert world.codes == ["missing"]
    world.state = release(world.state, "gpu GPU-0", "me: sold", world.clock)
    world.round(5)
    assert world.codes == [] and list(world.state.gpus) == ["GPU-1"]


# the fabric

def test_gpus_that_wait_for_their_fabric_are_a_finding_after_their_time(world: HealthWorld) -> None:
    world.fabric = True
    world.sets(0, fabric_state="in_progress")
    for _each in range(300 // ROUND):
        world.round()
        assert world.found() == []
    world.round()
    assert world.found() == [("registration", "sick", "service")]


def test_a_fabric_manager_that_is_dead_is_a_finding_and_ends_by_its_start_and_a_check(world: HealthWorld) -> None:
    unit = "nvidia-fabricmanager.service"
    world.fabric = True
    world.services[unit] = Service("active", "1")
    world.round()
    world.services[unit] = Service("failed", "1")
    world.sets(0, fabric_state="completed", fabric_status=0)
    world.round(20)
    assert world.found() == [(unit, "sick", "service")]
    world.compute()
    world.services[unit] = Service("active", "2")
    world.round(2)
    assert world.codes == [unit]
    world.compute()
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("health, remedy", [
    ({"route_unhealthy": "true"}, "board_reset"), ({"access_timeout_recovery": "true"}, "reset"),
    ({"incorrect_configuration": "no_partition"}, "")])
def test_what_a_fabric_complains_of_is_a_finding_with_its_own_remedy(
    world: HealthWorld, health: Dict[str, str], remedy: str
) -> None:
    world.sets(0, fabric_state="completed", fabric_health=health)
    world.round(300 // ROUND)
    assert world.found() == [], "a fabric may heal itself in that time"
    world.round()
    assert world.found() == [("fabric_health", "sick", remedy)]
    world.sets(0, fabric_health={})
    world.mend(remedy)
    world.compute()
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("changes", [
    {"fabric_health": {"degraded_bandwidth": "true"}, "fabric_summary": "limited_capacity"},
    {"fabric_summary": "limited_capacity"}])
def test_less_bandwidth_of_a_fabric_is_told_and_takes_no_node_out(world: HealthWorld, changes: Dict[str, Any]) -> None:
    world.sets(0, fabric_state="completed", **changes)
    world.round(300 // ROUND + 1)
    assert world.found() == [("fabric_degraded", "warning", "")]
    world.sets(0, fabric_health={"route_unhealthy": "true"}, fabric_summary="unhealthy")
    world.round(300 // ROUND + 1)
    world.sets(0, **{"fabric_health": {}, **changes})
    world.round()
    assert ("fabric_health", "sick", "board_reset") in world.found(), "it ends by its remedy, and not by less of it"


def test_a_board_without_a_fabric_has_no_links_that_are_down(world: HealthWorld) -> None:
    world.sets(0, fabric_state="not_supported")
    world.round(20)
    assert world.found() == []


# NVLinks

DOWN: Dict[str, Any] = {"links_up": (0,), "links_down": (1,)}


def test_a_link_that_never_was_up_is_no_finding() -> None:
    """It leads nowhere, or the board's wiring has it switched off."""
    world = HealthWorld()
    world.sets(0, **DOWN)
    world.round(5)
    assert world.found() == []


@pytest.mark.parametrize("changes", [
    {"mig": parts("MIG-a")}, {"mig": parts()}, {"mig_error": "Insufficient Permissions"},
    {"fabric_state": "in_progress"}, {"fabric_state": "completed", "fabric_status": 3},
])
@pytest.mark.parametrize("fabric", [False, True])
def test_links_are_not_asked_of_a_gpu_that_may_have_them_off(
    world: HealthWorld, fabric: bool, changes: Dict[str, Any]
) -> None:
    world.fabric = fabric
    world.sets(0, **DOWN, **changes)
    world.round(5)
    assert world.found() == []


def test_a_link_that_nvml_does_not_tell_of_is_neither_down_nor_up(world: HealthWorld) -> None:
    world.sets(0, links_up=(0,))
    world.round(5)
    assert world.found() == []
    world.sets(0, **DOWN)
    world.round(2)
    world.sets(0, links_up=(0,), links_down=())
    world.round(2)
    assert world.found() == []
    world.sets(0, **DOWN)
    world.round()
    assert world.codes == ["nvlink"], "what was not told has begun nothing and ended nothing"


@pytest.mark.parametrize("other", [
    lambda world: world.sets(1, mig=parts("MIG-a")),
    lambda world: (world.gpus.pop(1), world.bus.update({PLACES[1]: False})) and None,
], ids=["divided", "in a virtual machine"])
@pytest.mark.parametrize("fabric, wanted", [(False, []), (True, ["nvlink"])])
def test_a_gpu_takes_links_of_another_down_only_where_no_switch_is_between_them(
    world: HealthWorld, fabric: bool, wanted: List[str], other: Callable[[HealthWorld], None]
) -> None:
    world.fabric = fabric
    other(world)
    world.sets(0, **DOWN)
    world.round(3)
    assert world.codes == wanted


@pytest.mark.parametrize("again", [HealthWorld.boot, HealthWorld.load])
@pytest.mark.parametrize("is_asked", [True, False])
def test_another_boot_or_load_may_come_with_fewer_links(
    world: HealthWorld, again: Callable[[HealthWorld], None], is_asked: bool
) -> None:
    again(world)
    if not is_asked:
        world.round(nvml=None)
    world.sets(0, **DOWN)
    world.round(5)
    assert world.found() == []


@pytest.mark.parametrize("again", [HealthWorld.boot, HealthWorld.load])
def test_a_link_that_is_down_after_a_boot_or_a_load_still_was_not_mended_by_it(
    world: HealthWorld, again: Callable[[HealthWorld], None]
) -> None:
    world.sets(0, **DOWN)
    world.round(3)
    again(world)
    world.compute()
    world.round(2)
    world.compute()
    world.round(2)
    assert world.found() == [("nvlink", "sick", "board_reset")]


def test_a_state_that_knows_of_no_links_is_one_in_which_none_has_been_up(world: HealthWorld) -> None:
    """As an earlier release has left it."""
    kept = world.state.to_dict()
    for known in kept["gpus"].values():
        del known["links"]
    world.state = State.from_dict(kept)
    world.sets(0, **DOWN)
    world.round(4)
    assert world.found() == []


def test_looks_without_nvml_do_not_count_for_a_link(world: HealthWorld) -> None:
    world.sets(0, **DOWN)
    world.round(2)
    world.round(9, nvml=None)
    assert world.found() == []
    world.round()
    assert world.codes == ["nvlink"]
    assert world.finding("nvlink").text == "NVLinks that have been up are down: 1"


# clocks

@pytest.mark.parametrize("reasons, text", [
    (0x20, "it is too hot"), (0x40 | 0x8, "it is too hot"), (0x80 | 0x8, "the power supply asks for it"),
    (0x8, "its power or its temperature is too high"), (0xE8, "it is too hot, the power supply asks for it"),
    (0x1FF, "it is too hot, the power supply asks for it")])
def test_a_gpu_that_is_slowed_down_for_long_is_told_and_stays_in(world: HealthWorld, reasons: int, text: str) -> None:
    world.sets(0, clock_reasons=reasons)
    world.round(2)
    world.sets(0, clock_reasons=0)
    world.round()
    world.sets(0, clock_reasons=reasons)
    world.round(2)
    assert world.found() == [], "a change of clocks is told as a slowdown too, for a moment"
    world.round()
    assert world.found() == [("slowdown", "warning", "")] and world.state.verdict == "warning"
    assert world.finding("slowdown").text == "the GPU is slowed down: %s" % text
    world.sets(0, clock_reasons=None)
    world.clock += DAY
    world.round()
    assert world.ended() == [("slowdown", "not seen again")]


@pytest.mark.parametrize("reasons", [0, 1, 2, 4, 0x10, 0x100, 0x117, None])
def test_clocks_that_are_low_for_idleness_or_as_somebody_has_set_them_are_no_finding(
    world: HealthWorld, reasons: Any
) -> None:
    world.sets(0, clock_reasons=reasons)
    world.round(5)
    assert world.found() == []


# computing

def test_a_check_that_failed_is_a_finding_until_a_reset_and_a_check_that_passes(world: HealthWorld) -> None:
    world.fail("GPU-0")
    world.round()
    assert world.found() == [("compute", "sick", "reset")]
    world.compute()
    world.round()
    assert world.codes == ["compute"], "it computed wrongly once, and nothing was done about it"
    world.fail("GPU-0")
    world.round()
    world.mend("reset")
    world.round(3)
    assert world.codes == ["compute"] and world.finding("compute").mended == "reset"
    world.compute()
    world.round()
    assert world.codes == []


def test_a_check_that_fails_after_a_reset_needs_another_one(world: HealthWorld) -> None:
    world.fail("GPU-0")
    world.round()
    world.mend("reset")
    world.fail("GPU-0")
    world.round()
    world.compute()
    world.round()
    assert world.codes == ["compute"]


def test_a_check_that_hangs_is_a_finding_of_its_gpu(world: HealthWorld) -> None:
    world.left = {"GPU-0": [4711, "99"]}
    world.round()
    assert world.found() == [("compute_hang", "sick", "reboot")]
    assert world.finding("compute_hang").subject.uuid == "GPU-0"


def test_a_divided_gpu_is_proved_by_all_its_devices(world: HealthWorld) -> None:
    world.sets(0, mig=parts("MIG-a", "MIG-b"))
    world.xid(119)
    world.fail("MIG-b")
    world.round()
    assert world.found() == [("compute", "sick", "reset"), ("xid 119", "sick", "reset")]
    world.mend("reset")
    world.compute("MIG-a", "GPU-0")
    world.round()
    assert world.codes == ["compute", "xid 119"]
    world.mend("reset")
    world.compute("MIG-a", "MIG-b")
    world.round()
    assert world.codes == []


def test_a_divided_gpu_without_a_device_proves_nothing(world: HealthWorld) -> None:
    world.sets(0, mig=parts())
    world.xid(119)
    world.round()
    world.mend("reset")
    world.compute()
    world.round()
    assert world.codes == ["xid 119"]


# remedies

@pytest.mark.parametrize("done", LADDER[1:])
@pytest.mark.parametrize("number, remedy", [(119, "reset"), (74, "board_reset"), (79, "reboot")])
def test_a_remedy_is_done_by_its_own_rung_or_a_higher_one(
    world: HealthWorld, done: str, number: int, remedy: str
) -> None:
    world.xid(number)
    world.round()
    world.did(done, "gpu GPU-0")
    world.compute()
    world.round()
    assert (world.codes == []) == (LADDER.index(done) >= LADDER.index(remedy)) == satisfies(done, remedy)


def test_a_reset_of_ours_is_a_remedy_whatever_it_was_for(world: HealthWorld) -> None:
    of_old_driver(world)
    world.xid(119)
    world.round()
    world.reset("GPU-1")
    world.compute()
    world.round()
    assert world.codes == ["xid 119"], "it was another GPU's"
    world.reset("GPU-0")
    world.round()
    assert world.codes == ["xid 119"]
    world.compute()
    world.round()
    assert world.ended() == [("xid 119", "a reset by mig: another mode, and a compute check that passed")]
    world.xid(119)
    world.round(2)
    assert world.codes == ["xid 119"], "it is counted once"


@pytest.mark.parametrize("uuids, is_mended", [(("GPU-0", "GPU-1"), True), (("GPU-0",), False)])
def test_a_reset_of_all_gpus_is_one_of_their_board(
    world: HealthWorld, uuids: Tuple[str, ...], is_mended: bool
) -> None:
    of_old_driver(world)
    world.xid(74)
    world.round()
    world.reset(*uuids)
    world.compute()
    world.round()
    assert (world.codes == []) == is_mended


def test_an_error_that_is_heard_with_a_reset_needs_another(world: HealthWorld) -> None:
    """It may have come before or after it."""
    of_old_driver(world)
    world.xid(119)
    world.reset("GPU-0")
    world.compute()
    world.round(2)
    assert world.codes == ["xid 119"]


def test_a_reset_of_another_gpu_mends_nothing(world: HealthWorld) -> None:
    world.xid(119)
    world.round()
    world.did("reset", "gpu GPU-1")
    world.compute()
    world.round()
    assert world.codes == ["xid 119"]


def test_an_error_after_the_remedy_needs_another_one(world: HealthWorld) -> None:
    world.xid(119)
    world.round()
    world.mend("reset")
    world.xid(119)
    world.round()
    world.compute()
    world.round(3)
    assert world.codes == ["xid 119"]
    assert world.finding("xid 119").mended == ""


@pytest.mark.parametrize("looks", [0, 1])
def test_what_is_seen_since_the_boot_was_not_mended_by_the_power_cycle_that_is_told_after_it(
    world: HealthWorld, looks: int
) -> None:
    world.policy = policy_of({"overrides": {"xid": {79: {"remedy": "power_cycle"}}}})
    world.xid(79)
    world.round()
    world.boot()
    world.xid(46, index=1)
    world.round(looks)
    act = Act("power_cycle", "", world.clock, "boot 1", "power cycle")
    world.round(acts=(act,))
    world.compute()
    world.round()
    assert world.codes == ["xid 46"]


def test_an_error_that_was_written_before_the_remedy_ended_is_of_before_it(world: HealthWorld) -> None:
    world.xid(119)
    world.did("reset", "gpu GPU-0")
    assert world.finding("xid 119").mended == "reset"
    world.compute()
    world.round()
    assert world.codes == []


def test_a_check_that_passed_before_the_remedy_was_written_down_proves_nothing(world: HealthWorld) -> None:
    world.xid(119)
    world.round()
    world.compute()
    world.mend("reset")
    world.round(5)
    assert world.codes == ["xid 119"]


def test_what_has_computed_since_the_boot_when_it_is_first_looked_at_counts(world: HealthWorld) -> None:
    world.compute()
    world.xid(79)
    world.round()
    world.boot()
    world.compute()
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("days", [-20, 0, 20])
def test_another_boot_is_another_time_whatever_its_clock_says(world: HealthWorld, days: int) -> None:
    world.xid(61)
    world.round()
    world.clock += days * DAY
    world.boot()
    world.xid(61)
    world.round()
    assert world.found() == [("xid 61", "sick", "out")]


def test_a_boot_that_brings_the_same_error_has_mended_nothing(world: HealthWorld) -> None:
    world.xid(79)
    world.round()
    world.boot()
    world.xid(79)
    world.compute()
    world.round(3)
    assert world.codes == ["xid 79"] and world.finding("xid 79").count == 2


def test_a_clock_that_jumps_ends_nothing_early_and_keeps_nothing_for_ever(world: HealthWorld) -> None:
    world.xid(119)
    world.xid(92)
    world.round()
    booted = world.clock - world.booted
    world.clock -= 20 * DAY
    world.booted = world.clock - booted
    world.round()
    assert world.codes == ["xid 119", "xid 92"]
    world.mend("reset")
    world.compute()
    world.round()
    assert world.codes == ["xid 92"]
    world.clock += DAY
    world.round()
    assert world.codes == []


# what cannot be read

def test_a_log_that_was_overwritten_is_told_until_the_next_boot(world: HealthWorld) -> None:
    world.sequence += 500
    world.log("something")
    world.round(3)
    assert "500 records" in world.state.unknown["kernel_log_gap"].text
    assert world.state.verdict == "well"
    world.boot()
    world.round()
    assert world.state.unknown == {}


def test_an_error_may_have_come_again_where_nobody_could_read(world: HealthWorld) -> None:
    world.xid(119)
    world.round()
    world.mend("reset")
    world.sequence += 500
    world.log("something")
    world.compute()
    world.round(2)
    assert world.codes == ["xid 119"]
    world.compute()
    world.round()
    assert world.codes == []


@pytest.mark.parametrize("unread", [
    {"records": None}, {"nvml": NvmlReading(error="Unknown Error (nvmlInit)")}, {"compute": None}, {"nvml": None},
    {"nvml": NvmlReading(error="no driver is loaded")}])
def test_what_could_not_be_read_clears_nothing(world: HealthWorld, unread: Dict[str, Any]) -> None:
    world.xid(119)
    world.round()
    world.mend("reset")
    world.compute()
    world.round(2, **unread)
    assert "xid 119" in world.codes
    world.compute()
    world.round()
    assert "xid 119" not in world.codes


@pytest.mark.parametrize("unread", ["error", "remedy"])
def test_a_check_that_nobody_could_read_then_proves_nothing_later(world: HealthWorld, unread: str) -> None:
    if unread == "error":
        world.compute()
    world.xid(119)
    world.round(**({"compute": None} if unread == "error" else {}))
    if unread == "remedy":
        world.compute()
    world.mend("reset")
    if unread == "remedy":
        world.did("reset", compute=None)
    world.round(3)
    assert world.codes == ["xid 119"]
    world.compute()
    world.round()
    assert world.codes == []


def test_what_nobody_has_asked_for_long_is_not_well(world: HealthWorld) -> None:
    rounds = world.policy.stale_seconds // ROUND
    assert world.round(rounds - 1, nvml=None).verdict == "well"
    assert world.round(2, nvml=None).verdict == "unknown"
    assert world.round().verdict == "well"
    world.boot()
    assert world.round(nvml=None).verdict == "unknown", "who answered before the boot was another driver"
    assert world.round().verdict == "well"


def test_nvml_that_goes_on_answering_when_its_time_is_over_is_unknown(world: HealthWorld) -> None:
    slow = nvml._understood([{"driver_version": "595", "call": "nvmlDeviceGetName of GPU 3"}], 2.0, 60.0, 0)
    assert slow.is_cut_short and not slow.hung and "nvmlDeviceGetName of GPU 3" in slow.error
    state = world.round(5, nvml=slow)
    assert world.found() == [] and state.verdict == "unknown"
    assert nvml._understood([], 2.0, 60.0, left=7).hung, "one that cannot be ended hangs"


def test_nothing_is_well_before_it_was_looked_at() -> None:
    world = HealthWorld()
    assert world.state.verdict == "unknown"
    world.did("reset")
    assert world.state.verdict == "unknown"
    world.round()
    assert world.state.verdict == "well"


def test_a_look_of_no_boot_changes_nothing(world: HealthWorld) -> None:
    world.xid(79)
    assert assess(world.state, world.look(boot=""), world.policy, world.clock) == world.state


def test_a_host_without_gpus_is_well() -> None:
    world = HealthWorld()
    world.gpus, world.bus = [], {}
    world.round(5)
    assert world.state.verdict == "well" and world.state.unknown == {}


def test_what_is_kept_does_not_grow_for_ever() -> None:
    world = HealthWorld(HealthPolicy(warning_seconds=1))
    for number in range(1000, 2000):
        world.xid(number)
        world.round()
    for number in range(3000, 4000):
        world.xid(number)
    world.round()
    world.did("reset")
    state = world.state
    assert len(state.findings) <= 500 and len(state.history) <= 200
    assert sum(map(len, state.counts.values())) <= 500


def test_a_device_that_is_there_no_more_is_no_finding(world: HealthWorld) -> None:
    """It passes never: a MIG device of a layout before, a GPU that was divided since it failed."""
    world.fail("MIG-of-another-layout")
    assert world.round().findings == {}
    world.fail("GPU-0")
    assert [finding.code for finding in world.round().findings.values()] == ["compute"]
    world.mend("reset")
    world.sets(0, mig=parts("MIG-a"))
    world.compute("MIG-a")
    world.failed["GPU-0"] = "computes wrongly: prove at multiprocessor 3"
    world.round(3)
    assert world.state.findings == {}
