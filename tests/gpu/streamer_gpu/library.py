# SPDX-License-Identifier: Apache-2.0
"""libstreamer-client.so.0 by ctypes: the part of include/streamer/client.h that a consumer needs."""

import ctypes
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint32, c_uint64, c_void_p

ATTACH_READY = 1
DLPACK_UNVERSIONED = 1  # the ABI of DLPack 0.8, which every torch takes


class ConnectOpts(Structure):
    _fields_ = [("struct_size", c_size_t), ("socket", c_char_p), ("timeout_ms", c_int)]


class LoadOpts(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("source", c_char_p),
        ("name", c_char_p),
        ("devices", POINTER(c_char_p)),
        ("n_devices", c_size_t),
        ("verify", c_char_p),
        ("flags", c_uint),
    ]


class AttachOpts(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint),
        ("device", c_char_p),
        ("digest", c_char_p),
        ("generation", c_uint64),
        ("timeout_ms", c_int),
    ]


class Tensor(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype_name", c_char_p),
        ("dtype", c_int),
        ("rank", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("bytes", c_uint64),
        ("offset", c_uint64),
        ("segment", c_uint32),
        ("device_index", c_int),
        ("data", c_void_p),
        ("device_kind", c_char_p),
        ("digest", c_ubyte * 16),
    ]


class Segment(Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("data", c_void_p),
        ("size", c_uint64),
        ("device_kind", c_char_p),
        ("device_index", c_int),
    ]


_PROTOTYPES = {
    "streamer_strerror": (c_char_p, [c_int]),
    "streamer_last_error": (c_char_p, [c_void_p]),
    "streamer_connect": (c_int, [POINTER(ConnectOpts), POINTER(c_void_p)]),
    "streamer_close": (None, [c_void_p]),
    "streamer_fd": (c_int, [c_void_p]),
    "streamer_load": (c_int, [c_void_p, POINTER(LoadOpts), POINTER(c_void_p)]),
    "streamer_op_wait": (c_int, [c_void_p, c_int, c_void_p]),
    "streamer_op_free": (None, [c_void_p]),
    "streamer_unload": (c_int, [c_void_p, c_char_p, c_uint]),
    "streamer_attach": (c_int, [c_void_p, c_char_p, POINTER(AttachOpts), POINTER(c_void_p)]),
    "streamer_detach": (None, [c_void_p]),
    "streamer_tensor_count": (c_int, [c_void_p, POINTER(c_size_t)]),
    "streamer_tensor_get": (c_int, [c_void_p, c_size_t, POINTER(Tensor)]),
    "streamer_tensor_find": (c_int, [c_void_p, c_char_p, POINTER(Tensor)]),
    "streamer_lease_writable": (c_int, [c_void_p]),
    "streamer_segment_count": (c_size_t, [c_void_p]),
    "streamer_segment_get": (c_int, [c_void_p, c_size_t, POINTER(Segment)]),
    "streamer_segment_dlpack": (c_int, [c_void_p, c_size_t, c_uint, POINTER(c_void_p)]),
}


class StreamerError(Exception):
    pass


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name, (result, arguments) in _PROTOTYPES.items():
            entry = getattr(self.lib, name)
            entry.restype, entry.argtypes = result, arguments

    def check(self, code, client):
        if code != 0:
            text = self.lib.streamer_last_error(client) or self.lib.streamer_strerror(code)
            raise StreamerError(text.decode(errors="replace"))

    def connect(self, socket, timeout_ms=20000):
        return Client(self, socket, timeout_ms)


class Client:
    def __init__(self, library, socket, timeout_ms):
        self.library, self.lib, self.handle = library, library.lib, c_void_p()
        opts = ConnectOpts(ctypes.sizeof(ConnectOpts), os.fsencode(socket), timeout_ms)
        library.check(self.lib.streamer_connect(byref(opts), byref(self.handle)), None)

    def close(self):
        self.lib.streamer_close(self.handle)

    def fd(self):
        return self.lib.streamer_fd(self.handle)

    def load(self, path, name, timeout_ms):
        """Until the model is ready."""
        opts, op = LoadOpts(ctypes.sizeof(LoadOpts), os.fsencode(path), name.encode()), c_void_p()
        self.library.check(self.lib.streamer_load(self.handle, byref(opts), byref(op)), self.handle)
        code = self.lib.streamer_op_wait(op, timeout_ms, None)
        self.lib.streamer_op_free(op)
        self.library.check(code, self.handle)

    def unload(self, name):
        self.library.check(self.lib.streamer_unload(self.handle, name.encode(), 0), self.handle)

    def attach(self, model):
        return Lease(self, model)


class Lease:
    def __init__(self, client, model):
        self.client, self.lib, self.handle = client, client.lib, c_void_p()
        opts = AttachOpts(ctypes.sizeof(AttachOpts), ATTACH_READY)
        code = self.lib.streamer_attach(client.handle, model.encode(), byref(opts), byref(self.handle))
        client.library.check(code, client.handle)

    def detach(self):
        self.lib.streamer_detach(self.handle)

    def _check(self, code):
        self.client.library.check(code, self.client.handle)

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
        segment = Segment(ctypes.sizeof(Segment))
        self._check(self.lib.streamer_segment_get(self.handle, i, byref(segment)))
        return segment.data, segment.size

    def get(self, i):
        tensor = Tensor(ctypes.sizeof(Tensor))
        self._check(self.lib.streamer_tensor_get(self.handle, i, byref(tensor)))
        return tensor

    def find(self, name):
        tensor = Tensor(ctypes.sizeof(Tensor))
        self._check(self.lib.streamer_tensor_find(self.handle, name.encode(), byref(tensor)))
        return tensor

    def dlpack(self, segment):
        managed = c_void_p()
        self._check(self.lib.streamer_segment_dlpack(self.handle, segment, DLPACK_UNVERSIONED, byref(managed)))
        return managed.value
