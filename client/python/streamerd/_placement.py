# SPDX-License-Identifier: Apache-2.0
"""Where the drop-ins put tensors: callers of the originals name any device of torch, the daemon may have the host alone."""

from __future__ import annotations

import re
from typing import Any, TypeVar

from ._client import connect, interruptibly, log_once
from ._library import Handle, Row, Tensor
from ._open import device_name
from ._views import Views
from .errors import InvalidError

_GPU = re.compile(r"cuda(:[0-9]+|:GPU-.+)?")

T = TypeVar("T")


class Copies(Views[T]):
    """Views, copied by torch to a device that the daemon does not have."""

    def __init__(self, views: Views[T], device: Any) -> None:
        self.framework = views.framework
        self._views = views
        self._device = device

    def view(self, client: Handle, lease: Handle, tensor: Tensor) -> T:
        view: Any = self._views.view(client, lease, tensor)
        return view.to(self._device)  # type: ignore[no-any-return]

    def views(self, client: Handle, lease: Handle, rows: list[Row]) -> list[T]:
        views: list[Any] = self._views.views(client, lease, rows)
        return [view.to(self._device) for view in views]

    def raw(self, client: Handle, lease: Handle, row: Row) -> T:
        view: Any = self._views.raw(client, lease, row)
        return view.to(self._device)  # type: ignore[no-any-return]


def placement(device: Any) -> tuple[Any, Any]:
    """The device to ask the daemon for, and the one that torch copies to, or None."""
    name = device_name(device)
    if name is None or name == "host":
        return device, None
    if not _GPU.fullmatch(name):
        raise InvalidError(f"device {device!r} is invalid: use 'cpu' or 'cuda:N'")
    client = connect()
    devices = interruptibly(lambda: client.call("status"))["devices"]
    if any(has["device"] != "host" for has in devices):
        return device, None  # one of several GPUs: the daemon says if it lacks this one
    log_once(f"the daemon at {client.socket} has no GPU: tensors for {device} are copied from host memory")
    return "cpu", device
