# SPDX-License-Identifier: Apache-2.0
"""Connections: one for each daemon that this process uses.

A connection is shared by all models and threads of the process and stays open until it exits, since a tensor may
outlive its model and its lease ends over the connection. A forked child makes connections of its own.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import threading
from collections.abc import Callable
from ctypes import byref, c_uint64, c_void_p
from typing import Any

from . import _autostart
from ._library import E_UNREACHABLE, ConnectOpts, failure, library, sized
from .errors import DeniedError, UnreachableError

SYSTEM_SOCKET = "/run/streamerd/streamerd.sock"


class Client:
    """A connection to a daemon. `own`: the daemon was started for this user and has the root "/"."""

    def __init__(self, socket: str, own: bool = False) -> None:
        self._library = library()
        self.socket = socket
        self.own = own
        self.pointer = c_void_p()
        opts = sized(ConnectOpts, socket=os.fsencode(socket))
        code = self._library.streamer_connect(byref(opts), byref(self.pointer))
        if code != 0:
            raise _with_advice(failure(code, None))
        self.fd: int = self._library.streamer_fd(self.pointer)
        self.listeners: set[Callable[[], None]] = set()  # called when the daemon has sent something

    def check(self, code: int) -> None:
        if code != 0:
            raise failure(code, self.pointer)

    def process(self) -> bool:
        """Reads what the daemon sent, and calls the listeners. False if the connection is lost. Does not block."""
        while (code := self._library.streamer_process(self.pointer)) == 1:
            for listener in tuple(self.listeners):
                listener()
        return bool(code != E_UNREACHABLE)

    def call(self, verb: str, **fields: Any) -> dict[str, Any]:
        """A request of docs/protocol.md, and its reply."""
        reply = c_void_p()
        self.check(self._library.streamer_call(self.pointer, verb.encode(), json.dumps(fields).encode(), byref(reply)))
        try:
            result: dict[str, Any] = json.loads(ctypes.string_at(reply.value or 0))
        finally:
            self._library.streamer_free(reply)
        return result

    def fetch(self, source: str, file: str) -> bytes:
        """A small file beside the weights of a source, such as config.json."""
        data, size = c_void_p(), c_uint64()
        arguments = (source.encode(), file.encode(), byref(data), byref(size))
        self.check(self._library.streamer_fetch(self.pointer, *arguments))
        try:
            return ctypes.string_at(data, size.value)
        finally:
            self._library.streamer_free(data)

    def fetch_list(self, source: str) -> list[dict[str, Any]]:
        """The files of a source: [{"name", "bytes"}]."""
        reply = c_void_p()
        self.check(self._library.streamer_fetch_list(self.pointer, source.encode(), byref(reply)))
        try:
            result: list[dict[str, Any]] = json.loads(ctypes.string_at(reply.value or 0))["files"]
        finally:
            self._library.streamer_free(reply)
        return result


def _with_advice(error: Exception) -> Exception:
    """Says what to do where no connection can be made."""
    if isinstance(error, DeniedError):
        return DeniedError(f"{error}: ask to be added to the socket's group, or set STREAMERD_SOCKET to another daemon")
    return error


_clients: dict[str, Client] = {}
_lock = threading.Lock()


def _forget() -> None:
    """In a forked child: the connections are the parent's."""
    global _lock
    _clients.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget)


def _connect(socket: str, own: bool) -> Client:
    """The process's connection to this socket. One to a daemon of the user's own that has exited is replaced."""
    client = _clients.get(socket)
    if client is None or (own and not client.process()):
        client = _clients[socket] = Client(socket, own)
    return client


def connect(socket: str | None = None, autostart: bool | None = None) -> Client:
    """A connection to `socket`, else $STREAMERD_SOCKET, else the system's daemon, else the user's own.

    If none of these answers and no socket was named, the user's own daemon is started (see autostart).
    """
    named = socket or os.environ.get("STREAMERD_SOCKET")
    with _lock:
        if named:
            return _connect(named, False)
        try:
            return _connect(SYSTEM_SOCKET, False)
        except UnreachableError as e:
            reason = e
        to_own = functools.partial(_connect, _autostart.user_socket(), True)
        try:
            return to_own()
        except UnreachableError:
            pass
        if not _autostart.is_allowed(autostart):
            raise UnreachableError(
                f"{reason}: start streamerd, set STREAMERD_SOCKET, or leave autostart on (STREAMERD_AUTOSTART=1)"
            )
        return _autostart.start(to_own)
