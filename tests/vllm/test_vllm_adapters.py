# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters that requests name: vLLM's server asks the resolver, and the engine reads what it has written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hub import Hub
from processes import Daemon, Engine
from safetensors.torch import save_file

import streamerd.vllm

RANK = 8
HIDDEN = 256  # of the small checkpoint
LAYERS = 4


def write_adapter(folder: Path, base: str, seed: int) -> Path:
    """As PEFT saves one: large enough to change the tokens."""
    generator = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in range(LAYERS):
        for module in ("q_proj", "o_proj"):
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            weights[f"{name}.lora_A.weight"] = torch.randn(RANK, HIDDEN, generator=generator)
            weights[f"{name}.lora_B.weight"] = torch.randn(HIDDEN, RANK, generator=generator)
    folder.mkdir(parents=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "base_model_name_or_path": base, "r": RANK, "lora_alpha": 16, "bias": "none",
        "target_modules": ["q_proj", "o_proj"],
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def hub(models: Path) -> Iterator[Hub]:
    with Hub() as server:
        server.add("some/llama", models / "checkpoint")
        server.add("some/lora", write_adapter(models / "lora one", "some/llama", 1))
        server.add("some/other", write_adapter(models / "lora two", "another/llama", 2))
        yield server


@pytest.fixture(scope="module")
def cloud(hub: Hub, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1"}
    with Daemon(tmp_path_factory.mktemp("cloud"), models, environment=environment) as daemon:
        yield daemon


def test_adapters_that_requests_name_are_resolved(
    hub: Hub, cloud: Daemon, models: Path, logs: Path, tmp_path: Path, expected: list[int]
) -> None:
    """From the Hub by name and by URI, and from a folder of this host: the tokens are those of vLLM's own reading. One
    for another model is refused, also by its name, and the engine serves its own."""
    local = tmp_path / "adapters"
    write_adapter(local / "local", str(models / "checkpoint"), 3)
    shutil.copytree(models / "lora one", local / "plain")
    environment = {
        "STREAMERD_ADAPTERS": f"hf://some, {local}",
        "STREAMERD_ADAPTER_BASES": "",
        "STREAMERD_SOCKET": cloud.socket,
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": "http://127.0.0.1:9",
        "HF_HOME": str(tmp_path / "home"),
        "VLLM_CACHE_ROOT": str(tmp_path / "cache"),
    }
    with Engine(logs / "adapters", environment) as engine:
        engine.start("some/llama", "streamerd", {}, enable_lora=True, max_lora_rank=RANK, max_loras=1)
        assert engine.call("tokens") == expected
        mine = engine.call("adapter", name="own", folder=str(models / "lora one"))["tokens"]
        assert mine != expected
        for name in ("lora", "hf://some/lora", "hf://some/lora@main"):
            found = engine.call("adapter", name=name)
            assert found["tokens"] == mine, name
            assert found["folder"].startswith(str(tmp_path / "cache/streamerd/adapters/some-lora"))
        found = engine.call("adapter", name="plain")
        assert found == {"folder": str(local / "plain"), "tokens": mine}
        for name in ("other", "hf://some/other", "local", "none", "hf://else/lora"):
            assert engine.call("adapter", name=name) == {}, name
        assert engine.call("tokens") == expected
        said = engine.log.read_text()
        engine.call("stop")
    assert "adapter other: hf://some/other: is an adapter of another/llama, and the engine's model is hf://some/llama" in said
    assert f"adapter local: {local}/local: is an adapter of {models}/checkpoint" in said
    assert "adapter none" not in said
    names = [model["name"] for model in cloud.ctl("list")["models"]]
    assert "hf://some/lora/adapter_model.safetensors" in names


def test_the_resolver_is_registered_where_sources_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.lora.resolver import LoRAResolverRegistry

    from streamerd._engines import vllm_interface

    monkeypatch.setattr(LoRAResolverRegistry, "resolvers", {})
    monkeypatch.delenv("STREAMERD_ADAPTERS", raising=False)
    streamerd.vllm._register_adapters()
    monkeypatch.setenv("STREAMERD_ADAPTERS", " , ")
    streamerd.vllm._register_adapters()
    assert not LoRAResolverRegistry.get_supported_resolvers()
    monkeypatch.setenv("STREAMERD_ADAPTERS", "s3://adapters/, /models/adapters")
    streamerd.vllm._register_adapters()
    assert set(LoRAResolverRegistry.get_supported_resolvers()) == {"streamerd"}
    monkeypatch.setenv("STREAMERD_ADAPTERS", "adapters")
    with pytest.raises(ValueError, match="STREAMERD_ADAPTERS: 'adapters' is neither an absolute path nor a URI"):
        streamerd.vllm._register_adapters()
    use = ("vllm.lora.resolver:LoRAResolver.resolve_lora", ("colour",))
    monkeypatch.setattr(vllm_interface, "ADAPTERS", (*vllm_interface.ADAPTERS, use))
    with pytest.raises(RuntimeError, match=r"STREAMERD_ADAPTERS needs .*resolve_lora\(colour\), which vLLM"):
        streamerd.vllm._register_adapters()
