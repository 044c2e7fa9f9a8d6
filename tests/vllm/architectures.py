# SPDX-License-Identifier: Apache-2.0
"""Small random checkpoints of many architectures and quantisations, for engines on a CPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

_SIZE = {
    "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 1024,
    "max_position_embeddings": 512, "initializer_range": 0.05, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
_KV = {"num_key_value_heads": 4}
_HEADS = {**_KV, "head_dim": 32}
_TOKENIZER = {"skip_tokenizer_init": False}  # vLLM offers to score by embeddings, for which it needs one
_EXPERTS = {**_KV, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128}


class Architecture(NamedTuple):
    config: str  # classes of transformers
    model: str
    more: dict[str, Any] = {}
    engine: dict[str, Any] = {}  # options of the engine


def _causal(name: str, **more: Any) -> Architecture:
    return Architecture(f"{name}Config", f"{name}ForCausalLM", more)


ARCHITECTURES = {
    "Llama": _causal("Llama", **_KV),
    "Llama, tied": _causal("Llama", **_KV, tie_word_embeddings=True),
    "Mistral": _causal("Mistral", **_HEADS, sliding_window=64),
    "Mixtral": _causal("Mixtral", **_KV, num_local_experts=4),
    "Qwen2": _causal("Qwen2", **_KV, tie_word_embeddings=True),
    "Qwen2Moe": _causal("Qwen2Moe", **_EXPERTS, shared_expert_intermediate_size=128),
    "Qwen3": _causal("Qwen3", **_HEADS),
    "Qwen3Moe": _causal("Qwen3Moe", **_EXPERTS, head_dim=32),
    "Gemma": _causal("Gemma", **_HEADS),
    "Gemma2": _causal("Gemma2", **_HEADS, query_pre_attn_scalar=32),
    "Gemma3": Architecture("Gemma3TextConfig", "Gemma3ForCausalLM", {**_HEADS, "query_pre_attn_scalar": 32}),
    "Phi3": _causal("Phi3", **_KV),
    "GPTNeoX": _causal("GPTNeoX"),
    "GPT2": Architecture("GPT2Config", "GPT2LMHeadModel", {"n_embd": 256, "n_layer": 2, "n_head": 8, "n_positions": 512}),
    "GPTJ": _causal("GPTJ", n_embd=256, n_layer=2, n_head=8, n_positions=512, rotary_dim=16),
    "OPT": _causal("OPT", ffn_dim=512, word_embed_proj_dim=256),
    "Bloom": _causal("Bloom", n_layer=2, n_head=8),
    "Falcon": _causal("Falcon", new_decoder_architecture=True, num_kv_heads=4, bias=False, alibi=False),
    "StableLm": _causal("StableLm", **_KV),
    "Starcoder2": _causal("Starcoder2", **_KV),
    "Granite": _causal("Granite", **_KV),
    "GraniteMoe": _causal("GraniteMoe", **_KV, num_local_experts=4),
    "Cohere": _causal("Cohere", **_KV),
    "Nemotron": _causal("Nemotron", **_KV),
    "Glm4": _causal("Glm4", **_HEADS),
    "Exaone4": _causal("Exaone4", **_KV, sliding_window=64, sliding_window_pattern=2),
    "Olmoe": _causal("Olmoe", num_key_value_heads=8, num_experts=4, num_experts_per_tok=2),
    "Olmo2": _causal("Olmo2", **_KV),
    "SmolLM3": _causal("SmolLM3", **_KV),
    "GptOss": _causal("GptOss", **_HEADS, num_local_experts=4, num_experts_per_tok=2, sliding_window=64),
    "DeepseekV3": _causal(
        "DeepseekV3", q_lora_rank=64, kv_lora_rank=512, qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128,
        n_routed_experts=4, n_shared_experts=1, num_experts_per_tok=2, n_group=1, topk_group=1, first_k_dense_replace=1,
        moe_intermediate_size=128, num_key_value_heads=8, topk_method="noaux_tc",
    ),
    "Mamba2": _causal("Mamba2", head_dim=64, num_heads=8, n_groups=1, state_size=16),
    "Qwen3Next": _causal("Qwen3Next", **_EXPERTS, head_dim=32, shared_expert_intermediate_size=128,
                         linear_num_value_heads=8, linear_num_key_heads=4, linear_key_head_dim=128, linear_value_head_dim=128,
                         full_attention_interval=2),
    "Bert": Architecture("BertConfig", "BertModel", {}, {"runner": "pooling", **_TOKENIZER}),
    "Qwen3, embedding": Architecture(
        "Qwen3Config", "Qwen3ForCausalLM", _HEADS, {"runner": "pooling", "convert": "embed", **_TOKENIZER}
    ),
    "Llama, classification": Architecture(
        "LlamaConfig", "LlamaForSequenceClassification", {**_KV, "num_labels": 3}, {"runner": "pooling"}
    ),
    "Llama by transformers": Architecture("LlamaConfig", "LlamaForCausalLM", _KV, {"model_impl": "transformers"}),
    "Llama, KV cache fp8": Architecture("LlamaConfig", "LlamaForCausalLM", _KV, {"kv_cache_dtype": "fp8"}),
}  # fmt: skip


def write_architecture(folder: Path, architecture: Architecture) -> None:
    torch.manual_seed(2)
    config = getattr(transformers, architecture.config)(**{**_SIZE, **architecture.more})
    model = getattr(transformers, architecture.model)(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 1 or name.endswith("A_log"):  # of norms, biases: else all equal
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name or "ln_" in name else 0.0, 0.05)
    model.to(torch.bfloat16).save_pretrained(folder)
    if not architecture.engine.get("skip_tokenizer_init", True):
        words = tokenizers.models.WordLevel({str(i): i for i in range(_SIZE["vocab_size"])}, unk_token="0")
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(words)).save_pretrained(folder)


# ---- quantisations of a Llama ----


def _integers(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 31), (1 << 31) - 1, shape, dtype=torch.int64).to(torch.int32)


def _scales(*shape: int, size: float) -> torch.Tensor:
    return ((torch.rand(*shape) + 0.5) * size).to(torch.bfloat16)


def _gptq(out: int, inner: int) -> dict[str, torch.Tensor]:
    return {
        "qweight": _integers(inner // 8, out),
        "qzeros": torch.full((inner // 128, out // 8), 0x77777777, dtype=torch.int32),
        "scales": _scales(inner // 128, out, size=0.01).to(torch.float16),
        "g_idx": torch.arange(inner, dtype=torch.int32) // 128,
    }


def _awq(out: int, inner: int) -> dict[str, torch.Tensor]:
    return {
        "qweight": _integers(inner, out // 8),
        "qzeros": _integers(inner // 128, out // 8),
        "scales": _scales(inner // 128, out, size=0.01).to(torch.float16),
    }


def _w4a16(out: int, inner: int) -> dict[str, torch.Tensor]:
    return {
        "weight_packed": _integers(out, inner // 8),
        "weight_scale": _scales(out, inner // 128, size=0.01),
        "weight_shape": torch.tensor([out, inner]),
    }


def _int8(out: int, inner: int) -> dict[str, torch.Tensor]:
    weight = torch.randint(-128, 127, (out, inner), dtype=torch.int8)
    return {"weight": weight, "weight_scale": _scales(out, 1, size=0.001)}


def _fp8(out: int, inner: int) -> dict[str, torch.Tensor]:
    return {"weight": torch.randn(out, inner).to(torch.float8_e4m3fn), "weight_scale": _scales(out, 1, size=0.05).float()}


def _fp8_blocks(out: int, inner: int) -> dict[str, torch.Tensor]:
    scales = _scales(-(-out // 128), -(-inner // 128), size=0.05).float()
    return {"weight": torch.randn(out, inner).to(torch.float8_e4m3fn), "weight_scale_inv": scales}


def _compressed(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors", "format": layout, "quantization_status": "compressed", "ignore": ["lm_head"],
        "config_groups": {"group_0": group},
    }  # fmt: skip


_TOKENWISE = {"strategy": "token", "dynamic": True, "symmetric": True}


class Quantisation(NamedTuple):
    config: dict[str, Any]
    make: Callable[[int, int], dict[str, torch.Tensor]]
    engine: dict[str, Any] = {}


QUANTISATIONS = {
    "GPTQ": Quantisation(
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True, "checkpoint_format": "gptq"}, _gptq
    ),
    "AWQ": Quantisation({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}, _awq),
    "compressed-tensors w4a16": Quantisation(
        _compressed(
            "pack-quantized", {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}, None
        ),
        _w4a16,
    ),
    "compressed-tensors int8": Quantisation(
        _compressed(
            "int-quantized", {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"},
            {"num_bits": 8, "type": "int", **_TOKENWISE},
        ),
        _int8,
    ),
    "compressed-tensors fp8": Quantisation(
        _compressed(
            "float-quantized", {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"},
            {"num_bits": 8, "type": "float", **_TOKENWISE},
        ),
        _fp8,
    ),
    "fp8 in blocks": Quantisation(
        {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, _fp8_blocks
    ),
}  # fmt: skip

# Quantised by the engine, of the plain Llama.
ONLINE = ("fp8", "int8_per_channel_weight_only", "fp8_per_block", "mxfp8")


def write_quantised(folder: Path, quantisation: Quantisation) -> None:
    """A Llama whose linear layers are random numbers in the layout of a quantisation."""
    write_architecture(folder, ARCHITECTURES["Llama"])
    weights = load_file(folder / "model.safetensors")
    for name in [name for name in weights if name.endswith("_proj.weight")]:
        made = quantisation.make(*weights.pop(name).shape)
        weights.update({f"{name.removesuffix('weight')}{kind}": tensor for kind, tensor in made.items()})
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = quantisation.config
    (folder / "config.json").write_text(json.dumps(config))
