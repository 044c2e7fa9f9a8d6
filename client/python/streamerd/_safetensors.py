# SPDX-License-Identifier: Apache-2.0
"""safetensors' own calls for reading a file, on resident memory."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from ._model import Model, Slice
from ._open import Options, Request, Source, finish
from ._placement import Copies, placement
from .errors import Error, InvalidError, NotFoundError, TensorNotFoundError, also

R = TypeVar("R")


def file_name(source: Source) -> str:
    """The name of a file's model: files of different folders often have the same last component."""
    text = os.fspath(source)
    return text if "://" in text else os.path.realpath(text)


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


class safe_open:
    """Opens a file through the daemon; has the calls of safetensors.safe_open. `backend` has no effect."""

    def __init__(self, filename: Source, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        if "://" not in os.fspath(filename) and not os.path.exists(filename):
            raise FileNotFoundError(f"No such file or directory: {os.fspath(filename)}")
        if isinstance(device, str) and device.startswith("cuda") and framework in ("np", "numpy"):
            raise InvalidError("numpy has no arrays on a GPU: use framework='pt'")
        self._model: Model[Any] = _own_errors(lambda: _open(filename, framework, device))

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.close()

    def keys(self) -> list[str]:
        return _own_errors(self._model.keys)

    def offset_keys(self) -> list[str]:
        """The names in the order of the tensors' places in memory, which is that of the file."""
        return _own_errors(self._model.keys_by_offset)

    def metadata(self) -> dict[str, str] | None:
        return _own_errors(lambda: self._model.metadata) or None

    def get_tensor(self, name: str) -> Any:
        return _own_errors(lambda: self._model[name])

    def get_tensors(self) -> dict[str, Any]:
        return _own_errors(self._model.state_dict)

    def get_slice(self, name: str) -> Slice[Any]:
        return _own_errors(lambda: self._model.get_slice(name))


def _open(filename: Source, framework: str, device: Any) -> Model[Any]:
    device, target = placement(device)
    request = Request(filename, framework, Options(name=file_name(filename), device=device))
    if target is not None:
        request.views = Copies(request.views, target)
    return finish(request, *request.start())


def load_file(filename: Source, device: Any = "cpu", *, backend: str = "mmap", framework: str = "pt") -> dict[str, Any]:
    """All tensors of a file by name, as safetensors.torch.load_file; framework="np": safetensors.numpy.load_file."""
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()
