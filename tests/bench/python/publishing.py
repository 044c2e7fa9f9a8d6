#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The figures of publishing from PyTorch in docs/performance.md.

    publishing.py [FOLDER [GIB]]

Writes a random Llama of 2 GiB, at most 5 (transformers), into FOLDER (a temporary one), unless it has one, and starts a
daemon. In rounds: one process calls from_pretrained() with the files in the page cache, which maps them, copies each weight
to memory of its own, and publishes the module; a second one builds it on the meta device, fills it by load_into(), and
reads each page of the weights. Both compute the same logits. Printed are medians and ranges of

    the second's time from the construction to the usable module, of the first's from_pretrained()   <= 0.05
    the same until the weights are in its memory: read by the second, copied by the first
    the second's anonymous and dirty memory for weights                                              <= 16 MiB
    the first's peak of memory while it publishes, over before, of bytes and the largest storage     <= 1.05
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[2] / "client/python/tests"), str(HERE.parents[1] / "vllm")]
from conftest import logits, tiny_llama  # noqa: E402
from processes import Daemon  # noqa: E402

ROUNDS = 3
KEY = {"code": "figures 1"}
LAYER_BYTES = 2 * (4 * 1024 * 1024 + 3 * 1024 * 4096 + 2 * 1024)  # of bfloat16
VOCABULARY = 16384
MIB = 1 << 20


def private_bytes() -> dict[str, int]:
    """Of this process: anonymous pages, dirty private pages, and mapped pages, shared ones in proportion."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    fields = dict(line.split(":", 1) for line in lines)
    return {name: int(fields[name].split()[0]) << 10 for name in ("Anonymous", "Private_Dirty", "Pss")}


class Peak:
    """The highest Pss of this process: the kernel's own high-water mark counts shared memory as a whole."""

    def __init__(self) -> None:
        self.bytes = private_bytes()["Pss"]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def _watch(self) -> None:
        while not self._ended.wait(0.005):
            self.bytes = max(self.bytes, private_bytes()["Pss"])

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join()


def last_logits(model: Any) -> list[float]:
    last: list[float] = logits(model)[0, -1, :64].float().tolist()
    return last


def sizes(model: Any) -> list[int]:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in model.state_dict().values()}
    return list(storages.values())


def publish(path: str) -> dict[str, Any]:
    import torch
    import transformers

    import streamerd

    with tempfile.TemporaryDirectory() as folder:
        # What a model needs is imported here, so that this is measured nowhere.
        tiny_llama().save_pretrained(folder)
        last_logits(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16))
    begin = time.perf_counter()
    model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16).eval()
    took = time.perf_counter() - begin
    # Its files are mapped: what a publisher has is memory of its own.
    for parameter in model.parameters():
        parameter.data = parameter.data.clone()
    copied = time.perf_counter() - begin
    expected = last_logits(model)
    storages = sizes(model)
    before = private_bytes()["Pss"]
    with Peak() as peak:
        begin = time.perf_counter()
        streamerd.publish(model, "figures", key=KEY, base=path)
        published = time.perf_counter() - begin
    assert last_logits(model) == expected
    return {
        "from_pretrained": took,
        "and copied": copied,
        "publish": published,
        # In the publisher the memory is mapped once: its own copy is freed as the resident one grows.
        "peak": (sum(storages) + peak.bytes - before - max(storages)) / sum(storages),
        "peak_mib": (peak.bytes - before) / MIB,
        "largest_mib": max(storages) / MIB,
        "logits": expected,
    }


def attach(path: str) -> dict[str, Any]:
    import torch
    import transformers

    import streamerd

    last_logits(tiny_llama())
    with torch.device("meta"):
        tiny_llama()
    before = private_bytes()
    begin = time.perf_counter()
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(path), dtype=torch.bfloat16
        ).eval()
    built = time.perf_counter() - begin
    streamerd.load_into(model, "figures", key=KEY, base=path)
    took = time.perf_counter() - begin
    weights = model.state_dict().values()
    touched = sum(int(tensor.view(torch.uint8).reshape(-1)[::4096].sum()) for tensor in weights)
    every = time.perf_counter() - begin
    read = private_bytes()
    return {
        "construction": built,
        "load_into": took,
        "and read": every,
        "touched": touched,
        "anonymous_mib": (read["Anonymous"] - before["Anonymous"]) / MIB,
        "dirty_mib": (read["Private_Dirty"] - before["Private_Dirty"]) / MIB,
        "logits": last_logits(model),
    }


def write_model(path: Path, size: int) -> None:
    import torch
    import transformers

    layers = (size - 2 * 2 * VOCABULARY * 1024) // LAYER_BYTES
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        tie_word_embeddings=False,
    )
    torch.manual_seed(1)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(path)


def main(folder: Path, gib: float) -> None:
    path = folder / "model"
    if not path.exists():
        write_model(path, int(gib * (1 << 30)))
    rows: list[dict[str, Any]] = []
    with Daemon(folder, folder) as daemon:
        for _ in range(ROUNDS):
            for file in path.iterdir():
                file.read_bytes()  # into the page cache
            row: dict[str, Any] = {}
            results = []
            for what in ("publish", "attach"):
                command = [sys.executable, __file__, f"--{what}", str(path)]
                output = subprocess.run(
                    command, check=True, stdout=subprocess.PIPE, env={**os.environ, "STREAMERD_SOCKET": daemon.socket}
                )
                results.append(json.loads(output.stdout.splitlines()[-1]))
                row.update(results[-1])
            assert results[0]["logits"] == results[1]["logits"], "the logits differ"
            row["ratio"] = row["load_into"] / row["from_pretrained"]
            row["ratio in memory"] = row["and read"] / row["and copied"]
            row["load average"] = os.getloadavg()[0]
            rows.append(row)
            print({name: value for name, value in row.items() if name not in ("logits", "touched")}, file=sys.stderr)
            daemon.ctl("unload", "figures")
    for name in rows[0]:
        if name not in ("logits", "touched"):
            values = [row[name] for row in rows]
            print(f"{name:16} {statistics.median(values):9.3f}   ({min(values):.3f} to {max(values):.3f})")


if __name__ == "__main__":
    if sys.argv[1:2] in (["--publish"], ["--attach"]):
        print(json.dumps((publish if sys.argv[1] == "--publish" else attach)(sys.argv[2])))
    elif len(sys.argv) > 1:
        main(Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 2)
    else:
        with tempfile.TemporaryDirectory(dir="/var/tmp") as temporary:
            main(Path(temporary), 2)
