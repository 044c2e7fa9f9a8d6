# SPDX-License-Identifier: Apache-2.0
"""aopen(): open() for asyncio, driven by the library's descriptor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._client import Client
from ._model import Model
from ._open import Options, Request, Source

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Unpack

T = TypeVar("T")


class _Waiting:
    """The tasks of one event loop that wait for a daemon. It exists while there are any."""

    def __init__(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self._client = client
        self._loop = loop
        self._futures: set[asyncio.Future[None]] = set()
        loop.add_reader(client.fd, client.process)
        client.listeners.add(self._notify)

    def _end(self) -> None:
        self._loop.remove_reader(self._client.fd)
        self._client.listeners.discard(self._notify)
        del _waiting[self._client, self._loop]

    def _notify(self) -> None:
        """Runs in the thread that read the message, which may be another's."""
        self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for future in self._futures:
            if not future.done():
                future.set_result(None)

    async def wait(self) -> None:
        future = self._loop.create_future()
        self._futures.add(future)
        try:
            await future
        finally:
            self._futures.discard(future)
            if not self._futures:
                self._end()


_waiting: dict[tuple[Client, asyncio.AbstractEventLoop], _Waiting] = {}


async def _wait(client: Client) -> None:
    """Until the daemon has sent something, or the connection is lost."""
    key = client, asyncio.get_running_loop()
    if key not in _waiting:
        _waiting[key] = _Waiting(*key)
    await _waiting[key].wait()


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
        while (arrived := self._look(i, 0)) is None:
            await _wait(self._client)
        return arrived

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
    client, op = await asyncio.to_thread(request.start)
    while (lease := request.lease(client, op, 0)) is None:
        try:
            await asyncio.wait_for(_wait(client), request.remaining())
        except asyncio.TimeoutError:
            pass  # lease() reports it
    return AsyncModel(client, lease, op, request.views, request.bar)
