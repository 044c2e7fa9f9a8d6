# SPDX-License-Identifier: Apache-2.0
"""The Python of docs/python.md runs as it is written, in a new process, with a daemon that it starts."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import eventually, tiny_llama

from streamerd import _autostart
from streamerd._client import user_socket

PAGE = Path(__file__).parents[3] / "docs" / "python.md"

# What a reader has around the examples. A store is not at hand: those blocks see the files that it would have.
PREAMBLE = """
import asyncio, os, sys, torch, transformers
import streamerd
path = sys.argv[1]
store = {"config.json": b"{}"}
"""
STORE = """
streamerd.fetch = lambda source, file: store[file]
streamerd.fetch_list = lambda source: list(store)
"""


def blocks() -> list[str]:
    """Indented blocks, except commands of a shell: how the wheel is built is the end of the page."""
    page = PAGE.read_text().partition("## The wheel")[0]
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", page, re.M)
    return [textwrap.dedent(block) for block in found if not block.lstrip().startswith("$")]


def program() -> str:
    parts = [PREAMBLE]
    for block in blocks():
        if "async with" in block:
            block = "async def example():\n" + textwrap.indent(block, "    ") + "\nasyncio.run(example())\n"
        if '"s3://' in block:
            parts.append(STORE)
        parts.append(block)
    return "\n".join([*parts, 'print("all done")'])


@pytest.fixture
def hub(folder: Path) -> Path:
    """A Hugging Face cache with a tiny random model of the name that the page uses."""
    pytest.importorskip("accelerate")
    repository = folder / "hub" / "models--Qwen--Qwen3-8B"
    snapshot = repository / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(snapshot.name)
    tiny_llama().save_pretrained(snapshot)
    return snapshot


def test_the_examples_run_as_written(folder: Path, hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(blocks()) >= 8
    monkeypatch.setenv("HF_HOME", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("STREAMERD_EXIT_IDLE", "1s")
    done = subprocess.run([sys.executable, "-c", program(), str(hub)], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0 and "all done" in done.stdout, done.stderr
    pid = re.search(r"started .*\(pid (\d+)", done.stderr)
    assert pid and user_socket() in done.stderr
    eventually(lambda: not _autostart._runs(int(pid[1])))
