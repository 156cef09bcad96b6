# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where packages of the driver come from: a repository and the key that signs it. Pure."""
from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ..core.facts import HostFacts
from ..packages.apt import keys
from ..packages.model import Credentials
from .policy import Policy

KEY_FILE = "/etc/apt/keyrings/gpuops-nvidia-driver.asc"


@dataclass(frozen=True)
class Origin:
    """The repository, in full.

    url:             directory of the packages, '' for the sources that the host has already.
    key_text:        the key, if the policy carries it.
    key_url:         where the key is fetched from, '' when it is not.
    key_file:        where the key lies on the host, '' when it does not; apt gets our copy of it, which was checked.
    fingerprint:     of the key, or its end; '' if nobody named one.
    credentials:     what the repository asks for, None when it is open.
    key_credentials: the same of the place of the key.
    """

    url: str = ""
    key_text: str = ""
    key_url: str = ""
    key_file: str = ""
    fingerprint: str = ""
    credentials: Optional[Credentials] = None
    key_credentials: Optional[Credentials] = None


def origin_of(policy: Policy, facts: HostFacts) -> Origin:
    if not policy.from_repository:
        return Origin()
    url = policy.comes_from.url(policy.repository_url, facts)
    key, named, told = policy.repository_key, policy.repository_key_fingerprint, policy.credentials
    if keys.is_armoured(key):
        return Origin(url, key_text=key, fingerprint=named, credentials=told)
    if key.startswith("/"):
        return Origin(url, key_file=key, fingerprint=named, credentials=told)
    if key:
        return Origin(url, key_url=key, fingerprint=named, credentials=told, key_credentials=policy.key_credentials)
    default = policy.comes_from.key(facts)
    if default is None or not url:
        return Origin(url, fingerprint=named, credentials=told)
    return Origin(url, key_url=url + default.file, fingerprint=named or default.known, credentials=told,
                  key_credentials=told)
