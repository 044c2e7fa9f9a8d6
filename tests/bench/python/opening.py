#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of docs/python.md: opening a resident model, and iterating over it beside safetensors.

    opening.py [FOLDER]

Writes a file of 300 tensors and 1 GiB into FOLDER (a temporary one), starts a daemon, and measures in processes of
their own, ours and safetensors in turn. Each time is the first use in its process, with the modules imported; the
median of all processes and their range are printed. Targets: 30 ms for the import, 5 ms for open().
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TENSORS = 300
BYTES = 1 << 30
PROCESSES = 7
PAGE = 4096


def timed(body: Callable[[], Any]) -> float:
    began = time.perf_counter()
    kept = body()
    took = time.perf_counter() - began
    del kept
    return took * 1000


def touch(tensor: Any) -> None:
    """Reads one byte of each page."""
    import torch

    tensor.view(torch.uint8).reshape(-1)[::PAGE].sum()


def measure(what: str, path: str) -> float:
    """Milliseconds of one use, in this process."""
    if what == "import":
        return timed(lambda: importlib.import_module("streamerd"))

    import safetensors
    import torch

    import streamerd

    torch.ones(1).view(torch.uint8).sum()
    models = []  # closed after the measurement

    def ours(touched: bool = False, shared: bool = False) -> Any:
        models.append(streamerd.open(path, device="cpu", shared=shared, progress=False))
        tensors = {name: tensor for name, tensor in models[0].stream()}
        if touched:
            for tensor in tensors.values():
                touch(tensor)
        return tensors

    def theirs(touched: bool = False) -> Any:
        with safetensors.safe_open(path, "pt") as f:
            tensors = {name: f.get_tensor(name) for name in f.keys()}
        if touched:
            for tensor in tensors.values():
                touch(tensor)
        return tensors

    def again() -> Any:
        return {name: tensor for name, tensor in models[0].stream()}

    if what == "open alone":
        return timed(lambda: models.append(streamerd.open(path, device="cpu", progress=False)))
    if what == "iterate":
        ours()
        return timed(again)
    if what == "iterate safetensors":
        with safetensors.safe_open(path, "pt") as f:
            return timed(lambda: {name: f.get_tensor(name) for name in f.keys()})
    return {
        "open": lambda: timed(ours),
        "open safetensors": lambda: timed(theirs),
        "touch": lambda: timed(lambda: ours(True)),
        "touch shared": lambda: timed(lambda: ours(True, True)),
        "touch safetensors": lambda: timed(lambda: theirs(True)),
    }[what]()


USES = {
    "import": "import streamerd, without torch",
    "open alone": "open()",
    "open": "open() to the last tensor's view",
    "open safetensors": "safe_open() to the last tensor",
    "iterate": "iteration over an open model",
    "iterate safetensors": "iteration over an open safe_open()",
    "touch": "open() to the last page read, copy-on-write",
    "touch shared": "open() to the last page read, shared=True",
    "touch safetensors": "safe_open() to the last page read",
}


def main(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    sys.path.insert(0, str(Path(__file__).parents[2] / "vllm"))
    from processes import Daemon

    path = folder / "figures.safetensors"
    rows = BYTES // TENSORS // 2 // 1024
    weights = torch.randn(rows, 1024).bfloat16()
    save_file({f"model.layers.{i}.weight": weights.clone() for i in range(TENSORS)}, path)
    with Daemon(folder, folder) as daemon:
        daemon.ctl("load", str(path))
        pages = daemon.model("figures")["devices"][0]["page_kind"]
        path.read_bytes()  # into the page cache
        times: dict[str, list[float]] = {what: [] for what in USES}
        for _ in range(PROCESSES):
            for what in USES:
                command = [sys.executable, __file__, "--measure", what, str(path)]
                output = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, env={**os.environ, "STREAMERD_SOCKET": daemon.socket}
                )
                times[what].append(json.loads(output.stdout))
    print(f"{pages} pages")
    for what, text in USES.items():
        row = times[what]
        print(f"{text:45} {statistics.median(row):8.2f} ms   ({min(row):.2f} to {max(row):.2f})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure(sys.argv[2], sys.argv[3])))
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as temporary:
            main(Path(temporary))
