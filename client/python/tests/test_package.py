# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it costs, and that its versions agree."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

from checkpoints import small, write
from conftest import Daemon

import streamerd
from streamerd._library import library


def test_frameworks_are_imported_when_they_are_asked_for(folder: Path, daemon: Daemon) -> None:
    write(folder / "m.safetensors", small())
    program = """
import sys, streamerd
assert not {"torch", "numpy"} & set(sys.modules)
with streamerd.open(sys.argv[1], framework="numpy") as model:
    assert len(dict(model)) == 4
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(folder / "m.safetensors")], check=True)


def test_versions_agree(daemon: Daemon) -> None:
    assert streamerd.__version__ == library().streamer_version().decode() == streamerd.status()["version"]
    try:
        assert metadata.version("streamerd") == streamerd.__version__
    except metadata.PackageNotFoundError:
        pass  # used from the source tree


def test_typing_information_is_installed() -> None:
    assert Path(streamerd.__file__).with_name("py.typed").exists()


def test_every_public_name_exists() -> None:
    assert all(hasattr(streamerd, name) for name in streamerd.__all__)
    assert streamerd.__all__ == sorted(streamerd.__all__)
