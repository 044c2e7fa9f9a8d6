# SPDX-License-Identifier: Apache-2.0
"""Views of resident memory as tensors of a framework, without a copy.

The library exports a tensor as a DLPack capsule, which keeps the memory mapped and the lease alive. An element type
that the framework does not take by DLPack is handed over as unsigned integers of its size, and viewed as the type.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_int, c_void_p
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._library import (
    DLPACK_UNVERSIONED,
    DLManagedTensor,
    DLManagedTensorVersioned,
    Handle,
    Row,
    Tensor,
    failure,
    library,
)
from .errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    import numpy
    import torch

T = TypeVar("T")

_DL_UINT = 1

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = c_void_p
_capsule_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class Views(Generic[T]):
    """Makes views for one framework. The lease of a call must not be released before the call returns.

    A capsule owns its object until the framework takes it, so that an exception at any step releases it once.
    """

    framework: str
    _take: Any  # makes a tensor of a capsule
    _advice = ""

    def __init__(self, versioned: bool) -> None:
        lib = library()
        self._tensor_capsule = lib.streamer_python_tensor
        self._view_capsule = lib.streamer_python_view
        self._segment_capsule = lib.streamer_python_segment
        self._struct: type[DLManagedTensor] | type[DLManagedTensorVersioned]
        self._struct = DLManagedTensorVersioned if versioned else DLManagedTensor
        self._capsule_name = b"dltensor_versioned" if versioned else b"dltensor"
        self._flags = 0 if versioned else DLPACK_UNVERSIONED
        self._foreign: dict[str, Any] = {}  # dtypes that the framework does not take by DLPack, and its own types

    def view(self, client: Handle, lease: Handle, tensor: Tensor) -> T:
        """The tensor, with its dtype and shape."""
        code = c_int()
        capsule = self._tensor_capsule(lease.pointer, byref(tensor), self._flags, byref(code))
        if code.value != 0:
            raise failure(code.value, client)
        return self._view_of(capsule, tensor.name.decode(), tensor.dtype_name.decode())

    def views(self, client: Handle, lease: Handle, rows: list[Row]) -> list[T]:
        """The tensors, with their dtypes and shapes."""
        code = c_int()
        views = []
        for name, dtype, _shape, _bytes, _digest, _segment, _offset, number in rows:
            capsule = self._view_capsule(lease.pointer, number, self._flags, byref(code))
            if code.value != 0:
                raise failure(code.value, client)
            views.append(self._view_of(capsule, name, dtype))
        return views

    def raw(self, client: Handle, lease: Handle, row: Row) -> T:
        """A tensor's bytes, in one dimension of uint8."""
        segment: Any = self._segment(client, lease, row[5])
        return segment[row[6] : row[6] + row[3]]  # type: ignore[no-any-return]

    def _segment(self, client: Handle, lease: Handle, number: int) -> T:
        code = c_int()
        capsule = self._segment_capsule(lease.pointer, number, self._flags, byref(code))
        if code.value != 0:
            raise failure(code.value, client)
        return self._take(capsule)  # type: ignore[no-any-return]

    def _view_of(self, capsule: object, name: str, dtype: str) -> T:
        if dtype not in self._foreign:
            try:
                return self._take(capsule)  # type: ignore[no-any-return]
            except (BufferError, RuntimeError, TypeError, ValueError) as e:
                self._foreign[dtype] = self._find_dtype(name, dtype, e)
        self._as_integers(capsule)
        return self._view_as(self._take(capsule), self._foreign[dtype])

    def _as_integers(self, capsule: object) -> None:
        dtype = self._struct.from_address(_capsule_pointer(capsule, self._capsule_name)).tensor.dtype
        dtype.code, dtype.bits, dtype.lanes = _DL_UINT, dtype.bits * dtype.lanes, 1

    def _find_dtype(self, name: str, dtype: str, refused: object) -> Any:
        what = f"{name}: {self.framework} cannot represent {dtype}"
        try:
            return self._dtype(dtype)
        except ImportError:
            raise UnsupportedError(f"{what}: install {self._advice}; raw() gives its bytes") from None
        except (AttributeError, KeyError):
            torch_has_it = dtype in _TORCH_DTYPES and self.framework != "torch"
            why = ": use framework='torch'" if torch_has_it else f" ({refused})"
            raise UnsupportedError(f"{what}{why}; raw() gives its bytes") from None

    def _dtype(self, name: str) -> Any:
        """The framework's type of a safetensors dtype; raises if it has none."""
        raise NotImplementedError

    def _view_as(self, tensor: Any, dtype: Any) -> T:
        return tensor.view(dtype)  # type: ignore[no-any-return]


_TORCH_DTYPES = {
    "BF16": "bfloat16",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F4": "float4_e2m1fn_x2",
}


class TorchViews(Views["torch.Tensor"]):
    framework = "torch"

    def __init__(self) -> None:
        import torch

        version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
        super().__init__(versioned=version >= (2, 8))
        self._torch = torch
        self._take = torch.utils.dlpack.from_dlpack

    def _dtype(self, name: str) -> torch.dtype:
        return getattr(self._torch, _TORCH_DTYPES[name])  # type: ignore[no-any-return]


class _Exporter:
    """The protocol's object for a capsule of host memory: numpy takes no capsule itself."""

    __slots__ = ("_capsule",)

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: object) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


_NUMPY_DTYPES = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
}


class NumpyViews(Views["numpy.ndarray[Any, Any]"]):
    """Arrays of the host device, flagged read-only. dtypes that numpy lacks come from ml_dtypes if it is installed.

    An array is a part of one of its segment: numpy takes more than a microsecond to take an array by DLPack.
    """

    framework = "numpy"
    _advice = "ml_dtypes, or use framework='torch'"

    def __init__(self) -> None:
        import numpy

        version = tuple(int(part) for part in numpy.__version__.split(".")[:2])
        super().__init__(versioned=version >= (2, 1))
        self._from_dlpack = numpy.from_dlpack
        self._take = self._take_array
        self._array = numpy.ndarray
        self._dtypes = {name: numpy.dtype(own) for name, own in _NUMPY_DTYPES.items()}
        self._empty = numpy.empty(0, numpy.uint8)
        self._empty.flags.writeable = False

    def _take_array(self, capsule: object) -> numpy.ndarray[Any, Any]:
        array = self._from_dlpack(_Exporter(capsule))
        array.flags.writeable = False
        return array

    def views(self, client: Handle, lease: Handle, rows: list[Row]) -> list[numpy.ndarray[Any, Any]]:
        array, dtypes, empty = self._array, self._dtypes, self._empty
        segments: dict[int, numpy.ndarray[Any, Any]] = {}
        views: list[numpy.ndarray[Any, Any]] = []
        add = views.append
        last, memory = -1, empty
        for name, dtype, shape, size, _digest, segment, offset, _number in rows:
            if dtype not in dtypes:
                dtypes[dtype] = self._find_dtype(name, dtype, "numpy has no such dtype")
            if size == 0:
                add(array(shape, dtypes[dtype], empty))
                continue
            if segment != last:
                if segment not in segments:
                    segments[segment] = self._segment(client, lease, segment)
                last, memory = segment, segments[segment]
            add(array(shape, dtypes[dtype], memory, offset))
        return views

    def _dtype(self, name: str) -> Any:
        known = _TORCH_DTYPES[name]
        if name == "F4":  # ml_dtypes has no packed pairs
            raise KeyError(name)
        import ml_dtypes
        import numpy

        return numpy.dtype(getattr(ml_dtypes, known))


_FRAMEWORKS: dict[str, type[TorchViews] | type[NumpyViews]] = {
    "torch": TorchViews,
    "pt": TorchViews,
    "pytorch": TorchViews,
    "numpy": NumpyViews,
    "np": NumpyViews,
}


def views_of(framework: str) -> TorchViews | NumpyViews:
    """Imports the framework."""
    try:
        make = _FRAMEWORKS[framework]
    except KeyError:
        raise InvalidError(f"framework {framework!r} is not known: use 'torch' or 'numpy'") from None
    try:
        return make()
    except ImportError as e:
        raise UnsupportedError(f"{e}: install {make.framework}, or choose another framework=") from None
