# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings of a GPU through NVML: what they are and may be, their change, and where its NVLinks lead. For nvml.Session,
see REQUESTS.

Locked clocks can be set and not be read: NVML has no call for it (nvml.h, R13). Power in watts, clocks in MHz.
"""
from __future__ import annotations

import functools
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from .nvml_codes import INVALID_ARGUMENT, LACKING
from .pci import address_of

# nvml.h, nvmlComputeMode_t; 1 was taken out of use with CUDA 8
COMPUTE_MODES = {"default": 0, "prohibited": 2, "exclusive_process": 3}
_GRAPHICS, _MEMORY = 0, 2
_MILLI = 1000
_MOST_LINKS = 18


def _get(nvml: Any, handle: Any) -> Dict[str, Any]:
    """None for what this GPU does not have. power: limit, default, least and most. ecc: now, after the next reset, and
    as the board comes. application_clocks: [memory, graphics], None while they are the default."""
    limits = _read(nvml, lambda: nvml.nvmlDeviceGetPowerManagementLimitConstraints(handle)) or (None, None)
    # Of a divided GPU each MIG device has its own (nvml.h)
    mode = _read(nvml, lambda: nvml.nvmlDeviceGetComputeMode(handle), INVALID_ARGUMENT)
    ecc = _read(nvml, lambda: nvml.nvmlDeviceGetEccMode(handle)) or (None, None)
    return {
        "power_limit": _watts(_read(nvml, lambda: nvml.nvmlDeviceGetPowerManagementLimit(handle))),
        "power_default": _watts(_read(nvml, lambda: nvml.nvmlDeviceGetPowerManagementDefaultLimit(handle))),
        "power_least": _watts(limits[0]),
        "power_most": _watts(limits[1]),
        "compute_mode": next((name for name, number in COMPUTE_MODES.items() if number == mode), None),
        "persistence": _truth(_read(nvml, lambda: nvml.nvmlDeviceGetPersistenceMode(handle))),
        "application_clocks": _application_clocks(nvml, handle),
        "accounting": _truth(_read(nvml, lambda: nvml.nvmlDeviceGetAccountingMode(handle))),
        "ecc": _truth(ecc[0]),
        "ecc_pending": _truth(ecc[1]),
        "ecc_default": _truth((_read(nvml, lambda: nvml.nvmlDeviceGetDefaultEccMode(handle)) or (None,))[0]),
        "architecture": _read(nvml, lambda: nvml.nvmlDeviceGetArchitecture(handle)) or 0,
        "fastest_gpu": _read(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _GRAPHICS)) or 0,
        "fastest_memory": _read(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _MEMORY)) or 0,
    }


def _application_clocks(nvml: Any, handle: Any) -> Optional[List[int]]:
    calls = (nvml.nvmlDeviceGetApplicationsClock, nvml.nvmlDeviceGetDefaultApplicationsClock)
    now, default = ([_read(nvml, functools.partial(call, handle, kind)) for kind in (_MEMORY, _GRAPHICS)]
                    for call in calls)
    return None if None in (*now, *default) or now == default else now


def _get_links(nvml: Any, handle: Any) -> List[str]:
    """Where the NVLinks of a GPU lead: PCI addresses of GPUs and switches, as NVML writes them."""
    found = set()
    for link in range(_MOST_LINKS):
        remote = _read(nvml, functools.partial(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link),
                       INVALID_ARGUMENT)
        if remote is not None:
            found.add(address_of(remote.busId))
    return sorted(found)


def _set_power_limit(nvml: Any, handle: Any, watts: int) -> None:
    nvml.nvmlDeviceSetPowerManagementLimit(handle, watts * _MILLI)


def _set_compute_mode(nvml: Any, handle: Any, mode: str) -> None:
    nvml.nvmlDeviceSetComputeMode(handle, COMPUTE_MODES[mode])


def _set_persistence(nvml: Any, handle: Any, wanted: bool) -> None:
    nvml.nvmlDeviceSetPersistenceMode(handle, int(wanted))


def _set_ecc(nvml: Any, handle: Any, wanted: bool) -> None:
    """From the next reset on."""
    nvml.nvmlDeviceSetEccMode(handle, int(wanted))


def _set_accounting(nvml: Any, handle: Any, wanted: bool) -> None:
    nvml.nvmlDeviceSetAccountingMode(handle, int(wanted))


def _set_application_clocks(nvml: Any, handle: Any, clocks: Sequence[int]) -> None:
    nvml.nvmlDeviceSetApplicationsClocks(handle, *clocks)


def _set_gpu_clocks(nvml: Any, handle: Any, clocks: Optional[Sequence[int]]) -> None:
    """None unlocks them."""
    if clocks is None:
        nvml.nvmlDeviceResetGpuLockedClocks(handle)
    else:
        nvml.nvmlDeviceSetGpuLockedClocks(handle, *clocks)


def _set_memory_clocks(nvml: Any, handle: Any, clocks: Optional[Sequence[int]]) -> None:
    if clocks is None:
        nvml.nvmlDeviceResetMemoryLockedClocks(handle)
    else:
        nvml.nvmlDeviceSetMemoryLockedClocks(handle, *clocks)


def _read(nvml: Any, call: Callable[[], Any], *also: int) -> Any:
    """also: codes that say of this call that the GPU has no such thing."""
    try:
        return call()
    except nvml.NVMLError as error:
        if error.value not in (*LACKING, *also):
            raise
        return None


def _watts(milliwatts: Optional[int]) -> Optional[int]:
    return None if milliwatts is None else milliwatts // _MILLI


def _truth(number: Optional[int]) -> Optional[bool]:
    return None if number is None else bool(number)


REQUESTS: Mapping[str, Callable[..., Any]] = {
    "get": _get, "power_limit": _set_power_limit, "compute_mode": _set_compute_mode, "persistence": _set_persistence,
    "ecc": _set_ecc, "application_clocks": _set_application_clocks, "accounting": _set_accounting,
    "links": _get_links,
    "gpu_clocks": _set_gpu_clocks, "memory_clocks": _set_memory_clocks,
}
