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
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload

from ._client import Client, connect, interruptibly
from ._file import SUFFIX, write_file
from ._folder import Writer, is_below
from ._library import Handle, file_text
from ._model import SLICE_MS, Model, TensorInfo, not_pickled
from ._nearest import explains_options
from ._open import Options, Request, finish
from ._placement import Copies, placement
from ._requests import fetch, fetch_list
from ._safetensors import file_name
from .errors import (
    CorruptError,
    FailedError,
    InvalidError,
    LimitError,
    NotFoundError,
    OutOfMemoryError,
    UnsupportedError,
    also,
)

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = Any  # where annotations are evaluated, torch need not be installed

R = TypeVar("R")

# Files that load at once. All loads share the daemon's readers, so more are not faster; it admits at most limits.loads.
WINDOW = 16

# Headers that are read at once, of files that wait for others.
DRY_RUNS = 8

# What the daemon gives as a whole. Of larger files, those with weights are written from resident memory.
FETCHED_MAX = 64 << 20


def _own_errors(call: Callable[[], R]) -> R:
    """A file that is damaged, or does not exist, is a ValueError too."""
    try:
        return call()
    except (FailedError, CorruptError, NotFoundError) as e:
        raise also(e, ValueError) from None


class _File:
    """A file on its way: not started > started > a model, which loads > loaded."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._started: tuple[Client, Handle] | None = None
        self.model: Model[Tensor] | None = None
        self.loaded = False

    @property
    def under_way(self) -> bool:
        return self._started is not None and not self.loaded

    def start(self) -> bool:
        """False if the daemon does not admit another load now."""
        if self._started is None:
            self._started = _own_errors(self._request.try_start)
        return self._started is not None

    def dry_run(self) -> None:
        """Raises what the load would, except where others are in its way now."""
        try:
            self._request.dry_run()
        except (LimitError, OutOfMemoryError):
            pass

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

    def _is_loaded(self, model: Model[Tensor] | None) -> bool:
        assert model is not None
        return model._look(len(model), 0) is False

    def close(self) -> None:
        self._started = None
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

    def check_headers(self) -> None:
        """Raises the error of a file that cannot be loaded. Files that load are known when they can be attached to;
        others, which may wait for these to end, by a request that loads nothing."""
        for i, file in enumerate(self.files):
            if file.under_way:
                self.model(i)
        waiting = [file for file in self.files if file.model is None]
        if waiting:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(DRY_RUNS) as threads:
                for _ in threads.map(lambda file: _own_errors(file.dry_run), waiting):
                    pass

    def close(self) -> None:
        for file in self.files:
            file.close()

    def wait_for_news(self, client: Client) -> None:
        """Until the daemon has sent something, for SLICE_MS at most."""
        poll = select.poll()
        poll.register(client.fd, select.POLLIN)
        poll.poll(SLICE_MS)
        client.process()

    def model(self, i: int) -> Model[Tensor]:
        """Of file i, once it can be attached to."""
        while (model := self.files[i].model) is None:
            client = self.step()
            if client is not None and self.files[i].model is None:
                self.wait_for_news(client)
        return model


class _Infos(Sequence[TensorInfo]):
    """The tensors of a file, or those of them that are asked for. Their number is known when it begins to load, the
    rest when it is loaded."""

    def __init__(self, files: _Files, i: int, names: frozenset[str] | None) -> None:
        self._files = files
        self._i = i
        self._names = names

    def __len__(self) -> int:
        model = self._files.model(self._i)
        return len(model) if self._names is None else sum(name in model for name in self._names)

    @overload
    def __getitem__(self, i: int) -> TensorInfo: ...

    @overload
    def __getitem__(self, i: slice) -> list[TensorInfo]: ...

    def __getitem__(self, i: int | slice) -> TensorInfo | list[TensorInfo]:
        infos = _own_errors(self._files.model(self._i).infos)
        return [info for info in infos if self._names is None or info.name in self._names][i]


class SafetensorsStreamer:
    """Streams the tensors of files through the daemon; has the calls of runai_model_streamer.SafetensorsStreamer.

    Tensors are views of resident memory and stay valid as long as they are referenced, whatever `owned` says. For a
    GPU, where the daemon has only the host, they are copied by torch. `is_distributed` has no effect: all processes of
    a machine map the same memory.

    Attributes:
        files_to_tensors_metadata: by the number of a file, a sequence with a TensorInfo for each tensor.

    Example:
        with streamerd.SafetensorsStreamer() as streamer:
            streamer.stream_files(streamerd.list_safetensors("s3://models/llama"))
            for name, tensor in streamer.get_tensors():
                ...
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
        self._files.close()

    def __reduce__(self) -> NoReturn:
        not_pickled(self, "make one in the other process, which maps the same memory")

    def stream_file(
        self,
        path: str,
        s3_credentials: Any = None,
        device: str | None = "cpu",
        is_distributed: bool = False,
        tensor_names: Collection[str] | None = None,
        owned: bool = True,
    ) -> None:
        """stream_files() of one file."""
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
        """Starts to load files. When it returns, the header of each was read, and found to be valid.

        Args:
            paths: files, and URLs of files.
            s3_credentials: must be None: the daemon has its own.
            device: "cpu" or "cuda:N".
            is_distributed, owned: no effect.
            tensor_names: get_tensors() gives only these; the files are loaded whole.

        Raises:
            NotFoundError, FailedError: a file does not exist, or is damaged. They are ValueErrors, too.
            InvalidError: a tensor name that no file has, or several.
            What open() raises.
        """
        if isinstance(tensor_names, str):
            raise InvalidError("tensor_names must be a collection of names, not one string")
        if tensor_names is not None and not tensor_names:
            raise InvalidError("tensor_names is empty; None means all tensors")
        _refuse_credentials(s3_credentials)
        for path in paths:
            file_text(path)
            if "://" not in path and not os.path.exists(path):
                raise also(NotFoundError(f"{path}: no such file"), ValueError)
        device, target = placement(device)
        requests = [Request(path, "torch", Options(name=file_name(path), device=device)) for path in paths]
        for request in requests:
            if target is not None:
                request.views = Copies(request.views, target)
        files = _Files(requests)
        names = None if tensor_names is None else frozenset(tensor_names)
        try:
            files.step()
            files.check_headers()
            if names is not None:
                _check_names([files.model(i) for i in range(len(paths))], names)
        except BaseException:
            files.close()
            raise
        self._files, self._names = files, names
        self.files_to_tensors_metadata = {i: _Infos(files, i, names) for i in range(len(paths))}

    def get_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of all files, in order of arrival. Raises what open() raises where a load fails."""
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


def _arrived(model: Model[Tensor], i: int) -> bool:
    return _own_errors(lambda: model._look(i, 0)) is True


def _refuse_credentials(s3_credentials: Any) -> None:
    if s3_credentials is not None:
        raise UnsupportedError("the daemon reads S3 with its own credentials: set AWS_* where it is started")


def _check_names(models: list[Model[Tensor]], wanted: frozenset[str]) -> None:
    found = Counter(name for model in models for name in wanted if name in model)
    missing = sorted(wanted - found.keys())
    if missing:
        raise InvalidError(f"tensor_names: no file has {missing}")
    repeated = sorted(name for name, count in found.items() if count > 1)
    if repeated:
        raise InvalidError(f"tensor_names: more than one file has {repeated}")


# ---- functions ----


def list_safetensors(path: str, s3_credentials: Any = None) -> list[str]:
    """The safetensors files of a folder, or of a prefix of a store: what stream_files() takes. Not of folders below it.

    Args:
        path: a folder, or a URL (s3://, gs://, az://, hf://). A server that gives no list (https://): the URL of a file.
        s3_credentials: must be None: the daemon has its own.

    Raises:
        FailedError, DeniedError: the store does not give its list.
        UnsupportedError: credentials were given.
        What open() raises where no daemon serves this process.

    Example:
        streamerd.list_safetensors("s3://models/llama")  # ["s3://models/llama/model-00001-of-00002.safetensors", ...]
    """
    _refuse_credentials(s3_credentials)
    if "://" not in path:
        return glob.glob(os.path.join(glob.escape(path), "*.safetensors"))
    if path.endswith(SUFFIX) or path.lower().startswith(("http://", "https://")):
        return [path]
    names = fetch_list(path, weights=True)
    return [f"{path.rstrip('/')}/{name}" for name in sorted(names) if name.endswith(SUFFIX) and "/" not in name]


def _is_chosen(name: str, allow: Collection[str] | None, ignore: Collection[str] | None) -> bool:
    if allow is not None and not any(fnmatch.fnmatch(name, pattern) for pattern in allow):
        return False
    return not any(fnmatch.fnmatch(name, pattern) for pattern in ignore or ())


@explains_options
def pull_files(
    model_path: str,
    dst: str,
    allow_pattern: list[str] | None = None,
    ignore_pattern: list[str] | None = None,
    s3_credentials: Any = None,
) -> None:
    """Writes the files of a store into a folder, with those in folders below. One that fails stays as it was, and one that
    is replaced keeps its permissions. No link below the folder is followed.

    The store's list leaves out names that are hidden, not UTF-8, or no path of a file (a/, a//b, a/../b): these files are
    not written. A safetensors file over 64 MiB is loaded, stays resident, and is written from there: with the same tensors and
    metadata, and a header that may have them in another order.

    Args:
        model_path: a URL (s3://, gs://, az://, hf://).
        dst: the folder; it is made if it does not exist.
        allow_pattern: names, or patterns such as "*.json", of the files that are written; None: all.
        ignore_pattern: names or patterns of files that are not written.
        s3_credentials: must be None: the daemon has its own.

    Raises:
        UnsupportedError: a path, whose files need not be pulled; credentials.
        LimitError: another file has more than 64 MiB.
        DeniedError, SystemCallError: a file cannot be written; the text names it, `errno` says why.
        What open() raises.

    Example:
        streamerd.pull_files("s3://models/llama", "/tmp/llama", ignore_pattern=["*.safetensors"])
    """
    _refuse_credentials(s3_credentials)
    if "://" not in model_path:
        raise UnsupportedError(f"{model_path}: a path: its files need not be pulled")
    client = connect()
    files = interruptibly(lambda: client.fetch_list(model_path, weights=True))
    with Writer(dst) as writer:
        for file in files:
            name: str = file["name"]
            if not _is_chosen(name, allow_pattern, ignore_pattern):
                continue
            if not is_below(name):
                raise CorruptError(f"{model_path}: the daemon lists a file outside of it: {name}")
            if name.endswith(SUFFIX) and file.get("bytes", 0) > FETCHED_MAX:
                _pull_weights(writer, name, f"{model_path.rstrip('/')}/{name}", file["bytes"])
                continue
            writer.write(name, fetch(model_path, name))


def _pull_weights(writer: Writer, name: str, url: str, size: int) -> None:
    request = Request(url, "torch", Options(name=file_name(url), device="cpu", ready=True))
    with finish(request, *request.start()) as model, writer.file(name) as f:
        write_file(model, f, size)


class ObjectStorageModel:
    """A folder with the files of a store. Processes that ask for one folder fill it once.

    The lock is DST.lock. The folder is complete when the context is left without an exception, and not empty. One
    that is not complete is emptied first.

    Args:
        model_path: a URL (s3://, gs://, az://, hf://).
        dst: the folder.
        s3_credentials: must be None: the daemon has its own.

    Raises:
        InvalidError: a path. It is a ValueError, too.
        NotFoundError: when the context is left, that nothing was pulled. It is a RuntimeError, too.

    Example:
        with streamerd.ObjectStorageModel("s3://models/llama", "/tmp/llama") as model:
            model.pull_files(ignore_pattern=["*.safetensors"])
    """

    SENTINEL_NAME = ".runai_complete"  # Run:ai's: either package takes a folder that the other one has filled

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
        with self._lock:
            if kind is not None or self._complete:
                return
            if not os.listdir(self.dir):
                raise also(NotFoundError(f"{self._source}: no files were pulled to {self.dir}"), RuntimeError)
            os.close(os.open(self._sentinel, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666))

    def pull_files(self, allow_pattern: list[str] | None = None, ignore_pattern: list[str] | None = None) -> None:
        """pull_files() into the folder, unless it is complete."""
        if not self._complete:
            pull_files(self._source, self.dir, allow_pattern, ignore_pattern)
