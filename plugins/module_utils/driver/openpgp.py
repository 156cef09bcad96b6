# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fingerprint of an armoured OpenPGP public key, without a keyring program (RFC 4880, sections 4, 6 and 12.2)."""
from __future__ import annotations

import base64
import binascii
import hashlib
from typing import Tuple

PUBLIC_KEY_PACKET = 6
BEGIN = "-----BEGIN PGP PUBLIC KEY BLOCK-----"
END = "-----END PGP PUBLIC KEY BLOCK-----"


def is_armoured_key(text: str) -> bool:
    return text.lstrip().startswith(BEGIN)


def fingerprint(armoured: str) -> str:
    """Fingerprint of the first key, 40 upper-case hexadecimal digits; '' when the text holds no version 4 key."""
    try:
        tag, body = _first_packet(_dearmour(armoured))
    except (ValueError, IndexError, binascii.Error):
        return ""
    if tag != PUBLIC_KEY_PACKET or body[:1] != b"\x04":
        return ""
    return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()


def _dearmour(armoured: str) -> bytes:
    block = armoured[armoured.index(BEGIN) + len(BEGIN):armoured.index(END)]
    lines = [line.strip() for line in block.strip().splitlines()]
    if "" in lines:
        lines = lines[lines.index("") + 1:]
    return base64.b64decode("".join(line for line in lines if not line.startswith("=") and ":" not in line))


def _first_packet(data: bytes) -> Tuple[int, bytes]:
    head = data[0]
    if not head & 0x80:
        raise ValueError("no packet")
    if head & 0x40:
        return head & 0x3F, _new_format_body(data)
    size = 1 << (head & 3)
    if size > 4:
        raise ValueError("no length")
    length = int.from_bytes(data[1:1 + size], "big")
    return (head >> 2) & 0x0F, data[1 + size:1 + size + length]


def _new_format_body(data: bytes) -> bytes:
    first = data[1]
    if first < 192:
        return data[2:2 + first]
    if first < 224:
        return data[3:3 + ((first - 192) << 8) + data[2] + 192]
    if first == 255:
        return data[6:6 + int.from_bytes(data[2:6], "big")]
    raise ValueError("a partial length")
