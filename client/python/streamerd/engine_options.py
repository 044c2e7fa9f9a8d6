# SPDX-License-Identifier: Apache-2.0
"""What the loaders for inference engines share: their options, how they open a model, how they report errors.

Nothing here imports an engine or torch.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import streamerd

REMOTE = ("s3://",)
SOURCE_FILE = ".streamerd-source"

# Read by the engine itself, not by the weight loader: configuration, tokenizer, code that belongs to the model.
ENGINE_FILES = (".json", ".model", ".txt", ".jinja", ".tiktoken", ".py")


# What to change in the loader's configuration, by kind of error.
ADVICE: dict[type[streamerd.Error], str] = {
    streamerd.DigestError: "correct `digest`, or the source",
    streamerd.OutOfMemoryError: "raise the daemon's budget, unload a model, or set `wait` to wait for memory",
    streamerd.UnreachableError: "start streamerd, or check `socket`; `fallback` lets the engine load without it",
}


@dataclass(frozen=True)
class Options:
    """The extra configuration of a loader (``--model-loader-extra-config``).

    name         name of the model in the daemon; default: derived from the source
    digest       32 hex digits that the model's digest must equal
    device       where the weights are resident: "cpu" or "cuda:N"; default: "cpu", with alias the engine's device
    socket       the daemon's socket; default: $STREAMERD_SOCKET, else the package's default
    concurrency  blocks in flight for one load, of a daemon that this process starts
    wait         wait for memory where the model does not fit now, instead of failing
    pattern      names of a sharded checkpoint's files, with {rank} and {part}
    autostart    start a daemon where none answers; default: unless STREAMERD_AUTOSTART=0
    alias        use the resident tensors as parameters where that is safe
    fallback     load from the source by the engine's own loader where the daemon cannot serve the model
    """

    name: str | None = None
    digest: str | None = None
    device: str | None = None
    socket: str | None = None
    concurrency: int | None = None
    wait: bool = False
    pattern: str | None = None
    autostart: bool | None = None
    alias: bool = False
    fallback: bool = False

    @classmethod
    def parse(cls, config: object, load_format: str) -> Options:
        """Checks keys and types. Raises ValueError with a message for the person who wrote the configuration."""
        where = f"model_loader_extra_config of load format {load_format}"
        if config is None:
            return cls()
        if not isinstance(config, Mapping):
            raise ValueError(f"{where}: must be a JSON object, not {type(config).__name__}")
        known = {f.name: f for f in fields(cls)}
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{where}: unknown key {key!r}{hint} (known: {', '.join(known)})")
        options = cls(**config)
        options._check(where)
        return options

    def _check(self, where: str) -> None:
        wanted: dict[type, str] = {bool: "true or false", int: "a positive integer", str: "a string"}
        for field in fields(self):
            value: Any = getattr(self, field.name)
            if value is None and field.default is None:
                continue
            kind = {"concurrency": int, "wait": bool, "autostart": bool, "alias": bool, "fallback": bool}.get(
                field.name, str
            )
            if type(value) is not kind or (isinstance(value, int) and kind is int and value < 1):
                raise ValueError(f"{where}: {field.name} must be {wanted[kind]}, not {value!r}")
        if self.digest is not None and not (
            len(self.digest) == 32 and set(self.digest.lower()) <= set("0123456789abcdef")
        ):
            raise ValueError(f"{where}: digest must be 32 hex digits, not {self.digest!r}")

    def open(self, source: str, **more: Any) -> streamerd.Model[Any]:
        """Opens a source, or the resident model of that name, with these options; `more` goes over them."""
        if self.concurrency is not None:
            os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(self.concurrency)  # a daemon that this starts inherits it
        options: dict[str, Any] = {
            "name": self.name,
            "digest": self.digest,
            "device": self.device or "cpu",
            "wait": self.wait,
            "progress": False,
            **self.connection,
        }
        try:
            return streamerd.open(source, **{**options, **more})
        except streamerd.Error as error:
            advice = next((text for kind, text in ADVICE.items() if isinstance(error, kind)), None)
            raise type(error)(f"{error}: {advice}") if advice else error from None

    @property
    def connection(self) -> dict[str, Any]:
        """Keywords that choose the daemon."""
        return {"socket": self.socket, "autostart": self.autostart}


def is_remote(model: str) -> bool:
    return model.lower().startswith(REMOTE)


def fetch_engine_files(source: str, cache: str, options: Options) -> str:
    """Fetches what an engine reads beside the weights of a remote source, through the daemon.

    Returns a directory below `cache` that holds these files and remembers the source (see `source_of`). The
    daemon's own credentials are used. The directory is the same for each start; its files are replaced one by one.
    """
    directory = Path(cache) / hashlib.sha256(source.encode()).hexdigest()[:16]
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
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
