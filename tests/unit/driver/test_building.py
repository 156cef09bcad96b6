# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
import signing_keys as keys
from driver_world import World, made, policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.activation import planner as activation
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.observation import (
    Observation as ActivationObservation,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.activation.policy import Policy as ActivationPolicy
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Plan, Step, render
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import executors, kernels, planner
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.preinstalled_parts import Parts
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.signing import ENROLLED, SigningKey
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.boot import BootState, Module

OLD, RUNNING, NEW = "6.1.0-42-amd64", "6.1.0-50-amd64", "6.1.0-56-amd64"
VERSION = "580.178.04"


def builds(plan: Plan) -> List[str]:
    return [step.subject for step in plan.steps if step.action == "dkms.build"]


def converged(*more: Kernel) -> Tuple[World, HostFacts]:
    """A host with the driver, to which kernels came."""
    world, there = World(kernels=(Kernel(RUNNING, headers=True),)), facts(A100)
    world.apply(made(world, policy(), there))
    world.kernels = tuple(sorted(world.kernels + more, key=lambda kernel: kernel.release))
    return world, there


class TestPlan:
    def test_the_default_kernel_is_built_for_where_the_packages_script_leaves_it_out(self) -> None:
        world = World(kernels=(Kernel(OLD, True), Kernel(RUNNING, True), Kernel(NEW, True)))
        there = facts(A100, boot_kernel=OLD)
        plan = made(world, policy(), there)
        assert builds(plan) == [OLD, RUNNING, NEW]
        number = next(number for number, step in enumerate(plan.steps) if step.action == "packages.install")
        world.apply(Plan(steps=plan.steps[:number + 1]))
        assert builds(made(world, policy(), there)) == [OLD], "the script serves the running and the newest kernel"
        world.apply(made(world, policy(), there))
        assert made(world, policy(), there) == Plan()

    def test_an_old_kernel_that_does_not_build_is_a_note(self) -> None:
        world, there = converged(Kernel(OLD, True, failed=VERSION))
        plan = made(world, policy(), there)
        assert plan.steps == ()
        assert "does not build for kernel %s, which neither runs nor boots next" % OLD in plan.notes[0]

    def test_it_is_tried_again_for_another_driver_or_when_it_boots_next(self) -> None:
        world, there = converged(Kernel(OLD, True, failed="570.1.2"))
        assert builds(made(world, policy(), there)) == [OLD]
        world, there = converged(Kernel(OLD, True, failed=VERSION))
        plan = made(world, policy(), there.but(boot_kernel=OLD))
        assert builds(plan) == [OLD] and plan.steps[0].parameters["essential"] is True

    def test_a_guess_is_said_where_it_matters(self) -> None:
        world, there = converged(Kernel(NEW, True))
        world.more = {"boot": BootState(guess="no boot loader's configuration can be read", default=NEW)}
        assert made(world, policy(), there).notes == (
            "Kernel %s is taken to boot next, as the newest: no boot loader's configuration can be read." % NEW,)
        world.kernels = world.kernels[:1]
        assert made(world, policy(), there).notes == ()


class TestGoneKernel:
    """The running kernel's package was removed or replaced under it."""

    there = facts(A100, kernel=OLD, boot_kernel=NEW)

    def test_the_driver_is_installed_for_the_kernel_that_boots_next(self) -> None:
        world = World(kernels=(Kernel(NEW),))
        plan = made(world, policy(), self.there)
        assert plan.refusals == () and plan.reboot_required and plan.disruption is Disruption.reboot
        assert max(step.disruption for step in plan.steps) is Disruption.none
        seen = world.observe(policy(), self.there)
        after = planner.facts_after(seen, policy(), self.there, plan)
        assert (after.driver_installed, after.driver_boots) == ("", VERSION), "no promise for the kernel that runs"
        world.apply(plan)
        again = made(world, policy(), self.there)
        assert (again.steps, again.reboot_required) == ((), True)
        assert made(world, policy(), facts(A100, kernel=NEW, boot_kernel=NEW)) == Plan(), "the next run finishes"

    def test_the_reboot_that_driver_and_activation_wait_for_is_told_once(self) -> None:
        world = World(kernels=(Kernel(NEW),))
        plan = made(world, policy(), self.there)
        after = planner.facts_after(world.observe(policy(), self.there), policy(), self.there, plan)
        whole = plan.merged(activation.plan(ActivationObservation(), ActivationPolicy(), after))
        assert [each.capability for each in whole.requirements] == ["driver", "activation"]
        assert render(whole).count("a reboot for kernel %s" % NEW) == 1

    @pytest.mark.parametrize("found, boots, said", [
        ((), "", "no other kernel is installed"),
        ((Kernel(NEW),), "", "none that can be told"),
        ((Kernel(NEW, True),), OLD, "kernel %s boots next and cannot get a module" % OLD),
    ])
    def test_a_host_that_no_reboot_helps_is_refused(self, found: Tuple[Kernel, ...], boots: str, said: str) -> None:
        plan = made(World(kernels=found), policy(), self.there.but(boot_kernel=boots))
        assert plan.steps == ()
        assert "/lib/modules/%s is gone" % OLD in plan.refusals[0].found and said in plan.refusals[0].found

    def test_without_headers_it_is_refused(self) -> None:
        without = policy(kernel_headers=False)
        assert "is gone" in made(World(kernels=(Kernel(NEW),)), without, self.there).refusals[0].found
        plan = made(World(kernels=(Kernel(NEW),), headers_offered=False), policy(), self.there)
        assert "no headers for kernel " + NEW in plan.refusals[0].found

    def test_a_driver_of_the_image_that_boots_next_counts(self) -> None:
        there = self.there.but(driver_boots=VERSION, driver_userspace=VERSION)
        world = World(kernels=(Kernel(NEW, module=VERSION),),
                      more={"parts": Parts(cuda=VERSION, firmware=(VERSION,), nodes_program=True)})
        assert made(world, policy(source="preinstalled"), there).refusals == ()
        other = made(world, policy(source="preinstalled", version="595"), there)
        assert "kernel module " + VERSION in other.refusals[0].found

    def test_a_driver_that_is_loaded_already_goes_on(self) -> None:
        world, _there = converged()
        plan = made(world, policy(), self.there.but(boot_kernel=RUNNING, driver_loaded=VERSION))
        assert (plan.steps, plan.requirements, plan.refusals) == ((), (), ())


class TestSignature:
    there = facts(A100, secure_boot=True)

    def test_a_module_that_the_kernel_would_not_load_is_built_anew(self) -> None:
        world, _there = converged()
        world.signing_key = SigningKey(state=ENROLLED)
        world.kernels = tuple(replace(kernel, signer="DKMS", trusted=False) for kernel in world.kernels)
        (step,) = made(world, policy(), self.there).steps
        assert (step.subject, step.parameters["signed"]) == (RUNNING, True)
        assert "signed by no enrolled key" in step.why
        assert made(world, policy(secure_boot="ignore"), self.there).steps == ()

    def test_where_no_key_is_enrolled_the_signer_is_named(self) -> None:
        world, _there = converged()
        world.kernels = tuple(replace(kernel, signer="DKMS", trusted=False) for kernel in world.kernels)
        assert "signed by DKMS" in made(world, policy(), self.there).refusals[0].found
        world.kernels = tuple(replace(kernel, trusted=True) for kernel in world.kernels)
        assert made(world, policy(), self.there) == Plan()

    ENROLLED = {"ed54a1d5af8748948d9f8932ee9c7c34": "Debian Secure Boot CA", "a1b2c3d": "DKMS module signing key",
                "1": "SUSE Linux Enterprise Secure Boot CA"}
    # That of shim's list is there too, and has not signed a module itself
    KEYRING = ["Debian Secure Boot CA", "DKMS module signing key", "Canonical Ltd. Kernel Module Signing",
               "SUSE Linux Enterprise Secure Boot CA", "SUSE Linux Enterprise Secure Boot Signkey"]

    @pytest.mark.parametrize("signer, key, taken", [
        ("DKMS module signing key", "a1b2c3d", True),
        # made anew after the enrolment: the same name, another key
        ("DKMS module signing key", "77", False),
        ("Canonical Ltd. Kernel Module Signing", "c1", True),
        # modinfo names who issued SUSE's certificate, and the keyring whose it is
        ("SUSE Linux Enterprise Secure Boot CA", "c2", True),
        ("openSUSE Secure Boot CA", "c2", False),
        ("somebody", "c1", False),
        ("", "", False),
    ])
    def test_which_signature_the_kernel_takes(self, signer: str, key: str, taken: bool) -> None:
        module = Module("/lib/modules/x/nvidia.ko", VERSION, "NVIDIA", signer, key)
        assert kernels.is_trusted(module, kernels.KnownKeys(self.ENROLLED, tuple(self.KEYRING))) is taken

    def test_the_kernels_keyring_and_the_firmwares_list_are_both_asked(self, tmp_path: Path) -> None:
        host, ours = Host(str(tmp_path)), keys.make(tmp_path, "ours")
        vendor = Module("/x.ko", VERSION, "NVIDIA", "Canonical Ltd. Kernel Module Signing", "c1")
        assert self.trusted(host, vendor), "where the firmware tells nothing, nobody tells who may sign"
        keys.firmware(host, enrolled=[ours])
        assert not self.trusted(host, vendor)
        host.write("/proc/keys", "04cf95ef I------     1 perm 0f0b0000     0     0 keyring   .blacklist: empty\n"
                   "0ec59ae1 I------     1 perm 1f030000     0     0 asymmetri Canonical Ltd. Kernel Module Signing: "
                   "88f752e560a1e0737e31163a466ad7b70a850c19: X509.rsa 0a850c19 []\n"
                   "1ec59ae2 I------     1 perm 1f030000     0     0 asymmetri RESF: Rocky kernel signing key: "
                   "18f752e560a1e0737e31163a466ad7b70a850c18: X509.rsa 0a850c18 []\n")
        assert self.trusted(host, vendor)
        assert self.trusted(host, Module("/x.ko", VERSION, "NVIDIA", "Rocky kernel signing key", "c2"))
        assert self.trusted(host, Module("/x.ko", VERSION, "NVIDIA", "ours", ours.read.serial))

    @staticmethod
    def trusted(host: Host, module: Module) -> bool:
        return kernels.is_trusted(module, kernels.known_keys(host))

    def test_modules_of_other_makers_beside_the_drivers_are_not_judged(self, tmp_path: Path) -> None:
        ours = keys.make(tmp_path, "ours")

        class Built(Host):
            """DKMS has built a driver that is signed, beside a module of another package that nobody has signed."""

            def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
                if argv[0] == "dkms":
                    return CommandResult(argv, 0, "nvidia/%s: added\n" % VERSION if argv[1] == "status" else "", "")
                foreign = argv[1].endswith(("nvidia-fs.ko", self.unsigned))
                return CommandResult(argv, 0, "version: %s\n" % ("2.29.4" if "nvidia-fs" in argv[1] else VERSION) + (
                    "" if foreign else "signer: ours\nsig_key: %s\n" % ours.read.serial), "")

            unsigned = "/none"

        host = Built(str(tmp_path / "root"))
        host.write_bytes("/certificate", ours.der)
        host.write("/lib/modules/%s/modules.dep" % RUNNING, "updates/dkms/nvidia.ko:\n")
        for name in ("nvidia", "nvidia-uvm", "nvidia-fs"):
            host.write("/lib/modules/%s/updates/dkms/%s.ko" % (RUNNING, name), "")
        step = Step("driver", "dkms.build", RUNNING, "", change={"before": {}, "after": {"nvidia": VERSION}},
                    parameters={"essential": True, "timeout": 9, "signed": True, "certificate": "/certificate",
                                "exactly": True})
        executors.build_module(host, Journal(host), step)
        host.unsigned = "nvidia-uvm.ko"
        with pytest.raises(GpuOpsError, match="nvidia-uvm.ko is signed by nobody"):
            executors.build_module(host, Journal(host), step)

    @pytest.mark.parametrize("essential", (True, False))
    def test_an_nvidia_peermem_that_would_not_load_fails_where_it_is_needed_and_is_remembered_elsewhere(
        self, tmp_path: Path, essential: bool
    ) -> None:
        class Built(Host):
            def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
                return CommandResult(argv, 0, "version: %s\n" % VERSION if argv[0] == "modinfo" else
                                     "nvidia/%s: added\n" % VERSION, "")

        host = Built(str(tmp_path / "root"))
        journal = Journal(host)
        host.write("/boot/vmlinuz-" + RUNNING, "")
        step = Step("driver", "dkms.build", RUNNING, "", change={"before": {}, "after": {"nvidia": VERSION}},
                    parameters={"essential": essential, "timeout": 9, "signed": False, "certificate": "",
                                "exactly": False, "peer_memory": True})
        made = "/lib/modules/%s/modules.dep" % RUNNING, "updates/dkms/nvidia.ko:\nupdates/dkms/nvidia-peermem.ko: %s\n"
        host.write(made[0], made[1] % "updates/ib_core.ko")
        executors.build_module(host, journal, step)
        assert journal.recall("driver") == {}
        host.write(made[0], made[1] % "updates/dkms/nvidia.ko")
        if essential:
            with pytest.raises(GpuOpsError) as told:
                executors.build_module(host, journal, step)
            assert told.value.code == "driver.peer_memory_not_used"
        else:
            executors.build_module(host, journal, step)
            assert journal.recall("driver") == {"peers_unbuilt": {RUNNING: {"nvidia_peermem": VERSION}}}

    @pytest.mark.parametrize(("told", "remembered"), (
        ("nvidia.c:3: error: no such kernel", True),
        ("gcc: fatal error: Killed signal terminated program cc1", False)))
    def test_a_full_disk_and_lack_of_memory_say_nothing_of_a_kernel(
        self, tmp_path: Path, told: str, remembered: bool
    ) -> None:
        class Fails(Host):
            def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
                return CommandResult(argv, 0, "nvidia/%s: added\n" % VERSION, "") if argv[1] == "status" else \
                    CommandResult(argv, 10, "", "Error! Bad return status for module build\n")

        host = Fails(str(tmp_path / "root"))
        host.write("/boot/vmlinuz-" + RUNNING, "")
        host.make_directory("/lib/modules/" + RUNNING, 0o755)
        host.write("/var/lib/dkms/nvidia/%s/build/make.log" % VERSION, told + "\n")
        step = Step("driver", "dkms.build", RUNNING, "", change={"before": {}, "after": {"nvidia": VERSION}},
                    parameters={"essential": False, "timeout": 9, "signed": False, "certificate": "",
                                "exactly": False})
        if remembered:
            executors.build_module(host, Journal(host), step)
        else:
            with pytest.raises(GpuOpsError, match="Killed signal"):
                executors.build_module(host, Journal(host), step)
        assert bool(Journal(host).recall("driver")) is remembered

    def test_each_kernels_module_is_judged_by_its_own_signature(self, tmp_path: Path) -> None:
        ours = keys.make(tmp_path, "DKMS module signing key")

        class Signed(Host):
            """Two kernels with a module each, signed by the enrolled key and by one of its name."""

            def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
                assert argv[0] == "modinfo"
                return CommandResult(argv, 0, "version: %s\nsigner: DKMS module signing key\nsig_key: %s\n" % (
                    VERSION, ours.read.serial if RUNNING in argv[1] else "77"), "")

        host = Signed(str(tmp_path))
        keys.firmware(host, enrolled=[ours])
        for release in (OLD, RUNNING):
            host.write("/boot/vmlinuz-" + release, "")
            host.write("/lib/modules/%s/modules.dep" % release, "updates/dkms/nvidia.ko:\n")
        found = kernels.read_kernels(host, Journal(host), self.there)
        assert [(kernel.release, kernel.trusted, kernel.key) for kernel in found] == [
            (OLD, False, "77"), (RUNNING, True, ours.read.serial)]
        keys.firmware(host)
        assert all(kernel.trusted for kernel in kernels.read_kernels(host, Journal(host), facts(A100))), \
            "without Secure Boot nobody asks who signs"


class Dkms(Host):
    """A host with a dkms that knows some drivers and builds for some kernels, and the modinfo of what it built.

    Neither program is on every machine that runs the tests; the laboratory has the real ones.
    """

    def __init__(self, root: str, status: str, good: Tuple[str, ...], rc: int = 0, signer: str = "") -> None:
        super().__init__(root)
        self.status, self.good, self.rc, self.signer = status, good, rc, signer
        self.said: List[str] = []
        self.statuses = 0

    def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
        if argv[0] == "modinfo":
            return CommandResult(argv, 0, (self.read(argv[1]) or "") + "signer: %s\n" % self.signer, "")
        if list(argv) == ["dkms", "status"]:
            self.statuses += 1
            return CommandResult(argv, 0, self.status, "")
        self.said.append(" ".join(argv))
        assert argv[0] == "dkms"
        if argv[1] == "add":
            self.status += "%s: added\n" % argv[2]
        if argv[1] == "install" and argv[4] in self.good:
            directory = "/lib/modules/%s/" % argv[4]
            self.write(directory + "updates/dkms/nvidia.ko", "version: %s\n" % argv[2].split("/")[1])
            self.write(directory + "modules.dep", "updates/dkms/nvidia.ko:\n")
        return CommandResult(argv, self.rc, "", "Error! Your kernel headers for kernel %s cannot be found\n" % argv[-1])

    def build(self, release: str, **parameters: Any) -> Dict[str, Any]:
        """Carry out the step that builds for a kernel; what is remembered afterwards."""
        given = {"essential": True, "signed": False, "certificate": "", "exactly": False, "timeout": 5, **parameters}
        step = Step("driver", "dkms.build", release, "", parameters=given,
                    change={"before": {"nvidia": None}, "after": {"nvidia": VERSION}})
        journal = Journal(self)
        executors.EXECUTORS[step.action](self, journal, step)
        return journal.recall("driver")


class TestBuild:
    STATUS = ("gdrdrv/2.6, %s, x86_64: installed\nnvidia-open/570.1.2: added\nnvidia-current/%s: added\n"
              % (RUNNING, VERSION))

    def test_exactly_this_module_is_built(self, tmp_path: Path) -> None:
        host = Dkms(str(tmp_path), self.STATUS, (RUNNING,))
        host.build(RUNNING)
        assert host.said == ["dkms install nvidia-current/%s -k %s" % (VERSION, RUNNING)]
        assert host.statuses == 1, "one reading tells the name and what is built"

    def test_what_a_power_cut_left_empty_is_built_anew(self, tmp_path: Path) -> None:
        host = Dkms(str(tmp_path), "nvidia/%s, %s, x86_64: installed\n" % (VERSION, RUNNING), (RUNNING,))
        host.write("/lib/modules/%s/modules.dep" % RUNNING, "updates/dkms/nvidia.ko:\n")
        host.write("/lib/modules/%s/updates/dkms/nvidia.ko" % RUNNING, "")
        host.build(RUNNING)
        assert host.said[0].startswith("dkms build --force nvidia/") and host.said[1].endswith("--force")

    def test_the_failure_of_another_module_is_none_of_ours(self, tmp_path: Path) -> None:
        assert Dkms(str(tmp_path), self.STATUS, (RUNNING,), rc=11).build(RUNNING) == {}

    def test_an_exit_code_of_nothing_built_is_not_believed(self, tmp_path: Path) -> None:
        host = Dkms(str(tmp_path), self.STATUS, ())
        host.write("/var/lib/dkms/nvidia-open/570.1.2/build/make.log", "of another driver\n")
        with pytest.raises(GpuOpsError, match="does not build for kernel %s: Error! Your kernel headers" % RUNNING):
            host.build(RUNNING)
        host.write("/var/lib/dkms/nvidia-current/%s/build/make.log" % VERSION, "os-pci.c:150: error\n")
        with pytest.raises(GpuOpsError, match="does not build for kernel %s.*os-pci.c:150" % RUNNING):
            host.build(RUNNING)

    def test_the_error_tells_the_lines_of_the_log_that_name_one(self, tmp_path: Path) -> None:
        """make goes on with other files, and ends in lines that say nothing."""
        host = Dkms(str(tmp_path), self.STATUS, ())
        noise = "".join("  CC [M]  /build/nv-%d.o -Werror -Wno-error=x error.o\n" % number for number in range(50))
        host.write("/var/lib/dkms/nvidia-current/%s/build/make.log" % VERSION, "".join((
            noise, "nv-acpi.c:12:3: error: implicit declaration of function 'x'\n", noise,
            'ERROR: modpost: "y" [nvidia.ko] undefined!\n', noise)))
        with pytest.raises(GpuOpsError) as failed:
            host.build(RUNNING)
        assert failed.value.found.endswith("make.log: nv-acpi.c:12:3: error: implicit declaration of function 'x' | "
                                           'ERROR: modpost: "y" [nvidia.ko] undefined!')

    def test_an_old_kernel_is_remembered_and_holds_up_nothing(self, tmp_path: Path) -> None:
        host = Dkms(str(tmp_path), self.STATUS, (), rc=10)
        for release in (OLD, RUNNING):
            host.write("/boot/vmlinuz-" + release, "")
            host.write("/lib/modules/%s/build/Makefile" % release, "")
        Journal(host).remember("driver", {"other": 1, "unbuilt": {"6.1.0-1-amd64": "1.2.3"}})
        assert host.build(OLD, essential=False) == {"other": 1, "unbuilt": {OLD: VERSION}}
        assert kernels.read_kernels(host, Journal(host), facts(A100)) == (
            Kernel(OLD, True, failed=VERSION), Kernel(RUNNING, True))

    def test_a_directory_that_a_removed_kernel_left_is_none(self, tmp_path: Path) -> None:
        """dpkg does not remove what DKMS built into it, and header packages bring a link into it."""
        host, there = Dkms(str(tmp_path), self.STATUS, ()), facts(A100)
        host.write("/lib/modules/%s/updates/dkms/nvidia.ko" % RUNNING, "")
        host.write("/lib/modules/%s/build/Makefile" % RUNNING, "")
        assert kernels.read_kernels(host, Journal(host), there) == ()
        host.write("/lib/modules/%s/kernel/drivers/gpu/drm/drm.ko" % RUNNING, "")
        assert kernels.read_kernels(host, Journal(host), there) == (Kernel(RUNNING, True),)

    def test_a_driver_that_dkms_does_not_know_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(GpuOpsError, match="dkms knows no driver"):
            Dkms(str(tmp_path), "nvidia/570.1.2: added\nnvidia-fs/2.19.7: added\n", (RUNNING,)).build(RUNNING)

    def test_a_source_that_the_script_did_not_add_is_added(self, tmp_path: Path) -> None:
        host = Dkms(str(tmp_path), "nvidia-open/570.1.2: added\n", (RUNNING,))
        host.write("/usr/src/nvidia-current-%s/dkms.conf" % VERSION, "")
        host.build(RUNNING)
        assert host.said == ["dkms add nvidia-current/%s" % VERSION,
                             "dkms install nvidia-current/%s -k %s" % (VERSION, RUNNING)]

    def test_what_has_its_source_is_built(self, tmp_path: Path) -> None:
        """dkms 3.0 shows a driver as added whose source was removed without it."""
        host = Dkms(str(tmp_path), "nvidia/%s: added\nnvidia-open/%s: added\n" % (VERSION, VERSION), (RUNNING,))
        host.write("/usr/src/nvidia-open-%s/dkms.conf" % VERSION, "")
        host.build(RUNNING)
        assert host.said == ["dkms install nvidia-open/%s -k %s" % (VERSION, RUNNING)]

    def test_under_secure_boot_the_signature_is_checked(self, tmp_path: Path) -> None:
        host = Dkms(str(tmp_path), self.STATUS, (RUNNING,))
        host.build(RUNNING)
        host.said.clear()
        host.status = "nvidia-current/%s, %s, x86_64: installed\n" % (VERSION, RUNNING)
        with pytest.raises(GpuOpsError, match="signed by nobody") as caught:
            host.build(RUNNING, signed=True)
        assert "`secure_boot`: `enroll`" in caught.value.remedy
        assert host.said == ["dkms build --force nvidia-current/%s -k %s" % (VERSION, RUNNING),
                             "dkms install nvidia-current/%s -k %s --force" % (VERSION, RUNNING)]
        Dkms(str(tmp_path), self.STATUS, (RUNNING,), signer="DKMS").build(RUNNING, signed=True)

    def test_the_status_of_old_and_new_dkms(self) -> None:
        assert kernels.parse_status(
            "nvidia-srv/580.1.2, 6.8.0-49-generic, x86_64: installed "
            "(WARNING! Diff between built and installed module!)\n"
            "nvidia, 535.1.2, 5.4.0-1, x86_64: installed\nnvidia/580.1.2: added\nError! something\n") == (
            ("nvidia-srv", "580.1.2", "6.8.0-49-generic", "installed"), ("nvidia", "535.1.2", "5.4.0-1", "installed"),
            ("nvidia", "580.1.2", "", "added"))
