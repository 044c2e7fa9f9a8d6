# SPDX-License-Identifier: Apache-2.0
"""Where an engine's model is: a path, the Hugging Face cache, a store, or the Hub.

An engine reads the configuration and the tokenizer itself. For a model that is not on this host the daemon fetches
them, with its own credentials, into a directory that stands for the model (see `fetch_engine_files`).

Nothing here imports an engine or torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from pathlib import Path

import streamerd

from ._source import hub_snapshot
from .engine_options import Options

HUB = "hf://"
REMOTE = ("s3://", HUB)
SOURCE_FILE = ".streamerd-source"
INDEX = "model.safetensors.index.json"

# Read by the engine itself, not by the weight loader: configuration, tokenizer, code that belongs to the model.
ENGINE_FILES = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".py")

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)


def is_remote(model: str) -> bool:
    return model.lower().startswith(REMOTE)


def _is_complete(snapshot: Path) -> bool:
    """Whether the weights were downloaded, too: an engine that reads a configuration makes a snapshot without them."""
    index = snapshot / INDEX
    if not index.exists():
        return any(snapshot.glob("*.safetensors"))
    shards = set(json.loads(index.read_text())["weight_map"].values())
    return all((snapshot / shard).exists() for shard in shards)


def locate(model: str, revision: str | None, cache: str | None) -> str:
    """The source that the daemon reads for a model that an engine names.

    A path and a URL are taken as they are. org/name is a snapshot in `cache` (None: the Hugging Face cache) that has
    the weights, else hf://org/name@revision; with HF_HUB_OFFLINE it stays as it is.
    """
    if "://" in model:
        return model
    if os.path.exists(model):
        return os.path.abspath(model)
    if not _HUB_ID.fullmatch(model):
        return model
    named = f"{model}@{revision}" if revision else model
    for folder in (cache, None) if cache else (None,):
        snapshot = hub_snapshot(named, folder)
        if snapshot is not None and _is_complete(Path(snapshot)):
            return os.path.abspath(snapshot)
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return named if offline else HUB + named


def in_hub_cache(model: str, revision: str | None) -> bool:
    """Whether the Hugging Face cache has something of org/name."""
    return hub_snapshot(f"{model}@{revision}" if revision else model) is not None


def fetch_engine_files(source: str, cache: str, options: Options) -> str:
    """Fetches what an engine reads beside the weights of a remote source, through the daemon.

    Returns a directory below `cache` that holds these files and remembers the source (see `source_of`). The
    daemon's own credentials are used. The directory is the same for each start; its files are replaced one by one.
    """
    directory = Path(cache) / hashlib.sha256(source.encode()).hexdigest()[:16]
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    with options.environment():
        for name in streamerd.fetch_list(source, **options.connection):
            if name.endswith(ENGINE_FILES) and not name.endswith(".safetensors.index.json") and "/" not in name:
                _write(directory / name, streamerd.fetch(source, name, **options.connection))
    _write(directory / SOURCE_FILE, source.encode())
    return str(directory)


def _write(path: Path, data: bytes) -> None:
    """Replaces a file whole: another engine may read it at this moment."""
    fd, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as f:
            f.write(data)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def source_of(model: str, cache: str) -> str:
    """The remote source whose files `fetch_engine_files` wrote to this directory; any other name or path as it is."""
    path = Path(model)
    if path.parent == Path(cache) and (path / SOURCE_FILE).is_file():
        return (path / SOURCE_FILE).read_text()
    return model
