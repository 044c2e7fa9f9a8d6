# SPDX-License-Identifier: Apache-2.0
"""Published models for vLLM: `publish` in the extra configuration of load format ``streamerd``.

The first engine loads as usual, publishes what process_weights_after_loading() left, and serves from the shared memory.
The next finds it by its key and builds its model of the published tensors (vllm_attach.py). Whether that gives the model
that the first engine has, the first engine proves before it commits (vllm_proof.py): nothing else is published.

What the proof refuses is refused for every engine of this key: a published model without tensors says so, and the next engine
loads its files at once. What cannot be judged in one process is refused by name, from the configuration
alone, before anything is built. A failure after that undoes what building the model registered with the engine, and the model
is loaded from its files.

On a CPU vLLM packs linear weights inside its kernels and empties the parameters, so that nothing could be shared: a
configuration that is not refused keeps its weights and uses torch's linear, which is another graph. A mark in
additional_config says so to the compile cache, and to load(): marked engines are unpacked, however they are loaded.
"""

from __future__ import annotations

import copy
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
from vllm.platforms import current_platform

import streamerd
from streamerd import _publish
from streamerd._client import Client, connect
from streamerd._engines import vllm_attach, vllm_proof
from streamerd._engines.options import AUTO, Options
from streamerd._engines.sources import engine_name
from streamerd._engines.vllm_platform import instruction_set
from streamerd._engines.vllm_state import (
    NotPublishable,
    State,
    built_of,
    changed,
    differences,
    digest_of,
    scalars_of,
)
from streamerd._open import device_name
from streamerd._publication import CLONE, Found, Publication, Published, find
from streamerd._source import without_links
from streamerd._views import TorchViews

_MARK = "streamerd_publish"  # in additional_config, which the key of the compile cache covers
_KEEPS = "_streamerd_keeps_weight"  # of a layer; its value is for packing it after all
_CONVOLUTION = "_cpu_unpacked_conv_weight"  # of a layer: its weight was that of a convolution, which vLLM has packed
# Each engine has its own copy of what is this small: scales, which vLLM writes to, and which may be mapped for reading.
_SMALL = 4096
_VARIANTS = 8  # models of one source that differ in more than the fields of the key
_OWN_TENSORS = 1  # of each published model: the daemon's, the table
_REFUSED = "refused"  # an attribute: why engines of this key cannot publish; of a published model without tensors

# Of a model's configuration: its place, and what is a field of the key.
_NOT_IN_HASH = ("_name_or_path", "transformers_version", "architectures", "dtype", "torch_dtype")

# Variables that choose threads, not kernels.
_NOT_IN_KEY = ("VLLM_CPU_OMP_THREADS_BIND", "VLLM_CPU_NUM_OF_RESERVED_CPU")


# ---- what may be published ----


def is_configured(options: Options) -> bool:
    """`auto` is off on CPUs, where layers that are shared are slower than layers that are packed."""
    return options.publish is True or (options.publish == AUTO and current_platform.is_cuda())


def require_judgeable(config: VllmConfig, model_config: ModelConfig) -> None:
    """Raises NotPublishable where a proof in one process would say nothing: what changes weights later, takes them from
    elsewhere, or computes in several processes."""
    parallel, load = config.parallel_config, config.offload_config
    reasons = (
        (not (current_platform.is_cpu() or current_platform.is_cuda()), f"platform {current_platform.device_name}"),
        (model_config.runner == "draft", "a draft model"),
        (model_config.is_multimodal_model, "a multimodal model"),
        (model_config.quantization == "torchao", "quantization torchao"),
        (config.lora_config is not None, "LoRA"),
        (model_config.enable_sleep_mode, "sleep mode"),
        (load.uva.cpu_offload_gb > 0 or load.prefetch.offload_group_size > 0, "offloading"),
        (getattr(config, "weight_transfer_config", None) is not None, "weight transfer"),
        (parallel.pipeline_parallel_size > 1, "pipeline parallelism"),
        (parallel.data_parallel_size > 1, "data parallelism"),
        (parallel.enable_eplb, "EPLB"),
    )
    for applies, reason in reasons:
        if applies:
            raise NotPublishable(f"a proof cannot judge {reason}")


def mark(options: Options, config: VllmConfig) -> None:
    """Marks an engine whose layers keep their weights: load() then loads it so."""
    if not is_configured(options) or not isinstance(config.additional_config, dict):
        return
    try:
        require_judgeable(config, config.model_config)
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


def _short(text: str) -> str:
    return text if len(text) < 200 else hashlib.sha256(text.encode()).hexdigest()


def _hash_of(config: Any) -> str:
    fields = {k: v for k, v in config.to_dict().items() if k not in _NOT_IN_HASH}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()[:32]


def key_of(config: VllmConfig, model_config: ModelConfig) -> dict[str, str]:
    """All that the finished tensors depend on besides the files of the base. To be taken before the model is built."""
    from vllm.distributed import get_tensor_model_parallel_rank

    parallel, compilation = config.parallel_config, config.compilation_config
    key = {
        "engine": f"vllm {vllm.__version__}",
        "plugin": f"streamerd {streamerd.__version__}",
        "torch": torch.__version__,
        "platform": instruction_set(),
        "architecture": ",".join(model_config.hf_config.architectures or []),
        "implementation": str(model_config.model_impl),
        "task": f"{model_config.runner_type} {model_config.convert_type}",
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
        "max_model_len": str(model_config.max_model_len),
        "compilation": f"{int(compilation.mode)} {' '.join(sorted(compilation.custom_ops))}",
        "additional": json.dumps(config.additional_config, sort_keys=True, default=str),
    }
    for name in sorted(envs.compile_factors()):
        if name in os.environ and name not in _NOT_IN_KEY:
            key[f"env.{name}"] = os.environ[name]
    return {field: _short(value) for field, value in key.items()}


def stem_of(options: Options, source: str) -> str:
    """What the names of all published models of a source begin with: no model of another source has it."""
    return f"{engine_name(options.name, source)}/vllm-"


def name_of(options: Options, source: str, key: Mapping[str, str]) -> str:
    """The name of the published model: one for each key, so that engines of several configurations have one each."""
    digest = hashlib.sha256(json.dumps(sorted(key.items())).encode()).hexdigest()[:16]
    rank = f"-{key['tp_rank']}of{key['tp_size']}" if key["tp_size"] != "1" else ""
    return f"{stem_of(options, source)}{digest}{rank}"


# ---- the engine's registries ----


class Registries:
    """What building a model registers with an engine: layers by name, experts, and rotary tables."""

    def __init__(self, config: VllmConfig) -> None:
        compilation = config.compilation_config
        self._tables: tuple[dict[Any, Any], ...] = (compilation.static_forward_context, rotary_embedding._ROPE_DICT)
        self._experts: list[Any] = compilation.static_all_moe_layers
        self._kept = [dict(table) for table in self._tables], list(self._experts)

    def restore(self) -> None:
        tables, self._experts[:] = self._kept
        for table, before in zip(self._tables, tables, strict=True):
            table.clear()
            table.update(before)


@contextmanager
def undone_on_failure(config: VllmConfig) -> Iterator[None]:
    """After an exception the engine's registries are as before."""
    registries = Registries(config)
    try:
        yield
    except BaseException:
        registries.restore()
        raise


# ---- layers that are not packed ----


class _Dispatch:
    """In place of vLLM's function that packs a linear layer's weights on a CPU.

    A linear layer that was processed while `keeps` was set keeps its weights, also when it is processed again
    (reload_weights). vLLM gives the function convolutions, too, whose kernels take packed weights alone: these are packed, once.
    """

    def __init__(self, pack: Callable[[Any, bool], None]) -> None:
        self.pack = pack
        self.keeps = False

    def __call__(self, layer: Any, remove_weight: bool) -> None:
        if layer.weight.dim() != 2:
            self.pack(layer, remove_weight)
            return
        if hasattr(layer, _CONVOLUTION):
            return
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
        require_judgeable(config, model_config)
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
        require_judgeable(config, config.model_config)
        require_marked(config)
        sharing = Sharing(options, logging.getLogger(__name__), config, config.model_config, "", source)
        return sharing.name if sharing.is_resident() else None
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
        self._pristine: VllmConfig | None = None
        self._proof: vllm_proof.Proof | None = None
        self.name = name_of(options, source, self._key)

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

    def is_resident(self) -> bool:
        """Whether there are tensors that this engine would attach to; waits for no publisher."""
        found = self.search(claim=False, wait=False)
        return found.state == "hit" and bool(self._published(found.generation).entries())

    def _published(self, generation: int) -> Published:
        assert self._client is not None
        return Published(self._client, self.name, generation, self._device)

    def attach_or_claim(self) -> nn.Module | None:
        """The model, of published memory. None: there is none, and this process has the right to publish it."""
        self._pristine = copy.deepcopy(self._config)
        try:
            return self._attach_or_claim()
        except _Differs as differs:
            self._specialise(differs)
        return self._attach_or_claim()

    def _attach_or_claim(self) -> nn.Module | None:
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

    def _specialise(self, differs: _Differs) -> None:
        """What differs though the fields of the key do not becomes a field of the key: a model beside the other."""
        other = self.name
        self._key["state"] = differs.state
        self.name = name_of(self._options, self._source, self._key)
        self._logger.info(
            "streamerd: publish: this engine builds another model than the publisher of %s (%s): it has %s, beside it", other,
            differs, self.name,
        )  # fmt: skip
        variants = [m for m in self._others() if "state" in m["published"]["key"] and m["name"] != self.name]
        if len(variants) >= _VARIANTS:
            raise NotPublishable(
                f"{len(variants)} models of this source differ in more than their configuration: an attribute is another one "
                "in each process"
            )

    def _others(self) -> list[dict[str, Any]]:
        """The published models of this source."""
        assert self._client is not None
        stem = stem_of(self._options, self._source)
        models = self._client.call("list", after=stem)["models"]
        return [m for m in models if m["name"].startswith(stem) and "published" in m]

    def _log_beside(self) -> None:
        """What distinguishes this engine's model from the most similar other one."""
        others = [(m["name"], m["published"]["key"]) for m in self._others() if m["tensors"] > _OWN_TENSORS]
        keys = [(name, key) for name, key in others if name != self.name and key["tp_rank"] == self._key["tp_rank"]]
        if not keys:
            return
        found = [(differences(key, self._key), name) for name, key in keys]
        differs, name = min(found, key=lambda other: (len(other[0]), other[1]))
        self._logger.info("streamerd: publish: it lies beside %s: %s", name, "; ".join(differs))

    def load_and_publish(self, load_as_usual: Callable[[], nn.Module]) -> nn.Module:
        """After attach_or_claim() has returned None. A model that cannot be published is the engine's own."""
        publication, self._publication = self._publication, None
        assert publication is not None and self._pristine is not None
        registries = Registries(self._config)
        try:
            with unpacked():
                model = load_as_usual()
        except BaseException:
            publication.abort()
            raise
        self._proof = None
        try:
            with unpacked():
                self._publish(publication, model, self._pristine)
            return model
        except Exception as error:
            self._logger.warning("streamerd: publish: %s was not published: %s", self.name, _line(error))
            self._logger.debug("streamerd: publish: publishing failed", exc_info=True)
            publication.abort()
            if self._proof is not None and isinstance(error, NotPublishable):
                self._record_anew(error)
        unmark(self._config)
        if self._proof is None or self._proof.is_intact():
            pack(model)
            return model
        self._logger.warning("streamerd: publish: the model is loaded again, since it is not what it was")
        del model
        self._proof = None
        registries.restore()
        return load_as_usual()

    def _publish(self, publication: Publication, model: nn.Module, pristine: VllmConfig) -> None:
        try:
            proof = vllm_proof.Proof(
                model, self._config, pristine, self._prefix, self._key.get("state"), publication.protect, self._logger
            )
        except NotPublishable as reason:
            self._record(publication, reason)
            raise
        self._proof = proof
        for storage in _publish.storages_of(proof.items):
            if storage.end - storage.begin <= _SMALL:
                for item in storage.items:
                    item.flags |= CLONE
        _publish.publish_items(publication, proof.items, {}, proof)
        self._proof = None
        self._logger.info("streamerd: publish: published %s: %d tensors", self.name, len(proof.items))
        try:
            self._log_beside()
        except streamerd.Error as error:
            self._logger.debug("streamerd: publish: %s", error)

    def _record(self, publication: Publication, reason: NotPublishable) -> None:
        """Tells the next engine of this key that it would be refused."""
        try:
            publication.begin([])
            publication.attribute(_REFUSED, str(reason))
            publication.commit()
        except streamerd.Error as error:
            self._logger.debug("streamerd: publish: the refusal was not recorded: %s", error)

    def _record_anew(self, reason: NotPublishable) -> None:
        """The same, once the publication with the memory of the tensors has ended."""
        try:
            publication = self.search(claim=True, wait=False).publication
        except streamerd.Error as error:
            self._logger.debug("streamerd: publish: the refusal was not recorded: %s", error)
            return
        if publication is not None:  # else another engine tries by now
            self._record(publication, reason)

    def _attach(self, generation: int) -> nn.Module:
        published = self._published(generation)
        entries, attributes = published.entries(), published.attributes()
        if _REFUSED in attributes:
            raise NotPublishable(f"{self.name} was refused: {attributes[_REFUSED]}")
        if vllm_proof.PROOF not in attributes:
            raise NotPublishable(f"{self.name} was published without a proof")
        scalars: State = json.loads(attributes[vllm_proof.SCALARS])
        model = vllm_attach.build(self._config, self._model_config, self._prefix)
        built = built_of(model)
        differs = differences(changed(scalars, json.loads(attributes[vllm_proof.BUILT])), built)
        if differs:
            raise _Differs(differs, digest_of(built))
        storages = published.storages(TorchViews())
        vllm_attach.complete(model, self._config, self._model_config, entries, storages, scalars)
        differs = differences(scalars, scalars_of(model))
        if differs:
            raise NotPublishable(f"{self.name}: {_some(differs)}")
        self._logger.info(
            "streamerd: publish: attached to %s, generation %d: %d tensors, nothing was read or copied",
            self.name, generation, len(entries),
        )  # fmt: skip
        return model


def _some(differs: list[str]) -> str:
    return f"{len(differs)} attributes differ: {'; '.join(differs[:3])}"


class _Differs(NotPublishable):
    """This engine builds another model than the publisher did. `state`: the digest of what it builds."""

    def __init__(self, differs: list[str], state: str) -> None:
        super().__init__(_some(differs))
        self.state = state
