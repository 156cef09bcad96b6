# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""X.509 certificates, as far as they tell which key signed a module: a reader of DER for these fields alone.

The layout is that of RFC 5280, section 4.1: Certificate, TBSCertificate, Name and Extensions. No signature is checked:
whoever may write the files and variables that certificates are read from decides what is trusted anyway.
"""
from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Iterator, List, Tuple

_COMMON_NAME = bytes.fromhex("550403")  # 2.5.4.3
_SUBJECT_KEY_ID = bytes.fromhex("551d0e")  # 2.5.29.14
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.*?)-----END CERTIFICATE-----", re.DOTALL)
_INTEGER, _IDENTIFIER, _SEQUENCE = 0x02, 0x06, 0x30
_VERSION, _EXTENSIONS = 0xA0, 0xA3

Element = Tuple[int, bytes]


@dataclass(frozen=True)
class Certificate:
    """Whose key it is, and by what it is named.

    subject, issuer: common names, '' where there is none.
    serial:          as modinfo's sig_key, lower-case hexadecimal digits without leading zeros.
    key_id:          subject key identifier, hexadecimal, '' where there is none; the kernel's keyrings name keys by it.
    sha1, sha256:    fingerprints of the whole, hexadecimal; MOK Manager shows the first.
    """

    subject: str
    issuer: str
    serial: str
    key_id: str
    sha1: str
    sha256: str


def parse_certificate(data: bytes) -> Certificate:
    """A certificate in DER or PEM. Raises ValueError for anything else."""
    der = _from_pem(data)
    tag, whole, rest = _element(der)
    if tag != _SEQUENCE:
        raise ValueError("no certificate: it begins with tag %#04x" % tag)
    if rest:
        raise ValueError("%d bytes follow the certificate" % len(rest))
    fields = list(_elements(next(_elements(whole), (0, b""))[1]))
    if fields and fields[0][0] == _VERSION:
        del fields[0]
    if [tag for tag, _content in fields[:6]] != [_INTEGER] + [_SEQUENCE] * 5:
        raise ValueError("no certificate: its fields are not those of RFC 5280")
    return Certificate(
        subject=_common_name(fields[4][1]),
        issuer=_common_name(fields[2][1]),
        serial=fields[0][1].hex().lstrip("0"),
        key_id=_key_id(fields[6:]),
        sha1=hashlib.sha1(der).hexdigest(),  # nosec: a name, no proof
        sha256=hashlib.sha256(der).hexdigest(),
    )


def is_der(data: bytes) -> bool:
    """Whether a certificate is not armoured."""
    return _PEM.search(data) is None


def _from_pem(data: bytes) -> bytes:
    found = _PEM.search(data)
    if found is None:
        return data
    try:
        return base64.b64decode(b"".join(found.group(1).split()), validate=True)
    except binascii.Error as error:
        raise ValueError("no certificate: %s" % error) from error


def _element(data: bytes) -> Tuple[int, bytes, bytes]:
    """(tag, content, what follows) of the first element; tags of one byte and definite lengths, as DER has them."""
    if len(data) < 2:
        raise ValueError("the certificate ends too early")
    length, start = data[1], 2
    if length & 0x80:
        start += length & 0x7F
        length = int.from_bytes(data[2:start], "big")
    if start == 2 and data[1] & 0x80 or start + length > len(data):
        raise ValueError("the certificate ends too early")
    return data[0], data[start:start + length], data[start + length:]


def _elements(data: bytes) -> Iterator[Element]:
    while data:
        tag, content, data = _element(data)
        yield tag, content


def _common_name(name: bytes) -> str:
    """The last common name of a Name, which is a sequence of sets of (identifier, string)."""
    found = ""
    for _set, relative in _elements(name):
        for _sequence, attribute in _elements(relative):
            (_tag, identifier), (_kind, value) = list(_elements(attribute))[:2]
            if identifier == _COMMON_NAME:
                found = value.decode("utf-8", "replace")
    return found


def _key_id(fields: List[Element]) -> str:
    for tag, content in fields:
        if tag != _EXTENSIONS:
            continue
        for _sequence, extension in _elements(_element(content)[1]):
            parts = list(_elements(extension))
            if parts[:1] == [(_IDENTIFIER, _SUBJECT_KEY_ID)]:
                return _element(parts[-1][1])[1].hex()
    return ""
