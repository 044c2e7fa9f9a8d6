# SPDX-License-Identifier: Apache-2.0
"""Engines that share their finished tensors: the first publishes them, the next maps them."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from processes import Daemon, Engine, EngineError
from safetensors.torch import load_file, save_file

from harness.model import drop_cache, in_memory

LIBC = ctypes.CDLL(None)

PUBLISHED = "publish: published"
ATTACHED = "publish: attached to"
FROM_FILES = "publish: loading from the files"


def publishing(daemon: Daemon, options: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"socket": daemon.socket, "publish": True, **(options or {})}


def start(engine: Engine, model: Path, daemon: Daemon, **more: Any) -> str:
    """What the loader logged."""
    return "\n".join(engine.start(model, "streamerd", publishing(daemon), **more)["log"])


def run(
    engine: Engine, model: Path, daemon: Daemon, options: dict[str, Any] | None = None, **more: Any
) -> tuple[list[int], str]:
    return engine.run(model, "streamerd", publishing(daemon, options), **more)


def published_of(daemon: Daemon, folder: Path) -> list[dict[str, Any]]:
    """The published models that were made of a folder."""
    return [m for m in daemon.ctl("list")["models"] if m.get("published", {}).get("base") == str(folder)]


def as_without(engine: Engine, model: Path) -> list[int]:
    return engine.run(model, "auto")[0]


@pytest.fixture(scope="module")
def second(logs: Path) -> Iterator[Engine]:
    with Engine(logs / "second") as process:
        yield process


def cached_pages(path: Path) -> int:
    """Pages of a file in the page cache; the question reads none."""
    with open(path, "rb") as f, mmap.mmap(f.fileno(), 0, mmap.MAP_PRIVATE) as mapping:
        first = ctypes.c_char.from_buffer(mapping)
        pages = (ctypes.c_ubyte * -(-len(mapping) // mmap.PAGESIZE))()
        failed = LIBC.mincore(ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(mapping)), pages)
        del first
    assert not failed
    return sum(page & 1 for page in pages)


def files_in_use(pid: int) -> str:
    """The names of all files that a process has open or mapped."""
    names = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir() if entry.is_symlink()]
    return "\n".join([*names, Path(f"/proc/{pid}/maps").read_text()])


def test_the_second_engine_reads_and_copies_nothing(engine, second, models, daemon, expected):
    """It has the same tokens. The weights were in no page cache when it started, and still are not when it has served;
    its process has read less from storage than one of its tensors has, and neither opened nor mapped the file. After
    that neither engine needs the daemon, nor reaches the other by a write."""
    folder = models / "unread"
    shutil.copytree(models / "checkpoint", folder)
    weights = folder / "model.safetensors"
    log = start(engine, folder, daemon)
    assert PUBLISHED in log
    assert engine.call("tokens") == expected
    assert as_without(second, models / "checkpoint") == expected  # what is imported late has been read now
    drop_cache(weights)
    if not in_memory(weights):
        assert cached_pages(weights) == 0
    before = second.read_bytes()
    log = start(second, folder, daemon)
    assert ATTACHED in log
    assert second.call("tokens") == expected
    assert second.read_bytes() - before < 1 << 18
    if not in_memory(weights):
        assert cached_pages(weights) == 0
    assert [path for path in second.call("opened", path=str(folder)) if path.endswith(".safetensors")] == []
    assert str(weights) not in files_in_use(second.pid)
    shared, own = second.call("weights")
    assert shared > 6 << 20
    assert own < 1 << 16
    engine.call("scale")
    assert engine.call("tokens") != expected
    assert second.call("tokens") == expected
    engine.call("stop")
    second.call("stop")


CONFIGURATIONS: dict[str, tuple[dict[str, Any], str]] = {
    "compilation": ({"enforce_eager": False}, "compilation is 2 none, published 0 all"),
    "length": ({"max_model_len": 64}, "max_model_len is 64, published 128"),
    "KV cache": ({"kv_cache_dtype": "bfloat16"}, "kv_cache_dtype is bfloat16, published auto"),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_engines_of_two_configurations_have_models_side_by_side(engine, models, daemon, expected, name):
    """The log says once in what they differ."""
    more, text = CONFIGURATIONS[name]
    folder = models / f"beside {name}"
    shutil.copytree(models / "checkpoint", folder)
    logs = []
    for options in ({}, more, {}, more):
        tokens, log = run(engine, folder, daemon, **options)
        assert tokens == expected
        logs.append(log)
    for log, line in zip(logs, (PUBLISHED, PUBLISHED, ATTACHED, ATTACHED), strict=True):
        assert line in log
    assert [log.count("it lies beside") for log in logs] == [0, 1, 0, 0]
    assert text in logs[1]
    assert len(published_of(daemon, folder)) == 2


def test_what_differs_beyond_the_configuration_becomes_a_field_of_the_key(engine, models, daemon, expected):
    """An engine that builds something else than the publisher did has a model of its own, which the next such engine takes."""
    folder = models / "coloured"
    shutil.copytree(models / "checkpoint", folder)
    run(engine, folder, daemon)
    for line in (PUBLISHED, ATTACHED):
        with engine.patched("colour", value="blue"):
            tokens, log = run(engine, folder, daemon)
        assert tokens == expected
        assert line in log
        assert "1 attributes differ: colour is blue, published absent" in log
    assert ATTACHED in run(engine, folder, daemon)[1]
    assert len(published_of(daemon, folder)) == 2


def test_an_attribute_that_is_another_in_each_process_does_not_fill_the_memory(engine, models, daemon, expected):
    folder = models / "many colours"
    shutil.copytree(models / "checkpoint", folder)
    for i in range(11):
        with engine.patched("colour", value=str(i)):
            tokens, log = run(engine, folder, daemon)
        assert tokens == expected
        assert (PUBLISHED in log) == (i < 9)
    assert "an attribute is another one in each process" in log
    assert len(published_of(daemon, folder)) == 9


def test_new_weights_under_the_same_path_are_never_served_by_the_old_ones(engine, second, models, daemon, expected):
    """An engine that has the old ones mapped keeps them."""
    folder = models / "changing"
    shutil.copytree(models / "checkpoint", folder)
    run(engine, folder, daemon)
    assert ATTACHED in start(second, folder, daemon)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= -1
    save_file(weights, folder / "new", metadata={"format": "pt"})
    (folder / "new").rename(folder / "model.safetensors")
    tokens, log = run(engine, folder, daemon)
    assert "out of date" in log
    assert PUBLISHED in log
    assert second.call("tokens") == expected
    second.call("stop")
    assert tokens == as_without(engine, folder)
    assert tokens != expected
    tokens_of_second, log = run(second, folder, daemon)
    assert ATTACHED in log
    assert tokens_of_second == tokens


@pytest.mark.parametrize("unforeseen", [False, True])
def test_an_attach_that_fails_leaves_an_engine_that_loads_from_its_files(engine, models, daemon, expected, unforeseen):
    """After the model was built: its layers are no longer registered, and no rotary table without memory is left. One
    line says why. The layers are packed, as the compile cache's key says."""
    run(engine, models / "checkpoint", daemon)
    with engine.patched("break_attach", unforeseen=unforeseen):
        log = start(engine, models / "checkpoint", daemon)
    try:
        assert engine.call("tokens") == expected
        assert engine.call("packed") > 0
        assert not engine.call("is_marked")
    finally:
        engine.call("stop")
    [line] = [line for line in log.splitlines() if FROM_FILES in line]
    assert ("KeyError: 'first line\\nsecond line'" if unforeseen else "colour is blue, published absent") in line
    assert "Traceback" not in log


def test_a_publication_that_fails_leaves_an_engine_that_is_packed(engine, models, daemon, expected):
    """One line says why; the next engine publishes."""
    folder = models / "unpublished"
    shutil.copytree(models / "checkpoint", folder)
    with engine.patched("break_commit"):
        log = start(engine, folder, daemon)
    try:
        assert engine.call("tokens") == expected
        assert engine.call("packed") > 0
        assert not engine.call("is_marked")
    finally:
        engine.call("stop")
    [line] = [line for line in log.splitlines() if "was not published" in line]
    assert line.endswith("OSError: first line second line")
    tokens, log = run(engine, folder, daemon)
    assert tokens == expected
    assert PUBLISHED in log


def test_what_is_refused_is_not_tried_by_the_next_engine(engine, second, models, daemon, expected):
    """It loads its files at once, packed. Another configuration, and the refusal unloaded, are tried."""
    folder = models / "refused"
    shutil.copytree(models / "checkpoint", folder)
    with engine.patched("refuse", reason="not this one"):
        tokens, log = run(engine, folder, daemon)
    assert tokens == expected
    assert "was not published: not this one" in log
    [refusal] = published_of(daemon, folder)
    log = start(second, folder, daemon)
    assert second.call("tokens") == expected
    assert second.call("packed") > 0
    assert not second.call("is_marked")
    second.call("stop")
    assert f"{FROM_FILES}: {refusal['name']} was refused: not this one" in log
    _, log = run(second, folder, daemon, max_model_len=64)
    assert PUBLISHED in log and "it lies beside" not in log
    daemon.ctl("unload", refusal["name"], "--force")
    tokens, log = run(second, folder, daemon)
    assert tokens == expected
    assert PUBLISHED in log and "it lies beside" in log


def test_weights_are_loaded_again_in_engines_that_share_them(engine, second, models, daemon, expected):
    """From the same files, and from others. An engine that shares the memory is not reached."""
    folder, other = models / "reloaded", models / "reload"
    shutil.copytree(models / "checkpoint", folder)
    shutil.copytree(models / "checkpoint", other)
    weights = load_file(other / "model.safetensors")
    weights["model.norm.weight"] *= -1
    weights["model.layers.0.mlp.down_proj.weight"] *= 2
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    changed = as_without(engine, other)
    assert changed != expected
    assert PUBLISHED in start(engine, folder, daemon)
    assert ATTACHED in start(second, folder, daemon)
    for one, another in ((engine, second), (second, engine)):
        one.call("reload")
        assert one.call("tokens") == expected
        one.call("reload", path=str(other))
        assert one.call("tokens") == changed
        assert another.call("tokens") == expected
        one.call("reload", path=str(folder))
    engine.call("stop")
    second.call("stop")


def test_a_publisher_does_not_keep_the_checkpoint_in_use(engine, models, daemon, expected):
    """Also where parameters were aliased before they were published, which small ones stay apart of."""
    folder = models / "released"
    shutil.copytree(models / "checkpoint", folder)
    log = start(engine, folder, daemon)
    assert PUBLISHED in log
    leases = {m["name"]: m["leases"] for m in daemon.ctl("list")["models"] if str(folder) in m["source"]}
    assert leases["released"] == 0
    assert engine.call("tokens") == expected
    engine.call("stop")


def test_a_daemon_that_restarts_between_engines(engine, second, models, tmp_path, expected):
    """Without a store for its descriptors it has lost what was published: the next engine publishes again. The first
    serves meanwhile."""
    with Daemon(tmp_path / "daemon", models) as daemon:
        assert PUBLISHED in start(engine, models / "checkpoint", daemon)
        assert daemon.stop()
        assert engine.call("tokens") == expected
        daemon.start()
        for text in (PUBLISHED, ATTACHED):
            tokens, log = run(second, models / "checkpoint", daemon)
            assert tokens == expected
            assert text in log
        assert engine.call("tokens") == expected
        engine.call("stop")
        tokens, log = run(engine, models / "checkpoint", daemon)  # over a new connection
        assert tokens == expected
        assert ATTACHED in log


def test_of_two_engines_that_start_at_once_one_publishes(engine, second, models, daemon, expected):
    folder = models / "raced"
    shutil.copytree(models / "checkpoint", folder)
    for e in (engine, second):
        e.begin("start", model=str(folder), load_format="streamerd", extra=publishing(daemon))
    logs = ["\n".join(e.end()["log"]) for e in (engine, second)]
    assert sorted(PUBLISHED in log for log in logs) == [False, True]
    assert sorted(ATTACHED in log for log in logs) == [False, True]
    assert [e.call("tokens") for e in (engine, second)] == [expected, expected]
    for e in (engine, second):
        e.call("stop")


@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_publisher_that_is_killed_does_not_stop_the_next(engine, models, logs, tmp_path, moment, expected):
    """Before its commit nothing remains, after it the model stays; if the daemon has the request, either is right."""
    with Daemon(tmp_path / "daemon", models) as daemon:
        with Engine(logs / f"killed-{moment}") as publisher:
            publisher.call("die", moment=moment, daemon=daemon.pid)
            with pytest.raises(EngineError, match="process ended"):
                start(publisher, models / "checkpoint", daemon)
            assert publisher.process.wait() == -signal.SIGKILL
        if moment == "during":
            os.kill(daemon.pid, signal.SIGCONT)
        tokens, log = run(engine, models / "checkpoint", daemon)
        assert moment == "during" or (ATTACHED if moment == "after" else PUBLISHED) in log
        assert tokens == expected
        tokens, log = run(engine, models / "checkpoint", daemon)
        assert tokens == expected
        assert ATTACHED in log


def test_without_a_daemon_the_engine_loads_as_without(engine, models, tmp_path, expected):
    options = {"socket": str(tmp_path / "none"), "publish": True, "fallback": True}
    tokens, log = engine.run(models / "checkpoint", "streamerd", options)
    assert tokens == expected
    assert FROM_FILES in log


def test_auto_is_off_on_a_cpu(engine, models, daemon, expected):
    tokens, log = run(engine, models / "checkpoint", daemon, options={"publish": "auto"})
    assert tokens == expected
    assert "publish" not in log


def test_ranks_publish_one_model_each(models, daemon, expected, logs):
    for i, text in enumerate((PUBLISHED, ATTACHED)):
        with Engine(logs / f"publish-ranks-{i}", {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}) as engine:
            start(engine, models / "checkpoint", daemon, tensor_parallel=2)
            assert engine.call("tokens") == expected
            assert engine.log.read_text().count(text) == 2
    names = [m["name"] for m in daemon.ctl("list")["models"]]
    assert sorted(name[-5:] for name in names if name.endswith("of2")) == ["-0of2", "-1of2"]


REASONS = {
    "a draft model": {"runner": "draft"},
    "sleep mode": {"enable_sleep_mode": True},
    "a multimodal model": {"is_multimodal_model": True},
    "quantization torchao": {"quantization": "torchao"},
    "LoRA": {"lora_config": {}},
    "offloading": {"cpu_offload_gb": 1},
    "weight transfer": {"weight_transfer_config": {}},
    "pipeline parallelism": {"pipeline_parallel_size": 2},
    "data parallelism": {"data_parallel_size": 2},
    "EPLB": {"enable_eplb": True},
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_a_proof_cannot_judge_is_refused_by_name(reason):
    from streamerd._engines import vllm_publish

    judgeable = {
        "runner": "auto", "quantization": None, "is_multimodal_model": False, "enable_sleep_mode": False, "lora_config": None,
        "cpu_offload_gb": 0, "weight_transfer_config": None, "pipeline_parallel_size": 1, "data_parallel_size": 1,
        "enable_eplb": False,
    }  # fmt: skip

    def require(changed: dict[str, Any]) -> None:
        space = SimpleNamespace(**{**judgeable, **changed})
        space.parallel_config = space
        space.offload_config = SimpleNamespace(uva=space, prefetch=SimpleNamespace(offload_group_size=0))
        vllm_publish.require_judgeable(space, space)

    require({})
    with pytest.raises(vllm_publish.NotPublishable, match=f"a proof cannot judge {reason}$"):
        require(REASONS[reason])


def engine_config(models: Path, **more: Any) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    import streamerd.vllm

    streamerd.vllm.register()
    options = {"load_format": "streamerd", "skip_tokenizer_init": True, "dtype": "bfloat16", "max_model_len": 128}
    return EngineArgs(model=str(models / "checkpoint"), **{**options, **more}).create_engine_config()


@pytest.mark.parametrize(
    ("publish", "more", "marked"),
    [
        (True, {}, True),
        (False, {}, False),
        ("auto", {}, False),  # on a CPU
        (True, {"enable_lora": True}, False),
        (True, {"kv_cache_dtype": "fp8"}, True),
    ],
)
def test_only_what_is_published_has_a_compile_cache_of_its_own(models, monkeypatch, publish, more, marked):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    plain = engine_config(models, **more)
    config = engine_config(models, model_loader_extra_config={"publish": publish}, **more)
    assert ("streamerd_publish" in config.additional_config) == marked
    assert (config.compute_hash() != plain.compute_hash()) == marked


def test_an_engine_that_is_not_marked_is_loaded_as_without(models, monkeypatch):
    """Its compile cache would have the graph of packed layers."""
    from streamerd._engines import vllm_publish
    from streamerd._engines.options import Options

    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    config = engine_config(models)
    log = MagicMock()
    arguments = (Options(publish=True), log, config, config.model_config, "", [str(models)], lambda: "as usual")
    assert vllm_publish.load(*arguments) == "as usual"
    [call] = log.warning.call_args_list
    assert "was not made by EngineArgs" in str(call.args[1])


def on_cuda(patch: pytest.MonkeyPatch, version: str = "13.0", major: int = 9, name: str = "A") -> None:
    import torch

    from streamerd._engines import vllm_platform

    patch.setattr(vllm_platform, "current_platform", SimpleNamespace(is_cuda=lambda: True))
    patch.setattr(torch.version, "cuda", version)
    patch.setattr(torch.cuda, "get_device_capability", lambda: (major, 0))
    patch.setattr(torch.cuda, "get_device_name", lambda: name)


# An input of the key, the field that it is in, and how to change it: in the patch, the engine's or the model's configuration.
INPUTS: dict[str, tuple[str, Callable[[pytest.MonkeyPatch, Any, Any], object]]] = {
    "vllm": ("engine", lambda patch, c, m: patch.setattr("vllm.__version__", "other")),
    "streamerd": ("plugin", lambda patch, c, m: patch.setattr("streamerd.__version__", "other")),
    "torch": ("torch", lambda patch, c, m: patch.setattr("torch.__version__", "other")),
    "machine": ("platform", lambda patch, c, m: patch.setattr("platform.machine", lambda: "other")),
    "instructions": ("platform", lambda patch, c, m: patch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "other")),
    "CUDA": ("platform", lambda patch, c, m: on_cuda(patch)),
    "architecture": ("architecture", lambda patch, c, m: setattr(m.hf_config, "architectures", ["Qwen3ForCausalLM"])),
    "hidden size": ("config", lambda patch, c, m: setattr(m.hf_config, "hidden_size", 128)),
    "rotary": ("config", lambda patch, c, m: setattr(m.hf_config, "rope_parameters", {"rope_theta": 5.0})),
    "ties": ("config", lambda patch, c, m: setattr(m.hf_config, "tie_word_embeddings", True)),
    "quantisation's own": ("config", lambda patch, c, m: setattr(m.hf_config, "quantization_config", {"bits": 4})),
    "dtype": ("dtype", lambda patch, c, m: setattr(m, "dtype", "float16")),
    "dtype of the checkpoint": ("", lambda patch, c, m: setattr(m.hf_config, "dtype", "float16")),  # the base has it
    "path": ("", lambda patch, c, m: setattr(m.hf_config, "_name_or_path", "other")),
    "quantisation": ("quantization", lambda patch, c, m: setattr(m, "quantization", "fp8")),
    "KV cache": ("kv_cache_dtype", lambda patch, c, m: setattr(c.cache_config, "cache_dtype", "fp8")),
    "attention": ("attention", lambda patch, c, m: setattr(c.attention_config, "backend", "other")),
    "linear": ("linear", lambda patch, c, m: setattr(c.kernel_config, "linear_backend", "other")),
    "ranks": ("tp_size", lambda patch, c, m: setattr(c.parallel_config, "tensor_parallel_size", 2)),
    "rank": ("tp_rank", lambda patch, c, m: patch.setattr("vllm.distributed.get_tensor_model_parallel_rank", lambda: 1)),
    "pipeline": ("pp_size", lambda patch, c, m: setattr(c.parallel_config, "pipeline_parallel_size", 2)),
    "data parallel": ("dp_size", lambda patch, c, m: setattr(c.parallel_config, "data_parallel_size", 2)),
    "experts": ("ep", lambda patch, c, m: setattr(c.parallel_config, "enable_expert_parallel", True)),
    "draft": ("draft", lambda patch, c, m: setattr(m, "runner", "draft")),
    "LoRA": ("lora", lambda patch, c, m: setattr(c, "lora_config", {})),
    "length": ("max_model_len", lambda patch, c, m: setattr(m, "max_model_len", 64)),
    "mode": ("compilation", lambda patch, c, m: setattr(c.compilation_config, "mode", 3)),
    "operations": ("compilation", lambda patch, c, m: setattr(c.compilation_config, "custom_ops", ["none"])),
    "implementation": ("implementation", lambda patch, c, m: setattr(m, "model_impl", "transformers")),
    "runner": ("task", lambda patch, c, m: setattr(m, "runner_type", "pooling")),
    "conversion": ("task", lambda patch, c, m: setattr(m, "convert_type", "embed")),
    "additional": ("additional", lambda patch, c, m: setattr(c, "additional_config", {"a": 1})),
    "variable": ("env.VLLM_BATCH_INVARIANT", lambda patch, c, m: patch.setenv("VLLM_BATCH_INVARIANT", "1")),
    "variable that sets threads": ("", lambda patch, c, m: patch.setenv("VLLM_CPU_OMP_THREADS_BIND", "0")),
    "variable of a log": ("", lambda patch, c, m: patch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")),
    "another variable": ("", lambda patch, c, m: patch.setenv("EDITOR", "vi")),
}  # fmt: skip


@pytest.fixture
def key(monkeypatch) -> Callable[..., dict[str, str]]:
    """Makes a key of a configuration that a function changes first."""
    from transformers import LlamaConfig

    from streamerd._engines import vllm_publish

    for variable in [name for name in os.environ if name.startswith("VLLM_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setattr("vllm.distributed.get_tensor_model_parallel_rank", lambda: 0)

    def make(change: Callable[[Any, Any], object] = lambda c, m: None) -> dict[str, str]:
        parallel = SimpleNamespace(
            tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, enable_expert_parallel=False
        )
        config = SimpleNamespace(
            parallel_config=parallel, cache_config=SimpleNamespace(cache_dtype="auto"), lora_config=None,
            attention_config=SimpleNamespace(backend=None), kernel_config=SimpleNamespace(linear_backend=None),
            compilation_config=SimpleNamespace(mode=0, custom_ops=["all"]), additional_config={},
        )  # fmt: skip
        model_config = SimpleNamespace(
            hf_config=LlamaConfig(architectures=["LlamaForCausalLM"]), dtype="bfloat16", quantization=None, runner="auto",
            max_model_len=128, model_impl="auto", runner_type="generate", convert_type="none",
        )  # fmt: skip
        change(config, model_config)
        return vllm_publish.key_of(config, model_config)

    return make


def differing(one: dict[str, str], two: dict[str, str]) -> set[str]:
    return {field for field in one.keys() | two.keys() if one.get(field) != two.get(field)}


@pytest.mark.parametrize("name", INPUTS)
def test_each_input_of_the_key_changes_its_field_and_no_other(key, monkeypatch, name):
    field, change = INPUTS[name]
    before = key()
    assert differing(before, key()) == set()
    assert differing(before, key(lambda c, m: change(monkeypatch, c, m))) == ({field} if field else set())


def test_each_field_of_the_key_has_an_input_that_is_changed(key):
    assert key().keys() <= {field for field, _ in INPUTS.values()}


@pytest.mark.parametrize("device", [{"version": "12.9"}, {"major": 10}, {"name": "B"}])
def test_each_property_of_a_gpu_changes_the_platform(key, monkeypatch, device):
    on_cuda(monkeypatch)
    before = key()
    on_cuda(monkeypatch, **device)
    assert differing(before, key()) == {"platform"}


def test_a_name_has_its_source_and_its_key():
    from streamerd._engines.options import Options
    from streamerd._engines.vllm_publish import name_of

    def name(source: str, rank: int = 0, size: int = 1, more: str = "", **options: Any) -> str:
        return name_of(Options(**options), source, {"tp_rank": str(rank), "tp_size": str(size), "more": more})

    assert re.fullmatch("mnt/a/model/vllm-[0-9a-f]{16}", name("/mnt/a/model"))
    assert name("/mnt/a/model") == name("/mnt/a/model")
    assert name("/mnt/a/model") != name("/mnt/a/model", more="x")
    for source, stem in (
        ("hf://org/name@v2", "org/name@v2"), ("s3://bucket/prefix/", "bucket/prefix"),
        ("/c/models--org--name/snapshots/abc", "org/name@abc"),
    ):  # fmt: skip
        assert name(source).startswith(f"{stem}/vllm-")
    assert re.fullmatch("mnt/a/model/vllm-[0-9a-f]{16}-1of4", name("/mnt/a/model", 1, 4))
    assert name("/mnt/a/model", name="chat").startswith("chat/vllm-")
