# SPDX-License-Identifier: Apache-2.0
"""guard.py [--update]: instructions of the paths that users wait for, against guard.json; `make bench-guard`.

The daemon, and a client for `attach`, run under callgrind. What counts are the instructions of our own code, by source
folder: the C library, xxHash and libcurl choose other code on other processors. A run without the work is subtracted.
A figure that exceeds its baseline by more than 3 % fails; one that falls below it as far is named, so that the baseline
is updated. A pin beside 2,000 models may take half as many instructions more than one beside none. Baselines hold for one compiler version and one linker (dynamic calls cost another number of instructions with
another one): otherwise the figures are printed and not compared.
"""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench/gpu"))
from harness.daemon import Daemon  # noqa: E402

BUILD = (ROOT / os.environ.get("STREAMERD_BUILD", "build")).resolve()
BASELINE = Path(__file__).with_suffix(".json")
TOLERANCE = 0.03
TENSORS, BLOCKS, ATTACHES = 20000, 256, 50
MODELS, PINS = 2000, 100
GROWTH = 1.5  # of a pin beside as many models
REPEATS = 3  # timers add a little to every run: the least of these counts
MIB = 1 << 20
OWN = ("daemon/", "client/", "proto/")
PARSING = ("daemon/base/json/", "daemon/model/")
MOVING = ("daemon/io/", "daemon/load/", "daemon/device/")  # without the timers of the event loop
ATTACHING = ("daemon/serve/", "daemon/resident/", "proto/")
CHANGING = ("daemon/serve/verbs/", "daemon/serve/events/", "daemon/serve/access/", "daemon/resident/")


def write_model(path: Path, tensors: int, each: int) -> Path:
    """A safetensors file of U8 tensors whose data begins at a multiple of 4096."""
    entries = {f"model.layers.{i}.weight": {"dtype": "U8", "shape": [each], "data_offsets": [i * each, (i + 1) * each]} for i in range(tensors)}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(len(header) + 8) % 4096)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + tensors * each)
    return path


# ---- callgrind ----


def costs(path: Path) -> dict[str, int]:
    """Instructions by source file, without those of called functions. The format: valgrind's manual, "Callgrind Format"."""
    names: dict[str, str] = {}
    found: dict[str, int] = {}
    file, skip = "", False
    for line in path.read_text().splitlines():
        if match := re.match(r"(fl|fi|fe|cfi|cfl)=\((\d+)\) ?(.*)", line):
            kind, number, name = match.groups()
            if name:
                names[number] = name
            if not kind.startswith("c"):  # c: the file of a called function
                file = names[number]
        elif line.startswith("calls="):
            skip = True  # the next line is the called function's
        elif re.match(r"[+\-*\d]", line):
            if not skip:
                found[file] = found.get(file, 0) + int(line.split()[1])
            skip = False
    return found


def total(found: dict[str, int], folders: Iterable[str]) -> int:
    """Of files below these folders of the project, wherever it was compiled."""
    below = re.compile(rf"(?:^|/)(?:{'|'.join(folders)})")
    return sum(cost for name, cost in found.items() if below.search(name))


def callgrind(out: Path) -> list[str]:
    return ["valgrind", "-q", "--tool=callgrind", f"--callgrind-out-file={out}"]


def daemon_costs(folder: Path, name: str, work: Callable[[Daemon], None]) -> dict[str, int]:
    """What a daemon costs from start to end, with `work` between."""
    return min((one_run(folder, f"{name}-{i}", work) for i in range(REPEATS)), key=lambda found: total(found, OWN))


def one_run(folder: Path, name: str, work: Callable[[Daemon], None]) -> dict[str, int]:
    out = folder / f"{name}.out"
    settings = {"io.block_size": "1MiB", "io.concurrency": 1}
    with Daemon(BUILD, folder / name, [folder], {"device": "host", "budget": "1GiB"}, settings, under=callgrind(out)).start(120) as daemon:
        work(daemon)
        if not daemon.stop(60):
            raise SystemExit(f"the daemon did not end: {daemon.tail()}")
    return costs(out)


def change_costs(folder: Path, small: Path, models: int) -> int:
    """Instructions of a pin and its end beside other models, with the passes that they cause."""
    out = folder / f"pins-{models}.out"
    under = [*callgrind(out), "--instr-atstart=no"]
    with Daemon(BUILD, folder / f"pins-{models}", [folder], {"device": "host", "budget": "1GiB"}, under=under).start(120) as daemon:
        for i in range(models):
            name = folder / f"model-{i}.safetensors"
            if not name.exists():
                shutil.copy(small, name)
            daemon.ctl("load", str(name))
        control = ["callgrind_control", str(daemon.pid)]
        subprocess.run([*control, "--instr=on"], check=True, stdout=subprocess.DEVNULL)
        for _ in range(PINS):
            daemon.ctl("pin", "model-0")
            daemon.ctl("unpin", "model-0")
        subprocess.run([*control, "--instr=off"], check=True, stdout=subprocess.DEVNULL)
        if not daemon.stop(60):
            raise SystemExit(f"the daemon did not end: {daemon.tail()}")
    return total(costs(out), CHANGING) // PINS


# ---- an HTTP server of files, with ranges ----


class Ranges(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # the daemon closes connections that it no longer needs
            super().handle()

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        size = path.stat().st_size
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        first, last = (int(match[1]), min(int(match[2]), size - 1)) if match else (0, size - 1)
        self.send_response(206 if match else 200)
        self.send_header("Content-Length", str(last - first + 1))
        self.send_header("ETag", f'"{size}"')
        if match:
            self.send_header("Content-Range", f"bytes {first}-{last}/{size}")
        self.end_headers()
        with open(path, "rb") as file:
            file.seek(first)
            self.wfile.write(file.read(last - first + 1))

    def log_message(self, *_: object) -> None:
        pass


# ---- the figures ----


def measure(folder: Path) -> dict[str, int]:
    small = write_model(folder / "small.safetensors", 1, 4096)
    many = write_model(folder / "many.safetensors", TENSORS, 64)
    large = write_model(folder / "large.safetensors", 1, BLOCKS * MIB)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Ranges(*a, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    found = {}

    base = daemon_costs(folder, "base", lambda daemon: daemon.ctl("load", str(small)))
    tensors = daemon_costs(folder, "tensors", lambda daemon: daemon.ctl("load", str(many)))
    found["header_and_plan_per_tensor"] = (total(tensors, PARSING) - total(base, PARSING)) // TENSORS
    rest = [total(costs_, OWN) - total(costs_, PARSING) for costs_ in (tensors, base)]
    found["manifest_and_digests_per_tensor"] = (rest[0] - rest[1]) // TENSORS

    disk = daemon_costs(folder, "disk", lambda daemon: daemon.ctl("load", str(large)))
    found["disk_per_block"] = (total(disk, MOVING) - total(base, MOVING)) // BLOCKS

    web_base = daemon_costs(folder, "web-base", lambda daemon: daemon.ctl("load", f"{url}/{small.name}"))
    web = daemon_costs(folder, "web", lambda daemon: daemon.ctl("load", f"{url}/{large.name}"))
    found["http_per_block"] = (total(web, MOVING) - total(web_base, MOVING)) // BLOCKS
    server.shutdown()

    client = folder / "client.out"

    def attach(daemon: Daemon) -> None:
        daemon.ctl("load", str(many))
        command = [str(BUILD / "bench"), "--attach", "library", daemon.socket, "many"]
        subprocess.run([*callgrind(client), *command], check=True, stdout=subprocess.DEVNULL, timeout=60)
        for _ in range(ATTACHES):
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    attached = daemon_costs(folder, "attach", attach)
    found["attach_daemon"] = (total(attached, ATTACHING) - total(tensors, ATTACHING)) // (ATTACHES + 1)
    found["attach_client"] = total(costs(client), OWN)

    found["pin_beside_1"] = change_costs(folder, small, 1)
    found["pin_beside_2000"] = change_costs(folder, small, MODELS)
    return found


def toolchain() -> str:
    """What compiled and linked the daemon, as they wrote it into the program. GNU ld writes nothing."""
    comment = subprocess.run(["readelf", "-p", ".comment", str(BUILD / "streamerd")], check=True, capture_output=True, text=True).stdout
    return ", ".join(sorted(set(re.findall(r"^ *\[ *[0-9a-f]+\] +(.*?) *$", comment, re.MULTILINE))))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="guard-", dir="/var/tmp") as name:
        found = measure(Path(name))
    if "--update" in sys.argv:
        BASELINE.write_text(json.dumps({"toolchain": toolchain(), "instructions": found}, indent=1) + "\n")
    baseline = json.loads(BASELINE.read_text())
    compared = baseline["toolchain"] == toolchain()
    failed = False
    for row, value in found.items():
        expected = baseline["instructions"].get(row, value)
        change = value / expected - 1
        verdict = ""
        if compared and abs(change) > TOLERANCE:
            failed |= change > 0
            verdict = "more than the baseline" if change > 0 else "less than the baseline: run guard.py --update"
        print(f"{row:34} {value:>12,} instructions  {change:+.1%}  {verdict}")
    if found["pin_beside_2000"] > GROWTH * found["pin_beside_1"]:
        failed = True
        print(f"a pin beside {MODELS:,} models takes more than {GROWTH} times the instructions of one beside itself alone")
    if not compared:
        print(f"not compared: the baseline is of {baseline['toolchain']}, this build of {toolchain()}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
