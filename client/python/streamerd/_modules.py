# SPDX-License-Identifier: Apache-2.0
"""Resident weights as the parameters of a torch module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._model import Model
from ._open import Options, Source, open
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
    **options: Unpack[Options],
) -> tuple[list[str], list[str]]:
    """Makes the resident tensors the parameters and buffers of a module, without a copy.

    `source`: as for open(), or an open model; None: the module's name_or_path, which models of transformers have.
    The parameters take the checkpoint's dtype and device, and a write to one stays in this process (copy-on-write).
    Returns the names that are missing in the checkpoint, and the names that the module lacks. `strict`: raises
    InvalidError if there are any, or if a parameter or buffer is left on the meta device.
    """
    if source is None:
        source = str(getattr(module, "name_or_path", ""))
        if not source:
            raise InvalidError("load_into: the module has no name_or_path; name the source")
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


def _require_complete(module: torch.nn.Module, missing: list[str], unexpected: list[str]) -> None:
    if missing or unexpected:
        raise InvalidError(f"load_into: missing in the checkpoint: {missing}; not in the module: {unexpected}")
    tensors = [*module.named_parameters(), *module.named_buffers()]
    empty = [name for name, tensor in tensors if tensor.is_meta]
    if empty:
        raise InvalidError(
            f"load_into: not in the checkpoint, and left without memory: {empty}: build the module on cpu"
        )
