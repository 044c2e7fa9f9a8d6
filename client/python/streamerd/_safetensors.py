# SPDX-License-Identifier: Apache-2.0
"""safetensors' own calls for reading a file, on resident memory."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

from ._model import Model, Slice
from ._open import Source, open
from .errors import InvalidError


def file_name(source: Source) -> str:
    """The name of a file's model: files of different folders often have the same last component."""
    text = os.fspath(source)
    return text if "://" in text else os.path.realpath(text)


class safe_open:
    """Opens a file through the daemon; has the calls of safetensors.safe_open. `backend` has no effect."""

    def __init__(self, filename: Source, framework: str, device: Any = "cpu", *, backend: str = "mmap") -> None:
        if "://" not in os.fspath(filename) and not os.path.exists(filename):
            raise FileNotFoundError(f"No such file or directory: {os.fspath(filename)}")
        if isinstance(device, str) and device.startswith("cuda") and framework in ("np", "numpy"):
            raise InvalidError("numpy has no arrays on a GPU: use framework='pt'")
        self._model: Model[Any] = open(filename, framework=framework, name=file_name(filename), device=device)

    def __enter__(self) -> safe_open:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._model.close()

    def keys(self) -> list[str]:
        return self._model.keys()

    def offset_keys(self) -> list[str]:
        """The names in the order of the tensors' places in memory, which is that of the file."""
        return self._model.keys_by_offset()

    def metadata(self) -> dict[str, str] | None:
        return self._model.metadata or None

    def get_tensor(self, name: str) -> Any:
        return self._model[name]

    def get_tensors(self) -> dict[str, Any]:
        return self._model.state_dict()

    def get_slice(self, name: str) -> Slice[Any]:
        return self._model.get_slice(name)


def load_file(filename: Source, device: Any = "cpu", *, backend: str = "mmap", framework: str = "pt") -> dict[str, Any]:
    """All tensors of a file by name, as safetensors.torch.load_file; framework="np": safetensors.numpy.load_file."""
    with safe_open(filename, framework, device, backend=backend) as file:
        return file.get_tensors()
