# SPDX-License-Identifier: Apache-2.0
"""open(): load, attach, and the model's object."""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, pointer
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

from ._client import Client, connect, interruptibly, warn
from ._library import (
    ATTACH_PRIVATE,
    ATTACH_READY,
    E_TIMEOUT,
    LEASE,
    LOAD_NO_EVICT,
    LOAD_PIN,
    LOAD_WAIT,
    OP,
    AttachOpts,
    Handle,
    LoadOpts,
    OpenOpts,
    file_text,
    library,
    optional_text,
    sized,
    text,
)
from ._model import SLICE_MS, Model
from ._nearest import explains_options
from ._option_values import KEEP_ALIVE_MS_MAX, flag, milliseconds, seconds
from ._progress import ProgressBar
from ._source import explain_missing, is_local, without_links
from ._views import Views, views_of
from .errors import (
    Error,
    InvalidError,
    LimitError,
    NotFoundError,
    OutOfMemoryError,
    TimedOutError,
    UnreachableError,
)

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Unpack

Source = str | os.PathLike[str]

# A load that the daemon does not admit yet is tried again after this time.
RETRY_SECONDS = 0.05

# An open() whose load is not admitted for so long says so, once.
ADMISSION_LOG_SECONDS = 5.0

# Of one connection at once: fewer than limits.requests_per_client.
OPENINGS = 32

# Of a question that only explains an error.
_PUBLISHER_SECONDS = 0.1

_BUDGET = "to give the daemon more, set STREAMERD_HOST_BUDGET (50%) and end it: streamerctl shutdown"


def device_name(device: Any) -> str | None:
    """The daemon's name of a device: "cpu" is "host", and a GPU's ordinal in this process is its UUID."""
    if device is None:
        return None
    name = f"cuda:{device}" if isinstance(device, int) or str(device).isdecimal() else str(device)
    if name in ("cpu", "host") or name.startswith("cpu:"):
        return "host"
    kind, _, index = name.partition(":")
    if kind != "cuda" or (index and not index.isdecimal()):
        return name
    try:
        import torch

        ordinal = int(index) if index else torch.cuda.current_device()
        return f"cuda:GPU-{torch.cuda.get_device_properties(ordinal).uuid}"
    except (ImportError, AssertionError, RuntimeError):
        return name if index else "cuda:0"


# ---- options ----

def _text(options: Options, option: str, pattern: str = "(?s:.+)", must: str = "text") -> bytes | None:
    value = options.get(option)
    if value is None:
        return None
    if not isinstance(value, str) or not re.fullmatch(pattern, value):
        raise InvalidError(f"{option}: {value!r} is not {must}")
    return text(value)


def _priority(value: Any) -> int:
    if value is None:
        return 0
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 10000:
        raise InvalidError(f"priority: {value!r} is not within 1 to 10000")
    return value


def _is_set(options: Options, option: str) -> bool:
    return flag(option, options.get(option)) or False


class Options(TypedDict, total=False):
    """Keywords of open(), which documents them, of aopen() and of load_into(): for functions that pass them on."""

    name: str | None
    device: Any
    shared: bool | None
    ready: bool | None
    digest: str | None
    verify: str | None
    pin: bool | None
    wait: bool | None
    evict: bool | None
    priority: int | None
    keep_alive: float | str | None
    layout: str | None
    pattern: str | None
    socket: str | None
    autostart: bool | None
    timeout: float | str | None
    progress: bool | Callable[[int, int], None] | None


def options_of(arguments: Mapping[str, Any]) -> Options:
    """The options among a function's arguments, which are its locals()."""
    return cast(Options, {option: arguments[option] for option in Options.__annotations__})


def _is_under_way(op: Handle | None) -> bool:
    return op is not None and library().streamer_op_wait(op.pointer, 0, None) == E_TIMEOUT


def _is_only_sent(client: Client, source: str) -> bool:
    """Whether the start does not wait: the request for a model by its name, which the reply answers later, on a
    connection that lives."""
    return "/" not in source and not is_local(source) and bool(library().streamer_python_alive(client.pointer))


class Request:
    """What open() asks for, as the library's structs. The structs borrow from this object."""

    def __init__(self, source: Source, framework: str, options: Options) -> None:
        text(os.fspath(source))  # before anything is looked for; requests are UTF-8
        self.source = os.path.expanduser(os.fspath(source))
        self.views: Views[Any] = views_of(framework)
        self._socket = options.get("socket")
        self._autostart = flag("autostart", options.get("autostart"))
        timeout = seconds("timeout", options.get("timeout"))
        self._deadline = None if timeout is None else time.monotonic() + timeout
        progress = options.get("progress")
        self.bar = ProgressBar(self.source, progress if callable(progress) else flag("progress", progress))
        device_text = device_name(options.get("device"))
        device = optional_text(device_text)
        self._devices = (c_char_p * 1)(device or b"host")
        flags = LOAD_WAIT * _is_set(options, "wait") | LOAD_PIN * _is_set(options, "pin")
        flags |= LOAD_NO_EVICT * (flag("evict", options.get("evict")) is False)
        keep_alive = seconds("keep_alive", options.get("keep_alive"))
        self._load = sized(
            LoadOpts,
            name=_text(options, "name"),
            devices=self._devices,
            n_devices=0 if device is None else 1,
            verify=_text(options, "verify", "sha256|none", "'sha256'"),
            flags=flags,
            priority=_priority(options.get("priority")),
            layout=_text(options, "layout", "rank|replica", "'rank'"),
            pattern=_text(options, "pattern"),
            keep_alive_ms=0 if keep_alive is None else milliseconds(keep_alive, KEEP_ALIVE_MS_MAX),
        )
        # torch cannot mark memory as read-only, so it gets memory that it may write to.
        private = not _is_set(options, "shared") and self.views.framework == "torch"
        self._attach = sized(
            AttachOpts,
            flags=ATTACH_PRIVATE * private | ATTACH_READY * _is_set(options, "ready"),
            device=device,
            digest=_text(options, "digest", "[0-9a-fA-F]{32}", "a digest of 32 hexadecimal digits"),
        )
        self._opts = sized(OpenOpts, load=pointer(self._load), attach=pointer(self._attach))
        self._refusal: LimitError | None = None  # the latest
        self._refused_since: float | None = None
        self._refusal_logged = False

    def _is_not_admitted(self, why: str) -> None:
        """Called at each attempt: loads that hang delay this one without end."""
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since = now
        if not self._refusal_logged and now - self._refused_since >= ADMISSION_LOG_SECONDS:
            self._refusal_logged = True
            warn("%s: waits until the daemon admits another load: %s", self.source, why)

    def _start_on(self, client: Client) -> Handle | None:
        """None where the daemon does not admit the request yet: as many loads run, or requests wait, as its limits
        allow."""
        source = self.source
        if client.own:
            source, named_after = without_links(source)
            if named_after and not self._load.name:
                self._load.named_after = file_text(named_after)
            self._load.n_devices = 1  # where there are GPUs, too, the host is the default
        op = Handle(OP)
        start = library().streamer_open_start

        def call() -> None:
            client.check(start(client.pointer, file_text(source), byref(self._opts), byref(op.pointer)))

        late = f"the daemon at {client.socket} does not answer in time"
        try:
            if self._deadline is None and _is_only_sent(client, source):
                call()
            else:
                interruptibly(call, self._deadline, late)
        except (NotFoundError, OutOfMemoryError) as e:
            raise self._explained(e, client) from None
        except TimedOutError as e:
            raise self._refusal or e from None
        except LimitError as e:
            self._refusal = e
            if self.remaining() == 0:
                raise
            self._is_not_admitted(f"{e} (streamerctl status lists them)")
            return None
        return op

    def _explained(self, error: Error, client: Client) -> Error:
        """What is neither a URL nor a path was looked for in several places; the user's own daemon has a default
        budget."""
        if isinstance(error, OutOfMemoryError):
            return OutOfMemoryError(f"{error}: {_BUDGET}") if client.own else error
        if not self._is_name():
            return error
        models = client.call("list")["models"]
        return NotFoundError(explain_missing(self.source, [m["name"] for m in models if m["state"] != "failed"]))

    def _is_name(self) -> bool:
        return "://" not in self.source and not is_local(self.source)

    def _start(self) -> tuple[Client, Handle | None]:
        client = self.connect()
        try:
            return client, self._start_on(client)
        except UnreachableError:
            if not client.own:
                raise
        client = self.connect()  # the user's own daemon may exit between the two
        return client, self._start_on(client)

    def connect(self) -> Client:
        return connect(self._socket, self._autostart, self._deadline)

    def try_start(self) -> tuple[Client, Handle] | None:
        """Connects, and starts to load and attach. None where the daemon does not admit the request yet, or would not
        read it before others are answered (limits.requests_per_client)."""
        client = self.connect()
        if len(client.openings) >= OPENINGS:
            client.openings = [op for op in client.openings if _is_under_way(op())]
            if len(client.openings) >= OPENINGS and self.remaining() != 0:
                self._is_not_admitted(f"this process opens {OPENINGS} models at once (streamerctl status lists loads)")
                return None
        client, op = self._start()
        if op is None:
            return None
        client.openings.append(weakref.ref(op))
        return client, op

    def start(self) -> tuple[Client, Handle]:
        """As try_start(), and waits for other loads to end."""
        while (started := self.try_start()) is None:
            time.sleep(RETRY_SECONDS)
        return started

    def dry_run(self) -> None:
        """Raises what the load would: the daemon reads the headers, and nothing is loaded."""
        client = self.connect()
        source = self.source if "://" in self.source else os.path.abspath(self.source)
        if client.own:
            source = without_links(source)[0]
        fields: dict[str, Any] = {"source": source, "dry_run": True}
        if self._load.n_devices or client.own:
            fields["devices"] = [os.fsdecode(self._devices[0] or b"")]
        client.call("load", **fields)

    def lease(self, client: Client, op: Handle, slice_ms: int) -> Handle | None:
        """The operation's lease, or None while the model cannot be attached to yet."""
        lease = Handle(LEASE)
        code = library().streamer_op_lease(op.pointer, slice_ms, byref(lease.pointer))
        if code == E_TIMEOUT:
            self._wait_on(client, op)
            return None
        client.openings = [other for other in client.openings if other() is not op]
        if code != 0:
            self.bar.close()
        try:
            client.check(code)
        except (NotFoundError, OutOfMemoryError) as e:
            raise self._explained(e, client) from None
        return lease

    def remaining(self) -> float | None:
        """Seconds until the timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _wait_on(self, client: Client, op: Handle) -> None:
        self.bar.show_operation(op.pointer)
        if self.remaining() == 0:
            self.bar.close()
            raise TimedOutError(self._late(client) or f"{self.source}: not loaded in the given time; the load continues")

    def _late(self, client: Client) -> str | None:
        """Of the model of a name: that another process publishes it, or that the daemon does not answer."""
        from ._publication import find

        if not self._is_name():
            return None
        device = os.fsdecode(self._attach.device or b"host")
        try:
            found = find(
                client, self.source, {}, base=None, device=device, claim=False, wait=False, timeout=_PUBLISHER_SECONDS
            )  # fmt: skip
        except TimedOutError as e:
            return str(e)
        except Error:
            return None
        return found.explain(self.source) if found.state == "claimed" else None


def finish(request: Request, client: Client, op: Handle) -> Model[Any]:
    """The model of a request that was started."""
    while (lease := request.lease(client, op, SLICE_MS)) is None:
        pass
    return Model(client, lease, op, request.views, request.bar)


@overload
def open(
    source: Source, *, framework: Literal["torch", "pt", "pytorch"] = ..., **options: Unpack[Options]
) -> Model[torch.Tensor]: ...


@overload
def open(
    source: Source, *, framework: Literal["numpy", "np"], **options: Unpack[Options]
) -> Model[numpy.ndarray[Any, Any]]: ...


@overload
def open(source: Source, *, framework: str, **options: Unpack[Options]) -> Model[Any]: ...


@explains_options
def open(
    source: Source,
    *,
    framework: str = "torch",
    name: str | None = None,
    device: Any = None,
    shared: bool | None = False,
    ready: bool | None = False,
    digest: str | None = None,
    verify: str | None = None,
    pin: bool | None = False,
    wait: bool | None = False,
    evict: bool | None = True,
    priority: int | None = None,
    keep_alive: float | str | None = None,
    layout: str | None = None,
    pattern: str | None = None,
    socket: str | None = None,
    autostart: bool | None = None,
    timeout: float | str | None = None,
    progress: bool | Callable[[int, int], None] | None = None,
) -> Model[Any]:
    """Loads a model into the daemon, if it is not resident, and attaches to it.

    Returns as soon as tensors can arrive. Ctrl-C and a timeout release what the call has made; the daemon continues the
    load.

    Args:
        source: a path, an org/name[@rev] in the Hugging Face cache, a URL (s3://, gs://, az://, https://, hf://), or the
            name of a resident model.
        framework: "torch" ("pt", "pytorch") or "numpy" ("np"): what the tensors are.
        name: the model's name in the daemon; None: derived from the source.
        device: "cpu" (or "host"), "cuda:0", a torch.device; None: the daemon's only one, or the host of the user's own.
        shared: map host memory read-only and shared, not copy-on-write: a write to a tensor kills the process.
        ready: return when the whole model is loaded, not when its first tensor can be waited for.
        digest: the 32 hexadecimal digits that the model must have; implies `ready`.
        verify: "sha256": compare the files with their published checksums.
        pin: never evict the model, and do not let it expire.
        wait: wait for memory that is in use, instead of failing.
        evict: False: evict no other model.
        priority: 1 to 10000: share of the reader among loads; None: 100.
        keep_alive: "30m", "1.5h", "1d", or seconds, without a lease: then the daemon unloads the model.
        layout: "rank": the files of ranks, as `pattern` says.
        pattern: the files' names, with {rank}.
        socket: the daemon's socket; None: $STREAMERD_SOCKET, the system's daemon, the user's own.
        autostart: start a daemon if none answers; None: unless STREAMERD_AUTOSTART=0.
        timeout: "30s", or seconds: with connecting, and starting a daemon; None: no limit.
        progress: a progress bar; None: on a terminal; or a function of the bytes done and in total, which is called
            while this waits.

    Raises:
        NotFoundError: nothing of that name. It is a FileNotFoundError, too.
        InvalidError: an option's value is none that it can have. It is a ValueError, too.
        FailedError: a damaged file, an I/O error, a path outside the daemon's roots.
        OutOfMemoryError: the model does not fit the device's budget, or this process.
        TimedOutError: not done by `timeout`.
        DigestError: the model has another digest.
        UnreachableError: no daemon answers, and none can be started.
        DeniedError, LimitError, UnsupportedError, SystemCallError: as streamerd.errors says.

    Example:
        with streamerd.open("Qwen/Qwen3-8B", device="cpu") as model:
            for name, tensor in model.stream():
                ...
    """
    options = options_of(locals())
    request = Request(source, framework, options)
    return finish(request, *request.start())
