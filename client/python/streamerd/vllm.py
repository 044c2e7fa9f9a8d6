# SPDX-License-Identifier: Apache-2.0
"""vLLM load formats ``streamerd`` and ``streamerd_sharded``.

vLLM calls `register` in each of its processes (entry point group ``vllm.general_plugins``):

    vllm serve Qwen/Qwen3-8B --load-format streamerd

What depends on vLLM's internals is in `streamerd._engines.vllm_loaders`, and listed in
`streamerd._engines.vllm_interface`. Where the installed vLLM lacks something that a format uses, the format is
registered all the same, and loading by it raises an error that names what is missing.
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
    import vllm

    from ._engines.vllm_interface import refusal

    refusals = {name: reason for name in FORMATS if (reason := refusal(vllm.__version__, name)) is not None}
    for load_format, reason in refusals.items():
        _register_refusal(load_format, reason)
    usable = tuple(name for name in FORMATS if name not in refusals)
    if usable:
        importlib.import_module("streamerd._engines.vllm_loaders").register(usable)


def _register_refusal(load_format: str, reason: str) -> None:
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

    register_model_loader(load_format)(Refusal)
