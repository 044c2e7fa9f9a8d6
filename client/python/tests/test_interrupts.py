# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C, and other shortages, at any point."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
from checkpoints import small, write
from conftest import Daemon, eventually, interrupted, open_files
from slow_server import SlowServer

import streamerd

INTERRUPTS = 10_000


def test_interrupts_at_random_points_leave_nothing(folder: Path, daemon: Daemon) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    (folder / "m").mkdir()
    (folder / "m" / "config.json").write_text("{}")
    write(folder / "m" / "model.safetensors", [(f"layer.{i}", "BF16", [4, 8]) for i in range(8)])
    program = Path(__file__).with_name("interrupts.py")
    command = [sys.executable, str(program), str(folder / "m" / "model.safetensors"), str(INTERRUPTS), "1"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == {
        "interrupted": INTERRUPTS, "leases": 0, "files": 0, "threads": 0, "others": [], "ignored": [],
    }  # fmt: skip


def test_an_interrupt_ends_a_fetch(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("model.safetensors", small(3))
    program = interrupted('streamerd.fetch(sys.argv[1], "model.safetensors")', url, slow_server)
    program.communicate("x")
    assert program.returncode == 0


def test_an_interrupted_iteration_loses_no_tensor(folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step between the library's answer and the tensors."""
    write(folder / "m.safetensors", small(8))
    steps = [0]
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        rows = model._rows

        def interrupted_rows(*arguments: Any) -> Any:
            steps[0] += 1
            if steps[0] % 3 == 0:
                raise KeyboardInterrupt
            found = rows(*arguments)
            if steps[0] % 3 == 1:
                raise KeyboardInterrupt
            return found

        monkeypatch.setattr(model, "_rows", interrupted_rows)
        while True:
            try:
                names = [name for name, _ in model.stream()]
                break
            except KeyboardInterrupt:
                pass
        assert sorted(names) == [f"layer.{i}.weight" for i in range(8)]
        assert steps[0] > 1


def test_a_shortage_of_descriptors_passes(folder: Path, daemon: Daemon) -> None:
    write(folder / "m.safetensors", small())
    streamerd.open(folder / "m.safetensors", framework="numpy").close()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 1, limits[1]))
    try:
        with pytest.raises(streamerd.SystemCallError, match="too many files are open"):
            streamerd.open("m", framework="numpy")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    files = open_files()
    with streamerd.open("m", framework="numpy") as model:
        assert isinstance(model["layer.0.weight"], numpy.ndarray)
    del model
    assert open_files() == files
    eventually(lambda: not daemon.leases())


def test_a_stopped_daemon_is_named_in_time(folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamerd._client, "_clients", {})
    daemon.process.send_signal(19)
    try:
        with pytest.raises(TimeoutError, match=rf"pid {daemon.process.pid}, {daemon.socket}"):
            streamerd.open("m", framework="numpy", timeout=0.2)
    finally:
        daemon.process.send_signal(18)


@pytest.mark.parametrize("timeout", [0.2, 0.001])
def test_a_daemon_that_is_stopped_later_is_named(daemon: Daemon, timeout: float) -> None:
    streamerd.status()
    daemon.process.send_signal(19)
    try:
        with pytest.raises(TimeoutError, match=rf"pid {daemon.process.pid}, {daemon.socket}|{daemon.socket} does not answer"):
            streamerd.open("m", framework="numpy", timeout=timeout)
    finally:
        daemon.process.send_signal(18)


@pytest.mark.parametrize("openings", [2, 32])
def test_a_hundred_tasks_and_threads_open_at_once(
    folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, openings: int
) -> None:
    """More than limits.loads_per_uid, each a load of its own."""
    monkeypatch.setattr("streamerd._open.OPENINGS", openings)
    for i in range(100):
        write(folder / f"{i}.safetensors", small())

    async def use(i: int) -> int:
        path = folder / f"{i}.safetensors"
        async with await streamerd.aopen(path, framework="numpy") as model:
            return len([name async for name, _ in model.stream_async()])

    async def use_all() -> list[int]:
        return await asyncio.gather(*(use(i) for i in range(100)))

    results: list[list[int]] = []
    other = threading.Thread(target=lambda: results.append(asyncio.run(use_all())))
    other.start()
    results.append(asyncio.run(use_all()))
    other.join()
    assert results == [[4] * 100] * 2
    eventually(lambda: not daemon.leases())
