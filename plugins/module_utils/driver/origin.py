# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where packages of the driver come from: a repository and the key that signs it. Pure."""
from __future__ import annotations

from dataclasses import dataclass

from ..core.facts import HostFacts
from . import catalogue
from .openpgp import is_armoured_key
from .policy import NVIDIA_REPOSITORY, Policy

KEY_FILE = "/etc/apt/keyrings/gpuops-nvidia-driver.asc"


@dataclass(frozen=True)
class Origin:
    """The repository, in full.

    url:      directory of the packages, '' for the sources that the host has already.
    key_text: the key, if the policy carries it.
    key_url:  where the key is fetched from, '' when it is not.
    key_path: the keyring that apt is told to use.
    fingerprint: of the key, '' if nobody named one.
    """

    url: str = ""
    key_text: str = ""
    key_url: str = ""
    key_path: str = KEY_FILE
    fingerprint: str = ""


def origin_of(policy: Policy, facts: HostFacts) -> Origin:
    if not policy.from_repository:
        return Origin()
    url = policy.repository_url
    if not url and policy.source == NVIDIA_REPOSITORY:
        url = catalogue.default_repository(facts.os_id, facts.os_version, facts.arch)
    key, named = policy.repository_key, policy.repository_key_fingerprint
    if is_armoured_key(key):
        return Origin(url, key_text=key.strip() + "\n", fingerprint=named)
    if key.startswith("/"):
        return Origin(url, key_path=key, fingerprint=named)
    if key:
        return Origin(url, key_url=key, fingerprint=named)
    default = catalogue.default_key(facts.os_id, facts.os_version)
    if default is None or not url:
        return Origin(url, fingerprint=named)
    return Origin(url, key_url=url + default.file, fingerprint=named or default.fingerprint)
