# SPDX-License-Identifier: Apache-2.0
"""Daemons and engines that tests and benchmarks start. All end with the process that started them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = (ROOT / os.environ.get("STREAMERD_BUILD", "build")).resolve()
sys.path.insert(0, str(ROOT / "tests/bench/gpu"))

from harness import daemon  # noqa: E402
from harness.processes import Failure as EngineError  # noqa: E402
from harness.processes import Process, Worker  # noqa: E402

__all__ = ["BUILD", "ROOT", "Daemon", "Engine", "EngineError", "Process", "Worker"]

ENGINE_SECONDS = 600


class Daemon(daemon.Daemon):
    """A streamerd with 8 GiB of host memory; the constructor returns when it serves."""

    def __init__(self, folder: Path, *roots: Path, environment: dict[str, str] | None = None):
        folder.mkdir(parents=True, exist_ok=True)
        host = {"device": "host", "budget": "8GiB"}
        super().__init__(BUILD, folder / "streamerd", roots, host, environment={**os.environ, **(environment or {})})
        self.start()


class Engine(Worker):
    """A process of engine.py. Methods are its functions; begin() and end() split a call, so that engines run at once."""

    def __init__(self, log: Path, environment: dict[str, str] | None = None):
        self.log: Path = log
        self._method = ""
        self.spawn([sys.executable, str(HERE / "engine.py")], {**os.environ, **(environment or {})}, talks=True)

    def begin(self, method: str, **arguments: Any) -> None:
        self._method = method
        self.send(method, **arguments)

    def end(self) -> Any:
        return self.receive(self._method, ENGINE_SECONDS)

    def call(self, method: str, **arguments: Any) -> Any:
        self.begin(method, **arguments)
        return self.end()

    @contextmanager
    def patched(self, method: str, **arguments: Any) -> Iterator[None]:
        """While it is entered, what this function of engine.py replaces is replaced in the process."""
        self.call(method, **arguments)
        try:
            yield
        finally:
            self.call("repair")

    def start(self, model: Path | str, load_format: str, extra: dict[str, Any] | None = None, **more: Any) -> Any:
        return self.call("start", model=str(model), load_format=load_format, extra=extra or {}, **more)

    def run(
        self, model: Path | str, load_format: str, extra: dict[str, Any] | None = None, **more: Any
    ) -> tuple[list[int], str]:
        """Starts an engine and ends it: its greedy tokens, and what the loader logged."""
        try:
            log = self.start(model, load_format, extra, **more)["log"]
            return self.call("tokens"), "\n".join(log)
        finally:
            self.call("stop")
