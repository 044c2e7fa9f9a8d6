# SPDX-License-Identifier: Apache-2.0
"""A model that this process is attached to."""

from __future__ import annotations

import os
import time
from collections.abc import ItemsView, Iterator, Mapping, Sequence, ValuesView
from ctypes import byref, c_char_p, c_int, c_size_t
from types import TracebackType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from ._client import Client
from ._library import (
    E_BUSY,
    E_END,
    E_NOENT,
    E_TIMEOUT,
    ROWS_BY_ARRIVAL,
    ROWS_DIGESTS,
    Handle,
    Row,
    Tensor,
    failure,
    library,
    sized,
    text,
)
from ._nearest import did_you_mean
from ._option_values import deadline_of
from ._progress import ProgressBar
from ._views import Views
from .errors import Error, ForkedError, InvalidError, TensorNotFoundError, TimedOutError

T = TypeVar("T")

# A call waits this long at most, so that Python can act on a signal.
SLICE_MS = 100

# Views that iteration makes at once.
_BATCH = 256

_REPR_ROWS = 20


class TensorInfo(NamedTuple):
    """A tensor's description. `dtype` is the name in safetensors files, such as "BF16"; `nbytes` is in bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    digest: str


def not_pickled(value: object, advice: str) -> NoReturn:
    """The error of pickle and copy."""
    raise TypeError(
        f"cannot pickle or copy a streamerd.{type(value).__name__.lstrip('_')}: it is this process's lease of memory "
        f"that the daemon holds: {advice}"
    )


class Slice(Generic[T]):
    """A tensor that is indexed before it is made; get_slice() gives it.

    Example:
        rows = model.get_slice("lm_head.weight")[0:10]  # a view of ten rows
    """

    def __init__(self, model: Model[T], info: TensorInfo) -> None:
        self._model = model
        self._info = info

    def get_shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self._info.shape)

    def get_dtype(self) -> str:
        """The tensor's dtype, by its name in safetensors files, such as "BF16"."""
        return self._info.dtype

    def __getitem__(self, index: Any) -> T:
        tensor: Any = self._model[self._info.name]
        return tensor[index]  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        info = self._info
        return f"<streamerd.Slice {info.name!r} of {self._model.name!r}: {info.dtype} {list(info.shape)}>"

    def __reduce__(self) -> NoReturn:
        not_pickled(self, "pickle what it is indexed to, which copies it")


class Model(Mapping[str, T]):
    """The tensors of a model by name, as views of memory that the daemon holds; open() and aopen() make it.

    A read-only mapping: its names are known at once, and model[name] waits until that tensor has arrived. stream()
    gives all tensors in order of arrival. A tensor stays valid as long as it is referenced, also after close(). All
    methods may be called from any thread. In a forked child tensors stay readable, and methods raise ForkedError.

    Attributes:
        name: the model's name in the daemon.
        generation: the number of this load of it.

    Raises (any method):
        FailedError: the load failed, or the source changed while it was read.
        LostError, RevokedError: the daemon no longer holds the model, and a tensor had not arrived.
        InvalidError: the model is closed.
        ForkedError: the parent process opened it.

    Example:
        with streamerd.open("/models/llama") as model:
            for name, tensor in model.stream():  # while it loads
                ...
            head = model["lm_head.weight"]
            weights = dict(model)
    """

    def __init__(self, client: Client, lease: Handle, op: Handle | None, views: Views[T], bar: ProgressBar) -> None:
        self._library = library()
        self._client = client
        self._lease: Handle | None = lease
        self._pid = os.getpid()
        self._op = op
        self._views = views
        self._bar = bar
        self._ended = False  # all tensors have arrived, and the source did not change
        count = c_size_t()
        client.check(self._library.streamer_tensor_count(lease.pointer, byref(count)))
        self._count = count.value
        self.name: str = self._library.streamer_lease_model(lease.pointer).decode()
        self.generation: int = self._library.streamer_generation(lease.pointer)

    # ---- the lease ----

    def _held(self) -> Handle:
        lease = self._lease
        if lease is None:
            raise InvalidError(f"{self.name}: the model is closed")
        if self._pid != os.getpid():
            raise ForkedError(
                f"{self.name}: opened by the parent process; open it again here (its tensors stay readable)"
            )
        return lease

    def close(self) -> None:
        """Ends the lease, once no tensor of the model is referenced any more. May be called again, and by `with`."""
        self._lease = self._op = None
        self._bar.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._lease is None

    def __enter__(self) -> Model[T]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def check(self) -> None:
        """Raises LostError or RevokedError if the daemon no longer holds the lease for this process."""
        lease = self._held()
        self._client.check(self._library.streamer_lease_check(lease.pointer))

    # ---- arrival ----

    def _show_progress(self) -> None:
        if self._bar.visible and (op := self._op) is not None:
            self._bar.show_operation(op.pointer)

    def _look(self, i: int, slice_ms: int) -> bool | None:
        """Whether there is a tensor i in order of arrival; None if that is not known yet."""
        lease = self._held()
        if self._ended:
            return i < self._count
        code = self._library.streamer_python_await(lease.pointer, i, slice_ms)
        if code in (0, E_TIMEOUT):
            self._show_progress()
            return True if code == 0 else None
        self._bar.close()
        if code != E_END:
            raise failure(code, self._client.handle)
        self._ended = True
        self._op = None
        return False

    def _arrives(self, i: int, deadline: float | None = None) -> bool:
        """As _look(), once it is known."""
        while (arrives := self._look(i, SLICE_MS)) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise TimedOutError(f"{self.name}: not loaded in the given time; the load continues")
        return arrives

    def _rows(self, lease: Handle, first: int, count: int, flags: int) -> list[Row]:
        """Of the tensors from `first` on, in byte order of their names unless ROWS_BY_ARRIVAL is given."""
        code = c_int()
        rows: list[Row] = self._library.streamer_python_rows(lease.pointer, first, count, flags, byref(code))
        self._client.check(code.value)
        return rows

    def _pairs(self, lease: Handle, rows: list[Row]) -> list[tuple[str, T]]:
        """Until the first one that cannot be made, which is reported in its turn."""
        views, client = self._views, self._client.handle
        try:
            return list(zip([row[0] for row in rows], views.views(client, lease, rows)))
        except Error:
            pairs: list[tuple[str, T]] = []
            for row in rows:
                try:
                    pairs.append((row[0], views.views(client, lease, [row])[0]))
                except Error:
                    if not pairs:
                        raise
                    break
            return pairs

    def wait(self, timeout: float | str | None = None) -> None:
        """Returns when all tensors are in memory and the source did not change meanwhile.

        Args:
            timeout: "30s", or seconds; None: no limit.

        Raises:
            TimedOutError: it is not loaded by then. The load continues.
            FailedError: the load failed.
        """
        self._arrives(self._count, deadline_of("timeout", timeout))

    def _find(self, name: str) -> tuple[Handle, Row]:
        """Waits for a tensor by name."""
        if not isinstance(name, str):
            raise TypeError(f"{self.name}: a tensor is named by a str, not by {name!r}")
        code = c_int()
        while True:
            lease = self._held()
            seen = self._library.streamer_python_arrived(lease.pointer)
            row: Row = self._library.streamer_python_find(lease.pointer, _utf8(name), byref(code))
            if code.value == 0:
                return lease, row
            if code.value == E_NOENT:
                raise TensorNotFoundError(f"{self.name}: there is no tensor {name!r}{did_you_mean(name, self)}")
            if code.value != E_BUSY:
                raise failure(code.value, self._client.handle)
            self._arrives(seen)

    def _struct(self, name: str) -> tuple[Handle, Tensor]:
        """As the library has it, with its address."""
        lease, row = self._find(name)
        tensor = sized(Tensor)
        self._client.check(self._library.streamer_tensor_get(lease.pointer, row[7], byref(tensor)))
        return lease, tensor

    # ---- tensors ----

    def stream(self) -> Iterator[tuple[str, T]]:
        """Each tensor once, as (name, tensor), in order of arrival; also while the model loads.

        It ends when the daemon has confirmed that the source did not change. May be called any number of times; each
        iteration begins with the tensor that arrived first.
        """
        i = 0
        while self._arrives(i):
            batch = self._batch(i)
            i += len(batch)
            yield from self._given(batch)

    def _given(self, batch: list[tuple[str, T]]) -> Iterator[tuple[str, T]]:
        """One after the other, as long as the model is open. What was given is the caller's alone: the list is emptied.

        A forked child is noticed with the next batch: to ask for the process takes as long as a view.
        """
        batch.reverse()
        take = batch.pop
        while batch:
            if self._lease is None:
                self._held()  # raises
            yield take()

    def _batch(self, first: int) -> list[tuple[str, T]]:
        """Tensor `first` and the tensors that have arrived after it.

        A consumer that copies each tensor evicts this code and its data from the processor's caches: made one by one,
        views would take twenty times as long.
        """
        lease = self._held()
        return self._pairs(lease, self._rows(lease, first, _BATCH, ROWS_BY_ARRIVAL))

    def __getitem__(self, name: str) -> T:
        lease, row = self._find(name)
        return self._views.views(self._client.handle, lease, [row])[0]

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor, once it has arrived; `default` if there is none of this name."""
        return self[name] if name in self else default

    def get_tensor(self, name: str) -> T:
        """model[name], under the name that safetensors gives it.

        Raises:
            TensorNotFoundError: there is none of this name. It is a KeyError, too.
            UnsupportedError: the framework has no such dtype; raw() gives the bytes.
        """
        return self[name]

    def get_slice(self, name: str) -> Slice[T]:
        """The tensor, to be indexed; nothing is copied."""
        return Slice(self, self.info(name))

    def raw(self, name: str) -> T:
        """A tensor's bytes in one dimension of uint8: for dtypes that the framework does not have."""
        lease, row = self._find(name)
        return self._views.raw(self._client.handle, lease, row)

    def info(self, name: str) -> TensorInfo:
        """A tensor's dtype, shape, size and digest, once it has arrived."""
        return _info(self._find(name)[1])

    def infos(self) -> list[TensorInfo]:
        """Of all tensors, in byte order of their names. Waits until the model is loaded."""
        self.wait()
        return [_info(row) for row in self._rows(self._held(), 0, self._count, ROWS_DIGESTS)]

    def __iter__(self) -> Iterator[str]:
        code = c_int()
        lease = self._held()
        names: list[str] = self._library.streamer_python_names(lease.pointer, byref(code))  # in byte order
        self._client.check(code.value)
        return iter(names)

    def items(self) -> ItemsView[str, T]:
        """The names and the tensors, in byte order of the names, each once it has arrived."""
        return _Items(self)

    def values(self) -> ValuesView[T]:
        """The tensors, in byte order of their names, each once it has arrived."""
        return _Values(self)

    def _is_loaded(self) -> bool:
        try:
            return self._look(self._count, 0) is False
        except Error:
            return False  # reported in its turn

    def _sorted_pairs(self) -> Iterator[tuple[str, T]]:
        i, loaded = 0, self._is_loaded()
        while loaded and i < self._count:
            lease = self._held()
            batch = self._pairs(lease, self._rows(lease, i, _BATCH, 0))
            i += len(batch)
            yield from self._given(batch)
        if not loaded:
            for name in self:
                yield name, self[name]

    def names_by_offset(self) -> list[str]:
        """The names in the order of the tensors' places in memory, which is that of the file. Waits until the model is
        loaded."""
        self.wait()
        return [row[0] for row in sorted(self._rows(self._held(), 0, self._count, 0), key=_place)]

    def __len__(self) -> int:
        self._held()
        return self._count

    def __contains__(self, name: object) -> bool:
        lease = self._held()
        if not isinstance(name, str) or "\0" in name:
            return False
        code = c_int()
        self._library.streamer_python_find(lease.pointer, _utf8(name), byref(code))
        return code.value in (0, E_BUSY)

    def __eq__(self, other: object) -> bool:
        return self is other  # not by contents, as mappings do: those would have to be loaded

    def __hash__(self) -> int:
        return id(self)

    def state_dict(self) -> dict[str, T]:
        """All tensors by name, as dict(model). Waits until the model is loaded."""
        return {name: tensor for name, tensor in self.stream()}  # dict(self) would look each name up

    def __reduce__(self) -> NoReturn:
        not_pickled(self, f"open {self.name!r} in the other process, which maps the same memory")

    # ---- the model ----

    @property
    def digest(self) -> str:
        """The model's digest: 32 hexadecimal digits. Waits until the model is loaded."""
        self.wait()
        lease = self._held()
        digest: bytes = self._library.streamer_digest(lease.pointer)
        return digest.decode()

    @property
    def has_metadata(self) -> bool:
        """Whether the checkpoint has metadata, be it empty."""
        lease = self._held()
        return bool(self._library.streamer_has_metadata(lease.pointer))

    @property
    def metadata(self) -> dict[str, str]:
        """The checkpoint's own metadata (`__metadata__`)."""
        lease = self._held()
        key, value = c_char_p(), c_char_p()
        pairs = {}
        for i in range(self._library.streamer_metadata_count(lease.pointer)):
            self._client.check(self._library.streamer_metadata_get(lease.pointer, i, byref(key), byref(value)))
            pairs[(key.value or b"").decode()] = (value.value or b"").decode()
        return pairs

    @property
    def writable(self) -> bool:
        """Whether a write to a tensor is possible: to a copy of this process, on the host. Models with hugetlb pages
        are mapped read-only."""
        lease = self._held()
        return bool(self._library.streamer_lease_writable(lease.pointer))

    @property
    def nbytes(self) -> int:
        """Bytes of tensor data. Waits until the model is loaded."""
        return sum(info.nbytes for info in self.infos())

    def __repr__(self) -> str:
        lease = self._lease  # the strings are the lease's
        if lease is None:
            return f"<streamerd.Model {self.name!r}, closed>"
        if self._pid != os.getpid():
            return f"<streamerd.Model {self.name!r}, opened by the parent process>"
        count = self._count
        arrived = count if self._is_loaded() else self._library.streamer_python_arrived(lease.pointer)
        infos = map(_info, self._rows(lease, 0, _REPR_ROWS, ROWS_BY_ARRIVAL | ROWS_DIGESTS))
        rows = [(_printable(i.name), i.dtype, str(list(i.shape)), size_text(i.nbytes)) for i in infos]
        state = f"{count} tensors" if self._ended else f"{arrived} of {count} tensors have arrived"
        head = f"streamerd.Model {self.name!r}, generation {self.generation}, {state}"
        if arrived > len(rows):
            rows.append((f"... and {arrived - len(rows)} more", "", "", ""))
        return "\n".join([head, *_table(("TENSOR", "DTYPE", "SHAPE", "SIZE"), rows)])


def _printable(name: str) -> str:
    """So that a name in a checkpoint cannot control a terminal."""
    return name if name.isprintable() else repr(name)[1:-1]


def _utf8(name: str) -> bytes:
    """What is not valid Unicode names no tensor."""
    return text(name.encode(errors="replace").decode())


class _Items(ItemsView[str, T]):
    """Iterates in batches: a look-up of each name takes several microseconds."""

    _mapping: Model[T]

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return self._mapping._sorted_pairs()


class _Values(ValuesView[T]):
    _mapping: Model[T]

    def __iter__(self) -> Iterator[T]:
        return (tensor for _, tensor in self._mapping._sorted_pairs())


def _info(row: Row) -> TensorInfo:
    return TensorInfo(*row[:5])


def _place(row: Row) -> tuple[int, int, int]:
    return row[5], row[6], row[3]


def size_text(size: int) -> str:
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    last = len(head) - 1
    lines = []
    for row in [head, *rows] if rows else []:
        cells = [row[i].rjust(widths[i]) if i == last else row[i].ljust(widths[i]) for i in range(len(head))]
        lines.append("  ".join(cells))
    return lines
