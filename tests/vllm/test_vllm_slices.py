# SPDX-License-Identifier: Apache-2.0
"""Tensor-parallel ranks take their slices out of one copy in host memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from processes import Daemon

import streamerd

RANK = """
import sys
from pathlib import Path
import torch, streamerd

path, socket, rank, dim = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])

def resident():  # bytes of the daemon's memory that this process has mapped so far
    total = 0
    with open("/proc/self/smaps") as f:
        ours = False
        for line in f:
            if "-" in line.split()[0] and not line.split()[0].endswith(":"):
                ours = "memfd:" in line
            elif ours and line.startswith(("Rss:", "Shared_Hugetlb:", "Private_Hugetlb:")):
                total += int(line.split()[1]) * 1024
    return total

with streamerd.open(path, socket=socket, device="cpu") as model:
    tensor = model["weight"]
    half = tensor.shape[dim] // 2
    own = torch.empty([half if d == dim else n for d, n in enumerate(tensor.shape)], dtype=tensor.dtype)
    before = resident()
    own.copy_(tensor.narrow(dim, rank * half, half))  # as an engine's weight loader does
    print(own.nbytes, resident() - before)
"""


@pytest.fixture(scope="module")
def matrix(models: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    path = models / "matrix.safetensors"
    save_file({"weight": torch.ones(8192, 4096, dtype=torch.bfloat16)}, path)  # 64 MiB
    return path


def copied_and_mapped(matrix: Path, daemon: Daemon, rank: int, dim: int) -> tuple[int, int]:
    command = [sys.executable, "-c", RANK, str(matrix), daemon.socket, str(rank), str(dim)]
    copied, mapped = subprocess.check_output(command, text=True).split()
    return int(copied), int(mapped)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_half_of_the_rows_touches_half_of_the_memory(matrix, daemon, rank):
    copied, mapped = copied_and_mapped(matrix, daemon, rank, 0)
    assert copied == 32 << 20
    assert 32 << 20 <= mapped <= 36 << 20  # whole huge pages


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_has_half_of_the_columns_copies_half_of_each_row(matrix, daemon, rank):
    """Half of a row is 4 KiB: in pages of that size half of the memory is touched, in larger ones all of it."""
    copied, mapped = copied_and_mapped(matrix, daemon, rank, 1)
    assert copied == 32 << 20
    assert mapped <= 66 << 20


def test_the_ranks_share_one_copy(matrix, daemon):
    with streamerd.open(str(matrix), socket=daemon.socket, device="cpu"):
        [model] = [m for m in daemon.ctl("list")["models"] if m["name"] == "matrix"]
        [device] = model["devices"]
        assert device["bytes"] <= 67 << 20  # with the manifest
