#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the package does for engines, measured in this process, for the rows of tests/bench/engines.c.

    engines.py SOCKET FOLDER

Each line of standard input is a word, a count and bytes, and is answered by a number of seconds:

    publish COUNT BYTES     writes so many files of so many bytes in all, and publishes them; replaces earlier ones
    copy COUNT BYTES        copies their folder by cp -r
    restore COUNT BYTES     restores them into a folder that does not exist
    update COUNT BYTES      so many times: puts tensors of so many bytes, and copies them out of the resident generation
                            into arrays that it has, by two threads

The files of each copy are emptied at its end, and stay: ext4 passes over the inodes that were deleted within the last
minutes, so whatever is measured after a removal would pay for it. Before the first update of a size its tensors are made.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy

import streamerd

KEY = {"engine": "figures"}
SET, MODEL = "set", "policy"
FOLDERS = 50
LAYER = [size << 20 for size in (8, 1, 1, 8, 23, 23, 23)]  # bytes of the tensors of a Llama's layer
THREADS = 2


def sizes_of(total: int) -> list[int]:
    """Of tensors, layer by layer, of so many bytes in all."""
    sizes: list[int] = []
    layers = itertools.cycle(LAYER)
    while (left := total - sum(sizes)) > 0:
        sizes.append(min(next(layers), left))
    return sizes


class Figures:
    def __init__(self, socket: str, folder: Path) -> None:
        self.socket = socket
        self.source, self.target = folder / "compiled", folder / "restored"
        self.numbers = itertools.count()
        self.given: list[numpy.ndarray] = []
        self.taken: list[numpy.ndarray] = []
        self.threads = ThreadPoolExecutor(THREADS)

    def publish(self, count: int, size: int) -> None:
        shutil.rmtree(self.source, ignore_errors=True)
        data = os.urandom(-(-size // count))
        for i in range(count):
            folder = self.source / f"hash{i % FOLDERS}" / "inductor"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{i}.so").write_bytes(data)
        streamerd.publish_files(self.source, SET, key={**KEY, "files": str(count)}, socket=self.socket)

    def _timed_in_folder(self, make: Callable[[], object]) -> float:
        began = time.perf_counter()
        make()
        took = time.perf_counter() - began
        for path in self.target.rglob("*"):
            if path.is_file():
                os.truncate(path, 0)
        self.target.rename(f"{self.target}-{next(self.numbers)}")
        return took

    def copy(self, count: int, size: int) -> float:
        return self._timed_in_folder(
            lambda: subprocess.run(["cp", "-r", "--reflink=never", str(self.source), str(self.target)], check=True)
        )

    def restore(self, count: int, size: int) -> float:
        key = {**KEY, "files": str(count)}
        return self._timed_in_folder(lambda: streamerd.restore_files(SET, self.target, key=key, socket=self.socket))

    def update(self, count: int, size: int) -> float:
        if sum(tensor.nbytes for tensor in self.given) != size:
            self.given, self.taken = [], []
            self.given = [numpy.full(item, 1 + i % 255, numpy.uint8) for i, item in enumerate(sizes_of(size))]
            self.taken = [numpy.full(item, 0, numpy.uint8) for item in sizes_of(size)]
        began = time.perf_counter()
        for _ in range(count):
            self._update()
        took = time.perf_counter() - began
        if any(int(taken[-1]) != int(given[-1]) for taken, given in zip(self.taken, self.given, strict=True)):
            sys.exit("engines.py: other weights were taken than given")
        return took

    def _update(self) -> None:
        names = [f"layers.{i}.weight" for i in range(len(self.given))]
        streamerd.put(zip(names, self.given, strict=True), MODEL, socket=self.socket, wait=True).close()
        with streamerd.open(MODEL, framework="numpy", ready=True, socket=self.socket) as model:
            for _ in self.threads.map(lambda to, name: numpy.copyto(to, model[name]), self.taken, names):
                pass


def main(socket: str, folder: Path) -> None:
    figures = Figures(socket, folder)
    for line in sys.stdin:
        what, count, size = line.split()
        print(getattr(figures, what)(int(count), int(size)) or 0, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
