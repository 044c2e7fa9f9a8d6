# SPDX-License-Identifier: Apache-2.0
"""A safetensors file of what is resident."""

from __future__ import annotations

import ctypes
import json
from typing import Any, BinaryIO

from ._model import Model

SUFFIX = ".safetensors"


def _header(model: Model[Any], names: list[str], size: int | None) -> bytes:
    """With the tensors in their order; padded to the file's size, so that it is that of the original."""
    entries: dict[str, Any] = {"__metadata__": model.metadata} if model.has_metadata else {}
    end = 0
    for name in names:
        info = model.info(name)
        entries[name] = {"dtype": info.dtype, "shape": info.shape, "data_offsets": [end, end + info.nbytes]}
        end += info.nbytes
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    padded = max(len(text) + -len(text) % 8, 0 if size is None else size - end - 8)
    return padded.to_bytes(8, "little") + text.ljust(padded)


def write_file(model: Model[Any], f: BinaryIO, size: int | None = None) -> None:
    """Writes a model of the host device. `size`: of the original."""
    model.wait()
    names = model.names_by_offset()
    f.write(_header(model, names, size))
    for name in names:
        lease, tensor = model._struct(name)
        if tensor.bytes > 0:
            f.write((ctypes.c_ubyte * tensor.bytes).from_address(tensor.data))
        del lease  # until here: the memory is the lease's
