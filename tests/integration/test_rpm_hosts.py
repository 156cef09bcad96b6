# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of EL 9: dnf, rpm, module streams and scriptlets are real, and so are DKMS and the modules that it builds.

One host in this order: as it was delivered, with a driver that its administrator has installed, without it again, with
one driver of ours after the other, without any. What gpu_driver has planned is held against what dnf's history shows.
"""
from __future__ import annotations

import re
from typing import Any, Dict, Iterator, List, Mapping, Optional

import pytest
from host_command import assert_command_brings_the_driver
from laboratory import Fleet, new_lab, rpm_packages, succeeded

from gpulab.parts.el9_rpms import BUILT, KERNEL, KERNEL_RELEASE, built_name

HOST = "rocky"
REPOSITORY = "http://packages.gpulab:8480/cuda-rpm/repos/rhel9/x86_64"
OLDER, OLD, NEW = "580.126.09", "580.178.04", "595.91.07"
DRIVER = {"version": OLD, "repository_url": REPOSITORY, "repository_key": REPOSITORY + "/gpulab.pub"}
CLOSED_AND_BUILT = {"build": "precompiled", "kernel_module": "proprietary"}
_ITEM = re.compile(
    r"(?m)^ +(Install|Upgrade|Downgrade|Removed) +(\S+)-((?:\d+:)?[^-\s]+-[^-\s]+)\.(?:x86_64|noarch) ")
SET = ("kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-modprobe", "nvidia-persistenced")


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("rpm")
    lab.up("el9")
    yield Fleet(lab, tmp_path_factory.mktemp("rpm"))
    lab.down()


def module(fleet: Fleet, name: str, **options: Any) -> Dict[str, Any]:
    return succeeded(fleet.tasks(HOST, [{"gpuops.nvidia." + name: options}])).result(HOST, name)


def by_hand(version: str) -> List[Dict[str, Any]]:
    """What an administrator plays: NVIDIA's repository, the branch's stream, and the set in one version."""
    return [
        {"ansible.builtin.yum_repository": {
            "name": "cuda-rhel9-x86_64", "description": "cuda-rhel9-x86_64", "baseurl": REPOSITORY, "gpgcheck": True,
            "gpgkey": REPOSITORY + "/gpulab.pub"}},
        {"ansible.builtin.command": {"argv": [
            "dnf", "-y", "module", "enable", "nvidia-driver:%s-open" % version.split(".")[0]]}},
        {"ansible.builtin.dnf": {"name": ["%s-3:%s" % (name, version) for name in SET] + ["kernel-devel-" + KERNEL]}},
    ]


@pytest.fixture(scope="module")
def with_driver(fleet: Fleet) -> Dict[str, str]:
    """The host with the driver of branch 580, loaded; the answer is what was installed before."""
    before = rpm_packages(fleet, HOST)
    succeeded(fleet.tasks(HOST, by_hand(OLD)))
    fleet.lab.ssh(HOST, ["rmmod", "nouveau"])
    fleet.lab.ssh(HOST, ["modprobe", "nvidia-uvm"])
    return before


def test_the_host_is_an_el_9_for_ansible(fleet: Fleet) -> None:
    played = succeeded(fleet.tasks(HOST, [{"ansible.builtin.setup": {}}, {"ansible.builtin.package_facts": {}}]))
    facts = played.result(HOST, "setup")["ansible_facts"]
    assert {name: facts["ansible_" + name] for name in (
        "os_family", "distribution", "distribution_major_version", "pkg_mgr", "service_mgr", "kernel")} == {
        "os_family": "RedHat", "distribution": "Rocky", "distribution_major_version": "9", "pkg_mgr": "dnf",
        "service_mgr": "systemd", "kernel": KERNEL}
    packages = played.result(HOST, "package_facts")["ansible_facts"]["packages"]
    assert {package["source"] for versions in packages.values() for package in versions} == {"rpm"}


def test_the_host_is_a_node_of_the_cluster(fleet: Fleet) -> None:
    assert fleet.node(HOST)["status"]["nodeInfo"]["osImage"].startswith("Rocky Linux 9")


def test_gpu_info_reads_the_host_as_it_was_delivered(fleet: Fleet) -> None:
    observation = module(fleet, "gpu_info")["observation"]
    assert [observation["host"][name] for name in ("os_id", "os_version", "kernel", "boot_kernel")] == [
        "rocky", "9.7", KERNEL, KERNEL]
    assert len(observation["pci"]["gpus"]) == 2 and observation["host"]["driver_installed"] == ""
    assert {gpu["driver"] for gpu in observation["pci"]["gpus"]} == {"nouveau"}


@pytest.mark.variation
def test_dnf_installs_the_set_with_its_dependencies_and_the_module_is_built(
        fleet: Fleet, with_driver: Dict[str, str]) -> None:
    new = {name: version for name, version in rpm_packages(fleet, HOST).items() if name not in with_driver}
    assert set(SET) | {"dkms", "kernel-devel", "libnvidia-ml", "nvidia-kmod-common"} <= set(new)
    assert {version for name, version in new.items() if "nvidia" in name and name != "gpg-pubkey"} == {
        "3:%s-1.el9" % OLD}
    assert fleet.say(HOST, "dkms", "status") == "nvidia/%s, %s, x86_64: installed" % (OLD, KERNEL)
    assert fleet.say(HOST, "modinfo", "-F", "version", "nvidia") == OLD
    assert "/extra/" in fleet.say(HOST, "modinfo", "-F", "filename", "nvidia")


@pytest.mark.variation
def test_the_driver_is_loaded_and_answers(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == OLD
    assert len(fleet.say(HOST, "nvidia-smi", "-L").splitlines()) == 2
    observation = module(fleet, "gpu_info")["observation"]
    assert len(observation["nvml"]["gpus"]) == 2
    assert [observation["host"][name] for name in ("driver_installed", "driver_loaded", "driver_userspace")] == [
        OLD, OLD, OLD]


@pytest.mark.variation
def test_dnf_has_nothing_to_do_again(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    played = succeeded(fleet.tasks(HOST, by_hand(OLD)))
    assert not played.result(HOST, "yum_repository")["changed"] and not played.result(HOST, "dnf")["changed"]


@pytest.mark.variation
def test_a_driver_that_dnf_has_installed_is_verified_as_preinstalled(
        fleet: Fleet, with_driver: Dict[str, str]) -> None:
    result = module(fleet, "gpu_driver", source="preinstalled", version=OLD.split(".")[0])
    assert not result["changed"] and result["plan"]["steps"] == []
    refused = fleet.tasks(HOST, [{"gpuops.nvidia.gpu_driver": {"source": "preinstalled", "version": NEW}}])
    assert refused.result(HOST, "gpu_driver")["failed"]


@pytest.mark.variation
def test_after_a_reboot_the_driver_is_loaded_in_place_of_nouveau(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    fleet.lab.reboot(HOST)
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == OLD
    assert "nouveau" not in fleet.say(HOST, "cat", "/proc/modules")
    assert fleet.say(HOST, "systemctl", "is-active", "nvidia-persistenced.service") == "active"


@pytest.mark.variation
def test_removal_takes_packages_and_modules_away(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    for name in ("nvidia-uvm", "nvidia-modeset", "nvidia"):
        fleet.say(HOST, "systemctl", "stop", "nvidia-persistenced.service")
        fleet.say(HOST, "rmmod", name)
    succeeded(fleet.tasks(HOST, [{"ansible.builtin.dnf": {
        "name": [*SET, "kernel-devel"], "state": "absent", "autoremove": True}}]))
    assert rpm_packages(fleet, HOST) == with_driver
    assert fleet.say(HOST, "sh", "-c", "ls -d /usr/src/nvidia-* /usr/bin/nvidia-* /lib/modules/*/extra/*") == ""
    assert module(fleet, "gpu_info")["observation"]["host"]["driver_installed"] == ""


# ---------------------------------------------------------------------------------------------------------------------
# by gpuops.nvidia


def driver(check: bool = False, **options: Any) -> Dict[str, Any]:
    return {"gpuops.nvidia.gpu_driver": {**DRIVER, **options}, "check_mode": check}


def transactions(fleet: Fleet) -> List[str]:
    """Numbers of dnf's transactions, oldest first."""
    lines = fleet.say(HOST, "dnf", "history", "list").splitlines()
    return [line.split("|")[0].strip() for line in reversed(lines) if line.split("|")[0].strip().isdigit()]


def shown(fleet: Fleet, number: str) -> Dict[str, Optional[str]]:
    """{package: version, None where it went} of one of them."""
    items = _ITEM.findall(fleet.say(HOST, "dnf", "history", "info", number) + " ")
    return {name: None if kind == "Removed" else version for kind, name, version in items}


def planned(answer: Mapping[str, Any]) -> List[Dict[str, Optional[str]]]:
    """What shown() has of a plan, in which headers have their version in their name."""
    changes = [step["change"]["after"] for step in answer["plan"]["steps"]
               if step["action"] in ("packages.install", "packages.remove")]
    return [{name.replace("-5.14.0-" + KERNEL_RELEASE, ""): version for name, version in after.items()}
            for after in changes]


def change(fleet: Fleet, **options: Any) -> Dict[str, Any]:
    """What gpu_driver answers: check mode says the same before, the history shows it, and again nothing is to be done.
    Then the driver is loaded."""
    before = transactions(fleet)
    played = succeeded(fleet.tasks(HOST, [
        driver(True, **options), driver(**options), driver(**options), {"gpuops.nvidia.gpu_driver_activation": {}}]))
    foretold, told, again = played.results(HOST, "gpu_driver")
    assert told["plan"]["steps"] == foretold["plan"]["steps"]
    since = [shown(fleet, each) for each in transactions(fleet) if each not in before]
    assert [each for each in since if each] == planned(told), "a mark is a transaction without packages"
    assert (again["changed"], again["plan"]["steps"]) == (False, [])
    return told


def assert_driver(fleet: Fleet, version: str, module: str, signer: str = "") -> None:
    """The whole set is of this version, with this package of modules, and it is what runs."""
    there = {name: each for name, each in rpm_packages(fleet, HOST).items() if "nvidia" in name}
    assert {each.rpartition("-")[0] for each in there.values()} == {"3:%s" % version}
    assert [name for name in there if name.startswith("kmod-")] == [module]
    told = fleet.say(HOST, "modinfo", "nvidia").splitlines()
    fields = {name: value.strip() for name, _colon, value in (line.partition(":") for line in reversed(told))}
    assert fields["version"] == version and fields["license"] == ("Dual MIT/GPL" if "open" in module else "NVIDIA")
    assert not signer or fields["signer"] == signer
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == version
    assert len(fleet.say(HOST, "nvidia-smi", "-L").splitlines()) == 2


@pytest.fixture(scope="module")
def ours(fleet: Fleet) -> Dict[str, str]:
    """The host with a driver of ours, of branch 580; the answer is what was installed before."""
    succeeded(fleet.tasks(HOST, [
        {"ansible.builtin.yum_repository": {"name": "cuda-rhel9-x86_64", "state": "absent"}},
        {"gpuops.nvidia.nouveau": {}}]))
    before = rpm_packages(fleet, HOST)
    change(fleet)
    return before


def uninstall(fleet: Fleet) -> None:
    succeeded(fleet.tasks(HOST, [
        {"gpuops.nvidia.gpu_driver_activation": {"state": "absent"}}, driver(state="absent"),
        {"gpuops.nvidia.nouveau": {"state": "absent"}}]))


def test_a_bare_host_gets_the_driver_that_was_planned(fleet: Fleet, ours: Dict[str, str]) -> None:
    assert_driver(fleet, OLD, "kmod-nvidia-open-dkms")
    assert {"dkms", "kernel-devel", "kernel-devel-matched"} <= set(rpm_packages(fleet, HOST))


@pytest.mark.variation
def test_modules_that_nvidia_has_built_set_the_version_and_those_of_the_driver_before_go(
        fleet: Fleet, ours: Dict[str, str]) -> None:
    assert BUILT == (OLDER, NEW)
    refused = fleet.tasks(HOST, [driver(**CLOSED_AND_BUILT)]).result(HOST, "gpu_driver")
    assert (refused["failed"], refused["code"]) == (True, "driver.no_precompiled_module")
    assert "is of driver %s, %s for kernel %s" % (OLDER, NEW, KERNEL) in refused["msg"]
    change(fleet, version="580", **CLOSED_AND_BUILT)
    assert_driver(fleet, OLDER, built_name(OLDER), "NVIDIA")
    assert change(fleet, version=NEW, **CLOSED_AND_BUILT)["returns_to"]["how"] == "archive"
    assert_driver(fleet, NEW, built_name(NEW), "NVIDIA")
    assert "/extra/drivers/video/nvidia/nvidia.ko" in fleet.say(HOST, "modinfo", "-F", "filename", "nvidia")
    change(fleet, version=NEW, state="rolled_back")
    assert_driver(fleet, OLDER, built_name(OLDER), "NVIDIA")


def test_what_dkms_builds_takes_their_place_and_an_uninstallation_leaves_the_host_as_it_was(
        fleet: Fleet, ours: Dict[str, str]) -> None:
    change(fleet, version=NEW, build="dkms")
    assert_driver(fleet, NEW, "kmod-nvidia-open-dkms")
    uninstall(fleet)
    assert rpm_packages(fleet, HOST) == ours
    # NVIDIA's package of built modules leaves the directories above its own
    left = ("ls -d /usr/src/nvidia-* /usr/bin/nvidia-* /etc/*/*/*gpuops* /etc/*/*gpuops*; "
            "find /lib/modules/*/extra -type f")
    assert fleet.say(HOST, "sh", "-c", left) == ""


@pytest.mark.variation
def test_without_a_controller_the_hosts_own_command_has_dnf_bring_it(fleet: Fleet, ours: Dict[str, str]) -> None:
    uninstall(fleet)
    assert_command_brings_the_driver(fleet, HOST, DRIVER)
    assert_driver(fleet, OLD, "kmod-nvidia-open-dkms")
    uninstall(fleet)
    assert rpm_packages(fleet, HOST) == ours
