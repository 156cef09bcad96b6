# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a child does with one device, or with the peers of a host: see ..compute.parent, which starts it."""
from __future__ import annotations

import array
import contextlib
import ctypes
import os
import time
from typing import Callable, Dict, Iterator, List, Sequence, Set, Tuple

from ...hardware.cuda import COMPUTE_MODE, INTEGRATED, MULTIPROCESSORS, OUT_OF_MEMORY, Context, Cuda, CudaFailed
from .kernels import (
    FACTOR_SIZE,
    NAMES,
    PRODUCT_SIZE,
    SOURCE,
    THREADS,
    WARPS,
    WORDS_SIZE,
    expected_product,
    expected_words,
    factors,
)
from .levels import MIB, SAMPLES, Level

Say = Callable[..., None]
# Blocks of the programs that compute, for each multiprocessor: one for each of its four parts, and more than one where
# some multiprocessors got none
BLOCKS, MORE_BLOCKS = 4, 16
_ATTEMPTS = 5
# Blocks and threads that stream memory, for each multiprocessor
_STREAMING, _STREAMING_THREADS = 8, 256
# Bits of memory are written as they are, and turned over
_MASKS = (0, 0xFFFFFFFF)
# What the driver and others may need meanwhile of memory that is written as a whole
_SPARED = 256 * MIB
# The driver writes no compiled program into a home directory, and loads no libraries before they are needed
_ENVIRONMENT = {"CUDA_CACHE_DISABLE": "1", "CUDA_FORCE_PRELOAD_LIBRARIES": "0"}
# On a host it numbers devices as the bus does, and finds no daemon that shares them (MPS): its server would stay on the
# device
_OF_HOST = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MPS_PIPE_DIRECTORY": "/dev/null/none"}
# What no result is: each program has to write over it
_STALE = 0xFF
# Of the task's own environment, those that would change which device is seen, and how
_OTHERS = ("CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES", "CUDA_DISABLE_JIT", "CUDA_DISABLE_PTX_JIT",
           "CUDA_FORCE_JIT", "CUDA_FORCE_PTX_JIT",
           "CUDA_LAUNCH_BLOCKING", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MODULE_LOADING")


def prove(say: Say, uuid: str, level: Level) -> None:
    """Compute on the device of this UUID, and say everything as soon as it is known.

    uuid: '' is the one device that this container was given.
    """
    begun = time.monotonic()
    with _saying_failure(say):
        cuda, (device,) = _opened(say, [uuid]) if uuid else _given(say)
        multiprocessors = cuda.attribute(device, MULTIPROCESSORS)
        say(board=cuda.name(device), multiprocessors=multiprocessors,
            exclusive=cuda.attribute(device, COMPUTE_MODE) != 0)
        context = Context(cuda, device)
        say(started=round(time.monotonic() - begun, 3))
        _Work(say, context, multiprocessors, level).run()
        context.close()
    say(seconds=round(time.monotonic() - begun, 3))
    say(end=True)


def prove_peers(say: Say, uuids: Sequence[str], level: Level) -> None:
    """Copy from each of these GPUs to each that it reaches; says {'peer': [from, to, GB/s]} and what was wrong."""
    with _saying_failure(say):
        cuda, devices = _opened(say, uuids)
        contexts = [Context(cuda, device) for device in devices]
        for here, there in _pairs(cuda, contexts):
            _copy_to_peer(say, here, there, level)
    say(end=True)


@contextlib.contextmanager
def _saying_failure(say: Say) -> Iterator[None]:
    """The call that failed is said; that it failed ends what comes after it."""
    try:
        yield
    except CudaFailed as failed:
        say(call=failed.call, code=failed.code, error=failed.name, log=failed.log, failed=True)


def _opened(say: Say, uuids: Sequence[str]) -> Tuple[Cuda, List[int]]:
    """The library, and the numbers of these devices: it is to see them alone, in this order."""
    for name in _OTHERS:
        os.environ.pop(name, None)
    os.environ.update({**_ENVIRONMENT, **_OF_HOST}, CUDA_VISIBLE_DEVICES=",".join(uuids))
    cuda = Cuda(lambda call: say(call=call))
    count = cuda.open()
    seen = [cuda.uuid(device) for device in range(count)]
    wanted = [uuid.split("-", 1)[1] for uuid in uuids]
    if seen != wanted:
        raise CudaFailed("cuDeviceGetUuid_v2", 0, "the library shows %s, not %s" % (
            ", ".join(seen) or "no device", ", ".join(wanted)))
    return cuda, list(range(count))


def _given(say: Say) -> Tuple[Cuda, List[int]]:
    """The library and the device as a container has them: what its environment says is a part of that."""
    os.environ.update(_ENVIRONMENT)
    cuda = Cuda(lambda call: say(call=call))
    count = cuda.open()
    if count != 1:
        raise CudaFailed("cuDeviceGetCount", 0, "the library shows %d devices, not one" % count)
    return cuda, [0]


class _Work:
    """What is done with one device."""

    def __init__(self, say: Say, context: Context, multiprocessors: int, level: Level) -> None:
        self.say = say
        self.context = context
        self.multiprocessors = multiprocessors
        self.level = level
        self.kernels = context.kernels(SOURCE, NAMES)

    def run(self) -> None:
        self.prove()
        self.multiply()
        self.copy()
        if self.level.streamed:
            self.stream()
        # What is the host's own memory is not the GPU's to be tested
        if self.level.patterns and not self.context.cuda.attribute(self.context.device, INTEGRATED):
            self.write_memory()

    def prove(self) -> None:
        """Every multiprocessor, until each has been seen or it is clear that one gets no work."""
        expected = expected_words(self.level.rounds)
        seen: Set[int] = set()
        for launch in range(self.level.launches + _ATTEMPTS):
            done = launch >= self.level.launches
            if done and len(seen) >= self.multiprocessors:
                break
            blocks = self.multiprocessors * (MORE_BLOCKS if done else BLOCKS)
            results, places = self._proved(blocks)
            seen.update(places)
            self.say(seen=len(seen))
            self._compare_blocks("prove", results, expected, places)

    def _proved(self, blocks: int) -> Tuple[bytes, Sequence[int]]:
        results, places = (self.context.allocated(size) for size in (blocks * WORDS_SIZE, blocks * 4))
        self.context.fill(results, _STALE, blocks * WORDS_SIZE)
        self.context.fill(places, _STALE, blocks * 4)
        self.kernels["prove"].launch(blocks, THREADS, ctypes.c_uint64(results), ctypes.c_uint64(places),
                                     ctypes.c_uint32(self.level.rounds))
        found = self.context.read(results, blocks * WORDS_SIZE), array.array("I", self.context.read(places, blocks * 4))
        for address in (results, places):
            self.context.free(address)
        return found

    def multiply(self) -> None:
        """By the tensor cores."""
        blocks, expected = self.multiprocessors * BLOCKS, expected_product(self.level.rounds) * WARPS
        size = blocks * WARPS * PRODUCT_SIZE
        products, there = self.context.allocated(size), self.context.allocated(2 * FACTOR_SIZE)
        given = ctypes.create_string_buffer(factors(), 2 * FACTOR_SIZE)
        self.context.to_device(there, given, 2 * FACTOR_SIZE)
        for _launch in range(self.level.launches):
            self.context.fill(products, _STALE, size)
            self.kernels["multiply"].launch(blocks, THREADS, ctypes.c_uint64(products), ctypes.c_uint64(there),
                                            ctypes.c_uint32(self.level.rounds))
            self._compare_blocks("multiply", self.context.read(products, size), expected, ())
        for address in (products, there):
            self.context.free(address)

    def _compare_blocks(self, what: str, results: bytes, expected: bytes, places: Sequence[int]) -> None:
        """places: the multiprocessor of each block, where that is known."""
        length = len(expected)
        if results == expected * (len(results) // length):
            return
        for block, begin in enumerate(range(0, len(results), length)):
            found = results[begin:begin + length]
            if found != expected:
                first = _differs_at(found, expected) // 4 * 4
                self.say(wrong={
                    "what": what, "where": "multiprocessor %d" % places[block] if places else "block %d" % block,
                    "expected": expected[first:first + 4][::-1].hex(), "found": found[first:first + 4][::-1].hex()})

    def copy(self) -> None:
        """To the device and back: what comes back is what went, and how fast."""
        size, context = self.level.copied, self.context
        pattern = array.array("I", (number * 2654435761 & 0xFFFFFFFF for number in range(MIB // 4))).tobytes()
        there, memory = context.allocated(size), context.pinned(size)
        view = memoryview(memory).cast("B")
        for begin in range(0, size, MIB):
            view[begin:begin + MIB] = pattern
        rates: Dict[str, float] = {"to_device": self._rate(size, lambda: context.to_device(there, memory, size))}
        ctypes.memset(ctypes.addressof(memory), 0, size)
        rates["to_host"] = self._rate(size, lambda: context.to_host(memory, there, size))
        context.wait()
        for begin in range(0, size, MIB):
            if view[begin:begin + MIB] != pattern:
                found = bytes(view[begin:begin + MIB])
                first = _differs_at(found, pattern)
                self.say(wrong={"what": "copy", "where": "byte %d" % (begin + first),
                                "expected": "%02x" % pattern[first], "found": "%02x" % found[first]})
        if self.level.rates:
            self.say(rates=rates)
        view.release()
        context.unpin(memory)
        context.free(there)

    def _rate(self, size: int, work: Callable[[], None]) -> float:
        return _rate(self.context, size, work, SAMPLES if self.level.rates else 1)

    def stream(self) -> None:
        """Memory by a program: the engines that copy reach a part of what it does."""
        size = min(self.level.streamed, self.context.free_memory() // 3)
        threads = self.multiprocessors * _STREAMING * _STREAMING_THREADS
        vectors = size // 16 // threads * threads
        if not vectors:
            return
        to, origin = self.context.allocated(vectors * 16), self.context.allocated(vectors * 16)
        self._fill(origin, vectors * 4, 0)
        rate = self._rate(2 * vectors * 16, lambda: self.kernels["copy"].launch(
            self.multiprocessors * _STREAMING, _STREAMING_THREADS, ctypes.c_uint64(to), ctypes.c_uint64(origin),
            ctypes.c_uint64(vectors)))
        self.say(rates={"memory": rate})
        self._expect(to, vectors * 4, 0)
        for address in (to, origin):
            self.context.free(address)

    def write_memory(self) -> None:
        """All that is free, or as much of it as is to be had in one piece."""
        threads = self.multiprocessors * _STREAMING * _STREAMING_THREADS
        size = free = self.context.free_memory() - _SPARED
        self.say(unwritten=max(free, 0))
        while size >= 4 * threads:
            words = size // 4 // threads * threads
            try:
                memory = self.context.allocated(words * 4)
            except CudaFailed as failed:
                if failed.code != OUT_OF_MEMORY:
                    raise
                size //= 2
                continue
            for mask in _MASKS:
                self._fill(memory, words, mask)
                self._expect(memory, words, mask)
            self.context.free(memory)
            self.say(written=words * 4, unwritten=free - words * 4)
            return

    def _fill(self, memory: int, words: int, mask: int) -> None:
        self.kernels["fill"].launch(self.multiprocessors * _STREAMING, _STREAMING_THREADS, ctypes.c_uint64(memory),
                                    ctypes.c_uint64(words), ctypes.c_uint32(mask))

    def _expect(self, memory: int, words: int, mask: int) -> None:
        """That memory holds what _fill() has written."""
        context = self.context
        found = context.allocated(16)
        nothing = ctypes.create_string_buffer(16)
        context.to_device(found, nothing, 16)
        self.kernels["compare"].launch(self.multiprocessors * _STREAMING, _STREAMING_THREADS, ctypes.c_uint64(memory),
                                       ctypes.c_uint64(words), ctypes.c_uint32(mask), ctypes.c_uint64(found))
        told = context.read(found, 16)
        count, place = int.from_bytes(told[:4], "little"), int.from_bytes(told[8:], "little")
        context.free(found)
        if count:
            self.say(wrong={"what": "memory", "where": "byte %d of %d MiB" % (place * 4, words * 4 // MIB),
                            "count": count})


def _rate(context: Context, size: int, work: Callable[[], None], samples: int) -> float:
    """GB/s: the middle one of the samples."""
    taken = sorted(context.timed(work) for _sample in range(samples))
    return round(size / max(taken[len(taken) // 2], 1e-3) / 1e6, 1)


def _differs_at(found: bytes, expected: bytes) -> int:
    return next(at for at, (one, other) in enumerate(zip(found, expected)) if one != other)


def _pairs(cuda: Cuda, contexts: Sequence[Context]) -> Iterator[Tuple[Context, Context]]:
    for here in contexts:
        for there in contexts:
            if here is not there and cuda.are_linked(here.device, there.device):
                yield here, there


def _copy_to_peer(say: Say, here: Context, there: Context, level: Level) -> None:
    """One byte pattern goes to here, over to there, and back to the host; each pair has its own."""
    size = level.copied
    say(pair=[here.device, there.device])
    here.enter()
    if not here.reach(there):
        return
    turn = (here.device * 31 + there.device * 7) % 251
    pattern = bytes((turn + number) % 251 for number in range(251)) * (size // 251 + 1)
    origin = here.allocated(size)
    given = ctypes.create_string_buffer(pattern[:size], size)
    here.to_device(origin, given, size)
    here.wait()
    there.enter()
    to = there.allocated(size)
    there.fill(to, _STALE, size)
    there.wait()
    here.enter()
    rate = _rate(here, size, lambda: here.to_peer(there, to, origin, size), SAMPLES)
    here.wait()
    say(peer=[here.device, there.device, rate])
    there.enter()
    found = there.read(to, size)
    if found != pattern[:size]:
        first = _differs_at(found, pattern)
        say(peer_wrong=[here.device, there.device, first, "%02x" % pattern[first], "%02x" % found[first]])
    there.free(to)
    here.enter()
    here.free(origin)
    here.let_go(there)
