# SPDX-License-Identifier: Apache-2.0
"""safetensors' own calls for reading a file, on resident memory."""

from __future__ import annotations

import hashlib
import operator
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, TypeVar

from ._library import file_text
from ._model import Model, Slice, TensorInfo, not_pickled
from ._nearest import explains_options
from ._open import Options, Request, Source, device_name, finish
from ._placement import Copies, placement
from .errors import Error, InvalidError, NotFoundError, TensorNotFoundError, also

R = TypeVar("R")

_NUMPY = ("np", "numpy")


def file_name(source: Source) -> str:
    """The name of a file's model: files of different folders often have the same last component."""
    text = os.fspath(source)
    return short_name(text if "://" in text else os.path.realpath(text))


_NAME_MAX = 1024  # bytes


def short_name(name: str) -> str:
    """A name that the daemon takes: a digest stands for the front of one that is too long."""
    encoded = os.fsencode(name)
    if len(encoded) <= _NAME_MAX:
        return name
    digest = hashlib.sha256(encoded).hexdigest()[:32]
    tail = encoded[-(_NAME_MAX - len(digest) - 1) :].decode(errors="ignore")
    return f"{digest}/{tail}"


def _own_errors(call: Callable[[], R]) -> R:
    """The call's errors are safetensors.SafetensorError too, where that package is installed; a missing file is
    FileNotFoundError in both."""
    try:
        return call()
    except Error as e:
        if isinstance(e, NotFoundError) and not isinstance(e, TensorNotFoundError):
            raise
        try:
            from safetensors import SafetensorError
        except ImportError:
            raise e from None
        raise also(e, SafetensorError) from None


class _NumpySlice(Slice[Any]):
    """With numpy, safetensors indexes by itself: by integers, slices and an ellipsis, within the shape."""

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list) and not index:
            index = slice(0, 0)
        checked = _own_errors(lambda: _checked(index, self._info))
        return super().__getitem__((*checked, ...) if ... not in checked else checked)  # an array, of one number too


class _TorchSlice(Slice[Any]):
    """With torch, safetensors indexes as torch does."""

    def __getitem__(self, index: Any) -> Any:
        tensor = _own_errors(lambda: self._model[self._info.name])
        return tensor[index]


def _checked(index: Any, info: TensorInfo) -> tuple[Any, ...]:
    """The index as a tuple; InvalidError for what safetensors refuses."""
    parts = index if isinstance(index, tuple) else (index,)
    whole = [i for i, part in enumerate(parts) if part is ...]
    rank = len(info.shape)
    if len(whole) > 1:
        raise InvalidError(f"{info.name}: only one ellipsis (...) is allowed in an index")
    if len(parts) - len(whole) > rank:
        raise InvalidError(f"{info.name}: more indices than the {rank} dimensions of the tensor")
    sizes = list(info.shape)
    if whole:
        sizes[whole[0] : whole[0] + 1 + rank - len(parts)] = [0]
    return tuple(_checked_part(part, size, info) for part, size in zip(parts, sizes, strict=False))


def _checked_part(part: Any, size: int, info: TensorInfo) -> Any:
    if part is ...:
        return part
    if isinstance(part, slice):
        if part.step is not None and operator.index(part.step) <= 0:
            raise InvalidError(f"{info.name}: the step of a slice must be a positive integer, not {part.step}")
        start, stop = (0 if end is None else operator.index(end) for end in (part.start, part.stop))
        if (start >= size > 0) or stop > size:
            raise InvalidError(f"{info.name}: {part} is out of bounds for a dimension of size {size}")
        return part
    try:
        number = operator.index(part)
    except TypeError:
        raise InvalidError(f"{info.name}: an index is an integer, a slice or ..., not {part!r}") from None
    if not -size <= number < size:
        raise InvalidError(f"{info.name}: index {number} is out of bounds for a dimension of size {size}")
    return number


class safe_open:
    """Opens a file through the daemon; has the calls of safetensors.safe_open.

    Args:
        filename: a path or a URL.
        framework: "pt" ("torch", "pytorch") or "np" ("numpy").
        device: "cpu" or a GPU. Where the daemon has only the host, torch copies tensors to the GPU.
        backend: one of safetensors' words; it has no effect.

    Raises:
        FileNotFoundError: no such file.
        Error: as open(); also a safetensors.SafetensorError, where that package is installed.

    Example:
        with streamerd.safe_open("model.safetensors", framework="pt") as f:
            for name in f.keys():
                tensor = f.get_tensor(name)
    """

    _slices: tuple[type[Slice[Any]], type[Slice[Any]]] = (_NumpySlice, _TorchSlice)

    def __init__(self, filename: Source, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        _own_errors(lambda: _check_backend(backend))
        file_text(filename)
        if "://" not in os.fspath(filename) and not os.path.exists(filename):
            raise FileNotFoundError(f"No such file or directory: {os.fspath(filename)}")
        of_numpy, of_torch = self._slices
        self._slice = of_numpy if framework in _NUMPY else of_torch
        self._model: Model[Any] = _own_errors(lambda: _open(filename, framework, device))

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.close()

    def __reduce__(self) -> NoReturn:
        not_pickled(self, "open the file in the other process, which maps the same memory")

    def keys(self) -> list[str]:
        """The names, in byte order."""
        return _own_errors(lambda: list(self._model))

    def offset_keys(self) -> list[str]:
        """The names in the order of the tensors' places in memory, which is that of the file, empty tensors included."""
        return _own_errors(self._model.names_by_offset)

    def metadata(self) -> dict[str, str] | None:
        """None if the file has no `__metadata__`."""
        return _own_errors(lambda: self._model.metadata if self._model.has_metadata else None)

    def get_tensor(self, name: str) -> Any:
        """A tensor; TensorNotFoundError if there is none of this name."""
        return _own_errors(lambda: self._model[name])

    def get_tensors(self) -> dict[str, Any]:
        """All tensors by name, in the order of offset_keys()."""
        tensors = _own_errors(self._model.state_dict)
        return {name: tensors[name] for name in self.offset_keys()}

    def get_slice(self, name: str) -> Slice[Any]:
        """A tensor, to be indexed."""
        return self._slice(self._model, _own_errors(lambda: self._model.info(name)))


_BACKENDS = ("mmap", "pread", "read_file")  # of safetensors, in one version or another


def _check_backend(backend: str) -> None:
    if backend not in _BACKENDS:
        raise InvalidError(f"backend {backend!r} is invalid: use one of {', '.join(_BACKENDS)}")


def _open(filename: Source, framework: str, device: Any) -> Model[Any]:
    device = "cpu" if device is None else device
    if framework in _NUMPY and device_name(device) != "host":
        raise InvalidError(f"device {device!r} is invalid: numpy has arrays on the host alone; use framework='pt'")
    device, target = placement(device)
    request = Request(filename, framework, Options(name=file_name(filename), device=device))
    if target is not None:
        request.views = Copies(request.views, target)
    return finish(request, *request.start())


@explains_options
def load_file(filename: Source, device: Any = "cpu", *, backend: str = "mmap", framework: str = "pt") -> dict[str, Any]:
    """All tensors of a file by name, as safetensors.torch.load_file; framework="np": safetensors.numpy.load_file.

    Args:
        filename, device, backend, framework: as for safe_open().

    Raises:
        What safe_open() raises.

    Example:
        model.load_state_dict(streamerd.load_file("model.safetensors"))
    """
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()
