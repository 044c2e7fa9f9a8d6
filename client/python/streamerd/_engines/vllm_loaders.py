# SPDX-License-Identifier: Apache-2.0
"""The loaders behind vLLM's load formats ``streamerd`` and ``streamerd_sharded``.

What they take from vLLM beyond the documented plug-in interface (listed in vllm_interface.py, which is checked before
this file is imported):

    DefaultModelLoader      its load_weights() (expert filter, secondary weights, check that nothing is missing), fed
                            through _get_weights_iterator(); its rule which files of a folder are the weights
                            (_prepare_weights)
    ShardedStateLoader      names of a rank's files (_render_default_pattern), tensors that share memory
                            (_filter_subtensors)
    EngineArgs              create_engine_config(), wrapped: a model that is in a store, or on the Hub and not in its
                            cache, becomes a directory with its configuration and tokenizer
    weight_loader           the attribute of parameters, replaced while weights are loaded with `alias`

Normal path: the engine's own code copies each tensor from a view of resident memory to its parameter. A view has the
tensor's full shape and costs no copy, so a tensor-parallel rank touches only its slice. With `alias` a parameter
becomes the view itself wherever the engine would copy the whole view, unchanged, to the whole parameter.

With `fallback` the engine's own loader replaces ours after any failure, as long as no parameter was replaced: a loader
that copies would write to memory that others map.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import glob
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from vllm import envs
from vllm.config import ModelConfig, VllmConfig, get_current_vllm_config
from vllm.config.load import LoadConfig
from vllm.engine import arg_utils
from vllm.engine.arg_utils import EngineArgs
from vllm.logger import init_logger
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.sharded_state_loader import ShardedStateLoader
from vllm.platforms import current_platform

import streamerd
from streamerd._client import Client, connect
from streamerd._engines.interface import lacks
from streamerd._engines.options import AUTO, LoadLog, Options
from streamerd._engines.sources import (
    HUB,
    fetch_engine_files,
    fetched_repository,
    in_hub_cache,
    is_file,
    is_offline,
    is_remote,
    is_store,
    locate,
    natural,
    part_name,
    resident_model,
    source_of,
    sources_of_weights,
)
from streamerd._engines.vllm_aliases import Aliases
from streamerd._engines.vllm_interface import ARTIFACTS, MODELINFOS, PUBLISH
from streamerd._engines.vllm_loaded import Loaded, MissingWeights
from streamerd._model import size_text

logger = init_logger("vllm.streamerd")

Weights = Iterable[tuple[str, torch.Tensor]]

# What the weights of a model were loaded from at first; a reload may name another source.
_loaded_from: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


def register(formats: tuple[str, ...]) -> None:
    """Registers the loaders and lets the engine's arguments name a remote model."""
    loaders: dict[str, type[_Loader]] = {"streamerd": StreamerdLoader, "streamerd_sharded": StreamerdShardedLoader}
    for load_format in formats:
        register_model_loader(load_format)(loaders[load_format])
    EngineArgs.create_engine_config = _with_remote_models(EngineArgs.create_engine_config, formats)
    arg_utils.get_model_path = _with_names_that_are_resolved_later(arg_utils.get_model_path)


def _cache() -> str:
    return os.path.join(envs.VLLM_CACHE_ROOT, "streamerd")


# ---- the engine's arguments ----


def _with_remote_models(create: Any, formats: tuple[str, ...]) -> Any:
    """create_engine_config() that first replaces remote models by local directories with what the engine reads itself."""

    @functools.wraps(create)
    def create_engine_config(self: EngineArgs, *args: Any, **kwargs: Any) -> VllmConfig:
        if self.load_format in formats:
            options = Options.parse(self.model_loader_extra_config, self.load_format)
            try:
                _fetch_remote(self, options)
            except Exception as error:
                if not options.fallback or "://" in self.model:
                    raise
                logger.warning("streamerd: The engine fetches the configuration of %s itself: %s", self.model, error)
        if self.load_format not in formats:
            return create(self, *args, **kwargs)
        config = _with_artifacts(self, options, functools.partial(create, self, *args, **kwargs))
        publishes = _can_publish(options)
        if publishes:
            from streamerd._engines import vllm_publish

            vllm_publish.mark(options, config)
            publishes = vllm_publish.is_configured(options)
        if self.load_format == "streamerd" and not publishes:
            _begin_load(config)
        return config

    return create_engine_config


def _with_artifacts(arguments: EngineArgs, options: Options, create: Callable[[], VllmConfig]) -> VllmConfig:
    """Makes the configuration; what another engine knows of the model's class is restored before."""
    if lacks(MODELINFOS) is not None:
        return create()
    from streamerd._engines import vllm_modelinfos

    try:
        source = locate(source_of(arguments.model, _cache()), arguments.revision, arguments.download_dir)
    except Exception as error:
        logger.debug("streamerd: artifacts: not restored: %s", error)  # the loader reports it, or the engine's own
        return create()
    return vllm_modelinfos.with_modelinfos(options, source, logger, create)


def _can_publish(options: Options) -> bool:
    """Whether `publish` is configured, and this vLLM has what that uses."""
    return bool(options.publish) and lacks(PUBLISH) is None


def _begin_load(config: VllmConfig) -> None:
    """Lets the daemon load the model while the engine starts its processes and builds its own."""
    try:
        StreamerdLoader(config.load_config).begin(config.model_config)
    except Exception as error:
        logger.debug("streamerd: the load begins later: %s", error)  # the loader reports what fails


def _fetch_remote(arguments: EngineArgs, options: Options) -> None:
    """For a model, tokenizer or draft that is not on this host: its files in a local directory."""

    def local(model: str, revision: str | None, configured: bool = True) -> str:
        source = locate(model, revision, arguments.download_dir)
        if is_offline() and not os.path.exists(source) and (kept := fetched_repository(source, None, _cache())):
            return kept
        if is_offline() and source.startswith(HUB):
            raise streamerd.NotFoundError(
                f"{source}: HF_HUB_OFFLINE is set, and no engine has read it through streamerd before"
            )
        if not is_remote(source) and not is_file(source):
            # The engine itself looks for the configuration in the Hugging Face cache only.
            downloaded = arguments.download_dir is not None and source.startswith(os.path.abspath(arguments.download_dir))
            return source if downloaded and os.path.exists(os.path.join(source, "config.json")) else model
        if source != model:
            logger.info("streamerd: %s is read from %s", model, source)
        return fetch_engine_files(source, _cache(), options, configured)

    model, tokenizer, draft = arguments.model, arguments.tokenizer, arguments.speculative_config
    arguments.model = local(model, arguments.revision)
    if arguments.model != model:
        arguments.served_model_name = arguments.served_model_name or model
    if tokenizer and tokenizer == model and arguments.tokenizer_revision in (None, arguments.revision):
        arguments.tokenizer = arguments.model
    elif tokenizer and not in_hub_cache(tokenizer, arguments.tokenizer_revision):
        arguments.tokenizer = local(tokenizer, arguments.tokenizer_revision, configured=False)
    if isinstance(draft, dict) and draft.get("model") and not draft.get("draft_load_config"):
        arguments.speculative_config = {**draft, "model": local(draft["model"], draft.get("revision"))}


def _with_names_that_are_resolved_later(get_model_path: Any) -> Any:
    """With HF_HUB_OFFLINE, vLLM looks for each model in its cache before it knows the load format."""

    @functools.wraps(get_model_path)
    def deferring(model: Any, revision: str | None = None) -> Any:
        name = str(model)
        fetched = not in_hub_cache(name, revision) and fetched_repository(name, revision, _cache())
        return model if fetched or name.startswith(HUB) else get_model_path(model, revision)

    return deferring


def _places(model: nn.Module) -> list[tuple[torch.Tensor, int]]:
    """Parameters and buffers, with the memory of each."""
    return [(t, t.data_ptr()) for t in itertools.chain(model.parameters(), model.buffers())]


def _is_changed(model: nn.Module, before: list[tuple[torch.Tensor, int]]) -> bool:
    """Whether a parameter or its memory is another one now."""
    now = _places(model)
    return len(now) != len(before) or any(a is not b or p != q for (a, p), (b, q) in zip(now, before, strict=True))


def _bytes_on_gpu(client: Client, names: Iterable[str]) -> int:
    """What these models take of this process's GPU."""
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    devices = {
        d["device"] for d in client.call("status")["devices"] if d.get("uuid", "").removeprefix("GPU-") == uuid
    }
    total = 0
    for name in names:
        for model in client.call("show", model=name)["models"]:
            total += sum(d["bytes"] for d in model["devices"] if d["device"] in devices)
    return total


class _Loader(BaseModelLoader):
    """What both loaders share: options, sources, the fallback, and the account of the time."""

    options: Options

    def __init__(self, load_config: LoadConfig):
        self.options = Options.parse(load_config.model_loader_extra_config, load_config.load_format)
        self._configured = load_config.model_loader_extra_config
        self._own_seconds = 0.0
        self._tensors = 0
        self._bytes = 0
        self._shared: Aliases | None = None
        # DefaultModelLoader checks the extra configuration against its own keys.
        super().__init__(dataclasses.replace(load_config, load_format="safetensors", model_loader_extra_config={}))

    def get_external_weight_memory(self, vllm_config: VllmConfig) -> int:
        """Bytes of this model that the daemon holds on this process's GPU; 0 where its weights are resident elsewhere.

        The model is made resident first. Where a published model of it exists, that is what the engine maps.
        """
        name = self._published_name(vllm_config)
        if name is None and not self._device().startswith("cuda"):
            return 0
        try:
            names = [name] if name is not None else self._made_resident(vllm_config.model_config)
            return _bytes_on_gpu(connect(self.options.socket, self.options.autostart), names)
        except Exception as error:
            if not self.options.fallback:
                raise
            logger.warning("streamerd: No memory of the daemon is counted: %s", error)
            return 0

    def _published_name(self, vllm_config: VllmConfig) -> str | None:
        return None

    def _residents(self, model_config: ModelConfig) -> Iterator[streamerd.Model[Any]]:
        """Opens the models of the daemon that this engine loads, one after the other."""
        raise NotImplementedError

    def _made_resident(self, model_config: ModelConfig) -> list[str]:
        names = []
        for resident in self._residents(model_config):
            with resident:
                resident.wait()
                names.append(resident.name)
        return names

    def download_model(self, model_config: ModelConfig) -> None:
        try:
            self._made_resident(model_config)
        except Exception as error:
            if not self._falls_back(model_config):
                raise
            self._logged_fallback(error).download_model(self._as_named(model_config))

    def _device(self) -> str:
        """Where the weights are to be resident: as configured, else this engine's GPU for aliases, else the host."""
        if self.options.device is not None:
            return self.options.device
        if self.options.alias is True and current_platform.is_cuda_alike():
            return f"cuda:{torch.cuda.current_device()}"
        return "cpu"

    def _open(self, source: str, **more: Any) -> streamerd.Model[Any]:
        log = LoadLog(source, logger, self.options.timeout)
        if is_offline() and source.startswith(HUB):
            source = resident_model(source, self.options)
            more["name"] = None
        return self.options.open(source, **{"device": self._device(), "progress": log, **more})

    def _main(self, model_config: ModelConfig) -> Options:
        """The options for this model: `name` and `digest` apply to the target, not to a draft."""
        if model_config.runner != "draft":
            return self.options
        speculative = get_current_vllm_config().speculative_config
        own = speculative.draft_load_config if speculative is not None else None
        if own is not None and own.model_loader_extra_config == self._configured:
            return self.options
        return self._unnamed()

    def _unnamed(self) -> Options:
        return dataclasses.replace(self.options, name=None, digest=None)

    def _source(self, model_config: ModelConfig) -> str:
        """A path, org/name[@rev] or a URL for the daemon."""
        model = source_of(model_config.model_weights or model_config.model, _cache())
        return locate(model, model_config.revision, self.load_config.download_dir)

    def _load(self, model: nn.Module, model_config: ModelConfig) -> None:
        raise NotImplementedError

    def load_weights(self, model: nn.Module, model_config: ModelConfig) -> None:
        began = time.perf_counter()
        self._own_seconds, self._tensors, self._bytes = 0.0, 0, 0
        before = _places(model)
        try:
            self._load(model, model_config)
        except MissingWeights:
            raise  # the engine's own loader would not find them either
        except Exception as error:
            if not self._falls_back(model_config):
                raise
            if _is_changed(model, before):
                logger.error("streamerd: No fallback: parameters of the model were replaced already")
                raise
            self._shared = None
            self._logged_fallback(error).load_weights(model, self._as_named(model_config))
            return
        own = self._own_seconds
        logger.info(
            "streamerd: %d tensors, %s: %.3f s waiting for the daemon, %.3f s copying by vLLM",
            self._tensors, size_text(self._bytes), own, time.perf_counter() - began - own,
        )  # fmt: skip

    def _restore_artifacts(self, vllm_config: VllmConfig, model_config: ModelConfig) -> None:
        """Before anything is compiled; a draft's code is among the target's."""
        if model_config.runner == "draft" or lacks(ARTIFACTS) is not None:
            return
        from streamerd._engines import vllm_artifacts

        vllm_artifacts.begin(self.options, vllm_config, self._source(model_config), logger)

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "") -> nn.Module:
        self._restore_artifacts(vllm_config, model_config)
        model: nn.Module = super().load_model(vllm_config=vllm_config, model_config=model_config, prefix=prefix)
        return self._finished(model, model_config)

    def _finished(self, model: nn.Module, model_config: ModelConfig, published: bool = False) -> nn.Module:
        _loaded_from[model] = model_config.model
        shared, self._shared = self._shared, None  # it refers to parameters
        if shared is not None:
            shared.report(published)
        return model

    def _falls_back(self, model_config: ModelConfig) -> bool:
        """Whether the engine's own loader may replace this one: it does not read from stores."""
        return self.options.fallback and not is_store(self._source(model_config))

    def _fallback_loader(self) -> BaseModelLoader:
        raise NotImplementedError

    def _logged_fallback(self, error: Exception) -> BaseModelLoader:
        loader = self._fallback_loader()
        logger.warning("streamerd: Falling back to load format %s: %s", loader.load_config.load_format, error)
        return loader

    def _as_named(self, model_config: ModelConfig) -> ModelConfig:
        """The configuration with the name on the Hub in place of the directory that stands for it."""
        source = source_of(model_config.model, _cache())
        if not source.startswith(HUB):
            return model_config
        named = copy.copy(model_config)
        named.model, _, revision = source.removeprefix(HUB).partition("@")
        named.revision = revision or None
        return named

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

    def _aliases(self, model: nn.Module, model_config: ModelConfig) -> Aliases | None:
        if not self.options.alias or (self.options.alias == AUTO and current_platform.is_cuda_alike()):
            return None
        return Aliases(model, model_config, logger, automatic=self.options.alias == AUTO)


class StreamerdLoader(_Loader, DefaultModelLoader):
    """Load format ``streamerd``: checkpoints as they are published."""

    def __init__(self, load_config: LoadConfig):
        super().__init__(load_config)
        if self.options.pattern is not None:
            raise ValueError("model_loader_extra_config: pattern belongs to load format streamerd_sharded")
        self._loads = False  # the first time, and not again
        self.counter_before_loading_weights = 0.0

    def _residents(self, model_config: ModelConfig) -> Iterator[streamerd.Model[Any]]:
        with ExitStack() as stack:
            yield from self._opened(stack, self._primary(model_config), self._main(model_config))

    def _published_name(self, vllm_config: VllmConfig) -> str | None:
        if not self._publishes():
            return None
        from streamerd._engines import vllm_publish

        return vllm_publish.resident_name(self.options, vllm_config, self._source(vllm_config.model_config))

    def _publishes(self) -> bool:
        """Whether `publish` is configured, and this vLLM has what that uses."""
        if not self.options.publish:
            return False
        missing = lacks(PUBLISH)
        if missing is not None:
            logger.warning("streamerd: publish: loading as without: this vLLM has no %s", missing)
        return missing is None

    def _fallback_loader(self) -> DefaultModelLoader:
        return DefaultModelLoader(
            dataclasses.replace(self.load_config, load_format="auto", model_loader_extra_config={})
        )

    def load_model(self, vllm_config: VllmConfig, model_config: ModelConfig, prefix: str = "") -> nn.Module:
        if not self._publishes():
            return super().load_model(vllm_config, model_config, prefix)
        self._restore_artifacts(vllm_config, model_config)
        from streamerd._engines import vllm_publish

        load: Callable[[], nn.Module] = functools.partial(
            BaseModelLoader.load_model, self, vllm_config=vllm_config, model_config=model_config, prefix=prefix
        )
        try:
            sources = self._sources(self._primary(model_config))
        except streamerd.Error:
            sources = [self._source(model_config)]  # load() reports it, or the engine's own loader
        model: nn.Module = vllm_publish.load(self.options, logger, vllm_config, model_config, prefix, sources, load)
        return self._finished(model, model_config, published=True)

    def _load(self, model: nn.Module, model_config: ModelConfig) -> None:
        if model_config.quantization == "torchao":
            raise RuntimeError("load format streamerd does not support torchao checkpoints: use load format auto")
        loaded = Loaded(model, model_config)
        self._shared = self._aliases(model, model_config)
        self._loads = True
        try:
            with self._shared or nullcontext(), loaded:
                DefaultModelLoader.load_weights(self, model, model_config)
        finally:
            self._loads = False
        loaded.require_all(logger)

    def begin(self, model_config: ModelConfig) -> None:
        """Begins to load into host memory, which every process of the engine uses."""
        if self.options.device is None and self.options.alias is True and current_platform.is_cuda_alike():
            return
        sources = self._sources(self._primary(model_config))
        if is_offline() and sources[0].startswith(HUB):
            return
        for source, name in self._named(sources, self.options):
            self.options.begin(source, name=name)

    # ---- parts of a model ----

    def _primary(self, model_config: ModelConfig, model: nn.Module | None = None) -> DefaultModelLoader.Source:
        return DefaultModelLoader.Source(
            model_config.model_weights or model_config.model,
            model_config.revision,
            fall_back_to_pt=getattr(model, "fall_back_to_pt_during_load", True),
            allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
        )

    def get_all_weights(
        self, model_config: ModelConfig, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """The weights of all parts. `name` and `digest` apply to the model that the engine was started with.

        A reload asks for them once the model runs: what can fail does so before the engine has changed anything.
        """
        began = time.perf_counter()
        configured = _loaded_from.get(model, model_config.model) == model_config.model
        options = self._main(model_config) if configured else self._unnamed()
        primary = self._primary(model_config, model)
        with ExitStack() as stack:
            residents = self._opened(stack, primary, options)
            if not self._loads:
                for resident in residents:
                    resident.wait()
            self._own_seconds += time.perf_counter() - began
            return self._parts(stack.pop_all(), residents, primary, model)

    def _parts(
        self, stack: ExitStack, residents: list[streamerd.Model[Any]], primary: DefaultModelLoader.Source, model: nn.Module
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        if self.counter_before_loading_weights == 0.0:
            self.counter_before_loading_weights = time.perf_counter()
        with stack:
            yield from self._views(residents, primary.prefix)
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        """The weights of a part that is stored elsewhere."""
        with ExitStack() as stack:
            yield from self._views(self._opened(stack, source, self._unnamed()), source.prefix)

    def _opened(
        self, stack: ExitStack, source: DefaultModelLoader.Source, options: Options
    ) -> list[streamerd.Model[Any]]:
        """Opens the models of the daemon that a part consists of; all are loaded at once."""
        sources = self._sources(source)
        if len(sources) > 1 and options.digest is not None:
            raise ValueError(f"digest: {sources[0]} and {len(sources) - 1} others are models of their own")
        return [
            stack.enter_context(self._open(s, name=name, digest=options.digest)) for s, name in self._named(sources, options)
        ]

    def _named(self, sources: list[str], options: Options) -> list[tuple[str, str | None]]:
        """The sources with their models' names."""
        parts = len(sources) > 1 and options.name is not None
        return [(s, part_name(options.name or "", s) if parts else options.name) for s in sources]

    def _sources(self, source: DefaultModelLoader.Source) -> list[str]:
        """What the daemon reads of a part: the files that vLLM's own loader would read."""
        where = self._place(source)
        if is_offline() and where.startswith(HUB):
            return [where]
        own = self._fallback_loader()

        def choose(folder: str) -> list[str]:
            patterns = source.allow_patterns_overrides
            files: list[str] = own._prepare_weights(folder, None, None, source.fall_back_to_pt, patterns)[1]
            return sorted(files, key=natural)

        return sources_of_weights(where, choose, self.options)

    def _place(self, source: DefaultModelLoader.Source) -> str:
        path = source_of(source.model_or_path, _cache())
        path = locate(path, source.revision, self.load_config.download_dir)
        return path if source.subfolder is None else os.path.join(path, source.subfolder)

    def _views(self, residents: list[streamerd.Model[Any]], prefix: str) -> Iterator[tuple[str, torch.Tensor]]:
        shared = self._shared if self._loads else None
        for resident in residents:
            if shared is not None:
                shared.renew()
            for name, tensor in self._feed(resident.stream()):
                if shared is not None:
                    shared.offer(tensor)
                yield prefix + name, tensor


class StreamerdShardedLoader(_Loader):
    """Load format ``streamerd_sharded``: the state of each rank as vLLM saved it (``save_sharded_state``).

    Each file of a rank is one model of the daemon, named NAME/FILE if the configuration has a name.
    """

    def __init__(self, load_config: LoadConfig):
        super().__init__(load_config)
        if self.options.publish:
            raise ValueError("model_loader_extra_config: publish belongs to load format streamerd")

    def _fallback_loader(self) -> BaseModelLoader:
        extra = {} if self.options.pattern is None else {"pattern": self.options.pattern}
        return ShardedStateLoader(
            dataclasses.replace(self.load_config, load_format="sharded_state", model_loader_extra_config=extra)
        )

    def _residents(self, model_config: ModelConfig) -> Iterator[streamerd.Model[Any]]:
        source = self._source(model_config)
        if source.startswith(HUB):
            raise ValueError(f"{source}: load format streamerd_sharded reads a folder or a store: download the model first")
        options = self._main(model_config)
        if options.digest is not None:
            raise ValueError("digest: each file of a saved state has its own; use load format streamerd")
        for i, file in enumerate(self._files(source)):
            try:
                yield self._open(file, name=part_name(options.name, file) if options.name else None)
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
        aliases = self._shared = self._aliases(model, model_config)
        missing = ShardedStateLoader._filter_subtensors(model.state_dict())
        parameters = dict(model.named_parameters(remove_duplicate=False))
        began = time.perf_counter()
        for resident in self._residents(model_config):
            self._own_seconds += time.perf_counter() - began
            if aliases is not None:
                aliases.renew()
            with resident:
                for name, tensor in self._feed(resident.stream()):
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
            raise MissingWeights(f"the checkpoint lacks {', '.join(sorted(missing))}")


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
