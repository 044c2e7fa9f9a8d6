# SPDX-License-Identifier: Apache-2.0
"""What all steps share: the folder, the models, the process that observes the GPU's memory; and how a
step is run, so that a failure stays within its step."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
import traceback
from contextlib import ExitStack

from harness import model
from harness.package import package_folder
from harness.processes import Failure, NoAnswer, Process, Skip, end_with_parent

from . import machine
from .process import Consumer, Daemon, RatesProgram

MIB, GIB = 1 << 20, 1 << 30
NOMINAL = {"tiny": 64 * MIB, "small": 4 * MIB, **{f"{n}gib": n * GIB for n in (1, 4, 8, 16, 30)}}
MODEL_SECONDS = 150  # to write one
TIME_FOR_A_STEP = 5  # with less left, a step is not begun


IMPORT_SECONDS = 60
ENTER_SECONDS = 60  # for a context: the first process may wait for the driver to start
PROGRAMS = ("streamerd", "streamerctl", "gpu-rates")


class TimeLimit(Exception):
    pass


class Ended(BaseException):
    """The run is ended by a signal."""


class _Limit:
    """The time limit of the running step."""

    armed = False  # an alarm that comes when the step is over raises nothing


def _on_alarm(_signal, _frame):
    if _Limit.armed:
        raise TimeLimit


class Bench:
    def __init__(self, options, folder, script, report):
        self.options, self.folder, self.script, self.report = options, folder, script, report
        self.ordinal, self.scale = options.device, options.scale
        self.small = self.scale < 0.1  # the script itself is tried
        self.bin = os.path.abspath(options.bin)
        self.library = machine.find_client(self.bin)
        self.cudarts = machine.find_cudarts(self.bin)
        if options.cudart:
            self.cudarts = [machine.named_cudart(options.cudart, self.bin)]
        self.cudart = None
        self.environment = {**os.environ, "LD_LIBRARY_PATH": machine.library_path()}
        if sys.dont_write_bytecode:
            self.environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self.environment.pop("STREAMERD_SOCKET", None)
        self.environment.setdefault("CUDA_LOG_FILE", "stderr")  # drivers of 12.9 and newer explain errors there
        self.processes = []  # of the running step
        self.deadline = self.step_deadline = time.monotonic() + options.time
        self.models, self.consumers, self.observer, self.whole_run = {}, 0, None, ExitStack()
        self.roots = [folder]
        self.in_memory = {}  # label: the tmpfs of a model for which the disk is too small
        self.ending = None  # by a signal, its name: processes are killed, not stopped
        self.importing = None
        self.expected_tokens = None  # of the language model, once it is written

    # ---- programs

    def binary(self, name):
        return os.path.join(self.bin, name)

    def missing(self):
        """Why nothing can be run, or None."""
        for name in PROGRAMS:
            if not os.access(self.binary(name), os.X_OK):
                return f"{self.binary(name)} does not exist (make {os.path.basename(self.bin)}/{name}; --bin)"
        if not self.library:
            return f"libstreamer-client.so.0 is neither beside {self.bin} nor in LD_LIBRARY_PATH"
        if package_folder() is None:
            return "no client/python: neither this script nor the current folder is in a checkout of streamerd"
        if not self.cudarts:
            return "no libcudart.so.13 or .12 is found (--cudart)"
        return None

    def left(self):
        return self.deadline - time.monotonic()

    def step_left(self):
        """Seconds until the running step's limit."""
        return self.step_deadline - time.monotonic()

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

    def disk(self):
        """Bytes of disk that models may take."""
        free = shutil.disk_usage(self.folder).free
        return free if self.options.disk is None else min(free, int(self.options.disk * GIB))

    def _place(self, label):
        """The folder for a model: on the disk, or in a tmpfs where the disk is too small."""
        size, spare, disk = self.size(label), int(GIB * min(1, self.scale)), self.disk()
        if disk >= size + 2 * spare:
            return self.folder
        tmpfs = self.in_memory[label] = machine.Tmpfs(self.folder, size + 64 * MIB)
        self.roots.append(tmpfs.path)
        free = shutil.disk_usage(tmpfs.path).free
        if free < size:
            raise Skip(f"{size / GIB:.1f} GiB do not fit: {disk / GIB:.1f} GiB on the disk, {free / GIB:.1f} in tmpfs")
        self.report.observe(f"the model of {label}", f"in tmpfs: the disk has {disk / GIB:.1f} GiB left")
        return tmpfs.path

    def make(self, label):
        """A load of the model is worth measuring only if all of it fits into the page cache."""
        self.check_capacity(label, ("free on the GPU", self.free()), ("of host memory for its pages", self.memory()))
        try:
            path = os.path.join(self._place(label), label + ".safetensors")
            self.models[label] = path
            model.make(path, model.small_table() if label == "small" else model.tensor_table(self.size(label)))
        except BaseException:
            self.remove(label)
            self.models[label] = None
            raise

    def remove(self, label):
        path, tmpfs = self.models.pop(label, None), self.in_memory.pop(label, None)
        if path and os.path.exists(path):
            os.unlink(path)
        if tmpfs:
            self.roots.remove(tmpfs.path)
            tmpfs.remove()

    def keep_models(self, labels):
        for label in set(self.models) - set(labels):
            self.remove(label)

    # ---- Python packages

    def import_packages(self):
        """Reads the code of torch and transformers from the disk, which takes longer than what a step does with it."""
        command = [sys.executable, "-c", "import torch, transformers, safetensors.torch"]
        self.importing = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=self.environment, preexec_fn=end_with_parent
        )

    def await_import(self):
        """No rate is measured beside it."""
        process, self.importing = self.importing, None
        if process is None:
            return
        try:
            process.wait(min(IMPORT_SECONDS, max(1, self.left())))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

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
        stack.callback(lambda: Process.kill(process) if self.ending else end())
        return process

    def consumer(self, stack, enter=True, namespaces=()):
        self.consumers += 1
        consumer = Consumer(self, self.consumers, namespaces)
        self._add(stack, consumer, consumer.kill)
        if enter:
            consumer.ask("enter", ENTER_SECONDS, ordinal=self.ordinal)
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
        return self.observer.ask("describe", ENTER_SECONDS, ordinal=self.ordinal)

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
    `rows`: how the names of the rows begin that it fills in. `needs`: models. `imports`: whether it needs torch."""

    def __init__(self, name, plan, seconds, rows, function, needs=(), imports=False):
        self.name, self.plan, self.seconds, self.rows = name, plan, seconds, rows
        self.function, self.needs, self.imports = function, needs, imports

    def _run_limited(self, bench, stack, limit):
        """TimeLimit is raised from here, or not at all."""
        bench.step_deadline = time.monotonic() + limit
        signal.signal(signal.SIGALRM, _on_alarm)
        try:
            _Limit.armed = True
            signal.setitimer(signal.ITIMER_REAL, limit)
            if bench.observer and bench.observer.unanswered:
                bench.observe()
            self.function(bench, stack)
        finally:
            _Limit.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _attempt(self, bench):
        """Outcome, its text, and where in this script. The time in which the step's processes end is not counted."""
        stack = ExitStack()
        limit = min(self.seconds, bench.left())
        bench.processes = []
        try:
            self._run_limited(bench, stack, limit)
            return "ok", "", None
        except Skip as e:
            return "skipped", str(e), None
        except (TimeLimit, NoAnswer) as e:
            for process in bench.logs():
                process.log_threads()
            text = f"not done in {limit:.0f} s" if isinstance(e, TimeLimit) else str(e)
            return "failed", text, traceback.format_exc()
        except (Failure, OSError) as e:
            return "failed", str(e), traceback.format_exc()
        except Exception as e:  # a mistake of this script's own must not end the run either
            return "failed", f"{type(e).__name__}: {e}", traceback.format_exc()
        except Ended:
            bench.report.why_not(self.rows, "the run was ended by a signal")
            raise
        finally:
            stack.close()

    def run(self, bench):
        begin, where = time.monotonic(), None
        bench.report.begin(self.name)
        if bench.left() < TIME_FOR_A_STEP:
            outcome, text = "failed", "no time was left for it"
        else:
            outcome, text, where = self._attempt(bench)
        self._report(bench, begin, outcome, text, where)
        return outcome, text, time.monotonic() - begin

    def _report(self, bench, begin, outcome, text, where):
        seconds = time.monotonic() - begin
        entry = {"name": self.name, "plan": self.plan, "outcome": outcome, "seconds": round(seconds, 2), "text": text}
        if where:
            entry["where"] = where.splitlines()
            entry["logs"] = {p.name: lines for p in bench.logs() if (lines := p.last_lines())}
        if outcome != "ok":
            bench.report.why_not(self.rows, text)
        bench.report.end(entry)


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
