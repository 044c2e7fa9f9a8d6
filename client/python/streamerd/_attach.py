# SPDX-License-Identifier: Apache-2.0
"""attach(): a resident model by its name alone, which open() may take for a path or a source."""

from __future__ import annotations

import re
from ctypes import byref
from typing import Any

from ._client import Client, connect, interruptibly
from ._library import ATTACH_PRIVATE, ATTACH_READY, LEASE, AttachOpts, Handle, library, optional_text, sized, text
from ._model import Model
from ._open import device_name
from ._option_values import deadline_of, milliseconds, seconds_until
from ._progress import ProgressBar
from ._views import views_of
from .errors import InvalidError


def attach(
    name: str,
    *,
    framework: str = "torch",
    generation: int | None = None,
    device: Any = None,
    digest: str | None = None,
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> Model[Any]:
    """The model once all of it is in memory. `generation`: that it must be; None: the one that serves, or loads."""
    if generation is not None and (type(generation) is not int or not 1 <= generation < 2**64):
        raise InvalidError(f"generation: {generation!r} is no number of a generation")
    if digest is not None and not re.fullmatch("[0-9a-fA-F]{32}", digest):
        raise InvalidError(f"digest: {digest!r} is not a digest of 32 hexadecimal digits")
    views = views_of(framework)
    deadline = deadline_of("timeout", timeout)
    client = connect(socket, autostart, deadline)
    flags = ATTACH_READY | ATTACH_PRIVATE * (views.framework == "torch")
    lease = attach_lease(
        client, name, flags, generation=generation, device=device_name(device), digest=digest, deadline=deadline
    )
    return Model(client, lease, None, views, ProgressBar(name, False))


def attach_lease(
    client: Client,
    name: str,
    flags: int,
    *,
    generation: int | None = None,
    device: str | None = None,
    digest: str | None = None,
    deadline: float | None = None,
) -> Handle:
    """A lease of the model; `device`: by the daemon's name."""
    left = seconds_until(deadline)
    opts = sized(
        AttachOpts,
        flags=flags,
        device=optional_text(device),
        digest=optional_text(digest),
        generation=generation or 0,
        timeout_ms=-1 if left is None else milliseconds(left),
    )
    lease = Handle(LEASE)

    def call() -> None:
        client.check(library().streamer_attach(client.pointer, text(name), byref(opts), byref(lease.pointer)))

    interruptibly(call)
    return lease
