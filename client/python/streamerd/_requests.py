# SPDX-License-Identifier: Apache-2.0
"""Requests that need no model: the daemon's status, and the files beside a source's weights."""

from __future__ import annotations

import os
from typing import Any

from ._client import Client, connect, interruptibly
from ._nearest import explains_options
from ._source import without_links


def _at(client: Client, source: str | os.PathLike[str]) -> str:
    text = os.fspath(source)
    return without_links(text)[0] if client.own else text


@explains_options
def fetch(
    source: str | os.PathLike[str], file: str, *, socket: str | None = None, autostart: bool | None = None
) -> bytes:
    """A small file beside the weights of a source, such as config.json.

    Args:
        source: as for open(), but no model's name.
        file: its name below the source's folder.
        socket, autostart: as for open().

    Raises:
        NotFoundError: there is none.
        LimitError: it has more than 64 MiB.
        What open() raises where no daemon serves this process.

    Example:
        config = json.loads(streamerd.fetch("s3://models/llama/", "config.json"))
    """
    client = connect(socket, autostart)
    return interruptibly(lambda: client.fetch(_at(client, source), file))


@explains_options
def fetch_list(
    source: str | os.PathLike[str],
    *,
    weights: bool = False,
    socket: str | None = None,
    autostart: bool | None = None,
) -> list[str]:
    """The names of the files of a source, in folders below it, too.

    Args:
        source: as for open(), but no model's name.
        weights: also of the files that hold weights.
        socket, autostart: as for open().

    Raises:
        NotFoundError: no such source.
        What open() raises where no daemon serves this process.

    Example:
        streamerd.fetch_list("hf://Qwen/Qwen3-8B")  # ["config.json", "tokenizer.json", ...]
    """
    client = connect(socket, autostart)
    return [file["name"] for file in interruptibly(lambda: client.fetch_list(_at(client, source), weights))]


@explains_options
def status(*, socket: str | None = None, autostart: bool | None = None) -> dict[str, Any]:
    """The daemon's status: devices, memory, loads; as `streamerctl status --json`.

    Args:
        socket, autostart: as for open().

    Raises:
        What open() raises where no daemon serves this process.

    Example:
        free = streamerd.status()["devices"][0]["free"]
    """
    client = connect(socket, autostart)
    return interruptibly(lambda: client.call("status"))
