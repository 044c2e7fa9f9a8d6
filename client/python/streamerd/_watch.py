# SPDX-License-Identifier: Apache-2.0
"""watch() and awatch(): the generations of a model as they become ready.

    connected > looked at > waits for an event
        ^            |              |
        +-- pause <--+--------------+   the connection is lost, or the daemon does not answer

Each has a connection of its own, for the events of one name. An event only says that something has changed: what serves
is then looked at, so that nothing is missed. It is compared with what was yielded last, by its number and its digest: a
daemon that restarts may have restored its models, or count from 1 again.
"""

from __future__ import annotations

import asyncio
import ctypes
import functools
import time
from collections.abc import AsyncIterator, Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_void_p

from ._aio import in_thread
from ._client import Client, connect, interruptibly, warn
from ._library import E_TIMEOUT, E_UNREACHABLE, MEMORY, Handle, library, text
from ._model import SLICE_MS
from ._nearest import explains_options
from .errors import LimitError, NotFoundError, TimedOutError, UnreachableError

# Between attempts to reach a daemon: it doubles.
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 1.0

# A daemon that is away for so long is logged, once.
_AWAY_LOG_SECONDS = 5.0


@functools.cache
def _library() -> ctypes.CDLL:
    lib = library()
    lib.streamer_subscribe.restype, lib.streamer_subscribe.argtypes = c_int, [c_void_p, c_char_p]
    lib.streamer_event_next.restype = c_int
    lib.streamer_event_next.argtypes = [c_void_p, c_int, POINTER(c_void_p)]
    return lib


class _Watch:
    """The events of one name, and what was yielded last.

    `pause`: seconds until the daemon, which could not be asked, is to be looked at again; 0: it was asked.
    """

    def __init__(self, name: str, socket: str | None, autostart: bool | None) -> None:
        self._library = _library()
        self._name = name
        self._subject = text(name)
        self._socket = connect(socket, autostart).socket
        self._client: Client | None = interruptibly(self._subscribed)
        self._last: tuple[int, str] | None = None  # generation and digest
        self.pause = 0.0
        self._away_since: float | None = None
        self._is_logged = False

    def _subscribed(self) -> Client:
        client = Client(self._socket)
        client.check(self._library.streamer_subscribe(client.pointer, self._subject))
        self.fd = client.fd
        return client

    def look(self) -> int | None:
        """The generation that serves, if it is another one than the last; None also where the daemon is away."""
        try:
            if self._client is None:
                self._client = self._subscribed()
            rows = self._client.call("show", model=self._name)["models"]
        except NotFoundError:
            rows = []
        except (UnreachableError, TimedOutError, LimitError) as e:
            self._client = None
            self._is_away(e)
            return None
        self.pause, self._away_since, self._is_logged = 0.0, None, False
        ready: list[tuple[int, str]] = [(row["generation"], row["digest"]) for row in rows if row["state"] == "ready"]
        if not ready or max(ready) == self._last:
            return None
        self._last = max(ready)
        return self._last[0]

    def _is_away(self, why: Exception) -> None:
        now = time.monotonic()
        if self._away_since is None:
            self._away_since = now
        if not self._is_logged and now - self._away_since >= _AWAY_LOG_SECONDS:
            self._is_logged = True
            warn("%s: watch: waits for the daemon: %s", self._name, why)
        self.pause = min(2 * self.pause, _PAUSE_SECONDS_MAX) or _PAUSE_SECONDS

    def changed(self, slice_ms: int) -> bool:
        """Takes all events that have come; waits for one if none has. A lost connection is a change, too."""
        if self._client is None:
            return True
        # What it reports besides events, a connection that the library has made again, would leave the descriptor readable.
        self._library.streamer_process(self._client.pointer)
        found = False
        while True:
            event = Handle(MEMORY)
            code = self._library.streamer_event_next(self._client.pointer, 0 if found else slice_ms, byref(event.pointer))
            if code == E_TIMEOUT:
                return found
            if code == E_UNREACHABLE:
                self._client = None
                return True
            self._client.check(code)
            found = True


@explains_options
def watch(name: str, *, socket: str | None = None, autostart: bool | None = None) -> Iterator[int]:
    """Yields the generation of a model that serves, if there is one, and then each other one that becomes ready.

    Of several that became ready since the last one was taken, the latest alone. A model that does not exist yet is
    waited for. So is a daemon that restarts, for as long as it takes, once it was reached; after five seconds one line in
    the log says so. After a restart a generation of the same number and digest is not yielded again.

    Args:
        name: the model's name in the daemon.
        socket, autostart: as for open().

    Raises:
        DeniedError, ProtocolError: the daemon that has taken the last one's place refuses this process.
        What open() raises where no daemon serves this process, at first.

    Example:
        for generation in streamerd.watch("policy"):
            streamerd.load_into(model, "policy", generation=generation)
    """
    watched = _Watch(name, socket, autostart)
    while True:
        generation = interruptibly(watched.look)
        if generation is not None:
            yield generation
        elif watched.pause > 0:
            time.sleep(watched.pause)
        else:
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
    watched = await in_thread(lambda: _Watch(name, socket, autostart))
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    while True:
        generation = await in_thread(watched.look)
        if generation is not None:
            yield generation
            continue
        if watched.pause > 0:
            await asyncio.sleep(watched.pause)
            continue
        while not watched.changed(0):
            readable.clear()
            loop.add_reader(watched.fd, readable.set)
            try:
                await readable.wait()
            finally:
                loop.remove_reader(watched.fd)
