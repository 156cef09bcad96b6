# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian's own NVIDIA driver, the real one: resolved, compiled by DKMS against a real kernel, held, taken back.

Tests of a host follow each other. Debian 13, whose open module no longer builds, shows more than Debian 12: how such a
module gives way to the other one, how it leaves a driver that is there alone, and how a kernel that the driver does not
build for is caught.

Minutes of compilation: `make slow`, not part of `make test`. The silicon is simulated, so the module is built and
accounted for, and user space is compared by version; NVIDIA's real library finds no GPU behind it.
"""
from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from typing import Any, Dict, Iterable, Iterator, List, Set

import pytest
from laboratory import Fleet, new_lab

from gpulab.parts.packages import UNBUILDABLE_SUITE
from gpulab.parts.registry import workshop
from gpulab.topology import parse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")

# What the compiler says of the call that newer kernels take one argument more for
FAULT = "pci_resize_resource"


@dataclass(frozen=True)
class Debian:
    """One host. branch: of the driver that its release of Debian has; mirror: the part that has it."""

    host: str
    suite: str
    branch: str
    mirror: str

    @property
    def policy(self) -> Dict[str, Any]:
        return {"source": "distribution", "version": self.branch, "kernel_module": "proprietary"}


TWELVE = Debian("debian12", "bookworm", "535", "apt-debian-nvidia")
THIRTEEN = Debian("debian13", "trixie", "550", "apt-debian-trixie-nvidia")
BOTH = pytest.mark.parametrize("debian", [TWELVE, THIRTEEN], ids=lambda debian: debian.host)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("debiandriver")
    lab.up(parse({"name": "debian-driver", "control_plane": False, "hosts": [
        {"name": each.host, "image": each.suite, "board": "t4", "gpus": 1} for each in (TWELVE, THIRTEEN)]},
        "test_debian_driver.py"))
    for each in (TWELVE, THIRTEEN):
        lab.serve(each.mirror, each.mirror)
    yield Fleet(lab, tmp_path_factory.mktemp("debiandriver"))
    lab.down()


@pytest.fixture(scope="module")
def found(fleet: Fleet) -> Dict[str, Set[str]]:
    """The packages that hosts had before anything was done."""
    return {each.host: packages(fleet, each.host) for each in (TWELVE, THIRTEEN)}


def packages(fleet: Fleet, host: str) -> Set[str]:
    """Those that are there. What leaves in an exchange apt removes and does not purge: its configuration stays."""
    return {name for name, state in fleet.packages(host).items() if not state.endswith(" config-files")}


def module(fleet: Fleet, debian: Debian, name: str, **options: Any) -> Dict[str, Any]:
    """The result of one module of the collection, which must end well."""
    played = fleet.tasks(debian.host, [{"gpuops.nvidia." + name: options}])
    assert not played.failures(), played.failures()
    return played.result(debian.host, name)


def but_builds(ids: Iterable[str]) -> List[str]:
    """Steps that are carried out whatever the package's own script has built by then."""
    return [name for name in ids if "/dkms.build/" not in name]


def driver_there(fleet: Fleet, host: str) -> Dict[str, str]:
    """All that makes a driver work, and dpkg's word that it is in order."""
    def say(script: str) -> str:
        return fleet.say(host, "sh", "-c", script)

    return {
        "packages": json.dumps(fleet.packages(host)), "unfinished": say("dpkg --audit"),
        "modules": say("find /lib/modules/*/updates -name 'nvidia*' -exec sha256sum {} +"),
        "libraries": say("sha256sum /usr/lib/x86_64-linux-gnu/nvidia/current/*.so.* /usr/bin/nvidia-smi"),
        "dkms": say("dkms status; ls /usr/src /etc/dkms"),
        "resolved": say("modprobe.kmod --show-depends nvidia; modprobe.kmod --show-depends nvidia-current; "
                        "ldconfig -p | grep -e libcuda -e libnvidia-ml"),
        "loads": say("modprobe nvidia && cat /sys/module/nvidia/version; rmmod nvidia"),
    }


def test_a_first_driver_that_does_not_build_is_told_by_the_compilers_words(
    fleet: Fleet, found: Dict[str, Set[str]]
) -> None:
    """DKMS comes with the driver, so that nothing can be built ahead. The next test puts the other module over it."""
    debian, host = THIRTEEN, THIRTEEN.host
    for name, suite in (("debian-nvidia", debian.suite), ("unbuildable", UNBUILDABLE_SUITE)):
        fleet.offer(host, name, debian.mirror, suite, "non-free")
    played = fleet.tasks(host, [{"gpuops.nvidia.gpu_driver": dict(debian.policy, kernel_module="open")}])
    failure = played.result(host, "gpu_driver")
    assert failure["code"] == "packages.transaction_failed" and "/make.log: " in failure["found"], failure
    assert FAULT in failure["found"] and "error:" in failure["found"], failure["found"]
    assert "nvidia-open-kernel-dkms" in fleet.say(host, "dpkg", "--audit")
    fleet.withdraw(host, "unbuildable")


@BOTH
def test_debians_driver_is_planned_built_and_verified(fleet: Fleet, found: Dict[str, Set[str]], debian: Debian) -> None:
    fleet.offer(debian.host, "debian-nvidia", debian.mirror, debian.suite, "non-free")
    planned = module(fleet, debian, "gpu_plan", driver=debian.policy)
    assert planned["plan"]["refusals"] == []
    module(fleet, debian, "nouveau")
    installed = module(fleet, debian, "gpu_driver", **debian.policy)
    assert but_builds(installed["applied"]) == but_builds(step["id"] for step in planned["plan"]["steps"])
    seen = module(fleet, debian, "gpu_info")["observation"]["host"]
    assert seen["driver_installed"].startswith(debian.branch + ".")
    assert seen["driver_installed"] == seen["driver_boots"] == seen["driver_userspace"]
    there = driver_there(fleet, debian.host)
    assert there["unfinished"] == "" and "/updates/dkms/nvidia-current.ko" in there["resolved"], there["resolved"]
    assert there["loads"] == seen["driver_installed"]
    assert module(fleet, debian, "gpu_driver", **debian.policy)["changed"] is False


@pytest.mark.parametrize("whose", ["debian", "laboratory"])
def test_a_module_that_does_not_build_leaves_the_driver_that_was_there(fleet: Fleet, whose: str) -> None:
    """Debian's own open module, as long as Debian has not mended it, and one of ours that fails in the same way."""
    debian, host = THIRTEEN, THIRTEEN.host
    if whose == "laboratory":
        fleet.offer(host, "unbuildable", debian.mirror, UNBUILDABLE_SUITE, "non-free")
    before, wanted = driver_there(fleet, host), dict(debian.policy, kernel_module="open")
    played = fleet.tasks(host, [{"gpuops.nvidia.gpu_driver": wanted}])
    if whose == "debian" and not played.failures():
        warnings.warn("Debian has mended nvidia-open-kernel-dkms: it builds for kernel %s" % fleet.say(
            host, "uname", "-r"), stacklevel=1)
        module(fleet, debian, "gpu_driver", **debian.policy)
        return
    failure = played.result(host, "gpu_driver")
    assert failure["code"] == "driver.kernel_module_not_built_ahead", failure
    assert FAULT in failure["found"] and "error:" in failure["found"], failure["found"]
    assert "the driver that is there is untouched" in failure["remedy"]
    assert before["unfinished"] == "" and driver_there(fleet, host) == before
    fleet.withdraw(host, "unbuildable")
    again = module(fleet, debian, "gpu_driver", **debian.policy)
    assert [step["id"] for step in again["plan"]["steps"] if not step["action"].startswith("module.")] == []
    assert driver_there(fleet, host) == before


def test_a_kernel_that_the_driver_does_not_build_for_is_caught_before_the_reboot(fleet: Fleet) -> None:
    debian, host = THIRTEEN, THIRTEEN.host
    kernel = json.loads((workshop().path("apt-debian-trixie") / "kernels.json").read_text())["other"]
    before, boot = driver_there(fleet, host), fleet.lab.host(host).boot_id()
    there = set(fleet.packages(host))
    fleet.offer(host, "update", "debian-trixie", debian.suite + "-update", "main")
    update = fleet.lab.ssh(host, ["sh", "-c", "DEBIAN_FRONTEND=noninteractive apt-get -qq -y install "
                                              "linux-image-{0} linux-headers-{0}".format(kernel)], check=False)
    assert update.returncode != 0 and "linux-image-" + kernel in fleet.say(host, "dpkg", "--audit"), update.stdout
    assert fleet.say(host, "ls", "/boot/vmlinuz-" + kernel), "it would be booted"
    site = fleet.run("gpuops.nvidia.site", "--limit", host, gpu_allowed_disruption="reboot",
                     gpu_driver_repository_url="", gpu_driver_repository_key="",
                     **{"gpu_driver_" + name: value for name, value in debian.policy.items()})
    assert site.code != 0 and not any(site.changed.values())
    assert "linux-image-" + kernel in site.failures() and "do not reboot" in site.failures(), site.failures()
    assert "error:" in site.failures(), site.failures()
    assert fleet.lab.host(host).boot_id() == boot
    # A remedy: what came with the kernel goes, as it never ran. With it go the metapackages, which it had renewed
    came = sorted(set(fleet.packages(host)) - there)
    fleet.withdraw(host, "update")
    fleet.lab.ssh(host, ["sh", "-c", "export DEBIAN_FRONTEND=noninteractive; apt-get -qq -y purge %s; "
                                     "apt-get -qq -y install linux-headers-amd64" % " ".join(came)])
    assert module(fleet, debian, "gpu_driver", **debian.policy)["changed"] is False
    after = driver_there(fleet, host)
    assert {name: after[name] for name in after if name != "packages"} == {
        name: before[name] for name in before if name != "packages"}


@BOTH
def test_debians_driver_is_taken_back(fleet: Fleet, found: Dict[str, Set[str]], debian: Debian) -> None:
    module(fleet, debian, "gpu_driver", source="distribution", state="absent")
    gone = {"linux-image-amd64"} if debian is THIRTEEN else set()
    assert packages(fleet, debian.host) == found[debian.host] - gone, "what went with the kernel that came"
    left = "dpkg --audit; ls -d /var/lib/dkms/nvidia* /lib/modules/*/updates/dkms/nvidia*"
    assert fleet.say(debian.host, "sh", "-c", left) == ""
