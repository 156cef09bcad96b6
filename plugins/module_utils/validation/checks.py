# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The checks that decide whether a host may take GPU work. Pure: evidence in, results out.

Order matters: a check whose prerequisite is missing says so ('skipped') instead of failing for another check's reason.
What cannot be read is 'unknown': that neither takes a host out nor says that it is well. A fault that is contained, so
that work goes on beside it, passes with a word of it.
"""
from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

from ..core.facts import FABRIC_MANAGER_NVLSM, HostFacts
from ..hardware.boards import in_rack
from ..hardware.fabric_health import told_health
from ..hardware.nvml import UNLICENSED, NvmlGpu, NvmlReading
from ..hardware.recovery import asked_for
from .compute.levels import NONE, QUICK
from .compute.model import Proof
from .compute.verdict import judged, worst
from .status import FAILED, PASSED, SKIPPED, UNKNOWN


@dataclass(frozen=True)
class Evidence:
    """What the checks judge.

    device_nodes:   names under /dev that start with 'nvidia', without those that lead to no driver.
    cdi_spec:       path of the CDI spec that the container runtime would use, '' when there is none.
    cdi_devices:    number of devices in that spec.
    cdi_version:    driver version whose libraries the spec mounts.
    cdi_stale:      why the spec does not describe the host as it is, in the words of cdi_spec.
    cdi_conflicts:  files beside the spec that name devices of it.
    runtime_older:  whether the runtime's process may not know its files.
    runtime:        name and version of the container runtime, '' when none runs.
    handlers:       runtime handlers in effect.
    handler:        the handler that GPU pods ask for.
    expected_gpus:  GPUs that the host must have, None when the PCI bus is believed.
    fabric_manager: state of the fabric manager's service, '' where the board needs none.
    license_asked:  whether the service of a vGPU guest is to ask for a license.
    compute:        how thoroughly devices were to be computed on, see compute.levels.
    proofs:         what came of it, of each GPU that is not divided and each MIG device.
    """

    facts: HostFacts
    nvml: NvmlReading
    device_nodes: Tuple[str, ...]
    cdi_spec: str
    cdi_devices: int
    cdi_version: str
    runtime: str
    handlers: Tuple[str, ...]
    handler: str
    expected_gpus: Optional[int]
    cdi_stale: Tuple[str, ...] = ()
    cdi_conflicts: Tuple[str, ...] = ()
    runtime_older: bool = False
    fabric_manager: str = ""
    license_asked: bool = True
    compute: str = QUICK
    proofs: Tuple[Proof, ...] = ()


@dataclass(frozen=True)
class Check:
    """A check's verdict: what was seen, and what to do when it failed."""

    name: str
    status: str
    evidence: str
    remedy: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def run_chain(evidence: Evidence) -> Tuple[Check, ...]:
    """All checks in order; on a vGPU guest those of its own too."""
    chain = (*CHAIN, *(OF_GUESTS if evidence.facts.vgpu_manager else ()))
    return tuple(check(evidence) for check in chain)


def gpus_on_bus(evidence: Evidence) -> Check:
    name, found, wanted = "gpus_on_bus", len(evidence.facts.gpus), evidence.expected_gpus
    if found == 0:
        return Check(name, FAILED, evidence.facts.lack_of_gpus,
                     "check that the GPUs are powered and, in a virtual machine, passed through; on a host of virtual "
                     "machines, take it out of this play")
    if wanted is not None and found != wanted:
        return Check(name, FAILED, "%d GPUs on the PCI bus, %d expected" % (found, wanted),
                     "look for the missing GPU in lspci and in the firmware's event log")
    others = "".join("; %s" % gpu.named() for gpu in evidence.facts.other_gpus)
    return Check(name, PASSED, "%d GPUs on the PCI bus%s" % (found, others))


def driver_versions(evidence: Evidence) -> Check:
    name, facts = "driver_versions", evidence.facts
    kinds = [" (%s)" % kind if facts.other_module else "" for kind in (facts.module_loaded, facts.module_installed)]
    seen = "loaded %s%s, module on disk %s%s, user space %s" % (
        facts.driver_loaded or "none", kinds[0], facts.driver_installed or "none", kinds[1],
        facts.driver_userspace or "none"
    )
    if not facts.driver_loaded:
        return Check(name, FAILED, seen, "install the driver (role gpu_driver) and load it (gpu_driver_activation)")
    if not facts.driver_installed:
        return Check(name, FAILED, "%s: what is loaded could not be loaded again" % seen, _module_remedy(facts))
    if not facts.loaded_is_installed:
        return Check(name, FAILED, seen,
                     "reload the driver while no process holds a GPU (gpu_driver_activation), or reboot")
    return Check(name, PASSED, seen)


def _module_remedy(facts: HostFacts) -> str:
    """Nothing can be loaded into a running kernel that has no module on disk, so a reload is no way out."""
    if facts.boot_kernel in ("", facts.kernel):
        return "build the module for kernel %s (gpu_driver); where its files were removed, install a kernel, give it " \
               "the driver (gpu_driver) and reboot into it" % facts.kernel
    if facts.driver_boots:
        return "reboot into kernel %s, which boots next and has the module of driver %s" % (
            facts.boot_kernel, facts.driver_boots)
    return "build the module for kernel %s, which boots next (gpu_driver), then reboot" % facts.boot_kernel


def gpus_answer(evidence: Evidence) -> Check:
    name, nvml = "gpus_answer", evidence.nvml
    if nvml.hung:
        return Check(name, FAILED, "NVML: %s" % nvml.error,
                     "read the kernel log for NVRM messages, drain the node and reboot it: a driver that is stuck "
                     "cannot be unloaded")
    if nvml.error:
        return Check(name, FAILED, "NVML: %s" % nvml.error,
                     "start nvidia-persistenced, without which each session initializes all GPUs anew"
                     if nvml.is_cut_short else "read the kernel log for NVRM messages")
    silent = _silent(evidence)
    if silent:
        return Check(
            name, FAILED,
            "%d of %d GPUs answer; not answering: %s"
            % (len(evidence.facts.gpus) - len(silent), len(evidence.facts.gpus), "; ".join(silent)),
            "drain the node, then reset the named GPU or reboot; replace it if it falls off the bus again (Xid 79)",
        )
    left_out = [gpu.address for gpu in evidence.facts.gpus if gpu.address in nvml.excluded]
    return Check(name, PASSED, "NVML sees all %d GPUs of the PCI bus%s" % (
        len(evidence.facts.gpus) - len(left_out),
        ", without %s, left out by the driver's options" % ", ".join(left_out) if left_out else ""))


def recovery(evidence: Evidence) -> Check:
    """What the driver itself asks for outranks what can be worked out from its counters. A GPU whose work may end by
    itself is to get no new one, so it fails too."""
    name = "recovery"
    if evidence.nvml.error:
        return _skipped(name, "gpus_answer")
    asking = [(gpu, asked_for(gpu.recovery_action)) for gpu in evidence.nvml.gpus if gpu.recovery_action]
    if asking:
        return Check(name, FAILED, "the driver asks for it: %s" % "; ".join(
            "%s: %s (%d)" % (gpu.named(), action.asks, gpu.recovery_action) for gpu, action in asking),
            "; ".join(dict.fromkeys(action.do for _gpu, action in asking)))
    if any(gpu.recovery_action is None for gpu in evidence.nvml.gpus if not gpu.error):
        return Check(name, UNKNOWN, "drivers before 565 do not tell")
    return Check(name, PASSED, "the driver asks for no reset and no reboot")


def memory_health(evidence: Evidence) -> Check:
    name = "memory_health"
    if evidence.nvml.error:
        return _skipped(name, "gpus_answer")
    sick = ["%s: %s" % (gpu.named(), told) for gpu in evidence.nvml.gpus for told in _out_of_order(gpu)]
    if sick:
        return Check(name, FAILED, "; ".join(sick),
                     "take the named GPUs out of service and return them to their vendor: a reset does not mend them")
    contained = ["%s: %s" % (gpu.named(), told) for gpu in evidence.nvml.gpus for told in _contained(gpu)]
    untold = [gpu.named() for gpu in evidence.nvml.gpus
              if gpu.is_divided and gpu.mig_devices and gpu.remap_failed is None]
    if untold:
        return Check(name, UNKNOWN, "; ".join([
            *contained, "a GPU with MIG instances does not tell of remapped rows: %s" % ", ".join(untold)]))
    return Check(name, PASSED, "; ".join(contained)
                 or "no uncorrected memory error since the driver was loaded, no row remapping pending")


def fabric(evidence: Evidence) -> Check:
    name = "fabric"
    if evidence.nvml.error:
        return _skipped(name, "gpus_answer")
    reporting = [gpu for gpu in evidence.nvml.gpus if gpu.reports_fabric]
    waiting = [gpu for gpu in reporting if gpu.waits_for_fabric]
    if waiting:
        return Check(name, FAILED, "%d of %d GPUs are not registered with their fabric: %s" % (
            len(waiting), len(reporting), "; ".join(gpu.told_registration() for gpu in waiting)),
            _fabric_remedy(evidence.facts))
    faults = told_health(reporting, (False,))
    if faults:
        return Check(name, FAILED, "; ".join(found for found, _remedy in faults),
                     "; ".join(dict.fromkeys(remedy for _found, remedy in faults)))
    if evidence.facts.fabric and not reporting and evidence.fabric_manager != "active":
        # Boards before Hopper report no state: their programs fail with 802 until the fabric manager has run
        return Check(name, FAILED, "the board has NVSwitches, and nvidia-fabricmanager.service is %s"
                     % (evidence.fabric_manager or "unknown"), _fabric_remedy(evidence.facts))
    if not evidence.facts.fabric and not reporting:
        return Check(name, PASSED, "the board has no fabric that is configured")
    return Check(name, PASSED, "; ".join(
        ["no GPU waits for the fabric", *(found for found, _remedy in told_health(reporting, (True,)))]))


def vgpu_license(evidence: Evidence) -> Check:
    name = "vgpu_license"
    if evidence.nvml.error:
        return _skipped(name, "gpus_answer")
    lacking = [gpu.named() for gpu in evidence.nvml.gpus if gpu.license.get("state") == UNLICENSED]
    if lacking and evidence.license_asked:
        return Check(name, FAILED, "no license: %s; without one they become slow" % ", ".join(lacking),
                     "set `vgpu_license_token`, or `vgpu_license_feature_type` to 0 where none is to be asked for; see "
                     "`journalctl -u nvidia-gridd`")
    return Check(name, PASSED, "none is asked for" if lacking else "no virtual GPU lacks a license")


def device_nodes(evidence: Evidence) -> Check:
    name = "device_nodes"
    if evidence.nvml.error:
        return _skipped(name, "gpus_answer")
    wanted = ["nvidiactl", "nvidia-uvm"] + ["nvidia%d" % gpu.minor for gpu in evidence.nvml.gpus if gpu.minor >= 0]
    missing = [node for node in wanted if node not in evidence.device_nodes]
    if missing:
        return Check(name, FAILED, "missing: %s" % ", ".join("/dev/" + node for node in missing),
                     "run gpu_driver_activation, which makes them, now and at every boot")
    return Check(name, PASSED, "%d device nodes" % len(wanted))


def prerequisite_of_compute(evidence: Evidence) -> str:
    """The first check that computing would only fail for the reason of; '' where nothing is in its way."""
    for check in (gpus_on_bus, driver_versions, gpus_answer, fabric, device_nodes):
        found = check(evidence)
        if found.status in (FAILED, SKIPPED):
            return found.name
    return ""


def compute(evidence: Evidence) -> Check:
    name = "compute"
    if evidence.compute == NONE:
        return Check(name, SKIPPED, "not asked for")
    prerequisite = prerequisite_of_compute(evidence)
    if prerequisite:
        return _skipped(name, prerequisite)
    verdicts = [judged(proof) for proof in evidence.proofs]
    if not verdicts:
        return Check(name, PASSED, "there is no device: MIG mode is on, and no GPU is divided")
    status = worst(verdicts)[0]
    told = [(proof.device.name, verdict) for proof, verdict in zip(evidence.proofs, verdicts)
            if verdict.status != PASSED]
    well = "%d of %d devices compute" % (len(verdicts) - len(told), len(verdicts))
    if status == PASSED:
        return Check(name, PASSED, "%s, all multiprocessors of each" % well)
    if status == SKIPPED and len(told) < len(verdicts):
        status = PASSED
    return Check(name, status, "; ".join([well, *("%s: %s" % (device, verdict.evidence) for device, verdict in told)]),
                 "; ".join(dict.fromkeys(verdict.remedy for _device, verdict in told if verdict.remedy)))


def cdi_spec(evidence: Evidence) -> Check:
    name = "cdi_spec"
    if not evidence.cdi_spec:
        return Check(name, FAILED, "no CDI spec for nvidia.com/gpu", "run cdi_spec, or nvidia-ctk cdi generate")
    if evidence.cdi_conflicts:
        return Check(name, FAILED, "%s names devices of %s too, so containers get none of them"
                     % (", ".join(evidence.cdi_conflicts), evidence.cdi_spec),
                     "remove the file that is not kept up to date")
    if evidence.nvml.error:
        return _skipped(name, "gpus_answer")
    if evidence.cdi_stale:
        return Check(name, FAILED, "%s is stale: %s" % (evidence.cdi_spec, "; ".join(evidence.cdi_stale)),
                     "generate the spec again (cdi_spec)")
    return Check(name, PASSED, "%s names %d devices of driver %s"
                 % (evidence.cdi_spec, evidence.cdi_devices, evidence.cdi_version or "unknown"))


def runtime_handler(evidence: Evidence) -> Check:
    name = "runtime_handler"
    if not evidence.runtime:
        return Check(name, FAILED, "no container runtime runs", "start containerd or CRI-O")
    if evidence.handler not in evidence.handlers:
        seen = "%s has the handlers %s in effect" % (evidence.runtime, ", ".join(evidence.handlers) or "none")
        if evidence.runtime_older:
            return Check(name, FAILED, seen + "; its process is older than its configuration",
                         "run container_runtime, which restarts it when the change matters")
        return Check(name, FAILED, seen, "configure it with container_runtime")
    return Check(name, PASSED, "%s has the handler %s" % (evidence.runtime, evidence.handler))


CHAIN: Tuple[Callable[[Evidence], Check], ...] = (
    gpus_on_bus,
    driver_versions,
    gpus_answer,
    recovery,
    memory_health,
    fabric,
    device_nodes,
    compute,
    cdi_spec,
    runtime_handler,
)
OF_GUESTS: Tuple[Callable[[Evidence], Check], ...] = (vgpu_license,)


def _silent(evidence: Evidence) -> List[str]:
    """GPUs of the PCI bus that NVML does not answer for, each with what is known of it."""
    answering = {gpu.pci_address: gpu for gpu in evidence.nvml.gpus}
    nameless = [gpu for gpu in evidence.nvml.gpus if gpu.error and not gpu.pci_address]
    silent = []
    for gpu in evidence.facts.gpus:
        answer = answering.get(gpu.address)
        if gpu.address in evidence.nvml.excluded:
            continue
        if answer is None:
            errors = ", ".join("NVML index %d: %s" % (each.index, each.error) for each in nameless)
            silent.append("GPU %s (%s)" % (gpu.address, errors or "not listed by NVML"))
        elif answer.error:
            silent.append("GPU %d at %s (%s)" % (answer.index, gpu.address, answer.error))
    return silent


def _fabric_remedy(facts: HostFacts) -> str:
    if facts.fabric == FABRIC_MANAGER_NVLSM:
        return ("run fabric_manager: nvidia-fabricmanager runs in exactly the loaded driver's version, with nvlsm "
                "beside it and mlx5_ib and ib_umad loaded (journalctl -u nvidia-fabricmanager)")
    if facts.fabric:
        return ("run fabric_manager: nvidia-fabricmanager runs in exactly the loaded driver's version "
                "(journalctl -u nvidia-fabricmanager)")
    if any(in_rack(gpu.device_id) for gpu in facts.gpus):
        return "the rack's switches are configured from outside: check NMX on the switch trays, and nvidia-imex here"
    return ("no NVLink switch of this host is seen: in a virtual machine, look to the fabric manager of the machine "
            "that has them; on bare metal, look for the NVSwitches or their ConnectX-7 functions in lspci")


def _out_of_order(gpu: NvmlGpu) -> Iterator[str]:
    """What NVIDIA takes a board back for (A100 GPU Memory Error Management, RMA policy)."""
    if gpu.remap_failed:
        yield "a row of memory could not be remapped"
    if gpu.sram_exceeded:
        yield "the uncorrectable errors of a cache are more than its threshold"


def _contained(gpu: NvmlGpu) -> Iterator[str]:
    """What running work is not hurt by (the same, error containment)."""
    if gpu.ecc_uncorrected:
        yield "%d uncorrected ECC errors since the driver was loaded" % gpu.ecc_uncorrected
    if gpu.remap_pending:
        yield "a row or a page of memory is taken out of use at the next reset"


def _skipped(name: str, prerequisite: str) -> Check:
    return Check(name, SKIPPED, "not judged: %s failed" % prerequisite, "mend %s first" % prerequisite)
