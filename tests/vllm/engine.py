# SPDX-License-Identifier: Apache-2.0
"""A process that runs vLLM engines, one at a time, as it is told on standard input; see `Engine` in processes.py.

Requests and replies are those of harness.processes.Worker; "op" is the name of a function. What vLLM prints goes to
standard error.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import gc
import itertools
import json
import logging
import mmap
import os
import signal
import stat
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

replies = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.update(
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # the engine in this process, where its loader and its memory can be looked at
    VLLM_NO_USAGE_STATS="1",
)

MADV_POPULATE_WRITE = 23

opens: list[str] = []
sys.addaudithook(lambda event, arguments: opens.append(str(arguments[0])) if event == "open" else None)


def hold_memory(size: int) -> mmap.mmap | None:
    """Memory that is freed when a timed load begins.

    A virtual machine gives free memory back to its host within seconds, and the next load would wait for the host. The
    engine's process that ended before this one has just freed what is held here.
    """
    if size == 0:
        return None
    memory = mmap.mmap(-1, size)
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory.madvise(MADV_POPULATE_WRITE)
    return memory


held = hold_memory(int(os.environ.get("ENGINE_HOLDS", "0")))

import torch  # noqa: E402
import vllm  # noqa: E402
import vllm.model_executor.model_loader as model_loader  # noqa: E402
from vllm.distributed import cleanup_dist_env_and_memory  # noqa: E402


def resident_peak() -> int:
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM:"))


def touch(model: Any) -> None:
    """Reads each page of the weights."""
    for tensor in model.parameters():
        tensor.data.view(-1).view(torch.uint8)[:: mmap.PAGESIZE].sum()


class Loads:
    """Time that load_weights() of any loader takes, and what this package's loader logs.

    Where `whole` is set: of load_model(), which builds the model and post-processes its weights, too, and of its parts: the
    wall time, the CPU time, and the peak of memory above that at its start; and by how much the process's memory has grown
    once each page of the weights has been read.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.timed = False
        self.whole = False
        self.parts: dict[str, dict[str, float]] = {}
        self.more: dict[str, int] = {}
        self.loader: Any = None  # None where workers of their own load
        self.lines: list[str] = []
        self._get = model_loader.get_model_loader
        model_loader.get_model_loader = self._timed
        self.handler = logging.Handler()
        self.handler.emit = lambda record: self.lines.append(record.getMessage())  # type: ignore[method-assign]

    def _timed(self, config: Any) -> Any:
        logging.getLogger("vllm.streamerd").addHandler(self.handler)  # again: vLLM's configuration removes handlers
        loader = self._get(config)
        load = loader.load_weights
        self.loader = loader

        def load_weights(*arguments: Any) -> None:
            if self.timed and held is not None:
                held.close()
            began = time.perf_counter()
            load(*arguments)
            self.seconds = time.perf_counter() - began

        loader.load_weights = load_weights
        if self.whole:
            loader.load_model = functools.partial(self._load_model, loader.load_model)
        return loader

    @contextmanager
    def _timed_part(self, name: str) -> Iterator[None]:
        """Parts that lie in each other share the peak, which the inner one begins anew."""
        with open("/proc/self/clear_refs", "w") as f:
            f.write("5")  # the peak is what it is now
        resident = resident_peak()
        began, cpu = time.perf_counter(), time.process_time()
        yield
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        self.parts[name] = {"seconds": seconds, "cpu": cpu, "peak": resident_peak() - resident}

    def _load_model(self, load: Any, *arguments: Any, **more: Any) -> Any:
        from streamerd import _publish
        from streamerd._engines import vllm_proof

        publish = _publish.publish_items

        def publish_items(*items: Any) -> None:
            with self._timed_part("publishing"):
                publish(*items)

        class Proof(vllm_proof.Proof):
            def __init__(proof, model: Any, *arguments: Any) -> None:
                with self._timed_part("touching"):  # pages that are mapped become memory of this process when they are read
                    touch(model)
                with self._timed_part("proof, before"):
                    super().__init__(model, *arguments)

            def __call__(proof, *arguments: Any) -> Any:
                with self._timed_part("proof, after"):
                    return super().__call__(*arguments)

        patched = ((_publish, "publish_items", publish_items), (vllm_proof, "Proof", Proof))
        originals = [(holder, name, getattr(holder, name)) for holder, name, _ in patched]
        self.parts = {}
        if held is not None:
            held.close()
        before = memory()
        for holder, name, value in patched:
            setattr(holder, name, value)
        try:
            with self._timed_part("model"):
                model = load(*arguments, **more)
        finally:
            for holder, name, value in originals:
                setattr(holder, name, value)
        touch(model)
        self.more = {name: size - before[name] for name, size in memory().items()}
        return model


loads = Loads()
engine: vllm.LLM | None = None
numbers = itertools.count(1000, 1000)  # of adapters


def start(
    model: str,
    load_format: str,
    extra: dict[str, Any],
    tensor_parallel: int = 1,
    timed: bool = False,
    whole: bool = False,
    **more: Any,
) -> dict[str, Any]:
    global engine
    loads.lines.clear()
    loads.timed = timed
    loads.whole = whole
    options = {
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "max_model_len": 128,
        "dtype": "bfloat16",
        "disable_log_stats": True,
        **more,
    }
    engine = vllm.LLM(
        model=model,
        load_format=load_format,
        model_loader_extra_config=extra,
        tensor_parallel_size=tensor_parallel,
        **options,
    )
    own = getattr(loads.loader, "_own_seconds", None)
    result = {"seconds": loads.seconds, "own_seconds": own, "log": loads.lines}
    if whole:
        result |= {"model": loads.parts["model"]["seconds"], "parts": loads.parts, "more": loads.more}
    return result


def tokens(count: int = 8) -> list[int]:
    assert engine is not None
    sampling = vllm.SamplingParams(max_tokens=count, temperature=0, detokenize=False)
    [output] = engine.generate([{"prompt_token_ids": [1, 5, 9]}], sampling, use_tqdm=False)
    return list(output.outputs[0].token_ids)


def answers() -> list[Any]:
    """To four prompts: twelve greedy tokens and the sum of the logarithms of their probabilities. Of a pooling model: its
    vectors."""
    assert engine is not None
    prompts = [{"prompt_token_ids": ids} for ids in ([1, 5, 9], [7], [3, 1, 4, 1, 5, 9, 2, 6], list(range(20, 60)))]
    config = engine.llm_engine.model_config
    if config.runner_type == "pooling":
        if config.hf_config.architectures[0].endswith("Classification"):
            return [list(output.outputs.probs) for output in engine.classify(prompts, use_tqdm=False)]
        return [list(output.outputs.embedding) for output in engine.embed(prompts, use_tqdm=False)]
    sampling = vllm.SamplingParams(max_tokens=12, temperature=0, detokenize=False, logprobs=1, ignore_eos=True)
    outputs = engine.generate(prompts, sampling, use_tqdm=False)
    return [[list(output.outputs[0].token_ids), output.outputs[0].cumulative_logprob] for output in outputs]


def adapter(name: str, folder: str | None = None) -> dict[str, Any]:
    """The folder that vLLM's server gives an adapter of this name, by the resolvers that are registered, and the tokens with
    it; {} where none finds it. `folder`: it is there, no resolver is asked."""
    from vllm.entrypoints.openai.models.protocol import BaseModelPath
    from vllm.entrypoints.openai.models.serving import OpenAIServingModels
    from vllm.lora.request import LoRARequest

    assert engine is not None
    own = engine.llm_engine

    async def add_lora(request: LoRARequest) -> bool:
        return own.add_lora(request)

    async def resolve() -> Any:
        client: Any = SimpleNamespace(
            model_config=own.model_config, renderer=None, input_processor=None, add_lora=add_lora
        )
        server = OpenAIServingModels(client, [BaseModelPath(name="base", model_path=own.model_config.model)])
        server.lora_id_counter.inc(next(numbers))  # this server is not the engine's first
        return await server.resolve_lora(name)

    found = asyncio.run(resolve()) if folder is None else LoRARequest(name, 1 + next(numbers), folder)
    if not isinstance(found, LoRARequest):
        return {}
    sampling = vllm.SamplingParams(max_tokens=8, temperature=0, detokenize=False)
    [output] = engine.generate([{"prompt_token_ids": [1, 5, 9]}], sampling, lora_request=found, use_tqdm=False)
    return {"folder": found.lora_path, "tokens": list(output.outputs[0].token_ids)}


def reload(path: str | None = None) -> None:
    """Loads the weights again, of this source if one is given."""
    assert engine is not None
    engine.collective_rpc("reload_weights", kwargs={} if path is None else {"weights_path": path})


def workers(name: str, arguments: dict[str, Any]) -> None:
    """Calls a method of each worker, such as those of a weight transfer."""
    assert engine is not None
    engine.collective_rpc(name, kwargs=arguments)


def stop() -> None:
    global engine
    engine = None
    gc.collect()
    cleanup_dist_env_and_memory()


def become(user: int) -> None:
    """Has the rights of this user from now on; 0 goes back."""
    if user != 0:
        os.setegid(user)
    os.seteuid(user)
    if user == 0:
        os.setegid(0)


def memory() -> dict[str, int]:
    """Bytes of this process, as smaps_rollup has them."""
    with open("/proc/self/smaps_rollup") as f:
        rows = [line.split() for line in list(f)[1:]]
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def opened(path: str) -> list[str]:
    """Files below `path` that this process has opened since it started, by Python or by a library through it."""
    return [name for name in opens if name.startswith(path)]


def model_of_engine() -> Any:
    assert engine is not None
    return engine.llm_engine.model_executor.driver_worker.worker.get_model()


def weights() -> tuple[int, int]:
    """Bytes of the model's tensors that are in memory of the daemon, and in memory of this process."""
    ranges = []
    with open("/proc/self/maps") as f:
        for line in f:
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and "memfd:" in fields[5]:
                begin, end = (int(part, 16) for part in fields[0].split("-"))
                ranges.append((begin, end))
    shared = own = 0
    for tensor in itertools.chain(model_of_engine().parameters(), model_of_engine().buffers()):
        if any(begin <= tensor.data_ptr() < end for begin, end in ranges):
            shared += tensor.nbytes
        else:
            own += tensor.nbytes
    return shared, own


def scale() -> None:
    """Changes the weights in place."""
    model_of_engine().model.norm.weight.data.mul_(-1)


patched: list[tuple[Any, str, Any]] = []


def patch(holder: Any, name: str, value: Any) -> None:
    patched.append((holder, name, getattr(holder, name)))
    setattr(holder, name, value)


def repair() -> None:
    """Undoes what the functions below have replaced."""
    while patched:
        setattr(*patched.pop())


def break_attach(unforeseen: bool = False) -> None:
    """Lets the comparison fail that ends an attach."""
    from streamerd._engines import vllm_publish

    def failing(model: Any) -> dict[str, str]:
        if unforeseen:
            raise KeyError("first line\nsecond line")
        return {**scalars_of(model), "colour": "blue"}

    scalars_of = vllm_publish.scalars_of
    patch(vllm_publish, "scalars_of", failing)


def colour(value: str) -> None:
    """Each model that is built has an attribute that no field of the key says anything about."""
    from streamerd._engines import vllm_proof, vllm_publish

    built_of = vllm_publish.built_of
    for module in (vllm_publish, vllm_proof):
        patch(module, "built_of", lambda model: {**built_of(model), "colour": value})


def break_proof(difference: str, protected: bool = True) -> None:
    """The second model of a proof differs from the first in this. Not `protected`: as where it is in memory of a GPU."""
    from streamerd._engines import vllm_proof
    from streamerd._publication import Publication

    complete = vllm_proof.complete
    if not protected:
        patch(Publication, "protect", lambda publication: False)

    def completing(model: Any, *more: Any) -> None:
        complete(model, *more)
        norm = model.model.norm.weight
        if difference == "attribute":
            model.model.norm.colour = "blue"
        elif difference == "class":
            model.model.norm.__class__ = type("OtherNorm", (type(model.model.norm),), {})
        elif difference == "bytes":
            norm.data[7] += 1
        elif difference == "strides":
            norm.data = norm.data.repeat_interleave(2)[::2]
        elif difference == "dtype":
            norm.data = norm.data.float()
        elif difference == "alias":
            model.model.norm.weight.data = model.model.layers[0].input_layernorm.weight.data
        elif difference == "absent":
            del model.model.norm.weight
        elif difference == "outputs":
            model.model.norm.register_forward_hook(lambda module, given, output: (output[0] * 2, output[1]))
        elif difference == "written when it is processed":
            model.lm_head.weight.data[5] += 1
        elif difference == "written when it is called":
            rows = model.model.embed_tokens.weight.data  # the row is none of the batch's
            model.model.norm.register_forward_hook(lambda module, given, output: rows[5].add_(1) and None)
        else:
            raise KeyError(difference)

    patch(vllm_proof, "complete", completing)


def examine_no_class() -> None:
    """The process fails in which vLLM examines the class of a model."""
    from vllm.model_executor.models import registry

    def failing(examine: Any) -> None:
        raise RuntimeError("no class is to be examined")

    patch(registry, "_run_in_subprocess", failing)


def refuse(reason: str) -> None:
    """A model is refused before a tensor is moved."""
    from streamerd._engines import vllm_proof

    def refusing(*model: Any) -> None:
        raise vllm_proof.NotPublishable(reason)

    patch(vllm_proof, "require_movable", refusing)


def break_commit() -> None:
    """Lets the commit fail that ends a publication."""
    from streamerd._publication import Publication

    def failing(publication: Publication) -> None:
        raise OSError("first line\nsecond line")

    patch(Publication, "commit", failing)


def die(moment: str, daemon: int = 0) -> None:
    """The process is killed at this moment of a publication's commit: "before", "after", or "during", once the request
    is in the socket of the daemon, which is stopped then."""
    from streamerd._publication import Publication

    commit = Publication.commit

    def dying(publication: Publication) -> None:
        if moment == "after":
            commit(publication)
        if moment == "during":
            os.kill(daemon, signal.SIGSTOP)
            while not is_stopped(daemon):
                time.sleep(0.001)
            threading.Thread(target=commit, args=(publication,)).start()
            while not has_sent():
                time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGKILL)

    Publication.commit = dying  # type: ignore[method-assign]


def has_sent() -> bool:
    """Whether a socket of this process has bytes that the peer has not read."""
    for fd in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(fd)).st_mode) and any(fcntl.ioctl(int(fd), termios.TIOCOUTQ, bytes(4))):
                return True
        except OSError:
            pass  # closed meanwhile, or a kind of socket that has none
    return False


def is_stopped(pid: int) -> bool:
    """All threads of a process."""
    states = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as f:
            states.append(f.read().rpartition(")")[2].split()[0])
    return set(states) == {"T"}


def packed() -> int:
    """How many linear layers have weights that only their kernel has."""
    linear = torch.nn.functional.linear
    return sum(getattr(m, "cpu_linear", linear) is not linear for m in model_of_engine().modules())


def is_marked() -> bool:
    """Whether the compile cache's key says that the layers are not packed."""
    assert engine is not None
    return "streamerd_publish" in engine.llm_engine.vllm_config.additional_config


def read_bytes() -> int:
    """Bytes that this process has had read from storage."""
    with open("/proc/self/io") as f:
        return int(dict(line.split(": ") for line in f)["read_bytes"])


METHODS = {
    f.__name__: f
    for f in (
        start, tokens, answers, adapter, reload, workers, stop, become, memory, read_bytes, opened, weights, scale, break_attach, break_proof,
        break_commit, colour, examine_no_class, refuse, repair, die, packed, is_marked,
    )  # fmt: skip
}

if __name__ == "__main__":
    for request in sys.stdin:
        arguments = json.loads(request)
        try:
            reply = {"ok": METHODS[arguments.pop("op")](**arguments)}
        except Exception as e:
            reply = {"error": f"{type(e).__name__}: {e}"}
        replies.write(json.dumps(reply) + "\n")
