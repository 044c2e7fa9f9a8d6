# SPDX-License-Identifier: Apache-2.0
"""Files of a folder that are resident under a key, and restored below another folder."""

from __future__ import annotations

import ctypes
import os
import signal
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Daemon, eventually

import streamerd
from streamerd import _files, _put
from streamerd._client import connect
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


def test_files_that_a_killed_process_was_writing_are_not_published(
    daemon: Daemon, cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor are they in the way of a process of the same number, as the next container has it."""
    whole = contents(cache)
    streamerd.publish_files(cache, "set", key=KEY)
    pid = os.fork()
    if pid == 0:
        os.rename = lambda *names, **folders: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        try:
            streamerd.restore_files("set", cache, key=KEY)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert len(contents(cache)) == len(whole) + 1
    streamerd.publish_files(cache, "again", key=KEY)
    streamerd.restore_files("again", folder / "r", key=KEY)
    assert contents(folder / "r") == whole
    monkeypatch.setattr(os, "getpid", lambda: pid)
    assert len(streamerd.restore_files("again", cache, key=KEY)) == len(whole)


def test_a_set_that_does_not_fit_fails_by_name(daemon: Daemon, cache: Path) -> None:
    """It waits for no memory: an engine that publishes would not serve meanwhile."""
    (cache / "large").touch()
    os.truncate(cache / "large", 2 << 30)
    with pytest.raises(streamerd.OutOfMemoryError, match="does not fit: 2.0 GiB needed"):
        streamerd.publish_files(cache, "set", key=KEY, timeout=60)
    (cache / "large").unlink()
    assert streamerd.publish_files(cache, "set", key=KEY)


def test_special_bits_are_dropped(daemon: Daemon, folder: Path) -> None:
    cache = folder / "c"
    cache.mkdir()
    (cache / "tool").touch()
    (cache / "tool").chmod(0o6755)
    streamerd.publish_files(cache, "set", key=KEY)
    streamerd.restore_files("set", folder / "r", key=KEY)
    assert stat.S_IMODE((folder / "r" / "tool").stat().st_mode) == 0o755


def test_a_file_that_changes_while_it_is_read_fails_and_publishes_nothing(
    daemon: Daemon, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _files._files_of(str(cache))
    monkeypatch.setattr(_files, "_files_of", lambda _: found)
    (cache / "a.py").write_text("longer than before, by far")
    with pytest.raises(streamerd.FailedError, match="a.py: it has changed while it was read"):
        streamerd.publish_files(cache, "set", key=KEY)
    with pytest.raises(streamerd.NotFoundError):
        streamerd.restore_files("set", cache, key=KEY)


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


@pytest.mark.parametrize("path", ["../x", "/x", "a//x", "a/../x", "./x", "..", "a/", "link/x"])
def test_nothing_is_written_outside_the_folder(daemon: Daemon, folder: Path, path: str) -> None:
    publish_raw("set", {path: b"x"}, {f"mode:{path}": "0644"})
    target = folder / "a" / "r"
    target.mkdir(parents=True)
    (target / "link").symlink_to(folder)
    before = sorted(folder.rglob("*"))
    with pytest.raises((streamerd.InvalidError, OSError)):
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


def test_a_write_that_fails_leaves_no_part(daemon: Daemon, cache: Path, folder: Path, monkeypatch: Any) -> None:
    streamerd.publish_files(cache, "set", key=KEY)

    def full(fd: int, data: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_files, "_write_all", full)
    with pytest.raises(OSError, match="No space left"):
        streamerd.restore_files("set", folder / "r", key=KEY)
    assert not contents(folder / "r")


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
