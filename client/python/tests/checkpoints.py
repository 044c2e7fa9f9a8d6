# SPDX-License-Identifier: Apache-2.0
"""safetensors files with contents that can be recomputed, written without a library."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterable
from math import prod
from pathlib import Path

BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32, "I64": 64, "U64": 64, "F64": 64,
    "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

# What neither torch nor safetensors can represent.
UNREPRESENTED = ("F6_E2M3", "F6_E3M2")


def content(name: str, dtype: str, size: int) -> bytes:
    """Bytes that depend on the name. For BOOL they are 0 and 1; as a float none is NaN."""
    data = random.Random(name).randbytes(size)
    return bytes(b & 1 for b in data) if dtype == "BOOL" else bytes(b & 0x3F for b in data)


def write(
    path: Path, tensors: Iterable[tuple[str, str, list[int]]], metadata: dict[str, str] | None = None
) -> dict[str, bytes]:
    """Writes (name, dtype, shape) in this order, and returns the bytes of each."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    contents = {}
    end = 0
    for name, dtype, shape in tensors:
        size = prod(shape) * BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        contents[name] = content(name, dtype, size)
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(contents.values()))
    return contents


def every_dtype(shape: list[int]) -> list[tuple[str, str, list[int]]]:
    """One tensor of each dtype, widest first, so that all are aligned."""
    widest_first = sorted(BITS, key=lambda dtype: -BITS[dtype])
    return [(f"tensor.{dtype}", dtype, shape) for dtype in widest_first]


def small(count: int = 4) -> list[tuple[str, str, list[int]]]:
    return [(f"layer.{i}.weight", "F32", [4, 8]) for i in range(count)]
