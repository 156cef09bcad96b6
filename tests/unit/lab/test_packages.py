# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The laboratory's package repositories: what is in them, and that the real apt accepts them."""
from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Dict, List

import pytest

from gpulab import aptrepo
from gpulab.aptrepo import Deb, File
from gpulab.cache import BuildError, Job
from gpulab.parts import packages, served
from gpulab.parts.packages import Driver

PROGRAMS = ("nvidia-smi", "nvidia-modprobe", "nvidia-persistenced", "nv-fabricmanager", "nvidia-imex",
            "nvidia-imex-ctl", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "nvidia-gridd")
FIELD = b"head" + b"GPUSIM_VERSION=unpackaged".ljust(64, b"\0") + b"tail"

needs_apt = pytest.mark.skipif(not all(map(shutil.which, ("apt-get", "dpkg-deb", "gpg"))), reason="needs apt and gpg")


@pytest.fixture(name="silicon")
def _silicon(tmp_path: Path) -> Path:
    directory = tmp_path / "silicon"
    directory.mkdir()
    for name in PROGRAMS:
        (directory / name).write_bytes(FIELD)
    return directory


def _driver(silicon: Path, version: str = "595.91.07", compiles: bool = True) -> Driver:
    return Driver(version, silicon, silicon / "empty.so", compiles)


def _by_name(driver: Driver) -> Dict[str, Deb]:
    return {deb.name: deb for deb in driver.packages()}


def _job(tmp_path: Path, name: str = "out") -> Job:
    out = tmp_path / name
    out.mkdir()
    return Job("test", out, tmp_path / ("%s.log" % name))


def test_every_exact_dependency_is_in_the_same_set(silicon: Path) -> None:
    debs = _by_name(_driver(silicon))
    exact = [re.match(r"(\S+) \(= (\S+)\)", word)
             for deb in debs.values() for relation in deb.depends + deb.recommends for word in relation.split(" | ")]
    found = [match.groups() for match in exact if match]
    assert len(found) > 10
    for name, version in found:
        assert debs[name].version == version


def test_flavours_exclude_each_other(silicon: Path) -> None:
    debs = _by_name(_driver(silicon))
    assert debs["nvidia-kernel-dkms"].conflicts == ("nvidia-kernel-open-dkms",)
    assert debs["nvidia-kernel-open-dkms"].conflicts == ("nvidia-kernel-dkms",)


def test_a_guest_driver_is_one_package_with_all_of_a_driver(silicon: Path) -> None:
    guest = _driver(silicon).guest()
    assert (guest.name, guest.version) == ("nvidia-linux-grid-595", "595.91.07")
    assert {"/usr/bin/nvidia-smi", "/usr/bin/nvidia-gridd", "/usr/src/nvidia-595.91.07/dkms.conf",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.595.91.07"} <= set(guest.files)
    assert "/usr/lib/x86_64-linux-gnu/libcuda.so.1" in guest.links and "postinst" in guest.scripts


@pytest.mark.parametrize(("name", "pattern"), [("595", "595.*"), ("595.91.07", "595.91.07-1")])
def test_pins(silicon: Path, name: str, pattern: str) -> None:
    pin = _by_name(_driver(silicon))["nvidia-driver-pinning-%s" % name]
    assert pin.provides == pin.conflicts == pin.replaces == ("nvidia-driver-pinning",)
    lines = str(pin.files["/etc/apt/preferences.d/nvidia-driver-pin"].content).splitlines()
    assert lines[1:] == ["Pin: version %s" % pattern, "Pin-Priority: 1000"]


def test_only_the_branch_with_suffixes_has_suffixed_metapackages(silicon: Path) -> None:
    assert "cuda-drivers-580" in _by_name(_driver(silicon, "580.178.04"))
    assert "cuda-drivers-595" not in _by_name(_driver(silicon))


@pytest.mark.parametrize(("package", "license_name"),
                         [("nvidia-kernel-open-dkms", "Dual MIT/GPL"), ("nvidia-kernel-dkms", "NVIDIA")])
def test_module_source_is_complete(silicon: Path, package: str, license_name: str) -> None:
    files = _by_name(_driver(silicon))[package].files
    text = {name.rsplit("/", 1)[1]: str(item.content) for name, item in files.items()}
    assert all(name.startswith("/usr/src/nvidia-595.91.07/") for name in files)
    assert not [name for name, content in text.items() if "@VERSION@" in content or "@LICENSE@" in content]
    assert 'PACKAGE_VERSION="595.91.07"' in text["dkms.conf"]
    assert license_name in text["Makefile"]
    modules = re.findall(r'BUILT_MODULE_NAME\[\d\]="(\S+)"', text["dkms.conf"])
    assert modules == ["nvidia", "nvidia-uvm", "nvidia-modeset", "nvidia-drm", "nvidia-peermem"]
    for module in modules:
        assert "%s.c" % module in text
        assert "%s.o" % module in text["Makefile"]


def test_only_the_broken_driver_does_not_compile(silicon: Path) -> None:
    def source(compiles: bool) -> str:
        deb = _by_name(_driver(silicon, compiles=compiles))["nvidia-kernel-open-dkms"]
        return str(deb.files["/usr/src/nvidia-595.91.07/nvidia.c"].content)

    assert "#error" not in source(True)
    assert "#error" in source(False)


def test_programs_carry_the_version_of_their_package(silicon: Path) -> None:
    content = _by_name(_driver(silicon))["nvidia-fabricmanager"].files["/usr/bin/nv-fabricmanager"].content
    assert content == b"head" + b"GPUSIM_VERSION=595.91.07".ljust(64, b"\0") + b"tail"
    assert packages.stamped(b"no field", "1") == b"no field"


def test_maintainer_scripts_are_shell(silicon: Path, tmp_path: Path) -> None:
    debs: List[Deb] = [*_driver(silicon).packages(), *packages.toolkit_packages("1.20.1", tmp_path)]
    scripts = [script for deb in debs for script in deb.scripts.values()]
    assert len(scripts) > 10
    for script in scripts:
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)


def test_kernels_are_read_of_metapackages_of_all_releases() -> None:
    show = ("Package: linux-image-amd64\nVersion: 6.12.118-1\nDepends: linux-image-6.12.118+deb13-amd64 (= 6.12.118-1)"
            "\n\nPackage: linux-image-amd64\nVersion: 7.3.4-1~bpo13+1\nDepends: linux-base-amd64 (= 7.3.4-1~bpo13+1), "
            "linux-image-7.3.4+deb13-amd64 (= 7.3.4-1~bpo13+1), linux-modules-amd64 (= 7.3.4-1~bpo13+1)\n")
    assert packages.kernels_of(show) == {"6.12.118+deb13-amd64": "6.12.118-1", "7.3.4+deb13-amd64": "7.3.4-1~bpo13+1"}


def test_kernels_are_ordered_by_number() -> None:
    assert packages.other_kernel("6.1.0-50", ["6.1.0-50", "6.1.0-56", "6.1.0-9"]) == "6.1.0-56"
    assert packages.other_kernel("6.1.0-56", ["6.1.0-50", "6.1.0-56", "6.1.0-9"]) == "6.1.0-50"
    assert packages.other_kernel("6.1.0-9", ["6.1.0-9"]) is None


def test_a_machine_without_a_debian_mirror_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "apt-get"
    fake.write_text("#!/bin/sh\necho 'Other|Other|http://mirror.invalid/other'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:/bin:/usr/bin" % tmp_path)
    with pytest.raises(BuildError, match="no Debian mirror .* run apt-get update"):
        packages.debian_sources("bookworm", "main")


def test_sources_follow_the_machines_mirrors(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = tmp_path / "apt-get"
    fake.write_text("#!/bin/sh\necho 'Debian|Debian|http://a.invalid/'; echo 'Debian|Debian-Security|http://b.invalid/'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", "%s:/bin:/usr/bin" % tmp_path)
    words = [line.split()[2:] for line in packages.debian_sources("bookworm", "main contrib")]
    assert words == [["http://a.invalid/", "bookworm", "main", "contrib"],
                     ["http://a.invalid/", "bookworm-updates", "main", "contrib"],
                     ["http://b.invalid/", "bookworm-security", "main", "contrib"]]
    further = [line.split()[3] for line in packages.debian_sources("trixie", "main", "trixie-backports")]
    assert further == ["trixie", "trixie-updates", "trixie-backports", "trixie-security"]


@needs_apt
def test_a_package_is_byte_equal_when_built_again(tmp_path: Path) -> None:
    files = {"/etc/sample.conf": File("x\n"), "/usr/bin/sample": File(b"", 0o755)}
    deb = Deb("sample", "1:2.0-1", "a sample", files=files)
    first, second = (aptrepo.pack(_job(tmp_path, name), deb, tmp_path / name) for name in ("one", "two"))
    assert first.name == "sample_2.0-1_amd64.deb"
    assert first.read_bytes() == second.read_bytes()
    conffiles = subprocess.run(["dpkg-deb", "--info", str(first), "conffiles"], check=True, stdout=subprocess.PIPE)
    assert conffiles.stdout == b"/etc/sample.conf\n"


@needs_apt
@pytest.mark.parametrize("layout", ["flat", "suite"])
def test_apt_accepts_the_repository_and_only_with_its_key(tmp_path: Path, layout: str) -> None:
    key, strangers_key, job = _job(tmp_path, "key"), _job(tmp_path, "stranger"), _job(tmp_path, "repository")
    for each in (key, strangers_key):
        aptrepo.KEY_PART.build(each)
    deb = aptrepo.pack(job, Deb("sample", "2.0-1", "a sample"), job.out)
    if layout == "flat":
        aptrepo.index_flat(job, key.out, job.out, {"Origin": "test"})
        place = "%s /" % job.out
    else:
        aptrepo.index_suite(job, key.out, job.out, "bookworm", [deb], {"Origin": "test"})
        place = "%s bookworm main" % job.out

    def offered(public_key: Path) -> str:
        state = tmp_path / public_key.parent.name / "apt"
        (state / "lists/partial").mkdir(parents=True)
        (state / "status").touch()
        (state / "sources.list").write_text("deb [signed-by=%s] file:%s\n" % (public_key, place))
        settings = {"Dir::State": state, "Dir::State::status": state / "status", "Dir::Cache": state,
                    "Dir::Etc::sourcelist": state / "sources.list", "Dir::Etc::sourceparts": "/dev/null",
                    "APT::Architecture": "amd64", "APT::Sandbox::User": ""}
        options = [word for name, value in settings.items() for word in ("-o", "%s=%s" % (name, value))]
        subprocess.run(["apt-get", *options, "update"], check=False, capture_output=True)
        policy = ["apt-cache", *options, "policy", "sample"]
        return subprocess.run(policy, check=True, stdout=subprocess.PIPE, text=True).stdout

    assert "Candidate: 2.0-1" in offered(key.out / aptrepo.PUBLIC_KEY)
    assert offered(strangers_key.out / aptrepo.PUBLIC_KEY) == ""


def test_of_a_script_every_word_is_filled_in(silicon: Path) -> None:
    guest = _driver(silicon).guest()
    assert "dkms remove -m nvidia -v 595.91.07 --all" in guest.scripts["prerm"]
    with pytest.raises(ValueError, match="nobody fills in @NAME@, @VERSION@ in the scripts of dkms"):
        packages.scripts("dkms", "postinst prerm")


@needs_apt
def test_what_is_packed_anew_holds_the_same(tmp_path: Path) -> None:
    files = {"/usr/share/one": File("one\n" * 1000), "/etc/two": File(b"\x00odd", 0o600)}
    job = Job("test", tmp_path, tmp_path / "log")
    plain = aptrepo.pack(job, Deb("some", "1-1", "Some files", files=files), tmp_path / "plain")
    subprocess.run(["dpkg-deb", "--raw-extract", plain, tmp_path / "tree"], check=True)
    subprocess.run(["dpkg-deb", "-Zxz", "--build", tmp_path / "tree", tmp_path / "some.deb"], check=True)
    served.repack(tmp_path / "some.deb", tmp_path / "anew.deb")
    assert [name for name, _rest, _content in served.members((tmp_path / "anew.deb").read_bytes())] == [
        b"debian-binary", b"control.tar.gz", b"data.tar.gz"]
    for words in (["--info"], ["--contents"], ["--fsys-tarfile"], ["--ctrl-tarfile"]):
        before, after = (subprocess.run(["dpkg-deb", *words, tmp_path / name], check=True,
                                        stdout=subprocess.PIPE).stdout for name in ("some.deb", "anew.deb"))
        if words == ["--info"]:
            before, after = (said.split(b"\n", 1)[1].partition(b"Package:")[2] for said in (before, after))
        assert before == after and before, words
