# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which GPUs an entry is for. Pure.

A GPU is named by its index (NVML's, in the order of the PCI bus), by its UUID or as much of it as no other has
(nvidia-smi(1) and CUDA take both), or by its PCI address, in NVML's form too ('00000000:17:00.0').

A device filter says on which boards an entry counts: a file is made for many hosts, so an entry that counts on none of
this host is for others, and nothing that it names is looked for. What any other entry names has to be there.
"""
from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Sequence, Tuple

from ..core.refusal import Refusal
from .configuration import ALL, Entry
from .model import Board

_ADDRESS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_INDEX = re.compile(r"[0-9]+")
_UUID = "gpu-"


@dataclass(frozen=True)
class Choice:
    """The entry that decides what a GPU is to be. by_name: whether it names this GPU, not just all of them."""

    board: Board
    entry: Entry
    by_name: bool


def choices(
    entries: Sequence[Entry], boards: Sequence[Board], option: str
) -> Tuple[Tuple[Choice, ...], Tuple[Refusal, ...]]:
    """(of each GPU that an entry is for the last one, by index; GPUs that entries name and that are not there).

    option: where the entries are from, for the reader of a refusal.
    """
    chosen: Dict[str, Choice] = {}
    refusals: List[Refusal] = []
    for entry in entries:
        counted_on = filtered(entry, boards)
        if not counted_on:
            continue
        found, refused = _named_in(entry, boards, option)
        refusals.extend(refused)
        for board in counted_on:
            if board.uuid in found or ALL in entry.gpus:
                chosen[board.uuid] = Choice(board, entry, board.uuid in found)
    return tuple(sorted(chosen.values(), key=lambda choice: choice.board.index)), tuple(dict.fromkeys(refusals))


def filtered(entry: Entry, boards: Sequence[Board]) -> Tuple[Board, ...]:
    """The boards on which an entry counts."""
    return tuple(board for board in boards if not entry.filters or _has_one_of(entry.filters, board))


def numbers_of(entry: Entry) -> Tuple[int, ...]:
    """The GPUs that an entry names by their index."""
    return tuple(int(word) for word in entry.gpus if _INDEX.fullmatch(word.strip()))


def meant_by(word: str, boards: Sequence[Board]) -> Tuple[Board, ...]:
    """The GPUs that a word may mean: one, unless it is none's name or too short a part of a UUID."""
    text = word.strip().lower()
    if _INDEX.fullmatch(text):
        return tuple(board for board in boards if board.index == int(text))
    address = _ADDRESS.fullmatch(text)
    if address:
        domain, bus, device, function = address.groups()
        name = "%04x:%s:%s.%s" % (int(domain or "0", 16), bus, device, function)
        return tuple(board for board in boards if board.address == name)
    whole = tuple(board for board in boards if board.uuid.lower() == text)
    if whole or not text.startswith(_UUID) or text == _UUID:
        return whole
    return tuple(board for board in boards if board.uuid.lower().startswith(text))


def named(boards: Sequence[Board]) -> str:
    """GPUs of one kind, in a sentence."""
    if len(boards) == 1:
        return boards[0].named()
    return "GPUs %s (%s)" % (", ".join(str(board.index) for board in boards), boards[0].name)


def listed(boards: Sequence[Board]) -> str:
    """GPUs with everything that they may be named by."""
    return "; ".join("%d: %s, %s, %s, %s" % (board.index, board.name, board.uuid, board.address, board.device_id)
                     for board in boards) or "none"


def _has_one_of(filters: Sequence[str], board: Board) -> bool:
    ids = (board.device_id.lower(), "%s:%s" % (board.device_id.lower(), board.subsystem_id.lower()))
    return any(text in ids for text in filters)


def _named_in(entry: Entry, boards: Sequence[Board], option: str) -> Tuple[List[str], List[Refusal]]:
    """(UUIDs of the GPUs that an entry names, what it names that is not one GPU)."""
    meant = [(word, meant_by(word, boards)) for word in entry.gpus if word != ALL]
    refusals = []
    missing = [word for word, gpus in meant if not gpus]
    if missing:
        refusals.append(Refusal(
            "mig.unknown_gpu",
            found="%s names %s; the GPUs of this host: %s" % (
                entry.where, ", ".join("'%s'" % word for word in missing), listed(boards)),
            wanted="'all', or the index, UUID or PCI address of a GPU that is there",
            remedy="correct `%s`, with PCI addresses in quotes: YAML takes them for numbers without" % option,
            option=option,
        ))
    for word, gpus in meant:
        if len(gpus) > 1:
            refusals.append(Refusal(
                "mig.ambiguous_gpu",
                found="%s names '%s', with which the UUIDs of several GPUs begin: %s" % (
                    entry.where, word, listed(gpus)),
                wanted="one GPU",
                remedy="write more of the UUID in `%s`" % option,
                option=option,
            ))
    return [gpus[0].uuid for _word, gpus in meant if len(gpus) == 1], refusals
