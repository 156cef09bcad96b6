# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""GPUs that are set through the simulated NVML: what they say afterwards, what they lose, what they get back."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict

import pytest
from simulated_board import VERSION, SimulatedBoard, built

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings import boot, notes
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.policy import ARGUMENTS, policy_of
from gpulab import silicon

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")

APPLIER = """
import json, subprocess, sys
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import render
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings import boot
from ansible_collections.gpuops.nvidia.plugins.module_utils.settings.capability import CAPABILITY

class ScratchHost(Host):
    def run(self, argv, **how):
        if argv[0] == "nvidia-smi":
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            return CommandResult(tuple(argv), done.returncode, done.stdout, "")
        if argv[0] != "systemctl":
            return super().run(argv, **how)
        if argv[1] in ("enable", "disable"):
            self.write(boot.WANTS, "") if argv[1] == "enable" else self.remove(boot.WANTS)
        return CommandResult(tuple(argv), 0, "", "")

host, version, parameters = ScratchHost(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
checked = ArgumentSpecValidator(dict(CAPABILITY.arguments)).validate(parameters)
assert not checked.error_messages, checked.error_messages
facts = HostFacts(hostname="gpu", driver_userspace=version, driver_loaded=version)
try:
    outcome = Run(CAPABILITY, checked.validated_parameters, host, lambda _host: facts).apply()
    print(json.dumps({"applied": outcome.applied, "text": render(outcome.plan)}))
except GpuOpsError as error:
    print(json.dumps({"error": error.result()}))
"""
ASK = """
import json, sys
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml import Session
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.nvml_settings import REQUESTS
session = Session(REQUESTS)
for name, value in json.loads(sys.argv[2]):
    session.ask(name, sys.argv[1], value)
print(json.dumps(session.ask("get", sys.argv[1])))
session.close()
"""


class Node(SimulatedBoard):
    """A host in a directory; nvidia-smi is the simulated board's."""

    def __init__(self, directory: Path, profile: str = "h100-sxm-hgx", gpus: int = 2) -> None:
        super().__init__(directory, profile, gpus)
        self.root = directory / "root"
        self.boots = 0
        (self.root / "sys/module/nvidia").mkdir(parents=True)
        for name in ("run", "var/lib", "etc/systemd/system/multi-user.target.wants"):
            (self.root / name).mkdir(parents=True)
        self.path = "%s:%s" % (built() / "pkg", os.environ["PATH"])

    def apply(self, **parameters: Any) -> Dict[str, Any]:
        found: Dict[str, Any] = self.say(APPLIER, str(self.root), VERSION, json.dumps(parameters), PATH=self.path)
        return found

    def ask(self, gpu: int = 0, *changes: Any) -> Dict[str, Any]:
        found: Dict[str, Any] = self.say(ASK, self.uuids()[gpu], json.dumps(changes))
        return found

    def board(self, gpu: int, name: str) -> str:
        return str(silicon.board_file.read(self.directory).values.get("gpu.%d.%s" % (gpu, name), ""))

    def boot(self) -> "subprocess.CompletedProcess[str]":
        """What is set is lost, and the unit does what it does."""
        with silicon.board_file.opened(self.directory) as board:
            for gpu in range(board.gpus):
                for name in ("persistence", "power_limit_w", "locked_gpu_clocks", "compute_mode"):
                    board.remove("gpu.%d.%s" % (gpu, name))
        (self.root / "sys/module/nvidia").rename(self.root / ("sys/module/of-boot-%d" % self.boots))
        (self.root / "sys/module/nvidia").mkdir()
        self.boots += 1
        script = (self.root / "var/lib/gpuops/settings-restore").read_text()
        for path in ("/run/gpuops", "/sys/module/nvidia"):
            script = script.replace(path, str(self.root) + path)
        return subprocess.run(["/bin/sh", "-c", script], check=False, text=True, env=self.environment(PATH=self.path),
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


CAPPED = {"match": ["all"], "power_limit": 500, "gpu_clocks": [1200, 1980], "compute_mode": "exclusive_process"}


def test_what_is_set_is_so_stays_so_and_is_given_back(tmp_path: Path) -> None:
    node = Node(tmp_path)
    done = node.apply(gpus=[CAPPED, {"match": [node.uuids()[1]], "power_limit": 400}])
    assert len(done["applied"]) == 5, done
    now = [node.ask(gpu) for gpu in range(2)]
    assert [each["power_limit"] for each in now] == [500, 400]
    assert all((each["persistence"], each["compute_mode"]) == (True, "exclusive_process") for each in now)
    assert node.board(0, "locked_gpu_clocks") == "1200,1980"
    assert node.apply(gpus=[CAPPED, {"match": [node.uuids()[1]], "power_limit": 400}])["applied"] == []
    assert node.boot().returncode == 0
    assert [node.ask(gpu)["power_limit"] for gpu in range(2)] == [500, 400]
    assert node.board(1, "locked_gpu_clocks") == "1200,1980"
    again = node.apply(gpus=[CAPPED, {"match": [node.uuids()[1]], "power_limit": 400}])
    assert again["applied"] == [], "what the unit has set is set"
    gone = node.apply(state="absent")
    assert "error" not in gone, gone
    assert [node.ask(gpu)["power_limit"] for gpu in range(2)] == [700, 700]
    assert (node.board(0, "locked_gpu_clocks"), node.ask(0)["compute_mode"]) == ("", "default")
    assert not (node.root / "var/lib/gpuops/settings-restore").exists()
    assert node.apply(state="absent")["applied"] == []


@pytest.mark.parametrize("clocks, deferred, is_locked", [
    ({"gpu_clocks": [1200, 1980]}, False, True), ({"gpu_clocks": [1200, 1500]}, False, False), ({}, False, False),
    ({"gpu_clocks": [1200, 1980], "memory_clocks": [810, 2619]}, True, True)])
def test_a_boot_locks_the_clocks_of_the_script_and_not_those_that_were_set_before_it(
    tmp_path: Path, clocks: Dict[str, Any], deferred: bool, is_locked: bool
) -> None:
    """A run may be killed after it has set them, and before it has written them for the next boot."""
    host = Host(str(tmp_path))
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    journal = Journal(host)
    notes.note_locked(host, journal, "GPU-1", {"gpu_clocks": [1200, 1980]})
    found = notes.locked(journal.recall(notes.NAME), notes.load_of(host), notes.restored(host), ())
    assert found == {"GPU-1": {"gpu_clocks": [1200, 1980]}}
    host.write(boot.SCRIPT, boot.script_text([("GPU-1", {"persistence": True, **clocks}, deferred)], []))
    host.write(boot.STAMP, "GPU-1 %s\n" % notes.number_of_load(host))
    found = notes.locked(journal.recall(notes.NAME), "another load", notes.restored(host), ())
    assert found == ({"GPU-1": {"gpu_clocks": [1200, 1980]}} if is_locked else {})


def test_without_persistence_a_limit_goes_with_the_last_process(tmp_path: Path) -> None:
    """nvidia-smi(1), -pm: which is why a limit brings it."""
    node = Node(tmp_path)
    assert node.ask(0, ["power_limit", 400])["power_limit"] == 400
    assert node.ask(0)["power_limit"] == 700
    assert node.ask(0, ["persistence", True], ["power_limit", 400])["power_limit"] == 400
    assert node.ask(0)["power_limit"] == 400


def test_memory_clocks_of_hopper_are_deferred(tmp_path: Path) -> None:
    node = Node(tmp_path, gpus=1)
    assert "next load of the driver" in node.apply(gpus=[{"match": ["all"], "memory_clocks": [2619]}])["text"]
    assert (node.board(0, "deferred_memory_clock"), node.board(0, "locked_memory_clocks")) == ("2619", "")
    assert node.apply(gpus=[{"match": ["all"], "memory_clocks": [2619]}])["applied"] == []
    node.apply()
    assert node.board(0, "deferred_memory_clock") == ""


def test_memory_clocks_of_ampere_are_locked_at_once(tmp_path: Path) -> None:
    node = Node(tmp_path, "a100-40gb-sxm", 1)
    node.apply(gpus=[{"match": ["all"], "memory_clocks": [1215, 1215]}])
    assert node.board(0, "locked_memory_clocks") == "1215,1215"


@pytest.mark.parametrize("code, refusal", [
    (3, "settings.call_not_supported"), (4, "settings.no_permission"), (15, "settings.lost"), (19, "settings.in_use"),
    (999, "settings.call_failed")])
def test_what_nvml_refuses_is_told_and_the_other_gpu_is_set(tmp_path: Path, code: int, refusal: str) -> None:
    node = Node(tmp_path)
    node.fault("call", 0, call="nvmlDeviceSetPowerManagementLimit", code=code, times=0)
    error = node.apply(gpus=[{"match": ["all"], "power_limit": 400}])["error"]
    assert (error["code"], "GPU 0000:1b:00.0: nvmlDeviceSetPower" in error["found"]) == (refusal, True), error
    assert node.ask(1)["power_limit"] == 400


def test_clocks_are_unlocked_where_nothing_else_would_unlock_them(tmp_path: Path) -> None:
    """A daemon keeps GPUs initialised, and nobody knows any more which clocks a boot has locked."""
    node = Node(tmp_path, gpus=1)
    node.ask(0, ["persistence", True])
    node.apply(gpus=[{"match": ["all"], "gpu_clocks": [1200]}])
    assert node.boot().returncode == 0 and node.board(0, "locked_gpu_clocks") == "1200,1200"
    (node.root / "run/gpuops/settings").unlink()
    node.apply(state="absent")
    assert (node.board(0, "locked_gpu_clocks"), node.ask(0)["persistence"]) == ("", True)


def test_a_change_that_was_refused_is_not_given_back_later(tmp_path: Path) -> None:
    node = Node(tmp_path, gpus=1)
    node.ask(0, ["persistence", True])
    node.fault("call", 0, call="nvmlDeviceSetPowerManagementLimit", code=999, times=0)
    assert node.apply(gpus=[{"match": ["all"], "power_limit": 400}])["error"]
    silicon.clear_faults(node.directory)
    node.ask(0, ["power_limit", 600])
    assert "error" not in node.apply()
    assert node.ask(0)["power_limit"] == 600


def test_a_gpu_that_hangs_at_a_boot_keeps_no_other_from_its_settings(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.apply(gpus=[{"match": ["all"], "power_limit": 400}])
    script = node.root / "var/lib/gpuops/settings-restore"
    script.write_text(script.read_text().replace("timeout -k 5 60", "timeout -k 1 3"))
    node.fault("slow", 0, call="nvmlDeviceSetPersistenceMode", ms=3600 * 1000)
    done = node.boot()
    assert (done.returncode, "-pm 1 does not come to an end" in done.stdout) == (1, True), done.stdout
    assert node.ask(1)["power_limit"] == 400


def test_a_boot_sets_the_others_where_one_gpu_is_gone(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.apply(gpus=[{"match": ["all"], "power_limit": 400}])
    node.fault("lost", 0)
    done = node.boot()
    assert (done.returncode, "-pl 400 cannot be set" in done.stdout) == (1, True), done.stdout
    assert node.ask(1)["power_limit"] == 400


def refused(*entries: Dict[str, Any]) -> GpuOpsError:
    given = {name: option.get("default") for name, option in ARGUMENTS.items()}
    with pytest.raises(GpuOpsError) as caught:
        policy_of({**given, "gpus": entries})
    return caught.value


@pytest.mark.parametrize("entry, code, told", [
    ({"match": ["0"], "power_limit": 300}, "settings.by_index", "entry 1 names GPU 0"),
    ({"match": [], "power_limit": 300}, "settings.malformed", "an empty `match`"),
    ({"match": ["all"]}, "settings.malformed", "nothing to set"),
    ({"match": ["all"], "power_limit": 0}, "settings.malformed", "a power limit of 0 W"),
    ({"match": ["all"], "gpu_clocks": [1980, 210]}, "settings.malformed", "`gpu_clocks`: [1980, 210]"),
    ({"match": ["all"], "memory_clocks": [1, 2, 3]}, "settings.malformed", "`memory_clocks`: [1, 2, 3]"),
    ({"match": ["all"], "power_limit": 300, "persistence": False}, "settings.lost_without_persistence", "power limit"),
])
def test_entries_that_cannot_be_meant_are_refused(entry: Dict[str, Any], code: str, told: str) -> None:
    error = refused(entry)
    assert (error.code, told in error.found) == (code, True), error
