# SPDX-License-Identifier: Apache-2.0
"""Steps about speed and memory of one daemon: contexts, loads beside their ceilings, verify."""

import threading
import time

from . import machine, model
from .bench import GIB, MIB, median
from .consumer import Skip
from .process import Failure

DISK_SAMPLE = 4 * GIB


def first_that_works(bench):
    """A newer runtime may refuse the driver that an older one accepts."""
    for cudart in bench.cudarts:
        bench.cudart = cudart
        try:
            return bench.observe()
        except Failure:
            if cudart == bench.cudarts[-1]:
                raise


def machine_step(bench, _stack):
    gpu = first_that_works(bench)
    bench.report.hardware.update(machine.describe(gpu, bench.folder))
    bench.report.hardware["stand_in"] = "Stand-in" in gpu["name"]
    bench.report.hardware["scale"] = bench.scale


def models_step(*labels):
    def step(bench, _stack):
        for label in labels:
            bench.make(label)

    return step


def contexts_step(bench, stack):
    before = bench.free()
    daemon = bench.daemon(stack)
    idle = bench.free()
    seconds = bench.load(daemon, "tiny")
    segments = sum(d["bytes"] for d in daemon.ctl("show", "tiny")["models"][0]["devices"])
    segments += -segments % (2 * MIB)
    loaded = bench.free()
    bench.unload(daemon, "tiny")
    unloaded = bench.free()
    report = bench.report
    report.row("start_context", seconds * 1e3)
    report.row("context_daemon", (idle - loaded - segments) / MIB)
    report.row("context_daemon_unloaded", (before - unloaded) / MIB)
    bench.report.hardware["ring"] = daemon.ring()
    report.observe("GPU memory of a daemon that has loaded nothing", f"{(before - idle) / MIB:.0f} MiB")
    seconds = bench.load(daemon, "tiny")
    report.observe("a load after the daemon gave its context back", f"{seconds * 1e3:.0f} ms")
    consumer = bench.consumer(stack, enter=False)
    free = bench.free()
    consumer.ask("enter", ordinal=bench.ordinal)
    report.row("context_consumer", (free - bench.free()) / MIB)


# ---- loads


class Rates:
    """One size: ceilings and loads in turn, so that a slow moment of the machine falls on both.
    The tiny model stays loaded, and the daemon's context with it."""

    def __init__(self, bench, stack, label, **options):
        self.bench, self.label, self.path = bench, label, bench.file(label)
        self.daemon = bench.daemon(stack, **options)
        bench.load(self.daemon, "tiny")
        self.ring = bench.report.hardware["ring"] = self.daemon.ring()
        self.reader = bench.consumer(stack, enter=False)
        self.copier = bench.consumer(stack, enter=False)
        self.bytes = sum(size for _, _, size in model.tensors_of(self.path))

    def load(self):
        seconds = self.bench.load(self.daemon, self.label, 120)
        self.bench.unload(self.daemon, self.label)
        return self.bytes / seconds / GIB

    def preads(self, direct=False, limit=1 << 62):
        block = MIB if self.bench.small else 8 * MIB
        arguments = {"threads": self.ring["threads"], "block": block, "direct": direct, "limit": limit}
        return self.reader.ask("preads", 120, path=self.path, **arguments)["rate"]

    def copies(self):
        size = max(16 * MIB, int(GIB * self.bench.scale))
        return max(self.copier.ask("copies", 60, ordinal=self.bench.ordinal, size=size, count=3)["rates"])

    def cold_round(self):
        """O_DIRECT's rate, the load's, and how much of the file was left in the cache (None: nobody knows)."""
        model.drop_cache(self.path)
        share = model.cached_share(self.path)
        if share is not None and share > 0.05:
            raise Skip(f"{share:.0%} of the file stay in the page cache when it is told to drop them")
        disk = self.preads(direct=True, limit=DISK_SAMPLE)
        return disk, self.load(), share

    def cold(self, rounds):
        figures = [self.cold_round() for _ in range(rounds)]
        disk, rate = (median([f[i] for f in figures]) for i in (0, 1))
        unknown = any(share is None for _, _, share in figures)
        note = "whether the page cache was empty cannot be asked here" if unknown else None
        self.bench.report.row("disk_ceiling", disk)
        self.bench.report.row(f"cold_{self.label}", rate, disk, figures, note)

    def warm(self, rounds):
        """Returns the rate, the smaller ceiling, and [(copies, preads, load)] behind them."""
        for _ in range(3):  # a page that is busy when it is asked for counts as missing
            self.preads()
            share = model.cached_share(self.path)
            if share is None or share >= 0.99:
                break
        else:
            raise Skip(f"only {share:.0%} of the file stay in the page cache")
        figures = [(self.copies(), self.preads(), self.load()) for _ in range(rounds)]
        copies, preads, rate = (median(column) for column in zip(*figures))
        self.bench.report.row("h2d_ceiling", copies)
        self.bench.report.row("page_cache_ceiling", preads)
        return rate, min(copies, preads), figures


def warm(bench, stack, label, rounds):
    r = Rates(bench, stack, label)
    rate, ceiling, figures = r.warm(rounds)
    bench.report.row(f"warm_{label}", rate, ceiling, figures)
    bench.report.row(f"warm_{label}_vs_ceiling", rate / ceiling, ceiling)
    return r


def warm_1gib_step(bench, stack):
    warm(bench, stack, "1gib", 5)


def warm_8gib_step(bench, stack):
    r = warm(bench, stack, "8gib", 3)
    bench.load(r.daemon, "8gib")
    begin = time.monotonic()
    r.daemon.ctl("verify", "8gib", timeout=60)
    bench.report.row("verify_8gib", r.bytes / (time.monotonic() - begin) / GIB)


# What a slow disk costs is known after everything that does not need one.


def cold_1gib_step(bench, stack):
    Rates(bench, stack, "1gib").cold(2)


def cold_8gib_step(bench, stack):
    Rates(bench, stack, "8gib").cold(2)


def cold_30gib_step(bench, stack):
    Rates(bench, stack, "30gib").cold(1)


def rates_vmm_step(bench, stack):
    r = Rates(bench, stack, "8gib", handles="cuda-vmm-fd")
    rate, ceiling, figures = r.warm(3)
    bench.report.row("warm_vmm_8gib_vs_ceiling", rate / ceiling, ceiling, figures)


def host_memory_step(bench, stack):
    """What CUDA itself takes, in a process that has a context and nothing else, is not the daemon's; it is the
    row's "ceiling"."""
    consumer = bench.consumer(stack, enter=False)
    before = consumer.ask("host_memory")["bytes"]
    consumer.ask("enter", ordinal=bench.ordinal)
    cuda = consumer.ask("host_memory")["bytes"] - before
    r = Rates(bench, stack, "8gib")
    most = memory_while_loading(r)
    bench.report.row("host_memory_beyond_ring", (most - cuda) / MIB, cuda / MIB)
    bench.report.observe("host memory of the daemon beyond its ring, CUDA's share included", f"{most / MIB:.0f} MiB")


def memory_while_loading(r):
    """The most that the daemon had in memory during a load which is not timed, less its ring."""
    samples, over = [], threading.Event()

    def sample():
        while not over.wait(0.02):
            samples.append(r.daemon.host_memory())

    sampler = threading.Thread(target=sample, daemon=True)
    samples.append(r.daemon.host_memory())
    sampler.start()
    try:
        r.load()
    finally:
        over.set()
        sampler.join(5)
    in_pool = r.ring["page_kind"] == "hugetlb"
    return max(samples) - (0 if in_pool else r.ring["bytes"])
