# SPDX-License-Identifier: Apache-2.0
"""Which sources of the daemon are the files that an engine's own loader would read; tests/vllm compares the engine."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from checkpoints import write
from conftest import Daemon

import streamerd
from streamerd._engines.options import Options
from streamerd._engines.sources import INDEX, SOURCE_FILE, fetch_engine_files, locate, natural, sources_of_weights

ONE, TWO, GONE = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2, 3))


def choose(folder: str) -> list[str]:
    """What vLLM's loader reads: the files of the folder itself; with an index, those of them that it names."""
    files = sorted((str(path) for path in Path(folder).glob("*.safetensors")), key=natural)
    index = os.path.join(folder, INDEX)
    if os.path.isfile(index):
        with open(index) as f:
            named = {os.path.join(folder, name) for name in json.load(f)["weight_map"].values()}
        files = [file for file in files if file in named]
    if not files:
        raise RuntimeError(f"Cannot find any model weights with `{folder}`")
    return files


def tensors(file: str) -> dict[str, bytes]:
    """Of one file, as safetensors reads it."""
    data = Path(file).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    begins_ends = {name: t["data_offsets"] for name, t in json.loads(data[8:start]).items()}
    return {name: data[start + begin : start + end] for name, (begin, end) in begins_ends.items()}


def save(folder: Path, name: str, *names: str) -> None:
    """Tensors whose contents depend on the file, too."""
    (folder / name).parent.mkdir(exist_ok=True)
    write(folder / name, [(tensor, "U8", [64 + 8 * len(name)]) for tensor in names])


def two_shards(folder: Path) -> None:
    save(folder, ONE, "a", "shared")
    save(folder, TWO, "b", "shared", "moved")


def index(*entries: tuple[str, str], metadata: str = "{}") -> str:
    weight_map = ", ".join(f'"{name}": "{file}"' for name, file in entries)
    return f'{{"metadata": {metadata}, "weight_map": {{{weight_map}}}}}'


AGREES = (("a", ONE), ("b", TWO), ("shared", TWO), ("moved", TWO))

# The index, and which files are sources: None, the folder as a whole.
INDEXES = {
    "that agrees": (index(*AGREES), None),
    "that lacks a tensor": (index(("a", ONE), ("b", TWO), ("shared", TWO)), None),
    "with a tensor that is in no file": (index(*AGREES, ("never", ONE)), None),
    "with a key twice": (index(("a", TWO), *AGREES), [ONE, TWO]),
    "with a map twice": (f'{{"weight_map": {{"a": "{ONE}"}}, {index(*AGREES)[1:]}', [ONE, TWO]),
    "with NaN": (index(*AGREES, metadata='{"total_size": NaN}'), [ONE, TWO]),
    "with Infinity": (index(*AGREES, metadata='{"total_size": -Infinity}'), [ONE, TWO]),
    "that names a file that is gone": (index(*AGREES, ("c", GONE)), [ONE, TWO]),
    "that names only one of them": (index(("b", TWO), ("moved", TWO), ("shared", TWO)), None),
    "from before a tensor moved": (index(("a", ONE), ("b", TWO), ("shared", TWO), ("moved", ONE)), [ONE, TWO]),
    "that names the first of two": (index(("a", ONE), ("b", TWO), ("shared", ONE), ("moved", TWO)), [ONE, TWO]),
    "that names neither of two": (index(("a", ONE), ("b", TWO), ("moved", TWO)), [ONE, TWO]),
    "of a folder below, too": (index(*AGREES, ("c", "sub/x.safetensors")), [ONE, TWO]),
}


@pytest.mark.parametrize("case", INDEXES)
def test_the_tensors_are_those_of_the_engines_own_files(daemon: Daemon, folder: Path, case: str) -> None:
    text, expected = INDEXES[case]
    place = folder / "model"
    place.mkdir()
    two_shards(place)
    save(place, "sub/x.safetensors", "c")
    (place / INDEX).write_text(text)
    sources = sources_of_weights(str(place), choose, Options())
    assert sources == ([str(place)] if expected is None else [str(place / name) for name in expected])
    own: dict[str, bytes] = {}
    for file in choose(str(place)):
        own |= tensors(file)
    read: dict[str, bytes] = {}
    for source in sources:
        with streamerd.open(source, framework="np") as model:
            read |= {name: model[name].tobytes() for name in model}
    assert read == own


UNREADABLE = {
    "of a folder below alone": index(("c", "sub/x.safetensors")),
    "that is a list": "[]",
    "whose map is a list": f'{{"weight_map": ["{ONE}"]}}',
    "whose map is a number": '{"weight_map": 7}',
    "that names a number": '{"weight_map": {"a": 7}}',
    "without a map": "{}",
    "that is no JSON": "{",
    "that is nested without end": "[" * 100000,
    "that is no text": "\udcff",
}


@pytest.mark.parametrize("case", UNREADABLE)
def test_what_the_engine_cannot_read_is_left_to_the_daemon(tmp_path: Path, case: str) -> None:
    two_shards(tmp_path)
    (tmp_path / INDEX).write_bytes(UNREADABLE[case].encode("utf-8", "surrogateescape"))
    assert sources_of_weights(str(tmp_path), choose, Options()) == [str(tmp_path)]


# Of a store the names alone are known, and its indexes.
def test_the_index_of_a_store_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"moved": INDEXES["from before a tensor moved"][0], "twice": INDEXES["with a key twice"][0]}
    for case, expected in (("moved", ["s3://b/m/"]), ("twice", [f"s3://b/m/{ONE}", f"s3://b/m/{TWO}"])):

        def fetch_list(source: str, **options: object) -> Iterable[str]:
            return [ONE, TWO, INDEX]

        def fetch(source: str, name: str, case: str = case, **options: object) -> bytes:
            assert name == INDEX
            return texts[case].encode()

        monkeypatch.setattr(streamerd, "fetch_list", fetch_list)
        monkeypatch.setattr(streamerd, "fetch", fetch)
        assert sources_of_weights("s3://b/m/", choose, Options()) == expected


@pytest.mark.parametrize("case", ["whose map is a list", "without a map", "that is no JSON", "that names a number"])
def test_a_snapshot_whose_index_is_none_is_incomplete(tmp_path: Path, case: str) -> None:
    commit = "0123456789012345678901234567890123456789"
    repository = tmp_path / "models--org--model"
    place = repository / "snapshots" / commit
    place.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    two_shards(place)
    assert locate("org/model", None, str(tmp_path)) == str(place)
    (place / INDEX).write_text(UNREADABLE[case])
    assert locate("org/model", None, str(tmp_path)) == "hf://org/model"


def test_names_of_a_store_lead_nowhere_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever they are listed: an engine writes what it has fetched below its own cache."""
    monkeypatch.setattr(streamerd, "fetch", lambda *_, **__: b"{}")
    monkeypatch.setattr(streamerd, "fetch_list", lambda *_, **__: ["../../escaped.safetensors"])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(streamerd.InvalidError, match="is no path below a folder"):
        sources_of_weights("s3://bucket/m", choose, Options())
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_engine_was_fetching_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamerd, "fetch", lambda *_, **__: b"{}")
    monkeypatch.setattr(streamerd, "fetch_list", lambda *_, **__: ["config.json", "sub/other.json"])
    directory = Path(fetch_engine_files("s3://bucket/m", str(tmp_path / "cache"), Options()))
    (directory / ".streamerd-0a-1.part").touch()
    assert fetch_engine_files("s3://bucket/m", str(tmp_path / "cache"), Options()) == str(directory)
    assert {path.name: path.read_text() for path in directory.iterdir()} == {
        "config.json": "{}", SOURCE_FILE: "s3://bucket/m",
    }  # fmt: skip
