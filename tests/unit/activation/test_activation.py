# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Dict, List, Tuple

import pytest
from activation_world import World
from gpu_hosts import A100, facts
from hypothesis import given
from hypothesis import strategies as st
from world import Unit

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import executors, observation, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.observation import (
    FABRIC_MANAGER,
    MODULES_FILE,
    PERSISTENCED,
    UNIT,
    UNIT_FILE,
    Observation,
    Service,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.cdi import boot as cdi_boot
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.approval import differences
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import CONTROL_NODES, UVM_NODES, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.holders import Holder, read_holders
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.mig import RESTORE_UNIT, RESTORE_WANTED

PRESENT, ABSENT = Policy(), Policy(state="absent")
NODES = ("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
FILES = {MODULES_FILE: planner.MODULES_TEXT, UNIT_FILE: planner.UNIT_TEXT}
# As driver 580 writes it
INFORMATION = """Model: \t\t NVIDIA A100-SXM4-80GB
IRQ:   \t\t 201
GPU UUID: \t GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77
Video BIOS: \t 92.00.45.00.06
Bus Type: \t PCIe
DMA Size: \t 47 bits
DMA Mask: \t 0x7fffffffffff
Bus Location: \t 0000:17:00.0
Device Minor: \t %d
GPU Firmware: \t 580.178.04
GPU Excluded:\t No
"""
RUNS = Service(known=True, enabled=True, active=True)
LOADED = {"nvidia": 2, "nvidia_uvm": 0, "nvidia_modeset": 0}
CONVERGED = Observation(modules=LOADED, dependants={"nvidia": ("nvidia_uvm", "nvidia_modeset")}, on_disk=True,
                        nodes=NODES, modprobe=True, files=FILES,
                        services={PERSISTENCED: RUNS, UNIT: Service(True, True, False)})


def driver(installed: str, loaded: str = "", **changes: Any) -> HostFacts:
    known = {"driver_userspace": installed, "driver_loaded": loaded, "control_nodes": CONTROL_NODES if loaded else ()}
    return facts(A100, driver_installed=installed, **{**known, **changes})


def planned(seen: Observation, there: HostFacts, policy: Policy = PRESENT) -> List[Tuple[str, str]]:
    plan = planner.plan(seen, policy, there)
    assert not plan.refusals
    return [(step.action, step.subject) for step in plan.steps]


class TestLoad:
    def test_every_gpu_gets_its_node(self) -> None:
        assert planner.gpu_node_command((0, 1)) == ["nvidia-modprobe", "-c", "0", "-c", "1", "-c", "255"]
        assert "ExecStart=/usr/bin/nvidia-modprobe -u -c 0\n" in planner.UNIT_TEXT

    def test_a_node_of_an_earlier_load_is_made_anew(self) -> None:
        """nvidia-uvm has another major at every load; a run that died after loading it left the former nodes."""
        there = driver("580.178.04", "580.178.04")
        assert planned(CONVERGED, there) == []
        stale = there.but(control_nodes=tuple(node for node in CONTROL_NODES if node not in UVM_NODES))
        assert planned(CONVERGED, stale) == [("devices.create", "unified memory")]

    def test_modules_that_come_meanwhile_by_themselves_are_no_other_plan(self) -> None:
        """udev loads nvidia_modeset for the display half of the driver as soon as the packages bring it."""
        there = driver("580.178.04")
        bare = replace(CONVERGED, modules={}, nodes=())
        approved = planner.plan(bare, PRESENT, there)
        now = replace(bare, modules=dict.fromkeys(("nvidia", "nvidia_modeset"), 0))
        loaded = there.but(driver_loaded="580.178.04")
        assert differences(planner.plan(now, PRESENT, loaded), approved) == ()

    def test_a_gpu_keeps_its_minor_when_one_before_it_is_taken_away(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        for number, minor in ((0x17, 1), (0x18, 10)):
            host.write("/proc/driver/nvidia/gpus/0000:%02x:00.0/information" % number, INFORMATION % minor)
        assert observation._minors(host) == (1, 10)

    @pytest.mark.parametrize("minors", [(0, 1), (1, 10), ()])
    def test_at_boot_the_driver_is_asked_for_its_minors(self, tmp_path: Path, minors: Tuple[int, ...]) -> None:
        (line,) = [line for line in planner.UNIT_TEXT.splitlines() if "/proc/driver/nvidia/gpus/" in line]
        for number, minor in enumerate(minors):
            Host(str(tmp_path)).write("/gpus/0000:%02x:00.0/information" % number, INFORMATION % minor)
        # systemd.service(5): two dollars are one
        command = line.partition("=")[2].replace("$$", "$").replace("/proc/driver/nvidia/gpus", "%s/gpus" % tmp_path)
        argv = shlex.split(command.replace("/usr/bin/nvidia-modprobe", "echo"))
        done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        assert done.stdout.split() == ["-c", "255"] + [word for minor in minors for word in ("-c", str(minor))]

    def test_at_boot_the_nodes_come_before_what_is_written_of_them(self) -> None:
        (before,) = [line for line in planner.UNIT_TEXT.splitlines() if line.startswith("Before=")]
        assert {"nvidia-cdi-refresh.service", "containerd.service", "kubelet.service"} <= set(before[7:].split())
        assert UNIT in next(line for line in cdi_boot.unit_text("x", True, True).splitlines() if "After=" in line)

    def test_at_boot_nothing_waits_for_the_nodes_without_a_limit(self) -> None:
        assert {"JobRunningTimeoutSec=60s", "TimeoutStartSec=50s"} <= set(planner.UNIT_TEXT.splitlines())


class TestExchange:
    there = driver("595.91.07", "580.178.04")

    @given(
        st.sets(st.sampled_from(["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "gdrdrv"])),
        st.dictionaries(st.sampled_from(observation.SERVICES), st.builds(Unit, st.just(True), st.booleans(),
                                                                         st.booleans())),
        st.lists(st.integers(0, 25), max_size=4), st.sampled_from(["", "fabric_manager", "fabric_manager_nvlsm"]),
        st.booleans(),
    )
    def test_killed_anywhere_it_ends_with_the_installed_driver(
        self, modules: set, services: dict, stops: list, fabric: str, divided: bool
    ) -> None:
        host = World(self.there.but(fabric=fabric), files=dict(FILES), units={**services, UNIT: Unit(True, True)},
                     modules=dict.fromkeys([*sorted(modules), "nvidia"], 0), others={"gdrdrv": ""}, nodes=NODES,
                     modprobe=True, divided=divided, instances=divided)
        before, ran = set(host.modules), {name for name, unit in services.items() if unit.active}
        for stop in stops:
            plan = host.plan(PRESENT)
            host.apply(replace(plan, steps=plan.steps[:stop]))
        host.apply(host.plan(PRESENT))
        assert host.facts.driver_loaded == "595.91.07"
        assert before <= set(host.modules) and host.instances == divided
        assert ran <= {name for name, unit in host.units.items() if unit.active}
        assert host.plan(PRESENT).steps == ()


class TestHost:
    def test_nodes_go_with_the_directory_that_held_them(self, tmp_path: Path) -> None:
        nodes = ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap1")
        for name in nodes + ("/dev/null",):
            (tmp_path / name[1:]).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name[1:]).touch()
        host = Host(str(tmp_path))
        step = Step("activation", "devices.remove", "GPUs", "", change={"before": dict.fromkeys(nodes, "node")})
        executors.remove_nodes(host, Journal(host), step)
        assert host.list("/dev") == ["null"]

    def test_holders_are_found_with_unit_or_pod(self, tmp_path: Path) -> None:
        processes = {
            7: ("nvidia-persiste", "1:name=systemd:/system.slice/nvidia-persistenced.service\n", "/dev/nvidia0"),
            8: ("gpu-app", "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-"
                "pod8f0f5c0e_0000_4000_8000_123456789abc.slice/cri-containerd-1.scope\n", "/dev/nvidia1"),
            9: ("bash", "0::/user.slice\n", "/dev/null"),
        }
        for pid, (command, groups, device) in processes.items():
            directory = tmp_path / "proc" / str(pid)
            (directory / "fd").mkdir(parents=True)
            (directory / "comm").write_text(command + "\n")
            (directory / "cgroup").write_text(groups)
            os.symlink(device, directory / "fd" / "3")
            os.symlink(device, directory / "fd" / "4")
        assert read_holders(Host(str(tmp_path))) == ((
            Holder(7, "nvidia-persiste", ("/dev/nvidia0",), unit=PERSISTENCED),
            Holder(8, "gpu-app", ("/dev/nvidia1",), pod="8f0f5c0e-0000-4000-8000-123456789abc"),
        ), {"nvidia": 4})

    def test_who_uses_a_module_is_counted(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        host.write("/proc/modules", "nvidia_drm 1 4 - Live 0x0\nnvidia_uvm 1 1 - Live 0x0\n"
                                    "nvidia 1 4 nvidia_uvm,zfs_gds, Live 0x0\n")
        for name, others in (("nvidia", ("nvidia_uvm", "zfs_gds")), ("nvidia_drm", ())):
            for other in others:
                host.write("/sys/module/%s/holders/%s" % (name, other), "")
        for number, device in enumerate(("/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dri/card0",
                                         "/dev/dri/card1"), 3):
            (tmp_path / "proc/7/fd").mkdir(parents=True, exist_ok=True)
            os.symlink(device, tmp_path / "proc/7/fd" / str(number))
        for card, served in (("card0", "nvidia"), ("card1", "ast")):
            (tmp_path / "sys/class/drm" / card / "device").mkdir(parents=True)
            os.symlink("../../bus/pci/drivers/" + served, tmp_path / "sys/class/drm" / card / "device/driver")
        seen = observation._use(host)
        assert seen.opened == {"nvidia": 2, "nvidia_uvm": 1, "nvidia_drm": 1}
        assert seen.unexplained() == {"nvidia_drm": 3}
        assert planner._busy(seen, replace(PRESENT, assume_pods_evicted=True)) == [
            "a process (pid 7) has /dev/dri/card0, /dev/nvidia-uvm, /dev/nvidia0, /dev/nvidiactl open",
            "kernel module zfs_gds uses nvidia", "nvidia_drm is used by a console or a display"]

    @pytest.mark.parametrize("listed, made, built", [
        ("", 0, None),
        ("updates/dkms/nvidia-fs.ko.xz:\n", 1, "595.91.07"),
        ("updates/dkms/nvidia-fs.ko.xz:\n", -1, ""),
    ])
    def test_whether_another_module_was_built_after_the_driver(
        self, tmp_path: Path, listed: str, made: int, built: Any
    ) -> None:
        class Kmod(Host):
            def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
                return CommandResult(argv, 0, "version: 595.91.07\n", "")

        host, there = Kmod(str(tmp_path)), driver("595.91.07")
        directory = "/lib/modules/%s/" % there.kernel
        host.write(directory + "modules.dep", "updates/dkms/nvidia.ko:\n" + listed)
        for name, when in (("nvidia.ko", 0), ("nvidia-fs.ko.xz", made)):
            host.write(directory + "updates/dkms/" + name, "")
            os.utime(host.path(directory + "updates/dkms/" + name), (1000 + when, 1000 + when))
        assert observation._built_after(host, there, "nvidia_fs") == built

    def test_loaded_modules_and_their_use(self, tmp_path: Path) -> None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "modules").write_text(
            "nvidia_uvm 5701 3 - Live 0x0 (OE)\nnvidia 13301 2 nvidia_uvm, Live 0x0 (OE)\noverlay 1 0 - Live 0x0\n")
        assert observation._modules(Host(str(tmp_path))) == {"nvidia_uvm": 3, "nvidia": 2}

    def test_the_node_of_gdrcopy_has_the_number_that_its_module_registered(self, tmp_path: Path) -> None:
        class Devices(Host):
            number = 507

            def stat(self, name: str) -> Any:
                return SimpleNamespace(st_mode=0o020666, st_rdev=os.makedev(self.number, 0))

        host, listing = Devices(str(tmp_path)), tmp_path / "proc/devices"
        assert not observation._leads_to(host, "gdrdrv")
        listing.parent.mkdir()
        listing.write_text("Character devices:\n  1 mem\n507 gdrdrv\n508 gdrdrv2\n\nBlock devices:\n  7 loop\n")
        assert observation._leads_to(host, "gdrdrv")
        host.number = 508
        assert not observation._leads_to(host, "gdrdrv")
        (tmp_path / "mknod").write_text("#!/bin/sh\necho $* >%s/made\n" % tmp_path)
        (tmp_path / "mknod").chmod(0o755)
        words = [word.replace("/proc/", "%s/proc/" % tmp_path).replace("/dev/", "%s/dev/" % tmp_path)
                 for word in planner.GDRDRV_NODE_COMMAND]
        told = {**os.environ, "PATH": "%s:%s" % (tmp_path, os.environ["PATH"])}
        assert subprocess.run(words, env=told).returncode == 0
        assert (tmp_path / "made").read_text() == "-m 666 %s/dev/gdrdrv c 507 0\n" % tmp_path
        listing.write_text("Character devices:\n  1 mem\n")
        assert subprocess.run(words, env=told).returncode != 0

    @pytest.mark.parametrize("said, meaning", [
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot is on"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "no GPU of this host"),
        ("modprobe: ERROR: could not insert 'nvidia': Exec format error", "another kernel"),
        ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1", "no module for the running kernel"),
    ])
    def test_what_the_kernel_says_is_explained(self, tmp_path: Path, said: str, meaning: str) -> None:
        host = Host(str(tmp_path))
        plan = planner.plan(Observation(on_disk=True), PRESENT, driver("580.178.04"))
        step = next(step for step in plan.steps if step.action == "module.load")
        step = replace(step, parameters={"argv": ["sh", "-c", 'echo "$1" >&2; exit 1', "sh", said], "timeout": 5})
        with pytest.raises(GpuOpsError) as caught:
            executors.load_module(host, Journal(host), step)
        assert meaning in caught.value.found and said in caught.value.found
        assert caught.value.remedy

    def test_what_was_unloaded_is_remembered_until_it_is_loaded(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        journal = Journal(host)
        unload = Step("activation", "module.unload", "nvidia_drm", "", parameters={"argv": ["true"], "timeout": 5})
        executors.unload_module(host, journal, unload)
        assert journal.recall("activation") == {"unloaded": ["nvidia_drm"], "boot": host.boot()}
        executors.load_module(host, journal, replace(unload, action="module.load"))
        assert journal.recall("activation") == {}

    def test_what_a_stopped_transaction_is_to_bring_counts_as_there(self, tmp_path: Path) -> None:
        """The half of a driver is on the disk, and the plan is the one that was made for none of it."""
        host = Host(str(tmp_path))
        journal = Journal(host)
        install = packages_step("driver", "driver", {}, {"nvidia-modprobe": "1", "nvidia-persistenced": "1"}, "a test",
                                manager="apt", request={"nvidia-modprobe": "1"})
        half = HostFacts(driver_userspace="580.178.04")
        journal.note("started", install, "")
        seen = observation.observe(host, journal, PRESENT, half)
        assert seen.modprobe and seen.services[PERSISTENCED] == Service(known=True, enabled=True)
        journal.note("done", install, "")
        seen = observation.observe(host, journal, PRESENT, half)
        assert not seen.modprobe and not seen.services.get(PERSISTENCED, Service()).known

    def test_a_layout_that_goes_with_the_driver_is_remembered_until_it_is_there(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        journal = Journal(host)
        host.write(RESTORE_WANTED, "")
        unload = Step("activation", "module.unload", "nvidia", "", parameters={"argv": ["true"], "timeout": 5})
        executors.unload_module(host, journal, unload)
        executors.load_module(host, journal, replace(unload, action="module.load"))
        seen = observation.observe(host, journal, PRESENT, HostFacts())
        assert seen.divided and seen.undivided
        executors.restore_layout(host, journal, Step("activation", planner.DIVIDE, RESTORE_UNIT, ""))
        assert journal.recall("activation") == {}

    def test_what_a_boot_has_ended_is_not_brought_back_later(self, tmp_path: Path) -> None:
        """A cut in the midst of an exchange; after the boot all runs, and months later the administrator stops it."""
        host = Host(str(tmp_path))
        journal = Journal(host)
        noted = {"stopped": ["nvidia-dcgm.service"], "unloaded": ["nvidia_drm"], "enabled": [PERSISTENCED]}
        journal.remember("activation", dict(noted, boot=host.boot()))
        seen = observation.observe(host, journal, PRESENT, HostFacts())
        assert (seen.stopped, seen.unloaded) == (("nvidia-dcgm.service",), ("nvidia_drm",))
        journal.remember("activation", dict(noted, boot="another"))
        seen = observation.observe(host, journal, PRESENT, HostFacts())
        assert (seen.stopped, seen.unloaded, seen.enabled) == ((), (), (PERSISTENCED,))
        unload = Step("activation", "module.unload", "nvidia_uvm", "", parameters={"argv": ["true"], "timeout": 5})
        executors.unload_module(host, journal, unload)
        assert journal.recall("activation") == {"unloaded": ["nvidia_uvm"], "enabled": [PERSISTENCED],
                                                "boot": host.boot()}


@pytest.mark.parametrize(("answers", "enabled"), [
    # All at once, in order
    ({(PERSISTENCED, UNIT): "disabled\nenabled\n"}, {UNIT}),
    # The manager still has a unit whose file is gone: the answer has a line less, so each is asked
    ({(PERSISTENCED, UNIT): "enabled\n", (PERSISTENCED,): "", (UNIT,): "enabled\n"}, {UNIT}),
])
def test_a_unit_that_systemd_has_not_read_yet_is_known_by_its_file(
    tmp_path: Path, answers: Dict[Tuple[str, ...], str], enabled: Any
) -> None:
    class Systemd(Host):
        def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
            if argv[1] == "is-enabled":
                return CommandResult(argv, 1, answers[tuple(argv[2:])], "")
            return CommandResult(argv, 0, "\n\n".join("Id=%s\nLoadState=%s\nActiveState=inactive" % (
                name, "loaded" if name == PERSISTENCED else "not-found") for name in argv[4:]), "")

    host = Systemd(str(tmp_path))
    host.write(UNIT_FILE, "")
    seen = observation._services(host)
    assert {name for name, state in seen.items() if state.known} == {PERSISTENCED, UNIT}
    assert {name for name, state in seen.items() if state.enabled} == enabled


@pytest.mark.skipif(shutil.which("systemctl") is None, reason="needs systemctl")
@pytest.mark.parametrize("more, steps", [("", []), ("[Install]\nWantedBy=multi-user.target\n", ["service.enable"])])
def test_a_unit_that_cannot_be_enabled_is_not_to_be(tmp_path: Path, more: str, steps: List[str]) -> None:
    """Ubuntu's nvidia-persistenced.service, which a udev rule starts: 'enable' of it ends with 0 and does nothing."""
    class Systemd(Host):
        def run(self, argv: Any, *words: Any, **options: Any) -> CommandResult:
            if argv[1] == "is-enabled":
                return super().run([argv[0], "--root=" + self.root, *argv[1:]], *words, **options)
            said = "Id=%s\nLoadState=loaded\nActiveState=active\nSubState=running\n" % PERSISTENCED
            return CommandResult(argv, 0, said, "")

    host = Systemd(str(tmp_path))
    host.write("/usr/lib/systemd/system/" + PERSISTENCED,
               "[Unit]\nStopWhenUnneeded=true\n[Service]\nType=forking\nExecStart=/usr/bin/true\n" + more)
    services = {**observation._services(host), UNIT: CONVERGED.services[UNIT]}
    there = planned(replace(CONVERGED, services=services), driver("580.178.04", "580.178.04"))
    assert [action for action, _subject in there] == steps


@pytest.mark.parametrize("said, state", [
    ("ActiveState=active\nSubState=running\nActiveEnterTimestampMonotonic=5", Service(True, True, True)),
    ("ActiveState=activating\nSubState=start\nActiveEnterTimestampMonotonic=0", Service(True, True, True)),
    ("ActiveState=inactive\nSubState=dead\nActiveEnterTimestampMonotonic=5", Service(True, True)),
    ("ActiveState=failed\nSubState=failed\nActiveEnterTimestampMonotonic=0", Service(True, True)),
    ("ActiveState=activating\nSubState=auto-restart\nActiveEnterTimestampMonotonic=0", Service(True, True)),
    ("ActiveState=failed\nSubState=failed\nActiveEnterTimestampMonotonic=5", Service(True, True, died=True)),
    ("ActiveState=activating\nSubState=auto-restart\nActiveEnterTimestampMonotonic=5", Service(True, True, died=True)),
])
def test_whether_a_unit_runs(tmp_path: Path, said: str, state: Service) -> None:
    class Systemd(Host):
        def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
            if argv[1] == "is-enabled":
                return CommandResult(argv, 0, "enabled\n", "")
            return CommandResult(argv, 0, "Id=%s\nLoadState=loaded\n%s\n" % (FABRIC_MANAGER, said), "")

    assert observation._services(Systemd(str(tmp_path))) == {FABRIC_MANAGER: state}


@pytest.mark.parametrize("packages, ours", [
    ({"nvidia-kernel-open-dkms": PackageChange(None, "580.178.04-1")}, True),
    ({"nvidia-kernel-open-dkms": PackageChange("570.1-1", "580.178.04-1")}, False),
    ({"dkms": PackageChange(None, "3")}, False),
    ({}, False),
])
def test_a_driver_whose_packages_came_through_us_is_ours_to_unload(
    tmp_path: Path, packages: Dict[str, PackageChange], ours: bool
) -> None:
    host = Host(str(tmp_path))
    journal = Journal(host)
    journal.set_packages("driver", packages)
    assert observation.observe(host, journal, PRESENT, HostFacts()).ours is ours
