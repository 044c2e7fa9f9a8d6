# SPDX-License-Identifier: Apache-2.0
"""sharing.py [ROUNDS]: the figures of publishing in docs/performance.md.

Two processes have run an engine each, so that no code is loaded any more. In rounds the first loads a random Llama of 2 GiB
from the page cache and publishes it, and the second attaches to it. Both have the same kernels, and give the same tokens.
Printed are medians and ranges of

    the time of load_model() (building, weights, post-processing) of the second, of the first's without publishing  <= 0.03
    the second's anonymous memory when it has read each page of the weights, over before                            <= 16 MiB
    the wall time and the CPU time of the proof, of those of the first's load_model() without publishing              <= 0.5
    the peak of the first's memory during the proof, over before                                 <= a layer and 5 % of the model
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "vllm"))
from processes import BUILD, Daemon, Engine  # noqa: E402

from harness import llama, model  # noqa: E402

FOLDER = BUILD / "bench-vllm"
SMALL, LARGE = FOLDER / "small/checkpoint", FOLDER / "large/checkpoint"
MIB = 1 << 20


def load(engine: Engine, path: Path, daemon: Daemon) -> dict[str, Any]:
    extra = {"socket": daemon.socket, "publish": True}
    result: dict[str, Any] = engine.start(path, "streamerd", extra, whole=True)
    result["tokens"] = engine.call("tokens")
    engine.call("stop")
    return result


def measure(first: Engine, second: Engine, path: Path, daemon: Daemon) -> dict[str, float]:
    for file in path.glob("*.safetensors"):
        model.ensure_cached(file)
    published, attached = load(first, path, daemon), load(second, path, daemon)
    assert "publish: published" in "\n".join(published["log"]), published["log"]
    assert "publish: attached to" in "\n".join(attached["log"]), attached["log"]
    assert published["tokens"] == attached["tokens"]
    for resident in daemon.ctl("list")["models"]:
        daemon.ctl("unload", resident["name"], "--force")  # an engine that has ended may still have it mapped
    parts, second_s = published["parts"], attached["model"]
    proof = {kind: sum(parts[f"proof, {when}"][kind] for when in ("before", "after")) for kind in ("seconds", "cpu")}
    more = ("publishing", "proof, before", "touching")
    loaded = {kind: parts["model"][kind] - sum(parts[part][kind] for part in more) for kind in proof}
    return {
        "first, s": loaded["seconds"],
        "publishing, s": parts["publishing"]["seconds"] - parts["proof, after"]["seconds"],
        "second, s": second_s,
        "second, of first": second_s / loaded["seconds"],
        "proof, s": proof["seconds"],
        "proof, CPU-s": proof["cpu"],
        "proof, of first": proof["seconds"] / loaded["seconds"],
        "proof, CPU of it": proof["cpu"] / loaded["cpu"],
        "proof before, MiB": parts["proof, before"]["peak"] / MIB,
        "proof after, MiB": parts["proof, after"]["peak"] / MIB,
        "anonymous, MiB": attached["more"]["Anonymous"] / MIB,
        "load average": os.getloadavg()[0],
    }


def main(rounds: int) -> None:
    for path, size in ((SMALL, llama.SMALL), (LARGE, llama.LARGE)):
        if not path.exists():
            llama.write_checkpoint(path, size)
    rows = []
    with Daemon(FOLDER / "daemon", FOLDER) as daemon, Engine(FOLDER / "log") as first, Engine(FOLDER / "log") as second:
        measure(first, second, SMALL, daemon)
        for number in range(1, rounds + 1):
            rows.append(measure(first, second, LARGE, daemon))
            print(f"{number}: {rows[-1]}", file=sys.stderr, flush=True)
    for name in rows[0]:
        values = [row[name] for row in rows]
        print(f"{name:20} {median(values):9.3f}   ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
