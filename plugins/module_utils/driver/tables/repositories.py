# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's repositories: the directory of each release and machine, the key that signs it, the file that names it.

Sources: NVIDIA Driver Installation Guide (CUDA network repository, keys); NVIDIA/cuda-repo-management issues 39 and 49
(new directories get new keys, those of old ones stay); SUSE and openSUSE documentation (the graphics repositories).
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Optional, Tuple

from .systems import SUSE, System

NVIDIA_BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
GRAPHICS_BASE = "https://download.nvidia.com"


@dataclass(frozen=True)
class RepositoryKey:
    """The key of one directory of NVIDIA's repository: file name beside the packages, and its fingerprint.

    fingerprint: '' where nobody has told it in full; the file's name is its end.
    """

    file: str
    fingerprint: str

    @property
    def known(self) -> str:
        """What is known of the fingerprint: all of it, or its end."""
        return self.fingerprint or self.file.partition(".")[0].upper()


_OLD_APT = RepositoryKey("3bf863cc.pub", "EB693B3035CD5710E231E123A4B469963BF863CC")
_OLD_RPM = RepositoryKey("D42D0685.pub", "610C7B14E068A878070DA4E99CD0A493D42D0685")

# NVIDIA never rotated the key of a directory since 2022, and gives every new directory a new one. That of ubuntu2604
# comes in the package cuda-keyring alone. Names of the files are case-sensitive.
REPOSITORY_KEYS: Dict[str, RepositoryKey] = {
    "ubuntu2204": _OLD_APT,
    "ubuntu2404": _OLD_APT,
    "debian12": _OLD_APT,
    "debian13": RepositoryKey("8793F200.pub", "02182E60104FCDC26EAE1B8597A5D4CB8793F200"),
    "rhel8": _OLD_RPM,
    "rhel9": _OLD_RPM,
    "rhel10": RepositoryKey("CDF6BA43.pub", ""),
    "fedora42": _OLD_RPM,
    "fedora43": RepositoryKey("1940C73E.pub", ""),
    "fedora44": RepositoryKey("73CD9B30.pub", "129994480EC63D2789BC98E490DFED2F73CD9B30"),
    "sles15": _OLD_RPM,
    "opensuse15": _OLD_RPM,
    "suse16": RepositoryKey("3A8B5622.pub", "CF65941A859D4B4E6870F188736A284B3A8B5622"),
    "amzn2023": _OLD_RPM,
}

_REBUILDS = ("rhel", "rocky", "almalinux", "ol")
# {(ID, VERSION_ID, or its first number): directory}
REPOSITORY_DIRECTORIES: Dict[Tuple[str, str], str] = {
    ("debian", "12"): "debian12",
    ("debian", "13"): "debian13",
    ("ubuntu", "22.04"): "ubuntu2204",
    ("ubuntu", "24.04"): "ubuntu2404",
    ("ubuntu", "26.04"): "ubuntu2604",
    **{(os_id, major): "rhel" + major for os_id in _REBUILDS for major in ("8", "9", "10")},
    **{("fedora", release): "fedora" + release for release in ("42", "43", "44")},
    ("sles", "15"): "sles15",
    ("sles", "16"): "suse16",
    ("opensuse-leap", "15"): "opensuse15",
    ("opensuse-leap", "16"): "suse16",
    ("amzn", "2023"): "amzn2023",
}

# Servers of the arm64 architecture have a directory of their own; 'arm64' there is Jetson's.
REPOSITORY_MACHINES: Dict[str, str] = {"x86_64": "x86_64", "aarch64": "sbsa"}
_OF_X86_ALONE = ("opensuse15",)


@dataclass(frozen=True)
class Definition:
    """A repository of rpm packages as dnf and zypper are told of it.

    name:        its id.
    url:         directory of the packages.
    key:         URL of the key that signs them, '' where nobody has told it.
    fingerprint: of that key, '' where nobody has told it.
    """

    name: str
    url: str
    key: str = ""
    fingerprint: str = ""

    def text(self) -> str:
        """A .repo file (dnf.conf(5), zypper(8)). No packages without the key: there is no default for that."""
        key = "gpgkey=%s\n" % self.key if self.key else ""
        return "[%s]\nname=%s\nbaseurl=%s\nenabled=1\ngpgcheck=1\n%s" % (self.name, self.name, self.url, key)


def directory_of(os_id: str, os_version: str) -> str:
    """NVIDIA's directory for a release, '' when NVIDIA has none. 'rhel9' of ('rocky', '9.6')."""
    exact = REPOSITORY_DIRECTORIES.get((os_id, os_version), "")
    return exact or REPOSITORY_DIRECTORIES.get((os_id, os_version.split(".")[0]), "")


def default_repository(os_id: str, os_version: str, arch: str) -> str:
    """URL of NVIDIA's directory for a distribution, '' when NVIDIA has none."""
    directory = directory_of(os_id, os_version)
    machine = REPOSITORY_MACHINES.get(arch, "") if arch == "x86_64" or directory not in _OF_X86_ALONE else ""
    return "%s/%s/%s/" % (NVIDIA_BASE, directory, machine) if directory and machine else ""


def default_key(os_id: str, os_version: str) -> Optional[RepositoryKey]:
    return REPOSITORY_KEYS.get(directory_of(os_id, os_version))


def graphics_repository(system: System) -> str:
    """URL of the repository that SUSE's releases name for NVIDIA's driver, '' for every other system."""
    if system.family != SUSE:
        return ""
    if system.os_id == "opensuse-leap":
        return "%s/opensuse/leap/%s/" % (GRAPHICS_BASE, system.version)
    # The first release of 16 has a directory without its minor number
    release = system.version.replace(".", "sp") if system.major == 15 else re.sub(r"\.0$", "", system.version)
    return "%s/suse/sle%s/" % (GRAPHICS_BASE, release)


def definition(system: System, of_distribution: bool, url: str = "", key: str = "", fingerprint: str = "") \
        -> Optional[Definition]:
    """The repository of a policy, None where the system's own sources have the packages, or nobody has.

    url, key, fingerprint: what the policy names in the place of NVIDIA's.
    """
    if of_distribution:
        graphics = graphics_repository(system)
        return Definition("nvidia-graphics", graphics) if graphics else None
    where = url or default_repository(system.os_id, system.version, system.arch)
    if not where:
        return None
    known = default_key(system.os_id, system.version)
    named = "gpuops-nvidia-driver" if url else "cuda-%s-%s" % (
        directory_of(system.os_id, system.version), REPOSITORY_MACHINES[system.arch])
    if key or known is None:
        return Definition(named, where, key, fingerprint)
    return Definition(named, where, where + known.file, fingerprint or known.known)
