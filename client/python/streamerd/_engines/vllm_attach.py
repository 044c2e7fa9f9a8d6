# SPDX-License-Identifier: Apache-2.0
"""A vLLM model of published tensors: built on the meta device, filled, post-processed without touching the tensors.

A quantization method either declares that its post-processing can be told that the tensors are finished
(supports_pre_processed_weights), or its hook is not called. What loading and hooks would have left in the model beside
tensors (plain attributes, parameters that they consumed) is taken from the table. Whether that is all, the proof decides
(vllm_proof.py).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.utils import weights_already_processed
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype

from streamerd._engines.vllm_state import NotPublishable, left_on_meta, scalars_of, tensors_of
from streamerd._publication import ATTRIBUTE, Entry
from streamerd._publish import by_name, install, parts_of

_EMPTY: dict[str, type[Any]] = {"dict 0": dict, "list 0": list}  # as scalars_of() describes them


def build(config: VllmConfig, model_config: ModelConfig, prefix: str) -> nn.Module:
    """The model as its class builds it, without memory."""
    try:
        with set_default_torch_dtype(model_config.dtype), torch.device("meta"):
            model: nn.Module = initialize_model(vllm_config=config, model_config=model_config, prefix=prefix)
    except NotImplementedError as error:
        raise NotPublishable(f"the model cannot be built without memory: {str(error).partition('!')[0]}") from error
    return model


def complete(
    model: nn.Module,
    config: VllmConfig,
    model_config: ModelConfig,
    entries: list[Entry],
    storages: list[torch.Tensor],
    scalars: Mapping[str, str],
) -> None:
    """Fills a model that was built, with the tensors of a table and the scalars of its publisher."""
    target = torch.device(config.device_config.device)
    skipped = _undeclared(model)
    if skipped and not current_platform.is_cpu():  # what a kernel writes to must not be memory that others map
        path, module = next(iter(skipped.items()))
        raise NotPublishable(f"{type(module.quant_method).__name__} of {path} does not support pre-processed weights")
    named = by_name(tensors_of(model))
    install(parts_of(model), named, entries, storages)
    with set_default_torch_dtype(model_config.dtype), weights_already_processed(), _without_methods(skipped):
        process_weights_after_loading(model, model_config, target)
    _remove_consumed(model, {entry.name for entry in entries}, scalars)
    _restore_scalars(model, scalars)
    for layer in model.modules():  # vLLM recorded the default device of the moment
        get_layerwise_info(layer).restore_device = target
    model.eval()
    left = left_on_meta(model)
    if left:
        raise NotPublishable(f"left without memory: {', '.join(left[:5])}")


# ---- methods whose hook is not called ----


def _undeclared(model: nn.Module) -> dict[str, Any]:
    """The layers, by their paths, whose method cannot be told that the tensors are finished."""
    return {
        path: module
        for path, module in parts_of(model)
        if isinstance(method := getattr(module, "quant_method", None), QuantizeMethodBase) and not _is_declared(method)
    }


def _is_declared(method: QuantizeMethodBase) -> bool:
    """A declaration is about the hook of its class: a class that overrides the hook has to declare it again."""
    if not method.supports_pre_processed_weights:
        return False
    declaration, hook = "supports_pre_processed_weights", "process_weights_after_loading"
    for kind in type(method).__mro__:
        if declaration in vars(kind) or declaration in vars(method):
            return True
        if hook in vars(kind):
            return False
    return True


@contextmanager
def _without_methods(layers: Mapping[str, Any]) -> Iterator[None]:
    """While it is entered, vLLM finds no method whose hook it would call."""
    methods = [(layer, layer.quant_method) for layer in {id(layer): layer for layer in layers.values()}.values()]
    for layer, _ in methods:
        layer.quant_method = None
    try:
        yield
    finally:
        for layer, method in methods:
            layer.quant_method = method


def _remove_consumed(model: nn.Module, published: set[str], scalars: Mapping[str, str]) -> None:
    """Removes tensors without memory that the publisher's model has no more."""
    for item in tensors_of(model):
        if item.name in published or not item.tensor.is_meta:
            continue
        path, _, leaf = item.name.rpartition(".")
        if scalars.get(f"{path}:{leaf}") == "None":
            item.holder[item.place] = None
        elif item.kind != ATTRIBUTE:
            item.holder.pop(item.place, None)  # a module that has two names has it once


def _restore_scalars(model: nn.Module, scalars: Mapping[str, str]) -> None:
    """Gives modules, and the objects that they have, the plain attributes that loading and hooks have set."""
    parts: dict[str, Any] = dict(parts_of(model))
    built = scalars_of(model)
    for name, value in scalars.items():
        if built.get(name) == value:
            continue
        path, _, attributes = name.partition(":")
        *objects, leaf = attributes.split(".")
        holder = parts.get(path)
        for attribute in objects:
            holder = getattr(holder, attribute, None)
        if holder is not None and leaf.isidentifier():
            try:
                setattr(holder, leaf, _EMPTY[value]() if value in _EMPTY else ast.literal_eval(value))
            except (ValueError, SyntaxError, AttributeError):
                pass  # of another kind: the comparison names it
