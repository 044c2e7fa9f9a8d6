# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: daemons, consumers that carry out requests, and gpu-rates. Each process started here
dies with its parent, and every wait has a limit."""

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
    """A process answered with an error, or not at all."""


class NoAnswer(Failure):
    """It did not answer in time: the step logs what its threads do."""


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
    """The state, system call and kernel stack of each thread, where the kernel shows them; threads that wait for a
    futex are counted."""
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
    yield f"{waiting} more threads wait for a futex"


class _Process:
    """Its log is part of the report of a failure."""

    process, log = None, None

    @property
    def name(self):
        return os.path.basename(self.log)

    def last_lines(self):
        return _last_lines(self.log, 100)

    def log_threads(self):
        if self.process is None or self.process.poll() is not None:
            return
        try:
            with open(self.log, "a") as log:
                log.writelines(line + "\n" for line in _threads(self.process.pid))
        except OSError:
            pass  # it has just ended


    def read_line(self, deadline):
        out, line = self.process.stdout, b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([out], [], [], left)[0]:
                raise NoAnswer("no answer in time")
            data = os.read(out.fileno(), 1 << 16)
            if not data:
                self.process.wait(5)
                raise Failure(f"{self.name}: the process ended ({self.process.returncode}): {_tail(self.log)}")
            line += data
        return line

    def write_line(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended, and read_line() tells how


class Consumer(_Process):
    """`namespaces`: "pid" and "net", if the consumer has its own (root only)."""

    def __init__(self, bench, number, namespaces=()):
        self.log, self.lost = os.path.join(bench.folder, f"consumer-{number}.log"), False
        command = [sys.executable, bench.script, "--consumer", bench.library, bench.cudart, *namespaces]
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=bench.environment
            )

    @property
    def pid(self):
        return self.process.pid

    def send(self, op, /, **arguments):
        """Until receive() has returned the answer the consumer counts as lost: the next answer would be this one's."""
        self.lost = True
        self.write_line(json.dumps({"op": op, **arguments}))

    def receive(self, op, timeout=30):
        try:
            answer = json.loads(self.read_line(time.monotonic() + timeout))
        except NoAnswer:
            raise NoAnswer(f"{op}: no answer in {timeout} s") from None
        self.lost = False
        if "skip" in answer:
            raise Skip(answer["skip"])
        if "error" in answer:
            raise Failure(f"{op}: {answer['error']}")
        return answer["ok"]

    def ask(self, op, timeout=30, /, **arguments):
        self.send(op, **arguments)
        return self.receive(op, timeout)

    def kill(self):
        """A consumer that does not answer is made to log where it is."""
        if self.lost and self.process.poll() is None:
            self.process.send_signal(signal.SIGABRT)
            try:
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                pass
        _end(self.process)


class RatesProgram(_Process):
    """gpu-rates: one case a line; see tests/gpu/rates.c. The file is what its readers read."""

    number = 0

    def __init__(self, bench, path):
        RatesProgram.number += 1
        self.log = os.path.join(bench.folder, f"rates-{RatesProgram.number}.log")
        command = [bench.binary("gpu-rates"), bench.cudart, str(bench.ordinal), path]
        if not os.access(command[0], os.X_OK):
            raise Failure(f"{command[0]} does not exist (make {os.path.basename(bench.bin)}/gpu-rates)")
        self.ms = 50 if bench.small else 500
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=bench.environment,
                preexec_fn=_die_with_parent,
            )

    def measure(self, timeout=30, **case):
        """{"read", "copied": GiB/s, "cpu": seconds per GiB}"""
        self.write_line(" ".join(f"{key}={value}" for key, value in {"ms": self.ms, **case}.items()))
        answer = json.loads(self.read_line(time.monotonic() + timeout))
        if "error" in answer:
            raise Failure(f"gpu-rates: {answer['error']}")
        return answer

    def kill(self):
        _end(self.process)


def _yaml(settings):
    """{"section.key": value} as YAML."""
    sections = {}
    for name, value in settings.items():
        section, key = name.split(".")
        sections.setdefault(section, []).append(f"  {key}: {value}\n")
    return "".join(f"{section}:\n{''.join(lines)}" for section, lines in sections.items())


class Daemon(_Process):
    """streamerd with one device, as its clients see it. `device`: its YAML, the GPU where none is given; `settings`:
    further ones, {"io.block_size": "2MiB"}."""

    number = 0

    def __init__(self, bench, handles="cuda-ipc", device=None, settings=None):
        Daemon.number += 1
        self.bench, self.process = bench, None
        base = os.path.join(bench.folder, f"daemon-{Daemon.number}")
        self.socket, self.log, self.config, self.notify = (base + s for s in (".sock", ".log", ".yaml", ".notify"))
        text = f'access:\n  roles:\n    - {{ role: admin, users: [{os.geteuid()}] }}\n    - {{ role: attach, users: ["*"] }}\n'
        text += "roots:\n" + "".join(f'  - "{root}"\n' for root in bench.roots)
        gpu = f"device: cuda:{bench.ordinal}\n    budget: 95%\n    handles: {handles}"
        text += f"devices:\n  - {device or gpu}\n"
        small = {"io.block_size": "1MiB", "io.memory_limit": "64MiB"} if bench.small else {}
        text += _yaml({"cuda.library": f'"{bench.cudart}"', **small, **(settings or {})})
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
            self.bench.report.warnings.append(f"{self.name}: it did not end within 10 s")
            self.log_threads()
        _end(self.process)
        self._collect_warnings()

    def _collect_warnings(self):
        """What no reply contains: a ring that could not be pinned, for example."""
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
