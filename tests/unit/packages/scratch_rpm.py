# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of EL 9 below a directory, with rpm's database and dnf's configuration of its own, and repositories for it.

The packages have the names, epochs and dependencies of those in NVIDIA's repository, its module streams too, and
nothing in them. They are built once, by rpmbuild, and kept below ~/.cache/gpuops; each process signs its own copy.
"""
from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import ansible
from scratch_apt import Keyring, keyring

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Package
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.rpm import database

V580, V595, V610 = "580.178.04", "595.91.07", "610.57.04"
OLDER_580 = "580.126.09"
DRIVERS = (OLDER_580, V580, V595, V610)
RELEASE = "1.el9"
OPEN, CLOSED = "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"
MODULE = "nvidia-driver"
_CACHE = Path.home() / ".cache" / "gpuops" / "test-rpms"
# What the controller sends of a module, without the controller
_MODULE = """
import json, sys
from ansible.module_utils import basic
basic._ANSIBLE_ARGS = sys.stdin.buffer.read()
basic._ANSIBLE_PROFILE = "legacy"
from ansible.modules import dnf
dnf.main()
"""
KILLS = 'if posix.access("/killed-here-%s") then posix.kill(posix.getprocessid("pid"), 9) end'


@dataclass(frozen=True)
class Made:
    """A package to build. relations: lines of the spec; script: its %post, in rpm's own Lua."""

    name: str
    version: str
    release: str = RELEASE
    epoch: int = 0
    relations: Tuple[str, ...] = ()
    script: str = ""
    arch: str = "x86_64"

    @property
    def evr(self) -> str:
        return ("%d:" % self.epoch if self.epoch else "") + "%s-%s" % (self.version, self.release)

    @property
    def spec(self) -> str:
        return "\n".join((
            "Name: " + self.name, "Version: " + self.version, "Release: " + self.release,
            *(("Epoch: %d" % self.epoch,) if self.epoch else ()), "Summary: a test", "License: MIT", *self.relations,
            "%description", "A test.", "%install", "mkdir -p %{buildroot}/usr/share/%{name}",
            "echo %{version} >%{buildroot}/usr/share/%{name}/version",
            "echo %{version} >%{buildroot}/usr/share/%{name}/of-%{version}",
            *(("%post -p <lua>", self.script) if self.script else ()), "%files", "/usr/share/%{name}", ""))


def driver(version: str) -> List[Made]:
    """The driver's packages of one version, both kernel modules."""
    same = "3:%s" % version
    made = [
        Made("nvidia-driver-cuda", version, epoch=3, relations=(
            "Requires: nvidia-kmod = " + same, "Requires: nvidia-driver-cuda-libs = " + same,
            "Requires: nvidia-persistenced = " + same)),
        Made("nvidia-driver-cuda-libs", version, epoch=3, script=KILLS % "libs"),
        Made("nvidia-persistenced", version, epoch=3),
        Made("nvidia-modprobe", version, epoch=3),
        Made("nvidia-fabricmanager", version),
    ]
    for name, other in ((OPEN, CLOSED), (CLOSED, OPEN)):
        made.append(Made(name, version, epoch=3, relations=(
            "Provides: nvidia-kmod = " + same, "Conflicts: " + other, "Requires: dkms"), script=KILLS % "kmod"))
    return made


class Kmod(Made):
    """Modules that come built for one kernel. Its script puts them where those of every other driver are, as NVIDIA's
    do (dnf-kmod-nvidia.spec): they are no content of the package, and go with the last one that names them."""

    @property
    def spec(self) -> str:
        return super().spec + "%%ghost %s\n" % self.module

    @property
    def module(self) -> str:
        return module_of("%s.el9.x86_64" % "-".join(self.name.rsplit("-", 2)[1:]))


def module_of(kernel: str) -> str:
    """Where modules of a kernel lie that come built."""
    return "/lib/modules/%s/extra/drivers/video/nvidia/nvidia.ko" % kernel


def kmod(version: str, kernel: int, begins: str = "kmod-nvidia") -> Made:
    """Modules of a driver for a kernel of OF_SYSTEM, by its number."""
    name = "%s-%s-5.14.0-%d" % (begins, version, kernel)
    path = module_of("5.14.0-%d.el9.x86_64" % kernel)
    parts = path.split("/")
    made = " ".join('posix.mkdir("%s");' % "/".join(parts[:end]) for end in range(2, len(parts)))
    of_nvidia = begins == "kmod-nvidia"
    return Kmod(name, version, "3.el9", epoch=3, relations=(
        "Provides: nvidia-kmod = 3:" + version,
        "Requires: (kernel-core = 5.14.0-%d.el9 if kernel-core)" % kernel,
        *(("Conflicts: " + CLOSED,) if of_nvidia else ())), script="\n".join((
            made, 'local file = io.open("%s", "w"); file:write("%s"); file:close()' % (path, version),
            KILLS % "kmod")))


# Kernels have them of some drivers
KMODS = [kmod(OLDER_580, 570), kmod(OLDER_580, 611), kmod(V580, 611), kmod(V595, 570), kmod(V595, 611)]
OF_NVIDIA = [*(package for version in DRIVERS for package in driver(version)), *KMODS]
OF_SYSTEM = [
    Made("dkms", "3.2.2"),
    Made("app", "1.0", relations=("Requires: nvidia-driver-cuda-libs",)),
    Made("tool", "1.0"), Made("tool", "2.0~rc1"), Made("tool", "2.0"),
    *(Made("kernel-core", "5.14.0", "%d.el9" % number, relations=(
        "Provides: kernel = 5.14.0-%d.el9" % number, "Provides: installonlypkg(kernel)"))
      for number in (570, 611, 640)),
    *(Made("kernel-devel", "5.14.0", "%d.el9" % number, relations=("Provides: installonlypkg(kernel)",))
      for number in (570, 611)),
    *(Made("kernel-devel-matched", "5.14.0", "%d.el9" % number, relations=(
        "Requires: kernel-devel = 5.14.0-%d.el9" % number, "Requires: kernel-core = 5.14.0-%d.el9" % number))
      for number in (570, 611)),
]


def streams() -> Dict[str, List[Made]]:
    """{stream: what it has}, as the driver's module in NVIDIA's repositories of EL 8 and 9."""
    found: Dict[str, List[Made]] = {}
    for package in OF_NVIDIA:
        branch = package.version.split(".")[0]
        for flavour, every, others in (("-open", "open-dkms", (CLOSED,)), ("-dkms", "latest-dkms", (OPEN,)),
                                       ("", "latest", (OPEN, CLOSED))):
            if package.name not in others and (not flavour or not isinstance(package, Kmod)):
                found.setdefault(branch + flavour, []).append(package)
                found.setdefault(every, []).append(package)
    return found


def modulemd() -> str:
    """modules.yaml: the streams, and which of them is the default."""
    documents = []
    for stream, packages in streams().items():
        documents.append({
            "document": "modulemd", "version": 2, "data": {
                "name": MODULE, "stream": stream, "version": 20260803, "context": "deadbeef", "arch": "x86_64",
                "summary": "a test", "description": "a test", "license": {"module": ["MIT"]},
                "dependencies": [{"requires": {"platform": ["el9"]}}],
                "profiles": {"default": {"rpms": ["nvidia-driver-cuda"]}},
                "artifacts": {"rpms": ["%s-%d:%s-%s.%s" % (each.name, each.epoch, each.version, release, arch)
                                       for each in packages
                                       for release, arch in ((each.release, each.arch), ("0.el9", "src"))]}}})
    documents.append({"document": "modulemd-defaults", "version": 1, "data": {
        "module": MODULE, "stream": "open-dkms", "profiles": {"open-dkms": ["default"]}}})
    return "".join("---\n%s\n...\n" % json.dumps(document) for document in documents)


def built(package: Made) -> Path:
    """The package's file, built when it is not there yet."""
    target = _CACHE / hashlib.sha256(package.spec.encode()).hexdigest()[:20] / (
        "%s-%s-%s.%s.rpm" % (package.name, package.version, package.release, package.arch))
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "a.spec").write_text(package.spec)
        done = subprocess.run(
            ["rpmbuild", "-bb", "--nodeps", "--target", package.arch, "--define", "_topdir " + scratch,
             "--define", "dist %{nil}", "--define", "_build_id_links none", scratch + "/a.spec"],
            capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        made = next(Path(scratch).glob("RPMS/*/*.rpm"))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_suffix(".%d" % os.getpid())
        shutil.copy(made, beside)
        beside.rename(target)
    return target


def sign(key: Keyring, files: Sequence[Path]) -> None:
    done = subprocess.run(
        ["rpmsign", "--addsign", "--define", "__gpg %s" % shutil.which("gpg"), "--define", "_gpg_path " + key.home,
         "--define", "_gpg_name " + key.fingerprint, "--define",
         "_gpg_sign_cmd_extra_args --batch --pinentry-mode loopback --passphrase ''", *map(str, files)],
        capture_output=True, text=True, env=dict(os.environ, GNUPGHOME=key.home))
    assert done.returncode == 0, done.stderr


def sign_index(directory: Path, key: str) -> None:
    """repomd.xml.asc, as createrepo_c's users make it by hand."""
    index = directory / "repodata/repomd.xml"
    index.with_name("repomd.xml.asc").unlink(missing_ok=True)
    subprocess.run(["gpg", "--homedir", keyring(key).home, "--batch", "--quiet", "--armor", "--detach-sign",
                    "--pinentry-mode", "loopback", "--passphrase", "", str(index)], check=True, capture_output=True)


def without(packages: Sequence[Made], name: str) -> List[Made]:
    return [each for each in packages if each.name != name]


def publish(directory: Path, packages: Sequence[Made], modules: bool = False, key: str = "one") -> Path:
    """A repository of these packages, signed; the index is made anew."""
    directory.mkdir(parents=True, exist_ok=True)
    for package in packages:
        shutil.copy(built(package), directory)
    sign(keyring(key), sorted(directory.glob("*.rpm")))
    subprocess.run(["createrepo_c", "--quiet", "--update", str(directory)], check=True, capture_output=True)
    if modules:
        (directory / "modules.yaml").write_text(modulemd())
        subprocess.run(["modifyrepo_c", "--mdtype=modules", str(directory / "modules.yaml"),
                        str(directory / "repodata")], check=True, capture_output=True)
    return directory


@lru_cache(maxsize=None)
def nvidia(modules: bool = True) -> Path:
    """NVIDIA's repository; without modules as that of EL 10 and Fedora."""
    return publish(Path(tempfile.mkdtemp(prefix="gpuops-test-rpm-")), OF_NVIDIA, modules)


@lru_cache(maxsize=None)
def nvidia_rebuilt() -> Path:
    """NVIDIA's repository without streams, whose packages have a newer release than Red Hat's of the same driver."""
    return publish(Path(tempfile.mkdtemp(prefix="gpuops-test-rpm-")), [
        replace(each, release="2.el9") for version in DRIVERS for each in driver(version)])


@lru_cache(maxsize=None)
def extensions() -> Path:
    """RHEL's repositories Extensions and Supplementary: named and numbered as NVIDIA's but for the release, with Red
    Hat's modules of some kernels."""
    made = [replace(each, release="1.el9_1") for version in (OLDER_580, V580, V595) for each in driver(version)
            if each.name not in (OPEN, CLOSED)]
    made += [*(kmod(version, 570, "kmod-nvidia-open") for version in (OLDER_580, V595)),
             kmod(V580, 611, "kmod-nvidia-open"), kmod(V580, 570, "kmod-64k-nvidia-open")]
    return publish(Path(tempfile.mkdtemp(prefix="gpuops-test-rpm-")), [
        replace(each, relations=(*each.relations, "Vendor: Red Hat, Inc.")) for each in made], key="two")


@lru_cache(maxsize=None)
def system() -> Path:
    """The distribution's own repository."""
    return publish(Path(tempfile.mkdtemp(prefix="gpuops-test-rpm-")), OF_SYSTEM, key="two")


class Root:
    """A host of EL 9 below a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for directory in ("etc/dnf/modules.d", "etc/dnf/plugins", "etc/dnf/vars", "etc/yum.repos.d", "etc/pki/rpm-gpg",
                          "var/lib/rpm", "var/lib/dnf", "var/cache/dnf", "var/log", "run", "tmp", "usr", "boot"):
            (path / directory).mkdir(parents=True, exist_ok=True)
        self.host = Host(str(path))
        self.write("/etc/os-release", 'ID="rocky"\nID_LIKE="rhel centos fedora"\nVERSION_ID="9.8"\n'
                                      'PLATFORM_ID="platform:el9"\n')
        self.write("/etc/dnf/dnf.conf", "[main]\ngpgcheck=1\ninstallonly_limit=3\nclean_requirements_on_remove=True\n"
                                        "best=True\nskip_if_unavailable=False\n")
        self.write("/etc/dnf/plugins/versionlock.conf",
                   "[main]\nenabled = 1\nlocklist = %s/etc/dnf/plugins/versionlock.list\n" % path)
        self.write("/etc/dnf/plugins/local.conf", "[main]\nenabled = 0\n")
        self.write("/etc/dnf/vars/releasever", "9")
        self.rpm("--initdb")
        self.configure("baseos", system(), "two")

    def write(self, name: str, text: str) -> None:
        (self.path / name.lstrip("/")).write_text(text)

    def configure(self, name: str, where: Any, key: str = "one", **more: Any) -> None:
        """The administrator's own entry of a repository."""
        self.write("/etc/pki/rpm-gpg/%s" % name, keyring(key).public)
        self.rpm("--import", "%s/etc/pki/rpm-gpg/%s" % (self.path, name))
        address = where if isinstance(where, str) else "file://%s" % where
        options = {"name": name, "baseurl": address, "gpgcheck": 1,
                   "gpgkey": "file://%s/etc/pki/rpm-gpg/%s" % (self.path, name), **more}
        self.write("/etc/yum.repos.d/%s.repo" % name,
                   "[%s]\n%s" % (name, "".join("%s=%s\n" % item for item in options.items())))

    def rpm(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(["rpm", "--dbpath", str(self.path / "var/lib/rpm"), *words], capture_output=True,
                              text=True, check=check)

    def dnf(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """dnf of this host, as its administrator calls it."""
        done = subprocess.run(
            ["dnf", "-y", "--installroot", str(self.path), "--config", str(self.path / "etc/dnf/dnf.conf"),
             "--setopt=reposdir=%s/etc/yum.repos.d" % self.path,
             "--setopt=pluginconfpath=%s/etc/dnf/plugins" % self.path,
             *words], capture_output=True, text=True, env=dict(os.environ, LC_ALL="C"))
        if check and done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return done

    def module(self, options: Mapping[str, Any]) -> Dict[str, Any]:
        """What ansible.builtin.dnf answers, run with these options on this host."""
        whole = {**options, "installroot": str(self.path), "conf_file": str(self.path / "tmp/dnf.conf")}
        self.write("/tmp/dnf.conf", (self.path / "etc/dnf/dnf.conf").read_text()
                   + "reposdir=%s/etc/yum.repos.d\npluginconfpath=%s/etc/dnf/plugins\n" % (self.path, self.path))
        done = subprocess.run(
            ["/usr/bin/python3", "-c", _MODULE], input=json.dumps({"ANSIBLE_MODULE_ARGS": whole}), capture_output=True,
            text=True, cwd=self.path, env=dict(os.environ, PYTHONPATH=str(Path(ansible.__file__).parents[1])))
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines and done.returncode >= 0:
            raise AssertionError(done.stdout + done.stderr)
        answer: Dict[str, Any] = json.loads(lines[-1]) if lines else {"failed": True, "killed": -done.returncode}
        return answer

    def packages(self) -> Dict[str, Package]:
        return database.installed(self.host)

    def installed(self) -> Dict[str, str]:
        return {name: package.version for name, package in self.packages().items() if package.installed}

    def tree(self) -> Mapping[str, bytes]:
        """Every file and its bytes, without those that reading a database of SQLite may touch."""
        return {str(path.relative_to(self.path)): path.read_bytes() for path in sorted(self.path.rglob("*"))
                if path.is_file() and not path.name.endswith(("-shm", "-wal", ".rpm.lock"))}
