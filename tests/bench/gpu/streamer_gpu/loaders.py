# SPDX-License-Identifier: Apache-2.0
"""Other loaders beside streamerd: the same file, in interleaved rounds, each in a process of its own that has
imported its modules and has a context. streamerd's time ends when a client has attached."""

import glob
import os
import shutil
import time
import zipfile

from harness import model
from harness.processes import Failure, Skip

from . import machine
from .bench import GIB, IMPORT_SECONDS, MIB, median
from .frameworks import LOADERS

OURS = "streamerd"
LABEL = "8gib"
LOADER_SECONDS = 40  # for one load; a loader that hangs is left out


def wheels(bench):
    folder = bench.options.wheels or os.path.join(bench.bin, "..", "whl")
    return sorted(glob.glob(os.path.join(folder, "*.whl")))


def site(bench):
    """A folder with the wheels' packages, without an installer: a wheel is a zip archive. None where there is none."""
    path = os.path.join(bench.folder, "site")
    if os.path.isdir(path):
        return path
    for wheel in wheels(bench):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(path)
    for data in glob.glob(os.path.join(path, "*.data", "*lib")):  # purelib, platlib
        shutil.copytree(data, path, dirs_exist_ok=True)
    return path if os.path.isdir(path) else None


class _Ours:
    def __init__(self, bench, stack, device):
        host = {"device": "host", "budget": bench.size(LABEL) + 256 * MIB} if device == "cpu" else None
        self.bench, self.daemon = bench, bench.daemon(stack, device=host)
        self.consumer = bench.consumer(stack)
        bench.load(self.daemon, "tiny")  # its context exists, as those of the others do

    def load(self, path):
        asked = {"socket": self.daemon.socket, "name": LABEL}
        seconds = self.consumer.ask("load", 120, path=path, timeout=100, **asked)["seconds"]
        begin = time.monotonic()
        self.consumer.ask("attach", 60, **asked)
        seconds += time.monotonic() - begin
        self.daemon.require_pinned_ring()
        timed = self.daemon.timed(seconds, LABEL)
        same = self.consumer.ask("compare", 60, path=path, every=8, limit=MIB)["differing"] == 0
        self.consumer.ask("detach")
        self.bench.unload(self.daemon, LABEL)
        return {"same": same, **timed}

    def log(self):
        return self.daemon.log_end()


class _Theirs:
    def __init__(self, consumer, name):
        self.consumer, self.name = consumer, name

    def load(self, path):
        return self.consumer.ask("loader_load", LOADER_SECONDS, path=path)

    def log(self):
        return None


def _start(bench, stack, device, prefix):
    """{name: loader}, of those that can be imported here. All import at the same time."""
    folder = site(bench)
    consumers = {name: bench.consumer(stack, enter=False) for name in LOADERS}
    for name, consumer in consumers.items():
        consumer.send("loader_import", name=name, site=folder, device=device)
    loaders, end = {}, time.monotonic() + IMPORT_SECONDS
    for name, consumer in consumers.items():
        try:
            version = consumer.receive("loader_import", max(0.1, end - time.monotonic()))["version"]
            bench.report.observe(f"loader {name}", f"version {version}")
            loaders[name] = _Theirs(consumer, name)
        except (Failure, Skip) as e:
            bench.report.why_not([f"{prefix}_{name}"], str(e))
    return loaders


def _rounds(bench, loaders, path, prefix, rounds, prepare):
    """Rows of medians, after each round; a loader that fails once is left out from then on. `prepare`: before each
    load."""
    size = sum(n for _, _, n in model.tensors_of(path))
    figures = {name: [] for name in loaders}
    for _ in range(rounds):
        for name in [name for name in figures if name in loaders]:
            prepare(path)
            try:
                result = loaders[name].load(path)
                if not result["same"]:
                    raise Failure(f"{name}: the tensors differ from the file")
                figures[name].append({"rate": size / result["seconds"] / GIB, **result})
            except (Failure, Skip) as e:
                bench.report.why_not([f"{prefix}_{name}"], str(e))
                if name == OURS:
                    raise
                del loaders[name]
                continue
            rounds_of = figures[name]
            bench.report.row(f"{prefix}_{name}", _rate(rounds_of), rounds=list(rounds_of), log=loaders[name].log())
        _record_best(bench, {name: _rate(figures[name]) for name in loaders}, prefix)
    if len(loaders) == 1:
        raise Skip("no other loader works here")


def _record_best(bench, rates, prefix):
    others = {name: rate for name, rate in rates.items() if name != OURS}
    if not others:
        return
    best = max(others, key=others.get)
    bench.report.row(f"{prefix}_vs_best", rates[OURS] / others[best], others[best], note=f"the best is {best}")


def _rate(figures):
    return median([f["rate"] for f in figures])


def _compare(bench, stack, path, prefix, prepare=lambda path: None):
    device = "cpu" if bench.fake() else f"cuda:{bench.ordinal}"
    loaders = {OURS: _Ours(bench, stack, device), **_start(bench, stack, device, prefix)}
    _rounds(bench, loaders, path, prefix, 3, prepare)


def warm_loaders_step(bench, stack):
    _compare(bench, stack, bench.file(LABEL), "loader_warm", model.ensure_cached)


def tmpfs_loaders_step(bench, stack):
    size = os.path.getsize(bench.file(LABEL))
    bench.check_capacity(LABEL, ("of host memory for a copy in tmpfs", bench.memory()))
    tmpfs = machine.Tmpfs(bench.folder, size + 64 * MIB)
    stack.callback(tmpfs.remove)
    path = os.path.join(tmpfs.path, LABEL + ".safetensors")
    if shutil.disk_usage(tmpfs.path).free < size:
        raise Skip(f"{tmpfs.path} has no {size / GIB:.1f} GiB free")
    shutil.copyfile(bench.file(LABEL), path)
    bench.roots.append(tmpfs.path)
    stack.callback(bench.roots.remove, tmpfs.path)
    _compare(bench, stack, path, "loader_tmpfs")
