# SPDX-License-Identifier: Apache-2.0
"""Both load formats give the engine the weights that vLLM's own loaders give it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from processes import BUILD, Engine, EngineError
from safetensors.torch import load_file, save_file
from test_vllm_hub import write_snapshot

import streamerd
import streamerd.vllm


def test_a_checkpoint_gives_the_tokens_of_format_auto(engine, models, daemon, expected):
    tokens, log = engine.run(models / "checkpoint", "streamerd", {"socket": daemon.socket})
    assert tokens == expected
    assert "39 tensors" in log


def test_a_file_with_its_configuration_beside_it_is_a_model(engine, models, daemon, expected):
    file = models / "checkpoint" / "model.safetensors"
    assert engine.run(file, "streamerd", {"socket": daemon.socket})[0] == expected
    [model] = {m["generation"] for m in daemon.ctl("list")["models"] if m["source"].startswith(str(file.parent))}
    assert model  # one copy, under the names of the folder and of the file


def test_a_saved_state_gives_the_tokens_of_format_sharded_state(engine, models, daemon, expected):
    assert engine.run(models / "state", "sharded_state")[0] == expected
    assert engine.run(models / "state", "streamerd_sharded", {"socket": daemon.socket})[0] == expected


def test_what_the_engine_merges_is_copied_with_alias_and_that_is_reported_once(engine, models, daemon, expected):
    tokens, log = engine.run(models / "checkpoint", "streamerd", {"socket": daemon.socket, "alias": True})
    assert tokens == expected
    assert log.count("alias:") == 1
    assert "merges, cuts, converts or packs the others" in log


def test_by_default_what_needs_no_conversion_is_resident_memory(engine, models, daemon, expected):
    for alias in ({}, {"alias": True}):
        tokens, log = engine.run(models / "state", "streamerd_sharded", {"socket": daemon.socket, **alias})
        assert tokens == expected
        assert "nothing was copied" in log
    tokens, log = engine.run(models / "state", "streamerd_sharded", {"socket": daemon.socket, "alias": False})
    assert tokens == expected
    assert "alias" not in log


def test_name_and_digest_are_the_targets_and_not_the_drafts(engine, models, daemon, expected):
    draft = models / "draft"
    shutil.copytree(models / "checkpoint", draft)
    daemon.ctl("load", str(models / "checkpoint"), "--name", "target")
    [model] = [m for m in daemon.ctl("list")["models"] if m["name"] == "target"]
    options = {"socket": daemon.socket, "name": "target", "digest": model["digest"]}
    weights = load_file(draft / "model.safetensors")
    weights["model.norm.weight"] *= -1
    save_file(weights, draft / "model.safetensors", metadata={"format": "pt"})
    speculative = {"model": str(draft), "num_speculative_tokens": 2, "method": "draft_model"}
    assert engine.run(models / "checkpoint", "streamerd", options, speculative_config=speculative)[0] == expected
    sources = {m["name"]: m["source"] for m in daemon.ctl("list")["models"]}
    assert sources["target"].endswith("/checkpoint")
    assert sources["draft"].endswith("/draft")


def test_weights_are_loaded_again(engine, models, daemon, expected):
    """Of the model that the engine was started with under its name and digest; of another source without."""
    other = models / "weights"
    shutil.copytree(models / "checkpoint", other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] *= -1
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    changed, _ = engine.run(other, "auto")
    daemon.ctl("load", str(models / "checkpoint"), "--name", "first")
    [model] = [m for m in daemon.ctl("list")["models"] if m["name"] == "first"]
    for alias in (False, True):
        options = {"socket": daemon.socket, "alias": alias, "name": "first", "digest": model["digest"]}
        engine.start(models / "checkpoint", "streamerd", options)
        try:
            for path, tokens in ((None, expected), (str(other), changed), (str(models / "checkpoint"), expected)):
                engine.call("reload", path=path)
                assert engine.call("tokens") == tokens
            with pytest.raises(EngineError, match="No such file"):
                engine.call("reload", path=str(models / "none"))
            assert engine.call("tokens") == expected
        finally:
            engine.call("stop")
    sources = {m["name"]: m["source"] for m in daemon.ctl("list")["models"]}
    assert "/checkpoint" in sources["first"]
    assert sources["weights"].endswith("/weights")


def test_a_pattern_names_the_files_of_a_saved_state(engine, models, daemon, expected, tmp_path_factory):
    folder = models / "renamed"
    shutil.copytree(models / "state", folder)
    (folder / "model-rank-0-part-0.safetensors").rename(folder / "r0.p0.safetensors")
    options = {"socket": daemon.socket, "pattern": "r{rank}.p{part}.safetensors"}
    assert engine.run(folder, "streamerd_sharded", options)[0] == expected


@pytest.mark.parametrize("architecture", ["GPTNeoX", "Phi3", "Qwen2"])
def test_alias_does_not_change_what_an_architecture_computes(engine, models, daemon, architecture):
    """GPT-NeoX reorders a weight that keeps its name and shape, Phi 3 has merged weights, Qwen 2 ties embeddings."""
    folder = models / architecture
    if not folder.exists():
        write_random(folder, architecture)
    expected, _ = engine.run(folder, "auto")
    for alias in (False, True, "auto"):
        tokens, _ = engine.run(folder, "streamerd", {"socket": daemon.socket, "alias": alias})
        assert tokens == expected


def write_random(folder: Path, architecture: str) -> None:
    import torch
    import transformers

    torch.manual_seed(2)
    more = {"tie_word_embeddings": True} if architecture == "Qwen2" else {}
    if architecture != "GPTNeoX":
        more["num_key_value_heads"] = 4
    config = getattr(transformers, architecture + "Config")(
        hidden_size=256, intermediate_size=704, num_hidden_layers=2, num_attention_heads=8, vocab_size=1024,
        max_position_embeddings=512, initializer_range=0.05, bos_token_id=1, eos_token_id=2, pad_token_id=0, **more,
    )  # fmt: skip
    model = getattr(transformers, architecture + "ForCausalLM")(config).to(torch.bfloat16)
    model.save_pretrained(folder)


def test_a_name_in_the_hub_cache_is_found(models, daemon, expected, logs):
    cache = models / "hub"
    write_snapshot(cache, models / "checkpoint")
    with Engine(logs / "hub", {"HF_HUB_CACHE": str(cache)}) as engine:
        assert engine.run("some/llama", "streamerd", {"socket": daemon.socket})[0] == expected
    assert "some/llama" in [m["name"] for m in daemon.ctl("list")["models"]]


@pytest.mark.parametrize("publish", [False, True])
def test_the_daemon_loads_while_the_engine_starts(models, daemon, monkeypatch, publish):
    """From when the engine's configuration is known; not where the checkpoint may not be needed."""
    from vllm.engine.arg_utils import EngineArgs

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    streamerd.vllm.register()
    folder = models / f"early {publish}"
    shutil.copytree(models / "checkpoint", folder)
    extra = {"socket": daemon.socket, "publish": publish}
    EngineArgs(
        model=str(folder), load_format="streamerd", model_loader_extra_config=extra, skip_tokenizer_init=True
    ).create_engine_config()
    if publish:
        assert folder.name not in [m["name"] for m in daemon.ctl("list")["models"]]
    else:
        daemon.ctl("wait", folder.name)
        assert folder.name in [m["name"] for m in daemon.ctl("list")["models"] if m["state"] == "ready"]


def test_without_a_daemon_one_is_started(models, expected, tmp_path, logs):
    environment = {"XDG_RUNTIME_DIR": str(tmp_path), "PATH": f"{BUILD}:/usr/bin:/bin", "STREAMERD_EXIT_IDLE": "1s"}
    with Engine(logs / "autostart", environment) as engine:
        assert engine.run(models / "checkpoint", "streamerd")[0] == expected
    assert "started" in (logs / "autostart").read_text()


def test_with_fallback_a_saved_state_is_loaded_by_its_own_format(engine, models, expected, tmp_path):
    options = {"socket": str(tmp_path / "none"), "fallback": True}
    tokens, log = engine.run(models / "state", "streamerd_sharded", options)
    assert tokens == expected
    assert "Falling back to load format sharded_state" in log


@pytest.mark.parametrize("error", [streamerd.FailedError("x"), RuntimeError("x"), MemoryError("x"), ValueError("x")])
def test_any_failure_falls_back_until_a_parameter_was_replaced(monkeypatch, error):
    import torch
    from vllm.config.load import LoadConfig

    from streamerd._engines import vllm_loaders

    model = torch.nn.Linear(4, 4)
    config = SimpleNamespace(model="m", model_weights="", revision=None, runner="generate")
    loader = vllm_loaders.StreamerdLoader(LoadConfig(load_format="streamerd", model_loader_extra_config={"fallback": True}))
    other = MagicMock()
    monkeypatch.setattr(loader, "_fallback_loader", lambda: other)

    def fail(replace: bool) -> None:
        model.weight.data.fill_(1)  # copies to parameters are no obstacle: the other loader overwrites them
        if replace:
            model.bias.data = torch.ones(4)
        raise error

    monkeypatch.setattr(loader, "_load", lambda *_: fail(replace=True))
    with pytest.raises(type(error)):
        loader.load_weights(model, config)
    other.load_weights.assert_not_called()
    monkeypatch.setattr(loader, "_load", lambda *_: fail(replace=False))
    loader.load_weights(model, config)
    other.load_weights.assert_called_once_with(model, config)


@pytest.mark.parametrize("error", [streamerd.FailedError("x"), RuntimeError("x"), OSError("x")])
def test_any_failure_before_the_weights_falls_back_too(monkeypatch, error):
    from vllm.config.load import LoadConfig

    from streamerd._engines import vllm_loaders

    config = SimpleNamespace(model="m", model_weights="", revision=None, runner="generate")
    options = {"fallback": True, "device": "cuda:0"}
    loader = vllm_loaders.StreamerdLoader(LoadConfig(load_format="streamerd", model_loader_extra_config=options))
    other = MagicMock()
    monkeypatch.setattr(loader, "_fallback_loader", lambda: other)
    monkeypatch.setattr(loader, "_made_resident", MagicMock(side_effect=error))
    loader.download_model(config)
    other.download_model.assert_called_once_with(config)
    assert loader.get_external_weight_memory(SimpleNamespace(model_config=config)) == 0


def test_without_fallback_a_failure_is_raised(monkeypatch):
    import torch
    from vllm.config.load import LoadConfig

    from streamerd._engines import vllm_loaders

    loader = vllm_loaders.StreamerdLoader(LoadConfig(load_format="streamerd"))
    monkeypatch.setattr(loader, "_load", MagicMock(side_effect=RuntimeError("x")))
    with pytest.raises(RuntimeError, match="x"):
        loader.load_weights(torch.nn.Linear(1, 1), SimpleNamespace(model="m", model_weights="", revision=None))


def test_a_rank_has_the_weights_of_its_slices(models, daemon, expected, logs):
    with Engine(logs / "ranks", {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}) as engine:
        engine.start(models / "checkpoint", "streamerd", {"socket": daemon.socket}, tensor_parallel=2)
        assert engine.call("tokens") == expected


def test_json_of_the_command_line_is_taken(models, daemon):
    """The extra configuration reaches the loader as JSON."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    import streamerd.vllm

    streamerd.vllm.register()
    config = LoadConfig(load_format="streamerd", model_loader_extra_config=json.loads('{"alias": true, "concurrency": 4}'))
    assert get_model_loader(config).options.concurrency == 4
