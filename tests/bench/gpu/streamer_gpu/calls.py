# SPDX-License-Identifier: Apache-2.0
"""What CUDA itself answers here, call by call and without the product. An answer that the daemon and the client library
take for granted is expected: these are the contract that the fake GPUs of the tests keep, too. The others tell what would
take its place where one of these is refused."""

import contextlib
import ctypes
import mmap
import os
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from . import cuda

MIB = 1 << 20
GRANULE = 2 * MIB
PORTABLE, READ_ONLY = 1, 8
DISABLE_TIMING = 2  # of an event
NOT_READY = 600  # cudaErrorNotReady
MFD_HUGETLB = 4
EXPECTED = {True: "yes", False: "no"}
ATTRIBUTES = {  # CUdevice_attribute
    "integrated": 18,
    "unified addresses": 41,
    "pageable memory access": 88,
    "host pointers for registered memory": 91,
    "registering host memory": 99,
    "virtual memory": 102,
    "descriptors of it": 103,
    "registering read-only host memory": 113,
    "IPC events": 125,
}


class _AllocationProp(ctypes.Structure):
    _fields_ = [
        ("type", c_int),
        ("handles", c_int),
        ("location", c_int * 2),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    ]


class Questions:
    """Each has an answer, whatever the others come to."""

    def __init__(self, driver, runtime):
        self.driver, self.runtime = driver, runtime
        self.answers = []  # [question, answer, whether it is another than the expected one]

    def ask(self, what, function, *arguments, expect=None):
        """What the function returns; None where CUDA refuses. `expect`: whether it answers, or its answer; None: either."""
        result, answer = None, "yes"
        try:
            result = function(*arguments)
            answer = "yes" if result is None else str(result)
            broken = expect not in (None, True, answer)
        except (cuda.CudaError, OSError, ValueError) as e:
            answer = f"no: {e}"
            broken = expect not in (None, False)
        if broken:
            answer += f" (expected: {EXPECTED.get(expect, expect)})"
        self.answers.append([what, answer, broken])
        return result

    # ---- this GPU, in one process

    def machine(self):
        for what, number in ATTRIBUTES.items():
            self.ask("attribute: " + what, self._attribute, number)
        self.ask("granularity of virtual memory, least and recommended", self._granularities)
        self.ask("2 MiB are a multiple of the least one", self._is_granule, expect=True)
        self.ask("a handle of 2 MiB opens in its own process", self._own_handle, expect=False)
        two = "two allocations of 2 MiB have handles of their own, at multiples of 2 MiB"
        self.ask(two, self._two_handles, expect="different handles, [0, 0] beyond a multiple")
        self.ask("two allocations of 64 KiB lie in one block", self._small_allocations)
        for what, map_memory, flags in self._host_memories():
            self.ask("registering " + what, self._register, map_memory, flags)
        self.ask("registering what is registered", self._register_twice, expect=False)
        self.ask("a copy has arrived once its event is over", self._copy, expect=True)

    def _attribute(self, number):
        value = c_int()
        self.driver.cuDeviceGetAttribute(byref(value), c_int(number), self.driver.device)
        return value.value

    def _granularities(self):
        prop = _AllocationProp(1, cuda.POSIX_FD, (cuda.LOCATION_DEVICE, self.driver.ordinal))
        sizes = []
        for option in (0, 1):
            size = c_size_t()
            self.driver.cuMemGetAllocationGranularity(byref(size), byref(prop), c_int(option))
            sizes.append(str(size.value))
        return ", ".join(sizes)

    def _is_granule(self):
        least = int(self._granularities().partition(",")[0])
        if GRANULE % least != 0:
            raise ValueError(f"it is {least}")

    def _allocate(self, size):
        pointer = c_void_p()
        self.runtime.cudaMalloc(byref(pointer), c_size_t(size))
        return pointer

    def _handle(self, pointer):
        handle = cuda.IpcHandle()
        self.runtime.cudaIpcGetMemHandle(byref(handle), pointer)
        return bytes(handle)

    def _own_handle(self):
        pointer = self._allocate(GRANULE)
        try:
            self.driver.ipc_open(self._handle(pointer))
        finally:
            self.runtime.cudaFree(pointer)

    def _two_handles(self):
        pointers = [self._allocate(GRANULE) for _ in range(2)]
        handles = [self._handle(pointer) for pointer in pointers]
        places = [pointer.value % GRANULE for pointer in pointers]
        for pointer in pointers:
            self.runtime.cudaFree(pointer)
        return f"{'different' if handles[0] != handles[1] else 'equal'} handles, {places} beyond a multiple"

    def _small_allocations(self):
        pointers = [self._allocate(64 << 10) for _ in range(2)]
        distance = abs(pointers[0].value - pointers[1].value)
        for pointer in pointers:
            self.runtime.cudaFree(pointer)
        return f"{distance} bytes apart"

    @staticmethod
    def _host_memories():
        def anonymous(flags):
            return lambda: mmap.mmap(-1, GRANULE, flags=flags | mmap.MAP_ANONYMOUS)

        def of_memfd(flags):
            def map_memory():
                fd = os.memfd_create("gpu-test", flags)
                try:
                    os.ftruncate(fd, GRANULE)
                    return mmap.mmap(fd, GRANULE, flags=mmap.MAP_SHARED)
                finally:
                    os.close(fd)

            return map_memory

        yield "private memory", anonymous(mmap.MAP_PRIVATE), PORTABLE
        yield "shared memory", anonymous(mmap.MAP_SHARED), PORTABLE
        yield "a memfd", of_memfd(0), PORTABLE
        yield "a memfd of huge pages", of_memfd(MFD_HUGETLB), PORTABLE
        yield "a memfd, for reading alone", of_memfd(0), PORTABLE | READ_ONLY

    @contextlib.contextmanager
    def _registered(self, memory, flags=PORTABLE):
        address = c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        ctypes.memset(address, 1, GRANULE)
        self.runtime.cudaHostRegister(address, c_size_t(GRANULE), c_uint(flags))
        try:
            yield address
        finally:
            self.runtime.cudaHostUnregister(address)

    def _register(self, map_memory, flags):
        with self._registered(map_memory(), flags):
            pass

    def _register_twice(self):
        memory = mmap.mmap(-1, GRANULE)
        with self._registered(memory), self._registered(memory):
            pass

    def _copy(self):
        """From registered memory, on a stream of its own, as a load copies."""
        sent, read = mmap.mmap(-1, GRANULE), ctypes.create_string_buffer(GRANULE)
        pointer, stream, event = self._allocate(GRANULE), c_void_p(), c_void_p()
        with self._registered(sent) as address:
            sent[:] = os.urandom(GRANULE)
            self.runtime.cudaStreamCreateWithFlags(byref(stream), c_uint(cuda.STREAM_NON_BLOCKING))
            self.runtime.cudaEventCreateWithFlags(byref(event), c_uint(DISABLE_TIMING))
            self.runtime.cudaMemcpyAsync(pointer, address, c_size_t(GRANULE), c_int(cuda.HOST_TO_DEVICE), stream)
            self.runtime.cudaEventRecord(event, stream)
            while self.runtime.lib.cudaEventQuery(event) == NOT_READY:
                pass
            self.driver.read(ctypes.addressof(read), pointer.value, GRANULE)
            self.runtime.cudaEventDestroy(event)
            self.runtime.cudaStreamDestroy(stream)
        self.runtime.cudaFree(pointer)
        if read.raw != sent[:]:
            raise ValueError("other bytes were read")

    # ---- memory of another process

    def ipc(self, segment):
        raw, size = segment["handle"], segment["size"]
        pointer = self.ask("cuda-ipc: where the handle opens", self._open_at, raw, expect=True)
        if pointer is None:
            return
        address = int(pointer, 16)
        whole = f"{size} from 0 before it"
        self.ask("cuda-ipc: what the driver says of its bytes", self._range, address, expect=whole)
        self.ask("cuda-ipc: where it opens once more in the same process", self._open_at, raw, expect=pointer)
        self.ask("cuda-ipc: its last byte can be read", self._read, address + size - 1, expect=True)
        for which in ("first", "second"):
            self.ask(f"cuda-ipc: it closes, {which} time", self.driver.ipc_close, address, expect=True)

    def _open_at(self, raw):
        return hex(self.driver.ipc_open(raw))

    def _range(self, pointer):
        base, size = c_uint64(), c_size_t()
        self.driver.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(pointer))
        return f"{size.value} from {pointer - base.value} before it"

    def _read(self, pointer):
        byte = ctypes.c_char()
        self.driver.read(ctypes.addressof(byte), pointer, 1)

    def vmm(self, segment):
        fd, size = segment["fd"], segment["size"]
        whole = "cuda-vmm-fd: a descriptor maps whole, for "
        self.ask(whole + "reading", self._map, fd, size, size, cuda.ACCESS_READ, expect=True)
        self.ask(whole + "writing", self._map, fd, size, size, cuda.ACCESS_READ_WRITE)
        if size > GRANULE:
            self.ask("cuda-vmm-fd: its first 2 MiB alone map", self._map, fd, GRANULE, GRANULE, cuda.ACCESS_READ)
        self.ask("cuda-vmm-fd: it maps twice at once", self._map_twice, fd, size, expect=True)
        more = "cuda-vmm-fd: more than all of it maps"
        self.ask(more, self._map, fd, size + GRANULE, 1, cuda.ACCESS_READ, expect=False)

    def _map(self, fd, size, readable, flags):
        mapped = self.driver.vmm_open(fd, size, flags)
        try:
            self._read(mapped[0] + readable - 1)
        finally:
            self.driver.vmm_close(mapped)

    def _map_twice(self, fd, size):
        both = [self.driver.vmm_open(fd, size) for _ in range(2)]
        for mapped in both:
            self._read(mapped[0] + size - 1)
            self.driver.vmm_close(mapped)


# ---- durations

ROUNDS = 5
CALL_ROUNDS = 20


def _ms(function, *arguments):
    begin = time.monotonic()
    function(*arguments)
    return (time.monotonic() - begin) * 1e3


def _allocations(runtime, size):
    """[ms to allocate], [ms to free]"""
    pairs = []
    for _ in range(ROUNDS):
        pointer = c_void_p()
        allocated = _ms(runtime.cudaMalloc, byref(pointer), c_size_t(size))
        pairs.append((allocated, _ms(runtime.cudaFree, pointer)))
    return [list(column) for column in zip(*pairs)]


def _registrations(runtime, memory, size):
    """The same of registering memory that is present."""
    address, pairs = c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory))), []
    ctypes.memset(address, 1, size)
    for _ in range(ROUNDS):
        registered = _ms(runtime.cudaHostRegister, address, c_size_t(size), c_uint(PORTABLE))
        pairs.append((registered, _ms(runtime.cudaHostUnregister, address)))
    return [list(column) for column in zip(*pairs)]


def _memories(size):
    """{name: memory} in huge pages, in small ones, and in a memfd."""

    def advised(advice):
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        try:
            memory.madvise(advice)
        except OSError:
            pass
        return memory

    fd = os.memfd_create("gpu-test")
    os.ftruncate(fd, size)
    shared = mmap.mmap(fd, size, flags=mmap.MAP_SHARED)
    os.close(fd)
    return {"huge": advised(mmap.MADV_HUGEPAGE), "small": advised(mmap.MADV_NOHUGEPAGE), "memfd": shared}


def times(runtime, gib):
    """{row: ms, or of registering ms per GiB: rounds}; `gib`: bytes that stand for one where sizes are scaled."""
    free, total, rows = c_size_t(), c_size_t(), {}
    rows["get_info"] = [_ms(runtime.cudaMemGetInfo, byref(free), byref(total)) for _ in range(CALL_ROUNDS)]
    rows["free_null"] = [_ms(runtime.cudaFree, c_void_p()) for _ in range(CALL_ROUNDS)]
    for name, size in (("2mib", GRANULE), ("1gib", gib), ("4gib", 4 * gib)):
        rows[f"malloc_{name}"], rows[f"free_{name}"] = _allocations(runtime, size)
    for name, memory in _memories(gib).items():
        try:
            rows[f"register_{name}"], rows[f"register_{name}_undo"] = _registrations(runtime, memory, gib)
        except cuda.CudaError as e:
            rows[f"register_{name}"] = str(e)
    return rows
