# SPDX-License-Identifier: Apache-2.0
"""Steps with a random Llama of transformers: its parameters are the daemon's memory, which was loaded from a file or
published by another process; tokens beside those of the same model read by safetensors."""

import os

from harness.processes import Failure

from .bench import GIB, MIB, for_each
from .sharing import KINDS, SECONDS, torch_device

TOKENS = 16
LLAMA = "llama"
START_SECONDS = 60  # to import torch and transformers, and to create a context


class Llama:
    """The checkpoint, written by the first step that needs it, and the tokens that it has to give."""

    def __init__(self, bench, stack):
        self.bench, self.stack = bench, stack
        self.device, self.place = torch_device(bench, 5 * GIB)
        self.folder = os.path.join(bench.folder, LLAMA)
        if bench.expected_tokens is None:
            bench.expected_tokens = self._write()
        self.expected = bench.expected_tokens

    def _write(self):
        os.makedirs(self.folder, exist_ok=True)
        reference = self.bench.consumer(self.stack, enter=False)
        reference.ask("write_language_model", 90, folder=self.folder, device=self.device, tiny=self.bench.small)
        self._build([reference], [{}])
        facts = reference.ask("read_language_model", 60)
        expected = reference.ask("tokens", 30, count=TOKENS)
        text = f"{facts['ms']:.0f} ms; {facts['versions']}"
        self.bench.report.observe("a model of transformers, by safetensors", text)
        reference.kill()
        return expected

    def daemon(self, kind):
        daemon = self.bench.daemon(self.stack, handles=kind, device=self.place)
        self.bench.load(daemon, "tiny")  # its context exists
        return daemon

    def _build(self, consumers, options):
        """All at once: importing takes longest."""
        for consumer, more in zip(consumers, options):
            consumer.send("build_language_model", folder=self.folder, device=self.device, **more)
        for consumer in consumers:
            consumer.receive("build_language_model", START_SECONDS)

    def consumers(self, *options):
        """A process that has built the module for each of the options."""
        consumers = [self.bench.consumer(self.stack, enter=False) for _ in options]
        self._build(consumers, options)
        return consumers

    def pairs(self):
        """{kind: two processes}"""
        consumers = self.consumers({}, {}, {}, {})
        return {"vmm": consumers[:2], "ipc": consumers[2:]}

    def open(self, daemon, consumers):
        """All ask for the load at once; what each says."""
        for consumer in consumers:
            consumer.send("open_language_model", socket=daemon.socket, name=LLAMA)
        return [consumer.receive("open_language_model", 60) for consumer in consumers]

    def differing(self, consumers, seconds=30, expected=None):
        """Tokens that differ from those expected: the checkpoint's, or these."""
        for consumer in consumers:
            consumer.send("tokens", count=TOKENS)
        answers = [consumer.receive("tokens", seconds) for consumer in consumers]
        return sum(a != b for answer in answers for a, b in zip(answer, expected or self.expected))


def _end(daemon, consumers):
    for consumer in consumers:
        consumer.kill()
    daemon.stop()


def _kinds(row):
    return [(f"{row}_{short}", short) for short in reversed(KINDS)]


def language_model_step(bench, stack):
    """Two processes ask for the load at once."""
    llama = Llama(bench, stack)
    pairs = llama.pairs()

    def measure(row, short):
        daemon, consumers = llama.daemon(KINDS[short]), pairs[short]
        facts = llama.open(daemon, consumers)
        daemon.require_pinned_ring()
        milliseconds = min(f["ms"] for f in facts)
        timed, note = daemon.timed(milliseconds / 1e3, LLAMA), "two at once, the load included"
        bench.report.row(f"llama_load_into_{short}", milliseconds, None, [timed], note, daemon.log_end())
        if any(f["resident"] != f["parameters"] for f in facts):
            n = facts[0]["parameters"]
            raise Failure(f"{KINDS[short]}: not each of {n} parameters is the daemon's memory on {llama.device}")
        bench.report.row(row, llama.differing(consumers))
        _end(daemon, consumers)

    for_each(bench, _kinds("llama_tokens_differ"), measure)


def killed_step(bench, stack):
    """The daemon is killed under two processes, whose tokens must stay the same."""
    llama = Llama(bench, stack)
    pairs = llama.pairs()

    def measure(row, short):
        daemon, consumers = llama.daemon(KINDS[short]), pairs[short]
        llama.open(daemon, consumers)
        if llama.differing(consumers):
            raise Failure(f"{KINDS[short]}: the tokens differ before the daemon is killed")
        daemon.kill()
        bench.report.row(row, llama.differing(consumers, SECONDS))
        _end(daemon, consumers)

    for_each(bench, _kinds("llama_tokens_differ_killed"), measure)


def publish_step(bench, stack):
    """A process publishes its module, another one, whose module has no memory, takes it; then the first is killed."""
    llama, report = Llama(bench, stack), bench.report
    daemon = llama.daemon(KINDS["vmm"])
    asked = {"socket": daemon.socket, "name": LLAMA}
    publisher, second = llama.consumers({}, {"positions": False})
    publisher.ask("read_language_model", 60)
    before = bench.free()
    moved = publisher.ask("publish_language_model", 60, **asked)
    published = bench.free()
    report.row("publish_time", moved["ms"], log=daemon.log_end())
    report.row("publish_memory_publisher", (before - published) / MIB)
    taken = second.ask("take_language_model", 30, **asked)
    report.row("publish_load_into", taken["ms"])
    report.row("publish_memory_second", (published - bench.free()) / MIB)
    for what, facts in (("published", moved), ("loaded", taken)):
        if facts["resident"] != facts["parameters"]:
            raise Failure(f"{facts['resident']} of {facts['parameters']} parameters are {what}")
    report.row("publish_tokens_differ", llama.differing([publisher, second]))
    publisher.kill()
    report.row("publish_tokens_differ_killed", llama.differing([second], SECONDS))
    _end(daemon, [second])
