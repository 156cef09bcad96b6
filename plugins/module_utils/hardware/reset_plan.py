# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a reset of GPUs takes: who has to be reset together, and what is in the way. Pure.

Rules of nvidia-smi(1), --gpu-reset. The act is in reset.py.
"""
from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Collection, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from ..core.plan import Plan, Step
from ..core.refusal import Refusal
from .holders import POD
from .pci import address_of

FINISH = "reset.finish"
# nvml.h, nvmlDeviceArchitecture_t
AMPERE, HOPPER = 7, 9
_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)


@dataclass(frozen=True)
class Resettable:
    """A GPU as a reset of it is planned.

    minor:        of its device node, -1 where nobody tells it.
    architecture: nvml.h's number, 0 of a GPU that does not answer.
    joined:       UUIDs of all GPUs that NVLink joins, itself among them; () where it leads nowhere, or does not matter.
    needs_fabric: whether it is reset without these only while the fabric manager runs: NVSwitches join them, or
                  nvidia-smi wanted them too.
    supported:    whether it can be reset without a boot of the host.
    guest:        version of the vGPU manager whose guest's it is, '' of a whole GPU.
    ecc, pending: whether ECC is on, and whether it is after a reset; None without ECC.
    instances:    its MIG instances, as 'PROFILE:START'.
    returns:      whether the unit of the MIG layout makes exactly these anew.
    holders:      who has it, by name, without those that are let go.
    """

    uuid: str
    address: str
    name: str = ""
    minor: int = -1
    architecture: int = 0
    joined: Tuple[str, ...] = ()
    needs_fabric: bool = False
    supported: bool = True
    guest: str = ""
    ecc: Optional[bool] = None
    pending: Optional[bool] = None
    instances: Tuple[str, ...] = ()
    returns: bool = False
    holders: Tuple[str, ...] = ()

    def named(self) -> str:
        return self.name or "GPU %s" % self.address


def joined(links: Mapping[str, Sequence[str]]) -> Dict[str, Tuple[str, ...]]:
    """{PCI address of a GPU with NVLinks: those of all GPUs that they join, over others and over switches too}. Pure.

    links: {GPU: where its links lead}.
    """
    return {gpu: tuple(sorted(group.intersection(links))) for group in _groups(links)
            for gpu in group.intersection(links)}


def switched(links: Mapping[str, Sequence[str]], gpus: Collection[str]) -> Set[str]:
    """PCI addresses of GPUs whose NVLinks lead over NVSwitches somewhere. Pure.

    gpus: PCI addresses of all GPUs of the host, as one may not answer: an end that is none of them is a switch.
    """
    return {gpu for group in _groups(links) if not group <= {*links, *gpus} for gpu in group.intersection(links)}


def _groups(links: Mapping[str, Sequence[str]]) -> List[Set[str]]:
    groups: List[Set[str]] = []
    for gpu, ends in links.items():
        if ends:
            mine = {gpu, *ends}
            apart = [group for group in groups if not group & mine]
            groups = [*apart, mine.union(*(group for group in groups if group & mine))]
    return groups


def together(gpu: Resettable, with_fabric: bool) -> Tuple[str, ...]:
    """UUIDs of the GPUs that have to be in the same command. with_fabric: whether the fabric manager runs. Pure.

    From Ampere on a GPU is reset by itself; where NVSwitches join it, as long as the fabric manager takes it out of the
    fabric and back, and from Hopper on without that.
    """
    alone = gpu.architecture >= HOPPER or (gpu.architecture >= AMPERE and (with_fabric or not gpu.needs_fabric))
    return (gpu.uuid,) if alone or not gpu.joined else gpu.joined


def refusals(
    chosen: Sequence[Resettable], ecc: Mapping[str, bool], evicted: bool, others: Sequence[Resettable] = (),
    with_fabric: bool = True
) -> Tuple[Refusal, ...]:
    """Why GPUs are not reset. Pure.

    ecc:     {UUID: ECC mode that the reset is to bring}.
    evicted: whether pods that have them will be gone by then.
    others:  further GPUs of the host.
    """
    found: List[Refusal] = []
    uuids = {gpu.uuid for gpu in chosen}
    for gpu in chosen:
        if gpu.guest:
            found.append(unsupported(gpu.named(), "it is a virtual one, of vGPU manager %s" % gpu.guest))
        elif not gpu.supported:
            found.append(unsupported(gpu.named(), "the kernel knows no way to reset it"))
        if gpu.instances and not gpu.returns:
            found.append(Refusal(
                "reset.divided", "%s is divided into MIG instances, which a reset takes" % gpu.named(),
                "a GPU that is whole, or whose layout our unit makes anew",
                "divide it with the role mig, whose unit makes the layout again, or take its instances away first"))
        if gpu.uuid not in ecc and gpu.pending != gpu.ecc:
            found.append(Refusal(
                "reset.ecc_pending", "ECC of %s is set to be %s from its next reset on, not by us" % (
                    gpu.named(), "on" if gpu.pending else "off"),
                "GPUs whose ECC stays as it is with this reset",
                "take it back (`nvidia-smi -i %s -e %d`), or have it so with `ecc` in `gpus` of gpu_settings" % (
                    gpu.address, bool(gpu.ecc))))
        staying = [holder for holder in gpu.holders if not (evicted and holder.startswith(POD))]
        if staying:
            found.append(busy(gpu.named(), staying))
    missing = [gpu for gpu in others if gpu.uuid not in uuids
               and any(gpu.uuid in together(each, with_fabric) for each in chosen)]
    return (*found, *([incomplete(chosen, [gpu.named() for gpu in missing])] if missing else ()))


def busy(gpus: str, holders: Sequence[str], said: str = "") -> Refusal:
    by = ", ".join(holders) or "somebody who cannot be seen from here"
    return Refusal(
        "reset.in_use", "%s is used by %s%s" % (gpus, by, said), "a GPU that nobody has open while it is reset",
        "stop them: evict the pods (in a cluster `site` does), stop the services (an X server and nvidia_drm too), end "
        "the programs")


def unsupported(gpus: str, why: str) -> Refusal:
    return Refusal("reset.not_supported", "%s cannot be reset: %s" % (gpus, why), "a GPU that can be reset from here",
                   "reboot the host; of a virtual machine, reset the GPU on its host")


def incomplete(chosen: Sequence[Resettable], missing: Sequence[str]) -> Refusal:
    return Refusal(
        "reset.incomplete", "%s can only be reset with what NVLink joins it with: %s" % (
            ", ".join(gpu.named() for gpu in chosen), ", ".join(missing)),
        "all of them in one reset, as they cannot lose each other one by one",
        "plan again, the next plan has them; on a board with NVSwitches, start the fabric manager: from Ampere on a "
        "GPU is then reset by itself")


def missing_in(said: str, asked: Sequence[str], there: Sequence[str]) -> Tuple[str, ...]:
    """PCI addresses of GPUs of the host that nvidia-smi names beside those that it was asked for: it wants them too.

    Its sentence differs by release; the form of an address does not.
    """
    found = [address_of(each) for each in _ADDRESS.findall(said)]
    return tuple(address for address in dict.fromkeys(found) if address in there and address not in asked)


def beginning_with(unfinished: Sequence[Step], planned: Plan) -> Plan:
    """A plan that first brings back what the reset of a killed run has left, see reset.unfinished_steps()."""
    ids = {step.id for step in planned.steps}
    first = tuple(step for step in unfinished if step.id not in ids)
    return planned if planned.refusals or not first else replace(planned, steps=(*first, *planned.steps))
