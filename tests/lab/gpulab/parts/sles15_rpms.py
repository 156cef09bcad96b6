# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The RPM repositories that laboratory hosts of SLES 15 install from.

``rpm-nvidia-sles15``  laid out like NVIDIA's CUDA repository for SLES 15: the drivers under the names of their
                       generation, G06 or G07, with the epochs and relations that they have there; and DKMS.
``rpm-sles15``         the distribution: what a root of SLES 15 claims to have, the headers of its kernel, and the
                       modules of drivers that SUSE has built and signed (built_modules.py).
"""
from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Tuple

from gpulab import aptrepo, rpmrepo
from gpulab.aptrepo import File
from gpulab.cache import Job, Part
from gpulab.parts import packages, rpms
from gpulab.rpmrepo import Rpm

FLAT = Path("repos/sles15/x86_64")
RELEASE = "1"
FIRST_G07 = 590

# The kernel of the root under a name of SUSE's; its packages have the number of their build behind the release.
KERNEL_VERSION, KERNEL_RELEASE = "6.4.0", "150700.53.3"
KERNEL = "%s-%s-default" % (KERNEL_VERSION, KERNEL_RELEASE)
SOURCES = "/usr/src/linux-%s-%s" % (KERNEL_VERSION, KERNEL_RELEASE)
# What the root has from its first day, and claims to have; the versions are of no importance but for the release's
_BASE: Mapping[str, str] = {
    "filesystem": "15.0", "glibc": "2.38", "bash": "4.4", "systemd": "254.24", "python311": "3.11.10", "rpm": "4.14.3",
    "libzypp": "17.37.0", "zypper": "1.14.89", "dracut": "059", "kmod": "29", "openssl": "3.2.3", "mokutil": "0.7.1",
    "pciutils": "3.13.0", "sudo": "1.9.15p5", "openssh-server": "9.6p1", "curl": "8.6.0", "iproute2": "6.4",
    "perl-Bootloader": "1.18", "suse-module-tools": "15.7.9", "gcc": "7", "make": "4.2.1", "libelf-devel": "0.185",
}
# It stands for all symbols of the service pack's kernels
SYMBOL = "ksym(default:module_layout) = 7c2f10ab"
# Drivers whose modules SUSE has signed, with the kernel that they were built for: the first one of the service pack, so
# that the root's has their symbols, or a later one than the root's
SIGNED: Mapping[str, str] = {"580.126.09": "150700.51", "580.178.04": "150700.51", "595.91.07": "150700.51",
                             "610.57.04": "150700.53.40"}
SIGNED_RELEASE = "150700.3.1"
REGISTERED: Tuple[str, ...] = ("sles-release", "kernel-default", *_BASE)


# ---------------------------------------------------------------------------------------------------------------------
# Driver


def generation(version: str) -> str:
    return "G07" if int(version.split(".")[0]) >= FIRST_G07 else "G06"


class Driver(rpms.Driver):
    """Packages of two generations have the same files and do not say so."""

    release = RELEASE

    def __init__(self, driver: packages.Driver) -> None:
        super().__init__(driver)
        self.generation = generation(driver.version)
        self.common = self.named("nvidia-common")

    def named(self, name: str) -> str:
        return "%s-%s" % (name, self.generation)

    def user_space(self) -> Iterator[Rpm]:
        yield self.nvml()
        yield self.rpm("libnvidia-cfg", "NVIDIA configuration library")
        yield self.rpm("libnvidia-gpucomp", "NVIDIA compiler library")
        yield self.rpm(self.named("nvidia-compute"), "NVIDIA driver for computing with GPGPU",
                       ("libcuda1", "libnvidia-ptxjitcompiler1"), scripts=rpms.script("library"),
                       requires=self.same("libnvidia-cfg", "libnvidia-gpucomp", "libnvidia-ml", self.common,
                                          "nvidia-persistenced"))
        yield self.rpm(self.named("nvidia-compute-utils"), "NVIDIA driver tools for computing with GPGPU",
                       ("nvidia-driver-cuda",), requires=self.same(self.named("nvidia-compute"), "libnvidia-ml"))
        yield self.rpm(self.named("nvidia-gl"), "NVIDIA OpenGL libraries",
                       requires=self.same(self.named("nvidia-compute")))
        yield self.rpm("nvidia-settings", "NVIDIA driver control panel", requires=self.same("libnvidia-ml"))
        yield self.modprobe()
        yield self.persistenced("libnvidia-cfg")
        # Built here, or SUSE's, whose version has no epoch
        yield self.kernel_common("(nvidia-kmod = %d:%s or nvidia-open-signed-kmp = %s)" % (
            rpms.DRIVER_EPOCH, self.version, self.version), *self.same("nvidia-modprobe"))
        yield from self.companions()

    def groups(self) -> List[List[Rpm]]:
        opened, closed = self.named("nvidia-open-driver"), self.named("nvidia-driver")
        return [list(self.user_space()), [self.kernel_source(opened, "nvidia-kernel-open-dkms", closed)],
                [self.kernel_source(closed, "nvidia-kernel-dkms", opened)]]


def build_nvidia(job: Job) -> None:
    silicon = job.part("silicon") / "pkg"
    empty = packages._empty_library(job)
    for version in packages.VERSIONS:
        for group in Driver(packages.Driver(version, silicon, empty)).groups():
            rpmrepo.pack(job, group, job.out / FLAT)
    rpmrepo.pack(job, [rpms.dkms_package(job, RELEASE, ())], job.out / FLAT)
    rpms.publish(job, job.out / FLAT)
    job.run(["rm", "-r", job.out / ".dkms"])
    empty.unlink()


# ---------------------------------------------------------------------------------------------------------------------
# Distribution


def base_packages() -> Iterator[Rpm]:
    yield from rpms.base_packages(_BASE, RELEASE)
    yield Rpm("sles-release", "15.7", "SUSE Linux Enterprise Server", provides=("distribution-release",))
    yield kernel_package("kernel-default", provides=("kernel = %s" % KERNEL_VERSION, SYMBOL))


def kernel_package(name: str, provides: Tuple[str, ...] = (), **more: object) -> Rpm:
    return Rpm(name, KERNEL_VERSION, "The Linux kernel (%s)" % name, release=KERNEL_RELEASE + ".1", provides=(
        "multiversion(kernel)", "%s = %s-%s" % (name, KERNEL_VERSION, KERNEL_RELEASE), *provides),
        **more)  # type: ignore[arg-type]


def header_packages() -> Iterator[Rpm]:
    yield kernel_package("kernel-devel", links={SOURCES: rpms.HEADERS})
    built, modules = SOURCES + "-obj", "/usr/lib/modules/" + KERNEL
    links: Dict[str, str] = {built + "/x86_64/default": rpms.HEADERS, modules + "/source": SOURCES,
                             modules + "/build": built + "/x86_64/default"}
    yield kernel_package("kernel-default-devel", links=links, directories=(built, built + "/x86_64"), requires=(
        "kernel-devel = %s-%s" % (KERNEL_VERSION, KERNEL_RELEASE),))


def signed_modules(version: str, directory: Path) -> Rpm:
    """The modules of a driver that SUSE has built and signed, for every kernel with the symbols that they need.

    directory: has their files.
    """
    built_for = SIGNED[version]
    short = "nvidia-open-driver-%s-signed-cuda-kmp" % generation(version)
    name, full = short + "-default", "%s_k%s_%s" % (version, KERNEL_VERSION, built_for)
    place = "/lib/modules/%s-%s-default" % (KERNEL_VERSION, built_for)
    return Rpm(
        name, full, "NVIDIA open kernel module driver for GeForce 16 series (GTX 16xx) and newer",
        release=SIGNED_RELEASE, requires=("suse-module-tools", "kmod", SYMBOL), provides=(
            "%s = %s" % (short, version), "%s = %s" % (name, version),
            "nvidia-open-driver-%s = %s" % (generation(version), version),
            "nvidia-open-signed-kmp = " + version, "nvidia-open-signed-kmp(cuda)"),
        conflicts=("nvidia-open-signed-kmp(gfx)", "nvidia-driver-G06-kmp"),
        obsoletes=("nvidia-open-driver-%s = %s" % (generation(version), version),),
        files={"%s/updates/%s" % (place, path.name): File(path) for path in sorted(directory.iterdir())},
        directories=(place, place + "/updates"),
        scripts=rpms.script("kmp", NVR="%s-%s-%s" % (name, full, SIGNED_RELEASE)))


def build_distribution(job: Job) -> None:
    for name, members in (("basesystem", [*base_packages(), *header_packages()]), ("development-tools", [])):
        if members:
            rpmrepo.pack(job, members, job.out / name)
        if name == "basesystem":
            # Of one name, with the same files
            for version in SIGNED:
                rpmrepo.pack(job, [signed_modules(version, job.part("sles15-modules") / version)], job.out / name)
        rpms.publish(job, job.out / name)


PARTS: Tuple[Part, ...] = (
    Part(name="rpm-nvidia-sles15", title="driver repository of SLES 15: branches 580, 595 and 610", build=build_nvidia,
         inputs=rpms.DRIVER_INPUTS, needs=(aptrepo.KEY_PART.name, "silicon", "apt-debian")),
    Part(name="rpm-sles15", title="repositories of SLES 15: what its root claims to have, headers, signed modules",
         build=build_distribution, inputs=(*rpms.INPUTS, rpms.TEMPLATES / "scripts/kmp"),
         needs=(aptrepo.KEY_PART.name, "sles15-modules")),
)
