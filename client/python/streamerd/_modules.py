# SPDX-License-Identifier: Apache-2.0
"""Resident weights as the parameters of a torch module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from ._attach import attach
from ._in_place import copy_into, load_state, release_frames
from ._model import Model
from ._nearest import explains_options
from ._open import Options, Source, open, options_of
from ._option_values import flag
from ._publish import load_published
from .errors import InvalidError

if TYPE_CHECKING:
    from torch.nn import Module
else:
    Module = Any  # where annotations are evaluated, torch need not be installed


def _tie(module: Any) -> None:
    """Models of transformers have weights that are saved once and used twice."""
    tie = getattr(module, "tie_weights", None)
    if callable(tie):
        tie()


def _place(tensor: Any) -> int:
    """The same of tensors that are tied, with and without memory."""
    try:
        return tensor.data_ptr() or id(tensor)
    except (AttributeError, RuntimeError, ValueError):  # a module's extra state; a tensor without plain memory
        return id(tensor)


def _without_contents(module: Module, names: Collection[str]) -> list[str]:
    """What of the module's state has none of these names, nor is tied to what has."""
    state = module.state_dict(keep_vars=True)
    places = {_place(tensor) for name, tensor in state.items() if name in names}
    return [name for name, tensor in state.items() if name not in names and _place(tensor) not in places]


@explains_options
def load_into(
    module: Module,
    source: Source | Model[Any] | None = None,
    *,
    strict: bool = True,
    key: Mapping[str, str] | None = None,
    base: Source | None = None,
    generation: int | None = None,
    name: str | None = None,
    device: Any = None,
    shared: bool | None = False,
    ready: bool | None = False,
    digest: str | None = None,
    verify: str | None = None,
    pin: bool | None = False,
    wait: bool | None = False,
    evict: bool | None = True,
    priority: int | None = None,
    keep_alive: float | str | None = None,
    layout: str | None = None,
    pattern: str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
    timeout: float | str | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> tuple[list[str], list[str]]:
    """Makes the resident tensors the parameters and buffers of a module, without a copy.

    The parameters take the checkpoint's dtype and device, and a write to one stays in this process (copy-on-write).
    With `generation` they stay what they are, and are given other contents: see there.

    Args:
        module: any torch module; it may be on the meta device.
        source: as for open(), or an open model; None: the module's name_or_path, which models of transformers have.
        strict: raise if names are missing on one side, or a parameter or buffer is left on the meta device.
        key: `source` is the name of a model that publish() made with this key and base. All tensors of the module,
            buffers that are no part of the state included, become the published ones.
        base: the source that publish() was given.
        generation: `source` is the name of a resident model, and this the number of the generation whose tensors are
            copied into the module's own parameters and buffers, in place, converted to their dtype and device. What
            cannot be copied is refused before anything is; a FailedError says that the module is partly updated.
        name, device and all others: as for open(). With `generation`: device, digest, timeout, socket and autostart alone.
            With `key`: device, timeout, socket and autostart alone.

    Returns:
        The names that are missing in the checkpoint, and the names that the module lacks.

    Raises:
        InvalidError: `strict` is not met, or the key or the module differs from what was published: the text names
            each difference. With `generation`: a parameter cannot take the contents.
        FailedError: torch, or a hook of the module, has failed midway, and the module is partly updated.
        What open() raises.

    Example:
        model = transformers.AutoModelForCausalLM.from_config(config)
        streamerd.load_into(model, "/models/llama")
    """
    options = options_of(locals())
    flag("strict", strict)
    if generation is not None and key is not None:
        raise InvalidError("load_into: key and generation exclude each other")
    if base is not None and key is None:
        raise InvalidError("load_into: base is that of a published model, which has a key")
    if source is None:
        source = str(getattr(module, "name_or_path", ""))
        if not source:
            raise InvalidError("load_into: the module has no name_or_path; name the source")
    if key is not None:
        if not strict:
            raise InvalidError("load_into: a published model has no option strict: all of its tensors are taken")
        chosen = _of_resident("a published model", options, ("device", "timeout", "socket", "autostart"))
        load_published(module, _name_of(source, "key", "published"), key=key, base=base, **chosen)
        return [], []
    if generation is not None:
        chosen = _of_resident("a generation", options, ("device", "digest", "timeout", "socket", "autostart"))
        with attach(_name_of(source, "generation", "resident"), generation=generation, **chosen) as model:
            try:
                return _copy_generation(module, model, strict)
            except BaseException as e:
                release_frames(e)
                raise
    if not isinstance(source, Model):
        with open(source, framework="torch", **options) as model:
            return load_into(module, model, strict=strict)
    _of_resident("an open model", options, ())
    result = load_state(module, source.state_dict(), source.name, assign=True)
    _tie(module)
    missing = _without_contents(module, module.state_dict(keep_vars=True).keys() - set(result.missing_keys))
    unexpected = list(result.unexpected_keys)
    if strict:
        _require_complete(module, missing, unexpected)
    return missing, unexpected


def _copy_generation(module: Module, model: Model[Any], strict: bool) -> tuple[list[str], list[str]]:
    state = module.state_dict(keep_vars=True)
    missing = _without_contents(module, set(model))
    unexpected = [name for name in model if name not in state]
    if strict:
        _require_names(missing, unexpected)
    copy_into(module, model)
    return missing, unexpected


def _name_of(source: Source | Model[Any], option: str, kind: str) -> str:
    if not isinstance(source, str):
        raise InvalidError(f"load_into: with a {option} the source is the name of a {kind} model")
    return source


def _of_resident(what: str, options: Options, known: tuple[str, ...]) -> dict[str, Any]:
    """The options that a resident model has. Of the others, None and False, and True for evict, are the defaults."""
    unknown = [o for o, value in options.items() if o not in known and value not in (None, o == "evict")]
    if unknown:
        raise InvalidError(f"load_into: {what} has no option {', '.join(unknown)}")
    return {option: options.get(option) for option in known}


def _require_names(missing: list[str], unexpected: list[str]) -> None:
    if missing or unexpected:
        raise InvalidError(f"load_into: missing in the checkpoint: {missing}; not in the module: {unexpected}")


def _require_complete(module: Module, missing: list[str], unexpected: list[str]) -> None:
    _require_names(missing, unexpected)
    tensors = [*module.named_parameters(), *module.named_buffers()]
    empty = [name for name, tensor in tensors if tensor.is_meta]
    if empty:
        raise InvalidError(
            f"load_into: not in the checkpoint, and left without memory: {empty}: build the module on cpu"
        )
