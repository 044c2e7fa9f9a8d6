# SPDX-License-Identifier: Apache-2.0
"""Published models through libstreamer-client: finding, publishing, and the table of one that is resident.

Nothing here knows a framework: memory is an address and a size, and the owner that keeps it mapped.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import json
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_uint, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

from ._client import Client, interruptibly
from ._library import (
    ATTACH_PRIVATE,
    ATTACH_READY,
    LEASE,
    PUBLICATION,
    AttachOpts,
    Handle,
    Tensor,
    file_text,
    library,
    sized,
    text,
)
from ._option_values import milliseconds, seconds
from ._views import T, Views
from .errors import InvalidError, UnsupportedError

PARAMETER, BUFFER, ATTRIBUTE = 1, 2, 3
PERSISTENT, CLONE, HOST, GRAD = 1, 2, 4, 8

_PART = 16000  # characters, of four bytes at most: a text of a table has 64 KiB at most
_REPLACE = 1
_NO_WAIT = 2
_TENSORS = 4


class PublishOpts(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("base", c_char_p),
        ("key", POINTER(c_char_p)),
        ("n_key", c_size_t),
        ("device", c_char_p),
        ("flags", c_uint),
        ("timeout_ms", c_int),
    ]


class FoundModel(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("state", c_char_p),
        ("generation", c_uint64),
        ("pid", c_int64),
        ("digest", c_char * 33),
        ("differs", c_void_p),
    ]


class PublishedTensor(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_char_p),
        ("item", c_uint32),
        ("kind", c_int),
        ("flags", c_uint),
        ("alias", c_uint32),
        ("rank", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("strides", POINTER(c_uint64)),
        ("storage", c_size_t),
        ("offset", c_uint64),
        ("data", c_void_p),
    ]


_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "streamer_publish_find": (c_int, [c_void_p, POINTER(PublishOpts), POINTER(FoundModel), POINTER(c_void_p)]),
    "streamer_python_begin": (c_int, [c_void_p, POINTER(c_uint64), c_size_t, POINTER(c_int)]),
    "streamer_publish_storage": (c_int, [c_void_p, c_size_t, POINTER(c_void_p)]),
    "streamer_publish_tensor": (c_int, [c_void_p, POINTER(PublishedTensor)]),
    "streamer_publish_attribute": (c_int, [c_void_p, c_char_p, c_char_p]),
    "streamer_python_abort": (None, [POINTER(c_void_p)]),
    "streamer_python_copy": (None, [c_void_p, c_void_p, c_size_t]),
    "streamer_python_commit": (c_int, [POINTER(c_void_p), POINTER(c_void_p)]),
    "streamer_python_protect": (c_int, [c_void_p]),
    "streamer_published_count": (c_int, [c_void_p, POINTER(c_size_t), POINTER(c_size_t), POINTER(c_size_t)]),
    "streamer_published_get": (c_int, [c_void_p, c_size_t, POINTER(PublishedTensor)]),
    "streamer_published_storage": (c_int, [c_void_p, c_size_t, POINTER(Tensor)]),
    "streamer_published_attribute": (c_int, [c_void_p, c_size_t, POINTER(c_char_p), POINTER(c_char_p)]),
}


@functools.cache
def _library() -> ctypes.CDLL:
    lib = library()
    for name, (result, arguments) in _PROTOTYPES.items():
        try:
            function = getattr(lib, name)
        except AttributeError:
            raise UnsupportedError(f"libstreamer-client has no {name}: it is older than the package") from None
        function.restype, function.argtypes = result, arguments
    return lib


class Entry(NamedTuple):
    """A tensor of a published model; `strides` in elements, `offset` in bytes of its storage."""

    name: str
    dtype: str
    item: int
    kind: int
    flags: int
    alias: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage: int
    offset: int


class Memory:
    """Bytes of this process that an object keeps mapped."""

    def __init__(self, address: int, size: int, device: str, owner: object) -> None:
        self.address = address
        self.size = size
        self.device = device
        self.owner = owner

    def copy_from(self, address: int) -> None:
        """Copies to memory of the host. No signal's exception ends it before all is copied: after one the memory may be
        unmapped."""
        _library().streamer_python_copy(self.address, address, self.size)


class _Owner:
    """Keeps the memory of a publication mapped: each tensor on the memory refers to this."""

    def __init__(self, publication: Handle) -> None:
        self.publication = publication
        self.lease = Handle(LEASE)  # once it is committed


class Publication:
    """The right to publish a model; it ends with commit() or abort(), or the last reference to this and its memory."""

    def __init__(self, client: Client, handle: Handle, device: str) -> None:
        self._client = client
        self._library = _library()
        self._pointer = handle.pointer
        self._owner = _Owner(handle)
        self._sizes: list[int] = []
        self._device = device
        self.is_hopeless = False  # begin() has failed, and would however long one waits

    def begin(self, sizes: Sequence[int]) -> None:
        """Reserves memory for storages of these sizes."""
        self._sizes = list(sizes)
        array, hopeless = (c_uint64 * len(sizes))(*sizes), c_int()
        code = self._library.streamer_python_begin(self._pointer, array, len(sizes), byref(hopeless))
        self.is_hopeless = bool(hopeless.value)
        self._client.check(code)

    def storage(self, i: int) -> Memory:
        """Writable memory of storage i; it stays mapped as long as something refers to it."""
        data = c_void_p()
        self._client.check(self._library.streamer_publish_storage(self._pointer, i, byref(data)))
        return Memory(data.value or 0, self._sizes[i], self._device, self._owner)

    def protect(self) -> bool:
        """What this process writes to the storages from now on is its own, and dropped by the next call and by commit().

        False: the memory has no such pages.
        """
        code = self._library.streamer_python_protect(self._pointer)
        if code == UnsupportedError.code:
            return False
        self._client.check(code)
        return True

    def tensor(self, entry: Entry) -> None:
        self._client.check(self._library.streamer_publish_tensor(self._pointer, byref(_described(entry))))

    def attribute(self, name: str, value: str) -> None:
        """A text of any length: those of a table are limited, so a long one is several (see Published.attributes)."""
        for i in range(max(1, -(-len(value) // _PART))):
            arguments = (text(_part_name(name, i)), text(value[i * _PART : (i + 1) * _PART]))
            self._client.check(self._library.streamer_publish_attribute(self._pointer, *arguments))

    def text(self, name: str, value: str) -> None:
        """A pair of the metadata of a model that is made of tensors."""
        self._client.check(self._library.streamer_publish_attribute(self._pointer, text(name), text(value)))

    def lease(self) -> Handle:
        """The lease of what was committed."""
        return self._owner.lease

    def commit(self) -> None:
        """The model exists from now on; the memory stays, private to this process and at the same addresses."""
        code = self._library.streamer_python_commit(byref(self._pointer), byref(self._owner.lease.pointer))
        self._client.check(code)

    def abort(self) -> None:
        """Unmaps the memory, to which nothing may refer any more, and ends the claim."""
        self._library.streamer_python_abort(byref(self._pointer))


def _part_name(name: str, i: int) -> str:
    return name if i == 0 else f"{name}[{i}]"


def _described(entry: Entry) -> PublishedTensor:
    rank = len(entry.shape)
    return sized(
        PublishedTensor,
        name=text(entry.name),
        dtype=text(entry.dtype),
        item=entry.item,
        kind=entry.kind,
        flags=entry.flags,
        alias=entry.alias,
        rank=rank,
        shape=(c_uint64 * rank)(*entry.shape),
        strides=(c_uint64 * rank)(*entry.strides),
        storage=entry.storage,
        offset=entry.offset,
    )


class Published:
    """The table of a published model, and its memory."""

    def __init__(self, client: Client, name: str, generation: int, device: str) -> None:
        self._client = client
        self._library = _library()
        opts = sized(
            AttachOpts,
            flags=ATTACH_PRIVATE | ATTACH_READY if device == "host" else ATTACH_READY,
            device=text(device),
            generation=generation,
        )
        self._lease = Handle(LEASE)
        lease = self._lease.pointer
        client.check(self._library.streamer_attach(client.pointer, text(name), byref(opts), byref(lease)))
        counts = [c_size_t(), c_size_t(), c_size_t()]
        client.check(self._library.streamer_published_count(lease, *map(byref, counts)))
        self._tensors, self._storages, self._attributes = (count.value for count in counts)

    def entries(self) -> list[Entry]:
        entries = []
        get, lease, t = self._library.streamer_published_get, self._lease.pointer, sized(PublishedTensor)
        for i in range(self._tensors):
            self._client.check(get(lease, i, byref(t)))
            rank = t.rank
            entries.append(
                Entry(
                    t.name.decode(), t.dtype.decode(), t.item, t.kind, t.flags, t.alias, tuple(t.shape[:rank]),
                    tuple(t.strides[:rank]), t.storage, t.offset,
                )
            )  # fmt: skip
        return entries

    def attributes(self) -> dict[str, str]:
        pairs = {}
        name, value = c_char_p(), c_char_p()
        for i in range(self._attributes):
            self._client.check(self._library.streamer_published_attribute(self._lease.pointer, i, byref(name), byref(value)))
            pairs[(name.value or b"").decode()] = (value.value or b"").decode()
        whole = {}
        for first in [name for name in pairs if not name.endswith("]")]:
            parts = itertools.takewhile(pairs.__contains__, (_part_name(first, i) for i in itertools.count()))
            whole[first] = "".join(map(pairs.__getitem__, parts))
        return whole

    def storages(self, views: Views[T]) -> list[T]:
        """The bytes of each storage, in one dimension. A view keeps the memory mapped."""
        storages = []
        get, tensor = self._library.streamer_published_storage, sized(Tensor)
        for i in range(self._storages):
            self._client.check(get(self._lease.pointer, i, byref(tensor)))
            storages.append(views.view(self._client.handle, self._lease, tensor))
        return storages


class Found(NamedTuple):
    """What a search returned. `state`: "hit", "absent", "mismatch", "stale" or "claimed"."""

    state: str
    generation: int
    pid: int
    differs: list[dict[str, str | None]]
    publication: Publication | None

    def explain(self, name: str) -> str:
        """Why the search is no hit, for an error or a log."""
        if self.state == "mismatch":
            fields = [
                f"{d['field']}: published with {_shown(d['have'])}, needed {_shown(d['want'])}" for d in self.differs
            ]
            return f"{name}: the published model differs: {'; '.join(fields)}"
        if self.state == "stale":
            return f"{name}: the published model is out of date: the files of its base have changed"
        if self.state == "claimed":
            return f"{name}: {f'process {self.pid}' if self.pid else 'another process'} is still publishing it"
        return f"{name}: there is no published model of this name"


def _shown(value: str | None) -> str:
    return "nothing" if value is None else repr(value)


def find(
    client: Client,
    name: str,
    key: Mapping[str, str],
    *,
    base: str | None,
    device: str,
    claim: bool,
    wait: bool = True,
    replace: bool = False,
    tensors: bool = False,
    timeout: float | str | None = None,
) -> Found:
    """Searches for a published model with this key and base. `claim`: where there is none, take the right to publish;
    with `replace` also where there is one. `tensors`: it is published as an ordinary model, of tensors.

    While another process publishes it this waits, if `wait`. `timeout`: seconds, the check of the base included.
    """
    limit = seconds("timeout", timeout)
    if not isinstance(key, Mapping):
        raise InvalidError(f"publish: the key maps names to texts: {key!r}")
    for field, value in key.items():
        if not isinstance(field, str) or not isinstance(value, str) or "=" in field:
            raise InvalidError(f"publish: the key maps names to texts: {field!r}: {value!r}")
    fields = [text(f"{field}={value}") for field, value in key.items()]
    opts = sized(
        PublishOpts,
        name=text(name),
        base=None if base is None else file_text(base),
        key=(c_char_p * len(fields))(*fields),
        n_key=len(fields),
        device=text(device),
        flags=_NO_WAIT * (not wait) | _REPLACE * replace | _TENSORS * tensors,
        timeout_ms=-1 if limit is None else milliseconds(limit),
    )
    return interruptibly(lambda: _find(client, opts, claim, device))


def _find(client: Client, opts: PublishOpts, claim: bool, device: str) -> Found:
    lib = _library()
    found, handle = sized(FoundModel), Handle(PUBLICATION)
    to = byref(handle.pointer) if claim else None
    client.check(lib.streamer_publish_find(client.pointer, byref(opts), byref(found), to))
    differs = []
    if found.differs:
        try:
            differs = json.loads(ctypes.string_at(found.differs))
        finally:
            lib.streamer_free(found.differs)
    publication = Publication(client, handle, device) if handle.pointer.value else None
    return Found((found.state or b"").decode(), found.generation, found.pid, differs, publication)
