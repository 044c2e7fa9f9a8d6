# SPDX-License-Identifier: Apache-2.0
"""Run:ai's calls where they differ in what they read: headers, stores, folders that are filled once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small, write
from conftest import Daemon, eventually
from slow_server import SlowServer
from store import Store

import streamerd
from streamerd._runai import WINDOW

DAMAGED = b"PK\x03\x04 no safetensors" * 100


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """With a daemon that reads it."""
    store = Store()
    daemon = Daemon(folder, more=store.settings)
    monkeypatch.setenv("STREAMERD_SOCKET", daemon.socket)
    yield store
    daemon.stop()
    store.close()


# ---- headers ----


@pytest.mark.parametrize("place", [0, 1, 40])
def test_headers_are_checked_before_stream_files_returns(folder: Path, daemon: Daemon, place: int) -> None:
    paths = []
    for i in range(41):
        write(folder / f"{i}.safetensors", [(str(i), "U8", [8])])
        paths.append(str(folder / f"{i}.safetensors"))
    Path(paths[place]).write_bytes(DAMAGED)
    with streamerd.SafetensorsStreamer() as streamer, pytest.raises(ValueError, match=f"{place}.safetensors"):
        streamer.stream_files(paths)
    eventually(lambda: streamerd.status() and not daemon.leases())  # a call reads replies that nobody waits for
    write(Path(paths[place]), [(str(place), "U8", [8])])
    with streamerd.SafetensorsStreamer() as streamer:
        streamer.stream_files(paths)
        assert sorted(int(name) for name, _ in streamer.get_tensors()) == list(range(41))


def test_headers_of_files_that_wait_for_others_are_checked(
    folder: Path, daemon: Daemon, slow_server: SlowServer
) -> None:
    """As many files as load at once do not end."""
    tensors = [("begin", "U8", [1 << 20]), ("end", "U8", [1 << 20])]
    slow = [slow_server.serve(f"{i}.safetensors", tensors, first=1) for i in range(WINDOW)]
    (folder / "damaged.safetensors").write_bytes(DAMAGED)
    write(folder / "m.safetensors", small())
    with streamerd.SafetensorsStreamer() as streamer:
        for last, error in (("damaged", streamerd.FailedError), ("gone", streamerd.NotFoundError)):
            url = slow[0].replace("/0.", "/gone.") if last == "gone" else str(folder / "damaged.safetensors")
            with pytest.raises(error) as caught:
                streamer.stream_files([*slow, url])
            assert isinstance(caught.value, ValueError)
        streamer.stream_files([*slow, str(folder / "m.safetensors")])
        slow_server.release()
        assert len(list(streamer.get_tensors())) == 2 * WINDOW + 4


def test_a_missing_file_is_a_value_error_too(daemon: Daemon) -> None:
    with streamerd.SafetensorsStreamer() as streamer, pytest.raises(ValueError, match="no such file") as caught:
        streamer.stream_file("/nosuch.safetensors")
    assert isinstance(caught.value, FileNotFoundError)


def test_the_metadata_is_of_the_tensors_that_are_asked_for(folder: Path, daemon: Daemon) -> None:
    import runai_model_streamer

    paths = []
    for i in range(2):
        write(folder / f"{i}.safetensors", [(f"{i}.{k}", "F32", [k + 1]) for k in range(3)])
        paths.append(str(folder / f"{i}.safetensors"))
    described = []
    for kind in (streamerd.SafetensorsStreamer, runai_model_streamer.SafetensorsStreamer):
        with kind() as streamer:
            streamer.stream_files(paths, tensor_names=["0.1", "0.2"])
            metadata = streamer.files_to_tensors_metadata
            assert [len(metadata[i]) for i in range(2)] == [2, 0]
            described.append([(m.name, m.dtype, list(m.shape)) for i in range(2) for m in metadata[i]])
            list(streamer.get_tensors())
    assert described[0] == described[1]


# ---- stores ----


def contents(path: Path, tensors: Any, metadata: dict[str, str] | None = None) -> bytes:
    write(path, tensors, metadata)
    data = path.read_bytes()
    path.unlink()
    return data


def test_the_files_of_a_prefix_are_listed_and_streamed(folder: Path, store: Store) -> None:
    for i in range(2):
        name = f"m/model-{i}.safetensors"
        store.objects[name] = contents(folder / "x", [(f"{i}.{n}", dtype, shape) for n, dtype, shape in small(2)])
    store.objects |= {"m/config.json": b"{}", "m/below/model.safetensors": store.objects["m/model-0.safetensors"]}
    expected = ["s3://bucket/m/model-0.safetensors", "s3://bucket/m/model-1.safetensors"]
    assert streamerd.list_safetensors("s3://bucket/m") == streamerd.list_safetensors("s3://bucket/m/") == expected
    assert streamerd.list_safetensors(expected[0]) == expected[:1]
    with streamerd.SafetensorsStreamer() as streamer:
        streamer.stream_files(expected)
        assert len(list(streamer.get_tensors())) == 4
    assert streamerd.list_safetensors("s3://bucket/nosuch/") == []


def test_files_are_pulled_with_those_in_folders_below(folder: Path, store: Store) -> None:
    weights = contents(folder / "x", small())
    files = {"config.json": b"{}", "model.safetensors": weights, "original/params.json": b"[]", "a/b/c.txt": b"c"}
    store.objects = {f"m/{name}": data for name, data in files.items()}
    streamerd.pull_files("s3://bucket/m", str(folder / "all"))
    found = {str(p.relative_to(folder / "all")): p.read_bytes() for p in (folder / "all").rglob("*") if p.is_file()}
    assert found == files
    streamerd.pull_files("s3://bucket/m", str(folder / "some"), ["*.json", "*.txt"], ["original/*"])
    found = {str(p.relative_to(folder / "some")): p.read_bytes() for p in (folder / "some").rglob("*") if p.is_file()}
    assert found == {"config.json": b"{}", "a/b/c.txt": b"c"}


def test_a_file_that_cannot_be_pulled_stays_as_it_was(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, name: str) -> bytes:
        raise streamerd.LimitError(f"{source}: {name}")

    store.objects = {"m/config.json": b"{}", "m/other.json": b"[]"}
    (folder / "to").mkdir()
    (folder / "to" / "config.json").write_bytes(b"before")
    monkeypatch.setattr("streamerd._runai.fetch", refuse)
    with pytest.raises(streamerd.LimitError):
        streamerd.pull_files("s3://bucket/m", str(folder / "to"))
    assert {p.name: p.read_bytes() for p in (folder / "to").iterdir()} == {"config.json": b"before"}


def test_nothing_is_pulled_through_a_link_below_the_folder(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither small files nor weights, nor the mark of a folder that is complete."""
    monkeypatch.setattr("streamerd._runai.FETCHED_MAX", 100)
    store.objects = {"m/a.json": b"{}", "m/z/b.json": b"[]", "m/w.safetensors": contents(folder / "x", small())}
    (folder / "elsewhere").mkdir()
    to = folder / "to"
    to.mkdir()
    for name in ("a.json", "w.safetensors", "a.json.part"):
        (folder / "elsewhere" / name).write_bytes(b"mine")
        (to / name).symlink_to(folder / "elsewhere" / name)
    (to / "z").symlink_to(folder / "elsewhere")
    with pytest.raises(streamerd.SystemCallError, match="/to/z/b.json: Not a directory"):
        streamerd.pull_files("s3://bucket/m", str(to))
    assert {p.name: p.read_bytes() for p in (folder / "elsewhere").iterdir()} == {
        "a.json": b"mine", "w.safetensors": b"mine", "a.json.part": b"mine",
    }  # fmt: skip
    assert (to / "a.json").read_bytes() == b"{}" and not (to / "a.json").is_symlink()
    assert (to / "w.safetensors").stat().st_size > 100 and not (to / "w.safetensors").is_symlink()
    with pytest.raises(OSError, match="runai_complete"), streamerd.ObjectStorageModel("s3://bucket/m", str(folder / "o")) as model:
        model.pull_files(["*.json"])
        (folder / "o" / ".runai_complete").symlink_to(folder / "elsewhere" / "a.json")
    assert (folder / "elsewhere" / "a.json").read_bytes() == b"mine"


def test_a_file_that_is_pulled_again_keeps_its_permissions(folder: Path, store: Store) -> None:
    store.objects = {"m/a.json": b"{}", "m/b.json": b"[]"}
    (folder / "to").mkdir()
    (folder / "to" / "a.json").touch(mode=0o600)
    (folder / "to" / ".streamerd-0a-1.part").touch()
    streamerd.pull_files("s3://bucket/m", str(folder / "to"))
    (folder / "like").touch()
    modes = {p.name: p.stat().st_mode & 0o777 for p in (folder / "to").iterdir()}
    assert modes == {"a.json": 0o600, "b.json": (folder / "like").stat().st_mode & 0o777}


def test_keys_that_are_no_paths_of_files_are_not_pulled(folder: Path, store: Store) -> None:
    names = ("", "d/", "a//b", "../b", "a/./b", ".hidden", "a/.hidden", "/b", "x\ny", "é")
    store.objects = {f"m/{name}": name.encode() for name in names}
    streamerd.pull_files("s3://bucket/m", str(folder / "to"))
    assert {str(p.relative_to(folder / "to")) for p in (folder / "to").rglob("*")} == {"x\ny", "é"}


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "by": "müller"}])
def test_large_weights_are_written_from_resident_memory(
    folder: Path, store: Store, monkeypatch: pytest.MonkeyPatch, metadata: dict[str, str] | None
) -> None:
    import safetensors

    monkeypatch.setattr("streamerd._runai.FETCHED_MAX", 1000)
    tensors = [("z", "F32", [100, 8]), ("empty", "I64", [0, 3]), ("a", "BF16", [7]), ("scalar", "U8", [])]
    original = contents(folder / "x.safetensors", tensors, metadata)
    store.objects = {"m/below/model.safetensors": original}
    streamerd.pull_files("s3://bucket/m/", str(folder / "to"))
    pulled = folder / "to" / "below" / "model.safetensors"
    (folder / "original.safetensors").write_bytes(original)
    assert pulled.stat().st_size == len(original)
    assert [p.name for p in pulled.parent.iterdir()] == ["model.safetensors"]
    with safetensors.safe_open(pulled, "pt") as f, safetensors.safe_open(folder / "original.safetensors", "pt") as g:
        assert (f.keys(), f.offset_keys(), f.metadata()) == (g.keys(), g.offset_keys(), g.metadata())
        assert all(torch.equal(f.get_tensor(name), g.get_tensor(name)) for name in g.keys())


def test_a_folder_is_filled_once_by_either_package(folder: Path, store: Store) -> None:
    import runai_model_streamer

    store.objects = {"m/config.json": b"{}", "m/model.safetensors": contents(folder / "x", small())}
    for _ in range(2):
        with streamerd.ObjectStorageModel("s3://bucket/m", str(folder / "to")) as model:
            model.pull_files(["*.safetensors"])
            model.pull_files(ignore_pattern=["*.safetensors"])
        store.objects.pop("m/config.json", None)
    assert {p.name for p in (folder / "to").iterdir()} == {"config.json", "model.safetensors", ".runai_complete"}
    with runai_model_streamer.ObjectStorageModel("s3://bucket/m", str(folder / "to")) as theirs:
        theirs.pull_files()  # does nothing, or it would need Run:ai's package for S3
    assert (folder / "to" / "config.json").read_bytes() == b"{}"


def test_a_folder_without_files_is_not_complete(folder: Path, store: Store) -> None:
    store.objects = {"m/config.json": b"{}"}
    (folder / "to").mkdir()
    (folder / "to" / "stale").touch()
    with pytest.raises(RuntimeError, match="no files were pulled"):
        with streamerd.ObjectStorageModel("s3://bucket/m", str(folder / "to")) as model:
            model.pull_files(["*.none"])
    with streamerd.ObjectStorageModel("s3://bucket/m", str(folder / "to")) as model:
        model.pull_files()
    assert {p.name for p in (folder / "to").iterdir()} == {"config.json", ".runai_complete"}
