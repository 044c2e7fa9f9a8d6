# SPDX-License-Identifier: Apache-2.0
"""Results that the steps of a benchmark leave for each other, and the machine that they are of."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


class Results:
    """A JSON file of values by key, so that each step may run on its own."""

    def __init__(self, path: Path):
        self.path = path

    def read(self) -> dict[str, Any]:
        return json.loads(self.path.read_text()) if self.path.exists() else {}

    def keep(self, key: str, value: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps({**self.read(), key: value}, indent=1))


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    kernel = ".".join(os.uname().release.split("-")[0].split(".")[:2])
    return f"{os.cpu_count()}-core VM, {memory:.0f} GiB of memory, Linux {kernel}"
