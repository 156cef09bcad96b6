# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Images are made on hosts without GPUs: the boards of the nodes-to-be stand in for what the PCI bus does not show.

What can be verified without a GPU is planned as for those nodes, for the kernel that the image boots. Pure.
"""
from __future__ import annotations

import re
from typing import Sequence

from ..core.errors import GpuOpsError
from ..core.facts import FABRIC_MANAGER, FABRIC_MANAGER_NVLSM, Gpu, HostFacts
from .boards import BOARDS, Board, in_rack

_DEVICE_ID = re.compile(r"(?:10de:|0x)?([0-9a-f]{4})")


def foreseen(facts: HostFacts, boards: Sequence[str]) -> HostFacts:
    """The facts of a host on which one of these boards is awaited; as they are where it is there, or none is named.

    boards: names of BOARDS, or PCI device ids. Raises GpuOpsError where one is unknown, and where other GPUs are there.
    """
    awaited = tuple((name, _board_of(name)) for name in boards)
    if not awaited:
        return facts
    known = {device_id for _name, board in awaited for device_id in board.device_ids}
    others = [gpu for gpu in facts.gpus if gpu.device_id not in known]
    if others:
        raise GpuOpsError(
            "host.boards_differ",
            found=", ".join("%s (10de:%s)" % (gpu.address, gpu.device_id) for gpu in others),
            wanted="GPUs of `boards` (%s), or none" % ", ".join(boards),
            remedy="leave `boards` empty on hosts that have their GPUs, or name these too",
            option="boards",
        )
    if facts.gpus:
        return facts
    fabrics = {board.fabric for _name, board in awaited}
    return facts.but(
        gpus=tuple(Gpu(name, device_id) for name, board in awaited for device_id in board.device_ids),
        fabric=next((each for each in (FABRIC_MANAGER_NVLSM, FABRIC_MANAGER) if each in fabrics), ""),
        imex=any(in_rack(device_id) for device_id in known),
        # The kernel that runs is the builder's; it need not be one of the image at all
        kernel=facts.boot_kernel or facts.kernel,
        driver_installed=facts.driver_boots if facts.boot_kernel else facts.driver_installed,
        awaits_gpu=True,
    )


def _board_of(name: str) -> Board:
    word = name.strip().lower()
    if word in BOARDS:
        return BOARDS[word]
    match = _DEVICE_ID.fullmatch(word)
    if match is None:
        raise GpuOpsError(
            "host.board_unknown",
            found="`boards` has '%s'" % name,
            wanted="names of boards (%s), or PCI device ids such as 10de:2330" % ", ".join(sorted(BOARDS)),
            remedy="correct it; `lspci -nn -d 10de:` on a node shows its ids",
            option="boards",
        )
    same = [board for board in BOARDS.values() if match.group(1) in board.device_ids]
    return Board((match.group(1),), same[0].fabric if same else "")
