#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Interrupts open(), reading and close() at random points, and prints what is left.

    interrupts.py FILE COUNT SEED

FILE has BF16 tensors. Each round uses the file, by torch and by numpy, until a signal raises KeyboardInterrupt after a
random time. Prints a JSON object: leases, and descriptors and threads that are left; exceptions of another kind; and
exceptions in destructors, which Python cannot raise.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import threading
import time
from typing import Any

import streamerd

LONGEST_SECONDS = 0.002


def use(path: str, framework: str) -> None:
    with streamerd.open(path, framework=framework, progress=False) as model:
        tensors = dict(model)
        assert len(tensors) == len(model) and all(name in model for name in tensors)
        name = next(iter(tensors))
        model[name].sum()
        model.raw(name)
        model.get_slice(name)[0]
    streamerd.fetch(os.path.dirname(path), "config.json")


def main(path: str, count: int, seed: int) -> None:
    choice = random.Random(seed)
    ignored: list[str] = []
    others: list[str] = []
    sys.unraisablehook = lambda args: ignored.append(repr(args))
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    for framework in ("numpy", "torch"):
        use(path, framework)
    gc.collect()
    files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    interrupted = 0
    while interrupted < count and len(others) < 10:
        framework = choice.choice(("numpy", "torch"))
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, choice.uniform(1e-6, LONGEST_SECONDS))
                while True:
                    use(path, framework)
            except KeyboardInterrupt:
                interrupted += 1
        except BaseException as e:
            others.append(repr(e))
            signal.setitimer(signal.ITIMER_REAL, 0)
    gc.collect()
    leases: list[Any] = []
    deadline = time.monotonic() + 20  # calls that were given up end by themselves
    while time.monotonic() < deadline:
        leases = streamerd._client.connect().call("ps")["leases"]
        left = len(os.listdir("/proc/self/fd")) - files
        if not leases and left <= 0:
            break
        time.sleep(0.01)
    result = {
        "interrupted": interrupted,
        "leases": len(leases),
        "files": max(0, left),
        "threads": threading.active_count() - threads,
        "others": others,
        "ignored": ignored[:10],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
