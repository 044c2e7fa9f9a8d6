# SPDX-License-Identifier: Apache-2.0
"""What all steps share: the folder, the models, the process that observes the GPU's memory; and how a
step is run, so that a failure stays within its step."""

import os
import shutil
import signal
import statistics
import time
import traceback
from contextlib import ExitStack

from . import machine, model
from .consumer import Skip
from .process import Consumer, Daemon, Failure, NoAnswer, RatesProgram

MIB, GIB = 1 << 20, 1 << 30
NOMINAL = {"tiny": 64 * MIB, "small": 4 * MIB, "1gib": GIB, "8gib": 8 * GIB, "16gib": 16 * GIB, "30gib": 30 * GIB}
MODEL_SECONDS = 150  # to write one
TIME_FOR_A_STEP = 5  # with less left, a step is not begun


class TimeLimit(Exception):
    pass


def _on_alarm(_signal, _frame):
    raise TimeLimit


class Bench:
    def __init__(self, options, folder, script, report):
        self.options, self.folder, self.script, self.report = options, folder, script, report
        self.ordinal, self.scale = options.device, options.scale
        self.small = self.scale < 0.1  # the script itself is tried
        self.bin = os.path.abspath(options.bin)
        self.library = machine.find_client(self.bin)
        self.cudarts = [os.path.abspath(options.cudart)] if options.cudart else machine.find_cudarts()
        self.cudart = None
        self.environment = {**os.environ, "LD_LIBRARY_PATH": machine.library_path(), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment.pop("STREAMERD_SOCKET", None)
        self.environment.setdefault("CUDA_LOG_FILE", "stderr")  # drivers of 12.9 and newer explain errors there
        self.processes = []  # of the running step
        self.deadline = time.monotonic() + options.time
        self.models, self.consumers, self.observer, self.whole_run = {}, 0, None, ExitStack()
        self.roots = [folder]

    # ---- programs

    def binary(self, name):
        return os.path.join(self.bin, name)

    def missing(self):
        """Why nothing can be run, or None."""
        for name in ("streamerd", "streamerctl"):
            if not os.access(self.binary(name), os.X_OK):
                return f"{self.binary(name)} does not exist (--bin)"
        if not self.library:
            return f"libstreamer-client.so.0 is neither beside {self.bin} nor in LD_LIBRARY_PATH"
        if not self.cudarts:
            return "no libcudart.so.13 or .12 is found (--cudart)"
        return None

    def left(self):
        return self.deadline - time.monotonic()

    def fake(self):
        return self.report.hardware.get("fake", False)

    # ---- models

    def size(self, label):
        return max(4 * MIB, int(NOMINAL[label] * self.scale))

    def check_capacity(self, label, *places):
        """Skips the step where the model does not fit: `places` are (where, bytes available)."""
        size, spare = self.size(label), int(GIB * min(1, self.scale))
        for where, available in places:
            if available < size + 2 * spare:
                raise Skip(f"{size / GIB:.1f} GiB do not fit: {available / GIB:.1f} GiB {where}")

    def memory(self):
        """Bytes of host memory that files may take."""
        return self.options.memory * GIB or machine.available_memory()

    def make(self, label):
        """A load of the model is worth measuring only if all of it fits into the page cache."""
        path = os.path.join(self.folder, label + ".safetensors")
        self.check_capacity(
            label,
            ("on the disk", shutil.disk_usage(self.folder).free),
            ("free on the GPU", self.free()),
            ("of host memory for its pages", self.memory()),
        )
        try:
            model.make(path, model.small_table() if label == "small" else model.tensor_table(self.size(label)))
        except BaseException:
            if os.path.exists(path):
                os.unlink(path)
            raise
        self.models[label] = path

    def remove(self, label):
        path = self.models.pop(label, None)
        if path:
            os.unlink(path)

    def keep_models(self, labels):
        for label in set(self.models) - set(labels):
            self.remove(label)

    def file(self, label):
        if not self.models.get(label):
            raise Skip(f"the model of {label} was not made")
        return self.models[label]

    def logs(self):
        """The processes whose logs may explain why a step failed."""
        lasting = [self.observer] if self.observer and self.observer not in self.processes else []
        return self.processes + lasting

    # ---- processes; they end with the step whose stack is given

    def _add(self, stack, process, end):
        self.processes.append(process)
        stack.callback(end)
        return process

    def consumer(self, stack, enter=True, namespaces=()):
        self.consumers += 1
        consumer = Consumer(self, self.consumers, namespaces)
        self._add(stack, consumer, consumer.kill)
        if enter:
            consumer.ask("enter", ordinal=self.ordinal)
        return consumer

    def daemon(self, stack, **options):
        daemon = Daemon(self, **options)
        return self._add(stack, daemon, daemon.stop).start()

    def rates_program(self, stack, path):
        program = RatesProgram(self, path)
        return self._add(stack, program, program.kill)

    def load(self, daemon, label, timeout=60, path=None):
        """Seconds, as a client sees them, for the model of that label under its own name."""
        asked = {"socket": daemon.socket, "path": path or self.file(label), "name": label, "timeout": timeout}
        return self.observer.ask("load", timeout + 10, **asked)["seconds"]

    def unload(self, daemon, label):
        self.observer.ask("unload", socket=daemon.socket, name=label)

    # ---- the GPU's memory

    def observe(self):
        """The observer has a context from here to the end of the run. It describes the GPU, too."""
        self.observer = self.consumer(self.whole_run)
        return self.observer.ask("describe", ordinal=self.ordinal)

    def free(self):
        return self.observer.ask("memory")["free"]

    def await_free(self, free, seconds=10):
        """Waits until as many bytes are free again; a text."""
        end = time.monotonic() + seconds
        while (missing := free - self.free()) > 8 * MIB and time.monotonic() < end:
            time.sleep(0.05)
        if missing <= 8 * MIB:
            return "all of it was freed"
        return f"{missing / MIB:.0f} MiB were not freed within {seconds} s"


# ---- steps


class Step:
    """One line of the table in steps.py. `plan`: the plan that runs it, None: only by name. `seconds`: at most.
    `rows`: how the names of the rows begin that it fills in. `needs`: models."""

    def __init__(self, name, plan, seconds, rows, function, needs=()):
        self.name, self.plan, self.seconds, self.rows = name, plan, seconds, rows
        self.function, self.needs = function, needs

    def _attempt(self, bench):
        """Outcome, its text, and where in this script. The time in which the step's processes end is not counted."""
        stack = ExitStack()
        limit = min(self.seconds, bench.left())
        bench.processes = []
        signal.signal(signal.SIGALRM, _on_alarm)
        try:
            signal.setitimer(signal.ITIMER_REAL, limit)
            if bench.observer and bench.observer.lost:
                bench.observe()
            self.function(bench, stack)
            return "ok", "", None
        except Skip as e:
            return "skipped", str(e), None
        except (TimeLimit, NoAnswer) as e:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for process in bench.logs():
                process.log_threads()
            text = f"not done in {limit:.0f} s" if isinstance(e, TimeLimit) else str(e)
            return "failed", text, traceback.format_exc()
        except (Failure, OSError) as e:
            return "failed", str(e), traceback.format_exc()
        except Exception as e:  # a mistake of this script's own must not end the run either
            return "failed", f"{type(e).__name__}: {e}", traceback.format_exc()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            stack.close()

    def run(self, bench):
        begin, where = time.monotonic(), None
        bench.report.begin(self.name)
        if bench.left() < TIME_FOR_A_STEP:
            outcome, text = "failed", "no time was left for it"
        else:
            outcome, text, where = self._attempt(bench)
        seconds = time.monotonic() - begin
        entry = {"name": self.name, "plan": self.plan, "outcome": outcome, "seconds": round(seconds, 2), "text": text}
        if where:
            entry["where"] = where.splitlines()
            entry["logs"] = {p.name: lines for p in bench.logs() if (lines := p.last_lines())}
        if outcome != "ok":
            bench.report.why_not(self.rows, text)
        bench.report.end(entry)
        return outcome, text, seconds


def model_step(label):
    """Writes the model that later steps need. One that was not written skips these, and no other."""
    return Step(f"model-{label}", None, MODEL_SECONDS, (), lambda bench, _stack: bench.make(label))


def median(values):
    return statistics.median(values)


def for_each(bench, cases, measure):
    """A case is its row and the arguments. If one fails (the machine may support only one kind of handle), the others
    are measured all the same."""
    failures = []
    for row, *arguments in cases:
        try:
            measure(row, *arguments)
        except Failure as e:
            bench.report.why_not([row], str(e))
            failures.append(e)
    if failures:
        raise failures[0]
