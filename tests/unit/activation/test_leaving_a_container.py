# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a driver container has left goes: with real mounts, in a name space of their own."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from activation_world import World
from gpu_hosts import A100, facts
from hypothesis import given
from hypothesis import strategies as st
from world import Unit

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import executors, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.observation import UNIT
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import driver_container
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.driver_container import (
    FILES,
    PROGRAM,
    ROOT,
    DriverContainer,
)

APART = ["unshare", "--map-root-user", "--mount", "--propagation", "private"]
LEFT = DriverContainer(mounted=True, firmware=True, files=FILES)
# A container that was started twice, and killed: its root, and a file system below it, at ROOT; a program works there
BENCH = """
set -e
mount -t tmpfs none /run
mkdir -p /run/box/usr/local/bin /run/box/lib /run/kept /run/nvidia/driver
touch /run/box/usr/local/bin/nvidia-driver /run/kept/file
for start in 1 2; do
    mount --rbind /run/box /run/nvidia/driver
    mount -t tmpfs none /run/nvidia/driver/lib
    mount --bind /run/kept /run/nvidia/driver/usr
    mkdir -p /run/kept/local/bin && touch /run/kept/local/bin/nvidia-driver
done
cd /run/nvidia/driver
exec "$0" -c "$1"
"""
UNMOUNTED = """
import os
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import executors, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.driver_container import read_driver_container
host = Host()
(step, *_more) = planner._left_steps(read_driver_container(host), planner.Disruption.none)
executors.EXECUTORS[step.action](host, None, step)
print(read_driver_container(host).mounted, "/run/nvidia/driver" in open("/proc/self/mountinfo").read(),
      os.listdir("/run/nvidia/driver"), os.path.exists("/run/kept/file"))
"""


def is_possible() -> bool:
    try:
        return subprocess.run([*APART, "true"], stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


def steps(container: DriverContainer, disruption: Disruption = Disruption.driver_reload) -> "list[Step]":
    return planner._left_steps(container, disruption)


@pytest.mark.skipif(not is_possible(), reason="needs a name space of mounts")
def test_every_mount_of_it_goes_with_what_is_below_and_nothing_of_others() -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([*APART, "sh", "-c", BENCH, sys.executable, UNMOUNTED], env=env, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    assert done.stdout.splitlines()[-1] == "False False [] True"


def test_the_kernel_is_told_an_empty_path(tmp_path: Path) -> None:
    """Nothing at all would be written by an empty text."""
    (step,) = steps(DriverContainer(firmware=True))
    shell, option, command = step.parameters["argv"]
    command = command.replace(driver_container.FIRMWARE_PATH, str(tmp_path / "path"))
    subprocess.run([shell, option, command], check=True)
    assert (tmp_path / "path").read_bytes() == b"\0"


def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: CommandResult) -> Host:
    host = Host(str(tmp_path))
    host.write("/proc/self/mountinfo", "906 30 0:212 / %s rw - overlay overlay rw\n" % ROOT)
    host.write(PROGRAM, "")
    monkeypatch.setattr(Host, "run", lambda *_words, **_named: answer)
    return host


def test_a_mount_that_stays_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = on(tmp_path, monkeypatch, CommandResult(("umount",), 32, "", "umount: /run/nvidia/driver: not permitted."))
    with pytest.raises(GpuOpsError) as failed:
        executors.unmount_container(host, Journal(host), steps(LEFT)[0])
    assert failed.value.code == "activation.driver_container_mounted" and "not permitted" in failed.value.found


def test_a_container_that_has_come_back_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = on(tmp_path, monkeypatch, CommandResult(("umount",), 0, "", ""))
    back = DriverContainer(("gpu-operator/nvidia-driver-daemonset-7xk2p",), mounted=True)
    monkeypatch.setattr(executors, "read_driver_container", lambda _host: back)
    with pytest.raises(GpuOpsError) as failed:
        executors.unmount_container(host, Journal(host), steps(LEFT)[0])
    assert failed.value.code == "host.driver_container_at_work"


def test_what_says_that_it_works_goes(tmp_path: Path) -> None:
    host = Host(str(tmp_path))
    for path in (*FILES, "/run/nvidia/validations/toolkit-ready", "/run/nvidia/mps/pipe"):
        host.write(path, "x\n")
    (step,) = steps(driver_container.read_driver_container(host))
    executors.EXECUTORS[step.action](host, Journal(host), step)
    assert not driver_container.read_driver_container(host).files
    assert host.exists("/run/nvidia/validations/toolkit-ready") and host.exists("/run/nvidia/mps/pipe")


@given(
    st.builds(DriverContainer, mounted=st.booleans(), firmware=st.booleans(),
              files=st.sampled_from([(), FILES[:1]])),
    st.sampled_from(["", "580.126.09", "580.178.04"]),
    st.sets(st.sampled_from(["nvidia_uvm", "nvidia_modeset", "nvidia_peermem"])),
)
def test_killed_anywhere_it_ends_with_the_hosts_own_driver(
    container: DriverContainer, loaded: str, beside: set
) -> None:
    """It is the world that sees to it that no module is loaded while the container's file system is there."""
    there = facts(A100, driver_installed="580.178.04", driver_boots="580.178.04", driver_userspace="580.178.04",
                  module_installed="open", driver_loaded=loaded, module_loaded="open" if loaded else "")
    host = World(there, modules=dict.fromkeys([*sorted(beside), "nvidia"], 0) if loaded else {}, modprobe=True,
                 units={UNIT: Unit(True, True)}, container=container)
    whole = host.plan(Policy())
    for number in range(len(whole.steps) + 1):
        killed: Any = host.copy()
        killed.apply(SimpleNamespace(steps=whole.steps[:number]))
        killed.apply(killed.plan(Policy()))
        assert killed.container == DriverContainer() and killed.facts.driver_loaded == "580.178.04"
        assert not killed.plan(Policy()).steps
    adopted = loaded == "580.178.04"
    assert ("module.unload" in {step.action for step in whole.steps}) == (bool(loaded) and not adopted)
