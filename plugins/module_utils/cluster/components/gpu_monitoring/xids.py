# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Xids by what they ask of whoever is on call.

Source: NVIDIA, "Analyzing Xid Errors with the Xid Catalog" (docs.nvidia.com/deploy/xid-errors), for Ampere and later;
NVIDIA, "GPU memory error management" for 63, 64, 94 and 95. The driver's own word, the recovery action that Xid 154
tells of and that nvidia-smi shows, outranks every table.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Remedy:
    """What a set of Xids has in common. `meaning` and `remedy` end up in an alert: a sentence each, without its end."""

    xids: Tuple[int, ...]
    meaning: str
    remedy: str


# The GPU, or what it needs, is broken until somebody acts.
CRITICAL: Tuple[Remedy, ...] = (
    Remedy((79,), "The GPU has fallen off the bus", "drain the node and reboot it, then cycle its power; if it comes "
           "back, have the board replaced"),
    Remedy((54,), "The power cable of the GPU is not connected", "take the node out of service and check the cable"),
    Remedy((64,), "A row of the memory could not be remapped", "drain the node and reset the GPU; if it comes back, "
           "have the board replaced"),
    Remedy((95,), "An uncontained memory error: no work on the GPU can be trusted", "drain the node now and reset the "
           "GPU"),
    Remedy((48,), "An uncorrectable memory error", "drain the node and reset the GPU; Xids 63, 64, 94 and 95 beside it "
           "say more"),
    Remedy((74,), "An error of an NVLink", "check the link (`nvidia-smi nvlink -e`), reset all GPUs of the board; if "
           "it comes back, have the board looked at"),
    Remedy((46, 62, 109, 110, 119, 120, 136, 140, 143, 155, 158), "A processor or an engine of the GPU has stopped",
           "drain the node and reset the GPU"),
    Remedy((151,), "The rotation of a key failed", "drain the node and restart it"),
)

# Work may go on; somebody should look, or plan a reset.
WARNING: Tuple[Remedy, ...] = (
    Remedy((63, 156, 160, 161), "A part of the memory is to be taken out of use", "reset the GPU at the next drain"),
    Remedy((94,), "A contained memory error: the application that had the memory has ended", "start the application "
           "again, and reset the GPU at the next drain"),
    Remedy((144, 145, 146, 147, 148, 149, 150), "An error of NVLink 5", "if the kernel log calls it fatal, follow the "
           "recovery action (`nvidia-smi -q`); if not, watch whether it comes back"),
    Remedy((154,), "The driver asks for a recovery action", "read it (`nvidia-smi -q`, GPU Recovery Action) and follow "
           "it"),
    Remedy((92, 121, 157), "Many errors, all corrected", "watch the rate; if it stays, have the board looked at"),
    Remedy((61, 122, 123, 124, 125), "A fault inside of the board", "if it comes back, take the GPU out of "
           "service and have the board looked at"),
    Remedy((78, 159, 162, 163, 164, 165), "A fault of vGPU, of unified memory or of power smoothing", "check versions "
           "and settings of the driver"),
)
OF_NO_TABLE = Remedy((), "An Xid that NVIDIA's catalogue has no action for", "read the kernel log and the recovery "
                     "action (`nvidia-smi -q`)")

# Made by what runs on the GPU: nothing is wrong with the GPU unless they come from work of several kinds.
APPLICATION: Tuple[int, ...] = (
    8, 11, 13, 25, 31, 32, *range(37, 42), 43, 44, 45, 47, 60, *range(65, 74), 75, 76, 77, 80, *range(82, 87), 88, 89,
    93, *range(96, 109), *range(126, 136), 137, 139, 141, 142, 152, 153,
)
# Of these, the ones that a fault of the GPU makes too: repeated, they are a reason to test it.
SUSPICIOUS: Tuple[int, ...] = (13, 31)


def codes(remedies: Tuple[Remedy, ...]) -> Tuple[int, ...]:
    """Every Xid of a table, in ascending order."""
    return tuple(sorted(xid for remedy in remedies for xid in remedy.xids))


def explained(remedies: Tuple[Remedy, ...], otherwise: Remedy) -> str:
    """Prometheus' template of what an alert's label `xid` means and asks for, in two sentences."""
    parts = []
    for remedy in remedies:
        known = " ".join('"%d"' % xid for xid in remedy.xids)
        parts.append("if eq $labels.xid %s }}%s" % (known, _sentences(remedy)))
    return "{{ %s{{ else }}%s{{ end }}" % ("{{ else ".join(parts), _sentences(otherwise))


def _sentences(remedy: Remedy) -> str:
    return "%s. To do: %s." % (remedy.meaning, remedy.remedy)
