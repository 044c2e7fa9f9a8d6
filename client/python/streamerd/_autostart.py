# SPDX-License-Identifier: Apache-2.0
"""A daemon of the user's own, started where none answers.

It listens where streamer_user_socket() says, in a folder that only its user can enter. One process at a time holds
the folder's lock, looks again whether a daemon answers, and starts one. The daemon is the child of no process that
asked for it, has a session of its own and, where systemd manages the user's processes, a unit of its own. It writes
its log into the folder, unloads models that have had no lease for a time (--keep-alive), and exits after a time without
use (--exit-idle).
"""

from __future__ import annotations

import fcntl
import math
import os
import shutil
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import BinaryIO, TypeVar

from ._client import user_socket, warn
from ._programs import environment, find_program
from .errors import DeniedError, Error, TimedOutError, UnreachableError, UnsupportedError, system_error

START_SECONDS = 20.0
POLL_SECONDS = 0.01
SCOPE_SECONDS = 5.0
RUN_USER = "/run/user"
DEFAULT_EXIT_IDLE = "30m"
DEFAULT_KEEP_ALIVE = "15m"

_T = TypeVar("_T")

_variables: ContextVar[Mapping[str, str]] = ContextVar("variables of a daemon that is started", default={})


@contextmanager
def with_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """A daemon that is started meanwhile has these variables besides those of this process."""
    token = _variables.set(variables)
    try:
        yield
    finally:
        _variables.reset(token)


def is_allowed(autostart: bool | None) -> bool:
    """The argument, else $STREAMERD_AUTOSTART, else yes."""
    if autostart is not None:
        return autostart
    return os.environ.get("STREAMERD_AUTOSTART", "1").strip().lower() not in ("0", "false", "no", "off")


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    """The folder's errors, with advice."""
    try:
        yield
    except Error:
        raise
    except OSError as e:
        subject = f"no daemon runs, and none can be started: {e.filename or folder}"
        advice = ": set XDG_RUNTIME_DIR to a folder of yours, or STREAMERD_SOCKET to a daemon"
        raise system_error(e, subject, advice) from None


def _make_folder(folder: Path) -> None:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        pass
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        raise DeniedError(
            f"{folder}: not a folder of this user alone (uid {found.st_uid}, mode {stat.S_IMODE(found.st_mode):o}): "
            "remove it, or set XDG_RUNTIME_DIR to a folder of yours"
        )


# The files of a memory cgroup's limit, by the version of cgroups.
_LIMITS = {1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes"), 2: ("sys/fs/cgroup", "memory.max")}


def _cgroup_limit(root: Path = Path("/")) -> int | None:
    """Bytes of memory that this process's cgroups allow; None: no limit is visible. A limit of any ancestor holds."""
    limits = []
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    for number, controllers, path in (line.split(":", 2) for line in lines):
        version = 2 if (number, controllers) == ("0", "") else 1
        if version == 1 and "memory" not in controllers.split(","):
            continue
        mount, name = _LIMITS[version]
        group = Path(path.lstrip("/"))
        for folder in (group, *group.parents):
            try:
                limits.append(int((root / mount / folder / name).read_text()))
            except (OSError, ValueError):  # absent, or "max"
                pass
    return min(limits, default=None)


def _default_budget() -> str:
    """Half of the memory that this process may use: a model, and a copy of it in the process that asked for it."""
    limit = _cgroup_limit()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return str(limit // 2) if limit is not None and limit < memory else "50%"


def _command(program: str, socket: str) -> list[str]:
    budget = os.environ.get("STREAMERD_HOST_BUDGET") or _default_budget()
    command = [program, "--socket", socket, "--root", "/", "--device", f"host={budget}"]
    if os.path.exists("/dev/nvidiactl"):
        command += ["--device", "cuda:all?"]
    command += ["--keep-alive", os.environ.get("STREAMERD_KEEP_ALIVE") or DEFAULT_KEEP_ALIVE]
    return command + ["--exit-idle", os.environ.get("STREAMERD_EXIT_IDLE") or DEFAULT_EXIT_IDLE]


def _runtime_folder() -> str:
    """Where the user's systemd has its socket. Sessions of cron, sudo and ssh may lack the variable."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    return given if os.path.isabs(given) else os.path.join(RUN_USER, str(os.getuid()))


def _scope(variables: Mapping[str, str], seconds: float) -> list[str]:
    """The command that runs another one in a transient unit of the user's systemd; nothing where there is none.

    Processes of a unit end with it: a daemon that an engine's service started would end with that service.
    """
    program = shutil.which("systemd-run")
    runtime = _runtime_folder()
    if program is None or not os.path.exists(os.path.join(runtime, "systemd", "private")):
        return []
    name = f"streamerd-{os.getpid()}-{time.time_ns()}"
    command = ["env", f"XDG_RUNTIME_DIR={runtime}", program, "--user", "--scope", "--quiet", "--collect"]
    command.append("--description=streamerd of this user")
    quiet = subprocess.DEVNULL
    try:
        trial = subprocess.run(
            [*command, "true"], stdin=quiet, stdout=quiet, stderr=quiet, env=variables, timeout=seconds
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [*command, f"--unit={name}"] if trial.returncode == 0 else []


#: What a service manager gives to one service (systemd.exec(5), sd_notify(3), sd_listen_fds(3)): a daemon that a process
#: of this service starts is not that service, and would write to its folders and speak for it.
_OF_A_SERVICE = (
    "CACHE_DIRECTORY",
    "CONFIGURATION_DIRECTORY",
    "CREDENTIALS_DIRECTORY",
    "FDSTORE",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "LISTEN_FDNAMES",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LOGS_DIRECTORY",
    "MAINPID",
    "NOTIFY_SOCKET",
    "RUNTIME_DIRECTORY",
    "STATE_DIRECTORY",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
)


def _spawn(command: list[str], log: Path, deadline: float) -> int:
    """Starts a process that is not a child of this one, and returns its pid: a shell starts it and exits."""
    inherited = {name: value for name, value in environment().items() if name not in _OF_A_SERVICE}
    variables = {**inherited, **_variables.get()}
    scope = _scope(variables, min(SCOPE_SECONDS, max(0.0, deadline - time.monotonic())))
    with open(log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as output:
        shell = subprocess.run(
            ["/bin/sh", "-c", '"$@" >&2 & echo $!', "sh", *scope, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
            cwd="/",
            env=variables,
            check=True,
        )
    return int(shell.stdout)


def _runs(pid: int) -> bool:
    """Whether a process exists and has not ended. Where this process is PID 1, the daemon is its child."""
    try:
        os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        pass
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2][:1]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def _last_lines(log: Path, begin: int) -> str:
    with open(log, "rb") as f:
        f.seek(begin)
        lines = f.read()[-4096:].decode(errors="replace").strip().splitlines()
    return "; ".join(lines[-3:]) or "no message"


def _wait_until(connect: Callable[[], _T], pid: int, log: Path, begin: int, deadline: float) -> _T:
    """connect()'s result once the daemon answers; UnreachableError if it exits or does not answer in START_SECONDS,
    TimedOutError at the deadline."""
    end = time.monotonic() + START_SECONDS
    while True:
        running = _runs(pid) and time.monotonic() < end
        try:
            return connect()
        except UnreachableError:
            if not running:
                raise UnreachableError(f"cannot start the daemon: {_last_lines(log, begin)} ({log})") from None
        if time.monotonic() >= deadline:
            raise TimedOutError(f"the daemon that was started does not answer in the given time (pid {pid}, log {log})")
        time.sleep(POLL_SECONDS)


def _lock(lock: BinaryIO, deadline: float) -> None:
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        if time.monotonic() >= deadline:
            raise TimedOutError(f"another process starts the daemon, and is not done in the given time ({lock.name})")
        time.sleep(POLL_SECONDS)


def start(connect: Callable[[], _T], deadline: float | None = None) -> _T:
    """Starts the user's daemon unless another process just has, and returns what connect() returns.

    `connect` connects to the user's own daemon and raises UnreachableError while no daemon answers there. `deadline`:
    of the monotonic clock; the daemon that was started continues.
    """
    program = find_program("streamerd")
    if program is None:
        raise UnsupportedError("no daemon runs, and none can be started: there is no streamerd program on PATH")
    end = math.inf if deadline is None else deadline
    socket = user_socket()
    folder = Path(socket).parent
    with _usable(folder):
        _make_folder(folder)
        lock = open(folder / "lock", "ab")
    with lock:
        _lock(lock, end)
        try:
            return connect()
        except UnreachableError:
            pass
        log = folder / "streamerd.log"
        begin = log.stat().st_size if log.exists() else 0
        command = _command(program, socket)
        with _usable(folder):
            pid = _spawn(command, log, end)
        connected = _wait_until(connect, pid, log, begin, end)
    warn(
        "started %s (pid %d, log %s); it exits when unused for %s; STREAMERD_AUTOSTART=0 disables this",
        " ".join(command[:-2]),
        pid,
        log,
        command[-1],
    )
    return connected
