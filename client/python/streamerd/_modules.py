# SPDX-License-Identifier: Apache-2.0
"""Resident weights as the parameters of a torch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ._model import Model
from ._open import Options, Source, open
from ._publish import load_published
from .errors import InvalidError

if TYPE_CHECKING:
    import torch
    from typing_extensions import Unpack


def _tie(module: Any) -> None:
    """Models of transformers have weights that are saved once and used twice."""
    tie = getattr(module, "tie_weights", None)
    if callable(tie):
        tie()


def _places(module: torch.nn.Module, names: list[str]) -> set[int]:
    wanted = set(names)
    return {t.data_ptr() for name, t in module.state_dict(keep_vars=True).items() if name in wanted}


def load_into(
    module: torch.nn.Module,
    source: Source | Model[Any] | None = None,
    *,
    strict: bool = True,
    key: Mapping[str, str] | None = None,
    base: Source | None = None,
    **options: Unpack[Options],
) -> tuple[list[str], list[str]]:
    """Makes the resident tensors the parameters and buffers of a module, without a copy.

    `key`: `source` is the name of a model that publish() made with this key and base. The module may be on the meta
    device; all its tensors, buffers that are no part of the state included, become the published ones.

    `source`: as for open(), or an open model; None: the module's name_or_path, which models of transformers have.
    The parameters take the checkpoint's dtype and device, and a write to one stays in this process (copy-on-write).
    Returns the names that are missing in the checkpoint, and the names that the module lacks. `strict`: raises
    InvalidError if there are any, or if a parameter or buffer is left on the meta device.
    """
    if source is None:
        source = str(getattr(module, "name_or_path", ""))
        if not source:
            raise InvalidError("load_into: the module has no name_or_path; name the source")
    if key is not None:
        load_published(module, _name_of(source), key=key, base=base, **_of_published(options))
        return [], []
    if not isinstance(source, Model):
        with open(source, framework="torch", **options) as model:
            return load_into(module, model, strict=strict)
    result = module.load_state_dict(source.state_dict(), strict=False, assign=True)
    _tie(module)
    names = [name for name in module.state_dict() if name not in result.missing_keys]
    loaded = _places(module, names)
    tensors = module.state_dict(keep_vars=True)
    missing = [name for name in result.missing_keys if tensors[name].data_ptr() not in loaded]
    unexpected = list(result.unexpected_keys)
    if strict:
        _require_complete(module, missing, unexpected)
    return missing, unexpected


def _name_of(source: Source | Model[Any]) -> str:
    if not isinstance(source, str):
        raise InvalidError("load_into: with a key the source is the name of a published model")
    return source


def _of_published(options: Options) -> dict[str, Any]:
    """The options that a published model has."""
    known = ("device", "timeout", "socket", "autostart")
    unknown = [option for option in options if option not in known]
    if unknown:
        raise InvalidError(f"load_into: a published model has no option {', '.join(unknown)}")
    return dict(options)


def _require_complete(module: torch.nn.Module, missing: list[str], unexpected: list[str]) -> None:
    if missing or unexpected:
        raise InvalidError(f"load_into: missing in the checkpoint: {missing}; not in the module: {unexpected}")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    empty = [name for name, tensor in tensors if tensor.is_meta]
    if empty:
        raise InvalidError(
            f"load_into: not in the checkpoint, and left without memory: {empty}: build the module on cpu"
        )
