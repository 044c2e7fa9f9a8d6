# SPDX-License-Identifier: Apache-2.0
"""Steps with consumers: bytes read back, attach times, and what is left when somebody is killed."""

import os
import signal
import time

from . import wire
from .bench import MIB, median
from .consumer import Skip
from .process import Failure
from .rates import warm
from .report import DEFAULT_SEGMENT, SEGMENTS

SAMPLE = {"every": 8, "limit": MIB}
WHOLE = {"every": 1, "limit": 0}
KINDS = {"ipc": "cuda-ipc", "vmm": "cuda-vmm-fd"}
NOBODY = 65534


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


# ---- does it work at all


def calls_step(bench, stack):
    """CUDA's own answers; a refusal is one, too. Each set is asked in a process of its own."""

    def observe(consumer, **of):
        for what, answer in consumer.ask("questions", ordinal=bench.ordinal, **of)["answers"]:
            bench.report.observe("CUDA: " + what, answer)

    observe(bench.consumer(stack))

    def measure(_row, kind):
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "tiny")
        observe(bench.consumer(stack), socket=daemon.socket, name="tiny")
        daemon.stop()

    for_each(bench, [("calls", kind) for kind in KINDS.values()], measure)


def doctor_step(bench, stack):
    """What the product says of the machine by itself: either kind, with a model of its own, read back."""
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
    """Tensors that do not lie next to each other on the GPU go in batches, and each must arrive."""

    def measure(_row, kind):
        daemon = bench.daemon(stack, handles=kind)
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
    descriptor that somebody maps by other means."""
    for kind in KINDS.values():
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "tiny")
        try:
            refused = attached(bench, stack, daemon, "tiny").ask("write")["refused"]
            text = f"refused ({refused})" if refused else "it goes through"
        except Failure as e:  # a fault may end the process, which is an answer, too
            refused = text = f"the consumer ends ({e})"
        bench.report.observe(f"a write by a consumer, {kind}", text)
        if kind == KINDS["vmm"]:
            _observe_bare_write(bench, stack, daemon)
        other = attached(bench, stack, daemon, "tiny").ask("compare", 60, path=bench.file("tiny"), **WHOLE)
        if other["differing"]:
            raise Failure(f"{kind}: after it another consumer reads other bytes")
        daemon.stop()
        if kind == KINDS["vmm"] and not refused:
            raise Failure("memory of cuda-vmm-fd can be written by a consumer")


def _observe_bare_write(bench, stack, daemon):
    try:
        refused = bench.consumer(stack).ask("write_bare", socket=daemon.socket, name="tiny")["refused"]
        text = f"refused ({refused})" if refused else "it goes through"
    except Failure as e:
        text = f"the consumer ends ({e})"
    bench.report.observe("a write by one who maps the descriptor without the library, cuda-vmm-fd", text)


def another_user_step(bench, stack):
    """Whether handles open in a process of another user than the daemon's: by itself that is no failure."""
    if os.geteuid() != 0:
        raise Skip("only root can have a process of another user")
    os.chmod(bench.folder, 0o711)
    for kind in KINDS.values():
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "tiny")
        os.chmod(daemon.socket, 0o666)
        consumer = bench.consumer(stack, enter=False)
        consumer.ask("become", uid=NOBODY)
        consumer.ask("enter", ordinal=bench.ordinal)
        try:
            consumer.ask("attach", socket=daemon.socket, name="tiny")
            text = _reading(lambda: consumer.ask("compare", 60, path=bench.file("tiny"), **WHOLE))
        except Failure as e:
            text = f"it is not attached ({e})"
        bench.report.observe(f"a consumer of another user, {kind}", text)
        daemon.stop()


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


def sharing_8gib_step(bench, stack):
    daemon = bench.daemon(stack)
    bench.load(daemon, "8gib")
    compare(bench, attached(bench, stack, daemon, "8gib"), "8gib", "8gib_ipc", SAMPLE)


def sharing_vmm_step(bench, stack):
    daemon = bench.daemon(stack, handles=KINDS["vmm"])
    bench.load(daemon, "1gib")
    compare(bench, attached(bench, stack, daemon, "1gib"), "1gib", "1gib_vmm", WHOLE)
    daemon.ctl("verify", "1gib")


# ---- attach times


def attach_times(bench, stack, daemon, label):
    """Medians, in ms: the first attach of a fresh process that has a context, and the first bare
    opens of another; half of the processes begin with the one, half with the other."""
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


def for_each(bench, cases, measure):
    """Where one case fails (this machine may know only one kind of handle), the others are measured.
    A case is its row and the arguments."""
    failures = []
    for row, *arguments in cases:
        try:
            measure(row, *arguments)
        except Failure as e:
            bench.report.why_not([row], str(e))
            failures.append(e)
    if failures:
        raise failures[0]


def times_by_size(bench, stack, *labels):
    def measure(row, label, kind):
        times_of(bench, stack, row, label, handles=kind)

    kinds = KINDS.items()
    for_each(bench, [(f"attach_{short}_{label}", label, kind) for label in labels for short, kind in kinds], measure)


def attach_sizes_step(bench, stack):
    times_by_size(bench, stack, "1gib", "8gib")


def _segment_size(bench, label):
    nominal = {"512mib": 512, "2gib": 2048, "4gib": 4096, "16gib": 16384}[label] * MIB
    return max(2 * MIB, int(nominal * bench.scale) // (2 * MIB) * (2 * MIB))


CLOSE = 1.1  # figures this near to the best are taken for as good


def advise_segments(times, default=DEFAULT_SEGMENT):
    """Which cuda.segment_size, from attach times by size (in order of sizes): the default where it is as good
    as the best; else the largest that is, since fewer handles cost the daemon less, too."""
    good = [size for size, ms in times.items() if ms <= min(times.values()) * CLOSE]
    chosen = default if default in good else good[-1]
    figures = ", ".join(f"{size} {ms:.2f} ms" for size, ms in times.items())
    return f"{chosen}{' (the default)' if chosen == default else ''}; attach by size: {figures}"


def attach_segments_step(bench, stack):
    """A GPU with 16 GiB of weights, cut into few allocations or many."""
    bench.make("16gib", cached=False)
    stack.callback(bench.remove, "16gib")
    by_kind = {kind: {} for kind in KINDS.values()}

    def measure(row, segment, kind):
        times = times_of(bench, stack, row, "16gib", handles=kind, segment_size=_segment_size(bench, segment))
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


def _until_no_lease(connection, seconds=10):
    """From now, in ms; asked by one connection, so that no start of a program is in it."""
    begin = time.monotonic()
    while connection.ask("ps")["leases"]:
        if time.monotonic() - begin > seconds:
            raise Failure(f"the lease of a process that was killed is there after {seconds} s")
    return (time.monotonic() - begin) * 1e3


def consumer_killed_step(bench, stack):
    before = bench.free()
    daemon = bench.daemon(stack)
    bench.load(daemon, "1gib")
    consumer = attached(bench, stack, daemon, "1gib")
    connection = wire.Connection(daemon.socket)
    stack.callback(connection.close)
    if len(connection.ask("ps")["leases"]) != 1:
        raise Failure("ps does not show the consumer's lease")
    os.kill(consumer.pid, signal.SIGKILL)
    bench.report.row("lease_ends_after_kill", _until_no_lease(connection))
    consumer.kill()
    bench.unload(daemon, "1gib")
    bench.report.observe("GPU memory after a consumer was killed and the model unloaded", bench.comes_back(before))


def _reading(ask):
    """What a consumer gets when it reads; a crash or an error of CUDA is an answer here."""
    try:
        result = ask()
    except Failure as e:
        return f"it fails ({e})"
    if result["differing"]:
        return f"{result['differing']} of {result['tensors']} tensors differ"
    return f"all {result['bytes'] / MIB:.0f} MiB read right"


def _detaching(consumer):
    try:
        consumer.ask("detach", 15)
    except Failure as e:
        return f"detaching fails ({e})"
    return "detaching works"


def daemon_killed(bench, stack, kind):
    before = bench.free()
    daemon = bench.daemon(stack, handles=kind)
    bench.load(daemon, "1gib")
    consumer = attached(bench, stack, daemon, "1gib")
    daemon.kill()
    told = consumer.ask("hangup", 15, timeout=5)
    path, observe = bench.file("1gib"), bench.report.observe
    how = "POLLHUP" if told["hup"] else "readable, no POLLHUP" if told["readable"] else "nothing within 5 s"
    observe(f"daemon killed, {kind}: streamer_fd()", how)
    text = _reading(lambda: consumer.ask("compare", 60, path=path, **WHOLE))
    observe(f"daemon killed, {kind}: what is mapped", text)
    held = (before - bench.free()) / MIB
    observe(f"daemon killed, {kind}: GPU memory while the consumer lives", f"{held:.0f} MiB, its own context included")
    observe(f"daemon killed, {kind}: afterwards", _detaching(consumer))
    consumer.kill()
    observe(f"daemon killed, {kind}: GPU memory when the consumer has ended", bench.comes_back(before))
    if not told["hup"] and not told["readable"]:  # gVisor knows no POLLHUP here
        raise Failure("the consumer is not told that the daemon is gone")


def daemon_killed_ipc_step(bench, stack):
    daemon_killed(bench, stack, KINDS["ipc"])


def daemon_killed_vmm_step(bench, stack):
    daemon_killed(bench, stack, KINDS["vmm"])


def descriptors_step(bench, stack):
    """Does memory outlive its exporter where nobody has it mapped, and only descriptors are left?"""
    before = bench.free()
    daemon = bench.daemon(stack, handles=KINDS["vmm"])
    bench.load(daemon, "1gib")
    consumer = bench.consumer(stack)
    consumer.ask("hold", socket=daemon.socket, name="1gib")
    loaded = bench.free()
    daemon.kill()
    freed = (bench.free() - loaded) / MIB
    observe = bench.report.observe
    observe("descriptors alone: GPU memory that comes free with the daemon", f"{freed:.0f} MiB, its context included")
    path = bench.file("1gib")
    text = _reading(lambda: consumer.ask("compare_held", 60, path=path, **WHOLE))
    observe("descriptors alone: mapped after the daemon's death", text)
    consumer.kill()
    observe("descriptors alone: GPU memory when they are closed", bench.comes_back(before))


# ---- the rest


def torch_step(bench, stack):
    def measure(_row, kind):
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "1gib")
        consumer = attached(bench, stack, daemon, "1gib")
        result = consumer.ask("dlpack", 90, path=bench.file("1gib"))
        daemon.stop()
        if not result["same"] or not result["in_place"]:
            raise Failure(f"{kind}: {result}")
        what = f"{result['tensor']}, {result['bytes'] / MIB:.1f} MiB"
        bench.report.observe(f"DLPack, {kind}", f"{what}: the same bytes, in place (torch {result['torch']})")

    for_each(bench, [("dlpack", kind) for kind in KINDS.values()], measure)


def large_step(bench, stack):
    bench.remove("8gib")
    bench.make("30gib")
    r = warm(bench, stack, "30gib", 3)
    bench.load(r.daemon, "30gib")
    compare(bench, attached(bench, stack, r.daemon, "30gib"), "30gib", "30gib_ipc", SAMPLE)
    r.daemon.stop()
    times_by_size(bench, stack, "30gib")
