# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who is reset together, what is in the way, and what the act leaves: on simulated GPUs, by their own
nvidia-smi."""
from __future__ import annotations

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List

import pytest
from reset_host import DCGM, PARTS, PERSISTENCED, ResetHost, every_part

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, CommandTimedOut, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import reset, resets
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boards import ecc_is_always_on
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import NvmlReading
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.reset_plan import (
    Resettable,
    joined,
    missing_in,
    refusals,
    switched,
    together,
)
from gpulab import silicon

TURING, AMPERE, HOPPER = 6, 7, 9
BOTH = Resettable("GPU-a", "0000:07:00.0", architecture=AMPERE, joined=("GPU-a", "GPU-b"), needs_fabric=True)


# who is reset together


@pytest.mark.parametrize("architecture, with_fabric, group", [
    (TURING, True, ("GPU-a", "GPU-b")), (TURING, False, ("GPU-a", "GPU-b")),
    (AMPERE, True, ("GPU-a",)), (AMPERE, False, ("GPU-a", "GPU-b")), (HOPPER, False, ("GPU-a",)),
])
def test_from_ampere_on_a_gpu_is_reset_alone_where_the_fabric_manager_runs_and_from_hopper_on_anyway(
    architecture: int, with_fabric: bool, group: Any
) -> None:
    assert together(replace(BOTH, architecture=architecture), with_fabric) == group
    assert together(replace(BOTH, architecture=architecture, joined=()), with_fabric) == ("GPU-a",), "without NVLink"


def test_nvlink_joins_over_other_gpus_and_over_switches() -> None:
    assert joined({"a": ["b"], "b": ["a", "c"], "c": ["b"], "d": ["e"], "e": ["d"], "f": []}) == {
        "a": ("a", "b", "c"), "b": ("a", "b", "c"), "c": ("a", "b", "c"), "d": ("d", "e"), "e": ("d", "e")}
    assert joined({"a": ["switch 1"], "b": ["switch 1", "switch 2"], "c": ["switch 2"]})["a"] == ("a", "b", "c")


def test_a_gpu_on_bridges_is_reset_alone_from_ampere_on_without_a_fabric_manager() -> None:
    bridged = replace(BOTH, needs_fabric=False)
    assert together(bridged, False) == ("GPU-a",)
    assert together(replace(bridged, architecture=TURING), False) == ("GPU-a", "GPU-b")


def test_an_end_of_a_link_that_is_no_gpu_of_the_bus_is_a_switch() -> None:
    links = {"a": ["b"], "b": ["a"], "c": ["d"], "e": ["switch"], "f": ["e"]}
    assert switched(links, "abcdef") == {"e", "f"}, "d is a GPU that does not answer"


@pytest.mark.parametrize("said, missing", [
    ("The following GPUs could not be reset: GPU 00000000:07:00.0: In use by another client", ()),
    ("GPU 00000000:07:00.0 must be reset with GPU 00000000:0F:00.0, GPU 00000000:0F:00.0", ("0000:0f:00.0",)),
    ("GPU 00000000:99:00.0 is of another host", ()),
    ("nothing", ()),
])
def test_gpus_that_nvidia_smi_names_beside_those_that_it_was_asked_for_are_missing(said: str, missing: Any) -> None:
    assert missing_in(said, ["0000:07:00.0"], ["0000:07:00.0", "0000:0f:00.0"]) == missing


@pytest.mark.parametrize("gpu, code", [
    (replace(BOTH, guest="580.1"), "reset.not_supported"),
    (replace(BOTH, supported=False), "reset.not_supported"),
    (replace(BOTH, instances=("9:0",)), "reset.divided"),
    (replace(BOTH, ecc=True, pending=False), "reset.ecc_pending"),
    (replace(BOTH, holders=("pod team/train",)), "reset.in_use"),
])
def test_each_obstacle_has_its_word(gpu: Resettable, code: str) -> None:
    assert [refusal.code for refusal in refusals([gpu], {}, False)] == [code]


def test_what_is_expected_is_no_obstacle() -> None:
    assert refusals([replace(BOTH, instances=("9:0",), returns=True)], {}, False) == ()
    assert refusals([replace(BOTH, ecc=True, pending=False)], {"GPU-a": False}, False) == ()
    assert refusals([replace(BOTH, holders=("pod team/train",))], {}, True) == ()
    peer = replace(BOTH, uuid="GPU-b", address="0000:0f:00.0")
    assert [refusal.code for refusal in refusals([BOTH], {}, False, (BOTH, peer), False)] == ["reset.incomplete"]
    assert refusals([BOTH], {}, False, (BOTH, peer), True) == refusals([BOTH, peer], {}, False, (), False) == ()


def test_ecc_of_hbm_on_ampere_and_later_is_always_on() -> None:
    assert [device for device in ("1db1", "1eb8", "20b2", "20b7", "2236", "2330", "26b9", "2901", "3182", "")
            if ecc_is_always_on(device)] == ["20b2", "20b7", "2330", "2901", "3182"]


# the record


@pytest.fixture
def scratch(tmp_path: Path) -> Host:
    (tmp_path / "var/lib").mkdir(parents=True)
    return Host(str(tmp_path))


@pytest.fixture
def back(monkeypatch: pytest.MonkeyPatch) -> List[Any]:
    """What was brought back, of a host on which nothing is in the way; the command of the reset is the test's."""
    found: List[Any] = []
    monkeypatch.setattr(reset.nvml, "read_nvml", NvmlReading)
    monkeypatch.setattr(reset, "_looked_at", lambda *_words: ({}, (), ()))
    monkeypatch.setattr(reset, "_let_go", lambda *_words: None)
    monkeypatch.setattr(reset, "_brought_back", lambda *words: found.append(words) or ([], []))
    return found


def test_a_reset_is_written_down_before_it_and_its_end_after_it(scratch: Host) -> None:
    assert resets.resets(scratch) == ()
    number = resets.begin(scratch, "repair", "Xid 62", [("GPU-a", "0000:07:00.0")])
    assert [(each.who, each.why, each.gpus, each.end, each.boot) for each in resets.resets(scratch)] == [
        ("repair", "Xid 62", ("GPU-a",), resets.BEGUN, scratch.boot())]
    resets.end(scratch, number, resets.DONE)
    assert [each.end for each in resets.resets(scratch)] == [resets.DONE]
    assert (resets.last_of(resets.resets(scratch), "GPU-a"), resets.last_of(resets.resets(scratch), "GPU-b")) == (1, 0)


def test_a_reset_that_does_not_end_is_left_with_its_note(
    scratch: Host, monkeypatch: pytest.MonkeyPatch, back: List[Any]
) -> None:
    """What came back beside it would be lost once more when it ends."""
    process = subprocess.Popen(["sleep", "60"])

    def hang(*_words: Any, **_options: Any) -> None:
        raise CommandTimedOut("host.command_timed_out", "nvidia-smi", "an end", "wait",
                              hangs=[process.pid, Host().process_started(process.pid)])

    monkeypatch.setattr(Host, "run", hang)
    with pytest.raises(GpuOpsError) as caught:
        reset.reset(scratch, Journal(scratch), reset.Act("repair", "a test", ()))
    assert caught.value.code == "reset.hangs" and back == []
    assert reset.interrupted(scratch, Journal(scratch))
    assert [each.end for each in resets.resets(scratch)] == [resets.BEGUN]
    with pytest.raises(GpuOpsError) as caught:
        reset.finish(scratch, Journal(scratch))
    assert caught.value.code == "reset.hangs" and back == [], "the next run waits for it too"
    process.kill()
    process.wait()
    reset.finish(scratch, Journal(scratch))
    assert len(back) == 1 and not reset.interrupted(scratch, Journal(scratch))


@pytest.mark.usefixtures("back")
def test_that_gpus_are_reset_is_told_before_anybody_comes_back(
    scratch: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: List[Any] = []
    monkeypatch.setattr(reset, "_let_go", lambda *_words: told.append("let go"))
    monkeypatch.setattr(reset, "_brought_back", lambda *_words: told.append("back") or ([], []))
    monkeypatch.setattr(Host, "run", lambda *_words, **_more: CommandResult((), 0, "", ""))
    assert reset.reset(scratch, Journal(scratch), reset.Act("repair", "a test", ()), lambda: told.append("prepared"),
                       lambda: told.append(resets.resets(scratch)[-1].end))
    assert told == ["prepared", "let go", resets.DONE, "back"]


@pytest.mark.parametrize("hangs", [{}, {"hangs": [4711, ""]}])
def test_a_reset_that_could_be_ended_has_failed_and_everything_comes_back(
    scratch: Host, monkeypatch: pytest.MonkeyPatch, back: List[Any], hangs: Dict[str, Any]
) -> None:
    """It was killed, or has ended by itself right after that was given up."""
    def hang(*_words: Any, **_options: Any) -> None:
        raise CommandTimedOut("host.command_timed_out", "nvidia-smi had not ended", "an end", "wait", **hangs)

    monkeypatch.setattr(Host, "run", hang)
    with pytest.raises(GpuOpsError) as caught:
        reset.reset(scratch, Journal(scratch), reset.Act("repair", "a test", ()))
    assert caught.value.code == "reset.failed" and "nvidia-smi had not ended" in caught.value.found
    assert len(back) == 1 and not reset.interrupted(scratch, Journal(scratch))
    assert [each.end for each in resets.resets(scratch)] == [resets.FAILED]


def test_a_note_of_a_process_that_had_ended_by_then_holds_nobody_up(
    scratch: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even by its number, which no process has."""
    monkeypatch.setattr(reset, "_brought_back", lambda *_words: ([], []))
    Journal(scratch).remember(reset.MEMORY, {reset.ACT: {
        "boot": scratch.boot(), "step": "", "gpus": [], "units": [], "values": {}, "layouts": {},
        "hangs": [1 << 30, ""]}})
    reset.finish(scratch, Journal(scratch))
    assert not reset.interrupted(scratch, Journal(scratch))


def test_the_record_is_of_bounded_size_and_goes_on_counting(scratch: Host) -> None:
    for _each in range(resets.KEPT + 5):
        resets.begin(scratch, "repair", "a test", [("GPU-a", "0000:07:00.0")])
    known = resets.resets(scratch)
    assert (len(known), known[-1].number) == (resets.KEPT, resets.KEPT + 5)


@pytest.mark.parametrize("text", ["", "\0\0\0", "[]", "{}", '{"schema": 2, "resets": []}',
                                  '{"schema": 1, "resets": [{}]}', '{"schema": 1, "resets": 3}'])
def test_a_damaged_record_is_never_taken_for_none(scratch: Host, text: str) -> None:
    scratch.make_directory("/var/lib/gpuops", 0o700)
    scratch.write(resets.PATH, text)
    for ask in (lambda: resets.resets(scratch), lambda: resets.begin(scratch, "repair", "", [("GPU-a", "x")])):
        with pytest.raises(GpuOpsError) as caught:
            ask()
        assert caught.value.code == "host.record_of_resets_damaged"


# the act

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
Hosts = Callable[..., ResetHost]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made: List[ResetHost] = []

    def host(profile: str = "t4", gpus: int = 1) -> ResetHost:
        made.append(ResetHost(tmp_path / str(len(made)), profile, gpus))
        return made[-1]

    yield host
    for each in made:
        each.close()


def refused(answer: Dict[str, Any], code: str) -> str:
    assert answer.get("error", {}).get("code") == code, answer
    return str(answer["error"]["found"])


@needs_gcc
def test_daemons_are_let_go_and_come_back(hosts: Hosts) -> None:
    host = hosts(gpus=2)
    host.serve(PERSISTENCED, 0, 1)
    host.serve(DCGM, 0, 1)
    host.told(1, ["power_limit", 65])
    assert "error" not in host.reset(0)
    assert host.running() == sorted([DCGM, PERSISTENCED])
    assert (host.told(0)["persistence"], host.told(1)["power_limit"]) == (True, 65), "the daemon is the other's too"
    assert [(each["who"], each["why"], each["end"]) for each in host.recorded()] == [("repair", "a test", "done")]


@needs_gcc
def test_a_gpu_whose_driver_asks_for_it_is_reset_by_its_bus_and_no_other_is(hosts: Hosts) -> None:
    """Recovery action 6, which a reset as usual leaves as it is."""
    host = hosts(gpus=2)
    host.fault("recovery", 0, code=6)
    host.smi("-r", "-i", "0")
    assert host.board(0, "recovery_action") == "6"
    assert "error" not in host.reset(0) and "error" not in host.reset(1)
    assert host.board(0, "recovery_action") == ""
    assert ["bus" in line for line in host.calls(" reset gpu=")] == [False, True, False]


@needs_gcc
def test_a_daemon_that_starts_persistence_mode_does_not_leave_it_to_who_had_none(hosts: Hosts) -> None:
    host = hosts()
    host.serve(PERSISTENCED, 0)
    host.told(0, ["persistence", False])
    assert "error" not in host.reset(0)
    assert host.told(0)["persistence"] is False


@needs_gcc
def test_a_service_that_cannot_be_stopped_is_told_and_the_others_come_back(hosts: Hosts) -> None:
    host = hosts()
    host.serve("dcgm-exporter.service", 0)
    host.serve(DCGM, 0)
    host.told(0, ["persistence", True])
    (host.root / ("stuck-" + DCGM)).touch()
    refused(host.reset(0), "host.command_failed")
    assert host.running() == ["dcgm-exporter.service", DCGM]
    assert (host.told(0)["persistence"], host.calls(" reset gpu="), host.memory("reset")) == (True, [], {})
    assert [each["end"] for each in host.recorded()] == ["failed"]


@needs_gcc
def test_what_does_not_come_back_is_told_and_tried_again_by_the_next_run(hosts: Hosts) -> None:
    host = hosts()
    host.serve(DCGM, 0)
    host.told(0, ["persistence", True], ["power_limit", 65])
    host.fault("call", 0, call="nvmlDeviceSetPowerManagementLimit", code=999, times=0)
    found = refused(host.reset(0), "reset.not_brought_back")
    assert "what GPU %s was set to" % host.uuids()[0] in found
    assert [each["end"] for each in host.recorded()] == ["done"]
    assert (host.running(), host.told(0)["power_limit"]) == ([DCGM], 70)
    silicon.clear_faults(host.directory)
    again = host.apply()
    assert again["applied"] == ["settings/reset.finish/GPUs"], again
    assert (host.told(0)["power_limit"], host.memory("reset"), host.apply()["applied"]) == (65, {}, [])


@needs_gcc
def test_a_boot_ends_what_a_killed_run_has_left(hosts: Hosts) -> None:
    host = hosts()
    host.serve(DCGM, 0)
    assert host.reset(0, kill=5) == {"killed": True}
    assert host.memory("reset")
    (host.root / "boot-id").write_text("two")
    assert host.apply()["applied"] == []


@needs_gcc
@every_part
def test_killed_before_any_act_the_next_reset_brings_all_back_first(hosts: Hosts, tmp_path: Path, part: int) -> None:
    host = hosts()
    host.serve(PERSISTENCED, 0)
    host.serve(DCGM, 0)
    host.told(0, ["power_limit", 65], ["compute_mode", "exclusive_process"])
    before = tmp_path / "before"
    host.saved(before)
    acts = host.reset(0)["acts"]
    undisturbed = host.state()
    for kill in range(1 + part, acts + 1, PARTS):
        host.loaded(before)
        assert host.reset(0, kill=kill) == {"killed": True}
        assert "error" not in host.reset(0), kill
        assert host.state() == undisturbed, kill


@needs_gcc
def test_a_program_that_has_the_gpu_open_is_named_and_nothing_is_touched(hosts: Hosts) -> None:
    host = hosts()
    host.serve(DCGM, 0)
    host.hold(0)
    calls = len(host.calls())
    assert "python3 (pid 4711)" in refused(host.reset(0), "reset.in_use")
    assert (host.running(), len(host.calls()), host.recorded(), host.memory("reset")) == ([DCGM], calls, [], {})


@needs_gcc
def test_who_cannot_be_seen_from_here_is_told_in_the_words_of_nvidia_smi(hosts: Hosts) -> None:
    """Exit code 255."""
    host = hosts()
    host.told(0, ["persistence", True])
    host.fault("call", 0, call="gpusimResetGpu", code=19, times=0)
    found = refused(host.reset(0), "reset.in_use")
    assert "somebody who cannot be seen from here; nvidia-smi says: The following GPUs could not be reset" in found
    assert host.told(0)["persistence"] is True


@needs_gcc
def test_a_command_that_this_board_lacks_is_told(hosts: Hosts) -> None:
    host = hosts()
    host.fault("call", 0, call="gpusimResetGpu", code=3, times=0)
    assert "Not Supported" in refused(host.reset(0), "reset.not_supported")


@needs_gcc
def test_gpus_that_nvidia_smi_wants_too_are_in_the_next_plan(hosts: Hosts) -> None:
    """Links of which NVML tells nothing."""
    host = hosts("v100", 2)
    host.fault("call", call="nvmlDeviceGetNvLinkRemotePciInfo_v2", code=3, times=18 * 2)
    assert "0000:0f:00.0" in refused(host.reset(0), "reset.incomplete")
    host.fault("call", call="nvmlDeviceGetNvLinkRemotePciInfo_v2", code=3, times=0)
    planned = host.plan(gpus=[{"match": [host.uuids()[0]], "ecc": False}])
    assert "NVLink joins it with GPU 1 (0000:0f:00.0), which is reset with it" in planned["text"], planned


def divide(host: ResetHost) -> None:
    assert host.smi("-i", "0", "-mig", "1").returncode == 0
    assert host.smi("mig", "-i", "0", "-cgi", "9,9", "-C").returncode == 0


def write_layout(host: ResetHost) -> Path:
    layout = host.root / "var/lib/gpuops/mig-restore"
    layout.parent.mkdir(parents=True, exist_ok=True)
    layout.write_text("restore() {\n nvidia-smi -i $1 -mig 1; nvidia-smi mig -i $1 -cgi 9:0,9:4 -C\n}\n"
                      "restore %s 9:0 9:4\n" % host.uuids()[0])
    (host.root / "etc/systemd/system/multi-user.target.wants/gpuops-nvidia-mig.service").touch()
    return layout


@needs_gcc
def test_a_layout_that_our_unit_makes_anew_is_no_obstacle_and_another_is(hosts: Hosts) -> None:
    host = hosts("h100-sxm-hgx")
    uuid = host.uuids()[0]
    divide(host)
    refused(host.reset(0), "reset.divided")
    layout = write_layout(host)
    assert "error" not in host.reset(0)
    assert any(".gi." in key for key in host.state()["board"])
    layout.write_text("restore() {\n :\n}\nrestore %s 9:0 9:4\n" % uuid)
    assert "the MIG instances of GPU 0" in refused(host.reset(0), "reset.not_brought_back")


def silent_and_divided(hosts: Hosts, times: int) -> ResetHost:
    """With a layout that our unit makes anew. times: how many of its calls fail, 0 for all."""
    host = hosts("h100-sxm-hgx")
    divide(host)
    write_layout(host)
    for call in ("nvmlDeviceGetName", "nvmlDeviceGetEccMode"):
        host.fault("call", 0, call=call, code=999, times=times)
    return host


@needs_gcc
def test_a_divided_gpu_that_does_not_answer_has_its_layout_back_after_a_reset(hosts: Hosts) -> None:
    host = silent_and_divided(hosts, 2)
    assert "error" not in host.reset(0)
    assert len({key.split(".gi.")[1].split(".")[0] for key in host.state()["board"] if ".gi." in key}) == 2


@needs_gcc
def test_a_gpu_that_answers_neither_before_a_reset_nor_after_it_has_no_layout_that_is_missed(hosts: Hosts) -> None:
    host = silent_and_divided(hosts, 0)
    assert "not_brought_back" not in str(host.reset(0).get("error"))


@needs_gcc
def test_a_gpu_that_does_not_answer_can_be_reset(hosts: Hosts) -> None:
    host = hosts(gpus=2)
    host.fault("call", 0, call="nvmlDeviceGetName", code=999, times=0)
    host.fault("call", 0, call="nvmlDeviceGetEccMode", code=999, times=0)
    assert "error" not in host.reset(0)
    assert json.dumps(host.recorded()[0]["end"]) == '"done"'
