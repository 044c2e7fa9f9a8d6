# SPDX-License-Identifier: Apache-2.0
"""faults_child.py PAGE CALLS MODEL: the process of test_faults.

libfault.so is preloaded and shares PAGE (struct fault_page of tests/lib/fault/calls.h): the nth call of the library
fails. CALLS are the names in the order of the enum, separated by commas.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable

import streamerd
from streamerd._client import Client

NTH_MAX = 10000
SECONDS = 30


class Page:
    """The call that fails is armed + 1; until: how many succeed before it; struck: it has failed."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self.armed = ctypes.c_uint32.from_buffer(self._map, 0)
        self.until = ctypes.c_uint64.from_buffer(self._map, 8)
        self.struck = ctypes.c_uint32.from_buffer(self._map, 16)

    def arm(self, call: int, nth: int) -> None:
        self.struck.value = 0
        self.until.value = nth
        self.armed.value = call + 1

    def disarm(self) -> bool:
        self.armed.value = 0
        return self.struck.value != 0


def connects() -> list[bytes]:
    client = Client()
    names = [model["name"].encode() for model in client.call("list")["models"]]
    return sorted(names)


def reads(path: str) -> list[bytes]:
    with streamerd.open(path, framework="numpy", timeout=SECONDS) as model:
        return [array.tobytes() for _, array in sorted(model.stream())]


def fetches(path: str) -> list[bytes]:
    return sorted(str(name).encode() for name in streamerd.fetch_list(path))


def fails_one_by_one(page: Page, call: int, name: str, scenario: Callable[[], list[bytes]]) -> int:
    expected = scenario()
    for nth in range(NTH_MAX):
        page.arm(call, nth)
        try:
            result = scenario()
            outcome = "other results" if result != expected else ""
        except (streamerd.Error, OSError, MemoryError) as e:
            # connect() fails as if the daemon did not accept.
            outcome = f"no answer: {e}" if isinstance(e, TimeoutError) and name != "connect" else ""
            outcome = outcome or ("" if str(e) or isinstance(e, MemoryError) else f"{e!r} has no text")
        struck = page.disarm()
        assert not outcome, f"{name} {nth}: {outcome}"
        assert scenario() == expected, f"{name} {nth}: other results afterwards"
        if not struck:
            return nth
    raise AssertionError(f"{name} never ends")


def main() -> None:
    path, calls, model = sys.argv[1:]
    page = Page(path)
    failed = 0
    for scenario in (connects, lambda: reads(model), lambda: fetches(model)):
        for call, name in enumerate(calls.split(",")):
            failed += fails_one_by_one(page, call, name, scenario)
    print(failed)


if __name__ == "__main__":
    main()
