# SPDX-License-Identifier: Apache-2.0
"""Whether an installed engine has what a loader uses of it: names, and the parameters of what is called or overridden.

An engine's internals change between versions. The check refuses a version by the first name that it lacks, before
anything of the engine was changed; nothing is refused by its number.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Iterable
from typing import Any

# What is used of one object: "module:name.of.the.object", the names of parameters (of a class: of its constructor, or
# fields of a data class).
Use = tuple[str, tuple[str, ...]]


def _find(path: str) -> Any:
    module, _, name = path.partition(":")
    found = importlib.import_module(module)
    for part in name.split(".") if name else ():
        found = getattr(found, part)
    return found


def _parameters(found: Any) -> set[str] | None:
    """Names that may be given; None: any."""
    if dataclasses.is_dataclass(found):
        return {field.name for field in dataclasses.fields(found)}
    parameters = inspect.signature(found).parameters.values()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}


def lacks(uses: Iterable[Use]) -> str | None:
    """The first name or parameter that is missing, None if there is none."""
    for path, parameters in uses:
        try:
            found = _find(path)
        except (ImportError, AttributeError):
            return path.replace(":", ".")
        if not parameters:
            continue
        known = _parameters(found)
        for parameter in parameters:
            if known is not None and parameter not in known:
                return f"{path.replace(':', '.')}({parameter})"
    return None


def refusal(engine: str, version: str, what: str, uses: Iterable[Use], tested: tuple[str, ...]) -> str | None:
    """Why `what` ("load format streamerd") refuses this version of an engine; None if it has all that is used."""
    missing = lacks(uses)
    if missing is None:
        return None
    return (
        f"{what} needs {missing}, which {engine} {version} does not have; this streamerd package was "
        f"tested with {engine} {', '.join(tested)}: install one of these, or a newer streamerd"
    )
