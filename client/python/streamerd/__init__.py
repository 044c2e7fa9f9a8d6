# SPDX-License-Identifier: Apache-2.0
"""Model weights that streamerd loads once and every process maps.

open() loads a model, or finds it resident, and gives its tensors as they arrive:

    with streamerd.open("Qwen/Qwen3-8B", device="cpu") as model:
        for name, tensor in model:
            ...
"""

from ._aio import AsyncModel, aopen
from ._model import Model, Slice, TensorInfo
from ._modules import load_into
from ._open import Options, open
from ._requests import fetch, fetch_list, status
from ._runai import SafetensorsStreamer
from ._safetensors import load_file, safe_open
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
    "load_file",
    "load_into",
    "open",
    "safe_open",
    "status",
]
