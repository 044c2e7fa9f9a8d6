# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that are resident under a key, and restored below another folder."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import signal
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon, eventually

import streamerd
from streamerd import _files, _folder, _put
from streamerd._client import connect
from streamerd._folder import File, Folder, Writer
from streamerd._publication import Entry

KEY = {"engine": "test 1", "gpu": "none"}


@pytest.fixture
def cache(folder: Path) -> Path:
    """What a compiler leaves."""
    cache = folder / "cache"
    (cache / "a" / "deep").mkdir(parents=True)
    (cache / "empty folder").mkdir()
    (cache / "a" / "deep" / "kernel.so").write_bytes(os.urandom(100_001))
    (cache / "a" / "deep" / "kernel.so").chmod(0o755)
    (cache / "a.py").write_text("print('é')\n")
    (cache / "a-b").write_bytes(b"")
    (cache / "é é").write_text("x")
    (cache / "é é").chmod(0o600)
    return cache


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(p.relative_to(folder)): (p.read_bytes(), stat.S_IMODE(p.stat().st_mode)) for p in files}


def test_files_are_restored_with_their_modes(daemon: Daemon, cache: Path, folder: Path) -> None:
    assert streamerd.publish_files(cache, "set", key=KEY)
    assert not streamerd.publish_files(cache, "set", key=KEY)
    restored = folder / "x" / "restored"
    names = streamerd.restore_files("set", restored, key=KEY)
    assert contents(restored) == contents(cache) and sorted(names) == sorted(contents(cache))
    assert not (restored / "empty folder").exists()
    eventually(lambda: not daemon.leases())


def test_a_set_is_a_model(daemon: Daemon, cache: Path, folder: Path) -> None:
    """It can be exported, and read from the file."""
    streamerd.publish_files(cache, "set", key=KEY)
    with streamerd.open("set", framework="numpy") as model:
        assert bytes(model["a.py"]) == (cache / "a.py").read_bytes()
        assert model.metadata["mode:a/deep/kernel.so"] == "0755"
        assert model.metadata["streamerd.key.engine"] == "test 1"
    daemon.ctl("export", "set", str(folder / "set.safetensors"))
    with streamerd.open(folder / "set.safetensors", framework="numpy", ready=True) as model:
        assert _files.key_differs(model.metadata, KEY) is None
        assert "gpu: stored with 'none', needed 'H100'" in str(_files.key_differs(model.metadata, {**KEY, "gpu": "H100"}))
        _files.write_files(model._client, model._held(), "set", str(folder / "from file"), True)
    assert contents(folder / "from file") == contents(cache)


def test_a_key_that_differs_names_its_fields_and_replaces_the_set(daemon: Daemon, cache: Path, folder: Path) -> None:
    with pytest.raises(streamerd.NotFoundError, match="set: there is no published model of this name"):
        streamerd.restore_files("set", folder / "r", key=KEY)
    streamerd.publish_files(cache, "set", key=KEY)
    other = {"engine": "test 2", "gpu": "none"}
    with pytest.raises(streamerd.InvalidError, match="engine: published with 'test 1', needed 'test 2'"):
        streamerd.restore_files("set", folder / "r", key=other)
    assert not (folder / "r").exists()
    assert streamerd.publish_files(cache, "set", key=other)
    assert streamerd.restore_files("set", folder / "r", key=other)


def test_files_that_exist_are_replaced_or_stay(daemon: Daemon, cache: Path, folder: Path) -> None:
    streamerd.publish_files(cache, "set", key=KEY)
    target = folder / "r"
    target.mkdir()
    (target / "a.py").write_text("mine")
    names = streamerd.restore_files("set", target, key=KEY, replace=False)
    assert "a.py" not in names and len(names) == 3 and (target / "a.py").read_text() == "mine"
    assert "a.py" in streamerd.restore_files("set", target, key=KEY)
    assert contents(target) == contents(cache)


def test_what_is_no_regular_file_is_not_published(daemon: Daemon, cache: Path) -> None:
    (cache / "link").symlink_to("a.py")
    with pytest.raises(streamerd.InvalidError, match="link: a set consists of regular files alone"):
        streamerd.publish_files(cache, "set", key=KEY)
    (cache / "link").unlink()
    (cache / "streamerd.x").touch()
    with pytest.raises(streamerd.InvalidError, match="streamerd.x: names that begin with 'streamerd.' are the daemon's"):
        streamerd.publish_files(cache, "set", key=KEY)
    (cache / "streamerd.x").unlink()
    (cache / "bad\udcff").touch()
    with pytest.raises(streamerd.InvalidError, match="its name is not UTF-8"):
        streamerd.publish_files(cache, "set", key=KEY)
    with pytest.raises(streamerd.InvalidError, match="set: there is no file to publish"):
        streamerd.publish_files(cache / "empty folder", "set", key=KEY)
    with pytest.raises(streamerd.NotFoundError, match="no such folder"):
        streamerd.publish_files(cache / "none", "set", key=KEY)


def test_a_set_that_does_not_fit_fails_by_name(daemon: Daemon, cache: Path) -> None:
    """It waits for no memory: an engine that publishes would not serve meanwhile."""
    (cache / "large").touch()
    os.truncate(cache / "large", 2 << 30)
    with pytest.raises(streamerd.OutOfMemoryError, match="does not fit: 2.0 GiB needed"):
        streamerd.publish_files(cache, "set", key=KEY, timeout=60)
    (cache / "large").unlink()
    assert streamerd.publish_files(cache, "set", key=KEY)


def test_a_set_that_does_not_fit_beside_the_one_that_it_replaces_fails_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one serves until the new one is whole, so no wait would help."""
    daemon = Daemon(folder, memory="64MiB")
    monkeypatch.setenv("STREAMERD_SOCKET", daemon.socket)
    try:
        (folder / "c").mkdir()
        (folder / "c" / "x").write_bytes(bytes(40 << 20))
        assert streamerd.publish_files(folder / "c", "set", key=KEY)
        with pytest.raises(streamerd.OutOfMemoryError, match="do(es)? not fit"):
            streamerd.publish_files(folder / "c", "set", key={**KEY, "gpu": "H100"})
        assert streamerd.restore_files("set", folder / "r", key=KEY) == ["x"]
        daemon.ctl("unload", "set")
        assert streamerd.publish_files(folder / "c", "set", key={**KEY, "gpu": "H100"})
    finally:
        daemon.stop()


def test_special_bits_are_dropped(daemon: Daemon, folder: Path) -> None:
    cache = folder / "c"
    cache.mkdir()
    (cache / "tool").touch()
    (cache / "tool").chmod(0o6755)
    streamerd.publish_files(cache, "set", key=KEY)
    streamerd.restore_files("set", folder / "r", key=KEY)
    assert stat.S_IMODE((folder / "r" / "tool").stat().st_mode) == 0o755


@pytest.mark.parametrize("key", [None, 5, ["engine"], {"engine": 1}, {1: "engine"}, {"a=b": "c"}])
def test_a_key_that_maps_no_texts_to_texts_is_refused(daemon: Daemon, cache: Path, key: Any) -> None:
    with pytest.raises(streamerd.InvalidError, match="the key maps names to texts"):
        streamerd.publish_files(cache, "set", key=key)
    with pytest.raises(streamerd.InvalidError, match="the key maps names to texts"):
        streamerd.restore_files("set", cache, key=key)


# ---- what changes while it is published ----


def require_nothing_published(daemon: Daemon, folder: Path) -> None:
    with pytest.raises(streamerd.NotFoundError):
        streamerd.restore_files("set", folder / "r", key=KEY)
    eventually(lambda: not daemon.leases())


def in_place(path: Path, data: bytes) -> None:
    with open(path, "r+b") as f:
        f.write(data)


def with_times_kept(path: Path, change: Callable[[Path], None]) -> None:
    found = path.stat()
    change(path)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(bytes(path.stat().st_size))
    other.rename(path)


def swap(path: Path, make: Callable[[Path], None]) -> None:
    """Something else is in the place of a file or folder."""
    path.rename(path.with_name("moved"))
    make(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        os.chdir(path.parent)
        s.bind(path.name)


CHANGES: dict[str, Callable[[Path], None]] = {
    "longer": lambda c: (c / "a.py").write_text("longer than before, by far") and None,
    "shorter": lambda c: os.truncate(c / "a.py", 1),
    "in place": lambda c: with_times_kept(c / "a.py", lambda path: in_place(path, b"other")),
    "replaced": lambda c: with_times_kept(c / "a.py", replace),
    "removed": lambda c: (c / "a.py").unlink(),
    "a link": lambda c: swap(c / "a.py", lambda path: path.symlink_to(c / "moved")),
    "a pipe": lambda c: swap(c / "a.py", os.mkfifo),
    "a socket": lambda c: swap(c / "a.py", make_socket),
    "a folder": lambda c: swap(c / "a.py", lambda path: path.mkdir()),
    "another mode": lambda c: (c / "a.py").chmod(0o640),
    "the folder a link": lambda c: swap(c / "a", lambda path: path.symlink_to(c / "moved")),
    "the folder removed": lambda c: (c / "a").rename(c / "moved"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_has_changed_since_it_was_listed_is_not_published(
    daemon: Daemon, cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    def listed(self: Folder, below: str = "") -> list[File]:
        found = files(self, below)
        change(cache)
        return found

    files = Folder.files
    monkeypatch.chdir(folder)
    monkeypatch.setattr(Folder, "files", listed)
    with pytest.raises(streamerd.FailedError, match="/a[^ ]*: it has changed while it was read"):
        streamerd.publish_files(cache, "set", key=KEY)
    require_nothing_published(daemon, folder)


@pytest.mark.parametrize("other", ["a.py", "a-b"])
def test_a_file_that_changes_while_it_or_a_later_one_is_read_is_not_published(
    daemon: Daemon, cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Of the same size, and with the time of the last change set back."""

    def read(fd: int, buffers: Any) -> int:
        if os.path.samestat(os.fstat(fd), (cache / "a.py").stat()):
            with_times_kept(cache / other, lambda path: path.write_bytes(bytes(path.stat().st_size)))
        return readv(fd, buffers)

    readv = os.readv
    monkeypatch.setattr(os, "readv", read)
    with pytest.raises(streamerd.FailedError, match=f"{other}: it has changed while it was read"):
        streamerd.publish_files(cache, "set", key=KEY)
    require_nothing_published(daemon, folder)


@contextmanager
def mapped(path: Path) -> Iterator[None]:
    with open(path, "r+b") as f:
        memory = mmap.mmap(f.fileno(), 0)
    yield
    memory.close()


@pytest.mark.parametrize("writer", [lambda path: open(path, "r+b"), mapped], ids=["an open file", "a mapping"])
def test_a_file_that_a_process_may_be_writing_is_not_published(
    daemon: Daemon, cache: Path, folder: Path, writer: Callable[[Path], Any]
) -> None:
    """A write that began before the file was listed changes neither its size nor its times."""
    with writer(cache / "a.py"), pytest.raises(streamerd.FailedError, match="a.py: a process has it open for writing"):
        streamerd.publish_files(cache, "set", key=KEY)
    require_nothing_published(daemon, folder)
    assert streamerd.publish_files(cache, "set", key=KEY)


@pytest.mark.parametrize(("number", "magic"), [(errno.EAGAIN, 0x6969), (errno.EACCES, 0xEF53), (errno.EINVAL, 0)])
def test_a_file_without_leases_is_published(
    daemon: Daemon, cache: Path, monkeypatch: pytest.MonkeyPatch, number: int, magic: int
) -> None:
    """NFS without a delegation, a file of another user, a file system that has none."""

    def refuse(fd: int, command: int, argument: int = 0) -> int:
        if command == fcntl.F_SETLEASE:
            raise OSError(number, os.strerror(number))
        return control(fd, command, argument)

    control = fcntl.fcntl
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(_folder, "_file_system", lambda fd: magic)
    assert streamerd.publish_files(cache, "set", key=KEY)


def test_the_file_system_is_known_by_its_number(cache: Path) -> None:
    shown = subprocess.run(["stat", "-f", "-c", "%t", cache / "a.py"], check=True, capture_output=True, text=True).stdout
    with open(cache / "a.py") as f:
        assert _folder._file_system(f.fileno()) == int(shown, 16)


def test_a_folder_of_any_depth_is_published(daemon: Daemon, folder: Path) -> None:
    """Deeper than calls of Python may be; what no path can name is refused."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        for _ in range(1500):
            os.mkdir("d", dir_fd=fd)
            inner = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = inner
        os.close(os.open("file", os.O_CREAT, dir_fd=fd))
        assert streamerd.publish_files(folder / "d", "set", key=KEY)
        assert streamerd.restore_files("set", folder / "r", key=KEY) == ["d/" * 1499 + "file"]
        os.mkdir("e" * 255, dir_fd=fd)
        inner = os.open("e" * 255, os.O_RDONLY, dir_fd=fd)
        os.mkdir("f" * 255, dir_fd=inner)
        os.close(fd)
        fd = os.open("f" * 255, os.O_RDONLY, dir_fd=inner)
        os.close(inner)
        for _ in range(3):
            os.mkdir("g" * 255, dir_fd=fd)
            inner = os.open("g" * 255, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = inner
        with pytest.raises(streamerd.InvalidError, match="its path has more than 4096 bytes"):
            streamerd.publish_files(folder / "d", "other", key=KEY)
    finally:
        os.close(fd)
        subprocess.run(["rm", "-rf", folder / "d", folder / "r"], check=True)


def test_names_of_files_are_any_text(daemon: Daemon, folder: Path) -> None:
    cache = folder / "c"
    cache.mkdir()
    for name in ("a\nb", "\\", '"', "-", "...", "\t\x7f", "x" * 255, "é" * 127, "a ", "mode:a", "__metadata__"):
        (cache / name).write_text(name)
        os.link(cache / name, folder / "linked")
        (folder / "linked").unlink()
    streamerd.publish_files(cache, "set", key=KEY)
    streamerd.restore_files("set", folder / "r", key=KEY)
    assert contents(folder / "r") == contents(cache)


# ---- parts ----


def parts(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*.part")]


def killed_while_it_restores(name: str, target: Path) -> None:
    pid = os.fork()
    if pid == 0:
        os.rename = lambda *names, **folders: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        try:
            streamerd.restore_files(name, target, key=KEY)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_what_a_killed_process_was_writing_is_not_published_and_removed_by_the_next_one(
    daemon: Daemon, cache: Path, folder: Path
) -> None:
    whole = contents(cache)
    (cache / ".streamerctl-17-1764400000.000000001.part").touch()
    streamerd.publish_files(cache, "set", key=KEY)
    (cache / ".streamerctl-17-1764400000.000000001.part").unlink()
    (cache / "a-b").unlink()
    killed_while_it_restores("set", cache)
    os.rename(cache / parts(cache)[0], cache / "a" / parts(cache)[0])
    killed_while_it_restores("set", cache)
    assert len(parts(cache)) == 2
    streamerd.publish_files(cache, "again", key=KEY)
    assert streamerd.restore_files("again", folder / "r", key=KEY) == [name for name in sorted(whole) if name != "a-b"]
    assert len(parts(cache)) == 2
    streamerd.restore_files("set", cache, key=KEY, replace=False)
    assert len(parts(cache)) == 1
    assert contents(cache) != whole
    streamerd.publish_files(cache / "a", "a", key=KEY)
    assert streamerd.restore_files("a", cache / "a", key=KEY) == ["deep/kernel.so"]
    assert parts(cache) == []


def test_a_part_that_is_being_written_stays(daemon: Daemon, cache: Path, folder: Path) -> None:
    streamerd.publish_files(cache, "set", key=KEY)
    with Writer(folder / "r") as writer:
        with writer.file("mine", 0o640) as f:
            f.write(b"half")
            assert len(streamerd.restore_files("set", folder / "r", key=KEY)) == 4
            assert len(parts(folder / "r")) == 1
            f.write(b" and half")
    assert (folder / "r" / "mine").read_bytes() == b"half and half" and not parts(folder / "r")


def test_a_part_that_was_removed_before_it_had_a_lock_is_made_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def made_and_removed(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd = os_open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_CREAT:
            made.append(path)
            if len(made) == 1:
                os.unlink(path, dir_fd=dir_fd)
        return fd

    os_open = os.open
    monkeypatch.setattr(os, "open", made_and_removed)
    with Writer(folder / "r") as writer, writer.file("x") as f:
        f.write(b"whole")
    assert len(made) == 2 and contents(folder / "r")["x"][0] == b"whole"


def test_processes_that_restore_into_one_folder_write_it_whole(daemon: Daemon, cache: Path, folder: Path) -> None:
    for i in range(50):
        (cache / f"{i}").write_bytes(os.urandom(i))
    streamerd.publish_files(cache, "set", key=KEY)
    pids = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for _ in range(5):
                    streamerd.restore_files("set", folder / "r", key=KEY)
                status = 0
            finally:
                os._exit(status)
        pids.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0, 0, 0, 0]
    assert contents(folder / "r") == contents(cache)


# ---- sets that another program has made ----


def publish_raw(name: str, files: dict[str, bytes], metadata: dict[str, str]) -> None:
    publication = _put.admitted(connect(), name, KEY, "host", [len(data) for data in files.values()], False, None)
    for i, (path, data) in enumerate(files.items()):
        publication.tensor(Entry(path, "U8", 1, 1, 0, 0, (len(data),), (1,), i, 0))
        memory = publication.storage(i)
        ctypes.memmove(memory.address, data, len(data))
    for key, value in metadata.items():
        publication.text(key, value)
    publication.commit()


@pytest.mark.parametrize("path", ["../x", "/x", "a//x", "a/../x", "./x", "..", "a/", "link/x", ".streamerd-0a-1.part"])
def test_nothing_is_written_outside_the_folder(daemon: Daemon, folder: Path, path: str) -> None:
    publish_raw("set", {path: b"x"}, {f"mode:{path}": "0644"})
    target = folder / "a" / "r"
    target.mkdir(parents=True)
    (target / "link").symlink_to(folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises((streamerd.InvalidError, streamerd.SystemCallError)):
        streamerd.restore_files("set", target, key=KEY)
    assert sorted(folder.rglob("*")) == before


def test_a_link_that_has_the_name_of_a_file_is_replaced_and_not_followed(daemon: Daemon, folder: Path) -> None:
    publish_raw("set", {"x": b"new"}, {"mode:x": "0644"})
    (folder / "elsewhere").write_text("old")
    (folder / "r").mkdir()
    (folder / "r" / "x").symlink_to(folder / "elsewhere")
    streamerd.restore_files("set", folder / "r", key=KEY)
    assert (folder / "elsewhere").read_text() == "old" and not (folder / "r" / "x").is_symlink()


@pytest.mark.parametrize("metadata", [{}, {"mode:x": "rwx"}, {"mode:x": ""}, {"mode:y": "0644"}])
def test_a_model_that_is_no_set_is_refused(daemon: Daemon, folder: Path, metadata: dict[str, str]) -> None:
    publish_raw("set", {"x": b"new"}, metadata)
    with pytest.raises(streamerd.InvalidError, match="set: is no set of files: x"):
        streamerd.restore_files("set", folder / "r", key=KEY)
    assert not (folder / "r" / "x").exists()


def test_a_set_of_another_user_is_refused(
    daemon: Daemon, cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root sees it, to whom the daemon gives everything."""
    streamerd.publish_files(cache, "set", key=KEY)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(streamerd.DeniedError, match=f"set: uid {uid} has published these files, which uid {uid + 1} might run"):
        streamerd.restore_files("set", folder / "r", key=KEY)
    assert not (folder / "r").exists()
    assert streamerd.restore_files("set", folder / "r", key=KEY, any_user=True)


def test_a_set_that_another_user_has_published_is_no_success_of_this_one(
    daemon: Daemon, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not restore what it believes to have published."""
    streamerd.publish_files(cache, "set", key=KEY)
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(streamerd.DeniedError, match=f"set: uid {uid} has published these files, which uid {uid + 1} cannot restore"):
        streamerd.publish_files(cache, "set", key=KEY)


# ---- what fails in this process ----


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Stands for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_write_that_fails_is_named_and_leaves_no_part(daemon: Daemon, cache: Path, folder: Path) -> None:
    streamerd.publish_files(cache, "set", key=KEY)
    with files_of_at_most(50_000), pytest.raises(streamerd.SystemCallError) as caught:
        streamerd.restore_files("set", folder / "r", key=KEY)
    assert str(caught.value) == f"{folder}/r/a/deep/kernel.so: File too large"
    assert isinstance(caught.value, OSError) and caught.value.errno == errno.EFBIG
    assert not parts(folder / "r") and not (folder / "r" / "a" / "deep" / "kernel.so").exists()


def test_a_place_that_cannot_be_written_is_named(daemon: Daemon, folder: Path) -> None:
    publish_raw("set", {"x": b"new"}, {"mode:x": "0644"})
    (folder / "file").touch()
    (folder / "r" / "x" / "y").mkdir(parents=True)
    for target, text, number in (
        (folder / "file", f"{folder}/file: File exists", errno.EEXIST),
        (folder / "file" / "r", f"{folder}/file/r: Not a directory", errno.ENOTDIR),
        (folder / "r", f"{folder}/r/x: Is a directory", errno.EISDIR),
    ):
        with pytest.raises(streamerd.SystemCallError) as caught:
            streamerd.restore_files("set", target, key=KEY)
        assert str(caught.value) == text and caught.value.errno == number
    publish_raw("long", {"y" * 300: b"new"}, {f"mode:{'y' * 300}": "0644"})
    with pytest.raises(streamerd.SystemCallError, match="/yyy*: File name too long"):
        streamerd.restore_files("long", folder / "r", key=KEY)
    assert not parts(folder)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_what_this_user_may_not_do_is_denied(
    daemon: Daemon, cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Root may, so the system's answer is made here."""
    streamerd.publish_files(cache, "set", key=KEY)

    def refuse(path: Any, flags: int, *more: Any, **options: Any) -> int:
        if path == "a.py" or flags & os.O_CREAT:
            raise OSError(number, os.strerror(number), path)
        return os_open(path, flags, *more, **options)

    os_open = os.open
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(streamerd.DeniedError) as caught:
        streamerd.publish_files(cache, "other", key=KEY)
    assert str(caught.value) == f"{cache}/a.py: {os.strerror(number)}" and caught.value.errno == number
    with pytest.raises(streamerd.DeniedError, match=f"{folder}/r/a-b: {os.strerror(number)}"):
        streamerd.restore_files("set", folder / "r", key=KEY)


def test_names_that_the_file_system_takes_for_one_are_an_error(
    daemon: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_raw("set", {"README": b"a", "readme": b"b"}, {"mode:README": "0644", "mode:readme": "0644"})
    rename, status = os.rename, os.stat

    def rename_lower(source: str, target: str, **folders: Any) -> None:
        rename(source, target.lower(), **folders)

    def status_of_lower(path: Any, **options: Any) -> os.stat_result:
        return status(path.lower() if path == "README" else path, **options)

    monkeypatch.setattr(os, "rename", rename_lower)
    monkeypatch.setattr(os, "stat", status_of_lower)
    for replaces in (True, False):
        with pytest.raises(streamerd.FailedError, match="readme: another file of these has this name already"):
            streamerd.restore_files("set", folder / f"r {replaces}", key=KEY, replace=replaces)
        assert (folder / f"r {replaces}" / "readme").read_bytes() == b"a"


def many(folder: Path) -> Iterator[Path]:
    for i in range(3000):
        path = folder / f"{i % 40}" / f"{i}"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(bytes([i % 256]) * (i % 500))
        yield path


def test_many_small_files(daemon: Daemon, folder: Path) -> None:
    assert len(list(many(folder / "c"))) == 3000
    streamerd.publish_files(folder / "c", "set", key=KEY)
    assert len(streamerd.restore_files("set", folder / "r", key=KEY)) == 3000
    assert contents(folder / "r") == contents(folder / "c")
