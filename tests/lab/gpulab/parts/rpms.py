# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the RPM repositories of the laboratory have in common, whichever distribution they are for.

The drivers are those of ``apt-nvidia``, with the same files. Names, epochs and relations that a distribution has are in
el9_rpms.py and sles15_rpms.py; rpms/README.md says which facts are NVIDIA's and which are assumptions.
"""
from __future__ import annotations

from pathlib import Path
from typing import Dict, Iterator, List, Mapping, Tuple

from gpulab import aptrepo, rpmrepo
from gpulab.aptrepo import Deb, File
from gpulab.cache import Input, Job
from gpulab.parts import packages
from gpulab.rpmrepo import Rpm

TEMPLATES = Path(__file__).resolve().parents[2] / "rpms"
DRIVER_EPOCH = 3
# Where a root has the headers that its packages of headers lead to
HEADERS = "/usr/src/gpulab-headers"
# What every part that is made with this module is made of
INPUTS: Tuple[Input, ...] = (Path(__file__), Path(aptrepo.__file__), Path(rpmrepo.__file__))
DRIVER_INPUTS: Tuple[Input, ...] = (*INPUTS, TEMPLATES, packages.TEMPLATES, Path(packages.__file__))

# Where Debian has what others have in other places
_PLACES: Tuple[Tuple[str, str], ...] = (
    (packages.LIBRARIES, "/usr/lib64"), ("/lib/systemd", "/usr/lib/systemd"), ("/lib/firmware", "/usr/lib/firmware"),
)


def moved(path: str) -> str:
    for debian, here in _PLACES:
        if path.startswith(debian + "/"):
            return here + path[len(debian):]
    return path


def script(name: str, **words: str) -> Dict[str, str]:
    """The scriptlets of ``scripts/<name>``, whose sections begin with '%post' and the like as in a spec."""
    text = packages.fill((TEMPLATES / "scripts" / name).read_text(), **words)
    sections = (section.partition("\n") for section in text.split("\n%")[1:])
    return {kind: body for kind, _, body in sections}


class Driver:
    """The packages of one driver version, made of the files of Debian's packages of it.

    release: of the packages; common: the one that every kernel module needs.
    """

    release: str
    common: str

    def __init__(self, driver: packages.Driver) -> None:
        self.version = driver.version
        self.branch = driver.branch
        self.debs: Dict[str, Deb] = {deb.name: deb for deb in driver.packages()}

    def groups(self) -> List[List[Rpm]]:
        """What may be built together: the sources of the two kernel modules have the same paths with other contents."""
        raise NotImplementedError

    def rpm(self, name: str, summary: str, contents: Tuple[str, ...] = (), epoch: int = DRIVER_EPOCH,
            files: Mapping[str, File] = {}, **more: object) -> Rpm:
        """contents: Debian's packages whose files it has."""
        debs = [self.debs[each] for each in contents]
        links = {moved(path): target.replace("../../../", "../../") for deb in debs
                 for path, target in deb.links.items()}
        return Rpm(name, self.version, summary, release=self.release, epoch=epoch, links=links, files={
            **{moved(path): file for deb in debs for path, file in deb.files.items()}, **files},
            **more)  # type: ignore[arg-type]

    def same(self, *names: str) -> Tuple[str, ...]:
        return tuple("%s = %d:%s" % (name, DRIVER_EPOCH, self.version) for name in names)

    def nvml(self) -> Rpm:
        return self.rpm("libnvidia-ml", "NVIDIA Management Library (NVML)", ("libnvidia-ml1",),
                        scripts=script("library"))

    def modprobe(self) -> Rpm:
        return self.rpm("nvidia-modprobe", "NVIDIA kernel module loader", ("nvidia-modprobe",))

    def persistenced(self, *needs: str) -> Rpm:
        unit = "nvidia-persistenced.service"
        return self.rpm("nvidia-persistenced", "A daemon to maintain persistent software state in the NVIDIA driver",
                        ("nvidia-persistenced",), requires=self.same(*needs),
                        files={"/usr/lib/systemd/system-preset/70-nvidia-persistenced.preset":
                               File("enable %s\n" % unit)},
                        scripts=script("persistenced", UNIT=unit))

    def kernel_common(self, *requires: str) -> Rpm:
        return self.rpm(self.common, "Common file for NVIDIA's kernel modules",
                        ("firmware-nvidia-gsp", "nvidia-kernel-support"), requires=requires,
                        directories=("/usr/lib/firmware/nvidia/" + self.version,),
                        files={"/usr/lib/dracut/dracut.conf.d/99-nvidia.conf":
                               File((TEMPLATES / "dracut.conf").read_text())})

    def companions(self) -> Iterator[Rpm]:
        """Without an epoch."""
        for name in ("libnvidia-nscq", "libnvsdm"):
            yield self.rpm(name, self.debs[name].summary, (name,), epoch=0, scripts=script("library"))
        for name in ("nvidia-fabricmanager", "nvidia-imex"):
            yield self.rpm(name, self.debs[name].summary, (name,), epoch=0,
                           scripts=script("daemon", UNIT=name + ".service"))

    def kernel_source(self, name: str, deb: str, other: str) -> Rpm:
        return self.rpm(name, "NVIDIA kernel module sources for DKMS", (deb,), requires=(
            "dkms", *self.same(self.common)), provides=self.same("nvidia-kmod"), conflicts=(other,),
            directories=("/usr/src/nvidia-" + self.version,), scripts=script("dkms", VERSION=self.version))


def publish(job: Job, directory: Path, modules: str = "") -> None:
    directory.mkdir(parents=True, exist_ok=True)
    key = job.part(aptrepo.KEY_PART.name)
    files = sorted(directory.glob("*.rpm"))
    if files:
        rpmrepo.sign(job, key, files)
    rpmrepo.index(job, key, directory, modules)
    aptrepo.publish_key(key, directory / aptrepo.PUBLIC_KEY)


def base_packages(names: Mapping[str, str], release: str) -> Iterator[Rpm]:
    """What a root claims to have: names for others to depend on, without a file."""
    for name, version in names.items():
        yield Rpm(name, version, name, release=release, provides=("/bin/sh",) if name == "bash" else ())


def dkms_package(job: Job, release: str, recommends: Tuple[str, ...]) -> Rpm:
    """DKMS of Debian with the files that its packages have elsewhere. Its files are in the job's '.dkms' until then."""
    (archive,) = (job.part("apt-debian") / "pool").glob("dkms_*.deb")
    scratch = job.out / ".dkms"
    job.run(["dpkg-deb", "--extract", archive, scratch])
    kept = [path for name in ("etc/dkms", "etc/kernel", "usr/sbin", "usr/lib/dkms") for path in
            sorted((scratch / name).rglob("*")) if path.is_file()]
    return Rpm("dkms", archive.name.split("_")[1].split("-")[0], "Dynamic Kernel Module Support Framework",
               release=release, requires=("gcc", "make", "kmod"), recommends=recommends,
               files={"/%s" % path.relative_to(scratch): File(path, path.stat().st_mode & 0o777) for path in kept})
