# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVIDIA's own nvidia-mig-parted and we, beside each other: the same file, the same GPU, the same start.

GPUOPS_MIG_TABLE names a file for the table of docs/mig.md. With GPUOPS_MIG_LABELS=all every board is tried, not one of
each kind, and those labels too that are for other boards.
"""
from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Dict, List, Tuple

import pytest
from mig_boards import WITH_MIG, default_file, profiles, table
from mig_host import MigHost

from gpulab.parts.registry import workshop

TABLE = os.environ.get("GPUOPS_MIG_TABLE", "")
ALL_LABELS = os.environ.get("GPUOPS_MIG_LABELS") == "all"
BOARDS = WITH_MIG if ALL_LABELS or TABLE else (
    "a30", "h100-nvl", *(pytest.param(board, marks=pytest.mark.variation)
                         for board in ("a100-80gb-sxm", "b200-hgx", "rtx-pro-6000-server")))
START = "all-balanced"
# mig-parted reads these at fixed places
IN_PLACE = ('mkdir -p /var/lib/gpusim && mount --bind "$0" /var/lib/gpusim && '
            'mount --bind "$0/sys/bus/pci" /sys/bus/pci && exec "$@"')
pytestmark = pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="mounts over /sys/bus/pci")


class MigParted:
    """Runs on a host's GPUs."""

    def __init__(self, host: MigHost) -> None:
        self.host = host
        self.program = next(workshop().build("mig-parted").rglob("nvidia-mig-parted"))
        (host.directory / "proc").mkdir(exist_ok=True)
        (host.directory / "proc" / "modules").write_text("nvidia 1 0 - Live 0x0\n")

    def apply(self, file: Path, label: str) -> int:
        return self.host.run("unshare", "--mount", "sh", "-c", IN_PLACE, str(self.host.directory), str(self.program),
                             "apply", "-f", str(file), "-c", label).returncode


def names_of(document: Dict[str, Any], label: str, board: str) -> List[str]:
    """Profiles that a label asks for on this board."""
    found: List[str] = []
    for entry in document["mig-configs"][label]:
        filters = entry.get("device-filter", [])
        filters = [filters] if isinstance(filters, str) else filters
        device = table(board)["gpu"]["pci_device"] + "10DE"
        if not filters or device.lower() in [each.lower() for each in filters]:
            found = list(entry.get("mig-devices") or {})
    return found


def kinds(host: MigHost) -> Counter[str]:
    return Counter(name.split("@")[0] for name in host.layout())


@pytest.mark.parametrize("board", BOARDS)
def test_what_it_makes_we_make_with_at_most_as_many_writes(
    gpus: Callable[..., MigHost], board: str, tmp_path: Path
) -> None:
    document = default_file()
    file = tmp_path / "config.yaml"
    file.write_text(repr(document).replace("True", "true").replace("False", "false"))
    ours, theirs = gpus(board), gpus(board)
    parted = MigParted(theirs)
    there = {profile.name for profile in profiles(board)}
    writes: List[Tuple[str, int, int]] = []
    for label in document["mig-configs"]:
        names = names_of(document, label, board)
        is_for_it = label in ("all-disabled", "all-enabled") or (names and there.issuperset(names))
        if not is_for_it and not ALL_LABELS:
            continue
        for host in (ours, theirs):
            host.apply(config=START)
        before = ours.writes(), theirs.writes()
        rc = parted.apply(file, label)
        answer = ours.apply(config=label, configs=document)
        written = ours.writes() - before[0], theirs.writes() - before[1]
        if is_for_it:
            assert rc == 0 and "error" not in answer, (label, answer)
            assert kinds(ours) == kinds(theirs), label
            assert [mig["current"] for mig in ours.migs()] == [mig["current"] for mig in theirs.migs()], label
            assert written[0] <= written[1], label
            writes.append((label, *written))
        elif "error" in answer:
            assert written[0] == 0, label
    assert len(writes) > 2
    if TABLE:
        with open(TABLE, "a", encoding="utf-8") as told:
            told.write("| %s | %d | %d | %d |\n" % (table(board)["gpu"]["name"], len(writes), sum(
                each[1] for each in writes), sum(each[2] for each in writes)))
