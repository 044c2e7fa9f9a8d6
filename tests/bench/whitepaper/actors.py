# SPDX-License-Identifier: Apache-2.0
"""What an experiment starts: a loader, a daemon with a service manager's fd store, a delaying proxy, an engine."""

from __future__ import annotations

import array
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import machine

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "vllm"))
import gateway  # noqa: E402
from processes import BUILD, ROOT, Daemon, Process, Worker  # noqa: E402, F401

from harness.processes import Failure, NoAnswer  # noqa: E402

SECONDS = 600  # limit of one load
FDS_PER_MESSAGE = 253  # SCM_MAX_FD


class Loader(Worker):
    """A process of loads.py whose imports are done."""

    def __init__(self, loader: str, arguments: dict[str, Any], environment: dict[str, str] | None = None):
        self.log = str(BUILD / "whitepaper-loader.log")
        self.spawn([sys.executable, str(HERE / "loads.py"), loader, json.dumps(arguments)], {**os.environ, **(environment or {})}, talks=True)
        try:
            self.ask("import", SECONDS)
        except Failure:
            self.kill()
            raise

    def checksum(self) -> int:
        return self.ask("checksum", SECONDS)

    def load(self, daemon: Process | None = None) -> dict[str, Any]:
        """Seconds to the first and to all tensors, CPU seconds, peak memory, bytes read; the daemon's share included."""
        others = [daemon.pid] if daemon else []
        everyone = [self.pid, *others]
        read, cpu = sum(map(machine.read_bytes, everyone)), sum(map(machine.cpu_seconds, others))
        with machine.PeakMemory(everyone) as memory:
            reply = self.ask("load", SECONDS)
        reply["memory"] = memory.bytes
        reply["cpu"] += sum(map(machine.cpu_seconds, others)) - cpu
        reply["read"] = sum(map(machine.read_bytes, everyone)) - read
        return reply


class Gateway(gateway.Gateway):
    """radosgw, where it is installed and starts."""

    def __init__(self) -> None:
        if absent := [program for program in gateway.PROGRAMS if not shutil.which(program)]:
            raise machine.Unavailable(f"{', '.join(absent)}: not installed")
        try:
            super().__init__()
        except (Failure, RuntimeError) as e:
            self.kill()
            raise machine.Unavailable(f"radosgw: {e}") from None


class DelayProxy(Process):
    """A proxy on loopback that delays each answer."""

    def __init__(self, upstream: int, ms: int):
        self.spawn([str(BUILD / "bench"), "--delay-proxy", str(upstream), str(ms)], {**os.environ}, talks=True)
        self.url = f"http://127.0.0.1:{int(self.read_line(20))}"


class Manager:
    """The part of a service manager that keeps descriptors of a daemon over its restarts: see sd_notify(3), FDSTORE."""

    def __init__(self, folder: Path):
        self.path = folder / "notify"
        self.path.unlink(missing_ok=True)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self.stored: list[tuple[str, int]] = []
        self.ready = threading.Event()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        space = socket.CMSG_SPACE(FDS_PER_MESSAGE * 4)
        while True:
            text, ancillary, _, _ = self._socket.recvmsg(1 << 16, space)
            fds = array.array("i")
            for _, _, data in ancillary:
                fds.frombytes(data[: len(data) // 4 * 4])
            lines = dict(line.partition("=")[::2] for line in text.decode().splitlines())
            if lines.get("FDSTORE") == "1":
                self.stored += [(lines["FDNAME"], fd) for fd in fds]
            elif lines.get("FDSTOREREMOVE") == "1":
                self.stored = [(name, fd) for name, fd in self.stored if name != lines["FDNAME"]]
            else:
                for fd in fds:  # BARRIER=1: closed to say that all before it was processed
                    os.close(fd)
            if lines.get("READY") == "1":
                self.ready.set()


class ManagedDaemon(Daemon):
    """A daemon whose descriptors a Manager keeps; restart() kills it and starts the next."""

    def __init__(self, folder: Path, *roots: Path):
        folder.mkdir(parents=True, exist_ok=True)
        self.manager = Manager(folder)
        super().__init__(folder, *roots)

    def start(self, timeout: float = 20) -> ManagedDaemon:
        stored = list(self.manager.stored)
        names, fds = [name for name, _ in stored], [fd for _, fd in stored]
        environment = {**self.environment, "NOTIFY_SOCKET": str(self.manager.path), "FDSTORE": "8192"}
        if fds:
            environment.update(LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=":".join(names))
        self.manager.ready.clear()
        # LISTEN_PID is known after the fork only, hence the shell.
        self.spawn(["sh", "-c", 'LISTEN_PID=$$ exec "$@"', "sh", *self.command], environment, talks=False, fds=fds)
        if not self.manager.ready.wait(timeout):
            raise Failure(f"the daemon did not start: {self.tail()}")
        return self

    def restart(self) -> float:
        """Seconds from the kill until the next daemon serves."""
        began = time.perf_counter()
        self.kill()
        self.start()
        return time.perf_counter() - began


class ReadyEngine(Process):
    """A process of ready.py: an engine from exec to ready."""

    def __init__(self, log: Path, request: dict[str, Any], environment: dict[str, str], throttle: machine.Throttle | None):
        log.unlink(missing_ok=True)
        self.log = str(log)
        command = [sys.executable, str(HERE / "ready.py"), json.dumps(request)]
        if throttle:  # from its first instruction
            command = ["sh", "-c", f'echo $$ >{throttle.group}/cgroup.procs && exec "$@"', "sh", *command]
        self.began = time.clock_gettime(time.CLOCK_MONOTONIC)
        self.spawn(command, {**os.environ, **environment}, talks=True)

    def wait(self) -> dict[str, Any]:
        """Seconds: total, of which start (until vLLM is imported), weights and rest; the first tokens."""
        try:
            reply = json.loads(self.read_line(SECONDS))
        except NoAnswer:
            raise
        except (Failure, subprocess.TimeoutExpired):  # it has ended, or is ending
            raise Failure(self._why_it_ended()) from None
        return {
            "seconds": reply["ready"] - self.began,
            "start": reply["imported"] - self.began,
            "weights": reply["weights"],
            "rest": reply["ready"] - reply["imported"] - reply["weights"],
            "tokens": reply["tokens"],
        }

    def generate(self) -> list[int]:
        """The tokens of another request."""
        self.write_line("generate")
        return json.loads(self.read_line(SECONDS))

    def _why_it_ended(self) -> str:
        """The error behind a failure: the first exception that the log names, since the last is "engine core initialization
        failed"."""
        lines = (re.match(r"(?:\[\w+\]: |\(.*?\) )?([\w.]*(?:Error|Exception)\b.*)", line) for line in self.last_lines())
        errors = [match[1] for match in lines if match]
        return errors[0] if errors else self.tail()
