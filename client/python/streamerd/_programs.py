# SPDX-License-Identifier: Apache-2.0
"""The programs streamerd and streamerctl: from the wheel, else from the system."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from ._library import bundled


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
        return str(own)
    folders = os.get_exec_path()
    return next((path for path in (os.path.join(f, name) for f in folders) if _is_elf(path)), None)


def _become(name: str) -> NoReturn:
    program = find_program(name)
    if program is None:
        sys.exit(f"{name}: this package was installed without the program: install the wheel, or {name} itself")
    os.execv(program, [name, *sys.argv[1:]])


def streamerd() -> NoReturn:
    _become("streamerd")


def streamerctl() -> NoReturn:
    _become("streamerctl")
