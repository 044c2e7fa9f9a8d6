# SPDX-License-Identifier: Apache-2.0
"""publish_files() and restore_files(): the files of a folder are resident under a key.

A set is a model that is made of tensors: each file is a tensor of bytes, named by its path below the folder, and its mode
is metadata. So a set is charged, listed, evicted and exported like any model, and a file of it is read like any source.

What is restored may be run by the process that restores it. So a set of another user is refused, and what it names is
not trusted: folders are opened one by one, without following links, and nothing is written outside the folder. A file is
written under another name and renamed once it is whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from ctypes import byref, c_char_p, c_size_t
from typing import NamedTuple

from ._attach import attach_lease
from ._client import Client, connect
from ._library import ATTACH_READY, Handle, Tensor, library, sized
from ._nearest import explains_options
from ._option_values import deadline_of, seconds_until
from ._publication import PARAMETER, Entry, Memory, find
from ._put import OWN, claimed
from .errors import DeniedError, FailedError, InvalidError, NotFoundError

_MODE = "mode:"  # before the path, in the metadata
_KEY = "streamerd.key."
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PART = re.compile(r"\.streamerd-[0-9a-f]+-\d+\.part")  # of a process that writes, or was killed meanwhile
_PERMISSIONS = 0o777  # no set-uid, set-gid and sticky bits


class _File(NamedTuple):
    name: str
    path: str
    size: int
    mode: int


@explains_options
def publish_files(
    folder: str | os.PathLike[str],
    name: str,
    *,
    key: Mapping[str, str],
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> bool:
    """Makes the files below a folder resident in host memory, under `name` and `key`.

    Another process that publishes the same is waited for. A set of this name with another key is replaced.

    Args:
        folder: it has regular files and folders alone; empty folders are not part of the set.
        name: the set's name in the daemon.
        key: all that decides whether the files can be used again, as texts; restore_files() must give the same.
        timeout: "30s", or seconds, of connecting and waiting; None: no limit.
        socket, autostart: as for open().

    Returns:
        Whether this call has published them. False: they were resident already, with this key.

    Raises:
        InvalidError: a link, or what is neither file nor folder; a name that is not UTF-8, or that begins with
            "streamerd."; no file at all.
        FailedError: a file has changed while it was read.
        OutOfMemoryError: the set does not fit the device's budget now; nothing waits for memory.
        What open() raises.

    Example:
        streamerd.publish_files("/var/cache/engine", "engine/cache", key={"version": "1.2", "gpu": "H100"})
    """
    files = _files_of(os.fspath(folder))
    return publish_selected(files, name, key=key, timeout=timeout, socket=socket, autostart=autostart)


def publish_selected(
    files: list[_File],
    name: str,
    *,
    key: Mapping[str, str],
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> bool:
    if not files:
        raise InvalidError(f"{name}: there is no file to publish")
    deadline = deadline_of("timeout", timeout)
    client = connect(socket, autostart, deadline)
    if find(client, name, key, base=None, device="host", claim=False, timeout=seconds_until(deadline)).state == "hit":
        return False
    publication = claimed(client, name, key, "host", True, deadline)
    try:
        publication.begin([file.size for file in files])
        for i, file in enumerate(files):
            publication.tensor(Entry(file.name, "U8", 1, PARAMETER, 0, 0, (file.size,), (1,), i, 0))
            _read(file, publication.storage(i))
            publication.text(_MODE + file.name, f"{file.mode:04o}")
        publication.commit()
    except BaseException:
        publication.abort()
        raise
    return True


@explains_options
def restore_files(
    name: str,
    folder: str | os.PathLike[str],
    *,
    key: Mapping[str, str],
    replace: bool = True,
    any_user: bool = False,
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> list[str]:
    """Writes the files of a set below a folder, as publish_files() found them.

    Each is written whole, and then gets its name. Nothing is written outside the folder, and no link is followed.

    Args:
        name: the set's name in the daemon.
        folder: it is made if it does not exist.
        key: as publish_files() was given it.
        replace: False: files that exist stay as they are.
        any_user: also a set that another user has published, if the daemon allows it (`publish.across_uids`).
        timeout: "30s", or seconds; None: no limit.
        socket, autostart: as for open().

    Returns:
        The paths of the files that were written, relative to the folder.

    Raises:
        NotFoundError: there is no set of this name.
        InvalidError: the key differs: the text names each field, with both values; or it is no set of files.
        DeniedError: another user has published it.
        What open() raises.

    Example:
        streamerd.restore_files("engine/cache", "/var/cache/engine", key={"version": "1.2", "gpu": "H100"})
    """
    deadline = deadline_of("timeout", timeout)
    client = connect(socket, autostart, deadline)
    found = find(client, name, key, base=None, device="host", claim=False, timeout=seconds_until(deadline))
    if found.state != "hit":
        kind = NotFoundError if found.state in ("absent", "stale") else InvalidError
        raise kind(found.explain(name))
    lease = attach_lease(client, name, ATTACH_READY, generation=found.generation, device="host")
    if not any_user:
        _require_own(client, name, found.generation)
    return write_files(client, lease, name, os.fspath(folder), replace)


def _require_own(client: Client, name: str, generation: int) -> None:
    rows = client.call("show", model=name)["models"]
    uids = [row["published"]["uid"] for row in rows if row["generation"] == generation and row.get("published")]
    if uids != [os.geteuid()]:
        whose = f"uid {uids[0]}" if uids else "another process"
        raise DeniedError(f"{name}: {whose} has published these files, which uid {os.geteuid()} might run")


# ---- the files of a folder ----


def _files_of(folder: str) -> list[_File]:
    if not os.path.isdir(folder):
        raise NotFoundError(f"{folder}: no such folder")
    return sorted(scan(folder, ""))


def scan(folder: str, below: str) -> Iterator[_File]:
    """The files of a folder, named by their paths with `below` in front."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if _PART.fullmatch(entry.name):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from scan(entry.path, f"{name}/")
                continue
            found = entry.stat(follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise InvalidError(f"{entry.path}: a set consists of regular files alone")
            try:
                name.encode()
            except UnicodeEncodeError:
                raise InvalidError(f"{entry.path!r}: its name is not UTF-8") from None
            if name.startswith(OWN):
                raise InvalidError(f"{entry.path}: names that begin with {OWN!r} are the daemon's")
            yield _File(name, entry.path, found.st_size, stat.S_IMODE(found.st_mode) & _PERMISSIONS)


def _read(file: _File, memory: Memory) -> None:
    with open(file.path, "rb", buffering=0) as f:
        found = os.fstat(f.fileno())
        whole = stat.S_ISREG(found.st_mode) and found.st_size == file.size
        if whole and file.size > 0:
            target = memoryview((ctypes.c_char * file.size).from_address(memory.address)).cast("B")
            done = 0
            while done < file.size and (n := f.readinto(target[done:])):
                done += n
            whole = done == file.size and os.fstat(f.fileno()).st_mtime_ns == found.st_mtime_ns
    if not whole:
        raise FailedError(f"{file.path}: it has changed while it was read")


# ---- writing ----


def write_files(client: Client, lease: Handle, name: str, folder: str, replace: bool) -> list[str]:
    """Writes what a lease has; the lease must be referred to until this returns."""
    lib, count, tensor = library(), c_size_t(), sized(Tensor)
    modes = {key[len(_MODE) :]: value for key, value in metadata_of(client, lease).items() if key.startswith(_MODE)}
    client.check(lib.streamer_tensor_count(lease.pointer, byref(count)))
    written = []
    os.makedirs(folder, exist_ok=True)
    with _Writer(folder) as writer:
        for i in range(count.value):
            client.check(lib.streamer_tensor_get(lease.pointer, i, byref(tensor)))
            path = tensor.name.decode()
            mode = modes.get(path, "")
            if tensor.dtype_name != b"U8" or tensor.rank != 1 or not mode or mode.strip("01234567"):
                raise InvalidError(f"{name}: is no set of files: {path}")
            data = memoryview((ctypes.c_char * tensor.bytes).from_address(tensor.data or 0)) if tensor.bytes else b""
            if writer.write(path, data, int(mode, 8) & _PERMISSIONS, replace):
                written.append(path)
    return written


def metadata_of(client: Client, lease: Handle) -> dict[str, str]:
    lib, key, value = library(), c_char_p(), c_char_p()
    pairs = {}
    for i in range(lib.streamer_metadata_count(lease.pointer)):
        client.check(lib.streamer_metadata_get(lease.pointer, i, byref(key), byref(value)))
        pairs[(key.value or b"").decode()] = (value.value or b"").decode()
    return pairs


def key_differs(metadata: Mapping[str, str], key: Mapping[str, str]) -> str | None:
    """What the key of a set that lies in a file has differently, of the fields of both; None: nothing."""
    have = {field[len(_KEY) :]: value for field, value in metadata.items() if field.startswith(_KEY)}
    differs = [
        f"{field}: stored with {have.get(field, 'nothing')!r}, needed {key.get(field, 'nothing')!r}"
        for field in sorted(have.keys() | key.keys())
        if have.get(field) != key.get(field)
    ]
    return "; ".join(differs) or None


class _Writer:
    """Writes files below a folder. The folder of the last file stays open: a set is in order of names."""

    def __init__(self, folder: str) -> None:
        self._top = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._parents: tuple[str, ...] = ()
        self._fd = os.dup(self._top)
        self._own = secrets.token_hex(8)  # no process number: containers that share a folder have the same
        self._numbers = itertools.count()

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *exception: object) -> None:
        os.close(self._fd)
        os.close(self._top)

    def write(self, path: str, data: memoryview | bytes, mode: int, replace: bool) -> bool:
        """False: it exists, and is not to be replaced."""
        *parents, last = path.split("/")
        if any(part in ("", ".", "..") or "\0" in part for part in (*parents, last)):
            raise InvalidError(f"{path!r}: is no path below a folder")
        self._enter(tuple(parents))
        if not replace and self._exists(last):
            return False
        part = f".streamerd-{self._own}-{next(self._numbers)}.part"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self._fd)
        try:
            try:
                _write_all(fd, data)
                os.fchmod(fd, mode)
            finally:
                os.close(fd)
            os.rename(part, last, src_dir_fd=self._fd, dst_dir_fd=self._fd)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=self._fd)
            raise
        return True

    def _exists(self, name: str) -> bool:
        try:
            os.stat(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def _enter(self, parents: tuple[str, ...]) -> None:
        if parents == self._parents:
            return
        fd = os.dup(self._top)
        try:
            for part in parents:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
                inner = os.open(part, _DIRECTORY, dir_fd=fd)
                os.close(fd)
                fd = inner
        except BaseException:
            os.close(fd)
            raise
        os.close(self._fd)
        self._fd, self._parents = fd, parents


def _write_all(fd: int, data: memoryview | bytes) -> None:
    left = memoryview(data)
    while left.nbytes > 0:
        left = left[os.write(fd, left) :]
