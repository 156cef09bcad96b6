# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The package repositories that laboratory hosts install from.

``apt-nvidia``   laid out like NVIDIA's CUDA repository for Debian 12: driver packages of three branches. Names and
                 relations are NVIDIA's, the content is the simulated silicon's and a tiny DKMS source.
``apt-toolkit``  laid out like NVIDIA's container toolkit repository: the toolkit's real programs.
``apt-debian``   the Debian packages that a host installs on top of its root, and one more kernel.

packages/README.md says which facts are NVIDIA's and which are assumptions.
"""
from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from gpulab import aptrepo
from gpulab.aptrepo import Deb, File
from gpulab.cache import BuildError, Job, Part

TEMPLATES = Path(__file__).resolve().parents[2] / "packages"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"

VERSIONS: Tuple[str, ...] = ("580.126.09", "580.178.04", "595.91.07", "610.57.04")
# A driver whose module does not compile, in a repository of its own: it must never be "the newest of branch 580".
BROKEN_VERSION = "580.999.99"

NVIDIA_FLAT = Path("repos/debian12/x86_64")
BROKEN_FLAT = Path("repos/debian12-broken/x86_64")
# Guest drivers of NVIDIA's vGPU software, which come from no public repository: somebody's own mirror
GRID_FLAT = Path("repos/grid/x86_64")
# Programs that compare their own version with the loaded module's carry this word in a field of fixed size.
STAMP = b"GPUSIM_VERSION="
STAMP_SIZE = 64
_WORD = re.compile(r"@[A-Z]+@")

NVIDIA_RELEASE = {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architectures": "amd64"}

# What the pin packages pin; other packages of the repository never carry a driver's version, so a wide net is safe.
PINNED = ("cuda-drivers* firmware-nvidia-gsp libcuda1 libnvidia-* libnvsdm nvidia-driver nvidia-driver-cuda "
          "nvidia-fabricmanager nvidia-imex nvidia-kernel-* nvidia-modprobe nvidia-open* nvidia-persistenced")


def template(name: str) -> str:
    return (TEMPLATES / name).read_text()


def stamped(program: bytes, version: str) -> bytes:
    """The program with the package's version written over the place that simulated programs keep for it."""
    start = program.find(STAMP + b"unpackaged")
    if start < 0:
        return program
    text = (STAMP + version.encode()).ljust(STAMP_SIZE, b"\0")
    return program[:start] + text + program[start + STAMP_SIZE:]


def scripts(base: str, kinds: str, **words: str) -> Dict[str, str]:
    """Maintainer scripts ``scripts/<base>.<kind>`` with every ``@WORD@`` filled in."""
    filled = {kind: fill(template("scripts/%s.%s" % (base, kind)), **words) for kind in kinds.split()}
    left = sorted(set(_WORD.findall("".join(filled.values()))))
    if left:
        raise ValueError("nobody fills in %s in the scripts of %s" % (", ".join(left), base))
    return filled


def fill(text: str, **words: str) -> str:
    for name, value in words.items():
        text = text.replace("@%s@" % name, value)
    return text


def unit_file(family: str, unit: str) -> Dict[str, File]:
    return {"/lib/systemd/system/%s" % unit: File(template("%s/%s" % (family, unit)))}


# ---------------------------------------------------------------------------------------------------------------------
# Driver


class Driver:
    """The packages of one driver version; every method is one package."""

    def __init__(self, version: str, silicon: Path, empty_library: Path, compiles: bool = True) -> None:
        self.version = version
        self.revision = "%s-1" % version
        self.branch = version.split(".")[0]
        self.silicon = silicon
        self.empty_library = empty_library
        self.compiles = compiles

    def packages(self) -> Iterator[Deb]:
        yield self.pinning(self.branch, "%s.*" % self.branch, "driver branch")
        yield self.pinning(self.version, self.revision, "driver version")
        compiler = "libnvidia-ptxjitcompiler"
        yield self.library("libnvidia-ml1", "libnvidia-ml.so", "NVIDIA Management Library (NVML) runtime library")
        yield self.library("%s1" % compiler, "%s.so" % compiler, "NVIDIA PTX JIT Compiler library")
        yield self.library("libcuda1", "libcuda.so", "NVIDIA CUDA Driver Library", self.exactly("%s1" % compiler))
        yield self.driver_cuda()
        yield self.modprobe()
        yield self.persistenced()
        yield self.firmware()
        yield self.kernel_support()
        yield self.kernel_source("nvidia-kernel-open-dkms", "Dual MIT/GPL", "nvidia-kernel-dkms",
                                 "NVIDIA binary kernel module DKMS source open flavor")
        yield self.kernel_source("nvidia-kernel-dkms", "NVIDIA", "nvidia-kernel-open-dkms",
                                 "NVIDIA binary kernel module DKMS source")
        yield from self.fabric()
        yield from self.metapackages()

    def exactly(self, *names: str) -> Tuple[str, ...]:
        return tuple("%s (= %s)" % (name, self.revision) for name in names)

    def deb(self, name: str, summary: str, **more: object) -> Deb:
        details = "Simulated: the laboratory's stand-in under NVIDIA's package name."
        return Deb(name=name, version=self.revision, summary=summary, details=details,
                   source="nvidia-graphics-drivers", **more)  # type: ignore[arg-type]

    def program(self, name: str, mode: int = 0o755) -> File:
        return File(stamped((self.silicon / name).read_bytes(), self.version), mode)

    def pinning(self, name: str, pattern: str, what: str) -> Deb:
        pin = "Package: %s\nPin: version %s\nPin-Priority: 1000\n" % (PINNED, pattern)
        virtual = ("nvidia-driver-pinning",)
        return self.deb(
            "nvidia-driver-pinning-%s" % name, "APT driver pinning file for %s %s." % (what, name),
            architecture="all", provides=virtual, conflicts=virtual, replaces=virtual,
            files={"/etc/apt/preferences.d/nvidia-driver-pin": File(pin)})

    def library(self, package: str, library: str, summary: str, depends: Tuple[str, ...] = ()) -> Deb:
        real = "%s.%s" % (library, self.version)
        links = {"%s/%s.1" % (LIBRARIES, library): real}
        if package == "libnvidia-ml1":
            # The container toolkit mounts every file of this version: so the board gets into containers, too.
            links["%s/nvidia-gpusim.so.%s" % (LIBRARIES, self.version)] = "../../../var/lib/gpusim/board"
        return self.deb(
            package, summary, section="libs", depends=("libc6", *depends), triggers=("activate-noawait ldconfig",),
            files={"%s/%s" % (LIBRARIES, real): File(self.silicon / library)}, links=links)

    def driver_cuda(self) -> Deb:
        return self.deb(
            "nvidia-driver-cuda", "NVIDIA driver CUDA integration components", conflicts=("nvidia-smi",),
            depends=("libc6", *self.exactly("libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")),
            recommends=("nvidia-kernel-open-dkms (= %s) | nvidia-kernel-dkms (= %s)" % (self.revision, self.revision),),
            files={"/usr/bin/%s" % name: self.program(name)
                   for name in ("nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server")})

    def modprobe(self) -> Deb:
        return self.deb(
            "nvidia-modprobe", "utility to load NVIDIA kernel modules and create device nodes", depends=("libc6",),
            files={"/usr/bin/nvidia-modprobe": self.program("nvidia-modprobe", 0o4755)})

    def persistenced(self) -> Deb:
        unit = "nvidia-persistenced.service"
        return self.deb(
            "nvidia-persistenced", "daemon to maintain persistent software state in the NVIDIA driver",
            depends=("libc6", "passwd", *self.exactly("libnvidia-ml1", "nvidia-modprobe")),
            files={"/usr/bin/nvidia-persistenced": self.program("nvidia-persistenced"), **unit_file("driver", unit)},
            scripts={**scripts("persistenced", "postinst postrm", UNIT=unit), **scripts("daemon", "prerm", UNIT=unit)})

    def firmware(self) -> Deb:
        directory = "/lib/firmware/nvidia/%s" % self.version
        content = "simulated GSP firmware of %s\n" % self.version
        return self.deb(
            "firmware-nvidia-gsp", "NVIDIA GSP firmware", architecture="all", section="non-free-firmware/kernel",
            files={"%s/gsp_%s.bin" % (directory, chip): File(content) for chip in ("ga10x", "tu10x")})

    def kernel_support(self) -> Deb:
        return self.deb(
            "nvidia-kernel-support", "NVIDIA binary kernel module support files", conflicts=("nvidia-kernel-common",),
            depends=self.exactly("nvidia-modprobe", "firmware-nvidia-gsp"),
            files={"/usr/lib/modprobe.d/nvidia-kernel-support.conf": File(template("driver/kernel-support.conf"))})

    def kernel_source(self, package: str, license_name: str, other: str, summary: str) -> Deb:
        base = "/usr/src/nvidia-%s" % self.version
        files: Dict[str, File] = {}
        for path in sorted((TEMPLATES / "dkms").iterdir()):
            text = fill(path.read_text(), VERSION=self.version, LICENSE=license_name)
            if path.name == "nvidia.c" and not self.compiles:
                text += "\n#error this driver does not compile, so that tests can watch a build fail\n"
            files["%s/%s" % (base, path.name)] = File(text)
        return self.deb(
            package, summary, section="non-free/kernel", architecture="all",
            depends=("dkms (>= 3.0.3)", *self.exactly("nvidia-kernel-support")), conflicts=(other,), replaces=(other,),
            provides=("nvidia-kernel-%s" % self.version,), files=files,
            scripts=scripts("dkms", "postinst prerm", NAME="nvidia", VERSION=self.version))

    def fabric(self) -> Iterator[Deb]:
        for name, library in (("libnvidia-nscq", "libnvidia-nscq.so"), ("libnvsdm", "libnvsdm.so")):
            real = "%s.%s" % (library, self.version)
            yield self.deb(name, "NVIDIA fabric query library (%s)" % library, section="libs",
                           triggers=("activate-noawait ldconfig",),
                           files={"%s/%s" % (LIBRARIES, real): File(self.empty_library)},
                           links={"%s/%s.1" % (LIBRARIES, library): real})
        yield self.daemon(
            "nvidia-fabricmanager", "Fabric Manager for NVSwitch based systems",
            {"/usr/bin/nv-fabricmanager": self.program("nv-fabricmanager"),
             "/usr/bin/nvidia-fabricmanager-start.sh": File(template("driver/nvidia-fabricmanager-start.sh"), 0o755),
             "/usr/share/nvidia/nvswitch/fabricmanager.cfg": File(template("driver/fabricmanager.cfg"))})
        # NVIDIA's has versions of its own; the stand-in of the fabric manager configures the fabric without it
        yield self.deb("nvlsm", "NVLink Subnet Manager",
                       files={"/opt/nvidia/nvlsm/sbin/nvlsm": File("#!/bin/sh\nexit 0\n", 0o755)})
        # Of the distribution, for which the fabric manager's script asks which port leads to the switches
        yield self.deb("infiniband-diags", "InfiniBand diagnostic programs",
                       files={"/usr/sbin/ibstat": File("#!/bin/sh\nexit 0\n", 0o755)})
        yield self.daemon(
            "nvidia-imex", "NVIDIA Internode Memory Exchange service",
            {"/usr/bin/nvidia-imex": self.program("nvidia-imex"),
             "/usr/bin/nvidia-imex-ctl": self.program("nvidia-imex-ctl"),
             "/etc/nvidia-imex/config.cfg": File(template("driver/imex-config.cfg"))})

    def daemon(self, name: str, summary: str, files: Mapping[str, File]) -> Deb:
        """A package whose service is there but neither enabled nor started."""
        unit = "%s.service" % name
        return self.deb(name, summary, depends=("libc6",), files={**files, **unit_file("driver", unit)},
                        scripts=scripts("daemon", "postinst prerm postrm", UNIT=unit))

    def guest(self) -> Deb:
        """The guest driver of NVIDIA's vGPU software: one package has all of it, and its version no revision."""
        name, unit, virtual = "nvidia-linux-grid-%s" % self.branch, "nvidia-gridd.service", ("nvidia-linux-grid",)
        parts = [each for each in self.packages() if each.name in (
            "libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libcuda1", "nvidia-driver-cuda", "nvidia-modprobe",
            "firmware-nvidia-gsp", "nvidia-kernel-support", "nvidia-kernel-dkms")]
        files = {path: file for each in parts for path, file in each.files.items()}
        return replace(
            self.deb(name, "NVIDIA vGPU guest driver", depends=("libc6", "dkms (>= 3.0.3)"), provides=virtual,
                     conflicts=virtual, replaces=virtual, triggers=("activate-noawait ldconfig",),
                     files={**files, "/usr/bin/nvidia-gridd": self.program("nvidia-gridd"),
                            **unit_file("driver", unit)},
                     links={path: target for each in parts for path, target in each.links.items()},
                     scripts=scripts("dkms", "postinst prerm", NAME="nvidia", VERSION=self.version)),
            version=self.version)

    def metapackages(self) -> Iterator[Deb]:
        """Each depends on "at least", as NVIDIA's do: without a pin they roll on to the newest branch."""
        def meta(name: str, summary: str, depends: Tuple[str, ...], conflicts: Tuple[str, ...] = ()) -> Deb:
            return self.deb(name, summary, architecture="all", section="metapackages",
                            depends=depends, conflicts=conflicts)

        at_least = ">= %s" % self.version
        modules = "nvidia-kernel-dkms (= %s) | nvidia-kernel-open-dkms (= %s)" % (self.revision, self.revision)
        yield meta("nvidia-driver", "NVIDIA metapackage", (*self.exactly("nvidia-driver-cuda"), modules))
        suffixes = ("", "-580") if self.branch == "580" else ("",)
        for suffix in suffixes:
            floor = ">= 580" if suffix else at_least
            yield meta("nvidia-open%s" % suffix, "NVIDIA Driver meta-package, Open GPU kernel modules",
                       ("nvidia-driver (%s)" % floor, "nvidia-kernel-open-dkms (%s)" % floor), ("nvidia-kernel-dkms",))
            yield meta("cuda-drivers%s" % suffix, "NVIDIA Driver meta-package, proprietary kernel modules",
                       ("nvidia-driver (%s)" % floor, "nvidia-kernel-dkms (%s)" % floor), ("nvidia-kernel-open-dkms",))


def build_nvidia(job: Job) -> None:
    key = job.part(aptrepo.KEY_PART.name)
    silicon = job.part("silicon") / "pkg"
    empty = _empty_library(job)
    for version in VERSIONS:
        _pack_all(job, Driver(version, silicon, empty).packages(), job.out / NVIDIA_FLAT)
        aptrepo.pack(job, Driver(version, silicon, empty).guest(), job.out / GRID_FLAT)
    _pack_all(job, Driver(BROKEN_VERSION, silicon, empty, compiles=False).packages(), job.out / BROKEN_FLAT)
    empty.unlink()
    for flat in (NVIDIA_FLAT, BROKEN_FLAT, GRID_FLAT):
        aptrepo.publish_key(key, job.out / flat / aptrepo.PUBLIC_KEY)
        aptrepo.index_flat(job, key, job.out / flat, NVIDIA_RELEASE)


def _empty_library(job: Job) -> Path:
    """A library that ldconfig accepts, for libraries that nothing in the laboratory calls."""
    target = job.out / "empty.so"
    job.run(["gcc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", target])
    return target


def _pack_all(job: Job, packages: Iterator[Deb], directory: Path) -> None:
    for deb in packages:
        aptrepo.pack(job, deb, directory)


# ---------------------------------------------------------------------------------------------------------------------
# Container toolkit

TOOLKIT_VERSION = "1.20.1"
# The programs of TOOLKIT_VERSION under an older number, for tests of a version floor and of a downgrade.
TOOLKIT_OLD_VERSION = "1.18.0"
TOOLKIT_RELEASE = {"Origin": "NVIDIA", "Label": "NVIDIA container toolkit", "Architectures": "amd64"}


def toolkit_packages(version: str, programs: Path) -> List[Deb]:
    revision = "%s-1" % version
    note = "" if version == TOOLKIT_VERSION else "The programs inside are those of %s." % TOOLKIT_VERSION

    def deb(name: str, summary: str, **more: object) -> Deb:
        return Deb(name=name, version=revision, summary=summary, details=note, **more)  # type: ignore[arg-type]

    def program(name: str) -> File:
        return File(programs / name, 0o755)

    return [
        deb("libnvidia-container1", "NVIDIA container runtime library (absent in the laboratory)", section="libs",
            depends=("libc6",)),
        deb("libnvidia-container-tools", "NVIDIA container runtime library (command-line tools)",
            depends=("libnvidia-container1 (>= %s)" % revision,),
            files={"/usr/bin/nvidia-container-cli": File(template("toolkit/nvidia-container-cli"), 0o755)}),
        deb("nvidia-container-toolkit-base", "NVIDIA Container Toolkit Base", depends=("libc6",),
            files={"/usr/bin/nvidia-ctk": program("nvidia-ctk"),
                   "/usr/bin/nvidia-container-runtime": program("nvidia-container-runtime"),
                   "/usr/bin/nvidia-cdi-hook": program("nvidia-cdi-hook"),
                   **unit_file("toolkit", "nvidia-cdi-refresh.path"),
                   **unit_file("toolkit", "nvidia-cdi-refresh.service"),
                   "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env":
                       File(template("toolkit/nvidia-cdi-refresh.env"))},
            scripts={**scripts("toolkit-base", "postinst prerm"),
                     **scripts("daemon", "postrm", UNIT="nvidia-cdi-refresh.path")}),
        deb("nvidia-container-toolkit", "NVIDIA Container toolkit",
            depends=("nvidia-container-toolkit-base (= %s)" % revision, "libnvidia-container-tools (>= %s)" % revision,
                     "libnvidia-container-tools (<< 2.0.0)"),
            files={"/usr/bin/nvidia-container-runtime-hook": program("nvidia-container-runtime-hook")},
            links={"/usr/bin/nvidia-container-toolkit": "nvidia-container-runtime-hook"}),
    ]


def build_toolkit(job: Job) -> None:
    key = job.part(aptrepo.KEY_PART.name)
    programs = job.part("nvidia-toolkit") / "bin"
    flat = job.out / "stable/deb/amd64"
    for version in (TOOLKIT_VERSION, TOOLKIT_OLD_VERSION):
        for deb in toolkit_packages(version, programs):
            aptrepo.pack(job, deb, flat)
    aptrepo.publish_key(key, job.out / "gpgkey")
    aptrepo.index_flat(job, key, flat, TOOLKIT_RELEASE)


# ---------------------------------------------------------------------------------------------------------------------
# Debian's own packages

SUITE = "bookworm"
ROOT_PART = "root-%s" % SUITE
# Debian 13, whose hosts only slow tests boot. The kernel of its second suite is one of backports: Debian keeps the
# driver of its stable release buildable for that release's kernels alone.
TRIXIE = "trixie"
# Where a newer revision of its open module is, whose build fails as Debian's has
UNBUILDABLE_SUITE = "trixie-unbuildable"

# What driver installation brings onto a host, beside the headers of its kernel.
HOST_PACKAGES: Tuple[str, ...] = ("dkms", "gcc", "make", "openssl", "mokutil", "fakeroot")
# Debian's real driver, for the slow tests that compile it.
DEBIAN_DRIVER_PACKAGES: Tuple[str, ...] = ("nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced")
DEBIAN_OPEN_MODULE = "nvidia-open-kernel-dkms"
_RELEASE = {"Origin": "Debian", "Label": "Debian"}
_ARCHIVE_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Mirror:
    """An apt of its own, without effect on this machine: its sources are this machine's Debian mirrors, its list of
    installed packages is that of a host root, so that what it downloads is exactly what such a host lacks."""

    def __init__(self, job: Job, components: str, suite: str = SUITE, further: str = "") -> None:
        """further: a suite beside those that every host of this one has."""
        self.job = job
        self.root = job.part("root-%s" % suite) / "root"
        self.home = job.out / ".apt"
        self.pool = job.out / "pool"
        self.pool.mkdir()
        for name in ("state/lists/partial", "cache/archives/partial", "etc"):
            (self.home / name).mkdir(parents=True)
        (self.home / "sources.list").write_text("".join(
            "%s\n" % line for line in debian_sources(suite, components, further)))
        self.job.run(["apt-get", *self._options(), "update"])

    def _options(self) -> List[str]:
        options = {
            "Dir::State": self.home / "state", "Dir::State::status": self.root / "var/lib/dpkg/status",
            "Dir::Cache": self.home / "cache", "Dir::Etc::sourcelist": self.home / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null", "Dir::Etc::preferences": "/dev/null",
            "Dir::Etc::preferencesparts": "/dev/null", "Dir::Log": self.home, "APT::Sandbox::User": "root",
            "APT::Architecture": "amd64", "Acquire::Languages": "none", "APT::Get::Allow-Downgrades": "true",
        }
        return [word for name, value in options.items() for word in ("-o", "%s=%s" % (name, value))]

    def download(self, names: Sequence[str], release: str = "") -> List[Path]:
        """Fetch the packages and all that they depend on and the root lacks; return what is new in the pool.

        release: the suite that they and what they depend on are taken from, where it is not the newest one.
        """
        self.job.run(["apt-get", *self._options(), "install", "--yes", "--download-only", "--no-install-recommends",
                      *(["--target-release", release] if release else []), *names])
        new = []
        for archive in sorted((self.home / "cache/archives").glob("*.deb")):
            package, version, rest = archive.name.split("_")
            target = self.pool / "_".join((package, version.split("%3a")[-1], rest))
            if not target.exists():
                archive.rename(target)
                new.append(target)
        return new

    def kernels(self) -> Dict[str, str]:
        """Kernel release -> version of the metapackages that lead to it, for each one that the archive offers."""
        show = subprocess.run(["apt-cache", *self._options(), "show", "linux-image-amd64"], check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        return kernels_of(show)

    def close(self) -> None:
        shutil.rmtree(self.home)


def debian_sources(suite: str, components: str, further: str = "") -> List[str]:
    """One-line sources for `suite` and a further one, on the mirrors that this machine's own apt is set to use."""
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Identifier: Packages"],
        check=True, text=True, stdout=subprocess.PIPE).stdout
    lines = [line.split("|") for line in targets.splitlines()]
    found = {label: uri for origin, label, uri in lines if origin == "Debian"}
    if "Debian" not in found:
        raise BuildError("found no Debian mirror in this machine's apt configuration; wanted one that serves %s; "
                         "add a Debian source and run apt-get update" % suite)
    suites = [(found["Debian"], each) for each in (suite, "%s-updates" % suite, further) if each]
    if "Debian-Security" in found:
        suites.append((found["Debian-Security"], "%s-security" % suite))
    return ["deb [signed-by=%s] %s %s %s" % (_ARCHIVE_KEYRING, uri, name, components) for uri, name in suites]


def kernels_of(show: str) -> Dict[str, str]:
    """From what `apt-cache show` tells of the metapackage; that of a newer kernel needs more than its image."""
    pattern = re.compile(r"^Version: (\S+)$.*?^Depends: (?:.*, )?linux-image-(\d\S*)", re.MULTILINE | re.DOTALL)
    return {release: version for stanza in show.split("\n\n") for version, release in pattern.findall(stanza)}


def kernel_key(release: str) -> Tuple[int, ...]:
    """Sort key of a kernel release, as a boot loader orders them."""
    return tuple(int(number) for number in re.findall(r"\d+", release))


def other_kernel(own: str, offered: Sequence[str]) -> Optional[str]:
    """The kernel for tests of kernel updates: the newest that is not the root's own."""
    candidates = sorted((each for each in offered if each != own), key=kernel_key)
    return candidates[-1] if candidates else None


def update_suite(suite: str) -> str:
    """Where a second kernel is: a host sees it when a test adds this suite, and not before."""
    return "%s-update" % suite


def build_debian(job: Job, suite: str, further: str) -> None:
    mirror = Mirror(job, "main", suite, further)
    own = max((path.name[len("vmlinuz-"):] for path in (mirror.root / "boot").glob("vmlinuz-*")), key=kernel_key)
    kernels = mirror.kernels()
    headers = ["linux-headers-%s" % own]
    if own in kernels:
        headers.append("linux-headers-amd64=%s" % kernels[own])
    key = job.part(aptrepo.KEY_PART.name)
    aptrepo.index_suite(job, key, job.out, suite, mirror.download([*HOST_PACKAGES, *headers]), _RELEASE)
    other = other_kernel(own, list(kernels))
    if other:
        names = ["linux-%s-%s" % (kind, name) for kind in ("image", "headers")
                 for name in (other, "amd64=%s" % kernels[other])]
        aptrepo.index_suite(job, key, job.out, update_suite(suite), mirror.download(names, further), _RELEASE)
    mirror.close()
    (job.out / "kernels.json").write_text(
        json.dumps({"root": own, "other": other, "suite": update_suite(suite)}) + "\n")
    aptrepo.publish_key(key, job.out / aptrepo.PUBLIC_KEY)


def build_debian_driver(job: Job, mirrored: str, suite: str) -> None:
    """mirrored: the part with what hosts of the suite have already."""
    mirror = Mirror(job, "main contrib non-free non-free-firmware", suite)
    there = {path.name for path in (job.part(mirrored) / "pool").iterdir()}
    own: List[Path] = []
    # Debian 12 has security updates of the proprietary module alone, and so two versions of the driver
    for names in (DEBIAN_DRIVER_PACKAGES, (DEBIAN_OPEN_MODULE,)) if suite == TRIXIE else (DEBIAN_DRIVER_PACKAGES,):
        for deb in mirror.download(names):
            if deb.name in there:
                deb.unlink()
            else:
                own.append(deb)
    mirror.close()
    key = job.part(aptrepo.KEY_PART.name)
    aptrepo.index_suite(job, key, job.out, suite, own, _RELEASE, component="non-free")
    if suite == TRIXIE:
        (like,) = (deb for deb in own if deb.name.startswith(DEBIAN_OPEN_MODULE + "_"))
        broken = aptrepo.pack(job, unbuildable(like), mirror.pool)
        aptrepo.index_suite(job, key, job.out, UNBUILDABLE_SUITE, [broken], _RELEASE, component="non-free")
    aptrepo.publish_key(key, job.out / aptrepo.PUBLIC_KEY)


def unbuildable(like: Path) -> Deb:
    """The open module in the next revision after a package of Debian's."""
    name, version, depends = (subprocess.run(
        ["dpkg-deb", "--field", str(like), field], check=True, text=True, stdout=subprocess.PIPE).stdout.strip()
        for field in ("Package", "Version", "Depends"))
    upstream, module = version.split("-")[0], "nvidia-current-open"
    files = {"/usr/src/%s-%s/%s" % (module, upstream, path.name): File(fill(path.read_text(), VERSION=upstream))
             for path in sorted((TEMPLATES / "unbuildable").iterdir())}
    return Deb(name, version + "+gpulab1", "NVIDIA open kernel module DKMS source that does not build",
               architecture="all", section="contrib/kernel", depends=(depends,), files=files,
               scripts=scripts("dkms", "postinst prerm", NAME=module, VERSION=upstream))


def debian_parts(name: str, suite: str, further: str = "") -> Tuple[Part, Part]:
    """(what hosts of a suite install, and a second kernel; Debian's own driver for them)"""
    needs = (aptrepo.KEY_PART.name, "root-%s" % suite)
    inputs = (Path(aptrepo.__file__), TEMPLATES / "unbuildable", suite, further)
    return (
        Part(name=name, title="mirror of the Debian packages that hosts of %s install" % suite,
             build=lambda job: build_debian(job, suite, further), inputs=inputs, needs=needs),
        Part(name="%s-nvidia" % name, title="mirror of Debian's own NVIDIA driver, %s (for slow tests)" % suite,
             build=lambda job: build_debian_driver(job, name, suite), inputs=inputs, needs=(*needs, name)),
    )


_INPUTS = (TEMPLATES, Path(aptrepo.__file__))

PARTS: Tuple[Part, ...] = (
    aptrepo.KEY_PART,
    Part(name="apt-nvidia", title="driver repository: branches 580, 595 and 610", build=build_nvidia,
         inputs=_INPUTS, needs=(aptrepo.KEY_PART.name, "silicon")),
    Part(name="apt-toolkit", title="container toolkit repository", build=build_toolkit,
         inputs=_INPUTS, needs=(aptrepo.KEY_PART.name, "nvidia-toolkit")),
    *debian_parts("apt-debian", SUITE),
    *debian_parts("apt-debian-trixie", TRIXIE, "trixie-backports"),
)
