# SPDX-License-Identifier: Apache-2.0
"""Run:ai Model Streamer's class and functions, on resident memory."""

from __future__ import annotations

import fcntl
import fnmatch
import glob
import os
import select
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, overload

from ._client import Client
from ._library import Handle, file_text
from ._model import SLICE_MS, Model, TensorInfo
from ._open import Options, Request
from ._placement import Copies, placement
from ._requests import fetch, fetch_list
from ._safetensors import file_name
from .errors import CorruptError, FailedError, InvalidError, NotFoundError, UnsupportedError, also

if TYPE_CHECKING:
    import torch

R = TypeVar("R")

# Files that load at once. All loads share the daemon's readers, so more are not faster; it admits at most limits.loads.
WINDOW = 16


def _own_errors(call: Callable[[], R]) -> R:
    """A damaged file is a ValueError too."""
    try:
        return call()
    except (FailedError, CorruptError) as e:
        raise also(e, ValueError) from None


class _File:
    """A file on its way: not started > started > a model, which loads > loaded."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._started: tuple[Client, Handle] | None = None
        self.model: Model[torch.Tensor] | None = None
        self.loaded = False

    @property
    def under_way(self) -> bool:
        return self._started is not None and not self.loaded

    def start(self) -> bool:
        """False if the daemon does not admit another load now."""
        if self._started is None:
            self._started = _own_errors(self._request.try_start)
        return self._started is not None

    def look(self) -> Client:
        """Takes the next step that is possible. The file was started."""
        assert self._started is not None
        client, op = self._started
        if self.model is None:
            lease = _own_errors(lambda: self._request.lease(client, op, 0))
            if lease is not None:
                self.model = Model(client, lease, op, self._request.views, self._request.bar)
        elif not self.loaded:
            self.loaded = _own_errors(lambda: self._is_loaded(self.model))
        return client

    def _is_loaded(self, model: Model[torch.Tensor] | None) -> bool:
        assert model is not None
        return model._look(len(model), 0) is False

    def close(self) -> None:
        if self.model is not None:
            self.model.close()


class _Files:
    """The files of one stream, WINDOW at once."""

    def __init__(self, requests: list[Request]) -> None:
        self.files = [_File(request) for request in requests]

    def step(self) -> Client | None:
        """Looks at the files that are under way, and starts more; None when all are loaded."""
        client = None
        for file in self.files:
            if file.under_way:
                client = file.look()
        waiting = [file for file in self.files if not file.under_way and not file.loaded]
        room = WINDOW - sum(file.under_way for file in self.files)
        for file in waiting[: max(0, room)]:
            if not file.start():
                break
            client = file.look()
        if client is None and waiting:
            client = waiting[0]._request.connect()
        return client

    def wait_for_news(self, client: Client) -> None:
        """Until the daemon has sent something, for SLICE_MS at most."""
        poll = select.poll()
        poll.register(client.fd, select.POLLIN)
        poll.poll(SLICE_MS)
        client.process()

    def model(self, i: int) -> Model[torch.Tensor]:
        """Of file i, once it can be attached to."""
        while (model := self.files[i].model) is None:
            client = self.step()
            if client is not None and self.files[i].model is None:
                self.wait_for_news(client)
        return model


class _Infos(Sequence[TensorInfo]):
    """The tensors of a file. Their number is known when it begins to load, the rest when it is loaded."""

    def __init__(self, files: _Files, i: int) -> None:
        self._files = files
        self._i = i

    def __len__(self) -> int:
        return len(self._files.model(self._i))

    @overload
    def __getitem__(self, i: int) -> TensorInfo: ...

    @overload
    def __getitem__(self, i: slice) -> list[TensorInfo]: ...

    def __getitem__(self, i: int | slice) -> TensorInfo | list[TensorInfo]:
        return _own_errors(self._files.model(self._i).infos)[i]


class SafetensorsStreamer:
    """Streams the tensors of files through the daemon; has the calls of runai_model_streamer.SafetensorsStreamer.

    Tensors are views of resident memory and stay valid as long as they are referenced, whatever `owned` says. For a
    GPU, where the daemon has only the host, they are copied by torch. `is_distributed` has no effect: all processes of
    a machine map the same memory.
    """

    def __init__(self) -> None:
        self._files = _Files([])
        self._names: frozenset[str] | None = None
        self.files_to_tensors_metadata: dict[int, Sequence[TensorInfo]] = {}

    def __enter__(self) -> SafetensorsStreamer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files.files:
            file.close()

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
        _refuse_credentials(s3_credentials)
        for path in paths:
            file_text(path)
            if "://" not in path and not os.path.exists(path):
                raise NotFoundError(f"{path}: no such file")
        device, target = placement(device)
        requests = [Request(path, "torch", Options(name=file_name(path), device=device)) for path in paths]
        for request in requests:
            if target is not None:
                request.views = Copies(request.views, target)
        files = _Files(requests)
        files.step()
        self._names = None if tensor_names is None else frozenset(tensor_names)
        if self._names is not None:
            _check_names([files.model(i) for i in range(len(paths))], self._names)
        self._files = files
        self.files_to_tensors_metadata = {i: _Infos(files, i) for i in range(len(paths))}

    def get_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, tensor) of all files, in order of arrival."""
        files = self._files
        given = [0] * len(files.files)
        while True:
            client = files.step()
            arrived = False
            for i, file in enumerate(files.files):
                while (model := file.model) is not None and _arrived(model, given[i]):
                    batch = _own_errors(lambda: model._batch(given[i]))
                    given[i] += len(batch)
                    arrived = True
                    for name, tensor in batch:
                        if self._names is None or name in self._names:
                            yield name, tensor
            if client is None and all(file.loaded for file in files.files):
                return
            if not arrived and client is not None:
                files.wait_for_news(client)


def _arrived(model: Model[torch.Tensor], i: int) -> bool:
    return _own_errors(lambda: model._look(i, 0)) is True


def _refuse_credentials(s3_credentials: Any) -> None:
    if s3_credentials is not None:
        raise UnsupportedError("the daemon reads S3 with its own credentials: set AWS_* where it is started")


def _check_names(models: list[Model[torch.Tensor]], wanted: frozenset[str]) -> None:
    found = Counter(name for model in models for name in wanted if name in model)
    missing = sorted(wanted - found.keys())
    if missing:
        raise InvalidError(f"tensor_names: no file has {missing}")
    repeated = sorted(name for name, count in found.items() if count > 1)
    if repeated:
        raise InvalidError(f"tensor_names: more than one file has {repeated}")


# ---- functions ----


def list_safetensors(path: str, s3_credentials: Any = None) -> list[str]:
    """What stream_files() takes: the files of a folder; of a store the prefix itself, which is loaded as one model."""
    _refuse_credentials(s3_credentials)
    return [path] if "://" in path else glob.glob(os.path.join(glob.escape(path), "*.safetensors"))


def pull_files(
    model_path: str,
    dst: str,
    allow_pattern: list[str] | None = None,
    ignore_pattern: list[str] | None = None,
    s3_credentials: Any = None,
) -> None:
    """Writes the files beside the weights of a store into a folder. Weights are not among them: the daemon has them."""
    _refuse_credentials(s3_credentials)
    if "://" not in model_path:
        raise UnsupportedError(f"{model_path}: a path: its files need not be pulled")
    for name in fetch_list(model_path):
        if allow_pattern is not None and not any(fnmatch.fnmatch(name, pattern) for pattern in allow_pattern):
            continue
        if any(fnmatch.fnmatch(name, pattern) for pattern in ignore_pattern or ()):
            continue
        path = os.path.join(dst, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as f:
            f.write(fetch(model_path, name))


class ObjectStorageModel:
    """A folder with the files beside the weights of a store. Processes that ask for one folder fill it once.

    The lock is DST.lock. The folder is complete when the context is left without an exception.
    """

    SENTINEL_NAME = ".streamerd_complete"

    def __init__(self, model_path: str, dst: str, s3_credentials: Any = None) -> None:
        _refuse_credentials(s3_credentials)
        if "://" not in model_path:
            raise InvalidError(f"{model_path}: not in a store")
        self.dir = dst.rstrip("/") or "/"
        self._source = model_path
        self._sentinel = os.path.join(self.dir, self.SENTINEL_NAME)
        self._lock = open(f"{self.dir}.lock", "ab")  # closed, and so released, with this object
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._complete = os.path.exists(self._sentinel)
        if self._complete:
            fcntl.flock(self._lock, fcntl.LOCK_SH)
        else:
            shutil.rmtree(self.dir, ignore_errors=True)
            os.makedirs(self.dir)

    def __enter__(self) -> ObjectStorageModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and not self._complete:
            open(self._sentinel, "wb").close()
        self._lock.close()

    def pull_files(self, allow_pattern: list[str] | None = None, ignore_pattern: list[str] | None = None) -> None:
        if not self._complete:
            pull_files(self._source, self.dir, allow_pattern, ignore_pattern)
