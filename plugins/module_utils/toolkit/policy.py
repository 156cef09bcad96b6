# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is wanted of the container toolkit."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ..core.errors import GpuOpsError
from ..core.versions import version_key
from ..packages.apt import credentials
from ..packages.model import Credentials
from . import catalogue
from .configuration import wanted_settings

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "default": "present", "choices": ["present", "absent"]},
    "source": {"type": "str", "default": "repository", "choices": ["repository", "preinstalled"]},
    "version": {"type": "str", "default": catalogue.DEFAULT_VERSION},
    "repository_url": {"type": "str", "default": catalogue.REPOSITORY_URL},
    "repository_key": {"type": "str", "default": catalogue.REPOSITORY_KEY, "no_log": False},
    "mode": {"type": "str", "default": "cdi", "choices": ["cdi", "auto", "legacy"]},
    "accept_envvar_when_unprivileged": {"type": "bool", "default": False},
    "low_level_runtimes": {"type": "list", "elements": "str", "default": []},
    "settings": {"type": "dict", "default": {}},
    "allow_vulnerable": {"type": "bool", "default": False},
    "allow_downgrade": {"type": "bool", "default": False},
}


@dataclass(frozen=True)
class Policy:
    """The toolkit that is wanted, its settings, and where it comes from.

    present:            whether the toolkit is wanted; otherwise what we did is undone.
    source:             'repository', or 'preinstalled' when the image brings the packages.
    version:            upstream version ('1.20.1') or package version ('1.20.1-1') of all packages.
    repository_url:     apt repository; '$(ARCH)' stands for Debian's name of the architecture.
    repository_key:     its key: URL, path on the host or ASCII-armoured text.
    credentials:        what the repository asks for; they stood in repository_url.
    key_credentials:    what the place of the key asks for; they stood in repository_key.
    settings:           {(table, ..., key): value} wanted in config.toml.
    low_level_runtimes: absolute paths to use, none: those that the container runtime uses.
    """

    present: bool
    source: str
    version: str
    repository_url: str
    repository_key: str
    settings: Mapping[Tuple[str, ...], Any]
    low_level_runtimes: Tuple[str, ...]
    allow_vulnerable: bool
    allow_downgrade: bool
    credentials: Optional[Credentials] = None
    key_credentials: Optional[Credentials] = None


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    url, told = credentials.split(parameters["repository_url"])
    key, key_told = parameters["repository_key"], None
    if key.startswith(("http://", "https://")):
        key, key_told = credentials.split(key)
    policy = Policy(
        present=parameters["state"] == "present",
        source=parameters["source"],
        version=parameters["version"],
        repository_url=url,
        repository_key=key,
        settings={
            ("accept-nvidia-visible-devices-envvar-when-unprivileged",): parameters["accept_envvar_when_unprivileged"],
            ("nvidia-container-runtime", "mode"): parameters["mode"],
            **wanted_settings(parameters["settings"] or {}),
        },
        low_level_runtimes=tuple(parameters["low_level_runtimes"]),
        allow_vulnerable=parameters["allow_vulnerable"],
        allow_downgrade=parameters["allow_downgrade"],
        credentials=told,
        key_credentials=key_told or (told if key.startswith(url) else None),
    )
    if policy.present:
        _check_version(policy)
        _check_runtimes(policy)
    return policy


def vulnerabilities(version: str) -> Tuple[str, ...]:
    """The CVEs that a version has, the newest first; none from the safe version on."""
    return tuple(name for fixed, name in reversed(catalogue.VULNERABILITIES)
                 if version_key(version) < version_key(fixed))


def _check_version(policy: Policy) -> None:
    if len(version_key(policy.version)) < 3:
        raise GpuOpsError(
            "toolkit.version_malformed",
            found="`version`: '%s'" % policy.version,
            wanted="one exact version of the container toolkit, such as %s" % catalogue.DEFAULT_VERSION,
            remedy="set `version` to an exact one, or leave it out",
            option="version",
        )
    known = vulnerabilities(policy.version)
    if policy.source == "repository" and known and not policy.allow_vulnerable:
        raise GpuOpsError(
            "toolkit.version_is_vulnerable",
            found="`version`: '%s', which has %s" % (policy.version, ", ".join(known)),
            wanted="a container toolkit of %s or newer: older ones let a container out" % catalogue.SAFE_VERSION,
            remedy="set `version` to %s or newer, or `allow_vulnerable` to accept the risk" % catalogue.SAFE_VERSION,
            option="allow_vulnerable",
        )


def _check_runtimes(policy: Policy) -> None:
    relative = [path for path in policy.low_level_runtimes if not path.startswith("/")]
    if relative:
        raise GpuOpsError(
            "toolkit.low_level_runtime_malformed",
            found="`low_level_runtimes`: %s" % ", ".join(relative),
            wanted="absolute paths: a bare name is looked up in the PATH of whoever starts the container",
            remedy="write the whole path, such as /usr/sbin/runc",
            option="low_level_runtimes",
        )
