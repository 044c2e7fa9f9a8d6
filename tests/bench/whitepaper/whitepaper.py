# SPDX-License-Identifier: Apache-2.0
"""whitepaper.py STEP...: the experiments of Run:ai's whitepaper, repeated here with streamerd; `make bench-whitepaper`.

    prepare     the files, and their contents compared between the loaders
    gp3 N       experiment 1: a disk held to 1,000 MiB/s and 16,000 requests/s, by loader and concurrency
    io2 N       experiment 2: the disk as it is
    s3 N        experiment 3: radosgw on loopback, direct and with 20 ms before each answer; "s3 N s3": direct only
    vllm N      experiment 4: an engine from exec to ready, on each of these; "vllm N s3": on that one only
    daemon N    what only a daemon has: more processes, a restarted engine, a restarted daemon
    scaling N   streamerd alone: bytes, tensors, files, loads at once
    note TEXT   a remark on the machine for the report
    report      docs/benchmarks/whitepaper.md and its plots; the reasons for losses come from reasons.json

A step is one argument ("gp3 1"). N is a round, 1 to 3; loaders take turns in a round. Results of all steps are kept in
BUILD/whitepaper/results.json, so each step may run on its own and be repeated. Each load starts cold: nothing of the file is in
the page cache. Needs 16 GiB of disk, 16 GiB of memory, and root for the limits of block I/O: what cannot be measured is named.
A loader that fails has a row that says why. WHITEPAPER_MIB=256 (64 to 3072) does the same with files of another size, in
a folder of its own, where the report goes as well.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
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

FULL = GIB
BYTES = int(os.environ.get("WHITEPAPER_MIB", FULL >> 20)) << 20
if not 64 * MIB <= BYTES <= 3 * GIB:  # radosgw.sh has 8 GiB, for two copies
    sys.exit("WHITEPAPER_MIB: not within 64 to 3072")
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
S3_STORES = ("s3", f"s3_{DELAY_MS}ms")
DISK_CONCURRENCY = (1, 4, 8, 16)
S3_CONCURRENCY = (4, 16, 32, 64)
CURLS = (1, 2, 4, 8, 16)

SETTINGS = (
    "Run:ai with a buffer for the whole file (`RUNAI_STREAMER_MEMORY_LIMIT=-1`); tensorizer's concurrency is its number of readers, "
    "from its own file format; streamerd (host device, no settings) but `io.concurrency`, where a row has one"
)

results = Results(FOLDER / "results.json")
keep = results.keep
failures: list[str] = []


def say(round_: str, what: str, row: dict[str, Any], size: int = 0) -> None:
    rate = f", {size / GIB / row['seconds']:.2f} GiB/s" if size else ""
    print(f"{round_}: {what}: {row['seconds']:.2f} s{rate}", flush=True)


def attempt(rows: dict[str, Any], round_: str, where: str, key: str, run: Callable[[], dict[str, Any]], size: int = 0) -> None:
    """A row: what `run` measured, or why it failed."""
    try:
        rows[key] = run()
    except (Failure, Unavailable) as e:
        rows[key] = {"failed": str(e)}
        print(f"{round_}: {where}, {key}: {e}", flush=True)
    else:
        say(round_, f"{where}, {key}", rows[key], size)


def unavailable(name: str, error: Unavailable) -> None:
    print(f"{name}: not measured: {error}", flush=True)
    keep(f"{name} unavailable", str(error))


def wrong(case: str, what: str | None) -> None:
    """What is wrong with the results of a case, or None. The report and the exit code tell; the steps go on."""
    keep("wrong", {**results.read().get("wrong", {}), case: what})
    if what:
        print(f"{case}: WRONG: {what}", flush=True)
        failures.append(what)


def compare_checksums(case: str, sums: dict[str, int]) -> None:
    """Fails the case if the checksums differ from each other or from the local file's."""
    expected = set(results.read().get("checksums", {}).values())
    same = len(expected | set(sums.values())) <= 1
    wrong(case, None if same else f"the loaders do not give the same contents: {sums}, from the disk {expected}")


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
    absent, size = files.absent(), MODEL.stat().st_size
    rows: dict[str, Any] = {}
    with ExitStack() as stack:
        throttle = stack.enter_context(Throttle(MODEL, *limit)) if limit else None

        def ceiling() -> dict[str, Any]:
            machine.drop_from_cache(MODEL)
            return {"seconds": size / GIB / machine.fio(MODEL, throttle)}

        attempt(rows, round_, name, "fio", ceiling, size)
        attempt(rows, round_, name, "safetensors", lambda: load("safetensors", 1, str(MODEL), (MODEL,), throttle), size)
        for concurrency in DISK_CONCURRENCY:
            for loader, path in (("runai", MODEL), ("tensorizer", TENSORIZED), ("streamerd", MODEL)):
                if loader not in absent:
                    one = partial(load, loader, concurrency, str(path), (path,), throttle)
                    attempt(rows, round_, name, f"{loader}/{concurrency}", one, size)
        keep(f"{name} {round_}", rows)


def gp3(round_: str) -> None:
    try:
        disk("gp3", round_, GP3)
    except Unavailable as e:
        unavailable("gp3", e)


def io2(round_: str) -> None:
    """Held to an io2 volume's limit only where the disk gives more."""
    try:
        limit = IO2 if machine.fio(MODEL, None) * GIB > IO2[0] else None
        disk("io2", round_, limit)
        keep("io2 held", limit is not None)
    except Unavailable as e:  # no fio, no limits
        print(f"io2: the disk as it is: {e}", flush=True)
        disk("io2", round_, None)


# ---- experiment 3: S3 ----


def fill(gateway: Gateway) -> None:
    gateway.put("models", MODEL.name, MODEL)
    if "tensorizer" not in files.absent():
        gateway.put("tensors", TENSORIZED.name, TENSORIZED)


def s3(round_: str, *stores: str) -> None:
    names = stores or S3_STORES
    try:
        with Gateway() as gateway, DelayProxy(int(gateway.url.rpartition(":")[2]), DELAY_MS) as proxy:
            fill(gateway)
            for name in names:
                store(name, round_, gateway, gateway.url if name == "s3" else proxy.url)
    except Unavailable as e:
        for name in names:
            unavailable(name, e)


def store(name: str, round_: str, gateway: Gateway, url: str) -> None:
    absent, size = files.absent(), MODEL.stat().st_size
    rows: dict[str, Any] = {}
    environment = {**gateway.environment, "AWS_ENDPOINT_URL": url, "RUNAI_STREAMER_S3_ENDPOINT": url}
    signed = files.presigned(url, "models", MODEL.name)
    sources = {"runai": f"s3://models/{MODEL.name}", "tensorizer": f"s3://tensors/{TENSORIZED.name}", "streamerd": f"s3://models/{MODEL.name}"}
    attempt(rows, round_, name, "curl", lambda: {"seconds": size / GIB / max(machine.curl(signed, size, n) for n in CURLS)}, size)
    for concurrency in S3_CONCURRENCY:
        for loader, source in sources.items():
            if loader in absent or (loader == "runai" and "runai-s3" in absent):
                continue
            checksum = round_ == "1" and concurrency == S3_CONCURRENCY[0]
            one = partial(load, loader, concurrency, source, environment=environment, checksum=checksum)
            attempt(rows, round_, name, f"{loader}/{concurrency}", one, size)
    keep(f"{name} {round_}", rows)
    if round_ == "1":
        compare_checksums(name, {key: row["checksum"] for key, row in rows.items() if "checksum" in row})


# ---- experiment 4: vLLM ----

FORMATS = {"auto": "auto", "runai": "runai_streamer", "tensorizer": "tensorizer", "streamerd": "streamerd"}
STREAMERD = {"streamerd": {}, "streamerd, published": {"publish": True}}  # a first and a second engine each
STORAGES = ("gp3", "io2", "s3")


def start_engine(model: str, load_format: str, extra: dict[str, Any], environment: dict[str, str], throttle: Throttle | None) -> ReadyEngine:
    request = {"model": model, "load_format": load_format, "extra": extra}
    return ReadyEngine(FOLDER / "engine.log", request, environment, throttle)


def engine_row(
    model: str, load_format: str, extra: dict[str, Any], environment: dict[str, str] | None = None, throttle: Throttle | None = None
) -> dict[str, Any]:
    with start_engine(model, load_format, extra, environment or {}, throttle) as engine:
        return engine.wait()


def engines(name: str, round_: str, model: str, environment: dict[str, str], throttle: Throttle | None) -> None:
    """Each loader's engine, cold, and streamerd's second one, with and without published weights."""
    rows: dict[str, Any] = {}
    paths = (*ENGINE_MODEL.glob("*.safetensors"), *ENGINE_MODEL.parent.glob("*.tensors"))
    remote = "://" in model

    def cold(key: str, *arguments: Any) -> None:
        machine.drop_from_cache(*paths)
        attempt(rows, round_, f"vllm on {name}", key, lambda: engine_row(*arguments, environment, throttle))

    for loader in FORMATS:
        if (loader == "auto" and remote) or loader in files.absent() or loader == "streamerd":
            continue
        if loader == "tensorizer":  # vLLM takes the configuration from a folder, and refuses s3:// with this format
            cold(loader, str(ENGINE_MODEL), FORMATS[loader], tensorizer_options(remote, environment))
        else:
            cold(loader, model, FORMATS[loader], {})
    for key, options in STREAMERD.items():
        with Daemon(FOLDER / "daemon", FOLDER, environment=environment) as server:
            if throttle:
                throttle.add(server.pid)
            for engine in (key, f"{key}, second engine"):
                cold(engine, model, FORMATS["streamerd"], {"socket": server.socket, **options})
    keep(f"vllm {name} {round_}", rows)
    tokens = {key: row["tokens"] for key, row in rows.items() if "tokens" in row}
    same = len(set(map(tuple, tokens.values()))) <= 1
    wrong(f"vllm {name} {round_}", None if same else f"the engines do not generate the same tokens: {tokens}")


def tensorizer_options(remote: bool, environment: dict[str, str]) -> dict[str, Any]:
    if not remote:
        return {"tensorizer_uri": str(ENGINE_TENSORS)}
    return {
        "tensorizer_uri": f"s3://tensors/{ENGINE_TENSORS.name}",
        "s3_access_key_id": environment["AWS_ACCESS_KEY_ID"],
        "s3_secret_access_key": environment["AWS_SECRET_ACCESS_KEY"],
        "s3_endpoint": environment["AWS_ENDPOINT_URL"],
    }


def vllm(round_: str, *storages: str) -> None:
    for name in storages or STORAGES:
        try:
            if name == "gp3":
                with Throttle(next(ENGINE_MODEL.glob("*.safetensors")), *GP3) as throttle:
                    engines(name, round_, str(ENGINE_MODEL), {}, throttle)
            elif name == "io2":
                engines(name, round_, str(ENGINE_MODEL), {}, None)
            else:
                with Gateway() as gateway:
                    for file in ENGINE_MODEL.iterdir():
                        gateway.put("models", f"llama/{file.name}", file)
                    if ENGINE_TENSORS.exists():
                        gateway.put("tensors", ENGINE_TENSORS.name, ENGINE_TENSORS)
                    environment = {**gateway.environment, "RUNAI_STREAMER_S3_ENDPOINT": gateway.url}
                    engines(name, round_, "s3://models/llama/", environment, None)
        except Unavailable as e:
            unavailable(f"vllm {name}", e)


# ---- what only a daemon has ----


def daemon(round_: str) -> None:
    rows: dict[str, Any] = {}
    found: list[str] = []
    for part in (processes, engines_and_restarts):
        try:
            found += part(rows, round_)
        except (Failure, RuntimeError) as e:
            found.append(f"{part.__name__}: {e}")
    keep(f"daemon {round_}", rows)
    wrong(f"daemon {round_}", "; ".join(found) or None)


def processes(rows: dict[str, Any], round_: str) -> Iterator[str]:
    """Ten processes on one model, and a daemon restarted under them. Yields what is wrong."""
    size = MODEL.stat().st_size
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
                say(round_, f"process {i}", row, size)
        contents = process.checksum()
        rows["daemon restarted"] = {"seconds": server.restart()}
        say(round_, "daemon killed until the next serves", rows["daemon restarted"])
        if process.checksum() != contents:
            yield "a process saw other contents after the daemon's restart"
        with Loader("streamerd", {"path": str(MODEL), "socket": server.socket}) as another:
            rows["process after the restart"] = row = another.load(server)
            say(round_, "process after the restart", row, size)
            if row["read"] > MIB:
                yield f"the daemon read {row['read']} bytes again after its restart"


def engines_and_restarts(rows: dict[str, Any], round_: str) -> Iterator[str]:
    """An engine that is restarted after a crash, and a daemon that is restarted under an engine. Yields what is wrong."""
    model = str(ENGINE_MODEL)
    machine.drop_from_cache(*ENGINE_MODEL.glob("*.safetensors"))
    with Daemon(FOLDER / "daemon", FOLDER) as server:
        for key in ("engine", "engine after a crash"):  # killed at the end of its row
            attempt(rows, round_, "daemon", key, lambda: engine_row(model, "streamerd", {"socket": server.socket}))
    with ManagedDaemon(FOLDER / "managed", FOLDER) as server:
        extra = {"socket": server.socket, "publish": True}
        with start_engine(model, "streamerd", extra, {}, None) as engine:
            try:
                rows["engine that publishes"] = first = engine.wait()
                rows["daemon restarted under it"] = {"seconds": server.restart()}
                if engine.generate() != first["tokens"]:
                    yield "an engine generated other tokens after the daemon's restart"
            except Failure as e:
                yield f"an engine under which the daemon was restarted: {e}"
                return
            attempt(rows, round_, "daemon", "second engine after the restart", lambda: engine_row(model, "streamerd", extra))
    if rows["second engine after the restart"].get("tokens") != first["tokens"]:
        yield "an engine generated other tokens from what was published before the daemon's restart"


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
    factor = max(FULL // BYTES, 1)  # sizes do not grow with the file
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
    versions = files.versions()
    print("versions:", ", ".join(f"{name} {version}" for name, version in versions.items()))
    print(f"settings: {SETTINGS}")
    keep("versions", versions)
    keep("bytes", MODEL.stat().st_size)
    keep("engine bytes", sum(path.stat().st_size for path in ENGINE_MODEL.glob("*.safetensors")))
    sums = {}
    for loader, path in (("safetensors", MODEL), ("runai", MODEL), ("tensorizer", TENSORIZED), ("streamerd", MODEL)):
        if loader not in files.absent():
            sums[loader] = load(loader, 8, str(path), checksum=True)["checksum"]
    keep("checksums", sums)
    compare_checksums("prepare", sums)


def note(*words: str) -> None:
    keep("note", " ".join(words))


def report() -> None:
    import whitepaper_report

    whitepaper_report.write(results.read(), REPORTS, describe_machine(), SETTINGS)


STEPS = {f.__name__: f for f in (prepare, gp3, io2, s3, vllm, daemon, scaling, note, report)}

if __name__ == "__main__":
    every = [f"{step} {n}" for n in range(1, ROUNDS + 1) for step in ("gp3", "io2", "s3", "vllm", "daemon", "scaling")]
    for step in sys.argv[1:] or ["prepare", *every, "report"]:
        step_name, *arguments = step.split()
        STEPS[step_name](*arguments)
    sys.exit("; ".join(failures) or None)
