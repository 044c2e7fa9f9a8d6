# SPDX-License-Identifier: Apache-2.0
"""Publishing: the finished tensors of a torch module become a model that the next process maps.

A module's tensors are its parameters and buffers, and what its modules hold as attributes, also in lists, tuples and
dicts: rotary tables, flat weights. Tensors that share bytes (ties, views) are one storage, which is copied once; shape,
strides and sharing are kept. publish() replaces a tensor's memory in place, so that whatever refers to the tensor uses
the resident memory from then on; load_published() does so too, by swapping the contents of tensors.

Both check everything that they can before they change anything.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._client import Client, connect
from ._open import device_name
from ._publication import (
    ATTRIBUTE,
    BUFFER,
    CLONE,
    GRAD,
    HOST,
    PARAMETER,
    PERSISTENT,
    Entry,
    Memory,
    Publication,
    Published,
    find,
)
from ._source import without_links
from .errors import InvalidError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    import torch

_CLASSES = "classes"  # the attribute that has the class of each module
_CHUNK = 16 << 20
_DEPTH = 4
_CONTAINERS = (list, tuple, dict)
_OWN = ("_parameters", "_buffers", "_modules")


# ---- the tensors of a module ----


class Item:
    """A tensor of a module: `holder[place]` refers to it. holder: a module's own dictionary, or a list or dict in it."""

    __slots__ = ("name", "tensor", "kind", "flags", "holder", "place")

    def __init__(self, name: str, tensor: torch.Tensor, kind: int, flags: int, holder: Any, place: Any) -> None:
        self.name = name
        self.tensor = tensor
        self.kind = kind
        self.flags = flags
        self.holder = holder
        self.place = place


def items_of(module: torch.nn.Module) -> list[Item]:
    """All tensors of a module; one that has several names is several items."""
    return [item for name, part in module.named_modules(remove_duplicate=False) for item in _items(name, part)]


def _items(path: str, module: torch.nn.Module) -> Iterator[Item]:
    import torch

    prefix = f"{path}." if path else ""
    written = isinstance(module, torch.nn.modules.batchnorm._NormBase)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            flags = GRAD if parameter.requires_grad else 0
            yield Item(prefix + name, parameter, PARAMETER, flags, module._parameters, name)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            flags = 0 if name in module._non_persistent_buffers_set else PERSISTENT
            yield Item(prefix + name, buffer, BUFFER, flags | (CLONE if written else 0), module._buffers, name)
    for name, value in list(module.__dict__.items()):
        # Most attributes are neither, and a model has many thousands.
        if isinstance(value, torch.Tensor) or (type(value) in _CONTAINERS and name not in _OWN):
            yield from _nested(prefix + name, value, module.__dict__, name, _DEPTH)


def _nested(path: str, value: Any, holder: Any, place: Any, depth: int) -> Iterator[Item]:
    import torch

    if isinstance(value, torch.Tensor):
        yield Item(path, value, ATTRIBUTE, GRAD if value.requires_grad and value.is_leaf else 0, holder, place)
    elif depth > 0 and type(value) in (list, tuple):
        for i, inner in enumerate(value):
            yield from _nested(f"{path}[{i}]", inner, value, i, depth - 1)
    elif depth > 0 and type(value) is dict:
        for key, inner in list(value.items()):
            if isinstance(key, (str, int)):
                yield from _nested(f"{path}[{key}]", inner, value, key, depth - 1)


def _require_plain(item: Item) -> None:
    """Only tensors that are elements in memory can be shared."""
    import torch

    tensor = item.tensor
    if tensor.is_meta:
        raise InvalidError(f"publish: {item.name} is on the meta device")
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedError(f"publish: {item.name} has no plain memory ({tensor.layout}, {tensor.dtype})")
    if tensor.is_conj() or tensor.is_neg():
        raise UnsupportedError(f"publish: {item.name} is a lazy conjugate or negation")
    if hasattr(type(tensor), "__tensor_flatten__"):
        raise UnsupportedError(f"publish: {item.name} is a {type(tensor).__name__}, which consists of other tensors")


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The bytes that a tensor covers, as addresses; equal if it has none."""
    begin = tensor.data_ptr()
    if tensor.numel() == 0:
        return begin, begin
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return begin, begin + (last + 1) * tensor.element_size()


class Storage:
    """A range of memory, and the items that lie in it: all that share bytes directly or through others."""

    __slots__ = ("begin", "end", "items")

    def __init__(self, begin: int, end: int, items: list[Item]) -> None:
        self.begin = begin
        self.end = end
        self.items = items


def _storages(items: list[Item]) -> list[Storage]:
    """The ranges of memory of all items that have bytes, in the order of the module."""
    storages: list[Storage] = []
    order = {id(item): i for i, item in enumerate(items)}
    extents = [(*_extent(item.tensor), item) for item in items]
    for begin, end, item in sorted((e for e in extents if e[0] < e[1]), key=lambda e: e[:2]):
        if storages and begin < storages[-1].end and _device(storages[-1].items[0]) == _device(item):
            storages[-1].end = max(storages[-1].end, end)
            storages[-1].items.append(item)
        else:
            storages.append(Storage(begin, end, [item]))
    return sorted(storages, key=lambda s: min(order[id(item)] for item in s.items))


def _device(item: Item) -> str:
    return str(item.tensor.device)


# ---- memory as tensors ----


def bytes_at(memory: Memory) -> torch.Tensor:
    """The memory as one dimension of uint8. The tensor, and all views of it, keep the owner."""
    import torch

    if memory.size == 0:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    if memory.device == "host":
        # An array of a type of its own has attributes; torch keeps the array.
        kind: Any = type("Memory", (ctypes.c_uint8 * memory.size,), {})
        array = kind.from_address(memory.address)
        array.owner = memory.owner
        return torch.frombuffer(array, dtype=torch.uint8)
    return torch.as_tensor(_CudaArray(memory))  # on the GPU that the address belongs to


class _CudaArray:
    """Memory of a GPU, by the protocol that torch reads."""

    def __init__(self, memory: Memory) -> None:
        self._owner = memory.owner
        self.__cuda_array_interface__ = {
            "shape": (memory.size,),
            "typestr": "|u1",
            "data": (memory.address, False),
            "version": 3,
        }


def require_dtype(entry: Entry) -> torch.dtype:
    """The dtype of a tensor of the table; raises UnsupportedError if this torch does not have it."""
    import torch

    dtype = getattr(torch, entry.dtype, None)
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != entry.item:
        raise UnsupportedError(f"{entry.name}: this torch has no dtype {entry.dtype} of {entry.item} bytes")
    return dtype


def _view(storage: torch.Tensor, entry: Entry) -> torch.Tensor:
    """A tensor of the table in its storage."""
    import torch

    dtype = require_dtype(entry)
    view = torch.empty(0, dtype=dtype, device=storage.device)
    if 0 in entry.shape:
        return torch.empty_strided(entry.shape, entry.strides, dtype=dtype, device=storage.device)
    view.set_(storage.untyped_storage(), entry.offset // entry.item, entry.shape, entry.strides)
    return view


def _copy(target: Memory, source: int) -> None:
    """Copies to host memory with two threads: one does not reach the memory's rate."""
    if target.size <= _CHUNK:
        ctypes.memmove(target.address, source, target.size)
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        for done in range(0, target.size, _CHUNK):
            size = min(_CHUNK, target.size - done)
            threads.submit(ctypes.memmove, target.address + done, source + done, size)


# ---- publish ----


def publish(
    module: torch.nn.Module,
    name: str,
    *,
    key: Mapping[str, str],
    base: str | os.PathLike[str] | None = None,
    device: Any = None,
    timeout: float | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> None:
    """Publishes the tensors of a module under `name`, and lets the module use the resident memory.

    `key`: all that the tensors depend on besides the base, as texts; load_into() must give the same. `base`: the source
    that they were made from, or the name of a resident model; the published model is out of date once its files have
    changed. `device`: as for open(); None: where the module is. Where another process has published this name with
    this key and base already, the module takes those tensors.

    Returns when the model exists. The memory is copy-on-write: a later write of this process reaches no other one. If
    it fails the module is as before. `timeout`: seconds to wait for another process that publishes it.
    """
    client = connect(socket, autostart)
    where = _daemon_device(module, device)
    found = find(client, name, key, base=_base(client, base), device=where, claim=True, timeout=timeout)
    if found.publication is None:
        if found.state != "hit":
            raise InvalidError(found.explain(name))
        apply(module, Published(client, name, found.generation, where), name)
        return
    publish_items(found.publication, items_of(module), {_CLASSES: classes_of(module)})


def _base(client: Client, base: str | os.PathLike[str] | None) -> str | None:
    if base is None:
        return None
    return without_links(os.fspath(base))[0] if client.own else os.fspath(base)


def _daemon_device(module: torch.nn.Module, device: Any) -> str:
    """The daemon's name of the device: as given, else the GPU that the module is on, else the host."""
    if device is None:
        tensors = itertools.chain(module.parameters(), module.buffers())
        device = next((str(t.device) for t in tensors if t.is_cuda and t.numel() > 0), "cpu")
    return device_name(device) or "host"


def classes_of(module: torch.nn.Module) -> str:
    """The class of each module, as JSON."""
    return json.dumps({name: type(part).__qualname__ for name, part in module.named_modules(remove_duplicate=False)})


def publish_items(publication: Publication, items: list[Item], attributes: Mapping[str, str]) -> None:
    """Moves the items to the publication's memory, and commits. After a failure they have memory of their own again."""
    moved: list[tuple[Storage, list[Entry], Memory]] = []
    try:
        for item in items:
            _require_plain(item)
        storages = _storages(items)
        empty = [item for item in items if item.tensor.numel() == 0]
        publication.begin([s.end - s.begin for s in storages] + ([0] if empty else []))
        for i, storage in enumerate(storages):
            memory = publication.storage(i)
            entries = [_entry(item, i, storage) for item in storage.items]
            for entry in entries:
                publication.tensor(entry)
            _copy_storage(storage, memory)
            if all(item.flags & CLONE for item in storage.items):
                continue  # who writes to it keeps memory of its own
            moved.append((storage, entries, memory))
            _use(storage, entries, bytes_at(memory))
        if empty:
            publication.storage(len(storages))
        for item in empty:
            publication.tensor(_entry(item, len(storages), None))
        for name, value in attributes.items():
            publication.attribute(name, value)
        _synchronize(storages)
        publication.commit()
    except BaseException:
        for storage, entries, memory in moved:
            _use(storage, entries, bytes_at(memory).clone())
        publication.abort()
        raise


def _entry(item: Item, index: int, storage: Storage | None) -> Entry:
    tensor = item.tensor
    return Entry(
        item.name,
        str(tensor.dtype).removeprefix("torch."),
        tensor.element_size(),
        item.kind,
        item.flags,
        index + 1 if storage is not None and len(storage.items) > 1 else 0,
        tuple(tensor.shape),
        tuple(tensor.stride()),
        index,
        tensor.data_ptr() - storage.begin if storage is not None else 0,
    )


def _copy_storage(storage: Storage, memory: Memory) -> None:
    if memory.device == "host":
        _copy(memory, storage.begin)
    else:
        bytes_at(memory).copy_(bytes_at(Memory(storage.begin, memory.size, memory.device, None)))


def _use(storage: Storage, entries: list[Entry], memory: torch.Tensor) -> None:
    """Lets the items of a storage use this copy of it; their own memory is freed with the last reference to it."""
    for item, entry in zip(storage.items, entries, strict=True):
        item.tensor.data = _view(memory, entry)


def _synchronize(storages: list[Storage]) -> None:
    import torch

    if any(_device(storage.items[0]).startswith("cuda") for storage in storages):
        torch.cuda.synchronize()


# ---- load ----


def load_published(
    module: torch.nn.Module,
    name: str,
    *,
    key: Mapping[str, str],
    base: str | os.PathLike[str] | None = None,
    device: Any = None,
    timeout: float | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> None:
    """Fills a module, which may be on the meta device, with the tensors that publish() made resident.

    Raises InvalidError that names each field of the key that differs, and each name that only one side has; the module
    is then as before.
    """
    client = connect(socket, autostart)
    where = _daemon_device(module, device)
    found = find(client, name, key, base=_base(client, base), device=where, claim=False, timeout=timeout)
    if found.state != "hit":
        kind = NotFoundError if found.state in ("absent", "stale") else InvalidError
        raise kind(found.explain(name))
    apply(module, Published(client, name, found.generation, where), name)


def apply(module: torch.nn.Module, published: Published, name: str) -> None:
    """Lets a module use the tensors of a published model."""
    _require_classes(module, published.attributes().get(_CLASSES, "{}"), name)
    entries = published.entries()
    for entry in entries:
        require_dtype(entry)
    items = {item.name: item for item in items_of(module)}
    require_names(items, entries, name)
    install(module, items, entries, [bytes_at(memory) for memory in published.storages()])
    left = [item.name for item in items_of(module) if item.tensor.is_meta]
    if left:
        raise InvalidError(f"{name}: not in the published model, and left without memory: {left}")


def _require_classes(module: torch.nn.Module, published: str, name: str) -> None:
    have, want = json.loads(published), json.loads(classes_of(module))
    differs = [
        f"{path or 'the module'}: published as {have.get(path)}, built as {want.get(path)}"
        for path in [*have, *(path for path in want if path not in have)]
        if have.get(path) != want.get(path)
    ]
    if differs:
        more = f", and {len(differs) - 5} more" if len(differs) > 5 else ""
        raise InvalidError(f"{name}: the module's classes differ: {'; '.join(differs[:5])}{more}")


def require_names(items: dict[str, Item], entries: list[Entry], name: str) -> None:
    published = {entry.name: entry for entry in entries}
    missing = [n for n, item in items.items() if n not in published and (item.kind != ATTRIBUTE or item.tensor.is_meta)]
    unexpected = [n for n, entry in published.items() if n not in items and entry.kind != ATTRIBUTE]
    shapes = [
        f"{n}: {list(entry.shape)} published, {list(items[n].tensor.shape)} built"
        for n, entry in published.items()
        if n in items and tuple(items[n].tensor.shape) != entry.shape
    ]
    if missing or unexpected or shapes:
        raise InvalidError(
            f"{name}: not published: {missing}; not in the module: {unexpected}; shapes that differ: {shapes}"
        )


def install(
    module: torch.nn.Module, items: Mapping[str, Item], entries: list[Entry], storages: list[torch.Tensor]
) -> None:
    """Replaces the contents of the items by the tensors of the table. What is one tensor there is one here."""
    views = [_resident(storages[entry.storage], entry) for entry in entries]
    before = [item.tensor for item in items.values()]  # kept, so that no id is used twice
    now: dict[int, tuple[tuple[Any, ...], torch.Tensor]] = {}  # by a tensor's id: its place, and what replaced it
    tied: dict[tuple[Any, ...], torch.Tensor] = {}  # parameters by their place
    for entry, view in zip(entries, views, strict=True):
        item = items.get(entry.name)
        if item is None:
            _set_attribute(module, entry.name, view)
            continue
        target = item.tensor
        place = (entry.storage, entry.offset, entry.shape, entry.strides, entry.dtype)
        seen = now.get(id(target))
        if seen is None:
            same = tied.get(place) if entry.kind == PARAMETER and 0 not in entry.shape else None
            new = _replace(item, _like(target, view, entry)) if same is None else _put(item, same)
            now[id(target)] = place, new
            tied.setdefault(place, new)
        elif seen[0] != place:  # one tensor here, several there
            _put(item, _like(target, view, entry))
        elif seen[1] is not target:
            _put(item, seen[1])
    del before


def _resident(storage: torch.Tensor, entry: Entry) -> torch.Tensor:
    view = _view(storage, entry)
    if entry.flags & HOST and view.device.type != "cpu":
        return view.cpu()
    return view.clone() if entry.flags & CLONE else view


def _like(target: torch.Tensor, view: torch.Tensor, entry: Entry) -> torch.Tensor:
    """The view as a tensor of the target's class, with the target's own attributes."""
    import torch

    grad = bool(entry.flags & GRAD)
    if type(target) is torch.Tensor:
        return view.requires_grad_(grad) if grad else view
    new = torch.Tensor._make_subclass(type(target), view, grad)
    new.__dict__.update(target.__dict__)
    return new


def _replace(item: Item, new: torch.Tensor) -> torch.Tensor:
    """Gives the item's tensor the contents of another, so that other references to it follow. Returns what the item has."""
    import torch

    swap: Any = torch.utils.swap_tensors
    try:
        swap(item.tensor, new)
    except RuntimeError:  # weak references, or a graph, refer to it
        return _put(item, new)
    return item.tensor


def _put(item: Item, tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(item.holder, tuple):
        raise UnsupportedError(f"{item.name}: a tensor of a tuple that is referred to elsewhere cannot be replaced")
    item.holder[item.place] = tensor
    item.tensor = tensor
    return tensor


def _set_attribute(module: torch.nn.Module, name: str, tensor: torch.Tensor) -> None:
    """An attribute that the publisher's module has and this one lacks."""
    path, _, leaf = name.rpartition(".")
    if "[" in name:
        raise InvalidError(f"{name}: published, but the module has no such container")
    module.get_submodule(path).__dict__[leaf] = tensor
