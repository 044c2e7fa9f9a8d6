# SPDX-License-Identifier: Apache-2.0
"""The consumer: this script once more, in a process of its own. It reads one JSON request a line
and answers each with one line; what it attached to stays attached between requests, so the one who
asks can kill it, or the daemon, at any moment."""

import ctypes
import faulthandler
import json
import mmap
import os
import select
import sys
import threading
import time
import traceback

from . import calls, cuda, model, wire
from .library import Library

CHUNK = 64 << 20
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]


class Skip(Exception):
    """Not possible here, and no failure."""


def map_memory(size):
    """Anonymous memory in huge pages where the system has them, all of it there."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, size)
    return memory, address


class Consumer:
    def __init__(self, library, cudart):
        self.paths = {"library": library, "cudart": cudart}
        self.library = self.driver = self.runtime = None
        self.client = self.lease = self.raw = self.held = None
        self.buffers, self.copies = {}, None

    def op_become(self, uid):
        """Another user from here on; what that one may not read is opened before."""
        self.library = Library(self.paths["library"])
        cuda.open_driver()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        die_with_parent()  # the kernel forgets it with the old user
        return {}

    # ---- the GPU

    def op_enter(self, ordinal):
        self.driver = cuda.Driver(ordinal)
        begin = time.monotonic()
        self.driver.enter()
        return {"seconds": time.monotonic() - begin}

    def op_describe(self, ordinal):
        self.runtime = cuda.Runtime(self.paths["cudart"], ordinal)
        return {**self.driver.describe(), **self.runtime.describe(ordinal)}

    def op_memory(self):
        free, total = self.runtime.memory()
        return {"free": free, "total": total}

    def op_host_memory(self):
        return {"bytes": host_memory(os.getpid())}

    # ---- CUDA by itself

    def op_questions(self, ordinal, socket=None, name=None):
        """[[question, answer]]: of this GPU, or of memory that a daemon exports."""
        if self.runtime is None:
            self.runtime = cuda.Runtime(self.paths["cudart"], ordinal)
        questions = calls.Questions(self.driver, self.runtime)
        if socket is None:
            questions.machine()
            return {"answers": questions.answers}
        raw = wire.Connection(socket)
        segment = raw.attach(name)["segments"][0]
        (questions.ipc if segment["kind"] == "cuda-ipc" else questions.vmm)(segment)
        raw.close()
        return {"answers": questions.answers}

    # ---- ceilings

    def op_copies(self, ordinal, size, count):
        """Pinned host memory to the GPU, GiB/s of each copy; the memory is kept for the next time."""
        if self.copies is None:
            self.runtime = cuda.Runtime(self.paths["cudart"], ordinal)
            self.copies = (map_memory(size), ctypes.c_void_p(), ctypes.c_void_p())
            (_, host), device, stream = self.copies
            self.runtime.cudaMalloc(ctypes.byref(device), ctypes.c_size_t(size))
            self.runtime.cudaHostRegister(ctypes.c_void_p(host), ctypes.c_size_t(size), ctypes.c_uint(0))
            self.runtime.cudaStreamCreateWithFlags(ctypes.byref(stream), ctypes.c_uint(cuda.NON_BLOCKING))
        (_, host), device, stream = self.copies
        rates = []
        for _ in range(count):
            begin = time.monotonic()
            self.runtime.cudaMemcpyAsync(
                device, ctypes.c_void_p(host), ctypes.c_size_t(size), ctypes.c_int(cuda.HOST_TO_DEVICE), stream
            )
            self.runtime.cudaStreamSynchronize(stream)
            rates.append(size / (time.monotonic() - begin) / (1 << 30))
        return {"rates": rates}

    def op_preads(self, path, threads, block, direct, limit):
        """Reads the file by as many threads as the daemon has, each into a slot of its own."""
        if (threads, block) not in self.buffers:
            self.buffers[threads, block] = map_memory(threads * block)
        memory = memoryview(self.buffers[threads, block][0])
        fd = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
        size = min(os.fstat(fd).st_size, limit)
        if direct:
            size -= size % block
        offsets, lock, failures = iter(range(0, size, block)), threading.Lock(), []

        def work(slot):
            try:
                while True:
                    with lock:
                        at = next(offsets, None)
                    if at is None:
                        return
                    if os.preadv(fd, [slot], at) != min(block, size - at):
                        raise OSError(f"short read at {at}")
            except OSError as e:
                failures.append(str(e))

        workers = [threading.Thread(target=work, args=(memory[i * block : (i + 1) * block],)) for i in range(threads)]
        begin = time.monotonic()
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = time.monotonic() - begin
        os.close(fd)
        if failures:
            raise OSError(failures[0])
        if size == 0:
            raise Skip("the file is smaller than a block")
        return {"rate": size / seconds / (1 << 30)}

    # ---- the daemon

    def connect(self, socket):
        if self.library is None:
            self.library = Library(self.paths["library"])
        return self.library.connect(socket)

    def op_load(self, socket, path, name, timeout):
        client = self.connect(socket)
        begin = time.monotonic()
        client.load(path, name, int(timeout * 1000))
        seconds = time.monotonic() - begin
        client.close()
        return {"seconds": seconds}

    def op_unload(self, socket, name):
        client = self.connect(socket)
        client.unload(name)
        client.close()
        return {}

    def op_attach(self, socket, name):
        begin = time.monotonic()
        self.client = self.connect(socket)
        self.lease = self.client.attach(name)
        self.first_byte(self.last_tensor(self.lease))
        return {"ms": (time.monotonic() - begin) * 1e3, "segments": self.lease.segments()}

    def op_detach(self):
        self.lease.detach()
        self.client.close()
        self.lease = self.client = None
        return {}

    def op_hangup(self, timeout):
        """Does the connection's descriptor tell that the daemon is gone?"""
        poll = select.poll()
        poll.register(self.client.fd(), select.POLLIN)
        events = [e for _, e in poll.poll(timeout * 1000)]
        return {"hup": any(e & select.POLLHUP for e in events), "readable": any(e & select.POLLIN for e in events)}

    # ---- reading back

    def first_byte(self, tensor):
        byte = ctypes.c_char()
        self.driver.read(ctypes.addressof(byte), tensor.data, 1)

    def op_write(self):
        """Puts a tensor's first byte back where it is: does the mapping let it, and if not, how?"""
        tensor, byte = self.last_tensor(self.lease), ctypes.c_char()
        self.driver.read(ctypes.addressof(byte), tensor.data, 1)
        try:
            self.driver.write(tensor.data, ctypes.addressof(byte), 1)
        except cuda.CudaError as e:
            return {"refused": str(e)}
        return {"refused": None}

    def op_write_bare(self, socket, name):
        """Maps a descriptor for writing, as the library never does, and puts the first byte back where it is."""
        raw = wire.Connection(socket)
        reply = raw.attach(name)
        segment, byte = reply["segments"][0], ctypes.c_char()
        try:
            mapped = self.driver.vmm_open(segment["fd"], segment["size"], cuda.ACCESS_READ_WRITE)
            self.driver.read(ctypes.addressof(byte), mapped[0], 1)
            self.driver.write(mapped[0], ctypes.addressof(byte), 1)
        except cuda.CudaError as e:
            return {"refused": str(e)}
        self.driver.vmm_close(mapped)
        raw.close()
        return {"refused": None}

    @staticmethod
    def last_tensor(lease):
        return lease.get(lease.count() - 1)

    def op_compare(self, path, every, limit):
        return self.compare(path, every, limit, lambda name: self.lease.find(name).data)

    def compare(self, path, every, limit, pointer_of):
        """Each nth tensor, `limit` bytes from its begin and from its end (0: the whole of it),
        copied back through this process's context and compared with the file."""
        spans = model.tensors_of(path)[::every]
        fd = os.open(path, os.O_RDONLY)
        compared, differing = 0, []
        for name, at, size in spans:
            parts = [(0, size)]
            if limit and size > 2 * limit:
                parts = [(0, limit), (size - limit, limit)]
            pointer = pointer_of(name)
            same = all([self.same(fd, at + begin, pointer + begin, n) for begin, n in parts])
            compared += sum(n for _, n in parts)
            if not same:
                differing.append(name)
        os.close(fd)
        return {"tensors": len(spans), "bytes": compared, "differing": len(differing), "names": differing[:5]}

    def same(self, fd, offset, pointer, size):
        if "compare" not in self.buffers:
            self.buffers["compare"] = [map_memory(CHUNK) for _ in range(2)]
        (expected, expected_at), (_, actual_at) = self.buffers["compare"]
        view = memoryview(expected)
        for at in range(0, size, CHUNK):
            n = min(CHUNK, size - at)
            if os.preadv(fd, [view[:n]], offset + at) != n:
                raise OSError("the model's file is shorter than its header says")
            ctypes.memset(actual_at, 0xA5, n)
            self.driver.read(actual_at, pointer + at, n)
            if _memcmp(expected_at, actual_at, n) != 0:
                return False
        return True

    # ---- without the library

    def open_bare(self, segments):
        if segments[0]["kind"] == "cuda-ipc":
            return [self.driver.ipc_open(s["handle"]) for s in segments]
        return [self.driver.vmm_open(s["fd"], s["size"]) for s in segments]

    def close_bare(self, opened):
        for it in opened:
            if isinstance(it, tuple):
                self.driver.vmm_close(it)
            else:
                self.driver.ipc_close(it)

    def time_library(self, socket, name):
        begin = time.monotonic()
        client = self.connect(socket)
        lease = client.attach(name)
        self.first_byte(self.last_tensor(lease))
        ms = (time.monotonic() - begin) * 1e3
        lease.detach()
        client.close()
        return ms

    def time_bare(self, socket, name):
        raw = wire.Connection(socket)
        reply = raw.attach(name)
        segments, byte = reply["segments"], ctypes.c_char()
        begin = time.monotonic()
        opened = self.open_bare(segments)
        last = opened[-1][0] if isinstance(opened[-1], tuple) else opened[-1]
        self.driver.read(ctypes.addressof(byte), last, 1)
        ms = (time.monotonic() - begin) * 1e3
        self.close_bare(opened)
        for fd in raw.fds:
            os.close(fd)
        raw.ask("detach", lease=reply["lease"])
        raw.close()
        return ms

    def op_times(self, socket, name, bare_first, repeats):
        """Attaches by the library and opens of the same handles without it, in turn."""
        self.connect(socket).close()  # loads the library's code
        times = {"library": [], "bare": []}
        for _ in range(repeats):
            for which in ("bare", "library") if bare_first else ("library", "bare"):
                measure = self.time_bare if which == "bare" else self.time_library
                times[which].append(measure(socket, name))
        return times

    def op_hold(self, socket, name):
        """Keeps the descriptors of an attach and maps nothing; notes where the tensors are."""
        client = self.connect(socket)
        lease = client.attach(name)
        self.held = {t.name.decode(): (t.segment, t.offset) for t in (lease.get(i) for i in range(lease.count()))}
        lease.detach()
        client.close()
        self.raw = wire.Connection(socket)
        self.raw_segments = self.raw.attach(name)["segments"]
        return {"segments": len(self.raw_segments), "kind": self.raw_segments[0]["kind"]}

    def op_compare_held(self, path, every, limit):
        opened = self.open_bare(self.raw_segments)

        def pointer_of(name):
            segment, offset = self.held[name]
            return opened[segment][0] + offset

        result = self.compare(path, every, limit, pointer_of)
        self.close_bare(opened)
        return result

    # ---- torch

    def op_dlpack(self, path):
        try:
            import torch
        except ImportError:
            raise Skip("torch is not installed") from None
        if not torch.cuda.is_available():
            raise Skip(f"torch {torch.__version__} sees no GPU")
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        name, at, size = model.tensors_of(path)[-1]
        tensor = self.lease.find(name)
        whole = torch.from_dlpack(new(self.lease.dlpack(tensor.segment), b"dltensor", None))
        back = whole[tensor.offset : tensor.offset + size].cpu()
        with open(path, "rb") as f:
            f.seek(at)
            expected = f.read(size)
        same = ctypes.string_at(back.data_ptr(), size) == expected
        in_place = whole.data_ptr() + tensor.offset == tensor.data
        del whole
        return {"torch": torch.__version__, "tensor": name, "bytes": size, "same": same, "in_place": in_place}


def host_memory(pid):
    """Pss of anonymous and file pages; huge pages of the pool are in neither."""
    try:
        with open(f"/proc/{pid}/smaps_rollup") as f:
            sizes = dict(line.split(":") for line in f if line.startswith("Pss_"))
    except FileNotFoundError:  # gVisor
        sizes = {}
    if "Pss_Anon" not in sizes:
        raise Skip("the kernel does not tell what memory is a process's own (smaps_rollup, Pss_Anon: Linux 5.9)")
    return sum(int(sizes[key].split()[0]) * 1024 for key in ("Pss_Anon", "Pss_File"))


def die_with_parent():
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL


def main(library, cudart):
    """Answers go to a copy of standard output, which libraries may print to."""
    faulthandler.enable()
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    consumer = Consumer(library, cudart)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(consumer, "op_" + request.pop("op"))(**request)}
        except Skip as e:
            answer = {"skip": str(e)}
        except Exception as e:  # whatever it was, the one who asked decides what it means
            traceback.print_exc()
            answer = {"error": f"{type(e).__name__}: {e}" if str(e) else type(e).__name__}
        print(json.dumps(answer), file=answers, flush=True)
