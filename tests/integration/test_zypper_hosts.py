# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of SLES 15: zypper, locks and scriptlets are real, and so are DKMS and the modules that it builds.

One host in this order: as it was delivered, with modules that SUSE has signed, with one driver after the other that
DKMS builds, with SUSE's again, without any. What gpu_driver has planned is held against what zypper's own history
shows.
"""
from __future__ import annotations

import time
from typing import Any, Dict, Iterator, List, Mapping, Optional

import pytest
from host_command import assert_command_brings_the_driver
from laboratory import Fleet, new_lab, rpm_packages, succeeded

from gpulab.parts.sles15_rpms import KERNEL, SIGNED, SIGNED_RELEASE

HOST = "suse"
REPOSITORY = "http://packages.gpulab:8480/cuda-sles15/repos/sles15/x86_64"
OLDER, OLD, NEW, NEWEST = "580.126.09", "580.178.04", "595.91.07", "610.57.04"
DRIVER = {"version": OLD, "repository_url": REPOSITORY, "repository_key": REPOSITORY + "/gpulab.pub"}
ACTIVATION: Dict[str, Any] = {"gpuops.nvidia.gpu_driver_activation": {}}
HISTORY, LOCKS = "/var/log/zypp/history", "/etc/zypp/locks"
SCRIPT_BUILDS = "/var/lib/dkms/nvidia/%s/build" % NEW


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("zypper")
    lab.up("sles15")
    yield Fleet(lab, tmp_path_factory.mktemp("zypper"))
    lab.down()


def driver(check: bool = False, **options: Any) -> Dict[str, Any]:
    return {"gpuops.nvidia.gpu_driver": {**DRIVER, **options}, "check_mode": check}


def of_driver(fleet: Fleet) -> Dict[str, str]:
    return {name: version for name, version in rpm_packages(fleet, HOST).items() if "nvidia" in name}


def history(fleet: Fleet) -> List[str]:
    return [line for line in fleet.say(HOST, "cat", HISTORY).splitlines() if not line.startswith("#")]


def transactions(lines: List[str]) -> List[Dict[str, Optional[str]]]:
    """{package: version, None where it went} of each command that zypper has carried out."""
    found: List[Dict[str, Optional[str]]] = []
    for line in lines:
        _when, kind, name, version = (field.strip() for field in line.split("|")[:4])
        if kind == "command":
            found.append({})
        elif kind == "install":
            found[-1][name] = version
        elif kind == "remove":
            found[-1].setdefault(name)
    return found


def planned(answer: Mapping[str, Any]) -> List[Dict[str, Optional[str]]]:
    """What transactions() has of a plan, in which kernels and their headers have their version in their name."""
    def bare(change: Mapping[str, Mapping[str, Optional[str]]], name: str) -> str:
        return name.replace("-%s" % (change["after"][name] or change["before"][name]), "")

    changes = [step["change"] for step in answer["plan"]["steps"]
               if step["action"] in ("packages.install", "packages.remove")]
    # Where one comes in another version, the one that goes has its name and is first
    return [{bare(change, name): version for name, version in sorted(
        change["after"].items(), key=lambda item: item[1] is not None)} for change in changes]


def change(fleet: Fleet, **options: Any) -> Dict[str, Any]:
    """What gpu_driver answers: check mode says the same before, the history shows it, and again nothing is to be done.
    Then the driver is loaded."""
    since = len(history(fleet))
    played = succeeded(fleet.tasks(HOST, [driver(True, **options), driver(**options), driver(**options), ACTIVATION]))
    foretold, told, again = played.results(HOST, "gpu_driver")
    assert told["plan"]["steps"] == foretold["plan"]["steps"]
    assert told["applied"] == [step["id"] for step in told["plan"]["steps"]]
    assert transactions(history(fleet)[since:]) == planned(told)
    assert (again["changed"], again["plan"]["steps"]) == (False, [])
    return told


def assert_driver(fleet: Fleet, version: str, generation: str) -> None:
    """The whole set is of this version and generation, and it is what runs."""
    there = of_driver(fleet)
    assert set(there.values()) == {"3:%s-1" % version}
    assert {name.rpartition("-")[2] for name in there if "-G0" in name} == {generation}
    assert {"nvidia-open-driver-" + generation, "nvidia-compute-utils-" + generation} <= set(there)
    assert fleet.say(HOST, "dkms", "status") == "nvidia/%s, %s, x86_64: installed" % (version, KERNEL)
    assert fleet.say(HOST, "modinfo", "-F", "version", "nvidia") == version
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == version
    assert len(fleet.say(HOST, "nvidia-smi", "-L").splitlines()) == 2
    assert fleet.say(HOST, "rpm", "-V", *there) == ""


def assert_signed(fleet: Fleet, version: str, generation: str) -> None:
    """The modules that run are SUSE's, of this driver, and user space is NVIDIA's of the same version."""
    there, short = of_driver(fleet), "nvidia-open-driver-%s-signed-cuda-kmp-default" % generation
    assert there.pop(short) == "%s_k6.4.0_%s-%s" % (version, SIGNED[version], SIGNED_RELEASE)
    assert set(there.values()) == {"3:%s-1" % version}
    assert {name.rpartition("-")[2] for name in there if "-G0" in name} == {generation}
    assert [name for name in there if "nvidia-open-driver" in name] == []
    told = fleet.say(HOST, "modinfo", "nvidia").splitlines()
    fields = {name: value.strip() for name, _colon, value in (line.partition(":") for line in reversed(told))}
    assert [fields[name] for name in ("filename", "version", "license", "signer")] == [
        "/lib/modules/%s/weak-updates/updates/nvidia.ko.zst" % KERNEL, version, "Dual MIT/GPL",
        "SUSE Linux Enterprise Secure Boot CA"]
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == version
    assert len(fleet.say(HOST, "nvidia-smi", "-L").splitlines()) == 2
    assert fleet.say(HOST, "rpm", "-V", short, *there) == ""


@pytest.fixture(scope="module")
def delivered(fleet: Fleet) -> Dict[str, Any]:
    """The host before anything is done to it; its administrator has a lock of their own."""
    fleet.lab.ssh(HOST, ["zypper", "addlock", "tool"])
    return {"packages": rpm_packages(fleet, HOST), "locks": fleet.say(HOST, "cat", LOCKS)}


@pytest.fixture(scope="module")
def with_signed(fleet: Fleet, delivered: Dict[str, Any]) -> None:
    """A driver whose modules SUSE has signed."""
    succeeded(fleet.tasks(HOST, [{"gpuops.nvidia.nouveau": {}}]))
    change(fleet, version=OLDER, build="precompiled")


@pytest.fixture(scope="module")
def with_driver(fleet: Fleet, with_signed: None) -> Dict[str, Any]:
    """The answer to the first driver that DKMS builds, that of branch 580."""
    return change(fleet, build="dkms")


def test_the_host_is_a_sles_15_for_ansible_and_a_node_of_the_cluster(fleet: Fleet) -> None:
    played = succeeded(fleet.tasks(HOST, [{"ansible.builtin.setup": {}}, {"ansible.builtin.package_facts": {}}]))
    facts = played.result(HOST, "setup")["ansible_facts"]
    assert {name: facts["ansible_" + name] for name in (
        "os_family", "distribution", "distribution_version", "pkg_mgr", "service_mgr", "kernel")} == {
        "os_family": "Suse", "distribution": "SLES", "distribution_version": "15.7", "pkg_mgr": "zypper",
        "service_mgr": "systemd", "kernel": KERNEL}
    packages = played.result(HOST, "package_facts")["ansible_facts"]["packages"]
    assert {package["source"] for versions in packages.values() for package in versions} == {"rpm"}
    assert fleet.node(HOST)["status"]["nodeInfo"]["osImage"] == "SUSE Linux Enterprise Server 15 SP7"


def test_gpu_info_reads_the_host_as_it_was_delivered(fleet: Fleet) -> None:
    played = succeeded(fleet.tasks(HOST, [{"gpuops.nvidia.gpu_info": {}}]))
    observation = played.result(HOST, "gpu_info")["observation"]
    assert [observation["host"][name] for name in ("os_id", "os_version", "kernel", "boot_kernel")] == [
        "sles", "15.7", KERNEL, KERNEL]
    assert len(observation["pci"]["gpus"]) == 2 and observation["host"]["driver_installed"] == ""
    assert {gpu["driver"] for gpu in observation["pci"]["gpus"]} == {"nouveau"}


def test_modules_for_a_later_kernel_are_refused(fleet: Fleet, delivered: Dict[str, Any]) -> None:
    played = succeeded(fleet.tasks(HOST, [dict(driver(version=NEWEST, build="precompiled"), ignore_errors=True)]))
    refused = played.result(HOST, "gpu_driver")
    assert (refused["failed"], refused["code"]) == (True, "driver.no_precompiled_module")
    assert "is of driver %s for kernel %s" % (NEW, KERNEL) in refused["msg"]
    assert rpm_packages(fleet, HOST) == delivered["packages"]


def test_a_bare_host_gets_modules_that_suse_has_signed_and_those_of_the_next_driver(
        fleet: Fleet, with_signed: None) -> None:
    assert_signed(fleet, OLDER, "G06")
    assert "dkms" not in rpm_packages(fleet, HOST)
    change(fleet, version=OLD, build="precompiled")
    assert_signed(fleet, OLD, "G06")


def test_what_dkms_builds_takes_the_place_of_what_suse_has_signed(
        fleet: Fleet, with_driver: Dict[str, Any]) -> None:
    assert_driver(fleet, OLD, "G06")
    assert "/updates/" in fleet.say(HOST, "modinfo", "-F", "filename", "nvidia")
    assert "allow_unsupported_modules" in str(with_driver["plan"]["notes"])
    assert {"dkms", "kernel-default-devel", "kernel-devel"} <= set(rpm_packages(fleet, HOST))
    initramfs = fleet.say(HOST, "lsinitrd", "/boot/initrd-" + KERNEL)
    assert "gpuops-nouveau.conf" in initramfs


def test_an_update_leaves_the_driver_alone_and_a_lock_of_others_is_named(
        fleet: Fleet, with_driver: Dict[str, Any]) -> None:
    before = rpm_packages(fleet, HOST)
    played = fleet.tasks(HOST, [
        {"ansible.builtin.command": "zypper --non-interactive update"},
        {"ansible.builtin.command": "zypper --non-interactive addlock nvidia-persistenced"},
        dict(driver(version=NEW), ignore_errors=True),
        {"ansible.builtin.command": "zypper --non-interactive removelock nvidia-persistenced"}])
    refused = succeeded(played).result(HOST, "gpu_driver")
    assert (refused["failed"], refused["code"]) == (True, "packages.held")
    assert "zypper removelock nvidia-persistenced" in refused["msg"]
    assert rpm_packages(fleet, HOST) == before


@pytest.mark.variation
def test_what_was_staged_is_installed_and_a_power_cut_in_it_is_made_good(
        fleet: Fleet, with_driver: Dict[str, Any]) -> None:
    before, since = rpm_packages(fleet, HOST), len(history(fleet))
    played = succeeded(fleet.tasks(HOST, [driver(state="staged", version=NEW), driver(state="staged", version=NEW)]))
    staged, again = played.results(HOST, "gpu_driver")
    assert staged["plan"]["steps"][-1]["action"] == "packages.download" and not again["changed"]
    assert rpm_packages(fleet, HOST) == before and len(history(fleet)) == since
    started = fleet.start_tasks(HOST, [driver(version=NEW)])
    deadline = time.monotonic() + 120
    while not fleet.say(HOST, "ls", SCRIPT_BUILDS):
        assert time.monotonic() < deadline and started.process.poll() is None, "no script has built anything"
    fleet.lab.kill(HOST)
    started.process.wait()
    fleet.lab.start(HOST)
    assert "nouveau" not in fleet.say(HOST, "cat", "/proc/modules")
    played = succeeded(fleet.tasks(HOST, [driver(version=NEW), driver(version=NEW), ACTIVATION]))
    finished, again = played.results(HOST, "gpu_driver")
    actions = [step["action"] for step in finished["plan"]["steps"]]
    assert actions[0] == "zypper.finish" and "packages.download" not in actions
    assert not again["changed"]
    assert_driver(fleet, NEW, "G07")


@pytest.mark.variation
def test_the_next_driver_of_a_generation_and_the_way_back_without_a_download(
        fleet: Fleet, with_driver: Dict[str, Any]) -> None:
    before = rpm_packages(fleet, HOST), fleet.say(HOST, "cat", LOCKS)
    assert change(fleet, version=NEWEST)["returns_to"]["how"] == "archive"
    assert_driver(fleet, NEWEST, "G07")
    change(fleet, version=NEWEST, state="rolled_back")
    assert_driver(fleet, NEW, "G07")
    assert (rpm_packages(fleet, HOST), fleet.say(HOST, "cat", LOCKS)) == before


@pytest.mark.variation
def test_a_downgrade_over_generations_is_one_transaction(fleet: Fleet, with_driver: Dict[str, Any]) -> None:
    change(fleet, version=NEWEST)
    (transaction,) = planned(change(fleet, version=OLD))
    assert {name for name, version in transaction.items() if version is None} == {
        name + "-G07" for name in ("nvidia-common", "nvidia-compute", "nvidia-compute-utils", "nvidia-open-driver")}
    assert_driver(fleet, OLD, "G06")


@pytest.mark.variation
def test_what_suse_has_signed_takes_the_place_of_what_dkms_has_built(
        fleet: Fleet, with_driver: Dict[str, Any]) -> None:
    change(fleet, version=NEW, build="precompiled")
    assert_signed(fleet, NEW, "G07")
    (modules,) = ("%s=%s" % item for item in of_driver(fleet).items() if "-kmp-" in item[0])
    fleet.lab.ssh(HOST, ["zypper", "--non-interactive", "install", "--force", modules])
    assert fleet.say(HOST, "modinfo", "-F", "version", "nvidia") == "", "SUSE's scripts have taken the links away"
    played = succeeded(fleet.tasks(HOST, [driver(version=NEW), driver(version=NEW)]))
    mended, again = played.results(HOST, "gpu_driver")
    assert [step["action"] for step in mended["plan"]["steps"]] == ["module.verify"] and not again["changed"]
    assert_signed(fleet, NEW, "G07")


@pytest.mark.variation
def test_what_suse_has_signed_is_exchanged_over_generations_and_comes_back(
        fleet: Fleet, with_driver: Dict[str, Any]) -> None:
    change(fleet, version=OLD, build="precompiled")
    assert_signed(fleet, OLD, "G06")
    change(fleet, version=OLD, state="rolled_back")
    assert_signed(fleet, NEW, "G07")


def test_removal_leaves_the_host_as_it_was_delivered(
        fleet: Fleet, delivered: Dict[str, Any], with_driver: Dict[str, Any]) -> None:
    played = succeeded(fleet.tasks(HOST, [
        {"gpuops.nvidia.gpu_driver_activation": {"state": "absent"}}, driver(state="absent"),
        {"gpuops.nvidia.nouveau": {"state": "absent"}}, driver(state="absent")]))
    removed, again = played.results(HOST, "gpu_driver")
    assert transactions(history(fleet))[-1:] == planned(removed) and not again["changed"]
    assert {"packages": rpm_packages(fleet, HOST), "locks": fleet.say(HOST, "cat", LOCKS)} == delivered
    left = ("ls -d /usr/src/nvidia-* /usr/bin/nvidia-* /lib/modules/*/updates/* /etc/*/*/*gpuops* "
            "/etc/zypp/*/*gpuops*; find /lib/modules/*/weak-updates -not -type d; ls /lib/modules")
    assert fleet.say(HOST, "sh", "-c", left) == KERNEL


@pytest.mark.variation
def test_without_a_controller_the_hosts_own_command_has_zypper_bring_it(
        fleet: Fleet, delivered: Dict[str, Any]) -> None:
    assert_command_brings_the_driver(fleet, HOST, {**DRIVER, "build": "dkms"})
    assert_driver(fleet, OLD, "G06")
    succeeded(fleet.tasks(HOST, [
        {"gpuops.nvidia.gpu_driver_activation": {"state": "absent"}}, driver(state="absent"),
        {"gpuops.nvidia.nouveau": {"state": "absent"}}]))
    assert rpm_packages(fleet, HOST) == delivered["packages"]
