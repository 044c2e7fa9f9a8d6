# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: E402
"""The loaders behind vLLM's load formats ``streamerd`` and ``streamerd_sharded``.

All that depends on vLLM's internals is in this file, which cannot be imported with a version of vLLM that is not in
TESTED. What it takes from vLLM beyond the documented plug-in interface:

    DefaultModelLoader      its load_weights() (expert filter, secondary weights, check that nothing is missing), fed
                            through _get_weights_iterator()
    ShardedStateLoader      names of a rank's files (_render_default_pattern), tensors that share memory
                            (_filter_subtensors)
    EngineArgs              create_engine_config(), wrapped: the model s3://... becomes a directory with its
                            configuration and tokenizer
    weight_loader           the attribute of parameters, replaced while weights are loaded with `alias`

Normal path: the engine's own code copies each tensor from a view of resident memory to its parameter. A view has the
tensor's full shape and costs no copy, so a tensor-parallel rank touches only its slice. With `alias` a parameter
becomes the view itself wherever the engine would copy the whole view, unchanged, to the whole parameter.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import itertools
import os
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import vllm
from torch import nn

# Minor versions that this file was tested with, newest first; docs/vllm.md says how.
TESTED = ("0.32",)
FORCE = "STREAMERD_VLLM_UNTESTED"


def unsupported(version: str) -> str | None:
    """Why the loaders refuse this version of vLLM; None where it was tested, or STREAMERD_VLLM_UNTESTED=1 is set."""
    minor = ".".join(version.split("+")[0].split(".")[:2])
    if minor in TESTED or os.environ.get(FORCE) == "1":
        return None
    return (
        f"vLLM {version} is not supported by this streamerd package, which was tested with {', '.join(TESTED)}: "
        f"install one of these, or a newer streamerd, or set {FORCE}=1 to try it"
    )


if (_reason := unsupported(vllm.__version__)) is not None:
    raise ImportError(_reason)

from vllm import envs
from vllm.config import ModelConfig, VllmConfig, get_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.logger import init_logger
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
    UnquantizedLinearMethod,
)
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.model_executor.model_loader.weight_utils import default_weight_loader
from vllm.platforms import current_platform

import streamerd
from streamerd.engine_options import Options, fetch_engine_files, is_remote, source_of

logger = init_logger("vllm.streamerd")

Weights = Iterable[tuple[str, torch.Tensor]]


def register(formats: tuple[str, ...]) -> None:
    """Registers the loaders and lets the engine's arguments name a remote model."""
    for load_format, loader in zip(formats, (StreamerdLoader, StreamerdShardedLoader), strict=True):
        register_model_loader(load_format)(loader)
    EngineArgs.create_engine_config = _with_remote_models(EngineArgs.create_engine_config, formats)


def _cache() -> str:
    return os.path.join(envs.VLLM_CACHE_ROOT, "streamerd")


def _with_remote_models(create: Any, formats: tuple[str, ...]) -> Any:
    """create_engine_config() that first replaces s3://... by a local directory with what the engine reads itself."""

    @functools.wraps(create)
    def create_engine_config(self: EngineArgs, *args: Any, **kwargs: Any) -> VllmConfig:
        if self.load_format in formats:
            options = Options.parse(self.model_loader_extra_config, self.load_format)
            source = self.model
            if is_remote(source):
                self.model = fetch_engine_files(source, _cache(), options)
                self.served_model_name = self.served_model_name or source
            if self.tokenizer and is_remote(self.tokenizer):
                same = self.tokenizer == source
                self.tokenizer = self.model if same else fetch_engine_files(self.tokenizer, _cache(), options)
        return create(self, *args, **kwargs)

    return create_engine_config


class _Loader(BaseModelLoader):
    """What both loaders share: options, sources, the fallback, and the account of the time."""

    options: Options

    def __init__(self, load_config: LoadConfig):
        self.options = Options.parse(load_config.model_loader_extra_config, load_config.load_format)
        self._own_seconds = 0.0
        self._tensors = 0
        self._bytes = 0
        # DefaultModelLoader checks the extra configuration against its own keys.
        super().__init__(dataclasses.replace(load_config, load_format="safetensors", model_loader_extra_config={}))

    def get_external_weight_memory(self, vllm_config: VllmConfig) -> int:
        """Bytes that the daemon holds on this process's GPU once the model is resident there; 0 for other devices."""
        if not self._device().startswith("cuda"):
            return 0
        self.download_model(vllm_config.model_config)
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        status = streamerd.status(**self.options.connection)
        return sum(d["used"] for d in status["devices"] if d.get("uuid", "").removeprefix("GPU-") == uuid)

    def _device(self) -> str:
        """Where the weights are to be resident: as configured, else this engine's GPU for aliases, else the host."""
        if self.options.device is not None:
            return self.options.device
        if self.options.alias and current_platform.is_cuda_alike():
            return f"cuda:{torch.cuda.current_device()}"
        return "cpu"

    def _open(self, source: str, **more: Any) -> streamerd.Model[Any]:
        return self.options.open(source, **{"device": self._device(), **more})

    def _load(self, model: nn.Module, model_config: ModelConfig) -> None:
        raise NotImplementedError

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        began = time.perf_counter()
        self._own_seconds, self._tensors, self._bytes = 0.0, 0, 0
        try:
            self._load(model, model_config)
        except streamerd.Error as error:
            if not self.options.fallback or is_remote(_source(model_config)):
                raise
            logger.warning("Falling back to load format auto: %s", error)
            self._fallback_loader().load_weights(model, model_config)
            return
        logger.info(
            "streamerd: %d tensors, %.2f GiB in %.3f seconds, of which the engine's own copies take all but %.1f ms",
            self._tensors, self._bytes / 2**30, time.perf_counter() - began, self._own_seconds * 1e3,
        )  # fmt: skip

    def _fallback_loader(self) -> BaseModelLoader:
        config = dataclasses.replace(self.load_config, load_format="auto", model_loader_extra_config={})
        return DefaultModelLoader(config)

    def _feed(self, weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
        """The same weights; counts them, and the time that they take beside the engine's own work."""
        iterator = iter(weights)
        while True:
            began = time.perf_counter()
            item = next(iterator, None)
            self._own_seconds += time.perf_counter() - began
            if item is None:
                return
            self._tensors += 1
            self._bytes += item[1].nbytes
            yield item


class StreamerdLoader(_Loader, DefaultModelLoader):
    """Load format ``streamerd``: checkpoints as they are published."""

    def __init__(self, load_config: LoadConfig):
        super().__init__(load_config)
        if self.options.pattern is not None:
            raise ValueError("model_loader_extra_config: pattern belongs to load format streamerd_sharded")
        self._source: str | None = None
        self._resident: streamerd.Model[Any] | None = None
        self._aliases: _Aliases | None = None
        self.counter_before_loading_weights = 0.0

    def download_model(self, model_config: ModelConfig) -> None:
        with self._open_primary(model_config) as resident:
            resident.wait()

    def _open_primary(self, model_config: ModelConfig) -> streamerd.Model[Any]:
        source = _source(model_config)
        return self._open(source, name=self.options.name or _hub_name(source))

    def _load(self, model: nn.Module, model_config: ModelConfig) -> None:
        if model_config.quantization == "torchao":
            raise RuntimeError("load format streamerd does not support torchao checkpoints: use load format auto")
        self._source = model_config.model
        began = time.perf_counter()
        with self._open_primary(model_config) as self._resident:
            self._own_seconds += time.perf_counter() - began
            self._aliases = _Aliases(model, model_config) if self.options.alias else None
            with self._aliases or nullcontext():
                DefaultModelLoader.load_weights(self, model, model_config)
        if self._aliases is not None:
            self._aliases.report()

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        if source.allow_patterns_overrides is not None:
            raise RuntimeError(
                f"the files of this model are chosen by name ({', '.join(source.allow_patterns_overrides)}), which load "
                "format streamerd does not support: use load format auto"
            )
        path = (
            source.model_or_path if source.subfolder is None else os.path.join(source.model_or_path, source.subfolder)
        )
        if path == self._source:
            assert self._resident is not None
            yield from self._views(self._resident, source.prefix)
        else:  # a part of the model that is stored elsewhere; digest and name apply to the main part
            with self._open(path, name=None, digest=None) as resident:
                yield from self._views(resident, source.prefix)

    def _views(self, resident: streamerd.Model[Any], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self._feed(resident):
            if self._aliases is not None:
                self._aliases.offer(tensor)
            yield prefix + name, tensor


class StreamerdShardedLoader(_Loader):
    """Load format ``streamerd_sharded``: the state of each rank as vLLM saved it (``save_sharded_state``).

    Each file of a rank is one model of the daemon, named NAME/FILE.
    """

    def download_model(self, model_config: ModelConfig) -> None:
        for resident in self._open_files(model_config):
            with resident:
                resident.wait()

    def _open_files(self, model_config: ModelConfig) -> Iterator[streamerd.Model[Any]]:
        source = _source(model_config)
        base = self.options.name or _hub_name(source) or os.path.basename(source.rstrip("/"))
        if self.options.digest is not None:
            raise ValueError("digest: each file of a saved state has its own; use load format streamerd")
        for i, file in enumerate(self._files(source)):
            stem = os.path.basename(file).removesuffix(".safetensors")
            try:
                yield self._open(file, name=f"{base}/{stem}")
            except streamerd.NotFoundError:
                if i == 0 or not is_remote(source):
                    raise
                return  # after the last part

    def _files(self, source: str) -> Iterable[str]:
        """A rank's files. A store is not listed: its parts are counted from 0 to the first that it does not have."""
        render = functools.partial(ShardedStateLoader._render_default_pattern, self.options.pattern)
        if is_remote(source):
            if render(part=0) == render(part=1):  # a pattern without parts
                return [f"{source.rstrip('/')}/{render(part=0)}"]
            return (f"{source.rstrip('/')}/{render(part=part)}" for part in itertools.count())
        pattern = render(part="*")
        files = sorted(glob.glob(os.path.join(glob.escape(source), pattern)))
        if not files:
            raise ValueError(
                f"no file of {source} matches {pattern}: streamerd_sharded loads what save_sharded_state saved"
            )
        return files

    def _load(self, model: nn.Module, model_config: ModelConfig) -> None:
        aliases = _Aliases(model, model_config) if self.options.alias else None
        missing = ShardedStateLoader._filter_subtensors(model.state_dict())
        parameters = dict(model.named_parameters(remove_duplicate=False))
        began = time.perf_counter()
        for resident in self._open_files(model_config):
            self._own_seconds += time.perf_counter() - began
            with resident:
                for name, tensor in self._feed(resident):
                    target = missing.pop(name, None)
                    if target is None:
                        raise ValueError(
                            f"the model has no parameter {name}: it was saved by another version or configuration"
                        )
                    if aliases is None or not aliases.take(parameters.get(name), tensor):
                        _copy(name, target, tensor)
            began = time.perf_counter()
        _fill_untied_embedding(model, model_config, missing)
        if missing:
            raise ValueError(f"the checkpoint lacks {', '.join(sorted(missing))}")
        if aliases is not None:
            aliases.report()


# ---- sources ----


def _source(model_config: ModelConfig) -> str:
    """A path, org/name[@rev] or s3://... for the daemon."""
    model = source_of(model_config.model_weights or model_config.model, _cache())
    if is_remote(model):
        return model
    if os.path.exists(model):
        return os.path.abspath(model)
    return f"{model}@{model_config.revision}" if model_config.revision else model


def _hub_name(source: str) -> str | None:
    """org/name of a snapshot in the Hugging Face cache, whose last component is a revision; None for other sources."""
    parts = source.rstrip("/").split("/")
    if len(parts) > 2 and parts[-2] == "snapshots" and parts[-3].startswith("models--"):
        return parts[-3].removeprefix("models--").replace("--", "/", 1)
    return None


# ---- copying ----


def _copy(name: str, target: torch.Tensor, tensor: torch.Tensor) -> None:
    """To the part of a parameter that the tensor covers: vLLM pads some parameters for LoRA."""
    if tensor.dim() != target.dim() or any(a > b for a, b in zip(tensor.shape, target.shape, strict=True)):
        raise ValueError(f"{name}: shape {list(tensor.shape)} does not fit the parameter's {list(target.shape)}")
    for dim, size in enumerate(tensor.shape):
        target = target.narrow(dim, 0, size)
    target.copy_(tensor)


def _fill_untied_embedding(model: nn.Module, model_config: ModelConfig, missing: dict[str, torch.Tensor]) -> None:
    """Gives the input embedding the weights of the lm_head where the saved state has one tensor for both.

    vLLM builds them apart where the checkpoint has an lm_head, and ties them again when they turn out to be equal.
    """
    if not model_config.word_embeddings_untied_by_checkpoint or len(missing) != 1:
        return
    heads = [m for m in model.modules() if isinstance(m, ParallelLMHead)]
    [name] = missing
    if len(heads) == 1 and isinstance(model.get_submodule(name.rpartition(".")[0]), VocabParallelEmbedding):
        missing.pop(name).copy_(heads[0].weight.data)


# ---- aliases ----

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


class _Aliases:
    """Parameters that become views of resident memory instead of copies.

    The engine's own load_weights() decides: while the context is entered, a parameter's loader that is given an
    offered view as it is, for the whole parameter, is not called; the parameter takes the view's memory. Whatever
    the engine renames, cuts, merges or transforms is copied as usual.
    """

    def __init__(self, model: nn.Module, model_config: ModelConfig):
        self._reason = _why_no_alias(model_config)
        self._offered: dict[int, torch.Tensor] = {}
        self._loaders: list[tuple[Any, Any]] = []  # parameters with their loaders
        self._safe: set[int] = set()  # ids of parameters
        self._total = sum(p.nbytes for p in model.parameters())
        self._aliased = 0
        self._count = 0
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
        parameter.data = tensor
        self._aliased += tensor.nbytes
        self._count += 1
        return True

    def report(self) -> None:
        if self._reason is not None:
            logger.warning("alias: the weights were copied: %s", self._reason)
        elif self._aliased < self._total:
            logger.warning(
                "alias: %d of %d MiB are resident memory; the engine merges, cuts or converts the other parameters, "
                "which were copied (a checkpoint of save_sharded_state with load format streamerd_sharded avoids that)",
                self._aliased >> 20, self._total >> 20,
            )  # fmt: skip
        else:
            logger.info("alias: %d parameters, %d MiB, are resident memory; nothing was copied",
                        self._count, self._aliased >> 20)  # fmt: skip


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
