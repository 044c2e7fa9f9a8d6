# SPDX-License-Identifier: Apache-2.0
"""Steps with consumers: bytes read back, attach times, and the state after a process is killed."""

import os
import shutil
import signal
import time

from harness.processes import Failure, Skip

from . import wire
from .bench import GIB, MIB, for_each, median
from .report import DEFAULT_SEGMENT, SEGMENTS

SAMPLE = {"every": 8, "limit": MIB}
WHOLE = {"every": 1, "limit": 0}
KINDS = {"ipc": "cuda-ipc", "vmm": "cuda-vmm-fd"}
NOBODY = 65534
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


def _enter(bench, stack, uid, namespaces):
    consumer = bench.consumer(stack, enter=False, namespaces=namespaces)
    if uid is not None:
        consumer.ask("become", SECONDS, uid=uid)
    consumer.ask("enter", SECONDS, ordinal=bench.ordinal)
    return consumer


def _require_root(bench):
    if os.geteuid() != 0:
        raise Skip("only root can have a process of another user or in another namespace")
    os.chmod(bench.folder, 0o711)


def foreign_clients_step(bench, stack):
    """Whether a model is attached by a process of another user, or in other namespaces; no is an answer, too."""
    _require_root(bench)
    for kind in KINDS.values():
        for which, (uid, namespaces) in FOREIGN_CLIENTS.items():
            daemon = bench.daemon(stack, handles=kind)
            bench.load(daemon, "tiny")
            os.chmod(daemon.socket, 0o666)
            try:
                consumer = _enter(bench, stack, uid, namespaces)
                consumer.ask("attach", SECONDS, socket=daemon.socket, name="tiny")
                text = _reading(lambda: consumer.ask("compare", SECONDS, path=bench.file("tiny"), **WHOLE))
            except Failure as e:
                text = f"it is not attached ({e})"
            bench.report.observe(f"a consumer: {which}, {kind}", text)
            daemon.stop()


def bare_ipc_step(bench, stack):
    """cuda-ipc without the daemon, which refuses what it cannot watch: whether the driver opens a handle there."""
    _require_root(bench)
    for at, exporter_namespaces in (("here", ()), ("in a PID namespace", ("pid",)), ("in both", ("pid", "net"))):
        try:
            handle = _enter(bench, stack, None, exporter_namespaces).ask("export", SECONDS, ordinal=bench.ordinal)["handle"]
        except Failure as e:
            bench.report.observe(f"bare cuda-ipc, exported {at}", f"no: {e}")
            continue
        for which, (uid, namespaces) in {"the same user": (None, ()), **FOREIGN_CLIENTS}.items():
            try:
                same = _enter(bench, stack, uid, namespaces).ask("open", SECONDS, handle=handle)["same"]
                text = "it opens" if same else "it opens, with other bytes"
            except Failure as e:
                text = f"no: {e}"
            bench.report.observe(f"bare cuda-ipc, exported {at}, opened by {which}", text)


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
    consumer = bench.consumer(stack)
    if consumer.ask("attach", socket=daemon.socket, name="1gib")["writable"]:
        bench.report.observe("cuda-vmm-fd", "the driver refuses to map it for reading alone: it is writable")
    compare(bench, consumer, "1gib", "1gib_vmm", WHOLE)
    daemon.ctl("verify", "1gib")


def sharing_while_loading_step(bench, stack):
    """A tensor is announced when all its bytes are in place: each is compared at once, while the others are copied."""

    def measure(row, kind):
        daemon = bench.daemon(stack, handles=kind)
        bench.load(daemon, "tiny")
        consumer, path = bench.consumer(stack), bench.file("8gib")
        result = consumer.ask("compare_while_loading", 60, socket=daemon.socket, path=path, name="8gib", limit=MIB // 4)
        bench.report.row(row, result["differing"], note=f"{result['early']} of {result['tensors']} while it loaded")
        after = consumer.ask("compare", 60, path=path, **SAMPLE)
        daemon.stop()
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


def times_by_size(bench, stack, *labels):
    def measure(row, label, kind):
        times_of(bench, stack, row, label, handles=kind)

    kinds = KINDS.items()
    for_each(bench, [(f"attach_{short}_{label}", label, kind) for label in labels for short, kind in kinds], measure)


def attach_sizes_step(bench, stack):
    times_by_size(bench, stack, "1gib", "8gib")


def attach_30gib_step(bench, stack):
    times_by_size(bench, stack, "30gib")


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


def _until_no_lease(connection, seconds=10):
    """From now, in ms; asked by one connection, so that no start of a program is timed."""
    begin = time.monotonic()
    while connection.ask("ps")["leases"]:
        if time.monotonic() - begin > seconds:
            raise Failure(f"the lease of a killed process still exists after {seconds} s")
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
    bench.report.observe("GPU memory after a consumer was killed and the model unloaded", bench.await_free(before))


def _reading(ask):
    """What a consumer reads; a crash or an error of CUDA is an answer here."""
    try:
        result = ask()
    except Failure as e:
        return f"it fails ({e})"
    if result["differing"]:
        return f"{result['differing']} of {result['tensors']} tensors differ"
    return f"all {result['bytes'] / MIB:.0f} MiB read right"


def _detaching(consumer):
    try:
        consumer.ask("detach", SECONDS)
    except Failure as e:
        return f"detaching fails ({e})"
    return "detaching works"


def daemon_killed(bench, stack, kind):
    before = bench.free()
    daemon = bench.daemon(stack, handles=kind)
    bench.load(daemon, "1gib")
    consumer = attached(bench, stack, daemon, "1gib")
    daemon.kill()
    seen = consumer.ask("hangup", SECONDS, timeout=5)
    path, observe = bench.file("1gib"), bench.report.observe
    how = "POLLHUP" if seen["hup"] else "readable, no POLLHUP" if seen["readable"] else "nothing within 5 s"
    observe(f"daemon killed, {kind}: streamer_fd()", how)
    text = _reading(lambda: consumer.ask("compare", SECONDS, path=path, **WHOLE))
    observe(f"daemon killed, {kind}: what is mapped", text)
    held = (before - bench.free()) / MIB
    observe(f"daemon killed, {kind}: GPU memory while the consumer lives", f"{held:.0f} MiB, its own context included")
    observe(f"daemon killed, {kind}: afterwards", _detaching(consumer))
    consumer.kill()
    observe(f"daemon killed, {kind}: GPU memory when the consumer has ended", bench.await_free(before))
    if not seen["hup"] and not seen["readable"]:  # gVisor has no POLLHUP here
        raise Failure("the consumer is not notified of the daemon's end")


def daemon_killed_ipc_step(bench, stack):
    daemon_killed(bench, stack, KINDS["ipc"])


def daemon_killed_vmm_step(bench, stack):
    daemon_killed(bench, stack, KINDS["vmm"])


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
    path = bench.file("1gib")
    text = _reading(lambda: consumer.ask("compare_held", SECONDS, path=path, **WHOLE))
    observe("descriptors alone: mapped after the daemon's end", text)
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


def sharing_30gib_step(bench, stack):
    daemon = bench.daemon(stack)
    bench.load(daemon, "30gib", 120)
    compare(bench, attached(bench, stack, daemon, "30gib"), "30gib", "30gib_ipc", SAMPLE)


# ---- a model of transformers

TOKENS = 16
LLAMA = "llama"


def _tokens_differ(consumers, expected):
    for consumer in consumers:
        consumer.send("tokens", count=TOKENS)
    answers = [consumer.receive("tokens", 30) for consumer in consumers]
    return sum(a != b for answer in answers for a, b in zip(answer, expected))


def language_model_step(bench, stack):
    """A random Llama whose parameters are the daemon's memory, in two processes at once that both ask for the load;
    its tokens, and those of the same model read by safetensors. Then the daemon is killed under them."""
    device, place = torch_device(bench, 3 * GIB)
    folder = os.path.join(bench.folder, LLAMA)
    os.mkdir(folder)
    stack.callback(shutil.rmtree, folder, True)
    reference = bench.consumer(stack, enter=False)
    reference.ask("write_language_model", 90, folder=folder, device=device, tiny=bench.small)
    facts = reference.ask("open_language_model", 60, folder=folder, device=device)
    expected = reference.ask("tokens", 30, count=TOKENS)
    bench.report.observe("a model of transformers, by safetensors", f"{facts['ms']:.0f} ms; {facts['versions']}")
    reference.kill()

    def measure(short, kind):
        daemon = bench.daemon(stack, handles=kind, device=place)
        consumers = [bench.consumer(stack, enter=False) for _ in range(2)]
        for consumer in consumers:
            asked = {"folder": folder, "device": device, "socket": daemon.socket, "name": LLAMA}
            consumer.send("open_language_model", **asked)
        facts = [consumer.receive("open_language_model", 60) for consumer in consumers]
        bench.report.row(f"llama_load_into_{short}", min(f["ms"] for f in facts), note="two at once, the load included")
        if any(f["resident"] != f["parameters"] for f in facts):
            raise Failure(f"{kind}: not each of {facts[0]['parameters']} parameters is the daemon's memory on {device}")
        bench.report.row(f"llama_tokens_differ_{short}", _tokens_differ(consumers, expected))
        daemon.kill()
        bench.report.row(f"llama_tokens_differ_killed_{short}", _tokens_differ(consumers, expected))
        for consumer in consumers:
            consumer.kill()

    failures = []
    for short, kind in reversed(KINDS.items()):
        try:
            measure(short, kind)
        except Failure as e:
            bench.report.why_not([f"llama_{what}_{short}" for what in ("tokens_differ", "load_into")], str(e))
            failures.append(e)
    if failures:
        raise failures[0]
