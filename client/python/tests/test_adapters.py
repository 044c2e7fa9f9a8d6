# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters by name or URI, as vLLM's resolver finds them; tests/vllm has an engine that uses one."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from checkpoints import write
from conftest import Daemon
from store import Store

from streamerd._engines.adapters import CONFIGURATION, WEIGHTS, Adapters, names_of
from streamerd._engines.sources import SOURCE_FILE

BASE = "org/llama"
LORA = {"peft_type": "LORA", "base_model_name_or_path": BASE, "r": 8}
LOGGER = logging.getLogger("test_adapters")
TENSORS = [("layers.0.lora_A.weight", "F32", [8, 64]), ("layers.0.lora_B.weight", "F32", [64, 8])]

DATA = 2 * 8 * 64 * 4  # bytes


class Objects(dict[str, bytes]):
    """Counts how often the weights were read."""

    reads = 0

    def get(self, key: str, default: Any = None) -> Any:
        self.reads += key.endswith(WEIGHTS)
        return super().get(key, default)


@pytest.fixture
def store() -> Iterator[Store]:
    made = Store()
    made.objects = Objects()
    yield made
    made.close()


@pytest.fixture
def daemon(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    made = Daemon(tmp_path, more=store.settings)
    monkeypatch.setenv("STREAMERD_SOCKET", made.socket)
    yield made
    made.stop()


def files(folder: Path, config: Any = LORA, seed: str = "") -> dict[str, bytes]:
    """An adapter's files, by name; they are in the folder, too."""
    folder.mkdir(parents=True, exist_ok=True)
    text = config if isinstance(config, (str, bytes)) else json.dumps(config)
    (folder / CONFIGURATION).write_bytes(text.encode() if isinstance(text, str) else text)
    write(folder / WEIGHTS, [(seed + name, dtype, shape) for name, dtype, shape in TENSORS])
    return {name: (folder / name).read_bytes() for name in (CONFIGURATION, WEIGHTS)}


def put(store: Store, tmp_path: Path, key: str, config: Any = LORA, seed: str = "") -> dict[str, bytes]:
    made = files(tmp_path / "source", config, seed)
    for name, data in made.items():
        store.objects[f"{key}/{name}"] = data
    return made


def adapters(cache: Path, *sources: str, bases: tuple[str, ...] = ()) -> Adapters:
    return Adapters(sources, bases, str(cache), LOGGER)


def require_found(folder: str | None, made: dict[str, bytes]) -> None:
    """The files, as vLLM reads them; the header is written anew."""
    assert folder is not None
    assert sorted(os.listdir(folder)) == [CONFIGURATION, WEIGHTS]
    assert Path(folder, CONFIGURATION).read_bytes() == made[CONFIGURATION]
    data = Path(folder, WEIGHTS).read_bytes()
    assert data[-DATA:] == made[WEIGHTS][-DATA:] and len(data) % 8 == 0
    header = json.loads(data[8:-DATA])
    assert all(header[name]["shape"] == shape for name, _, shape in TENSORS)


def test_an_adapter_of_a_store_is_written_once_under_its_contents(daemon: Daemon, store: Store, tmp_path: Path) -> None:
    """A new version has a folder of its own: an engine may read the old one again."""
    made = put(store, tmp_path, "lora/a")
    cache = tmp_path / "cache"
    found = adapters(cache, "s3://bucket/lora/").find(BASE, "a")
    require_found(found, made)
    again = adapters(cache, "S3://bucket")
    assert again.find(BASE, "s3://bucket/lora/a") == again.find(BASE, "lora/a") == found
    put(store, tmp_path, "lora/a", {**LORA, "r": 4})
    other = again.find(BASE, "lora/a")
    assert other is not None and other != found
    assert sorted(os.listdir(cache / "adapters")) == sorted(map(os.path.basename, (str(found), other)))
    assert json.loads(Path(str(found), CONFIGURATION).read_text())["r"] == 8


def test_other_weights_have_another_folder(daemon: Daemon, store: Store, tmp_path: Path) -> None:
    put(store, tmp_path, "a")
    found = adapters(tmp_path / "cache", "s3://bucket").find(BASE, "a")
    put(store, tmp_path, "a", seed="other.")
    assert adapters(tmp_path / "cache", "s3://bucket").find(BASE, "a") not in (found, None)


def test_engines_that_ask_at_once_read_an_adapter_once(daemon: Daemon, store: Store, tmp_path: Path) -> None:
    """Each with a cache of its own, and two with one."""
    made = put(store, tmp_path, "a")
    caches = [tmp_path / name for name in ("one", "two", "two", "three")]
    with ThreadPoolExecutor(len(caches)) as threads:
        found = list(threads.map(lambda cache: adapters(cache, "s3://bucket").find(BASE, "a"), caches))
    assert len(set(found)) == 3
    for folder in found:
        require_found(folder, made)
    [model] = [m for m in daemon._client.call("list")["models"] if m["source"].startswith("s3://")]
    assert model["name"] == f"s3://bucket/a/{WEIGHTS}" and model["generation"] == 1
    assert not list(tmp_path.glob("*/adapters/.*"))


def test_a_server_without_lists_serves_adapters(daemon: Daemon, store: Store, tmp_path: Path) -> None:
    made = put(store, tmp_path, "lora/a")
    endpoint = store.settings.partition("'")[2].partition("'")[0]
    sources = adapters(tmp_path / "cache", f"{endpoint}/bucket")
    require_found(sources.find(BASE, "lora/a"), made)
    assert sources.find(BASE, f"{endpoint}/other/lora/a") is None


def test_a_folder_of_this_host_is_used_where_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files(tmp_path / "lora" / "a")
    files(tmp_path / "elsewhere")
    (tmp_path / "lora" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "link").symlink_to(tmp_path / "lora")
    found = adapters(tmp_path / "cache", f"{tmp_path}/lora/")
    assert found.find(BASE, "a") == found.find(BASE, f"{tmp_path}/lora/a") == str(tmp_path / "lora" / "a")
    assert adapters(tmp_path / "cache", f"{tmp_path}/link").find(BASE, "a") == str(tmp_path / "lora" / "a")
    assert found.find(BASE, "none") is None and found.find(BASE, f"a/{WEIGHTS}") is None
    assert not caplog.records
    assert found.find(BASE, "linked") is None
    assert "a link leads out of the folders of adapters" in caplog.text


@pytest.mark.parametrize(
    "name",
    [
        "../a", "a/../../b", "a//b", "./a", "a/", "", "/", "s3://", "s3://bucket/../other/a", "s3://bucketeer/a", "S3://other/a",
        "s3://bucket/a/", "hf://organisation/a", "hf://org", "file:///etc/a", "ftp://host/a", "/etc/a", "/lorax/a", "/lora/../etc/a", "a b", "a?b",
        "a#b", "a%2e", "a\\b", "a\nb", "a\0b", "a" * 1025, "s3://s3://bucket/a",
    ],
)  # fmt: skip
def test_what_is_not_below_a_configured_source_is_not_looked_for(tmp_path: Path, name: str) -> None:
    assert adapters(tmp_path, "s3://bucket", "hf://org/adapters", "/lora")._places(name) == []


def test_names_are_looked_for_below_each_source_in_turn(tmp_path: Path) -> None:
    found = adapters(tmp_path, "HF://", "hf://org/adapters/", "S3://Bucket/Prefix/", "/lora/")
    assert found._places("org/a@v2") == [
        "hf://org/a@v2", "hf://org/adapters/org/a@v2", "s3://Bucket/Prefix/org/a@v2", "/lora/org/a@v2",
    ]  # fmt: skip
    assert found._places("hf://any/thing@main/sub") == ["hf://any/thing@main/sub"]
    revision = adapters(tmp_path, "hf://org/adapters")
    assert revision._places("hf://org/adapters@v2/a") == ["hf://org/adapters@v2/a"]


@pytest.mark.parametrize("source", ["lora", "file:///lora", "s3:/bucket", "ftp://host"])
def test_a_source_that_cannot_have_adapters_is_named(tmp_path: Path, source: str) -> None:
    with pytest.raises(ValueError, match=f"STREAMERD_ADAPTERS: '{source}' is neither an absolute path nor a URI"):
        adapters(tmp_path, source)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({**LORA, "base_model_name_or_path": "org/other"}, "is an adapter of org/other, and the engine's model is org/llama"),
        ({**LORA, "base_model_name_or_path": None}, "does not say which model it is for"),
        ({"peft_type": "LORA"}, "does not say which model it is for"),
        ({**LORA, "peft_type": "IA3"}, "describes no LoRA adapter"),
        ({**LORA, "base_model_name_or_path": f"{BASE}\n2026 forged"}, r"is an adapter of 'org/llama\n2026 forged', and"),
        ({**LORA, "base_model_name_or_path": "\ud800"}, r"is an adapter of '\ud800', and"),
        ({**LORA, "base_model_name_or_path": "a\0b"}, r"is an adapter of 'a\x00b', and"),
        ({**LORA, "base_model_name_or_path": "a/" * 2049}, "does not say which model it is for"),
        ({**LORA, "base_model_name_or_path": [BASE]}, "does not say which model it is for"),
        ([], "describes no LoRA adapter"),
        ("null", "describes no LoRA adapter"),
        ("{", "adapter_config.json is no JSON"),
        (" ", "adapter_config.json is no JSON"),
        (json.dumps({**LORA, "r": float("nan")}), "adapter_config.json is no JSON"),
        (json.dumps(LORA)[:-1] + ', "r": 16}', "adapter_config.json is no JSON"),
        (json.dumps(LORA)[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "adapter_config.json is no JSON"),
        (json.dumps(LORA)[:-1] + ', "x": ' + '{"a":' * 100_000 + "0" + "}" * 100_001, "adapter_config.json is no JSON"),
        (json.dumps(LORA)[:-1] + ', "x": ' + "9" * 10_000 + "}", "adapter_config.json is no JSON"),
        (json.dumps({**LORA, "x": "é"}, ensure_ascii=False).encode("latin-1"), "adapter_config.json is no JSON"),
        (json.dumps(LORA).encode("utf-16"), "adapter_config.json is no JSON"),
        (json.dumps(LORA) + " " * (1 << 20), "adapter_config.json has more than 1048576 bytes"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_an_adapter_that_does_not_fit_is_refused_before_its_weights_are_read(
    daemon: Daemon, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, config: Any, text: str
) -> None:
    put(store, tmp_path, "a", config)
    files(tmp_path / "lora" / "a", config)
    for source in ("s3://bucket", f"{tmp_path}/lora"):
        caplog.clear()
        assert adapters(tmp_path / "cache", source).find(BASE, "a") is None
        assert text in caplog.text and "adapter a: " in caplog.text
    assert isinstance(store.objects, Objects) and store.objects.reads == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a folder"])
def test_a_configuration_that_is_no_file_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, make: Callable[[Path], None]
) -> None:
    (tmp_path / "lora" / "a").mkdir(parents=True)
    make(tmp_path / "lora" / "a" / CONFIGURATION)
    assert adapters(tmp_path / "cache", f"{tmp_path}/lora").find(BASE, "a") is None
    assert "adapter a: " in caplog.text


def test_what_a_killed_engine_has_left_of_an_adapter_is_completed(daemon: Daemon, store: Store, tmp_path: Path) -> None:
    made = put(store, tmp_path, "a")
    found = adapters(tmp_path / "cache", "s3://bucket").find(BASE, "a")
    assert found is not None
    Path(found, CONFIGURATION).unlink()
    Path(found, WEIGHTS).rename(Path(found, ".streamerd-0a-1.part"))
    assert adapters(tmp_path / "cache", "s3://bucket").find(BASE, "a") == found
    require_found(found, made)


def test_an_adapter_that_cannot_be_read_is_named(
    daemon: Daemon, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No weights, damaged ones, no daemon; an adapter of this name in a later source is taken."""
    put(store, tmp_path, "a")
    fits = tmp_path / "lora" / "a"
    files(fits)
    found = adapters(tmp_path / "cache", "s3://bucket", f"{tmp_path}/lora")
    store.objects[f"a/{WEIGHTS}"] = b"damaged" * 100
    assert found.find(BASE, "a") == str(fits)
    del store.objects[f"a/{WEIGHTS}"]
    assert found.find(BASE, "a") == str(fits)
    assert caplog.text.count("streamerd: adapter a: ") == 2
    assert found.find(BASE, "none") is None
    assert caplog.text.count("streamerd: adapter") == 2


def test_the_hub_is_not_asked_where_it_must_not_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a daemon, too: a later source is looked at."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files(tmp_path / "lora" / "a")
    found = adapters(tmp_path / "cache", "hf://org", f"{tmp_path}/lora")
    assert found.find(BASE, "a") == str(tmp_path / "lora" / "a")
    assert "adapter a: hf://org/a: HF_HUB_OFFLINE is set" in caplog.text


def test_names_of_one_model_are_equal(tmp_path: Path, daemon: Daemon, store: Store) -> None:
    """A path, a link to it, a snapshot of the Hub's cache, a folder that stands for a source, and what is configured."""
    cache = tmp_path / "cache"
    snapshot = tmp_path / "hub/models--org--llama/snapshots/0123"
    standing = cache / "org-llama-0123"
    for folder in (snapshot, standing):
        folder.mkdir(parents=True)
    (standing / SOURCE_FILE).write_text("hf://org/llama@v2")
    (tmp_path / "llama").symlink_to(snapshot)
    for model in (BASE, f"hf://{BASE}@v3", str(snapshot), f"{tmp_path}/llama/", str(standing)):
        assert BASE in names_of(model, str(cache)), model
        assert not names_of(model, str(cache)) & names_of("org/other", str(cache)), model
    assert names_of(str(tmp_path / "llama"), str(cache)) & names_of(str(snapshot), str(cache))
    assert "bucket/llama" not in names_of("s3://bucket/llama/", str(cache))
    put(store, tmp_path, "a")
    assert adapters(cache, "s3://bucket").find("/models/llama", "a") is None
    assert adapters(cache, "s3://bucket", bases=("org/x", BASE)).find("/models/llama", "a") is not None
