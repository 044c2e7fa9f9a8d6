# SPDX-License-Identifier: Apache-2.0
"""The daemon that the package starts for its user."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import small, write
from conftest import eventually

import streamerd
from streamerd import _autostart


def daemons() -> list[int]:
    """The pids of the daemons that serve this test's socket."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(_autostart.user_socket()) in command and b"--exit-idle" in command:
            found.append(int(entry.name))
    return found


@pytest.fixture(autouse=True)
def end_daemons() -> Iterator[None]:
    yield
    for pid in daemons():
        os.kill(pid, signal.SIGTERM)
    eventually(lambda: not daemons())


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "m.safetensors"
    write(path, small())
    return path


def open_model(source: Path | str) -> Any:
    return streamerd.open(source, framework="numpy")


OPEN = """
import sys, streamerd
sys.stdin.read(1)
with streamerd.open(sys.argv[1], framework="numpy") as model:
    print(len(dict(model)), flush=True)
    sys.stdin.read(1)
"""


def start(file: Path) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-c", OPEN, str(file)], stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_ten_processes_at_once_start_one_daemon(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMERD_EXIT_IDLE", "1s")
    processes = [start(file) for _ in range(10)]
    for process in processes:
        assert process.stdin
        process.stdin.write("x")
        process.stdin.flush()
    for process in processes:
        assert process.stdout and process.stdout.readline() == "4\n", process.communicate()
    assert len(daemons()) == 1
    messages = "".join(process.communicate("x")[1] for process in processes)
    assert messages.count("started ") == 1, messages
    assert "exits when unused for 1s; STREAMERD_AUTOSTART=0" in messages
    assert all(process.returncode == 0 for process in processes)
    log = (_autostart.user_folder() / "streamerd.log").read_text()
    assert log.count(" serves ") == 1
    eventually(lambda: not daemons())


def test_the_daemon_outlives_a_starter_that_is_interrupted(file: Path) -> None:
    process = start(file)
    assert process.stdin and process.stdout
    process.stdin.write("x")
    process.stdin.flush()
    assert process.stdout.readline() == "4\n"
    (daemon,) = daemons()
    assert os.getsid(daemon) not in (os.getsid(0), os.getsid(process.pid))
    assert os.getppid() != process.pid
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with open_model("m") as model:
        assert len(model) == 4
    assert daemons() == [daemon]


def test_a_daemon_that_has_exited_is_started_again(file: Path) -> None:
    with open_model(file) as model:
        tensor = model["layer.0.weight"]
    (first,) = daemons()
    os.kill(first, signal.SIGKILL)
    eventually(lambda: not daemons())
    with open_model(file) as model:
        assert (model["layer.0.weight"] == tensor).all()
    assert daemons() != [first]


def test_the_folder_is_its_users_alone(file: Path) -> None:
    open_model(file).close()
    assert _autostart.user_folder().stat().st_mode & 0o777 == 0o700
    assert (_autostart.user_folder() / "streamerd.log").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_enter_is_refused(file: Path) -> None:
    _autostart.user_folder().mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="remove it, or set XDG_RUNTIME_DIR"):
        open_model(file)
    assert not daemons()


def test_without_a_runtime_folder_it_is_below_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert _autostart.user_socket() == f"/tmp/streamerd-{os.getuid()}/streamerd.sock"


def test_a_daemon_that_cannot_start_says_why(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMERD_EXIT_IDLE", "soon")
    with pytest.raises(streamerd.UnreachableError, match=r"cannot start the daemon: .*exit.idle.*streamerd.log"):
        open_model(file)


def test_the_daemon_reads_the_settings_of_runai(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", "3")
    open_model(file).close()
    assert "ring: 3 slots" in (_autostart.user_folder() / "streamerd.log").read_text()


def test_without_a_program_it_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_autostart, "find_program", lambda name: None)
    with pytest.raises(streamerd.UnsupportedError, match="no streamerd program"):
        open_model(file)


def test_links_are_followed_with_the_users_rights(folder: Path, file: Path) -> None:
    link = folder / "linked.safetensors"
    link.symlink_to(file)
    with open_model(link) as model:
        assert (model.name, len(model)) == ("linked", 4)


def test_a_hub_cache_behind_a_link_is_found(folder: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = folder / "data" / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("abcdef0123")
    (repository / "blobs").mkdir()
    (repository / "snapshots" / "abcdef0123").mkdir(parents=True)
    file.rename(repository / "blobs" / "1")
    (repository / "snapshots" / "abcdef0123" / "model.safetensors").symlink_to("../../blobs/1")
    (folder / "link").symlink_to(folder / "data")
    monkeypatch.setenv("HF_HOME", str(folder / "link"))
    with open_model("org/tiny") as model:
        assert (model.name, len(model)) == ("org/tiny", 4)
    with open_model("org/tiny@abcdef0123") as model:
        assert len(model) == 4
