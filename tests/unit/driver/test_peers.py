# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules beside the driver's on a host of files: whose build they are, what builds them, what a host may offer."""
from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest
from driver_world import World, policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import boot_arguments, by_hand, peers
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.peer_builds import (
    Peers,
    read_peers,
    remember_built,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.peer_executors import build_peer
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.peer_offer import peer_transaction, peer_versions
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.signing import SigningKey
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.boot_tools import GRUB_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware import boot, peer_modules
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.index import Preference
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Simulation

K = "6.1.0-50-amd64"
MODULES = "/lib/modules/" + K
DKMS = MODULES + "/updates/dkms/"
EXPORT = "0x12ab34cd\tib_register_peer_memory_client\tdrivers/infiniband/core/ib_core\tEXPORT_SYMBOL\t\n"


class Dkms(Host):
    """A kernel with a driver, and a dkms that builds gdrdrv; modinfo tells the text of a file.

    forces: whether it builds by force what it has built, as DKMS does since 3.0.7.
    """

    def __init__(self, root: Path, builds: bool = True, state: str = "", forces: bool = True) -> None:
        super().__init__(str(root))
        self.builds, self.state, self.forces = builds, state, forces
        self.said: List[str] = []
        self.write("/boot/vmlinuz-" + K, "")
        self.write(DKMS + "nvidia.ko", "license: Dual MIT/GPL\n")
        self.write("/usr/src/gdrdrv-2.6/dkms.conf", "")
        self.depmod("nvidia")

    def depmod(self, *names: str) -> None:
        self.write(MODULES + "/modules.dep", "".join("updates/dkms/%s.ko:\n" % name for name in names))

    def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
        if argv[0] == "modinfo":
            return CommandResult(argv, 0, self.read(argv[1]) or "", "")
        assert argv[0] == "dkms"
        if argv[1] == "status":
            return CommandResult(argv, 0, self.state, "")
        self.said.append(" ".join(argv[1:]))
        if argv[1] == "add":
            self.state += "%s: added\n" % argv[2]
        if argv[1] == "remove":
            self.state = ""
        if argv[1] in ("build", "install") and not self.forces and "installed" in self.state:
            return CommandResult(argv, 0, "Module gdrdrv/2.6 already %s kernel %s (x86_64).\n" % (
                "built for" if argv[1] == "build" else "installed on", K), "")
        if argv[1] == "install" and self.builds:
            self.state = "gdrdrv/2.6, %s, x86_64: installed\n" % K
            self.write(DKMS + "gdrdrv.ko", "version: 2.6\nlicense: Dual MIT/GPL\n")
            self.depmod("nvidia", "gdrdrv")
        return CommandResult(argv, 0 if self.builds else 10, "", "Bad return status for module build\n")

    def age(self, name: str, seconds: int) -> None:
        made = os.stat(self.path(DKMS + "nvidia.ko"))
        os.utime(self.path(DKMS + name), ns=(made.st_mtime_ns, made.st_mtime_ns - seconds * 10 ** 9))

    def peers(self, **options: Any) -> Peers:
        wanted = policy(**options)
        return read_peers(self, Journal(self), wanted, facts(A100), [K], SigningKey(), {}, {}, False)

    def build(self, **parameters: Any) -> Dict[str, Any]:
        given = {"module": "gdrdrv", "source": "gdrdrv", "kernel": K, "driver": "580.178.04", "essential": True,
                 "timeout": 9, "signed": False, "certificate": "", "exactly": False, **parameters}
        journal = Journal(self)
        build_peer(self, journal, Step("driver", peers.BUILD, "gdrdrv for " + K, "", parameters=given))
        return journal.recall("driver")


class TestBuilds:
    def test_a_module_is_built_and_then_the_drivers_own(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path, state="gdrdrv/2.6: added\n")
        assert host.peers(gdrcopy=True).built == {K: ()}
        host.build()
        assert host.said == ["install gdrdrv/2.6 -k " + K]
        assert host.peers(gdrcopy=True).built == {K: ("gdrdrv",)}

    def test_one_that_was_built_before_the_driver_is_built_anew(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path, state="gdrdrv/2.6: added\n")
        host.build()
        host.write(DKMS + "nvidia.ko", "license: NVIDIA\nanother flavour\n")
        host.age("gdrdrv.ko", 60)
        assert host.peers(gdrcopy=True).built == {K: ()}
        host.said.clear()
        host.build()
        assert host.said == ["build --force gdrdrv/2.6 -k " + K, "install gdrdrv/2.6 -k %s --force" % K]
        assert host.peers(gdrcopy=True).built == {K: ("gdrdrv",)}

    def test_a_dkms_that_builds_nothing_by_force_has_it_removed_first(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path, state="gdrdrv/2.6: added\n", forces=False)
        host.build()
        host.write(DKMS + "nvidia.ko", "license: NVIDIA\nanother flavour\n")
        host.age("gdrdrv.ko", 60)
        host.said.clear()
        host.build()
        assert [words.split()[0] for words in host.said] == ["build", "remove", "install"]
        assert host.peers(gdrcopy=True).built == {K: ("gdrdrv",)}

    def test_a_clock_that_was_set_back_does_not_build_for_ever(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path, state="gdrdrv/2.6: added\n")
        os.utime(host.path(DKMS + "nvidia.ko"), (4e9, 4e9))
        host.build()
        assert host.peers(gdrcopy=True).built == {K: ("gdrdrv",)}
        os.utime(host.path(DKMS + "nvidia.ko"), (5e9, 5e9))
        assert host.peers(gdrcopy=True).built == {K: ()}, "another driver, by its file"

    def test_a_clock_that_was_ahead_does_not_make_it_one_of_the_next_driver(self, tmp_path: Path) -> None:
        """The driver is exchanged once the clock is right, and the run is killed before it builds what is beside it."""
        host = Dkms(tmp_path, state="gdrdrv/2.6: added\n")
        host.build()
        for name, seconds in (("nvidia.ko", 4e9), ("gdrdrv.ko", 4e9 + 60)):
            os.utime(host.path(DKMS + name), (seconds, seconds))
        remember_built(host, Journal(host), K, "gdrdrv")
        assert host.peers(gdrcopy=True).built == {K: ("gdrdrv",)}
        host.write(DKMS + "nvidia.ko", "license: Dual MIT/GPL\nanother version\n")
        assert host.peers(gdrcopy=True).built == {K: ()}

    @pytest.mark.parametrize("state", ["gdrdrv/2.6: added\n", "gdrdrv/2.6, 6.1.0-1-amd64, x86_64: installed\n"])
    def test_a_file_that_dkms_does_not_have_for_installed_is_none(self, tmp_path: Path, state: str) -> None:
        host = Dkms(tmp_path, state=state)
        host.write(DKMS + "gdrdrv.ko", "license: Dual MIT/GPL\n")
        host.depmod("nvidia", "gdrdrv")
        assert host.peers(gdrcopy=True).built == {K: ()}
        host.state = ""
        assert host.peers(gdrcopy=True).built == {K: ("gdrdrv",)}, "one of a distribution, which DKMS does not know"

    def test_a_file_that_a_power_cut_left_empty_is_none(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path, state="gdrdrv/2.6, %s, x86_64: installed\n" % K)
        host.write(DKMS + "gdrdrv.ko", "")
        host.depmod("nvidia", "gdrdrv")
        assert host.peers(gdrcopy=True).built == {K: ()}

    def test_an_exit_code_is_not_believed_and_the_file_before_is_no_success(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path, state="gdrdrv/2.6: added\n")
        host.build()
        host.builds = False
        host.write("/var/lib/dkms/gdrdrv/2.6/build/make.log", "gdrdrv.c:9: error: no nv-p2p.h\n")
        with pytest.raises(GpuOpsError, match="gdrdrv does not build for kernel %s.*no nv-p2p.h" % K) as failed:
            host.build()
        assert failed.value.code == "driver.peer_module_not_built"

    def test_an_old_kernel_is_remembered_and_holds_up_nothing(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path, builds=False, state="gdrdrv/2.6: added\n")
        assert host.build(essential=False) == {"peers_unbuilt": {K: {"gdrdrv": "580.178.04"}}}
        assert host.peers(gdrcopy=True).failed == {K: {"gdrdrv": "580.178.04"}}

    def test_a_source_that_the_script_did_not_add_is_added(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path)
        host.build()
        assert host.said == ["add gdrdrv/2.6", "install gdrdrv/2.6 -k " + K]
        host.remove("/usr/src/gdrdrv-2.6/dkms.conf")
        with pytest.raises(GpuOpsError, match="dkms knows no source of gdrdrv"):
            host.build()

    def test_under_secure_boot_the_signature_is_checked(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path)
        with pytest.raises(GpuOpsError, match="gdrdrv.ko is signed by nobody"):
            host.build(signed=True)

    def test_nothing_is_read_for_a_policy_without_any(self, tmp_path: Path) -> None:
        assert Dkms(tmp_path).peers() == Peers()
        assert Dkms(tmp_path).peers(state="absent", gdrcopy=True) == Peers()


class TestRdma:
    @pytest.mark.parametrize("line, uses", [
        ("updates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko updates/dkms/ib_core.ko", True),
        ("updates/dkms/nvidia-current-open-peermem.ko.xz: kernel/drivers/infiniband/core/ib_core.ko.xz", True),
        ("updates/dkms/nvidia-peermem.ko:", False),
        ("updates/dkms/nvidia-peermem.ko: updates/dkms/nvidia.ko", False),
        ("updates/dkms/other.ko: updates/dkms/ib_core.ko", False),
    ])
    def test_whether_nvidia_peermem_was_built_with_an_rdma_stack(
        self, tmp_path: Path, line: str, uses: bool
    ) -> None:
        host = Dkms(tmp_path)
        host.write(MODULES + "/modules.dep", line + "\n")
        assert (K in [kernel for kernel, names in host.peers(rdma="peermem").built.items() if names]) is uses

    @pytest.mark.parametrize("place", [
        MODULES + "/build", "/usr/src/ofa_kernel/x86_64/" + K, "/usr/src/ofa_kernel/default", "/usr/src/ofa_kernel",
        "/usr/src/ofa_kernel-dkms/" + K, "/var/lib/dkms/mlnx-ofed-kernel/24.10/build"])
    def test_an_rdma_stack_is_found_where_the_build_looks_for_it(self, tmp_path: Path, place: str) -> None:
        host = Dkms(tmp_path)
        assert host.peers(rdma="auto").registers == ()
        host.write(place + "/Module.symvers", EXPORT.replace("_client\t", "_client_else\t"))
        assert host.peers(rdma="auto").registers == ()
        host.write(place + "/Module.symvers", EXPORT)
        assert host.peers(rdma="auto").registers == (K,)

    def test_its_predecessor_is_found_on_disk_and_loaded(self, tmp_path: Path) -> None:
        host = Dkms(tmp_path)
        host.depmod("nvidia", "nv_peer_mem")
        assert "nv_peer_mem.ko is there" in host.peers(rdma="peermem").predecessor
        host.write("/sys/module/nv_peer_mem/refcnt", "0\n")
        assert host.peers(rdma="peermem").predecessor == "nv_peer_mem is loaded"

    def test_what_a_boot_loads_is_a_fact(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        assert peer_modules.loaded_at_boot(host) == ()
        host.write(peer_modules.PEERS_FILE, peer_modules.modules_text(["nvidia_peermem", "nvidia_fs"]))
        assert peer_modules.loaded_at_boot(host) == ("nvidia_peermem", "nvidia_fs")


class Sources:
    """What apt has of packages, and which it would choose."""

    VERSIONS = {"nvidia-fs-dkms": ["2.19.7-1", "2.13.5-1"]}

    def __init__(self) -> None:
        self.asked: List[Tuple[Dict[str, str], bool]] = []

    def versions(self, names: Any, _uri: str = "") -> Dict[str, List[str]]:
        return {name: list(self.VERSIONS.get(name, ())) for name in names}

    def preference(self, names: Any) -> Dict[str, Preference]:
        return {name: Preference("2.13.5-1", {}) for name in names}

    def simulate(self, request: Any, allow_downgrade: bool = False) -> Simulation:
        self.asked.append((dict(request), allow_downgrade))
        return Simulation({**request, "dkms": "3.0.10-8", "libgdr-doc": "1"}, ("old-nvidia",), request=dict(request))


class TestOffer:
    def test_of_a_hosts_own_sources_what_apt_would_choose_is_taken(self) -> None:
        sources: Any = Sources()
        assert peer_versions(sources, ["nvidia-fs-dkms"], "http://mirror/") == {
            "nvidia-fs-dkms": ["2.19.7-1", "2.13.5-1"]}
        assert peer_versions(sources, ["nvidia-fs-dkms"], "") == {"nvidia-fs-dkms": ["2.13.5-1", "2.19.7-1"]}

    def test_it_brings_what_the_drivers_transaction_does_not(self) -> None:
        sources: Any = Sources()
        driver = Simulation({"nvidia-dkms-580-open": "580-1", "dkms": "3.0.10-8"}, ("old-nvidia",),
                            request={"nvidia-dkms-580-open": "580-1"}, allow_downgrade=True)
        after = peer_transaction(sources, {"nvidia-fs-dkms": ["2.19.7-1"]}, driver)
        assert sources.asked == [({"nvidia-dkms-580-open": "580-1", "nvidia-fs-dkms": "2.19.7-1"}, True)]
        assert after is not None and after.installs == {"nvidia-fs-dkms": "2.19.7-1", "libgdr-doc": "1"}
        assert (after.removes, after.request) == ((), {"nvidia-fs-dkms": "2.19.7-1"})

    def test_nothing_is_asked_while_something_is_missing(self) -> None:
        sources: Any = Sources()
        assert peer_transaction(sources, {"gdrdrv-dkms": []}, None) is None
        assert peer_transaction(sources, {}, None) is None
        assert sources.asked == []


class TestKernelArguments:
    GRUB = ("menuentry 'a' {\n\tlinux\t/boot/vmlinuz-%s root=UUID=1 ro iommu=pt quiet\n"
            "\tinitrd /boot/initrd.img-%s\n}\n"
            "menuentry 'b (recovery mode)' {\n\tlinux\t/boot/vmlinuz-%s root=UUID=1 ro iommu=pt single\n}\n"
            "menuentry 'memory test' {\n\tlinux16 /boot/memtest86+.bin\n}\n" % (K, K, K))

    def test_what_every_entry_of_a_kernel_has_is_what_it_is_started_with(self) -> None:
        assert boot.started_with(self.GRUB) == {K: ("root=UUID=1", "ro", "iommu=pt")}

    def test_the_tool_is_told_to_grub_and_what_is_ours_outlives_its_failure(self, tmp_path: Path) -> None:
        class Grub(Host):
            rc = 1

            def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
                assert list(argv) == ["update-grub"]
                assert Journal(self).recall("driver")["kernel_arguments"] == ["iommu=pt"], "noted before"
                if self.rc:
                    raise GpuOpsError("x.y", found="no", wanted="yes", remedy="do")
                return CommandResult(argv, 0, "", "")

        host = Grub(str(tmp_path))
        wanted = boot_arguments.BootArguments("/boot/grub/grub.cfg", {K: ("ro",)}, (), True)
        steps = boot_arguments.steps(wanted, policy(kernel_arguments=["iommu=pt"]), [K], {}, {})
        assert [step.action for step in steps] == ["boot.note", "file.write", "boot.configure"]
        with pytest.raises(GpuOpsError):
            boot_arguments.configure(host, Journal(host), steps[2])
        assert Journal(host).recall("driver") == {"kernel_arguments": ["iommu=pt"]}
        host.rc = 0
        boot_arguments.configure(host, Journal(host), steps[2])
        assert Journal(host).recall("driver") == {"kernel_arguments": ["iommu=pt"]}

    @pytest.mark.parametrize("killed_after", (1, 2, 3))
    def test_what_somebody_elses_update_grub_has_read_of_ours_goes_with_an_empty_policy(
        self, killed_after: int
    ) -> None:
        """Killed before our own update-grub, another one runs, and then nobody wants the argument any more."""
        world = World(facts=facts(A100))
        world.say_grub("ro")
        world.apply(world.plan(policy()))
        plan = world.plan(policy(kernel_arguments=["iommu=pt"]))
        world.apply(replace(plan, steps=plan.steps[:killed_after]))
        world.update_grub()
        for _time in range(2):
            first = world.plan(policy()).steps[:1]
            world.apply(replace(world.plan(policy()), steps=first))
        world.apply(world.plan(policy()))
        assert (world.configured, world.noted, GRUB_FILE in world.files) == (("ro",), (), False)
        assert world.plan(policy()).steps == ()

    def test_a_file_that_nobody_has_noted_goes_with_what_it_added(self, tmp_path: Path) -> None:
        """As an older release has left it where it was killed."""
        there = boot_arguments.BootArguments("/boot/grub/grub.cfg", {K: ("iommu=pt",)}, (), True)
        steps = boot_arguments.removal(
            there, {GRUB_FILE: boot_arguments.text_of(["iommu=pt"])}, {GRUB_FILE: None})
        assert [step.action for step in steps] == ["boot.note", "file.restore", "boot.configure"]
        host = Host(str(tmp_path))
        host.write("/boot/grub/grub.cfg", self.GRUB)
        Journal(host).keep_original("driver", GRUB_FILE)
        assert boot_arguments.read_arguments(host, Journal(host), policy()).configuration == "/boot/grub/grub.cfg"

    def test_grubs_file_is_read_where_it_lies(self, tmp_path: Path) -> None:
        host = Host(str(tmp_path))
        assert boot_arguments.read_arguments(host, Journal(host), policy()) == boot_arguments.BootArguments()
        host.write("/boot/grub/grub.cfg", self.GRUB)
        found = boot_arguments.read_arguments(host, Journal(host), policy(kernel_arguments=["iommu=pt"]))
        assert (found.configuration, found.configured[K]) == ("/boot/grub/grub.cfg", ("root=UUID=1", "ro", "iommu=pt"))

    @pytest.mark.parametrize("argument", ["iommu=pt quiet", 'a="b"', "$(reboot)", "", "a=`x`"])
    def test_what_a_shell_would_read_otherwise_is_refused(self, argument: str) -> None:
        with pytest.raises(GpuOpsError) as refused:
            policy(kernel_arguments=[argument])
        assert refused.value.code == "driver.kernel_argument_malformed"

    def test_an_image_is_booted_elsewhere(self) -> None:
        wanted, here = policy(kernel_arguments=["iommu=pt"]), facts(A100)
        assert boot_arguments.requirements(wanted, boot.BootState(), here)
        assert not boot_arguments.requirements(wanted, boot.BootState(), here.but(awaits_gpu=True))
        assert not boot_arguments.requirements(wanted, boot.BootState(), here.but(boots_by_systemd=False))


class TestPolicy:
    @pytest.mark.parametrize("option, value", [
        ("rdma", "auto"), ("gds", True), ("gdrcopy", True), ("kernel_arguments", ["iommu=pt"])])
    def test_an_image_of_somebody_else_is_left_as_it_is(self, option: str, value: Any) -> None:
        given = {"source": "preinstalled", "repository_url": "", "repository_key": "", option: value}
        with pytest.raises(GpuOpsError) as refused:
            policy(**given)
        assert [(each.code, each.option) for each in refused.value.refusals] == [
            ("driver.peers_of_preinstalled", option)]

    def test_systems_that_are_not_driven_are_told_all_of_it(self) -> None:
        wanted = policy(gds=True, gdrcopy=True, kernel_arguments=["iommu=pt", "quiet"], repository_key="",
                        repository_url="", version="580")
        refusal = by_hand.refusal(wanted, facts(A100, os_id="rocky", os_version="9.6"), [K])
        for line in ("`dnf install gdrcopy-kmod gdrcopy`", "`dnf install nvidia-fs-dkms nvidia-fs`",
                     "`grubby --update-kernel=ALL '--args=iommu=pt quiet'`, then reboot"):
            assert line in refusal.remedy
