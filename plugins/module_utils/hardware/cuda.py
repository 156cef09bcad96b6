# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CUDA's driver library, by itself: the only place that calls it.

Every call may hang in the driver, and a process that has called cuInit() must not fork: all of this is for a child
(see ..core.children), which says each call before it makes it. The driver compiles the programs, as text in PTX.

Names, numbers and types: cuda.h of the CUDA toolkit. Where a function has a name with _v2, the one without is an older
interface with other types.
"""
from __future__ import annotations

import ctypes
import uuid
from typing import Any, Callable, Dict, List, Mapping, Sequence, Tuple

LIBRARY = "libcuda.so.1"
# cuda.h, CUdevice_attribute
MULTIPROCESSORS, INTEGRATED, COMPUTE_MODE = 16, 18, 20
# cuda.h, CUdevice_P2PAttribute: of pairs with NVLink between them
_NATIVE_ATOMICS = 3
# cuda.h, CUresult
OUT_OF_MEMORY, PEER_UNSUPPORTED, PEER_ALREADY, PEERS_TOO_MANY = 2, 217, 704, 711
# CU_CTX_SCHED_BLOCKING_SYNC: who waits for a kernel does so without a processor
_BLOCKING = 4
# cuda.h, CUjit_option: where the compiler writes what is wrong, and how long that may be
_ERROR_LOG, _ERROR_LOG_SIZE = 5, 6
_LOG_BYTES = 4096

_int, _uint, _size, _pointer, _text = ctypes.c_int, ctypes.c_uint, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_char_p
# An address of the device: 64 bits, which ctypes would cut to 32
_device_pointer = ctypes.c_uint64
_TYPES: Dict[str, Tuple[Any, ...]] = {
    "cuInit": (_uint,),
    "cuDeviceGetCount": (_pointer,),
    "cuDeviceGetUuid_v2": (_pointer, _int),
    "cuDeviceGetName": (_text, _int, _int),
    "cuDeviceGetAttribute": (_pointer, _int, _int),
    "cuDevicePrimaryCtxSetFlags_v2": (_int, _uint),
    "cuDevicePrimaryCtxRetain": (_pointer, _int),
    "cuDevicePrimaryCtxRelease_v2": (_int,),
    "cuCtxSetCurrent": (_pointer,),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (_pointer, _pointer),
    "cuMemAlloc_v2": (_pointer, _size),
    "cuMemFree_v2": (_device_pointer,),
    "cuMemAllocHost_v2": (_pointer, _size),
    "cuMemFreeHost": (_pointer,),
    "cuMemcpyHtoDAsync_v2": (_device_pointer, _pointer, _size, _pointer),
    "cuMemcpyDtoHAsync_v2": (_pointer, _device_pointer, _size, _pointer),
    "cuMemcpyPeerAsync": (_device_pointer, _pointer, _device_pointer, _pointer, _size, _pointer),
    "cuMemsetD8_v2": (_device_pointer, ctypes.c_ubyte, _size),
    "cuDeviceCanAccessPeer": (_pointer, _int, _int),
    "cuDeviceGetP2PAttribute": (_pointer, _int, _int, _int),
    "cuCtxEnablePeerAccess": (_pointer, _uint),
    "cuCtxDisablePeerAccess": (_pointer,),
    "cuModuleLoadDataEx": (_pointer, _text, _uint, _pointer, _pointer),
    "cuModuleUnload": (_pointer,),
    "cuModuleGetFunction": (_pointer, _pointer, _text),
    "cuLaunchKernel": (_pointer, *(_uint,) * 7, _pointer, _pointer, _pointer),
    "cuEventCreate": (_pointer, _uint),
    "cuEventRecord": (_pointer, _pointer),
    "cuEventSynchronize": (_pointer,),
    "cuEventElapsedTime": (_pointer, _pointer, _pointer),
    "cuEventDestroy_v2": (_pointer,),
}


class CudaFailed(Exception):
    """A call that failed. code: CUresult, 0 where there is no library. name: its name, log: what the compiler says."""

    def __init__(self, call: str, code: int, name: str, log: str = "") -> None:
        super().__init__("%s: %s (%d)" % (call, name, code))
        self.call = call
        self.code = code
        self.name = name
        self.log = log


class Cuda:
    """The library, and the devices that CUDA_VISIBLE_DEVICES of the environment lets it see.

    announce: is told the name of every call before it is made.
    Each method makes the calls that its name says, and raises CudaFailed for the first that does not succeed.
    """

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        announce(LIBRARY)
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise CudaFailed(LIBRARY, 0, str(error)) from error

    def call(self, name: str, *arguments: Any) -> None:
        self._announce(name)
        try:
            function = getattr(self._library, name)
        except AttributeError as error:
            raise CudaFailed(name, 0, "the library has no such function") from error
        function.argtypes, function.restype = _TYPES[name], ctypes.c_int
        code = function(*arguments)
        if code != 0:
            raise CudaFailed(name, code, self._name_of(code))

    def _name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        found = self._library.cuGetErrorName(code, ctypes.byref(text))
        return (text.value or b"").decode() if found == 0 else "an error that the library does not know"

    def open(self) -> int:
        """How many devices there are to see."""
        self.call("cuInit", 0)
        return self._number("cuDeviceGetCount")

    def _number(self, name: str, *arguments: Any) -> int:
        value = ctypes.c_int()
        self.call(name, ctypes.byref(value), *arguments)
        return value.value

    def uuid(self, device: int) -> str:
        """As NVML writes it, without the 'GPU-' or 'MIG-' that it begins with there."""
        found = (ctypes.c_ubyte * 16)()
        self.call("cuDeviceGetUuid_v2", ctypes.byref(found), device)
        return str(uuid.UUID(bytes=bytes(found)))

    def name(self, device: int) -> str:
        found = ctypes.create_string_buffer(96)
        self.call("cuDeviceGetName", found, len(found), device)
        return found.value.decode("utf-8", "replace")

    def attribute(self, device: int, attribute: int) -> int:
        return self._number("cuDeviceGetAttribute", attribute, device)

    def are_linked(self, device: int, peer: int) -> bool:
        """Whether NVLink leads from one to the other: over PCIe they may reach each other too, and copies are the
        host's business there."""
        return bool(self._number("cuDeviceCanAccessPeer", device, peer)
                    and self._number("cuDeviceGetP2PAttribute", _NATIVE_ATOMICS, device, peer))


class Context:
    """A device at work: what it has is given back when the process ends, or by close()."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self.cuda = cuda
        self.device = device
        cuda.call("cuDevicePrimaryCtxSetFlags_v2", device, _BLOCKING)
        self.handle = ctypes.c_void_p()
        cuda.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.handle), device)
        self._modules: List[ctypes.c_void_p] = []
        self.enter()

    def enter(self) -> None:
        """Calls are about this device from now on."""
        self.cuda.call("cuCtxSetCurrent", self.handle)

    def close(self) -> None:
        for module in self._modules:
            self.cuda.call("cuModuleUnload", module)
        self.cuda.call("cuDevicePrimaryCtxRelease_v2", self.device)

    def free_memory(self) -> int:
        """Bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocated(self, size: int) -> int:
        """The address of so many bytes of the device's memory."""
        address = ctypes.c_uint64()
        self.cuda.call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address.value

    def free(self, address: int) -> None:
        self.cuda.call("cuMemFree_v2", address)

    def pinned(self, size: int) -> Any:
        """So many bytes of the host's memory that the device reads and writes by itself."""
        address = ctypes.c_void_p()
        self.cuda.call("cuMemAllocHost_v2", ctypes.byref(address), size)
        return (ctypes.c_ubyte * size).from_address(address.value or 0)

    def unpin(self, memory: Any) -> None:
        self.cuda.call("cuMemFreeHost", ctypes.addressof(memory))

    def to_device(self, address: int, memory: Any, size: int) -> None:
        self.cuda.call("cuMemcpyHtoDAsync_v2", address, ctypes.addressof(memory), size, None)

    def to_host(self, memory: Any, address: int, size: int) -> None:
        self.cuda.call("cuMemcpyDtoHAsync_v2", ctypes.addressof(memory), address, size, None)

    def to_peer(self, there: Context, to: int, address: int, size: int) -> None:
        self.cuda.call("cuMemcpyPeerAsync", to, there.handle, address, self.handle, size, None)

    def read(self, address: int, size: int) -> bytes:
        """Once the device has done all that it was told."""
        memory = ctypes.create_string_buffer(size)
        self.to_host(memory, address, size)
        self.wait()
        return memory.raw

    def reach(self, peer: Context) -> bool:
        """Whether the device may reach the other's memory from now on."""
        try:
            self.cuda.call("cuCtxEnablePeerAccess", peer.handle, 0)
        except CudaFailed as failed:
            if failed.code in (PEER_UNSUPPORTED, PEERS_TOO_MANY):
                return False
            if failed.code != PEER_ALREADY:
                raise
        return True

    def let_go(self, peer: Context) -> None:
        """A device may reach eight others at a time."""
        self.cuda.call("cuCtxDisablePeerAccess", peer.handle)

    def fill(self, address: int, byte: int, size: int) -> None:
        self.cuda.call("cuMemsetD8_v2", address, byte, size)

    def wait(self) -> None:
        self.cuda.call("cuCtxSynchronize")

    def kernels(self, source: str, names: Sequence[str]) -> Mapping[str, Kernel]:
        """The kernels of a program in PTX, as the driver compiles it for this device."""
        log = ctypes.create_string_buffer(_LOG_BYTES)
        options = (ctypes.c_int * 2)(_ERROR_LOG, _ERROR_LOG_SIZE)
        # A size is passed as if it were the pointer
        values = (ctypes.c_void_p * 2)(ctypes.addressof(log), _LOG_BYTES)
        module = ctypes.c_void_p()
        try:
            self.cuda.call("cuModuleLoadDataEx", ctypes.byref(module), source.encode(), len(options), options, values)
        except CudaFailed as failed:
            failed.log = log.value.decode("utf-8", "replace").strip()
            raise
        self._modules.append(module)
        found = {}
        for name in names:
            function = ctypes.c_void_p()
            self.cuda.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
            found[name] = Kernel(self.cuda, function)
        return found

    def timed(self, work: Callable[[], None]) -> float:
        """Milliseconds that the device takes for work that it is told."""
        begun, ended, taken = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
        for event in (begun, ended):
            self.cuda.call("cuEventCreate", ctypes.byref(event), 0)
        self.cuda.call("cuEventRecord", begun, None)
        work()
        self.cuda.call("cuEventRecord", ended, None)
        self.cuda.call("cuEventSynchronize", ended)
        self.cuda.call("cuEventElapsedTime", ctypes.byref(taken), begun, ended)
        for event in (begun, ended):
            self.cuda.call("cuEventDestroy_v2", event)
        return taken.value


class Kernel:
    """A compiled program. Its numbers are of 64 bits where Python gives them as ctypes.c_uint64, else of 32."""

    def __init__(self, cuda: Cuda, function: ctypes.c_void_p) -> None:
        self._cuda = cuda
        self._function = function

    def launch(self, blocks: int, threads: int, *numbers: Any) -> None:
        """Tell the device to run it; Context.wait() tells when it has."""
        places = (ctypes.c_void_p * len(numbers))(*(ctypes.addressof(number) for number in numbers))
        self._cuda.call("cuLaunchKernel", self._function, blocks, 1, 1, threads, 1, 1, 0, None, places, None)
