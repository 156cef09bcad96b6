# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which modules come built, for which driver, and that what came is looked at."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, List, Tuple

import pytest
from driver_world import policy
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import (
    catalogue,
    kernel_hold,
    modules_again,
    planner,
    prebuilt,
    precompiled,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.backends.chosen import backend_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.executors import EXECUTORS
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import unattended_text
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.observation import Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.target import Target, target_of

VERSION, KERNEL = "580.178.04", "6.8.0-90-generic"
MODULES = "linux-modules-nvidia-580-server-open-"
FROM_UBUNTU = {"source": "distribution", "repository_url": "", "repository_key": ""}
UBUNTU = facts(A100, os_id="ubuntu", os_version="24.04", kernel=KERNEL, boot_kernel=KERNEL)


def wanted(kind: str) -> catalogue.Wanted:
    system = catalogue.system_of("ubuntu", "24.04", "x86_64")
    assert system is not None
    return catalogue.Wanted(system, True, 580, "open", build=kind)


class TestBounds:
    @pytest.mark.parametrize("depends, version, fits", [
        ("nvidia-kernel-common-580-server (<= 580.178.04-1), nvidia-kernel-common-580-server (>= 580.178.04)",
         "580.178.04-0ubuntu0.24.04.1", True),
        ("nvidia-kernel-common-580-server (<= 580.178.04-1), nvidia-kernel-common-580-server (>= 580.178.04)",
         "580.178.04-2ubuntu1", False),
        ("nvidia-kernel-common-580-server (<= 580.126.09-1)", "580.178.04-0ubuntu1", False),
        ("nvidia-kernel-common-580-server (>= 580.178.04)", "580.126.09-0ubuntu1", False),
        ("nvidia-kernel-common-580 (= 580.178.04-0ubuntu1)", "580.178.04-0ubuntu1", True),
        ("linux-image-6.8.0-90-generic", "580.178.04-0ubuntu1", True),
        # Of the proprietary kind, which says no more
        ("nvidia-kernel-common-535-server (>= 535.161.08)", "535.161.08-0ubuntu2.22.04.1", True),
        ("nvidia-kernel-common-535-server (>= 535.161.08)", "535.183.01-0ubuntu0.22.04.1", False),
    ])
    def test_modules_are_of_the_driver_within_their_bounds(self, depends: str, version: str, fits: bool) -> None:
        assert prebuilt.is_made_for(depends, version) is fits

    def test_what_apt_shows_is_read_version_by_version(self) -> None:
        shown = ("Package: linux-modules-nvidia-580-server-%s\nVersion: 6.8.0-90.91+1\nDepends: a (= 1), b\n\n"
                 "Package: linux-modules-nvidia-580-server-%s\nVersion: 6.8.0-90.91\n" % (KERNEL, KERNEL))
        assert prebuilt.parse_show(shown) == {"linux-modules-nvidia-580-server-" + KERNEL: {
            "6.8.0-90.91+1": "a (= 1), b", "6.8.0-90.91": ""}}


class TestLeaving:
    INSTALLED = ("linux-modules-nvidia-580-server-open-" + KERNEL, "linux-modules-nvidia-580-server-" + KERNEL,
                 "linux-modules-nvidia-580-server-oracle", "linux-objects-nvidia-580-server-" + KERNEL,
                 "linux-modules-nvidia-570-server-open-generic", "linux-signatures-nvidia-" + KERNEL, "nvidia-fs-dkms",
                 "nvidia-dkms-580-server-open", "nvidia-headless-580-server-open", "nvidia-utils-580-server",
                 "nvidia-headless-no-dkms-580-server-open", "nvidia-driver-580-server-open", "nvidia-driver-assistant",
                 "linux-modules-nvidia-fs-6.17.0-1019-nvidia", "linux-modules-" + KERNEL, "dkms")

    def leaving(self, kind: str, ours: Tuple[str, ...] = (), without: Tuple[str, ...] = (),
                coming: Tuple[str, ...] = (), half: Tuple[str, ...] = (), version: str = "580.186.00",
                **changes: Any) -> Tuple[str, ...]:
        there = prebuilt.Prebuilt(ours=frozenset(ours), offered={}, half=half)
        built = prebuilt.Choice(version, catalogue.PackageSet("", ()), dict.fromkeys(coming, "1"), {})
        installed = {name: "1" if name.startswith("linux-") else VERSION + "-1" for name in self.INSTALLED}
        return prebuilt.leaving(policy(**FROM_UBUNTU, **changes), wanted(kind), there,
                                {name: installed[name] for name in self.INSTALLED if name not in without}, built)

    def test_beside_signed_modules_stays_no_other_module_of_nvidias_driver(self) -> None:
        assert self.leaving("precompiled") == tuple(sorted((
            "linux-modules-nvidia-580-server-" + KERNEL, "linux-modules-nvidia-580-server-oracle",
            "linux-objects-nvidia-580-server-" + KERNEL, "linux-modules-nvidia-570-server-open-generic",
            "nvidia-dkms-580-server-open", "nvidia-headless-580-server-open", "nvidia-driver-580-server-open")))

    def test_beside_those_of_dkms_leaves_what_is_ours_or_all_where_the_policy_says_so(self) -> None:
        assert self.leaving("dkms") == ()
        assert self.leaving("dkms", self.INSTALLED[:1]) == self.INSTALLED[:1]
        assert len(self.leaving("dkms", build="dkms")) == 6

    def test_what_needs_the_package_of_dkms_stays_where_a_metapackage_of_modules_stands_for_it(self) -> None:
        others = "nvidia-driver-580-server-open"
        without = ("nvidia-dkms-580-server-open",)
        assert others not in self.leaving("precompiled", without=without, coming=(MODULES + "gcp",))
        assert others in self.leaving("precompiled", coming=(MODULES + "gcp",))
        for coming in (MODULES + KERNEL, "linux-modules-nvidia-580-server-gcp"):
            assert others in self.leaving("precompiled", without=without, coming=(coming,))
        assert others in self.leaving("precompiled", without=without, version=VERSION)

    def test_the_metapackage_that_is_there_serves_as_long_as_the_driver_stays(self) -> None:
        system = wanted("precompiled")
        there = prebuilt.Prebuilt(offered={})
        installed = {"nvidia-driver-580-server-open": VERSION + "-1", MODULES + "gcp": "6.8.0-1020.22"}
        for version, leave in ((VERSION, ()), ("580.186.00", ("nvidia-driver-580-server-open",))):
            built = prebuilt.Choice(version, catalogue.PackageSet("", ()), {}, {})
            assert prebuilt.leaving(policy(**FROM_UBUNTU), system, there, installed, built) == leave

    def test_what_dpkg_has_not_finished_leaves_too(self) -> None:
        half = "nvidia-dkms-580-server-open"
        assert half in self.leaving("precompiled", without=(half,), half=(half,))


class TestStopped:
    """A transaction was stopped in the modules: 'auto' goes on with their kind, and does not begin another one."""

    USER_SPACE = {"nvidia-headless-no-dkms-580-server-open": VERSION + "-1", "nvidia-utils-580-server": VERSION + "-1"}

    def test_modules_that_are_not_configured_are_of_their_kind_still(self) -> None:
        seen = Observation(installed=self.USER_SPACE, unfinished={MODULES + KERNEL: "6.8.0-90.91"})
        target = target_of(policy(**{**FROM_UBUNTU, "version": "580"}), UBUNTU, seen.installed, {}, seen.prebuilt)
        assert isinstance(target, Target) and target.is_precompiled


class TestFollowed:
    AUTOMATIC = (MODULES + "6.8.0-95-generic", "linux-signatures-nvidia-6.8.0-95-generic",
                 "linux-image-6.8.0-95-generic",
                 "linux-modules-nvidia-570-server-open-6.8.0-95-generic", "linux-modules-nvidia-fs-6.8.0-95-nvidia")

    def followed(self, *ours: str) -> List[str]:
        return sorted(prebuilt.followed(dict.fromkeys((*self.AUTOMATIC, MODULES + KERNEL), "1"), ours, self.AUTOMATIC))

    def test_modules_that_a_metapackage_of_ours_has_brought_leave_with_it(self) -> None:
        assert self.followed(MODULES + "generic") == sorted(self.AUTOMATIC[:2])

    def test_those_of_others_stay(self) -> None:
        assert self.followed(MODULES + KERNEL) == []


class TestPolicy:
    @pytest.mark.parametrize("options, code, option", [
        ({"source": "preinstalled", "build": "precompiled"}, "driver.option_of_preinstalled", "build"),
        ({"source": "preinstalled", "kernel_hold": True}, "driver.option_of_preinstalled", "kernel_hold"),
        ({"build": "precompiled", "signing_key": "/k", "signing_certificate": "/c"},
         "driver.signing_key_of_precompiled", "build"),
    ])
    def test_what_makes_no_sense_is_refused(self, options: Any, code: str, option: str) -> None:
        with pytest.raises(GpuOpsError) as refused:
            policy(repository_url="", repository_key="", **options)
        assert [(each.code, each.option) for each in refused.value.refusals] == [(code, option)]

    def test_modules_that_come_with_kernels_are_left_to_unattended_upgrades(self) -> None:
        assert "linux-modules-nvidia-" in unattended_text()
        assert "linux-" not in unattended_text(True) and "libnvidia-" in unattended_text(True)


def test_a_kernel_that_dpkg_has_not_finished_is_one_to_hold() -> None:
    image = "linux-image-" + KERNEL
    seen = Observation(unfinished={image: "6.8.0-90.91", "linux-image-generic": ""}, broken=(image,))
    held = policy(kernel_hold=True)
    assert kernel_hold.refusals(seen.there, held, UBUNTU) == []
    assert "Package: %s\nPin: version 6.8.0-90.91\n" % image in kernel_hold.wanted(held, seen.there, {}, UBUNTU)
    plan = planner.plan(replace(seen, ours_unfinished=True), held, UBUNTU)
    assert "driver.kernel_hold_without_package" not in [refusal.code for refusal in plan.refusals]


@pytest.mark.parametrize("release, base", [
    ("6.8.0-90-generic-64k", "6.8.0-90"), ("6.12.107+deb13-amd64", "6.12.107+deb13"),
    ("6.1.0-50-cloud-amd64", "6.1.0-50"), ("6.18.44", "6.18.44"),
])
def test_headers_of_all_flavours_have_the_release_without_its_flavour(release: str, base: str) -> None:
    assert kernel_hold.base_of(release) == base


class Modules(Host):
    """A host with the module that a package put together, whose index is made by depmod; and its modinfo."""

    def __init__(self, root: str, told: str, indexed: bool = True) -> None:
        super().__init__(root)
        self.told = told
        self.said: List[str] = []
        directory = "/lib/modules/%s/" % KERNEL
        self.write(directory + "kernel/nvidia-580-server-open/nvidia.ko", "")
        self.write(directory + "modules.dep", "kernel/nvidia-580-server-open/nvidia.ko:\n" if indexed else "")

    def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
        if argv[0] == "modinfo":
            return CommandResult(argv, 0, self.told, "")
        assert list(argv) == ["depmod", KERNEL]
        self.said.append("depmod")
        self.write("/lib/modules/%s/modules.dep" % KERNEL, "kernel/nvidia-580-server-open/nvidia.ko:\n")
        return CommandResult(argv, 0, "", "")

    RELEASE = KERNEL

    def verify(self, signed: bool = False, **more: bool) -> None:
        step = Step("driver", "module.verify", self.RELEASE, "",
                    parameters={"module": "open", "signed": signed, **more},
                    change={"before": {"nvidia": None}, "after": {"nvidia": VERSION}})
        EXECUTORS[step.action](self, Journal(self), step)


OPEN = "version: %s\nlicense: Dual MIT/GPL\n" % VERSION


class Weak(Modules):
    """A kernel of SLES to which weak-updates has linked the modules of the kernel that they were built for."""

    WHERE, TOOL = "weak-updates/updates/nvidia.ko", "/usr/lib/module-init-tools/weak-modules2"
    RELEASE = "6.4.0-150700.53.3-default"
    PACKAGE, PACKAGED = "nvidia-open-driver-G06-signed-cuda-kmp-default", VERSION + "_k6.4.0_150700.51"

    def __init__(self, root: str, told: str, linked: bool = True) -> None:
        super().__init__(root, told)
        self.write(self.TOOL, "")
        self.write("/var/lib/rpm/rpmdb.sqlite", "")
        self.link(linked)

    def link(self, linked: bool) -> None:
        self.write("/lib/modules/%s/modules.dep" % self.RELEASE, self.WHERE + ":\n" if linked else "")
        if linked:
            self.write("/lib/modules/%s/%s" % (self.RELEASE, self.WHERE), "")

    def run(self, argv: Any, *_words: Any, **_options: Any) -> CommandResult:
        if argv[0] == "modinfo":
            return CommandResult(argv, 0, self.told, "")
        if argv[0] == "rpm":
            rows = ("%s\tx86_64\t0\t%s\t1" % (self.PACKAGE, self.PACKAGED),
                    "kernel-default\tx86_64\t0\t6.4.0\t150700.53.3.1")
            return CommandResult(argv, 0, "".join("1\t1\t%s\n" % row for row in rows if "-qa" in argv), "")
        self.said.append(" ".join(argv))
        self.link(self.said[0] == "%s --add-kmp %s-%s-1" % (self.TOOL, self.PACKAGE, self.PACKAGED))
        return CommandResult(argv, 0, "", "")


class TestVerified:
    def test_what_weak_updates_has_linked_is_the_module_of_a_kernel(self, tmp_path: Path) -> None:
        host = Weak(str(tmp_path), OPEN + "signer: SUSE Linux Enterprise Secure Boot CA\n")
        host.verify(signed=True)
        host.told = OPEN
        with pytest.raises(GpuOpsError, match="weak-updates/updates/nvidia.ko is signed by nobody"):
            host.verify(signed=True)

    def test_links_that_the_scripts_of_suse_s_package_have_not_made_are_made(self, tmp_path: Path) -> None:
        host = Weak(str(tmp_path), OPEN, linked=False)
        host.verify()
        assert host.said == [
            "%s --add-kmp %s-%s-1" % (host.TOOL, host.PACKAGE, host.PACKAGED), "depmod " + host.RELEASE]

    @pytest.mark.parametrize("tool, words", [
        ("/usr/bin/zypper", ["rpm", "-U", "--replacepkgs", "--oldpackage", "--nodeps", "fetched.rpm"]),
        ("/usr/bin/dnf", ["dnf", "--assumeyes", "reinstall", "nvidia-open-driver-G06-signed-cuda-kmp-default-"])])
    def test_a_package_whose_file_dkms_has_taken_along_is_installed_once_more(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tool: str, words: List[str]
    ) -> None:
        """'dkms remove' deletes what lies where its own module was, in the same version: SUSE's is no other's then."""
        host = Weak(str(tmp_path), OPEN, linked=False)
        host.write(tool, "")
        monkeypatch.setattr(modules_again, "_fetched", lambda host, packages: ["fetched.rpm"])
        monkeypatch.setattr(host, "link", lambda linked: None)
        asked: List[str] = []

        def installed(_host: Host, argv: List[str], _seconds: float) -> None:
            asked.extend(argv)
            Weak.link(host, True)

        monkeypatch.setattr(modules_again.running, "configure", installed)
        host.verify()
        assert all(any(each.startswith(word) for each in asked) for word in words), asked
        asked.clear()
        Weak.link(host, False)
        monkeypatch.setattr(modules_again.running, "configure", lambda *_words: None)
        with pytest.raises(GpuOpsError) as failed:
            host.verify()
        by_hand = "zypper install --force " if "zypper" in tool else "dnf reinstall "
        assert "`%s%s" % (by_hand, host.PACKAGE) in failed.value.remedy

    def test_a_module_of_the_right_version_and_kind_is_enough_without_secure_boot(self, tmp_path: Path) -> None:
        host = Modules(str(tmp_path), OPEN)
        host.verify()
        assert host.said == []

    def test_an_index_that_lags_behind_is_renewed(self, tmp_path: Path) -> None:
        host = Modules(str(tmp_path), OPEN, indexed=False)
        host.verify()
        assert host.said == ["depmod"]

    @pytest.mark.parametrize("told, said", [
        (OPEN.replace("178", "126"), "driver 580.126.04 with the open"),
        (OPEN.replace("Dual MIT/GPL", "NVIDIA"), "the proprietary kernel module"),
    ])
    def test_another_module_in_its_place_is_said(self, tmp_path: Path, told: str, said: str) -> None:
        with pytest.raises(GpuOpsError, match=said) as failed:
            Modules(str(tmp_path), told).verify()
        assert failed.value.code == "driver.precompiled_module_not_there"

    def test_a_kernel_that_neither_runs_nor_boots_next_holds_up_nothing_and_is_noted(self, tmp_path: Path) -> None:
        host = Modules(str(tmp_path), OPEN.replace("178", "126"))
        host.write("/boot/vmlinuz-" + KERNEL, "")
        host.verify(essential=False)
        host.told = OPEN
        host.verify(signed=True, essential=False)
        with pytest.raises(GpuOpsError, match="is signed by nobody"):
            host.verify(signed=True, essential=True)
        assert Journal(host).recall("driver")["unbuilt"] == {KERNEL: VERSION}
        name = "linux-modules-nvidia-580-server-open-" + KERNEL
        target = Target(VERSION, "open", catalogue.PackageSet("", (name,)), catalogue.PRECOMPILED)
        seen = [Kernel(KERNEL, module="580.126.09", license="Dual MIT/GPL", failed=VERSION)]
        for there, steps in ((UBUNTU, 1), (UBUNTU.but(kernel="6.8.0-95-generic", boot_kernel="6.8.0-95-generic"), 0)):
            assert len(precompiled.verify_steps(seen, policy(), there, target, None)) == steps
            told = precompiled.notes(seen, {}, {}, policy(), there, target)
            assert ["neither runs nor boots next" in each for each in told] == [True] * (1 - steps)

    def test_under_secure_boot_somebody_has_signed_it(self, tmp_path: Path) -> None:
        with pytest.raises(GpuOpsError, match="signed by nobody") as failed:
            Modules(str(tmp_path), OPEN).verify(signed=True)
        assert failed.value.code == "driver.precompiled_module_not_trusted"
        Modules(str(tmp_path), OPEN + "signer: Canonical Ltd. Kernel Module Signing\n").verify(signed=True)


class TestLinked:
    """A later kernel of EL, to which weak-modules has linked the modules of the one that they were built for."""

    BUILT_FOR, LATER = "5.14.0-570.12.1.el9_6.x86_64", "5.14.0-570.17.1.el9_6.x86_64"
    THERE = {"kmod-nvidia-580.178.04-5.14.0-570.12.1": "3:580.178.04-3.el9",
             "nvidia-driver-cuda": "3:580.178.04-1.el9"}

    def choice(self, module: str, *bootable: str, **more: str) -> prebuilt.Choice:
        system = catalogue.system_of("rocky", "9.6", "x86_64")
        assert system is not None
        there = prebuilt.Prebuilt(tuple(Kernel(each, module=module) for each in bootable), offered={})
        return prebuilt.choice(
            policy(version="580", kernel_module="proprietary"),
            facts(A100, os_id="rocky", os_version="9.6", kernel=self.LATER, boot_kernel=self.LATER),
            catalogue.Wanted(system, False, 580, "proprietary", build=catalogue.PRECOMPILED), there,
            {**self.THERE, **more}, {"nvidia-driver-cuda": ["3:580.178.04-1.el9"]})

    @pytest.mark.parametrize("bootable", [(BUILT_FOR, LATER), (LATER,)])
    def test_it_lacks_no_package_of_its_own(self, bootable: Tuple[str, ...]) -> None:
        chosen = self.choice(VERSION, *bootable)
        assert (chosen.version, chosen.lacking) == (VERSION, {})
        assert set(chosen.fits) == {"kmod-nvidia-580.178.04-5.14.0-570.12.1"}, "it stays"

    def test_without_such_a_link_or_with_what_dkms_has_built_it_does(self) -> None:
        assert set(self.choice("", self.BUILT_FOR, self.LATER).lacking) == {self.LATER}
        of_dkms = {"kmod-nvidia-latest-dkms": "3:580.178.04-1.el9"}
        assert set(self.choice(VERSION, self.BUILT_FOR, self.LATER, **of_dkms).lacking) == {self.LATER}


@pytest.mark.parametrize("release, lock", [
    ("5.14.0-570.12.1.el9_6.x86_64", "kernel-5.14.0-570.12.1.el9_6.x86_64 kernel-core-"),
    ("5.14.0-570.12.1.el9_6.aarch64+64k", "kernel-64k-5.14.0-570.12.1.el9_6.aarch64 kernel-64k-core-"),
])
def test_an_update_of_a_kernel_of_el_is_kept_off_by_the_names_of_that_kernel(release: str, lock: str) -> None:
    there = facts(A100, os_id="rocky", os_version="9.6", kernel=release, boot_kernel=release)
    coming = {"kmod-nvidia-580.178.04-5.14.0-570.12.1": "3:580.178.04-3.el9"}
    target = Target(VERSION, "proprietary", catalogue.PackageSet("", tuple(coming)), catalogue.PRECOMPILED)
    (told,) = backend_of(there).notes(Observation(), coming, there, target)
    assert "`dnf versionlock add %s" % lock in told
    full = replace(target, packages=replace(target.packages, required=(*coming, "nvidia-driver")))
    assert backend_of(there).notes(Observation(), coming, there, full) == [], "NVIDIA's plugin of dnf keeps it off"


def test_a_kernel_that_loses_what_dkms_has_built_for_it_is_noted_before_it_does() -> None:
    other = "6.8.0-85-generic"
    source = "nvidia-dkms-580-server-open"
    target = Target(VERSION, "open", catalogue.PackageSet("", (MODULES + KERNEL,)), catalogue.PRECOMPILED)
    seen = [Kernel(other, module=VERSION), Kernel(KERNEL, module=VERSION)]
    assert precompiled.notes(seen, {source: "1"}, {}, policy(), UBUNTU, target) == []
    (told,) = precompiled.notes(seen, {source: "1"}, {}, policy(), UBUNTU, replace(target, leaves=(source,)))
    assert told.startswith("Kernel %s has no signed module of driver %s" % (other, VERSION))
