# SPDX-License-Identifier: Apache-2.0
"""Models to load: one safetensors file each, of a given table of tensors; and the page cache of files.

Contents are windows of one block of random bytes, each at another offset, so a file is written at
the speed of memory, and a tensor at a wrong place, or a block that is read twice, differs."""

import json
import math
import os
import struct
from concurrent.futures import ThreadPoolExecutor

POOL = 64 << 20  # random bytes of a file, at most
WINDOW = 4 << 20


def tensor_table(size):
    """[(name, shape)] of BF16 tensors that take about `size` bytes in all.

    A layer has 13 h^2 elements, the embeddings 2 x 16 h x h; h is chosen for some 36 layers."""
    elements = size // 2
    h = max(64, int(math.sqrt(elements / 500)) // 64 * 64)
    layers = max(1, (elements // (h * h) - 32) // 13)
    table = [("model.embed_tokens.weight", [16 * h, h])]
    for i in range(layers):
        at = f"model.layers.{i}."
        table += [
            (at + "input_layernorm.weight", [h]),
            (at + "self_attn.q_proj.weight", [h, h]),
            (at + "self_attn.k_proj.weight", [h // 4, h]),
            (at + "self_attn.v_proj.weight", [h // 4, h]),
            (at + "self_attn.o_proj.weight", [h, h]),
            (at + "post_attention_layernorm.weight", [h]),
            (at + "mlp.gate_proj.weight", [7 * h // 2, h]),
            (at + "mlp.up_proj.weight", [7 * h // 2, h]),
            (at + "mlp.down_proj.weight", [h, 7 * h // 2]),
        ]
    return table + [("model.norm.weight", [h]), ("lm_head.weight", [16 * h, h])]


def small_table():
    """Thousands of tensors whose sizes are no multiples of anything."""
    return [(f"small.{i}", [33 + i % 90]) for i in range(20000)]


def header_bytes(table):
    entries, at = {}, 0
    for name, shape in table:
        size = 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text, at


def _write_window(fd, number, offset, size, view):
    """Steps by a large odd number: windows overlap, but no two begin at the same byte."""
    begin = number * 2654435761 % (len(view) - WINDOW)
    while size > 0:
        n = os.pwrite(fd, view[begin : begin + size], offset)
        begin, offset, size = begin + n, offset + n, size - n


def write_data(fd, offset, size, pool):
    view = memoryview(pool)
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as threads:
        jobs = [
            threads.submit(_write_window, fd, number, offset + at, min(WINDOW, size - at), view)
            for number, at in enumerate(range(0, size, WINDOW))
        ]
        for job in jobs:
            job.result()


def make(path, table):
    """Writes the file, of [(name, shape)] in BF16, into the page cache; cold loads write it back (drop_cache). Returns
    its size."""
    header, data = header_bytes(table)
    pool = os.urandom(min(POOL, 2 * WINDOW + data))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, header)
        write_data(fd, len(header), data, pool)
    finally:
        os.close(fd)
    return len(header) + data


def tensors_of(path):
    """[(name, offset in the file, bytes)] as the file's own header has it."""
    with open(path, "rb") as f:
        n = struct.unpack("<Q", f.read(8))[0]
        header = json.loads(f.read(n))
    header.pop("__metadata__", None)
    spans = {name: entry["data_offsets"] for name, entry in header.items()}
    return sorted(((name, 8 + n + a, b - a) for name, (a, b) in spans.items()), key=lambda span: span[1])


def drop_cache(path):
    fd = os.open(path, os.O_RDONLY)
    os.fdatasync(fd)  # a dirty page stays
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def in_memory(path):
    """Whether the file is in a tmpfs, whose page cache is the file."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo") as f:
        mounts = [line.split() for line in f]
    return any(m[2] == number and m[m.index("-") + 1] == "tmpfs" for m in mounts)


def cached_share(path):
    """The share of the file that is in the page cache, by 64 pages; None where the kernel cannot be asked. The advice
    prevents read-ahead by the question itself."""
    if in_memory(path):
        return 1.0
    fd, page = os.open(path, os.O_RDONLY), bytearray(4096)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    pages, hits = os.fstat(fd).st_size // 4096, 0
    try:
        for i in range(64):
            try:
                hits += os.preadv(fd, [page], (pages * i // 64) * 4096, os.RWF_NOWAIT) == len(page)
            except BlockingIOError:
                pass
    except OSError:
        return None
    finally:
        os.close(fd)
    return hits / 64


def ensure_cached(path):
    """Reads the file into the page cache, unless it is cached; returns cached_share()."""
    share = cached_share(path)
    for _ in range(3):  # a page that is busy when it is asked for counts as missing
        if share is not None and share >= 0.99:
            break
        buffer = bytearray(WINDOW)
        with open(path, "rb", buffering=0) as f:
            while f.readinto(buffer):
                pass
        share = cached_share(path)
        if share is None:
            break
    return share
