# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a boot has to set again: it is all lost with one (nvidia-smi(1)). Pure.

A unit runs one small script, with nvidia-smi alone: no controller and none of our code is needed for it. GPUs are named
by UUID, and one that is not there, or hangs, keeps none of the others from theirs: it is told, and the unit fails.
"""
from __future__ import annotations

import re
import shlex
from typing import Any, Dict, Iterable, List, Mapping, Tuple

from ..core.boot_unit import unit_text
from ..core.runtimes import KNOWN_RUNTIMES
from ..core.steps import managed
from ..hardware.settings import SETTINGS_UNIT, SETTINGS_UNIT_FILE

UNIT = SETTINGS_UNIT
UNIT_FILE = SETTINGS_UNIT_FILE
WANTS = "/etc/systemd/system/multi-user.target.wants/" + UNIT
SCRIPT = "/var/lib/gpuops/settings-restore"
STAMP = "/run/gpuops/settings"
AFTER = ("systemd-modules-load.service", "gpuops-nvidia-devices.service", "nvidia-persistenced.service")
BEFORE = ("gpuops-nvidia-mig.service", "nvidia-dcgm.service", "dcgm-exporter.service", "nvidia-mps.service",
          *(unit for runtime in KNOWN_RUNTIMES for unit in runtime.units), "kubelet.service")

UNIT_TEXT = unit_text("Settings of NVIDIA GPUs", AFTER, BEFORE, SCRIPT, job_seconds=120, start_seconds=100)

_HEAD = """set -u
done=STAMP
jobs=
mkdir -p -m 0700 "${done%/*}"
: > "$done"

# set_up GPU OPTION VALUE ...
# Each GPU by itself; one that hangs is left, and what is done is written down with the number of the loaded driver
set_up() {
    gpu=$1
    failed=0
    shift
    while [ $# -gt 1 ]; do
        timeout -k 5 60 nvidia-smi -i "$gpu" "$1" "$2"
        case $? in
            0) ;;
            124 | 137) echo "$gpu: $1 $2 does not come to an end" >&2; return 1 ;;
            *) echo "$gpu: $1 $2 cannot be set" >&2; failed=1 ;;
        esac
        shift 2
    done
    [ $failed -ne 0 ] || echo "$gpu $(stat -c %i /sys/module/nvidia)" >> "$done"
    return $failed
}

""".replace("STAMP", STAMP)
_TAIL = """
failed=0
for job in $jobs; do
    wait "$job" || failed=1
done
exit $failed
"""
_BEGIN = 'set_up %s & jobs="$jobs $!"'
_LINE = re.compile(r'^set_up (\S+) .*$', re.MULTILINE)
# nvidia-smi(1)
_MODES = {"default": "DEFAULT", "prohibited": "PROHIBITED", "exclusive_process": "EXCLUSIVE_PROCESS"}


def script_text(wanted: Iterable[Tuple[str, Mapping[str, Any], bool]], kept: Iterable[str]) -> str:
    """The script, '' where it has nothing to do.

    wanted: (UUID of a GPU, {setting: value}, whether its memory clocks have the deferred form alone).
    kept:   lines of GPUs that do not answer now, and may after a boot.
    """
    lines = [_BEGIN % " ".join(map(shlex.quote, [uuid, *_words(values, deferred)]))
             for uuid, values, deferred in sorted(wanted) if _words(values, deferred)]
    return managed(_HEAD + "\n".join(sorted([*lines, *kept])) + "\n" + _TAIL) if lines or kept else ""


def lines_of(script: str) -> Dict[str, str]:
    """{UUID of a GPU: its line} of a script."""
    return {match.group(1): match.group(0) for match in _LINE.finditer(script)}


def gives(line: str, name: str, value: Any) -> bool:
    """Whether a line of the script sets a GPU to that."""
    words = line.partition(" & ")[0].split()[2:]
    pairs = [list(pair) for pair in zip(words[::2], words[1::2])]
    return any(_words({name: value}, deferred) in pairs for deferred in (False, True))


def _words(values: Mapping[str, Any], deferred: bool) -> List[str]:
    words: List[str] = []
    if "persistence" in values:
        words += ["-pm", str(int(values["persistence"]))]
    if "power_limit" in values:
        words += ["-pl", str(values["power_limit"])]
    if "gpu_clocks" in values:
        words += ["-lgc", "%d,%d" % tuple(values["gpu_clocks"])]
    if "memory_clocks" in values:
        words += ["-lmcd", str(values["memory_clocks"][1])] if deferred else [
            "-lmc", "%d,%d" % tuple(values["memory_clocks"])]
    if "compute_mode" in values:
        words += ["-c", _MODES[values["compute_mode"]]]
    return words
