# SPDX-License-Identifier: Apache-2.0
"""Proof that an engine that attaches has the model that its publisher has.

Before the commit a second model is built of what is to be published, in the way of an engine that attaches, and compared:

    tensors   parameters, buffers and attributes: bytes, shapes, strides, element types, and which share memory
    scalars   every plain attribute, and the class of every object
    outputs   of both models, bit for bit, for a fixed batch of token ids, called as vLLM's profile run calls a model

Tensors that the second model maps as they are published are equal, since they are the same memory. Whether post-processing or
the forward pass writes to them, the kernel tells on the host, where a page that is written to becomes this process's own;
elsewhere checksums before and after do, which read all of it.

The profile run has no KV cache, so attention computes nothing: a sum of its inputs stands for it, in which each element of
queries, keys and values has a part. With tensor parallelism each rank proves its own model: a rank that attaches takes part
in no collective operation, so the other ranks are assumed to have what this one has.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import json
import re
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import Logger
from math import nan
from typing import Any

import torch
import vllm
from torch import nn
from torch.overrides import TorchFunctionMode
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.forward_context import set_forward_context
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers.attention import Attention

import streamerd
from streamerd._engines.vllm_attach import build, complete
from streamerd._engines.vllm_state import (
    NotPublishable,
    built_of,
    changes,
    differences,
    digest_of,
    require_movable,
    scalars_of,
    tensors_of,
)
from streamerd._model import size_text
from streamerd._publication import Entry
from streamerd._publish import Item, by_name, storages_of

SCALARS = "scalars"  # attributes of the table
BUILT = "built"
PROOF = "proof"

# Kernels may have another path for one token alone. With two a pass takes hardly longer than reading the weights, and with each
# further one longer, where matrices are multiplied without units for them. Experts that no token reaches are compared by their
# bytes alone, which would be so with any number.
_TOKENS = 2
_ALLOCATING = (
    torch.empty, torch.empty_like, torch.empty_strided, torch.Tensor.new_empty, torch.Tensor.new_empty_strided,
)  # fmt: skip
_MAPPING = re.compile("^([0-9a-f]+)-([0-9a-f]+) ...(.)", re.MULTILINE)  # in smaps
_COPIES = re.compile("^(?:Anonymous|SwapPss): +([0-9]+) kB$", re.MULTILINE)  # of pages, in memory or swapped
_WORDS = 1 << 18  # of a checksum at a time: 2 MiB
_MULTIPLIER = 0x9E3779B97F4A7C15
_BYTES = 16 << 20  # that are compared at a time


class Altered(NotPublishable):
    """The memory that was to be published was written to."""


class Proof:
    """Of the model of one engine: made before its tensors are moved, called once they are where they are published.

    What can be refused is refused by the constructor, which changes nothing. `pristine`: a copy of the engine's
    configuration from before it built the model; `state`: the digest of what an engine that attaches is to build, if that
    is known; `protect`: Publication.protect() of where its tensors are moved.
    """

    def __init__(
        self, model: nn.Module, config: VllmConfig, pristine: VllmConfig, prefix: str, state: str | None,
        protect: Callable[[], bool], logger: Logger,
    ) -> None:  # fmt: skip
        began = time.perf_counter()
        self._model = model
        self._config = config
        self._pristine = pristine
        self._protect = protect
        self._logger = logger
        self._is_altered = False
        self._outputs = _outputs(model, config, 0.0)  # first: a first call may convert tables
        self.items = tensors_of(model)
        self._scalars = scalars_of(model)
        require_movable(model, self.items, self._scalars)
        with _fresh_registries():
            second = build(pristine, pristine.model_config, prefix)
        self._second: nn.Module | None = second
        self._built = built_of(second)
        if state is not None and digest_of(self._built) != state:
            raise NotPublishable("what is built differs from build to build")
        self._seconds = time.perf_counter() - began

    def __call__(self, entries: list[Entry], storages: list[torch.Tensor]) -> dict[str, str]:
        """The attributes of the table. Raises NotPublishable with the first difference."""
        began = time.perf_counter()
        writes = _Writes(storages, self._protect)
        assert self._second is not None
        try:
            own = self._compare(self._second, entries, storages)
        finally:
            self._pristine.compilation_config.static_forward_context.clear()
            self._second = None
            self._is_altered = True  # unless it is known that nothing was
            written = writes.find()
            self._is_altered = bool(written) and not writes.are_undone
            if written:
                name = next(entry.name for entry in entries if entry.storage == written[0])
                raise Altered(f"an engine that attaches writes to {name}")
        if own > _BYTES:
            gc.collect()  # the second model, which refers to itself
        size, tokens = sum(s.numel() for s in storages), _tokens(self._config)
        self._logger.info(
            "streamerd: publish: proved in %.3f s: %d tensors (%s), %d attributes, and the outputs for %d tokens are equal; the "
            "second model took %s of its own",
            self._seconds + time.perf_counter() - began, len(entries), size_text(size), len(self._scalars), tokens,
            size_text(own),
        )  # fmt: skip
        proof = {
            "vllm": vllm.__version__, "torch": torch.__version__, "streamerd": streamerd.__version__,
            "tensors": len(entries), "bytes": size, "scalars": len(self._scalars), "tokens": tokens,
            "outputs": [
                {"shape": list(t.shape), "dtype": str(t.dtype), "sha256": hashlib.sha256(_bytes(t)).hexdigest()}
                for t in self._outputs
            ],
        }  # fmt: skip
        return {
            SCALARS: json.dumps(self._scalars), BUILT: json.dumps(changes(self._built, self._scalars)),
            PROOF: json.dumps(proof),
        }  # fmt: skip

    def is_intact(self) -> bool:
        """Whether the publisher's own model is what it was, after its tensors were moved."""
        try:
            return not self._is_altered and _are_equal(_outputs(self._model, self._config, nan), self._outputs)
        except Exception as error:
            self._logger.debug("streamerd: publish: the model cannot be called: %s", error)
            return False

    def _compare(self, second: nn.Module, entries: list[Entry], storages: list[torch.Tensor]) -> int:
        """Returns the bytes of memory that the second model has of its own."""
        with _fresh_registries():
            complete(second, self._pristine, self._pristine.model_config, entries, storages, self._scalars)
        own = _require_equal_tensors(self._model, second)
        differs = differences(self._scalars, scalars_of(second))
        if differs:
            raise NotPublishable(f"{len(differs)} attributes differ in an engine that attaches: {'; '.join(differs[:3])}")
        if not _are_equal(_outputs(second, self._pristine, nan), self._outputs):
            if self.is_intact():
                raise NotPublishable("the outputs for the same token ids differ")
            raise NotPublishable("its outputs are other ones once its tensors were moved, or from run to run")
        return own


@contextmanager
def _fresh_registries() -> Iterator[None]:
    """As in the process of an engine that has built no model: rotary tables are made anew, and the publisher's stay."""
    tables = rotary_embedding._ROPE_DICT
    kept = dict(tables)
    tables.clear()
    try:
        yield
    finally:
        tables.clear()
        tables.update(kept)


# ---- memory ----


class _Writes:
    """To storages, from now on. `protect`: lets them be this process's own, and drops those before; False: it cannot."""

    def __init__(self, storages: list[torch.Tensor], protect: Callable[[], bool]) -> None:
        self._storages = storages
        self._protect = protect
        self.are_undone = protect()
        self._before = [] if self.are_undone else _checksums(storages)

    def find(self) -> list[int]:
        """The numbers of storages that have other bytes; they have the former ones again, if `are_undone`."""
        if self.are_undone and _own_bytes(self._storages) == 0:
            return []
        after = _checksums(self._storages)
        if self.are_undone:
            self._protect()
            self._before = _checksums(self._storages)
        return [i for i, checksum in enumerate(after) if checksum != self._before[i]]


def _own_bytes(storages: list[torch.Tensor]) -> int | None:
    """Bytes of private copies among the pages of storages on the host. None: the kernel does not say."""
    extents = sorted((s.data_ptr(), s.data_ptr() + s.numel()) for s in storages if s.numel() > 0)
    try:
        with open("/proc/self/smaps") as f:
            text = f.read()
    except OSError:
        return None
    found = own = 0
    for mapping in _MAPPING.finditer(text):
        begin, end = (int(address, 16) for address in mapping.group(1, 2))
        inside = extents[bisect_left(extents, (begin,)) : bisect_left(extents, (end,))]
        if not inside:
            continue
        found += len(inside)
        sizes = _COPIES.findall(text, mapping.end(), text.find("VmFlags:", mapping.end()))
        if mapping[3] != "p" or inside[-1][1] > end or len(sizes) != 2:
            return None
        own += sum(map(int, sizes)) * 1024
    return own if found == len(extents) else None


def _checksums(storages: list[torch.Tensor]) -> list[int]:
    """Of each. A change of one word changes it for certain, another one almost certainly."""
    factors: dict[torch.device, torch.Tensor] = {}
    sums = []
    for storage in storages:
        device = storage.device
        if device not in factors:
            factors[device] = torch.arange(_WORDS, device=device) * (_MULTIPLIER - (1 << 64)) | 1
        whole = storage.numel() // 8
        words = storage[: whole * 8].view(torch.int64)
        total = int.from_bytes(bytes(storage[whole * 8 :].tolist()), "little")
        for i in range(0, whole, _WORDS):
            part = words[i : i + _WORDS]
            total = (total * _MULTIPLIER + _product(part, factors[device][: len(part)])) % (1 << 64)
        sums.append(total)
    return sums


def _product(words: torch.Tensor, factors: torch.Tensor) -> int:
    """torch has dot() of integers on the host alone, where it takes half the time."""
    return int(torch.dot(words, factors) if words.device.type == "cpu" else (words * factors).sum())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """The elements as bytes; a copy where they are not contiguous."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def _bytes(tensor: torch.Tensor) -> bytes:
    return bytes(_flat(tensor).cpu().numpy())


def _is_same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Whether the bytes are equal. What is not contiguous is compared row by row: no copy of a whole tensor is made."""
    if one.data_ptr() == two.data_ptr() or one.numel() == 0:
        return True
    if one.dim() > 1 and one.nbytes > _BYTES and not one.is_contiguous():
        return all(_is_same(a, b) for a, b in zip(one, two, strict=True))
    return torch.equal(_flat(one), _flat(two))


# ---- tensors ----


def _require_equal_tensors(first: nn.Module, second: nn.Module) -> int:
    """Returns the bytes of memory that the second model has and the first has not."""
    one, two = (by_name(tensors_of(model)) for model in (first, second))
    for name in {**one, **two}:
        if name not in one or name not in two:
            raise NotPublishable(f"{name} is {'absent' if name in one else 'there'} in an engine that attaches")
        a, b = _described(one[name]), _described(two[name])
        if a != b:
            raise NotPublishable(f"{name} is {b} in an engine that attaches, published {a}")
        if not _is_same(one[name].tensor, two[name].tensor):
            raise NotPublishable(f"{name} has other bytes in an engine that attaches")
    shares, shared = _places(one), _places(two)
    for name, place in shares.items():
        if shared.get(name) != place:
            raise NotPublishable(f"{name} shares memory with other tensors in an engine that attaches than it does here")
    known = {item.tensor.untyped_storage().data_ptr() for item in one.values()}
    memories = [item.tensor.untyped_storage() for item in two.values()]
    own: dict[int, int] = {memory.data_ptr(): memory.nbytes() for memory in memories}
    return sum(size for address, size in own.items() if address not in known)


def _described(item: Item) -> str:
    t = item.tensor
    return f"{item.kind} {list(t.shape)} {list(t.stride())} {t.dtype} {t.device.type} {item.flags} {t.requires_grad}"


def _places(items: Mapping[str, Item]) -> dict[str, tuple[str, int]]:
    """Where a tensor lies: the tensor that begins its memory, and the distance from that."""
    places = {}
    for storage in storages_of(list(items.values())):
        first = min(storage.items, key=lambda item: (item.tensor.data_ptr(), item.name))
        for item in storage.items:
            places[item.name] = (first.name, item.tensor.data_ptr() - first.tensor.data_ptr())
    return places


# ---- outputs ----


def _tokens(config: VllmConfig) -> int:
    longest: int = config.model_config.max_model_len
    return min(_TOKENS, longest)


@torch.inference_mode()
def _outputs(model: Any, config: VllmConfig, unwritten: float) -> list[torch.Tensor]:
    """What the model makes of a fixed batch: its hidden states, and the logits where it has them."""
    count, device = _tokens(config), torch.device(config.device_config.device)
    positions = torch.arange(count, device=device)
    ids = positions * 7919 % config.model_config.get_vocab_size()
    if config.model_config.uses_mrope:
        positions = positions.repeat(3, 1)
    with (
        torch.compiler.set_stance("force_eager"),  # operations that are compiled one by one take longer than the proof
        set_current_vllm_config(config),
        set_forward_context(None, config, num_tokens=count, skip_compiled=True),
        _sums_for_attention(model),
        _alone(),
        _Unwritten(unwritten),
    ):
        hidden = model(input_ids=ids, positions=positions, intermediate_tensors=None, inputs_embeds=None)
        outputs = [t for t in (hidden if isinstance(hidden, (tuple, list)) else [hidden]) if isinstance(t, torch.Tensor)]
        if config.model_config.runner_type == "generate":
            logits = model.compute_logits(outputs[0])
            outputs += [logits] if logits is not None else []  # None on ranks that do not sample
    return outputs


def _are_equal(one: list[torch.Tensor], two: list[torch.Tensor]) -> bool:
    return len(one) == len(two) and all(
        (a.shape, a.dtype) == (b.shape, b.dtype) and _is_same(a, b) for a, b in zip(one, two, strict=True)
    )


class _Unwritten(TorchFunctionMode):
    """While it is entered, memory that is allocated for numbers has this value until it is written to: outputs that depend on
    such memory differ from those with another value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self._value = value

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        if function in _ALLOCATING and result.is_floating_point() and result.itemsize > 1:
            result.fill_(self._value)
        return result


@contextmanager
def _sums_for_attention(model: nn.Module) -> Iterator[None]:
    """Without a KV cache vLLM's backends leave the output as zeros, or as the memory was."""
    replaced: list[Any] = []
    for module in model.modules():
        implementation: Any = module.impl if isinstance(module, Attention) else None
        if implementation is not None and "output" in inspect.signature(implementation.forward).parameters:
            replaced.append(implementation)
            implementation.forward = _sum
    try:
        yield
    finally:
        for implementation in {id(i): i for i in replaced}.values():
            del implementation.forward


def _sum(
    layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any, output: torch.Tensor, *more: Any, **named: Any
) -> torch.Tensor:
    count = output.shape[0]
    given = torch.cat([t.reshape(count, -1).to(output.dtype) for t in (query, key, value) if t is not None], 1)
    width = output.numel() // count
    padded = nn.functional.pad(given, (0, -given.shape[1] % width))
    return output.copy_(padded.view(count, -1, width).sum(1).view_as(output))


class _Alone:
    """A communicator of a rank that assumes that each other rank has what it has itself."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor * self._size

    def all_gather(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return torch.cat([tensor] * self._size, dim)

    def reduce_scatter(self, tensor: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return tensor.chunk(self._size, dim)[self._rank].contiguous() * self._size

    def gather(self, tensor: torch.Tensor, dst: int = 0, dim: int = -1) -> torch.Tensor | None:
        return self.all_gather(tensor, dim) if self._rank == dst else None

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"{name} between ranks cannot be judged by one of them")


@contextmanager
def _alone() -> Iterator[None]:
    """While it is entered, no rank waits for another one."""
    groups = [group for reference in parallel_state._groups.values() if (group := reference()) is not None]
    kept = [(group, group.device_communicator) for group in groups if group.device_communicator is not None]
    for group, _ in kept:
        group.device_communicator = _Alone(group.rank_in_group, group.world_size)
    try:
        yield
    finally:
        for group, communicator in kept:
            group.device_communicator = communicator
