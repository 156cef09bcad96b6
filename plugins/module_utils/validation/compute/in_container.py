# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the pod of a validation runs: the same programs as on the host, on the device that its container was given.

It comes there as text, and runs with whatever Python the image has: nothing here, nor in what it imports, needs more
than Python 3.9 and its standard library.
"""
from __future__ import annotations

import glob
import os
import sys
from dataclasses import replace
from typing import List

from ...hardware.cuda import LIBRARY
from .carried import GIVEN, LACKS, THERE, line_of, unable
from .levels import LEVELS, QUICK
from .model import Proof
from .parent import prove_all

# Without these nothing computes, whichever device it is
_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
# Where CDI specs mount the driver's libraries, by the distributions of hosts
_DIRECTORIES = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/lib64")
_MOST_FILES = 3


def main(silence: str, limit: str) -> None:
    """Say the line. silence, limit: seconds that one call, and all of it, may take."""
    sys.stdout.write(_computed(float(silence), float(limit)) + "\n")


def _computed(silence: float, limit: float) -> str:
    if not _is_glibc():
        return unable("its Python is not of glibc, which the driver's library needs")
    (proof,) = prove_all([GIVEN], replace(LEVELS[QUICK], limit=limit), silence)
    if proof.call == LIBRARY and "GLIBC_" in proof.error:
        return unable("its glibc is too old for the driver's library: %s" % proof.error)
    lacks = [node for node in _NODES if not os.path.exists(node)] if proof.call else []
    return line_of(proof, **{LACKS: lacks, THERE: _files(proof)})


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False


def _files(proof: Proof) -> List[str]:
    """Files of the library, where the loader does not find it."""
    if proof.call != LIBRARY:
        return []
    return sorted(path for directory in _DIRECTORIES for path in glob.glob(directory + "/libcuda.so*"))[:_MOST_FILES]
