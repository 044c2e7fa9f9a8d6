# SPDX-License-Identifier: Apache-2.0
"""What a vLLM model consists of: tensors, and the scalars and classes of its modules and of vLLM's objects in them.

A name is "path.of.module:attribute.of.object"; of a tensor that a module itself has it is "path.of.module.attribute".
Configurations and process groups are not looked into: they are the engine's, not the model's. (Those of quantizations have
lists that vLLM makes of sets, so their order is another one in each process.)
"""

from __future__ import annotations

import enum
import functools
import gc
import hashlib
import json
from collections.abc import Iterator, Mapping
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

from streamerd._publication import ATTRIBUTE
from streamerd._publish import Item, items_of, parts_of

_DEPTH = 4  # of objects in the attributes of a module
_NOT_ENTERED = ("vllm.config.", "vllm.distributed.")
_OWN = ("_parameters", "_buffers", "_modules")
_LEAST_ADDRESS = 1 << 32  # lower numbers are counts, indices and ids

# State of a process, not of a model: numbers of process groups, a mark of transformers' own initialisation, what vLLM's
# compiler keeps of a call, and the mode, which vLLM sets once it has loaded a model. (Modules of vLLM that all models
# share, such as activations, have that of the model before.)
_NOT_COMPARED = {
    "training", "_is_hf_initialized", "_compiled_callable", "_bytecode_hook_handle", "_compiled_bytecode", "compiled",
    "first_compile", "was_aot_compile_fn_loaded_from_disk", "aot_compiled_fn",
}  # fmt: skip

State = dict[str, str]


class NotPublishable(Exception):
    """Why this engine neither publishes nor attaches."""


def is_entered(value: Any) -> bool:
    """Whether the attributes of an object are looked at: those of vLLM's own, which are no modules."""
    module = f"{type(value).__module__}."
    return (
        module.startswith("vllm.")
        and not module.startswith(_NOT_ENTERED)
        and not isinstance(value, (nn.Module, torch.Tensor, enum.Enum, type, QuantizationConfig))
        and hasattr(value, "__dict__")
    )


# ---- tensors ----


def tensors_of(model: nn.Module) -> list[Item]:
    """All tensors of the modules, and those that only vLLM's objects refer to."""
    items = items_of(model)
    known = {id(item.tensor) for item in items}
    for name, holder, place in _in_objects(model):
        tensor = holder[place]
        if isinstance(tensor, torch.Tensor) and id(tensor) not in known:
            known.add(id(tensor))
            items.append(Item(name, tensor, ATTRIBUTE, 0, holder, place))
    return items


def _in_objects(model: nn.Module) -> Iterator[tuple[str, dict[str, Any], str]]:
    """The attributes of vLLM's objects: `holder[place]`."""
    for path, module in parts_of(model):
        for name, value in sorted(vars(module).items()):
            if name not in _OWN and is_entered(value):
                yield from _in_object(f"{path}:{name}", value, _DEPTH, ())


def _in_object(
    path: str, value: Any, depth: int, within: tuple[Any, ...]
) -> Iterator[tuple[str, dict[str, Any], str]]:
    """In the order of names: that in which attributes were set may be another one in the next process."""
    for name, inner in sorted(vars(value).items()):
        yield f"{path}.{name}", vars(value), name
        if depth > 1 and is_entered(inner) and not _is_one_of(inner, within):
            yield from _in_object(f"{path}.{name}", inner, depth - 1, (*within, value))


def _is_one_of(value: Any, others: tuple[Any, ...]) -> bool:
    return any(value is other for other in others)


def require_movable(model: nn.Module, items: list[Item], scalars: Mapping[str, str]) -> None:
    """Raises NotPublishable for what refers to memory by its address: it would not follow, and means nothing elsewhere."""
    numbers = {name: int(value) for name, value in scalars.items() if len(value) > 9 and value.isdigit()}
    for name, value in _references(model):
        if not isinstance(value, nn.Module) and (hasattr(type(value), "__del__") or isinstance(value, torch.ScriptObject)):
            raise NotPublishable(f"{name} ({type(value).__qualname__}) has memory of its own that is no tensor")
        if type(value) is int:
            numbers[name] = value
    bounds = torch.tensor(_mappings())

    def are_addresses(values: torch.Tensor) -> bool:
        """A number in an odd interval lies in a mapping."""
        return bool((torch.bucketize(values, bounds, right=True) % 2).any())

    for item in items:
        if item.tensor.dtype == torch.int64 and item.tensor.numel() > 0:
            values = item.tensor.detach().reshape(-1).cpu()
            if are_addresses(values[values >= _LEAST_ADDRESS]):
                raise NotPublishable(f"{item.name} holds the address of memory")
    for name, number in numbers.items():
        if _LEAST_ADDRESS <= number < 1 << 63 and are_addresses(torch.tensor([number])):
            raise NotPublishable(f"{name} is the address of memory")


def _references(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """What modules and vLLM's objects in them refer to, also by the functions that they have."""
    held = [(name, holder[place]) for name, holder, place in _in_objects(model)]
    for path, module in parts_of(model):
        held += [(f"{path}:{name}", value) for name, value in vars(module).items() if name not in _OWN]
    for name, value in held:
        yield name, value
        yield from _enclosed(name, value, _DEPTH)


def _enclosed(name: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    """What a function encloses, is bound to, or is given."""
    inner: list[Any] = []
    if isinstance(value, functools.partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, MethodType):
        inner = [value.__self__]
    elif isinstance(value, FunctionType):
        inner = gc.get_referents(*(value.__closure__ or ()))
    for one in inner:
        yield name, one
        if depth > 1:
            yield from _enclosed(name, one, depth - 1)


def _mappings() -> list[int]:
    """The begins and ends of this process's mappings, in ascending order."""
    bounds: list[int] = []
    with open("/proc/self/maps") as f:
        for line in f:
            begin, end = (int(part, 16) for part in line.split(" ", 1)[0].split("-"))
            if end < 1 << 63:
                bounds += [begin, end]
    return bounds


def left_on_meta(model: nn.Module) -> list[str]:
    """Tensors without memory."""
    return sorted({item.name for item in tensors_of(model) if item.tensor.is_meta})


# ---- scalars and classes ----


def scalars_of(model: nn.Module) -> State:
    """Every scalar attribute of the modules, of their methods and kernels, and the class of every object."""
    seen: State = {}
    for path, module in parts_of(model):
        seen[f"{path}:"] = type(module).__qualname__
        for held in (module._parameters, module._buffers, module._modules):
            for name, absent in held.items():
                if absent is None:
                    seen[f"{path}:{name}"] = "None"
        for name, value in vars(module).items():
            if name not in _OWN and name not in _NOT_COMPARED:
                _describe(f"{path}:{name}", value, seen, _DEPTH, ())
    return seen


def _describe(path: str, value: Any, seen: State, depth: int, within: tuple[Any, ...]) -> None:
    if value is None or isinstance(value, (bool, int, float, str, enum.Enum, torch.dtype)):
        seen[path] = repr(value)
    elif isinstance(value, (list, tuple)):
        seen[path] = f"{type(value).__name__} {len(value)}"
        for i, inner in enumerate(value):
            _describe(f"{path}[{i}]", inner, seen, depth - 1, within)
    elif type(value) is dict:
        seen[path] = f"dict {len(value)}"
        for key, inner in value.items():
            if isinstance(key, (str, int)):
                _describe(f"{path}[{key!r}]", inner, seen, depth - 1, within)
    elif isinstance(value, functools.partial):
        _describe(path, value.func, seen, depth, within)
    elif callable(value) and hasattr(value, "__qualname__"):
        seen[path] = value.__qualname__
    else:
        seen[path] = type(value).__qualname__
        if depth > 0 and is_entered(value) and not _is_one_of(value, within):
            for name, inner in vars(value).items():
                if name not in _NOT_COMPARED:
                    _describe(f"{path}.{name}", inner, seen, depth - 1, (*within, value))


def built_of(model: nn.Module) -> State:
    """Of a model that was built and not filled: the scalars, and what each of its tensors is to be."""
    tensors = {
        item.name: f"{item.kind} {list(item.tensor.shape)} {list(item.tensor.stride())} {item.tensor.dtype}"
        for item in tensors_of(model)
    }
    return {**scalars_of(model), **tensors}


def differences(published: Mapping[str, str], built: Mapping[str, str]) -> list[str]:
    names = [*published, *(name for name in built if name not in published)]
    return [
        f"{name} is {built.get(name, 'absent')}, published {published.get(name, 'absent')}"
        for name in names
        if published.get(name) != built.get(name)
    ]


def digest_of(state: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(sorted(state.items())).encode()).hexdigest()[:32]


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """What to change of `after` to have `before`: see changed()."""
    return {name: before.get(name) for name in {**before, **after} if before.get(name) != after.get(name)}


def changed(after: Mapping[str, str], what: Mapping[str, str | None]) -> State:
    whole = {**after, **what}
    return {name: value for name, value in whole.items() if value is not None}
