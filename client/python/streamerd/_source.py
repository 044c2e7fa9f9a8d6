# SPDX-License-Identifier: Apache-2.0
"""What a caller names: a URL, a path, an id in the Hugging Face cache, or a resident model."""

from __future__ import annotations

import os
import re
from pathlib import Path

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@.+)?", re.ASCII)


def is_local(source: str) -> bool:
    """Whether `source` is a path, by the rule of streamer_open_start()."""
    return "://" not in source and (source.startswith(("/", ".")) or os.path.lexists(source))


def _hub_cache() -> Path:
    for variable, folder in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        value = os.environ.get(variable)
        if value:
            return Path(value, folder)
    return Path("~/.cache/huggingface/hub").expanduser()


def hub_snapshot(source: str, cache: str | None = None) -> Path | None:
    """The folder of an org/name[@rev] in `cache`, None: the Hugging Face cache; None if there is none."""
    if not _HUB_ID.fullmatch(source):
        return None
    name, _, revision = source.partition("@")
    repository = (Path(cache) if cache else _hub_cache()) / ("models--" + name.replace("/", "--"))
    try:
        commit = (repository / "refs" / (revision or "main")).read_text().strip()
    except OSError:
        commit = revision
    snapshot = repository / "snapshots" / commit
    return snapshot if commit and snapshot.is_dir() else None


def _plain_name(path: str) -> str:
    return os.path.basename(os.path.abspath(path)).removesuffix(".safetensors")


def without_links(source: str) -> tuple[str, str | None]:
    """The source with symbolic links resolved, and the name that the model has by its own path if that differs.

    A daemon refuses absolute links below its roots. The user's own daemon has the root "/" and reads only what the
    user can read, so the links are followed here, with the user's rights.
    """
    if "://" in source:
        return source, None
    if is_local(source):
        real = os.path.realpath(source)
        return real, _plain_name(source) if _plain_name(real) != _plain_name(source) else None
    snapshot = hub_snapshot(source)
    return (os.path.realpath(snapshot), None) if snapshot else (source, None)
