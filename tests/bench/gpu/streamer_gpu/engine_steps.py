# SPDX-License-Identifier: Apache-2.0
"""Steps of what engines share beside loaded weights: code that torch has compiled for the GPU, and weights that change
in a running process, copied from the daemon's memory on the GPU to the process's own."""

import os

from harness.processes import Failure

from .bench import GIB, MIB, median
from .llama_steps import LLAMA, START_SECONDS, Llama
from .sharing import KINDS, torch_device

COMPILED = "compiled"
COMPILE_SECONDS = 150
UPDATES = 5


def compiled_code_step(bench, stack):
    """A process compiles into an empty folder and publishes it; another one, with an empty folder of its own, restores
    it and compiles the same."""
    device, _ = torch_device(bench, GIB)
    daemon = bench.daemon(stack, device={"device": "host", "budget": GIB})
    asked = {"socket": daemon.socket, "name": COMPILED}
    first, second = (bench.consumer(stack, enter=False) for _ in range(2))
    for consumer, name in ((first, "compiled-1"), (second, "compiled-2")):
        folder = os.path.join(bench.folder, name)
        os.mkdir(folder)
        consumer.send("open_compiler", folder=folder, device=device)
    for consumer in (first, second):
        consumer.receive("open_compiler", START_SECONDS)
    compiled = first.ask("compile", COMPILE_SECONDS)
    published = first.ask("publish_compiled", 30, **asked)
    restored = second.ask("restore_compiled", 30, **asked)
    again = second.ask("compile", COMPILE_SECONDS)
    report = bench.report
    report.row("artifacts_compile", compiled["ms"])
    report.row("artifacts_publish", published["ms"], note=f"{published['files']} files, {published['bytes'] / MIB:.1f} MiB")
    report.row("artifacts_restore", restored["ms"])
    report.row("artifacts_compile_restored", again["ms"] / compiled["ms"], note=f"{again['hits']} graphs of the cache")
    if restored["files"] != published["files"]:
        raise Failure(f"{restored['files']} of {published['files']} files are restored")
    if again["sum"] != compiled["sum"] or not again["hits"]:
        raise Failure(f"the restored code computes {again['sum']}, not {compiled['sum']}; {again['hits']} graphs of the cache")


def update_step(bench, stack):
    """A process changes its module and puts it; another one, which has the module from its file, takes it in place."""
    llama, report = Llama(bench, stack), bench.report
    daemon = llama.daemon(KINDS["vmm"])
    asked = {"socket": daemon.socket, "name": LLAMA}
    trainer, engine = llama.consumers({}, {})
    for consumer in (trainer, engine):
        consumer.ask("read_language_model", 60)
    rounds, free = [], []
    for _ in range(UPDATES):
        trainer.ask("change_language_model")
        put = trainer.ask("put_language_model", 60, **asked)
        taken = engine.ask("update_language_model", 60, generation=put["generation"], **asked)
        rounds.append({"put_ms": put["ms"], "take_ms": taken["ms"]})
        free.append(bench.free())
        if taken["resident"] != taken["parameters"]:
            raise Failure(f"{taken['resident']} of {taken['parameters']} parameters have stayed where they were")
    for name in ("put", "take"):
        report.row(f"update_{name}", median([r[f"{name}_ms"] for r in rounds]), rounds=rounds, log=daemon.log_end())
    report.row("update_memory_growth", (free[1] - free[-1]) / MIB)  # two generations exist from the second on
    trainer.send("tokens", count=len(llama.expected))
    changed = trainer.receive("tokens", 30)
    if changed == llama.expected:
        raise Failure("the tokens of the changed weights are those of the checkpoint")
    report.row("update_tokens_differ", llama.differing([engine], expected=changed))
