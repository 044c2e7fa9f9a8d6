# SPDX-License-Identifier: Apache-2.0
"""The programs streamerd and streamerctl: from the wheel, else from the system."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._library import bundled

_CUDART_PATH = "STREAMERD_CUDART_PATH"


def _is_elf(path: str) -> bool:
    try:
        with open(path, "rb") as f:
            return f.read(4) == b"\x7fELF" and os.access(path, os.X_OK)
    except OSError:
        return False


def find_program(name: str) -> str | None:
    """The path of a program, or None. The scripts that pip installs under its name are not it."""
    own = bundled("bin", name)
    if own:
        return own
    folders = os.get_exec_path()
    return next((path for path in (os.path.join(f, name) for f in folders) if _is_elf(path)), None)


def environment() -> dict[str, str]:
    """The environment, with the places where wheels put CUDA's runtime: a daemon looks there after the system's."""
    found = [os.environ[_CUDART_PATH]] if os.environ.get(_CUDART_PATH) else []
    for path in dict.fromkeys(sys.path):
        folders = (os.path.join(path, "nvidia", name, "lib") for name in ("cu13", "cuda_runtime"))
        found += [folder for folder in folders if os.path.isdir(folder)]
    return {**os.environ, _CUDART_PATH: ":".join(found)} if found else dict(os.environ)


def _become(name: str) -> NoReturn:
    program = find_program(name)
    if program is None:
        sys.exit(f"{name}: this package was installed without the program: install the wheel, or {name} itself")
    os.execve(program, [name, *sys.argv[1:]], environment())


def streamerd() -> NoReturn:
    _become("streamerd")


def streamerctl() -> NoReturn:
    _become("streamerctl")
