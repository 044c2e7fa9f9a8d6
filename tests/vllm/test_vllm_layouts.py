# SPDX-License-Identifier: Apache-2.0
"""The formats read the files that vLLM's own loader reads, and say what the checkpoint lacks."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import layouts
import pytest
from processes import Daemon, Engine, EngineError
from safetensors.torch import load_file, save_file

import streamerd
import streamerd.vllm
from streamerd._engines.options import Options
from streamerd._engines.sources import sources_of_weights


def weights(load_format: str, folder: Path, **extra: Any) -> dict[str, list[float]]:
    """What the engine's model is given; of a name that is given twice, the last, as the engine has it."""
    import torch
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader

    streamerd.vllm.register()
    loader = get_model_loader(LoadConfig(load_format=load_format, model_loader_extra_config=extra))
    config = SimpleNamespace(model=str(folder), model_weights="", revision=None, runner="generate")
    return {name: tensor.tolist() for name, tensor in loader.get_all_weights(config, torch.nn.Module())}


@pytest.mark.parametrize("layout", layouts.LAYOUTS + layouts.STALE, ids=lambda layout: layout.__name__)
def test_the_weights_of_a_folder_are_those_of_format_auto(models, daemon, layout):
    folder = layouts.write(models / "layouts", layout)
    assert weights("streamerd", folder, socket=daemon.socket) == weights("auto", folder)


@pytest.mark.parametrize("layout", layouts.UNREADABLE, ids=lambda layout: layout.__name__)
def test_a_folder_that_vllm_cannot_read_is_refused(models, daemon, layout):
    folder = layouts.write(models / "unreadable", layout)
    with pytest.raises(Exception):
        weights("auto", folder)
    with pytest.raises(streamerd.Error, match=folder.name):
        weights("streamerd", folder, socket=daemon.socket)


@pytest.mark.parametrize("layout", layouts.BELOW, ids=lambda layout: layout.__name__)
def test_a_folder_that_vllm_cannot_read_is_read_where_the_daemon_can(models, daemon, layout):
    folder = layouts.write(models / "more", layout)
    with pytest.raises((RuntimeError, FileNotFoundError), match="Cannot find any model weights|in index but missing"):
        weights("auto", folder)
    assert weights("streamerd", folder, socket=daemon.socket) == {"a": [1] * 4, "b": [2] * 4}


def test_weights_of_another_format_are_named(models, daemon):
    folder = layouts.write(models / "other format", layouts.a_folder_of_pickles)
    with pytest.raises(streamerd.NotFoundError, match=r"no safetensors files; pytorch_model\.bin would have to be converted"):
        weights("streamerd", folder, socket=daemon.socket)


@pytest.mark.parametrize("layout", layouts.LAYOUTS, ids=lambda layout: layout.__name__)
@pytest.mark.parametrize("base", ["s3://bucket/model/", "gs://bucket/model/", "az://container/model/", "hf://org/name@v1"])
def test_the_files_of_a_store_are_chosen_as_those_of_a_folder(tmp_path, monkeypatch, layout, base):
    """By their names and the contents of the index: nothing else is fetched."""
    folder = layouts.write(tmp_path, layout)

    def choose(place: str) -> list[str]:
        from vllm.config.load import LoadConfig
        from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

        return sorted(DefaultModelLoader(LoadConfig())._prepare_weights(place, None, None, True, None)[1])

    def fetch(source: str, name: str, **_: Any) -> bytes:
        assert name.endswith(".index.json")
        return (folder / name).read_bytes()

    monkeypatch.setattr(streamerd, "fetch_list", lambda source, **_: [f.name for f in folder.iterdir() if f.name[0] != "."])
    monkeypatch.setattr(streamerd, "fetch", fetch)
    local = [Path(source) for source in sources_of_weights(str(folder), choose, Options())]
    remote = sources_of_weights(base, choose, Options())
    assert remote == [base if path == folder else f"{base.rstrip('/')}/{path.name}" for path in local]


def test_files_that_are_models_of_their_own_are_named_after_the_model(models, daemon):
    folder = layouts.write(models / "named", layouts.a_second_file_beside_the_model)
    weights("streamerd", folder, socket=daemon.socket, name="chat")
    names = [m["name"] for m in daemon.ctl("list")["models"]]
    assert {"chat/model", "chat/lm_head"} <= set(names)
    with pytest.raises(ValueError, match=r"digest: .*/lm_head\.safetensors and 1 others are models of their own"):
        weights("streamerd", folder, socket=daemon.socket, digest="0" * 32)


def without(models: Path, folder: str, *names: str) -> Path:
    """The checkpoint without these tensors."""
    place = models / folder
    shutil.copytree(models / "checkpoint", place)
    tensors = load_file(place / "model.safetensors")
    for name in names:
        del tensors[name]
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


def test_a_head_in_a_file_of_its_own_is_loaded(engine: Engine, models: Path, daemon: Daemon, expected: list[int]) -> None:
    folder = without(models, "head apart", "lm_head.weight")
    head = load_file(models / "checkpoint" / "model.safetensors")["lm_head.weight"]
    save_file({"lm_head.weight": head}, folder / "lm_head.safetensors", metadata={"format": "pt"})
    assert engine.run(folder, "auto")[0] == expected
    for extra in ({}, {"alias": False}):
        assert engine.run(folder, "streamerd", {"socket": daemon.socket, **extra})[0] == expected
    tokens, log = engine.run(folder, "streamerd", {"socket": daemon.socket, "publish": True})
    assert tokens == expected
    assert "publish: loading as without: the weights are 2 models of the daemon" in log


MISSING = {
    "lm_head.weight": "lm_head.weight",
    "model.embed_tokens.weight": "model.embed_tokens.weight",
    "model.layers.1.mlp.down_proj.weight": "model.layers.1.mlp.down_proj.weight",
    "model.norm.weight": "model.norm.weight",
}


@pytest.mark.parametrize("name", MISSING)
def test_a_parameter_that_nothing_was_loaded_into_ends_the_start(engine, models, daemon, name):
    """Linear and embedding layers, too, and whether the others are aliased or not; no other loader would find it."""
    folder = without(models, f"without {name}", name)
    for extra in ({"alias": True}, {"alias": False}, {"publish": True}, {"fallback": True}):
        with pytest.raises(EngineError, match=MISSING[name].replace(".", r"\.")):
            engine.start(folder, "streamerd", {"socket": daemon.socket, **extra})
        engine.call("stop")


def test_a_part_of_a_merged_weight_that_is_missing_is_named(engine, models, daemon):
    folder = without(models, "without k", "model.layers.2.self_attn.k_proj.weight")
    engine.start(folder, "streamerd", {"socket": daemon.socket})
    engine.call("stop")
    assert "lacks parts of merged weights: model.layers.2.self_attn.qkv_proj.weight (k)" in engine.log.read_text()
