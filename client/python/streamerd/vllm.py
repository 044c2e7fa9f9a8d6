# SPDX-License-Identifier: Apache-2.0
"""vLLM load formats ``streamerd`` and ``streamerd_sharded``, the weight transfer backend ``streamerd``, and a resolver of
LoRA adapters, where $STREAMERD_ADAPTERS says what it may resolve.

vLLM calls `register` in each of its processes (entry point group ``vllm.general_plugins``):

    vllm serve Qwen/Qwen3-8B --load-format streamerd --weight-transfer-config '{"backend": "streamerd"}'

A trainer imports its side from here, which registers it:

    from streamerd.vllm import StreamerdTrainerInitInfo
    trainer = WeightTransferTrainerFactory.trainer_init(StreamerdTrainerInitInfo("policy", rank=0), client=..., source=...)

What depends on vLLM's internals is in `streamerd._engines.vllm_loaders`, and listed in
`streamerd._engines.vllm_interface`. Where the installed vLLM lacks something that a format uses, the format is
registered all the same, and loading by it raises an error that names what is missing.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

FORMATS = ("streamerd", "streamerd_sharded")
BACKEND = "streamerd"

_ENGINE = "StreamerdWeightTransferEngine"
_TRAINER = "StreamerdTrainerWeightTransferEngine"
_TRANSFER = (_ENGINE, _TRAINER, "StreamerdTrainerInitInfo")

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
    _register_transfer()
    _register_adapters()


def _register_transfer() -> None:
    """Registers both sides of the weight transfer, where this vLLM has it; they are imported when they are used."""
    try:
        from vllm.distributed.weight_transfer import factory
    except ImportError:
        return
    for name, side in (("WeightTransferEngineFactory", _ENGINE), ("WeightTransferTrainerFactory", _TRAINER)):
        found: Any = getattr(factory, name, None)
        if found is not None and BACKEND not in found._registry:
            found.register_engine(BACKEND, __name__, side)


def _register_adapters() -> None:
    """Registers the resolver of adapters where an operator has named their sources. Names come with requests."""
    sources, bases = (_words(variable) for variable in ("STREAMERD_ADAPTERS", "STREAMERD_ADAPTER_BASES"))
    if not sources:
        return
    import vllm

    from ._engines.vllm_interface import adapters_refusal

    reason = adapters_refusal(vllm.__version__)
    if reason is not None:
        raise RuntimeError(reason)
    importlib.import_module("streamerd._engines.vllm_adapters").register(sources, bases)


def _words(variable: str) -> list[str]:
    return [word for text in os.environ.get(variable, "").split(",") if (word := text.strip())]


def __getattr__(name: str) -> Any:
    """The sides of the weight transfer; RuntimeError where this vLLM lacks what they use."""
    if name not in _TRANSFER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import vllm

    from ._engines.vllm_interface import transfer_refusal

    reason = transfer_refusal(vllm.__version__)
    if reason is not None:
        raise RuntimeError(reason)
    _register_transfer()
    return getattr(importlib.import_module("streamerd._engines.vllm_transfer"), name)


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
