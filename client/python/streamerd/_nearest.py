# SPDX-License-Identifier: Apache-2.0
"""What was meant: the name that differs least from one that does not exist. For messages."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from ctypes import c_char_p
from itertools import islice
from typing import ParamSpec, TypeVar

from ._library import file_text, library

P = ParamSpec("P")
R = TypeVar("R")

_COMPARED = 10000  # names whose lengths allow it


def _size(name: str) -> int:
    return len(name.removesuffix(".safetensors"))


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The first of the names that differs least, by the library's rule."""
    size = _size(name)
    similar = (other for other in names if abs(_size(other) - size) <= size // 3)
    try:
        others = [os.fsencode(other) for other in islice(similar, _COMPARED)]
        found = library().streamer_nearest(file_text(name), (c_char_p * len(others))(*others), len(others))
    except UnicodeEncodeError:  # no name of the daemon's has what is no Unicode
        return None
    return None if found is None else os.fsdecode(found)


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a message, or nothing."""
    found = nearest(name, names)
    return "" if found is None else f"; did you mean {found!r}?"


def explains_options(function: Callable[P, R]) -> Callable[P, R]:
    """A keyword that the function does not have is a TypeError that names the one that was meant, in Pythons before
    3.13, too."""
    code = function.__code__
    options = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]

    @functools.wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> R:
        for option in keywords:
            if option not in options:
                meant = did_you_mean(option, options)
                raise TypeError(f"{function.__name__}() has no option {option!r}{meant}")
        return function(*arguments, **keywords)

    return call
