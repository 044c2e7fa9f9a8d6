# SPDX-License-Identifier: Apache-2.0
"""Every row that a run may fill in, under a fixed name, and how the table and the JSON look."""

import json
import os

SIZES = ("1gib", "8gib", "30gib")
SEGMENTS = ("512mib", "2gib", "4gib", "16gib")
DEFAULT_SEGMENT = "4gib"
HIGHER, LOWER = ">=", "<="


def _rows():
    """(name, unit, better, target); a row without a target is there to be known."""
    yield "h2d_ceiling", "GiB/s", HIGHER, None
    yield "page_cache_ceiling", "GiB/s", HIGHER, None
    yield "disk_ceiling", "GiB/s", HIGHER, None
    for size in SIZES:
        yield f"cold_{size}", "GiB/s", HIGHER, None
        yield f"warm_{size}", "GiB/s", HIGHER, None
        yield f"warm_{size}_vs_ceiling", "of ceiling", HIGHER, 0.9
    yield "warm_vmm_8gib_vs_ceiling", "of ceiling", HIGHER, 0.9
    yield "verify_8gib", "GiB/s", HIGHER, None
    for name in ("1gib_ipc", "1gib_third", "1gib_vmm", "8gib_ipc", "30gib_ipc"):
        yield f"tensors_differ_{name}", "tensors", LOWER, 0
    for size in SIZES:
        yield f"attach_ipc_{size}", "ms", LOWER, None
        yield f"attach_vmm_{size}", "ms", LOWER, None
    for segment in SEGMENTS:
        yield f"attach_ipc_16gib_by_{segment}", "ms", LOWER, None
        yield f"attach_ipc_16gib_by_{segment}_vs_bare", "of bare", LOWER, 1.1
        yield f"attach_vmm_16gib_by_{segment}", "ms", LOWER, 10
    yield "start_context", "ms", LOWER, None
    yield "context_daemon", "MiB", LOWER, None
    yield "context_daemon_unloaded", "MiB", LOWER, None
    yield "context_consumer", "MiB", LOWER, None
    yield "host_memory_beyond_ring", "MiB", LOWER, 64
    yield "lease_ends_after_kill", "ms", LOWER, None


class Report:
    def __init__(self, path):
        self.path = path
        self.rows = {n: {"name": n, "unit": u, "better": b, "target": t} for n, u, b, t in _rows()}
        self.hardware, self.steps, self.observations, self.warnings = {}, [], [], []
        self.doctor, self.running = {}, None

    def row(self, name, value, ceiling=None, rounds=None, note=None):
        """`rounds`: what the value is the median of, for those who read the JSON; `note`: what to think of it."""
        self.rows[name].update(value=value, ceiling=ceiling)
        if note:
            self.rows[name]["note"] = note
        if rounds:
            self.rows[name]["rounds"] = rounds
        self.write()

    def why_not(self, prefixes, why):
        """For all rows whose names begin so."""
        for name, row in self.rows.items():
            if name.startswith(tuple(prefixes)):
                row.setdefault("why", why)

    def observe(self, name, text):
        self.observations.append({"name": name, "text": text})
        self.write()

    def begin(self, title):
        """A step that the machine does not survive is known by name."""
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
        """At every moment the file is whole, and has all that is known: whoever runs this may be ended at any."""
        text = json.dumps(self.document(), indent=2) + "\n"
        beside = self.path + ".new" if os.path.isfile(self.path) else self.path  # it may be /dev/null
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
                reached += f": {row.get('why', 'its step did not come to it')[:120]}"
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
