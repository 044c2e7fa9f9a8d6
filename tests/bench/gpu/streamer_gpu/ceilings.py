# SPDX-License-Identifier: Apache-2.0
"""The rates of the machine by itself, by gpu-rates: reads from the page cache, copies to the GPU, each alone, both
beside each other, and both in a row as a load does them."""

from harness.model import ensure_cached

from .bench import MIB, for_each

THREADS = (8, 16, 32)

# row: (what of the answer, case). The daemon copies blocks of 8 MiB; +8 is where a file's header may leave a tensor.
CASES = {
    **{f"ceiling_read_{n}": ("read", {"readers": n}) for n in THREADS},
    **{f"ceiling_read_hash_{n}": ("read", {"readers": n, "hash": 1}) for n in THREADS},
    "ceiling_h2d_1": ("copied", {"copiers": 1}),
    "ceiling_h2d_16": ("copied", {"copiers": 16}),
    "ceiling_h2d_1_from_8": ("copied", {"copiers": 1, "from_shift": 8}),
    "ceiling_h2d_16_from_8": ("copied", {"copiers": 16, "from_shift": 8}),
    "ceiling_h2d_16_both_8": ("copied", {"copiers": 16, "from_shift": 8, "to_shift": 8}),
    "ceiling_h2d_16_poll": ("copied", {"copiers": 16, "poll": 1}),
    "ceiling_h2d_16_batch": ("copied", {"copiers": 16, "batch": 1}),
    "ceiling_h2d_16_pageable": ("copied", {"copiers": 16, "pageable": 1}),
    "ceiling_read_beside_h2d": ("read", {"readers": 16, "copiers": 4}),
    "ceiling_h2d_beside_read": ("copied", {"readers": 16, "copiers": 4}),
    **{f"ceiling_read_then_h2d_{n}": ("copied", {"readers": n, "through": 1}) for n in THREADS},
    "ceiling_read_hash_h2d_16": ("copied", {"readers": 16, "through": 1, "hash": 1}),
    "ceiling_read_hash_h2d_32": ("copied", {"readers": 32, "through": 1, "hash": 1}),
}


def ceilings_step(bench, stack):
    """Two rounds, so that a slow moment shows; the better one counts, since these are ceilings."""
    path = bench.file("8gib")
    ensure_cached(path)
    program = bench.rates_program(stack, path)
    block = {"block": MIB if bench.small else 8 * MIB}

    def measure(row, what, case):
        figures = [program.measure(**block, **case) for _ in range(2)]
        best = max(figures, key=lambda f: f[what])
        bench.report.row(row, best[what], rounds=figures, note=f"{best['cpu']:.3f} CPU-s/GiB")

    for_each(bench, [(row, *case) for row, case in CASES.items()], measure)
