# SPDX-License-Identifier: Apache-2.0
"""Steps about speed and memory of one daemon: contexts, loads beside their ceilings, the settings that determine
them."""

import threading
import time

from harness import model
from harness.processes import Failure, NoAnswer, Skip, host_memory

from . import machine
from .bench import GIB, MIB, for_each, median
from .process import RatesProgram
from .report import BLOCKS, CONCURRENCIES

DISK_SAMPLE_MS = 2000


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
    gpu, hardware = first_that_works(bench), bench.report.hardware
    hardware.update(machine.describe(gpu, bench.folder))
    hardware["fake"] = gpu["name"].startswith("Fake")
    hardware["scale"] = bench.scale
    with RatesProgram(bench, bench.binary("gpu-rates")) as program:  # every ceiling needs it: whether it starts here
        program.measure(readers=1, hash=1, block=4096, ms=5)


# ---- contexts


def contexts_step(bench, stack):
    """What a context costs, and what a load costs with and without one."""
    before, report = bench.free(), bench.report
    daemon = bench.daemon(stack, settings={"cuda.context_retention": "0s"})
    idle = bench.free()
    seconds = bench.load(daemon, "tiny")
    report.row("context_first_load", seconds * 1e3, rounds=[daemon.timed(seconds, "tiny")], log=daemon.log_end())
    segments = sum(d["bytes"] for d in daemon.ctl("show", "tiny")["models"][0]["devices"])
    segments += -segments % (2 * MIB)
    loaded = bench.free()
    bench.unload(daemon, "tiny")
    report.row("context_daemon", (idle - loaded - segments) / MIB)
    report.observe("GPU memory after the last model, without retention", bench.await_free(before))
    report.row("context_daemon_unloaded", (before - bench.free()) / MIB)
    report.hardware["ring"] = daemon.ring()
    report.observe("GPU memory of a daemon that has loaded nothing", f"{(before - idle) / MIB:.0f} MiB")
    consumer, free = bench.consumer(stack, enter=False), bench.free()
    report.row("context_seconds", consumer.ask("enter", ordinal=bench.ordinal)["seconds"])
    report.row("context_consumer", (free - bench.free()) / MIB)


def context_again_step(bench, stack):
    """A first load after the daemon has destroyed its context, after it has retained it, and in a daemon that
    created it when it started."""

    def load_and_unload(daemon):
        timed = daemon.timed(bench.load(daemon, "tiny"), "tiny")
        bench.unload(daemon, "tiny")
        return timed

    def measure(row, rounds, settings):
        daemon = bench.daemon(stack, settings=settings)
        if rounds > 1:
            load_and_unload(daemon)
        figures = [load_and_unload(daemon) for _ in range(rounds)]
        bench.report.row(row, _median(figures, "seconds") * 1e3, rounds=figures, log=daemon.log_end())
        daemon.stop()

    cases = [
        ("load_context_destroyed", 3, {"cuda.context_retention": "0s"}),
        ("load_context_retained", 3, {"cuda.context_retention": "60s"}),
        ("load_context_at_start", 1, {"cuda.context_at_start": "true"}),
    ]
    for_each(bench, cases, measure)


# ---- loads


class Rates:
    """One model: ceilings and loads in turn, so that a slow moment of the machine affects both. The tiny model stays
    loaded, and the daemon's context with it."""

    def __init__(self, bench, stack, label, **options):
        self.bench, self.label, self.path = bench, label, bench.file(label)
        self.daemon = bench.daemon(stack, **options)
        bench.load(self.daemon, "tiny")
        self.ring = bench.report.hardware["ring"] = self.daemon.ring()
        self.bytes = sum(size for _, _, size in model.tensors_of(self.path))
        self.program, self.why = bench.rates_program(stack, self.path), None

    def _ceiling(self, what, **case):
        """GiB/s; None where gpu-rates fails: the loads are measured all the same, and other rounds have ceilings."""
        try:
            return self.program.measure(**case)[what]
        except NoAnswer:
            raise
        except Failure as e:
            self.why = f"no ceilings: {e}"
            if self.why not in self.bench.report.warnings:
                self.bench.report.warnings.append(self.why)
            return None

    def load(self):
        """{"rate": GiB/s as a client sees it, "seconds", "load_ns", "stages"}; the last two are the daemon's."""
        seconds = self.bench.load(self.daemon, self.label, 120)
        self.daemon.require_pinned_ring()
        timed = self.daemon.timed(seconds, self.label)
        self.bench.unload(self.daemon, self.label)
        return {"rate": self.bytes / seconds / GIB, **timed}

    def reads(self, **case):
        block = MIB if self.bench.small else 8 * MIB
        return self._ceiling("read", readers=self.ring["threads"], block=block, **case)

    def copies(self):
        block = MIB if self.bench.small else 16 * MIB
        return self._ceiling("copied", copiers=4, block=block)

    def combined(self):
        """As many threads as the daemon's, each of which reads, hashes and copies, as a load does."""
        return self.reads(through=1, hash=1)

    def cold_round(self):
        """A load, with the rate of O_DIRECT, and the share of the file that was left in the cache (None: unknown)."""
        if model.in_memory(self.path):
            raise Skip("the model is in a tmpfs, because the disk is too small: no load of it is cold")
        model.drop_cache(self.path)
        share = model.cached_share(self.path)
        if share is not None and share > 0.05:
            raise Skip(f"{share:.0%} of the file stay in the page cache after POSIX_FADV_DONTNEED")
        disk = self.reads(direct=1, ms=100 if self.bench.small else DISK_SAMPLE_MS)
        return {"disk": disk, "cached": share, **self.load()}

    def cold(self, rounds):
        figures = [self.cold_round() for _ in range(rounds)]
        disk, rate = _median(figures, "disk"), _median(figures, "rate")
        note = None
        if any(f["cached"] is None for f in figures):
            note = "whether the page cache was empty cannot be asked here"
        if disk is not None:
            self.bench.report.row("disk_ceiling", disk)
        self.bench.report.row(f"cold_{self.label}", rate, disk, figures, note, self.daemon.log_end())

    def cache(self):
        """Reads the file into the page cache. False if the kernel does not say whether it is cached."""
        share = model.ensure_cached(self.path)
        if share is not None and share < 0.99:
            raise Skip(f"only {share:.0%} of the file stay in the page cache")
        return share is not None

    def warm_round(self):
        ceilings = {"copies": self.copies(), "reads": self.reads(), "combined": self.combined()}
        return {**ceilings, **self.load()}

    def warm(self, row, rounds):
        """Loads beside their ceilings: what the same threads reach without the daemon, and the smaller one of reads
        and copies alone."""
        note = None if self.cache() else "the kernel does not say whether the file is in the page cache: no warm load"
        if model.in_memory(self.path):
            note = "the file is in a tmpfs, because the disk is too small"
        report, figures = self.bench.report, [self.warm_round() for _ in range(rounds)]
        rate, combined = _median(figures, "rate"), _median(figures, "combined")
        copies, reads = _median(figures, "copies"), _median(figures, "reads")
        report.row(row, rate, combined, figures, note, self.daemon.log_end())
        if None in (copies, reads, combined):
            return report.why_not([f"{row}_vs_"], self.why)
        for name, value in (("combined", combined), ("h2d", copies), ("page_cache", reads)):
            report.row(f"{name}_ceiling", value)
        report.row(f"{row}_vs_ceiling", rate / combined, combined, note=note)
        report.row(f"{row}_vs_smaller", rate / min(copies, reads), min(copies, reads), note=note)


def _median(figures, key):
    values = [f[key] for f in figures if f[key] is not None]
    return median(values) if values else None


def warm_step(label, rounds):
    def step(bench, stack):
        Rates(bench, stack, label).warm(f"warm_{label}", rounds)

    return step


def warm_8gib_step(bench, stack):
    r = Rates(bench, stack, "8gib")
    r.warm("warm_8gib", 3)
    bench.load(r.daemon, "8gib")
    begin = time.monotonic()
    r.daemon.ctl("verify", "8gib", timeout=60)
    bench.report.row("verify_8gib", r.bytes / (time.monotonic() - begin) / GIB)


def warm_vmm_step(bench, stack):
    Rates(bench, stack, "8gib", handles="cuda-vmm-fd").warm("warm_vmm_8gib", 3)


def cold_step(label, rounds):
    """What a slow disk costs is measured after everything that needs none."""

    def step(bench, stack):
        Rates(bench, stack, label).cold(rounds)

    return step


# ---- the host cache


def host_cache_step(bench, stack):
    """A model is evicted to the host cache, because another one does not fit beside it, and restored from there; the
    restored one is compared. A model that was read has times of stages; a restored one has none. The time of the
    eviction includes the pinning of the cache's memory."""
    planner = bench.daemon(stack)
    sizes = {label: planner.ctl("load", "--dry-run", bench.file(label))["needed"] for label in ("8gib", "tiny")}
    planner.stop()
    budget = sizes["8gib"] + sizes["tiny"] // 2
    settings = {"host_cache": sizes["8gib"] + 64 * MIB}
    bench.check_capacity("8gib", ("of host memory for the cache", bench.memory() - sizes["8gib"]))
    r = Rates(bench, stack, "8gib", device={"budget": budget}, settings=settings)
    bench.unload(r.daemon, "tiny")
    bench.load(r.daemon, "8gib", 60)
    r.daemon.require_pinned_ring()
    seconds = bench.load(r.daemon, "tiny", 60)
    timed, state = r.daemon.timed(seconds, "tiny"), r.daemon.model("8gib")["state"]
    if state != "cached":
        raise Failure(f"the evicted model is not in the host cache, but {state}: {r.daemon.tail()}")
    bench.report.row("host_cache_evict", r.bytes / seconds / GIB, rounds=[timed], log=r.daemon.log_end())
    bench.unload(r.daemon, "tiny")
    seconds = bench.load(r.daemon, "8gib", 60)
    timed = r.daemon.timed(seconds, "8gib")
    if timed["stages"]:
        raise Failure(f"the model was read again, not restored: {r.daemon.tail()}")
    log = r.daemon.log_end()
    bench.report.row("host_cache_restore", r.bytes / seconds / GIB, r.copies(), [timed], log=log)
    compare_restored(bench, stack, r.daemon)


def compare_restored(bench, stack, daemon):
    consumer = bench.consumer(stack)
    consumer.ask("attach", socket=daemon.socket, name="8gib")
    result = consumer.ask("compare", 60, path=bench.file("8gib"), every=1, limit=0)
    bench.report.row("tensors_differ_restored", result["differing"])


# ---- an unload beside a load


def unload_step(bench, stack):
    """4 GiB are freed while 8 GiB are loaded, and cudaFree() waits for copies, or they for it: the longest time in
    which the load makes no progress, with the unload and (as the ceiling) without."""
    r = Rates(bench, stack, "8gib")
    r.cache()
    watcher = bench.consumer(stack, enter=False)
    asked = {"socket": r.daemon.socket, "path": r.path, "name": "8gib"}

    def watch(**unload):
        watched = watcher.ask("watch_load", 60, **unload, **asked)
        watched.update(r.daemon.timed(watched["seconds"], "8gib"))
        bench.unload(r.daemon, "8gib")
        return watched

    alone = watch()
    for _ in range(3):  # the load may be over before the unload begins
        bench.load(r.daemon, "4gib", 60)
        beside = watch(unload="4gib")
        if beside["overlapped"]:
            break
    r.daemon.require_pinned_ring()
    note = None if beside["overlapped"] else "the load had ended when the unload began"
    log = r.daemon.log_end()
    bench.report.row("unload_stall", beside["stall_ms"], alone["stall_ms"], [alone, beside], note, log)
    bench.report.row("unload_while_loading", beside["unload_ms"], note=note)


# ---- settings that only hardware can decide


def _load_rate(bench, stack, label, rounds, settings):
    r = Rates(bench, stack, label, settings=settings)
    r.cache()
    figures = [r.load() for _ in range(rounds)]
    log = r.daemon.log_end()
    r.daemon.stop()
    return _median(figures, "rate"), figures, log


def copy_modes_step(bench, stack):
    """Each way to issue copies, and to wait for them, that the daemon has a setting for."""

    def measure(row, settings):
        rate, figures, log = _load_rate(bench, stack, "8gib", 3, settings)
        bench.report.row(row, rate, rounds=figures, log=log)

    cases = [
        ("copies_default", {}),
        ("copies_poll", {"cuda.poll_copies": "true"}),
        ("copies_batch", {"cuda.batch_single_copies": "true"}),
        ("copies_poll_batch", {"cuda.poll_copies": "true", "cuda.batch_single_copies": "true"}),
    ]
    for_each(bench, cases, measure)


CLOSE = 0.97  # of the best rate counts as equal to it


def advise_blocks(rates):
    """{(MiB, concurrency): GiB/s}: the least memory (block x concurrency) whose rate is as good as the best."""
    best = max(rates.values())
    good = [case for case, rate in rates.items() if rate >= best * CLOSE]
    block, concurrency = min(good, key=lambda case: (case[0] * case[1], case[0]))
    return f"io.block_size {block}MiB, io.concurrency {concurrency} ({rates[block, concurrency]:.2f} of {best:.2f} GiB/s)"


def block_sizes_step(bench, stack):
    rates = {}

    def measure(row, block, concurrency):
        settings = {"io.block_size": f"{block}MiB", "io.concurrency": concurrency, "io.memory_limit": 0}
        if bench.small:  # the ring must fit the fake GPU's host
            settings = {"io.block_size": "1MiB", "io.concurrency": min(concurrency, 8)}
        rates[block, concurrency], figures, log = _load_rate(bench, stack, "8gib", 2, settings)
        bench.report.row(row, rates[block, concurrency], rounds=figures, log=log)

    try:
        cases = [(f"blocks_{b}mib_by_{c}", b, c) for b in BLOCKS for c in CONCURRENCIES]
        for_each(bench, cases, measure)
    finally:
        if len(rates) > 1:
            bench.report.observe("advice: block size and concurrency", advise_blocks(rates))


# ---- host memory of the daemon


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
            samples.append(host_memory(r.daemon.pid))

    sampler = threading.Thread(target=sample, daemon=True)
    samples.append(host_memory(r.daemon.pid))
    sampler.start()
    try:
        r.load()
    finally:
        over.set()
        sampler.join(5)
    in_pool = r.ring["page_kind"] == "hugetlb"
    return max(samples) - (0 if in_pool else r.ring["bytes"])
