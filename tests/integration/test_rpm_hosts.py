# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of EL 9: dnf, rpm, module streams and scriptlets are real, and so are DKMS and the modules that it builds.

One host in this order: as it was delivered, with a driver that its administrator has installed, without it again, with
the collection's drivers one after the other, and without them.
"""
from __future__ import annotations

import json
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple

import pytest
from laboratory import Fleet, Played, Tree, assert_journal_is_plan, new_lab

from gpulab.parts.rpms import KERNEL

HOST = "rocky"
REPOSITORY = "http://packages.gpulab:8480/cuda-rpm/repos/rhel9/x86_64"
OLD, NEW, NEWEST = "580.178.04", "595.91.07", "610.57.04"
SET = ("kmod-nvidia-open-dkms", "nvidia-driver-cuda", "nvidia-modprobe", "nvidia-persistenced")
# What dnf itself has written down of its last transaction: the tables of libdnf's history, and its numbers of actions
_HISTORY = """
import json, os, sqlite3
number, rows, path = 0, [], "/var/lib/dnf/history.sqlite"
if os.path.exists(path):
    database = sqlite3.connect(path)
    number = database.execute("select max(id) from trans").fetchone()[0]
    rows = database.execute("select action, name, epoch, version, release from trans_item join rpm using (item_id)"
                            " where trans_id = ?", (number,)).fetchall()
print(json.dumps([number, rows]))
"""
COMES, GOES = (1, 2, 6), (3, 5, 7, 8)
# {package: (version before, version after)}
Changes = Dict[str, Tuple[Optional[str], Optional[str]]]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("rpm")
    lab.up("el9")
    yield Fleet(lab, tmp_path_factory.mktemp("rpm"))
    lab.down()


def succeeded(played: Played) -> Played:
    assert played.code == 0, played.failures()
    return played


def module(fleet: Fleet, name: str, **options: Any) -> Dict[str, Any]:
    return succeeded(fleet.tasks(HOST, [{"gpuops.nvidia." + name: options}])).result(HOST, name)


def installed(fleet: Fleet) -> Dict[str, str]:
    """{package: version} of what the database has."""
    lines = fleet.say(HOST, "rpm", "-qa", "--qf", "%{NAME} %|EPOCH?{%{EPOCH}:}|%{VERSION}-%{RELEASE}\n").splitlines()
    return {line.split(" ")[0]: line.split(" ")[1] for line in lines}


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
    before = installed(fleet)
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


def test_dnf_installs_the_set_with_its_dependencies_and_the_module_is_built(
        fleet: Fleet, with_driver: Dict[str, str]) -> None:
    new = {name: version for name, version in installed(fleet).items() if name not in with_driver}
    assert set(SET) | {"dkms", "kernel-devel", "libnvidia-ml", "nvidia-kmod-common"} <= set(new)
    assert {version for name, version in new.items() if "nvidia" in name and name != "gpg-pubkey"} == {
        "3:%s-1.el9" % OLD}
    assert fleet.say(HOST, "dkms", "status") == "nvidia/%s, %s, x86_64: installed" % (OLD, KERNEL)
    assert fleet.say(HOST, "modinfo", "-F", "version", "nvidia") == OLD
    assert "/extra/" in fleet.say(HOST, "modinfo", "-F", "filename", "nvidia")


def test_the_driver_is_loaded_and_answers(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == OLD
    assert len(fleet.say(HOST, "nvidia-smi", "-L").splitlines()) == 2
    observation = module(fleet, "gpu_info")["observation"]
    assert len(observation["nvml"]["gpus"]) == 2
    assert [observation["host"][name] for name in ("driver_installed", "driver_loaded", "driver_userspace")] == [
        OLD, OLD, OLD]


def test_dnf_has_nothing_to_do_again(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    played = succeeded(fleet.tasks(HOST, by_hand(OLD)))
    assert not played.result(HOST, "yum_repository")["changed"] and not played.result(HOST, "dnf")["changed"]


def test_a_driver_that_dnf_has_installed_is_verified_as_preinstalled(
        fleet: Fleet, with_driver: Dict[str, str]) -> None:
    result = module(fleet, "gpu_driver", source="preinstalled", version=OLD.split(".")[0])
    assert not result["changed"] and result["plan"]["steps"] == []
    refused = fleet.tasks(HOST, [{"gpuops.nvidia.gpu_driver": {"source": "preinstalled", "version": NEW}}])
    assert refused.result(HOST, "gpu_driver")["failed"]


def test_after_a_reboot_the_driver_is_loaded_in_place_of_nouveau(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    fleet.lab.reboot(HOST)
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == OLD
    assert "nouveau" not in fleet.say(HOST, "cat", "/proc/modules")
    assert fleet.say(HOST, "systemctl", "is-active", "nvidia-persistenced.service") == "active"


def test_removal_takes_packages_and_modules_away(fleet: Fleet, with_driver: Dict[str, str]) -> None:
    for name in ("nvidia-uvm", "nvidia-modeset", "nvidia"):
        fleet.say(HOST, "systemctl", "stop", "nvidia-persistenced.service")
        fleet.say(HOST, "rmmod", name)
    succeeded(fleet.tasks(HOST, [{"ansible.builtin.dnf": {
        "name": [*SET, "kernel-devel"], "state": "absent", "autoremove": True}}]))
    assert installed(fleet) == with_driver
    assert fleet.say(HOST, "sh", "-c", "ls -d /usr/src/nvidia-* /usr/bin/nvidia-* /lib/modules/*/extra/*") == ""
    assert module(fleet, "gpu_info")["observation"]["host"]["driver_installed"] == ""


# By the collection


def last_transaction(fleet: Fleet) -> Tuple[int, Changes]:
    """Its number, and what it was to change, as dnf's history has it."""
    number, rows = json.loads(fleet.lab.host(HOST).ssh(["python3", "-"], feed=_HISTORY).stdout)
    versions: Dict[str, Dict[bool, str]] = {}
    for action, name, epoch, version, release in rows:
        if action in (*COMES, *GOES):
            full = "%s%s-%s" % ("%s:" % epoch if epoch else "", version, release)
            versions.setdefault(name, {})[action in COMES] = full
    return number, {name: (each.get(False), each.get(True)) for name, each in versions.items()}


def promised(plan: Mapping[str, Any]) -> Changes:
    """What the plan says of packages; of one that may be there in several versions its name has the version."""
    found: Changes = {}
    for step in plan["steps"]:
        if step["action"] in ("packages.install", "packages.remove"):
            for name, after in step["change"]["after"].items():
                before = step["change"]["before"][name]
                found[name.replace("-" + (after or before).split(":")[-1], "")] = (before, after)
    return found


def driver(fleet: Fleet, **options: Any) -> Dict[str, Any]:
    """The plan that gpu_driver has carried out: in one transaction of dnf, which is the plan's, and completely."""
    policy = {"repository_url": REPOSITORY, "repository_key": REPOSITORY + "/gpulab.pub", **options}
    length, number = len(fleet.events(HOST)), last_transaction(fleet)[0]
    played = succeeded(fleet.tasks(HOST, [
        {"gpuops.nvidia.gpu_plan": {"driver": policy}}, {"gpuops.nvidia.gpu_driver": policy},
        {"gpuops.nvidia.gpu_driver": policy}]))
    plan = dict(played.result(HOST, "gpu_plan")["plan"])
    first, second = played.results(HOST, "gpu_driver")
    assert first["changed"] and not second["changed"]
    assert_journal_is_plan(fleet.events(HOST)[length:], plan)
    assert last_transaction(fleet) == (number + 1, promised(plan))
    return plan


def modules(fleet: Fleet) -> Tuple[str, str, str]:
    """What DKMS says, and version and licence of the module that the kernel would load."""
    return (fleet.say(HOST, "dkms", "status"), fleet.say(HOST, "modinfo", "-F", "version", "nvidia"),
            fleet.say(HOST, "modinfo", "-F", "license", "nvidia"))


def built(version: str) -> str:
    return "nvidia/%s, %s, x86_64: installed" % (version, KERNEL)


@pytest.fixture(scope="module")
def delivered(fleet: Fleet) -> Tuple[Dict[str, str], Tree]:
    """Packages and configuration before the collection's first change."""
    fleet.say(HOST, "rm", "/etc/yum.repos.d/cuda-rhel9-x86_64.repo")
    fleet.say(HOST, "dnf", "-y", "module", "reset", "nvidia-driver")
    return installed(fleet), fleet.fingerprint(HOST, "/etc/yum.repos.d", "/etc/dnf", "/etc/pki")


def test_the_first_run_is_the_plan_and_one_transaction_of_dnf(
        fleet: Fleet, delivered: Tuple[Dict[str, str], Tree]) -> None:
    plan = driver(fleet, version=OLD)
    new = set(installed(fleet)) - set(delivered[0])
    assert {*SET, "dkms", "kernel-devel", "kernel-devel-matched", "nvidia-kmod-common"} <= new
    assert "dkms.build" in {step["action"] for step in plan["steps"]}
    assert modules(fleet) == (built(OLD), OLD, "Dual MIT/GPL")
    assert "nvidia-driver-cuda-3:%s" % OLD in fleet.say(HOST, "dnf", "versionlock", "list")


def test_the_driver_is_activated_in_place_of_nouveau(fleet: Fleet, delivered: Tuple[Dict[str, str], Tree]) -> None:
    succeeded(fleet.tasks(HOST, [{"gpuops.nvidia.nouveau": {}}, {"gpuops.nvidia.gpu_driver_activation": {}}]))
    assert fleet.say(HOST, "cat", "/sys/module/nvidia/version") == OLD


@pytest.mark.parametrize("version, kind, license", [
    (NEW, "open", "Dual MIT/GPL"), (NEWEST, "open", "Dual MIT/GPL"), (OLD, "open", "Dual MIT/GPL"),
    (OLD, "proprietary", "NVIDIA")])
def test_another_driver_is_the_plan_and_one_transaction_of_dnf(
        fleet: Fleet, delivered: Tuple[Dict[str, str], Tree], version: str, kind: str, license: str) -> None:
    plan = driver(fleet, version=version, kernel_module=kind)
    assert plan["disruption"] == "driver_reload"
    assert modules(fleet) == (built(version), version, license)
    assert fleet.say(HOST, "dnf", "module", "list", "--enabled").count(
        "%s-%s [e]" % (version.split(".")[0], "open" if kind == "open" else "dkms")) == 1


def test_an_update_of_everything_leaves_the_driver(fleet: Fleet, delivered: Tuple[Dict[str, str], Tree]) -> None:
    before = installed(fleet)
    succeeded(fleet.tasks(HOST, [{"ansible.builtin.dnf": {"name": "*", "state": "latest"}}]))
    assert installed(fleet) == before


def test_a_driver_that_is_removed_leaves_the_host_as_it_was(
        fleet: Fleet, delivered: Tuple[Dict[str, str], Tree]) -> None:
    driver(fleet, state="absent")
    packages, tree = delivered
    assert installed(fleet) == packages
    assert fleet.fingerprint(HOST, "/etc/yum.repos.d", "/etc/dnf", "/etc/pki") == tree
    assert fleet.say(HOST, "dkms", "status") == ""
