# SPDX-License-Identifier: Apache-2.0
"""starts.py [ROUNDS]: the figures of compiled code in docs/performance.md.

An engine compiles for a random Llama of 4 small layers. Then engines start in turn, each in a process of its own, with the
model resident: with the folder of the first as its cache and without artifacts; with an empty folder, and what the first has
compiled in the daemon. All give the same tokens. Printed are the wall time and the CPU time of both, from the process's start
to its first tokens, and their ratios (medians and ranges)                                                      <= 1.15
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "vllm"))
from processes import BUILD, Daemon, Engine  # noqa: E402

from harness import llama  # noqa: E402

FOLDER = BUILD / "bench-vllm"
MODEL = FOLDER / "small/checkpoint"
TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS


def start(daemon: Daemon, cache: Path, artifacts: bool) -> dict[str, Any]:
    began = time.perf_counter()
    with Engine(FOLDER / "log", {"VLLM_CACHE_ROOT": str(cache)}) as engine:
        extra = {"socket": daemon.socket, "artifacts": "auto" if artifacts else False}
        log = engine.start(MODEL, "streamerd", extra, enforce_eager=False)["log"]
        tokens = engine.call("tokens")
        seconds = time.perf_counter() - began
        return {"s": seconds, "CPU-s": processor_seconds(engine.pid), "tokens": tokens, "log": "\n".join(log)}


def main(rounds: int) -> None:
    if not MODEL.exists():
        llama.write_checkpoint(MODEL, llama.SMALL)
    caches = FOLDER / "caches"
    shutil.rmtree(caches, ignore_errors=True)
    warm = caches / "warm"
    with Daemon(FOLDER / "daemon", FOLDER) as daemon:
        first = start(daemon, warm, True)
        assert "artifacts: published" in first["log"], first["log"]
        rows: dict[str, list[float]] = {f"first, {kind}": [first[kind]] for kind in ("s", "CPU-s")}
        for number in range(rounds):
            local, restored = start(daemon, warm, False), start(daemon, caches / str(number), True)
            assert "artifacts: restored" in restored["log"], restored["log"]
            assert local["tokens"] == restored["tokens"] == first["tokens"]
            for kind in ("s", "CPU-s"):
                rows.setdefault(f"warm cache, {kind}", []).append(local[kind])
                rows.setdefault(f"restored, {kind}", []).append(restored[kind])
                rows.setdefault(f"restored of warm, {kind}", []).append(restored[kind] / local[kind])
            print(f"{number}: {local['s']:.1f} s, {restored['s']:.1f} s", file=sys.stderr, flush=True)
    for name, values in rows.items():
        print(f"{name:24} {median(values):8.3f}   ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
