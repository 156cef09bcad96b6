# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A driver by NVIDIA's installer on hosts of EL 9 and SLES 15: real dnf, zypper, rpm and curl, and a stand-in of the
installer (driver/nvidia_installer.py)."""
from __future__ import annotations

import base64
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Set, Tuple

import pytest
import scratch_rpm
import scratch_zypper
import test_driver_with_dnf as with_dnf
import test_driver_with_zypper as with_zypper
from rpm_machine import Quiet, RpmMachine, home, running
from scratch_rpm import V580, V595, Made, publish

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver import runfile
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.files import DRACUT_FILE
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.kernels import Kernel
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.node import library_version
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.dnf import locks

sys.path.append(str(Path(__file__).parents[1] / "driver"))
from nvidia_installer import installer  # noqa: E402

# As EPEL and SUSE's repositories have them, in what they need
BUILDERS = [
    Made("dkms", "3.2.2", relations=("Requires: gcc", "Requires: make")), Made("make", "4.3", epoch=1),
    Made("gcc", "11.5.0", relations=("Requires: glibc-devel",)), Made("glibc-devel", "2.34"),
]
OF_EL = [package for package in scratch_rpm.OF_SYSTEM if package.name != "dkms"]
ACTIONS = ["runfile.fetch", "file.write", "packages.install", "runfile.install", "dkms.build"]


class Installed(RpmMachine[Any]):
    """Of a host: its module is what DKMS has built of the installer's source, as long as that is there.

    sums: {version: SHA-256} of the files that are served.
    """

    sums: Dict[str, str]

    def kernels(self, *_words: Any) -> Tuple[Kernel, ...]:
        version = self.built.get(self.release, ("", ""))[1]
        there = version if version in runfile.sources(self.root.host) else ""
        return (Kernel(self.release, self.headers in self.root.installed(), there, "Dual MIT/GPL" if there else ""),)

    def build(self, host: Host, journal: Journal, step: Step) -> None:
        assert {"dkms", "gcc", "make", self.headers} <= set(self.root.installed()), "nothing builds it"
        self.built[step.subject] = ("", step.change["after"]["nvidia"])

    def facts(self) -> HostFacts:
        return super().facts().but(driver_userspace=library_version(self.root.host))

    def of(self, version: str, **options: Any) -> Dict[str, Any]:
        return {"source": "runfile", "version": version, "runfile": self.url, "runfile_checksum": self.sums[version],
                **options}

    def actions(self, **options: Any) -> List[str]:
        """Of a run that is what its check mode has foretold, and what the package manager's history shows."""
        raise NotImplementedError

    def tree(self) -> Set[str]:
        """What anybody could have on the host, beside databases, logs, caches and the memory of ours."""
        top = self.root.path
        return {str(path.relative_to(top)) for path in top.rglob("*") if not str(path.relative_to(top)).startswith((
            "called", "run", "tmp", "var/lib/gpuops", "var/lib/rpm", "var/lib/dnf", "var/lib/zypp", "var/cache/dnf",
            "var/cache/zypp", "var/log", "usr/share"))}


class El(Installed, with_dnf.Machine):
    def actions(self, **options: Any) -> List[str]:
        return [each.split("/")[1] for each in with_dnf.change(self, **options)]


class Sles(Installed, with_zypper.Machine):
    def actions(self, **options: Any) -> List[str]:
        return with_zypper.change(self, **options)


def el(directory: Path) -> Tuple[Any, Callable[..., Installed]]:
    root = scratch_rpm.Root(directory / "root")
    root.write(locks.LIST, "")
    root.configure("baseos", publish(directory / "baseos", OF_EL, key="two"), "two")
    root.dnf("install", "kernel-core-5.14.0-570.el9")
    # As /usr is merged there
    (root.path / "usr/lib").mkdir()
    (root.path / "lib").symlink_to("usr/lib")
    return root, El


def sles(directory: Path) -> Tuple[Any, Callable[..., Installed]]:
    root = scratch_zypper.Root(directory / "root")
    root.write("/etc/zypp/zypp.conf", "[main]\nmultiversion = provides:multiversion(kernel)\n")
    (root.path / "etc/zypp/repos.d/baseos.repo").unlink(missing_ok=True)
    root.configure("suse", scratch_zypper.system(), "two")
    root.zypper("install", "kernel-default=6.4.0-%s.1" % scratch_zypper.KERNELS[0])
    return root, Sles


@pytest.fixture(params=[pytest.param(el, marks=pytest.mark.variation), sles])
def machine(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> Iterator[Installed]:
    home(tmp_path, monkeypatch)
    root, kind = request.param(tmp_path)
    for name in ("usr/src", "usr/bin", "usr/lib64", "var/cache"):
        (root.path / name).mkdir(parents=True, exist_ok=True)
    root.host.write("/usr/bin/tar", "", 0o755)
    served = tmp_path / "served"
    served.mkdir()
    sums = {version: installer(served / ("NVIDIA-Linux-x86_64-%s.run" % version), version, str(root.path),
                               libraries="/usr/lib64") for version in (V580, V595)}
    with running(kind, root, served, capsys, monkeypatch) as made:
        made.sums = sums
        yield made


@pytest.fixture
def able(machine: Installed, tmp_path: Path) -> Installed:
    """With the repository that has DKMS."""
    machine.root.configure("builders", publish(tmp_path / "builders", BUILDERS, key="two"), "two")
    return machine


@pytest.mark.parametrize("machine", [el, sles], indirect=True)
def test_installed_and_uninstalled_the_host_is_as_it_was(able: Installed) -> None:
    before, packages = able.tree(), able.root.installed()
    assert able.actions(**able.of(V580)) == ACTIONS
    assert library_version(able.root.host) == V580 and able.root.host.exists("/usr/lib64/libcuda.so.1")
    assert set(able.root.installed()).difference(packages) >= {"dkms", "gcc", "make", "glibc-devel", able.headers}
    assert "nvidia_drm" in (able.root.host.read(DRACUT_FILE) or "")
    conf = able.root.host.read("/usr/src/nvidia-%s/dkms.conf" % V580) or ""
    assert 'PACKAGE_VERSION="%s"' % V580 in conf and "__" not in conf
    able.loaded = V580
    assert able.actions(**able.of(V580, state="absent"), allowed_disruption="reboot") == [
        "runfile.remove", "runfile.forget", "packages.remove", "file.restore"]
    assert able.tree() == before and able.root.installed() == packages
    assert not able.root.host.exists("/unloaded")


@pytest.mark.variation
def test_another_version_takes_its_place_and_the_one_before_comes_back(able: Installed) -> None:
    able.actions(**able.of(V580))
    able.loaded = V580
    assert able.actions(**able.of(V595)) == [
        "runfile.fetch", "driver.record", "runfile.remove", "runfile.install", "dkms.build"]
    assert library_version(able.root.host) == V595
    able.take_repository_away()
    assert able.actions(**able.of(V595, state="rolled_back")) == ["runfile.remove", "runfile.install", "dkms.build"]
    assert library_version(able.root.host) == V580 and runfile.sources(able.root.host) == {V580: "open"}
    able.bring_repository_back()


@pytest.mark.variation
def test_what_is_staged_needs_its_place_no_more(able: Installed) -> None:
    assert able.actions(**able.of(V580, state="staged")) == ["runfile.fetch"]
    able.take_repository_away()
    assert able.actions(**able.of(V580)) == ACTIONS[1:]
    able.bring_repository_back()


@pytest.mark.variation
def test_what_builds_it_and_was_there_stays_as_it_is(able: Installed, tmp_path: Path) -> None:
    able.root.rpm("--install", "--nosignature", "--nodeps", *(
        str(scratch_rpm.built(Made(name, "4.2.1"))) for name in ("gcc", "make")))
    there = able.root.installed()
    able.actions(**able.of(V580))
    assert {name: able.root.installed()[name] for name in ("gcc", "make")} == {
        name: there[name] for name in ("gcc", "make")}
    able.actions(**able.of(V580, state="absent"))
    assert able.root.installed() == there


def test_without_a_repository_that_has_dkms_nothing_is_touched_and_it_is_named(machine: Installed) -> None:
    before = machine.tree()
    told = machine.call(**machine.of(V580))
    named = {"rocky": "enable epel and crb", "sles": "PackageHub/15.7/x86_64 (`SUSEConnect --product`, each)"}
    assert told["code"] == "driver.no_tools" and named[machine.os_id] in told["msg"], told["msg"]
    assert machine.tree() == before


def test_where_one_has_dkms_and_none_what_that_needs_they_are_named_too(machine: Installed, tmp_path: Path) -> None:
    without = [replace(each, relations=(*each.relations, "Requires: elfutils-libelf-devel"))
               if each.name == "dkms" else each for each in BUILDERS]
    machine.root.configure("builders", publish(tmp_path / "builders", without, key="two"), "two")
    before = machine.tree()
    told = machine.call(**machine.of(V580))
    named = {"rocky": "epel and crb among them", "sles": "and PackageHub/15.7/x86_64 among them"}
    assert told["code"] == "packages.unsolvable" and "elfutils-libelf-devel" in told["msg"]
    assert named[machine.os_id] in told["msg"] and machine.tree() == before


def test_a_repository_that_cannot_be_read_is_told_where_it_may_have_it(machine: Installed, tmp_path: Path) -> None:
    machine.root.configure("epel", "file://%s/nowhere" % tmp_path, "two")
    told = machine.call(**machine.of(V580))
    assert told["code"] == "driver.no_tools" and "| epel: " in told["msg"], told["msg"]


def test_a_place_without_it_leaves_the_host_as_it_was(able: Installed) -> None:
    before, packages = able.tree(), able.root.installed()
    told = able.call(**able.of(V580, runfile=able.url + "nowhere/"))
    assert told["code"] == "driver.runfile_not_fetched" and "404" in told["msg"], told["msg"]
    assert able.root.installed() == packages
    assert not able.root.host.exists(runfile.LIST) and able.tree() - before <= {
        "var/cache/gpuops", "var/cache/gpuops/runfile"}


def test_it_is_fetched_with_what_the_place_asks_for_and_no_process_is_named_it(
    able: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = "Basic " + base64.b64encode(b"me:s3cret").decode()
    run, words = Host.run, []

    def listened(self: Host, argv: Any, *rest: Any, **more: Any) -> Any:
        words.extend(argv)
        return run(self, argv, *rest, **more)

    def do_get(handler: Quiet) -> None:
        if handler.headers.get("Authorization") == asked:
            return super(Quiet, handler).do_GET()
        return handler.send_error(401)

    monkeypatch.setattr(Quiet, "do_GET", do_get, raising=False)
    monkeypatch.setattr(Host, "run", listened)
    told = able.call(**able.of(V580))
    assert told["code"] == "driver.runfile_not_fetched" and "401" in told["msg"]
    able.actions(**able.of(V580, runfile=able.url.replace("://", "://me:s3cret@")))
    assert library_version(able.root.host) == V580
    assert "curl" in words and not any("s3cret" in word for word in words)


def test_stopped_in_the_installer_the_next_run_ends_it(able: Installed) -> None:
    before, packages = able.tree(), able.root.installed()
    able.root.write("/stop", "4")
    told = able.call(**able.of(V580))
    while "awaiting" in told:
        carried = able.root.module(with_dnf.DNF.builtin_options(told["awaiting"]) or {})
        assert not carried.get("failed"), carried
        told = able.call(**able.of(V580), resumed_step=told["awaiting"]["id"])
    assert told["code"] == "driver.runfile_not_installed" and able.root.host.exists(runfile.HALF)
    (able.root.path / "stop").unlink()
    assert able.actions(**able.of(V580)) == ["runfile.remove", "runfile.install", "dkms.build"]
    assert library_version(able.root.host) == V580
    able.actions(**able.of(V580, state="absent"))
    assert able.tree() == before and able.root.installed() == packages


def test_without_tar_nothing_is_touched(able: Installed) -> None:
    able.root.host.remove("/usr/bin/tar")
    before = able.tree()
    told = able.call(**able.of(V580))
    assert told["code"] == "driver.runfile_without_tar" and "install tar" in told["msg"]
    assert able.tree() == before


def test_packages_of_a_driver_are_in_its_way_and_firmware_of_the_distribution_is_not(able: Installed) -> None:
    able.root.rpm("--install", "--nosignature", "--nodeps", str(scratch_rpm.built(
        Made("nvidia-gpu-firmware", "20250812", "16.el9"))))
    assert not able.call(check=True, **able.of(V580)).get("failed")
    able.root.rpm("--install", "--nosignature", "--nodeps", str(scratch_rpm.built(
        Made("nvidia-persistenced", V580, epoch=3))))
    told = able.call(check=True, **able.of(V580, migrate=True))
    assert told["code"] == "driver.packages_of_another_source"
    assert "nvidia-persistenced" in told["msg"] and "nvidia-gpu-firmware" not in told["msg"]
    assert "with apt alone" in told["msg"]


@pytest.mark.variation
def test_a_fabric_manager_of_others_in_the_driver_s_version_stays(able: Installed) -> None:
    """So says what refuses a board that needs one; one of another version is told of."""
    def bring(version: str) -> None:
        file = scratch_rpm.built(Made("nvidia-fabricmanager", version, "1"))
        able.root.rpm("--upgrade", "--oldpackage", "--nosignature", "--nodeps", str(file))

    bring(V580)
    wanted = able.of(V580, fabric_manager="absent")
    assert able.actions(**wanted)[-2:] == ["runfile.install", "dkms.build"]
    assert able.actions(**wanted) == [] and able.root.installed()["nvidia-fabricmanager"].startswith(V580)
    bring(V595)
    assert any("nvidia-fabricmanager %s" % V595 in note for note in able.call(check=True, **wanted)["plan"]["notes"])
    assert able.actions(**able.of(V595, fabric_manager="absent"))[-2:] == ["runfile.install", "dkms.build"]
    assert able.actions(state="absent", **wanted) and "nvidia-fabricmanager" in able.root.installed()
