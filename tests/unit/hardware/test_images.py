# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every system whose image carries everything is told by its own os-release and files; every other is not taken for
one."""
from __future__ import annotations

from pathlib import Path
from typing import Tuple

import pytest
from gpu_hosts import A100, facts

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lasting import refusals_of_what_does_not_last
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import file_step, restore_step, service_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.images import IMAGE_SYSTEMS, image_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import os_release
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau import planner as nouveau
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau.observation import Initramfs, Observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.nouveau.policy import policy_of

NIXOS = """\
ANSI_COLOR="0;38;2;126;186;228"
BUG_REPORT_URL="https://github.com/NixOS/nixpkgs/issues"
BUILD_ID="25.05.805252.b43c397f6c21"
ID=nixos
ID_LIKE=""
NAME=NixOS
PRETTY_NAME="NixOS 25.05 (Warbler)"
VERSION="25.05 (Warbler)"
VERSION_ID="25.05"
"""
TALOS = """\
NAME="Talos"
ID=talos
VERSION_ID=v1.10.3
PRETTY_NAME="Talos (v1.10.3)"
HOME_URL="https://www.talos.dev/"
BUG_REPORT_URL="https://github.com/siderolabs/talos/issues"
VENDOR_NAME="Sidero Labs"
"""
BOTTLEROCKET = """\
NAME=Bottlerocket
ID=bottlerocket
VERSION="1.40.0 (aws-k8s-1.33)"
PRETTY_NAME="Bottlerocket OS 1.40.0 (aws-k8s-1.33)"
VARIANT_ID=aws-k8s-1.33
VERSION_ID=1.40.0
BUILD_ID=f2b6b3b5
"""
COS = """\
NAME="Container-Optimized OS"
ID=cos
PRETTY_NAME="Container-Optimized OS from Google"
HOME_URL="https://cloud.google.com/container-optimized-os/docs"
VERSION=121
VERSION_ID=121
BUILD_ID=18867.90.4
"""
FLATCAR = """\
NAME="Flatcar Container Linux by Kinvolk"
ID=flatcar
ID_LIKE=coreos
VERSION=4230.2.1
VERSION_ID=4230.2.1
BUILD_ID=2025-07-15-1945
SYSEXT_LEVEL=1.0
PRETTY_NAME="Flatcar Container Linux by Kinvolk 4230.2.1 (Oklo)"
"""
RHCOS = """\
NAME="Red Hat Enterprise Linux CoreOS"
ID="rhcos"
ID_LIKE="rhel fedora"
VERSION="416.94.202406172220-0"
VERSION_ID="4.16"
VARIANT="CoreOS"
VARIANT_ID=coreos
PLATFORM_ID="platform:el9"
PRETTY_NAME="Red Hat Enterprise Linux CoreOS 416.94.202406172220-0"
OPENSHIFT_VERSION="4.16"
RHEL_VERSION=9.4
OSTREE_VERSION="416.94.202406172220-0"
"""
RHCOS_OF_RHEL = """\
NAME="Red Hat Enterprise Linux CoreOS"
VERSION="9.6.20250826-1 (Plow)"
ID="rhel"
ID_LIKE="fedora"
VERSION_ID="9.6"
PLATFORM_ID="platform:el9"
VARIANT="CoreOS"
VARIANT_ID=coreos
OSTREE_VERSION="9.6.20250826-1"
"""
FCOS = """\
NAME="Fedora Linux"
VERSION="42.20250705.3.0 (CoreOS)"
ID=fedora
VERSION_ID=42
VARIANT="CoreOS"
VARIANT_ID=coreos
OSTREE_VERSION='42.20250705.3.0'
"""
FEDORA = """\
NAME="Fedora Linux"
VERSION="42 (Server Edition)"
ID=fedora
VERSION_ID=42
VARIANT="Server Edition"
VARIANT_ID=server
"""
RHEL = """\
NAME="Red Hat Enterprise Linux"
VERSION="9.6 (Plow)"
ID="rhel"
ID_LIKE="fedora"
VERSION_ID="9.6"
PLATFORM_ID="platform:el9"
"""
SL_MICRO = """\
NAME="SL-Micro"
VERSION="6.1"
VERSION_ID="6.1"
PRETTY_NAME="SUSE Linux Micro 6.1"
ID="sl-micro"
ID_LIKE="suse"
"""
SLE_MICRO = """\
NAME="SLE Micro"
VERSION="5.5"
VERSION_ID="5.5"
PRETTY_NAME="SUSE Linux Enterprise Micro 5.5"
ID="sle-micro"
ID_LIKE="suse"
"""
MICROOS = """\
NAME="openSUSE MicroOS"
ID="opensuse-microos"
ID_LIKE="suse opensuse opensuse-tumbleweed"
VERSION_ID="20250710"
"""
SLES = """\
NAME="SLES"
VERSION="15-SP7"
VERSION_ID="15.7"
PRETTY_NAME="SUSE Linux Enterprise Server 15 SP7"
ID="sles"
ID_LIKE="suse"
"""
DEBIAN = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nNAME="Debian GNU/Linux"\nVERSION_ID="13"\nID=debian\n'
OSTREE, BOOTC, TRANSACTIONAL = "run/ostree-booted", "usr/lib/bootc/install/00.toml", "usr/sbin/transactional-update"


def host_of(tmp_path: Path, release: str, *files: str) -> Host:
    for name in ("etc/os-release", *files):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(release if name == "etc/os-release" else "")
    (tmp_path / "usr").mkdir(exist_ok=True)
    return Host(str(tmp_path))


@pytest.mark.parametrize("release, files, name, told, remedy, keeps_etc", [
    (NIXOS, (), "NixOS", "os-release ID=nixos", "nixos-rebuild switch", False),
    (TALOS, (), "Talos Linux", "os-release ID=talos", "system extensions", False),
    (BOTTLEROCKET, (), "Bottlerocket", "os-release ID=bottlerocket", "-nvidia", False),
    (COS, (), "Container-Optimized OS", "os-release ID=cos", "cos-extensions install gpu", False),
    (FLATCAR, (), "Flatcar Container Linux", "os-release ID=flatcar", "enabled-sysext.conf", True),
    (RHCOS, (OSTREE,), "Red Hat Enterprise Linux CoreOS", "os-release ID=rhcos", "GPU Operator", True),
    (RHCOS_OF_RHEL, (OSTREE,), "Red Hat Enterprise Linux CoreOS", "os-release ID=rhel, VARIANT_ID=coreos",
     "GPU Operator", True),
    (FCOS, (OSTREE,), "Fedora CoreOS", "os-release ID=fedora, VARIANT_ID=coreos", "rpm-ostree rebase", True),
    (RHEL, (OSTREE, BOOTC), "a system booted from a container image (bootc)", "/run/ostree-booted, /usr/lib/bootc",
     "bootc switch", True),
    (FEDORA, (OSTREE,), "a system booted from an ostree commit", "/run/ostree-booted", "rpm-ostree install", True),
    (SLE_MICRO, (TRANSACTIONAL,), "SUSE Linux Enterprise Micro", "os-release ID=sle-micro",
     "transactional-update pkg install", True),
    (SL_MICRO, (), "SUSE Linux Enterprise Micro", "os-release ID=sl-micro", "transactional-update pkg install", True),
    (MICROOS, (), "openSUSE MicroOS", "os-release ID=opensuse-microos", "transactional-update pkg install", True),
    (SLES, (TRANSACTIONAL,), "a system that transactional-update changes", "/usr/sbin/transactional-update",
     "transactional-update pkg install", True),
])
def test_a_system_is_told_by_its_own_files(
    tmp_path: Path, release: str, files: Tuple[str, ...], name: str, told: str, remedy: str, keeps_etc: bool
) -> None:
    host = host_of(tmp_path, release, *files)
    found, system = image_of(host, os_release(host))
    assert (found, system.name, system.keeps_etc) == (told, name, keeps_etc)
    assert remedy in system.remedy


@pytest.mark.parametrize("release, files", [
    (DEBIAN, ()), (FEDORA, ()), (RHEL, ()), (SLES, ()), ("", ()),
    # bootc is installed, and the system is not booted from an image
    (RHEL, (BOOTC,)),
])
def test_a_system_with_packages_is_taken_for_none(tmp_path: Path, release: str, files: Tuple[str, ...]) -> None:
    host = host_of(tmp_path, release, *files)
    assert image_of(host, os_release(host))[0] == ""


def test_no_row_is_hidden_behind_an_earlier_one() -> None:
    """One that asks for the same or less would always be told first."""
    for place, row in enumerate(IMAGE_SYSTEMS):
        for earlier in IMAGE_SYSTEMS[:place]:
            assert not (set(row.ids) & set(earlier.ids) and set(earlier.variants) <= set(row.variants)), row.name
            assert row.ids or earlier.ids or not set(earlier.files) <= set(row.files), row.name


class TestWhatDoesNotLast:
    WRITTEN = file_step("any", "/etc/modprobe.d/any.conf", None, "text\n", "It is wanted.")
    ENABLED = service_step("any", "enable", "any.service", "It is wanted.", Disruption.none, "disabled", "enabled")
    LOST = HostFacts(image="Container-Optimized OS", immutable="os-release ID=cos", keeps_etc=False)

    @pytest.mark.parametrize("step", [WRITTEN, ENABLED])
    def test_settings_below_etc_are_refused_where_the_system_makes_it_anew(self, step: Step) -> None:
        (refusal,) = refusals_of_what_does_not_last([step], self.LOST)
        assert refusal.code == "host.settings_do_not_last"
        assert "Container-Optimized OS" in refusal.found
        assert step.subject in refusal.found
        assert refusals_of_what_does_not_last([step], HostFacts()) == ()

    def test_what_lies_below_run_and_what_is_taken_back_is_not(self) -> None:
        below_run = file_step("any", "/run/cdi/any.yaml", None, "text\n", "It is wanted.")
        restored = restore_step("any", "/etc/modprobe.d/any.conf", "text\n", None)
        assert refusals_of_what_does_not_last([below_run, restored], self.LOST) == ()

    def test_services_are_refused_where_no_systemd_runs(self) -> None:
        (refusal,) = refusals_of_what_does_not_last([self.WRITTEN, self.ENABLED], HostFacts(boots_by_systemd=False))
        assert refusal.code == "host.no_systemd"
        assert "any.service" in refusal.found
        assert "systemd-nspawn --boot" in refusal.remedy

    def test_files_alone_need_no_systemd(self) -> None:
        assert refusals_of_what_does_not_last([self.WRITTEN], HostFacts(boots_by_systemd=False)) == ()


class TestNouveauOnAnImage:
    POLICY = policy_of({"state": "present"})
    IMAGE = facts(A100, immutable="os-release ID=flatcar", image="Flatcar Container Linux", image_remedy="-")

    def test_the_blacklist_is_written_where_the_initramfs_is_left_alone(self) -> None:
        plan = nouveau.plan(Observation(), self.POLICY, self.IMAGE)
        assert [step.action for step in plan.steps] == ["file.write"]

    def test_an_initramfs_of_the_image_is_not_made_anew(self) -> None:
        initramfs = Initramfs(kernel="6.6.95-flatcar", path="/boot/initrd", nouveau=True, ours=False, older=True)
        there = Observation(tool="dracut", initramfs=(initramfs,))
        assert nouveau.plan(there, self.POLICY, facts(A100)).steps[1].action == nouveau.REBUILD
        (refusal,) = nouveau.plan(there, self.POLICY, self.IMAGE.but(nouveau_loaded=True)).refusals
        assert refusal.code == "nouveau.system_is_an_image"
        assert "modprobe.blacklist=nouveau" in refusal.remedy

    def test_kernel_arguments_that_keep_nouveau_away_are_enough(self) -> None:
        initramfs = Initramfs(kernel="6.6.95-flatcar", path="/boot/initrd", nouveau=True, ours=False, older=True)
        plan = nouveau.plan(Observation(tool="dracut", initramfs=(initramfs,)), self.POLICY, self.IMAGE)
        assert [step.action for step in plan.steps] == ["file.write"]
