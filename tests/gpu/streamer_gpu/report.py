# SPDX-License-Identifier: Apache-2.0
"""Every row that a run may fill in, under a fixed name, and the format of the table and the JSON."""

import json
import os

from .ceilings import CASES as CEILINGS
from .frameworks import LOADERS

SIZES = ("1gib", "8gib", "30gib")
SEGMENTS = ("512mib", "2gib", "4gib", "16gib")
DEFAULT_SEGMENT = "4gib"
BLOCKS = (1, 2, 4, 8, 16)  # MiB
CONCURRENCIES = (8, 16, 32)
PAGES = ("auto", "hugetlb", "4k")
HIGHER, LOWER = ">=", "<="
GVISOR = "gVisor's figure, not Linux's: it has neither cachestat nor RWF_NOWAIT, and its warm loads are not warm loads"


def _rows():
    """(name, unit, better, target); a row without a target is informational."""
    for name in ("h2d_ceiling", "page_cache_ceiling", "disk_ceiling"):
        yield name, "GiB/s", HIGHER, None
    for size in SIZES:
        yield f"cold_{size}", "GiB/s", HIGHER, None
    for name, target in (("1gib", None), ("8gib", 0.9), ("30gib", 0.9), ("vmm_8gib", 0.9)):
        yield f"warm_{name}", "GiB/s", HIGHER, None
        yield f"warm_{name}_vs_ceiling", "of ceiling", HIGHER, target
    yield "verify_8gib", "GiB/s", HIGHER, None
    for name in ("1gib_ipc", "1gib_third", "1gib_vmm", "8gib_ipc", "30gib_ipc", "1gib_torch_ipc", "1gib_torch_vmm",
                 "30gib_torch"):  # fmt: skip
        yield f"tensors_differ_{name}", "tensors", LOWER, 0
    for size in SIZES:
        yield f"attach_ipc_{size}", "ms", LOWER, None
        yield f"attach_vmm_{size}", "ms", LOWER, None
    for segment in SEGMENTS:
        yield f"attach_ipc_16gib_by_{segment}", "ms", LOWER, None
        yield f"attach_ipc_16gib_by_{segment}_vs_bare", "of bare", LOWER, 1.1
        yield f"attach_vmm_16gib_by_{segment}", "ms", LOWER, 10
    yield "context_seconds", "s", LOWER, None
    yield "context_first_load", "ms", LOWER, None
    for name in ("context_daemon", "context_daemon_unloaded", "context_consumer"):
        yield name, "MiB", LOWER, None
    for state in ("destroyed", "retained", "at_start"):
        yield f"load_context_{state}", "ms", LOWER, None
    yield "host_memory_beyond_ring", "MiB", LOWER, 64
    yield "lease_ends_after_kill", "ms", LOWER, None
    for name in CEILINGS:
        yield name, "GiB/s", HIGHER, None
    for block in BLOCKS:
        for concurrency in CONCURRENCIES:
            yield f"blocks_{block}mib_by_{concurrency}", "GiB/s", HIGHER, None
    for name in ("default", "poll", "batch", "poll_batch"):
        yield f"copies_{name}", "GiB/s", HIGHER, None
    for pages in PAGES:
        yield f"host_register_{pages}", "ms/GiB", LOWER, None
        yield f"host_copy_registered_{pages}", "GiB/s", HIGHER, None
        yield f"host_copy_unregistered_{pages}", "GiB/s", HIGHER, None
    for source in ("warm", "tmpfs"):
        for loader in ("streamerd", *LOADERS):
            yield f"loader_{source}_{loader}", "GiB/s", HIGHER, None
        yield f"loader_{source}_vs_best", "of best", HIGHER, 1.0


class Report:
    def __init__(self, path):
        self.path = path
        self.rows = {n: {"name": n, "unit": u, "better": b, "target": t} for n, u, b, t in _rows()}
        self.hardware, self.steps, self.observations, self.warnings = {}, [], [], []
        self.doctor, self.running = {}, None

    def select(self, prefixes):
        """Rows of other steps are left out of the table and the JSON."""
        self.rows = {name: row for name, row in self.rows.items() if name.startswith(tuple(prefixes))}

    def row(self, name, value, ceiling=None, rounds=None, note=None):
        """`rounds`: the figures behind the value; `note`: what limits its meaning."""
        if name not in self.rows:  # a ceiling that another step's rows contain
            return
        self.rows[name].update(value=value, ceiling=ceiling)
        notes = [text for text in (note, GVISOR if self._is_gvisors(self.rows[name]) else None) if text]
        if notes:
            self.rows[name]["note"] = "; ".join(notes)
        if rounds:
            self.rows[name]["rounds"] = rounds
        self.write()

    def _is_gvisors(self, row):
        return row["unit"] == "GiB/s" and self.hardware.get("sandbox") == "gVisor"

    def why_not(self, prefixes, why):
        """For all rows whose names begin so."""
        for name, row in self.rows.items():
            if name.startswith(tuple(prefixes)):
                row.setdefault("why", why)

    def observe(self, name, text):
        self.observations.append({"name": name, "text": text})
        self.write()

    def begin(self, title):
        """The file names the running step, for a machine that does not survive it."""
        self.running = title
        self.write()

    def end(self, step):
        self.running = None
        self.steps.append(step)
        self.write()

    @staticmethod
    def reached(row):
        if row.get("value") is None:
            return "not measured"
        if row["target"] is None:
            return "-"
        met = row["value"] >= row["target"] if row["better"] == HIGHER else row["value"] <= row["target"]
        return "yes" if met else "no"

    def write(self):
        """Replaces the file after each row: the run may be ended at any moment."""
        text = json.dumps(self.document(), indent=2) + "\n"
        is_special = os.path.exists(self.path) and not os.path.isfile(self.path)  # /dev/null
        beside = self.path if is_special else self.path + ".new"
        with open(beside, "w") as f:
            f.write(text)
        if beside != self.path:
            os.replace(beside, self.path)

    def document(self):
        rows = [{"value": None, "ceiling": None, **row, "reached": self.reached(row)} for row in self.rows.values()]
        return {
            "hardware": self.hardware,
            "running": self.running,
            "rows": rows,
            "observations": self.observations,
            "steps": self.steps,
            "daemon_warnings": self.warnings,
            "doctor": self.doctor,
        }

    def table(self):
        yield f"{'row':38} {'value':>11} {'ceiling':>11} {'target':>11}  {'unit':11} reached"
        for row in self.rows.values():
            target = "-" if row["target"] is None else f"{row['better']} {row['target']:g}"
            reached = self.reached(row)
            if reached == "not measured":
                reached += f": {row.get('why', 'its step ended before')[:120]}"
            elif "note" in row:
                reached += f" ({row['note']})"
            numbers = (_number(row.get("value")), _number(row.get("ceiling")), target)
            yield f"{row['name']:38} {numbers[0]:>11} {numbers[1]:>11} {numbers[2]:>11}  {row['unit']:11} {reached}"
        yield ""
        for step in self.steps:
            if step["outcome"] != "ok":
                yield f"step {step['name']}: {step['outcome']}: {step['text']}"
        for text in self.warnings:
            yield f"the daemon warned: {text}"
        for it in self.observations:
            yield f"{it['name']}: {it['text']}"


def _number(value):
    return "-" if value is None else f"{value:.3f}"
