# SPDX-License-Identifier: Apache-2.0
"""Where an engine's model is: a path, the Hugging Face cache, a store, or the Hub; and which files are its weights.

An engine reads the configuration and the tokenizer itself. For a model that is not on this host the daemon fetches
them, with its own credentials, into a directory that stands for the model (see `fetch_engine_files`).

Which files of a folder are the weights is the engine's decision (see `sources_of_weights`): the daemon's own rule is
that of transformers.

Nothing here imports an engine or torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import streamerd

from .._client import connect
from .._folder import Writer
from .._source import hub_snapshot
from .options import Options

HUB = "hf://"
STORES = ("s3://", "gs://", "az://", "abfs://", "abfss://")
REMOTE = (*STORES, HUB)
SOURCE_FILE = ".streamerd-source"
SUFFIX = ".safetensors"
INDEX = "model.safetensors.index.json"

# Read by the engine itself, not by the weight loader: configuration, tokenizer, code that belongs to the model.
ENGINE_FILES = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".py")

# One of these describes a model.
CONFIGURATIONS = ("config.json", "params.json", "model_index.json")

# Weights of other formats, which an engine may prefer to no safetensors at all.
_WEIGHTS = (SUFFIX, ".bin", ".pt")

_OF_SET = re.compile(r"-\d{5}-of-\d{5}\.safetensors$")

_HEADER_MAX = 100_000_000  # bytes, of safetensors

# What reading an index raises that is none.
_NO_INDEX = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+", re.ASCII)

# Of a folder, the files that the engine's own loader would read, in its order: of a tensor in two, the last counts.
Choose = Callable[[str], Iterable[str]]


def is_remote(model: str) -> bool:
    return model.lower().startswith(REMOTE)


def is_store(source: str) -> bool:
    """Whether a source is in an object store."""
    return source.lower().startswith(STORES)


def is_file(model: str) -> bool:
    """Whether a model is one file of weights on this host: its configuration lies beside it."""
    return model.endswith(SUFFIX) and os.path.isfile(model)


def is_offline() -> bool:
    """Whether the Hub must not be asked."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _is_complete(snapshot: Path) -> bool:
    """Whether the weights were downloaded, too: an engine that reads a configuration makes a snapshot without them."""
    index = snapshot / INDEX
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values()) if index.exists() else set()
        missing = [shard for shard in shards if not (snapshot / shard).exists()]
    except _NO_INDEX:
        return False
    return not missing if shards else any(snapshot.glob("*" + SUFFIX))


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
    return named if is_offline() else HUB + named


def in_hub_cache(model: str, revision: str | None) -> bool:
    """Whether the Hugging Face cache has something of org/name."""
    return hub_snapshot(f"{model}@{revision}" if revision else model) is not None


# ---- the directory that stands for a model ----


def _directory(source: str, cache: str) -> Path:
    """Its name is for people, and unique by the digest at its end."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", source.partition("://")[2] or source).strip("-.")[-60:]
    return Path(cache) / f"{words}-{hashlib.sha256(source.encode()).hexdigest()[:16]}"


def fetched_repository(model: str, revision: str | None, cache: str) -> str | None:
    """The directory that an earlier engine's fetch_engine_files() has made of org/name, or hf://org/name; None if there
    is none."""
    name = model.removeprefix(HUB)
    if not _HUB_ID.fullmatch(name.partition("@")[0]):
        return None
    directory = _directory(f"{HUB}{name}@{revision}" if revision and "@" not in name else HUB + name, cache)
    return str(directory) if os.path.isfile(directory / SOURCE_FILE) else None


def fetch_engine_files(source: str, cache: str, options: Options, configured: bool = True) -> str:
    """Fetches what an engine reads beside the weights of a source, through the daemon.

    Returns a directory below `cache` that holds these files and remembers the source (see `source_of`). The
    daemon's own credentials are used. The directory is the same for each start; its files are replaced one by one, and
    those that the source no longer has are removed. `configured`: the source must have a model's configuration.
    """
    with options.environment():
        files = streamerd.fetch_list(source, **options.connection)
        names = [name for name in files if name.endswith(ENGINE_FILES) and "/" not in name]
        if not files:
            raise streamerd.NotFoundError(f"{source}: there are no files")
        if configured and not set(names) & set(CONFIGURATIONS):
            raise streamerd.NotFoundError(f"{source}: there is no config.json, which the engine reads")
        directory = _directory(source, cache)
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        kept = {name for name in names if not name.endswith(SUFFIX + ".index.json")}
        with Writer(directory) as writer:
            for name in sorted(kept):
                writer.write(name, streamerd.fetch(source, name, **options.connection))
            for path in directory.iterdir():
                if path.name.endswith(ENGINE_FILES) and path.name not in kept:
                    path.unlink(missing_ok=True)
            writer.write(SOURCE_FILE, source.encode())
    return str(directory)


def source_of(model: str, cache: str) -> str:
    """The source whose files `fetch_engine_files` wrote to this directory; any other name or path as it is."""
    path = Path(model)
    if path.parent == Path(cache) and (path / SOURCE_FILE).is_file():
        return (path / SOURCE_FILE).read_text()
    return model


def resident_model(source: str, options: Options) -> str:
    """The name of the resident model that was loaded from this repository of the Hub, which is not asked.

    Raises NotFoundError if there is none.
    """
    name = re.match(r"[^/]+/[^/@]+", source.removeprefix(HUB))
    end = len(HUB) + (name.end() if name else 0)
    canonical = source if source[end : end + 1] == "@" else f"{source[:end]}@main{source[end:]}"
    for model in connect(options.socket, options.autostart).call("list")["models"]:
        if model["source"] == canonical and model["state"] == "ready":
            return str(model["name"])
    raise streamerd.NotFoundError(f"{source}: HF_HUB_OFFLINE is set, and no resident model was loaded from it")


# ---- the weights ----


def sources_of_weights(source: str, choose: Choose, options: Options) -> list[str]:
    """The sources of the daemon that together are the files that the engine's own loader would read, in its order.

    This is the source itself where the daemon reads the same files of it: those of the index, or the only one. Else
    each file is a source. A folder that the engine's own loader cannot read is left to the daemon.
    """
    if source.endswith(SUFFIX):
        return [source]
    if is_remote(source):
        with tempfile.TemporaryDirectory() as folder:
            _make_placeholders(source, folder, options)
            return _sources(source, folder, choose)
    return _sources(source, source, choose) if os.path.isdir(source) else [source]


def part_name(name: str, source: str) -> str:
    """The name of one of several sources of a model that has a name."""
    return f"{name}/{os.path.basename(source).removesuffix(SUFFIX)}"


def _make_placeholders(source: str, folder: str, options: Options) -> None:
    """The names of the weights of a remote source, and the contents of its indexes, for a rule that looks at folders."""
    with options.environment(), Writer(folder) as writer:
        for name in streamerd.fetch_list(source, weights=True, **options.connection):
            if name.endswith((*_WEIGHTS, ".index.json")):
                writer.write(name, streamerd.fetch(source, name, **options.connection) if name.endswith(".json") else b"")


def _sources(source: str, folder: str, choose: Choose) -> list[str]:
    try:
        files = list(choose(folder))
    except (RuntimeError, *_NO_INDEX):
        return [source]
    names = [os.path.relpath(file, folder) for file in files]
    if not any(name.endswith(SUFFIX) for name in names):
        raise streamerd.NotFoundError(
            f"{source}: there are no safetensors files; {min(names, default='nothing')} would have to be converted "
            "(transformers: from_pretrained(), then save_pretrained())"
        )
    alone = _read_alone(Path(folder), names)
    whole = bool(alone) and alone <= set(names)
    rest = [name for name in names if not (whole and name in alone)]
    return [source] * whole + [f"{source.rstrip('/')}/{name}" for name in rest]


def _read_alone(folder: Path, chosen: list[str]) -> set[str]:
    """The files that the daemon reads of a folder, where this follows from an index, or from there being only one.

    None of an index that the daemon refuses, or by which it takes other tensors of the chosen files than the engine: that
    takes all of each, and of a tensor in two the last.
    """
    index = folder / INDEX
    if index.is_file():
        try:
            weight_map = strict_json(index.read_text())["weight_map"]
            files = set(weight_map.values())
        except _NO_INDEX:
            return set()
        return files if _index_agrees(weight_map, folder, chosen) else set()
    names = {path.name for path in folder.glob("[!.]*" + SUFFIX)}
    alone = len(names) == 1 and not any(folder.glob("*.index.json"))
    # Of a set the daemon wants all files; an engine takes what is there, and what it lacks is named later.
    return names if alone and not _OF_SET.search(min(names)) else set()


def strict_json(text: str) -> Any:
    """The JSON document, as the daemon reads it: ValueError for a key that is given twice, and for NaN and Infinity."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        read = dict(pairs)
        if len(read) < len(pairs):
            raise ValueError("a key is given twice")
        return read

    def refuse(constant: str) -> Any:
        raise ValueError(f"{constant} is no number of JSON")

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse)


def _tensors(file: Path) -> list[str]:
    """The names of a file's tensors; none of one that cannot be read here, as in a folder that stands for a store."""
    try:
        with open(file, "rb") as f:
            size = int.from_bytes(f.read(8), "little")
            header = json.loads(f.read(size)) if size <= _HEADER_MAX else {}
        return [name for name in header if name != "__metadata__"]
    except _NO_INDEX:
        return []


def _index_agrees(weight_map: dict[str, str], folder: Path, chosen: list[str]) -> bool:
    """Whether each tensor of these files is in the file that the index names, or in one file alone, and there the last
    one of its name: an index may be older than the files."""
    last: dict[str, str] = {}
    repeated = set()
    for file in chosen:
        for name in _tensors(folder / file):
            if name in last:
                repeated.add(name)
            last[name] = file
    return all(weight_map.get(name, None if name in repeated else file) == file for name, file in last.items())


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A key by which part 10 comes after part 9, as engines sort files."""
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in re.split(r"(\d+)", name)]


def engine_name(configured: str | None, source: str) -> str:
    """What names of models begin with that an engine makes of a source: `configured`, or of a snapshot org/name@revision."""
    path = source.removeprefix(HUB).partition("://")[2] or source.removeprefix(HUB)
    base = configured or path.strip("/")
    parts = base.split("/")
    if "snapshots" in parts[1:] and parts[parts.index("snapshots") - 1].startswith("models--"):
        at = parts.index("snapshots")
        base = parts[at - 1].removeprefix("models--").replace("--", "/", 1) + f"@{parts[at + 1]}"
    return base
