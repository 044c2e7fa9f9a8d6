# SPDX-License-Identifier: Apache-2.0
"""LoRA adapters by name or URI, as folders that an engine reads.

    named > configuration read, and compared with the engine's model > weights resident > written

Names are those of requests to the engine. So nothing is resolved but what lies below the sources that the operator has
configured, and an adapter that was made for another model is refused before its weights are read.

A folder of files that were fetched is named by the digest of what it has: it never changes, since an engine reads an
adapter again that it has dropped, and a new version of the adapter has another folder. It is whole once it has the
configuration, which is written last, so processes need no lock.

A configuration can contain anything: it comes from whoever can write to the source.

Nothing here imports an engine or torch.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
from collections.abc import Iterable
from logging import Logger
from typing import Any

import streamerd

from .._file import write_file
from .._folder import Writer
from .._safetensors import file_name
from .options import LoadLog
from .sources import HUB, REMOTE, is_offline, source_of, strict_json

SCHEMES = (*REMOTE, "http://", "https://")
CONFIGURATION = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"

_FOLDER = "adapters"  # below the engine's own cache
_NAME = re.compile(r"[\w.@+=~:/-]{1,1024}")
_CONFIGURATION_MAX = 1 << 20  # bytes: PEFT's have about 1 KiB
_BASE_MAX = 4096
_SNAPSHOT = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/[^/]+$")


class Adapters:
    """`sources`: folders, prefixes of stores, and schemes ("hf://"), in the order in which a name is looked for. `bases`:
    further names by which adapters call the engine's model. `cache`: the folder of sources.fetch_engine_files()."""

    def __init__(self, sources: Iterable[str], bases: Iterable[str], cache: str, logger: Logger) -> None:
        self._sources = [_source(text) for text in sources]
        self._bases = frozenset(bases)
        self._cache = cache
        self._logger = logger

    def find(self, model: str, name: str) -> str | None:
        """The folder of an adapter of the engine's model. None: there is none of this name, or it is refused, which the log
        says."""
        for place in self._places(name):
            try:
                folder = self._folder(model, place)
            except (streamerd.Error, OSError, ValueError) as error:
                self._logger.warning("streamerd: adapter %s: %s", name, error)
                continue
            if folder is not None:
                return folder
        return None

    def _places(self, name: str) -> list[str]:
        """Where a name may be: itself, if it is a path or URI, else below each source."""
        _, _, path = name.rpartition("://")
        parts = path.removeprefix("/").split("/")
        if not _NAME.fullmatch(name) or any(part in ("", ".", "..") for part in parts):
            return []
        if "://" in name or name.startswith("/"):
            place = _compared(name)
            return [place] if any(_is_below(place, source) for source in self._sources) else []
        return [source + "/" * (not source.endswith("/")) + name for source in self._sources]

    def _folder(self, model: str, place: str) -> str | None:
        """None: there is no adapter."""
        is_local = place.startswith("/")
        if is_local:
            place = self._without_links(place)
        if place.startswith(HUB) and is_offline():
            raise streamerd.FailedError(f"{place}: HF_HUB_OFFLINE is set")
        url = f"{place}/{WEIGHTS}"
        try:
            configuration = _read(os.path.join(place, CONFIGURATION)) if is_local else streamerd.fetch(url, CONFIGURATION)
        except (FileNotFoundError, NotADirectoryError):  # a NotFoundError is one
            return None
        self._require_fitting(model, place, configuration)
        return place if is_local else self._written(place, url, configuration)

    def _without_links(self, place: str) -> str:
        path = os.path.realpath(place)
        if not any(_is_below(path, os.path.realpath(source)) for source in self._sources if source.startswith("/")):
            raise streamerd.DeniedError(f"{place}: a link leads out of the folders of adapters")
        return path

    def _require_fitting(self, model: str, place: str, configuration: bytes) -> None:
        if len(configuration) > _CONFIGURATION_MAX:
            raise streamerd.LimitError(f"{place}: {CONFIGURATION} has more than {_CONFIGURATION_MAX} bytes")
        try:
            config = strict_json(configuration.decode())
        except (ValueError, RecursionError) as error:
            raise streamerd.CorruptError(f"{place}: {CONFIGURATION} is no JSON: {error}") from None
        if not isinstance(config, dict) or config.get("peft_type") != "LORA":
            raise streamerd.InvalidError(f"{place}: {CONFIGURATION} describes no LoRA adapter")
        base = config.get("base_model_name_or_path")
        if not isinstance(base, str) or not base or len(base) > _BASE_MAX:
            raise streamerd.InvalidError(f"{place}: {CONFIGURATION} does not say which model it is for")
        if not names_of(base, self._cache) & (names_of(model, self._cache) | self._bases):
            shown = base if base.isprintable() else repr(base)
            raise streamerd.InvalidError(
                f"{place}: is an adapter of {shown}, and the engine's model is {source_of(model, self._cache)}; if they are "
                "the same, name it in STREAMERD_ADAPTER_BASES"
            )

    def _written(self, place: str, url: str, configuration: bytes) -> str:
        """The folder with these files. The weights are resident from now on, and read once for all engines."""
        with streamerd.open(
            url, framework="numpy", name=file_name(url), device="cpu", ready=True, progress=LoadLog(url, self._logger)
        ) as model:
            content = hashlib.sha256(configuration + model.digest.encode()).hexdigest()[:16]
            words = re.sub(r"[^A-Za-z0-9._-]+", "-", place.partition("://")[2]).strip("-.")[-60:]
            folder = os.path.join(self._cache, _FOLDER, f"{words}-{content}")
            if not os.path.isfile(os.path.join(folder, CONFIGURATION)):
                _write(folder, configuration, model)
                self._logger.info("streamerd: adapter %s: %s", place, folder)
        return folder


def _read(path: str) -> bytes:
    """A configuration, and no more than shows that it is too long. What is no file is none: a pipe would block."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as f:
        if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
            raise streamerd.InvalidError(f"{path}: is no regular file")
        return f.read(_CONFIGURATION_MAX + 1)


def _write(folder: str, configuration: bytes, model: streamerd.Model[Any]) -> None:
    os.makedirs(os.path.dirname(folder), mode=0o700, exist_ok=True)
    with Writer(folder) as writer:
        with writer.file(WEIGHTS) as f:
            write_file(model, f)
        writer.write(CONFIGURATION, configuration)


def _source(text: str) -> str:
    if not text.startswith("/") and not text.lower().startswith(SCHEMES):
        schemes = ", ".join(SCHEMES)
        raise ValueError(f"STREAMERD_ADAPTERS: {text!r} is neither an absolute path nor a URI ({schemes})")
    return _compared(text)


def _compared(place: str) -> str:
    """A path or URI without a slash at its end, and with its scheme in lower case."""
    if place.startswith("/"):
        return os.path.normpath(place)
    scheme, mark, path = place.partition("://")
    return scheme.lower() + mark + path.rstrip("/")


def _is_below(place: str, source: str) -> bool:
    if place == source or source.endswith("/"):
        return place.startswith(source)
    return place.startswith((f"{source}/", f"{source}@") if source.startswith(HUB) else f"{source}/")


def names_of(model: str, cache: str) -> frozenset[str]:
    """What a model may be called: its path, its source, and without a revision its name on the Hub."""
    source = source_of(model, cache).rstrip("/")
    names = {model.rstrip("/"), source}
    if source.startswith(HUB):
        names.add(source.removeprefix(HUB).partition("@")[0])
    if os.path.exists(source):
        path = os.path.realpath(source)
        names.add(path)
        if match := _SNAPSHOT.search(path):
            names.add(f"{match[1]}/{match[2]}")
    return frozenset(names)
