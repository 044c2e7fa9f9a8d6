# SPDX-License-Identifier: Apache-2.0
"""libstreamer-client through ctypes: the structs and functions of streamer/client.h that the package uses.

The library is loaded when it is first needed: $STREAMERD_CLIENT_LIB, else the library that the wheel brings, else
the system's.
"""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_int,
    c_int64,
    c_size_t,
    c_ubyte,
    c_uint,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from typing import Any, TypeVar

from .errors import Error, InvalidError, UnsupportedError, error_of

SONAME = "libstreamer-client.so.0"

E_NOENT = -3
E_UNREACHABLE = -4
E_TIMEOUT = -5
E_BUSY = -6
E_END = -9

# What a Handle owns.
CLIENT, OP, LEASE, MEMORY, PUBLICATION = range(5)

CONNECT_OWN = 1
SOCKET_USER = 4
LOAD_WAIT = 2
LOAD_NO_EVICT = 4
LOAD_PIN = 8
ATTACH_READY = 1
ATTACH_PRIVATE = 2
ROWS_BY_ARRIVAL, ROWS_DIGESTS = 1, 2
DLPACK_UNVERSIONED = 1


class ConnectOpts(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("socket", c_char_p),
        ("timeout_ms", c_int),
        ("flags", c_uint),
        ("connect_timeout_ms", c_int),
        ("error", c_char_p),
        ("error_size", c_size_t),
    ]


class SocketInfo(ctypes.Structure):
    _fields_ = [("struct_size", c_size_t), ("path", c_char_p), ("skipped", c_char_p), ("rule", c_int)]


class LoadOpts(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("source", c_char_p),
        ("name", c_char_p),
        ("devices", POINTER(c_char_p)),
        ("n_devices", c_size_t),
        ("verify", c_char_p),
        ("flags", c_uint),
        ("priority", c_uint),
        ("layout", c_char_p),
        ("pattern", c_char_p),
        ("keep_alive_ms", c_uint64),
        ("drain_timeout_ms", c_uint64),
        ("named_after", c_char_p),
    ]


class AttachOpts(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("flags", c_uint),
        ("device", c_char_p),
        ("digest", c_char_p),
        ("generation", c_uint64),
        ("timeout_ms", c_int),
    ]


class OpenOpts(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("load", POINTER(LoadOpts)),
        ("attach", POINTER(AttachOpts)),
        ("timeout_ms", c_int),
    ]


class Progress(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("bytes", c_uint64),
        ("total", c_uint64),
        ("tensors", c_uint64),
        ("tensors_total", c_uint64),
        ("load_ns", c_uint64),
        ("generation", c_uint64),
        ("state", c_char_p),
        ("name", c_char_p),
        ("resident", c_int),
        ("restarts", c_uint64),
    ]


class Tensor(ctypes.Structure):
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


# A tensor of a lease: name, dtype, shape, bytes, digest, segment, offset, number.
Row = tuple[str, str, tuple[int, ...], int, str, int, int, int]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


DLDeleter = ctypes.CFUNCTYPE(None, c_void_p)


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("tensor", DLTensor), ("manager_ctx", c_void_p), ("deleter", DLDeleter)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", DLDeleter),
        ("flags", c_uint64),
        ("tensor", DLTensor),
    ]


def text(value: str) -> bytes:
    """A text for the library, as UTF-8. C ends a text at a NUL and would take another one for it: InvalidError.
    Every text that a caller gives passes here, or file_text(), on its way to the library."""
    if not isinstance(value, str):
        raise TypeError(f"{value!r}: a text is expected, not {type(value).__name__}")
    try:
        encoded = value.encode()
    except UnicodeEncodeError:  # a path with bytes that are not UTF-8, which Python keeps as surrogates
        raise InvalidError(f"{value!r}: not valid UTF-8") from None
    if b"\0" in encoded:
        raise InvalidError(f"{value!r}: embedded null byte")
    return encoded


def file_text(path: str | os.PathLike[str]) -> bytes:
    """The same of a path, whose bytes need not be UTF-8."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise InvalidError(f"{path!r}: embedded null byte")
    return encoded


def optional_text(value: str | None) -> bytes | None:
    return None if value is None else text(value)


_S = TypeVar("_S", bound=ctypes.Structure)


def sized(struct: type[_S], **members: Any) -> _S:
    """A struct with its struct_size set; members that are not given are 0."""
    return struct(struct_size=ctypes.sizeof(struct), **members)


# name: (result, arguments)
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "streamer_version": (c_char_p, []),
    "streamer_strerror": (c_char_p, [c_int]),
    "streamer_last_error": (c_char_p, [c_void_p]),
    "streamer_nearest": (c_char_p, [c_char_p, POINTER(c_char_p), c_size_t]),
    "streamer_free": (None, [c_void_p]),
    "streamer_connect": (c_int, [POINTER(ConnectOpts), POINTER(c_void_p)]),
    "streamer_socket": (c_int, [c_void_p, POINTER(SocketInfo)]),
    "streamer_user_socket": (c_int, [POINTER(c_void_p)]),
    "streamer_close": (None, [c_void_p]),
    "streamer_fd": (c_int, [c_void_p]),
    "streamer_process": (c_int, [c_void_p]),
    "streamer_call": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p)]),
    "streamer_open_start": (c_int, [c_void_p, c_char_p, POINTER(OpenOpts), POINTER(c_void_p)]),
    "streamer_op_lease": (c_int, [c_void_p, c_int, POINTER(c_void_p)]),
    "streamer_op_wait": (c_int, [c_void_p, c_int, POINTER(Progress)]),
    "streamer_op_model": (c_char_p, [c_void_p]),
    "streamer_op_free": (None, [c_void_p]),
    "streamer_attach": (c_int, [c_void_p, c_char_p, POINTER(AttachOpts), POINTER(c_void_p)]),
    "streamer_detach": (None, [c_void_p]),
    "streamer_lease_check": (c_int, [c_void_p]),
    "streamer_lease_model": (c_char_p, [c_void_p]),
    "streamer_lease_writable": (c_int, [c_void_p]),
    "streamer_generation": (c_uint64, [c_void_p]),
    "streamer_digest": (c_char_p, [c_void_p]),
    "streamer_has_metadata": (c_int, [c_void_p]),
    "streamer_metadata_count": (c_size_t, [c_void_p]),
    "streamer_metadata_get": (c_int, [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_char_p)]),
    "streamer_tensor_count": (c_int, [c_void_p, POINTER(c_size_t)]),
    "streamer_tensor_get": (c_int, [c_void_p, c_size_t, POINTER(Tensor)]),
    "streamer_python_await": (c_int, [c_void_p, c_size_t, c_int]),
    "streamer_python_alive": (c_int, [c_void_p]),
    "streamer_python_arrived": (c_size_t, [c_void_p]),
    "streamer_tensor_dlpack": (c_int, [c_void_p, POINTER(Tensor), c_uint, POINTER(c_void_p)]),
    "streamer_segment_dlpack": (c_int, [c_void_p, c_size_t, c_uint, POINTER(c_void_p)]),
    "streamer_fetch": (c_int, [c_void_p, c_char_p, c_char_p, POINTER(c_void_p), POINTER(c_uint64)]),
}


# Called with the interpreter's lock held: they make objects (client/python.c).
_PYTHON_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "streamer_python_names": (py_object, [c_void_p, POINTER(c_int)]),
    "streamer_python_rows": (py_object, [c_void_p, c_size_t, c_size_t, c_int, POINTER(c_int)]),
    "streamer_python_find": (py_object, [c_void_p, c_char_p, POINTER(c_int)]),
    "streamer_python_view": (py_object, [c_void_p, c_size_t, c_uint, POINTER(c_int)]),
    "streamer_python_slot": (py_object, [c_uint, POINTER(c_void_p)]),
    "streamer_python_tensor": (py_object, [c_void_p, POINTER(Tensor), c_uint, POINTER(c_int)]),
    "streamer_python_segment": (py_object, [c_void_p, c_size_t, c_uint, POINTER(c_int)]),
}


def bundled(folder: str, name: str) -> str | None:
    """The path of a file that the wheel brings, or None."""
    path = os.path.join(os.path.dirname(__file__), folder, name)
    return path if os.path.exists(path) else None


def _path() -> str:
    chosen = os.environ.get("STREAMERD_CLIENT_LIB")
    return chosen or bundled("lib", SONAME) or SONAME


@functools.cache
def library() -> ctypes.CDLL:
    """The loaded library with its prototypes; UnsupportedError if it is not found or is another release's."""
    path = _path()
    try:
        lib = ctypes.CDLL(path)
    except OSError as e:
        raise UnsupportedError(
            f"cannot load {path}: {e}: install the streamerd wheel or libstreamer-client, or set STREAMERD_CLIENT_LIB"
        ) from None
    locked = ctypes.PyDLL(path)
    for source, prototypes in ((lib, _PROTOTYPES), (locked, _PYTHON_PROTOTYPES)):
        for name, (result, arguments) in prototypes.items():
            try:
                function = getattr(source, name)
            except AttributeError:
                raise UnsupportedError(
                    f"{path} has no {name}: the library is older than the package: update it, or unset "
                    "STREAMERD_CLIENT_LIB"
                ) from None
            function.restype = result
            function.argtypes = arguments
            setattr(lib, name, function)
    return lib


class Handle:
    """Owns what a call stores by byref(handle.pointer). The last reference releases it, so a call that has one keeps
    it valid. Python may raise KeyboardInterrupt between any two steps: the owner exists before the handle, and its
    destructor is C code, which no signal interrupts."""

    __slots__ = ("__weakref__", "_capsule", "pointer")

    def __init__(self, kind: int) -> None:
        slot = c_void_p()
        self._capsule = library().streamer_python_slot(kind, byref(slot))
        if not slot.value:
            raise MemoryError
        self.pointer = c_void_p.from_address(slot.value)


def failure(code: int, client: Handle | None) -> Error:
    """The exception for a call that returned `code` in this thread; `client`: of the call, None for a connect."""
    lib = library()
    text = lib.streamer_last_error(client.pointer if client else None) or lib.streamer_strerror(code)
    return error_of(code, text.decode(errors="replace"))
