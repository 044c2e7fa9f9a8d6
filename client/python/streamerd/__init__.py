# SPDX-License-Identifier: Apache-2.0
"""Model weights that streamerd loads once and every process maps.

open() loads a model, or finds it resident, and gives its tensors as they arrive:

    with streamerd.open("Qwen/Qwen3-8B", device="cpu") as model:
        for name, tensor in model.stream():
            ...
        model["lm_head.weight"]  # a mapping of names to tensors

Modules are imported when a name is first used.
"""

TYPE_CHECKING = False  # typing's, whose import takes longer than this module's
if TYPE_CHECKING:
    from ._aio import AsyncModel, aopen
    from ._files import publish_files, restore_files
    from ._model import Model, Slice, TensorInfo
    from ._modules import load_into
    from ._open import Options, open
    from ._publish import publish
    from ._put import put
    from ._requests import fetch, fetch_list, status
    from ._runai import ObjectStorageModel, SafetensorsStreamer, list_safetensors, pull_files
    from ._safetensors import load_file, safe_open
    from ._use import use
    from ._watch import awatch, watch
    from .errors import (
        BusyError,
        CancelledError,
        CorruptError,
        DeniedError,
        DigestError,
        Error,
        FailedError,
        ForkedError,
        InvalidError,
        LimitError,
        LostError,
        NotFoundError,
        OutOfMemoryError,
        ProtocolError,
        RevokedError,
        SystemCallError,
        TensorNotFoundError,
        TimedOutError,
        UnreachableError,
        UnsupportedError,
    )

__version__ = "0.1.0"

# The names of the package, and the modules that have them.
_MODULES = {
    "AsyncModel": "_aio",
    "BusyError": "errors",
    "CancelledError": "errors",
    "CorruptError": "errors",
    "DeniedError": "errors",
    "DigestError": "errors",
    "Error": "errors",
    "FailedError": "errors",
    "ForkedError": "errors",
    "InvalidError": "errors",
    "LimitError": "errors",
    "LostError": "errors",
    "Model": "_model",
    "NotFoundError": "errors",
    "ObjectStorageModel": "_runai",
    "Options": "_open",
    "OutOfMemoryError": "errors",
    "ProtocolError": "errors",
    "RevokedError": "errors",
    "SafetensorsStreamer": "_runai",
    "Slice": "_model",
    "SystemCallError": "errors",
    "TensorInfo": "_model",
    "TensorNotFoundError": "errors",
    "TimedOutError": "errors",
    "UnreachableError": "errors",
    "UnsupportedError": "errors",
    "aopen": "_aio",
    "awatch": "_watch",
    "fetch": "_requests",
    "fetch_list": "_requests",
    "list_safetensors": "_runai",
    "load_file": "_safetensors",
    "load_into": "_modules",
    "open": "_open",
    "publish": "_publish",
    "publish_files": "_files",
    "pull_files": "_runai",
    "put": "_put",
    "restore_files": "_files",
    "safe_open": "_safetensors",
    "status": "_requests",
    "use": "_use",
    "watch": "_watch",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES and name != "errors":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f".{_MODULES.get(name, name)}", __name__)
    value: object = module if name == "errors" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(globals().keys() | _MODULES.keys())


__all__ = [
    "AsyncModel",
    "BusyError",
    "CancelledError",
    "CorruptError",
    "DeniedError",
    "DigestError",
    "Error",
    "FailedError",
    "ForkedError",
    "InvalidError",
    "LimitError",
    "LostError",
    "Model",
    "NotFoundError",
    "ObjectStorageModel",
    "Options",
    "OutOfMemoryError",
    "ProtocolError",
    "RevokedError",
    "SafetensorsStreamer",
    "Slice",
    "SystemCallError",
    "TensorInfo",
    "TensorNotFoundError",
    "TimedOutError",
    "UnreachableError",
    "UnsupportedError",
    "aopen",
    "awatch",
    "fetch",
    "fetch_list",
    "list_safetensors",
    "load_file",
    "load_into",
    "open",
    "publish",
    "publish_files",
    "pull_files",
    "put",
    "restore_files",
    "safe_open",
    "status",
    "use",
    "watch",
]
