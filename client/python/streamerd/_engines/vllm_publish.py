# SPDX-License-Identifier: Apache-2.0
"""Published models for vLLM: `publish` in the extra configuration of load format ``streamerd``.

The first engine loads as usual, publishes what process_weights_after_loading() left, and serves from the shared memory.
The next finds it by its key, builds its model on the meta device, takes the published tensors, runs the post-processing
under weights_already_processed(), and compares every scalar attribute and class with the publisher's.

What is not known to be right is refused by name, from the configuration alone, before anything is built. A failure
after that undoes what building the model registered with the engine, and the model is loaded from its files.

On a CPU vLLM packs linear weights inside its kernels and empties the parameters, so that nothing could be shared: a
configuration that is not refused keeps its weights and uses torch's linear, which is another graph. A mark in
additional_config says so to the compile cache, and to load(): marked engines are unpacked, however they are loaded.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from logging import Logger
from typing import Any

import torch
import vllm
from torch import nn
from vllm import envs
from vllm.config import ModelConfig, VllmConfig
from vllm.model_executor.layers import rotary_embedding
from vllm.model_executor.layers import utils as layer_utils
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.utils import initialize_model, process_weights_after_loading
from vllm.model_executor.utils import weights_already_processed
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype

import streamerd
from streamerd import _publish
from streamerd._client import Client, connect
from streamerd._engines.options import AUTO, Options
from streamerd._engines.sources import engine_name
from streamerd._engines.vllm_platform import instruction_set
from streamerd._open import device_name
from streamerd._publication import CLONE, Found, Publication, Published, find
from streamerd._source import without_links
from streamerd._views import TorchViews

# Architectures whose post-processing was compared, tensor by tensor and attribute by attribute (docs/publish.md).
KNOWN = (
    "LlamaForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "OPTForCausalLM",
    "Phi3ForCausalLM",
    "GPTNeoXForCausalLM",
)

_MARK = "streamerd_publish"  # in additional_config, which the key of the compile cache covers
_KEEPS = "_streamerd_keeps_weight"  # of a layer; its value is for packing it after all
_SCALARS = "scalars"
# Each engine has its own copy of what is this small: scales, which vLLM writes to, and which may be mapped for reading.
_SMALL = 4096
_OBJECTS = 2  # how deep the attributes of objects are compared

# State of a process, not of a model: numbers of process groups, and a mark of transformers' own initialisation.
_NOT_COMPARED = {"_is_hf_initialized"}

# How the forward pass runs: compiled, eager, by which implementation of an operation. The tensors do not depend on it.
_NOT_COMPARED |= {
    "do_not_compile", "_forward_method", "use_aiter", "_dynamic_arg_dims", "was_aot_compile_fn_loaded_from_disk", "compiled",
    "_compile_tag", "_compile_prefix", "_is_encoder", "layerwise_nvtx_tracing_enabled", "first_compile", "evaluate_guards",
    "_compiled_callable", "_bytecode_hook_handle", "_compiled_bytecode",
}  # fmt: skip
_NOT_ENTERED = ("vllm.distributed.",)

# Of a model's configuration: its place, and what is a field of the key.
_NOT_IN_HASH = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")

# Variables that choose threads, not kernels.
_NOT_IN_KEY = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")


class NotPublishable(Exception):
    """Why this engine neither publishes nor attaches."""


# ---- what may be published ----


def is_configured(options: Options) -> bool:
    """`auto` is off on CPUs, where layers that are shared are slower than layers that are packed."""
    return options.publish is True or (options.publish == AUTO and current_platform.is_cuda())


def require_known(config: VllmConfig, model_config: ModelConfig) -> None:
    """Raises NotPublishable unless this configuration is known to be right."""
    parallel, load = config.parallel_config, config.offload_config
    architectures = getattr(model_config.hf_config, "architectures", None) or ["?"]
    reasons = (
        (not (current_platform.is_cpu() or current_platform.is_cuda()), f"platform {current_platform.device_name}"),
        (architectures[0] not in KNOWN, f"architecture {architectures[0]}"),
        (model_config.model_impl == "transformers", "model_impl transformers"),
        (model_config.runner == "draft", "a draft model"),
        (model_config.runner_type != "generate", f"runner {model_config.runner_type}"),
        (model_config.convert_type != "none", f"conversion {model_config.convert_type}"),
        (model_config.quantization is not None, f"quantization {model_config.quantization}"),
        (model_config.is_multimodal_model, "a multimodal model"),
        (model_config.is_moe, "mixture of experts"),
        (model_config.use_mla, "MLA"),
        (config.lora_config is not None, "LoRA"),
        (model_config.enable_sleep_mode, "sleep mode"),
        (load.uva.cpu_offload_gb > 0 or load.prefetch.offload_group_size > 0, "offloading"),
        (getattr(config, "weight_transfer_config", None) is not None, "weight transfer"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism"),
        (parallel.data_parallel_size > 1, "data parallelism"),
        (parallel.enable_eplb, "EPLB"),
        (config.cache_config.cache_dtype not in ("auto", "bfloat16", "float16"), f"kv_cache_dtype {config.cache_config.cache_dtype}"),
    )  # fmt: skip
    for applies, reason in reasons:
        if applies:
            raise NotPublishable(f"not known to be right with {reason}")


def mark(options: Options, config: VllmConfig) -> None:
    """Marks an engine whose layers keep their weights: load() then loads it so."""
    if not is_configured(options) or not isinstance(config.additional_config, dict):
        return
    try:
        require_known(config, config.model_config)
    except NotPublishable:
        return  # load() reports it
    config.additional_config = {**config.additional_config, _MARK: True}


def unmark(config: VllmConfig) -> None:
    """For an engine that shares nothing: its layers are packed, as without `publish`."""
    config.additional_config = {name: value for name, value in config.additional_config.items() if name != _MARK}


def require_marked(config: VllmConfig) -> None:
    if not isinstance(config.additional_config, dict):
        raise NotPublishable("additional_config is no dictionary")
    if _MARK not in config.additional_config:
        raise NotPublishable("the engine's configuration was not made by EngineArgs.create_engine_config()")


def require_one(sources: list[str]) -> None:
    """Raises NotPublishable for weights that several models of the daemon have: a published model has one base."""
    if len(sources) > 1:
        raise NotPublishable(f"the weights are {len(sources)} models of the daemon: {sources[0]} and others")


def require_declared(model: nn.Module) -> None:
    """Raises NotPublishable for a method that says that its post-processing cannot be skipped."""
    for path, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if not getattr(method, "supports_pre_processed_weights", True):
            raise NotPublishable(f"{type(method).__name__} of {path or 'the model'} does not support pre-processed weights")


def _short(text: str) -> str:
    return text if len(text) < 200 else hashlib.sha256(text.encode()).hexdigest()


def _hash_of(config: Any) -> str:
    fields = {k: v for k, v in config.to_dict().items() if k not in _NOT_IN_HASH}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _depends_on_length(hf_config: Any) -> bool:
    """Whether tables are made for the length that is served; others are made for the longest that the model has."""
    ropes = (getattr(hf_config, name, None) for name in ("rope_parameters", "rope_scaling"))
    return any("longrope" in json.dumps(rope, default=str) for rope in ropes)


def key_of(config: VllmConfig, model_config: ModelConfig) -> dict[str, str]:
    """All that the finished tensors depend on besides the files of the base. To be taken before the model is built."""
    from vllm.distributed import get_tensor_model_parallel_rank

    parallel = config.parallel_config
    key = {
        "engine": f"vllm {vllm.__version__}",
        "plugin": f"streamerd {streamerd.__version__}",
        "torch": torch.__version__,
        "platform": instruction_set(),
        "architecture": ",".join(model_config.hf_config.architectures),
        "config": _hash_of(model_config.hf_config),
        "dtype": str(model_config.dtype),
        "quantization": str(model_config.quantization),
        "kv_cache_dtype": str(config.cache_config.cache_dtype),
        "attention": str(config.attention_config.backend),
        "linear": str(config.kernel_config.linear_backend),
        "tp_size": str(parallel.tensor_parallel_size),
        "tp_rank": str(get_tensor_model_parallel_rank()),
        "pp_size": str(parallel.pipeline_parallel_size),
        "dp_size": str(parallel.data_parallel_size),
        "ep": str(parallel.enable_expert_parallel),
        "draft": str(model_config.runner == "draft"),
        "lora": str(config.lora_config is not None),
        "max_model_len": str(model_config.max_model_len) if _depends_on_length(model_config.hf_config) else "any",
    }
    for name in sorted(envs.compile_factors()):
        if name in os.environ and name not in _NOT_IN_KEY:
            key[f"env.{name}"] = os.environ[name]
    return {field: _short(value) for field, value in key.items()}


def name_of(options: Options, source: str, rank: int, size: int) -> str:
    """The name of the published model: one for each source and rank, so that no model of another source has it."""
    return f"{engine_name(options.name, source)}/vllm" + (f"-{rank}of{size}" if size > 1 else "")


# ---- the state that is compared ----


def scalars_of(model: nn.Module) -> dict[str, str]:
    """Every scalar attribute of the modules, of their methods and kernels, and the class of every object."""
    seen: dict[str, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        seen[f"{path}:"] = type(module).__qualname__
        for name, value in vars(module).items():
            if name not in ("_parameters", "_buffers", "_modules") and name not in _NOT_COMPARED:
                _describe(f"{path}:{name}", value, seen, _OBJECTS)
    return seen


def _describe(path: str, value: Any, seen: dict[str, str], depth: int) -> None:
    if value is None or isinstance(value, (bool, int, float, str, enum.Enum, torch.dtype)):
        seen[path] = repr(value)
    elif isinstance(value, (list, tuple)):
        seen[path] = f"{type(value).__name__} {len(value)}"
        for i, inner in enumerate(value[:16]):
            _describe(f"{path}[{i}]", inner, seen, depth - 1)
    elif isinstance(value, functools.partial):
        _describe(path, value.func, seen, depth)
    elif callable(value) and hasattr(value, "__qualname__"):
        seen[path] = value.__qualname__
    else:
        seen[path] = type(value).__qualname__
        if depth > 0 and _is_entered(value) and not isinstance(value, nn.Module):
            for name, inner in getattr(value, "__dict__", {}).items():
                _describe(f"{path}.{name}", inner, seen, depth - 1)


def _is_entered(value: Any) -> bool:
    """Whether the attributes of an object are looked at: those of vLLM's own, except of configurations."""
    module = type(value).__module__
    return module.startswith("vllm.") and not module.startswith(("vllm.config.", *_NOT_ENTERED))


def differences(published: Mapping[str, str], built: Mapping[str, str]) -> list[str]:
    names = [*published, *(name for name in built if name not in published)]
    return [
        f"{name} is {built.get(name, 'absent')}, published {published.get(name, 'absent')}"
        for name in names
        if published.get(name) != built.get(name)
    ]


def _objects(value: Any, depth: int) -> Iterator[torch.Tensor]:
    """Tensors in the attributes of an engine's objects."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 0 and isinstance(value, (list, tuple)):
        for inner in value:
            yield from _objects(inner, depth - 1)
    elif depth > 0 and _is_entered(value):
        for inner in getattr(value, "__dict__", {}).values():
            yield from _objects(inner, depth - 1)


def left_on_meta(model: nn.Module) -> list[str]:
    """Where a tensor without memory is left: in a parameter, a buffer, an attribute, or an object that a module has."""
    left = [item.name for item in _publish.items_of(model) if item.tensor.is_meta]
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, nn.Module) or name in ("_parameters", "_buffers", "_modules"):
                continue
            if any(tensor.is_meta for tensor in _objects(value, _OBJECTS)):
                left.append(f"{path}.{name}")
    return sorted(set(left))


# ---- the engine's registries ----


@contextmanager
def undone_on_failure(config: VllmConfig) -> Iterator[None]:
    """After an exception the engine's registries are as before: layers by name, and rotary tables on meta."""
    registries: tuple[dict[Any, Any], ...] = (
        config.compilation_config.static_forward_context,
        rotary_embedding._ROPE_DICT,
    )
    kept = [dict(registry) for registry in registries]
    try:
        yield
    except BaseException:
        for registry, before in zip(registries, kept, strict=True):
            registry.clear()
            registry.update(before)
        raise


# ---- layers that are not packed ----


class _Dispatch:
    """In place of vLLM's function that packs a linear layer's weights on a CPU.

    A layer that was processed while `keeps` was set keeps its weights, also when it is processed again (reload_weights).
    """

    def __init__(self, pack: Callable[[Any, bool], None]) -> None:
        self.pack = pack
        self.keeps = False

    def __call__(self, layer: Any, remove_weight: bool) -> None:
        if self.keeps:
            setattr(layer, _KEEPS, remove_weight)
        if hasattr(layer, _KEEPS):
            layer.cpu_linear = torch.nn.functional.linear
        else:
            self.pack(layer, remove_weight)


def _dispatch() -> _Dispatch:
    dispatch = layer_utils.dispatch_cpu_unquantized_gemm
    if not isinstance(dispatch, _Dispatch):
        dispatch = layer_utils.dispatch_cpu_unquantized_gemm = _Dispatch(dispatch)
    return dispatch


def unpacked() -> AbstractContextManager[None]:
    """While it is entered, post-processing on a CPU leaves linear weights as they are, for good."""
    return _unpacked() if current_platform.is_cpu() else nullcontext()


@contextmanager
def _unpacked() -> Iterator[None]:
    dispatch = _dispatch()
    dispatch.keeps = True
    try:
        yield
    finally:
        dispatch.keeps = False


def pack(model: nn.Module) -> None:
    """Packs the layers of a model that is not shared after all."""
    for layer in model.modules():
        if hasattr(layer, _KEEPS):
            remove_weight = getattr(layer, _KEEPS)
            delattr(layer, _KEEPS)
            _dispatch().pack(layer, remove_weight)


# ---- loading ----


def load(
    options: Options,
    logger: Logger,
    config: VllmConfig,
    model_config: ModelConfig,
    prefix: str,
    sources: list[str],
    load_as_usual: Callable[[], nn.Module],
) -> nn.Module:
    """Loads a model that is configured to be published. Where that is not possible, one line of the log says why."""
    if not is_configured(options):
        return load_as_usual()
    try:
        require_known(config, model_config)
        require_marked(config)
        require_one(sources)
    except NotPublishable as reason:
        logger.warning("streamerd: publish: loading as without: %s", reason)
        if isinstance(config.additional_config, dict):
            unmark(config)
        return load_as_usual()
    try:
        with unpacked():
            sharing = Sharing(options, logger, config, model_config, prefix, sources[0])
            model = sharing.attach_or_claim()
    except Exception as error:
        logger.warning("streamerd: publish: loading from the files: %s", _line(error))
        logger.debug("streamerd: publish: attaching failed", exc_info=True)
        unmark(config)
        return load_as_usual()
    return model if model is not None else sharing.load_and_publish(load_as_usual)


def _line(error: Exception) -> str:
    """An error as one line; of one that was not foreseen, with its class."""
    text = " ".join(str(error).split())
    return text if isinstance(error, (NotPublishable, streamerd.Error)) else f"{type(error).__name__}: {text}"


def resident_name(options: Options, config: VllmConfig, source: str) -> str | None:
    """The name of the published model that this engine would attach to, if it is resident."""
    if not is_configured(options):
        return None
    try:
        require_known(config, config.model_config)
        require_marked(config)
        sharing = Sharing(options, logging.getLogger(__name__), config, config.model_config, "", source)
        return sharing.name if sharing.search(claim=False, wait=False).state == "hit" else None
    except (NotPublishable, streamerd.Error):
        return None  # load() reports it


class Sharing:
    """One load of one model, with the published model of its key."""

    def __init__(
        self, options: Options, logger: Logger, config: VllmConfig, model_config: ModelConfig, prefix: str, source: str
    ) -> None:
        self._logger = logger
        self._config = config
        self._model_config = model_config
        self._prefix = prefix
        self._options = options
        self._source = source
        self._device = self._place()
        self._publication: Publication | None = None
        self._client: Client | None = None
        self._key = key_of(config, model_config)
        self.name = name_of(options, source, int(self._key["tp_rank"]), int(self._key["tp_size"]))

    def _place(self) -> str:
        """Where the engine's own tensors are: only these are shared."""
        if current_platform.is_cuda():
            return device_name(f"cuda:{torch.cuda.current_device()}") or "cuda:0"
        return "host"

    def search(self, claim: bool, wait: bool = True) -> Found:
        client = self._client = connect(self._options.socket, self._options.autostart)
        base = without_links(self._source)[0] if client.own else self._source
        return find(
            client, self.name, self._key, base=base, device=self._device, claim=claim, wait=wait,
            timeout=self._options.timeout,
        )  # fmt: skip

    def attach_or_claim(self) -> nn.Module | None:
        """The model, of published memory. None: there is none, and this process has the right to publish it."""
        found = self.search(claim=True)
        if found.publication is not None:
            if found.state != "absent":
                self._logger.info("streamerd: publish: %s; it is replaced", found.explain(self.name))
            self._publication = found.publication
            return None
        if found.state != "hit":
            raise NotPublishable(found.explain(self.name))
        with undone_on_failure(self._config):
            return self._attach(found.generation)

    def load_and_publish(self, load_as_usual: Callable[[], nn.Module]) -> nn.Module:
        """After attach_or_claim() has returned None. A model that cannot be published is the engine's own."""
        publication, self._publication = self._publication, None
        assert publication is not None
        try:
            with unpacked():
                model = load_as_usual()
        except BaseException:
            publication.abort()
            raise
        try:
            require_declared(model)
            items = _publish.items_of(model)
            for item in items:
                if item.tensor.nbytes <= _SMALL:
                    item.flags |= CLONE
            _publish.publish_items(publication, items, {_SCALARS: json.dumps(scalars_of(model))})
        except Exception as error:
            self._logger.warning("streamerd: publish: %s was not published: %s", self.name, _line(error))
            self._logger.debug("streamerd: publish: publishing failed", exc_info=True)
            publication.abort()
            pack(model)
            unmark(self._config)
        else:
            self._logger.info("streamerd: publish: published %s: %d tensors", self.name, len(items))
        return model

    def _attach(self, generation: int) -> nn.Module:
        assert self._client is not None
        published = Published(self._client, self.name, generation, self._device)
        entries, attributes = published.entries(), published.attributes()
        storages = published.storages(TorchViews())
        target = torch.device(self._config.device_config.device)
        with set_default_torch_dtype(self._model_config.dtype):
            with torch.device("meta"):
                model: nn.Module = initialize_model(
                    vllm_config=self._config, model_config=self._model_config, prefix=self._prefix
                )
            require_declared(model)
            items = _publish.by_name(_publish.items_of(model))
            _publish.require_names(items, entries, self.name)
            _publish.install(_publish.parts_of(model), items, entries, storages)
            with weights_already_processed():
                process_weights_after_loading(model, self._model_config, target)
        for layer in model.modules():  # vLLM recorded the default device of the moment
            get_layerwise_info(layer).restore_device = target
        model.eval()
        self._require_equal(model, json.loads(attributes[_SCALARS]))
        self._logger.info(
            "streamerd: publish: attached to %s, generation %d: %d tensors, nothing was read or copied",
            self.name, generation, len(entries),
        )  # fmt: skip
        return model

    def _require_equal(self, model: nn.Module, published: Mapping[str, str]) -> None:
        left = left_on_meta(model)
        if left:
            raise NotPublishable(f"{self.name} lacks {', '.join(left[:5])}")
        differs = differences(published, scalars_of(model))
        if differs:
            raise NotPublishable(
                f"{self.name}: {len(differs)} attributes differ: {'; '.join(differs[:3])}; give engines with these options "
                "a `name` of their own"
            )
