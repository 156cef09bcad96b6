# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The host's half of the validation: gather the evidence, compute, judge, keep the status files."""
from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import Any, Dict, Iterator, Mapping, Optional, Tuple

from ..cdi.observation import conflicting, elsewhere, spec_path, stale
from ..cdi.spec import Spec, read_spec
from ..core import boot_record
from ..core.errors import HostFailed
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.lock import DIRECTORY
from ..core.startup import await_startup
from ..core.waiting import FIRST_PAUSE_SECONDS
from ..hardware.devices import devices_of
from ..hardware.holders import pods_with_devices, process_of
from ..hardware.node import host_facts
from ..hardware.nvml import NvmlReading, forget, reading_of
from ..hardware.report import service_state
from ..runtime.backends.known import BACKENDS
from ..runtime.observation import observe
from ..runtime.policy import ARGUMENTS, policy_of
from ..vgpu.observation import asks_for_license
from .checks import Check, Evidence, prerequisite_of_compute, run_chain
from .compute import record
from .compute.devices import devices_to_prove
from .compute.levels import LEVELS, NONE
from .compute.model import Device, Proof
from .compute.parent import prove_all
from .proof import keep_proof, kept_proof
from .verdict import raise_if_unhealthy, remove_status_files, status_changes, write_status_files

# Locked by who computes on this host, and for how many seconds another one waits for him
_COMPUTING, _OTHERS_SECONDS = DIRECTORY + "/computing", 600.0


def validate_host(parameters: Mapping[str, Any], check_mode: bool, proves: bool = True) -> Dict[str, Any]:
    """Run the chain; {'changed', 'checks', 'devices', 'proof'}. Raises GpuOpsError naming what failed.

    proves: whether all is asked that is to be: else a host that passes is no other than it was taken for.
    """
    host = Host()
    if parameters["state"] == "absent":
        forgotten = keep_proof(host, {}, check_mode)
        return {"changed": bool(remove_status_files(host, check_mode)) or forgotten, "checks": []}
    if parameters["state"] == "proved":
        return {"changed": keep_proof(host, parameters["proof"], check_mode), "checks": []}
    await_startup(host)
    evidence = computed(host, gather(host, parameters), check_mode=check_mode)
    checks = run_chain(evidence)
    changed = bool(parameters["status_files"]) and not check_mode and bool(write_status_files(host, checks, proves))
    raise_if_unhealthy(checks, "host %s" % evidence.facts.hostname)
    if proves and not check_mode and host.is_root():
        boot_record.settle(host)
    return {"changed": changed, "checks": [check.to_dict() for check in checks],
            "compute": [proof.to_dict() for proof in evidence.proofs],
            "devices": devices_of(len(evidence.facts.gpus), evidence.nvml), "proof": kept_proof(host)}


def examine(host: Host, parameters: Mapping[str, Any]) -> Tuple[Tuple[Check, ...], bool]:
    """The checks, and whether the status files, if they are wanted, say what was found. Changes nothing.

    What a device has proved since the driver was loaded, it need not prove again.
    """
    checks = run_chain(computed(host, gather(host, parameters), trusting=True))
    return checks, not parameters["status_files"] or not status_changes(host, checks)


def gather(host: Host, parameters: Mapping[str, Any]) -> Evidence:
    """Read what the checks judge; changes nothing."""
    facts = host_facts(host)
    path = spec_path(host)
    spec = _spec(host, path)
    runtime, handlers, older = _runtime(host, parameters["handler"], facts)
    nvml = reading_of(facts.driver_userspace, facts.driver_loaded)
    return Evidence(
        facts=facts,
        nvml=nvml,
        device_nodes=tuple(name for name in host.list("/dev")
                           if name.startswith("nvidia") and not facts.lacks("/dev/" + name)),
        cdi_spec=path if spec else "",
        cdi_devices=spec.devices if spec else 0,
        cdi_version=spec.driver if spec else "",
        cdi_stale=stale(host, spec, nvml) if spec else (),
        runtime=runtime,
        handlers=handlers,
        handler=parameters["handler"],
        expected_gpus=parameters["expected_gpus"],
        runtime_older=older,
        fabric_manager=service_state(host, "nvidia-fabricmanager.service") if facts.fabric else "",
        license_asked=not facts.vgpu_manager or asks_for_license(host),
        cdi_conflicts=conflicting(path, spec, elsewhere(host, path)) if spec else (),
        compute=parameters["compute"],
    )


def computed(host: Host, evidence: Evidence, trusting: bool = False, check_mode: bool = False) -> Evidence:
    """The evidence with what came of computing on the host's devices, where nothing else is in the way.

    trusting: what a device has proved before counts. In check mode nothing of it is written down.
    """
    if evidence.compute == NONE or prerequisite_of_compute(evidence):
        return evidence
    known = _known(host, evidence, trusting)
    if None not in known.values():
        return replace(evidence, proofs=tuple(filter(None, known.values())))
    with _alone(host) as (is_alone, has_waited):
        if has_waited:
            # Who has which device by now
            forget()
            facts = evidence.facts
            evidence = replace(evidence, nvml=reading_of(facts.driver_userspace, facts.driver_loaded))
            known = _known(host, evidence, trusting)
        before = record.kept(host)
        devices = [device for device, proof in known.items() if proof is None]
        if not is_alone:
            devices = [replace(device, unknown="another validation computes on this host") for device in devices]
        proofs = tuple(record.with_earlier(before, proof) for proof in prove_all(devices, LEVELS[evidence.compute]))
        if host.is_root() and proofs:
            record.keep(host, before, evidence.compute, proofs, only_left=check_mode)
    new = {proof.device.uuid: proof for proof in proofs}
    return replace(evidence, proofs=tuple(proof or new[device.uuid] for device, proof in known.items()))


def _known(host: Host, evidence: Evidence, trusting: bool) -> Dict[Device, Optional[Proof]]:
    """Devices, and of those that need not compute what is known of them."""
    record_of_host = record.kept(host)
    devices = devices_to_prove(evidence.nvml, _programs(host, evidence.nvml), pods_with_devices(host),
                               evidence.facts.nvswitches > 0 or bool(evidence.facts.fabric),
                               bool(evidence.facts.vgpu_manager))
    return {device: record.hanging(record_of_host, device) or (
        record.trusted(record_of_host, device, evidence.compute) if trusting else None) for device in devices}


@contextlib.contextmanager
def _alone(host: Host) -> Iterator[Tuple[bool, bool]]:
    """(Whether nobody else computes on this host meanwhile, whether somebody had to be waited for): two would take
    rates from each other, and each find GPUs slow."""
    begun, is_alone = time.monotonic(), True
    with contextlib.ExitStack() as stack:
        try:
            host.make_directory(DIRECTORY, 0o700)
            stack.enter_context(host.guard(_COMPUTING, _OTHERS_SECONDS))
        except HostFailed as error:
            # Where nothing can be locked, nothing is kept either
            is_alone = error.code != "host.file_locked"
        yield is_alone, time.monotonic() - begun >= FIRST_PAUSE_SECONDS


def _programs(host: Host, nvml: NvmlReading) -> Dict[int, str]:
    """{process id: its name} of those that compute on a GPU."""
    computing = {process for gpu in nvml.gpus for process in gpu.processes}
    for gpu in nvml.gpus:
        for instance in gpu.mig.instances if gpu.mig else ():
            computing.update(process for each in instance.compute for process in each.processes)
    return {process: process_of(host, process).named() for process in computing}


def _spec(host: Host, path: str) -> Any:
    text = host.read(path)
    spec: Any = read_spec(text) if text is not None else None
    return spec if isinstance(spec, Spec) and spec.names else None


def _runtime(host: Host, handler: str, facts: HostFacts) -> Tuple[str, Tuple[str, ...], bool]:
    """(runtime and its version, handlers in effect, whether its process may not know its files).

    In effect is what the process itself says; one that does not tell knows the files if it is not older than they are.
    """
    defaults = {name: option.get("default") for name, option in ARGUMENTS.items()}
    observation = observe(host, Journal(host), policy_of(dict(defaults, handler=handler)), facts)
    service, pending = observation.service, observation.pending
    if service is None or not service.active:
        return "", (), False
    backend = BACKENDS[service.backend]
    running = backend.answer(host, service).handlers
    handlers = tuple(sorted(filter(None, running))) if running else () if pending else observation.handlers
    return "%s %d.%d" % (backend.title, *service.release), handlers, pending
