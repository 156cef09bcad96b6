# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A reset of GPUs by the driver's own program: NVML has no call for it (nvml.h).

It takes a GPU that nobody has open, and persistence mode counts as somebody: it is switched off for as long as the
reset takes (nvidia-smi(1), --gpu-reset; NVIDIA/NVSentinel, pull request 1692).
"""
from __future__ import annotations

from typing import Sequence

from ..core.host import Host

# Seconds: a board's link training and the initialisation of every GPU of it
LIMIT_S = 300.0


def reset(host: Host, gpus: Sequence[str], persistent: bool) -> str:
    """What nvidia-smi says where it cannot be done, '' where it is. gpus: UUIDs or PCI addresses, reset in one act.

    persistent: whether their persistence mode is on, and is to be again.
    """
    chosen = ["nvidia-smi", "-i", ",".join(gpus)]
    if persistent:
        host.run([*chosen, "-pm", "0"], check=False, timeout=LIMIT_S)
    try:
        done = host.run([*chosen, "-r"], check=False, timeout=LIMIT_S)
    finally:
        if persistent:
            host.run([*chosen, "-pm", "1"], check=False, timeout=LIMIT_S)
    return "" if done.rc == 0 else " ".join((done.stdout + " " + done.stderr).split()) or "nothing"
