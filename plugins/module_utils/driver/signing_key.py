# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The key that DKMS will sign with, as it lies on the host."""
from __future__ import annotations

import re
from dataclasses import replace
from typing import List, Optional, Tuple

from ..core.host import Host
from ..hardware.certificates import Certificate, is_der, parse_certificate
from ..hardware.node import os_release
from ..hardware.secure_boot import FirmwareKeys, firmware_keys, obstacle
from .files import FRAMEWORK_FILE
from .policy import Policy
from .signing import ENROLLED, KEY_OF_UNTOLD, PENDING, TOKEN, UNKNOWN, SigningKey

# What DKMS takes where nothing names a key (dkms, prepare_mok()): on Ubuntu the one of update-secureboot-policy; Debian
# has that program too (shim-signed-common), and it makes none there
UBUNTU = (KEY_OF_UNTOLD, "/var/lib/shim-signed/mok/MOK.der")
DEFAULT = ("/var/lib/dkms/mok.key", "/var/lib/dkms/mok.pub")
TOOLS = ("mokutil", "openssl")
_FRAMEWORK = "/etc/dkms/framework.conf"
_SETTING = r"^\s*%s=[\"']?([^\"'\s#]+)"
_NOT_ROOTS_ALONE = 0o077


def read_signing_key(host: Host, policy: Policy) -> SigningKey:
    key, certificate = (policy.signing_key, policy.signing_certificate) if policy.signing_key else _of_dkms(host)
    firmware = firmware_keys(host)
    found = SigningKey(key, certificate, given=bool(policy.signing_key),
                       lacks=tuple(tool for tool in TOOLS if host.which(tool) is None),
                       unenrollable=obstacle(host, firmware))
    files = (certificate,) if found.on_token else (key, certificate)
    missing = [path for path in files if not host.is_file(path)]
    if missing and not found.given and not found.on_token:
        return replace(found, alone=missing == [certificate])
    if missing:
        return replace(found, objection="no file %s" % " and no file ".join(missing))
    data = host.read_bytes(certificate) or b""
    try:
        read = parse_certificate(data)
    except ValueError as error:
        return replace(found, objection="%s: %s" % (certificate, error))
    state = ENROLLED if _is_on_keyring(host, read) else state_of(read, firmware)
    if state == UNKNOWN and not found.unenrollable and not is_der(data):
        found = replace(found, unenrollable=(
            "a certificate in PEM", "write it in DER, which mokutil takes (`openssl x509 -outform DER`)"))
    return replace(found, name=read.subject, serial=read.serial, sha1=read.sha1, state=state,
                   objection="" if found.on_token else _exposed(host, key))


def state_of(certificate: Certificate, firmware: FirmwareKeys) -> str:
    """Keys that DKMS makes are all called the same: the fingerprint tells them apart."""
    if certificate.sha256 in [each.sha256 for each in firmware.enrolled]:
        return ENROLLED
    return PENDING if certificate.sha256 in [each.sha256 for each in firmware.pending] else UNKNOWN


def _is_on_keyring(host: Host, certificate: Certificate) -> bool:
    """Whether the kernel has the key, as one that it was built with; no firmware need know that one (Linux:
    x509_key_preparse() names a key by its subject and its key identifier)."""
    return bool(certificate.key_id) and re.search(
        r"\basymmetri .*: %s: " % certificate.key_id, host.read("/proc/keys") or "") is not None


def _exposed(host: Host, path: str) -> str:
    found = host.ownership(path)
    if found is None or (found.uid == 0 and not found.mode & _NOT_ROOTS_ALONE):
        return ""
    return "%s has mode %04o and owner %d: whoever reads it can sign modules for this host" % (
        path, found.mode, found.uid)


def _of_dkms(host: Host) -> Tuple[str, str]:
    """(key, certificate) as DKMS's configuration names them, of its files the last one; else as it would choose them
    (dkms, prepare_mok(): without a key named, a certificate that is named does not count on Ubuntu).

    What we wrote there ourselves was of another policy. Of a URI, what may tell a PIN is left out (RFC 7512: pin-value,
    behind the question mark): the key is shown in plans.
    """
    files = [path for path in host.glob("/etc/dkms/framework.conf.d/*.conf") if path != FRAMEWORK_FILE]
    key, certificate = (_setting(host, [_FRAMEWORK, *files], name) for name in ("mok_signing_key", "mok_certificate"))
    if key is None and _is_ubuntu(host):
        return UBUNTU
    key = key or DEFAULT[0]
    return key.partition("?")[0] if key.startswith(TOKEN) else key, certificate or DEFAULT[1]


def _is_ubuntu(host: Host) -> bool:
    """As DKMS tells it, distro_version(): by the system's own name or by the first of those that it is like."""
    release = os_release(host)
    name = release.get("ID", "")
    return (name if name == "ubuntu" else release.get("ID_LIKE", name)).startswith("ubuntu")


def _setting(host: Host, files: List[str], name: str) -> Optional[str]:
    found = [value for path in files for value in re.findall(_SETTING % name, host.read(path) or "", re.MULTILINE)]
    return found[-1] if found else None
