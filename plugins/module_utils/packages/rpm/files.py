# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Package files of rpm: which are whole.

dnf and zypper write what they fetch under its last name, so one that was stopped leaves a file that is cut short. A
package says in its signature header how long the rest of it is (rpm's docs/manual/format_v3.md and tags.md): that is
read, and no more than that. Only reading every byte tells whether it is also sound (database.whole_files()).
"""
from __future__ import annotations

import struct
from typing import Iterable, Optional, Tuple

from ...core.host import Host

_LEAD, _LEAD_SIZE = b"\xed\xab\xee\xdb", 96
_HEADER, _HEADER_SIZE = b"\x8e\xad\xe8\x01", 16
_ENTRY_SIZE = 16
# Tags of the bytes behind the signature header, and how the number is packed: RPMSIGTAG_SIZE, RPMSIGTAG_LONGSIZE
_SIZES = {1000: ">I", 270: ">Q"}
# A signature header is far below that; what says more is none
_MOST = 1 << 20


def whole(host: Host, paths: Iterable[str]) -> Tuple[str, ...]:
    """Those of these package files that are as long as they say; one that does not say it counts as such."""
    return tuple(path for path in paths if _is_whole(host, path))


def _is_whole(host: Host, path: str) -> bool:
    found = host.stat(path)
    begin = host.read_part(path, 0, _LEAD_SIZE + _HEADER_SIZE) if found is not None else b""
    if found is None or len(begin) < _LEAD_SIZE + _HEADER_SIZE or not begin.startswith(_LEAD) or (
            not begin.startswith(_HEADER, _LEAD_SIZE)):
        return False
    entries, length = struct.unpack(">II", begin[-8:])
    if entries * _ENTRY_SIZE + length > _MOST:
        return False
    header = host.read_part(path, len(begin), entries * _ENTRY_SIZE + length)
    if len(header) < entries * _ENTRY_SIZE + length:
        return False
    rest = _rest(header, entries)
    # Whatever follows begins at a multiple of 8
    behind = -(-(len(begin) + len(header)) // 8) * 8
    return found.st_size == behind + rest if rest is not None else found.st_size > behind


def _rest(header: bytes, entries: int) -> Optional[int]:
    """Bytes behind the signature header as it tells them, None where it does not."""
    for number in range(entries):
        tag, _kind, offset, _count = struct.unpack_from(">IIII", header, number * _ENTRY_SIZE)
        form, where = _SIZES.get(tag), entries * _ENTRY_SIZE + offset
        if form is not None and where + struct.calcsize(form) <= len(header):
            return int(struct.unpack_from(form, header, where)[0])
    return None
