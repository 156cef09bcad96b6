# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kernels that come and go on a laboratory host, where the real DKMS builds."""
from __future__ import annotations

import os
from pathlib import Path
from typing import Iterator

import pytest
from host_life import KERNEL, UPDATE_SUITE, install
from laboratory import Fleet, changed_by_us, new_lab
from test_driver import Play

from gpulab.lab import Lab
from gpulab.topology import parse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("kernels")
    lab.up(parse({"name": "kernels", "control_plane": False,
                  "hosts": [{"name": name, "board": "a100-80gb-sxm", "gpus": 1} for name in ("gpu", "gone")]},
                 "test_kernels.py"))
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def fleet(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(lab, tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def play(lab: Lab, tmp_path: Path) -> Play:
    return Play(lab, tmp_path)


@pytest.mark.variation
def test_an_old_kernel_that_cannot_be_built_for_holds_up_nothing(play: Play) -> None:
    play.writers()
    play.say("sh", "-c", "touch /boot/vmlinuz-6.1.0-1-amd64; mkdir -p /lib/modules/6.1.0-1-amd64/build; "
                         "touch /lib/modules/6.1.0-1-amd64/build/Makefile")
    first, second = (play.writers()[1] for _run in "12")
    assert (first["changed"], second["changed"]) == (True, False)
    assert any("6.1.0-1-amd64, which neither runs nor boots next" in note for note in second["plan"]["notes"])
    play.say("rm", "-rf", "/boot/vmlinuz-6.1.0-1-amd64", "/lib/modules/6.1.0-1-amd64")


@pytest.mark.variation
def test_the_other_kernel_module_of_the_same_version_is_loaded_too(play: Play) -> None:
    play.writers()
    for wanted, license in (("proprietary", "NVIDIA"), ("open", "Dual MIT/GPL")):
        planned = play.plan(kernel_module=wanted)
        assert planned["disruption"] == "driver_reload"
        lines = play.journal_length()
        play.writers(kernel_module=wanted)
        # The package's own script has built the module already
        assert [step["id"] for step in play.done(lines)] == [
            step["id"] for step in planned["steps"] if step["action"] != "dkms.build"]
        assert play.say("modinfo", "-F", "license", "nvidia") == license
        assert ("Open Kernel Module" in play.say("cat", "/proc/driver/nvidia/version")) == (wanted == "open")
        assert [result["changed"] for result in play.writers(kernel_module=wanted)] == [False] * 4


def the_running_kernel_goes(fleet: Fleet) -> str:
    """As an upgrade does with `apt-get autoremove`; asked whether to, the admin says yes. Returns its release."""
    running = fleet.say("gone", "uname", "-r")
    fleet.lab.ssh("gone", ["sh", "-c", "echo linux-base linux-base/removing-running-kernel boolean false | "
                           "debconf-set-selections; DEBIAN_FRONTEND=noninteractive apt-get -qq -y purge "
                           "linux-image-amd64 linux-image-%s" % running])
    assert fleet.say("gone", "sh", "-c", "ls -d /boot/vmlinuz-* /lib/modules/*/kernel") == ""
    return running


def test_a_kernel_that_is_gone_is_refused_before_anything_is_touched(fleet: Fleet) -> None:
    running = the_running_kernel_goes(fleet)
    before = fleet.fingerprint("gone")
    refused = fleet.run("gpuops.nvidia.site", "--limit", "gone", gpu_allowed_disruption="reboot")
    assert refused.code != 0
    assert "kernel %s runs and /lib/modules/%s is gone; no other kernel is installed" % (running, running) in \
        refused.failures()
    assert "reboot into it" in refused.failures()
    assert changed_by_us(before, fleet.fingerprint("gone")) == {}
    assert not any(refused.changed.values())


def test_a_kernel_that_boots_next_gets_the_driver_by_a_reboot(fleet: Fleet) -> None:
    """The remedy of the refusal, but for the reboot: that is allowed."""
    running = fleet.say("gone", "uname", "-r")
    fleet.lab.ssh("gone", ["sh", "-c", "sed s/bookworm/bookworm-update/ /etc/apt/sources.list.d/debian.sources > %s;"
                           " apt-get -qq update; %s" % (
                               UPDATE_SUITE, install("linux-image-%s linux-headers-%s" % (KERNEL, KERNEL)))])
    assert fleet.say("gone", "uname", "-r") == running
    planned = fleet.play("gpuops.nvidia.plan", "--limit", "gone").result("gone", "gpu_plan")["plan"]
    assert planned["refusals"] == [] and planned["disruption"] == "reboot"
    assert {requirement["subject"] for requirement in planned["requirements"]} == {"kernel " + KERNEL}
    fleet.play("gpuops.nvidia.site", "--limit", "gone", gpu_allowed_disruption="reboot")
    assert fleet.say("gone", "uname", "-r") == KERNEL
    assert fleet.say("gone", "cat", "/sys/module/nvidia/version") == \
        fleet.say("gone", "modinfo", "-k", KERNEL, "-F", "version", "nvidia") != ""
    assert fleet.play("gpuops.nvidia.site", "--limit", "gone").changes() == []
    assert not fleet.tasks("gone", [{"gpuops.nvidia.gpu_validation": {}}]).failures()
