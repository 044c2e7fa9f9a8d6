# SPDX-License-Identifier: Apache-2.0
"""aopen(): open() for asyncio, driven by the library's descriptor."""

from __future__ import annotations

import _thread
import asyncio
import concurrent.futures
import contextvars
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from ._client import Client
from ._model import Model
from ._nearest import explains_options
from ._open import RETRY_SECONDS, Options, Request, Source, options_of

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Unpack

T = TypeVar("T")
R = TypeVar("R")


async def in_thread(call: Callable[[], R]) -> R:
    """asyncio.to_thread() in a thread of its own: a task that is cancelled, and a loop that ends, do not wait for the call,
    nor does it take one of the threads that the application uses."""

    def run(future: concurrent.futures.Future[R]) -> None:
        try:
            future.set_result(call())
        except BaseException as e:
            future.set_exception(e)
        del future  # the exception's traceback refers to this frame

    future: concurrent.futures.Future[R] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()
    _thread.start_new_thread(contextvars.copy_context().run, (run, future))
    return await asyncio.wrap_future(future)


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
    """A Model for asyncio: the methods that end with _async do not block the event loop. Once the model is loaded, none
    of the others does.

    Example:
        async with streamerd.aopen("/models/llama") as model:
            async for name, tensor in model.stream_async():
                ...
    """

    async def __aenter__(self) -> AsyncModel[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def stream_async(self) -> AsyncIterator[tuple[str, T]]:
        """As stream(): each tensor once, as (name, tensor), in order of arrival."""
        i = 0
        while await self._arrives_async(i):
            batch = self._batch(i)
            i += len(batch)
            for pair in self._given(batch):
                yield pair

    async def _arrives_async(self, i: int) -> bool:
        """Whether there is a tensor i in order of arrival, once that is known."""
        arrived = self._look(i, 0)
        return await _until(self._client, lambda: self._look(i, 0), lambda: None) if arrived is None else arrived

    async def wait_async(self) -> None:
        """As wait(): returns when all tensors are in memory and the source did not change meanwhile."""
        await self._arrives_async(len(self))


class Opening(Coroutine[Any, Any, AsyncModel[T]]):
    """What aopen() returns: a coroutine whose result is the model, and a context manager that opens and closes it."""

    def __init__(self, coroutine: Coroutine[Any, Any, AsyncModel[T]]) -> None:
        self._coroutine = coroutine
        self._model: AsyncModel[T] | None = None

    def send(self, value: Any) -> Any:
        return self._coroutine.send(value)

    def throw(self, *exception: Any) -> Any:
        return self._coroutine.throw(*exception)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, AsyncModel[T]]:
        return self._coroutine.__await__()

    async def __aenter__(self) -> AsyncModel[T]:
        self._model = await self._coroutine
        return self._model

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._model is not None
        self._model.close()


async def _aopen(source: Source, framework: str, options: Options) -> AsyncModel[Any]:
    request = Request(source, framework, options)
    while (started := await asyncio.to_thread(request.try_start)) is None:
        await asyncio.sleep(RETRY_SECONDS)
    client, op = started
    lease = await _until(client, lambda: request.lease(client, op, 0), request.remaining)
    return AsyncModel(client, lease, op, request.views, request.bar)


@overload
def aopen(
    source: Source, *, framework: Literal["torch", "pt", "pytorch"] = ..., **options: Unpack[Options]
) -> Opening[torch.Tensor]: ...


@overload
def aopen(
    source: Source, *, framework: Literal["numpy", "np"], **options: Unpack[Options]
) -> Opening[numpy.ndarray[Any, Any]]: ...


@overload
def aopen(source: Source, *, framework: str, **options: Unpack[Options]) -> Opening[Any]: ...


@explains_options
def aopen(
    source: Source,
    *,
    framework: str = "torch",
    name: str | None = None,
    device: Any = None,
    shared: bool | None = False,
    ready: bool | None = False,
    digest: str | None = None,
    verify: str | None = None,
    pin: bool | None = False,
    wait: bool | None = False,
    evict: bool | None = True,
    priority: int | None = None,
    keep_alive: float | str | None = None,
    layout: str | None = None,
    pattern: str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
    timeout: float | str | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Opening[Any]:
    """open() for asyncio: while the daemon works, the event loop runs other tasks.

    Args:
        source, framework and all others: as for open().

    Returns:
        A coroutine whose result is an AsyncModel, and which is its context manager, too.

    Raises:
        What open() raises, when it is awaited or entered.

    Example:
        async with streamerd.aopen("Qwen/Qwen3-8B") as model:
            async for name, tensor in model.stream_async():
                ...
    """
    options = options_of(locals())
    return Opening(_aopen(source, framework, options))
