# SPDX-License-Identifier: Apache-2.0
"""What vLLM has found out about the classes of a model, for the next engine: a part of `artifacts`.

vLLM examines each class in a process of its own, which imports vllm and torch, and keeps the result in a folder beside that of
compiled code. It asks for it while it makes the model's configuration, before any loader exists. A result has a hash of the class's
source, which vLLM compares.
"""

from __future__ import annotations

from collections.abc import Callable
from logging import Logger

import vllm
from vllm.config import VllmConfig
from vllm.model_executor.models.registry import ModelRegistry, _LazyRegisteredModel

import streamerd
from streamerd._engines.options import Options
from streamerd._engines.vllm_sets import FileSet, compiles, warn
from streamerd._folder import Folder


def with_modelinfos(options: Options, source: str, logger: Logger, create: Callable[[], VllmConfig]) -> VllmConfig:
    """Makes a configuration with what another engine of this source has found out, or publishes what this one has."""
    if options.artifacts is False:
        return create()
    path = str(_LazyRegisteredModel._get_cache_dir())
    found = FileSet(options, source, "modelinfos", {"engine": f"vllm {vllm.__version__}"}, path, logger)
    exists = True
    try:
        exists = found.restore()
    except Exception as error:
        exists = not isinstance(error, streamerd.NotFoundError)  # what else fails would fail again
        warn(options, logger, "not restored", error)
    config = create()
    if not exists and compiles(config):
        try:
            names = _names(config)
            with Folder(path) as folder:
                files = [file for file in folder.files() if file.name in names]
                if files:
                    found.publish(folder, files)
        except Exception as error:
            warn(options, logger, "not published", error)
    return config


def _names(config: VllmConfig) -> set[str]:
    """The files about this model and its draft; none about a class that a plug-in has imported already."""
    speculative = config.speculative_config
    configs = [config.model_config, speculative.draft_model_config if speculative is not None else None]
    names = set()
    for model_config in filter(None, configs):
        registered = ModelRegistry.models.get(ModelRegistry._normalize_arch(model_config.architecture, model_config))
        if isinstance(registered, _LazyRegisteredModel):
            names.add(registered._get_cache_filename())
    return names
