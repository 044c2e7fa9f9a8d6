# SPDX-License-Identifier: Apache-2.0
"""Daemons and files for the tests. Every test has a folder and, if it asks for one, a daemon of its own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_server import SlowServer

import streamerd
from streamerd._library import CONNECT_OWN
from streamerd._programs import find_program

ENDING_SECONDS = 15


def eventually(condition: Callable[[], Any], seconds: float = 20) -> Any:
    """Asks again until the answer is true, and returns it."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, "this did not become true in time"
        time.sleep(0.005)
    return answer


class Daemon:
    """A daemon whose root is `folder`. `pages`: of 4 KiB, which every machine has and a private mapping can copy.
    `more`: further lines of its configuration."""

    def __init__(self, folder: Path, memory: str = "1GiB", pages: str = "4k", more: str = "") -> None:
        self.socket = str(folder / "s")
        program = find_program("streamerd")
        assert program, "there is no streamerd program on PATH"
        config = folder / "daemon.yaml"
        config.write_text(f"devices: [{{device: host, budget: {memory}, pages: {pages}}}]\n{more}\n")
        command = [program, "--config", str(config), "--socket", self.socket, "--root", str(folder)]
        self.log = folder / "daemon.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        eventually(self._answers)
        self._client = streamerd._client.Client(self.socket)

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        return self.ctl("status", check=False).returncode == 0

    def ctl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        program = find_program("streamerctl")
        assert program
        command = [program, "--socket", self.socket, *arguments]
        return subprocess.run(command, check=check, capture_output=True, text=True)

    def leases(self) -> list[dict[str, Any]]:
        leases: list[dict[str, Any]] = self._client.call("ps")["leases"]
        return leases

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(ENDING_SECONDS)
        finally:
            self.kill()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A short path: a socket's has 107 bytes at most."""
    return tmp_path


@pytest.fixture
def daemon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    """A daemon that the package finds, since STREAMERD_SOCKET names it."""
    daemon = Daemon(folder)
    monkeypatch.setenv("STREAMERD_SOCKET", daemon.socket)
    yield daemon
    daemon.stop()


@pytest.fixture
def slow_server(folder: Path) -> Iterator[SlowServer]:
    server = SlowServer(folder)
    yield server
    server.close()


@pytest.fixture(autouse=True)
def no_daemon_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Tests neither find nor start a daemon outside their folder."""
    monkeypatch.delenv("STREAMERD_SOCKET", raising=False)
    monkeypatch.delenv("STREAMERD_AUTOSTART", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(streamerd._client, "_RULE_FLAGS", CONNECT_OWN)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_child(body: Callable[[], None]) -> int:
    """Runs a function in a forked child and returns its exit status."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            body()
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
