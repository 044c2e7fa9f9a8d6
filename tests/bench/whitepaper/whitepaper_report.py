# SPDX-License-Identifier: Apache-2.0
"""docs/benchmarks/whitepaper.md and its plots, from the results of the steps."""

from __future__ import annotations

import json
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
FLAT = 1.25


def rounds_of(data: Row, prefix: str) -> list[Row]:
    return [data[key] for key in sorted(data) if key.rpartition(" ")[0] == prefix and key.rpartition(" ")[2].isdigit()]


def spread(rounds: list[Row], key: str, field: str = "seconds", scale: float = 1) -> plots.Spread | None:
    values = [r[key][field] * scale for r in rounds if key in r and field in r[key]]
    return (median(values), min(values), max(values)) if values else None


def table(head: list[str], rows: list[list[str]]) -> str:
    escaped = [[text.replace("|", "\\|").replace("\n", " ") for text in line] for line in [head, ["---"] * len(head), *rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in escaped)


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


class Verdicts:
    """Figures against their targets. `losses`: what missed its target, or is slower than a peer, by the key of its reason."""

    def __init__(self) -> None:
        self.losses: dict[str, list[str]] = {}
        self._rows: list[list[str]] = []

    def loss(self, reason: str, what: str) -> None:
        self.losses.setdefault(reason, []).append(what)

    def judge(self, reason: str, what: str, value: float | None, target: float, least: bool = True) -> None:
        bound = f"{'>=' if least else '<='} {target}"
        if value is None:
            self._rows.append([what, "not measured", bound, ""])
            return
        met = value >= target if least else value <= target
        self._rows.append([what, f"{value:.2f}", bound, "met" if met else "missed"])
        if not met:
            self.loss(reason, f"{what}: {value:.2f}, target {bound}")

    def table(self) -> str:
        """Of what was judged since the last call."""
        rows, self._rows = self._rows, []
        return table(["streamerd", "value", "target", ""], rows) if rows else ""


def storage_section(name: str, data: Row, size: int, folder: Path, note: str, verdicts: Verdicts) -> str:
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
    targets(name, rounds, gib, verdicts)
    held = {True: "The disk gives more, and is held to 4,000 MiB/s.\n", False: "The disk gives less than 4,000 MiB/s: it is not held.\n"}
    return "\n".join([
        f"## {NAMES[name]}\n",
        *([held[data["io2 held"]]] if name == "io2" and "io2 held" in data else []),
        f"![seconds by concurrency](whitepaper-{name}-concurrency.svg)\n",
        f"![seconds of each loader at its best](whitepaper-{name}-loaders.svg)\n",
        table(["loader, best concurrency", "published", "here, s", "here, GiB/s"], compared) + "\n",
        table(head, rows) + "\n",
        verdicts.table() + "\n",
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


PEERS = ("safetensors", "tensorizer", "runai")


def fastest(rounds: list[Row], keys: list[str], field: str = "seconds") -> str | None:
    found = {key: value[0] for key in keys if (value := spread(rounds, key, field))}
    return min(found, key=found.__getitem__) if found else None


def targets(name: str, rounds: list[Row], gib: float, verdicts: Verdicts) -> None:
    best_of = {loader: key for loader in (*PEERS, "streamerd") if (key := best(rounds, loader))}
    ours = best_of.pop("streamerd", None)
    peer = fastest(rounds, list(best_of.values()))
    if not peer or not ours:
        return
    seconds, cpu = (lambda key: spread(rounds, key)), (lambda key: spread(rounds, key, "cpu"))
    judge, title = verdicts.judge, name.replace("_", ", ")
    if name == "gp3":
        for n in (4, 8, 16):
            row = seconds(f"streamerd/{n}")
            judge("gp3 limit", f"{title}: rate at {n}, of the disk's limit", gib / row[0] / GP3_LIMIT if row else None, 0.97)
            other = fastest(rounds, [f"{loader}/{n}" for loader in PEERS])
            if other:
                value = ratio(seconds(other), seconds(f"streamerd/{n}"))
                judge("gp3 rate", f"{title}: rate at {n}, of the best peer's there ({label(other)})", value, 0.97)
        judge("gp3 cpu", f"{title}: CPU time, of the best peer's ({label(peer)})", ratio(cpu(ours), cpu(peer)), 0.5, least=False)
    elif name == "io2":
        judge("io2 rate", f"{title}: rate, of the best peer's ({label(peer)})", ratio(seconds(peer), seconds(ours)), 1.0)
        judge("io2 cpu", f"{title}: CPU time, of that peer's", ratio(cpu(ours), cpu(peer)), 0.7, least=False)
        judge("io2 default", f"{title}: rate at the default (16), of the best concurrency's", ratio(seconds(ours), seconds("streamerd/16")), 0.95)
    else:
        judge(f"{name} rate", f"{title}: rate, of the best peer's ({label(peer)})", ratio(seconds(peer), seconds(ours)), 1.8)
        judge(f"{name} curl", f"{title}: rate, of curl's best", ratio(seconds("curl"), seconds(ours)), 0.9)
    others = [key for r in rounds for key in r if key.partition("/")[0] in PEERS]
    for field, what in (("seconds", "all tensors"), ("first", "the first tensor"), ("cpu", "CPU time")):
        theirs, mine = fastest(rounds, others, field), fastest(rounds, [key for r in rounds for key in r if key.startswith("streamerd/")], field)
        value = ratio(spread(rounds, mine or "", field), spread(rounds, theirs or "", field))
        if value and value > 1:
            verdicts.loss(f"{name} {field}", f"{title}: {label(theirs or '')} needs {1 / value:.2f} of the time of {label(mine or '')} for {what}")


def vllm_section(data: Row, folder: Path, note: str, verdicts: Verdicts) -> str:
    storages: dict[str, dict[str, Row]] = {}
    rows = []
    for storage in ("gp3", "io2", "s3"):
        rounds = rounds_of(data, f"vllm {storage}")
        if not rounds:
            rows.append([storage, "all", f"not measured: {data.get(f'vllm {storage} unavailable', 'not run')}", "", "", "", "-"])
        for key in dict.fromkeys(key for r in rounds for key in r):
            if spread(rounds, key) is None:
                why = next(r[key]["failed"] for r in rounds if "failed" in r.get(key, {}))
                rows.append([storage, key, f"does not start: {why}", "", "", "", "-"])
                continue
            parts = {part: spread(rounds, key, part) for part in ("seconds", "start", "weights", "rest")}
            storages.setdefault(storage, {})[key] = {part: value[0] for part, value in parts.items() if value}
            there = PUBLISHED["vllm"].get((storage, key))
            rows.append([storage, key, *(cell(parts[p]) for p in ("seconds", "start", "weights", "rest")), f"{there} s" if there else "-"])
        measured = storages.get(storage, {})
        peers = [key for key in ("auto", "runai", "tensorizer") if key in measured]
        if peers:
            peer = min(peers, key=lambda key: measured[key]["seconds"])
            of = lambda key, part: measured[key][part] / measured[peer][part] if key in measured else None  # noqa: E731, B023
            verdicts.judge(
                f"vllm {storage}",
                f"vLLM, {storage}: first engine until ready, of the best peer's ({peer})",
                of("streamerd", "seconds"),
                1.0,
                least=False,
            )
            what = f"vLLM, {storage}: second engine's time for weights, of that peer's"
            verdicts.judge("vllm published", f"{what}, published", of("streamerd, published, second engine", "weights"), 0.2, least=False)
            verdicts.judge("vllm alias", f"{what}, default (alias)", of("streamerd, second engine", "weights"), 0.2, least=False)
    if storages:
        plots.ready(folder / "whitepaper-vllm.svg", "vLLM on a CPU, from exec to ready for a request", storages, note)
    head = ["storage", "loader", "ready, s", "start", "weights", "rest", "published, ready"]
    return "\n".join([
        "## Experiment 4: vLLM, from exec to ready\n",
        *(["![seconds until ready](whitepaper-vllm.svg)\n"] if storages else []),
        table(head, rows) + "\n",
        verdicts.table() + "\n",
    ])  # fmt: skip


def daemon_section(data: Row, size: int) -> str:
    rounds = rounds_of(data, "daemon")
    if not rounds:
        return "## What only a daemon has\n\nNot measured.\n"
    rows = []
    for key in dict.fromkeys(key for r in rounds for key in r):
        own = spread(rounds, key, "own", 1 / (1 << 20))
        read = spread(rounds, key, "read", 1 / GIB)
        rows.append([key, cell(spread(rounds, key), 3), "-" if own is None else f"{own[0]:.1f}", "-" if read is None else f"{read[0]:.2f}"])
    return f"## What only a daemon has\n\n{table(['case', 'seconds', 'own memory, MiB', 'read, GiB'], rows)}\n"


def scaling_section(data: Row, folder: Path, note: str, verdicts: Verdicts) -> str:
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
    for what, kinds in panels.items():
        for temperature, points in kinds.items():
            costs = {x: value[0] for x, value in points.items()}
            if len(costs) > 1:
                worst = max(costs, key=costs.__getitem__)
                key = f"scaling {what} {temperature}"
                verdicts.judge(
                    key,
                    f"{what}, {temperature}: greatest cost per GiB (at {worst:,g}), of the median",
                    costs[worst] / median(costs.values()),
                    FLAT,
                    least=False,
                )
    titles = {"bytes": "GiB, 300 tensors", "tensors": "tensors, 1 GiB", "files": "files, 2 GiB", "loads": "loads at once, 0.5 GiB each"}
    plots.scaling(folder / "whitepaper-scaling.svg", {titles[what]: kinds for what, kinds in panels.items()}, note)
    return "\n".join([
        "## Scaling\n",
        "![cost per GiB](whitepaper-scaling.svg)\n",
        f"Flat means: no value costs more than {FLAT} times the median of its row.\n",
        verdicts.table() + "\n",
        table(["of", "value", "page cache", "s per GiB", "CPU-s per GiB"], rows) + "\n",
    ])  # fmt: skip


def slower_section(verdicts: Verdicts) -> str:
    """The losses with their reasons from reasons.json: an object of texts by the loss's key."""
    reasons = json.loads((HERE / "reasons.json").read_text())
    lines = []
    for key, losses in verdicts.losses.items():
        lines += [f"- {loss}." for loss in losses] + [f"\n  {reasons.get(key, 'Not explained.')}\n"]
    return "## Where streamerd is slower, and why\n\n" + ("\n".join(lines) or "Nowhere.\n")


def write(data: Row, folder: Path, machine: str, settings: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    date, size = time.strftime("%Y-%m-%d"), data["bytes"]
    counts = {name: len(rounds_of(data, name)) for name in (*NAMES, "vllm gp3", "vllm io2", "vllm s3", "daemon", "scaling")}
    several = ", ".join(f"{count} of {name.replace('_', ' ')}" for name, count in counts.items())
    rounds = "medians of the rounds, with minimum and maximum"
    note, verdicts = f"{machine}; {date}; medians", Verdicts()
    sections = [storage_section(name, data, size, folder, note, verdicts) for name in NAMES]
    sections += [vllm_section(data, folder, note, verdicts), daemon_section(data, size), scaling_section(data, folder, note, verdicts)]
    sections += [slower_section(verdicts)]
    found = [f"{case}: {what}" for case, what in data.get("wrong", {}).items() if what]
    text = (HERE / "report.md.in").read_text().format(
        date=date,
        machine=machine + (f". {data['note']}" if "note" in data else ""),
        rounds=f"{rounds} ({several})",
        gib=f"{size / GIB:.2f}",
        engine_gib=f"{data['engine bytes'] / GIB:.2f}",
        settings=settings,
        versions=", ".join(f"{name} {version}" for name, version in data["versions"].items()),
        same=" ".join(found) or "All loaders gave the same contents, from the disk and from S3, and all engines the same tokens.",
        sections="\n".join(sections),
    )  # fmt: skip
    (folder / "whitepaper.md").write_text(text)
    print(f"wrote {folder / 'whitepaper.md'} and its plots")
