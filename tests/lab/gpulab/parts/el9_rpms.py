# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The RPM repositories that laboratory hosts of EL 9 install from.

``rpm-nvidia``  laid out like NVIDIA's CUDA repository for RHEL 9: the drivers under the names, epochs, relations and
                module streams that they have there, with the modules that NVIDIA has built (built_modules.py).
``rpm-el9``     the distribution: what a root of EL 9 claims to have, the headers of its kernel, and DKMS as in EPEL.
"""
from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterable, Iterator, List, Mapping, Tuple

from gpulab import aptrepo, rpmrepo
from gpulab.aptrepo import File
from gpulab.cache import Job, Part
from gpulab.parts import packages, rpms
from gpulab.rpmrepo import Rpm

FLAT = Path("repos/rhel9/x86_64")
BROKEN_FLAT = Path("repos/rhel9-broken/x86_64")
OPEN, CLOSED = "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"
MODULE = "nvidia-driver"
PLATFORM = "el9"
RELEASE = "1.el9"

# The kernel of the root under a name of EL's; the release of the package is what lies between the first '-' and the
# architecture.
KERNEL_VERSION, KERNEL_RELEASE = "5.14.0", "611.41.1.el9_7"
KERNEL = "%s-%s.%s" % (KERNEL_VERSION, KERNEL_RELEASE, rpmrepo.ARCH)
# Drivers whose modules NVIDIA has built for the root's kernel
BUILT: Tuple[str, ...] = ("580.126.09", "595.91.07")
BUILT_RELEASE = "3.el9_7"
# What the root has from its first day, and claims to have; the versions are of no importance but for the release's
_BASE: Mapping[str, str] = {
    "glibc": "2.34", "bash": "5.1.8", "systemd": "252", "python3": "3.9.21", "rpm": "4.16.1.3", "dnf": "4.14.0",
    "dracut": "057", "kmod": "28", "openssl": "3.2.2", "mokutil": "0.6.0", "pciutils": "3.7.0", "sudo": "1.9.5p2",
    "openssh-server": "8.7p1", "curl": "7.76.1", "iproute": "6.11.0", "gcc": "11.5.0", "make": "4.3",
    "elfutils-libelf-devel": "0.192",
}
REGISTERED: Tuple[str, ...] = ("rocky-release", "kernel", "kernel-core", "kernel-modules-core", "kernel-modules",
                               *_BASE)
_BESIDE_DKMS = ("openssl", "mokutil", "(kernel-devel-matched if kernel-core)")


# ---------------------------------------------------------------------------------------------------------------------
# Driver


class Driver(rpms.Driver):
    release = RELEASE
    common = "nvidia-kmod-common"

    def user_space(self) -> Iterator[Rpm]:
        yield self.nvml()
        yield self.rpm("nvidia-driver-cuda-libs", "Libraries for nvidia-driver-cuda",
                       ("libcuda1", "libnvidia-ptxjitcompiler1"), scripts=rpms.script("library"),
                       requires=self.same("libnvidia-ml"))
        yield self.rpm("nvidia-driver-cuda", "CUDA integration for nvidia-driver", ("nvidia-driver-cuda",),
                       requires=("nvidia-kmod >= %d:%s" % (rpms.DRIVER_EPOCH, self.version),
                                 *self.same("nvidia-driver-cuda-libs", "nvidia-persistenced", self.common)))
        yield self.rpm("nvidia-driver-libs", "Libraries for nvidia-driver", requires=self.same("libnvidia-ml"))
        yield self.rpm("nvidia-driver", "NVIDIA's proprietary display driver", requires=self.same(
            "nvidia-driver-libs", self.common))
        yield self.modprobe()
        yield self.persistenced("libnvidia-ml")
        yield self.kernel_common(*self.same("nvidia-kmod", "nvidia-modprobe"))
        yield self.rpm("nvidia-open", "NVIDIA driver with the open kernel modules", requires=(
            *self.same(OPEN, "nvidia-driver", "nvidia-driver-cuda"),))
        yield self.rpm("cuda-drivers", "NVIDIA driver with the proprietary kernel modules", epoch=0, requires=(
            *self.same(CLOSED, "nvidia-driver", "nvidia-driver-cuda"),))
        yield from self.companions()

    def groups(self) -> List[List[Rpm]]:
        return [list(self.user_space()), [self.kernel_source(OPEN, "nvidia-kernel-open-dkms", CLOSED)],
                [self.kernel_source(CLOSED, "nvidia-kernel-dkms", OPEN)]]


def built_modules(version: str, directory: Path) -> Rpm:
    """The modules of a driver that NVIDIA has built for the root's kernel. Its script puts them where those of every
    other driver are: they are no content of the package. directory: has their files."""
    kept, place = "/usr/lib64/nvidia/%s/%s" % (version, KERNEL), "/lib/modules/%s/extra/drivers/video/nvidia" % KERNEL
    files = sorted(directory.iterdir())
    return Rpm(
        built_name(version), version, "NVIDIA graphics driver", release=BUILT_RELEASE, epoch=rpms.DRIVER_EPOCH,
        requires=("(kernel = %s-%s if kernel)" % (KERNEL_VERSION, KERNEL_RELEASE),),
        provides=("nvidia-kmod = %d:%s" % (rpms.DRIVER_EPOCH, version), "kernel-modules = %s" % KERNEL),
        conflicts=(CLOSED,), files={"%s/%s" % (kept, path.name): File(path) for path in files}, directories=(kept,),
        ghosts=(place, *("%s/%s" % (place, path.name) for path in files)),
        scripts=rpms.script("kmod", KEPT=kept, PLACE=place, KERNEL=KERNEL))


def built_name(version: str) -> str:
    return "kmod-nvidia-%s-%s-%s" % (version, KERNEL_VERSION, KERNEL_RELEASE.rpartition(".")[0])


def streams(drivers: List[Driver], built: Iterable[Rpm] = ()) -> Dict[str, List[Rpm]]:
    """{stream: what it has}: of each branch and of all branches, with the open and with the proprietary module, which
    DKMS builds, and with those that are built."""
    found: Dict[str, List[Rpm]] = {}
    open_ones, closed_ones = (OPEN, "nvidia-open"), (CLOSED, "cuda-drivers")
    for driver in drivers:
        modules = [each for each in built if each.version == driver.version]
        for kind, others, every in (("-open", closed_ones, "open-dkms"), ("-dkms", open_ones, "latest-dkms"),
                                    ("", (*open_ones, *closed_ones), "latest")):
            members = [each for group in driver.groups() for each in group if each.name not in others]
            members += [] if kind else modules
            if kind or modules:
                found.setdefault(driver.branch + kind, []).extend(members)
                found.setdefault(every, []).extend(members)
    return found


def build_nvidia(job: Job) -> None:
    silicon = job.part("silicon") / "pkg"
    empty = packages._empty_library(job)
    drivers = [Driver(packages.Driver(version, silicon, empty)) for version in packages.VERSIONS]
    broken = Driver(packages.Driver(packages.BROKEN_VERSION, silicon, empty, compiles=False))
    for flat, members in ((FLAT, drivers), (BROKEN_FLAT, [broken])):
        for driver in members:
            for group in driver.groups():
                rpmrepo.pack(job, group, job.out / flat)
        built = [built_modules(driver.version, job.part("el9-modules") / driver.version)
                 for driver in members if driver.version in BUILT]
        for each in built:
            rpmrepo.pack(job, [each], job.out / flat)
        modules = rpmrepo.modulemd(MODULE, streams(members, built), "open-dkms", ("nvidia-open",), PLATFORM)
        rpms.publish(job, job.out / flat, modules)
    empty.unlink()


# ---------------------------------------------------------------------------------------------------------------------
# Distribution


def base_packages() -> Iterator[Rpm]:
    yield from rpms.base_packages(_BASE, RELEASE)
    yield Rpm("rocky-release", "9.7", "Rocky Linux release files", release=RELEASE, provides=(
        "system-release = 9.7", "system-release(releasever) = 9", "redhat-release = 9.7"))
    for name in ("kernel", "kernel-core", "kernel-modules-core", "kernel-modules"):
        yield kernel_package(name, provides=("installonlypkg(kernel)", "%s-uname-r = %s" % (name, KERNEL)), requires=(
            () if name == "kernel-core" else ("kernel-core-uname-r = %s" % KERNEL,)))


def kernel_package(name: str, **more: object) -> Rpm:
    return Rpm(name, KERNEL_VERSION, "The Linux kernel (%s)" % name, release=KERNEL_RELEASE,
               **more)  # type: ignore[arg-type]


def header_packages() -> Iterator[Rpm]:
    same = "%s-%s" % (KERNEL_VERSION, KERNEL_RELEASE)
    yield kernel_package("kernel-devel", provides=("installonlypkg(kernel)", "kernel-devel-uname-r = %s" % KERNEL),
                         links={"/usr/src/kernels/%s" % KERNEL: rpms.HEADERS})
    yield kernel_package("kernel-devel-matched", requires=("kernel-devel = %s" % same, "kernel-core = %s" % same))
    yield kernel_package("kernel-headers")


def build_distribution(job: Job) -> None:
    for name, members in (("baseos", list(base_packages())), ("appstream", list(header_packages())), ("crb", []),
                          ("epel", [rpms.dkms_package(job, RELEASE, _BESIDE_DKMS)])):
        if members:
            rpmrepo.pack(job, members, job.out / name)
        rpms.publish(job, job.out / name)
    job.run(["rm", "-r", job.out / ".dkms"])


PARTS: Tuple[Part, ...] = (
    Part(name="rpm-nvidia", title="driver repository of EL 9: branches 580, 595 and 610", build=build_nvidia,
         inputs=rpms.DRIVER_INPUTS, needs=(aptrepo.KEY_PART.name, "silicon", "el9-modules")),
    Part(name="rpm-el9", title="repositories of EL 9: what its root claims to have, headers, DKMS",
         build=build_distribution, inputs=rpms.INPUTS, needs=(aptrepo.KEY_PART.name, "apt-debian")),
)
