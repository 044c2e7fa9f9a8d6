# SPDX-License-Identifier: Apache-2.0
"""What a caller names: a URL, a path, an id in the Hugging Face cache, or a resident model."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from ._nearest import nearest

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@.+)?", re.ASCII)


def is_local(source: str) -> bool:
    """Whether `source` is a path, by the rule of streamer_open_start()."""
    return "://" not in source and (source.startswith(("/", ".")) or os.path.lexists(source))


def _hub_cache() -> str:
    for variable, folder in (
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        value = os.environ.get(variable)
        if value:
            return os.path.join(value, folder).rstrip("/")
    return os.path.expanduser("~/.cache/huggingface/hub")


def hub_snapshot(source: str, cache: str | None = None) -> str | None:
    """The folder of an org/name[@rev] in `cache`, None: the Hugging Face cache; None if there is none."""
    if not _HUB_ID.fullmatch(source):
        return None
    name, _, revision = source.partition("@")
    repository = os.path.join(cache or _hub_cache(), "models--" + name.replace("/", "--"))
    try:
        with open(os.path.join(repository, "refs", revision or "main")) as f:
            commit = f.read().strip()
    except OSError:
        commit = revision
    snapshot = os.path.join(repository, "snapshots", commit)
    return snapshot if commit and os.path.isdir(snapshot) else None


def without_links(source: str) -> tuple[str, str | None]:
    """The source with symbolic links resolved, and the path that the model is named after if that differs.

    A daemon refuses absolute links below its roots. The user's own daemon has the root "/" and reads only what the
    user can read, so the links are followed here, with the user's rights.
    """
    if "://" in source:
        return source, None
    if is_local(source):
        real, written = os.path.realpath(source), os.path.abspath(source)
        return real, None if real == written else written
    snapshot = hub_snapshot(source)
    return (os.path.realpath(snapshot), snapshot) if snapshot else (source, None)


# ---- what was meant ----


def _near_file(source: str) -> str | None:
    folder, name = os.path.split(source)
    try:
        found = nearest(name, (other for other in os.listdir(folder or ".") if not other.startswith(".")))
    except OSError:
        return None
    return found and os.path.join(folder, found)


def _hub_models() -> list[str]:
    try:
        names = os.listdir(_hub_cache())
    except OSError:
        return []
    return [name[len("models--") :].replace("--", "/", 1) for name in names if name.startswith("models--")]


def explain_missing(source: str, resident: Iterable[str]) -> str:
    """Where a source that is neither a URL nor a path was looked for, and what is named almost so."""
    looked = [f"no file {os.path.abspath(source)}", "no resident model of that name"]
    near = [_near_file(source), nearest(source, resident)]
    advice = "a path begins with / or ./"
    if _HUB_ID.fullmatch(source):
        looked.insert(1, f"no such model in the Hugging Face cache {_hub_cache()}")
        near.insert(1, nearest(source.partition("@")[0], _hub_models()))
    is_word = "/" not in source and not source.endswith(".safetensors")  # some models have no organisation: gpt2
    if is_word or _HUB_ID.fullmatch(source):
        advice += f", and hf://{source} is read from the Hub"
    meant = next((f"; did you mean {name!r}?" for name in near if name), "")
    return f"{source}: {', '.join(looked)}{meant} ({advice})"
