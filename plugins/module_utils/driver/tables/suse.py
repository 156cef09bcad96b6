# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the driver's packages are called on SUSE Linux Enterprise and openSUSE Leap.

Names are of a generation, and so are branches: G06, and since 590 G07. Packages of two generations have the same files
and do not say so; SUSE has people remove all of one before they install the other.

Modules that SUSE signs (nvidia-open-driver-GENERATION-signed-cuda-kmp-FLAVOUR) are for NVIDIA's user space, and lag
behind it. Their version is the driver's with the kernel's that they were built with ('580.126.09_k6.4.0_150700.51'):
they serve every later kernel of that service pack, which finds them through weak-updates, as SUSE keeps the symbols of
its kernels. All versions of one name have the same files. Those before 580.82.07 may be there beside each other all the
same, as kernels may (multiversion(kernel)); since then the newer one replaces the older one. rpm's database has them
under their names with their versions, whichever they are (packages/rpm/database.py).

An empty package requires such modules: nv-prefer-signed-open-driver those of G06, nv-prefer-signed-open-driver-G07 the
others. With it SUSE's documentation has them installed. It cannot be there without them.

Sources: NVIDIA Driver Installation Guide; SUSE's documentation of the open driver, of the modules that SUSE signs, of
kernel module packages and of the change from G06 to G07; nvidia-open-driver-G07-signed.spec and its preamble (versions,
conflicts); nvidia-open-driver-G06-signed.spec and its changes (since when one replaces another; the empty package);
SUSE/BCI-dockerfile-generator, NvidiaDriverBCI (what of NVIDIA's repository each branch is: built by DKMS since 575,
either kernel module in either generation); kernel-binary.spec of SUSE's kernels (release and version); AMD's and
NVIDIA's installation guides (that dkms for SLES is in SUSE Package Hub).
"""
from __future__ import annotations

import re
from typing import Iterable, Sequence, Tuple

from ...core.versions import version_key
from .sets import DKMS, FULL, PRECOMPILED, PackageSet, Wanted
from .systems import System

_FIRST_G07 = 590
# What NVIDIA has of branches before it is built for one kernel
_FIRST_DKMS = 575
# In the repository for displays
_LAST_PROPRIETARY = 580
_OF_GENERATION = re.compile(r"^(?:lib)?nvidia-.*-(G\d+)(?:-|$)")
SOURCE = re.compile(r"^nvidia-(open-)?driver-G\d+$")
_OPEN = re.compile(r"^nvidia-open-driver-G\d+$")
# 'nvidia-open-driver-G06-signed-cuda-kmp-default', and as rpm's database calls it where it is installed, with a version
SIGNED = re.compile(r"^nvidia-open-driver-G\d+-signed-cuda-kmp-([a-z0-9]+)(?:-[\d.]+_k([\d.]+)_([\d.]+)-.+)?$")
_PREFERS_SIGNED = re.compile(r"^nv-prefer-signed-open-driver(?:-(G\d+))?$")


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
        modules = tuple(dict.fromkeys(modules_package(wanted, kernel) for kernel in (wanted.kernel, *wanted.kernels)))
        return PackageSet(user_space, (user_space, *modules, "nvidia-persistenced", *display),
                          bounded=frozenset(modules))
    anchor = ("nvidia-open-driver-" if wanted.open else "nvidia-driver-") + end
    return PackageSet(anchor, (anchor, user_space, "nvidia-persistenced", *display))


def modules_package(wanted: Wanted, kernel: str) -> str:
    """The modules that SUSE has signed for a kernel of this flavour."""
    return "nvidia-open-driver-%s-signed-cuda-kmp-%s" % (generation(wanted.branch), flavour_of(kernel))


def serves(package: str, kernel: str) -> bool:
    """Whether modules that SUSE has signed are for a kernel. package: with its version, as rpm's database calls it."""
    match = SIGNED.match(package)
    if match is None or not match.group(2):
        return False
    version, _dash, release = devel(kernel)[1].partition("-")
    return (match.group(1), match.group(2), match.group(3).split(".")[0]) == (
        flavour_of(kernel), version, release.split(".")[0]) and version_key(release) >= version_key(match.group(3))


def instead_of(names: Iterable[str], kernels: Iterable[str]) -> Tuple[str, ...]:
    """Packages of modules that SUSE has signed and that name what is built here as what they replace, in the same
    version: zypper brings them in its place, also where that is asked for, unless they are kept away."""
    return tuple(sorted({"%s-signed-%s%s" % (name, kind, flavour_of(kernel)) for name in names if _OPEN.match(name)
                         for kind in ("cuda-kmp-", "kmp-") for kernel in kernels}))


def excluded(names: Iterable[str], installed: Iterable[str]) -> Tuple[str, ...]:
    """Installed packages that cannot be there beside those of a driver: of the other generation, other kernel modules,
    built here or signed by SUSE, and what requires those. () where names are of no generation."""
    own = frozenset(names)
    ends = {generation_of(name) for name in own} - {""}
    signed = {generation_of(name) for name in own if SIGNED.match(name)}
    return tuple(sorted(name for name in installed if ends and (
        generation_of(name) not in ("", *ends) or ((SOURCE.match(name) or SIGNED.match(name)) and name not in own)
        or _required_generation(name) not in ("", *signed))))


def _required_generation(name: str) -> str:
    """The generation of signed modules that the package which prefers them requires, '' of any other package."""
    match = _PREFERS_SIGNED.match(name)
    return (match.group(1) or "G06") if match else ""


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


def builders_first(system: System) -> Tuple[str, ...]:
    """Where dkms and a compiler are, as SUSEConnect names them; Leap's own repository has both."""
    if system.os_id != "sles":
        return ()
    names = ("sle-module-development-tools", "PackageHub") if system.major == 15 else ("PackageHub",)
    return tuple("%s/%s/%s" % (name, system.version, system.arch) for name in names)


def without_set(wanted: Wanted) -> str:
    """Why a source has no set, '' where it has one."""
    if builds(wanted):
        return ""
    if wanted.of_distribution:
        return "NVIDIA's repository for displays has the proprietary kernel module for %s in branch %d and before" % (
            wanted.system, _LAST_PROPRIETARY)
    return "NVIDIA packages the proprietary kernel module for every kernel of %s since branch %d" % (
        wanted.system, _FIRST_DKMS)
