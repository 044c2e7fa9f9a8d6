# SPDX-License-Identifier: Apache-2.0
"""CUDA by ctypes: the driver, as a consumer uses it, and the runtime, as far as ceilings need it.

Every argument is passed as a ctypes value, so that no prototype has to be declared. All of it runs
in child processes: a context that hangs or crashes takes its own process along, and no other."""

import ctypes
import mmap
from ctypes import byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

LAZY_PEER_ACCESS = 1
POSIX_FD = 1
LOCATION_DEVICE = 1
ACCESS_READ, ACCESS_READ_WRITE = 1, 3
HOST_TO_DEVICE = 1
HOST_REGISTER_PORTABLE, HOST_REGISTER_READ_ONLY = 1, 8


INVALID_VALUE, OUT_OF_MEMORY, NOT_SUPPORTED = 1, 2, 801
STREAM_NON_BLOCKING = 1


class CudaError(Exception):
    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code


class IpcHandle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]


class AccessDesc(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int), ("flags", c_int)]


class _Library:
    def __init__(self, name):
        try:
            self.lib = ctypes.CDLL(name)
        except OSError as e:
            raise CudaError(str(e)) from None

    def text(self, code):
        raise NotImplementedError

    def __getattr__(self, name):
        """self.cuInit(...) calls cuInit and raises where it answers anything but 0."""
        try:
            entry = getattr(self.__dict__["lib"], name)
        except AttributeError:
            raise CudaError(f"{name}: the library has no such call") from None

        def call(*args):
            code = entry(*args)
            if code != 0:
                raise CudaError(f"{name}: {self.text(code)} ({code})", code)

        setattr(self, name, call)
        return call


DRIVER = "libcuda.so.1"


def open_driver():
    """For a process that soon may not read where it lies; it stays open."""
    ctypes.CDLL(DRIVER)


class Driver(_Library):
    """libcuda.so.1 with the primary context of one GPU current in the calling thread."""

    def __init__(self, ordinal):
        super().__init__(DRIVER)
        self.ordinal, self.device, self.context = ordinal, c_int(), c_void_p()
        self.cuInit(c_uint(0))
        self.cuDeviceGet(byref(self.device), c_int(ordinal))

    def text(self, code):
        name = c_char_p()
        self.lib.cuGetErrorName(c_int(code), byref(name))
        return (name.value or b"unknown error").decode()

    def enter(self):
        self.cuDevicePrimaryCtxRetain(byref(self.context), self.device)
        self.cuCtxSetCurrent(self.context)

    def describe(self):
        name, uuid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
        total, version = c_size_t(), c_int()
        self.cuDeviceGetName(name, c_int(256), self.device)
        self.cuDeviceGetUuid_v2(uuid, self.device)
        self.cuDeviceTotalMem_v2(byref(total), self.device)
        self.cuDriverGetVersion(byref(version))
        digits = uuid.raw.hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return {
            "name": name.value.decode(),
            "uuid": "GPU-" + "-".join(parts),
            "memory": total.value,
            "driver_cuda": _version(version.value),
        }

    def read(self, to, pointer, size):
        self.cuMemcpyDtoH_v2(c_void_p(to), c_uint64(pointer), c_size_t(size))

    def write(self, pointer, source, size):
        self.cuMemcpyHtoD_v2(c_uint64(pointer), c_void_p(source), c_size_t(size))

    def fill(self, pointer, byte, size):
        self.cuMemsetD8_v2(c_uint64(pointer), c_ubyte(byte), c_size_t(size))

    def ipc_open(self, raw):
        pointer, handle = c_uint64(), IpcHandle.from_buffer_copy(raw)
        self.cuIpcOpenMemHandle_v2(byref(pointer), handle, c_uint(LAZY_PEER_ACCESS))
        return pointer.value

    def ipc_close(self, pointer):
        self.cuIpcCloseMemHandle(c_uint64(pointer))

    def vmm_open(self, fd, size, flags=ACCESS_READ):
        """The calls that any importer has to make; returns what vmm_close() takes."""
        handle, pointer, length = c_uint64(), c_uint64(), c_size_t(size)
        zero = c_uint64(0)
        access = AccessDesc(LOCATION_DEVICE, self.ordinal, flags)
        self.cuMemImportFromShareableHandle(byref(handle), c_void_p(fd), c_int(POSIX_FD))
        self.cuMemAddressReserve(byref(pointer), length, c_size_t(0), zero, zero)
        self.cuMemMap(pointer, length, c_size_t(0), handle, zero)
        self.cuMemSetAccess(pointer, length, byref(access), c_size_t(1))
        return pointer.value, size, handle.value

    def vmm_close(self, mapped):
        pointer, size, handle = mapped
        self.cuMemUnmap(c_uint64(pointer), c_size_t(size))
        self.cuMemAddressFree(c_uint64(pointer), c_size_t(size))
        self.cuMemRelease(c_uint64(handle))


class Runtime(_Library):
    """libcudart, on the same primary context."""

    def __init__(self, path, ordinal):
        super().__init__(path)
        self.cudaSetDevice(c_int(ordinal))

    def text(self, code):
        entry = self.lib.cudaGetErrorName
        entry.restype = c_char_p
        return (entry(c_int(code)) or b"unknown error").decode()

    def describe(self, ordinal):
        version, bus = c_int(), ctypes.create_string_buffer(32)
        self.cudaRuntimeGetVersion(byref(version))
        self.cudaDeviceGetPCIBusId(bus, c_int(32), c_int(ordinal))
        return {"runtime_cuda": _version(version.value), "pci": bus.value.decode().lower()}

    def memory(self):
        """Free and total bytes of the GPU, of all processes."""
        free, total = c_size_t(), c_size_t()
        self.cudaMemGetInfo(byref(free), byref(total))
        return free.value, total.value


class Staging:
    """Two pinned buffers, so that one is filled while the other is copied."""

    BYTES = 8 << 20

    def __init__(self, runtime):
        self.runtime, self.memory = runtime, mmap.mmap(-1, 2 * self.BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        ctypes.memset(self.base, 1, 2 * self.BYTES)
        self.streams = []

    def __enter__(self):
        self.runtime.cudaHostRegister(c_void_p(self.base), c_size_t(2 * self.BYTES), c_uint(HOST_REGISTER_PORTABLE))
        for _ in range(2):
            stream = c_void_p()
            self.runtime.cudaStreamCreateWithFlags(byref(stream), c_uint(STREAM_NON_BLOCKING))
            self.streams.append(stream)
        return self

    def __exit__(self, *_):
        for stream in self.streams:
            self.runtime.cudaStreamDestroy(stream)
        self.runtime.cudaHostUnregister(c_void_p(self.base))

    def copy(self, to, address, size):
        """Returns when all of it is on the GPU."""
        for number, at in enumerate(range(0, size, self.BYTES)):
            n, stream, buffer = min(self.BYTES, size - at), self.streams[number % 2], self.base + number % 2 * self.BYTES
            self.runtime.cudaStreamSynchronize(stream)
            ctypes.memmove(buffer, address + at, n)
            kind = c_int(HOST_TO_DEVICE)
            self.runtime.cudaMemcpyAsync(c_void_p(to + at), c_void_p(buffer), c_size_t(n), kind, stream)
        for stream in self.streams:
            self.runtime.cudaStreamSynchronize(stream)


def _version(number):
    return f"{number // 1000}.{number % 1000 // 10}"
