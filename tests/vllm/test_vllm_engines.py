# SPDX-License-Identifier: Apache-2.0
"""Several engines on one daemon, and engines whose daemon dies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from processes import Daemon, Engine


def test_two_engines_share_one_copy_and_outlive_the_daemon(models: Path, tmp_path: Path, logs: Path) -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(Daemon(tmp_path / "daemon", models))
        engines = [stack.enter_context(Engine(logs / f"two-{i}")) for i in range(2)]
        for engine, alias in zip(engines, (False, True)):
            extra = {"socket": daemon.socket, "alias": alias}
            engine.begin("start", model=str(models / "state"), load_format="streamerd_sharded", extra=extra)
        for engine in engines:
            engine.end()
        [model] = daemon.ctl("list")["models"]
        assert model["leases"] == 1  # of the engine that uses the memory itself
        before = [engine.call("tokens") for engine in engines]
        assert before[0] == before[1]
        daemon.kill()
        assert [engine.call("tokens") for engine in engines] == before


def test_the_second_engine_reads_nothing_from_storage(models: Path, daemon: Daemon, engine: Engine) -> None:
    def load() -> int:
        before = daemon.read_bytes() + engine.call("read_bytes")
        engine.start(models / "checkpoint", "streamerd", {"socket": daemon.socket})
        engine.call("stop")
        return daemon.read_bytes() + engine.call("read_bytes") - before

    load()
    assert load() < 0.01 * (models / "checkpoint" / "model.safetensors").stat().st_size
