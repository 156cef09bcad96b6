# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on SUSE Linux Enterprise and openSUSE Leap.

Names are of a generation, and so are branches: G06, and since 590 G07. Packages of two generations have the same files
and do not say so; SUSE has people remove all of one before they install the other.

Sources: NVIDIA Driver Installation Guide; SUSE's documentation of the open driver, of the modules that SUSE signs and
of the change from G06 to G07; SUSE/BCI-dockerfile-generator, NvidiaDriverBCI (what of NVIDIA's repository each branch
is: built by DKMS since 575, either kernel module in either generation); kernel-binary.spec of SUSE's kernels (release
and version).
"""
from __future__ import annotations

import re
from typing import Iterable, Sequence, Tuple

from .sets import DKMS, FULL, PRECOMPILED, PackageSet, Wanted

_FIRST_G07 = 590
# What NVIDIA has of branches before it is built for one kernel
_FIRST_DKMS = 575
# In the repository for displays
_LAST_PROPRIETARY = 580
_OF_GENERATION = re.compile(r"^(?:lib)?nvidia-.*-(G\d+)(?:-|$)")
SOURCE = re.compile(r"^nvidia-(open-)?driver-G\d+$")


def builds(wanted: Wanted) -> Tuple[str, ...]:
    """How the module of a source is made, what is preferred first; () where the source has none."""
    if wanted.of_distribution:
        return (PRECOMPILED,) if wanted.open else () if wanted.branch > _LAST_PROPRIETARY else (DKMS,)
    built = (DKMS,) if wanted.branch >= _FIRST_DKMS else ()
    return (*built, PRECOMPILED) if wanted.open else built


def generation(branch: int) -> str:
    return "G07" if branch >= _FIRST_G07 else "G06"


def packages(wanted: Wanted) -> PackageSet:
    end = generation(wanted.branch)
    user_space = "nvidia-compute-utils-" + end
    display = ("nvidia-gl-" + end,) if wanted.flavour == FULL else ()
    if wanted.of_distribution:
        anchor = "nvidia-open-driver-%s-signed-kmp-meta" % end if wanted.open else "nvidia-driver-G06-kmp-meta"
        return PackageSet(anchor, (anchor, user_space, *display), ("nvidia-persistenced",))
    if wanted.build == PRECOMPILED:
        # SUSE's own, which lag: they set the version of all that comes from NVIDIA
        modules = tuple(dict.fromkeys("nvidia-open-driver-%s-signed-cuda-kmp-%s" % (end, flavour_of(kernel))
                                      for kernel in (wanted.kernel, *wanted.kernels)))
        return PackageSet(user_space, (user_space, *modules, "nvidia-persistenced", *display),
                          bounded=frozenset(modules))
    anchor = ("nvidia-open-driver-" if wanted.open else "nvidia-driver-") + end
    return PackageSet(anchor, (anchor, user_space, "nvidia-persistenced", *display))


def excluded(names: Iterable[str], installed: Iterable[str]) -> Tuple[str, ...]:
    """Installed packages that cannot be there beside those of a driver: of the other generation, and the source of the
    other kernel module. () where names are of no generation."""
    own = frozenset(names)
    ends = {generation_of(name) for name in own} - {""}
    return tuple(sorted(name for name in installed if ends and (
        generation_of(name) not in ("", *ends) or (SOURCE.match(name) and name not in own))))


def generation_of(name: str) -> str:
    """'G06' of a package of that generation, '' of one that every generation has."""
    match = _OF_GENERATION.match(name)
    return match.group(1) if match else ""


def flavour_of(kernel: str) -> str:
    """'default' of '6.4.0-150600.23.78-default'."""
    return kernel.rpartition("-")[2] or "default"


def devel(kernel: str) -> Tuple[str, str]:
    """(package, version) of the headers of a kernel: ('kernel-default-devel', '6.4.0-150600.23.78').

    Packages of kernels have the number of their build behind that ('6.4.0-150600.23.78.1').
    """
    return "kernel-%s-devel" % flavour_of(kernel), kernel.rpartition("-")[0]


def is_of_kernel(version: str, release: str) -> bool:
    """Whether the version of a package is that of a kernel. release: what devel() says."""
    return version == release or version.startswith(release + ".")


def headers(kernels: Sequence[str]) -> Tuple[str, ...]:
    return tuple(dict.fromkeys("kernel-%s-devel" % flavour_of(kernel) for kernel in kernels))


def without_set(wanted: Wanted) -> str:
    """Why a source has no set, '' where it has one."""
    if builds(wanted):
        return ""
    if wanted.of_distribution:
        return "NVIDIA's repository for displays has the proprietary kernel module for %s in branch %d and before" % (
            wanted.system, _LAST_PROPRIETARY)
    return "NVIDIA packages the proprietary kernel module for every kernel of %s since branch %d" % (
        wanted.system, _FIRST_DKMS)
