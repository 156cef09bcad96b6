# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the pod of a validation runs: the same programs as on the host, on the device that its container was given.

It comes there as text, and runs with whatever Python the image has: nothing here, nor in what it imports, needs more
than Python 3.9 and its standard library.
"""
from __future__ import annotations

import glob
import os
import re
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
_GPU = re.compile(r"nvidia([0-9]+)")
# A MIG device takes the node of its GPU instance and its own. The driver has a file for each, below the number of the
# GPU's node, that tells which (NVIDIA MIG User Guide, device nodes and capabilities)
_INSTANCES = "/proc/driver/nvidia/capabilities/gpu%s/mig/gi*"
_INSTANCE_NODE = "/dev/nvidia-caps/nvidia-cap%s"
_MINOR = re.compile(r"^DeviceFileMinor:\s*([0-9]+)", re.MULTILINE)
# Where CDI specs mount the driver's libraries, by the distributions of hosts
_DIRECTORIES = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib", "/lib64")
_MOST = 3


def main(silence: str, limit: str) -> None:
    """Say the line. silence, limit: seconds that one call, and all of it, may take."""
    sys.stdout.write(_computed(float(silence), float(limit)) + "\n")


def _computed(silence: float, limit: float) -> str:
    if not _is_glibc():
        return unable("its Python is not of glibc, which the driver's library needs")
    (proof,) = prove_all([GIVEN], replace(LEVELS[QUICK], limit=limit), silence)
    if proof.call == LIBRARY and "GLIBC_" in proof.error:
        return unable("its glibc is too old for the driver's library: %s" % proof.error)
    return line_of(proof, **{LACKS: lacking() if proof.call else [], THERE: _files(proof)})


def lacking(root: str = "") -> List[str]:
    """Nodes of the driver that the container was not given, by name; root: of another one than this."""
    lacks = [node for node in _NODES if not os.path.exists(root + node)]
    gpus = [found.group(1) for found in map(_GPU.fullmatch, sorted(os.listdir(root + "/dev"))) if found]
    return [*lacks, *([] if gpus else ["node of a GPU (/dev/nvidia0 or another)"]),
            *(name for gpu in gpus for name in _lacking_of_instances(root, gpu))]


def _lacking_of_instances(root: str, gpu: str) -> List[str]:
    """What a container would need beside what it has to open one of a GPU's MIG devices, nothing where it can."""
    wanted = [[_node_of(instance), _node_of(compute)] for instance in sorted(glob.glob(root + _INSTANCES % gpu))
              for compute in sorted(glob.glob(instance + "/ci*"))]
    lacks = [[node for node in nodes if node and not os.path.exists(root + node)] for nodes in wanted]
    if not lacks or [] in lacks:
        return []
    nearly = [nodes[0] for nodes in lacks if len(nodes) == 1]
    return [" or ".join(dict.fromkeys(nearly)) if nearly else
            "node of a MIG device (%s)" % " or ".join(" with ".join(nodes) for nodes in lacks[:_MOST])]


def _node_of(instance: str) -> str:
    """'' where its file does not tell it."""
    try:
        with open(instance + "/access", encoding="ascii") as file:
            found = _MINOR.search(file.read())
    except (OSError, ValueError):
        return ""
    return _INSTANCE_NODE % found.group(1) if found else ""


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (ValueError, OSError):
        return False


def _files(proof: Proof) -> List[str]:
    """Files of the library, where the loader does not find it."""
    if proof.call != LIBRARY:
        return []
    return sorted(path for directory in _DIRECTORIES for path in glob.glob(directory + "/libcuda.so*"))[:_MOST]
