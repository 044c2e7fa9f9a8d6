# SPDX-License-Identifier: Apache-2.0
"""What CUDA itself answers here, call by call and without the product: what the daemon and the client
library take for granted, and what would take its place where one of these is refused."""

import ctypes
import mmap
import os
import time
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p

from . import cuda

MIB = 1 << 20
GRANULE = 2 * MIB
PORTABLE, READ_ONLY = 1, 8
MFD_HUGETLB = 4
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
        self.driver, self.runtime, self.answers = driver, runtime, []

    def ask(self, what, function, *arguments):
        try:
            answer = function(*arguments)
            self.answers.append([what, "yes" if answer is None else str(answer)])
            return answer
        except (cuda.CudaError, OSError, ValueError) as e:
            self.answers.append([what, f"no: {e}"])
            return None

    # ---- this GPU, in one process

    def machine(self):
        for what, number in ATTRIBUTES.items():
            self.ask("attribute: " + what, self._attribute, number)
        self.ask("granularity of virtual memory, least and recommended", self._granularities)
        self.ask("a handle of 2 MiB opens in its own process (no is expected)", self._own_handle)
        self.ask("two allocations of 2 MiB have handles of their own, at multiples of 2 MiB", self._two_handles)
        self.ask("two allocations of 64 KiB lie in one block", self._small_allocations)
        for what, map_memory, flags in self._host_memories():
            self.ask("registering " + what, self._register, map_memory, flags)

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

    def _register(self, map_memory, flags):
        memory = map_memory()
        address = c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        ctypes.memset(address, 1, GRANULE)
        self.runtime.cudaHostRegister(address, c_size_t(GRANULE), c_uint(flags))
        self.runtime.cudaHostUnregister(address)

    # ---- memory of another process

    def ipc(self, segment):
        raw, size = segment["handle"], segment["size"]
        pointer = self.ask("cuda-ipc: the handle opens", self._open_at, raw)
        if pointer is None:
            return
        address = int(pointer, 16)
        self.ask(f"cuda-ipc: what the driver says of its {size} bytes", self._range, address)
        self.ask("cuda-ipc: it opens once more in the same process", self._open_at, raw)
        self.ask("cuda-ipc: its last byte can be read", self._read, address + size - 1)
        for which in ("first", "second"):
            self.ask(f"cuda-ipc: it closes, {which} time", self.driver.ipc_close, address)

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
        ways = {"for reading": cuda.ACCESS_READ, "for writing": cuda.ACCESS_READ_WRITE}
        for how, flags in ways.items():
            self.ask(f"cuda-vmm-fd: a descriptor maps whole, {how}", self._map, fd, size, size, flags)
        if size > GRANULE:
            self.ask("cuda-vmm-fd: its first 2 MiB alone map", self._map, fd, GRANULE, GRANULE, cuda.ACCESS_READ)
        self.ask("cuda-vmm-fd: it maps twice at once", self._map_twice, fd, size)
        self.ask("cuda-vmm-fd: more than all of it maps (no is expected)", self._map, fd, size + GRANULE, 1, 1)

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
