# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks/whitepaper.md and its plots, from the results of the steps."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

import plots

HERE = Path(__file__).parent
GIB = 1 << 30
Row = dict[str, Any]

# Seconds published for Llama 3 8B, 15 GB, in "Run:ai Model Streamer: Performance Benchmarks" (Run:ai, October 2024)
# and "Reducing Cold Start Latency for LLM Inference with NVIDIA Run:ai Model Streamer" (NVIDIA, 2025).
PUBLISHED = {
    "gp3": {"safetensors": (47.99, None), "runai": (14.34, 16)},
    "io2": {"safetensors": (47.0, None), "runai": (7.53, 8)},
    "s3": {"tensorizer": (37.36, 16), "runai": (4.88, 32)},
    "vllm": {("gp3", "auto"): 66.13, ("gp3", "runai"): 35.08, ("s3", "runai"): 23.18},
}
PUBLISHED_GIB = 15e9 / GIB
NAMES = {
    "gp3": "Experiment 1: a disk of 1,000 MiB/s and 16,000 requests/s",
    "io2": "Experiment 2: the disk as it is",
    "s3": "Experiment 3: S3, radosgw on loopback",
    "s3_20ms": "Experiment 3: S3, 20 ms before each answer",
}
GP3_LIMIT = 1000 / 1024  # GiB/s


def rounds_of(data: Row, prefix: str) -> list[Row]:
    return [data[key] for key in sorted(data) if key.rpartition(" ")[0] == prefix and key.rpartition(" ")[2].isdigit()]


def spread(rounds: list[Row], key: str, field: str = "seconds", scale: float = 1) -> plots.Spread | None:
    values = [r[key][field] * scale for r in rounds if key in r and field in r[key]]
    return (median(values), min(values), max(values)) if values else None


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *rows])


def cell(value: plots.Spread | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value[0]:.{digits}f} ({value[1]:.{digits}f} to {value[2]:.{digits}f})"


def best(rounds: list[Row], loader: str) -> str | None:
    """The key of a loader's best concurrency: the lowest median."""
    keys = {key for r in rounds for key in r if key == loader or key.startswith(f"{loader}/")}
    timed = {key: spread(rounds, key) for key in sorted(keys)}
    timed = {key: value for key, value in timed.items() if value}
    return min(timed, key=lambda key: timed[key][0]) if timed else None  # type: ignore[index]


def label(key: str) -> str:
    loader, _, concurrency = key.partition("/")
    return f"{loader}, {concurrency}" if concurrency else loader


def storage_section(name: str, data: Row, size: int, folder: Path, note: str) -> str:
    rounds = rounds_of(data, name)
    if not rounds:
        why = data.get(f"{name} unavailable", "not run")
        return f"## {NAMES[name]}\n\nNot measured: {why}.\n"
    gib, rows = size / GIB, []
    keys = sorted({key for r in rounds for key in r}, key=lambda k: (k.partition("/")[0], int(k.partition("/")[2] or 0)))
    for key in keys:
        seconds = spread(rounds, key)
        if seconds is None:
            reason = next(r[key]["failed"] for r in rounds if "failed" in r.get(key, {}))
            rows.append([label(key), f"failed: {reason}", "", "", "", "", ""])
            continue
        beyond = spread(rounds, key, "memory")
        rows.append([
            label(key), cell(seconds), f"{gib / seconds[0]:.2f}", cell(spread(rounds, key, "first")),
            cell(spread(rounds, key, "cpu", 1 / gib)),
            "-" if beyond is None else f"{max(beyond[0] / GIB - gib, 0):.2f}",
            "-" if beyond is None else f"{spread(rounds, key, 'read')[0] / GIB:.2f}",  # type: ignore[index]
        ])  # fmt: skip
    head = ["loader, concurrency", "seconds", "GiB/s", "first tensor, s", "CPU-s/GiB", "memory beyond, GiB", "read, GiB"]
    series = {}
    for loader in ("runai", "tensorizer", "streamerd"):
        points = {int(k.partition("/")[2]): spread(rounds, k) for k in keys if k.startswith(f"{loader}/")}
        series[loader] = {n: value for n, value in sorted(points.items()) if value}
    lines = {key: spread(rounds, key)[0] for key in ("safetensors", "fio", "curl") if spread(rounds, key)}  # type: ignore[index]
    series = {loader: points for loader, points in series.items() if points}
    plots.by_concurrency(folder / f"whitepaper-{name}-concurrency.svg", NAMES[name], series, lines, note)  # type: ignore[arg-type]
    found = [key for key in (best(rounds, n) for n in ("safetensors", "tensorizer", "runai", "streamerd")) if key]
    plots.bars(folder / f"whitepaper-{name}-loaders.svg", NAMES[name], {label(k): spread(rounds, k) for k in found}, note)  # type: ignore[misc]
    compared = [
        [label(key), published(name, key), f"{spread(rounds, key)[0]:.2f}", f"{gib / spread(rounds, key)[0]:.2f}"]  # type: ignore[index]
        for key in found
    ]
    return "\n".join([
        f"## {NAMES[name]}\n",
        f"![seconds by concurrency](whitepaper-{name}-concurrency.svg)\n",
        f"![seconds of each loader at its best](whitepaper-{name}-loaders.svg)\n",
        table(["loader, best concurrency", "published", "here, s", "here, GiB/s"], compared) + "\n",
        table(head, rows) + "\n",
        targets(name, rounds, gib) + "\n",
    ])  # fmt: skip


def published(name: str, key: str) -> str:
    row = PUBLISHED.get(name.partition("_")[0], {}).get(key.partition("/")[0])
    if row is None or name == "s3_20ms":
        return "-"
    seconds, concurrency = row
    at = f" at {concurrency}" if concurrency else ""
    return f"{seconds:.2f} s{at}, {PUBLISHED_GIB / seconds:.2f} GiB/s"


def ratio(a: plots.Spread | None, b: plots.Spread | None) -> float | None:
    return a[0] / b[0] if a and b else None


def targets(name: str, rounds: list[Row], gib: float) -> str:
    """Figures against their targets, each with its verdict."""
    lines = []

    def judge(what: str, value: float | None, target: float, least: bool = True) -> None:
        if value is None:
            lines.append([what, "not measured", f"{'>=' if least else '<='} {target}", ""])
        else:
            met = value >= target if least else value <= target
            lines.append([what, f"{value:.2f}", f"{'>=' if least else '<='} {target}", "" if met else "missed"])

    peers = [key for key in (best(rounds, n) for n in ("safetensors", "tensorizer", "runai")) if key]
    peer = min(peers, key=lambda key: spread(rounds, key)[0]) if peers else None  # type: ignore[index]
    ours = best(rounds, "streamerd")
    if not peer or not ours:
        return ""
    seconds, cpu = (lambda key: spread(rounds, key)), (lambda key: spread(rounds, key, "cpu"))
    if name == "gp3":
        for n in (4, 8, 16):
            row = seconds(f"streamerd/{n}")
            judge(f"concurrency {n}, of the disk's limit", gib / row[0] / GP3_LIMIT if row else None, 0.97)
        judge(f"CPU time, of the best peer's ({label(peer)})", ratio(cpu(ours), cpu(peer)), 0.5, least=False)
    elif name == "io2":
        judge(f"rate, of the best peer's ({label(peer)})", ratio(seconds(peer), seconds(ours)), 1.0)
        judge("CPU time, of that", ratio(cpu(ours), cpu(peer)), 0.7, least=False)
        judge("rate at the default (16), of the best concurrency", ratio(seconds(ours), seconds("streamerd/16")), 0.95)
    else:
        judge(f"rate, of the best peer's ({label(peer)})", ratio(seconds(peer), seconds(ours)), 1.8)
        judge("rate, of curl's", ratio(seconds("curl"), seconds(ours)), 0.9)
    return table(["streamerd", "value", "target", ""], lines)


def vllm_section(data: Row, folder: Path, note: str) -> str:
    storages: dict[str, dict[str, Row]] = {}
    rows, lines = [], []
    for storage in ("gp3", "io2", "s3"):
        rounds = rounds_of(data, f"vllm {storage}")
        for key in dict.fromkeys(key for r in rounds for key in r):
            if spread(rounds, key) is None:
                rows.append([storage, key, "does not start", "", "", "", "-"])
                continue
            parts = {part: spread(rounds, key, part) for part in ("seconds", "start", "weights", "rest")}
            storages.setdefault(storage, {})[key] = {part: value[0] for part, value in parts.items() if value}
            there = PUBLISHED["vllm"].get((storage, key))
            rows.append([storage, key, *(cell(parts[p]) for p in ("seconds", "start", "weights", "rest")), f"{there} s" if there else "-"])
        measured = storages.get(storage, {})
        peers = [key for key in ("auto", "runai", "tensorizer") if key in measured]
        if peers and "streamerd" in measured:
            peer = min(peers, key=lambda key: measured[key]["seconds"])
            first = measured["streamerd"]["seconds"] / measured[peer]["seconds"]
            lines.append([f"{storage}: first engine, of the best peer's ({peer})", f"{first:.2f}", "<= 1.0", "" if first <= 1 else "missed"])
            weights = measured["streamerd, second engine"]["weights"] / measured[peer]["weights"]
            lines.append([f"{storage}: second engine's weights, of that peer's", f"{weights:.2f}", "<= 0.2", "" if weights <= 0.2 else "missed"])
    if not rows:
        return "## Experiment 4: vLLM, from exec to ready\n\nNot measured.\n"
    plots.ready(folder / "whitepaper-vllm.svg", "vLLM on a CPU, from exec to ready for a request", storages, note)
    head = ["storage", "loader", "ready, s", "start", "weights", "rest", "published, ready"]
    return "\n".join([
        "## Experiment 4: vLLM, from exec to ready\n",
        "![seconds until ready](whitepaper-vllm.svg)\n",
        table(head, rows) + "\n",
        table(["streamerd", "value", "target", ""], lines) + "\n",
    ])  # fmt: skip


def daemon_section(data: Row, size: int) -> str:
    rounds = rounds_of(data, "daemon")
    if not rounds:
        return "## What only a daemon has\n\nNot measured.\n"
    rows = []
    for key in rounds[0]:
        own = spread(rounds, key, "own", 1 / (1 << 20))
        read = spread(rounds, key, "read", 1 / GIB)
        rows.append([key, cell(spread(rounds, key), 3), "-" if own is None else f"{own[0]:.1f}", "-" if read is None else f"{read[0]:.2f}"])
    return f"## What only a daemon has\n\n{table(['case', 'seconds', 'own memory, MiB', 'read, GiB'], rows)}\n"


def scaling_section(data: Row, folder: Path, note: str) -> str:
    rounds = rounds_of(data, "scaling")
    if not rounds:
        return "## Scaling\n\nNot measured.\n"
    panels: dict[str, dict[str, dict[float, plots.Spread]]] = {}
    rows = []
    for what in ("bytes", "tensors", "files", "loads"):
        panels[what] = {"cold": {}, "warm": {}}
        for key in rounds[0]:
            kind, count, temperature = key.split("/")
            if kind == what:
                gib = rounds[0][key]["bytes"] / GIB
                seconds = spread(rounds, key, "seconds", 1 / gib)
                cpu = spread(rounds, key, "cpu", 1 / gib)
                x = gib if what == "bytes" else float(count)
                panels[what][temperature][x] = seconds  # type: ignore[assignment]
                rows.append([what, f"{gib:.2f} GiB" if what == "bytes" else count, temperature, cell(seconds), cell(cpu)])
    titles = {"bytes": "GiB, 300 tensors", "tensors": "tensors, 1 GiB", "files": "files, 2 GiB", "loads": "loads at once, 0.5 GiB each"}
    plots.scaling(folder / "whitepaper-scaling.svg", {titles[what]: kinds for what, kinds in panels.items()}, note)
    return "\n".join([
        "## Scaling\n",
        "![cost per GiB](whitepaper-scaling.svg)\n",
        table(["of", "value", "page cache", "s per GiB", "CPU-s per GiB"], rows) + "\n",
    ])  # fmt: skip


def write(data: Row, folder: Path, machine: str, size: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    date = time.strftime("%Y-%m-%d")
    count = max(len(rounds_of(data, name)) for name in ("gp3", "io2", "s3"))
    rounds = "one round" if count == 1 else f"medians of {count} rounds, with minimum and maximum"
    note = f"{machine}; {date}; {rounds}"
    sections = [storage_section(name, data, size, folder, note) for name in NAMES]
    sections += [vllm_section(data, folder, note), daemon_section(data, size), scaling_section(data, folder, note)]
    text = (HERE / "report.md.in").read_text().format(
        date=date,
        machine=machine,
        rounds=rounds,
        gib=f"{size / GIB:g}",
        versions=", ".join(f"{name} {version}" for name, version in data["versions"].items()),
        sections="\n".join(sections),
    )  # fmt: skip
    (folder / "whitepaper.md").write_text(text)
    print(f"wrote {folder / 'whitepaper.md'} and its plots")
