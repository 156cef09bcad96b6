# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The laboratory's RPM repositories: what is in them, and that the real rpm and dnf accept them."""
from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List, Type

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables import enterprise, resolver, suse
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.sets import PRECOMPILED, Wanted
from ansible_collections.gpuops.nvidia.plugins.module_utils.driver.tables.systems import system_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import database
from gpulab import aptrepo, rpmrepo
from gpulab.aptrepo import File
from gpulab.cache import Job
from gpulab.lab import REPOSITORIES, REPOSITORIES_OF, parts_of
from gpulab.parts import built_modules, el9_rpms, packages, rpm_root, rpms, sles15_rpms
from gpulab.parts.el9_rpms import CLOSED, OPEN, Driver
from gpulab.rpmrepo import Rpm
from gpulab.topology import load

PROGRAMS = ("nvidia-smi", "nvidia-modprobe", "nvidia-persistenced", "nv-fabricmanager", "nvidia-imex",
            "nvidia-imex-ctl", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")
LIBRARIES = ("libnvidia-ml.so", "libcuda.so", "libnvidia-ptxjitcompiler.so", "empty.so")
FIELD = b"head" + b"GPUSIM_VERSION=unpackaged".ljust(64, b"\0") + b"tail"

needs_rpm = pytest.mark.skipif(
    not all(map(shutil.which, ("rpmbuild", "rpmsign", "createrepo_c", "modifyrepo_c", "dnf", "gpg"))),
    reason="needs rpm, createrepo-c, dnf and gpg")


EVERYWHERE: Dict[str, Type[rpms.Driver]] = {"el9": Driver, "sles15": sles15_rpms.Driver}
everywhere = pytest.mark.parametrize("kind", EVERYWHERE.values(), ids=EVERYWHERE)


@pytest.fixture(name="silicon")
def _silicon(tmp_path: Path) -> Path:
    silicon = tmp_path / "silicon"
    silicon.mkdir()
    for name in (*PROGRAMS, *LIBRARIES):
        (silicon / name).write_bytes(FIELD)
    return silicon


def _made(kind: Type[rpms.Driver], silicon: Path, version: str = "595.91.07") -> rpms.Driver:
    return kind(packages.Driver(version, silicon, silicon / "empty.so"))


@pytest.fixture(name="driver")
def _driver(silicon: Path) -> Driver:
    return Driver(packages.Driver("595.91.07", silicon, silicon / "empty.so"))


def _by_name(driver: rpms.Driver) -> Dict[str, Rpm]:
    return {rpm.name: rpm for group in driver.groups() for rpm in group}


@everywhere
def test_every_exact_dependency_is_in_the_same_set(kind: Type[rpms.Driver], silicon: Path) -> None:
    found = _by_name(_made(kind, silicon))
    provided = {"%s = %d:%s" % (rpm.name, rpm.epoch, rpm.version) for rpm in found.values()}
    provided |= {word for rpm in found.values() for word in rpm.provides}
    exact = [set(re.findall(r"[^ ()]+ = [^ ()]+", word)) for rpm in found.values() for word in rpm.requires
             if " = " in word]
    assert len(exact) > 10 and [words for words in exact if not words & provided] == []


@everywhere
def test_the_driver_has_an_epoch_and_its_companions_have_none(kind: Type[rpms.Driver], silicon: Path) -> None:
    epochs = {name: rpm.epoch for name, rpm in _by_name(_made(kind, silicon)).items()}
    assert {name for name, epoch in epochs.items() if epoch == 0} - {"cuda-drivers"} == {
        "nvidia-fabricmanager", "nvidia-imex", "libnvidia-nscq", "libnvsdm"}
    assert {epoch for epoch in epochs.values() if epoch} == {3}


@pytest.mark.parametrize("module", ["open", "proprietary"])
def test_what_the_collection_asks_for_on_el_9_is_there(driver: Driver, module: str) -> None:
    system = system_of("rocky", "9.7", "x86_64")
    assert system
    wanted = Wanted(system, False, 595, module, version="595.91.07", fabric_manager=True, imex=True)
    asked = resolver.package_set(wanted)
    assert {*asked.names, asked.firmware} <= set(_by_name(driver))
    assert enterprise.stream(wanted).partition(":")[2] in el9_rpms.streams([driver])


def test_flavours_exclude_each_other_and_have_streams_of_their_own(driver: Driver) -> None:
    found = _by_name(driver)
    assert found[OPEN].conflicts == (CLOSED,) and found[CLOSED].conflicts == (OPEN,)
    streams = {name: {rpm.name for rpm in members} for name, members in el9_rpms.streams([driver]).items()}
    assert set(streams) == {"595-open", "595-dkms", "open-dkms", "latest-dkms"}
    for name in ("595-open", "open-dkms"):
        assert OPEN in streams[name] and CLOSED not in streams[name]
    for name in ("595-dkms", "latest-dkms"):
        assert CLOSED in streams[name] and OPEN not in streams[name]


def test_what_the_collection_asks_of_modules_that_nvidia_has_built_is_there(driver: Driver, tmp_path: Path) -> None:
    (tmp_path / "built").mkdir()
    (tmp_path / "built/nvidia.ko").touch()
    system = system_of("rocky", "9.7", "x86_64")
    assert system and driver.version in el9_rpms.BUILT
    made = el9_rpms.built_modules(driver.version, tmp_path / "built")
    wanted = Wanted(system, False, 595, "proprietary", build=PRECOMPILED, version=driver.version,
                    kernel=el9_rpms.KERNEL)
    asked = resolver.package_set(wanted)
    assert {*asked.names, asked.firmware} <= {made.name, *_by_name(driver)}
    assert enterprise.serves(made.name, el9_rpms.KERNEL) and made.ghosts[-1].endswith("/nvidia.ko")
    members = el9_rpms.streams([driver], [made])[enterprise.stream(wanted).partition(":")[2]]
    assert made in members and not {OPEN, CLOSED}.intersection(rpm.name for rpm in members)


@pytest.mark.parametrize("module", ["open", "proprietary"])
@pytest.mark.parametrize("version", ["580.178.04", "595.91.07"])
def test_what_the_collection_asks_for_on_sles_15_is_there(silicon: Path, version: str, module: str) -> None:
    system = system_of("sles", "15.7", "x86_64")
    assert system
    asked = resolver.package_set(Wanted(system, False, int(version[:3]), module, "full", version=version,
                                        fabric_manager=True, imex=True))
    assert set(asked.names) <= set(_by_name(_made(sles15_rpms.Driver, silicon, version)))


@pytest.fixture(name="signed")
def _signed(tmp_path: Path) -> Dict[str, Rpm]:
    """{driver: its modules that SUSE has signed}."""
    for version in sles15_rpms.SIGNED:
        (tmp_path / version).mkdir()
        for name in built_modules.MODULES:
            (tmp_path / version / (name + ".ko.zst")).touch()
    return {version: sles15_rpms.signed_modules(version, tmp_path / version) for version in sles15_rpms.SIGNED}


def test_what_the_collection_asks_of_modules_that_suse_has_signed_is_there(
        silicon: Path, signed: Dict[str, Rpm]) -> None:
    system = system_of("sles", "15.7", "x86_64")
    assert system
    for version, rpm in signed.items():
        asked = resolver.package_set(Wanted(system, False, int(version[:3]), "open", build=PRECOMPILED,
                                            version=version, kernel=sles15_rpms.KERNEL))
        assert set(asked.names) <= {rpm.name, *_by_name(_made(sles15_rpms.Driver, silicon, version))}


def test_modules_that_suse_has_signed_are_of_one_kernel_and_serve_later_ones(signed: Dict[str, Rpm]) -> None:
    installed = {version: database.long_name(rpm.name, "%s-%s" % (rpm.version, rpm.release))
                 for version, rpm in signed.items()}
    serving = {version: suse.serves(name, sles15_rpms.KERNEL) for version, name in installed.items()}
    assert serving == {"580.126.09": True, "580.178.04": True, "595.91.07": True, "610.57.04": False}
    older, newer = signed["580.126.09"], signed["580.178.04"]
    assert (older.name, set(older.files)) == (newer.name, set(newer.files))
    assert "/lib/modules/6.4.0-150700.51-default/updates/nvidia.ko.zst" in older.files


def test_what_every_kernel_module_needs_is_content_with_that_of_suse(silicon: Path, signed: Dict[str, Rpm]) -> None:
    for version, rpm in signed.items():
        (needed,) = (word for word in _by_name(_made(sles15_rpms.Driver, silicon, version))[
            "nvidia-common-" + sles15_rpms.generation(version)].requires if "nvidia-kmod" in word)
        assert "or %s)" % next(word for word in rpm.provides if word.startswith("nvidia-open-signed-kmp =")) in needed


class Weak:
    """weak-modules2 of the root of SLES 15 on a host below a directory, whose rpm says what it is told."""

    BUILT_FOR, KERNEL = "6.4.0-150700.51-default", "6.4.0-150700.53.3-default"
    NAME = "nvidia-open-driver-G06-signed-cuda-kmp-default"

    def __init__(self, path: Path) -> None:
        self.path, self.packages = path, path / "packages"
        self.modules = path / "lib/modules"
        for directory in (path / "boot", path / "bin", self.packages, self.modules / self.KERNEL):
            directory.mkdir(parents=True)
        (path / "boot" / ("System.map-" + self.KERNEL)).touch()
        tool = rpm_root.HOST / "sles15/files/usr/lib/module-init-tools/weak-modules2"
        self._program("weak-modules2", re.sub(r"(?<![\w.])/(lib/modules|boot)/", r"%s/\1/" % path, tool.read_text()))
        self._program("rpm", "#!/bin/sh\ncd %s\ncase $1 in -qa) ls ;; *) cat $2* ;; esac\n" % self.packages)
        self._program("depmod", "#!/bin/sh\n")

    def _program(self, name: str, text: str) -> None:
        (self.path / "bin" / name).write_text(text)
        (self.path / "bin" / name).chmod(0o755)

    def call(self, action: str, version: str, modules: str = "") -> str:
        done = subprocess.run([str(self.path / "bin/weak-modules2"), action, "%s-%s-1" % (self.NAME, version)],
                              input=modules, capture_output=True, text=True, check=True,
                              env={"PATH": "%s/bin:/usr/bin:/bin:/usr/sbin:/sbin" % self.path})
        return done.stderr

    def install(self, version: str) -> str:
        (self.packages / ("%s-%s-1" % (self.NAME, version))).write_text(self.files)
        return self.call("--add-kmp", version)

    def erase(self, version: str) -> None:
        """As after a newer one came: its package is in the database no more, and its files are the newer one's."""
        (self.packages / ("%s-%s-1" % (self.NAME, version))).unlink()
        self.call("--remove-kmp", version, self.files)

    @property
    def files(self) -> str:
        return "%s/%s/updates/nvidia.ko.zst\n" % (self.modules, self.BUILT_FOR)

    @property
    def links(self) -> Dict[str, str]:
        top = self.modules / self.KERNEL / "weak-updates"
        return {str(path.relative_to(top)): str(path.readlink()) for path in top.rglob("*") if path.is_symlink()}


class TestWeakModules:
    def test_a_later_kernel_gets_links_and_the_next_version_leaves_them(self, tmp_path: Path) -> None:
        host = Weak(tmp_path)
        assert host.install("1") == "" and host.links == {"updates/nvidia.ko.zst": host.files.strip()}
        host.install("2")
        host.erase("1")
        assert host.links == {"updates/nvidia.ko.zst": host.files.strip()}
        host.erase("2")
        assert host.links == {}

    def test_a_kernel_with_a_module_that_was_built_here_gets_none(self, tmp_path: Path) -> None:
        host = Weak(tmp_path)
        (tmp_path / "lib/modules" / host.KERNEL / "updates").mkdir()
        (tmp_path / "lib/modules" / host.KERNEL / "updates/nvidia.ko").touch()
        assert "FAILED to add" in host.install("1") and host.links == {}

    def test_what_is_installed_once_more_loses_its_links(self, tmp_path: Path) -> None:
        host = Weak(tmp_path)
        host.install("1")
        host.call("--remove-kmp", "1", host.files)
        assert host.links == {}


def test_generations_have_the_same_files_under_other_names(silicon: Path) -> None:
    old, new = (_made(sles15_rpms.Driver, silicon, version) for version in ("580.178.04", "595.91.07"))
    found = {driver.version: {path.replace(driver.version, "V"): rpm.name for rpm in driver.groups()[0]
                              for path in (*rpm.files, *rpm.links)} for driver in (old, new)}
    assert set(found[old.version]) == set(found[new.version])
    assert found[old.version]["/usr/bin/nvidia-smi"] == "nvidia-compute-utils-G06"
    assert found[new.version]["/usr/bin/nvidia-smi"] == "nvidia-compute-utils-G07"


@everywhere
def test_files_are_where_rpm_packages_have_them(kind: Type[rpms.Driver], silicon: Path) -> None:
    found = _by_name(_made(kind, silicon))
    paths = [path for rpm in found.values() for path in (*rpm.files, *rpm.links)]
    assert "/usr/lib64/libnvidia-ml.so.595.91.07" in paths and "/usr/lib64/libcuda.so.1" in paths
    assert not [path for path in paths if path.startswith("/lib") or "x86_64-linux-gnu" in path]
    assert found["libnvidia-ml"].links["/usr/lib64/nvidia-gpusim.so.595.91.07"] == "../../var/lib/gpusim/board"


@everywhere
def test_the_files_are_those_of_the_debian_packages(kind: Type[rpms.Driver], silicon: Path) -> None:
    """All of them but the pins, which are apt's, and what the distribution brings."""
    driver = _made(kind, silicon)
    ours = {path for rpm in _by_name(driver).values() for path in rpm.files}
    theirs = {rpms.moved(path) for deb in driver.debs.values() for path in deb.files
              if deb.name not in ("nvlsm", "infiniband-diags") and "pinning" not in deb.name}
    assert theirs <= ours


@everywhere
def test_scriptlets_are_shell(kind: Type[rpms.Driver], silicon: Path, signed: Dict[str, Rpm]) -> None:
    found = [script for rpm in (*_by_name(_made(kind, silicon)).values(), *signed.values())
             for script in rpm.scripts.values()]
    assert len(found) > 10 and not [text for text in found if re.search(r"@[A-Z]+@", text)]
    for script in found:
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("image", EVERYWHERE)
def test_only_a_laboratory_with_such_a_host_needs_its_parts(image: str) -> None:
    own = {"root-" + image, *REPOSITORIES_OF[image].values()}
    for other in ("single", *(each for each in EVERYWHERE if each != image)):
        assert not own & set(parts_of(load(other)))
    names = parts_of(load(image))
    assert own | set(REPOSITORIES.values()) <= set(names)
    assert "store-bookworm-debian" in names


@needs_rpm
def test_dnf_installs_the_stream_that_is_enabled(driver: Driver, tmp_path: Path) -> None:
    job = Job("test", tmp_path / "out", tmp_path / "log", {})
    key = Job("test", tmp_path / "key", tmp_path / "log", {})
    for directory in (job.out, key.out):
        directory.mkdir()
    aptrepo.KEY_PART.build(key)
    for group in driver.groups():
        rpmrepo.pack(job, group, job.out)
    rpmrepo.pack(job, [Rpm("dkms", "3.0", "dkms"), Rpm("bash", "5", "bash", provides=("/bin/sh",))], job.out)
    rpmrepo.sign(job, key.out, sorted(job.out.glob("*.rpm")))
    rpmrepo.index(job, key.out, job.out, rpmrepo.modulemd(
        el9_rpms.MODULE, el9_rpms.streams([driver]), "open-dkms", ("nvidia-open",), el9_rpms.PLATFORM))
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/os-release").write_text('ID=rocky\nPLATFORM_ID="platform:el9"\n')
    (root / "dnf.conf").write_text("[main]\nreposdir=/nonexistent\npluginpath=/nonexistent\n[lab]\nbaseurl=file://%s\n"
                                   "gpgcheck=1\nrepo_gpgcheck=1\ngpgkey=file://%s\n"
                                   % (job.out, key.out / aptrepo.PUBLIC_KEY))

    def dnf(*words: str) -> List[str]:
        done = subprocess.run(["dnf", "-y", "--installroot", str(root), "--config", str(root / "dnf.conf"),
                               "--releasever=9", *words], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    dnf("module", "enable", "nvidia-driver:595-dkms")
    # The scriptlets belong to a host, and the names to NVIDIA
    dnf("install", "--setopt=tsflags=noscripts", CLOSED, "nvidia-driver-cuda-3:595.91.07")
    names = dnf("repoquery", "--installed", "--qf", "%{name}")
    assert {CLOSED, "nvidia-driver-cuda", "nvidia-kmod-common", "libnvidia-ml"} <= set(names)
    assert OPEN not in names
    program = root / "usr/bin/nvidia-smi"
    assert b"GPUSIM_VERSION=595.91.07" in program.read_bytes()
    assert (root / "usr/src/nvidia-595.91.07").is_dir()


def test_a_percent_sign_in_a_script_is_no_macro() -> None:
    package = Rpm("a", "1", "a", files={"/etc/a": File("b", 0o600)}, scripts={"post": "echo 5%\n"})
    assert "echo 5%%\n" in package.sections()
    assert "%config(noreplace) %attr(0600, root, root) /etc/a" in package.sections()
