# SPDX-License-Identifier: Apache-2.0
"""What vLLM has compiled, for the next engine: `artifacts` in the extra configuration of the load formats.

    restore    before a model is loaded: files that the folder of compiled code lacks, of the set of this key
    publish    once the worker has compiled and warmed up: its part of that folder, unless it is resident already

A set is one of streamerd.publish_files(), or one of these that was exported to a file and lies in a folder or a store. Each
rank has one, since each compiles code of its own. vLLM decides by its own hashes, which are names of folders, what of the
files it uses, and compares the sources that they were made from: a set that does not fit costs the time to compile.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from importlib import metadata
from logging import Logger
from typing import Any

import torch
import vllm
from torch import nn
from vllm import envs
from vllm.compilation.caching import aot_compile_hash_factors
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from streamerd._engines.options import AUTO, Options
from streamerd._engines.vllm_platform import instruction_set
from streamerd._engines.vllm_sets import FileSet, compiles, warn
from streamerd._folder import Folder

_FOLDER = "torch_compile_cache"  # below VLLM_CACHE_ROOT, with a folder for each hash, and AOT's
_AOT = "torch_aot_compile"
_RANK = re.compile(r"rank_(\d+)_(\d+)")
_PASSING = (".tmp", ".lock", ".part")  # files of writers that are at work

_current: Artifacts | None = None  # of the engine that this process loads


def begin(options: Options, config: VllmConfig, source: str, logger: Logger) -> None:
    """Restores what this engine would compile. Never fails: it compiles instead."""
    global _current
    _current = None
    if options.artifacts is False:
        return
    if not compiles(config):
        if options.artifacts != AUTO:
            logger.info("streamerd: artifacts: this engine compiles nothing")
        return
    try:
        artifacts = Artifacts(options, config, source, logger)
        _hook(_worker_class(config))
        _current = artifacts
        artifacts.restore()
    except Exception as error:
        warn(options, logger, "not restored", error)


def _worker_class(config: VllmConfig) -> type[Any]:
    """Of the worker that loads this model."""
    found: Any = config.parallel_config.worker_cls
    if isinstance(found, str):
        module, _, name = found.rpartition(".")
        found = getattr(importlib.import_module(module), name)
    return found  # type: ignore[no-any-return]


def _hook(worker: type[Any]) -> None:
    """Lets the workers of a class publish once they have compiled."""
    original: Callable[..., Any] = worker.compile_or_warm_up_model
    if getattr(original, "_publishes_artifacts", False):
        return

    @functools.wraps(original)
    def compile_or_warm_up_model(self: Any, *arguments: Any, **more: Any) -> Any:
        global _current
        result = original(self, *arguments, **more)
        artifacts, _current = _current, None
        if artifacts is not None:
            artifacts.publish_compiled(self.get_model())
        return result

    compile_or_warm_up_model._publishes_artifacts = True  # type: ignore[attr-defined]
    worker.compile_or_warm_up_model = compile_or_warm_up_model


# ---- the key ----


@functools.cache
def _compiler() -> str:
    """What compiles for this platform."""
    if current_platform.is_cuda():
        return f"cuda {torch.version.cuda}"
    from torch._inductor.cpp_builder import get_cpp_compiler

    path = shutil.which(get_cpp_compiler()) or get_cpp_compiler()
    done = subprocess.run([path, "--version"], capture_output=True, text=True)
    return done.stdout.partition("\n")[0] or path


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def _short(text: str) -> str:
    return text if len(text) < 200 else hashlib.sha256(text.encode()).hexdigest()


def key_of(config: VllmConfig) -> dict[str, str]:
    """All that decides whether compiled code can be used again; `config` is what vLLM itself puts into its hashes."""
    parallel = config.parallel_config
    key = {
        "engine": f"vllm {vllm.__version__}",
        "torch": torch.__version__,
        "triton": _version_of("triton"),
        "compiler": _compiler(),
        "platform": instruction_set(),
        "architecture": ",".join(config.model_config.hf_config.architectures or []),
        "config": hashlib.sha256(str(aot_compile_hash_factors(config)).encode()).hexdigest()[:32],
        "rank": f"{parallel.rank} of {parallel.world_size}",
        "data_parallel": str(parallel.data_parallel_index),
    }
    return {field: _short(value) for field, value in key.items()}


# ---- one engine ----


class Artifacts(FileSet):
    """The compiled code of one rank of an engine."""

    def __init__(self, options: Options, config: VllmConfig, source: str, logger: Logger) -> None:
        super().__init__(options, source, "compiled", key_of(config), os.path.join(envs.VLLM_CACHE_ROOT, _FOLDER), logger)
        self._config = config

    def publish_compiled(self, model: nn.Module) -> None:
        """Never fails: the next engine compiles."""
        try:
            used = sorted(self._used(model))
            if used:
                with Folder(self.folder) as folder:
                    files = [file for below in used for file in folder.files(below) if self._is_own(file.name)]
                    if files:
                        self.publish(folder, files)
                        return
            self._logger.info("streamerd: artifacts: this engine has compiled nothing into %s", self.folder)
        except Exception as error:
            warn(self._options, self._logger, "not published", error)

    def _is_own(self, name: str) -> bool:
        """Not of a writer that is at work, nor of another rank: that one publishes it once it is complete."""
        if name.endswith(_PASSING):
            return False
        parallel = self._config.parallel_config
        own = (str(parallel.rank), str(parallel.data_parallel_index))
        return all(match.groups() == own for match in map(_RANK.fullmatch, name.split("/")) if match)

    def _used(self, model: nn.Module) -> set[str]:
        """Folders of a hash below the folder of compiled code: HASH, or AOT's."""
        config = self._config.compilation_config
        paths = [config.cache_dir, config.local_cache_dir]
        paths += [getattr(module, "_aot_cache_dir", None) for module in model.modules()]
        used = set()
        for path in filter(None, paths):
            parts = os.path.relpath(path, self.folder).split(os.sep)
            whole = parts[: 2 if parts[0] == _AOT else 1]
            if parts[0] != ".." and os.path.isdir(os.path.join(self.folder, *whole)):
                used.add("/".join(whole))
        return used


