# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Virtual GPUs of a guest: what their PCI configuration space says of the vGPU manager below.

NVIDIA's vGPU manager gives each a vendor-specific capability that begins with 'VF' and holds records of a number and
a length; record 0 has the manager's version (internal/vgpu of NVIDIA/k8s-device-plugin). Device ids are those of the
whole GPU, so nothing else on the bus tells the two apart.
"""
from __future__ import annotations

from typing import Iterator, Optional

# Of a manager that does not tell its version
UNTOLD = "unknown"
# PCI Local Bus Specification 3.0, 6.1 and 6.7: header, and its list of capabilities
_WHOLE = 256
_STATUS, _HAS_CAPABILITIES = 0x06, 0x10
_FIRST = 0x34
_VENDOR_SPECIFIC = 0x09
_SIGNATURE = b"VF"
_RECORDS = 5
_VERSION_LENGTH = 10


def manager_of(config: bytes) -> str:
    """Version of the vGPU manager below a virtual GPU, UNTOLD where it does not tell; '' of a whole GPU.

    config: the configuration space; only root reads more than its first 64 bytes, and to others every GPU is whole.
    """
    found = next((each for each in _vendor_specific(config) if each[3:5] == _SIGNATURE), None)
    if found is None:
        return ""
    return _version(found) or UNTOLD


def _vendor_specific(config: bytes) -> Iterator[bytes]:
    if len(config) < _WHOLE or not config[_STATUS] & _HAS_CAPABILITIES:
        return
    place, seen = config[_FIRST], set()
    while place and place not in seen and place + 2 < len(config) and config[place] != 0xFF:
        seen.add(place)
        if config[place] == _VENDOR_SPECIFIC:
            yield config[place:place + config[place + 2]]
        place = config[place + 1]


def _version(capability: bytes) -> Optional[str]:
    place = _RECORDS
    while place + 1 < len(capability):
        number, length = capability[place], capability[place + 1]
        if number == 0:
            text = capability[place + 2:place + 2 + _VERSION_LENGTH].split(b"\0")[0]
            return text.decode("ascii", "replace")
        if not length:
            return None
        place += length
    return None
