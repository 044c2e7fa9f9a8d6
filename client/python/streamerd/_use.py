# SPDX-License-Identifier: Apache-2.0
"""use(): what other packages read by safetensors is read through the daemon."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

from . import _safetensors
from ._client import warn
from ._model import Model
from .errors import (
    DeniedError,
    Error,
    FailedError,
    InvalidError,
    LimitError,
    NotFoundError,
    OutOfMemoryError,
    UnsupportedError,
)

# Packages that bind safetensors' functions in modules of their own.
PACKAGES = ("safetensors", "transformers", "diffusers", "accelerate", "huggingface_hub", "peft")

_lock = threading.Lock()
_users = 0


# The daemon does not serve a file: it may not read it, does not see it, has no memory left for it, or lacks its device.
_REFUSALS = (DeniedError, InvalidError, LimitError, NotFoundError, OutOfMemoryError, UnsupportedError)

_logged: set[type] = set()


def _is_refused(error: Error) -> bool:
    return isinstance(error, _REFUSALS) or (isinstance(error, FailedError) and "outside the roots" in str(error))


def _log(error: Error, filename: Any) -> None:
    kind = type(error)
    if kind not in _logged:
        _logged.add(kind)
        warn("safetensors reads %s, and what else is refused so: %s", os.fspath(filename), error)


# What is read can be written to, as safetensors' own tensors can.


def _own_array(array: Any, model: Model[Any]) -> Any:
    return array.copy()  # as safetensors' own are


def _own_tensor(tensor: Any, model: Model[Any]) -> Any:
    return tensor.clone() if tensor.device.type == "cpu" and not model.writable else tensor


class _NumpySlice(_safetensors._NumpySlice):
    def __getitem__(self, index: Any) -> Any:
        return _own_array(super().__getitem__(index), self._model)


class _TorchSlice(_safetensors._TorchSlice):
    def __getitem__(self, index: Any) -> Any:
        return _own_tensor(super().__getitem__(index), self._model)


class _safe_open(_safetensors.safe_open):
    """Ours; or safetensors' own, where the daemon does not serve the file: what works without use() works with it.

    It is not streamerd.safe_open itself, which others may have imported, and which stays as it is.
    """

    _theirs: Any = None
    _slices = (_NumpySlice, _TorchSlice)

    def __new__(cls, filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
        made = super().__new__(cls)
        try:
            _safetensors.safe_open.__init__(made, filename, framework, device, **options)
        except Error as e:
            if not _is_refused(e):
                raise
            _log(e, filename)
            return cls._theirs(filename, framework, device, **options)
        return made

    def __init__(self, *arguments: Any, **options: Any) -> None:
        pass  # by __new__()

    def _own(self, tensor: Any) -> Any:
        return (_own_array if self._slice is _NumpySlice else _own_tensor)(tensor, self._model)

    def get_tensor(self, name: str) -> Any:
        return self._own(super().get_tensor(name))

    def get_tensors(self) -> dict[str, Any]:
        return {name: self._own(tensor) for name, tensor in super().get_tensors().items()}


def _load_file(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, Any]:
    with _safe_open(filename, "pt", device, **options) as file:
        return file.get_tensors()


def _replacements() -> dict[int, tuple[Any, Any]]:
    """(safetensors' own, ours), by the identity of safetensors' own."""
    import safetensors
    import safetensors.torch

    _safe_open._theirs = safetensors.safe_open
    pairs = [(safetensors.safe_open, _safe_open), (safetensors.torch.load_file, _load_file)]
    return {id(theirs): (theirs, ours) for theirs, ours in pairs}


def _replace(pairs: dict[int, tuple[Any, Any]]) -> None:
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in PACKAGES or module is None:
            continue
        members = vars(module)
        for key, value in list(members.items()):
            if id(value) in pairs:
                members[key] = pairs[id(value)][1]


_pairs: dict[int, tuple[Any, Any]] = {}


@contextlib.contextmanager
def use() -> Iterator[None]:
    """While it is entered, from_pretrained() of transformers, diffusers and accelerate reads through the daemon.

    safetensors' safe_open() and torch.load_file() are replaced wherever these packages have them, in all threads.
    A checkpoint's files stay resident, each under its path. With device_map, a GPU's tensors are copied there by torch
    where the daemon has only the host.

    What the daemon does not serve is read by safetensors itself, with one line in the log: files outside its roots, or
    that it may not read, or has no memory for; other frameworks and devices.

    Raises (what reads):
        UnreachableError: no daemon answers, and none can be started.
        FailedError: a damaged file, an I/O error.

    Example:
        with streamerd.use():
            model = transformers.AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-8B", device_map="cpu")
    """
    global _users, _pairs
    try:
        with _lock:
            _users += 1
            if _users == 1:
                _pairs = _replacements()
            _replace(_pairs)
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _replace({id(ours): (ours, theirs) for theirs, ours in _pairs.values()})
