# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keys that sign modules, made by openssl, and a firmware that has some of them: its variables as files of a root."""
from __future__ import annotations

import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.hardware.certificates import (
    Certificate,
    parse_certificate,
)

VARIABLES = "/sys/firmware/efi/efivars/"
SHIM = "605dab50-e046-4300-abb6-3dd810dd8b23"
GLOBAL = "8be4df61-93ca-11d2-aa0d-00e098032b8c"
_X509 = uuid.UUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072").bytes_le
_ATTRIBUTES = b"\x06\0\0\0"


@dataclass(frozen=True)
class Pair:
    """A private key and its certificate. key, certificate: their files on this machine; der: the second's bytes."""

    key: Path
    certificate: Path
    der: bytes
    read: Certificate


def make(directory: Path, name: str, *options: str) -> Pair:
    key, certificate = directory / (name + ".key"), directory / (name + ".der")
    subprocess.run(["openssl", "req", "-new", "-x509", "-nodes", "-newkey", "rsa:2048", "-sha256", "-days", "30",
                    "-subj", "/O=gpuops/CN=%s/" % name, "-outform", "DER", *options, "-keyout", str(key),
                    "-out", str(certificate)], check=True, capture_output=True)
    der = certificate.read_bytes()
    return Pair(key, certificate, der, parse_certificate(der))


def signature_list(certificates: Sequence[bytes]) -> bytes:
    """One list a certificate, as shim keeps them, since they are of different lengths."""
    found = b""
    for der in certificates:
        each = 16 + len(der)
        sizes = b"".join(number.to_bytes(4, "little") for number in (28 + each, 0, each))
        found += _X509 + sizes + uuid.UUID(SHIM).bytes_le + der
    return found


def variable(host: Host, name: str, data: bytes, vendor: str = SHIM) -> None:
    host.write_bytes(VARIABLES + "%s-%s" % (name, vendor), _ATTRIBUTES + data)


def firmware(host: Host, enrolled: Sequence[Pair] = (), pending: Sequence[Pair] = ()) -> None:
    """Secure Boot is on; shim has a list of keys, and a request where some wait."""
    variable(host, "SecureBoot", b"\x01", GLOBAL)
    variable(host, "MokListRT", signature_list([pair.der for pair in enrolled]))
    for name, data in (("MokNew", signature_list([pair.der for pair in pending])), ("MokAuth", b"$6$")):
        if pending:
            variable(host, name, data)
        else:
            host.remove(VARIABLES + "%s-%s" % (name, SHIM))
