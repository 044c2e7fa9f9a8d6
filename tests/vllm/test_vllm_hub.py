# SPDX-License-Identifier: Apache-2.0
"""A model by its name on the Hub: out of the cache, else through the daemon; the engine itself makes no request."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub import Hub
from processes import ENGINE_SECONDS, Daemon, Engine, EngineError
from safetensors.torch import load_file, save_file

import streamerd
from streamerd._engines.options import Options
from streamerd._engines.sources import fetch_engine_files, source_of

NOWHERE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def hub(models: Path) -> Iterator[Hub]:
    with Hub() as server:
        server.add("some/llama", models / "checkpoint")
        yield server


@pytest.fixture(scope="module")
def cloud(hub: Hub, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that reaches the Hub. Small blocks, so that a held request holds a part of a file only."""
    environment = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "RUNAI_STREAMER_CHUNK_BYTESIZE": "1048576"}
    with Daemon(tmp_path_factory.mktemp("cloud"), models, environment=environment) as daemon:
        yield daemon


@pytest.fixture(scope="module")
def reachable(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of an engine that may use the Hub, but does not reach it, with an empty cache."""
    return {
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": NOWHERE,
        "HF_HOME": str(tmp_path_factory.mktemp("home")),
        "VLLM_CACHE_ROOT": str(tmp_path_factory.mktemp("cache")),
    }


@pytest.fixture(scope="module")
def online(cloud: Daemon, logs: Path, reachable: dict[str, str]) -> Iterator[Engine]:
    with Engine(logs / "online", reachable) as engine:
        yield engine


def names(daemon: Daemon) -> list[str]:
    return [model["name"] for model in daemon.ctl("list")["models"]]


def scaled(folder: Path, source: Path) -> Path:
    """The checkpoint with another final norm."""
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 0 - 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_name_that_is_not_in_the_cache_is_read_through_the_daemon(online, hub, cloud, expected):
    """The last byte comes after the engine's log has said how far the load is."""
    hub.hold()
    online.begin("start", model="some/llama", load_format="streamerd", extra={"socket": cloud.socket})
    deadline = time.monotonic() + ENGINE_SECONDS
    while "/s, " not in online.log.read_text():
        assert time.monotonic() < deadline, "no progress was logged"
        time.sleep(0.1)
    hub.release()
    online.end()
    assert "some/llama is read from hf://some/llama" in online.log.read_text()
    assert online.call("tokens") == expected
    online.call("stop")
    assert "some/llama" in names(cloud)
    assert any(path.endswith("/config.json") for path in hub.requests)


def test_a_revision_is_read(online, hub, cloud, models, expected):
    hub.add("some/llama", scaled(models / "scaled", models / "checkpoint"), "v2")
    tokens, _ = online.run("some/llama", "streamerd", {"socket": cloud.socket}, revision="v2")
    assert tokens != expected
    assert any("v2" in path for path in hub.requests)


def test_weights_of_a_revision_are_loaded_into_a_running_engine(online, reachable, hub, cloud, models, logs, expected):
    """A remote source needs no configuration then. One that does not exist leaves the engine as it is.

    The engine has a process of its own: vLLM keeps the embedding of an engine that has reloaded its weights, and so the
    lease of its memory, until the process ends.
    """
    folder = scaled(models / "scaled again", models / "checkpoint")
    hub.add("some/llama", folder, "v3")
    with Engine(logs / "reloaded", reachable) as engine:
        engine.start("some/llama", "streamerd", {"socket": cloud.socket})
        assert engine.call("tokens") == expected
        with pytest.raises(EngineError, match="hf://some/llama@v9"):
            engine.call("reload", path="hf://some/llama@v9")
        assert engine.call("tokens") == expected
        engine.call("reload", path="hf://some/llama@v3")
        changed = engine.call("tokens")
    assert changed == online.run(folder, "auto")[0]


def test_a_revision_that_does_not_exist_is_named(online, cloud):
    with pytest.raises(EngineError, match="hf://some/llama@v9"):
        online.start("some/llama", "streamerd", {"socket": cloud.socket}, revision="v9")
    online.call("stop")


def write_snapshot(cache: Path, source: Path, weights: bool = True) -> Path:
    """some/llama in a cache as huggingface_hub makes it."""
    repository = cache / "models--some--llama"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (repository / "blobs").mkdir()
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(snapshot.name)
    for file in source.iterdir():
        if weights or not file.name.endswith(".safetensors"):
            shutil.copy(file, repository / "blobs")
            (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    return snapshot


def files_of_engine(hub: Hub, cloud: Daemon, cache: Path, folder: Path) -> set[str]:
    """What is fetched of a repository with the contents of this folder."""
    hub.add("some/files", folder)
    directory = fetch_engine_files("hf://some/files", str(cache), Options(socket=cloud.socket))
    return {path.name for path in Path(directory).iterdir() if path.name[0] != "."}


def test_files_that_a_repository_no_longer_has_are_removed(hub, cloud, tmp_path):
    folder, cache = tmp_path / "repository", tmp_path / "cache"
    folder.mkdir()
    for name in ("config.json", "chat_template.jinja", "modeling.py", "tokenizer.model", "model.safetensors.index.json"):
        (folder / name).write_text("{}")
    kept = {"config.json", "chat_template.jinja", "modeling.py", "tokenizer.model"}
    assert files_of_engine(hub, cloud, cache, folder) == kept
    for name in ("chat_template.jinja", "modeling.py"):
        (folder / name).unlink()
    assert files_of_engine(hub, cloud, cache, folder) == {"config.json", "tokenizer.model"}


def test_a_repository_without_a_configuration_is_named_and_leaves_no_directory(hub, cloud, tmp_path, monkeypatch):
    folder, cache = tmp_path / "repository", tmp_path / "cache"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(streamerd.NotFoundError, match=r"hf://some/files: there is no config\.json, which the engine reads"):
        files_of_engine(hub, cloud, cache, folder)
    monkeypatch.setattr(streamerd, "fetch_list", lambda *_, **__: [])
    with pytest.raises(streamerd.NotFoundError, match="s3://bucket/none/: there are no files"):
        fetch_engine_files("s3://bucket/none/", str(cache), Options())
    assert not cache.exists()


def test_the_directory_of_a_source_has_its_name(hub, cloud, models, tmp_path):
    source = "hf://some/llama@v2"
    hub.add("some/llama", models / "checkpoint", "v2")
    directory = fetch_engine_files(source, str(tmp_path), Options(socket=cloud.socket))
    assert Path(directory).name.startswith("some-llama-v2-")
    assert source_of(directory, str(tmp_path)) == source


def test_a_resident_model_serves_where_the_hub_must_not_be_asked(hub, cloud, models, expected, logs, tmp_path):
    """The configuration is that of an earlier engine. Without one, or without the model, the error says so."""
    hub.add("some/llama", models / "checkpoint")
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_ENDPOINT": NOWHERE, "VLLM_CACHE_ROOT": str(tmp_path / "cache")}
    extra = {"socket": cloud.socket}
    with Engine(logs / "before", {**environment, "HF_HUB_OFFLINE": "0"}) as engine:
        assert engine.run("some/llama", "streamerd", extra)[0] == expected
    before = len(hub.requests)
    with Engine(logs / "without the hub", {**environment, "HF_HUB_OFFLINE": "1"}) as engine:
        for name in ("some/llama", "hf://some/llama"):
            assert engine.run(name, "streamerd", extra)[0] == expected
        with pytest.raises(EngineError, match="hf://some/other: HF_HUB_OFFLINE is set, and no engine has read it"):
            engine.start("hf://some/other", "streamerd", extra)
        engine.call("stop")
        cloud.ctl("unload", "some/llama")  # no engine that has ended holds it
        with pytest.raises(EngineError, match="HF_HUB_OFFLINE is set, and no resident model was loaded from it"):
            engine.start("some/llama", "streamerd", extra)
        engine.call("stop")
    assert len(hub.requests) == before


def test_the_download_directory_is_a_cache(online, hub, cloud, models, expected):
    write_snapshot(models / "downloads", models / "checkpoint")
    before = len(hub.requests)
    tokens, _ = online.run("some/llama", "streamerd", {"socket": cloud.socket}, download_dir=str(models / "downloads"))
    assert tokens == expected
    assert len(hub.requests) == before


def test_a_snapshot_without_weights_is_not_the_model(online, hub, cloud, models, expected):
    """An engine that has read only the configuration makes such a snapshot."""
    write_snapshot(models / "partial", models / "checkpoint", weights=False)
    tokens, _ = online.run("some/llama", "streamerd", {"socket": cloud.socket}, download_dir=str(models / "partial"))
    assert tokens == expected


def test_shards_that_are_missing_make_a_snapshot_incomplete(tmp_path, models, monkeypatch):
    from streamerd._engines.sources import locate

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    snapshot = write_snapshot(tmp_path, models / "checkpoint", weights=False)
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    (snapshot / "one.safetensors").touch()
    assert locate("some/llama", None, str(tmp_path)) == "hf://some/llama"
    assert locate("some/llama", "v2", str(tmp_path)) == "hf://some/llama@v2"
    (snapshot / "two.safetensors").touch()
    assert locate("some/llama", None, str(tmp_path)) == str(snapshot)
    (snapshot / "two.safetensors").unlink()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert locate("some/llama", None, str(tmp_path)) == "some/llama"


def test_paths_and_urls_are_taken_as_they_are(tmp_path, monkeypatch):
    from streamerd._engines.sources import locate

    (tmp_path / "some" / "llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert locate("some/llama", "v2", None) == os.path.join(os.getcwd(), "some/llama")
    assert locate("s3://some/llama", "v2", None) == "s3://some/llama"
    assert locate("resident", None, None) == "resident"


def test_sources_beside_the_main_one_have_their_revision_and_folder(models, monkeypatch):
    """Models with a part that is stored elsewhere, such as the audio tower of Ultravox."""
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from streamerd._engines import vllm_loaders

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    downloads = str(models / "downloads-2")
    snapshot = write_snapshot(Path(downloads), models / "checkpoint")
    loader = vllm_loaders.StreamerdLoader(LoadConfig(load_format="streamerd", download_dir=downloads))
    secondary = DefaultModelLoader.Source
    assert loader._place(secondary("some/llama", None)) == str(snapshot)
    assert loader._place(secondary("some/llama", None, subfolder="part")) == str(snapshot / "part")
    assert loader._place(secondary("some/other", "v3")) == "hf://some/other@v3"
    assert loader._place(secondary("some/other", "v3", subfolder="part")) == "hf://some/other@v3/part"


def test_a_file_beside_the_model_is_read_from_the_hub(online, hub, cloud, models, expected):
    """Without an index vLLM reads all files: each is a model of the daemon."""
    folder = models / "head apart on the hub"
    shutil.copytree(models / "checkpoint", folder)
    weights = load_file(folder / "model.safetensors")
    save_file({"lm_head.weight": weights.pop("lm_head.weight")}, folder / "lm_head.safetensors", metadata={"format": "pt"})
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    hub.add("some/parts", folder)
    assert online.run("some/parts", "streamerd", {"socket": cloud.socket})[0] == expected
    sources = {m["source"] for m in cloud.ctl("list")["models"]}
    assert {f"hf://some/parts@main/{name}.safetensors" for name in ("model", "lm_head")} <= sources


def test_with_fallback_the_engine_reads_the_name_itself(logs, models, expected, tmp_path):
    """No daemon answers: the engine takes its own cache."""
    cache = tmp_path / "hub"
    write_snapshot(cache, models / "checkpoint")
    environment = {"HF_HUB_CACHE": str(cache), "VLLM_CACHE_ROOT": str(tmp_path / "root")}
    with Engine(logs / "offline", environment) as engine:
        tokens, log = engine.run("some/llama", "streamerd", {"socket": str(tmp_path / "none"), "fallback": True})
    assert tokens == expected
    assert "Falling back to load format auto" in log
