# SPDX-License-Identifier: Apache-2.0
"""put(): tensors of this process become a model of the daemon, one generation of its name a call.

    described > claimed and admitted > copied, one after the other > committed

It is a publication (_publication.py) whose tensors are those of an ordinary model. A tensor whose full contents several
processes hold (torch's DTensor) is gathered when its turn comes, so that one of them is in memory at a time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple

from ._client import Client, connect, warn
from ._library import text
from ._model import Model
from ._nearest import explains_options
from ._open import ADMISSION_LOG_SECONDS, RETRY_SECONDS, device_name
from ._option_values import deadline_of, flag, seconds_until
from ._progress import ProgressBar
from ._publication import PARAMETER, Entry, Memory, Publication, find
from ._publish import bytes_at, require_plain
from ._views import views_of
from .errors import (
    BusyError,
    Error,
    FailedError,
    InvalidError,
    LimitError,
    OutOfMemoryError,
    TimedOutError,
    UnsupportedError,
)

if TYPE_CHECKING:
    import numpy
    import torch

    Tensors = Mapping[str, Any] | Iterable[tuple[str, Any]]
else:
    Tensors = Any

OWN = "streamerd."  # the beginning of names that are the daemon's
_TEXT_MAX = 65536  # bytes of a text of metadata

# The frameworks' names of element types, and those of safetensors.
_DTYPES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "float8_e8m0fnu": "F8_E8M0",
    "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ", "float4_e2m1fn_x2": "F4",
}  # fmt: skip


class Part(NamedTuple):
    """A tensor that is to be put. `dtype`: by the framework's name."""

    name: str
    dtype: str
    item: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        size = self.item
        for dimension in self.shape:
            size *= dimension
        return size


@explains_options
def put(
    tensors: Tensors,
    name: str,
    *,
    device: Any = None,
    metadata: Mapping[str, str] | None = None,
    wait: bool | None = False,
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> Model[Any]:
    """Makes a model of tensors of this process: a new generation of `name`, which serves when this returns.

    The tensors are copied, and are not changed; what writes to them meanwhile is copied in part. Processes that have an
    older generation keep it; the daemon has two generations of the name in memory at most, this one included
    (`publish.keep`), so a process that puts one after the other has a fixed footprint.

    Args:
        tensors: a mapping of names to tensors, or pairs of both, of torch or numpy.
        name: the model's name in the daemon; no model that was loaded has it.
        device: as for open(); None: the GPU that a tensor is on, else the host.
        metadata: texts of the model, as Model.metadata gives them.
        wait: wait for memory, and for readers of older generations, instead of failing. What no wait can help fails at
            once: it exceeds the budget, alone or beside the generation that serves, or what the user may have.
        timeout: "30s", or seconds, of connecting and waiting; None: no limit.
        socket, autostart: as for open().

    Returns:
        The model; what refers to it or to its tensors keeps this generation.

    Raises:
        LimitError: as many generations as the daemon keeps are in use: the text names the oldest. Or the user may not have
            as much; or names and metadata have more than 256 MiB.
        OutOfMemoryError: it does not fit the device's budget, beside the generation that serves.
        BusyError: a model that was loaded has the name, or another process puts it.
        UnsupportedError: a dtype that safetensors lacks, or a tensor without plain memory.
        InvalidError: two tensors of one name, a reserved name, a text of more than 64 KiB, arguments of other types.
        FailedError: a tensor could not be copied: the text names it.
        LostError: the daemon has ended meanwhile.
        What open() raises.

    Example:
        for step in range(1000):
            train(policy)
            streamerd.put(policy.state_dict(), "policy", metadata={"step": str(step)}, wait=True)
    """
    pairs = _pairs(tensors)
    parts = [part_of(tensor_name, tensor) for tensor_name, tensor in pairs]
    framework = "numpy" if pairs and not any(_is_torch(tensor) for _, tensor in pairs) else "torch"
    if device is None:
        device = next((str(t.device) for _, t in pairs if _is_torch(t) and t.is_cuda), "cpu")
    values = (tensor for _, tensor in pairs)
    return put_parts(
        parts, values, name, framework=framework, device=device, metadata=metadata, wait=wait, timeout=timeout,
        socket=socket, autostart=autostart,
    )  # fmt: skip


def put_parts(
    parts: list[Part],
    values: Iterator[Any],
    name: str,
    *,
    framework: str = "torch",
    device: Any = "cpu",
    metadata: Mapping[str, str] | None = None,
    wait: bool | None = False,
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> Model[Any]:
    """As put(), of tensors that are made one after the other, in the order of their descriptions."""
    views = views_of(framework)
    deadline = deadline_of("timeout", timeout)
    waits = flag("wait", wait) or False
    _require_valid(name, parts)
    texts = _texts(metadata)
    client = connect(socket, autostart, deadline)
    where = device_name(device) or "host"
    publication = admitted(client, name, {}, where, [part.nbytes for part in parts], waits, deadline)
    try:
        for i, (part, value) in enumerate(zip(parts, values, strict=True)):
            publication.tensor(entry_of(part, i))
            fill(publication.storage(i), part, value)
        for key, value in texts.items():
            publication.text(key, value)
        synchronize(where)
        publication.commit()
    except BaseException:
        publication.abort()
        raise
    return Model(client, publication.lease(), None, views, ProgressBar(name, False))


# ---- what is put ----


def _pairs(tensors: Tensors) -> list[tuple[str, Any]]:
    if not isinstance(tensors, Iterable):
        raise InvalidError(f"put: a mapping of names to tensors, or pairs, are needed, not {type(tensors).__name__}")
    pairs = list(tensors.items() if isinstance(tensors, Mapping) else tensors)
    for pair in pairs:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InvalidError(f"put: pairs of a name and a tensor are needed, not {type(pair).__name__}")
    return pairs


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def part_of(name: str, tensor: Any) -> Part:
    """The description of a tensor. One that is spread over processes has its full shape."""
    if not isinstance(name, str) or not name:
        raise InvalidError(f"put: a tensor is named by a text, not by {name!r}")
    if _is_torch(tensor):
        if not hasattr(tensor, "full_tensor"):
            require_plain(f"put: {name}", tensor)
        return Part(name, str(tensor.dtype).removeprefix("torch."), tensor.element_size(), tuple(tensor.shape))
    if hasattr(tensor, "__array_interface__") and hasattr(tensor, "dtype"):
        if hasattr(tensor, "mask"):
            raise UnsupportedError(f"put: {name} is a masked array")
        return Part(name, tensor.dtype.name, tensor.dtype.itemsize, tuple(tensor.shape))
    raise InvalidError(f"put: {name}: a tensor of torch or numpy is needed, not {type(tensor).__name__}")


def _require_valid(name: str, parts: list[Part]) -> None:
    if not isinstance(name, str):
        raise InvalidError(f"put: a model is named by a text, not by {name!r}")
    text(name)
    seen: set[str] = set()
    for part in parts:
        _require_short("put", part.name)
        if part.name in seen:
            raise InvalidError(f"put: two tensors are named {part.name!r}")
        if part.name.startswith(OWN):
            raise InvalidError(f"put: {part.name!r}: names that begin with {OWN!r} are the daemon's")
        if part.dtype not in _DTYPES:
            raise UnsupportedError(f"put: {part.name}: safetensors has no dtype for {part.dtype}")
        seen.add(part.name)


def _texts(metadata: Mapping[str, str] | None) -> dict[str, str]:
    if not isinstance(metadata, (Mapping, NoneType)):
        raise InvalidError(f"metadata: it maps names to texts, and is no {type(metadata).__name__}")
    texts = dict(metadata or {})
    for key, value in texts.items():
        if not isinstance(key, str) or not isinstance(value, str) or not key:
            raise InvalidError(f"metadata: it maps names to texts: {key!r}: {value!r}")
        if key.startswith(OWN):
            raise InvalidError(f"metadata: {key!r}: names that begin with {OWN!r} are the daemon's")
        _require_short(f"metadata: {key[:100]!r}", key)
        _require_short(f"metadata: {key[:100]!r}", value)
    return texts


def _require_short(what: str, value: str) -> None:
    if len(text(value)) > _TEXT_MAX:
        raise InvalidError(f"{what}: {value[:100]!r}: a text has {_TEXT_MAX} bytes at most")


# ---- memory ----


def claimed(
    client: Client, name: str, key: Mapping[str, str], device: str, wait: bool, deadline: float | None
) -> Publication:
    """The right to make a generation of `name` of tensors. `wait`: also for another process that has it."""
    found = find(
        client, name, key, base=None, device=device, claim=True, replace=True, tensors=True, wait=wait,
        timeout=seconds_until(deadline),
    )  # fmt: skip
    if found.publication is None:
        raise BusyError(found.explain(name))
    return found.publication


def admitted(
    client: Client,
    name: str,
    key: Mapping[str, str],
    device: str,
    sizes: list[int],
    wait: bool,
    deadline: float | None,
) -> Publication:
    """The same, with memory for storages of these sizes, for which it waits, too."""
    since = time.monotonic()
    logged = False
    refusal: Error | None = None
    while True:
        try:
            publication = claimed(client, name, key, device, wait, deadline)
        except TimedOutError as e:
            raise TimedOutError(f"{e}; before that: {refusal}") if refusal else e from None
        try:
            publication.begin(sizes)
            return publication
        except (LimitError, OutOfMemoryError) as e:
            refusal = e
            publication.abort()
        except BaseException:
            publication.abort()
            raise
        if not wait or publication.is_hopeless:
            raise refusal
        now = time.monotonic()
        if deadline is not None and now + 2 * RETRY_SECONDS >= deadline:
            raise TimedOutError(f"not admitted in the given time: {refusal}")
        if not logged and now - since >= ADMISSION_LOG_SECONDS:
            logged = True
            warn("%s: waits for memory: %s", name, refusal)
        time.sleep(RETRY_SECONDS)


def entry_of(part: Part, storage: int) -> Entry:
    """A tensor that is all of its storage, as safetensors describes it."""
    strides, step = [], 1
    for dimension in reversed(part.shape):
        strides.append(step)
        step *= max(dimension, 1)
    strides.reverse()
    return Entry(
        part.name, _DTYPES[part.dtype], part.item, PARAMETER, 0, 0, part.shape, tuple(strides), storage, 0
    )  # fmt: skip


def fill(memory: Memory, part: Part, value: Any) -> None:
    """Copies a tensor to its storage. A tensor that is spread over processes is gathered: they all have to take part."""
    gather = getattr(value, "full_tensor", None)
    if callable(gather):
        value = gather()
    made = part_of(part.name, value)
    if made != part:
        announced, given = (f"{list(p.shape)} of {p.dtype}" for p in (part, made))
        raise InvalidError(f"put: {part.name}: {announced} was announced, not {given}")
    if part.nbytes == 0:
        return
    try:
        if _is_torch(value):
            _fill_from_torch(memory, value.detach().resolve_conj().resolve_neg())
        else:
            _fill_from_numpy(memory, value)
    except Exception as e:
        raise FailedError(f"put: {part.name}: it cannot be copied: {e}") from e


def _fill_from_torch(memory: Memory, tensor: torch.Tensor) -> None:
    import torch

    if memory.device == "host" and tensor.device.type == "cpu" and tensor.is_contiguous():
        memory.copy_from(tensor.data_ptr())
        return
    # As integers of the same size, which torch copies for every dtype.
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    bytes_at(memory).view(bits).view(tensor.shape).copy_(tensor.view(bits))


def _fill_from_numpy(memory: Memory, array: numpy.ndarray[Any, Any]) -> None:
    import numpy

    native = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    own = numpy.ascontiguousarray(array, dtype=native)
    if memory.device == "host":
        memory.copy_from(own.ctypes.data)
        return
    import torch

    bytes_at(memory).copy_(torch.from_numpy(own.reshape(-1).view(numpy.uint8)))


def synchronize(device: str) -> None:
    """Copies to a GPU are complete when this returns."""
    if device != "host":
        import torch

        torch.cuda.synchronize()
