# SPDX-License-Identifier: Apache-2.0
"""Run:ai Model Streamer's class, on resident memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from ._model import Model, TensorInfo
from ._open import Options, Request, finish
from ._safetensors import file_name
from .errors import InvalidError, UnsupportedError

if TYPE_CHECKING:
    import torch


class _Infos(Sequence[TensorInfo]):
    """The tensors of a file. Their number is known at once, the rest when the file is loaded."""

    def __init__(self, model: Model[Any]) -> None:
        self._model = model

    def __len__(self) -> int:
        return len(self._model)

    @overload
    def __getitem__(self, i: int) -> TensorInfo: ...

    @overload
    def __getitem__(self, i: slice) -> list[TensorInfo]: ...

    def __getitem__(self, i: int | slice) -> TensorInfo | list[TensorInfo]:
        return self._model.infos()[i]


class SafetensorsStreamer:
    """Streams the tensors of files through the daemon; has the calls of runai_model_streamer.SafetensorsStreamer.

    Tensors are views of resident memory and stay valid as long as they are referenced, whatever `owned` says.
    `is_distributed` has no effect: all processes of a machine map the same memory.
    """

    def __init__(self) -> None:
        self._models: list[Model[torch.Tensor]] = []
        self._names: frozenset[str] | None = None
        self.files_to_tensors_metadata: dict[int, Sequence[TensorInfo]] = {}

    def __enter__(self) -> SafetensorsStreamer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for model in self._models:
            model.close()

    def stream_file(
        self,
        path: str,
        s3_credentials: Any = None,
        device: str | None = "cpu",
        is_distributed: bool = False,
        tensor_names: Collection[str] | None = None,
        owned: bool = True,
    ) -> None:
        self.stream_files([path], s3_credentials, device, is_distributed, tensor_names, owned)

    def stream_files(
        self,
        paths: list[str],
        s3_credentials: Any = None,
        device: str | None = "cpu",
        is_distributed: bool = False,
        tensor_names: Collection[str] | None = None,
        owned: bool = True,
    ) -> None:
        """Starts to load the files. `tensor_names`: get_tensors() gives only these; the files are loaded whole."""
        if isinstance(tensor_names, str):
            raise InvalidError("tensor_names must be a collection of names, not one string")
        if tensor_names is not None and not tensor_names:
            raise InvalidError("tensor_names is empty; None means all tensors")
        if s3_credentials is not None:
            raise UnsupportedError("the daemon reads S3 with its own credentials: set AWS_* where it is started")
        started = []
        for path in paths:
            request = Request(path, "torch", Options(name=file_name(path), device=device))
            started.append((request, *request.start()))
        self._models = [finish(*each) for each in started]
        self._names = None if tensor_names is None else frozenset(tensor_names)
        if self._names is not None:
            self._check_names(self._names)
        self.files_to_tensors_metadata = {i: _Infos(model) for i, model in enumerate(self._models)}

    def _check_names(self, names: frozenset[str]) -> None:
        found = Counter(name for model in self._models for name in names if name in model)
        missing = sorted(names - found.keys())
        if missing:
            raise InvalidError(f"tensor_names: no file has {missing}")
        repeated = sorted(name for name, count in found.items() if count > 1)
        if repeated:
            raise InvalidError(f"tensor_names: more than one file has {repeated}")

    def get_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of each file in order of arrival."""
        for model in self._models:
            for name, tensor in model:
                if self._names is None or name in self._names:
                    yield name, tensor
