# SPDX-License-Identifier: Apache-2.0
"""Random Llamas of a given size, as published checkpoints and as vLLM's saved state of each rank."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

SCALES = ("_k_scale", "_prob_scale", "_q_scale", "_v_scale")


@dataclass(frozen=True)
class Size:
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocabulary: int


SMALL = Size(4, 256, 704, 8, 4, 1024)  # 7 MB
LARGE = Size(22, 2048, 5632, 32, 4, 32000)  # 2.05 GiB, 201 tensors


def _weights(size: Size, device: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator(device).manual_seed(1)

    def random(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device=device) * 0.05).to(torch.bfloat16).cpu()

    def ones() -> torch.Tensor:
        return torch.ones(size.hidden, dtype=torch.bfloat16)

    kv = size.hidden // size.heads * size.kv_heads
    weights = {
        "model.embed_tokens.weight": random(size.vocabulary, size.hidden),
        "model.norm.weight": ones(),
        "lm_head.weight": random(size.vocabulary, size.hidden),
    }
    for i in range(size.layers):
        layer = {
            "self_attn.q_proj": random(size.hidden, size.hidden),
            "self_attn.k_proj": random(kv, size.hidden),
            "self_attn.v_proj": random(kv, size.hidden),
            "self_attn.o_proj": random(size.hidden, size.hidden),
            "mlp.gate_proj": random(size.intermediate, size.hidden),
            "mlp.up_proj": random(size.intermediate, size.hidden),
            "mlp.down_proj": random(size.hidden, size.intermediate),
            "input_layernorm": ones(),
            "post_attention_layernorm": ones(),
        }
        weights.update({f"model.layers.{i}.{name}.weight": tensor for name, tensor in layer.items()})
    return weights


def _merged(weights: dict[str, torch.Tensor], size: Size) -> dict[str, torch.Tensor]:
    """The state that one rank of vLLM saves: its own parameters, some of them merged, and the scales of attention."""
    state = dict(weights)
    for i in range(size.layers):
        layer = f"model.layers.{i}"
        for merged, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
            block = merged.partition(".")[0]
            names = [f"{layer}.{block}.{part}_proj.weight" for part in parts]
            state[f"{layer}.{merged}.weight"] = torch.cat([state.pop(name) for name in names])
        state.update({f"{layer}.self_attn.attn.{scale}": torch.tensor(1.0) for scale in SCALES})
    return state


def _config(size: Size) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": size.hidden,
        "intermediate_size": size.intermediate,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def _write(folder: Path, file: str, size: Size, tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(_config(size)))
    save_file(tensors, folder / file, metadata={"format": "pt"})


def write_checkpoint(folder: Path, size: Size, device: str = "cpu") -> None:
    """`device`: where torch makes the weights; they differ between kinds of device."""
    _write(folder, "model.safetensors", size, _weights(size, device))


def write(folder: Path, size: Size) -> None:
    """folder/checkpoint and folder/state, with the same weights. Nothing is written where both are complete."""
    if (folder / "complete").exists():
        return
    weights = _weights(size, "cpu")
    _write(folder / "checkpoint", "model.safetensors", size, weights)
    _write(folder / "state", "model-rank-0-part-0.safetensors", size, _merged(weights, size))
    (folder / "complete").touch()
