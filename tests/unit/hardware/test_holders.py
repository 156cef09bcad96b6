# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who has a device of the driver: by which pod, below which root, open or only mapped."""
from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Sequence

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.children import (
    NAME,
    be_the_child,
    forked,
    listen,
    say,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandTimedOut, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import (
    CHECKPOINT,
    Holder,
    Users,
    pods_seen,
    read_holders,
    read_mapped,
)

UID = "8f0f5c0e-0000-4000-8000-123456789abc"
STATIC = "0123456789abcdef0123456789abcdef"
SYSTEMD, CGROUPFS = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-", "/kubepods/burstable/"


@dataclass
class Tree:
    """A host below a directory."""

    root: Path

    @property
    def host(self) -> Host:
        return Host(str(self.root))

    def process(self, pid: int, groups: str = "0::/user.slice\n", opened: Sequence[str] = (), maps: str = "") -> None:
        directory = self.root / "proc" / str(pid)
        (directory / "fd").mkdir(parents=True)
        (directory / "comm").write_text("app\n")
        (directory / "cgroup").write_text(groups)
        (directory / "maps").write_text(maps)
        for number, path in enumerate(opened, 3):
            os.symlink(path, directory / "fd" / str(number))

    def gives(self, resource: str, *devices: str) -> None:
        """The kubelet has given these to a pod of which a process runs."""
        self.process(6, "0::%spod%s/1\n" % (CGROUPFS, UID))
        self.host.write(CHECKPOINT, json.dumps({"Data": {"PodDeviceEntries": [{
            "PodUID": UID, "ContainerName": "c", "ResourceName": resource, "DeviceIDs": {"0": devices}}]}}))

    def link(self, name: str, path: str) -> str:
        """A name that leads to a real device."""
        (self.root / name[1:]).parent.mkdir(parents=True, exist_ok=True)
        os.symlink(path, self.root / name[1:])
        return str(self.root / name[1:])


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize("groups, pod", [
    ("0::%spod%s.slice/cri-containerd-1.scope" % (SYSTEMD, UID.replace("-", "_")), UID),
    ("0::%spod%s.slice/crio-1.scope" % (SYSTEMD, UID.replace("-", "_")), UID),
    ("0::/kubepods.slice/kubepods-pod%s.slice/cri-containerd-1.scope" % UID.replace("-", "_"), UID),
    ("11:memory:%spod%s/1\n1:name=systemd:%spod%s/1" % (CGROUPFS, UID, CGROUPFS, UID), UID),
    ("0::%spod%s/crio-1" % (CGROUPFS, UID), UID),
    ("0::/a/prefix%spod%s/1" % (CGROUPFS, UID), UID),
    ("0::%spod%s.slice/cri-containerd-1.scope" % (SYSTEMD, STATIC), STATIC),
    ("0::%spod%s/1" % (CGROUPFS, STATIC), STATIC),
    ("0::/system.slice/pod%s0.service" % STATIC, ""),
    ("0::/system.slice/docker-%s.scope" % (2 * STATIC), ""),
])
def test_the_pod_of_a_process(tree: Tree, groups: str, pod: str) -> None:
    tree.process(7, groups + "\n", ["/dev/nvidia0"])
    assert [holder.pod for holder in read_holders(tree.host)[0]] == [pod]


def test_who_asks_the_gpus_while_it_looks_is_no_user_of_them(tree: Tree) -> None:
    """A session of ours is a child that has them open."""
    for pid, parent in ((7, 1), (8, os.getpid()), (os.getpid(), 1)):
        tree.process(pid, opened=["/dev/nvidia0"])
        (tree.root / "proc" / str(pid) / "stat").write_text("%d (app) (x) S %d 1 1 0\n" % (pid, parent))
    assert len(read_holders(tree.host)[0]) == 3
    users = Users(tree.host)
    assert [holder.pid for holder in users.everybody] == [7]
    assert users.of("GPU-1", "/dev/nvidia0") == ("app (pid 7)",)


@pytest.mark.parametrize("name, seconds, groups, is_user", [
    (NAME, 5, "0::/system.slice/gpuops-nvidia-watch.service\n", False),
    (NAME, 400, "0::/system.slice/gpuops-nvidia-watch.service\n", True),
    ("python3", 5, "0::/system.slice/gpuops-nvidia-watch.service\n", True),
    (NAME, 5, "0::%spod%s/1\n" % (CGROUPFS, UID), True)], ids=["asks", "hangs", "another", "of a pod"])
def test_nor_is_another_process_of_ours_that_asks_them_for_moments(
    tree: Tree, name: str, seconds: int, groups: str, is_user: bool
) -> None:
    tree.process(7, groups, opened=["/dev/nvidia0"])
    started = (time.clock_gettime(time.CLOCK_BOOTTIME) - seconds) * os.sysconf("SC_CLK_TCK")
    (tree.root / "proc/7/stat").write_text("7 (%s) S 1 %s %d 0\n" % (name, " ".join(["1"] * 17), started))
    assert bool(Users(tree.host).everybody) == is_user


def test_a_child_that_asks_the_driver_goes_by_that_name() -> None:
    receiver, sender, child = forked()
    if child == 0:
        be_the_child(sender, lambda: say(sender, name=Path("/proc/self/comm").read_text()))
    os.close(sender)
    heard, _waited = listen(receiver, 20, 20)
    os.close(receiver)
    os.waitpid(child, 0)
    assert heard[0]["name"] == NAME + "\n"


def test_a_device_is_known_by_its_number_below_another_root(tree: Tree) -> None:
    """That of a driver in a container, or of a host that is mounted into one."""
    tree.link("/dev/nvidia0", "/dev/null")
    tree.process(7, opened=[tree.link("/run/nvidia/driver/dev/nvidia5", "/dev/null")])
    assert read_holders(tree.host) == ((Holder(7, "app", ("/dev/nvidia0",)),), {"nvidia": 1})


def test_one_that_the_host_has_no_node_of_keeps_its_name(tree: Tree) -> None:
    tree.process(7, opened=[tree.link("/run/nvidia/driver/dev/nvidia-uvm", "/dev/null"), "/srv/gone/dev/nvidiactl"])
    assert read_holders(tree.host) == ((Holder(7, "app", ("/dev/nvidia-uvm", "/dev/nvidiactl")),),
                                       {"nvidia_uvm": 1, "nvidia": 1})


def test_a_file_is_no_device(tree: Tree) -> None:
    (tree.root / "home/dev").mkdir(parents=True)
    (tree.root / "home/dev/nvidia0").touch()
    tree.process(7, opened=[str(tree.root / "home/dev/nvidia0"), "/var/log/nvidia", "/dev/null", "socket:[1]"])
    assert read_holders(tree.host) == ((), {})


def test_a_display_counts_where_the_driver_serves_it(tree: Tree) -> None:
    (tree.root / "sys/class/drm/card0/device").mkdir(parents=True)
    os.symlink("../../bus/pci/drivers/nvidia", tree.root / "sys/class/drm/card0/device/driver")
    tree.process(7, opened=["/dev/dri/card0", "/dev/dri/card1"])
    assert read_holders(tree.host) == ((Holder(7, "app", ("/dev/dri/card0",)),), {"nvidia_drm": 1})


MAPS = """7f00-7f01 rw-s 00000000 00:05 612    /dev/nvidiactl
7f02-7f03 r-xp 00000000 08:01 99     /usr/lib/libcuda.so.1
7f04-7f05 rw-s 00000000 00:05 613    /dev/nvidia-uvm
7f06-7f07 rw-s 00000000 00:05 613    /run/host/dev/nvidia-uvm
7f08-7f09 rw-s 00000000 00:05 613    /home/dev/nvidia notes
7f0a-7f0b rw-p 00000000 00:00 0      [heap]
"""


def test_what_is_mapped_and_closed_explains_a_use(tree: Tree) -> None:
    tree.host.write("/proc/modules", "nvidia_uvm 1 1 - Live 0x0\nnvidia 1 2 nvidia_uvm, Live 0x0\n")
    tree.host.write("/sys/module/nvidia/holders/nvidia_uvm", "")
    tree.process(7, "0::%spod%s/1\n" % (CGROUPFS, UID), maps=MAPS)
    tree.process(8, maps="")
    assert read_mapped(tree.host) == {7: ("/dev/nvidia-uvm", "/dev/nvidiactl")}
    seen = observation._use(tree.host)
    assert seen.holders == (Holder(7, "app", ("/dev/nvidia-uvm", "/dev/nvidiactl"), pod=UID),)
    assert seen.unexplained() == {}


def test_what_is_mapped_and_open_counts_once(tree: Tree) -> None:
    tree.host.write("/proc/modules", "nvidia 1 3 - Live 0x0\n")
    tree.process(7, opened=["/dev/nvidiactl"], maps=MAPS.splitlines()[0] + "\n")
    assert observation._use(tree.host).unexplained() == {"nvidia": 2}


def test_nobody_waits_for_a_process_that_hangs(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(self: Host, argv: Sequence[str], **how: Any) -> None:
        raise CommandTimedOut("host.command_timed_out", found="-", wanted="-", remedy="-")
    monkeypatch.setattr(Host, "run", hangs)
    assert read_mapped(tree.host) == {}


def test_pods_are_seen_by_name_where_the_host_tells_it(tree: Tree) -> None:
    tree.process(7, "0::%spod%s/1\n" % (CGROUPFS, UID), ["/dev/nvidia0"])
    tree.process(8, "0::%spod%s/1\n" % (CGROUPFS, STATIC), ["/dev/nvidia0"])
    tree.process(9, opened=["/dev/nvidia0"])
    (tree.root / ("var/log/pods/team_app_%s" % UID)).mkdir(parents=True)
    assert pods_seen(tree.host) == (STATIC, "team/app")


def test_a_pod_that_has_a_device_mapped_and_closed_is_seen(tree: Tree) -> None:
    """Its mapping keeps the module loaded, and the plan takes it for evicted."""
    tree.process(7, "0::%spod%s/1\n" % (CGROUPFS, UID), maps=MAPS)
    tree.process(8, maps=MAPS)
    assert pods_seen(tree.host) == (UID,)


@pytest.mark.parametrize("resource, device, seen", [
    ("nvidia.com/gpu", "GPU-%s" % UID, True), ("nvidia.com/gpu.shared", "GPU-%s::3" % UID, True),
    ("nvidia.com/mig-1g.10gb", "MIG-%s" % UID, True), ("nvidia.com/a100", "GPU-%s" % UID, True),
    ("nvidia.com/hostdev", "0000:08:00.2", False), ("nvidia.com/GA102GL_A10", "0000:65:00.0", False),
    ("nvidia.com/NVIDIA_A10-4Q", UID, False), ("example.com/gpu", "GPU-%s" % UID, False)])
def test_a_pod_that_was_given_a_gpu_is_seen_and_one_with_another_device_of_nvidias_is_not(
    tree: Tree, resource: str, device: str, seen: bool
) -> None:
    tree.gives(resource, device)
    assert pods_seen(tree.host) == ((UID,) if seen else ())
