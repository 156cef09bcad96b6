# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""OpenPGP public keys of repositories: taken apart whole, so that what is checked is all that apt will trust.

apt joins every armoured block of a key file, and gpgv takes every key in it (RFC 4880, sections 4, 6, 11.1 and 12.2).
So a file is read to its last byte, and what is written for apt is armoured anew from the packets that were read:
text between blocks, and a second block, cannot hide there. Pure.
"""
from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass
from typing import Iterator, List, Tuple

from ...core.errors import GpuOpsError

BEGIN = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
END = "-----END PGP PUBLIC KEY BLOCK-----"

PUBLIC_KEY = 6
# What belongs to a public key: signatures, subkeys, user ids and attributes, trust, marker (RFC 4880, section 4.3)
_ACCOMPANYING = (2, 10, 12, 13, 14, 17)
_BLOCK = re.compile(r"^-----BEGIN PGP ([A-Z ]+)-----[ \t]*\n(.*?)^-----END PGP ([A-Z ]+)-----", re.M | re.S)


@dataclass(frozen=True)
class KeyFile:
    """Every key that apt would trust by a file.

    armoured:     the packets, in one block and nothing beside it.
    fingerprints: of the primary keys in order, 40 upper-case hexadecimal digits; '' for a kind that is not known here.
    """

    armoured: str
    fingerprints: Tuple[str, ...]


def is_armoured(text: str) -> bool:
    return text.lstrip().startswith(BEGIN)


def read(data: bytes) -> KeyFile:
    """The keys of a file, binary or armoured. GpuOpsError for what is no public key to the last byte."""
    try:
        packets = _dearmour(data) if b"-----BEGIN PGP" in data else data
        primary = []
        for tag, body in _packets(packets):
            if tag == PUBLIC_KEY:
                primary.append(_fingerprint(body))
            elif tag not in _ACCOMPANYING or not primary:
                raise ValueError("a packet of kind %d, which does not belong to a public key" % tag)
        if not primary:
            raise ValueError("no public key")
    except (ValueError, IndexError, binascii.Error) as error:
        raise GpuOpsError(
            "packages.no_key",
            found="%d bytes that are no OpenPGP public key: %s" % (len(data), error),
            wanted="a repository's public key, binary or ASCII-armoured, and nothing beside it",
            remedy="check the key's address (a proxy or a login page may have answered in its place) and its content "
                   "(`gpg --show-keys`)",
        ) from error
    return KeyFile(_armour(packets), tuple(primary))


def packets(armoured: str) -> bytes:
    """The keys of a text that read() has made, as gpgv has its keyrings."""
    return _dearmour(armoured.encode())


def objection(armoured: str, fingerprint: str) -> str:
    """What is found in place of exactly the key whose fingerprint ends so, '' when it is that key and no other."""
    try:
        there = read(armoured.encode("utf-8", "surrogateescape")).fingerprints
    except GpuOpsError as error:
        return error.found
    if len(there) == 1 and there[0].endswith(fingerprint):
        return ""
    named = ", ".join(each or "that cannot be told" for each in there)
    return "a key with fingerprint %s" % named if len(there) == 1 else "%d keys in one file: %s" % (len(there), named)


def _dearmour(data: bytes) -> bytes:
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    packets, count = b"", 0
    for kind, body, closed in _BLOCK.findall(text + "\n"):
        if kind != "PUBLIC KEY BLOCK" or closed != kind:
            raise ValueError("a block '%s' in it" % kind)
        count += 1
        packets += base64.b64decode("".join(_body_lines(body)), validate=True)
    if count != text.count("-----BEGIN PGP"):
        raise ValueError("a block that does not end")
    return packets


def _body_lines(body: str) -> Iterator[str]:
    """Lines of base64, without headers in front of the empty line and without the checksum."""
    lines = [line.strip() for line in body.split("\n")]
    if "" in lines[:-1]:
        lines = lines[lines.index("") + 1:]
    return (line for line in lines if line and not line.startswith("="))


def _packets(data: bytes) -> Iterator[Tuple[int, bytes]]:
    """(tag, body) of every packet (RFC 4880, section 4.2)."""
    at = 0
    while at < len(data):
        head = data[at]
        if not head & 0x80:
            raise ValueError("no packet at byte %d" % at)
        if head & 0x40:
            tag, (start, length) = head & 0x3F, _new_length(data, at + 1)
        else:
            size = 1 << (head & 3)
            if size > 4:
                raise ValueError("a packet without a length")
            tag, start = (head >> 2) & 0x0F, at + 1 + size
            length = int.from_bytes(data[at + 1:start], "big")
        if start + length > len(data):
            raise ValueError("a packet that is cut short")
        yield tag, data[start:start + length]
        at = start + length


def _new_length(data: bytes, at: int) -> Tuple[int, int]:
    first = data[at]
    if first < 192:
        return at + 1, first
    if first < 224:
        return at + 2, ((first - 192) << 8) + data[at + 1] + 192
    if first == 255:
        return at + 5, int.from_bytes(data[at + 1:at + 5], "big")
    raise ValueError("a packet of partial length")


def _fingerprint(body: bytes) -> str:
    if body[:1] != b"\x04":
        return ""
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()


def _armour(packets: bytes) -> str:
    """RFC 4880, section 6.2."""
    body = base64.b64encode(packets).decode()
    lines: List[str] = [body[start:start + 64] for start in range(0, len(body), 64)]
    check = base64.b64encode(_crc24(packets).to_bytes(3, "big")).decode()
    return "\n".join([BEGIN, "", *lines, "=" + check, END, ""])


def _crc24(data: bytes) -> int:
    """RFC 4880, section 6.1."""
    value = 0xB704CE
    for byte in data:
        value ^= byte << 16
        for _bit in range(8):
            value <<= 1
            if value & 0x1000000:
                value ^= 0x1864CFB
    return value & 0xFFFFFF
