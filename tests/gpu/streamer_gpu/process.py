# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: daemons, and consumers that do as they are told. Whatever is started here
dies with its parent, and nothing waits without a limit."""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time

from . import machine
from .consumer import Skip, host_memory

_libc = ctypes.CDLL(None)
FUTEX = "202"  # its number on x86-64


class Failure(Exception):
    """Something answered with an error, or not at all."""


class NoAnswer(Failure):
    """Not at all: it is asked what it is doing instead."""


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)


def _end(process):
    """A process that hangs in the driver cannot be reaped: it is left to the system."""
    if process.poll() is None:
        process.kill()
    try:
        process.wait(5)
    except subprocess.TimeoutExpired:
        pass


def _last_lines(path, lines):
    try:
        with open(path, errors="replace") as f:
            return [line.rstrip()[:1000] for line in f.readlines()[-lines:]]
    except OSError as e:
        return [str(e)]


def _tail(path, lines=3):
    return " | ".join(line.strip() for line in _last_lines(path, lines))


def _threads(pid):
    """What each thread of a process is in, as far as the kernel tells; those that wait for others of it are counted."""
    waiting = 0
    for task in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
        base = f"/proc/{pid}/task/{task}/"
        call = machine.read(base + "syscall").split(" ")[0]
        if call == FUTEX:
            waiting += 1
            continue
        state = machine.read(base + "stat").rpartition(")")[2].split()[:1]
        stack = machine.read(base + "stack").replace("\n", " ")[:500]
        yield f"thread {task} {machine.read(base + 'comm')}: {''.join(state)} call {call} {stack}"
    yield f"{waiting} more threads wait for others of the process"


class _Process:
    """Its log is what a failure brings along."""

    process, log = None, None

    @property
    def name(self):
        return os.path.basename(self.log)

    def last_lines(self):
        return _last_lines(self.log, 100)

    def note_threads(self):
        if self.process is None or self.process.poll() is not None:
            return
        try:
            with open(self.log, "a") as log:
                log.writelines(line + "\n" for line in _threads(self.process.pid))
        except OSError:
            pass  # it has just ended


class Consumer(_Process):
    def __init__(self, bench, number):
        self.log, self.lost = os.path.join(bench.folder, f"consumer-{number}.log"), False
        command = [sys.executable, bench.script, "--consumer", bench.library, bench.cudart]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=bench.environment
            )

    @property
    def pid(self):
        return self.process.pid

    def _line(self, deadline):
        out, line = self.process.stdout, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise NoAnswer("no answer in time")
            data = os.read(out.fileno(), 1 << 16)
            if not data:
                self.process.wait(5)
                raise Failure(f"the consumer ended ({self.process.returncode}): {_tail(self.log)}")
            line += data
        return line

    def ask(self, op, timeout=30, /, **arguments):
        """The answer. Whoever did not wait for one cannot ask again: the next would be the last one's."""
        self.lost = True
        try:
            self.process.stdin.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, and _line() tells how
        try:
            answer = json.loads(self._line(time.monotonic() + timeout))
        except NoAnswer:
            raise NoAnswer(f"{op}: no answer in {timeout} s") from None
        self.lost = False
        if "skip" in answer:
            raise Skip(answer["skip"])
        if "error" in answer:
            raise Failure(f"{op}: {answer['error']}")
        return answer["ok"]

    def kill(self):
        """One that does not answer writes down where it is, on its way out."""
        if self.lost and self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                pass
        _end(self.process)


class Daemon(_Process):
    """streamerd with one GPU, as its clients get to know it."""

    number = 0

    def __init__(self, bench, handles="cuda-ipc", segment_size=None):
        Daemon.number += 1
        self.bench, self.process = bench, None
        base = os.path.join(bench.folder, f"daemon-{Daemon.number}")
        self.socket, self.log, self.config, self.notify = (base + s for s in (".sock", ".log", ".yaml", ".notify"))
        text = f'access:\n  roles:\n    - {{ role: admin, users: [{os.geteuid()}] }}\n    - {{ role: attach, users: ["*"] }}\n'
        text += f'roots:\n  - "{bench.folder}"\ndevices:\n  - device: cuda:{bench.ordinal}\n    budget: 95%\n'
        text += f'    handles: {handles}\ncuda:\n  library: "{bench.cudart}"\n'
        if segment_size:
            text += f"  segment_size: {segment_size}\n"
        if bench.small:
            text += "io:\n  block_size: 1MiB\n  memory_limit: 64MiB\n"
        with open(self.config, "w") as f:
            f.write(text)

    @property
    def pid(self):
        return self.process.pid

    def start(self, timeout=20):
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ready.bind(self.notify)
        ready.settimeout(0.2)
        environment = {**self.bench.environment, "NOTIFY_SOCKET": self.notify}
        command = [self.bench.binary("streamerd"), "--config", self.config, "--socket", self.socket]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, preexec_fn=_die_with_parent
            )
        deadline, text = time.monotonic() + timeout, b""
        while b"READY=1" not in text:
            if self.process.poll() is not None:
                raise Failure(f"streamerd ended ({self.process.returncode}): {_tail(self.log)}")
            if time.monotonic() > deadline:
                raise NoAnswer(f"streamerd is not ready after {timeout} s: {_tail(self.log)}")
            try:
                text = ready.recv(4096)
            except socket.timeout:
                text = b""
        ready.close()
        return self

    def stop(self):
        if self.process is None:
            return
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.bench.report.warnings.append(f"{self.name}: it did not end in 10 s")
            self.note_threads()
        _end(self.process)
        self._keep_warnings()

    def _keep_warnings(self):
        """What nobody was answered with: a ring that could not be pinned, say."""
        warnings = self.bench.report.warnings
        with open(self.log, errors="replace") as f:
            for line in f:
                text = line.strip().split(": ", 1)[-1]
                if (" warn: " in line or " error: " in line) and " failed after " not in line and text not in warnings:
                    warnings.append(text)

    def kill(self):
        _end(self.process)

    def ctl(self, *arguments, timeout=60, accept=(0,)):
        """streamerctl's object for the verb; `accept`: exit codes that come with one."""
        command = [self.bench.binary("streamerctl"), "--socket", self.socket, "-o", "json", "--timeout", str(timeout)]
        try:
            done = subprocess.run(
                command + list(arguments), capture_output=True, env=self.bench.environment, timeout=timeout + 5
            )
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"streamerctl {arguments[0]}: no answer in {timeout} s") from None
        if done.returncode not in accept:
            raise Failure(f"{' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()} ({done.returncode})")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def ring(self):
        return self.ctl("status")["ring"]

    def host_memory(self):
        return host_memory(self.pid)
