# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user wants of the driver."""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ..core.errors import GpuOpsError
from ..packages.apt import credentials, keys
from ..packages.model import Credentials

DISTRIBUTION = "distribution"
NVIDIA_REPOSITORY = "nvidia_repository"
LOCAL_REPOSITORY = "local_repository"
PREINSTALLED = "preinstalled"
RUNFILE = "runfile"
REQUIRE_SIGNED, ENROLL, IGNORE = "require_signed", "enroll", "ignore"
SOURCES = (DISTRIBUTION, NVIDIA_REPOSITORY, LOCAL_REPOSITORY, PREINSTALLED, RUNFILE)

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "staged", "absent"], "default": "present"},
    "source": {"type": "str", "choices": list(SOURCES), "default": "nvidia_repository"},
    "version": {"type": "str", "default": ""},
    "kernel_module": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
    "flavour": {"type": "str", "choices": ["headless", "full"], "default": "headless"},
    "repository_url": {"type": "str", "default": ""},
    "repository_key": {"type": "str", "default": "", "no_log": False},
    "repository_key_fingerprint": {"type": "str", "default": "", "no_log": False},
    "fabric_manager": {"type": "str", "choices": ["auto", "present", "absent"], "default": "auto"},
    "imex": {"type": "str", "choices": ["auto", "present", "absent"], "default": "auto"},
    "extra_packages": {"type": "list", "elements": "str", "default": []},
    "kernel_headers": {"type": "bool", "default": True},
    "hold": {"type": "bool", "default": True},
    "secure_boot": {"type": "str", "choices": [REQUIRE_SIGNED, ENROLL, IGNORE], "default": REQUIRE_SIGNED},
    "signing_key": {"type": "str", "default": "", "no_log": False},
    "signing_certificate": {"type": "str", "default": ""},
    "enrollment_password": {"type": "str", "default": "", "no_log": True},
}

_VERSION = re.compile(r"^\d{3}(\.\d{1,3}){0,2}$")
_PACKAGE = re.compile(r"^[a-z0-9][a-z0-9+.-]+$")


@dataclass(frozen=True)
class Policy:
    """The driver that is wanted, and where it comes from; nothing in it contradicts itself.

    state:                      present, staged (fetched, not installed) or absent.
    source:                     where packages come from.
    version:                    '580.178.04', or a branch '580', or '' for what the source has.
    kernel_module:              auto, open or proprietary.
    flavour:                    headless or full.
    repository_url:             directory with the packages, '' for NVIDIA's own.
    repository_key:             armoured text, path on the host or URL, '' for NVIDIA's table.
    repository_key_fingerprint: checked when given; NVIDIA's table has its own.
    fabric_manager:             auto, present or absent.
    imex:                       auto, present or absent.
    extra_packages:             further packages of the same version.
    kernel_headers:             whether headers of every bootable kernel are installed too.
    hold:                       whether the version is pinned against upgrades by others.
    secure_boot:                REQUIRE_SIGNED, ENROLL or IGNORE.
    signing_key:                path on the host of the private key that DKMS signs with, '' for DKMS's own.
    signing_certificate:        path of its certificate; with signing_key, or ''.
    enrollment_password:        what is typed at the console to confirm the key.
    credentials:                what the repository asks for; they stood in repository_url.
    key_credentials:            what the place of the key asks for; they stood in repository_key.
    """

    state: str = "present"
    source: str = NVIDIA_REPOSITORY
    version: str = ""
    kernel_module: str = "auto"
    flavour: str = "headless"
    repository_url: str = ""
    repository_key: str = ""
    repository_key_fingerprint: str = ""
    fabric_manager: str = "auto"
    imex: str = "auto"
    extra_packages: Tuple[str, ...] = ()
    kernel_headers: bool = True
    hold: bool = True
    secure_boot: str = REQUIRE_SIGNED
    signing_key: str = ""
    signing_certificate: str = ""
    enrollment_password: str = ""
    credentials: Optional[Credentials] = None
    key_credentials: Optional[Credentials] = None

    @property
    def from_repository(self) -> bool:
        return self.source in (NVIDIA_REPOSITORY, LOCAL_REPOSITORY)

    @property
    def exact(self) -> bool:
        """Whether the version names one driver, not a branch."""
        return "." in self.version


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    values = {name: value for name, value in parameters.items() if value is not None}
    values["extra_packages"] = tuple(values.get("extra_packages", ()))
    for name in ("repository_url", "repository_key_fingerprint", "version"):
        values[name] = str(values.get(name, "")).strip()
    if values["repository_url"]:
        bare, values["credentials"] = credentials.split(values["repository_url"])
        values["repository_url"] = bare.rstrip("/") + "/"
    values.update(_key(str(values.get("repository_key", "")), values.get("state") == "absent"))
    values["repository_key_fingerprint"] = values["repository_key_fingerprint"].replace(" ", "").upper()
    policy = Policy(**values)
    if policy.state != "absent":
        _refuse_contradictions(policy)
    return policy


def _key(key: str, is_needless: bool) -> Mapping[str, Any]:
    """repository_key without credentials; armoured text as it will be written, whole and with nothing beside it."""
    if keys.is_armoured(key):
        return {"repository_key": key if is_needless else keys.read(key.encode()).armoured}
    if key.startswith(("http://", "https://")):
        bare, told = credentials.split(key)
        return {"repository_key": bare, "key_credentials": told}
    return {"repository_key": key}


def _refuse_contradictions(policy: Policy) -> None:
    if policy.source == RUNFILE:
        raise GpuOpsError(
            "driver.runfile_not_offered",
            found="`source`: runfile",
            wanted="a driver that the package manager can account for; installing a runfile is not offered yet",
            remedy="set `source` to `nvidia_repository`, `local_repository` or `distribution`; for a driver that was "
                   "installed by other means to `preinstalled`",
            option="source",
        )
    if policy.version and not _VERSION.match(policy.version):
        raise GpuOpsError(
            "driver.version_malformed",
            found="`version`: %s" % policy.version,
            wanted="a driver version such as 580.178.04, or a branch such as 580",
            remedy="name one of them; package revisions such as '-1' are found by the collection",
            option="version",
        )
    if policy.from_repository and not policy.version:
        raise GpuOpsError(
            "driver.no_version",
            found="no `version` for `source` %s" % policy.source,
            wanted="a driver version such as 580.178.04, or a branch such as 580",
            remedy="set `version`; NVIDIA's repositories carry several branches side by side",
            option="version",
        )
    if policy.source == LOCAL_REPOSITORY and not (policy.repository_url and policy.repository_key):
        lacking = "repository_key" if policy.repository_url else "repository_url"
        raise GpuOpsError(
            "driver.local_repository_incomplete",
            found="`source` local_repository without `%s`" % lacking,
            wanted="the directory of the packages and the key that signed it",
            remedy="set `repository_url` (http, https or file) and `repository_key` (armoured text, path or URL)",
            option=lacking,
        )
    key = policy.repository_key
    if key and not (keys.is_armoured(key) or key.startswith(("/", "http://", "https://"))):
        raise GpuOpsError(
            "driver.repository_key_malformed",
            found="a `repository_key` that begins with %r" % key[:20],
            wanted="an armoured public key, an absolute path on the host, or an http(s) URL",
            remedy="set `repository_key` to one of these",
            option="repository_key",
        )
    _refuse_half_a_pair(policy)
    for name in policy.extra_packages:
        if not _PACKAGE.match(name):
            raise GpuOpsError(
                "driver.extra_package_malformed",
                found="`extra_packages`: %r" % name,
                wanted="names of packages, without versions",
                remedy="leave the version out: every package gets the driver's own",
                option="extra_packages",
            )


def _refuse_half_a_pair(policy: Policy) -> None:
    pair = {"signing_key": policy.signing_key, "signing_certificate": policy.signing_certificate}
    wrong = [name for name, path in pair.items() if any(pair.values()) and not path.startswith("/")]
    if wrong:
        raise GpuOpsError(
            "driver.signing_pair_incomplete",
            found="`%s`: %r" % (wrong[0], pair[wrong[0]]),
            wanted="the absolute paths of a private key and of its certificate, both or neither",
            remedy="set `signing_key` and `signing_certificate`, or leave both empty for the key of DKMS",
            option=wrong[0],
        )
