# SPDX-License-Identifier: Apache-2.0
"""The cost for an engine that copies a model from the daemon's host memory to its GPU: registering the read-only
mapping, and the rates from registered and unregistered memory and through a small pinned buffer, by page kind."""

from . import machine
from .bench import GIB, MIB, for_each, median
from .report import PAGES

LABEL = "1gib"


def _copies(bench, stack, row, pages):
    size = bench.size(LABEL)
    daemon = bench.daemon(stack, device={"device": "host", "budget": size + 256 * MIB, "pages": f'"{pages}"'})
    bench.load(daemon, LABEL)
    kind = daemon.model(LABEL)["devices"][0]["page_kind"]
    consumer = bench.consumer(stack)
    attached = consumer.ask("attach_host", 60, socket=daemon.socket, name=LABEL)
    report, gib = bench.report, attached["bytes"] / GIB
    report.observe(f"host memory, pages {pages}", f"{kind}; every page read in {attached['touch_ms']:.1f} ms")

    def measure(how):
        rates = consumer.ask("host_copies", 60, ordinal=bench.ordinal, how=how)["rates"]
        report.row(f"host_copy_{how}_{row}", median(rates), rounds=rates, note=kind)

    measure("unregistered")
    registered = consumer.ask("host_register", 60, ordinal=bench.ordinal)
    if registered["refused"] is None:
        report.row(f"host_register_{row}", registered["seconds"] * 1e3 / gib, note=kind)
        measure("registered")
    else:  # a private, writable mapping is no substitute: it is another memory
        why = f"registering for reading is refused, see host_copy_staged: {registered['refused']}"
        report.why_not([f"host_register_{row}", f"host_copy_registered_{row}"], why)
    measure("staged")
    daemon.stop()


def host_copies_step(bench, stack):
    def measure(row, pages):
        if pages != "hugetlb":
            return _copies(bench, stack, row, pages)
        pool = machine.Pool(0 if bench.small else bench.size(LABEL) + 256 * MIB)  # a trial changes no machine
        try:
            if bench.small or not pool.complete():
                rows = [f"host_{what}_{row}" for what in ("register", "copy_unregistered", "copy_staged", "copy_registered")]
                return bench.report.why_not(rows, "no huge pages can be set aside here (vm.nr_hugepages)")
            return _copies(bench, stack, row, pages)
        finally:
            pool.restore()

    for_each(bench, [(pages, pages) for pages in PAGES], measure)
