# SPDX-License-Identifier: Apache-2.0
"""loads.py LOADER ARGUMENTS: a process that loads all tensors of a file with one loader, and keeps them.

It serves requests as harness.processes.Worker sends them: "import"; "load", whose answer has the seconds until the first
tensor and until all of them, and CPU seconds; "checksum" of the contents. A tensor counts when a byte of each of its
4 KiB pages has been read. The process ends with its standard input.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

Tensors = Iterator[tuple[str, torch.Tensor]]
keep: list[Any] = []  # what must outlive a load


def safetensors(path: str) -> Tensors:
    """The pattern of the HF loader: the file is mapped, each tensor is copied to its destination."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118
            yield name, file.get_tensor(name).clone()


def runai(path: str, concurrency: int) -> Tensors:
    """With a buffer for the whole file (RUNAI_STREAMER_MEMORY_LIMIT=-1), of which the tensors are views."""
    os.environ["RUNAI_STREAMER_CONCURRENCY"] = str(concurrency)
    os.environ["RUNAI_STREAMER_MEMORY_LIMIT"] = "-1"
    from runai_model_streamer import SafetensorsStreamer

    with SafetensorsStreamer() as streamer:
        streamer.stream_file(path)
        yield from streamer.get_tensors()


def tensorizer(path: str, concurrency: int) -> Tensors:
    """`path` is in tensorizer's own format; `concurrency` is its number of readers."""
    from tensorizer import TensorDeserializer
    from tensorizer.stream_io import open_stream

    source: Any = path
    if path.startswith("s3://"):  # at $AWS_ENDPOINT_URL
        keys = {f"s3_{name.lower()}": os.environ[f"AWS_{name}"] for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY")}
        source = open_stream(path, "rb", **keys)
    deserializer = TensorDeserializer(source, device="cpu", num_readers=concurrency)
    keep.append(deserializer)
    for name in deserializer.keys():  # noqa: SIM118
        yield name, deserializer[name].data


def streamerd(path: str, socket: str) -> Tensors:
    import streamerd

    with streamerd.open(path, socket=socket, device="cpu", name="model", progress=False) as model:
        yield from model.stream()


LOADERS = {f.__name__: f for f in (safetensors, runai, tensorizer, streamerd)}


def touch(tensor: torch.Tensor) -> None:
    tensor.view(-1).view(torch.uint8)[::4096].sum()


def checksum(tensors: dict[str, torch.Tensor]) -> int:
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].view(-1).view(torch.uint8).numpy(), zlib.crc32(name.encode(), total))
    return total


def load(loader: str, arguments: dict[str, Any], tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
    used, began, first = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter(), 0.0
    for name, tensor in LOADERS[loader](**arguments):
        touch(tensor)
        tensors[name] = tensor
        first = first or time.perf_counter() - began
    seconds, end = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    cpu = end.ru_utime + end.ru_stime - used.ru_utime - used.ru_stime
    return {"first": first, "seconds": seconds, "cpu": cpu, "tensors": len(tensors)}


def warm_up(loader: str) -> None:
    """Imports, which are not part of a load."""
    if loader == "safetensors":
        import safetensors.torch  # noqa: F401
    elif loader == "runai":
        import runai_model_streamer  # noqa: F401
    elif loader == "tensorizer":
        import tensorizer  # noqa: F401
    else:
        import streamerd  # noqa: F401


def main() -> None:
    loader, arguments = sys.argv[1], json.loads(sys.argv[2])
    tensors: dict[str, torch.Tensor] = {}
    steps: dict[str, Callable[[], Any]] = {
        "import": lambda: warm_up(loader),
        "load": lambda: load(loader, arguments, tensors),
        "checksum": lambda: checksum(tensors),
    }
    for request in sys.stdin:
        try:
            answer = {"ok": steps[json.loads(request)["op"]]()}
        except Exception as e:
            answer = {"error": f"{type(e).__name__}: {e}"}
        print(json.dumps(answer), flush=True)
    os._exit(0)  # what a loader does at its end is not measured


if __name__ == "__main__":
    main()
