# SPDX-License-Identifier: Apache-2.0
"""What all steps share: the folder, the models, the one who watches the GPU's memory; and how a
step is run, so that none takes the others along."""

import os
import shutil
import signal
import statistics
import time
import traceback
from contextlib import ExitStack

from . import machine, model
from .consumer import Skip
from .process import Consumer, Daemon, Failure, NoAnswer

MIB, GIB = 1 << 20, 1 << 30
NOMINAL = {"tiny": 64 * MIB, "small": 4 * MIB, "1gib": GIB, "8gib": 8 * GIB, "16gib": 16 * GIB, "30gib": 30 * GIB}
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
        self.environment.setdefault("CUDA_LOG_FILE", "stderr")  # drivers of 12.9 and newer say there what was wrong
        self.processes = []  # of the running step
        self.deadline = time.monotonic() + options.time
        self.models, self.consumers, self.observer, self.whole_run = {}, 0, None, ExitStack()

    # ---- what is there

    def binary(self, name):
        return os.path.join(self.bin, name)

    def missing(self):
        """Why nothing can be run, or None."""
        for name in ("streamerd", "streamerctl"):
            if not os.access(self.binary(name), os.X_OK):
                return f"{self.binary(name)} is not there (--bin)"
        if not self.library:
            return f"libstreamer-client.so.0 is neither beside {self.bin} nor in LD_LIBRARY_PATH"
        if not self.cudarts:
            return "no libcudart.so.13 or .12 is found (--cudart)"
        return None

    def left(self):
        return self.deadline - time.monotonic()

    # ---- models

    def size(self, label):
        return max(4 * MIB, int(NOMINAL[label] * self.scale))

    def _check_room(self, size, cached):
        spare = int(GIB * min(1, self.scale))
        rooms = {"on the disk": shutil.disk_usage(self.folder).free, "free on the GPU": self.free()}
        if cached:
            rooms["of host memory for its pages"] = self.options.memory * GIB or machine.memory_room()
        for where, room in rooms.items():
            if room < size + 2 * spare:
                raise Skip(f"{size / GIB:.1f} GiB do not fit: {room / GIB:.1f} GiB {where}")

    def make(self, label, cached=True):
        """`cached`: its loads are worth measuring only where all of it fits into the page cache."""
        size, path = self.size(label), os.path.join(self.folder, label + ".safetensors")
        self.models[label] = None
        self._check_room(size, cached)
        try:
            model.make(path, model.small_table() if label == "small" else model.tensor_table(size))
        except BaseException:
            if os.path.exists(path):
                os.unlink(path)
            raise
        self.models[label] = path

    def remove(self, label):
        path = self.models.pop(label, None)
        if path:
            os.unlink(path)

    def file(self, label):
        if not self.models.get(label):
            raise Skip(f"the model of {label} was not made")
        return self.models[label]

    def witnesses(self):
        """Whose logs may say why a step failed."""
        lasting = [self.observer] if self.observer and self.observer not in self.processes else []
        return self.processes + lasting

    # ---- processes; they end with the step whose stack is given

    def consumer(self, stack, enter=True):
        self.consumers += 1
        consumer = Consumer(self, self.consumers)
        self.processes.append(consumer)
        stack.callback(consumer.kill)
        if enter:
            consumer.ask("enter", ordinal=self.ordinal)
        return consumer

    def daemon(self, stack, **options):
        daemon = Daemon(self, **options)
        self.processes.append(daemon)
        stack.callback(daemon.stop)
        return daemon.start()

    def load(self, daemon, label, timeout=60):
        """Seconds, as a client sees them, for the model of that label under its own name."""
        asked = {"socket": daemon.socket, "path": self.file(label), "name": label, "timeout": timeout}
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

    def comes_back(self, free, seconds=10):
        """Waits until as much is free again as was; says what is missing."""
        end = time.monotonic() + seconds
        while (missing := free - self.free()) > 8 * MIB and time.monotonic() < end:
            time.sleep(0.05)
        if missing <= 8 * MIB:
            return "all of it came back"
        return f"{missing / MIB:.0f} MiB did not come back in {seconds} s"


# ---- steps


class Step:
    def __init__(self, title, limit, rows, function):
        self.title, self.limit, self.rows, self.function = title, limit, rows, function

    def _attempt(self, bench):
        """Outcome, its text, and where in this script. The processes of a step end after its time is no longer
        counted."""
        stack = ExitStack()
        limit = min(self.limit, bench.left())
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
            for process in bench.witnesses():
                process.note_threads()
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
        bench.report.begin(self.title)
        if bench.left() < TIME_FOR_A_STEP:
            outcome, text = "failed", "no time was left for it"
        else:
            outcome, text, where = self._attempt(bench)
        seconds = time.monotonic() - begin
        entry = {"name": self.title, "outcome": outcome, "seconds": round(seconds, 2), "text": text}
        if where:
            entry["where"] = where.splitlines()
            entry["logs"] = {p.name: lines for p in bench.witnesses() if (lines := p.last_lines())}
        if outcome != "ok":
            bench.report.why_not(self.rows, text)
        bench.report.end(entry)
        return outcome, text, seconds


def median(values):
    return statistics.median(values)
