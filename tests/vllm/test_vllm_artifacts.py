# SPDX-License-Identifier: Apache-2.0
"""Compiled code that one engine publishes and the next restores, each with a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from processes import Daemon, Engine

import streamerd


def start(engine: Engine, daemon: Daemon, models: Path, **extra: Any) -> list[str]:
    """A compiling engine; what its loader logs of artifacts."""
    extra = {"socket": daemon.socket, **extra}
    started = engine.start(models / "checkpoint", "streamerd", extra, enforce_eager=False)
    return [line for line in started["log"] if "artifacts" in line]


def files(cache: Path) -> dict[str, bytes]:
    folder = cache / "torch_compile_cache"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"}


def libraries(found: dict[str, bytes]) -> dict[str, bytes]:
    """What a compiler has made: each has a hash as its name, and would be another file, or other bytes, if made again."""
    made = {name: data for name, data in found.items() if name.endswith(".so")}
    assert made
    return made


def engine_of(logs: Path, cache: Path) -> Engine:
    return Engine(logs / f"artifacts-{cache.name}", {"VLLM_CACHE_ROOT": str(cache)})


def test_an_engine_restores_what_another_has_compiled(
    daemon: Daemon, models: Path, logs: Path, tmp_path: Path, expected: list[int]
) -> None:
    """Out of the daemon, then out of a file that the set was exported to."""
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    with engine_of(logs, first) as engine:
        before, after = start(engine, daemon, models)
        assert "artifacts: there are none of" in before and "artifacts: published" in after
        tokens = engine.call("tokens")
        assert len(tokens) == len(expected)
        compiled = files(first)
    [name] = [m["name"] for m in daemon.ctl("list")["models"] if "/compiled-" in m["name"]]
    assert f"{len(compiled)} files" in after and name in after
    with engine_of(logs, second) as engine:
        [line] = start(engine, daemon, models)
        assert f"artifacts: restored {len(compiled)} files of {name}" in line
        assert engine.call("tokens") == tokens
    assert libraries(files(second)) == libraries(compiled)
    stored = models / "sets"
    stored.mkdir()
    daemon.ctl("export", name, str(stored / f"{name.rpartition('/')[2]}.safetensors"))
    daemon.ctl("unload", name)
    with engine_of(logs, third) as engine:
        restored, published = start(engine, daemon, models, artifacts=str(stored))
        assert f"artifacts: restored {len(compiled)} files of {stored}" in restored
        assert f"artifacts: published {name}" in published
        assert engine.call("tokens") == tokens
    assert libraries(files(third)) == libraries(compiled)


def test_an_engine_that_cannot_restore_or_publish_compiles(
    daemon: Daemon, models: Path, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with the set of another engine under its name, in a file; and with artifacts off."""
    from vllm.config import VllmConfig

    from streamerd._engines import vllm_artifacts
    from streamerd._engines.options import Options

    lines: list[str] = []

    class Logger:
        def info(self, text: str, *values: Any) -> None:
            lines.append(text % values)

        warning = info

    key = {"engine": "this one"}
    monkeypatch.setattr(vllm_artifacts, "key_of", lambda config: key)
    monkeypatch.setattr(vllm_artifacts, "_compiles", lambda config: True)
    monkeypatch.setattr(vllm_artifacts, "_hook", lambda worker: None)
    monkeypatch.setattr(vllm_artifacts.envs, "VLLM_CACHE_ROOT", str(tmp_path / "root"), raising=False)
    config = VllmConfig()

    def begin(**options: Any) -> str:
        lines.clear()
        vllm_artifacts.begin(Options(socket=daemon.socket, **options), config, "/models/llama", Logger())  # type: ignore[arg-type]
        return "\n".join(lines)

    assert begin(artifacts=False) == "" and vllm_artifacts._current is None
    assert "artifacts: there are none of models/llama/compiled-" in begin()
    assert vllm_artifacts._current is not None
    name, stored = vllm_artifacts._current.name, models / "other sets"
    assert "not restored" in begin(artifacts=str(stored))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "x").write_text("x")
    stored.mkdir()
    streamerd.publish_files(tmp_path / "made", name, key={"engine": "another"}, socket=daemon.socket)
    daemon.ctl("export", name, str(stored / f"{name.rpartition('/')[2]}.safetensors"))
    assert "engine: published with 'another', needed 'this one'" in begin()
    daemon.ctl("unload", name)
    assert "these are other artifacts: engine: stored with 'another', needed 'this one'" in begin(artifacts=str(stored))
    assert not (tmp_path / "root").exists() or not list((tmp_path / "root").rglob("x"))
    streamerd.publish_files(tmp_path / "made", name, key=key, socket=daemon.socket)
    assert "artifacts: restored 1 files of" in begin()
    assert "artifacts: all files of" in begin()
