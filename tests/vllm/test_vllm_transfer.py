# SPDX-License-Identifier: Apache-2.0
"""Weights that change in a running engine: weight transfer backend ``streamerd``, both sides."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import Daemon, Engine, EngineError
from safetensors.torch import load_file, save_file

import streamerd

BACKEND = {"backend": "streamerd"}


class EngineClient:
    """The control plane of an engine in a process of its own; vLLM's own clients use HTTP or Ray."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls: list[str] = []

    def _call(self, method: str, **arguments: Any) -> None:
        self.calls.append(method)
        self.engine.call("workers", name=method, arguments=arguments)

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", init_info=init_info)

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._call("update_weights", update_info=update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update")

    def update(self, **update_info: Any) -> None:
        self.start_weight_update()
        self.update_weights(update_info)
        self.finish_weight_update()


@pytest.fixture(scope="module")
def changed(models: Path) -> Path:
    """The checkpoint with another final norm."""
    folder = models / "changed"
    shutil.copytree(models / "checkpoint", folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] * 0 - 1
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


@pytest.fixture(scope="module")
def other(engine: Engine, changed: Path, expected: list[int]) -> list[int]:
    """The tokens of an engine that was started with the other weights."""
    tokens, _ = engine.run(changed, "auto")
    assert tokens != expected
    return tokens


@pytest.fixture
def running(engine: Engine, daemon: Daemon, models: Path, expected: list[int], other: list[int]) -> Iterator[EngineClient]:
    extra = {"socket": daemon.socket}
    engine.start(models / "checkpoint", "streamerd", extra, weight_transfer_config=BACKEND)
    try:
        assert engine.call("tokens") == expected
        yield EngineClient(engine)
    finally:
        engine.call("stop")


def test_an_engine_takes_generations_in_place_and_keeps_its_weights_where_one_is_refused(
    running: EngineClient, daemon: Daemon, models: Path, changed: Path, expected: list[int], other: list[int]
) -> None:
    """The socket is that of the load format."""
    engine = running.engine
    running.init_weight_transfer_engine({})
    for _ in range(2):
        with streamerd.put(weights_of(changed), "policy", socket=daemon.socket) as model:
            running.update(model="policy", generation=model.generation, digest=model.digest)
        assert engine.call("tokens") == other
        with streamerd.put(weights_of(models / "checkpoint"), "policy", socket=daemon.socket):
            running.update(model="policy")
        assert engine.call("tokens") == expected
    refused = [
        ({"model": "nobody"}, "no such model"),
        ({"model": "policy", "generation": 1}, "no generation 1"),
        ({"model": "policy", "digest": "0" * 32}, "digest"),
        ({"model": "policy", "generation": "x"}, "is no number of a generation"),
        ({"model": ""}, "update_info: model must be a text that is not empty"),
        ({"model": "policy", "step": 3}, "Invalid update_info for StreamerdWeightTransferEngine"),
    ]
    for update, text in refused:
        running.start_weight_update()
        with pytest.raises(EngineError, match=text):
            running.update_weights(update)
        assert engine.call("tokens") == expected
    with streamerd.put(weights_of(changed), "policy", socket=daemon.socket):
        running.update(model="policy")
    assert engine.call("tokens") == other


def test_many_updates_leave_the_memory_of_engine_and_daemon_flat(
    running: EngineClient, daemon: Daemon, models: Path, changed: Path, other: list[int]
) -> None:
    engine = running.engine
    running.init_weight_transfer_engine({"socket": daemon.socket})

    def used() -> int:
        size: int = daemon.ctl("status")["devices"][0]["used"]
        return size

    def update(folder: Path) -> None:
        with streamerd.put(weights_of(folder), "policy", socket=daemon.socket, wait=True):
            running.update(model="policy")

    for folder in (changed, models / "checkpoint") * 2:
        update(folder)
    before, private = used(), engine.call("memory")["Private_Dirty"]
    for folder in (models / "checkpoint", changed) * 10:
        update(folder)
    assert engine.call("tokens") == other
    assert used() <= before
    assert engine.call("memory")["Private_Dirty"] < private + (16 << 20)


class Source:
    """A trainer's weights; `materialised` counts what this rank has taken part in."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = weights
        self.materialised = 0
        self.held: list[str] | None = None

    def metadata(self) -> list[Any]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, w.dtype, tuple(w.shape)) for name, w in self.weights.items()]

    def held_names(self) -> list[str] | None:
        return self.held

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in self.weights.items():
            self.materialised += 1
            yield name, tensor


def trainer(client: Any, source: Any, rank: int = 0, **more: Any) -> Any:
    from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

    from streamerd.vllm import StreamerdTrainerInitInfo

    info = StreamerdTrainerInitInfo("policy", rank=rank, **more)
    return WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)


def test_a_trainer_sends_what_its_ranks_have_materialised(
    running: EngineClient, daemon: Daemon, changed: Path, models: Path, expected: list[int], other: list[int]
) -> None:
    source = Source(weights_of(changed))
    sender = trainer(running, source, socket=daemon.socket)
    sender.send_weights()
    assert running.engine.call("tokens") == other
    assert running.calls[-4:] == [
        "init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update",
    ]  # fmt: skip
    source.weights = weights_of(models / "checkpoint")
    sender.send_weights()
    assert running.engine.call("tokens") == expected


class NoClient:
    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was called")


def test_other_ranks_materialise_and_send_nothing(changed: Path) -> None:
    source = Source(weights_of(changed))
    trainer(NoClient(), source, rank=1, socket="/nowhere").send_weights()
    assert source.materialised == len(source.weights)


class Quiet(NoClient):
    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        assert init_info["socket"]


def test_a_send_that_fails_lets_the_other_ranks_finish(daemon: Daemon, changed: Path) -> None:
    """They would wait for this one in the next collective."""
    source = Source(weights_of(changed))
    sender = trainer(Quiet(), source, socket=daemon.socket)
    source.metadata = lambda: Source.metadata(source)[::-1]  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="the source yields 'lm_head.weight' where its metadata has|the source yields"):
        sender.send_weights()
    assert source.materialised == len(source.weights)
    with pytest.raises(streamerd.UnreachableError):
        trainer(Quiet(), source, socket="/nowhere").send_weights()
    assert source.materialised == 2 * len(source.weights)


def test_a_source_that_is_split_over_ranks_is_refused(changed: Path) -> None:
    source = Source({})
    source.held = []
    with pytest.raises(ValueError, match="requires a source that yields every weight on rank 0"):
        trainer(NoClient(), source)
    with pytest.raises(ValueError, match="requires a WeightSource"):
        trainer(NoClient(), None)


def test_each_rank_of_an_engine_takes_its_slices(
    daemon: Daemon, models: Path, changed: Path, logs: Path, expected: list[int], other: list[int]
) -> None:
    with Engine(logs / "ranks of a transfer", {"VLLM_CPU_OMP_THREADS_BIND": "0|1"}) as engine:
        engine.start(models / "checkpoint", "auto", tensor_parallel=2, weight_transfer_config=BACKEND)
        client = EngineClient(engine)
        client.init_weight_transfer_engine({"socket": daemon.socket})
        with streamerd.put(weights_of(changed), "policy", socket=daemon.socket) as model:
            client.update(model="policy", generation=model.generation)
        assert engine.call("tokens") == other
        engine.call("stop")
