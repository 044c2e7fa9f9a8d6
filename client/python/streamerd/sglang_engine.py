# SPDX-License-Identifier: Apache-2.0
"""The loader behind SGLang's load format ``streamerd``.

All that depends on SGLang's internals is in this file, and listed in `streamerd.sglang.USES`: DefaultModelLoader loads
the weights, fed through its _get_weights_iterator().
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator
from typing import Any

import torch
from sglang.srt.configs.load_config import LoadConfig, LoadFormat
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader.loader import DefaultModelLoader

import streamerd
from streamerd.engine_options import AUTO, LoadLog, Options
from streamerd.engine_sources import locate

logger = logging.getLogger(__name__)

NOT_HERE = ("alias", "pattern", "publish", "fallback")


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
        with self._open(model_config.model_path, model_config.revision, model_config) as resident:
            resident.wait()

    def _open(self, model: str, revision: str | None, model_config: ModelConfig | None) -> streamerd.Model[Any]:
        """Name and digest apply to the target: not to a draft, nor to a source beside the main one (no configuration)."""
        is_main = model_config is not None and not model_config.is_draft_model
        main: dict[str, Any] = {} if is_main else {"name": None, "digest": None}
        source = locate(model, revision, self.load_config.download_dir)
        return self.options.open(source, progress=LoadLog(source, logger, self.options.timeout), **main)

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source, **prefetch: Any
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        if source.allow_patterns_overrides is not None:
            raise RuntimeError(
                f"the files of this model are chosen by name ({', '.join(source.allow_patterns_overrides)}), which load "
                "format streamerd does not support: use load format auto"
            )
        with self._open(source.model_or_path, source.revision, source.model_config) as resident:
            for name, tensor in resident:
                yield source.prefix + name, tensor
