# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The RPM repositories that laboratory hosts of EL 9 install from.

``rpm-nvidia``  laid out like NVIDIA's CUDA repository for RHEL 9: the drivers of ``apt-nvidia`` with the same files,
                under the names, epochs, relations and module streams that they have there.
``rpm-el9``     the distribution: what a root of EL 9 claims to have, the headers of its kernel, and DKMS as in EPEL.

rpms/README.md says which facts are NVIDIA's and which are assumptions.
"""
from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Tuple

from gpulab import aptrepo, rpmrepo
from gpulab.aptrepo import Deb, File
from gpulab.cache import Job, Part
from gpulab.parts import packages
from gpulab.rpmrepo import Rpm

TEMPLATES = Path(__file__).resolve().parents[2] / "rpms"
FLAT = Path("repos/rhel9/x86_64")
BROKEN_FLAT = Path("repos/rhel9-broken/x86_64")
DRIVER_EPOCH = 3
OPEN, CLOSED = "kmod-nvidia-open-dkms", "kmod-nvidia-latest-dkms"
MODULE = "nvidia-driver"
PLATFORM = "el9"

# Where Debian has what EL has in other places
_PLACES: Tuple[Tuple[str, str], ...] = (
    (packages.LIBRARIES, "/usr/lib64"), ("/lib/systemd", "/usr/lib/systemd"), ("/lib/firmware", "/usr/lib/firmware"),
)

# The kernel of the root under a name of EL's; the release of the package is what lies between the first '-' and the
# architecture.
KERNEL_VERSION, KERNEL_RELEASE = "5.14.0", "611.41.1.el9_7"
KERNEL = "%s-%s.%s" % (KERNEL_VERSION, KERNEL_RELEASE, rpmrepo.ARCH)
# Where the root has the headers that kernel-devel leads to
HEADERS = "/usr/src/gpulab-headers"
# What the root has from its first day, and claims to have; the versions are of no importance but for the release's
_BASE: Mapping[str, str] = {
    "glibc": "2.34", "bash": "5.1.8", "systemd": "252", "python3": "3.9.21", "rpm": "4.16.1.3", "dnf": "4.14.0",
    "dracut": "057", "kmod": "28", "openssl": "3.2.2", "mokutil": "0.6.0", "pciutils": "3.7.0", "sudo": "1.9.5p2",
    "openssh-server": "8.7p1", "curl": "7.76.1", "iproute": "6.11.0", "gcc": "11.5.0", "make": "4.3",
    "elfutils-libelf-devel": "0.192",
}
REGISTERED: Tuple[str, ...] = ("rocky-release", "kernel", "kernel-core", "kernel-modules-core", "kernel-modules",
                               *_BASE)
REPOSITORIES: Tuple[str, ...] = ("baseos", "appstream", "crb", "epel")


def moved(path: str) -> str:
    for debian, enterprise in _PLACES:
        if path.startswith(debian + "/"):
            return enterprise + path[len(debian):]
    return path


def script(name: str, **words: str) -> Dict[str, str]:
    """The scriptlets of ``scripts/<name>``, whose sections begin with '%post' and the like as in a spec."""
    text = packages.fill((TEMPLATES / "scripts" / name).read_text(), **words)
    sections = (section.partition("\n") for section in text.split("\n%")[1:])
    return {kind: body for kind, _, body in sections}


# ---------------------------------------------------------------------------------------------------------------------
# Driver


class Driver:
    """The packages of one driver version, made of the files of Debian's packages of it."""

    def __init__(self, driver: packages.Driver) -> None:
        self.version = driver.version
        self.branch = driver.branch
        self.debs: Dict[str, Deb] = {deb.name: deb for deb in driver.packages()}

    def rpm(self, name: str, summary: str, contents: Tuple[str, ...] = (), epoch: int = DRIVER_EPOCH,
            files: Mapping[str, File] = {}, **more: object) -> Rpm:
        """contents: Debian's packages whose files it has."""
        debs = [self.debs[each] for each in contents]
        links = {moved(path): target.replace("../../../", "../../") for deb in debs
                 for path, target in deb.links.items()}
        return Rpm(name, self.version, summary, epoch=epoch, links=links, files={
            **{moved(path): file for deb in debs for path, file in deb.files.items()}, **files},
            **more)  # type: ignore[arg-type]

    def same(self, *names: str) -> Tuple[str, ...]:
        return tuple("%s = %d:%s" % (name, DRIVER_EPOCH, self.version) for name in names)

    def user_space(self) -> Iterator[Rpm]:
        yield self.rpm("libnvidia-ml", "NVIDIA Management Library (NVML)", ("libnvidia-ml1",),
                       scripts=script("library"))
        yield self.rpm("nvidia-driver-cuda-libs", "Libraries for nvidia-driver-cuda",
                       ("libcuda1", "libnvidia-ptxjitcompiler1"), scripts=script("library"),
                       requires=self.same("libnvidia-ml"))
        yield self.rpm("nvidia-driver-cuda", "CUDA integration for nvidia-driver", ("nvidia-driver-cuda",),
                       requires=("nvidia-kmod >= %d:%s" % (DRIVER_EPOCH, self.version),
                                 *self.same("nvidia-driver-cuda-libs", "nvidia-persistenced", "nvidia-kmod-common")))
        yield self.rpm("nvidia-driver-libs", "Libraries for nvidia-driver", requires=self.same("libnvidia-ml"))
        yield self.rpm("nvidia-driver", "NVIDIA's proprietary display driver", requires=self.same(
            "nvidia-driver-libs", "nvidia-kmod-common"))
        yield self.rpm("nvidia-modprobe", "NVIDIA kernel module loader", ("nvidia-modprobe",))
        unit = "nvidia-persistenced.service"
        yield self.rpm("nvidia-persistenced", "A daemon to maintain persistent software state in the NVIDIA driver",
                       ("nvidia-persistenced",), requires=self.same("libnvidia-ml"),
                       files={"/usr/lib/systemd/system-preset/70-nvidia-persistenced.preset":
                              File("enable %s\n" % unit)},
                       scripts=script("persistenced", UNIT=unit))
        yield self.rpm("nvidia-kmod-common", "Common file for NVIDIA's kernel modules",
                       ("firmware-nvidia-gsp", "nvidia-kernel-support"),
                       requires=("nvidia-kmod = %d:%s" % (DRIVER_EPOCH, self.version), *self.same("nvidia-modprobe")),
                       directories=("/usr/lib/firmware/nvidia/" + self.version,),
                       files={"/usr/lib/dracut/dracut.conf.d/99-nvidia.conf":
                              File((TEMPLATES / "dracut.conf").read_text())})
        yield self.rpm("nvidia-open", "NVIDIA driver with the open kernel modules", requires=(
            *self.same(OPEN, "nvidia-driver", "nvidia-driver-cuda"),))
        yield self.rpm("cuda-drivers", "NVIDIA driver with the proprietary kernel modules", epoch=0, requires=(
            *self.same(CLOSED, "nvidia-driver", "nvidia-driver-cuda"),))
        yield from self.companions()

    def companions(self) -> Iterator[Rpm]:
        """Without an epoch."""
        for name in ("libnvidia-nscq", "libnvsdm"):
            yield self.rpm(name, self.debs[name].summary, (name,), epoch=0, scripts=script("library"))
        for name in ("nvidia-fabricmanager", "nvidia-imex"):
            yield self.rpm(name, self.debs[name].summary, (name,), epoch=0,
                           scripts=script("daemon", UNIT=name + ".service"))

    def kernel_source(self, name: str, deb: str, other: str) -> Rpm:
        return self.rpm(name, "NVIDIA kernel module sources for DKMS", (deb,), requires=(
            "dkms", *self.same("nvidia-kmod-common")), provides=self.same("nvidia-kmod"), conflicts=(other,),
            directories=("/usr/src/nvidia-" + self.version,), scripts=script("dkms", VERSION=self.version))

    def groups(self) -> List[List[Rpm]]:
        """What may be built together: the two sources have the same paths with other contents."""
        return [list(self.user_space()), [self.kernel_source(OPEN, "nvidia-kernel-open-dkms", CLOSED)],
                [self.kernel_source(CLOSED, "nvidia-kernel-dkms", OPEN)]]


def streams(drivers: List[Driver]) -> Dict[str, List[Rpm]]:
    """{stream: what it has}: of each branch and of all branches, with the open and with the proprietary module."""
    found: Dict[str, List[Rpm]] = {}
    for driver in drivers:
        for package in (each for group in driver.groups() for each in group):
            for kind, other, every in (("open", (CLOSED, "cuda-drivers"), "open-dkms"),
                                       ("dkms", (OPEN, "nvidia-open"), "latest-dkms")):
                if package.name not in other:
                    found.setdefault("%s-%s" % (driver.branch, kind), []).append(package)
                    found.setdefault(every, []).append(package)
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
        modules = rpmrepo.modulemd(MODULE, streams(members), "open-dkms", ("nvidia-open",), PLATFORM)
        _publish(job, job.out / flat, modules)
    empty.unlink()


def _publish(job: Job, directory: Path, modules: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    key = job.part(aptrepo.KEY_PART.name)
    files = sorted(directory.glob("*.rpm"))
    if files:
        rpmrepo.sign(job, key, files)
    rpmrepo.index(job, key, directory, modules)
    aptrepo.publish_key(key, directory / aptrepo.PUBLIC_KEY)


# ---------------------------------------------------------------------------------------------------------------------
# Distribution


def base_packages() -> Iterator[Rpm]:
    """What the root claims to have: names for others to depend on, without a file."""
    for name, version in _BASE.items():
        yield Rpm(name, version, name, provides=("/bin/sh",) if name == "bash" else ())
    yield Rpm("rocky-release", "9.7", "Rocky Linux release files", provides=(
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
                         links={"/usr/src/kernels/%s" % KERNEL: HEADERS})
    yield kernel_package("kernel-devel-matched", requires=("kernel-devel = %s" % same, "kernel-core = %s" % same))
    yield kernel_package("kernel-headers")


def dkms_package(job: Job) -> Rpm:
    """DKMS of Debian with the files that EPEL's has."""
    (archive,) = (job.part("apt-debian") / "pool").glob("dkms_*.deb")
    scratch = job.out / ".dkms"
    job.run(["dpkg-deb", "--extract", archive, scratch])
    kept = [path for name in ("etc/dkms", "etc/kernel", "usr/sbin", "usr/lib/dkms") for path in
            sorted((scratch / name).rglob("*")) if path.is_file()]
    return Rpm("dkms", archive.name.split("_")[1].split("-")[0], "Dynamic Kernel Module Support Framework", requires=(
        "gcc", "make", "kmod"), recommends=("openssl", "mokutil", "(kernel-devel-matched if kernel-core)"),
        files={"/%s" % path.relative_to(scratch): File(path, path.stat().st_mode & 0o777) for path in kept})


def build_distribution(job: Job) -> None:
    for name, members in (("baseos", list(base_packages())), ("appstream", list(header_packages())), ("crb", []),
                          ("epel", [dkms_package(job)])):
        if members:
            rpmrepo.pack(job, members, job.out / name)
        _publish(job, job.out / name)
    job.run(["rm", "-r", job.out / ".dkms"])


_INPUTS = (TEMPLATES, packages.TEMPLATES, Path(aptrepo.__file__), Path(rpmrepo.__file__), Path(packages.__file__))

PARTS: Tuple[Part, ...] = (
    Part(name="rpm-nvidia", title="driver repository of EL 9: branches 580, 595 and 610", build=build_nvidia,
         inputs=_INPUTS, needs=(aptrepo.KEY_PART.name, "silicon")),
    Part(name="rpm-el9", title="repositories of EL 9: what its root claims to have, headers, DKMS",
         build=build_distribution, inputs=(Path(aptrepo.__file__), Path(rpmrepo.__file__)),
         needs=(aptrepo.KEY_PART.name, "apt-debian")),
)
