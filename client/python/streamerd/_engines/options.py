# SPDX-License-Identifier: Apache-2.0
"""What the loaders for inference engines share: their options, how they open a model, how they report errors.

Nothing here imports an engine or torch.
"""

from __future__ import annotations

import difflib
import logging
import re
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any

import streamerd

from .. import _autostart, _open
from .._model import size_text
from .._option_values import duration

_DIGEST = re.compile(r"[0-9a-fA-F]{32}")

# Of vLLM's and SGLang's own formats.
_NOT_NEEDED = ("enable_multithread_load", "num_threads")

AUTO = "auto"

PROGRESS_SECONDS = 5.0


def _key(kind: str, default: Any) -> Any:
    """A key of the configuration: `kind` names its check in _KINDS."""
    return field(default=default, metadata={"kind": kind})


# What a value must be: the check, and the words for it.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "text": (lambda v: type(v) is str and v != "", "a string that is not empty"),
    "flag": (lambda v: type(v) is bool, "true or false"),
    "flag, auto or place": (
        lambda v: type(v) is bool or (type(v) is str and v != ""),
        'true, false, "auto", or a path or URI',
    ),
    "flag or auto": (lambda v: type(v) is bool or v == AUTO, 'true, false or "auto"'),
    "count": (lambda v: type(v) is int and v >= 1, "a positive integer"),
    "priority": (lambda v: type(v) is int and 1 <= v <= 10000, "an integer from 1 to 10000"),
    "duration": (
        lambda v: (duration(v) or 0) > 0,
        'a positive number of seconds, or a text such as "30m"',
    ),
    "digest": (lambda v: type(v) is str and _DIGEST.fullmatch(v) is not None, "32 hex digits"),
    "verify": (lambda v: v in ("none", "sha256"), '"none" or "sha256"'),
}


@dataclass(frozen=True)
class Options:
    """The extra configuration of a loader (``--model-loader-extra-config``).

    name         name of the model in the daemon; default: derived from the source; for the target only, not for drafts
    digest       32 hex digits that the model's digest must equal; for the target only, not for drafts
    device       where the weights are resident: "cpu" or "cuda:N"; default: "cpu", with alias the engine's device
    socket       the daemon's socket; default: $STREAMERD_SOCKET, else the package's default
    concurrency  blocks in flight for one load, of a daemon that this process starts
    wait         wait for memory where the model does not fit now, instead of failing
    evict        false: evict no other model
    pin          never evict the model, and do not let it expire
    keep_alive   time without a lease after which the daemon unloads the model, in seconds or as "30m"
    priority     1 to 10000: share of the reader among loads
    verify       "sha256": compare the files with their published checksums
    timeout      time until the model must be loaded, in seconds or as "30m"; the daemon continues afterwards
    pattern      names of a sharded checkpoint's files, with {rank} and {part}
    autostart    start a daemon where none answers; default: unless STREAMERD_AUTOSTART=0
    alias        use the resident tensors as parameters where that is safe; "auto": where they are copy-on-write
    publish      share the finished tensors between engines; "auto": on GPUs
    artifacts    share what the engine compiles; a path or URI: also from the files there
    fallback     load from the source by the engine's own loader where the daemon cannot serve the model
    """

    name: str | None = _key("text", None)
    digest: str | None = _key("digest", None)
    device: str | None = _key("text", None)
    socket: str | None = _key("text", None)
    concurrency: int | None = _key("count", None)
    wait: bool = _key("flag", False)
    evict: bool = _key("flag", True)
    pin: bool = _key("flag", False)
    keep_alive: float | None = _key("duration", None)
    priority: int | None = _key("priority", None)
    verify: str | None = _key("verify", None)
    timeout: float | None = _key("duration", None)
    pattern: str | None = _key("text", None)
    autostart: bool | None = _key("flag", None)
    alias: bool | str = _key("flag or auto", AUTO)
    publish: bool | str = _key("flag or auto", False)
    artifacts: bool | str = _key("flag, auto or place", AUTO)
    fallback: bool = _key("flag", False)

    @classmethod
    def parse(cls, config: object, load_format: str) -> Options:
        """Checks keys and types. Raises ValueError with a message for the person who wrote the configuration."""
        where = f"model_loader_extra_config of load format {load_format}"
        if config is None:
            return cls()
        if not isinstance(config, Mapping):
            raise ValueError(f"{where}: must be a JSON object, not {type(config).__name__}")
        known = {f.name: f for f in fields(cls)}
        for key in config:
            if key in _NOT_NEEDED:
                raise ValueError(f"{where}: {key} is for the engine's own formats: the daemon always reads in parallel")
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                hint = f"; did you mean {near[0]!r}?" if near else ""
                raise ValueError(f"{where}: unknown key {key!r}{hint} (known: {', '.join(known)})")
        options = cls(**config)
        options._check(where)
        return replace(options, keep_alive=duration(options.keep_alive), timeout=duration(options.timeout))

    def _check(self, where: str) -> None:
        for key in fields(self):
            value: Any = getattr(self, key.name)
            if value is None and key.default is None:
                continue
            valid, words = _KINDS[key.metadata["kind"]]
            if not valid(value):
                raise ValueError(f"{where}: {key.name} must be {words}, not {value!r}")

    def _keywords(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "digest": self.digest,
            "device": self.device or "cpu",
            "wait": self.wait,
            "evict": self.evict,
            "pin": self.pin,
            "keep_alive": self.keep_alive,
            "priority": self.priority,
            "verify": self.verify,
            "timeout": self.timeout,
            "progress": False,
            **self.connection,
        }

    def begin(self, source: str, **more: Any) -> None:
        """Begins to load a source; the daemon continues. What fails later is reported to the one that opens it."""
        keywords: Any = {**self._keywords(), **more, "digest": None, "timeout": None}
        with self.environment():
            _open.Request(source, "torch", keywords).try_start()

    def open(self, source: str, **more: Any) -> streamerd.Model[Any]:
        """Opens a source, or the resident model of that name, with these options; `more` goes over them."""
        try:
            with self.environment():
                return streamerd.open(source, **{**self._keywords(), **more})
        except streamerd.Error as error:
            advice = self._advice(error)
            raise type(error)(f"{error}: {advice}") if advice else error from None

    def _advice(self, error: streamerd.Error) -> str | None:
        """What to change in the loader's configuration, beyond what the error says itself."""
        if isinstance(error, streamerd.DigestError):
            return "correct `digest`, or the source"
        if isinstance(error, streamerd.OutOfMemoryError):
            wait = "" if self.wait else ", or set `wait` to wait for memory"
            return f"raise the daemon's budget, or unload a model{wait}"
        if isinstance(error, streamerd.UnreachableError):
            where = "check `socket`; " if self.socket else ""
            return where + "`fallback` lets the engine load without streamerd"
        return None

    def environment(self) -> AbstractContextManager[None]:
        """While it is entered, a daemon that this thread starts has the variables of these options."""
        variables = {} if self.concurrency is None else {"RUNAI_STREAMER_CONCURRENCY": str(self.concurrency)}
        return _autostart.with_environment(variables)

    @property
    def connection(self) -> dict[str, Any]:
        """Keywords that choose the daemon."""
        return {"socket": self.socket, "autostart": self.autostart}


class LoadLog:
    """Lines of a log about a load that takes long: open(progress=...) calls it while it waits.

    Raises TimedOutError once the load has taken `timeout` seconds.
    """

    def __init__(
        self,
        title: str,
        logger: logging.Logger,
        timeout: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title = title
        self._logger = logger
        self._clock = clock
        self._began = self._logged = clock()
        self._deadline = None if timeout is None else self._began + timeout
        self._first: int | None = None  # bytes that were loaded when this process began to wait

    def __call__(self, done: int, total: int) -> None:
        now = self._clock()
        if self._first is None and total > 0:
            self._first = done
        if done < total and self._deadline is not None and now >= self._deadline:
            raise streamerd.TimedOutError(f"{self._title}: not loaded in the given time; the load continues")
        if now - self._logged >= PROGRESS_SECONDS and done < total:
            self._logged = now
            rate = (done - (self._first or 0)) / (now - self._began)
            self._logger.info(
                "streamerd: %s: %s of %s (%d %%), %s/s, %s left",
                self._title, size_text(done), size_text(total), 100 * done // total, size_text(int(rate)),
                f"{(total - done) / rate:.0f} s" if rate > 0 else "unknown time",
            )  # fmt: skip
