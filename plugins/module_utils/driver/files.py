# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files that are ours whole: repository, key, pin, and what unattended upgrades leave alone."""
from __future__ import annotations

from ..core.steps import managed
from ..hardware.parameters import PARAMETERS_FILE
from ..hardware.peer_modules import PEERS_FILE
from ..packages.model import Repository
from . import catalogue
from .origin import KEY_FILE, Origin
from .tables.boot_tools import GRUB_FILE

SOURCES_FILE = "/etc/apt/sources.list.d/gpuops-nvidia-driver.sources"
PIN_FILE = "/etc/apt/preferences.d/gpuops-nvidia-driver"
UNATTENDED_FILE = "/etc/apt/apt.conf.d/51gpuops-nvidia-driver"
# The package files that are kept for the way back, for the time of one transaction
KEPT_SOURCES_FILE = "/etc/apt/sources.list.d/gpuops-nvidia-driver-kept.sources"
# Not one of OUR_FILES: its text is a secret, and stands in no observation
AUTH_FILE = "/etc/apt/auth.conf.d/gpuops-nvidia-driver.conf"
# Read after those that sort before it
FRAMEWORK_FILE = "/etc/dkms/framework.conf.d/gpuops-nvidia-driver.conf"
# What belongs to one driver and not to the one after it
RECORDED_FILES = (KEY_FILE, SOURCES_FILE, PIN_FILE, UNATTENDED_FILE, PARAMETERS_FILE)
OUR_FILES = (*RECORDED_FILES, FRAMEWORK_FILE, PEERS_FILE, GRUB_FILE)


def sources_text(origin: Origin) -> str:
    """The repository in deb822 form; the key's origin is noted so that another one is noticed."""
    from_where = origin.key_url or origin.key_file
    key = "# Key: %s\n" % from_where if from_where else ""
    return managed(key + Repository(origin.url, "", KEY_FILE).sources())


def pin_text(versions: str) -> str:
    """One version for the whole family, against every other source and downgrades included (apt_preferences(5)).

    Not above 1000: ansible.builtin.apt asks for exact versions with priority 1001, and must win.
    """
    return managed("Package: %s\nPin: version %s\nPin-Priority: 1000\n" % (
        " ".join(catalogue.FAMILY_GLOBS), versions))


def unattended_text() -> str:
    """A swapped user space under a loaded module stops every new GPU process: leave the family to us."""
    lines = ['    "%s";' % expression for expression in catalogue.FAMILY_EXPRESSIONS]
    return managed("Unattended-Upgrade::Package-Blacklist {\n%s\n};\n" % "\n".join(lines), "//")
