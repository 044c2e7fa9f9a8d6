# SPDX-License-Identifier: Apache-2.0
"""Daemons and files for the tests. Every test has a folder and, if it asks for one, a daemon of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from slow_server import SlowServer

import streamerd
import streamerd._client
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


INTERRUPTIBLE = """
import os, signal, sys, threading
import streamerd
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
def interrupt():
    sys.stdin.read(1)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    {call}
except KeyboardInterrupt:
    leases = streamerd._client.connect().call("ps")["leases"]
    print("interrupted", len(leases), threading.active_count(), flush=True)
    sys.stdin.read(1)
"""


def interrupted(call: str, url: str, server: SlowServer) -> subprocess.Popen[str]:
    """A process that was interrupted in `call`, of the source sys.argv[1], while the server held it. It has no lease
    and no other thread, and ends by a byte."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", INTERRUPTIBLE.format(call=call), url]
    program = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    assert program.stdin and program.stdout
    server.wait_until_held()
    program.stdin.write("x")
    program.stdin.flush()
    assert program.stdout.readline() == "interrupted 0 1\n"
    return program


def tiny_llama(**options: Any) -> Any:
    """A random model of transformers."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    few = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**few, "vocab_size": 256, **options})).eval()


def logits(model: Any) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.arange(16).reshape(1, 16)).logits
