# SPDX-License-Identifier: Apache-2.0
"""Child processes that end with the process that started them. Every wait has a limit, and a log explains a failure."""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

PR_SET_PDEATHSIG = 1
FUTEX = "202"  # its number on x86-64
END_SECONDS = 5

_libc = ctypes.CDLL(None)


class Failure(Exception):
    """A process answered with an error, or ended."""


class NoAnswer(Failure):
    """It did not answer in time."""


class Skip(Exception):
    """This machine cannot do it, which is no failure."""


def end_with_parent() -> None:
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _read(path: str) -> str:
    try:
        with open(path, errors="replace") as f:
            return f.read().strip()
    except OSError:
        return ""


def thread_states(pid: int) -> Iterator[str]:
    """The state, system call and kernel stack of each thread, where the kernel shows them; threads that wait for a
    futex are counted."""
    waiting = 0
    for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        base = f"/proc/{pid}/task/{task}/"
        call = _read(base + "syscall").split(" ")[0]
        if call == FUTEX:
            waiting += 1
            continue
        state = _read(base + "stat").rpartition(")")[2].split()[:1]
        stack = _read(base + "stack").replace("\n", " ")[:500]
        yield f"thread {task} {_read(base + 'comm')}: {''.join(state)} call {call} {stack}"
    yield f"{waiting} more threads wait for a futex"


def host_memory(pid: int) -> int:
    """Pss of anonymous and file pages, in bytes; huge pages of the pool are in neither."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            sizes = dict(line.split(":") for line in f if line.startswith("Pss_"))
    except FileNotFoundError:  # gVisor
        sizes = {}
    if "Pss_Anon" not in sizes:
        raise Skip("the kernel does not tell what memory is a process's own (smaps_rollup, Pss_Anon: Linux 5.9)")
    return sum(int(sizes[key].split()[0]) * 1024 for key in ("Pss_Anon", "Pss_File"))


class Process:
    """A child process. It is killed when its context is left."""

    process: subprocess.Popen[bytes] | None = None
    log: str | os.PathLike[str] = os.devnull  # its standard error

    def spawn(self, command: list[str], environment: dict[str, str], talks: bool, fds: Sequence[int] = ()) -> None:
        """`talks`: requests and answers go through its standard input and output; otherwise both outputs are logged.
        `fds`: what it has as descriptors 3, 4, ..."""

        def enter() -> None:
            end_with_parent()
            above = [fcntl.fcntl(fd, fcntl.F_DUPFD, 3 + len(fds)) for fd in fds]  # no dup2() below replaces another
            for i, fd in enumerate(above):
                os.dup2(fd, 3 + i)

        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                env=environment,
                preexec_fn=enter,
                close_fds=not fds,  # else by exec, as Python opens all others
            )

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.kill()

    @property
    def name(self) -> str:
        return os.path.basename(self.log)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def kill(self) -> None:
        """A process that hangs in a driver cannot be reaped: it is left to the system."""
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.kill()
        try:
            self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process = None

    def read_bytes(self) -> int:
        """Bytes that the process has had read from storage."""
        with open(f"/proc/{self.pid}/io") as f:
            return int(dict(line.split(": ") for line in f)["read_bytes"])

    # ---- the log

    def last_lines(self, lines: int = 100) -> list[str]:
        try:
            with open(self.log, errors="replace") as f:
                return [line.rstrip()[:1000] for line in f.readlines()[-lines:]]
        except OSError as e:
            return [str(e)]

    def tail(self) -> str:
        return " | ".join(line.strip() for line in self.last_lines(3))

    def log_threads(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        try:
            with open(self.log, "a") as log:
                log.writelines(line + "\n" for line in thread_states(self.pid))
        except OSError:
            pass  # it has just ended

    # ---- requests and answers, a line each

    def read_line(self, timeout: float) -> bytes:
        assert self.process is not None and self.process.stdout is not None
        out, line, deadline = self.process.stdout, b"", time.monotonic() + timeout
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise NoAnswer(f"{self.name}: no answer in {timeout:g} s")
            data = os.read(out.fileno(), 1 << 16)
            if not data:
                self.process.wait(END_SECONDS)
                raise Failure(f"{self.name}: the process ended ({self.process.returncode}): {self.tail()}")
            line += data
        return line

    def write_line(self, line: str) -> None:
        assert self.process is not None and self.process.stdin is not None
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, and read_line() tells how


class Worker(Process):
    """A process that serves requests: {"op": name, arguments} a line, answered by {"ok": value}, {"skip": why} or
    {"error": text}."""

    unanswered = False  # the next answer would be an earlier request's

    def send(self, op: str, /, **arguments: Any) -> None:
        if self.unanswered:
            raise NoAnswer(f"{op}: not asked: an earlier request is not answered")
        self.unanswered = True
        self.write_line(json.dumps({"op": op, **arguments}))

    def receive(self, op: str, timeout: float = 30) -> Any:
        try:
            answer = json.loads(self.read_line(timeout))
        except NoAnswer:
            raise NoAnswer(f"{op}: no answer in {timeout:g} s") from None
        self.unanswered = False
        if "skip" in answer:
            raise Skip(answer["skip"])
        if "error" in answer:
            raise Failure(f"{op}: {answer['error']}")
        return answer["ok"]

    def ask(self, op: str, timeout: float = 30, /, **arguments: Any) -> Any:
        self.send(op, **arguments)
        return self.receive(op, timeout)

    def kill(self) -> None:
        """One that does not answer logs where it is, if it has a handler for SIGABRT (faulthandler)."""
        if self.unanswered and self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                pass
        super().kill()
