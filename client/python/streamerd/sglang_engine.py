# SPDX-License-Identifier: Apache-2.0
"""The loader behind SGLang's load format ``streamerd``.

All that depends on SGLang's internals is in this file. Checked against SGLang 0.5.23 (`streamerd.sglang.TESTED`):
DefaultModelLoader loads the weights, fed through its _get_weights_iterator().
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Generator
from typing import Any

import torch
from sglang.srt.configs.load_config import LoadConfig, LoadFormat
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.model_loader.loader import DefaultModelLoader

from streamerd.engine_options import Options

NOT_HERE = ("alias", "pattern", "fallback")


class StreamerdLoader(DefaultModelLoader):
    """Feeds SGLang's own weight loading from resident memory."""

    def __init__(self, load_config: LoadConfig):
        self.options = Options.parse(load_config.model_loader_extra_config, "streamerd")
        for option in NOT_HERE:
            if getattr(self.options, option):
                raise ValueError(f"model_loader_extra_config: {option} is not supported with SGLang")
        # The base class checks the extra configuration against its own keys.
        plain = {"load_format": LoadFormat.SAFETENSORS, "model_loader_extra_config": {}}
        super().__init__(dataclasses.replace(load_config, **plain))

    def download_model(self, model_config: ModelConfig) -> None:
        with self.options.open(_source(model_config.model_path, model_config.revision)) as resident:
            resident.wait()

    def _get_weights_iterator(
        self, source: DefaultModelLoader.Source, **prefetch: Any
    ) -> Generator[tuple[str, torch.Tensor], None, None]:
        if source.allow_patterns_overrides is not None:
            raise RuntimeError(
                f"the files of this model are chosen by name ({', '.join(source.allow_patterns_overrides)}), which load "
                "format streamerd does not support: use load format auto"
            )
        # Sources beside the main one have no configuration; name and digest belong to the main one.
        main: dict[str, Any] = {} if source.model_config is not None else {"name": None, "digest": None}
        with self.options.open(_source(source.model_or_path, source.revision), **main) as resident:
            for name, tensor in resident:
                yield source.prefix + name, tensor


def _source(model: str, revision: str | None) -> str:
    return model if revision is None or os.path.exists(model) else f"{model}@{revision}"
