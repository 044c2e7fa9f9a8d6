# SPDX-License-Identifier: Apache-2.0
"""Daemons and engines that tests and benchmarks start. All end with the process that started them."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = (ROOT / os.environ.get("STREAMERD_BUILD", "build")).resolve()
sys.path.insert(0, str(ROOT / "tests/gpu"))  # for harness

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Process:
    """A child process that is killed when its context is left."""

    process: subprocess.Popen[str]

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def read_bytes(self) -> int:
        """Bytes that the process has had read from storage."""
        text = Path(f"/proc/{self.process.pid}/io").read_text()
        return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])


class Daemon(Process):
    """A streamerd with a socket of its own; the constructor returns when it serves."""

    def __init__(self, folder: Path, *roots: Path, environment: dict[str, str] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        self.socket = str(folder / "socket")
        notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        notify.bind(str(folder / "notify"))
        notify.settimeout(20)
        command = [str(BUILD / "streamerd"), "--socket", self.socket, "--device", "host=8GiB"]
        with open(folder / "log", "a") as log:
            self.process = subprocess.Popen(
                command + [word for root in roots for word in ("--root", str(root))],
                env={**os.environ, **(environment or {}), "NOTIFY_SOCKET": str(folder / "notify")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                preexec_fn=end_with_parent,
            )
        while b"READY=1" not in notify.recv(4096):
            pass
        notify.close()
        (folder / "notify").unlink()

    def ctl(self, *arguments: str) -> Any:
        """The reply of a verb of streamerctl."""
        command = [str(BUILD / "streamerctl"), "--socket", self.socket, "--json", *arguments]
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class EngineError(Exception):
    """What a method of engine.py raised, as "Type: message"."""


class Engine(Process):
    """A process of engine.py. Methods are its functions; begin() and end() split a call, so that engines run at once."""

    def __init__(self, log: Path, environment: dict[str, str] | None = None):
        self.log = log
        with open(log, "a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, str(HERE / "engine.py")],
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=end_with_parent,
            )

    def begin(self, method: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([method, arguments]) + "\n")
        self.process.stdin.flush()

    def end(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"the engine's process ended, see {self.log}")
        reply = json.loads(line)
        if "error" in reply:
            raise EngineError(reply["error"])
        return reply["result"]

    def call(self, method: str, **arguments: Any) -> Any:
        self.begin(method, **arguments)
        return self.end()

    def start(self, model: Path | str, load_format: str, extra: dict[str, Any] | None = None, **more: Any) -> Any:
        return self.call("start", model=str(model), load_format=load_format, extra=extra or {}, **more)
