# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""NVML, in one session: the only place that calls it. Works without it: the reason is part of the reading.

Facts of the interface: nvml.h of the CUDA toolkit and its Python binding nvidia-ml-py (module pynvml).
"""
from __future__ import annotations

from dataclasses import asdict, dataclass, field
from types import ModuleType
from typing import Any, Callable, Dict, List, Tuple

from ..core import libraries

# nvml.h: nvmlGpuFabricState_t
FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")


@dataclass(frozen=True)
class NvmlGpu:
    """A GPU as NVML answers for it. Memory in MiB. error is NVML's word for a GPU that does not answer.

    mig_current and mig_pending are None on a GPU without MIG. mig_devices holds the UUIDs of MIG devices.
    fabric_state is one of FABRIC_STATES, fabric_status NVML's return code (0 is success).
    ecc_uncorrected and remap_pending are None where the GPU has no such counter.
    """

    index: int
    uuid: str = ""
    name: str = ""
    pci_address: str = ""
    minor: int = -1
    memory_mib: int = 0
    compute_capability: str = ""
    mig_current: Any = None
    mig_pending: Any = None
    mig_devices: Tuple[str, ...] = ()
    fabric_state: str = "not_supported"
    fabric_status: int = 0
    ecc_uncorrected: Any = None
    remap_pending: Any = None
    remap_failed: Any = None
    processes: Tuple[int, ...] = ()
    error: str = ""


@dataclass(frozen=True)
class NvmlReading:
    """Everything NVML said. error is '' when the session opened, else why it did not."""

    driver_version: str = ""
    library_version: str = ""
    cuda_version: str = ""
    gpus: Tuple[NvmlGpu, ...] = field(default_factory=tuple)
    error: str = ""

    def to_dict(self) -> Dict[str, Any]:
        return asdict(self)


def read_nvml() -> NvmlReading:
    """Open NVML, read every GPU, close it. A GPU that fails does not hide the others."""
    nvml = libraries.require("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return NvmlReading(error=str(error))
    try:
        return NvmlReading(
            driver_version=_optional(nvml, nvml.nvmlSystemGetDriverVersion, ""),
            library_version=_optional(nvml, nvml.nvmlSystemGetNVMLVersion, ""),
            cuda_version=_cuda_version(_optional(nvml, nvml.nvmlSystemGetCudaDriverVersion, 0)),
            gpus=tuple(_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())),
        )
    finally:
        nvml.nvmlShutdown()


def _gpu(nvml: ModuleType, index: int) -> NvmlGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        pci_address = _address(nvml.nvmlDeviceGetPciInfo(handle).busId)
    except nvml.NVMLError as error:
        return NvmlGpu(index=index, error=str(error))
    try:
        return _answering_gpu(nvml, handle, index, pci_address)
    except nvml.NVMLError as error:
        return NvmlGpu(index=index, pci_address=pci_address, error=str(error))


def _answering_gpu(nvml: ModuleType, handle: Any, index: int, pci_address: str) -> NvmlGpu:
    mig_current, mig_pending = _optional(nvml, lambda: nvml.nvmlDeviceGetMigMode(handle), (None, None))
    fabric_state, fabric_status = _fabric(nvml, handle)
    remapped = _optional(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle), None)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return NvmlGpu(
        index=index,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        name=nvml.nvmlDeviceGetName(handle),
        pci_address=pci_address,
        minor=nvml.nvmlDeviceGetMinorNumber(handle),
        memory_mib=nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20,
        compute_capability="%d.%d" % (major, minor),
        mig_current=mig_current,
        mig_pending=mig_pending,
        mig_devices=_mig_devices(nvml, handle) if mig_current else (),
        fabric_state=fabric_state,
        fabric_status=fabric_status,
        ecc_uncorrected=_optional(
            nvml,
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
            None,
        ),
        remap_pending=None if remapped is None else bool(remapped[2]),
        remap_failed=None if remapped is None else bool(remapped[3]),
        processes=tuple(
            process.pid for process in _optional(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle), ())
        ),
    )


def _mig_devices(nvml: ModuleType, handle: Any) -> Tuple[str, ...]:
    uuids: List[str] = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        device = _optional(nvml, lambda: nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index), None)  # noqa: B023
        if device is not None:
            uuids.append(nvml.nvmlDeviceGetUUID(device))
    return tuple(uuids)


def _fabric(nvml: ModuleType, handle: Any) -> Tuple[str, int]:
    info = nvml.c_nvmlGpuFabricInfo_t()
    try:
        nvml.nvmlDeviceGetGpuFabricInfo(handle, nvml.byref(info))
    except nvml.NVMLError:
        return FABRIC_STATES[0], 0
    # The binding declares the one-byte state wider than nvml.h does
    return FABRIC_STATES[info.state & 0x3], info.status


def _optional(nvml: ModuleType, read: Callable[[], Any], fallback: Any) -> Any:
    """What NVML answers, or the fallback where this GPU or this driver has no such thing."""
    try:
        return read()
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotFound,
            nvml.NVMLError_NoPermission):
        return fallback


def _address(bus_id: Any) -> str:
    """sysfs form of NVML's bus id: '00000000:17:00.0' is '0000:17:00.0'."""
    text = bus_id.decode() if isinstance(bus_id, bytes) else str(bus_id)
    domain, rest = text.lower().split(":", 1)
    return "%s:%s" % (domain[-4:], rest)


def _cuda_version(number: int) -> str:
    return "%d.%d" % (number // 1000, number % 1000 // 10) if number else ""
