# SPDX-License-Identifier: Apache-2.0
"""Parameters of a vLLM model that become resident memory instead of copies of it."""

from __future__ import annotations

import functools
import mmap
from bisect import bisect_right
from collections import Counter
from logging import Logger
from typing import Any
from weakref import ref

import torch
from torch import nn
from vllm.config import ModelConfig, get_current_vllm_config
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import UnquantizedEmbeddingMethod, VocabParallelEmbedding
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from streamerd._model import size_text

# Methods that leave a parameter in the layout in which it is loaded.
PLAIN_METHODS = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)

# Loaders that copy a whole tensor to a whole parameter unchanged where their shapes are equal.
PLAIN_LOADERS = {
    default_weight_loader,
    ReplicatedLinear.weight_loader,
    ColumnParallelLinear.weight_loader,
    ColumnParallelLinear.weight_loader_v2,
    MergedColumnParallelLinear.weight_loader_v2,
    QKVParallelLinear.weight_loader_v2,
    RowParallelLinear.weight_loader,
    RowParallelLinear.weight_loader_v2,
    VocabParallelEmbedding.weight_loader,
}


class Aliases:
    """Parameters that become views of resident memory instead of copies.

    The engine's own load_weights() decides: while the context is entered, a parameter's loader that is given an
    offered view as it is, for the whole parameter, is not called; the parameter takes the view's memory. Whatever
    the engine renames, cuts, merges or transforms is copied as usual.
    """

    def __init__(self, model: nn.Module, model_config: ModelConfig, logger: Logger, automatic: bool):
        self._logger = logger
        self._automatic = automatic
        self._huge: HugePages | None = None
        self._reason = _why_no_alias(model_config)
        self._offered: dict[int, torch.Tensor] = {}
        self._loaders: list[tuple[Any, Any]] = []  # parameters with their loaders
        self._safe: set[int] = set()  # ids of parameters
        self._total = sum(p.nbytes for p in model.parameters())
        self._taken: list[tuple[ref[nn.Parameter], int, int]] = []  # with their places and sizes
        self._refused = 0  # bytes of pages that must not be copied on a write
        if self._reason is None:
            self._find_safe(model)

    def _find_safe(self, model: nn.Module) -> None:
        users = Counter(p.untyped_storage().data_ptr() for p in [*model.parameters(), *model.buffers()])
        for module in model.modules():
            method = getattr(module, "quant_method", None)
            if method is not None and not isinstance(method, PLAIN_METHODS):
                continue
            for parameter in module.parameters(recurse=False):
                loader = getattr(parameter, "weight_loader", default_weight_loader)
                plain = getattr(loader, "__func__", loader) in PLAIN_LOADERS
                if plain and users[parameter.untyped_storage().data_ptr()] == 1:
                    self._safe.add(id(parameter))
                    self._loaders.append((parameter, loader))

    def __enter__(self) -> None:
        for parameter, loader in self._loaders:
            parameter.weight_loader = functools.partial(self._weight_loader, loader)

    def __exit__(self, *exception: object) -> None:
        for parameter, loader in self._loaders:
            if loader is default_weight_loader and "weight_loader" in parameter.__dict__:
                del parameter.weight_loader
            else:
                parameter.weight_loader = loader
        self._offered.clear()

    def renew(self) -> None:
        """To be called when other memory was mapped: another model was opened."""
        self._huge = None

    def offer(self, tensor: torch.Tensor) -> None:
        self._offered[id(tensor)] = tensor

    def _weight_loader(
        self, loader: Any, parameter: nn.Parameter, tensor: torch.Tensor, *rest: Any, **named: Any
    ) -> Any:
        whole = not rest and not named and id(tensor) in self._offered and not hasattr(tensor, "shard_id")
        if not whole or not self.take(parameter, tensor):
            return loader(parameter, tensor, *rest, **named)

    def take(self, parameter: nn.Parameter | None, tensor: torch.Tensor) -> bool:
        """Lets the parameter use the tensor's memory if that is safe."""
        if parameter is None or id(parameter) not in self._safe:
            return False
        old = parameter.data
        same = (old.shape, old.stride(), old.dtype, old.device) == (
            tensor.shape,
            tensor.stride(),
            tensor.dtype,
            tensor.device,
        )
        if not same:
            return False
        if self._automatic and not self._is_safe_to_write(tensor):
            self._refused += tensor.nbytes
            return False
        parameter.data = tensor
        self._taken.append((ref(parameter), parameter.data_ptr(), tensor.nbytes))
        return True

    def _is_safe_to_write(self, tensor: torch.Tensor) -> bool:
        """Host memory of pages that the kernel can copy on a write: a copy of a hugetlb page can end the process."""
        if tensor.device.type != "cpu":
            return False
        if self._huge is None or not self._huge.knows(tensor.data_ptr()):
            self._huge = HugePages()
        return not self._huge.has(tensor.data_ptr())

    def report(self, published: bool = False) -> None:
        """One line, once the weights were post-processed: what the engine then packs or converts is its own.

        A warning where `alias` is set and copies were made all the same. `published`: the parameters may be in other
        memory of the daemon by now, which has a line of its own.
        """
        resident = sum(size for parameter, place, size in self._taken if _is_at(parameter(), place))
        self._taken.clear()
        if published and resident == 0:
            return
        log = self._logger.info if self._automatic or resident == self._total else self._logger.warning
        if self._reason is not None:
            log("streamerd: alias: the weights were copied: %s", self._reason)
            return
        why = "; the engine merges, cuts, converts or packs the others, which are copies of its own"
        if self._refused > 0:
            why = (
                f"; {size_text(self._refused)} could be: a write to a copy-on-write mapping of hugetlb pages ends the "
                "process where the pool is empty"
            )
        elif resident == self._total:
            why = "; nothing was copied"
        log("streamerd: alias: %s of %s are resident memory%s", size_text(resident), size_text(self._total), why)


def _is_at(parameter: nn.Parameter | None, place: int) -> bool:
    return parameter is not None and parameter.data_ptr() == place


class HugePages:
    """The mappings of this process, as they are now: which consist of hugetlb pages."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._is_huge: list[bool] = []
        with open("/proc/self/smaps") as f:
            for line in f:
                word, _, rest = line.partition(" ")
                if word == "KernelPageSize:":
                    self._is_huge.append(int(rest.split()[0]) * 1024 > mmap.PAGESIZE)
                elif not word.endswith(":"):
                    begin, _, end = word.partition("-")
                    self._begins.append(int(begin, 16))
                    self._ends.append(int(end, 16))

    def _index(self, address: int) -> int | None:
        i = bisect_right(self._begins, address) - 1
        return i if i >= 0 and address < self._ends[i] else None

    def knows(self, address: int) -> bool:
        return self._index(address) is not None

    def has(self, address: int) -> bool:
        i = self._index(address)
        return i is None or self._is_huge[i]


def _why_no_alias(model_config: ModelConfig) -> str | None:
    """Why no parameter of this engine may be memory of the daemon; None if some may."""
    config = get_current_vllm_config()
    if model_config.quantization is not None:
        return f"quantization {model_config.quantization} converts them"
    if config.lora_config is not None:
        return "LoRA pads them"
    if model_config.enable_sleep_mode:
        return "sleep mode releases and rewrites them"
    offload = config.offload_config
    if offload.uva.cpu_offload_gb > 0 or offload.prefetch.offload_group_size > 0:
        return "offloading moves them"
    return None
