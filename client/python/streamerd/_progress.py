# SPDX-License-Identifier: Apache-2.0
"""Progress while a model loads: tqdm's bar, if it is installed and standard error is a terminal, or a function."""

from __future__ import annotations

import sys
from collections.abc import Callable
from ctypes import byref, c_void_p
from typing import Any

from ._library import Progress, library, sized


class ProgressBar:
    """Appears with the first progress that is neither nothing nor everything. `wanted` None: on a terminal.

    A function in place of a flag is called with the bytes done and in total (0 until known), and its exceptions are
    raised by the call that waits.
    """

    def __init__(self, title: str, wanted: bool | Callable[[int, int], None] | None = None) -> None:
        self._title = title
        self._bar: Any = None
        self._report = wanted if callable(wanted) else None
        self.visible = sys.stderr is not None and (sys.stderr.isatty() if wanted is None else bool(wanted))

    def show(self, done: int, total: int) -> None:
        if self._report is not None:
            self._report(done, total)
            return
        if self._bar is None and (not self.visible or done >= total):
            return
        if self._bar is None:
            try:
                from tqdm.auto import tqdm
            except ImportError:
                self.visible = False
                return
            self._bar = tqdm(total=total, desc=self._title, unit="B", unit_scale=True, unit_divisor=1024, leave=False)
        self._bar.update(done - self._bar.n)

    def show_operation(self, op: c_void_p) -> None:
        """The progress of a load, at most."""
        if self.visible:
            progress = sized(Progress)
            library().streamer_op_wait(op, 0, byref(progress))
            self.show(progress.bytes, progress.total)

    def close(self) -> None:
        self.visible = False
        if self._bar is not None:
            self._bar.close()
            self._bar = None
