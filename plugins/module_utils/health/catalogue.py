# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What each error number of the driver means for a node. Data, as NVIDIA's catalog was on 2025-10-29. Pure.

Sources: NVIDIA "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), the numbers of
open-gpu-kernel-modules (nverror.h) where the catalog has none, NVIDIA Fabric Manager User Guide, appendix D (SXids),
NVIDIA "GPU memory error management" (containment and RMA policy).

It is of Ampere and later. What the driver itself asks for (the recovery action, Xid 154) outranks this table.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable

# What a number comes to. An event is an application's, and takes no node out; a suspicion is one that comes again on
# the same GPU from other work, and asks for a long compute check; a warning is told. Pending waits for the next drain,
# as running work is not hurt. Sick takes the GPU out of service until its remedy has been done.
EVENT, SUSPICION, WARNING, PENDING, SICK = ("event", "suspicion", "warning", "pending", "sick")
# What mends it: NVIDIA's action, in the words of this collection
NONE, RESET, BOARD_RESET, REBOOT, OUT = ("", "reset the GPU", "reset all GPUs of its NVLink board", "reboot the node",
                                         "take the GPU out of service and return it to its vendor")


@dataclass(frozen=True)
class Meaning:
    """What a number means.

    text:        for people.
    kind:        one of those above.
    remedy:      what mends it, NONE where nothing has to be mended.
    by_severity: whether the line itself says if it is fatal: one that is not is a warning.
    """

    text: str
    kind: str
    remedy: str = NONE
    by_severity: bool = False


def _rows(numbers: Iterable[int], meaning: Meaning) -> Dict[int, Meaning]:
    return dict.fromkeys(numbers, meaning)


XIDS: Dict[int, Meaning] = {
    13: Meaning("graphics engine exception", SUSPICION),
    31: Meaning("memory access fault of an application", SUSPICION),
    **_rows((8, 11, 25, 32, 68, 69, 80), Meaning("error of an application", EVENT)),
    **_rows((*range(39, 42), *range(70, 73), *range(75, 78), 85, *range(126, 136)),
            Meaning("exception of an engine, of an application", EVENT)),
    **_rows((43, 44, 66, 67, 93, 106, 107, 137, 141), Meaning("a channel that was stopped, or a test", EVENT)),
    45: Meaning("work that was removed, for the reason of another error", EVENT),
    46: Meaning("the GPU stopped to answer", SICK, RESET),
    48: Meaning("uncorrectable memory error", SICK, RESET),
    54: Meaning("power cable", SICK, OUT),
    61: Meaning("internal microcontroller error", SICK, OUT),
    62: Meaning("internal microcontroller halt", SICK, RESET),
    63: Meaning("a row of memory is remapped at the next reset", PENDING, RESET),
    64: Meaning("a row of memory could not be remapped", SICK, OUT),
    74: Meaning("NVLink error", SICK, BOARD_RESET),
    **_rows((78, 159, *range(162, 166)), Meaning("software: vGPU, unified memory, power smoothing", WARNING)),
    79: Meaning("the GPU has fallen off the bus", SICK, REBOOT),
    **_rows((92, 121, 157), Meaning("many corrected errors", WARNING)),
    94: Meaning("contained memory error: one application was hurt", PENDING, RESET),
    95: Meaning("uncontained memory error", SICK, RESET),
    **_rows((109, 110, 119, 120, 136, 140, 143, 155, 158),
            Meaning("time-out of an engine or of the GPU's processor", SICK, RESET)),
    **_rows((*range(122, 126), 142), Meaning("error of the board's memory for its identity", SICK, OUT)),
    **_rows(range(144, 151), Meaning("NVLink 5 error", SICK, RESET, by_severity=True)),
    151: Meaning("rotation of confidential keys failed", SICK, REBOOT),
    154: Meaning("the driver asks for another recovery action", WARNING),
    **_rows((156, 160, 161), Meaning("a resource or a memory channel is retired at the next reset", PENDING, RESET)),
    **_rows((167, 168, 169, 171, 172, *range(173, 177)), Meaning("not in NVIDIA's catalog", WARNING)),
}
UNKNOWN = Meaning("not known to this collection", WARNING)

# Always fatal to the fabric (Fabric Manager User Guide, appendix D): the host restarts
FATAL_SXIDS: FrozenSet[int] = frozenset({10003, 12020, 22003, 22011, *range(23001, 23018)})
HARMLESS_SXIDS: FrozenSet[int] = frozenset({11004, 12028, 19084, 20001, 20009, 20012, 22013})


def xid(number: int) -> Meaning:
    return XIDS.get(number, UNKNOWN)


def sxid(number: int, is_fatal: bool) -> Meaning:
    """Of an NVSwitch. is_fatal: what the line itself says, which counts where the guide leaves it to the port."""
    if number in FATAL_SXIDS or (is_fatal and number not in HARMLESS_SXIDS):
        return Meaning("fatal error of an NVSwitch", SICK, REBOOT)
    return Meaning("error of an NVSwitch", WARNING)
