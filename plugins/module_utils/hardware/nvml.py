# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVML, in one session: the only place that calls it. Works without it: the reason is part of the reading.

A call that reaches a wedged GPU may never come back, and a process that sleeps in the driver cannot be killed. So a
child calls NVML and says before each call which one it is; this process waits only as long as something is said, and
leaves a child behind that cannot be ended.

Facts of the interface: nvml.h of the CUDA toolkit and its Python binding nvidia-ml-py (module pynvml).
"""
from __future__ import annotations

import contextlib
import functools
import json
import os
import uuid
from dataclasses import asdict, dataclass, field, fields, replace
from types import ModuleType
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from ..core import libraries
from ..core.children import be_the_child, end, end_within, forked, listen, say
from ..core.waiting import wait_for
from .fabric_health import NOT_SUPPORTED, complaints, decoded, summary_of
from .mig import Mig
from .nvml_codes import INVALID_ARGUMENT, LACKING, NO_PERMISSION, NOT_FOUND, VERSION_MISMATCH
from .nvml_mig import read_mig
from .pci import address_of

# Seconds that one call may take: the driver itself waits up to 45 s for the processor of a sick GPU (Xid 119)
SILENCE = 60.0
# Seconds that all calls may take: GPUs that no process holds are initialised one after the other
PATIENCE = 300.0
# Seconds after which a child that nobody has ended by then ends by itself
_PARTING = 10.0
UNSTARTED = "no process can be started to call NVML: %s"
_NO_LIBRARY, _NO_DRIVER = "libnvidia-ml.so.1 is not installed", "no driver is loaded"
_SLOW = "NVML answered until its time was over, but not for all GPUs; last it was asked "

# nvml.h: nvmlGpuFabricState_t
FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")
COMPLETED = FABRIC_STATES[3]
# nvml.h: NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
RECOVERY_ACTION = 230
# Of a GPU whose use NVIDIA's vGPU software licenses
LICENSED, UNLICENSED = "licensed", "unlicensed"
# Errors that say nothing of the GPU's health, but of what it, its driver or who asks has: a driver of another release
# may take neither a structure's version nor an argument
_NO_FAULTS = (*LACKING, INVALID_ARGUMENT, NO_PERMISSION, NOT_FOUND, VERSION_MISMATCH)
# Seconds between two looks at the registration of GPUs with their fabric
REGISTRATION_PAUSE = 1.0


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML answers for it. Memory in MiB, 0 where it is the host's (GB10). error is NVML's word for a GPU that
    does not answer, error_code its number (nvml_codes.py). serial is that of the board, '' where it has none.

    mig is None on a GPU without MIG, and where mig_error says why it cannot be read: by who is not root, for one.
    fabric_state is one of FABRIC_STATES, fabric_status NVML's return code (0 is success), which counts once it is
    completed. fabric_cluster is '' where the GPU's NVLink domain is its own host. fabric_health is {} where the driver
    tells none (see fabric_health.decoded()).
    license is {} of a GPU that needs none, else {'state': LICENSED or UNLICENSED, 'product', 'expires'}.
    ecc_uncorrected is None where the GPU has no such counter; remap_pending, remap_failed and sram_exceeded are None
    where it has none or does not tell: a GPU with MIG instances does not tell of remapped rows (nvml.h). Before Ampere
    remap_pending is a page of memory that is to be retired, as no rows are remapped there.
    sram_exceeded says whether the uncorrectable errors of a cache are more than NVIDIA lets a board have.
    recovery_action is nvml.h's nvmlDeviceGpuRecoveryAction_t, 0 for none; None before driver 565.
    links_up and links_down are the numbers of its NVLinks, without those that the board has not. One that is down may
    have been down always: it has nothing at its other end, or was switched off.
    clock_reasons are nvml.h's nvmlClocksEventReason*, a bit for each; None where the driver tells none.
    """

    index: int
    uuid: str = ""
    serial: str = ""
    name: str = ""
    pci_address: str = ""
    minor: int = -1
    memory_mib: int = 0
    compute_capability: str = ""
    mig: Optional[Mig] = None
    mig_error: str = ""
    fabric_state: str = "not_supported"
    fabric_status: int = 0
    fabric_cluster: str = ""
    fabric_clique: int = 0
    fabric_health: Mapping[str, str] = field(default_factory=dict)
    fabric_summary: str = NOT_SUPPORTED
    license: Mapping[str, str] = field(default_factory=dict)
    ecc_uncorrected: Any = None
    remap_pending: Any = None
    remap_failed: Any = None
    sram_exceeded: Any = None
    recovery_action: Any = None
    links_up: Tuple[int, ...] = ()
    links_down: Tuple[int, ...] = ()
    clock_reasons: Any = None
    processes: Tuple[int, ...] = ()
    error: str = ""
    error_code: int = 0

    @property
    def is_divided(self) -> bool:
        """Whether MIG mode is on: containers then get its MIG devices, never the GPU."""
        return self.mig is not None and self.mig.current

    @property
    def mig_devices(self) -> Tuple[str, ...]:
        return () if self.mig is None else self.mig.devices

    def named(self) -> str:
        return "GPU %d (%s)" % (self.index, self.pci_address)

    @property
    def reports_fabric(self) -> bool:
        """A GPU on PCIe, and any before Hopper, reports none."""
        return not self.error and self.fabric_state != FABRIC_STATES[0]

    @property
    def waits_for_fabric(self) -> bool:
        return self.reports_fabric and (self.fabric_state != COMPLETED or self.fabric_status != 0)

    def told_registration(self) -> str:
        """'GPU 3 (0000:9d:00.0): in_progress, status 0, route unhealthy'."""
        words = [wrong for wrong, _remedy in complaints(self.fabric_health, self.fabric_summary)]
        return ", ".join(["%s: %s" % (self.named(), self.fabric_state), "status %d" % self.fabric_status, *words])


@dataclass(frozen=True)
class NvmlReading:
    """Everything NVML said. error is '' when it answered, else why it did not.

    hung:     the call that did not come back, with its GPU ('nvmlDeviceGetMemoryInfo of GPU 3'), '' when all did. gpus
              then holds those that answered before.
    left:     the process that called it, where that cannot be ended; 0 where there is none.
    excluded: addresses of GPUs that the driver was told to leave out (NVreg_ExcludedGpus): it lists them not.
    """

    driver_version: str = ""
    library_version: str = ""
    cuda_version: str = ""
    gpus: Tuple[NvmlGpu, ...] = field(default_factory=tuple)
    error: str = ""
    hung: str = ""
    left: int = 0
    excluded: Tuple[str, ...] = ()

    @property
    def is_untried(self) -> bool:
        """Whether NVML was not even asked, which says nothing of it."""
        return self.error.startswith((_NO_LIBRARY, _NO_DRIVER, UNSTARTED % ""))

    @property
    def is_cut_short(self) -> bool:
        """Whether NVML went on answering and its time was over, as where each GPU is initialized for each session."""
        return self.error.startswith(_SLOW)

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def binding() -> ModuleType:
    """NVIDIA's binding of NVML; to import it calls nothing. Raises as libraries.require() does."""
    return libraries.require("pynvml")


_readings: Dict[Tuple[str, str], NvmlReading] = {}


def reading_of(userspace: str, loaded: str, silence: float = SILENCE) -> NvmlReading:
    """The one reading of this process for an installed libnvidia-ml and a loaded driver, by their versions.

    Whoever exchanges the driver gets another one afterwards.
    """
    if not (userspace and loaded):
        return fresh_reading(userspace, loaded)
    if (userspace, loaded) not in _readings:
        _readings[userspace, loaded] = fresh_reading(userspace, loaded, silence)
    return _readings[userspace, loaded]


def fresh_reading(
    userspace: str, loaded: str, silence: float = SILENCE, patience: float = PATIENCE
) -> NvmlReading:
    """A reading of now. Without library or driver, it says so: NVML itself would load the driver."""
    if not userspace:
        return NvmlReading(error=_NO_LIBRARY)
    if not loaded:
        return NvmlReading(error=_NO_DRIVER)
    return read_nvml(silence, patience)


def await_fabric(userspace: str, loaded: str, limit: float) -> NvmlReading:
    """The reading once every GPU is registered with its fabric, at the latest after `limit` seconds.

    It is the one of this process from then on.
    """
    if userspace and loaded:
        _readings[userspace, loaded] = read_nvml(registered_within=limit)
    return reading_of(userspace, loaded)


def read_nvml(
    silence: float = SILENCE, patience: float = PATIENCE, registered_within: float = 0.0
) -> NvmlReading:
    """Open NVML and read every GPU, in a child whose end closes it. A GPU that fails does not hide the others.

    silence, patience: seconds that one call, and all calls together, may take.
    registered_within: seconds that GPUs are waited for which are not registered with their fabric.
    """
    nvml = binding()
    try:
        receiver, sender, child = forked()
    except OSError as error:
        return NvmlReading(error=UNSTARTED % os.strerror(error.errno or 0))
    if child == 0:
        be_the_child(sender, lambda: _read_all(_Announced(nvml, sender), registered_within),
                     limit=patience + registered_within + _PARTING)
    os.close(sender)
    try:
        heard, waited = listen(receiver, silence, patience + registered_within)
    finally:
        os.close(receiver)
        ended = end(child)
    return _understood(heard, waited, silence, 0 if ended else child)


class NvmlFailed(Exception):
    """A call of NVML that failed. code: nvml.h's nvmlReturn_t, 0 where NVML did not answer at all. text: its words."""

    def __init__(self, call: str, code: int, text: str) -> None:
        super().__init__("%s: %s" % (call, text))
        self.call = call
        self.code = code
        self.text = text


class Session:
    """NVML, opened once in a child and asked until it is closed.

    requests: {name: function of (binding, handle of a GPU, *arguments)}; what it returns can be JSON.
    silence:  seconds that one call may take.
    """

    def __init__(self, requests: Mapping[str, Callable[..., Any]], silence: float = SILENCE) -> None:
        self.silence = silence
        nvml = binding()
        taken, self._asking = os.pipe()
        try:
            self._hearing, sender, self._child = forked()
        except OSError as error:
            os.close(taken)
            os.close(self._asking)
            raise NvmlFailed("nvmlInit", 0, UNSTARTED % os.strerror(error.errno or 0)) from error
        if self._child == 0:
            be_the_child(sender, lambda: _answer_all(_Announced(nvml, sender), requests, taken), taken)
        os.close(taken)
        os.close(sender)
        self._lost: Optional[NvmlFailed] = None

    def ask(self, name: str, uuid: str, *arguments: Any) -> Any:
        """The answer to a request about the GPU of this UUID. Raises NvmlFailed, at once where a call hangs already."""
        if self._lost is not None:
            raise self._lost
        try:
            os.write(self._asking, (json.dumps([name, uuid, *arguments]) + "\n").encode())
        except BrokenPipeError:
            self._lost = NvmlFailed(name, 0, "the process that called NVML is gone")
            raise self._lost from None
        heard, waited = listen(self._hearing, self.silence, PATIENCE)
        said: Dict[str, Any] = {}
        for words in heard:
            said.update(words)
        call = said.get("call", name)
        if "end" not in said:
            self._lost = NvmlFailed(call, 0, "the process that called it died" if "gone" in said
                                    else "no answer after %.0f s" % waited)
            raise self._lost
        if "code" in said:
            raise NvmlFailed(call, said["code"], said["error"])
        return said["answer"]

    @property
    def lost(self) -> bool:
        """Whether a call hangs, or the child is gone: it answers nothing any more."""
        return self._lost is not None

    def close(self) -> None:
        """Have the child end; one that hangs in the driver is left to the kernel."""
        os.close(self._asking)
        os.close(self._hearing)
        end(self._child)


def forget() -> None:
    """What was read is of no use any more, as something has been changed."""
    _readings.clear()


def _answer_all(nvml: Any, requests: Mapping[str, Callable[..., Any]], taken: int) -> None:
    """In the child: answer requests until there are no more."""
    opened = False
    with os.fdopen(taken) as lines:
        for line in lines:
            name, uuid, *arguments = json.loads(line)
            end_within(PATIENCE + _PARTING)
            try:
                if not opened:
                    nvml.nvmlInit()
                    opened = True
                # A change of the MIG mode may take the GPU from the bus and back, and persistence mode that goes off
                # makes the handle of a coherent board invalid (nvml.h): handles are asked for anew
                handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
                nvml.say(answer=requests[name](nvml, handle, *arguments))
            except nvml.NVMLError as error:
                nvml.say(code=error.value, error=str(error), call=nvml.call)
            end_within(0)
            nvml.say(end=True)


class _Announced:
    """The binding, each call of which is told of before it is made. gpu is the one that is being read."""

    def __init__(self, nvml: ModuleType, sender: int) -> None:
        self.nvml = nvml
        self.sender = sender
        self.gpu: Optional[int] = None
        self.call = ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.nvml, name)
        if not name.startswith("nvml") or not callable(found):
            return found

        def announced(*arguments: Any) -> Any:
            self.call = name if self.gpu is None else "%s of GPU %s" % (name, self.gpu)
            self.say(call=self.call)
            return found(*arguments)

        return announced

    def say(self, **words: Any) -> None:
        say(self.sender, **words)


def _understood(heard: List[Dict[str, Any]], waited: float, silence: float, left: int) -> NvmlReading:
    said: Dict[str, Any] = {}
    gpus = []
    for words in heard:
        said.update(words)
        if "gpu" in words:
            gpus.append(_gpu_from(words["gpu"]))
    reading = NvmlReading(
        driver_version=said.get("driver_version", ""),
        library_version=said.get("library_version", ""),
        cuda_version=said.get("cuda_version", ""),
        gpus=tuple(gpus),
        error=said.get("error", ""),
        excluded=tuple(said.get("excluded", ())),
    )
    if "end" in said:
        return reading
    call = said.get("call", "the start of the process")
    if "gone" in said:
        return replace(reading, error="the process that called NVML died in %s" % call)
    if waited < silence and not left:
        return replace(reading, error=_SLOW + call)
    return replace(
        reading, hung=call, left=left, error="%s had not answered after %.0f s%s"
        % (call, waited, ", and the process that called it cannot be killed" if left else ""))


def _gpu_from(values: Mapping[str, Any]) -> NvmlGpu:
    known = {each.name: values[each.name] for each in fields(NvmlGpu)}
    return NvmlGpu(**dict(known, mig=known["mig"] and Mig.from_dict(known["mig"]), **{
        name: tuple(known[name]) for name in ("links_up", "links_down", "processes")}))


def _read_all(nvml: Any, registered_within: float) -> None:
    """In the child: every answer is said as soon as it is there."""
    try:
        nvml.nvmlInit()
        nvml.say(
            driver_version=nvml.nvmlSystemGetDriverVersion(),
            library_version=_optional(nvml, nvml.nvmlSystemGetNVMLVersion, ""),
            cuda_version=_cuda_version(_optional(nvml, nvml.nvmlSystemGetCudaDriverVersion, 0)),
        )
        nvml.say(excluded=_optional(nvml, lambda: _excluded(nvml), []))
        count = nvml.nvmlDeviceGetCount()
        if registered_within:
            wait_for(lambda: any(_waits_for_fabric(nvml, index) for index in range(count)), lambda waits: not waits,
                     registered_within, REGISTRATION_PAUSE)
        for index in range(count):
            nvml.gpu = index
            nvml.say(gpu=asdict(_gpu(nvml, index)))
    except nvml.NVMLError as error:
        nvml.say(error="%s (%s)" % (error, nvml.call))
    nvml.say(end=True)


def _excluded(nvml: Any) -> List[str]:
    return [address_of(nvml.nvmlGetExcludedDeviceInfoByIndex(index).pci.busId)
            for index in range(nvml.nvmlGetExcludedDeviceCount())]


def _gpu(nvml: Any, index: int) -> NvmlGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci_address = address_of(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except nvml.NVMLError as error:
        return NvmlGpu(index=index, error=str(error), error_code=error.value)
    try:
        return _answering_gpu(nvml, handle, index, pci_address)
    except nvml.NVMLError as error:
        return NvmlGpu(index=index, pci_address=pci_address, error=str(error), error_code=error.value)


def _answering_gpu(nvml: Any, handle: Any, index: int, pci_address: str) -> NvmlGpu:
    mig, mig_error = _mig(nvml, handle)
    remapped = _optional(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle), None)
    memory = _optional(nvml, lambda: nvml.nvmlDeviceGetMemoryInfo(handle), None)
    capability = _optional(nvml, lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle), None)
    up, down = _links(nvml, handle)
    return NvmlGpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        serial=_optional(nvml, lambda: nvml.nvmlDeviceGetSerial(handle), ""),
        name=nvml.nvmlDeviceGetName(handle),
        pci_address=pci_address,
        minor=_optional(nvml, lambda: nvml.nvmlDeviceGetMinorNumber(handle), -1),
        memory_mib=memory.total >> 20 if memory else 0,
        compute_capability="%d.%d" % tuple(capability) if capability else "",
        mig=mig,
        mig_error=mig_error,
        **_fabric(nvml, handle),
        license=_license(_optional(nvml, lambda: nvml.nvmlDeviceGetGridLicensableFeatures_v4(handle), None)),
        ecc_uncorrected=_optional(
            nvml,
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
            None,
        ),
        remap_pending=_retires_pages(nvml, handle) if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        sram_exceeded=_optional(nvml, lambda: _sram_exceeded(nvml, handle), None),
        recovery_action=_optional(nvml, lambda: _field(nvml, handle, RECOVERY_ACTION), None),
        links_up=up,
        links_down=down,
        clock_reasons=_clock_reasons(nvml, handle),
        # By the name of its version: behind the plain one, the binding makes no NVMLError of a driver without it
        processes=tuple(
            process.pid
            for process in _optional(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle), ())
        ),
    )


def _retires_pages(nvml: Any, handle: Any) -> Any:
    pending = _optional(nvml, lambda: nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle), None)
    return None if pending is None else bool(pending)


def _sram_exceeded(nvml: Any, handle: Any) -> Any:
    """None where the binding is older than the call."""
    if not hasattr(nvml, "c_nvmlEccSramErrorStatus_v1_t"):
        return None
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, nvml.byref(status))
    return bool(status.bThresholdExceeded)


def _field(nvml: Any, handle: Any, number: int) -> Any:
    """A number that has no call of its own; None where the driver has no such."""
    value = nvml.nvmlDeviceGetFieldValues(handle, [number])[0]
    return value.value.uiVal if value.nvmlReturn == 0 else None


def _links(nvml: Any, handle: Any) -> Tuple[Tuple[int, ...], Tuple[int, ...]]:
    """(NVLinks that are up, those that are down). They need not be numbered without a gap: whatever NVML answers of one
    that the board has not, says nothing of the GPU."""
    count = _optional(nvml, lambda: _field(nvml, handle, nvml.NVML_FI_DEV_NVLINK_LINK_COUNT), None) or 0
    active: Dict[int, bool] = {}
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        if len(active) == count:
            break
        with contextlib.suppress(nvml.NVMLError):
            active[link] = bool(nvml.nvmlDeviceGetNvLinkState(handle, link))
    return (tuple(link for link, is_up in active.items() if is_up),
            tuple(link for link, is_up in active.items() if not is_up))


def _clock_reasons(nvml: Any, handle: Any) -> Any:
    """Drivers before 535 have the call by its older name alone."""
    for call in (nvml.nvmlDeviceGetCurrentClocksEventReasons, nvml.nvmlDeviceGetCurrentClocksThrottleReasons):
        told = _optional(nvml, functools.partial(call, handle), None)
        if told is not None:
            return told
    return None


def _mig(nvml: Any, handle: Any) -> Tuple[Optional[Mig], str]:
    """(MIG of a GPU, why it cannot be read where all else of it may be)."""
    try:
        return read_mig(nvml, handle), ""
    except nvml.NVMLError as error:
        if error.value not in _NO_FAULTS:
            raise
        return None, "%s (%s)" % (error, nvml.call)


def _waits_for_fabric(nvml: Any, index: int) -> bool:
    """A GPU that does not answer registers with nothing, and is told of by who reads all of it."""
    nvml.gpu = index
    try:
        return NvmlGpu(index=index, **_fabric(nvml, nvml.nvmlDeviceGetHandleByIndex(index))).waits_for_fabric
    except nvml.NVMLError:
        return False


def _fabric(nvml: Any, handle: Any) -> Dict[str, Any]:
    """What a GPU says of its fabric, as fields of NvmlGpu. Older drivers have the older forms alone, and say that they
    do not know a newer one in several ways."""
    for structure, call in (
        (nvml.c_nvmlGpuFabricInfo_v3_t, nvml.nvmlDeviceGetGpuFabricInfoV),
        (nvml.c_nvmlGpuFabricInfo_v2_t, nvml.nvmlDeviceGetGpuFabricInfoV),
        (nvml.c_nvmlGpuFabricInfo_t, nvml.nvmlDeviceGetGpuFabricInfo),
    ):
        info = structure()
        try:
            call(handle, nvml.byref(info))
        except nvml.NVMLError:
            continue
        return _fabric_fields(info)
    return {}


def _fabric_fields(info: Any) -> Dict[str, Any]:
    cluster = bytes(info.clusterUuid)
    return {
        # The binding declares the one-byte state wider than nvml.h does
        "fabric_state": FABRIC_STATES[info.state & 0x3],
        "fabric_status": info.status,
        "fabric_cluster": str(uuid.UUID(bytes=cluster)) if any(cluster) else "",
        "fabric_clique": info.cliqueId,
        "fabric_health": decoded(info.healthMask) if hasattr(info, "healthMask") else {},
        "fabric_summary": summary_of(getattr(info, "healthSummary", 0)),
    }


def _license(told: Any) -> Dict[str, str]:
    """Of the features that a guest may have licensed one has the license, if any."""
    if told is None or not told.isGridLicenseSupported:
        return {}
    features = told.gridLicensableFeatures[:told.licensableFeaturesCount]
    licensed = next((each for each in features if each.featureState), None)
    if licensed is None:
        return {"state": UNLICENSED, "product": "", "expires": ""}
    ends = licensed.licenseExpiry
    return {"state": LICENSED, "product": _text(licensed.productName), "expires": "%04d-%02d-%02d %02d:%02d:%02d" % (
        ends.year, ends.month, ends.day, ends.hour, ends.min, ends.sec) if ends.year else ""}


def _text(told: Any) -> str:
    return told.decode("utf-8", "replace") if isinstance(told, bytes) else str(told)


def _optional(nvml: Any, read: Callable[[], Any], fallback: Any) -> Any:
    """What NVML answers, or the fallback where this GPU or this driver has no such thing."""
    try:
        return read()
    except nvml.NVMLError as error:
        if error.value not in _NO_FAULTS:
            raise
        return fallback


def _cuda_version(number: int) -> str:
    return "%d.%d" % (number // 1000, number % 1000 // 10) if number else ""
