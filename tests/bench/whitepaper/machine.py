# SPDX-License-Identifier: Apache-2.0
"""The machine under the measurements: page cache, block I/O limits, processes' CPU time and memory, the fio ceiling."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MADV_POPULATE_WRITE = 23
MIB, GIB = 1 << 20, 1 << 30
CGROUP = Path("/sys/fs/cgroup")
GROUP = "streamerd-whitepaper"
TOUCHED = 6 * GIB


# ---- page cache and free memory ----


def drop_from_cache(*paths: Path) -> None:
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def read_into_cache(*paths: Path) -> None:
    buffer = bytearray(8 * MIB)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass


@contextmanager
def touched_memory(size: int) -> Iterator[None]:
    """At least so much memory that is in use until the context is left.

    A virtual machine returns free memory to its host within seconds, and the next process that touches it waits for
    the host. A load that begins right after this context is likely to find memory that the machine still owns. The kernel
    does not reuse just these pages: with six times the memory of a load fewer loads wait than with twice, but some do.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = mmap.mmap(-1, max(size, min(TOUCHED, free // 2)))
    memory.madvise(mmap.MADV_HUGEPAGE)
    memory.madvise(MADV_POPULATE_WRITE)
    try:
        yield
    finally:
        memory.close()


# ---- block I/O limits ----


class Unavailable(Exception):
    """The machine cannot do what an experiment needs; the text says what is missing."""


def disk_of(path: Path) -> str:
    """MAJOR:MINOR of the whole disk below a file: the controllers limit disks, not partitions."""
    device = os.stat(path).st_dev
    node = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if not node.exists():
        raise Unavailable(f"the file system of {path} has no block device")
    if (node / "partition").exists():
        node = node.parent
    return (node / "dev").read_text().strip()


class Throttle:
    """A control group whose members read from one disk at most so many bytes and requests per second.

    cgroup v1: blkio.throttle.*; v2: io.max (Documentation/admin-guide/cgroup-v1/blkio-controller.rst, cgroup-v2.rst).
    """

    def __init__(self, path: Path, bytes_per_s: int, iops: int):
        if os.geteuid() != 0:
            raise Unavailable("limits of block I/O need root")
        disk = disk_of(path)
        v1, v2 = CGROUP / "blkio", CGROUP / "cgroup.controllers"
        if (v1 / "blkio.throttle.read_bps_device").exists() or (v1 / "cgroup.procs").exists():
            self.group = v1 / GROUP
            limits = {
                "blkio.throttle.read_bps_device": f"{disk} {bytes_per_s}",
                "blkio.throttle.read_iops_device": f"{disk} {iops}",
            }
        elif v2.exists() and "io" in v2.read_text().split():
            self.group = CGROUP / GROUP
            limits = {"io.max": f"{disk} rbps={bytes_per_s} riops={iops}"}
        else:
            raise Unavailable("no block I/O controller: neither cgroup v1 blkio nor cgroup v2 io")
        try:
            if self.group.parent == CGROUP:
                (CGROUP / "cgroup.subtree_control").write_text("+io")
            self.group.mkdir(exist_ok=True)
            for file, limit in limits.items():
                (self.group / file).write_text(limit)
        except OSError as e:
            raise Unavailable(f"limits of block I/O: {e}") from None

    def __enter__(self) -> Throttle:
        return self

    def __exit__(self, *_: object) -> None:
        """A process that ends meanwhile cannot be moved (ESRCH) and keeps the group until it is reaped (EBUSY): the next use
        finds the group, and sets its limits again."""
        for pid in (self.group / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                (self.group.parent / "cgroup.procs").write_text(pid)
        with suppress(OSError):
            self.group.rmdir()

    def add(self, pid: int) -> None:
        (self.group / "cgroup.procs").write_text(str(pid))


# ---- processes ----


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_bytes(pid: int) -> int:
    """Bytes that the process has had read from storage."""
    rows = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(rows["read_bytes"])


def own_and_shared(pid: int) -> tuple[int, int]:
    """Bytes of anonymous memory, and of shared memory that is no page cache."""
    try:
        rows = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    except (FileNotFoundError, ProcessLookupError):
        return 0, 0
    kib = [int(rows.get(key, "0").split()[0]) for key in ("RssAnon", "RssShmem", "HugetlbPages")]
    return kib[0] << 10, (kib[1] + kib[2]) << 10


def anonymous_and_dirty(pid: int) -> int:
    """Bytes that only this process has: anonymous pages, and private dirty ones."""
    rows = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]]
    kib = {row[0].rstrip(":"): int(row[1]) for row in rows}
    return (kib["Private_Dirty"] + kib.get("Private_Hugetlb", 0)) << 10


class PeakMemory:
    """The peak of some processes' memory in this context, above what they had at its start. Shared memory counts once."""

    def __init__(self, pids: list[int]):
        self._pids = pids
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample)

    def __enter__(self) -> PeakMemory:
        self._base = self._now()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.bytes = max(self.bytes, self._now() - self._base)

    def _now(self) -> int:
        rows = [own_and_shared(pid) for pid in self._pids]
        return sum(own for own, _ in rows) + max(shared for _, shared in rows)

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            self.bytes = max(self.bytes, self._now() - self._base)


# ---- ceilings ----


def fio(path: Path, throttle: Throttle | None) -> float:
    """GiB/s of sequential reads with O_DIRECT, 16 blocks of 8 MiB in flight, into huge pages where the system has some: a
    request of 4 KiB pages has so many segments that it measures the driver."""
    command = [
        "fio", "--name=ceiling", f"--filename={path}", "--readonly", "--rw=read", "--direct=1", "--ioengine=io_uring",
        "--bs=8M", "--iodepth=16", f"--size={path.stat().st_size >> 23 << 23}", "--output-format=json",
    ]  # fmt: skip
    enter = (lambda: throttle.add(os.getpid())) if throttle else None
    for memory in ("mmaphuge", "mmap"):
        try:
            done = subprocess.run([*command, f"--mem={memory}"], capture_output=True, text=True, preexec_fn=enter)
        except FileNotFoundError:
            raise Unavailable("fio is not installed") from None
        if done.returncode == 0:
            return json.loads(done.stdout)["jobs"][0]["read"]["bw_bytes"] / GIB
    raise Unavailable(f"fio failed ({done.returncode}): {done.stderr.strip()}")


def curl(url: str, size: int, count: int) -> float:
    """GiB/s of so many curl processes that fetch a range each and discard it."""
    import time

    share = size // count
    began = time.perf_counter()
    ends = [(i + 1) * share - 1 for i in range(count - 1)] + [size - 1]
    processes = [subprocess.Popen(["curl", "-s", "-f", "-o", "/dev/null", "-r", f"{i * share}-{end}", url]) for i, end in enumerate(ends)]
    if any([p.wait() for p in processes]):
        raise Unavailable(f"curl failed: {url.partition('?')[0]}")
    return size / GIB / (time.perf_counter() - began)
