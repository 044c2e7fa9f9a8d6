# SPDX-License-Identifier: Apache-2.0
"""aopen(): open() for asyncio, driven by the library's descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._client import Client
from ._model import Model
from ._open import RETRY_SECONDS, Options, Request, Source

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")


class _Waiting:
    """The tasks of one event loop that wait for a daemon. It exists while there are any.

    A task enters before it looks at what it waits for. The descriptor stays readable until a message has been
    reported to every listener, and _wake() runs in the loop, so after the task has looked and awaits: whichever
    thread reads a message, it is either seen by the look or wakes the task.
    """

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._tasks = 0
        self._future: asyncio.Future[None] | None = None

    def __enter__(self) -> _Waiting:
        self._tasks += 1
        if self._tasks == 1:
            self._client.listeners.add(self._notify)
            self._loop.add_reader(self._client.fd, self._client.process)
        return self

    def __exit__(self, *exception: object) -> None:
        self._tasks -= 1
        if self._tasks == 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._client.fd)
            self.end()

    def end(self) -> None:
        """Nothing refers to the tasks any more, which a loop that was closed does not resume."""
        self._client.listeners.discard(self._notify)
        self._future = None
        if _waiting.get((self._client, self._loop)) is self:
            del _waiting[self._client, self._loop]

    def _notify(self) -> None:
        """Runs in the thread that read the message, which may be another's."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed while its tasks waited
            self.end()

    def is_abandoned(self) -> bool:
        return self._loop.is_closed()

    def _wake(self) -> None:
        if self._future is not None and not self._future.done():
            self._future.set_result(None)
        self._future = None

    async def message(self, timeout: float | None) -> None:
        """Until the daemon has sent something, the connection is lost, or the time is over."""
        if self._future is None:
            self._future = self._loop.create_future()
        await asyncio.wait([self._future], timeout=timeout)


_waiting: dict[tuple[Client, asyncio.AbstractEventLoop], _Waiting] = {}


def _waiting_for(client: Client) -> _Waiting:
    key = client, asyncio.get_running_loop()
    for waiting in tuple(_waiting.values()):
        if waiting.is_abandoned():
            waiting.end()
    if key not in _waiting:
        _waiting[key] = _Waiting(*key)
    return _waiting[key]


async def _until(client: Client, look: Callable[[], R | None], remaining: Callable[[], float | None]) -> R:
    """What `look` returns as soon as that is not None. It raises when no time remains."""
    with _waiting_for(client) as waiting:
        while (result := look()) is None:
            await waiting.message(remaining())
    return result


class AsyncModel(Model[T]):
    """A Model for asyncio: `async for name, tensor in model` and `await model.wait_async()` do not block the loop."""

    async def __aenter__(self) -> AsyncModel[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aiter__(self) -> AsyncIterator[tuple[str, T]]:
        i = 0
        while await self._arrives_async(i):
            yield self._pair(i)
            i += 1

    async def _arrives_async(self, i: int) -> bool:
        """Whether there is a tensor i in order of arrival, once that is known."""
        arrived = self._look(i, 0)
        return await _until(self._client, lambda: self._look(i, 0), lambda: None) if arrived is None else arrived

    async def wait_async(self) -> None:
        """Returns when all tensors are in memory."""
        while await self._arrives_async(len(self._arrived)):
            pass


@overload
async def aopen(
    source: Source, *, framework: Literal["torch", "pt"] = ..., **options: Unpack[Options]
) -> AsyncModel[torch.Tensor]: ...


@overload
async def aopen(
    source: Source, *, framework: Literal["numpy", "np"], **options: Unpack[Options]
) -> AsyncModel[numpy.ndarray[Any, Any]]: ...


@overload
async def aopen(source: Source, *, framework: str, **options: Unpack[Options]) -> AsyncModel[Any]: ...


async def aopen(source: Source, *, framework: str = "torch", **options: Unpack[Options]) -> AsyncModel[Any]:
    """open() for asyncio: while the daemon works, the event loop runs other tasks."""
    request = Request(source, framework, options)
    while (started := await asyncio.to_thread(request.try_start)) is None:
        await asyncio.sleep(RETRY_SECONDS)
    client, op = started
    lease = await _until(client, lambda: request.lease(client, op, 0), request.remaining)
    return AsyncModel(client, lease, op, request.views, request.bar)
