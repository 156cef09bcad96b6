# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of SLES below a directory: that of scratch_rpm.py with zypper's configuration, and its repositories.

Debian has zypper and dnf's plugins in packages of which only one can be installed, for a program that both have. So
where it is not there, zypper is unpacked, with the libraries that the machine lacks, below ~/.cache/gpuops.
"""
from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import scratch_rpm
from scratch_apt import keyring
from scratch_rpm import DRIVERS, OLDER_580, V580, V595, V610, Made

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host

PRODUCT = """<?xml version="1.0" encoding="UTF-8"?>
<product schemeversion="0"><vendor>SUSE</vendor><name>SLES</name><version>15.6</version><baseversion>15</baseversion>
<patchlevel>6</patchlevel><release>0</release><arch>x86_64</arch><productline>sles</productline>
<register><target>sle-15-x86_64</target></register></product>
"""


BASE = Made("filesystem", "15.0")
KERNELS = ("150700.53.3", "150700.53.11")
# The kernel that the service pack began with
BUILT_FOR = "150700.51"

_CACHE = Path.home() / ".cache" / "gpuops" / "test-zypper"
_PROGRAM = """#!/bin/sh
export LD_LIBRARY_PATH=%(root)s/usr/lib/x86_64-linux-gnu:%(root)s/usr/lib/aarch64-linux-gnu
exec %(root)s/usr/bin/zypper "$@"
"""


class Shared(Made):
    """A package whose files another generation has too, and that does not say so."""

    @property
    def spec(self) -> str:
        return super().spec.replace("/usr/share/%{name}", "/usr/share/nvidia-compute")


def generation(version: str) -> str:
    return "G07" if int(version.split(".")[0]) >= 590 else "G06"


def driver(version: str) -> List[Made]:
    """The driver's packages of one version for SUSE, both kernel modules; names are of a generation."""
    same, end = "3:%s" % version, generation(version)
    made = [
        Made("nvidia-compute-utils-" + end, version, epoch=3, relations=(
            "Requires: nvidia-compute-%s = %s" % (end, same), "Requires: nvidia-persistenced = " + same)),
        Shared("nvidia-compute-" + end, version, epoch=3, relations=("Requires: libnvidia-ml = " + same,),
               script=scratch_rpm.KILLS % "compute"),
        Made("libnvidia-ml", version, epoch=3),
        Made("nvidia-persistenced", version, epoch=3),
        Made("nvidia-settings", version, epoch=3),
    ]
    for name, other in (("nvidia-open-driver-", "nvidia-driver-"), ("nvidia-driver-", "nvidia-open-driver-")):
        made.append(Made(name + end, version, epoch=3, relations=(
            "Provides: nvidia-kmod = " + same, "Conflicts: " + other + end, "Requires: dkms")))
    return made


def signed(version: str, kernel: str = "", build: str = "150700.3.1", several: bool = False) -> Made:
    """Modules that SUSE has signed, as nvidia-open-driver-G07-signed.spec and its preamble have them.

    several: whether they may be there beside those of another driver, whose files they have too, as those before
             580.82.07 may.
    """
    end, flavours = generation(version), "nvidia-open-driver-%s-signed-cuda-kmp"
    return Signed(
        "%s-default" % flavours % end, "%s_k6.4.0_%s" % (version, kernel or BUILT_FOR), build, relations=(
            *(("Provides: multiversion(kernel)",) if several else ()),
            "Provides: nvidia-open-driver-%s = %s" % (end, version),
            "Provides: %s = %s" % (flavours % end, version), "Provides: %s-default = %s" % (flavours % end, version),
            "Provides: nvidia-open-signed-kmp = " + version, "Provides: nvidia-open-signed-kmp(cuda)",
            "Conflicts: nvidia-open-signed-kmp(gfx)", "Conflicts: nvidia-driver-G06-kmp",
            "Obsoletes: nvidia-open-driver-%s = %s" % (end, version)))


def prefers_signed(version: str) -> Made:
    """The empty package with which SUSE has signed modules installed; that of G06 has no generation in its name."""
    end = generation(version)
    return Made("nv-prefer-signed-open-driver" + ("" if end == "G06" else "-" + end), version, "150700.3.1", relations=(
        "Requires: nvidia-open-driver-%s-signed-cuda-kmp" % end,))


class Signed(Made):
    """Modules of a kernel, whatever the driver."""

    @property
    def spec(self) -> str:
        return super().spec.replace("/usr/share/%{name}", "/lib/modules/6.4.0-%s-default/updates" % BUILT_FOR)


OF_NVIDIA = [Made("dkms", "3.3.0"), *(package for version in DRIVERS for package in driver(version))]
# Numbers of builds follow the release that uname prints
OF_SYSTEM = [
    prefers_signed(OLDER_580), prefers_signed(V595),
    Made("tool", "1.0"), Made("app", "1.0", relations=("Requires: libnvidia-ml",)),
    *(Made(name, "6.4.0", number + ".1", relations=(
        "Provides: multiversion(kernel)", "Provides: %s = 6.4.0-%s" % (name, number),
        *(("Requires: kernel-devel = 6.4.0-" + number,) if name.endswith("default-devel") else ())))
      for number in KERNELS for name in ("kernel-default", "kernel-default-devel", "kernel-devel")),
]


def all_signed(several: bool) -> List[Made]:
    """SUSE's lag behind NVIDIA's."""
    return [signed(OLDER_580, several=several), signed(OLDER_580, build="150700.3.4", several=several),
            signed(V595, several=several), signed(V610, "150600.21", several=several),
            signed("580.95.05", several=several)]


@lru_cache(maxsize=None)
def nvidia() -> Path:
    """NVIDIA's repository for SLES."""
    return scratch_rpm.publish(Path(tempfile.mkdtemp(prefix="gpuops-test-zypper-")), OF_NVIDIA)


@lru_cache(maxsize=None)
def without_epochs() -> Path:
    """The same, as NVIDIA has them where SUSE's modules name them without an epoch."""
    return scratch_rpm.publish(Path(tempfile.mkdtemp(prefix="gpuops-test-zypper-")), [replace(
        each, epoch=0, relations=tuple(relation.replace("= 3:", "= ") for relation in each.relations))
        for each in OF_NVIDIA])


@lru_cache(maxsize=None)
def system(several: bool = False) -> Path:
    """The distribution's own repository. several: see signed()."""
    return scratch_rpm.publish(Path(tempfile.mkdtemp(prefix="gpuops-test-zypper-")), [*OF_SYSTEM, *all_signed(several)],
                               key="two")


@lru_cache(maxsize=None)
def updates(several: bool = False) -> Path:
    """That of its updates, where SUSE has caught up."""
    return scratch_rpm.publish(Path(tempfile.mkdtemp(prefix="gpuops-test-zypper-")), [signed(V580, several=several)],
                               key="two")


@lru_cache(maxsize=None)
def program() -> str:
    return shutil.which("zypper") or unpacked(_CACHE)


def unpacked(where: Path) -> str:
    """zypper of Debian's package, unpacked where it is not yet."""
    made = where / "zypper"
    if made.exists():
        return str(made)
    where.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=where.name + "-", dir=where.parent))
    told = _apt(beside, "--simulate", "--no-install-recommends", "install", "zypper")
    lacking = {"zypper", *re.findall(r"(?m)^Inst (\S+)", told)}
    _apt(beside, "download", *sorted(lacking))
    for package in beside.glob("*.deb"):
        subprocess.run(["dpkg-deb", "--extract", str(package), str(beside / "root")], check=True)
        package.unlink()
    (beside / "zypper").write_text(_PROGRAM % {"root": where / "root"})
    (beside / "zypper").chmod(0o755)
    try:
        beside.rename(where)
    except OSError:
        # Another process was quicker
        shutil.rmtree(beside)
    return str(made)


def _apt(where: Path, *words: str) -> str:
    done = subprocess.run(["apt-get", "--quiet", "-o", "APT::Sandbox::User=root", *words], cwd=where,
                          capture_output=True, text=True, env=dict(os.environ, LC_ALL="C"))
    assert done.returncode == 0, done.stderr
    return done.stdout


class LowHost(Host):
    """libzypp reads its locks below the root alone, so scratch directories lie there."""

    def run(
        self, argv: Sequence[str], check: bool = True, timeout: float = 120, stdin: Optional[str] = None,
        env: Optional[Mapping[str, str]] = None,
    ) -> CommandResult:
        """With the zypper that there is."""
        return super().run([program() if word == "zypper" else word for word in argv], check, timeout, stdin, env)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(prefix="gpuops-", dir=self.path("/tmp")) as directory:
            yield directory


class Root(scratch_rpm.Root):
    """A host of SLES 15 below a directory."""

    def __init__(self, path: Path) -> None:
        for directory in ("etc/zypp/repos.d", "etc/products.d", "etc", "var/lib/zypp", "var/cache/zypp",
                          "var/log/zypp"):
            (path / directory).mkdir(parents=True, exist_ok=True)
        super().__init__(path)
        self.host = LowHost(str(path))
        # libsolv ends where there was no package before (rpmdb2solv: no error); every SLES has some
        self.rpm("-i", "--nodeps", "--justdb", str(scratch_rpm.built(BASE)))
        self.write("/etc/os-release", 'ID="sles"\nID_LIKE="suse"\nVERSION_ID="15.6"\n')
        self.write("/etc/products.d/SLES.prod", PRODUCT)
        (path / "etc/products.d/baseproduct").symlink_to("SLES.prod")

    def configure(self, name: str, where: Any, key: str = "one", **more: Any) -> None:
        self.write("/etc/pki/rpm-gpg/%s" % name, keyring(key).public)
        self.rpm("--import", "%s/etc/pki/rpm-gpg/%s" % (self.path, name))
        address = where if isinstance(where, str) else "file://%s" % where
        options = {"name": "The repository %s" % name, "baseurl": address, "enabled": 1, "autorefresh": 1,
                   "gpgcheck": 1, "repo_gpgcheck": 0,
                   "gpgkey": "file://%s/etc/pki/rpm-gpg/%s" % (self.path, name), **more}
        self.write("/etc/zypp/repos.d/%s.repo" % name,
                   "[%s]\n%s" % (name, "".join("%s=%s\n" % item for item in options.items())))

    def installed(self) -> Dict[str, str]:
        """Without that which is there from the beginning."""
        return {name: version for name, version in super().installed().items() if name != BASE.name}

    @property
    def environment(self) -> Dict[str, str]:
        return dict(os.environ, LC_ALL="C", ZYPP_LOCKFILE_ROOT=str(self.path),
                    ZYPP_LOGFILE=str(self.path / "var/log/zypper.log"))

    def zypper(self, *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """zypper of this host, as its administrator calls it."""
        done = subprocess.run(self.zypper_words(words), capture_output=True, text=True, env=self.environment)
        if check and done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return done

    def zypper_words(self, words: Sequence[str]) -> List[str]:
        return [program(), "--root", str(self.path), "--non-interactive", *words]
