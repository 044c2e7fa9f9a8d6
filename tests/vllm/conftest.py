# SPDX-License-Identifier: Apache-2.0
"""Fixtures: small random models, a daemon for all tests of a module, and an engine's process that they share."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from processes import BUILD, Daemon, Engine  # noqa: E402

from harness import llama  # noqa: E402

os.environ.setdefault("STREAMERD_CLIENT_LIB", str(BUILD / "libstreamer-client.so.0"))


@pytest.fixture(scope="session")
def models() -> Iterator[Path]:
    """A folder that every user may enter, for a test that gives up its rights; pytest's own are root's alone."""
    with tempfile.TemporaryDirectory(prefix="models-", dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        llama.write(folder, llama.SMALL)
        yield folder


@pytest.fixture(scope="module")
def daemon(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("daemon"), models) as process:
        yield process


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def engine(logs: Path) -> Iterator[Engine]:
    """One process for tests that need one engine after the other: most of a start is the import of vLLM."""
    with Engine(logs / "engine") as process:
        yield process


@pytest.fixture(scope="session")
def expected(engine: Engine, models: Path) -> list[int]:
    """The tokens that the checkpoint gives with vLLM's own loader."""
    tokens, _ = engine.run(models / "checkpoint", "auto")
    assert len(set(tokens)) > 1
    return tokens
