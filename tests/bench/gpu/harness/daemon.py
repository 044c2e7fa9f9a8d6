# SPDX-License-Identifier: Apache-2.0
"""A streamerd with a socket and a configuration of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from .processes import Failure, NoAnswer, Process


def yaml(settings: dict[str, Any]) -> str:
    """{"section.key": value, "key": value} as YAML."""
    sections: dict[str, str] = {}
    plain = ""
    for name, value in settings.items():
        section, dot, key = name.partition(".")
        if dot:
            sections[section] = sections.get(section, "") + f"  {key}: {value}\n"
        else:
            plain += f"{name}: {value}\n"
    return plain + "".join(f"{section}:\n{lines}" for section, lines in sections.items())


class Daemon(Process):
    """`programs`: the folder of streamerd and streamerctl; `base`: the beginning of the paths of its socket, log and
    configuration; `device`: the members of its only device; `settings`: others, {"io.block_size": "2MiB"}; `roles`:
    those of its access rules, {"role": "admin", "users": [0]}; `under`: a command to run it by, as valgrind."""

    def __init__(
        self,
        programs: str | os.PathLike[str],
        base: str | os.PathLike[str],
        roots: Sequence[str | os.PathLike[str]],
        device: dict[str, Any],
        settings: dict[str, Any] | None = None,
        environment: dict[str, str] | None = None,
        roles: Sequence[dict[str, Any]] = (),
        under: Sequence[str] = (),
    ):
        self.programs, self.environment = os.fspath(programs), environment if environment is not None else {**os.environ}
        parts = (".sock", ".log", ".yaml", ".notify")
        self.socket, self.log, config, self._notify = (os.fspath(base) + part for part in parts)
        streamerd = os.path.join(self.programs, "streamerd")
        self.command = [*under, streamerd, "--config", config, "--socket", self.socket]
        text = "roots:\n" + "".join(f'  - "{os.fspath(root)}"\n' for root in roots)
        if roles:
            text += "access:\n  roles:\n" + "".join(f"    - {json.dumps(rule)}\n" for rule in roles)
        members = "\n    ".join(f"{key}: {value}" for key, value in device.items())
        with open(config, "w") as f:
            f.write(f"{text}devices:\n  - {members}\n{yaml(settings or {})}")

    def start(self, timeout: float = 20) -> Daemon:
        """Returns when it serves."""
        ready = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ready.bind(self._notify)
        ready.settimeout(0.2)
        self.spawn(self.command, {**self.environment, "NOTIFY_SOCKET": self._notify}, talks=False)
        assert self.process is not None
        deadline, text = time.monotonic() + timeout, b""
        try:
            while b"READY=1" not in text:
                if self.process.poll() is not None:
                    raise Failure(f"streamerd ended ({self.process.returncode}): {self.tail()}")
                if time.monotonic() > deadline:
                    raise NoAnswer(f"streamerd is not ready after {timeout:g} s: {self.tail()}")
                try:
                    text = ready.recv(4096)
                except TimeoutError:
                    text = b""
        finally:
            ready.close()
            os.unlink(self._notify)
        return self

    def __enter__(self) -> Daemon:
        return self if self.process is not None else self.start()

    def stop(self, timeout: float = 10) -> bool:
        """False if it did not end in time; then its threads are logged, and it is killed."""
        if self.process is None:
            return True
        self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.log_threads()
            self.kill()
            return False
        return True

    def warnings(self) -> list[str]:
        """Warnings and errors that it has logged: a ring that could not be pinned is in no reply."""
        lines = (line.strip() for line in self.last_lines(10000))
        return [line.split(": ", 1)[-1] for line in lines if " warn: " in line or " error: " in line]

    def ctl(self, *arguments: str, timeout: float = 60, accept: tuple[int, ...] = (0,)) -> Any:
        """streamerctl's object for the verb; `accept`: exit codes that come with one."""
        program = os.path.join(self.programs, "streamerctl")
        command = [program, "--socket", self.socket, "--json", "--timeout", f"{timeout:g}", *arguments]
        try:
            done = subprocess.run(command, capture_output=True, env=self.environment, timeout=timeout + 5)
        except subprocess.TimeoutExpired:
            raise NoAnswer(f"streamerctl {arguments[0]}: no answer in {timeout:g} s") from None
        if done.returncode not in accept:
            raise Failure(f"{' '.join(arguments)}: {done.stderr.decode(errors='replace').strip()} ({done.returncode})")
        return json.loads(done.stdout) if done.stdout.strip() else {}

    def model(self, name: str) -> Any:
        return self.ctl("show", name)["models"][0]

    def ring(self) -> Any:
        return self.ctl("status")["ring"]
