# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files of the driver: repository, key, pin, and what unattended upgrades leave alone; with dnf the stream and the
list of locks, which are not ours whole."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, Tuple

from ..core.facts import HostFacts
from ..core.steps import managed
from ..hardware.parameters import PARAMETERS_FILE
from ..packages.dnf import locks
from ..packages.managers import APT, DNF, manager_of
from ..packages.model import Repository
from ..packages.rpm import repositories
from . import catalogue
from .origin import KEY_FILE, Origin

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
OUR_FILES = (*RECORDED_FILES, FRAMEWORK_FILE)

REPOSITORY = "gpuops-nvidia-driver"
REPO_FILE = "/etc/yum.repos.d/%s.repo" % REPOSITORY
RPM_KEY_FILE = "/etc/pki/rpm-gpg/" + REPOSITORY
STREAM_FILE = "%s/%s.module" % (locks.MODULES, catalogue.STREAM)
DNF_FILES = (RPM_KEY_FILE, REPO_FILE, STREAM_FILE, locks.LIST, PARAMETERS_FILE, FRAMEWORK_FILE)


@dataclass(frozen=True)
class Places:
    """Where a package manager has what we write for it.

    sources:      the file of the repository.
    key:          the key of the repository.
    all:          every file that we write, but that of credentials.
    sources_text: the file of the repository, as it has to be.
    """

    sources: str
    key: str
    all: Tuple[str, ...]
    sources_text: Callable[[Origin], str]


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


def repo_text(origin: Origin) -> str:
    """The repository as dnf has it; the key's origin is noted so that another one is noticed."""
    from_where = origin.key_url or origin.key_file
    return repositories.text(repository_of(origin, ""), {}) + ("# Key: %s\n" % from_where if from_where else "")


def repository_of(origin: Origin, key: str) -> Repository:
    """The repository as dnf is told of it. key: its text."""
    return Repository(origin.url, key, RPM_KEY_FILE, credentials=origin.credentials, id=REPOSITORY)


APT_PLACES = Places(SOURCES_FILE, KEY_FILE, OUR_FILES, sources_text)
_PLACES: Dict[str, Places] = {
    APT.name: APT_PLACES,
    DNF.name: Places(REPO_FILE, RPM_KEY_FILE, DNF_FILES, repo_text),
}


def places_of(facts: HostFacts) -> Places:
    """Where the host's package manager has them; apt's on a host where nothing is written."""
    return _PLACES[(manager_of(facts) or APT).name]
