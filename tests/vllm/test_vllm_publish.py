# SPDX-License-Identifier: Apache-2.0
"""Engines that share their finished tensors: the first publishes them, the next maps them."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import Daemon, Engine, EngineError
from safetensors.torch import load_file, save_file
from test_vllm_loads import write_random

PUBLISHED = "publish: published"
ATTACHED = "publish: attached to"
AS_WITHOUT = "publish: loading as without"


def start(engine: Engine, model: Path, daemon: Daemon, options: dict[str, Any] | None = None, **more: Any) -> str:
    """What the loader logged."""
    extra = {"socket": daemon.socket, "publish": True, **(options or {})}
    return "\n".join(engine.start(model, "streamerd", extra, **more)["log"])


def run(engine: Engine, model: Path, daemon: Daemon, **more: Any) -> tuple[list[int], str]:
    """Greedy tokens, and what the loader logged."""
    try:
        log = start(engine, model, daemon, **more)
        return engine.call("tokens"), log
    finally:
        engine.call("stop")


def as_without(engine: Engine, model: Path) -> list[int]:
    engine.start(model, "auto")
    tokens = engine.call("tokens")
    engine.call("stop")
    return tokens


@pytest.fixture(scope="module")
def second(logs: Path) -> Iterator[Engine]:
    with Engine(logs / "second") as process:
        yield process


@pytest.fixture(scope="module")
def expected(engine: Engine, models: Path) -> list[int]:
    return as_without(engine, models / "checkpoint")


def test_the_second_engine_reads_and_copies_nothing(engine, second, models, daemon, expected):
    """It has the same tokens, although the weights can no longer be read when it starts, and keeps them."""
    folder = models / "hidden"
    shutil.copytree(models / "checkpoint", folder)
    log = start(engine, folder, daemon)
    assert PUBLISHED in log
    assert engine.call("tokens") == expected
    before = second.call("opened", path=str(folder))
    assert before == []
    log = start(second, folder, daemon)
    assert ATTACHED in log
    assert second.call("tokens") == expected
    assert [path for path in second.call("opened", path=str(folder)) if path.endswith(".safetensors")] == []
    shared, own = second.call("weights")
    assert shared > 6 << 20
    assert own < 1 << 16
    # Neither needs the daemon any more, nor does a write of one reach the other.
    engine.call("scale")
    assert engine.call("tokens") != expected
    assert second.call("tokens") == expected
    engine.call("stop")
    second.call("stop")


@pytest.mark.parametrize("architecture", ["GPTNeoX", "Phi3", "Qwen2", "OPT", "Qwen3"])
def test_architectures_that_are_known_give_the_same_tokens(engine, second, models, daemon, architecture):
    folder = models / architecture
    if not folder.exists():
        write_random(folder, architecture)
    expected = as_without(engine, folder)
    tokens, log = run(engine, folder, daemon)
    assert tokens == expected
    assert PUBLISHED in log
    tokens, log = run(second, folder, daemon)
    assert tokens == expected
    assert ATTACHED in log


def test_another_configuration_is_another_key(engine, models, daemon, expected):
    run(engine, models / "checkpoint", daemon)
    tokens, log = run(engine, models / "checkpoint", daemon, max_model_len=64)
    assert tokens == expected
    assert "max_model_len: published with '128', needed '64'; it is replaced" in log
    assert PUBLISHED in log
    tokens, log = run(engine, models / "checkpoint", daemon, max_model_len=64)
    assert tokens == expected
    assert ATTACHED in log


def test_new_weights_under_the_same_path_are_never_served_by_the_old_ones(engine, models, daemon, expected):
    folder = models / "changing"
    shutil.copytree(models / "checkpoint", folder)
    run(engine, folder, daemon)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= -1
    save_file(weights, folder / "new", metadata={"format": "pt"})
    (folder / "new").rename(folder / "model.safetensors")
    tokens, log = run(engine, folder, daemon)
    assert "out of date" in log
    assert PUBLISHED in log
    assert tokens == as_without(engine, folder)
    assert tokens != expected


def test_an_attach_that_fails_leaves_an_engine_that_loads_as_without(engine, models, daemon, expected):
    """After the model was built: its layers are no longer registered, and no rotary table without memory is left."""
    run(engine, models / "checkpoint", daemon)
    engine.call("break_attach", broken=True)
    try:
        tokens, log = run(engine, models / "checkpoint", daemon)
    finally:
        engine.call("break_attach", broken=False)
    assert AS_WITHOUT in log
    assert tokens == expected


def test_of_two_engines_that_start_at_once_one_publishes(engine, second, models, daemon, expected):
    folder = models / "raced"
    shutil.copytree(models / "checkpoint", folder)
    extra = {"socket": daemon.socket, "publish": True}
    for e in (engine, second):
        e.begin("start", model=str(folder), load_format="streamerd", extra=extra)
    logs = ["\n".join(e.end()["log"]) for e in (engine, second)]
    assert sorted(PUBLISHED in log for log in logs) == [False, True]
    assert sorted(ATTACHED in log for log in logs) == [False, True]
    assert [e.call("tokens") for e in (engine, second)] == [expected, expected]
    for e in (engine, second):
        e.call("stop")


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_publisher_that_is_killed_does_not_stop_the_next(engine, models, logs, tmp_path, moment, expected):
    """Before its commit nothing remains, after it the model stays."""
    with Daemon(tmp_path / "daemon", models) as daemon:
        with Engine(logs / f"killed-{moment}") as publisher:
            publisher.call("die", moment=moment)
            with pytest.raises(EngineError, match="process ended"):
                start(publisher, models / "checkpoint", daemon)
            assert publisher.process.wait() == -signal.SIGKILL
        tokens, log = run(engine, models / "checkpoint", daemon)
        assert (ATTACHED if moment == "after" else PUBLISHED) in log
        assert tokens == expected


def test_without_a_daemon_the_engine_loads_as_without(engine, models, tmp_path, expected):
    options = {"socket": str(tmp_path / "none"), "publish": True, "fallback": True}
    log = "\n".join(engine.start(models / "checkpoint", "streamerd", options)["log"])
    assert engine.call("tokens") == expected
    engine.call("stop")
    assert AS_WITHOUT in log


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
    assert {name[-5:] for name in names if "/vllm-" in name} == {"-0of2", "-1of2"}


REASONS = {
    "quantization fp8": {"quantization": "fp8"},
    "architecture DeepseekV3ForCausalLM": {"hf_config": SimpleNamespace(architectures=["DeepseekV3ForCausalLM"])},
    "a draft model": {"runner": "draft"},
    "model_impl transformers": {"model_impl": "transformers"},
    "runner pooling": {"runner_type": "pooling"},
    "conversion embed": {"convert_type": "embed"},
    "sleep mode": {"enable_sleep_mode": True},
    "MLA": {"use_mla": True},
    "mixture of experts": {"is_moe": True},
    "a multimodal model": {"is_multimodal_model": True},
    "LoRA": {"lora_config": {}},
    "offloading": {"cpu_offload_gb": 1},
    "weight transfer": {"weight_transfer_config": {}},
    "pipeline parallelism": {"pipeline_parallel_size": 2},
    "data parallelism": {"data_parallel_size": 2},
    "EPLB": {"enable_eplb": True},
    "kv_cache_dtype fp8": {"cache_dtype": "fp8"},
}


@pytest.mark.parametrize("reason", REASONS)
def test_what_is_not_known_to_be_right_is_refused_by_name(reason):
    from streamerd import vllm_publish

    known = {
        "hf_config": SimpleNamespace(architectures=["LlamaForCausalLM"]), "model_impl": "auto", "runner": "auto",
        "runner_type": "generate", "convert_type": "none", "quantization": None, "is_multimodal_model": False,
        "is_moe": False, "use_mla": False, "enable_sleep_mode": False, "lora_config": None, "cpu_offload_gb": 0,
        "weight_transfer_config": None, "pipeline_parallel_size": 1, "data_parallel_size": 1, "enable_eplb": False,
        "cache_dtype": "auto",
    }  # fmt: skip

    def require(changed: dict[str, Any]) -> None:
        space = SimpleNamespace(**{**known, **changed})
        space.parallel_config = space.cache_config = space
        space.offload_config = SimpleNamespace(uva=space, prefetch=SimpleNamespace(offload_group_size=0))
        vllm_publish.require_known(space, space)

    require({})
    with pytest.raises(vllm_publish.NotPublishable, match=f"not known to be right with {reason}$"):
        require(REASONS[reason])


def test_names_are_those_of_the_source():
    from streamerd.engine_options import Options
    from streamerd.vllm_publish import name_of

    def name(source: str, rank: int = 0, size: int = 1, **options: Any) -> str:
        return name_of(Options(**options), source, rank, size)

    assert name("/mnt/a/model") == "mnt/a/model/vllm"
    assert name("hf://org/name@v2") == "org/name@v2/vllm"
    assert name("s3://bucket/prefix/") == "bucket/prefix/vllm"
    assert name("/c/models--org--name/snapshots/abc") == "org/name@abc/vllm"
    assert name("/mnt/a/model", 1, 4) == "mnt/a/model/vllm-1of4"
    assert name("/mnt/a/model", name="chat") == "chat/vllm"


def test_scalars_and_classes_that_differ_are_found():
    import torch

    from streamerd.vllm_publish import differences, left_on_meta, scalars_of

    module = torch.nn.Linear(2, 2)
    module.scale, module.act = 1.0, torch.nn.functional.relu
    published = scalars_of(module)
    assert differences(published, scalars_of(module)) == []
    module.scale = 2.0
    assert differences(published, scalars_of(module)) == [":scale is 2.0, published 1.0"]
    del module.scale
    module.extra = None
    assert differences(published, scalars_of(module)) == [
        ":scale is absent, published 1.0",
        ":extra is None, published absent",
    ]
    assert left_on_meta(module) == []
    module.tables = [torch.empty(1, device="meta")]
    assert left_on_meta(module) == [".tables", "tables[0]"]
