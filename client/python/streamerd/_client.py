# SPDX-License-Identifier: Apache-2.0
"""Connections: one for each daemon that this process uses.

A connection is shared by all models and threads of the process and stays open until it exits, since a tensor may
outlive its model and its lease ends over the connection. A forked child makes connections of its own.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import math
import os
import threading
import time
import weakref
from collections.abc import Callable
from ctypes import byref, c_uint64
from typing import Any, TypeVar

from ._library import (
    CLIENT,
    CONNECT_OWN,
    E_UNREACHABLE,
    MEMORY,
    SOCKET_USER,
    ConnectOpts,
    Handle,
    SocketInfo,
    failure,
    file_text,
    library,
    sized,
    text,
)
from ._option_values import flag, milliseconds, seconds_until
from .errors import DeniedError, Error, TimedOutError, UnreachableError

_T = TypeVar("_T")


# A signal that arrives just before the main thread waits for a lock does not end the wait: Python acts on it after this.
_SIGNAL_SECONDS = 0.25

_LOCK_POLL_SECONDS = 0.01


def interruptibly(call: Callable[[], _T], deadline: float | None = None, what: str = "") -> _T:
    """The result of a call that may wait for the daemon, which no signal ends.

    Python acts on signals in the main thread alone: there, another thread makes the call. The result of a call that
    was given up, by a signal or at the deadline (a TimedOutError with `what`), is released by that thread. Where no
    thread can be started, as when the interpreter shuts down, this one makes the call.
    """
    if deadline is None and threading.get_ident() != threading.main_thread().ident:
        return call()
    results: list[_T] = []
    errors: list[BaseException] = []
    ended: list[bool] = []
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            results.append(call())
        except BaseException as e:
            errors.append(e)
        done.release()
        if ended:
            results.clear()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:
        return call()
    end = math.inf if deadline is None else deadline
    try:
        while not done.acquire(timeout=min(max(0.0, end - time.monotonic()), _SIGNAL_SECONDS)):
            if time.monotonic() >= end:
                raise TimedOutError(what)
        if errors:
            raise errors[0]
        return results[0]
    finally:
        # The frames of an exception, which may be kept, refer to these lists.
        ended.append(True)
        results.clear()
        errors.clear()


class Client:
    """A connection to a daemon. `own`: the daemon was started for this user and has the root "/"."""

    def __init__(self, socket: str | None = None, flags: int = 0, connect_ms: int = 0) -> None:
        """`socket` None: by the library's rule (streamer_connect())."""
        self._library = library()
        self.handle = Handle(CLIENT)
        self.pointer = self.handle.pointer
        path = None if socket is None else file_text(socket)
        opts = sized(ConnectOpts, socket=path, flags=flags, connect_timeout_ms=connect_ms)
        code = self._library.streamer_connect(byref(opts), byref(self.pointer))
        if code != 0:
            raise failure(code, None)
        info = sized(SocketInfo)
        self.check(self._library.streamer_socket(self.pointer, byref(info)))
        self.socket = os.fsdecode(info.path)
        self.own: bool = info.rule == SOCKET_USER
        if info.skipped:
            log_once(f"the system's daemon is not used: {info.skipped.decode(errors='replace')}")
        self.fd: int = self._library.streamer_fd(self.pointer)
        self.listeners: set[Callable[[], None]] = set()  # called when the daemon has sent something
        self.openings: list[weakref.ref[Handle]] = []  # operations that have no lease yet

    def check(self, code: int) -> None:
        if code != 0:
            raise failure(code, self.handle)

    def process(self) -> bool:
        """Reads what the daemon sent, and calls the listeners. False if the connection is lost. Does not block."""
        while (code := self._library.streamer_process(self.pointer)) == 1:
            for listener in tuple(self.listeners):
                listener()
        return bool(code != E_UNREACHABLE)

    def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        """A request of docs/protocol.md, and its reply."""
        import json

        for value in fields.values():
            if isinstance(value, str):
                file_text(value)
        reply = Handle(MEMORY)
        arguments = (text(verb), text(json.dumps(fields)), byref(reply.pointer))
        self.check(self._library.streamer_call(self.pointer, *arguments))
        result: dict[str, Any] = json.loads(ctypes.string_at(reply.pointer.value or 0))
        return result

    def fetch(self, source: str, file: str) -> bytes:
        """A small file beside the weights of a source, such as config.json."""
        data, size = Handle(MEMORY), c_uint64()
        arguments = (file_text(source), text(file), byref(data.pointer), byref(size))
        self.check(self._library.streamer_fetch(self.pointer, *arguments))
        return ctypes.string_at(data.pointer, size.value)

    def fetch_list(self, source: str, weights: bool = False) -> list[dict[str, Any]]:
        """The files of a source: [{"name", "bytes"}]; `weights`: also those that hold weights."""
        result: list[dict[str, Any]] = self.call("fetch", source=source, **({"weights": True} if weights else {}))["files"]
        return result


_clients: dict[str, Client] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In a forked child: the connections are the parent's."""
    global _lock
    _clients.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


# Of a connect that names no socket.
_RULE_FLAGS = 0

def _await_lock(deadline: float | None) -> None:
    """Until no thread connects; TimedOutError where one takes until the deadline. The lock itself is taken by `with`,
    which a KeyboardInterrupt does not divide."""
    while deadline is not None and _lock.locked():
        if time.monotonic() >= deadline:
            raise TimedOutError("another thread of this process connects to the daemon, or starts it")
        time.sleep(_LOCK_POLL_SECONDS)


_ADVICE = "start streamerd, set STREAMERD_SOCKET, or leave autostart on (STREAMERD_AUTOSTART=1)"
_DENIED = "ask to be added to the socket's group, or set STREAMERD_SOCKET to another daemon"


def _connect(socket: str | None, flags: int, deadline: float | None) -> Client:
    """The process's connection to a socket, or to the one that the rule finds. One to a daemon of the user's own that
    has exited is replaced."""
    key = socket or ""
    client = _clients.get(key)
    if client is None or (client.own and not client.process()):
        left = seconds_until(deadline)
        limit_ms = 0 if left is None else milliseconds(left)
        client = interruptibly(lambda: Client(socket, flags, limit_ms))
        _clients[key] = client
    return client


def user_socket() -> str:
    """Where a daemon of the user's own is to listen."""
    path = Handle(MEMORY)
    code = library().streamer_user_socket(byref(path.pointer))
    if code != 0:
        raise failure(code, None)
    return os.fsdecode(ctypes.string_at(path.pointer.value or 0))


def connect(socket: str | None = None, autostart: bool | None = None, deadline: float | None = None) -> Client:
    """A connection to `socket`, else $STREAMERD_SOCKET, else the system's daemon, else the user's own.

    If none of these serves this user and no socket was named, the user's own daemon is started (see autostart).
    """
    flag("autostart", autostart)
    named = socket or os.environ.get("STREAMERD_SOCKET") or None
    _await_lock(deadline)
    with _lock:
        try:
            return _connect(named, 0 if named else _RULE_FLAGS, deadline)
        except DeniedError as e:
            if named:
                raise DeniedError(f"{e}: {_DENIED}") from None
            reason: Error = e
        except UnreachableError as e:
            if named:
                raise
            reason = e
        from . import _autostart

        if not _autostart.is_allowed(autostart):
            raise type(reason)(f"{reason}: {_ADVICE}")
        return _autostart.start(functools.partial(_connect, None, CONNECT_OWN, deadline), deadline)


def warn(text: str, *values: object) -> None:
    """A line of the logger "streamerd"."""
    import logging

    logging.getLogger("streamerd").warning(text, *values)


_logged: set[str] = set()


def log_once(text: str) -> None:
    """The line once in this process."""
    if text not in _logged:
        _logged.add(text)
        warn("%s", text)
