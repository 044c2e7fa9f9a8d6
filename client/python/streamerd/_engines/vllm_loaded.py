# SPDX-License-Identifier: Apache-2.0
"""Whether a tensor was loaded into each parameter of a vLLM model.

vLLM's own check exempts every layer that has a quantization method, which each linear and embedding layer has: memory
that nothing was written to is served. Here a parameter is exempt only where a checkpoint cannot be expected to have it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from logging import Logger
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from vllm.config import ModelConfig
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear
from vllm.model_executor.layers.quantization.kv_cache import BaseKVCacheMethod
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

_MOST = 5  # names in one line

# Made from the configuration of the quantization (vLLM's list).
_CONFIGURED = ("input_scale_ub",)


class MissingWeights(ValueError):
    """A parameter into which nothing was loaded."""


class Loaded:
    """Observes a model's load_weights() while it is entered."""

    def __init__(self, model: nn.Module, model_config: ModelConfig) -> None:
        self._model: Any = model  # torch's types know no method of vLLM's models
        self._is_draft = model_config.runner == "draft"
        self._is_quantized = model_config.quantization is not None
        self._names: set[str] | None = None  # that the model says it has loaded; None: it says nothing
        self._replaced: list[tuple[Any, Any]] = []
        self._parts: dict[str, tuple[set[Any], set[Any]]] = {}  # of merged parameters: expected, loaded

    def __enter__(self) -> None:
        load = self._model.load_weights

        def load_weights(weights: Any) -> Any:
            names = load(weights)
            self._names = None if names is None else set(names)  # a copy: vLLM's check adds what it exempts
            return names

        self._model.load_weights = load_weights
        for path, module in self._model.named_modules():
            for name, parameter in module.named_parameters(recurse=False) if _is_merged(module) else ():
                self._observe(f"{path}.{name}", module, parameter)

    def __exit__(self, *exception: object) -> None:
        del self._model.load_weights
        for parameter, loader in self._replaced:
            parameter.weight_loader = loader

    def _observe(self, path: str, module: Any, parameter: Any) -> None:
        loader = getattr(parameter, "weight_loader", None)
        if loader is None or _is_online(module):
            return
        expected: set[Any] = set("qkv") if isinstance(module, QKVParallelLinear) else set(range(len(module.output_sizes)))
        loaded: set[Any] = set()
        self._parts[path] = (expected, loaded)
        self._replaced.append((parameter, loader))

        @functools.wraps(loader)
        def observed(parameter: Any, tensor: Any, part: Any = None, **named: Any) -> Any:
            part = named.get("loaded_shard_id", part)
            loaded.update(expected if part is None else part if isinstance(part, tuple) else (part,))
            return loader(parameter, tensor, *(() if part is None else (part,)))

        parameter.weight_loader = observed

    def require_all(self, logger: Logger) -> None:
        """Raises MissingWeights for parameters; logs parts of merged ones, which some models leave out."""
        if self._names is None:
            return
        missing = sorted(self._missing(self._names))
        if missing:
            raise MissingWeights(f"the checkpoint lacks weights of the model: nothing was loaded into {_listed(missing)}")
        parts = [
            f"{path} ({', '.join(map(str, sorted(expected - loaded)))})"
            for path, (expected, loaded) in self._parts.items()
            if loaded and expected - loaded
        ]
        if parts:
            logger.warning("streamerd: the checkpoint lacks parts of merged weights: %s", _listed(parts))

    def _missing(self, loaded: set[str]) -> Iterator[str]:
        """A parameter with several names is loaded under any of them."""
        names: dict[int, list[str]] = {}
        for name, parameter in self._model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        # Of a quantized layer some auxiliary parameters are optional, and all that a checkpoint lacks is no layer.
        layers = {name.rpartition(".")[0] for name in loaded}
        for path, module in self._model.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                full = f"{path}.{name}" if path else name
                if loaded.isdisjoint(names[id(parameter)]) and not self._is_exempt(module, name, parameter):
                    if not (self._is_quantized and path in layers):
                        yield full

    def _is_exempt(self, module: nn.Module, name: str, parameter: nn.Parameter) -> bool:
        """Scales of the KV cache have defaults, online quantization fills its own, and drafts take the embedding and
        the head of their target."""
        return (
            is_lazy(parameter)
            or parameter.numel() == 0
            or name in _CONFIGURED
            or _is_online(module)
            or isinstance(getattr(module, "quant_method", None), BaseKVCacheMethod)
            or (self._is_draft and isinstance(module, VocabParallelEmbedding))
        )


def _is_merged(module: nn.Module) -> bool:
    return isinstance(module, (QKVParallelLinear, MergedColumnParallelLinear))


def _is_online(module: nn.Module) -> bool:
    return bool(getattr(getattr(module, "quant_method", None), "uses_meta_device", False))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more
