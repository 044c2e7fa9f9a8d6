# SPDX-License-Identifier: Apache-2.0
"""Exceptions: one type for each kind of error, with the daemon's or the library's message.

Every type derives from Error. Where Python has a built-in type for the same kind of error, the type derives
from it too, so `except FileNotFoundError` and `except TimeoutError` work.
"""

from __future__ import annotations

import copyreg
import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Error(Exception):
    """Base of all exceptions of this package. `code` is the library's number (STREAMER_E*), 0 if it has none."""

    code = 0


class FailedError(Error):
    """The daemon could not do it: a damaged file, an I/O error, a path outside its roots."""

    code = -1


class InvalidError(Error, ValueError):
    """An invalid argument or request."""

    code = -2


class NotFoundError(Error, FileNotFoundError):
    """No such model, tensor or source."""

    code = -3


class TensorNotFoundError(NotFoundError, KeyError):
    """The model has no such tensor."""


class UnreachableError(Error, ConnectionError):
    """No daemon listens on the socket, or the connection was lost."""

    code = -4


class TimedOutError(Error, TimeoutError):
    """Not done in the given time; the daemon continues."""

    code = -5


class BusyError(Error):
    """The model has leases, or the tensor has not arrived."""

    code = -6


class OutOfMemoryError(Error, MemoryError):
    """Insufficient memory: the device's budget, or this process."""

    code = -7


class DeniedError(Error, PermissionError):
    """Permission denied, by the socket, by the daemon, or for a file."""

    code = -8


class ForkedError(Error):
    """The model was opened by the parent process; its tensors stay readable here."""

    code = -10


class LostError(Error):
    """After a lost connection the daemon no longer holds the lease, or watches the load."""

    code = -11


class ProtocolError(Error):
    """The daemon and the library have no protocol in common, or a message is invalid."""

    code = -12


class CancelledError(Error):
    """The load was cancelled."""

    code = -13


class DigestError(Error):
    """The model has another digest than the requested one."""

    code = -14


class LimitError(Error):
    """A limit of the daemon: connections, leases, queued loads."""

    code = -15


class UnsupportedError(Error, NotImplementedError):
    """The daemon, the library, the framework, the device or the kernel does not support it."""

    code = -16


class CorruptError(Error):
    """The table of tensors is inconsistent."""

    code = -17


class SystemCallError(Error, OSError):
    """A system call of this process failed. `errno` says how, where a file of this process is concerned."""

    code = -18


class RevokedError(Error):
    """The model was unloaded by force; its memory stays mapped and unchanged until it is closed."""

    code = -19


_BY_CODE: dict[int, type[Error]] = {
    kind.code: kind
    for kind in (
        FailedError,
        InvalidError,
        NotFoundError,
        UnreachableError,
        TimedOutError,
        BusyError,
        OutOfMemoryError,
        DeniedError,
        ForkedError,
        LostError,
        ProtocolError,
        CancelledError,
        DigestError,
        LimitError,
        UnsupportedError,
        CorruptError,
        SystemCallError,
        RevokedError,
    )
}


def error_of(code: int, text: str) -> Error:
    """The exception for a code of the library; a code that this package does not know is an Error."""
    error = _BY_CODE.get(code, Error)(text)
    error.code = code
    return error


def system_error(error: OSError, subject: str, advice: str = "") -> Error:
    """The exception for a system call of this process that failed, with its errno."""
    denied = error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    text = f"{subject}: {error.strerror or error}{advice}"
    made: DeniedError | SystemCallError = DeniedError(text) if denied else SystemCallError(text)
    made.errno = error.errno
    return made


@contextmanager
def system_errors(path: str) -> Iterator[None]:
    """Raises the exceptions of this package for failed system calls, with the path."""
    try:
        yield
    except Error:
        raise
    except OSError as e:
        raise system_error(e, path) from None


_both: dict[tuple[type[Error], type[Exception]], type[Error]] = {}


class _Both(type):
    """Of the types that also() makes. No module has them under a name, so they are pickled by their bases."""


def _type_of_both(kind: type[Error], other: type[Exception]) -> type[Error]:
    key = kind, other
    if key not in _both:
        made: Any = _Both(kind.__name__, key, {"__module__": kind.__module__})
        _both[key] = made
    return _both[key]


def _reduce_both(both: _Both) -> tuple[Any, ...]:
    return _type_of_both, both.__bases__


copyreg.pickle(_Both, _reduce_both)


def also(error: Error, other: type[Exception]) -> Error:
    """The error, as one of another type too: what callers of a package that ours replaces catch."""
    if isinstance(error, other):
        return error
    result = _type_of_both(type(error), other)(*error.args)
    result.code = error.code
    return result
