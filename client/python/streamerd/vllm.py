# SPDX-License-Identifier: Apache-2.0
"""vLLM load formats ``streamerd`` and ``streamerd_sharded``.

vLLM calls `register` in each of its processes (entry point group ``vllm.general_plugins``):

    vllm serve Qwen/Qwen3-8B --load-format streamerd

What depends on vLLM's internals is in `streamerd.vllm_engine`, which lists the versions it was tested with. With
another version both formats are registered all the same, and loading by them raises an error that says so.
"""

from __future__ import annotations

import importlib
import logging

FORMATS = ("streamerd", "streamerd_sharded")

_registered = False


def register() -> None:
    """Registers both load formats with vLLM. May be called any number of times."""
    global _registered
    if _registered:
        return
    _registered = True
    try:
        engine = importlib.import_module("streamerd.vllm_engine")
    except ImportError as e:
        _register_refusal(str(e))
    else:
        engine.register(FORMATS)


def _register_refusal(reason: str) -> None:
    try:
        from vllm.model_executor.model_loader import register_model_loader
        from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    except ImportError:
        logging.getLogger("streamerd").error("%s", reason)
        return

    class Refusal(BaseModelLoader):
        def __init__(self, load_config: object) -> None:
            raise RuntimeError(reason)

        def download_model(self, model_config: object) -> None: ...

        def load_weights(self, model: object, model_config: object) -> None: ...

    for load_format in FORMATS:
        register_model_loader(load_format)(Refusal)
