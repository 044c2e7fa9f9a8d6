# SPDX-License-Identifier: Apache-2.0
"""libstreamer-client.so.0, as a process uses it that attaches to a model.

Structures and prototypes are those of the Python package (streamerd._library), which is imported from a checkout's
client/python; only what the package does not use is declared here.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from .package import import_package


package = import_package()


class Segment(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("size", c_uint64),
        ("device_kind", c_char_p),
        ("device_index", c_int),
    ]


_MORE = {
    "streamer_load": (c_int, [c_void_p, POINTER(package.LoadOpts), POINTER(c_void_p)]),
    "streamer_unload": (c_int, [c_void_p, c_char_p, c_uint]),
    "streamer_attach": (c_int, [c_void_p, c_char_p, POINTER(package.AttachOpts), POINTER(c_void_p)]),
    "streamer_lease_writable": (c_int, [c_void_p]),
    "streamer_segment_count": (c_size_t, [c_void_p]),
    "streamer_segment_get": (c_int, [c_void_p, c_size_t, POINTER(Segment)]),
}


def open_library(path):
    """Must come before any other use of the package, which loads the library once."""
    os.environ["STREAMERD_CLIENT_LIB"] = path
    lib = package.library()
    for name, (result, arguments) in _MORE.items():
        entry = getattr(lib, name)
        entry.restype, entry.argtypes = result, arguments
    return lib


def check(code, client):
    """`client`: the one of the call, whose library has the reason; None for a connect."""
    if code != 0:
        raise package.failure(code, client)


class Client:
    def __init__(self, library, socket, timeout_ms=20000):
        self.lib, self.pointer = open_library(library), c_void_p()
        opts = package.sized(package.ConnectOpts, socket=os.fsencode(socket), timeout_ms=timeout_ms)
        check(self.lib.streamer_connect(byref(opts), byref(self.pointer)), None)

    def close(self):
        self.lib.streamer_close(self.pointer)

    def fd(self):
        return self.lib.streamer_fd(self.pointer)

    def begin_load(self, path, name):
        opts, op = package.sized(package.LoadOpts, source=os.fsencode(path), name=name.encode()), c_void_p()
        check(self.lib.streamer_load(self.pointer, byref(opts), byref(op)), self)
        return Operation(self, op)

    def load(self, path, name, timeout_ms):
        """Until the model is ready."""
        op = self.begin_load(path, name)
        try:
            if not op.wait(timeout_ms):
                raise TimeoutError(f"{name} is not loaded in {timeout_ms} ms")
        finally:
            op.free()

    def begin_open(self, path, name):
        """Loads and attaches: lease() returns as soon as the model can be attached to."""
        load = package.sized(package.LoadOpts, name=name.encode())
        opts, op = package.sized(package.OpenOpts, load=ctypes.pointer(load)), c_void_p()
        check(self.lib.streamer_open_start(self.pointer, os.fsencode(path), byref(opts), byref(op)), self)
        return Operation(self, op)

    def unload(self, name):
        check(self.lib.streamer_unload(self.pointer, name.encode(), 0), self)

    def attach(self, model):
        opts, lease = package.sized(package.AttachOpts, flags=package.ATTACH_READY), c_void_p()
        check(self.lib.streamer_attach(self.pointer, model.encode(), byref(opts), byref(lease)), self)
        return Lease(self, lease)


class Operation:
    def __init__(self, client, handle):
        self.client, self.lib, self.handle = client, client.lib, handle

    def wait(self, timeout_ms):
        """Whether the load has ended, well."""
        code = self.lib.streamer_op_wait(self.handle, timeout_ms, None)
        if code == package.E_TIMEOUT:
            return False
        check(code, self.client)
        return True

    def lease(self, timeout_ms):
        lease = c_void_p()
        check(self.lib.streamer_op_lease(self.handle, timeout_ms, byref(lease)), self.client)
        return Lease(self.client, lease)

    def free(self):
        self.lib.streamer_op_free(self.handle)


class Lease:
    def __init__(self, client, handle):
        self.client, self.lib, self.handle = client, client.lib, handle

    def detach(self):
        self.lib.streamer_detach(self.handle)

    def _check(self, code):
        check(code, self.client)

    def count(self):
        n = c_size_t()
        self._check(self.lib.streamer_tensor_count(self.handle, byref(n)))
        return n.value

    def segments(self):
        return self.lib.streamer_segment_count(self.handle)

    def writable(self):
        return self.lib.streamer_lease_writable(self.handle) != 0

    def segment(self, i):
        """(address, bytes)"""
        segment = package.sized(Segment)
        self._check(self.lib.streamer_segment_get(self.handle, i, byref(segment)))
        return segment.data, segment.size

    def get(self, i):
        tensor = package.sized(package.Tensor)
        self._check(self.lib.streamer_tensor_get(self.handle, i, byref(tensor)))
        return tensor

    def find(self, name):
        tensor = package.sized(package.Tensor)
        self._check(self.lib.streamer_tensor_find(self.handle, name.encode(), byref(tensor)))
        return tensor

    def next(self, timeout_ms):
        """The next tensor that has arrived; None after the last one."""
        tensor = package.sized(package.Tensor)
        code = self.lib.streamer_tensor_next(self.handle, timeout_ms, byref(tensor))
        if code == package.E_END:
            return None
        self._check(code)
        return tensor

    def dlpack(self, segment):
        managed = c_void_p()
        self._check(self.lib.streamer_segment_dlpack(self.handle, segment, package.DLPACK_UNVERSIONED, byref(managed)))
        return managed.value
