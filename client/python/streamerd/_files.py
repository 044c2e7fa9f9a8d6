# SPDX-License-Identifier: Apache-2.0
"""publish_files() and restore_files(): the files of a folder are resident under a key.

A set is a model that is made of tensors: each file is a tensor of bytes, named by its path below the folder, and its mode
is metadata. So a set is charged, listed, evicted and exported like any model, and a file of it is read like any source.

What is restored may be run by the process that restores it. So a set of another user is refused, and neither what it
names nor what is in the folder is trusted (_folder.py).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from ctypes import byref, c_char_p, c_size_t
from typing import NamedTuple

from ._attach import attach_lease
from ._client import Client, connect
from ._folder import File, Folder, Writer, is_below
from ._library import ATTACH_READY, Handle, Tensor, file_text, library, sized
from ._nearest import explains_options
from ._option_values import deadline_of, seconds_until
from ._publication import PARAMETER, Entry, Memory, find
from ._put import OWN, claimed
from .errors import DeniedError, InvalidError, NotFoundError

_MODE = "mode:"  # before the path, in the metadata
_KEY = "streamerd.key."


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

    Another process that publishes the same is waited for. A set of this name with another key is replaced. No link
    below the folder is followed, and nothing outside of it is read. Parts of files that restore_files() or streamerctl
    writes are left out.

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
            "streamerd."; a path of more than 4096 bytes; no file at all; a key that does not map texts to texts.
        FailedError: a file has changed while it was read, or a process has it open for writing.
        NotFoundError: there is no such folder.
        DeniedError, SystemCallError: a file or folder cannot be read; the text names it, `errno` says why. DeniedError
            also: another user has published the set, so that this one could not restore it.
        OutOfMemoryError: the set does not fit the device's budget now, beside the one that it replaces; nothing waits for
            memory.
        What open() raises.

    Example:
        streamerd.publish_files("/var/cache/engine", "engine/cache", key={"version": "1.2", "gpu": "H100"})
    """
    file_text(folder)
    with Folder(folder) as top:
        return publish_selected(top, top.files(), name, key=key, timeout=timeout, socket=socket, autostart=autostart)


def publish_selected(
    folder: Folder,
    files: list[File],
    name: str,
    *,
    key: Mapping[str, str],
    timeout: float | str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
) -> bool:
    if not files:
        raise InvalidError(f"{name}: there is no file to publish")
    for file in files:
        if file.name.startswith(OWN):
            raise InvalidError(f"{folder.at(file.name)}: names that begin with {OWN!r} are the daemon's")
    deadline = deadline_of("timeout", timeout)
    client = connect(socket, autostart, deadline)
    found = find(client, name, key, base=None, device="host", claim=False, timeout=seconds_until(deadline))
    if found.state == "hit":
        _require_own(client, name, found.generation, "cannot restore")
        return False
    publication = claimed(client, name, key, "host", True, deadline)
    try:
        publication.begin([file.size for file in files])
        for i, file in enumerate(files):
            publication.tensor(Entry(file.name, "U8", 1, PARAMETER, 0, 0, (file.size,), (1,), i, 0))
            folder.read(file, _bytes_of(publication.storage(i)))
            publication.text(_MODE + file.name, f"{file.mode:04o}")
        folder.require_unchanged(files)
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

    Each is written whole, and then gets its name. Nothing is written outside the folder, and no link below it is
    followed. Of what killed processes were writing into these folders, nothing is left.

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
        DeniedError, SystemCallError: a file cannot be written; the text names it, `errno` says why. Files that were
            written stay.
        FailedError: the file system takes the names of two files for one, as where case is not told apart.
        What open() raises.

    Example:
        streamerd.restore_files("engine/cache", "/var/cache/engine", key={"version": "1.2", "gpu": "H100"})
    """
    file_text(folder)
    deadline = deadline_of("timeout", timeout)
    client = connect(socket, autostart, deadline)
    found = find(client, name, key, base=None, device="host", claim=False, timeout=seconds_until(deadline))
    if found.state != "hit":
        kind = NotFoundError if found.state in ("absent", "stale") else InvalidError
        raise kind(found.explain(name))
    lease = attach_lease(client, name, ATTACH_READY, generation=found.generation, device="host")
    if not any_user:
        _require_own(client, name, found.generation, "might run")
    return write_files(client, lease, name, folder, replace)


def _require_own(client: Client, name: str, generation: int, what: str) -> None:
    rows = client.call("show", model=name)["models"]
    uids = [row["published"]["uid"] for row in rows if row["generation"] == generation and row.get("published")]
    if uids != [os.geteuid()]:
        whose = f"uid {uids[0]}" if uids else "another process"
        raise DeniedError(f"{name}: {whose} has published these files, which uid {os.geteuid()} {what}")


# ---- memory ----


def _bytes_of(memory: Memory) -> memoryview | None:
    """None: there are none."""
    if memory.size == 0:
        return None
    return memoryview((ctypes.c_char * memory.size).from_address(memory.address)).cast("B")


class _Resident(NamedTuple):
    """A file of a set."""

    path: str
    mode: int
    address: int
    size: int


def _resident(client: Client, lease: Handle, name: str) -> list[_Resident]:
    """The files that a lease has. InvalidError: it has something else."""
    lib, count, tensor = library(), c_size_t(), sized(Tensor)
    metadata = metadata_of(client, lease)
    client.check(lib.streamer_tensor_count(lease.pointer, byref(count)))
    files = []
    for i in range(count.value):
        client.check(lib.streamer_tensor_get(lease.pointer, i, byref(tensor)))
        path = _text(tensor.name)
        mode = metadata.get(_MODE + path, "")
        if tensor.dtype_name != b"U8" or tensor.rank != 1 or not mode or mode.strip("01234567"):
            raise InvalidError(f"{name}: is no set of files: {path}")
        if not is_below(path):
            raise InvalidError(f"{name}: is no set of files: {path!r} is no path below a folder")
        files.append(_Resident(path, int(mode, 8), tensor.data or 0, tensor.bytes))
    return files


def write_files(client: Client, lease: Handle, name: str, folder: str | os.PathLike[str], replace: bool) -> list[str]:
    """Writes what a lease has; the lease must be referred to until this returns."""
    files, written = _resident(client, lease, name), []
    with Writer(folder) as writer:
        for file in files:
            if not replace and writer.exists(file.path):
                continue
            with writer.file(file.path, file.mode) as f:
                if file.size > 0:
                    f.write((ctypes.c_char * file.size).from_address(file.address))
            written.append(file.path)
    return written


def metadata_of(client: Client, lease: Handle) -> dict[str, str]:
    lib, key, value = library(), c_char_p(), c_char_p()
    pairs = {}
    for i in range(lib.streamer_metadata_count(lease.pointer)):
        client.check(lib.streamer_metadata_get(lease.pointer, i, byref(key), byref(value)))
        pairs[_text(key.value or b"")] = _text(value.value or b"")
    return pairs


def _text(encoded: bytes) -> str:
    """As Python has names of files: another program may have published any bytes."""
    return encoded.decode(errors="surrogateescape")


def key_differs(metadata: Mapping[str, str], key: Mapping[str, str]) -> str | None:
    """What the key of a set that lies in a file has differently, of the fields of both; None: nothing."""
    have = {field[len(_KEY) :]: value for field, value in metadata.items() if field.startswith(_KEY)}
    differs = [
        f"{field}: stored with {have.get(field, 'nothing')!r}, needed {key.get(field, 'nothing')!r}"
        for field in sorted(have.keys() | key.keys())
        if have.get(field) != key.get(field)
    ]
    return "; ".join(differs) or None
