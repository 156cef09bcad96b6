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
from pathlib import Path
from typing import Dict, Iterator, List, Optional, Sequence, Tuple

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
NVIDIA_RELEASE = {"Origin": "NVIDIA", "Label": "NVIDIA CUDA", "Architectures": "amd64"}

# What the pin packages pin; other packages of the repository never carry a driver's version, so a wide net is safe.
PINNED = ("cuda-drivers* firmware-nvidia-gsp libcuda1 libnvidia-* libnvsdm nvidia-driver nvidia-driver-cuda "
          "nvidia-fabricmanager nvidia-imex nvidia-kernel-* nvidia-modprobe nvidia-open* nvidia-persistenced")


def template(name: str) -> str:
    return (TEMPLATES / name).read_text()


def shell(*lines: str) -> str:
    return "#!/bin/sh\nset -e\n" + "".join("%s\n" % line for line in lines)


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
        yield self.library("libnvidia-ml1", "libnvidia-ml.so", "NVIDIA Management Library (NVML) runtime library")
        yield self.library("libnvidia-ptxjitcompiler1", "libnvidia-ptxjitcompiler.so", "NVIDIA PTX JIT Compiler library")
        yield self.library("libcuda1", "libcuda.so", "NVIDIA CUDA Driver Library", self.exactly("libnvidia-ptxjitcompiler1"))
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
        return File(self.silicon / name, mode)

    def pinning(self, name: str, pattern: str, what: str) -> Deb:
        pin = "Package: %s\nPin: version %s\nPin-Priority: 1000\n" % (PINNED, pattern)
        virtual = ("nvidia-driver-pinning",)
        return self.deb(
            "nvidia-driver-pinning-%s" % name, "APT driver pinning file for %s %s." % (what, name),
            architecture="all", provides=virtual, conflicts=virtual, replaces=virtual,
            files={"/etc/apt/preferences.d/nvidia-driver-pin": File(pin)})

    def library(self, package: str, library: str, summary: str, depends: Tuple[str, ...] = ()) -> Deb:
        real = "%s.%s" % (library, self.version)
        return self.deb(
            package, summary, section="libs", depends=("libc6", *depends), triggers=("activate-noawait ldconfig",),
            files={"%s/%s" % (LIBRARIES, real): File(self.silicon / library)},
            links={"%s/%s.1" % (LIBRARIES, library): real})

    def driver_cuda(self) -> Deb:
        return self.deb(
            "nvidia-driver-cuda", "NVIDIA driver CUDA integration components", conflicts=("nvidia-smi",),
            depends=("libc6", *self.exactly("libcuda1", "libnvidia-ml1", "nvidia-modprobe", "nvidia-persistenced")),
            recommends=("nvidia-kernel-open-dkms (= %s) | nvidia-kernel-dkms (= %s)" % (self.revision, self.revision),),
            files={"/usr/bin/nvidia-smi": self.program("nvidia-smi")})

    def modprobe(self) -> Deb:
        return self.deb(
            "nvidia-modprobe", "utility to load NVIDIA kernel modules and create device nodes", depends=("libc6",),
            files={"/usr/bin/nvidia-modprobe": self.program("nvidia-modprobe", 0o4755)})

    def persistenced(self) -> Deb:
        user = ("if [ \"$1\" = configure ] && ! getent passwd nvpd >/dev/null; then",
                "    useradd --system --home-dir /var/run/nvpd --shell /usr/sbin/nologin"
                " --comment 'NVIDIA Persistence Daemon' nvpd",
                "fi")
        unit = "nvidia-persistenced.service"
        return self.deb(
            "nvidia-persistenced", "daemon to maintain persistent software state in the NVIDIA driver",
            depends=("libc6", "passwd", *self.exactly("libnvidia-ml1", "nvidia-modprobe")),
            files={"/usr/bin/nvidia-persistenced": self.program("nvidia-persistenced"),
                   "/lib/systemd/system/%s" % unit: File(template("driver/%s" % unit))},
            scripts={"postinst": shell(*user, *_enable(unit)), "prerm": shell(*_stop(unit)),
                     "postrm": shell(*_forget(unit), "[ \"$1\" != purge ] || userdel nvpd >/dev/null 2>&1 || true")})

    def firmware(self) -> Deb:
        directory = "/lib/firmware/nvidia/%s" % self.version
        return self.deb(
            "firmware-nvidia-gsp", "NVIDIA GSP firmware", architecture="all", section="non-free-firmware/kernel",
            files={"%s/gsp_%s.bin" % (directory, chip): File("simulated GSP firmware %s for %s\n" % (self.version, chip))
                   for chip in ("ga10x", "tu10x")})

    def kernel_support(self) -> Deb:
        return self.deb(
            "nvidia-kernel-support", "NVIDIA binary kernel module support files", conflicts=("nvidia-kernel-common",),
            depends=self.exactly("nvidia-modprobe", "firmware-nvidia-gsp"),
            files={"/usr/lib/modprobe.d/nvidia-kernel-support.conf": File(template("driver/kernel-support.conf"))})

    def kernel_source(self, package: str, license_name: str, other: str, summary: str) -> Deb:
        base = "/usr/src/nvidia-%s" % self.version
        files: Dict[str, File] = {}
        for path in sorted((TEMPLATES / "dkms").iterdir()):
            text = path.read_text().replace("@VERSION@", self.version).replace("@LICENSE@", license_name)
            if path.name == "nvidia.c" and not self.compiles:
                text += "\n#error this driver does not compile, so that tests can watch a build fail\n"
            files["%s/%s" % (base, path.name)] = File(text)
        install = ("[ \"$1\" != configure ] || /usr/lib/dkms/common.postinst nvidia %s /usr/share/nvidia \"\" \"$2\""
                   % self.version)
        remove = ("case \"$1\" in remove|upgrade|deconfigure)",
                  "    if [ -d /var/lib/dkms/nvidia/%s ]; then dkms remove -m nvidia -v %s --all; fi" % (2 * (self.version,)),
                  "esac")
        return self.deb(
            package, summary, section="non-free/kernel", architecture="all",
            depends=("dkms (>= 3.0.3)", *self.exactly("nvidia-kernel-support")), conflicts=(other,), replaces=(other,),
            provides=("nvidia-kernel-%s" % self.version,), files=files,
            scripts={"postinst": shell(install), "prerm": shell(*remove)})

    def fabric(self) -> Iterator[Deb]:
        for name, library in (("libnvidia-nscq", "libnvidia-nscq.so"), ("libnvsdm", "libnvsdm.so")):
            real = "%s.%s" % (library, self.version)
            yield self.deb(name, "NVIDIA fabric query library (%s)" % library, section="libs",
                           triggers=("activate-noawait ldconfig",),
                           files={"%s/%s" % (LIBRARIES, real): File(self.empty_library)},
                           links={"%s/%s.1" % (LIBRARIES, library): real})
        fabric_manager, imex = "nvidia-fabricmanager.service", "nvidia-imex.service"
        yield self.deb(
            "nvidia-fabricmanager", "Fabric Manager for NVSwitch based systems", depends=("libc6",),
            files={"/usr/bin/nv-fabricmanager": self.program("nv-fabricmanager"),
                   "/usr/bin/nvidia-fabricmanager-start.sh": File(template("driver/nvidia-fabricmanager-start.sh"), 0o755),
                   "/usr/share/nvidia/nvswitch/fabricmanager.cfg": File(template("driver/fabricmanager.cfg")),
                   "/lib/systemd/system/%s" % fabric_manager: File(template("driver/%s" % fabric_manager))},
            scripts={"postinst": shell(*_reload_units()), "prerm": shell(*_stop(fabric_manager)),
                     "postrm": shell(*_forget(fabric_manager))})
        yield self.deb(
            "nvidia-imex", "NVIDIA Internode Memory Exchange service", depends=("libc6",),
            files={"/usr/bin/nvidia-imex": self.program("nvidia-imex"),
                   "/usr/bin/nvidia-imex-ctl": self.program("nvidia-imex-ctl"),
                   "/etc/nvidia-imex/config.cfg": File(template("driver/imex-config.cfg")),
                   "/lib/systemd/system/%s" % imex: File(template("driver/%s" % imex))},
            scripts={"postinst": shell(*_reload_units()), "prerm": shell(*_stop(imex)), "postrm": shell(*_forget(imex))})

    def metapackages(self) -> Iterator[Deb]:
        """Each depends on "at least", as NVIDIA's do: without a pin they roll on to the newest branch."""
        def meta(name: str, summary: str, depends: Tuple[str, ...], conflicts: Tuple[str, ...] = ()) -> Deb:
            return self.deb(name, summary, architecture="all", section="metapackages", depends=depends, conflicts=conflicts)

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


# Maintainer script lines for units, in the words that debhelper generates.


def _reload_units() -> Tuple[str, ...]:
    return ("[ ! -d /run/systemd/system ] || systemctl --system daemon-reload >/dev/null || true",)


def _enable(unit: str) -> Tuple[str, ...]:
    """Enable once and (re)start; a daemon that finds no GPU must not fail the installation."""
    return ("if [ \"$1\" = configure ]; then",
            "    deb-systemd-helper unmask %s >/dev/null || true" % unit,
            "    if deb-systemd-helper --quiet was-enabled %s; then deb-systemd-helper enable %s >/dev/null || true" % (unit, unit),
            "    else deb-systemd-helper update-state %s >/dev/null || true; fi" % unit,
            "    if [ -d /run/systemd/system ]; then",
            "        systemctl --system daemon-reload >/dev/null || true",
            "        deb-systemd-invoke \"$([ -n \"$2\" ] && echo restart || echo start)\" %s >/dev/null || true" % unit,
            "    fi",
            "fi")


def _stop(unit: str) -> Tuple[str, ...]:
    return ("if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then deb-systemd-invoke stop %s >/dev/null || true; fi"
            % unit,)


def _forget(unit: str) -> Tuple[str, ...]:
    return (*_reload_units(),
            "if [ \"$1\" = purge ] && [ -x /usr/bin/deb-systemd-helper ]; then",
            "    deb-systemd-helper purge %s >/dev/null || true" % unit,
            "    deb-systemd-helper unmask %s >/dev/null || true" % unit,
            "fi")


def build_nvidia(job: Job) -> None:
    key = job.part(aptrepo.KEY_PART.name)
    silicon = job.part("silicon") / "pkg"
    empty = _empty_library(job)
    for version in VERSIONS:
        _pack_all(job, Driver(version, silicon, empty).packages(), job.out / NVIDIA_FLAT)
    _pack_all(job, Driver(BROKEN_VERSION, silicon, empty, compiles=False).packages(), job.out / BROKEN_FLAT)
    empty.unlink()
    for flat in (NVIDIA_FLAT, BROKEN_FLAT):
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


def toolkit_packages(version: str, programs: Path) -> List[Deb]:
    revision = "%s-1" % version
    note = "" if version == TOOLKIT_VERSION else "The programs inside are those of %s." % TOOLKIT_VERSION

    def deb(name: str, summary: str, **more: object) -> Deb:
        return Deb(name=name, version=revision, summary=summary, details=note, **more)  # type: ignore[arg-type]

    def program(name: str) -> File:
        return File(programs / name, 0o755)

    units = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
    configure = ("if [ \"$1\" = configure ]; then",
                 "    /usr/bin/nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place",
                 "    case \"$(systemctl is-system-running 2>/dev/null || true)\" in running|degraded)",
                 "        systemctl daemon-reload || true",
                 *("        systemctl enable --now %s || true" % unit for unit in units),
                 "        systemctl start nvidia-cdi-refresh.service || true",
                 "    esac",
                 "fi")
    remove = ("if [ \"$1\" = remove ] && [ -d /run/systemd/system ]; then",
              "    systemctl disable --now %s || true" % " ".join(units),
              "fi")
    return [
        deb("libnvidia-container1", "NVIDIA container runtime library (absent in the laboratory)", section="libs",
            depends=("libc6",)),
        deb("libnvidia-container-tools", "NVIDIA container runtime library (command-line tools)",
            depends=("libnvidia-container1 (>= %s)" % revision,),
            files={"/usr/bin/nvidia-container-cli": File(template("toolkit/nvidia-container-cli"), 0o755)}),
        deb("nvidia-container-toolkit-base", "NVIDIA Container Toolkit Base", depends=("libc6",),
            files={**{"/usr/bin/%s" % name: program(name)
                      for name in ("nvidia-ctk", "nvidia-container-runtime", "nvidia-cdi-hook")},
                   **{"/lib/systemd/system/%s" % unit: File(template("toolkit/%s" % unit)) for unit in units},
                   "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": File(template("toolkit/nvidia-cdi-refresh.env"))},
            scripts={"postinst": shell(*configure), "prerm": shell(*remove), "postrm": shell(*_reload_units())}),
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
    aptrepo.index_flat(job, key, flat, {"Origin": "NVIDIA", "Label": "NVIDIA container toolkit", "Architectures": "amd64"})


# ---------------------------------------------------------------------------------------------------------------------
# Debian's own packages

SUITE = "bookworm"
# A second kernel lives in a suite of its own: a host sees it when a test adds the suite, and not before.
OTHER_KERNEL_SUITE = "bookworm-update"
ROOT_PART = "root-%s" % SUITE

# What driver installation brings onto a host, beside the headers of its kernel.
HOST_PACKAGES: Tuple[str, ...] = ("dkms", "gcc", "make", "openssl", "mokutil", "fakeroot")
# Debian's real driver, for the one slow test that compiles it.
DEBIAN_DRIVER_PACKAGES: Tuple[str, ...] = ("nvidia-kernel-dkms", "nvidia-smi", "libcuda1", "nvidia-persistenced")
_RELEASE = {"Origin": "Debian", "Label": "Debian"}
_ARCHIVE_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


class Mirror:
    """An apt of its own, without effect on this machine: its sources are this machine's Debian mirrors, its list of
    installed packages is that of a host root, so that what it downloads is exactly what such a host lacks."""

    def __init__(self, job: Job, components: str) -> None:
        self.job = job
        self.root = job.part(ROOT_PART) / "root"
        self.home = job.out / ".apt"
        self.pool = job.out / "pool"
        self.pool.mkdir()
        for name in ("state/lists/partial", "cache/archives/partial", "etc"):
            (self.home / name).mkdir(parents=True)
        (self.home / "sources.list").write_text("".join("%s\n" % line for line in debian_sources(SUITE, components)))
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

    def download(self, names: Sequence[str]) -> List[Path]:
        """Fetch the packages and all that they depend on and the root lacks; return what is new in the pool."""
        self.job.run(["apt-get", *self._options(), "install", "--yes", "--download-only", "--no-install-recommends", *names])
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
        pattern = re.compile(r"^Version: (\S+)$.*?^Depends: linux-image-(\S+)", re.MULTILINE | re.DOTALL)
        return {release: version for stanza in show.split("\n\n") for version, release in pattern.findall(stanza)}

    def close(self) -> None:
        shutil.rmtree(self.home)


def debian_sources(suite: str, components: str) -> List[str]:
    """One-line sources for `suite` on the mirrors that this machine's own apt is configured to use."""
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(ORIGIN)|$(LABEL)|$(REPO_URI)", "Identifier: Packages"],
        check=True, text=True, stdout=subprocess.PIPE).stdout
    found = {label: uri for origin, label, uri in (line.split("|") for line in targets.splitlines()) if origin == "Debian"}
    if "Debian" not in found:
        raise BuildError("found no Debian mirror in this machine's apt configuration; wanted one that serves %s; "
                         "add a Debian source and run apt-get update" % suite)
    suites = [(found["Debian"], suite), (found["Debian"], "%s-updates" % suite)]
    if "Debian-Security" in found:
        suites.append((found["Debian-Security"], "%s-security" % suite))
    return ["deb [signed-by=%s] %s %s %s" % (_ARCHIVE_KEYRING, uri, name, components) for uri, name in suites]


def kernel_key(release: str) -> Tuple[int, ...]:
    """Sort key of a kernel release, as a boot loader orders them."""
    return tuple(int(number) for number in re.findall(r"\d+", release))


def other_kernel(own: str, offered: Sequence[str]) -> Optional[str]:
    """The kernel to update to: the newest that is newer than the root's, else the newest older one."""
    candidates = sorted((each for each in offered if each != own), key=kernel_key)
    return candidates[-1] if candidates else None


def build_debian(job: Job) -> None:
    mirror = Mirror(job, "main")
    own = max((path.name[len("vmlinuz-"):] for path in (mirror.root / "boot").glob("vmlinuz-*")), key=kernel_key)
    kernels = mirror.kernels()
    headers = ["linux-headers-%s" % own]
    if own in kernels:
        headers.append("linux-headers-amd64=%s" % kernels[own])
    key = job.part(aptrepo.KEY_PART.name)
    aptrepo.index_suite(job, key, job.out, SUITE, mirror.download([*HOST_PACKAGES, *headers]), _RELEASE)
    other = other_kernel(own, list(kernels))
    if other:
        names = ["linux-%s-%s" % (kind, name) for kind in ("image", "headers")
                 for name in (other, "amd64=%s" % kernels[other])]
        aptrepo.index_suite(job, key, job.out, OTHER_KERNEL_SUITE, mirror.download(names), _RELEASE)
    mirror.close()
    (job.out / "kernels.json").write_text(json.dumps({"root": own, "other": other, "suite": OTHER_KERNEL_SUITE}) + "\n")
    aptrepo.publish_key(key, job.out / aptrepo.PUBLIC_KEY)


def build_debian_driver(job: Job) -> None:
    mirror = Mirror(job, "main contrib non-free non-free-firmware")
    there = {path.name for path in (job.part("apt-debian") / "pool").iterdir()}
    own: List[Path] = []
    for deb in mirror.download(DEBIAN_DRIVER_PACKAGES):
        if deb.name in there:
            deb.unlink()
        else:
            own.append(deb)
    mirror.close()
    key = job.part(aptrepo.KEY_PART.name)
    aptrepo.index_suite(job, key, job.out, SUITE, own, _RELEASE, component="non-free")
    aptrepo.publish_key(key, job.out / aptrepo.PUBLIC_KEY)


_INPUTS = (TEMPLATES, Path(aptrepo.__file__))

PARTS: Tuple[Part, ...] = (
    aptrepo.KEY_PART,
    Part(name="apt-nvidia", title="driver repository: branches 580, 595 and 610", build=build_nvidia,
         inputs=_INPUTS, needs=(aptrepo.KEY_PART.name, "silicon")),
    Part(name="apt-toolkit", title="container toolkit repository", build=build_toolkit,
         inputs=_INPUTS, needs=(aptrepo.KEY_PART.name, "nvidia-toolkit")),
    Part(name="apt-debian", title="mirror of the Debian packages that hosts install", build=build_debian,
         inputs=(Path(aptrepo.__file__),), needs=(aptrepo.KEY_PART.name, ROOT_PART)),
    Part(name="apt-debian-nvidia", title="mirror of Debian's own NVIDIA driver (165 MB, for one slow test)",
         build=build_debian_driver, inputs=(Path(aptrepo.__file__),),
         needs=(aptrepo.KEY_PART.name, ROOT_PART, "apt-debian")),
)
