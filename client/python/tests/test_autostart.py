# SPDX-License-Identifier: Apache-2.0
"""The daemon that the package starts for its user."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checkpoints import small, write
from conftest import eventually

import streamerd
from streamerd import _autostart, _programs
from streamerd._client import user_socket


def user_folder() -> Path:
    return Path(user_socket()).parent


def daemons() -> list[int]:
    """The pids of the daemons that serve this test's socket."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if os.fsencode(user_socket()) in command and b"--exit-idle" in command:
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
    log = (user_folder() / "streamerd.log").read_text()
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
    assert user_folder().stat().st_mode & 0o777 == 0o700
    assert (user_folder() / "streamerd.log").stat().st_mode & 0o777 == 0o600


def test_a_folder_that_others_may_enter_is_refused(file: Path) -> None:
    user_folder().mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="remove it, or set XDG_RUNTIME_DIR"):
        open_model(file)
    assert not daemons()


def test_without_a_runtime_folder_it_is_below_tmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    uid = os.getuid()
    assert user_socket() in (f"/run/user/{uid}/streamerd/streamerd.sock", f"/tmp/streamerd-{uid}/streamerd.sock")


def test_a_daemon_that_cannot_start_says_why(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMERD_EXIT_IDLE", "soon")
    with pytest.raises(streamerd.UnreachableError, match=r"cannot start the daemon: .*exit.idle.*streamerd.log"):
        open_model(file)


def test_the_daemon_is_not_the_service_that_starts_it(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(folder / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(folder / "notify"))
        monkeypatch.setenv("STATE_DIRECTORY", str(folder))
        monkeypatch.setenv("LISTEN_FDS", "1")
        with open_model(file) as model:
            assert len(model) == 4
        (daemon,) = daemons()
        variables = Path(f"/proc/{daemon}/environ").read_bytes().split(b"\0")
        assert not [v for v in variables if v.startswith((b"NOTIFY_", b"STATE_", b"LISTEN_"))]
        with pytest.raises(BlockingIOError):
            manager.recv(1, socket.MSG_DONTWAIT)


def test_the_daemon_reads_the_settings_of_runai(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNAI_STREAMER_CONCURRENCY", "3")
    open_model(file).close()
    assert "ring: 3 slots" in (user_folder() / "streamerd.log").read_text()


def test_without_a_program_it_says_what_to_install(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_autostart, "find_program", lambda name: None)
    with pytest.raises(streamerd.UnsupportedError, match="no streamerd program"):
        open_model(file)


@pytest.mark.parametrize("value", ["0", "false", "False", "NO", "off"])
def test_the_environment_forbids_a_start(file: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("STREAMERD_AUTOSTART", value)
    with pytest.raises(streamerd.UnreachableError, match="leave autostart on"):
        open_model(file)
    assert not daemons()


def test_it_takes_half_of_the_memory_and_drops_unused_models(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_model(file).close()
    status = streamerd.status()
    (device,) = status["devices"]
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 0 < device["budget"] <= memory / 2
    (model,) = streamerd._client.connect().call("list")["models"]
    assert model["keep_alive_ns"] == 15 * 60 * 10**9


def test_budget_and_keep_alive_are_set_by_the_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMERD_HOST_BUDGET", "64MiB")
    monkeypatch.setenv("STREAMERD_KEEP_ALIVE", "0s")
    large = file.with_name("large.safetensors")
    write(large, [("a", "U8", [65 << 20])])
    with pytest.raises(MemoryError, match="set STREAMERD_HOST_BUDGET"):
        open_model(large)
    open_model(file).close()
    assert streamerd.status()["devices"][0]["budget"] == 64 << 20
    (model,) = (m for m in streamerd._client.connect().call("list")["models"] if m["name"] == "m")
    assert model["keep_alive_ns"] == 0


def test_a_gpu_that_does_not_work_is_no_obstacle(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exists = os.path.exists
    monkeypatch.setattr(os.path, "exists", lambda path: path == "/dev/nvidiactl" or exists(path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with open_model(file) as model:
        assert len(model) == 4
    (absent,) = streamerd.status()["absent"]
    assert absent["device"] == "cuda:all" and "CUDA is unavailable: " in absent["why"]


def test_the_runtime_of_wheels_is_looked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("nvidia/cu13/lib", "nvidia/cuda_runtime/lib"):
        (folder / "site" / name).mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(folder / "nowhere"), str(folder / "site")])
    path = _programs.environment()["STREAMERD_CUDART_PATH"]
    assert path == f"{folder}/site/nvidia/cu13/lib:{folder}/site/nvidia/cuda_runtime/lib"


SCOPE = """#!/bin/sh
echo "$@" >>{log}
while [ "${{1#--}}" != "$1" ]; do shift; done
{then}
"""


@pytest.mark.parametrize("then", ['exec "$@"', "exit 1"])
def test_it_has_a_unit_of_its_own(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, then: str) -> None:
    """Where a manager of the user's runs; one that fails is no obstacle."""
    (folder / "systemd").mkdir()
    (folder / "systemd" / "private").touch()
    (folder / "bin").mkdir()
    program = folder / "bin" / "systemd-run"
    program.write_text(SCOPE.format(log=folder / "scopes", then=then))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    with open_model(file) as model:
        assert len(model) == 4
    assert len(daemons()) == 1
    lines = (folder / "scopes").read_text().splitlines()
    assert all(line.startswith("--user --scope --quiet --collect") for line in lines)
    assert ("--unit=streamerd-" in lines[-1]) == (then != "exit 1")


def test_the_users_manager_is_found_without_a_variable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in cron and with a relative path, which is none."""
    runtime = folder / "run" / str(os.getuid())
    (runtime / "systemd").mkdir(parents=True)
    (runtime / "systemd" / "private").touch()
    (folder / "bin").mkdir()
    program = folder / "bin" / "systemd-run"
    program.write_text(f'#!/bin/sh\necho "$XDG_RUNTIME_DIR" >>{folder}/scopes\n')
    program.chmod(0o755)
    monkeypatch.setattr(_autostart, "RUN_USER", str(folder / "run"))
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.chdir(runtime)
    for value in (None, "", "."):
        if value is None:
            monkeypatch.delenv("XDG_RUNTIME_DIR")
        else:
            monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        scope = _autostart._scope(dict(os.environ), 20)
        assert scope[:2] == ["env", f"XDG_RUNTIME_DIR={runtime}"]
    assert (folder / "scopes").read_text() == f"{runtime}\n" * 3


@pytest.mark.parametrize(
    ("groups", "files", "limit"),
    [
        ("0::/", {"": "max"}, None),
        ("0::/", {"": "4096"}, 4096),
        ("0::/a/b", {"a/b": "max", "a": "8192", "": "9000"}, 8192),
        ("5:cpu,memory:/a/b\n0::/", {"memory/a/b": "9223372036854771712", "memory/a": "4096"}, 4096),
        ("5:cpu,cpuacct:/a\n4:memory:/hidden", {"memory": "512"}, 512),
        ("3:name=x:/a:memory:/b", {}, None),
    ],
)
def test_the_limit_is_that_of_the_cgroup_and_its_ancestors(
    folder: Path, groups: str, files: dict[str, str], limit: int | None
) -> None:
    (folder / "proc" / "self").mkdir(parents=True)
    (folder / "proc" / "self" / "cgroup").write_text(groups + "\n")
    for group, text in files.items():
        path = folder / "sys" / "fs" / "cgroup" / group
        path.mkdir(parents=True, exist_ok=True)
        path.joinpath("memory.limit_in_bytes" if group.startswith("memory") else "memory.max").write_text(text + "\n")
    assert _autostart._cgroup_limit(folder) == limit
    assert _autostart._cgroup_limit(folder / "nowhere") is None


SILENT = """#!/bin/sh
while :; do read line <{fifo}; done
"""


def test_the_timeout_covers_a_daemon_that_does_not_answer(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = folder / "silent"
    os.mkfifo(folder / "fifo")
    program.write_text(SILENT.format(fifo=folder / "fifo"))
    program.chmod(0o755)
    monkeypatch.setattr(_autostart, "find_program", lambda name: str(program))
    monkeypatch.setattr(_autostart, "START_SECONDS", 3600.0)
    with pytest.raises(TimeoutError, match=r"does not answer in the given time \(pid \d+, log .*streamerd.log"):
        streamerd.open(file, framework="numpy", timeout=0.5)


def test_the_timeout_covers_the_wait_for_others(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process, or another thread, that starts the daemon."""
    user_folder().mkdir(mode=0o700)
    with open(user_folder() / "lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="another process starts the daemon"):
            streamerd.open(file, framework="numpy", timeout=0.1)
    with streamerd._client._lock, pytest.raises(TimeoutError, match="another thread"):
        streamerd.open(file, framework="numpy", timeout=0.1)
    assert not daemons()


@pytest.mark.parametrize("name", ["lock", "streamerd.log"])
def test_a_folder_that_cannot_be_used_is_named(file: Path, name: str) -> None:
    (user_folder() / name).mkdir(mode=0o700, parents=True)
    user_folder().chmod(0o700)
    with pytest.raises(streamerd.SystemCallError, match=rf"{name}: Is a directory: set XDG_RUNTIME_DIR"):
        open_model(file)


def test_a_folder_that_may_not_be_made_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, mode: int) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(os, "mkdir", refuse)
    with pytest.raises(streamerd.DeniedError, match="streamerd: Permission denied: set XDG_RUNTIME_DIR"):
        open_model(file)


def test_a_daemon_that_died_as_a_child_is_not_taken_for_alive(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes whose parent has exited are children of PID 1, which a Python may be: here, of a subreaper."""
    monkeypatch.setenv("STREAMERD_EXIT_IDLE", "soon")
    monkeypatch.setattr(_autostart, "START_SECONDS", 3600.0)
    libc, subreaper = ctypes.CDLL(None), 36
    libc.prctl(subreaper, 1, 0, 0, 0)
    try:
        with pytest.raises(streamerd.UnreachableError, match="cannot start the daemon: "):
            open_model(file)
    finally:
        libc.prctl(subreaper, 0, 0, 0, 0)


def test_a_system_daemon_that_is_passed_over_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As the library reports it; its rule has tests of its own."""
    lib = streamerd._library.library()
    own = lib.streamer_socket

    def skipped(client: Any, info: Any) -> int:
        code: int = own(client, info)
        info._obj.skipped = b"Permission denied (/run/streamerd/streamerd.sock)"
        return code

    monkeypatch.setattr(lib, "streamer_socket", skipped)
    monkeypatch.setattr(streamerd._client, "_logged", set())
    open_model(file).close()
    assert sum("the system's daemon is not used: Permission denied" in r.getMessage() for r in caplog.records) == 1


def test_a_hundred_tasks_open_at_once(folder: Path) -> None:
    """Of files of their own, by a daemon that the first of them starts."""
    for i in range(100):
        write(folder / f"{i}.safetensors", small())

    async def use(i: int) -> int:
        async with await streamerd.aopen(folder / f"{i}.safetensors", framework="numpy") as model:
            return len([name async for name, _ in model.stream_async()])

    async def use_all() -> list[int]:
        return await asyncio.gather(*(use(i) for i in range(100)))

    for _ in range(3):
        assert asyncio.run(use_all()) == [4] * 100
    assert len(daemons()) == 1


def test_links_are_followed_with_the_users_rights(folder: Path, file: Path) -> None:
    link = folder / "linked.safetensors"
    link.symlink_to(file)
    with open_model(link) as model:
        assert (model.name, len(model)) == ("linked", 4)


def test_a_link_is_opened_under_a_given_name(folder: Path, file: Path) -> None:
    link = folder / "linked.safetensors"
    link.symlink_to(file)
    with streamerd.open(link, framework="numpy", name="chosen") as model:
        assert (model.name, len(model)) == ("chosen", 4)
    with streamerd.safe_open(link, "np") as opened:
        assert len(opened.keys()) == 4


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
