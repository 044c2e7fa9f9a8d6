# SPDX-License-Identifier: Apache-2.0
"""Sets of files that vLLM engines share by `artifacts`: in the daemon, or exported to a file in a folder or a store."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from logging import Logger

from vllm import envs
from vllm.config import VllmConfig
from vllm.config.compilation import CompilationMode

import streamerd
from streamerd import _files
from streamerd._engines.options import AUTO, Options
from streamerd._engines.sources import engine_name
from streamerd._folder import File, Folder
from streamerd._model import size_text


def compiles(config: VllmConfig) -> bool:
    return config.compilation_config.mode != CompilationMode.NONE and not envs.VLLM_DISABLE_COMPILE_CACHE


def warn(options: Options, logger: Logger, what: str, error: Exception) -> None:
    """Logs one line, as a warning only if the user asked for artifacts: this user may have no right to publish."""
    text = " ".join(str(error).split())
    if not isinstance(error, (streamerd.Error, OSError)):
        text = f"{type(error).__name__}: {text}"
    log = logger.info if options.artifacts == AUTO else logger.warning
    log("streamerd: artifacts: %s: %s", what, text)


class FileSet:
    """The files of one key below a folder. Its name ends with a hash of the key."""

    def __init__(
        self, options: Options, source: str, kind: str, key: Mapping[str, str], folder: str, logger: Logger
    ) -> None:
        self._options = options
        self._logger = logger
        self._key = key
        self.folder = folder
        name = f"{kind}-{hashlib.sha256(str(sorted(key.items())).encode()).hexdigest()[:16]}"
        self.name = f"{engine_name(options.name, source)}/{name}"
        where = options.artifacts if isinstance(options.artifacts, str) and options.artifacts != AUTO else None
        self._file = None if where is None else f"{where.rstrip('/')}/{name}.safetensors"

    def restore(self) -> bool:
        """Writes what the folder lacks. False: there is no such set yet."""
        began = time.perf_counter()
        try:
            with self._options.environment():
                written = streamerd.restore_files(
                    self.name, self.folder, key=self._key, replace=False, timeout=self._options.timeout,
                    **self._options.connection,
                )  # fmt: skip
            source = self.name
        except streamerd.NotFoundError:
            if self._file is None:
                self._logger.info("streamerd: artifacts: there are none of %s yet", self.name)
                return False
            source = self._file
            written = self._restore_file(self._file)
        if written:
            seconds = time.perf_counter() - began
            self._logger.info("streamerd: artifacts: restored %d files of %s in %.3f s", len(written), source, seconds)
        else:
            self._logger.info("streamerd: artifacts: all files of %s exist already", source)
        return True

    def _restore_file(self, file: str) -> list[str]:
        own = {"name": None, "digest": None, "device": "cpu", "pin": False}
        with self._options.open(file, framework="numpy", ready=True, **own) as model:
            differs = _files.key_differs(model.metadata, self._key)
            if differs is not None:
                raise streamerd.InvalidError(f"{file}: these are other artifacts: {differs}")
            return _files.write_files(model._client, model._held(), file, self.folder, replace=False)

    def publish(self, folder: Folder, files: list[File]) -> None:
        """Files of the folder. Another set of this name and key stays as it is."""
        with self._options.environment():
            published = _files.publish_selected(
                folder, files, self.name, key=self._key, timeout=self._options.timeout, **self._options.connection
            )
        if published:
            size = size_text(sum(file.size for file in files))
            self._logger.info("streamerd: artifacts: published %s: %d files, %s", self.name, len(files), size)
