# SPDX-License-Identifier: Apache-2.0
"""open(): load, attach, and the model's object."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from ctypes import byref, c_char_p, c_void_p, pointer
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from ._client import Client, connect
from ._library import (
    ATTACH_PRIVATE,
    ATTACH_READY,
    E_TIMEOUT,
    LOAD_NO_EVICT,
    LOAD_PIN,
    LOAD_WAIT,
    AttachOpts,
    LoadOpts,
    OpenOpts,
    library,
    sized,
)
from ._model import SLICE_MS, Handle, Model
from ._progress import ProgressBar
from ._source import without_links
from ._views import Views, views_of
from .errors import TimedOutError, UnreachableError

if TYPE_CHECKING:
    import numpy
    import torch
    from typing_extensions import Unpack

Source = str | os.PathLike[str]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def device_name(device: Any) -> str | None:
    """The daemon's name of a device: "cpu" is "host", and a GPU's ordinal in this process is its UUID."""
    if device is None:
        return None
    name = f"cuda:{device}" if isinstance(device, int) else str(device)
    if name == "cpu":
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


class Options(TypedDict, total=False):
    """Keywords of open() and aopen()."""

    name: str | None  # the model's name; None: derived from the source
    device: Any  # "cpu", "cuda:0", a torch.device; None: the only one, the host of the user's own daemon
    shared: bool  # map host memory read-only and shared, not copy-on-write: a write to a tensor kills the process
    ready: bool  # return when the whole model is loaded, not when its first tensor can be waited for
    digest: str | None  # the 32 hexadecimal digits that the model must have; implies `ready`
    verify: str | None  # "sha256": compare the files with their published checksums
    pin: bool  # never evict the model, and do not let it expire
    wait: bool  # wait for memory that is in use, instead of failing
    evict: bool  # False: evict no other model
    priority: int  # 1 to 10000: share of the reader among loads
    keep_alive: float | None  # seconds without a lease after which the daemon unloads the model
    layout: str | None  # "rank": the files of ranks, as `pattern` says
    pattern: str | None
    socket: str | None  # the daemon's socket; None: $STREAMERD_SOCKET, the system's daemon, the user's own
    autostart: bool | None  # start a daemon if none answers; None: unless STREAMERD_AUTOSTART=0
    timeout: float | None  # seconds; the load continues afterwards
    # A progress bar; None: on a terminal; or a function of the bytes done and in total, called while this waits.
    progress: bool | Callable[[int, int], None] | None


class Request:
    """What open() asks for, as the library's structs. The structs borrow from this object."""

    def __init__(self, source: Source, framework: str, options: Options) -> None:
        unknown = options.keys() - Options.__annotations__.keys()
        if unknown:
            raise TypeError(f"open() has no option {', '.join(sorted(unknown))}")
        self.source = os.fspath(source)
        self.views: Views[Any] = views_of(framework)
        self._socket = options.get("socket")
        self._autostart = options.get("autostart")
        timeout = options.get("timeout")
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.bar = ProgressBar(self.source, options.get("progress"))
        self._name = options.get("name")
        device = _bytes(device_name(options.get("device")))
        self._devices = (c_char_p * 1)(device or b"host")
        flags = LOAD_WAIT * bool(options.get("wait")) | LOAD_PIN * bool(options.get("pin"))
        flags |= LOAD_NO_EVICT * (not options.get("evict", True))
        keep_alive = options.get("keep_alive")
        self._load = sized(
            LoadOpts,
            devices=self._devices,
            n_devices=0 if device is None else 1,
            verify=_bytes(options.get("verify")),
            flags=flags,
            priority=options.get("priority", 0),
            layout=_bytes(options.get("layout")),
            pattern=_bytes(options.get("pattern")),
            keep_alive_ms=0 if keep_alive is None else max(1, int(keep_alive * 1000)),
        )
        # torch cannot mark memory as read-only, so it gets memory that it may write to.
        private = self.views.framework == "torch" and not options.get("shared")
        self._attach = sized(
            AttachOpts,
            flags=ATTACH_PRIVATE * private | ATTACH_READY * bool(options.get("ready")),
            device=device,
            digest=_bytes(options.get("digest")),
        )
        self._opts = sized(OpenOpts, load=pointer(self._load), attach=pointer(self._attach))

    def _start_on(self, client: Client) -> Handle:
        source, name = self.source, self._name
        if client.own:
            source, own_name = without_links(source)
            name = name or own_name
            self._load.n_devices = 1  # where there are GPUs, too, the host is the default
        self._load.name = _bytes(name)
        op = c_void_p()
        lib = library()
        client.check(lib.streamer_open_start(client.pointer, os.fsencode(source), byref(self._opts), byref(op)))
        return Handle(op, lib.streamer_op_free)

    def start(self) -> tuple[Client, Handle]:
        """Connects, and starts to load and attach. The user's own daemon may exit between the two."""
        client = connect(self._socket, self._autostart)
        try:
            return client, self._start_on(client)
        except UnreachableError:
            if not client.own:
                raise
        client = connect(self._socket, self._autostart)
        return client, self._start_on(client)

    def lease(self, client: Client, op: Handle, slice_ms: int) -> Handle | None:
        """The operation's lease, or None while the model cannot be attached to yet."""
        lib = library()
        lease = c_void_p()
        code = lib.streamer_op_lease(op.pointer, slice_ms, byref(lease))
        if code == E_TIMEOUT:
            self._wait_on(op)
            return None
        if code != 0:
            self.bar.close()
        client.check(code)
        return Handle(lease, lib.streamer_detach)

    def remaining(self) -> float | None:
        """Seconds until the timeout."""
        return None if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _wait_on(self, op: Handle) -> None:
        self.bar.show_operation(op.pointer)
        if self.remaining() == 0:
            self.bar.close()
            raise TimedOutError(f"{self.source}: not loaded in the given time; the load continues")


def finish(request: Request, client: Client, op: Handle) -> Model[Any]:
    """The model of a request that was started."""
    while (lease := request.lease(client, op, SLICE_MS)) is None:
        pass
    return Model(client, lease, op, request.views, request.bar)


@overload
def open(
    source: Source, *, framework: Literal["torch", "pt"] = ..., **options: Unpack[Options]
) -> Model[torch.Tensor]: ...


@overload
def open(
    source: Source, *, framework: Literal["numpy", "np"], **options: Unpack[Options]
) -> Model[numpy.ndarray[Any, Any]]: ...


@overload
def open(source: Source, *, framework: str, **options: Unpack[Options]) -> Model[Any]: ...


def open(source: Source, *, framework: str = "torch", **options: Unpack[Options]) -> Model[Any]:
    """Loads a model into the daemon, if it is not resident, and attaches to it.

    `source` is a path, an org/name[@rev] in the Hugging Face cache, a URL (s3://, https://, hf://), or the name of a
    resident model. Returns as soon as tensors can arrive. Options lists the other keywords. Raises the types of
    streamerd.errors. Ctrl-C and a timeout release what the call has made; the daemon continues the load.
    """
    request = Request(source, framework, options)
    return finish(request, *request.start())
