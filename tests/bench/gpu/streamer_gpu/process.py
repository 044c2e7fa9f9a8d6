# SPDX-License-Identifier: Apache-2.0
"""The processes of a run: daemons of one GPU, consumers that carry out requests, and gpu-rates."""

import json
import os
import sys
import time

from harness import daemon
from harness.processes import Failure, Process, Worker


LOG_SECONDS = 10


class Consumer(Worker):
    """`namespaces`: "pid" and "net", if the consumer has its own (root only)."""

    def __init__(self, bench, number, namespaces=()):
        self.log = os.path.join(bench.folder, f"consumer-{number}.log")
        command = [sys.executable, bench.script, "--consumer", bench.library, bench.cudart, *namespaces]
        self.spawn(command, bench.environment, talks=True)


class RatesProgram(Process):
    """gpu-rates: one case a line; see tests/gpu/rates.c. The file is what its readers read."""

    number = 0

    def __init__(self, bench, path):
        RatesProgram.number += 1
        self.log = os.path.join(bench.folder, f"rates-{RatesProgram.number}.log")
        self.ms = 10 if bench.small else 500
        self.spawn([bench.binary("gpu-rates"), bench.cudart, str(bench.ordinal), path], bench.environment, talks=True)

    def measure(self, timeout=30, **case):
        """{"read", "copied": GiB/s, "cpu": seconds per GiB}"""
        self.write_line(" ".join(f"{key}={value}" for key, value in {"ms": self.ms, **case}.items()))
        answer = json.loads(self.read_line(timeout))
        if "error" in answer:
            raise Failure(f"gpu-rates: {answer['error']}")
        return answer


class Daemon(daemon.Daemon):
    """A daemon of the run's GPU; `device`: members that differ, or another device."""

    number = 0

    def __init__(self, bench, handles="cuda-ipc", device=None, settings=None):
        Daemon.number += 1
        self.bench = bench
        gpu = {"device": f"cuda:{bench.ordinal}", "budget": "95%", "handles": handles}
        self.on_gpu = (device or gpu).get("device") != "host"
        small = {"io.block_size": "1MiB", "io.memory_limit": "16MiB"} if bench.small else {}
        settings = {"cuda.library": f'"{bench.cudart}"', **small, **(settings or {})}
        base = os.path.join(bench.folder, f"daemon-{Daemon.number}")
        members = {**gpu, **(device or {})} if self.on_gpu else device
        roles = [{"role": "admin", "users": [os.geteuid()]}, {"role": "attach", "users": ["*"]}]
        super().__init__(bench.bin, base, bench.roots, members, settings, bench.environment, roles)

    def stop(self, timeout=10):
        if self.bench.ending:
            self.kill()
            return True
        ended = super().stop(timeout)
        warnings = self.bench.report.warnings
        if not ended:
            warnings.append(f"{self.name}: it did not end within {timeout} s")
        for text in self.warnings():
            if " failed after " not in text and text not in warnings:
                warnings.append(text)
        return ended

    def timed(self, seconds, name):
        """The seconds that a client saw of a load, and what the daemon says of it; the model is loaded."""
        shown = self.model(name)
        return {"seconds": seconds, **{key: shown.get(key) for key in ("load_ns", "stages")}}

    def log_end(self):
        """After a load, of which the daemon logs something; a thread of its own writes that, behind the replies."""
        end = time.monotonic() + LOG_SECONDS
        while not (lines := self.last_lines(20)) and time.monotonic() < end:
            time.sleep(0.05)
        return lines

    def require_pinned_ring(self):
        """Copies from memory that is not pinned have another rate, which is not the product's."""
        pinned = self.ring()["pinned"] if self.on_gpu else "yes"
        if pinned != "yes":
            why = {"refused": "the driver refuses to register it"}.get(pinned, "it is not registered")
            raise Failure(f"the staging ring is not pinned ({why}): its rate is no result")
