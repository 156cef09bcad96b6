# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Names and versions of packages: what belongs to a driver, whose packages they are, which version is the newest."""
from __future__ import annotations

import re
from typing import Dict, Iterable, Mapping

from ...core.versions import branch_of, version_key
from . import enterprise

FAMILY = re.compile(
    r"^(nvidia-(?!container|docker|ctk|fs(-|$))|libnvidia-(?!container)|libcuda1$|libcudadebugger|libnvcuvid|libnvoptix"
    r"|libnvsdm|firmware-nvidia|cuda-drivers|linux-(modules|objects|signatures)-nvidia-(?!fs-)"
    r"|xserver-xorg-video-nvidia|lib(gl|glx|egl|gles)\d?-nvidia|(a?kmod|kmod-64k)-nvidia|xorg-x11-(drv-)?nvidia)"
)
# What apt's preferences and unattended-upgrades understand of the same family.
FAMILY_GLOBS = (
    "nvidia-*", "libnvidia-*", "libcuda1", "libcudadebugger*", "libnvcuvid*", "libnvoptix*", "libnvsdm*",
    "firmware-nvidia-*", "cuda-drivers*", "xserver-xorg-video-nvidia*", "libgl*-nvidia*", "libegl*-nvidia*",
)
FAMILY_EXPRESSIONS = (
    "nvidia-(?!container)", "libnvidia-(?!container)", "libcuda1", "libcudadebugger", "libnvcuvid", "libnvoptix",
    "libnvsdm", "firmware-nvidia-", "cuda-drivers", "linux-modules-nvidia-", "linux-objects-nvidia-",
    "linux-signatures-nvidia-", "xserver-xorg-video-nvidia", "lib(gl|glx|egl|gles)[0-9]?-nvidia",
)
# Packages of the driver's modules that somebody else has built, of each system
PREBUILT_MODULES = re.compile(r"^linux-modules-nvidia-\d|^nvidia-open-driver-G\d+-signed-cuda-kmp-|%s" % (
    enterprise.MODULES.pattern))
_DRIVER_VERSION = re.compile(r"^\d{3}(\.\d+){1,2}$")

# Names that only one of the two sources has: their presence tells where an installed driver came from.
ONLY_IN_DISTRIBUTION = re.compile(
    r"^(nvidia-smi|nvidia-open-kernel-dkms|(lib|xserver-xorg-video-)?nvidia-.*-server(-open)?)$")
ONLY_AT_NVIDIA = re.compile(r"^(nvidia-driver-cuda|nvidia-kernel-open-dkms|nvidia-dkms-open|libnvidia-compute"
                            r"|nvidia-dkms-\d+(-open)?)$")

# Of rpm packages: modules of Red Hat, of AlmaLinux, of RPM Fusion and of CIQ for Rocky Linux; on SUSE's systems those
# that SUSE or NVIDIA compile for displays, and generations before G06
_FOREIGN_RPM = re.compile(
    r"^(kmod(-64k)?-nvidia(-open(-\d.*)?|-\d.*)?|akmod-nvidia.*|nvidia-open-kmod|xorg-x11-drv-nvidia.*"
    r"|nvidia-dc-driver.*|kmod-nvidia-dc-open.*"
    r"|nvidia-(open-)?(driver-G\d+-(?!signed-cuda-kmp-).*kmp.*|gfxG\d+-.*)|nvidia-(compute|gl)G\d+"
    r"|x11-video-nvidiaG\d+)$")


def is_foreign_rpm(name: str, of_distribution: bool) -> bool:
    """Whether an rpm package is of another source than NVIDIA's repository, or than the distribution."""
    if enterprise.MODULES.match(name):
        return enterprise.is_of_red_hat(name) is not of_distribution
    return bool(_FOREIGN_RPM.match(name)) or (of_distribution and enterprise.is_built_here(name))


def upstream(version: str) -> str:
    """'580.178.04' of a package version '1:580.178.04-1ubuntu2', and of SUSE's '580.178.04_k6.4.0_150700.51-1.1'."""
    return re.split("[-+~]|_k", version.split(":", 1)[-1], maxsplit=1)[0]


def is_driver_version(version: str) -> bool:
    return bool(_DRIVER_VERSION.match(upstream(version)))


def is_of_driver(name: str, version: str) -> bool:
    """Whether a package belongs to a driver by its name and its version; that of modules which come built is the
    kernel's. The toolkit of CUDA, and what chooses between GPUs for a desktop, are called as the driver is."""
    return bool(FAMILY.match(name)) and (is_driver_version(version) or name.startswith("linux-"))


def family(installed: Mapping[str, str], floating: Iterable[str] = ()) -> Dict[str, str]:
    """Installed packages that carry a driver version and belong to one driver.

    Those with a version in their name (Ubuntu's nvidia-firmware-580-580.126.09) stay beside those of the next driver
    until somebody removes them.
    """
    apart = set(floating)
    return {name: version for name, version in installed.items()
            if name not in apart and FAMILY.match(name) and is_driver_version(version)
            and not name.endswith("-" + upstream(version))}


def matches(version: str, wanted: str) -> bool:
    """Whether a driver version is the wanted one, or of the wanted branch; every version is, if none is named."""
    if not wanted:
        return True
    return version == wanted or ("." not in wanted and version.split(".")[0] == wanted)


def newest(versions: Iterable[str], wanted: str) -> str:
    """The newest version that is wanted, '' if there is none."""
    fitting = [version for version in versions if matches(version, wanted)]
    return max(fitting, key=version_key, default="")


def branch_wanted(version: str) -> int:
    """Branch of a policy's version, 0 if it names none."""
    return branch_of(version) if version else 0
