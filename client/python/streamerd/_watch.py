# SPDX-License-Identifier: Apache-2.0
"""watch() and awatch(): the generations of a model as they become ready.

Each has a connection of its own, for the events of one name. An event only says that something has changed: what serves
is then looked at, so that nothing is missed and nothing is reported twice, over a restart of the daemon, too: one that has
restored its models has their generations; another one counts from 1 again, so after a lost connection a lower generation, or
another digest, is another model.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import json
from collections.abc import AsyncIterator, Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p

from ._client import Client, connect
from ._library import E_TIMEOUT, E_UNREACHABLE, MEMORY, Handle, library, text
from ._model import SLICE_MS
from ._nearest import explains_options
from .errors import NotFoundError


@functools.cache
def _library() -> ctypes.CDLL:
    lib = library()
    lib.streamer_subscribe.restype, lib.streamer_subscribe.argtypes = c_int, [c_void_p, c_char_p]
    lib.streamer_event_next.restype = c_int
    lib.streamer_event_next.argtypes = [c_void_p, c_int, POINTER(c_void_p)]
    return lib


class _Watch:
    """The events of one name, and what was reported last."""

    def __init__(self, name: str, socket: str | None, autostart: bool | None) -> None:
        self._library = _library()
        self._name = name
        self._client = Client(connect(socket, autostart).socket)
        self._client.check(self._library.streamer_subscribe(self._client.pointer, text(name)))
        self._last = (0, "")  # generation and digest
        self._is_lost = False  # the connection was, since the last one was reported
        self.fd = self._client.fd

    def look(self) -> int | None:
        """The generation that serves, if it is a later one."""
        try:
            rows = self._client.call("show", model=self._name)["models"]
        except NotFoundError:
            return None
        ready = max(((row["generation"], row["digest"]) for row in rows if row["state"] == "ready"), default=(0, ""))
        is_other = self._is_lost and 0 < ready[0] and ready != self._last
        if ready[0] <= self._last[0] and not is_other:
            return None
        self._last, self._is_lost = ready, False
        return ready[0]

    def changed(self, slice_ms: int) -> bool:
        """Takes all events that have come; waits for one if none has. A lost connection is a change, too."""
        found = False
        while True:
            event = Handle(MEMORY)
            code = self._library.streamer_event_next(self._client.pointer, 0 if found else slice_ms, byref(event.pointer))
            if code == E_TIMEOUT:
                return found
            if code == E_UNREACHABLE:
                self._is_lost = True
                return True
            self._client.check(code)
            if json.loads(ctypes.string_at(event.pointer))["event"] == "lost":
                self._is_lost = True  # look() has connected again
            found = True


@explains_options
def watch(name: str, *, socket: str | None = None, autostart: bool | None = None) -> Iterator[int]:
    """Yields each generation of a model as it becomes ready; first the one that serves, if there is one.

    Of several that became ready since the last one was taken, the latest alone. A model that does not exist yet is
    waited for.

    Args:
        name: the model's name in the daemon.
        socket, autostart: as for open().

    Raises:
        UnreachableError: the daemon has ended, and none has taken its place.
        What open() raises where no daemon serves this process.

    Example:
        for generation in streamerd.watch("policy"):
            streamerd.load_into(model, "policy", generation=generation)
    """
    watched = _Watch(name, socket, autostart)
    while True:
        generation = watched.look()
        if generation is not None:
            yield generation
            continue
        while not watched.changed(SLICE_MS):
            pass


@explains_options
async def awatch(name: str, *, socket: str | None = None, autostart: bool | None = None) -> AsyncIterator[int]:
    """watch() for asyncio: the event loop runs other tasks while it waits.

    Args:
        name, socket, autostart: as for watch().

    Raises:
        What watch() raises.

    Example:
        async for generation in streamerd.awatch("policy"):
            await update(generation)
    """
    watched = await asyncio.to_thread(_Watch, name, socket, autostart)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    while True:
        generation = await asyncio.to_thread(watched.look)
        if generation is not None:
            yield generation
            continue
        while not watched.changed(0):
            readable.clear()
            loop.add_reader(watched.fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(watched.fd)
