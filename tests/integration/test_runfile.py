# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's installer on laboratory hosts of Debian and EL 9: a stand-in of it, with DKMS, apt or dnf and a kernel
module that are real."""
from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Dict, Iterator, List

import pytest
from laboratory import new_lab
from test_driver import OWN_LEFTOVERS, Play, different
from workspace import REPOSITORY

from gpulab.lab import Lab
from gpulab.parts.el9_rpms import KERNEL
from gpulab.topology import parse

sys.path.append(str(REPOSITORY / "tests" / "unit" / "driver"))
from nvidia_installer import installer  # noqa: E402

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root"), pytest.mark.variation]

OLD, NEW = "580.178.04", "595.91.07"
SOURCE = REPOSITORY / "tests" / "lab" / "packages" / "dkms"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("runfiletest")
    lab.up(parse({"name": "runfile", "control_plane": False,
                  "hosts": [{"name": "gpu", "board": "l40s", "gpus": 1}]}, "test_runfile.py"))
    yield lab
    lab.down()


@pytest.fixture(scope="module")
def sums(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, str]:
    return laid(lab, tmp_path_factory.mktemp("runfiles"))


def laid(lab: Lab, directory: Path, host: str = "gpu", libraries: str = "") -> Dict[str, str]:
    """{version: SHA-256} of what lies in /srv of the host then."""
    found = {}
    for version in (OLD, NEW):
        path = directory / ("NVIDIA-Linux-x86_64-%s.run" % version)
        source = {"kernel-open__" + each.name: each.read_text().replace("@VERSION@", version).replace(
            "@LICENSE@", "Dual MIT/GPL") for each in SOURCE.iterdir() if each.name != "dkms.conf"}
        # Its Makefile is all that kbuild reads
        source["kernel-open__Kbuild"] = ""
        found[version] = installer(path, version, "", libraries=libraries, **source)
    copied = Play(lab, directory, host).tasks([{"ansible.builtin.copy": {
        "src": "%s/" % directory, "dest": "/srv/", "mode": "preserve"}}])
    assert copied[0]["changed"], copied
    return found


class Runfile(Play):
    sums: Dict[str, str]

    def driver_of(self, version: str, **options: Any) -> Dict[str, Any]:
        (result,) = self.tasks([{"gpuops.nvidia.gpu_driver": {
            "source": "runfile", "version": version, "runfile": "/srv/", "runfile_checksum": self.sums[version],
            **options}}])
        return result

    def modules(self) -> List[str]:
        return [self.say("modinfo", "-F", "version", path) for path in self.say(
            "sh", "-c", "ls /lib/modules/*/updates/dkms/nvidia.ko*").splitlines()]


@pytest.fixture
def play(lab: Lab, sums: Dict[str, str], tmp_path: Path) -> Runfile:
    made = Runfile(lab, tmp_path)
    made.sums = sums
    return made


def test_installed_exchanged_rolled_back_and_uninstalled(play: Runfile) -> None:
    before = play.contents()
    planned = play.tasks([{"gpuops.nvidia.gpu_driver": {
        "source": "runfile", "version": OLD, "runfile": "/srv/", "runfile_checksum": play.sums[OLD]}}], check=True)[0]
    assert planned["changed"] and different(before, play.contents()) == []
    done = play.driver_of(OLD)
    assert not done.get("failed"), done["msg"]
    assert [step["id"] for step in planned["plan"]["steps"]] == done["applied"]
    assert play.modules() == [OLD] and "nvidia/%s" % OLD in play.say("dkms", "status")
    assert not play.driver_of(OLD)["changed"]
    # What waits for DKMS in its tree is none of the other version
    assert not play.driver_of(NEW).get("failed")
    assert play.modules() == [NEW] and OLD not in play.say("dkms", "status")
    back = play.driver_of(NEW, state="rolled_back")
    assert "driver/runfile.install/driver %s" % OLD in back["applied"], back
    assert play.modules() == [OLD] and not play.driver_of(NEW, state="rolled_back")["changed"]
    away = play.driver_of(NEW, state="absent")
    assert away["changed"] and not away.get("failed"), away
    assert not play.driver_of(NEW, state="absent")["changed"]
    assert play.modules() == [] and "nvidia" not in play.say("dkms", "status")
    assert [path for path in different(before, play.contents()) if not path.startswith(OWN_LEFTOVERS)] == []


def test_killed_in_the_installer_the_next_run_ends_it(play: Runfile) -> None:
    before = play.contents()
    play.say("sh", "-c", "echo 4 > /stop")
    failed = play.driver_of(OLD)
    assert failed["code"] == "driver.runfile_not_installed", failed
    play.say("rm", "/stop")
    assert not play.driver_of(OLD).get("failed")
    assert play.modules() == [OLD] and not play.driver_of(OLD)["changed"]
    assert not play.driver_of(OLD, state="absent").get("failed")
    assert [path for path in different(before, play.contents()) if not path.startswith(OWN_LEFTOVERS)] == []


@pytest.fixture(scope="module")
def rocky(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runfile]:
    """A host of EL 9."""
    lab = new_lab("runfileel")
    lab.up("el9")
    made = Runfile(lab, tmp_path_factory.mktemp("el"), "rocky")
    # EPEL's package of DKMS has it; the laboratory's has files alone
    lab.ssh("rocky", ["mkdir", "-p", "/var/lib/dkms"])
    made.system = ("/etc", "/usr", "/lib/modules", "/boot")
    made.sums = laid(lab, tmp_path_factory.mktemp("runfiles"), "rocky", "/usr/lib64")
    yield made
    lab.down()


def assert_driver(play: Runfile, version: str) -> None:
    """It is there, where EL has it."""
    assert play.say("readlink", "/usr/lib64/libnvidia-ml.so.1") == "libnvidia-ml.so." + version
    assert play.say("dkms", "status") == "nvidia/%s, %s, x86_64: installed" % (version, KERNEL)
    assert play.say("modinfo", "-F", "filename", "nvidia").startswith("/lib/modules/%s/extra/nvidia.ko" % KERNEL)
    assert play.say("modinfo", "-F", "version", "nvidia") == version


def test_on_el_installed_exchanged_rolled_back_and_uninstalled(rocky: Runfile) -> None:
    before, packages = rocky.contents(), rocky.say("rpm", "-qa")
    planned = rocky.tasks([{"gpuops.nvidia.gpu_driver": {
        "source": "runfile", "version": OLD, "runfile": "/srv/", "runfile_checksum": rocky.sums[OLD]}}], check=True)[0]
    assert planned["changed"] and different(before, rocky.contents()) == []
    done = rocky.driver_of(OLD)
    assert not done.get("failed"), done["msg"]
    assert [step["id"] for step in planned["plan"]["steps"]] == done["applied"]
    assert {"dkms", "kernel-devel"} <= {name.rsplit("-", 2)[0] for name in rocky.say("rpm", "-qa").splitlines()}
    assert not rocky.driver_of(OLD)["changed"]
    assert_driver(rocky, OLD)
    assert not rocky.driver_of(NEW).get("failed")
    assert_driver(rocky, NEW)
    back = rocky.driver_of(NEW, state="rolled_back")
    assert "driver/runfile.install/driver %s" % OLD in back["applied"], back
    assert_driver(rocky, OLD)
    away = rocky.driver_of(NEW, state="absent")
    assert away["changed"] and not away.get("failed"), away
    assert rocky.say("rpm", "-qa") == packages
    left = [path for path in different(before, rocky.contents()) if not path.startswith(OWN_LEFTOVERS)]
    # The linker's cache is the installer's to make, which the stand-in does as it installs alone
    assert [path for path in left if path != "/etc/ld.so.cache"] == []
