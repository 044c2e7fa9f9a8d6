# SPDX-License-Identifier: Apache-2.0
"""loaders.py LOADER ARGUMENTS: one process that loads all tensors of a file with one loader, and keeps them.

It answers the requests of harness.processes.Worker, "load" and then "checksum"; the first answer says that its imports
are done. It ends with its standard input. A load is complete when a byte of each 4 KiB of each tensor has been read.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import zlib
from collections.abc import Callable
from typing import Any

import torch

Load = Callable[[], dict[str, torch.Tensor]]

answers = os.fdopen(os.dup(1), "w")  # what a loader prints is no answer
os.dup2(2, 1)


def runai(path: str, concurrency: int) -> Load:
    os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(concurrency)
    os.environ["RUNAI_STREAMER_MEMORY_LIMIT"] = "-1"
    from runai_model_streamer import SafetensorsStreamer

    def load() -> dict[str, torch.Tensor]:
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path)
            return dict(streamer.get_tensors())

    return load


def safetensors_mapped(path: str) -> Load:
    from safetensors import safe_open

    def load() -> dict[str, torch.Tensor]:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118

    return load


def safetensors_cloned(path: str) -> Load:
    from safetensors import safe_open

    def load() -> dict[str, torch.Tensor]:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118

    return load


def fastsafetensors(path: str, threads: int) -> Load:
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    def load() -> dict[str, torch.Tensor]:
        loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cpu"), nogds=True, max_threads=threads)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()
        tensors = {name: buffer.get_tensor(name) for name in loader.get_keys()}
        load.keep = (loader, buffer)  # type: ignore[attr-defined]
        return tensors

    return load


def tensorizer(path: str, readers: int) -> Load:
    from tensorizer import TensorDeserializer

    def load() -> dict[str, torch.Tensor]:
        deserializer = TensorDeserializer(path, device="cpu", num_readers=readers)
        load.keep = deserializer  # type: ignore[attr-defined]
        return {name: deserializer[name].data for name in deserializer.keys()}  # noqa: SIM118

    return load


def streamerd(path: str, socket: str) -> Load:
    import streamerd

    def load() -> dict[str, torch.Tensor]:
        with streamerd.open(path, socket=socket, device="cpu", name="model", progress=False) as model:
            return dict(model)

    return load


LOADERS = {f.__name__: f for f in (runai, safetensors_mapped, safetensors_cloned, fastsafetensors, tensorizer, streamerd)}


def touch(tensors: dict[str, torch.Tensor]) -> None:
    for tensor in tensors.values():
        tensor.view(-1).view(torch.uint8)[::4096].sum()


def checksum(tensors: dict[str, torch.Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].view(-1).view(torch.uint8).numpy(), zlib.crc32(name.encode(), total))
    return total


def timed(load: Load) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    used, began = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    tensors = load()
    touch(tensors)
    seconds, end = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = end.ru_utime + end.ru_stime - used.ru_utime - used.ru_stime
    return tensors, {"seconds": seconds, "cpu": cpu, "tensors": len(tensors)}


def answer(value: dict[str, Any]) -> None:
    print(json.dumps({"ok": value}), file=answers, flush=True)


def main() -> None:
    load, tensors = LOADERS[sys.argv[1]](**json.loads(sys.argv[2])), {}
    answer({})
    for request in sys.stdin:
        if json.loads(request)["op"] == "load":
            tensors, result = timed(load)
            answer(result)
        else:
            answer({"checksum": checksum(tensors)})
    os._exit(0)  # what a loader does at its end is not measured


if __name__ == "__main__":
    main()
