# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a proof says of its device, and what to do. Pure.

Errors and their causes: cuda.h, CUresult, and what users of CUDA report of each.
"""
from __future__ import annotations

from types import MappingProxyType
from typing import Dict, Mapping, NamedTuple, Sequence, Tuple

from ...hardware.cuda import LIBRARY
from ..status import FAILED, PASSED, SKIPPED, UNKNOWN
from .limits import sheet_of, too_slow
from .model import Proof, Wrong

_FULL, _BUSY = 2, 46
# Of the programs that are ours, of a compiler that is switched off, or of the daemon that shares devices (MPS): they
# say nothing of the device
_OF_OURS = (200, 209, 218, 222, 223, 500, *range(805, 811))
# Of the host's own software, which mends them, and not of the device: a stub library, no device node, no licence, no
# compiler, a fabric that is not ready, a library of another version
_OF_HOST = (34, 100, 101, 102, 221, *range(802, 805))
_UNKNOWN_ERROR, _INIT = 999, "cuInit"
_REPLACE = "drain the node, reset the GPU and validate again; one that computes wrongly twice is to be replaced"
_KERNEL_LOG = "read the kernel log for NVRM and Xid messages"
Remedies = Mapping[int, str]
# Where the library itself is not found, there is no number
_NO_LIBRARY = 0
# By the number of an error
ON_HOST: Remedies = MappingProxyType({
    _NO_LIBRARY: "install the driver's library for computing (libcuda.so.1: role gpu_driver)",
    34: "remove the directory of the toolkit's stub libraries from the loader's path",
    100: "see that the GPU's device nodes exist (gpu_driver_activation)",
    101: "see that the GPU's device nodes exist (gpu_driver_activation)",
    102: "have the guest licensed (role vgpu_license)",
    214: "drain the node and reset the GPU; see memory_health for what is to be remapped",
    220: "drain the node and reset all GPUs of its NVLink board",
    221: "install libnvidia-ptxjitcompiler.so.1, which compiles for the GPU (role gpu_driver)",
    226: "drain the node and reset the GPU",
    802: "see that nvidia-fabricmanager runs (role fabric_manager), or the host's own in a virtual machine",
    803: "reload the driver while no process holds a GPU (gpu_driver_activation), or reboot",
    804: "remove the compatibility library of another CUDA from the loader's path",
    999: "see that /dev/nvidia-uvm exists (gpu_driver_activation), then generate the CDI spec again (cdi_spec)",
})
_SPECS_AGAIN = ("generate the CDI spec again (cdi_spec), and delete the device plugin's pod on the node, which writes "
                "one of its own")
_NODES = "%s: they have to name the device's nodes; unset CUDA_VISIBLE_DEVICES where the image sets it" % _SPECS_AGAIN
# A container has of the driver what a CDI spec mounts, and its environment from the image, the spec and webhooks
IN_CONTAINER: Remedies = {
    **ON_HOST,
    _NO_LIBRARY: "%s: they have to mount libcuda.so.1 and to run the hooks that make it known (create-symlinks, "
                 "update-ldcache); then see that the pod's runtime handler applies them (container_runtime)"
                 % _SPECS_AGAIN,
    34: "take the toolkit's stub libraries out of the loader's path of the image (LD_LIBRARY_PATH)",
    100: _NODES,
    101: _NODES,
    221: "%s: they have to mount libnvidia-ptxjitcompiler.so.1 beside libcuda.so.1; where the host lacks it too, "
         "install it (role gpu_driver)" % _SPECS_AGAIN,
    223: "unset CUDA_DISABLE_JIT and CUDA_DISABLE_PTX_JIT, which the image, the CDI spec or a webhook sets",
    803: "%s: they mount the libraries of another version than the loaded module's, unless the image brings its own"
         % _SPECS_AGAIN,
    804: "take the compatibility library of another CUDA (cuda-compat) out of the loader's path of the image "
         "(LD_LIBRARY_PATH)",
    999: "%s: they have to name /dev/nvidia-uvm; where the host lacks that, run gpu_driver_activation first"
         % _SPECS_AGAIN,
}
_LIMITED = {"to_device": "copies to it", "to_host": "copies from it", "memory": "its memory",
            "peer": "copies to a peer"}


class Verdict(NamedTuple):
    """status: one of those of ..status. evidence, remedy: '' where there is nothing to say."""

    status: str
    evidence: str
    remedy: str = ""


def judged(proof: Proof, remedies: Remedies = ON_HOST) -> Verdict:
    """What is known of a device: wrong numbers weigh more than a call that failed after them.

    What shows nothing does not lift what has failed before.
    remedies: ON_HOST or IN_CONTAINER, as it was computed there.
    """
    now = _now(proof, remedies)
    if proof.earlier and now.status in (SKIPPED, UNKNOWN):
        return Verdict(FAILED, "%s before, and nothing has passed since (%s)" % (proof.earlier, now.evidence), _REPLACE)
    return now


def _now(proof: Proof, remedies: Remedies) -> Verdict:
    # A process of ours that hangs there is no use of it
    if proof.left and proof.call:
        return _of_call(proof, remedies)
    if proof.device.unknown:
        return Verdict(UNKNOWN, proof.device.unknown)
    if proof.device.in_use:
        return Verdict(SKIPPED, "in use by %s" % ", ".join(proof.device.in_use))
    if proof.unstarted:
        return Verdict(UNKNOWN, "no process can be started: %s" % proof.unstarted)
    if proof.wrong:
        return Verdict(FAILED, "computes wrongly: %s" % _told(proof.wrong), _REPLACE)
    if proof.call:
        return _of_call(proof, remedies)
    if proof.seen < proof.multiprocessors:
        return Verdict(UNKNOWN, "%d of %d multiprocessors were seen to compute" % (proof.seen, proof.multiprocessors))
    if proof.unwritten > proof.written:
        return Verdict(UNKNOWN, "%d of %d MiB of memory could be written" % (
            proof.written >> 20, (proof.written + proof.unwritten) >> 20))
    slow = too_slow(sheet_of(proof.board), _judged_rates(proof))
    if slow:
        return Verdict(FAILED, "slow: %s" % "; ".join(
            "%s %.1f GB/s, at least %.1f expected" % (_LIMITED[what], rate, least) for what, rate, least in slow),
            "look for a link that is narrower than its slot, for throttling (nvidia-smi -q -d PERFORMANCE), and for "
            "errors of links; then drain the node and reset the GPU")
    return Verdict(PASSED, "%d multiprocessors compute%s%s" % (
        proof.multiprocessors, _told_rates(proof),
        ", %d MiB of memory hold what is written" % (proof.written >> 20) if proof.written else ""))


def _judged_rates(proof: Proof) -> Dict[str, float]:
    if proof.device.virtual:
        return {}
    return {what: rate for what, rate in proof.rates.items() if what != "peer" or proof.device.switched}


def _of_call(proof: Proof, remedies: Remedies) -> Verdict:
    if proof.left or proof.hung:
        return Verdict(FAILED, "%s had not answered%s%s" % (
            proof.call, " after %.0f s" % proof.hung if proof.hung else "",
            ", and its process (%d) cannot be ended" % proof.left if proof.left else ""),
            "%s, drain the node and reboot it: a driver that is stuck cannot be unloaded" % _KERNEL_LOG)
    if proof.died:
        return Verdict(FAILED, "the process that computed died in %s, twice" % proof.call, _KERNEL_LOG)
    told = "%s: %s%s" % (proof.call, proof.error, " (%d)" % proof.code if proof.code else "")
    if proof.code == _FULL or (proof.code == _BUSY and proof.exclusive):
        return Verdict(SKIPPED, "in use: %s" % told)
    if proof.code in _OF_OURS or (proof.code == 0 and proof.call != LIBRARY):
        # Without a number it is no call of the library's that failed, but what we made of its answer
        remedy = remedies.get(proof.code, "") if proof.code else ""
        return Verdict(UNKNOWN, told + ("; %s" % proof.log if proof.log else ""), remedy)
    return Verdict(FAILED, told, remedies.get(proof.code, _KERNEL_LOG + ", drain the node and reset the GPU"))


def is_of_host(proof: Proof) -> bool:
    """Whether what failed is the host's software alone: it says nothing of the device, well or not."""
    if not proof.call or proof.wrong or proof.left or proof.hung or proof.died:
        return False
    if proof.code == _UNKNOWN_ERROR:
        # Before there is a device it is the node of unified memory that is missing
        return proof.call == _INIT
    return proof.code in _OF_HOST or (proof.code == _NO_LIBRARY and proof.call == LIBRARY)


def _told(wrong: Sequence[Wrong], most: int = 3) -> str:
    told = ["%s at %s%s%s" % (
        each.what, each.where, ", %s instead of %s" % (each.found, each.expected) if each.expected else "",
        " (%d times)" % each.count if each.count > 1 else "") for each in wrong[:most]]
    return "; ".join([*told, *(["and %d more" % (len(wrong) - most)] if len(wrong) > most else [])])


def _told_rates(proof: Proof) -> str:
    return "".join(", %s %.1f GB/s" % (_LIMITED[what], rate) for what, rate in proof.rates.items())


def worst(verdicts: Sequence[Verdict]) -> Tuple[str, ...]:
    """The statuses that there are, the one that decides first."""
    return tuple(status for status in (FAILED, UNKNOWN, SKIPPED, PASSED) if any(
        verdict.status == status for verdict in verdicts))
