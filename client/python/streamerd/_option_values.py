# SPDX-License-Identifier: Apache-2.0
"""Values of options: durations and flags, of open() and of the engines' configuration alike."""

from __future__ import annotations

import math
import re
import time
from typing import Any

from .errors import InvalidError

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(value: Any) -> float | None:
    """The seconds of a number or of a text such as "30m"; None for what is no duration."""
    if isinstance(value, str) and (parts := _DURATION.fullmatch(value)):
        return float(parts[1]) * _UNITS[parts[2]]
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < float("inf"):
        return float(value)
    return None


def seconds(option: str, value: Any) -> float | None:
    """An option that is a duration, or None."""
    result = duration(value)
    if result is None and value is not None:
        raise InvalidError(f"{option}: {value!r} is not a duration: seconds, or text such as '30m'")
    return result


def deadline_of(option: str, value: Any) -> float | None:
    """When a time is over that begins now, by the monotonic clock. None: there is no limit."""
    limit = seconds(option, value)
    return None if limit is None else time.monotonic() + limit


def seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.001, deadline - time.monotonic())


TIMEOUT_MS_MAX = 2**31 - 1  # of the library's timeouts, which are ints: 24 days
KEEP_ALIVE_MS_MAX = 366 * 24 * 3600 * 1000  # the longest duration of the protocol


def milliseconds(value: float, most: int = TIMEOUT_MS_MAX) -> int:
    """Seconds for the library, within 1 (0 has another meaning there) and `most`: what is longer is never reached."""
    return max(1, math.ceil(min(value * 1000, most)))


def flag(option: str, value: Any) -> bool | None:
    """An option that is True, False or None."""
    if value is not None and not isinstance(value, bool):
        raise InvalidError(f"{option}: {value!r} is neither True nor False")
    return value
