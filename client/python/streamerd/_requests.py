# SPDX-License-Identifier: Apache-2.0
"""Requests that need no model: the daemon's status, and the files beside a source's weights."""

from __future__ import annotations

import os
from typing import Any

from ._client import Client, connect, interruptibly
from ._source import without_links


def _at(client: Client, source: str | os.PathLike[str]) -> str:
    text = os.fspath(source)
    return without_links(text)[0] if client.own else text


def fetch(
    source: str | os.PathLike[str], file: str, *, socket: str | None = None, autostart: bool | None = None
) -> bytes:
    """A small file beside the weights of a source, such as config.json; NotFoundError if there is none."""
    client = connect(socket, autostart)
    return interruptibly(lambda: client.fetch(_at(client, source), file))


def fetch_list(
    source: str | os.PathLike[str],
    *,
    weights: bool = False,
    socket: str | None = None,
    autostart: bool | None = None,
) -> list[str]:
    """The names of the files of a source; with `weights` also of those that hold weights."""
    client = connect(socket, autostart)
    return [file["name"] for file in interruptibly(lambda: client.fetch_list(_at(client, source), weights))]


def status(*, socket: str | None = None, autostart: bool | None = None) -> dict[str, Any]:
    """The daemon's status, as `streamerctl status --json` (docs/protocol.md)."""
    client = connect(socket, autostart)
    return interruptibly(lambda: client.call("status"))
