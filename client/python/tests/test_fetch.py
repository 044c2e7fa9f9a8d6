# SPDX-License-Identifier: Apache-2.0
"""The small files beside a source's weights, which the daemon reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import small, write
from conftest import Daemon

import streamerd


@pytest.fixture
def checkpoint(folder: Path, daemon: Daemon) -> Path:
    """A directory below the daemon's root."""
    path = folder / "checkpoint"
    path.mkdir()
    write(path / "model.safetensors", small())
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (path / "empty.txt").touch()
    return path


def test_the_contents_of_a_file(checkpoint: Path) -> None:
    assert json.loads(streamerd.fetch(checkpoint, "config.json")) == {"model_type": "llama"}
    assert streamerd.fetch(str(checkpoint), "empty.txt") == b""


def test_a_large_file_is_complete(checkpoint: Path) -> None:
    data = bytes(range(256)) * 50_000
    (checkpoint / "tokenizer.json").write_bytes(data)
    assert streamerd.fetch(checkpoint, "tokenizer.json") == data


def test_the_list_names_the_files_that_can_be_fetched(checkpoint: Path) -> None:
    names = streamerd.fetch_list(checkpoint)
    assert {"config.json", "empty.txt"} <= set(names)
    for name in names:
        assert streamerd.fetch(checkpoint, name) == (checkpoint / name).read_bytes()
    assert sorted([*names, "model.safetensors"]) == sorted(streamerd.fetch_list(checkpoint, weights=True))


def test_a_missing_file_is_named(checkpoint: Path) -> None:
    with pytest.raises(streamerd.NotFoundError, match=r"tokenizer\.json"):
        streamerd.fetch(checkpoint, "tokenizer.json")


def test_a_name_does_not_lead_out_of_the_source(checkpoint: Path, folder: Path) -> None:
    (folder / "secret.txt").write_text("secret")
    with pytest.raises(streamerd.Error):
        streamerd.fetch(checkpoint, "../secret.txt")


def test_a_source_outside_the_roots_is_denied(checkpoint: Path) -> None:
    with pytest.raises(streamerd.Error, match="outside the roots"):
        streamerd.fetch("/etc", "passwd")


def test_nothing_is_made_resident(checkpoint: Path, daemon: Daemon) -> None:
    streamerd.fetch(checkpoint, "config.json")
    assert json.loads(daemon.ctl("list", "--json").stdout)["models"] == []
