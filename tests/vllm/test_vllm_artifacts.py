# SPDX-License-Identifier: Apache-2.0
"""Compiled code that one engine publishes and the next restores, each with a folder of its own."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from processes import Daemon, Engine
from test_vllm_publish import engine_config

import streamerd


OWN = "vllm-model_executor-models-llama-LlamaForCausalLM.json"  # vLLM's name of what it knows of this class


class Logger:
    """In place of a logger of vLLM's."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str, *values: Any) -> None:
        self.lines.append(text % values)

    warning = info


def start(engine: Engine, daemon: Daemon, models: Path, **extra: Any) -> list[str]:
    """A compiling engine; what its loader logs of artifacts."""
    extra = {"socket": daemon.socket, **extra}
    started = engine.start(models / "checkpoint", "streamerd", extra, enforce_eager=False)
    return [line for line in started["log"] if "artifacts" in line]


def files(cache: Path) -> dict[str, bytes]:
    folder = cache / "torch_compile_cache"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"}


def modelinfos(cache: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (cache / "modelinfos").iterdir()}


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
    [name, examined] = sorted(m["name"] for m in daemon.ctl("list")["models"] if "published" in m)
    assert "/compiled-" in name and "/modelinfos-" in examined
    assert f"{len(compiled)} files" in after and name in after
    with engine_of(logs, second) as engine:
        engine.call("examine_no_class")
        [line] = start(engine, daemon, models)
        assert f"artifacts: restored {len(compiled)} files of {name}" in line
        assert engine.call("tokens") == tokens
    assert libraries(files(second)) == libraries(compiled)
    assert len(modelinfos(second)) == 1 and modelinfos(second) == modelinfos(first)
    stored = models / "sets"
    stored.mkdir()
    for published in (name, examined):
        daemon.ctl("export", published, str(stored / f"{published.rpartition('/')[2]}.safetensors"))
        daemon.ctl("unload", published)
    with engine_of(logs, third) as engine:
        engine.call("examine_no_class")
        restored, published = start(engine, daemon, models, artifacts=str(stored))
        assert f"artifacts: restored {len(compiled)} files of {stored}" in restored
        assert f"artifacts: published {name}" in published
        assert engine.call("tokens") == tokens
    assert libraries(files(third)) == libraries(compiled)
    assert modelinfos(third) == modelinfos(first)


def test_an_engine_that_cannot_restore_or_publish_compiles(
    daemon: Daemon, models: Path, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here with the set of another engine under its name, in a file; and with artifacts off."""
    from vllm.config import VllmConfig

    from streamerd._engines import vllm_artifacts
    from streamerd._engines.options import Options

    logger = Logger()

    key = {"engine": "this one"}
    monkeypatch.setattr(vllm_artifacts, "key_of", lambda config: key)
    monkeypatch.setattr(vllm_artifacts, "compiles", lambda config: True)
    monkeypatch.setattr(vllm_artifacts, "_hook", lambda worker: None)
    monkeypatch.setattr(vllm_artifacts.envs, "VLLM_CACHE_ROOT", str(tmp_path / "root"), raising=False)
    config = VllmConfig()

    def begin(**options: Any) -> str:
        logger.lines.clear()
        vllm_artifacts.begin(Options(socket=daemon.socket, **options), config, "/models/llama", logger)  # type: ignore[arg-type]
        return "\n".join(logger.lines)

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


def test_what_is_known_of_a_class_is_shared_by_engines_that_compile(
    daemon: Daemon, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file of this model's class alone; whatever fails, the configuration is made."""
    from vllm import envs
    from vllm.config.compilation import CompilationMode

    from streamerd._engines import vllm_modelinfos
    from streamerd._engines.options import Options

    logger = Logger()

    def make(cache: str, mode: CompilationMode = CompilationMode.VLLM_COMPILE, **options: Any) -> str:
        """Of an engine whose configuration examines a class; what is logged."""
        logger.lines.clear()
        folder = tmp_path / cache / "modelinfos"
        monkeypatch.setattr(envs, "VLLM_CACHE_ROOT", str(tmp_path / cache), raising=False)
        config: Any = SimpleNamespace(
            compilation_config=SimpleNamespace(mode=mode), speculative_config=None,
            model_config=SimpleNamespace(architecture="LlamaForCausalLM"),
        )  # fmt: skip

        def create() -> Any:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "another.json").write_text("another")
            if not (folder / OWN).exists():
                (folder / OWN).write_text(f"made in {cache}")
            return config

        with_modelinfos: Any = vllm_modelinfos.with_modelinfos
        assert with_modelinfos(Options(**{"socket": daemon.socket, **options}), "/models/known", logger, create) is config
        return "\n".join(logger.lines)

    def known(cache: str) -> str:
        return (tmp_path / cache / "modelinfos" / OWN).read_text()

    assert make("off", artifacts=False) == ""
    [line] = make("eager", CompilationMode.NONE).splitlines()
    assert "artifacts: there are none of models/known/modelinfos-" in line
    assert "published models/known/modelinfos-" in make("first")
    assert "restored 1 files of models/known/modelinfos-" in make("second")
    assert "exist already" in make("second")
    assert known("second") == known("first") == "made in first"
    [name] = [m["name"] for m in daemon.ctl("list")["models"] if m["name"].startswith("models/known/")]
    daemon.ctl("unload", name)
    failed, published = make("third", artifacts=str(models / "no sets")).splitlines()
    assert "not restored" in failed and f"published {name}" in published
    daemon.ctl("unload", name)
    monkeypatch.setattr(vllm_modelinfos, "_names", lambda config: 1 / 0)
    assert "not published: ZeroDivisionError" in make("fourth")
    assert "not restored" in make("fifth", socket=str(tmp_path / "none"), autostart=False)
    assert [known(cache) for cache in ("third", "fourth", "fifth")] == ["made in third", "made in fourth", "made in fifth"]


def test_a_source_that_cannot_be_found_ends_no_start_that_may_fall_back(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from streamerd._engines import vllm_loaders

    def fail(*_: Any) -> str:
        raise ValueError("a damaged index")

    monkeypatch.setattr(vllm_loaders, "locate", fail)
    config = engine_config(models, model_loader_extra_config={"fallback": True, "autostart": False})
    assert config.model_config.model == str(models / "checkpoint")
