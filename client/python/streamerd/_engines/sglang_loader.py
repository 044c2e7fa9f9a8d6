# SPDX-License-Identifier: Apache-2.0
"""The loader behind SGLang's load format ``streamerd``.

All that depends on SGLang's internals is in this file, and listed in `streamerd.sglang.USES`: DefaultModelLoader loads
the weights, fed through its _get_weights_iterator().
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator
from contextlib import ExitStack
from typing import Any

import torch
from sglang.srt.configs.load_config import LoadConfig, LoadFormat
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader.loader import DefaultModelLoader
from sglang.srt.model_loader.weight_utils import maybe_add_mtp_safetensors

import streamerd
from streamerd._engines.options import AUTO, LoadLog, Options
from streamerd._engines.sources import INDEX, locate, part_name, sources_of_weights

logger = logging.getLogger(__name__)

NOT_HERE = ("alias", "pattern", "publish", "fallback", "artifacts")


class StreamerdLoader(DefaultModelLoader):
    """Feeds SGLang's own weight loading from resident memory."""

    def __init__(self, load_config: LoadConfig):
        self.options = Options.parse(load_config.model_loader_extra_config, "streamerd")
        for option in NOT_HERE:
            if getattr(self.options, option) not in (None, False, AUTO):
                raise ValueError(f"model_loader_extra_config: {option} is not supported with SGLang")
        # The base class checks the extra configuration against its own keys.
        plain = {"load_format": LoadFormat.SAFETENSORS, "model_loader_extra_config": {}}
        super().__init__(dataclasses.replace(load_config, **plain))

    def download_model(self, model_config: ModelConfig) -> None:
        source = DefaultModelLoader.Source(model_config.model_path, model_config.revision, model_config=model_config)
        with ExitStack() as stack:
            for resident in self._opened(stack, source):
                resident.wait()

    def _opened(self, stack: ExitStack, source: DefaultModelLoader.Source) -> list[streamerd.Model[Any]]:
        """Opens the models of the daemon that a part of the engine's model consists of.

        Name and digest apply to the target: not to a draft, nor to a source beside the main one (no configuration).
        """
        config = source.model_config
        is_main = config is not None and not config.is_draft_model
        where = locate(source.model_or_path, source.revision, self.load_config.download_dir)
        own = DefaultModelLoader(
            dataclasses.replace(self.load_config, load_format=LoadFormat.AUTO, model_loader_extra_config={})
        )

        def choose(folder: str) -> list[str]:
            _, files, safetensors = own._prepare_weights(
                folder, None, source.fall_back_to_pt, source.allow_patterns_overrides
            )
            if safetensors and config is not None:
                files = maybe_add_mtp_safetensors(files, folder, INDEX, config.hf_config)
            return list(files)

        sources = sources_of_weights(where, choose, self.options)
        if len(sources) > 1 and is_main and self.options.digest is not None:
            raise ValueError(f"digest: {sources[0]} and {len(sources) - 1} others are models of their own")
        residents = []
        for s in sources:
            main: dict[str, Any] = {} if is_main else {"name": None, "digest": None}
            if len(sources) > 1 and is_main and self.options.name is not None:
                main["name"] = part_name(self.options.name, s)
            log = LoadLog(s, logger, self.options.timeout)
            residents.append(stack.enter_context(self.options.open(s, progress=log, **main)))
        return residents

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source, **prefetch: Any
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        index = self.load_config.draft_model_idx
        if index is None:
            return self._weights(source, source.prefix)
        # Of a checkpoint with several layers for drafts, each draft has one.
        weights: Generator[tuple[str, torch.Tensor], None, None] = self._filter_mtp_weights(
            self._weights(source, ""), source.prefix, index
        )
        return weights

    def _weights(
        self, source: DefaultModelLoader.Source, prefix: str
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        with ExitStack() as stack:
            for resident in self._opened(stack, source):
                for name, tensor in resident.stream():
                    yield prefix + name, tensor
