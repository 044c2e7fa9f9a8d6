# SPDX-License-Identifier: Apache-2.0
"""The first, second, ... call of libstreamer-client into the system fails in a Python process: an exception of ours,
an OSError or a MemoryError is raised, or the result is right; the same call then succeeds in the same process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from checkpoints import small, write
from conftest import Daemon

HERE = Path(__file__).parent
TOP = HERE.parents[2]
LIBRARY = Path(os.environ.get("STREAMERD_BUILD", "build")).absolute() / "tests" / "fault" / "libfault.so"
PAGE_SIZE = 1 << 16  # more than struct fault_page


def call_names() -> list[str]:
    """In the order of enum fault_call."""
    return re.findall(r"\bCALL\((\w+), -?\w+, \w+\)", (TOP / "tests" / "lib" / "fault" / "calls.h").read_text())


@pytest.mark.skipif(not LIBRARY.exists(), reason="libfault.so is not built")
def test_a_failed_call_raises_and_the_next_call_succeeds(folder: Path, daemon: Daemon) -> None:
    write(folder / "m.safetensors", small())
    page = folder / "faults"
    page.write_bytes(bytes(PAGE_SIZE))
    environment = {
        **os.environ,
        "LD_PRELOAD": str(LIBRARY),
        "STREAMERD_FAULT_PAGE": str(page),
        "STREAMERD_FAULT_OBJECT": "libstreamer-client",
    }
    arguments = [str(page), ",".join(call_names()), str(folder / "m.safetensors")]
    command = [sys.executable, str(HERE / "faults_child.py"), *arguments]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]
    assert int(result.stdout.split()[-1]) > 30
