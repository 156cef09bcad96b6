# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who runs a driver container on a host, and what one has left there: read from its files, locks and mounts."""
from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Iterator

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.driver_container import (
    DRIVER_READY,
    FILES,
    FIRMWARE_PATH,
    PID_FILE,
    PROGRAM,
    ROOT,
    DriverContainer,
    read_driver_container,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.validation.verdict import DRIVER_READY as OURS

UID = "8f0f5c0e-0000-4000-8000-123456789abc"
LOGS = "/var/log/pods/gpu-operator_%s_" + UID + "/%s/0.log"
# As systemd's driver of cgroups names them, and the kubelet's own
CGROUPS = ("0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod%s.slice/cri-containerd-1.scope\n"
           % UID.replace("-", "_"), "0::/kubepods/besteffort/pod%s/1f2e\n" % UID)
# proc(5): with optional fields, and with none
OVERLAY = "906 30 0:212 / %s rw,relatime%s - overlay overlay rw,lowerdir=/var/lib/containerd/1/fs\n"
DISK = "907 30 8:17 / %s rw,relatime - ext4 /dev/sdb1 rw\n"
# cmd/nvidia-validator of NVIDIA/gpu-operator, createStatusFile
THEIRS = ("IS_HOST_DRIVER=false\nNVIDIA_DRIVER_ROOT=/run/nvidia/driver\nDRIVER_ROOT_CTR_PATH=/driver-root\n"
          "NVIDIA_DEV_ROOT=/run/nvidia/driver\nDEV_ROOT_CTR_PATH=/driver-root\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(str(tmp_path))


class TestWhoRunsIt:
    def test_nobody(self, host: Host) -> None:
        assert read_driver_container(host) == DriverContainer()

    @pytest.mark.parametrize("cgroup", CGROUPS)
    @pytest.mark.parametrize("container", ["nvidia-driver-ctr", "k8s-driver-manager"])
    @pytest.mark.parametrize(("pod", "daemon_set"), [
        ("nvidia-driver-daemonset-7xk2p", "nvidia-driver-daemonset"),
        ("nvidia-gpu-driver-ubuntu24.04-6b9cfd8b4f-x2x9z", "nvidia-gpu-driver-ubuntu24.04-6b9cfd8b4f")])
    def test_a_pod_of_which_anything_runs(
        self, host: Host, cgroup: str, container: str, pod: str, daemon_set: str
    ) -> None:
        """The process that keeps its namespaces, while the driver is built or the container starts again and again."""
        host.write(LOGS % (pod, container), "")
        assert not read_driver_container(host).is_at_work
        host.write("/proc/812/cgroup", cgroup)
        found = read_driver_container(host)
        assert found.is_at_work and found.who == "pod gpu-operator/%s of DaemonSet %s" % (pod, daemon_set)

    def test_no_other_pod_of_the_operator(self, host: Host) -> None:
        host.write(LOGS % ("nvidia-operator-validator-2kqxj", "driver-validation"), "")
        host.write("/proc/812/cgroup", CGROUPS[0])
        assert not read_driver_container(host).is_at_work

    @pytest.fixture
    def keeper(self, host: Host) -> Iterator["subprocess.Popen[str]"]:
        """A process that holds the lock of the file, which flock(1) has taken and left to it."""
        if shutil.which("flock") is None:
            pytest.skip("needs flock")
        host.write(PID_FILE, "812\n")
        with subprocess.Popen(["sh", "-c", 'exec 3>>"$0"; flock -n 3 && echo locked; exec cat', host.path(PID_FILE)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout and process.stdout.readline() == "locked\n"
            yield process
            process.kill()

    def test_a_process_that_has_locked_its_file(self, host: Host, keeper: "subprocess.Popen[str]") -> None:
        """As outside of Kubernetes; by the number in the file it is named, as the one that locked it has ended."""
        if not host.is_locked(PID_FILE):
            pytest.skip("the kernel tells no locks of others here")
        host.write("/proc/812/comm", "nvidia-driver\n")
        host.write("/proc/812/cgroup", "0::/system.slice/docker-1f2e.scope\n")
        assert read_driver_container(host).who == "nvidia-driver (pid 812, docker-1f2e.scope)"
        keeper.kill()
        keeper.wait()
        assert not read_driver_container(host).is_at_work

    def test_a_file_that_nobody_has_locked_is_only_left(self, host: Host) -> None:
        """Its number may be any other process's by now."""
        host.write(PID_FILE, "812\n")
        host.write("/proc/812/comm", "sshd\n")
        found = read_driver_container(host)
        assert (found.is_at_work, found.files) == (False, (PID_FILE,))


class TestWhatIsLeft:
    @pytest.mark.parametrize("shared", ["", " shared:412", " shared:412 master:7"])
    def test_its_file_system_is_told_by_its_program(self, host: Host, shared: str) -> None:
        host.write("/proc/self/mountinfo", DISK % "/" + OVERLAY % (ROOT + "/dev", "") + OVERLAY % (ROOT, shared))
        assert read_driver_container(host) == DriverContainer(stranger="overlay overlay")
        host.write(PROGRAM, "#!/bin/bash\n")
        assert read_driver_container(host) == DriverContainer(mounted=True)

    def test_of_several_mounts_the_topmost_counts(self, host: Host) -> None:
        host.write("/proc/self/mountinfo", OVERLAY % (ROOT, "") + DISK % ROOT)
        assert read_driver_container(host).stranger == "ext4 /dev/sdb1"

    def test_what_lies_there_without_a_mount_is_none(self, host: Host) -> None:
        """Firmware is written below it before the container mounts itself, and stays there in memory."""
        host.write(ROOT + "/lib/firmware/nvidia/580.126.09/gsp_tu10x.bin", "")
        host.write("/proc/self/mountinfo", DISK % "/")
        assert read_driver_container(host) == DriverContainer()

    @pytest.mark.parametrize(("path", "is_there"), [
        ("/run/nvidia/driver/lib/firmware\n", True), ("\n", False), ("\0", False), ("/opt/firmware\n", False),
        ("/run/nvidia/driver/lib/firmware-of-mine\n", False)])
    def test_the_path_of_firmware(self, host: Host, path: str, is_there: bool) -> None:
        host.write(FIRMWARE_PATH, path)
        assert read_driver_container(host).firmware == is_there

    def test_what_says_that_it_works(self, host: Host) -> None:
        for path in FILES:
            host.write(path, "x\n")
        host.write(DRIVER_READY, THEIRS)
        assert read_driver_container(host).files == (*FILES, DRIVER_READY)

    @pytest.mark.parametrize("text", [OURS, "", THEIRS.replace("/run/nvidia/driver", "/")])
    def test_but_not_that_a_driver_of_the_host_is_ready(self, host: Host, text: str) -> None:
        host.write(DRIVER_READY, text)
        assert not read_driver_container(host).files
