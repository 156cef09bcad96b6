# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from driver_world import A100, facts
from hypothesis import given
from hypothesis import strategies as st

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import CONTROL_NODES, Gpu, HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Done, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.activation import executors, observation, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.activation.observation import (
    FABRIC_MANAGER,
    MODULES_FILE,
    PERSISTENCED,
    UNIT,
    UNIT_FILE,
    Holder,
    Observation,
    Service,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.activation.policy import Policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.cdi import boot as cdi_boot

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
    return facts(A100, driver_installed=installed, driver_userspace=installed, driver_loaded=loaded, **changes)


def planned(seen: Observation, there: HostFacts, policy: Policy = PRESENT) -> List[Tuple[str, str]]:
    plan = planner.plan(seen, policy, there)
    assert not plan.refusals
    return [(step.action, step.subject) for step in plan.steps]


def applied(seen: Observation, there: HostFacts, steps: Tuple[Step, ...]) -> Tuple[Observation, HostFacts]:
    """What is there once the steps are done."""
    modules, services = dict(seen.modules), dict(seen.services)
    notes: Dict[str, List[str]] = {"stopped": list(seen.stopped), "unloaded": list(seen.unloaded),
                                   "enabled": list(seen.enabled)}
    files, originals, nodes = dict(seen.files), dict(seen.originals), list(seen.nodes)
    for step in steps:
        noun, verb = step.action.split(".")
        state = services.get(step.subject, Service(known=True))
        if step.action == "module.load":
            modules[step.subject] = 0
            notes["unloaded"] = [name for name in notes["unloaded"] if name != step.subject]
            if step.subject == "nvidia":
                there = there.but(driver_loaded=there.driver_installed, module_loaded=there.module_installed)
        elif step.action == "module.unload":
            modules.pop(step.subject)
            notes["unloaded"].append(step.subject)
            if step.subject == "nvidia":
                there = there.but(driver_loaded="", module_loaded="")
        elif noun == "service":
            services[step.subject] = replace(state, known=True, **{
                "start": {"active": True}, "stop": {"active": False}, "enable": {"enabled": True},
                "disable": {"enabled": False}}[verb])
            if verb == "stop":
                notes["stopped"].append(step.subject)
            elif verb == "enable":
                notes["enabled"].append(step.subject)
            else:
                key = "stopped" if verb == "start" else "enabled"
                notes[key] = [name for name in notes[key] if name != step.subject]
        elif step.action == "devices.create":
            nodes += [name for name in step.change["after"] if name not in nodes]
        elif step.action == "devices.remove":
            nodes = [name for name in nodes if name not in step.change["before"]]
        elif step.action == "file.write":
            originals.setdefault(step.subject, files.get(step.subject))
            files[step.subject] = step.change["after"]
        elif step.action == "file.restore":
            files[step.subject] = originals.pop(step.subject)
            notes["stopped"], notes["unloaded"] = [], []
        else:
            raise AssertionError(step.action)
    return replace(seen, modules=modules, services=services, nodes=tuple(nodes), files=files, originals=originals,
                   on_disk=True, modprobe=True,
                   **{key: tuple(dict.fromkeys(value)) for key, value in notes.items()}), there


class TestLoad:
    def test_an_installed_driver_is_loaded(self) -> None:
        seen = Observation(on_disk=True, modprobe=True, services={PERSISTENCED: Service(True, True, False)})
        assert planned(seen, driver("580.178.04")) == [
            ("file.write", MODULES_FILE), ("file.write", UNIT_FILE), ("service.enable", UNIT),
            ("module.load", "nvidia"), ("module.load", "nvidia_uvm"), ("module.load", "nvidia_modeset"),
            ("devices.create", "GPUs"), ("devices.create", "unified memory"), ("devices.create", "mode setting"),
            ("service.start", PERSISTENCED)]
        assert planner.plan(seen, PRESENT, driver("580.178.04")).disruption is Disruption.none

    def test_the_plan_for_a_bare_host_is_that_of_the_installed_one(self) -> None:
        installed = Observation(on_disk=True, modprobe=True, services={
            PERSISTENCED: Service(True, True, False), FABRIC_MANAGER: Service(True, False, False)})
        there = driver("580.178.04", fabric="fabric_manager")
        assert planner.plan(Observation(), PRESENT, there) == planner.plan(installed, PRESENT, there)
        assert ("service.enable", FABRIC_MANAGER) in planned(installed, there)

    def test_a_converged_host_is_left_alone(self) -> None:
        assert planned(CONVERGED, driver("580.178.04", "580.178.04")) == []

    @pytest.mark.parametrize("change, steps", [
        ({"modules": {"nvidia": 0}}, [("module.load", "nvidia_uvm"), ("module.load", "nvidia_modeset")]),
        ({"nodes": NODES[:2]}, [("devices.create", "unified memory"), ("devices.create", "mode setting")]),
        ({"nodes": NODES[:4]}, [("devices.create", "mode setting")]),
        ({"nodes": NODES[1:]}, [("devices.create", "GPUs")]),
        ({"services": {UNIT: Service(True, True), PERSISTENCED: Service(True, False, False)}},
         [("service.enable", PERSISTENCED), ("service.start", PERSISTENCED)]),
        ({"services": {UNIT: Service(True, True)}}, []),
        ({"modprobe": False, "nodes": (), "files": {MODULES_FILE: planner.MODULES_TEXT}}, []),
    ])
    def test_what_is_missing_is_planned(self, change: Dict[str, Any], steps: list) -> None:
        assert planned(replace(CONVERGED, **change), driver("580.178.04", "580.178.04")) == steps

    def test_nothing_is_loaded_over_nouveau(self) -> None:
        plan = planner.plan(CONVERGED, PRESENT, driver("580.178.04", nouveau_loaded=True))
        assert (plan.steps, [each.kind for each in plan.requirements]) == ((), ["reboot"])

    @pytest.mark.parametrize("there", [
        driver("580.178.04", nouveau_loaded=True), driver("595.91.07", "580.178.04")])
    def test_a_plan_that_ends_with_a_reboot_leaves_nothing_to_do_after_it(self, there: HostFacts) -> None:
        seen = Observation(on_disk=True, modprobe=True, services={PERSISTENCED: Service(True, False, False)},
                           holders=(Holder(42, "Xorg", ("/dev/nvidia0",), "display.service"),))
        plan = planner.plan(seen, PRESENT, there)
        assert plan.reboot_required and ("service.enable", PERSISTENCED) in planned(seen, there)
        seen, there = applied(seen, there, plan.steps)
        booted = replace(seen, modules=LOADED, nodes=CONVERGED.nodes, holders=(), services={
            unit: replace(state, active=state.enabled) for unit, state in seen.services.items()})
        there = there.but(driver_loaded=there.driver_installed, nouveau_loaded=False)
        assert planner.plan(booted, PRESENT, there).steps == ()

    def test_a_host_without_gpu_is_refused(self) -> None:
        assert planner.plan(Observation(), PRESENT, facts()).refusals[0].found.startswith("no NVIDIA GPU")

    def test_a_host_without_driver_is_told_so_before_any_change(self) -> None:
        plan = planner.plan(Observation(), PRESENT, facts(A100))
        assert (plan.steps, [each.id for each in plan.requirements]) == (
            (), ["activation/driver/kernel %s" % facts(A100).kernel])

    def test_every_gpu_gets_its_node(self) -> None:
        assert planner.gpu_node_command((0, 1)) == ["nvidia-modprobe", "-c", "0", "-c", "1", "-c", "255"]
        assert "ExecStart=/usr/bin/nvidia-modprobe -u -c 0\n" in planner.UNIT_TEXT

    def test_a_gpu_keeps_its_minor_when_one_before_it_is_taken_away(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        for number, minor in ((0x17, 1), (0x18, 10)):
            host.write("/proc/driver/nvidia/gpus/0000:%02x:00.0/information" % number, INFORMATION % minor)
        assert observation._minors(host) == (1, 10)
        seen = replace(CONVERGED, minors=(1, 10), nodes=("/dev/nvidia1", *NODES[1:]))
        (step,) = planner.plan(seen, PRESENT, driver("580.178.04", "580.178.04")).steps
        assert step.change["after"] == {"/dev/nvidia10": "node"}
        assert step.parameters["argv"] == ["nvidia-modprobe", "-c", "1", "-c", "10", "-c", "255"]
        (made,) = [step for step in planner.plan(seen, PRESENT, driver("595.91.07", "580.178.04")).steps
                   if step.subject == "GPUs"]
        assert made.parameters["argv"] == ["nvidia-modprobe", "-c", "0", "-c", "255"], "a driver that is loaded anew"

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

    def test_the_facts_of_later_have_the_nodes_that_are_made(self) -> None:
        there = driver("580.178.04")
        made = planner.plan(Observation(on_disk=True, modprobe=True), PRESENT, there)
        assert planner.facts_after(PRESENT, there, made).control_nodes == CONTROL_NODES
        unmade = planner.plan(Observation(on_disk=True), PRESENT, there)
        assert planner.facts_after(PRESENT, there, unmade).control_nodes == ()

    def test_nothing_is_done_with_a_driver_that_hangs(self) -> None:
        there = driver("595.91.07", "580.178.04").but(hung="nvmlDeviceGetHandleByIndex of GPU 3")
        (refusal,) = planner.plan(CONVERGED, PRESENT, there).refusals
        assert "nvmlDeviceGetHandleByIndex of GPU 3" in refusal.found and "reboot" in refusal.remedy

    def test_a_host_whose_gpus_are_passed_through_is_told_so(self) -> None:
        there = facts().but(other_gpus=(Gpu("0000:17:00.0", A100, "passed_through"),))
        (refusal,) = planner.plan(Observation(), PRESENT, there).refusals
        assert "0000:17:00.0 (10de:20b2) is passed through" in refusal.found


class TestExchange:
    there = driver("595.91.07", "580.178.04")

    def test_services_and_modules_make_way_and_come_back(self) -> None:
        seen = replace(CONVERGED, holders=(Holder(7, "nvidia-persiste", ("/dev/nvidia0",), PERSISTENCED),),
                       modules=dict(LOADED, nvidia_drm=0))
        assert planned(seen, self.there) == [
            ("service.stop", PERSISTENCED),
            ("module.unload", "nvidia_uvm"), ("module.unload", "nvidia_drm"), ("module.unload", "nvidia_modeset"),
            ("module.unload", "nvidia"),
            ("module.load", "nvidia"), ("module.load", "nvidia_uvm"), ("module.load", "nvidia_modeset"),
            ("devices.create", "GPUs"), ("devices.create", "unified memory"), ("devices.create", "mode setting"),
            ("service.start", PERSISTENCED), ("module.load", "nvidia_drm")]
        plan = planner.plan(seen, PRESENT, self.there)
        assert {step.disruption for step in plan.steps} == {Disruption.driver_reload}

    @pytest.mark.parametrize("kinds", [("open", "proprietary"), ("proprietary", "open")])
    def test_the_other_module_of_the_same_version_is_an_exchange_too(self, kinds: Tuple[str, str]) -> None:
        there = driver("580.178.04", "580.178.04", module_loaded=kinds[0], module_installed=kinds[1])
        plan = planner.plan(CONVERGED, PRESENT, there)
        assert [(step.action, step.subject) for step in plan.steps] == planned(CONVERGED, self.there)
        assert plan.disruption is Disruption.driver_reload
        assert plan.steps[1].change["before"] == {"nvidia_uvm": "580.178.04 (%s)" % kinds[0]}
        assert planner.facts_after(PRESENT, there, plan).module_loaded == kinds[1]
        after, later = applied(CONVERGED, there, plan.steps)
        assert planner.plan(after, PRESENT, later).steps == ()

    def test_a_module_that_does_not_say_which_it_is_is_taken_for_the_right_one(self) -> None:
        for loaded, installed in (("", "open"), ("open", "")):
            there = driver("580.178.04", "580.178.04", module_loaded=loaded, module_installed=installed)
            assert planned(CONVERGED, there) == []

    def test_a_busy_driver_is_exchanged_for_the_other_module_by_a_reboot(self) -> None:
        seen = replace(CONVERGED, holders=(Holder(9, "python3", ("/dev/nvidia0",), "trainer.service"),))
        there = driver("580.178.04", "580.178.04", module_loaded="proprietary", module_installed="open")
        (needed,) = planner.plan(seen, PRESENT, there).requirements
        assert needed.change == {"before": {"nvidia": "580.178.04 (proprietary)"},
                                 "after": {"nvidia": "580.178.04 (open)"}}

    def test_a_daemon_that_died_of_the_mismatch_makes_no_other_plan(self) -> None:
        """Its package restarts it between the plan and the exchange, and it fails: the plan must stand."""
        died = replace(CONVERGED, services={PERSISTENCED: Service(True, True, False), UNIT: Service(True, True)})
        assert planner.plan(died, PRESENT, self.there) == planner.plan(CONVERGED, PRESENT, self.there)

    def test_what_is_enabled_and_does_not_run_stays_as_it_is(self) -> None:
        """A Fabric Manager is enabled by its package and fails where there are no NVSwitches."""
        idle = replace(CONVERGED, services=dict(CONVERGED.services, **{
            FABRIC_MANAGER: Service(True, True, False), "nvidia-dcgm.service": Service(True, True, False)}))
        assert planner.plan(idle, PRESENT, self.there) == planner.plan(CONVERGED, PRESENT, self.there)
        wanted = planned(idle, self.there.but(fabric="fabric_manager"))
        assert ("service.stop", FABRIC_MANAGER) in wanted and ("service.start", FABRIC_MANAGER) in wanted
        unwanted = planned(replace(CONVERGED, services={PERSISTENCED: Service(True, True, False)}), self.there,
                           replace(PRESENT, persistence=False))
        assert not any(subject == PERSISTENCED for _action, subject in unwanted)

    def test_what_ran_until_its_user_space_was_exchanged_comes_back(self) -> None:
        dcgm = "nvidia-dcgm.service"
        runs, died = (replace(CONVERGED, services=dict(CONVERGED.services, **{dcgm: state}))
                      for state in (RUNS, Service(True, True, False, died=True)))
        assert planner.plan(died, PRESENT, self.there) == planner.plan(runs, PRESENT, self.there)
        assert ("service.start", dcgm) in planned(died, self.there)

    def test_modules_of_others_come_after_nodes_and_services(self) -> None:
        """One that was not rebuilt for the new driver must not leave the daemons down."""
        seen = replace(CONVERGED, modules=dict(LOADED, gdrdrv=0, nvidia_peermem=0), others={"gdrdrv": ""})
        steps = planned(seen, self.there)
        assert steps[-3:] == [("service.start", PERSISTENCED), ("module.load", "nvidia_peermem"),
                              ("module.load", "gdrdrv")]
        (note,) = planner.plan(seen, PRESENT, self.there).notes
        assert "gdrdrv was not built after driver 595.91.07" in note
        rebuilt = replace(seen, others={"gdrdrv": "595.91.07"})
        assert planner.plan(rebuilt, PRESENT, self.there).notes == ()

    def test_a_module_of_others_that_is_not_on_disk_is_named_before_the_exchange(self) -> None:
        seen = replace(CONVERGED, modules=dict(LOADED, gdrdrv=0), others={"gdrdrv": None})
        assert ("module.unload", "gdrdrv") in planned(seen, self.there)
        assert ("module.load", "gdrdrv") not in planned(seen, self.there)
        assert "no such module on disk" in planner.plan(seen, PRESENT, self.there).notes[0]

    @pytest.mark.parametrize("changes, said", [
        ({"dependants": {"nvidia": ("nvidia_uvm", "nvidia_modeset", "zfs_gds")}, "modules": dict(LOADED, nvidia=3)},
         "kernel module zfs_gds uses nvidia"),
        ({"modules": dict(LOADED, nvidia=5), "opened": {"nvidia": 1}}, "nvidia is in use 2 times more"),
        ({"modules": dict(LOADED, nvidia_drm=1), "opened": {"nvidia": 1},
          "holders": (Holder(7, "nvidia-persiste", ("/dev/nvidia0",), PERSISTENCED),)},
         "nvidia_drm is used by a console or a display"),
    ])
    def test_an_exchange_that_cannot_succeed_is_not_planned(self, changes: Dict[str, Any], said: str) -> None:
        plan = planner.plan(replace(CONVERGED, **changes), PRESENT, self.there)
        assert plan.steps == () and plan.reboot_required
        assert said in plan.requirements[0].why

    def test_pods_that_will_have_left_do_not_hold_it(self) -> None:
        pod = Holder(42, "gpu-app", ("/dev/nvidia0",), pod="8f0f5c0e-0000-4000-8000-123456789abc")
        drained = replace(PRESENT, pods_leave=True)
        alone = planner.plan(CONVERGED, PRESENT, self.there)
        assert planner.plan(replace(CONVERGED, holders=(pod,)), drained, self.there) == alone
        stranger = replace(CONVERGED, holders=(pod, Holder(43, "python3", ("/dev/nvidia0",), "train.service")))
        assert planner.plan(stranger, drained, self.there).disruption is Disruption.reboot

    @pytest.mark.parametrize("holder, named", [
        (Holder(42, "python3", ("/dev/nvidia0",), "train.service"), "python3 (pid 42, train.service)"),
        (Holder(42, "gpu-app", ("/dev/nvidia0",), pod="8f0f5c0e-0000-4000-8000-123456789abc"),
         "gpu-app (pid 42, pod 8f0f5c0e-0000-4000-8000-123456789abc)"),
    ])
    def test_everything_else_is_named_and_needs_a_reboot(self, holder: Holder, named: str) -> None:
        plan = planner.plan(replace(CONVERGED, holders=(holder,)), PRESENT, self.there)
        assert (plan.steps, plan.reboot_required) == ((), True)
        assert named in plan.requirements[0].why and "580.178.04" in plan.requirements[0].why

    def test_a_console_on_the_driver_needs_a_reboot(self) -> None:
        plan = planner.plan(replace(CONVERGED, modules=dict(LOADED, nvidia_drm=1)), PRESENT, self.there)
        assert plan.disruption is Disruption.reboot

    @given(
        st.sets(st.sampled_from(["nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "gdrdrv"])),
        st.dictionaries(st.sampled_from(observation.SERVICES), st.builds(Service, st.just(True), st.booleans(),
                                                                         st.booleans())),
        st.lists(st.integers(0, 25), max_size=4), st.sampled_from(["", "fabric_manager", "fabric_manager_nvlsm"]),
    )
    def test_killed_anywhere_it_ends_with_the_installed_driver(
        self, modules: set, services: dict, stops: list, fabric: str
    ) -> None:
        seen = replace(CONVERGED, modules=dict.fromkeys(sorted(modules) + ["nvidia"], 0),
                       services=dict(services, **{UNIT: Service(True, True)}), others={"gdrdrv": ""})
        there, ran = self.there.but(fabric=fabric), {unit for unit, state in services.items() if state.active}
        before = set(seen.modules)
        for stop in stops:
            seen, there = applied(seen, there, planner.plan(seen, PRESENT, there).steps[:stop])
        seen, there = applied(seen, there, planner.plan(seen, PRESENT, there).steps)
        assert there.driver_loaded == "595.91.07"
        assert before <= set(seen.modules)
        assert ran <= {unit for unit, state in seen.services.items() if state.active}
        assert planner.plan(seen, PRESENT, there).steps == ()


class TestGoneKernel:
    """The running kernel's package was removed or replaced: nothing can be loaded before a reboot."""

    there = facts(A100, kernel="6.1.0-49-amd64", boot_kernel="6.1.0-50-amd64", driver_boots="580.178.04",
                  driver_userspace="580.178.04")

    def test_the_driver_of_the_kernel_that_boots_next_comes_by_a_reboot(self) -> None:
        plan = planner.plan(Observation(modprobe=True, on_disk=True), PRESENT, self.there)
        assert [(step.action, step.subject) for step in plan.steps] == [
            ("file.write", MODULES_FILE), ("file.write", UNIT_FILE), ("service.enable", UNIT)], "the boot does the rest"
        assert plan.reboot_required
        assert "kernel 6.1.0-50-amd64, which boots next" in plan.requirements[0].why
        after = planner.facts_after(PRESENT, self.there, plan)
        assert (after.kernel, after.driver_loaded) == ("6.1.0-50-amd64", "580.178.04")
        assert "/dev/nvidia-uvm" in after.control_nodes

    def test_without_a_driver_for_it_one_must_be_installed(self) -> None:
        there = self.there.but(driver_boots="")
        plan = planner.plan(Observation(modprobe=True), PRESENT, there)
        assert [each.kind for each in plan.requirements] == ["driver"]
        assert planner.facts_after(PRESENT, there, plan).driver_loaded == "", "no promise of a driver"

    def test_what_is_loaded_and_needs_nothing_more_goes_on(self) -> None:
        there = self.there.but(driver_loaded="580.178.04")
        plan = planner.plan(CONVERGED, PRESENT, there)
        assert (plan.steps, plan.requirements) == ((), ())
        assert "before a reboot into kernel 6.1.0-50-amd64, which has driver 580.178.04" in plan.notes[0]
        assert planner.facts_after(PRESENT, there, plan) == there
        other = there.but(module_loaded="proprietary", module_installed="open")
        assert planner.plan(CONVERGED, PRESENT, other).reboot_required
        lacking = replace(CONVERGED, modules={"nvidia": 0}, dependants={})
        assert planner.plan(lacking, PRESENT, there).reboot_required


class TestAbsent:
    def test_what_was_ours_is_taken_back(self) -> None:
        bare = Observation(on_disk=True, modprobe=True, services={PERSISTENCED: Service(True, True, False)},
                           files={MODULES_FILE: None, UNIT_FILE: None})
        seen, there = applied(bare, driver("580.178.04"), planner.plan(bare, PRESENT, driver("580.178.04")).steps)
        seen, there = applied(seen, there, planner.plan(seen, ABSENT, there).steps)
        assert (seen.modules, seen.files, seen.originals, seen.nodes) == ({}, bare.files, {}, ())
        assert not seen.services[UNIT].enabled
        assert planner.plan(seen, ABSENT, there) == Plan()

    def test_a_driver_that_others_loaded_stays(self) -> None:
        assert planned(replace(CONVERGED, originals={}), driver("580.178.04", "580.178.04"), ABSENT) == []

    def test_nodes_that_outlived_an_unloaded_driver_go(self) -> None:
        seen = replace(CONVERGED, modules={}, originals={MODULES_FILE: None})
        assert planned(seen, driver("580.178.04"), ABSENT)[0][:2] == ("devices.remove", "GPUs")

    def test_a_holder_makes_it_a_reboot(self) -> None:
        seen = replace(CONVERGED, originals={MODULES_FILE: None},
                       holders=(Holder(42, "python3", ("/dev/nvidia0",), "train.service"),))
        plan = planner.plan(seen, ABSENT, driver("580.178.04", "580.178.04"))
        assert plan.reboot_required and [step.action for step in plan.steps] == ["file.restore"]


class TestHost:
    def test_nodes_go_with_the_folder_that_held_them(self, tmp_path: Path) -> None:
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
            folder = tmp_path / "proc" / str(pid)
            (folder / "fd").mkdir(parents=True)
            (folder / "comm").write_text(command + "\n")
            (folder / "cgroup").write_text(groups)
            os.symlink(device, folder / "fd" / "3")
            os.symlink(device, folder / "fd" / "4")
        assert observation._holders(Host(str(tmp_path))) == ((
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
        assert planner._busy(seen, replace(PRESENT, pods_leave=True)) == [
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
            def run(self, argv: Any, *_words: Any, **_options: Any) -> Done:
                return Done(argv, 0, "version: 595.91.07\n", "")

        host, there = Kmod(str(tmp_path)), driver("595.91.07")
        folder = "/lib/modules/%s/" % there.kernel
        host.write(folder + "modules.dep", "updates/dkms/nvidia.ko:\n" + listed)
        for name, when in (("nvidia.ko", 0), ("nvidia-fs.ko.xz", made)):
            host.write(folder + "updates/dkms/" + name, "")
            os.utime(host.path(folder + "updates/dkms/" + name), (1000 + when, 1000 + when))
        assert observation._built_after(host, there, "nvidia_fs") == built

    def test_loaded_modules_and_their_use(self, tmp_path: Path) -> None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc" / "modules").write_text(
            "nvidia_uvm 5701 3 - Live 0x0 (OE)\nnvidia 13301 2 nvidia_uvm, Live 0x0 (OE)\noverlay 1 0 - Live 0x0\n")
        assert observation._modules(Host(str(tmp_path))) == {"nvidia_uvm": 3, "nvidia": 2}

    @pytest.mark.parametrize("said, meaning", [
        ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot is on"),
        ("modprobe: ERROR: could not insert 'nvidia': No such device", "no GPU of this host"),
        ("modprobe: ERROR: could not insert 'nvidia': Exec format error", "another kernel"),
        ("modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1", "no module for the running kernel"),
    ])
    def test_what_the_kernel_says_is_explained(self, tmp_path: Path, said: str, meaning: str) -> None:
        host = Host(str(tmp_path))
        step = planner.plan(Observation(on_disk=True), PRESENT, driver("580.178.04")).steps[1]
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

    def test_what_a_boot_has_ended_is_not_brought_back_later(self, tmp_path: Path) -> None:
        """A cut in the midst of an exchange; after the boot all runs, and months later the administrator stops it."""
        host = Host(str(tmp_path))
        journal = Journal(host)
        noted = {"stopped": ["nvidia-dcgm.service"], "unloaded": ["nvidia_drm"], "enabled": [PERSISTENCED]}
        journal.remember("activation", dict(noted, boot=host.boot()))
        seen = observation.observe(host, journal, HostFacts())
        assert (seen.stopped, seen.unloaded) == (("nvidia-dcgm.service",), ("nvidia_drm",))
        journal.remember("activation", dict(noted, boot="another"))
        seen = observation.observe(host, journal, HostFacts())
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
        def run(self, argv: Any, *_words: Any, **_options: Any) -> Done:
            if argv[1] == "is-enabled":
                return Done(argv, 1, answers[tuple(argv[2:])], "")
            return Done(argv, 0, "\n\n".join("Id=%s\nLoadState=%s\nActiveState=inactive" % (
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
        def run(self, argv: Any, *words: Any, **options: Any) -> Done:
            if argv[1] == "is-enabled":
                return super().run([argv[0], "--root=" + self.root, *argv[1:]], *words, **options)
            return Done(argv, 0, "Id=%s\nLoadState=loaded\nActiveState=active\nSubState=running\n" % PERSISTENCED, "")

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
        def run(self, argv: Any, *_words: Any, **_options: Any) -> Done:
            if argv[1] == "is-enabled":
                return Done(argv, 0, "enabled\n", "")
            return Done(argv, 0, "Id=%s\nLoadState=loaded\n%s\n" % (FABRIC_MANAGER, said), "")

    assert observation._services(Systemd(str(tmp_path))) == {FABRIC_MANAGER: state}
