# SPDX-License-Identifier: Apache-2.0
"""Steps with consumers: bytes read back, attach times, and the state after a process is killed."""

import os
import signal
import time
from contextlib import ExitStack

from harness.processes import Failure, Skip

from . import wire
from .bench import GIB, MIB, for_each, median
from .report import DEFAULT_SEGMENT, SEGMENTS

SAMPLE = {"every": 8, "limit": MIB}
WHOLE = {"every": 1, "limit": 0}
KINDS = {"ipc": "cuda-ipc", "vmm": "cuda-vmm-fd"}
NOBODY = 65534
LOADING_ATTEMPTS = 3
SECONDS = 8  # for what may hang: other namespaces, memory of a daemon that has ended
ATTACH_SIZES = tuple(f"attach_{kind}_{size}" for kind in KINDS for size in ("1gib", "8gib"))
ATTACH_SEGMENTS = tuple(f"attach_{kind}_16gib" for kind in KINDS)


def _observe_compared(bench, name, result):
    what = f"{result['tensors']} tensors, {result['bytes'] / MIB:.0f} MiB compared"
    if result["differing"]:
        what += f"; {result['differing']} differ, {', '.join(result['names'])} among them"
    bench.report.observe(f"bytes read back ({name})", what)


def compare(bench, consumer, label, name, extent):
    result = consumer.ask("compare", 60, path=bench.file(label), **extent)
    bench.report.row(f"tensors_differ_{name}", result["differing"])
    _observe_compared(bench, name, result)


def attached(bench, stack, daemon, label):
    consumer = bench.consumer(stack)
    consumer.ask("attach", socket=daemon.socket, name=label)
    return consumer


# ---- basic function


def calls_step(bench, stack):
    """Records how CUDA answers each question, refusals included; a new process asks each set. The row counts the answers
    that the product does not expect."""
    broken = []

    def observe(consumer, **of):
        for what, answer, is_broken in consumer.ask("questions", ordinal=bench.ordinal, **of)["answers"]:
            bench.report.observe("CUDA: " + what, answer)
            if is_broken:
                broken.append(what)

    observe(bench.consumer(stack))

    def measure(_row, kind):
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "tiny")
        observe(bench.consumer(stack), socket=daemon.socket, name="tiny")
        daemon.stop()

    for_each(bench, [("calls", kind) for kind in KINDS.values()], measure)
    bench.report.row("contract_broken", len(broken), note=", ".join(broken))


def call_times_step(bench, stack):
    """What the daemon and the library call, timed one by one; a GPU that other processes use answers differently."""
    rows = bench.consumer(stack).ask("call_times", 50, ordinal=bench.ordinal, gib=int(GIB * min(1, bench.scale)))
    for name, figures in rows.items():
        if isinstance(figures, str):  # a refusal, which is an answer
            bench.report.why_not([f"call_{name}"], figures)
            continue
        scale = 1 / min(1, bench.scale) if name.startswith("register_") else 1
        bench.report.row(f"call_{name}", median(figures) * scale, rounds=figures)


def doctor_step(bench, stack):
    """streamerctl doctor, with both kinds of handle: it loads a model of its own and reads it back."""
    failed = []
    for kind in KINDS.values():
        daemon = bench.daemon(stack, handles=kind)
        said = bench.report.doctor[kind] = daemon.ctl("doctor", accept=(0, 1))
        bench.report.write()
        daemon.stop()
        failed += [f"{kind}: {it['check']}: {it['text']}" for it in said["checks"] if it["result"] == "fail"]
    if failed:
        raise Failure("; ".join(failed))


def small_tensors_step(bench, stack):
    """Tensors that are not adjacent on the GPU are copied in batches, and each must be complete."""

    def measure(_row, kind):
        daemon = bench.daemon(stack, handles=kind, settings={"cuda.context_retention": "0s"})
        for attempt in ("first", "once more, in a new context"):
            bench.load(daemon, "small")
            consumer = attached(bench, stack, daemon, "small")
            result = consumer.ask("compare", 60, path=bench.file("small"), **WHOLE)
            _observe_compared(bench, f"small tensors, {kind}, {attempt}", result)
            if result["differing"]:
                raise Failure(f"{kind}: {result['differing']} of {result['tensors']} small tensors differ")
            consumer.ask("detach")
            bench.unload(daemon, "small")
        daemon.stop()

    for_each(bench, [("small_tensors", kind) for kind in KINDS.values()], measure)


# ---- what a consumer may do with what it maps


def rights_step(bench, stack):
    """cuda-vmm-fd must be readable alone as the library maps it; cuda-ipc is known to be writable, and so is a
    descriptor that a process maps without the library."""
    for kind in KINDS.values():
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "tiny")
        consumer = bench.consumer(stack)
        writable = consumer.ask("attach", socket=daemon.socket, name="tiny")["writable"]
        try:
            refused = consumer.ask("write")["refused"]
            text = f"refused ({refused})" if refused else "it succeeds"
        except Failure as e:  # a fault may end the process, which is an answer, too
            refused = text = f"the consumer ends ({e})"
        text += f"; the lease is {'writable' if writable else 'for reading alone'}"
        bench.report.observe(f"a write by a consumer, {kind}", text)
        if kind == KINDS["vmm"]:
            _observe_bare_write(bench, stack, daemon)
        other = attached(bench, stack, daemon, "tiny").ask("compare", 60, path=bench.file("tiny"), **WHOLE)
        if other["differing"]:
            raise Failure(f"{kind}: after it another consumer reads other bytes")
        daemon.stop()
        if not writable and not refused:
            raise Failure(f"{kind}: memory that is mapped for reading alone can be written")


def _observe_bare_write(bench, stack, daemon):
    try:
        refused = bench.consumer(stack).ask("write_bare", socket=daemon.socket, name="tiny")["refused"]
        text = f"refused ({refused})" if refused else "it succeeds"
    except Failure as e:
        text = f"the consumer ends ({e})"
    bench.report.observe("a write by a process that maps the descriptor without the library, cuda-vmm-fd", text)


# ---- other users and namespaces

# What the consumer does not share with the daemon: its user, namespaces of its own.
FOREIGN_CLIENTS = {
    "another user": (NOBODY, ()),
    "another network namespace": (None, ("net",)),
    "a PID namespace below": (None, ("pid",)),
    "a PID and a network namespace": (None, ("pid", "net")),
    "another user in namespaces": (NOBODY, ("pid", "net")),
}


class _Case:
    """One answer that is wanted, from consumers that have SECONDS in all. It is not asked for if the step's time would
    not last for the worst case. `around`: seconds that starting and ending its processes may take."""

    def __init__(self, bench, stack, name, around=7):
        self.bench, self.stack, self.name, self.around, self.ends = bench, stack, name, around, ExitStack()

    def observe(self, answer):
        """Whether `answer`, a function that returns a text, has succeeded; what fails is an answer, too."""
        good, text = False, "not asked: its step had no time left"
        if self.bench.step_left() > SECONDS + self.around:
            self.begin()
            try:
                good, text = True, answer()
            except (Failure, OSError) as e:
                text = f"no: {e}"
        self.bench.report.observe(self.name, text)
        self.ends.close()
        return good

    def begin(self):
        """Its time counts from here."""
        self.end = time.monotonic() + SECONDS

    def ask(self, consumer, op, **arguments):
        return consumer.ask(op, max(0.1, self.end - time.monotonic()), **arguments)

    def enter(self, uid, namespaces, lasting=False):
        """A consumer of that user in those namespaces, with a context; `lasting`: it does not end with the case."""
        consumer = self.bench.consumer(self.stack, enter=False, namespaces=namespaces)
        if not lasting:
            self.ends.callback(consumer.kill)
        if uid is not None:
            self.ask(consumer, "become", uid=uid)
        self.ask(consumer, "enter", ordinal=self.bench.ordinal)
        return consumer


def _require_root(bench):
    if os.geteuid() != 0:
        raise Skip("only root can have a process of another user or in another namespace")
    os.chmod(bench.folder, 0o711)


def foreign_clients_step(bench, stack):
    """Whether a model is attached by a process of another user, or in other namespaces; no is an answer, too. Each has
    a daemon of its own: one that hangs in a driver may leave another's unusable."""
    _require_root(bench)
    for kind in KINDS.values():
        for which, (uid, namespaces) in FOREIGN_CLIENTS.items():
            case = _Case(bench, stack, f"a consumer: {which}, {kind}", around=40)
            _foreign_client(case, kind, uid, namespaces)


def _foreign_client(case, kind, uid, namespaces):
    bench = case.bench

    def answer():
        daemon = bench.daemon(case.stack, handles=kind)
        case.ends.callback(daemon.stop)
        bench.load(daemon, "tiny", SECONDS)
        os.chmod(daemon.socket, 0o666)
        case.begin()
        consumer = case.enter(uid, namespaces)
        case.ask(consumer, "attach", socket=daemon.socket, name="tiny")
        return _reading(case.ask(consumer, "compare", path=bench.file("tiny"), **WHOLE))

    case.observe(answer)


def bare_ipc_step(bench, stack):
    """cuda-ipc without the daemon, which refuses what it cannot watch: whether the driver opens a handle there."""
    _require_root(bench)
    for at, exporter_namespaces in (("here", ()), ("in a PID namespace", ("pid",)), ("in both", ("pid", "net"))):
        handles, case = [], _Case(bench, stack, f"bare cuda-ipc, exported {at}")

        def export():
            consumer = case.enter(None, exporter_namespaces, lasting=True)
            handles.append(case.ask(consumer, "export", ordinal=bench.ordinal)["handle"])
            return "yes"

        if not case.observe(export):
            continue
        for which, (uid, namespaces) in {"the same user": (None, ()), **FOREIGN_CLIENTS}.items():
            _open_bare(_Case(bench, stack, f"{case.name}, opened by {which}"), handles[0], uid, namespaces)


def _open_bare(case, handle, uid, namespaces):
    def answer():
        same = case.ask(case.enter(uid, namespaces), "open", handle=handle)["same"]
        return "it opens" if same else "it opens, with other bytes"

    case.observe(answer)


# ---- two consumers


def sharing_step(bench, stack):
    daemon = bench.daemon(stack)
    bench.load(daemon, "1gib")
    second = attached(bench, stack, daemon, "1gib")
    compare(bench, second, "1gib", "1gib_ipc", WHOLE)
    third = attached(bench, stack, daemon, "1gib")
    compare(bench, third, "1gib", "1gib_third", WHOLE)
    leases = daemon.ctl("ps")["leases"]
    if sorted(lease["pid"] for lease in leases) != sorted([second.pid, third.pid]):
        raise Failure(f"ps shows {len(leases)} leases, not those of the two consumers")
    daemon.ctl("verify", "1gib")
    second.ask("detach")
    result = third.ask("compare", 60, path=bench.file("1gib"), **SAMPLE)
    if result["differing"]:
        raise Failure("the third process reads other bytes after the second has detached")


def sharing_large_step(label):
    def step(bench, stack):
        daemon = bench.daemon(stack)
        bench.load(daemon, label, 120)
        compare(bench, attached(bench, stack, daemon, label), label, f"{label}_ipc", SAMPLE)

    return step


def sharing_vmm_step(bench, stack):
    daemon = bench.daemon(stack, handles=KINDS["vmm"])
    bench.load(daemon, "1gib")
    consumer = bench.consumer(stack)
    if consumer.ask("attach", socket=daemon.socket, name="1gib")["writable"]:
        bench.report.observe("cuda-vmm-fd", "the driver refuses to map it for reading alone: it is writable")
    compare(bench, consumer, "1gib", "1gib_vmm", WHOLE)
    daemon.ctl("verify", "1gib")


def sharing_while_loading_step(bench, stack):
    """A tensor is announced when all its bytes are in place: each is compared at once, while the others are copied.
    The load may be over before the first is: then it is repeated."""

    def measure(row, kind):
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "tiny")
        consumer, path = bench.consumer(stack), bench.file("8gib")
        for attempt in range(LOADING_ATTEMPTS):
            asked = {"socket": daemon.socket, "path": path, "name": "8gib", "limit": MIB // 4}
            result = consumer.ask("compare_while_loading", 20, **asked)
            if result["early"] > 0 or result["differing"] or attempt == LOADING_ATTEMPTS - 1:
                break
            consumer.ask("detach")
            bench.unload(daemon, "8gib")
        if result["early"] > 0 or result["differing"] or bench.small:
            bench.report.row(row, result["differing"], note=f"{result['early']} of {result['tensors']} while it loaded")
        after = consumer.ask("compare", 20, path=path, **SAMPLE)
        daemon.stop()
        if result["early"] == 0 and not bench.small:
            raise Failure(f"{kind}: each of {LOADING_ATTEMPTS} loads had ended before a tensor was compared")
        if not result["complete"]:
            raise Failure(f"{kind}: not each of {result['tensors']} tensors was announced once")
        if result["differing"] or after["differing"]:
            names = ", ".join(result["names"] or after["names"])
            raise Failure(f"{kind}: {result['differing']} tensors differ when announced, {after['differing']} later: {names}")

    for_each(bench, [(f"tensors_differ_loading_{short}", kind) for short, kind in KINDS.items()], measure)


# ---- attach times


def attach_times(bench, stack, daemon, label):
    """Medians, in ms: the first attach of a fresh process that has a context, and the first bare
    opens of another: three processes begin with the one, three with the other, in turn."""
    first, again = {"library": [], "bare": []}, {"library": [], "bare": []}
    for i in range(2 if bench.small else 6):
        consumer = bench.consumer(stack)
        bare_first = i % 2 == 1
        times = consumer.ask("times", 60, socket=daemon.socket, name=label, bare_first=bare_first, repeats=2)
        consumer.kill()
        begun = "bare" if bare_first else "library"
        first[begun].append(times[begun][0])
        for which in again:
            again[which].append(times[which][1])
    return [median(first["library"]), median(first["bare"]), median(again["library"]), median(again["bare"])]


def observe_times(bench, what, times):
    texts = ["attach {:.2f} ms, bare calls {:.2f}", "once more in the same process {:.2f} and {:.2f}"]
    bench.report.observe(what, "; ".join(texts).format(*times))


def times_of(bench, stack, row, label, **options):
    daemon = bench.daemon(stack, **options)
    bench.load(daemon, label)
    times = attach_times(bench, stack, daemon, label)
    daemon.stop()
    bench.report.row(row, times[0], times[1])
    observe_times(bench, row, times)
    return times


def attach_sizes_step(*labels):
    def step(bench, stack):
        def measure(row, label, kind):
            times_of(bench, stack, row, label, handles=kind)

        kinds = KINDS.items()
        for_each(bench, [(f"attach_{short}_{label}", label, kind) for label in labels for short, kind in kinds], measure)

    return step


def _segment_size(bench, label):
    nominal = {"512mib": 512, "2gib": 2048, "4gib": 4096, "16gib": 16384}[label] * MIB
    return max(2 * MIB, int(nominal * bench.scale) // (2 * MIB) * (2 * MIB))


CLOSE = 1.1  # times the best counts as equal to it


def advise_segments(times, default=DEFAULT_SEGMENT):
    """Which cuda.segment_size, from attach times by size (in order of sizes): the default where it is as good
    as the best; else the largest that is, since fewer handles cost the daemon less, too."""
    good = [size for size, ms in times.items() if ms <= min(times.values()) * CLOSE]
    chosen = default if default in good else good[-1]
    figures = ", ".join(f"{size} {ms:.2f} ms" for size, ms in times.items())
    return f"{chosen}{' (the default)' if chosen == default else ''}; attach by size: {figures}"


def attach_segments_step(bench, stack):
    """16 GiB of weights in few allocations or many."""
    by_kind = {kind: {} for kind in KINDS.values()}

    def measure(row, segment, kind):
        settings = {"cuda.segment_size": _segment_size(bench, segment)}
        times = times_of(bench, stack, row, "16gib", handles=kind, settings=settings)
        by_kind[kind][segment] = times[0]
        if kind == "cuda-ipc":
            bench.report.row(row + "_vs_bare", times[0] / times[1], times[1])

    kinds = KINDS.items()
    try:
        for_each(bench, [(f"attach_{short}_16gib_by_{s}", s, kind) for s in SEGMENTS for short, kind in kinds], measure)
    finally:
        for kind, times in by_kind.items():
            if len(times) > 1:
                bench.report.observe(f"advice: cuda.segment_size for {kind}", advise_segments(times))


# ---- ends


def _until_leases(connection, count, seconds=10):
    """From now, in ms; asked by one connection, so that no start of a program is timed."""
    begin = time.monotonic()
    while len(connection.ask("ps")["leases"]) > count:
        if time.monotonic() - begin > seconds:
            raise Failure(f"the lease of a killed process still exists after {seconds} s")
    return (time.monotonic() - begin) * 1e3


def _observe_reuse(bench, stack, what, row, consumer, op="compare"):
    """Whether another process gets memory that the consumer has mapped, or holds by descriptors: the consumer compares
    before and after that process has filled all that is free. An error of CUDA is an answer, too."""
    path, text, filler = bench.file("1gib"), "not asked", bench.consumer(stack)
    try:
        text = _reading(consumer.ask(op, SECONDS, path=path, **WHOLE))
        filled = filler.ask("fill", 20, ordinal=bench.ordinal, limit=64 * MIB if bench.small else 0)
        by = f"{filled['filled'] / GIB:.2f} GiB filled by another process, {filled['free'] / MIB:.0f} MiB left"
        result = consumer.ask(op, SECONDS, path=path, **WHOLE)
        bench.report.row(row, result["differing_bytes"], note=by)
        text += f"; with {by}: {_reading(result)}"
    except Failure as e:
        text += f"; then it fails ({e})"
        bench.report.why_not([row], str(e))
    filler.kill()
    bench.report.observe(what, text)


def _require_leases(connection, count):
    leases = connection.ask("ps")["leases"]
    if len(leases) != count:
        raise Failure(f"ps shows {len(leases)} leases, not {count}")


def consumer_killed_step(bench, stack):
    """One of two lease holders is killed; then another model is loaded and unloaded, and a process fills the GPU: the
    other holder must still read the same bytes."""
    before = bench.free()
    daemon = bench.daemon(stack)
    bench.load(daemon, "1gib")
    killed, survivor = attached(bench, stack, daemon, "1gib"), attached(bench, stack, daemon, "1gib")
    connection = wire.Connection(daemon.socket)
    stack.callback(connection.close)
    _require_leases(connection, 2)
    os.kill(killed.pid, signal.SIGKILL)
    bench.report.row("lease_ends_after_kill", _until_leases(connection, 1))
    killed.kill()
    bench.load(daemon, "tiny")
    bench.unload(daemon, "tiny")
    _observe_reuse(bench, stack, "consumer killed: what another one reads", "bytes_reused_consumer", survivor)
    survivor.kill()
    _until_leases(connection, 0)
    bench.unload(daemon, "1gib")
    bench.report.observe("GPU memory after a consumer was killed and the model unloaded", bench.await_free(before))
    if bench.report.value("bytes_reused_consumer") != 0:
        raise Failure("a consumer does not read its model's bytes after another one was killed")


def _reading(result):
    """What a consumer reads."""
    if result["differing"]:
        return f"{result['differing']} of {result['tensors']} tensors differ"
    return f"all {result['bytes'] / MIB:.0f} MiB read right"


def _detaching(consumer):
    try:
        consumer.ask("detach", SECONDS)
    except Failure as e:
        return f"detaching fails ({e})"
    return "detaching works"


def daemon_killed_step(short):
    return lambda bench, stack: _daemon_killed(bench, stack, short)


def _daemon_killed(bench, stack, short):
    before, kind = bench.free(), KINDS[short]
    daemon = bench.daemon(stack, handles=kind)
    bench.load(daemon, "1gib")
    consumer = attached(bench, stack, daemon, "1gib")
    daemon.kill()
    seen = consumer.ask("hangup", SECONDS, timeout=5)
    observe = bench.report.observe
    how = "POLLHUP" if seen["hup"] else "readable, no POLLHUP" if seen["readable"] else "nothing within 5 s"
    observe(f"daemon killed, {kind}: streamer_fd()", how)
    held = (before - bench.free()) / MIB
    observe(f"daemon killed, {kind}: GPU memory while the consumer lives", f"{held:.0f} MiB, its own context included")
    _observe_reuse(bench, stack, f"daemon killed, {kind}: what is mapped", f"bytes_reused_{short}", consumer)
    observe(f"daemon killed, {kind}: afterwards", _detaching(consumer))
    consumer.kill()
    observe(f"daemon killed, {kind}: GPU memory when the consumer has ended", bench.await_free(before))
    if not seen["hup"] and not seen["readable"]:  # gVisor has no POLLHUP here
        raise Failure("the consumer is not notified of the daemon's end")


def descriptors_step(bench, stack):
    """Whether memory that is mapped nowhere outlives its exporter by its descriptors alone."""
    before = bench.free()
    daemon = bench.daemon(stack, handles=KINDS["vmm"])
    bench.load(daemon, "1gib")
    consumer = bench.consumer(stack)
    consumer.ask("hold", socket=daemon.socket, name="1gib")
    loaded = bench.free()
    daemon.kill()
    freed = (bench.free() - loaded) / MIB
    observe = bench.report.observe
    observe("descriptors alone: GPU memory freed by the daemon's end", f"{freed:.0f} MiB, its context included")
    what, row = "descriptors alone: mapped after the daemon's end", "bytes_reused_descriptors"
    _observe_reuse(bench, stack, what, row, consumer, "compare_held")
    consumer.kill()
    observe("descriptors alone: GPU memory when they are closed", bench.await_free(before))


# ---- torch


def torch_device(bench, size):
    """torch's name of the device, and the daemon's where it is another one."""
    if not bench.fake():
        return f"cuda:{bench.ordinal}", None
    return "cpu", {"device": "host", "budget": size + 256 * MIB}


def _torch_compare(bench, stack, row, label, kind):
    """Every tensor through DLPack, and one matrix product. torch does not see fake GPUs: there the host's memory takes
    their place."""
    device, place = torch_device(bench, bench.size(label))
    daemon = bench.daemon(stack, handles=kind, device=place)
    bench.load(daemon, label, 120)
    result = attached(bench, stack, daemon, label).ask("torch", 150, path=bench.file(label), device=device)
    daemon.stop()
    bench.report.row(row, result["differing"])
    text = f"{result['tensors']} tensors, {result['bytes'] / MIB:.0f} MiB, viewed in {result['views_ms']:.1f} ms, "
    text += f"product {'equal' if result['product'] else 'DIFFERENT'} (torch {result['torch']})"
    bench.report.observe(f"torch through DLPack: {row}", text)
    if result["differing"] or not result["product"]:
        raise Failure(f"{row}: {text}; differing: {', '.join(result['names'])}")


def torch_step(bench, stack):
    def measure(row, kind):
        _torch_compare(bench, stack, row, "1gib", kind)

    for_each(bench, [(f"tensors_differ_1gib_torch_{short}", kind) for short, kind in KINDS.items()], measure)


def torch_30gib_step(bench, stack):
    _torch_compare(bench, stack, "tensors_differ_30gib_torch", "30gib", KINDS["vmm"])
