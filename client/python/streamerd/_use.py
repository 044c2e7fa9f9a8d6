# SPDX-License-Identifier: Apache-2.0
"""use(): what other packages read by safetensors is read through the daemon."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

from . import _safetensors

# Packages that bind safetensors' functions in modules of their own.
PACKAGES = ("safetensors", "transformers", "diffusers", "accelerate", "huggingface_hub", "peft")

_lock = threading.Lock()
_users = 0


def _load_file(filename: Any, device: Any = "cpu", **options: Any) -> dict[str, Any]:
    return _safetensors.load_file(filename, device, **options)


class _safe_open(_safetensors.safe_open):
    """Is not streamerd.safe_open itself, which others may have imported, and which stays as it is."""


def _replacements() -> dict[int, tuple[Any, Any]]:
    """(safetensors' own, ours), by the identity of safetensors' own."""
    import safetensors
    import safetensors.torch

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
    where the daemon has only the host. Raises as open() does; nothing is read by safetensors instead.
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
