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
import json
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._client import Client, connect
from ._nearest import explains_options
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
from ._views import TorchViews
from .errors import InvalidError, NotFoundError, UnsupportedError

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

    Parts = list[tuple[str, torch.nn.Module]]
    Prove = Callable[[list[Entry], list[torch.Tensor]], Mapping[str, str]]
else:
    Module = Any  # where annotations are evaluated, torch need not be installed

_CLASSES = "classes"  # the attribute that has the class of each module
_ALIGNMENT = 16  # of the largest element that a published model can have
_DEPTH = 4
_CONTAINERS = (list, tuple, dict)
_PLAIN = frozenset((bool, int, float, str, type(None), set, OrderedDict))  # most of a model's many thousands of attributes
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
    return _items_of(parts_of(module))


def parts_of(module: torch.nn.Module, path: str = "") -> Parts:
    """As named_modules() with duplicates, whose nested generators take ten times as long."""
    parts = [(path, module)]
    for name, child in module._modules.items():
        if child is not None:
            parts += parts_of(child, f"{path}.{name}" if path else name)
    return parts


def _items_of(parts: Parts) -> list[Item]:
    return [item for path, part in parts for item in _items(path, part)]


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
        if type(value) in _PLAIN:
            continue
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


def require_plain(what: str, tensor: torch.Tensor) -> None:
    """Only tensors that are elements in memory can be shared, and copied. `what`: for the error."""
    import torch

    if tensor.is_meta:
        raise InvalidError(f"{what} is on the meta device")
    is_plain = tensor.layout is torch.strided and not tensor.is_quantized
    is_plain = is_plain and not hasattr(type(tensor), "__tensor_flatten__")
    try:
        begin, end = extent_of(tensor) if is_plain else (0, 0)
        storage = tensor.untyped_storage() if is_plain else None
        is_freed = storage is not None and begin < end and (begin == 0 or end > storage.data_ptr() + storage.nbytes())
    except (RuntimeError, ValueError):  # torch's own wrappers, and parameters whose shape is not known yet
        is_plain = is_freed = False
    if not is_plain:
        kind = f"{type(tensor).__name__}, {tensor.layout}, {tensor.dtype}"
        raise UnsupportedError(f"{what} has no plain memory ({kind})")
    if is_freed:
        raise InvalidError(f"{what} has no memory: it was freed, or never allocated")


def _require_shareable(item: Item) -> None:
    require_plain(f"publish: {item.name}", item.tensor)
    if item.tensor.is_conj() or item.tensor.is_neg():
        raise UnsupportedError(f"publish: {item.name} is a lazy conjugate or negation")


def extent_of(tensor: torch.Tensor) -> tuple[int, int]:
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


def storages_of(items: list[Item]) -> list[Storage]:
    """The ranges of memory of all items that have bytes, in the order of the module.

    Each begins at a multiple of _ALIGNMENT of torch's own storage: an offset in it is then a multiple of its item's
    size, whatever the sizes of the items that share it.
    """
    storages: list[Storage] = []
    order = {id(item): i for i, item in enumerate(items)}
    extents = [(*extent_of(item.tensor), item) for item in items]
    for first, end, item in sorted((e for e in extents if e[0] < e[1]), key=lambda e: e[:2]):
        begin = first - (first - item.tensor.untyped_storage().data_ptr()) % _ALIGNMENT
        if storages and begin < storages[-1].end and _device(storages[-1].items[0]) == _device(item):
            storages[-1].begin = min(storages[-1].begin, begin)
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


def view_of(storage: torch.Tensor, entry: Entry) -> torch.Tensor:
    """A tensor of the table in its storage."""
    import torch

    dtype = require_dtype(entry)
    view = torch.empty(0, dtype=dtype, device=storage.device)
    if 0 in entry.shape:
        return torch.empty_strided(entry.shape, entry.strides, dtype=dtype, device=storage.device)
    view.set_(storage.untyped_storage(), entry.offset // entry.item, entry.shape, entry.strides)
    return view


# ---- publish ----


@explains_options
def publish(
    module: Module,
    name: str,
    *,
    key: Mapping[str, str],
    base: str | os.PathLike[str] | None = None,
    device: Any = None,
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> None:
    """Publishes the tensors of a module under `name`, and lets the module use the resident memory.

    Returns when the model exists. Where another process has published this name with this key and base already, the
    module takes those tensors. The memory is copy-on-write: a later write of this process reaches no other one. If it
    fails the module is as before.

    Args:
        module: any torch module.
        name: the model's name in the daemon.
        key: all that the tensors depend on besides the base, as texts; load_into() must give the same.
        base: the source that they were made from, or the name of a resident model; the published model is out of date
            once its files have changed.
        device: as for open(); None: where the module is.
        timeout: "30s", or seconds, until the base is examined, and another process that publishes the same has
            finished.
        socket, autostart: as for open().

    Raises:
        InvalidError: the module or the key differs from what was published: the text names each difference.
        UnsupportedError: a tensor has no plain memory, as sparse and quantised ones.
        TimedOutError: not done by `timeout`.
        What open() raises.

    Example:
        model = quantise(load("/models/llama"))
        streamerd.publish(model, "llama-int8", key={"method": "int8"}, base="/models/llama")
    """
    client = connect(socket, autostart)
    parts = parts_of(module)
    items = _items_of(parts)
    where = _daemon_device(items, device)
    found = find(client, name, key, base=_base(client, base), device=where, claim=True, timeout=timeout)
    if found.publication is None:
        if found.state != "hit":
            raise InvalidError(found.explain(name))
        _apply(parts, items, Published(client, name, found.generation, where), name)
        return
    publish_items(found.publication, items, {_CLASSES: _classes_of(parts)})


def _base(client: Client, base: str | os.PathLike[str] | None) -> str | None:
    if base is None:
        return None
    return without_links(os.fspath(base))[0] if client.own else os.fspath(base)


def _daemon_device(items: list[Item], device: Any) -> str:
    """The daemon's name of the device: as given, else the GPU that the module is on, else the host."""
    if device is None:
        tensors = (item.tensor for item in items if item.kind != ATTRIBUTE)
        device = next((str(t.device) for t in tensors if t.is_cuda and t.numel() > 0), "cpu")
    return device_name(device) or "host"


def _classes_of(parts: Parts) -> str:
    """The class of each module, as JSON."""
    return json.dumps({name: type(part).__qualname__ for name, part in parts})


def publish_items(
    publication: Publication, items: list[Item], attributes: Mapping[str, str], prove: Prove | None = None
) -> None:
    """Moves the items to the publication's memory, and commits. After a failure they have memory of their own again.

    `prove` is called with the table and the memory of its storages before the commit: nothing is published if it raises.
    It returns further attributes.
    """
    moved: list[tuple[Storage, list[Entry], Memory]] = []
    table: list[Entry] = []
    memories: list[Memory] = []
    try:
        for item in items:
            _require_shareable(item)
        storages = storages_of(items)
        empty = [item for item in items if item.tensor.numel() == 0]
        publication.begin([s.end - s.begin for s in storages] + ([0] if empty else []))
        for i, storage in enumerate(storages):
            memory = publication.storage(i)
            entries = [entry_of(item, i, storage) for item in storage.items]
            for entry in entries:
                publication.tensor(entry)
            table += entries
            memories.append(memory)
            _copy_storage(storage, memory)
            if all(item.flags & CLONE for item in storage.items):
                # Who writes to it has memory of its own: not a view of what another model has, which it would keep.
                _use(storage, entries, bytes_at(memory).clone())
                continue
            moved.append((storage, entries, memory))
            _use(storage, entries, bytes_at(memory))
        if empty:
            memories.append(publication.storage(len(storages)))
        for item in empty:
            table.append(entry_of(item, len(storages), None))
            publication.tensor(table[-1])
        _synchronize(storages)
        proof = {} if prove is None else prove(table, [bytes_at(memory) for memory in memories])
        for name, value in {**attributes, **proof}.items():
            publication.attribute(name, value)
        publication.commit()
    except BaseException:
        for storage, entries, memory in moved:
            _use(storage, entries, bytes_at(memory).clone())
        publication.abort()
        raise


def entry_of(item: Item, index: int, storage: Storage | None) -> Entry:
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
        memory.copy_from(storage.begin)
    else:
        bytes_at(memory).copy_(bytes_at(Memory(storage.begin, memory.size, memory.device, None)))


def _use(storage: Storage, entries: list[Entry], memory: torch.Tensor) -> None:
    """Lets the items of a storage use this copy of it; their own memory is freed with the last reference to it."""
    for item, entry in zip(storage.items, entries, strict=True):
        item.tensor.data = view_of(memory, entry)


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
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> None:
    """Fills a module, which may be on the meta device, with the tensors that publish() made resident.

    Raises InvalidError that names each field of the key that differs, and each name that only one side has; the module
    is then as before.
    """
    client = connect(socket, autostart)
    parts = parts_of(module)
    items = _items_of(parts)
    where = _daemon_device(items, device)
    found = find(client, name, key, base=_base(client, base), device=where, claim=False, timeout=timeout)
    if found.state != "hit":
        kind = NotFoundError if found.state in ("absent", "stale") else InvalidError
        raise kind(found.explain(name))
    _apply(parts, items, Published(client, name, found.generation, where), name)


def _apply(parts: Parts, items: list[Item], published: Published, name: str) -> None:
    """Lets a module use the tensors of a published model. After a refusal the module is as before."""
    _require_classes(parts, published.attributes().get(_CLASSES, "{}"), name)
    entries = published.entries()
    named = by_name(items)
    require_names(named, entries, name)
    install(parts, named, entries, published.storages(TorchViews()))


def _require_classes(parts: Parts, published: str, name: str) -> None:
    built = _classes_of(parts)
    if built == published:
        return
    have, want = json.loads(published), json.loads(built)
    differs = [
        f"{path or 'the module'}: published as {have.get(path)}, built as {want.get(path)}"
        for path in [*have, *(path for path in want if path not in have)]
        if have.get(path) != want.get(path)
    ]
    if differs:
        more = f", and {len(differs) - 5} more" if len(differs) > 5 else ""
        raise InvalidError(f"{name}: the module's classes differ: {'; '.join(differs[:5])}{more}")


def by_name(items: Iterable[Item]) -> dict[str, Item]:
    """Raises InvalidError where two have one name: keys 1 and "1" of a dict."""
    named: dict[str, Item] = {}
    for item in items:
        if named.setdefault(item.name, item) is not item:
            raise InvalidError(f"{item.name}: two tensors of the module have this name")
    return named


def require_names(items: dict[str, Item], entries: list[Entry], name: str) -> None:
    published = {entry.name: entry for entry in entries}
    missing = [n for n, item in items.items() if n not in published and (item.kind != ATTRIBUTE or item.tensor.is_meta)]
    # An attribute that only the publisher's module has is set, unless it lies in a container.
    unexpected = [n for n, entry in published.items() if n not in items and (entry.kind != ATTRIBUTE or "[" in n)]
    shapes = [
        f"{n}: {list(entry.shape)} published, {list(items[n].tensor.shape)} built"
        for n, entry in published.items()
        if n in items and tuple(items[n].tensor.shape) != entry.shape
    ]
    if missing or unexpected or shapes:
        raise InvalidError(
            f"{name}: not published: {missing}; not in the module: {unexpected}; shapes that differ: {shapes}"
        )


class _Change:
    """Contents of the table, and the items that get them. `target`: the tensor that most of them refer to now."""

    __slots__ = ("items", "new", "place", "target")

    def __init__(self, target: torch.Tensor | None, new: torch.Tensor, place: tuple[Any, ...]) -> None:
        self.target = target
        self.new = new
        self.place = place
        self.items: list[Item] = []

    def require_replaceable(self) -> None:
        """An element of a tuple cannot be another tensor: it can only get other contents."""
        for item in self.items:
            if not isinstance(item.holder, tuple):
                continue
            if item.tensor is not self.target or not (_swap(item.tensor, self.new) and _swap(item.tensor, self.new)):
                raise UnsupportedError(f"{item.name}: a tensor of a tuple that is referred to elsewhere cannot be replaced")

    def apply(self) -> None:
        now = self.target if self.target is not None and _swap(self.target, self.new) else self.new
        for item in self.items:
            if item.tensor is not now:
                item.holder[item.place] = item.tensor = now


def _swap(target: torch.Tensor, new: torch.Tensor) -> bool:
    """Exchanges the contents of two tensors, so that all references to them follow. False: it is impossible."""
    import torch

    exchange: Any = torch.utils.swap_tensors
    try:
        exchange(target, new)
    except RuntimeError:  # weak references, or a graph, refer to one
        return False
    return True


def install(parts: Parts, items: Mapping[str, Item], entries: list[Entry], storages: list[torch.Tensor]) -> None:
    """Replaces the contents of the items by the tensors of the table. What is one tensor there is one here.

    Whatever is refused is refused before the first change.
    """
    resident = _Resident(entries, storages)
    modules = dict(parts)
    more: list[tuple[torch.nn.Module, str, Entry, torch.Tensor]] = []
    changes: list[_Change] = []
    of_target: dict[int, _Change] = {}  # by the id of an item's tensor
    tied: dict[tuple[Any, ...], _Change] = {}  # parameters, by their place in the table
    for entry in entries:
        view = resident.view(entry)
        item = items.get(entry.name)
        if item is None:
            path, _, leaf = entry.name.rpartition(".")
            if path not in modules:
                raise InvalidError(f"{entry.name}: published, but the module has no such part")
            more.append((modules[path], leaf, entry, view))
            continue
        place = (entry.storage, entry.offset, entry.shape, entry.strides, entry.dtype)
        target = item.tensor
        parameter = entry.kind == PARAMETER and 0 not in entry.shape
        change = of_target.get(id(target))
        if change is None or change.place != place:
            several = change is not None  # one tensor here, several there
            change = tied.get(place) if parameter else None
            if change is None:
                change = _Change(None if several else target, _like(target, view, entry), place)
                changes.append(change)
        if parameter:
            tied.setdefault(place, change)
        of_target.setdefault(id(target), change)
        change.items.append(item)
    for change in changes:
        change.require_replaceable()
    for part, leaf, entry, tensor in more:
        _add(part, leaf, entry, tensor)
    for change in changes:
        change.apply()


class _Resident:
    """The tensors of a table. A storage of which all are copied is copied once, so that they share the copy."""

    def __init__(self, entries: list[Entry], storages: list[torch.Tensor]) -> None:
        self._storages = storages
        self._shared = {entry.storage for entry in entries if not entry.flags & CLONE}
        self._copies: dict[int, torch.Tensor] = {}

    def view(self, entry: Entry) -> torch.Tensor:
        i = entry.storage
        if i in self._shared:
            view = view_of(self._storages[i], entry)
            if entry.flags & CLONE:
                view = view.clone()
        else:
            if i not in self._copies:
                self._copies[i] = self._storages[i].clone()
            view = view_of(self._copies[i], entry)
        return view.cpu() if entry.flags & HOST and view.device.type != "cpu" else view


def _add(part: torch.nn.Module, leaf: str, entry: Entry, tensor: torch.Tensor) -> None:
    """A tensor that only the publisher's module has."""
    import torch

    if entry.kind == PARAMETER:
        part.register_parameter(leaf, torch.nn.Parameter(tensor, requires_grad=bool(entry.flags & GRAD)))
    elif entry.kind == BUFFER:
        part.register_buffer(leaf, tensor, persistent=bool(entry.flags & PERSISTENT))
    else:
        part.__dict__[leaf] = tensor


def _like(target: torch.Tensor, view: torch.Tensor, entry: Entry) -> torch.Tensor:
    """The view as a tensor of the target's class, with the target's own attributes."""
    import torch

    grad = bool(entry.flags & GRAD)
    if type(target) is torch.Tensor:
        return view.requires_grad_(grad) if grad else view
    new = torch.Tensor._make_subclass(type(target), view, grad)
    new.__dict__.update(target.__dict__)
    return new
