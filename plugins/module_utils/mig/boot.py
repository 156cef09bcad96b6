# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a boot has to do again: no GPU instance outlives a reset, a reload of the driver or a boot, and from Hopper on
MIG mode does not either (NVIDIA MIG User Guide). Pure.

A unit runs one small script, with nvidia-smi alone: no controller and none of our code is needed for it. It comes after
the daemon that keeps the driver's state and after the fabric manager, and before whatever hands out MIG devices. Its
time is bounded, and nothing requires it: a node with a GPU that hangs boots with what the others have. One GPU that
fails does not keep the others from theirs, and makes the unit fail, with its words in the journal.
"""
from __future__ import annotations

import re
import shlex
from typing import Dict, Iterable, Tuple

from ..core.boot_unit import unit_text
from ..core.runtimes import KNOWN_RUNTIMES
from ..core.steps import managed
from ..hardware.holders import WATCHERS
from ..hardware.mig import RESTORE_SCRIPT, RESTORE_UNIT, RESTORE_WANTED, Mig
from ..hardware.nvml_mig import COMPUTE_NUMBERS
from .placement import Placed

UNIT = RESTORE_UNIT
UNIT_FILE = "/etc/systemd/system/" + UNIT
WANTS = RESTORE_WANTED
SCRIPT = RESTORE_SCRIPT
AFTER = ("systemd-modules-load.service", "gpuops-nvidia-devices.service", "nvidia-persistenced.service",
         "nvidia-fabricmanager.service", "nvidia-mig-manager.service")
BEFORE = ("gpuops-nvidia-cdi.service", "nvidia-cdi-refresh.service", *WATCHERS,
          *(unit for runtime in KNOWN_RUNTIMES for unit in runtime.units), "kubelet.service")

UNIT_TEXT = unit_text("MIG layout of NVIDIA GPUs", AFTER, BEFORE, SCRIPT, job_seconds=180, start_seconds=150)

_HEAD = """set -u
failed=0

tell() {
    echo "$1" >&2
    failed=1
}

# restore GPU PROFILE:START[/COMPUTE PROFILE,...] ...
# Without compute profiles, an instance gets the one that takes all of it. A GPU that has instances is left alone.
restore() {
    gpu=$1
    shift
    nvidia-smi -i "$gpu" -mig 1 || { tell "$gpu: MIG mode cannot be switched on"; return; }
    nvidia-smi mig -i "$gpu" -lgi >/dev/null && { echo "$gpu: it has GPU instances already"; return; }
    for wanted in "$@"; do
        case $wanted in
            */*) whole= ;;
            *) whole=-C ;;
        esac
        said=$(nvidia-smi mig -i "$gpu" -cgi "${wanted%/*}" $whole) || { tell "$gpu: $wanted: $said"; continue; }
        echo "$said"
        [ -z "$whole" ] || continue
        instance=$(echo "$said" | sed -n 's/.*created GPU instance ID *\\([0-9][0-9]*\\) on.*/\\1/p')
        nvidia-smi mig -i "$gpu" -gi "$instance" -cci "${wanted#*/}" || tell "$gpu: $wanted: no compute instances"
    done
}

"""


_NUMBERED = "# GPU %d: %s, %s"
_NUMBER = re.compile(r"^# GPU (\d+): (\S+), (\S+)$", re.MULTILINE)


def script_text(
    layouts: Iterable[Tuple[str, Mig, Iterable[Placed]]], gpus: Iterable[Tuple[int, str, str]]
) -> str:
    """The script. layouts: (UUID of a GPU in MIG mode, what it can be divided into, its instances).

    gpus: (index, UUID, PCI address) of all GPUs, for the next plan: see gpus_of().
    """
    lines = []
    for uuid, mig, placed in layouts:
        words = [_word(mig, each) for each in sorted(placed, key=lambda one: one.start)]
        lines.append(" ".join(["restore", shlex.quote(uuid), *words]))
    numbers = [_NUMBERED % gpu for gpu in sorted(gpus)]
    return managed(_HEAD + "".join(line + "\n" for line in (*numbers, *sorted(lines))) + "exit $failed\n")


def gpus_of(script: str) -> Dict[int, Tuple[str, str]]:
    """{index: (UUID, PCI address)} of the GPUs for which a script was made."""
    return {int(number): (uuid, address) for number, uuid, address in _NUMBER.findall(script)}


def _word(mig: Mig, placed: Placed) -> str:
    profile = mig.profile(placed.profile)
    word = "%d:%d" % (placed.profile, placed.start)
    if profile is not None and placed.compute == (profile.slices,):
        return word
    return "%s/%s" % (word, ",".join(str(COMPUTE_NUMBERS[slices]) for slices in placed.compute))
