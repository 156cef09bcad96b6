# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which packages a kernel is in, and which ones its headers are in, as the package manager's database calls them."""
from __future__ import annotations

import re
from typing import Dict, FrozenSet, Iterable, List, Mapping, Sequence, Tuple

from . import enterprise
from .systems import APT, System

_METAPACKAGE = re.compile(r"^linux-image-(?!\d|unsigned)(.+?)(?<!-dbg)$")
_IMAGES = ("linux-image-", "linux-image-unsigned-")
_PARTS = ("", "-core", "-modules", "-modules-core", "-modules-extra")


def header_packages(
    system: System, kernels: Sequence[str], booting: Sequence[str], installed: Mapping[str, str]
) -> Dict[str, str]:
    """{package: the one version that will do, '' for any} that is missing: headers of these kernels, and what makes
    those of kernels to come follow.

    booting: all kernels that can be booted, oldest first.
    """
    if system.manager == APT:
        names = ["linux-headers-" + release for release in kernels]
        names += ["linux-headers-" + meta.group(1) for meta in map(_METAPACKAGE.match, installed)
                  if meta and "linux-headers-" + meta.group(1) not in installed]
        return dict.fromkeys(sorted(names), "")
    found: Dict[str, str] = {}
    for release in kernels:
        package, version = enterprise.devel(release)
        found["%s-%s" % (package, version)] = version
    for release in booting[-1:]:
        # It needs the kernel of its own version: a newer one would bring a kernel along
        follower = enterprise.matched(release)
        if follower and follower not in installed:
            found[follower] = enterprise.devel(release)[1]
    return dict(sorted(found.items()))


def headers_of(release: str) -> Tuple[str, str]:
    """What a package with a kernel's headers is called, with apt and with dnf."""
    return "linux-headers-" + release, "-".join(enterprise.devel(release))


def kernel_packages(releases: Iterable[str]) -> FrozenSet[str]:
    """What packages of these kernels are called: they stay while one of them runs or boots next."""
    found: List[str] = []
    for release in releases:
        package, version = enterprise.devel(release)
        kind = package[:-len("-devel")]
        found += [beginning + release for beginning in _IMAGES]
        found += ["%s%s-%s" % (kind, part, version) for part in _PARTS]
    return frozenset(found)
