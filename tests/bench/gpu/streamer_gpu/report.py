# SPDX-License-Identifier: Apache-2.0
"""Every row that a run may fill in, under a fixed name, and the format of the table and the JSON."""

import itertools
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
TABLE_LINES = 60
OUTPUT_CHARACTERS = 11000  # some machines return no more than the end of what a command prints
GROUPS = (  # rows without a target that share a line of the table: how their names begin
    *(f"blocks_{block}mib_by_" for block in BLOCKS),
    *("ceiling_read_hash_h2d_", "ceiling_read_hash_", "ceiling_read_then_h2d_", "ceiling_read_", "ceiling_h2d_16_", "ceiling_h2d_"),
    *("copies_", "call_register_", "call_", "load_context_", "host_register_"),
    *("host_copy_registered_", "host_copy_unregistered_", "host_copy_staged_"),
)


def _rows():
    """(name, unit, better, target); a row without a target is informational."""
    for name in ("8gib", "vmm_8gib", "1gib", "30gib"):
        yield f"warm_{name}", "GiB/s", HIGHER, None
        yield f"warm_{name}_vs_ceiling", "of ceiling", HIGHER, None if name == "1gib" else 0.9
        yield f"warm_{name}_vs_smaller", "of the smaller", HIGHER, None
    for name in ("combined_ceiling", "h2d_ceiling", "page_cache_ceiling", "disk_ceiling"):
        yield name, "GiB/s", HIGHER, None
    for size in SIZES:
        yield f"cold_{size}", "GiB/s", HIGHER, None
    yield "verify_8gib", "GiB/s", HIGHER, None
    for name in ("1gib_ipc", "1gib_third", "1gib_vmm", "8gib_ipc", "30gib_ipc", "loading_ipc", "loading_vmm",
                 "restored", "1gib_torch_ipc", "1gib_torch_vmm", "30gib_torch"):  # fmt: skip
        yield f"tensors_differ_{name}", "tensors", LOWER, 0
    yield "contract_broken", "answers", LOWER, 0
    for kind in ("vmm", "ipc"):
        yield f"llama_tokens_differ_{kind}", "tokens", LOWER, 0
        yield f"llama_tokens_differ_killed_{kind}", "tokens", LOWER, 0
        yield f"llama_load_into_{kind}", "ms", LOWER, None
    yield "publish_tokens_differ", "tokens", LOWER, 0
    yield "publish_tokens_differ_killed", "tokens", LOWER, 0
    yield "publish_time", "ms", LOWER, None
    yield "publish_load_into", "ms", LOWER, None
    yield "publish_memory_publisher", "MiB", LOWER, None
    yield "publish_memory_second", "MiB", LOWER, 64
    yield "update_tokens_differ", "tokens", LOWER, 0
    yield "update_memory_growth", "MiB", LOWER, 16
    yield "update_put", "ms", LOWER, None
    yield "update_take", "ms", LOWER, None
    yield "artifacts_compile", "ms", LOWER, None
    yield "artifacts_publish", "ms", LOWER, None
    yield "artifacts_restore", "ms", LOWER, None
    yield "artifacts_compile_restored", "of the first", LOWER, 0.5
    for size in SIZES:
        yield f"attach_ipc_{size}", "ms", LOWER, None
        yield f"attach_vmm_{size}", "ms", LOWER, None
    for segment in SEGMENTS:
        yield f"attach_ipc_16gib_by_{segment}", "ms", LOWER, None
        yield f"attach_ipc_16gib_by_{segment}_vs_bare", "of bare", LOWER, 1.1
        yield f"attach_vmm_16gib_by_{segment}", "ms", LOWER, 10
    for name in ("vmm", "ipc", "descriptors", "consumer"):
        yield f"bytes_reused_{name}", "bytes", LOWER, 0
    yield "host_memory_beyond_ring", "MiB", LOWER, 64
    yield "host_cache_evict", "GiB/s", HIGHER, None
    yield "host_cache_restore", "GiB/s", HIGHER, None
    yield "unload_stall", "ms", LOWER, None
    yield "unload_while_loading", "ms", LOWER, None
    yield "lease_ends_after_kill", "ms", LOWER, None
    yield "context_seconds", "s", LOWER, None
    yield "context_first_load", "ms", LOWER, None
    for name in ("context_daemon", "context_daemon_unloaded", "context_consumer"):
        yield name, "MiB", LOWER, None
    for state in ("destroyed", "retained", "at_start"):
        yield f"load_context_{state}", "ms", LOWER, None
    for name in CALLS:
        yield f"call_{name}", "ms", LOWER, None
    for memory in REGISTERED:
        yield f"call_register_{memory}", "ms/GiB", LOWER, None
        yield f"call_register_{memory}_undo", "ms/GiB", LOWER, None
    for name in CEILINGS:
        yield name, "GiB/s", HIGHER, None
    for block in BLOCKS:
        for concurrency in CONCURRENCIES:
            yield f"blocks_{block}mib_by_{concurrency}", "GiB/s", HIGHER, None
    for name in ("default", "poll", "batch", "poll_batch"):
        yield f"copies_{name}", "GiB/s", HIGHER, None
    for pages in PAGES:
        yield f"host_register_{pages}", "ms/GiB", LOWER, None
    for how in ("registered", "unregistered", "staged"):
        for pages in PAGES:
            yield f"host_copy_{how}_{pages}", "GiB/s", HIGHER, None
    for source in ("warm", "tmpfs"):
        yield f"loader_{source}_vs_best", "of best", HIGHER, 1.0
        for loader in ("streamerd", *LOADERS):
            yield f"loader_{source}_{loader}", "GiB/s", HIGHER, None


CALLS = ("get_info", "free_null", "malloc_2mib", "free_2mib", "malloc_1gib", "free_1gib", "malloc_4gib", "free_4gib")
REGISTERED = ("huge", "small", "memfd")


class Report:
    def __init__(self, path):
        self.path = path
        self.rows = {n: {"name": n, "unit": u, "better": b, "target": t} for n, u, b, t in _rows()}
        self.hardware, self.steps, self.observations, self.warnings = {}, [], [], []
        self.doctor, self.running, self.ended = {}, None, None

    def select(self, prefixes):
        """Rows of other steps are left out of the table and the JSON."""
        self.rows = {name: row for name, row in self.rows.items() if name.startswith(tuple(prefixes))}

    def row(self, name, value, ceiling=None, rounds=None, note=None, log=None):
        """`rounds`: the figures behind the value; `note`: what limits its meaning; `log`: the end of the daemon's."""
        if name not in self.rows:  # a ceiling that another step's rows contain
            return
        row = self.rows[name]
        row.update(value=value, ceiling=ceiling)
        notes = [text for text in (note, GVISOR if self._is_gvisors(row) else None) if text]
        for key, of in (("note", "; ".join(notes)), ("rounds", rounds), ("log", log)):
            if of:
                row[key] = of
        self.write()

    def value(self, name):
        """Of a row that was recorded; None otherwise."""
        return self.rows.get(name, {}).get("value")

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
            "ended": self.ended,
            "rows": rows,
            "observations": self.observations,
            "steps": self.steps,
            "daemon_warnings": self.warnings,
            "doctor": self.doctor,
        }

    # ---- what is printed

    def table(self):
        """At most TABLE_LINES lines: a row, or a group of rows, each. Rows with a target are first where not all fit."""
        lines = []  # (line, rows in it, whether they have a target)
        for group, rows in itertools.groupby(self.rows.values(), _group):
            rows = list(rows)
            if group is None:
                lines += [(self._line(row), 1, row["target"] is not None) for row in rows]
            else:
                lines.append((_group_line(group, rows), len(rows), False))
        header = f"{'row':36} {'value':>10} {'ceiling':>10} {'target':>8}  {'unit':10} reached"
        most = TABLE_LINES - 1
        if len(lines) <= most:
            return [header, *(line for line, _, _ in lines)]
        lines.sort(key=lambda line: not line[2])
        left = sum(rows for _, rows, _ in lines[most - 1 :])
        return [header, *(line for line, _, _ in lines[: most - 1]), f"({left} rows only in the JSON)"]

    def _line(self, row):
        target = "-" if row["target"] is None else f"{row['better']} {row['target']:g}"
        reached = self.reached(row)
        if reached == "not measured":
            reached += f": {row.get('why', self.ended or 'its step ended before')[:70]}"
        elif "note" in row:
            reached += f" ({row['note'][:70]})"
        numbers = (_number(row.get("value")), _number(row.get("ceiling")), target)
        return f"{row['name']:36} {numbers[0]:>10} {numbers[1]:>10} {numbers[2]:>8}  {row['unit']:10} {reached}"

    def details(self):
        """The lines that follow the table, the most important first."""
        if self.ended:
            yield self.ended
        for step in self.steps:
            if step["outcome"] != "ok":
                yield f"step {step['name']}: {step['outcome']}: {step['text']}"
        for text in self.warnings:
            yield f"the daemon warned: {text}"
        for row in self.rows.values():
            stages = [r["stages"] for r in row.get("rounds") or [] if isinstance(r, dict) and r.get("stages")]
            if stages and row["name"].startswith(("warm_", "cold_", "loader_")):
                yield f"{row['name']}, ms by stage in the last round: {_stages(stages[-1])}"
        for it in self.observations:
            yield f"{it['name']}: {it['text']}"

    def printed(self, title):
        """The table, and as many lines after it as fit."""
        lines = [title, *self.table()]
        left = OUTPUT_CHARACTERS - sum(len(line) + 1 for line in lines)
        details = list(self.details())
        for i, text in enumerate(details):
            line = text if len(text) <= 300 else text[:297] + "..."
            left -= len(line) + 1
            if left < 100:
                lines.append(f"({len(details) - i} more lines are in the JSON)")
                break
            lines.append(line)
        return lines


def _group(row):
    if row["target"] is not None:
        return None
    return next((prefix for prefix in GROUPS if row["name"].startswith(prefix)), None)


def _group_line(prefix, rows):
    figures = ", ".join(f"{row['name'].removeprefix(prefix)} {_number(row.get('value'), 2)}" for row in rows)
    why = next((f": {row.get('why', 'not measured')[:60]}" for row in rows if row.get("value") is None), "")
    return f"{prefix.rstrip('_')}: {figures} {rows[0]['unit']}{why}"


def _stages(stages):
    return ", ".join(f"{name.removesuffix('_ns')} {ns / 1e6:.0f}" for name, ns in stages.items() if ns)


def _number(value, digits=3):
    return "-" if value is None else f"{value:.{digits}f}"
