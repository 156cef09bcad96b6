# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which packages a kernel is in, and which ones its headers are in, as the package manager's database calls them."""
from __future__ import annotations

import re
from typing import Dict, FrozenSet, Iterable, List, Mapping, Sequence

from . import enterprise, suse
from .systems import APT, DNF, ZYPPER, System

# 'linux-image-generic-hwe-24.04' of a kernel's metapackage, not of a kernel
KERNEL_METAPACKAGE = re.compile(r"^linux-image-(?!\d|unsigned)(.+?)(?<!-dbg)$")
_IMAGES = ("linux-image-", "linux-image-unsigned-")
_PARTS = ("", "-core", "-modules", "-modules-core", "-modules-extra")


def header_packages(
    system: System, kernels: Sequence[str], booting: Sequence[str], installed: Mapping[str, str],
    is_held: bool = False
) -> Dict[str, str]:
    """{package: the one version that will do, '' for any} that is missing: headers of these kernels, and what makes
    those of kernels to come follow. On SUSE's systems that follows by itself, and a version has the number of its build
    behind the kernel's (suse.is_of_kernel()).

    booting: all kernels that can be booted, oldest first.
    is_held: whether none comes any more: what follows updates would bring headers of kernels that do not.
    """
    if system.manager == APT:
        names = ["linux-headers-" + release for release in kernels]
        names += ["linux-headers-" + meta.group(1) for meta in map(KERNEL_METAPACKAGE.match, installed)
                  if meta and not is_held and "linux-headers-" + meta.group(1) not in installed]
        return dict.fromkeys(sorted(names), "")
    if system.manager == ZYPPER:
        return {"%s-%s" % each: each[1] for each in sorted(map(suse.devel, kernels))}
    found: Dict[str, str] = {}
    for release in kernels:
        package, version = enterprise.devel(release)
        found["%s-%s" % (package, version)] = version
    for release in () if is_held else booting[-1:]:
        # It needs the kernel of its own version: a newer one would bring a kernel along
        follower = enterprise.matched(release)
        if follower and follower not in installed:
            found[follower] = enterprise.devel(release)[1]
    return dict(sorted(found.items()))


def headers_of(release: str) -> Dict[str, str]:
    """{package manager: what people ask it for to have a kernel's headers}."""
    return {APT: "linux-headers-" + release, DNF: "-".join(enterprise.devel(release)),
            ZYPPER: "=".join(suse.devel(release))}


def brings_headers(packages: Iterable[str], release: str) -> bool:
    """Whether a kernel's headers are among packages, by the names that the database has them under."""
    whole = (headers_of(release)[APT], headers_of(release)[DNF])
    beginning, wanted = "%s-" % suse.devel(release)[0], suse.devel(release)[1]
    return any(name in whole or (name.startswith(beginning) and suse.is_of_kernel(name[len(beginning):], wanted))
               for name in packages)


def kernel_packages(releases: Iterable[str]) -> FrozenSet[str]:
    """What packages of these kernels are called: they stay while one of them runs or boots next."""
    found: List[str] = []
    for release in releases:
        package, version = enterprise.devel(release)
        kind = package[:-len("-devel")]
        found += [beginning + release for beginning in _IMAGES]
        found += ["%s%s-%s" % (kind, part, version) for part in _PARTS]
    return frozenset(found)
