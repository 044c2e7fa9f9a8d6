# SPDX-License-Identifier: Apache-2.0
"""Model weights that streamerd loads once and every process maps.

open() loads a model, or finds it resident, and gives its tensors as they arrive:

    with streamerd.open("Qwen/Qwen3-8B", device="cpu") as model:
        for name, tensor in model:
            ...
"""

import importlib
from typing import TYPE_CHECKING

from ._model import Model, Slice, TensorInfo
from ._open import Options, open
from ._requests import fetch, fetch_list, status
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

if TYPE_CHECKING:
    from ._aio import AsyncModel, aopen
    from ._modules import load_into
    from ._publish import publish
    from ._runai import ObjectStorageModel, SafetensorsStreamer, list_safetensors, pull_files
    from ._safetensors import load_file, safe_open
    from ._use import use

__version__ = "0.1.0"

# Imported when they are first used.
_LATER = {
    "AsyncModel": "_aio",
    "ObjectStorageModel": "_runai",
    "SafetensorsStreamer": "_runai",
    "aopen": "_aio",
    "list_safetensors": "_runai",
    "load_file": "_safetensors",
    "load_into": "_modules",
    "publish": "_publish",
    "pull_files": "_runai",
    "safe_open": "_safetensors",
    "use": "_use",
}


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    globals()[name] = value
    return value

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
    "fetch",
    "fetch_list",
    "list_safetensors",
    "load_file",
    "load_into",
    "open",
    "publish",
    "pull_files",
    "safe_open",
    "status",
    "use",
]
