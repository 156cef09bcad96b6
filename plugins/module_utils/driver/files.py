# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The files of the driver: repository, key, pin, and what unattended upgrades leave alone; with dnf the stream, with it
and zypper the locks, whose file is not ours whole."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Callable, Dict, Mapping, Optional, Tuple

from ..core.facts import HostFacts
from ..core.steps import managed
from ..hardware.parameters import PARAMETERS_FILE
from ..hardware.peer_modules import PEERS_FILE
from ..packages.apt.credentials import AUTH_CONF, Form
from ..packages.dnf import credentials
from ..packages.dnf import locks as dnf_locks
from ..packages.managers import APT, DNF, ZYPPER, manager_of
from ..packages.model import Repository
from ..packages.rpm import repositories
from ..packages.zypper import locks as zypper_locks
from . import catalogue
from .origin import KEY_FILE, Origin
from .tables.boot_tools import GRUB_FILE

SOURCES_FILE = "/etc/apt/sources.list.d/gpuops-nvidia-driver.sources"
PIN_FILE = "/etc/apt/preferences.d/gpuops-nvidia-driver"
KERNEL_FILE = "/etc/apt/preferences.d/gpuops-nvidia-kernel"
UNATTENDED_FILE = "/etc/apt/apt.conf.d/51gpuops-nvidia-driver"
# The package files that are kept for the way back, for the time of one transaction
KEPT_SOURCES_FILE = "/etc/apt/sources.list.d/gpuops-nvidia-driver-kept.sources"
# Not one of OUR_FILES: its text is a secret, and stands in no observation
AUTH_FILE = "/etc/apt/auth.conf.d/gpuops-nvidia-driver.conf"
# Read after those that sort before it
FRAMEWORK_FILE = "/etc/dkms/framework.conf.d/gpuops-nvidia-driver.conf"
# DKMS of EPEL has every initramfs made anew as it installs a module; packages of a driver bring such a file themselves
DRACUT_FILE = "/etc/dracut.conf.d/gpuops-nvidia-driver.conf"
DRACUT_TEXT = managed('omit_drivers+=" nvidia nvidia_drm nvidia_modeset nvidia_peermem nvidia_uvm "\n')
RECORDED_FILES = (KEY_FILE, SOURCES_FILE, PIN_FILE, UNATTENDED_FILE, PARAMETERS_FILE)
OUR_FILES = (*RECORDED_FILES, FRAMEWORK_FILE, KERNEL_FILE, PEERS_FILE, GRUB_FILE)

CAPABILITY = "driver"
REPOSITORY = "gpuops-nvidia-driver"
REPO_FILE = "/etc/yum.repos.d/%s.repo" % REPOSITORY
# As AUTH_FILE, with dnf
PASSWORD_VARIABLE = "gpuops_nvidia_driver_password"
PASSWORD_FILE = "%s/%s" % (credentials.DIRECTORY, PASSWORD_VARIABLE)
RPM_KEY_FILE = "/etc/pki/rpm-gpg/" + REPOSITORY
STREAM_FILE = "%s/%s.module" % (dnf_locks.MODULES, catalogue.STREAM)
DNF_RECORDED_FILES = (RPM_KEY_FILE, REPO_FILE, STREAM_FILE, dnf_locks.LIST, PARAMETERS_FILE)
DNF_FILES = (*DNF_RECORDED_FILES, FRAMEWORK_FILE, PEERS_FILE, DRACUT_FILE)
ZYPPER_REPO_FILE = "/etc/zypp/repos.d/%s.repo" % REPOSITORY
ZYPPER_RECORDED_FILES = (RPM_KEY_FILE, ZYPPER_REPO_FILE, zypper_locks.PATH, PARAMETERS_FILE)
ZYPPER_FILES = (*ZYPPER_RECORDED_FILES, FRAMEWORK_FILE, PEERS_FILE, DRACUT_FILE)
# Files in which others have their lines beside ours
_SHARED = {dnf_locks.LIST: dnf_locks, zypper_locks.PATH: zypper_locks}


@dataclass(frozen=True)
class Places:
    """Where a package manager has what we write for it.

    sources:      the file of the repository.
    key:          the key of the repository.
    all:          every file that we write, but that of credentials.
    recorded:     those that belong to one driver and not to the one after it.
    after:        those of them that are written after a transaction.
    sources_text: the file of the repository, as it has to be.
    auth:         the file of credentials, and its form.
    """

    sources: str
    key: str
    all: Tuple[str, ...]
    recorded: Tuple[str, ...]
    after: Tuple[str, ...]
    sources_text: Callable[[Origin], str]
    auth: str
    form: Form

    def record(self, files: Mapping[str, Optional[str]]) -> Dict[str, Optional[str]]:
        """Of locks, whose file is not ours whole, what is ours."""
        return {path: self.ours(path, files.get(path)) for path in self.recorded}

    @staticmethod
    def ours(path: str, text: Optional[str]) -> Optional[str]:
        """What is ours of a file's text."""
        return _SHARED[path].block(CAPABILITY, text) if path in _SHARED else text

    @staticmethod
    def with_ours(path: str, ours: Optional[str], there: Optional[str]) -> Optional[str]:
        """A file as it will be when what record() has told of it comes back: what others wrote stays."""
        return _SHARED[path].with_block(CAPABILITY, ours, there) if path in _SHARED else ours

    def url(self, files: Mapping[str, Optional[str]]) -> str:
        """The repository that our file of it names, '' for none."""
        named = re.search(r"(?m)^(?:URIs: |baseurl=)(\S+)$", files.get(self.sources) or "")
        return named.group(1) if named else ""


def is_shared(path: str) -> bool:
    """Whether others have their lines in a file beside ours."""
    return path in _SHARED


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


def unattended_text(are_precompiled: bool = False) -> str:
    """A swapped user space under a loaded module stops every new GPU process: leave the family to us.

    are_precompiled: modules that come with each kernel have to come with the next one too.
    """
    lines = ['    "%s";' % expression for expression in catalogue.FAMILY_EXPRESSIONS
             if not (are_precompiled and expression.startswith("linux-"))]
    return managed("Unattended-Upgrade::Package-Blacklist {\n%s\n};\n" % "\n".join(lines), "//")


def repo_text(origin: Origin) -> str:
    """The repository as dnf has it."""
    login = credentials.options(origin.credentials, PASSWORD_VARIABLE) if origin.credentials else {}
    return repositories.text(repository_of(origin, ""), login) + _noted(origin)


def zypper_repo_text(origin: Origin) -> str:
    """The repository as zypper has it."""
    return ZYPPER.repository_files(repository_of(origin, ""))[ZYPPER_REPO_FILE] + _noted(origin)


def _noted(origin: Origin) -> str:
    """Where the key comes from, so that another one is noticed."""
    from_where = origin.key_url or origin.key_file
    return "# Key: %s\n" % from_where if from_where else ""


def without_login(text: Optional[str]) -> Optional[str]:
    """The same file of a repository without who we are; dnf does without one then that lets nobody in."""
    return None if text is None else re.sub(r"(?m)^(username|password)=.*\n", "", text)


def repository_of(origin: Origin, key: str) -> Repository:
    """The repository as dnf and zypper are told of it. key: its text."""
    return Repository(origin.url, key, RPM_KEY_FILE, credentials=origin.credentials, id=REPOSITORY)


APT_PLACES = Places(
    SOURCES_FILE, KEY_FILE, OUR_FILES, RECORDED_FILES, (PIN_FILE,), sources_text, AUTH_FILE, AUTH_CONF)
_PLACES: Dict[str, Places] = {
    APT.name: APT_PLACES,
    DNF.name: Places(REPO_FILE, RPM_KEY_FILE, DNF_FILES, DNF_RECORDED_FILES, (), repo_text, PASSWORD_FILE,
                     credentials.FORM),
    ZYPPER.name: Places(ZYPPER_REPO_FILE, RPM_KEY_FILE, ZYPPER_FILES, ZYPPER_RECORDED_FILES, (), zypper_repo_text,
                        AUTH_FILE, AUTH_CONF),
}


def places_of(facts: HostFacts) -> Places:
    """Where the host's package manager has them; apt's on a host where nothing is written."""
    return _PLACES[(manager_of(facts) or APT).name]
