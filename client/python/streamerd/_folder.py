# SPDX-License-Identifier: Apache-2.0
"""Files below a folder that others may change meanwhile: what is outside of it is neither read nor written.

The folder is opened once, and those below it one by one, each by its name in the one above: a link there is an error.

    read      listed > opened, as it was listed > read > still as it was listed
    written   to a part, which its writer has locked > whole > renamed

A file that is read was not written to meanwhile. A write may have begun before, and changes no time when it ends: so a
file that a process has open for writing is refused, where the kernel says so (see _is_written()).

A part without a lock is of a process that was killed. The next one that writes into its folder removes it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import re
import secrets
import signal
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import BinaryIO, NamedTuple

from .errors import Error, FailedError, InvalidError, NotFoundError, system_error, system_errors

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_BELOW = _DIRECTORY | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe that took the place of a file does not block
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

_PART = re.compile(r"\.streamerd-[0-9a-f]+-\d+\.part")
_OTHER_PART = re.compile(r"\.streamerctl-\d+-\d+\.\d+\.part")
_PATH_MAX = 4096  # bytes, of Linux: a longer path cannot be opened
# What a call about a file fails with where a link, a socket or nothing is in its place, or in that of its folder.
_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ESTALE)

_PERMISSIONS = 0o777  # no set-uid, set-gid and sticky bits


class File(NamedTuple):
    name: str  # its path below the folder
    size: int
    mode: int
    identity: tuple[int, ...]  # another one where the file was replaced or written to


class Folder:
    """Closed as a context."""

    def __init__(self, path: str | os.PathLike[str], make: bool = False) -> None:
        self.path = os.fsdecode(path)
        with system_errors(self.path):
            if make:
                os.makedirs(self.path, exist_ok=True)
            try:
                self._top = os.open(self.path, _DIRECTORY)
            except (FileNotFoundError, NotADirectoryError):
                raise NotFoundError(f"{self.path}: no such folder") from None
        self._below: tuple[str, ...] = ()
        self._fd = self._top

    def __enter__(self) -> Folder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave()
        os.close(self._top)

    def enter(self, parents: tuple[str, ...], make: bool = False) -> int:
        """The descriptor of a folder below, until the next call."""
        if parents == self._below:
            return self._fd
        self._leave()
        for name in parents:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, dir_fd=self._fd)
            fd = os.open(name, _BELOW, dir_fd=self._fd)
            below = (*self._below, name)
            self._close()
            self._fd, self._below = fd, below
        return self._fd

    def _leave(self) -> None:
        self._close()
        self._fd, self._below = self._top, ()

    def _close(self) -> None:
        if self._fd != self._top:
            os.close(self._fd)

    def at(self, name: str) -> str:
        """For messages: the path of a file, or of the folder itself."""
        return os.path.join(self.path, name) if name else self.path

    # ---- reading ----

    def files(self, below: str = "") -> list[File]:
        """In order of names; `below`: those in this folder alone. Parts are left out. What is no file is refused."""
        found: list[File] = []
        folders = [tuple(below.split("/")) if below else ()]
        while folders:
            parents = folders.pop()
            with self._unchanged("/".join(parents)), os.scandir(self.enter(parents)) as entries:
                for entry in entries:
                    name = "/".join((*parents, entry.name))
                    if len(os.fsencode(name)) > _PATH_MAX:
                        raise InvalidError(f"{self.at(name)[:200]}...: its path has more than {_PATH_MAX} bytes")
                    if entry.is_dir(follow_symlinks=False):
                        folders.append((*parents, entry.name))
                    elif not _PART.fullmatch(entry.name) and not _OTHER_PART.fullmatch(entry.name):
                        found.append(self._described(name, entry.stat(follow_symlinks=False)))
        return sorted(found)

    def _described(self, name: str, found: os.stat_result) -> File:
        if not stat.S_ISREG(found.st_mode):
            raise InvalidError(f"{self.at(name)}: a set consists of regular files alone")
        try:
            name.encode()
        except UnicodeEncodeError:
            raise InvalidError(f"{self.at(name)!r}: its name is not UTF-8") from None
        return File(name, found.st_size, found.st_mode & _PERMISSIONS, _identity(found))

    def read(self, file: File, target: memoryview | None) -> None:
        """Reads a whole file, as it was listed. `target`: None for one of 0 bytes."""
        *parents, last = file.name.split("/")
        with self._unchanged(file.name):
            fd = os.open(last, _READ, dir_fd=self.enter(tuple(parents)))
            try:
                if _is_written(fd):
                    raise FailedError(f"{self.at(file.name)}: a process has it open for writing")
                self._require(file, os.fstat(fd))
                done = 0
                while target is not None and done < file.size and (n := os.readv(fd, [target[done:]])):
                    done += n
                self._require(file, os.fstat(fd))
            finally:
                os.close(fd)

    def require_unchanged(self, files: Iterable[File]) -> None:
        """Of files that were read, one after the other: all are as they were listed, still."""
        for file in files:
            *parents, last = file.name.split("/")
            with self._unchanged(file.name):
                self._require(file, os.stat(last, dir_fd=self.enter(tuple(parents)), follow_symlinks=False))

    def _require(self, file: File, found: os.stat_result) -> None:
        if _identity(found) != file.identity:
            raise self._changed(file.name)

    def _changed(self, name: str) -> Error:
        return FailedError(f"{self.at(name)}: it has changed while it was read")

    @contextmanager
    def _unchanged(self, name: str) -> Iterator[None]:
        """For calls about what was listed: something else in its place, or nothing, is a change."""
        try:
            yield
        except Error:
            raise
        except OSError as e:
            raise (self._changed(name) if e.errno in _REPLACED else system_error(e, self.at(name))) from None


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return (
        found.st_dev, found.st_ino, found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns,
    )  # fmt: skip


# Magic numbers of NFS and SMB, whose clients refuse a lease unless the server has delegated the file to them.
_REFUSE_LEASES = (0x6969, 0xFF534D42, 0xFE534D42)


def _is_written(fd: int) -> bool:
    """Whether a process has a file open for writing, or mapped: then the kernel gives no lease of it. It gives none of
    files of other users, and of some file systems, either: False."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)  # at an open meanwhile: SIGIO would end the process
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    except BlockingIOError:
        return _file_system(fd) not in _REFUSE_LEASES
    except OSError:
        return False
    return False


def _file_system(fd: int) -> int:
    """Its magic number; 0: unknown."""
    status = (ctypes.c_long * 16)()  # struct statfs, which begins with it, has 120 bytes
    return status[0] & 0xFFFFFFFF if ctypes.CDLL(None).fstatfs(fd, status) == 0 else 0


# ---- writing ----


def is_below(path: str) -> bool:
    """Whether a path is that of a file below a folder, and of no part."""
    parts = path.split("/")
    return not any(part in ("", ".", "..") or "\0" in part for part in parts) and not _PART.fullmatch(parts[-1])


class Writer:
    """Writes files below a folder, which is made if it does not exist. The folder of the last file stays open: files of
    a set are in order of names."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Folder(folder, make=True)
        self._own = secrets.token_hex(8)  # no process number: containers that share a folder have the same
        self._numbers = itertools.count()
        self._cleaned: set[tuple[str, ...]] = {()}
        self._written: set[tuple[int, int, int]] = set()
        _remove_parts(self._folder.enter(()))

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._folder.__exit__(kind, value, trace)

    def exists(self, path: str) -> bool:
        """Whether the folder has it, whatever it is."""
        with system_errors(self._folder.at(path)):
            at, last = self._enter(path)
            return self._replaced(at, last, path) is not None

    @contextmanager
    def file(self, path: str, mode: int | None = None) -> Iterator[BinaryIO]:
        """A file that is written in the block, and has its name after it; the block uses no other one. It replaces what
        has the name, unless the block raises. `mode`: None: that of a file that it replaces, else what the umask leaves."""
        with system_errors(self._folder.at(path)):
            at, last = self._enter(path)
            old = self._replaced(at, last, path)
            if mode is None and old is not None and stat.S_ISREG(old.st_mode):
                mode = old.st_mode
            part, fd = self._new_part(at, 0o666 if mode is None else 0o600)
            try:
                with open(fd, "wb", closefd=False) as f:
                    yield f
                if mode is not None:
                    os.fchmod(fd, mode & _PERMISSIONS)
                os.rename(part, last, src_dir_fd=at, dst_dir_fd=at)
                self._written.add(_version(os.fstat(fd)))
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(part, dir_fd=at)
                raise
            finally:
                os.close(fd)  # ends the lock: the part has no name any more

    def write(self, path: str, data: bytes) -> None:
        with self.file(path) as f:
            f.write(data)

    def _enter(self, path: str) -> tuple[int, str]:
        if not is_below(path):
            raise InvalidError(f"{path!r}: is no path below a folder")
        *parents, last = path.split("/")
        at = self._folder.enter(tuple(parents), make=True)
        if tuple(parents) not in self._cleaned:
            self._cleaned.add(tuple(parents))
            _remove_parts(at)
        return at, last

    def _replaced(self, at: int, last: str, path: str) -> os.stat_result | None:
        """What has the name of a file. Refused if that is another one that was written: a file system may take two names
        for one, which differ in the case of letters."""
        try:
            found = os.stat(last, dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if _version(found) in self._written:
            raise FailedError(f"{self._folder.at(path)}: another file of these has this name already, as the file system sees it")
        return found

    def _new_part(self, at: int, mode: int) -> tuple[str, int]:
        while True:
            part = f".streamerd-{self._own}-{next(self._numbers)}.part"
            fd = os.open(part, _WRITE, mode, dir_fd=at)
            try:
                if _lock(fd, fcntl.LOCK_EX) is not False and os.fstat(fd).st_nlink > 0:
                    return part, fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)  # it is being removed: it had no lock yet


def _version(found: os.stat_result) -> tuple[int, int, int]:
    """Of a file with a name; a number of a file is used again once that is removed."""
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _lock(fd: int, how: int) -> bool | None:
    """False: it is locked otherwise. None: the file system has no locks."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _remove_parts(at: int) -> None:
    """Removes parts that no process is writing. What cannot be examined stays."""
    with contextlib.suppress(OSError):
        with os.scandir(at) as entries:
            parts = [entry.name for entry in entries if _PART.fullmatch(entry.name)]
        for part in parts:
            with contextlib.suppress(OSError):
                fd = os.open(part, _READ, dir_fd=at)
                try:
                    if _lock(fd, fcntl.LOCK_SH):
                        os.unlink(part, dir_fd=at)
                finally:
                    os.close(fd)
