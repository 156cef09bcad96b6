# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ECC of simulated GPUs is changed by their own nvidia-smi, and nothing else of the host is another afterwards."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Callable, Iterator, List

import pytest
from reset_host import DCGM, PARTS, PERSISTENCED, ResetHost, every_part

from gpulab import silicon

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

Hosts = Callable[..., ResetHost]
OFF = [{"match": ["all"], "ecc": False}]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made: List[ResetHost] = []

    def host(profile: str = "t4", gpus: int = 2) -> ResetHost:
        made.append(ResetHost(tmp_path / str(len(made)), profile, gpus))
        return made[-1]

    yield host
    for each in made:
        each.close()


def code(answer: Any) -> str:
    assert "error" in answer, answer
    return str(answer["error"]["code"])


def test_ecc_is_switched_by_a_reset_and_given_back_by_another(hosts: Hosts) -> None:
    host = hosts()
    first = [{"match": [host.uuids()[0]], "ecc": False}]
    done = host.apply(gpus=first)
    assert done["applied"] == ["settings/settings.change_ecc/0000:17:00.0"], done
    assert [host.told(gpu)["ecc"] for gpu in range(2)] == [False, True]
    assert host.apply(gpus=first)["applied"] == []
    assert [(each["who"], each["end"], each["gpus"]) for each in host.recorded()] == [
        ("settings", "done", host.uuids()[:1])]
    assert "settings/settings.change_ecc/0000:17:00.0" in host.apply(state="absent")["applied"]
    assert (host.told()["ecc"], host.memory("settings")) == (True, {})
    assert host.apply(state="absent")["applied"] == []


def test_what_others_had_set_is_there_after_the_reset(hosts: Hosts) -> None:
    """Another's power limit, mode, clocks and accounting, the daemon of persistence, and who watches all GPUs."""
    host = hosts()
    host.serve(PERSISTENCED, 0, 1)
    host.serve(DCGM, 0, 1)
    for gpu in range(2):
        host.told(gpu, ["power_limit", 65], ["compute_mode", "exclusive_process"], ["application_clocks", [5001, 900]],
                  ["accounting", True])
    before = [{**host.told(gpu), "ecc": None, "ecc_pending": None} for gpu in range(2)]
    assert host.apply(gpus=[{"match": [host.uuids()[0]], "ecc": False}])["applied"]
    assert [{**host.told(gpu), "ecc": None, "ecc_pending": None} for gpu in range(2)] == before
    assert before[0]["persistence"] and before[1]["power_limit"] == 65
    assert before[0]["accounting"] and before[0]["application_clocks"] == [5001, 900]
    assert host.running() == sorted([DCGM, PERSISTENCED])
    assert host.memory("reset") == {}


def test_what_this_collection_has_set_is_there_after_the_reset(hosts: Hosts) -> None:
    host = hosts()
    ours = {"match": ["all"], "power_limit": 65, "gpu_clocks": [300, 900]}
    host.apply(gpus=[ours])
    done = host.apply(gpus=[{**ours, "ecc": False}])
    assert [step.split("/")[1] for step in done["applied"]] == ["settings.change_ecc"] * 2, done["text"]
    assert [host.board(gpu, "locked_gpu_clocks") for gpu in range(2)] == ["300,900"] * 2
    assert [host.told(gpu)["power_limit"] for gpu in range(2)] == [65, 65]
    assert host.apply(gpus=[{**ours, "ecc": False}])["applied"] == []


def test_clocks_that_a_reset_has_lost_are_not_taken_for_locked(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    ours = [{"match": ["all"], "gpu_clocks": [300, 900]}]
    host.apply(gpus=ours)
    for path in ("etc/systemd/system/gpuops-nvidia-settings.service", "run/gpuops/settings"):
        (host.root / path).unlink(missing_ok=True)
    assert "error" not in host.reset(0)
    assert host.board(0, "locked_gpu_clocks") == ""
    assert "settings/settings.change/0000:17:00.0" in host.apply(gpus=ours)["applied"]
    assert host.board(0, "locked_gpu_clocks") == "300,900"


def test_gpus_that_nvlink_joins_are_reset_together(hosts: Hosts) -> None:
    host = hosts("v100", 4)
    done = host.apply(gpus=[{"match": [host.uuids()[1]], "ecc": False}])
    assert "NVLink joins it with GPU 0 (0000:07:00.0), which is reset with it" in done["text"]
    assert [host.told(gpu)["ecc"] for gpu in range(4)] == [True, False, True, True]
    assert [line.split("gpu=")[1][0] for line in host.calls(" reset gpu=")] == ["0", "1"]
    both = host.apply(gpus=[{"match": ["all"], "ecc": False}])
    assert len(both["applied"]) == 2, "one reset of each pair"
    assert [host.told(gpu)["ecc"] for gpu in range(4)] == [False] * 4


def test_who_has_a_gpu_or_its_peer_is_named_before_anything_is_touched(hosts: Hosts) -> None:
    host = hosts("v100", 2)
    host.hold(0)
    calls = len(host.calls())
    refused = host.apply(gpus=[{"match": [host.uuids()[1]], "ecc": False}])
    assert code(refused) == "reset.in_use"
    assert "GPU 0 (0000:07:00.0) is used by python3 (pid 4711)" in refused["error"]["found"]
    assert (len(host.calls()), host.recorded(), host.memory("settings")) == (calls, [], {})


def test_pods_leave_before_and_are_taken_for_gone_by_then(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    pod = "11111111-2222-3333-4444-555555555555"
    (host.root / "var/log/pods" / ("team_train_" + pod)).mkdir(parents=True)
    host.hold(0, groups="0::/kubepods/besteffort/pod%s/abc\n" % pod)
    assert code(host.plan(gpus=OFF)) == "reset.in_use"
    planned = host.plan(gpus=OFF, assume_pods_evicted=True)
    assert "pods that leave before: team/train" in planned["text"]
    assert planned["plan"]["leaving"] == {"settings/settings.change_ecc/0000:17:00.0": ["team/train"]}
    assert code(host.apply(gpus=OFF, assume_pods_evicted=True)) == "reset.in_use", "it is still there"
    assert (host.told()["ecc_pending"], host.recorded()) == (True, [])


def test_ecc_that_nobody_can_switch_is_refused_by_the_plan(hosts: Hosts) -> None:
    host = hosts("h100-sxm-hgx", 1)
    assert code(host.apply(gpus=OFF)) == "settings.ecc_always_on"
    assert host.apply(gpus=[{"match": ["all"], "ecc": True}])["applied"] == []


def test_what_nvml_refuses_of_a_board_leaves_all_as_it_was(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    host.serve(DCGM, 0)
    host.fault("call", 0, call="nvmlDeviceSetEccMode", code=3, times=0)
    before = host.state()
    assert code(host.apply(gpus=OFF)) == "settings.call_not_supported"
    assert {**host.state(), "settings": {}} == before
    assert (host.recorded(), host.calls(" reset gpu=")) == ([], [])


def test_a_virtual_gpu_is_refused(hosts: Hosts) -> None:
    host = hosts("t4-vgpu", 1)
    silicon.host_files.write_configuration_spaces(host.root, silicon.board_file.read(host.directory))
    assert code(host.apply(gpus=OFF)) == "reset.not_supported"


def test_a_gpu_that_the_kernel_cannot_reset_is_refused(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    for path in host.root.glob("sys/bus/pci/devices/*/reset"):
        path.unlink()
    assert code(host.apply(gpus=OFF)) == "reset.not_supported"


def test_another_mode_that_somebody_has_set_for_the_next_reset_is_told_and_not_brought(hosts: Hosts) -> None:
    host = hosts("v100", 2)
    host.told(0, ["ecc", False])
    refused = host.apply(gpus=[{"match": [host.uuids()[1]], "ecc": False}])
    assert code(refused) == "reset.ecc_pending"
    assert "GPU 0 (0000:07:00.0) is set to be off" in refused["error"]["found"]
    assert [(host.told(gpu)["ecc"], host.told(gpu)["ecc_pending"]) for gpu in range(2)] == [(True, False), (True, True)]
    kept = host.apply(gpus=[{"match": [host.uuids()[0]], "ecc": True}])
    assert kept["applied"] == ["settings/settings.keep_ecc/0000:07:00.0"], kept
    assert (host.told()["ecc_pending"], host.recorded()) == (True, [])


def test_a_mode_that_waits_for_a_reset_gets_it_where_it_is_wanted(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    host.told(0, ["ecc", False])
    assert "was set before, and waits for a reset" in host.apply(gpus=OFF)["text"]
    assert host.told()["ecc"] is False


def test_a_reset_that_is_put_off_leaves_nothing_for_the_next_boot(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    done = host.apply(gpus=[{"match": ["all"], "ecc": False, "power_limit": 65}], allowed="service_restart")
    assert done["deferred"] == ["settings/settings.change_ecc/0000:17:00.0"]
    assert (host.told()["ecc_pending"], host.told()["power_limit"]) == (True, 65)


def test_a_reset_that_fails_gives_all_back(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    host.serve(DCGM, 0)
    host.told(0, ["persistence", True], ["power_limit", 65])
    before = host.state()
    host.fault("call", 0, call="gpusimResetGpu", code=999, times=0)
    failed = host.apply(gpus=OFF)
    assert code(failed) == "reset.failed"
    assert [each["end"] for each in host.recorded()] == ["failed"]
    silicon.clear_faults(host.directory)
    after = host.state()
    assert {**after, "settings": {}, "board": {**after["board"], "gpu.0.ecc_pending": ""}} == {
        **before, "board": {**before["board"], "gpu.0.ecc_pending": ""}}
    assert host.told()["ecc_pending"] is True


def test_ecc_that_somebody_has_switched_since_stays_theirs(hosts: Hosts) -> None:
    host = hosts(gpus=1)
    host.apply(gpus=OFF)
    host.told(0, ["ecc", True])
    assert (host.smi("-r", "-i", "0").returncode, host.told()["ecc"]) == (0, True)
    assert "change_ecc" not in str(host.apply(state="absent")["applied"])
    assert host.told()["ecc"] is True


def killed_everywhere(host: ResetHost, tmp_path: Path, part: int, **parameters: Any) -> Any:
    """(what an undisturbed run leaves, [what is there after a run that is killed before one of its acts, and after the
    next one, which is held to the plan of the first], for each act of a part of them)."""
    start = tmp_path / "start"
    host.saved(start)
    approved = host.plan(**parameters)["plan"]
    acts = host.apply(**parameters)["acts"]
    undisturbed, ends = host.state(), []
    assert acts > 15
    for kill in range(1 + part, acts + 1, PARTS):
        host.loaded(start)
        assert host.apply(kill=kill, **parameters) == {"killed": True}
        again = host.apply(approved=approved, **parameters)
        assert "error" not in again, (kill, again)
        ends.append(host.state())
        assert host.apply(**parameters)["applied"] == [], kill
    return undisturbed, ends


@every_part
def test_killed_before_any_act_the_next_run_ends_as_an_undisturbed_one(
    hosts: Hosts, tmp_path: Path, part: int
) -> None:
    host = hosts()
    host.serve(PERSISTENCED, 0, 1)
    host.serve(DCGM, 0, 1)
    host.told(1, ["power_limit", 65])
    host.told(0, ["power_limit", 66], ["compute_mode", "exclusive_process"])
    undisturbed, ends = killed_everywhere(host, tmp_path, part, gpus=[{"match": [host.uuids()[0]], "ecc": False}])
    assert ends and undisturbed["running"] == sorted([DCGM, PERSISTENCED])
    for number, end in enumerate(ends):
        assert end == undisturbed, 1 + part + number * PARTS


@every_part
def test_killed_before_any_act_all_is_given_back_to_who_wants_nothing_any_more(
    hosts: Hosts, tmp_path: Path, part: int
) -> None:
    host = hosts(gpus=1)
    host.serve(DCGM, 0)
    host.told(0, ["persistence", True], ["power_limit", 65])
    start, before = tmp_path / "start", host.state()
    before["board"].setdefault("gpu.0.ecc", "1")
    host.saved(start)
    for kill in range(1 + part, host.apply(gpus=OFF)["acts"] + 1, PARTS):
        host.loaded(start)
        assert host.apply(kill=kill, gpus=OFF) == {"killed": True}
        again = host.apply(state="absent")
        assert "error" not in again, (kill, again)
        end = host.state()
        assert end["board"].pop("gpu.0.ecc_pending", "1") == "1", kill
        end["board"].setdefault("gpu.0.ecc", "1")
        assert end == before, kill
