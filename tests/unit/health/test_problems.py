# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The plugin of node-problem-detector, run by every shell that there is, and its configuration."""
from __future__ import annotations

import json
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from health_world import HealthWorld

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.model import State
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.problems import (
    CONDITIONS,
    MOST_BYTES,
    conditions_text,
    configurations,
    plugin_text,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.summary import summary

SHELLS: List[List[str]] = [words for words in (["dash"], ["bash", "--posix"], ["busybox", "sh"], ["ksh"])
                           if shutil.which(words[0])]
NAMES = tuple(CONDITIONS)
BOOT = Host().boot()


@pytest.fixture(params=SHELLS, ids=lambda words: words[0])
def shell(request: pytest.FixtureRequest) -> List[str]:
    return list(request.param)


class Plugin:
    def __init__(self, directory: Path, shell: List[str]) -> None:
        self.conditions = directory / "conditions"
        self.program = directory / "plugin"
        self.program.write_text(plugin_text(str(self.conditions)))
        self.shell = shell

    def tells(self, state: State, boot: str = BOOT, age: float = 0, stale: int = 300) -> None:
        uptime = time.clock_gettime(time.CLOCK_BOOTTIME) - age
        self.conditions.write_text(conditions_text(summary(state), boot, uptime, stale))

    def run(self, *words: str, **environment: str) -> Tuple[int, str]:
        # No program is started: there is none on its path
        done = subprocess.run([shutil.which(self.shell[0]) or "", *self.shell[1:], str(self.program), *words],
                              env=dict({"PATH": "/nowhere"}, **environment), capture_output=True, text=True,
                              timeout=20, check=False)
        assert done.stderr == "" and done.stdout.count("\n") == 1 and len(done.stdout.encode()) <= MOST_BYTES + 1
        return done.returncode, done.stdout[:-1]


@pytest.fixture
def plugin(tmp_path: Path, shell: List[str]) -> Plugin:
    return Plugin(tmp_path, shell)


def codes(plugin: Plugin) -> Dict[str, int]:
    return {name: plugin.run(name)[0] for name in NAMES}


@pytest.mark.parametrize("xids, wanted", [
    ([], (0, 0, 0)), ([79], (1, 0, 0)), ([63], (0, 1, 0)), ([92], (0, 0, 1)), ([79, 63, 92], (1, 1, 1))])
def test_a_condition_is_true_while_there_is_such_a_finding(
    plugin: Plugin, xids: List[int], wanted: Tuple[int, ...]
) -> None:
    world = HealthWorld()
    for number in xids:
        world.xid(number)
    plugin.tells(world.round())
    assert tuple(codes(plugin).values()) == wanted


def test_the_message_says_which_gpu_what_and_what_mends_it(plugin: Plugin) -> None:
    world = HealthWorld()
    world.round()
    world.xid(79)
    plugin.tells(world.round())
    assert plugin.run("GpuSick") == (
        1, "GPU 0000:3b:00.0 (GPU-0): xid 79, the GPU has fallen off the bus -> reboot the node")
    assert plugin.run("GpuWarning") == (0, "no warning of a GPU")


def test_a_message_of_many_gpus_is_cut_where_the_detector_would_cut_it(plugin: Plugin) -> None:
    world = HealthWorld()
    for number in (46, 54, 62, 64, 74, 79, 95, 110, 119, 120):
        world.xid(number)
    plugin.tells(world.round())
    code, message = plugin.run("GpuSick")
    assert (code, len(message)) == (1, MOST_BYTES)


def test_what_was_not_looked_at_in_time_is_unknown(plugin: Plugin) -> None:
    world = HealthWorld()
    plugin.tells(world.round(), age=295)
    assert codes(plugin) == dict.fromkeys(NAMES, 0)
    plugin.tells(world.round(), age=310)
    assert codes(plugin) == dict.fromkeys(NAMES, 2)
    assert "stale" in plugin.run("GpuSick")[1]


def test_what_was_said_in_another_boot_is_unknown(plugin: Plugin) -> None:
    world = HealthWorld()
    plugin.tells(world.round(), boot="another")
    assert codes(plugin) == dict.fromkeys(NAMES, 2)


def test_a_host_that_could_not_be_read_is_unknown_and_what_is_known_of_it_is_told(plugin: Plugin) -> None:
    world = HealthWorld()
    world.xid(79)
    world.round()
    plugin.tells(world.round(records=None))
    assert codes(plugin) == {"GpuSick": 1, "GpuResetPending": 2, "GpuWarning": 2}
    plugin.tells(State())
    assert codes(plugin) == dict.fromkeys(NAMES, 2)


def test_a_log_that_was_overwritten_is_no_reason_to_know_nothing(plugin: Plugin) -> None:
    world = HealthWorld()
    world.sequence += 100
    world.log("something")
    plugin.tells(world.round())
    assert codes(plugin) == dict.fromkeys(NAMES, 0)


def test_a_file_that_is_not_there_not_whole_or_of_another_release_is_unknown(plugin: Plugin) -> None:
    assert plugin.run("GpuSick")[0] == 2
    world = HealthWorld()
    plugin.tells(world.round())
    whole = plugin.conditions.read_text()
    for length in range(0, len(whole) - 4, 7):
        plugin.conditions.write_text(whole[:length])
        assert plugin.run("GpuSick")[0] == 2, whole[:length]
    for text in (whole.replace("1 ", "2 ", 1), "\0\n" * 50, "end\n", whole.replace("GpuSick 0", "GpuSick 7"),
                 whole.replace("300", "x"), "$(exit 0) `id`\n"):
        plugin.conditions.write_text(text)
        assert plugin.run("GpuSick")[0] == (2 if text != whole else 0), text
    plugin.conditions.unlink()
    plugin.conditions.mkdir()
    assert plugin.run("GpuSick")[0] == 2


@pytest.mark.parametrize("words", [(), ("",), ("GpuOther",), ("end",)])
def test_a_condition_that_is_not_there_is_unknown(plugin: Plugin, words: Tuple[str, ...]) -> None:
    plugin.tells(HealthWorld().round())
    assert plugin.run(*words)[0] == 2


def test_a_container_may_have_the_file_elsewhere(plugin: Plugin) -> None:
    plugin.tells(HealthWorld().round())
    other = plugin.conditions.rename(plugin.conditions.with_name("elsewhere"))
    assert plugin.run("GpuSick")[0] == 2
    assert plugin.run("GpuSick", GPUOPS_HEALTH=str(other))[0] == 0


def test_no_word_of_a_board_is_more_than_a_message(plugin: Plugin) -> None:
    world = HealthWorld()
    world.xid(79)
    world.round()
    (key, found), = world.state.findings.items()
    odd = "a\nGpuSick 0 well\n\x1b[31m%s \\n `id` $(id) ü"
    plugin.tells(replace(world.state, findings={key: replace(found, text=odd)}))
    code, message = plugin.run("GpuSick")
    assert code == 1 and "a?GpuSick 0 well??[31m%s \\n `id` $(id) ?" in message


# the configuration

def test_the_configuration_avoids_what_the_detector_does_by_default() -> None:
    for found in json.loads(json.dumps(configurations("/x/plugin"))).values():
        assert found["pluginConfig"] == {
            "invoke_interval": "10s", "timeout": "2s", "max_output_length": 512, "concurrency": 1,
            "enable_message_change_based_condition_update": True, "skip_initial_status": True}
        assert (found["plugin"], found["source"]) == ("custom", "gpuops-health")


def test_no_condition_is_told_or_held_up_by_the_rule_of_another() -> None:
    """The detector sends all conditions of a configuration with the first answer, and waits for all its rules."""
    found = configurations("/x/plugin")
    assert tuple(found) == NAMES
    for name, each in found.items():
        (condition,), (rule,) = each["conditions"], each["rules"]
        assert condition["type"] == rule["condition"] == name
        assert (rule["type"], rule["path"], rule["args"], rule["timeout"]) == (
            "permanent", "/x/plugin", [name], "2s")


def test_each_condition_has_a_reason_for_both_cases() -> None:
    found: Dict[str, Dict[str, Any]] = configurations("/x/plugin")
    reasons = [part["reason"] for each in found.values() for part in (*each["conditions"], *each["rules"])]
    assert len(set(reasons)) == 2 * len(found)
