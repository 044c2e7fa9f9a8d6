# SPDX-License-Identifier: Apache-2.0
"""whitepaper.py STEP...: the experiments of Run:ai's whitepaper, repeated here with streamerd; `make bench-whitepaper`.

    prepare     the files, and their contents compared between the loaders
    gp3 N       experiment 1: a disk held to 1,000 MiB/s and 16,000 requests/s, by loader and concurrency
    io2 N       experiment 2: the disk as it is
    s3 N        experiment 3: radosgw on loopback, direct and with 20 ms before each answer
    vllm N      experiment 4: an engine from exec to ready, on each of these
    daemon N    what only a daemon has: more processes, a restarted engine, a restarted daemon
    scaling N   streamerd alone: bytes, tensors, files, loads at once
    report      docs/benchmarks/whitepaper.md and its plots

N is a round, 1 to 3; loaders take turns in a round. Results of all steps are kept in BUILD/whitepaper/results.json, so
each step may run on its own and be repeated. Each load starts cold: nothing of the file is in the page cache. Needs 16 GiB
of disk, 16 GiB of memory, and root for the limits of block I/O: without root `gp3` is named as not measured.
WHITEPAPER_MIB=256 tries the steps with small files in a folder of its own, where the report goes as well.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import files  # noqa: E402
import machine  # noqa: E402
from machine import GIB, MIB, Throttle, Unavailable  # noqa: E402
from actors import BUILD, ROOT, Daemon, DelayProxy, Gateway, Loader, ManagedDaemon, ReadyEngine  # noqa: E402

from harness.processes import Failure  # noqa: E402
from harness.results import Results  # noqa: E402
from harness.results import machine as describe_machine  # noqa: E402

FULL = 2 * GIB
BYTES = int(os.environ.get("WHITEPAPER_MIB", FULL >> 20)) << 20
FOLDER = BUILD / ("whitepaper" if BYTES == FULL else f"whitepaper-{BYTES >> 20}")
REPORTS = ROOT / "docs/benchmarks" if BYTES == FULL else FOLDER
MODEL = FOLDER / "llama.safetensors"
TENSORIZED = FOLDER / "llama.tensors"
ENGINE_MODEL = FOLDER / "engine" / "checkpoint"
ENGINE_TENSORS = FOLDER / "engine" / "engine.tensors"
ROUNDS = 3

GP3 = (1000 * MIB, 16000)  # bytes and requests per second: AWS's maximum for a gp3 volume
IO2 = (4000 * MIB, 256000)  # an io2 Block Express volume's
DELAY_MS = 20
DISK_CONCURRENCY = (1, 4, 8, 16)
S3_CONCURRENCY = (4, 16, 32, 64)
CURLS = (1, 2, 4, 8, 16)


results = Results(FOLDER / "results.json")
keep = results.keep


def say(round_: str, what: str, row: dict[str, Any], size: int = 0) -> None:
    rate = f", {size / GIB / row['seconds']:.2f} GiB/s" if size else ""
    print(f"{round_}: {what}: {row['seconds']:.2f} s{rate}", flush=True)


# ---- one load ----


def load(
    loader: str,
    concurrency: int,
    source: str,
    cached: tuple[Path, ...] = (),
    throttle: Throttle | None = None,
    environment: dict[str, str] | None = None,
    checksum: bool = False,
) -> dict[str, Any]:
    """A load of `source` in a fresh process, and a fresh daemon for streamerd's. `cached` is dropped from the page cache."""
    arguments: dict[str, Any] = {"path": source}
    with ExitStack() as stack:
        daemon = None
        if loader == "streamerd":
            variables = {**(environment or {}), "RUNAI_STREAMER_CONCURRENCY": str(concurrency)}
            daemon = stack.enter_context(Daemon(FOLDER / "daemon", FOLDER, environment=variables))
            arguments["socket"] = daemon.socket
        elif loader != "safetensors":
            arguments["concurrency"] = concurrency
        process = stack.enter_context(Loader(loader, arguments, environment))
        for pid in [process.pid] + ([daemon.pid] if daemon else []):
            if throttle:
                throttle.add(pid)
        machine.drop_from_cache(*cached)
        with machine.touched_memory(BYTES + GIB):
            pass
        row = process.load(daemon)
        if checksum:
            row["checksum"] = process.checksum()
        return row


# ---- experiments 1 and 2: disks ----


def disk(name: str, round_: str, limit: tuple[int, int] | None) -> None:
    absent = files.absent()
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        throttle = stack.enter_context(Throttle(MODEL, *limit)) if limit else None
        machine.drop_from_cache(MODEL)
        rows["fio"] = {"seconds": MODEL.stat().st_size / GIB / machine.fio(MODEL, throttle)}
        say(round_, f"{name}, fio", rows["fio"], MODEL.stat().st_size)
        rows["safetensors"] = load("safetensors", 1, str(MODEL), (MODEL,), throttle)
        say(round_, f"{name}, safetensors", rows["safetensors"], BYTES)
        for concurrency in DISK_CONCURRENCY:
            for loader, path in (("runai", MODEL), ("tensorizer", TENSORIZED), ("streamerd", MODEL)):
                if loader not in absent:
                    key = f"{loader}/{concurrency}"
                    rows[key] = load(loader, concurrency, str(path), (path,), throttle)
                    say(round_, f"{name}, {key}", rows[key], BYTES)
    keep(f"{name} {round_}", rows)


def gp3(round_: str) -> None:
    try:
        disk("gp3", round_, GP3)
    except Unavailable as e:
        print(f"gp3: not measured: {e}")
        keep("gp3 unavailable", str(e))


def io2(round_: str) -> None:
    """Held to an io2 volume's limit only where the disk gives more."""
    faster = machine.fio(MODEL, None) * GIB > IO2[0]
    disk("io2", round_, IO2 if faster and os.geteuid() == 0 else None)


# ---- experiment 3: S3 ----


def fill(gateway: Gateway) -> None:
    gateway.put("models", MODEL.name, MODEL)
    if "tensorizer" not in files.absent():
        gateway.put("tensors", TENSORIZED.name, TENSORIZED)


def s3(round_: str) -> None:
    absent = files.absent()
    with Gateway() as gateway:
        fill(gateway)
        for name, delay in (("s3", 0), (f"s3_{DELAY_MS}ms", DELAY_MS)):
            rows: dict[str, Any] = {}
            with ExitStack() as stack:
                url = gateway.url
                if delay:
                    url = stack.enter_context(DelayProxy(int(gateway.url.rpartition(":")[2]), delay)).url
                environment = {**gateway.environment, "AWS_ENDPOINT_URL": url, "RUNAI_STREAMER_S3_ENDPOINT": url}
                signed = files.presigned(url, "models", MODEL.name)
                rows["curl"] = {"seconds": MODEL.stat().st_size / GIB / max(machine.curl(signed, MODEL.stat().st_size, n) for n in CURLS)}
                say(round_, f"{name}, curl", rows["curl"], BYTES)
                for concurrency in S3_CONCURRENCY:
                    for loader, source in (
                        ("runai", f"s3://models/{MODEL.name}"),
                        ("tensorizer", f"s3://tensors/{TENSORIZED.name}"),
                        ("streamerd", f"s3://models/{MODEL.name}"),
                    ):
                        if loader in absent or (loader == "runai" and "runai-s3" in absent):
                            continue
                        key = f"{loader}/{concurrency}"
                        try:
                            rows[key] = load(loader, concurrency, source, environment=environment)
                        except Failure as e:
                            rows[key] = {"failed": str(e)}
                            print(f"{round_}: {name}, {key}: {e}", flush=True)
                        else:
                            say(round_, f"{name}, {key}", rows[key], BYTES)
            keep(f"{name} {round_}", rows)


# ---- experiment 4: vLLM ----

LOCAL_FORMATS = {"auto": "auto", "runai": "runai_streamer", "tensorizer": "tensorizer", "streamerd": "streamerd"}


def engine_row(loader: str, model: str, environment: dict[str, str], daemon: Daemon | None, throttle: Throttle | None) -> dict[str, Any]:
    extra: dict[str, Any] = {"socket": daemon.socket} if daemon else {}
    if loader == "tensorizer":
        extra = {"tensorizer_uri": f"s3://tensors/{ENGINE_TENSORS.name}" if "://" in model else str(ENGINE_TENSORS)}
    request = {"model": model, "load_format": LOCAL_FORMATS[loader], "extra": extra}
    with ReadyEngine(FOLDER / "engine.log", request, environment, throttle) as engine:
        return engine.wait()


def engines(name: str, round_: str, model: str, environment: dict[str, str], throttle: Throttle | None) -> None:
    """Each loader's engine, cold, and streamerd's second one."""
    rows: dict[str, Any] = {}
    paths = (*ENGINE_MODEL.glob("*.safetensors"), *ENGINE_MODEL.parent.glob("*.tensors"))
    for loader in LOCAL_FORMATS:
        if (loader == "auto" and "://" in model) or loader in files.absent():
            continue
        with ExitStack() as stack:
            daemon = stack.enter_context(Daemon(FOLDER / "daemon", FOLDER, environment=environment)) if loader == "streamerd" else None
            if daemon and throttle:
                throttle.add(daemon.pid)
            for key in ("streamerd", "streamerd, second engine") if daemon else (loader,):
                machine.drop_from_cache(*paths)
                try:
                    rows[key] = engine_row(loader, model, environment, daemon, throttle)
                except Failure as e:
                    rows[key] = {"failed": str(e)}
                    print(f"{round_}: vllm on {name}, {key}: {e}", flush=True)
                else:
                    say(round_, f"vllm on {name}, {key}", rows[key])
    tokens = {tuple(row["tokens"]) for row in rows.values() if "tokens" in row}
    if len(tokens) > 1:
        raise SystemExit(f"the engines do not generate the same tokens: {rows}")
    keep(f"vllm {name} {round_}", rows)


def vllm(round_: str) -> None:
    try:
        with Throttle(next(ENGINE_MODEL.glob("*.safetensors")), *GP3) as throttle:
            engines("gp3", round_, str(ENGINE_MODEL), {}, throttle)
    except Unavailable as e:
        print(f"vllm on gp3: not measured: {e}")
    engines("io2", round_, str(ENGINE_MODEL), {}, None)
    with Gateway() as gateway:
        for file in ENGINE_MODEL.iterdir():
            gateway.put("models", f"llama/{file.name}", file)
        if ENGINE_TENSORS.exists():
            gateway.put("tensors", ENGINE_TENSORS.name, ENGINE_TENSORS)
        environment = {**gateway.environment, "RUNAI_STREAMER_S3_ENDPOINT": gateway.url}
        engines("s3", round_, "s3://models/llama/", environment, None)


# ---- what only a daemon has ----


def daemon(round_: str) -> None:
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        server = stack.enter_context(ManagedDaemon(FOLDER / "managed", FOLDER))
        machine.drop_from_cache(MODEL)
        for i in range(1, 11):
            with machine.touched_memory(BYTES + GIB if i == 1 else GIB):
                pass
            process = stack.enter_context(Loader("streamerd", {"path": str(MODEL), "socket": server.socket}))
            before = machine.anonymous_and_dirty(process.pid)
            row = process.load(server)
            row["own"] = machine.anonymous_and_dirty(process.pid) - before
            if i in (1, 2, 3, 10):
                rows[f"process {i}"] = row
                say(round_, f"process {i}", row, BYTES)
        before = process.checksum()
        rows["daemon restarted"] = {"seconds": server.restart()}
        say(round_, "daemon killed until the next serves", rows["daemon restarted"])
        if process.checksum() != before:
            raise SystemExit("a process saw other contents after the daemon's restart")
        with Loader("streamerd", {"path": str(MODEL), "socket": server.socket}) as another:
            rows["process after the restart"] = row = another.load(server)
            say(round_, "process after the restart", row, BYTES)
            if row["read"] > MIB:
                raise SystemExit(f"the daemon read {row['read']} bytes again after its restart")
    with Daemon(FOLDER / "daemon", FOLDER) as plain:
        for i, key in enumerate(("engine", "engine after a crash")):
            if i == 0:
                machine.drop_from_cache(*ENGINE_MODEL.glob("*.safetensors"))
            rows[key] = engine_row("streamerd", str(ENGINE_MODEL), {}, plain, None)  # killed at the end of the context
            say(round_, key, rows[key])
    keep(f"daemon {round_}", rows)


# ---- scaling ----

SIZES = (GIB // 4, GIB // 2, GIB, 2 * GIB, 4 * GIB, 8 * GIB)
TENSORS = (10, 100, 1000, 10000, 100000)
FILES = (1, 4, 16, 64)
LOADS = (1, 2, 4, 8)


def timed_load(folder: Path, paths: list[Path], cold: bool, single_model: bool = True) -> dict[str, Any]:
    """By streamerctl: seconds until the last load is ready, and the daemon's CPU seconds."""
    from concurrent.futures import ThreadPoolExecutor

    (machine.drop_from_cache if cold else machine.read_into_cache)(*paths)
    with Daemon(FOLDER / "daemon", FOLDER) as server:
        sources = [str(folder)] if single_model else [str(path) for path in paths]
        with machine.touched_memory(sum(path.stat().st_size for path in paths) + GIB // 2):
            pass
        cpu, began = machine.cpu_seconds(server.pid), time.perf_counter()
        with ThreadPoolExecutor(len(sources)) as pool:
            list(pool.map(lambda n: server.ctl("load", sources[n], "--name", f"m{n}", "--no-progress"), range(len(sources))))
        seconds = time.perf_counter() - began
        return {"seconds": seconds, "cpu": machine.cpu_seconds(server.pid) - cpu, "bytes": sum(p.stat().st_size for p in paths)}


def scaling(round_: str) -> None:
    rows: dict[str, Any] = {}
    factor = FULL // BYTES
    cases = [(f"bytes/{size}", [size // factor], 300, True) for size in SIZES]
    cases += [(f"tensors/{count}", [GIB // factor], count, True) for count in TENSORS]
    cases += [(f"files/{count}", [2 * GIB // factor // count] * count, max(300 // count, 4), True) for count in FILES]
    cases += [(f"loads/{count}", [GIB // 2 // factor] * count, 100, False) for count in LOADS]
    for key, sizes, tensors, single in cases:
        folder = FOLDER / "scaling"
        paths = files.write_plain(folder, sizes, tensors)
        for kind in ("cold", "warm"):
            rows[f"{key}/{kind}"] = row = timed_load(folder, paths, kind == "cold", single)
            say(round_, f"{key}, {kind}", row, row["bytes"])
        shutil.rmtree(folder)
    keep(f"scaling {round_}", rows)


# ---- all ----


def prepare() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    files.write(FOLDER, MODEL, TENSORIZED, BYTES)
    keep("versions", files.versions())
    sums = {}
    for loader, path in (("safetensors", MODEL), ("runai", MODEL), ("tensorizer", TENSORIZED), ("streamerd", MODEL)):
        if loader not in files.absent():
            sums[loader] = load(loader, 8, str(path), checksum=True)["checksum"]
    if len(set(sums.values())) != 1:
        raise SystemExit(f"the loaders do not give the same contents: {sums}")
    keep("checksums", sums)


def report() -> None:
    import whitepaper_report

    whitepaper_report.write(results.read(), REPORTS, describe_machine(), BYTES)


STEPS = {f.__name__: f for f in (prepare, gp3, io2, s3, vllm, daemon, scaling, report)}

if __name__ == "__main__":
    every = [f"{step} {n}" for n in range(1, ROUNDS + 1) for step in ("gp3", "io2", "s3", "vllm", "daemon", "scaling")]
    for step in sys.argv[1:] or ["prepare", *every, "report"]:
        step_name, _, argument = step.partition(" ")
        STEPS[step_name](*([argument] if argument else []))
