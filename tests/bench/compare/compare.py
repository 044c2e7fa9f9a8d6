# SPDX-License-Identifier: Apache-2.0
"""compare.py STEP...: streamerd beside other loaders; `make bench-compare` runs all steps.

    prepare     the file, 4 GiB of 300 tensors, and the same in tensorizer's format
    best NAME   compares the contents that a loader gives with the others', and finds the best of its own settings
    round N     each loader once cold (nothing of the file in the page cache) and once warm, in turn
    processes   the second and the tenth process, while those before keep their tensors
    s3 N        a round from radosgw on loopback
    report      docs/benchmarks/loaders.md and .svg, and the table of README.md

Results of all steps are kept in BUILD/compare/results.json, so each step may run on its own. Needs 9 GiB of disk and
16 GiB of memory, and root for the pool of huge pages; without root that row is left out. COMPARE_MIB=256 tries the steps
with a smaller file, in a folder of its own, where the report goes as well.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1] / "vllm"))
from gateway import Gateway  # noqa: E402
from processes import BUILD, ROOT, Daemon, Worker  # noqa: E402

from harness import model  # noqa: E402
from harness.results import Results, machine  # noqa: E402

FULL = 4 << 30
BYTES = int(os.environ.get("COMPARE_MIB", FULL >> 20)) << 20
FOLDER = BUILD / ("compare" if BYTES == FULL else f"compare-{BYTES >> 20}")
REPORTS = ROOT / "docs/benchmarks" if BYTES == FULL else FOLDER
RESULTS = Results(FOLDER / "results.json")
MODEL = FOLDER / "model.safetensors"
TENSORIZED = FOLDER / "model.tensors"
TENSORS = 300
ROUNDS = 3
LOAD_SECONDS = 600
POOL = Path("/proc/sys/vm/nr_hugepages")
POOL_PAGES = (BYTES >> 21) + 352  # the model, the staging ring and some room

# Name in the report: loader, its settings to choose from, the file it reads.
LOCAL: dict[str, tuple[str, list[dict[str, Any]], Path]] = {
    "runai-model-streamer": ("runai", [{"concurrency": n} for n in (4, 8, 16, 32)], MODEL),
    "safetensors, mapped": ("safetensors_mapped", [{}], MODEL),
    "safetensors, cloned": ("safetensors_cloned", [{}], MODEL),
    "fastsafetensors": ("fastsafetensors", [{"threads": n} for n in (2, 8, 16)], MODEL),
    "tensorizer": ("tensorizer", [{"readers": n} for n in (1, 2, 4)], TENSORIZED),
    "streamerd": ("streamerd", [{}], MODEL),
    "streamerd, pool of huge pages": ("streamerd", [{}], MODEL),
}
OURS = ("streamerd", "streamerd, pool of huge pages")
MADV_POPULATE_WRITE = 23
README = ("streamerd", "runai-model-streamer", "safetensors, mapped", "fastsafetensors", "tensorizer")
FIGURES = ("<!-- figures: written by make bench-compare -->", "<!-- end of figures -->")  # in README.md
PACKAGES = ("torch", "safetensors", "runai-model-streamer", "runai-model-streamer-s3", "fastsafetensors", "tensorizer")


# ---- the machine ----


def present() -> list[str]:
    """Loaders that are installed; of ours, those that this machine allows."""
    absent = (Path(sys.prefix) / "absent").read_text().split()
    pool = os.access(POOL, os.W_OK)
    return [name for name in LOCAL if name not in absent and (pool or name != OURS[1])]


class Ballast:
    """Memory that is held between loads and freed when one begins.

    A virtual machine gives free memory back to its host within seconds, and the next process that uses it waits for
    the host. So that no load pays for that, it finds memory which was in use until then.
    """

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def hold(self) -> None:
        if self._memory is None:
            self._memory = mmap.mmap(-1, BYTES + (1 << 30))
            self._memory.madvise(mmap.MADV_HUGEPAGE)
            self._memory.madvise(MADV_POPULATE_WRITE)

    def release(self) -> None:
        if self._memory is not None:
            self._memory.close()
            self._memory = None


ballast = Ballast()


@contextmanager
def pool(pages: int) -> Iterator[None]:
    """A pool of so many huge pages while the context is entered. Only root can set one, or none."""
    if not os.access(POOL, os.W_OK):
        yield
        return
    before = POOL.read_text()
    if pages > 0:
        Path("/proc/sys/vm/drop_caches").write_text("1")
        Path("/proc/sys/vm/compact_memory").write_text("1")
    POOL.write_text(str(pages))
    try:
        if int(POOL.read_text()) < pages:
            raise RuntimeError("the pool of huge pages cannot be set")
        yield
    finally:
        POOL.write_text(before)


# ---- processes ----


def status(pid: int) -> dict[str, int]:
    """Bytes of a process: its own (anonymous), and the memory that it shares with others and that is no page cache."""
    try:
        rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return {"own": 0, "shared": 0}
    kib = {key: int(rows.get(key, "0").split()[0]) for key in ("RssAnon", "RssShmem", "HugetlbPages")}
    return {"own": kib["RssAnon"] << 10, "shared": (kib["RssShmem"] + kib["HugetlbPages"]) << 10}


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Memory:
    """Peak of the memory of some processes, above what they had at the start. Shared memory counts once."""

    def __init__(self, pids: list[int]):
        self._pids = pids
        self._base = self._now()
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _now(self) -> int:
        rows = [status(pid) for pid in self._pids]
        return sum(row["own"] for row in rows) + max(row["shared"] for row in rows)

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, self._now() - self._base)

    def end(self) -> int:
        self.peak = max(self.peak, self._now() - self._base)
        self._stop.set()
        self._thread.join()
        return self.peak


class Loader(Worker):
    """A process of loaders.py whose imports are done."""

    def __init__(self, loader: str, arguments: dict[str, Any], environment: dict[str, str] | None = None):
        self.log = FOLDER / "loaders.log"
        command = [sys.executable, str(HERE / "loaders.py"), loader, json.dumps(arguments)]
        self.spawn(command, {**os.environ, **(environment or {})}, talks=True)
        self.receive("import", LOAD_SECONDS)

    def load(self, daemon: Daemon | None = None) -> dict[str, Any]:
        """Seconds, CPU seconds, peak bytes of memory and bytes read from storage, those of the daemon included."""
        others = [daemon] if daemon else []
        pids = [self.pid] + [p.pid for p in others]
        read = self.read_bytes() + sum(p.read_bytes() for p in others)
        cpu = sum(cpu_seconds(p.pid) for p in others)
        memory = Memory(pids)
        reply = self.ask("load", LOAD_SECONDS)
        reply["memory"] = memory.end()
        reply["cpu"] += sum(cpu_seconds(p.pid) for p in others) - cpu
        reply["read"] = self.read_bytes() + sum(p.read_bytes() for p in others) - read
        return reply


def start(stack: ExitStack, name: str) -> Daemon | None:
    """The daemon of a loader that has one, on a pool of huge pages if its name says so."""
    if name not in OURS:
        return None
    if name == OURS[1]:
        ballast.release()  # it becomes the pool
    stack.enter_context(pool(POOL_PAGES if name == OURS[1] else 0))
    return stack.enter_context(Daemon(FOLDER / "daemon", FOLDER))


def run(name: str, setting: dict[str, Any], cold: bool, checksum: bool = False) -> dict[str, Any]:
    loader, _, path = LOCAL[name]
    ballast.hold()
    with ExitStack() as stack:
        daemon = start(stack, name)
        if cold:
            model.drop_cache(path)
        else:
            model.ensure_cached(path)
        arguments = {"path": str(path), **setting, **({"socket": daemon.socket} if daemon else {})}
        process = stack.enter_context(Loader(loader, arguments))
        ballast.release()
        reply = process.load(daemon)
        if checksum:
            reply.update(process.ask("checksum", LOAD_SECONDS))
        return reply


# ---- steps ----


def write_files() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    if not MODEL.exists():
        rows = BYTES // TENSORS // 8 // 256 * 256 * 4 // 1024
        table = [(f"model.layers.{i:03}.weight", [rows, 1024]) for i in range(TENSORS)]
        model.make(FOLDER / "new.safetensors", table)
        (FOLDER / "new.safetensors").rename(MODEL)
    if not TENSORIZED.exists() and "tensorizer" in present():
        from safetensors.torch import load_file
        from tensorizer import TensorSerializer

        serializer = TensorSerializer(str(FOLDER / "new.tensors"))
        serializer.write_state_dict(load_file(MODEL))
        serializer.close()
        (FOLDER / "new.tensors").rename(TENSORIZED)


def prepare() -> None:
    from importlib.metadata import PackageNotFoundError, version

    write_files()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    RESULTS.keep("versions", versions)


def best(name: str) -> None:
    """Checks the contents that a loader gives, and chooses among its settings by one load of each."""
    _, settings, _ = LOCAL[name]
    checksum = run(name, settings[0], cold=False, checksum=True)["checksum"]
    chosen = {}
    for kind in ("cold", "warm"):
        seconds = [run(name, s, cold=kind == "cold")["seconds"] if len(settings) > 1 else 0 for s in settings]
        chosen[kind] = settings[seconds.index(min(seconds))]
    RESULTS.keep("best", {**RESULTS.read().get("best", {}), name: chosen})
    RESULTS.keep("checksums", {**RESULTS.read().get("checksums", {}), name: checksum})
    print(f"{name}: {chosen}, checksum {checksum:08x}", flush=True)
    if len(set(RESULTS.read()["checksums"].values())) != 1:
        raise SystemExit(f"the loaders do not give the same contents: {RESULTS.read()['checksums']}")


def round_(number: str) -> None:
    chosen = RESULTS.read()["best"]
    rows = {}
    for name in present():
        for kind in ("cold", "warm"):
            rows[f"{name}/{kind}"] = row = run(name, chosen[name][kind], cold=kind == "cold")
            print(f"{number}: {name}, {kind}: {BYTES / row['seconds'] / 2**30:.2f} GiB/s", flush=True)
    RESULTS.keep(f"round {number}", rows)


def processes() -> None:
    """Time and added memory of the second and the tenth process that load the same file, warm, while others hold it."""
    chosen, total = RESULTS.read()["best"], os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    rows: dict[str, Any] = {}
    for name in present():
        loader, _, path = LOCAL[name]
        with ExitStack() as stack:
            daemon = start(stack, name)
            model.ensure_cached(path)
            arguments = {"path": str(path), **chosen[name]["warm"], **({"socket": daemon.socket} if daemon else {})}
            for i in range(1, 11):
                if i == 3 and rows[f"{name}/2"]["own"] > total // 16:
                    break  # ten of them do not fit
                ballast.hold()
                process = stack.enter_context(Loader(loader, arguments))
                ballast.release()
                base = status(process.pid)["own"]
                reply = process.load(daemon)
                reply["own"] = status(process.pid)["own"] - base
                if i in (2, 10):
                    rows[f"{name}/{i}"] = reply
                    print(f"{name}, process {i}: {reply['seconds']:.3f} s, {reply['own'] >> 20} MiB", flush=True)
    RESULTS.keep("processes", rows)


# ---- S3 ----


def s3(number: str) -> None:
    rows: dict[str, Any] = {}
    source = f"s3://models/{MODEL.name}"
    with Gateway() as gateway:
        environment = {**gateway.environment, "RUNAI_STREAMER_S3_ENDPOINT": gateway.url}
        gateway.put("models", MODEL.name, MODEL)
        if RESULTS.read()["versions"]["runai-model-streamer-s3"]:
            for concurrency in (8, 16, 32) if number == "1" else (RESULTS.read()["s3 best"],):
                ballast.hold()
                with Loader("runai", {"path": source, "concurrency": concurrency}, environment) as process:
                    ballast.release()
                    row = process.load()
                print(f"{number}: runai-model-streamer-s3, {concurrency}: {BYTES / row['seconds'] / 2**30:.2f} GiB/s", flush=True)
                if row["seconds"] < rows.get("runai-model-streamer-s3", row)["seconds"] + 1e-9:
                    rows["runai-model-streamer-s3"] = row
                    if number == "1":
                        RESULTS.keep("s3 best", concurrency)
        with ExitStack() as stack:
            ballast.hold()
            daemon = stack.enter_context(Daemon(FOLDER / "daemon", FOLDER, environment=gateway.environment))
            process = stack.enter_context(Loader("streamerd", {"path": source, "socket": daemon.socket}))
            ballast.release()
            rows["streamerd"] = process.load(daemon)
            print(f"{number}: streamerd, s3: {BYTES / rows['streamerd']['seconds'] / 2**30:.2f} GiB/s", flush=True)
    RESULTS.keep(f"s3 {number}", rows)


# ---- report ----


def cells(rows: list[dict[str, Any]]) -> list[str]:
    """GiB/s, CPU-s/GiB, GiB of memory, GiB read: medians."""
    gib = BYTES / 2**30
    return [
        f"{gib / median(r['seconds'] for r in rows):.2f}",
        f"{median(r['cpu'] for r in rows) / gib:.2f}",
        f"{median(r['memory'] for r in rows) / 2**30:.2f}",
        f"{median(r['read'] for r in rows) / 2**30:.2f}",
    ]


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def spelled(rounds: int) -> str:
    return "One round" if rounds == 1 else f"Medians of {rounds} rounds"


def report() -> None:
    data = RESULTS.read()
    rounds = [data[f"round {n}"] for n in range(1, ROUNDS + 1) if f"round {n}" in data]
    names = [name for name in LOCAL if f"{name}/cold" in rounds[0]]
    speed = {f"{n}/{k}": BYTES / 2**30 / median(r[f"{n}/{k}"]["seconds"] for r in rounds) for n in names for k in ("cold", "warm")}
    head = ["loader", "GiB/s", "CPU-s/GiB", "memory, GiB", "read, GiB"]
    tables = {k: table(head, [[n, *cells([r[f"{n}/{k}"] for r in rounds])] for n in names]) for k in ("cold", "warm")}

    second = []
    for name in names:
        row = [name]
        for i in ("2", "10"):
            r = data["processes"].get(f"{name}/{i}")
            row += [f"{r['seconds'] * 1e3:.0f}", f"{r['own'] / 2**30:.2f}"] if r else ["does not fit", "-"]
        second.append(row)
    many = table(["loader", "second: ms", "its own GiB", "tenth: ms", "its own GiB"], second)

    stores = [data[f"s3 {n}"] for n in range(1, ROUNDS + 1) if f"s3 {n}" in data]
    s3_names = list(stores[0]) if stores else []
    s3_table = table(head[:4], [[n, *cells([r[n] for r in stores])[:3]] for n in s3_names]) if stores else "Not measured."

    versions = ", ".join(f"{p} {v}" for p, v in data["versions"].items() if v)
    absent = [p for p, v in data["versions"].items() if not v]
    settings = "; ".join(
        f"{n}: " + ", ".join(f"{k} {v} ({kind})" for kind, chosen in data["best"][n].items() for k, v in chosen.items())
        for n in names
        if len(LOCAL[n][1]) > 1
    )
    fields = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": machine(),
        "rounds": spelled(len(rounds)),
        "versions": versions + (f". Not installable here: {', '.join(absent)}" if absent else ""),
        "settings": settings + (f"; runai-model-streamer-s3: concurrency {data['s3 best']}" if "s3 best" in data else ""),
        "cold": tables["cold"],
        "warm": tables["warm"],
        "many": many,
        "s3": s3_table,
        "loses": loses(names, speed, data, stores),
    }
    REPORTS.mkdir(exist_ok=True)
    (REPORTS / "loaders.md").write_text((HERE / "report.md.in").read_text().format(**fields))
    (REPORTS / "loaders.svg").write_text(chart(names, speed, spelled(len(rounds)).lower(), fields["machine"], fields["date"]))
    print(f"wrote {REPORTS / 'loaders.md'} and loaders.svg")
    measured = f"{fields['rounds']} of `make bench-compare` on a {fields['machine']}, on {fields['date']}."
    summary = readme([n for n in README if n in names], speed, data["processes"], measured)
    before, begin, rest = (ROOT / "README.md").read_text().partition(FIGURES[0])
    after = rest.partition(FIGURES[1])[2]
    path = (ROOT if BYTES == FULL else FOLDER) / "README.md"
    path.write_text(f"{before}{begin}\n\n{summary}\n\n{FIGURES[1]}{after}")


def readme(names: list[str], speed: dict[str, float], many: dict[str, Any], measured: str) -> str:
    """What README.md has of this: the table between its comments."""
    rows = []
    for name in names:
        row = many[f"{name}/2"]
        second = [f"{row['seconds'] * 1e3:.0f} ms", f"{row['own'] / 2**30:.1f} GiB"]
        rows.append([name, *(f"{speed[f'{name}/{kind}']:.1f} GiB/s" for kind in ("cold", "warm")), *second])
    head = ["4 GiB, 300 tensors, to a CPU", "from disk", "from the page cache", "a second process", "its own memory"]
    return table(head, rows) + "\n\n" + measured


def loses(names: list[str], speed: dict[str, float], data: dict[str, Any], stores: list[dict[str, Any]]) -> str:
    """The comparisons in which another loader is faster."""
    lines = []
    for kind in ("cold", "warm"):
        for ours in (n for n in OURS if n in names):
            better = [n for n in names if n not in OURS and speed[f"{n}/{kind}"] > speed[f"{ours}/{kind}"]]
            for n in better:
                ratio = speed[f"{n}/{kind}"] / speed[f"{ours}/{kind}"]
                lines.append(f"- {kind}: {n} is {ratio:.2f} times as fast as {ours}.")
    for i in ("2", "10"):
        rows = {n: data["processes"].get(f"{n}/{i}") for n in names}
        for ours in (n for n in OURS if rows.get(n)):
            for n, r in rows.items():
                if r and n not in OURS and r["seconds"] < rows[ours]["seconds"]:
                    ratio = rows[ours]["seconds"] / r["seconds"]
                    lines.append(f"- process {i}: {n} is {ratio:.2f} times as fast as {ours}.")
    if stores and "runai-model-streamer-s3" in stores[0]:
        ours, other = (median(r[n]["seconds"] for r in stores) for n in ("streamerd", "runai-model-streamer-s3"))
        if other < ours:
            lines.append(f"- S3: runai-model-streamer-s3 is {ours / other:.2f} times as fast as streamerd.")
    return "\n".join(lines) or "In none of these rows."


def chart(names: list[str], speed: dict[str, float], rounds: str, where: str, date: str) -> str:
    """Bars: GiB/s cold and warm of each loader. A bar that leaves the scale ends in its number."""
    ordered = sorted(speed.values())
    scale = 440 / max(s for s in ordered if s <= 4 * median(ordered))
    height = 46 * len(names) + 70
    body = []
    for i, name in enumerate(names):
        y = 50 + 46 * i
        weight = ' font-weight="bold"' if name in OURS else ""
        body.append(f'<text x="210" y="{y + 21}" text-anchor="end"{weight}>{name}</text>')
        for j, (kind, colour) in enumerate((("cold", "#3b6ea5"), ("warm", "#d98e32"))):
            value = speed[f"{name}/{kind}"]
            width = min(value * scale, 440)
            body.append(f'<rect x="220" y="{y + 17 * j}" width="{width:.1f}" height="15" fill="{colour}"/>')
            body.append(f'<text x="{226 + width:.1f}" y="{y + 12 + 17 * j}" font-size="11">{value:.2f}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" font-family="sans-serif" font-size="13">\n'
        f'<rect width="720" height="{height}" fill="white"/>\n'
        f'<text x="10" y="20" font-size="15">GiB/s from file to tensors: 4 GiB, '
        f'<tspan fill="#3b6ea5">cold</tspan> and <tspan fill="#d98e32">warm</tspan></text>\n'
        f'<text x="10" y="38" font-size="11" fill="#555">{where}; {date}; {rounds}</text>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )


def main(steps: list[str]) -> None:
    if steps == ["all"]:
        numbers = [str(n) for n in range(1, ROUNDS + 1)]
        prepare()
        steps = [*(f"best {name}" for name in present()), *(f"round {n}" for n in numbers), "processes", *(f"s3 {n}" for n in numbers), "report"]
    for step in steps:
        name, _, argument = step.partition(" ")
        function = {"prepare": prepare, "best": best, "round": round_, "processes": processes, "s3": s3, "report": report}[name]
        function(*([argument] if argument else []))


if __name__ == "__main__":
    main(sys.argv[1:] or ["all"])
