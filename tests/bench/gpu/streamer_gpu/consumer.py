# SPDX-License-Identifier: Apache-2.0
"""The consumer: this script in a process of its own. It reads one JSON request a line and answers each with one
line. A lease lasts from request to request, so the script can kill the consumer, or the daemon, at any moment."""

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
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p

from harness import model
from harness.library import Client, open_library
from harness.processes import Skip, end_with_parent, host_memory

from . import calls, compiled_code, cuda, frameworks, language_model, wire

CHUNK = 64 << 20
_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
PAGE = 4096
SAMPLE, SAMPLE_EVERY = 64 << 10, 8 << 20
FILL_CHUNK, FILL_LEAST, FILL_MARGIN = 4 << 30, 64 << 20, 256 << 20
FILL = 0xA5
EXPORTED = bytes(range(256))
NAMESPACES = {"pid": 0x20000000, "net": 0x40000000}  # CLONE_NEWPID, CLONE_NEWNET
MOUNTS = 0x00020000  # CLONE_NEWNS


def map_memory(size):
    """Anonymous memory, all of it present, in huge pages where the system has them."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 1, size)
    return memory, address


def parts_of(size, limit):
    """[(begin, bytes)] to compare of a tensor: all of it (limit 0), or `limit` bytes from its begin and from its end,
    and 64 KiB in the middle of each 8 MiB."""
    if limit == 0 or size <= 2 * limit:
        return [(0, size)]
    middles = range(SAMPLE_EVERY // 2, size, SAMPLE_EVERY)
    return [(size - limit, limit), (0, limit), *((at, min(SAMPLE, size - at)) for at in middles)]


def differing_bytes(a, b, size):
    """Of the memory at two addresses, in pages of 4 KiB that differ."""
    if _memcmp(a, b, size) == 0:
        return 0
    pages = ((at, min(PAGE, size - at)) for at in range(0, size, PAGE))
    return sum(n for at, n in pages if _memcmp(a + at, b + at, n) != 0)


class Consumer:
    def __init__(self, library, cudart):
        self.paths = {"library": library, "cudart": cudart}
        self.driver = self.runtime = None
        self.client = self.lease = self.raw = self.held = self.loader = self.model = self.compiler = None
        self.buffers, self.segments, self.registered, self.on_host = {}, [], [], False

    def op_become(self, uid):
        """Changes to another user, after opening the libraries that this user may not be allowed to read."""
        open_library(self.paths["library"])
        cuda.open_driver()
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        end_with_parent()  # a change of user resets it
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

    def op_fill(self, ordinal, limit):
        """Allocates what the GPU has free, or `limit` bytes, and fills it; it is allocated until this process ends."""
        runtime, filled, chunk = self.use_runtime(ordinal), 0, FILL_CHUNK
        while chunk >= FILL_LEAST:
            free = min(runtime.memory()[0] - FILL_MARGIN, (limit or 1 << 60) - filled)
            if free < FILL_LEAST:
                break
            pointer, size = c_void_p(), min(chunk, free)
            try:
                runtime.cudaMalloc(byref(pointer), c_size_t(size))
            except cuda.CudaError as e:
                if e.code != cuda.OUT_OF_MEMORY:
                    raise
                chunk //= 2
                continue
            self.driver.fill(pointer.value, FILL, size)
            filled += size
        self.driver.cuCtxSynchronize()
        return {"filled": filled, "free": runtime.memory()[0]}

    def op_host_memory(self):
        return {"bytes": host_memory(os.getpid())}

    # ---- CUDA by itself

    def op_questions(self, ordinal, socket=None, name=None):
        """[[question, answer, whether it is not the expected one]]: of this GPU, or of memory that a daemon exports."""
        questions = calls.Questions(self.driver, self.use_runtime(ordinal))
        if socket is None:
            questions.machine()
            return {"answers": questions.answers}
        raw = wire.Connection(socket)
        segment = raw.attach(name)["segments"][0]
        (questions.ipc if segment["kind"] == "cuda-ipc" else questions.vmm)(segment)
        raw.close()
        return {"answers": questions.answers}

    def op_call_times(self, ordinal, gib):
        """{row: [ms, or ms per GiB]}; `gib`: bytes that stand for one."""
        return calls.times(self.use_runtime(ordinal), gib)

    # ---- memory of the host, as an engine copies it to its GPU

    def op_attach_host(self, socket, name):
        """Maps a model of a host device and touches all of it; a GPU is needed only by op_host_copies."""
        self.client = self.connect(socket)
        self.lease = self.client.attach(name)
        self.segments = [(self.lease.segment(i)) for i in range(self.lease.segments())]
        begin = time.monotonic()
        for address, size in self.segments:
            _touch(address, size)
        return {"bytes": sum(size for _, size in self.segments), "touch_ms": (time.monotonic() - begin) * 1e3}

    def use_runtime(self, ordinal):
        if self.runtime is None:
            self.runtime = cuda.Runtime(self.paths["cudart"], ordinal)
        return self.runtime

    def op_host_register(self, ordinal):
        """Registers the mapped segments for reading, which is timed; refused: by which error, of those that mean that
        the driver cannot do it."""
        runtime = self.use_runtime(ordinal)
        flags = c_uint(cuda.HOST_REGISTER_PORTABLE | cuda.HOST_REGISTER_READ_ONLY)
        begin = time.monotonic()
        for address, size in self.segments:
            try:
                runtime.cudaHostRegister(c_void_p(address), c_size_t(size), flags)
            except cuda.CudaError as e:
                if e.code not in (cuda.NOT_SUPPORTED, cuda.INVALID_VALUE):
                    raise
                self._unregister()
                return {"refused": str(e)}
            self.registered.append(address)
        return {"refused": None, "seconds": time.monotonic() - begin}

    def _unregister(self):
        for address in self.registered:
            self.runtime.cudaHostUnregister(c_void_p(address))
        self.registered = []

    def op_host_copies(self, ordinal, how):
        """Copies the mapped segments to the GPU, whole; "registered": after op_host_register, "staged": through a
        small pinned buffer, "unregistered": as they are."""
        runtime, device = self.use_runtime(ordinal), c_void_p()
        runtime.cudaMalloc(byref(device), c_size_t(max(size for _, size in self.segments)))
        try:
            if how == "staged":
                with cuda.Staging(runtime) as staging:
                    rates = [self._copy_all(device, staging.copy) for _ in range(3)]
            else:
                rates = [self._copy_all(device, self._copy_whole) for _ in range(3)]
        finally:
            self._unregister()
            runtime.cudaFree(device)
        return {"rates": rates}

    def _copy_whole(self, to, address, size):
        self.runtime.cudaMemcpy(c_void_p(to), c_void_p(address), c_size_t(size), c_int(cuda.HOST_TO_DEVICE))

    def _copy_all(self, device, copy):
        """GiB/s, until the last byte is on the GPU: a copy from pageable memory may return before, and the read that
        follows waits for it."""
        begin = time.monotonic()
        for address, size in self.segments:
            copy(device.value, address, size)
        self.driver.read(ctypes.addressof(ctypes.c_char()), device.value, 1)
        return sum(size for _, size in self.segments) / (time.monotonic() - begin) / (1 << 30)

    # ---- memory of this process, for another one

    def op_export(self, ordinal):
        """2 MiB of the GPU with a known content, as a cuda-ipc handle."""
        self.use_runtime(ordinal)
        pointer, handle, content = c_void_p(), cuda.IpcHandle(), ctypes.create_string_buffer(EXPORTED, len(EXPORTED))
        self.runtime.cudaMalloc(byref(pointer), c_size_t(2 << 20))
        self.driver.write(pointer.value, ctypes.addressof(content), len(EXPORTED))
        self.runtime.cudaIpcGetMemHandle(byref(handle), pointer)
        return {"handle": bytes(handle).hex()}

    def op_open(self, handle):
        """Whether another process's handle opens here, and shows its content."""
        pointer = self.driver.ipc_open(bytes.fromhex(handle))
        content = ctypes.create_string_buffer(len(EXPORTED))
        self.driver.read(ctypes.addressof(content), pointer, len(EXPORTED))
        self.driver.ipc_close(pointer)
        return {"same": content.raw == EXPORTED}

    # ---- the daemon

    def connect(self, socket):
        return Client(self.paths["library"], socket)

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
        ms = (time.monotonic() - begin) * 1e3
        return {"ms": ms, "segments": self.lease.segments(), "writable": self.lease.writable()}

    def op_compare_while_loading(self, socket, path, name, limit):
        """Loads and attaches at once, and compares each tensor when it is announced: its end, which is copied last,
        its begin, and parts between. `early`: how many were compared before the load had ended."""
        self.client, spans = self.connect(socket), {n: (at, size) for n, at, size in model.tensors_of(path)}
        fd, differing, early, announced = os.open(path, os.O_RDONLY), [], 0, set()
        self._buffers()  # before the load, which may be over in a third of a second
        op = self.client.begin_open(path, name)
        self.lease = op.lease(30000)
        while (tensor := self.lease.next(30000)) is not None:
            self.on_host = tensor.device_kind != b"cuda"
            tensor_name = tensor.name.decode()
            at, size = spans[tensor_name]
            if tensor.bytes != size or self.differing(fd, at, tensor.data, parts_of(size, limit)):
                differing.append(tensor_name)
            announced.add(tensor_name)
            early += not op.wait(0)
        ended = op.wait(30000)
        op.free()
        os.close(fd)
        complete = ended and announced == set(spans)
        return {"tensors": len(spans), "early": early, "complete": complete, "differing": len(differing), "names": differing[:5]}

    def op_watch_load(self, socket, path, name, unload=None):
        """A load, and the longest time in which none of its bytes arrived; `unload`: a model that is unloaded once
        a quarter has. `overlapped`: whether the load went on when that had begun."""
        client, raw = self.connect(socket), wire.Connection(socket)
        unloading = _Unload(self.connect(socket), unload) if unload else None
        begin = last = time.monotonic()
        op, stall, bytes_before = client.begin_load(path, name), 0.0, 0
        while not op.wait(0):
            load = next((it for it in raw.ask("status")["loads"] if it["name"] == name), None)
            now = time.monotonic()
            if load is None or load["bytes"] == bytes_before:
                continue
            if bytes_before > 0:
                stall = max(stall, now - last)
            bytes_before, last = load["bytes"], now
            if unloading and load["bytes"] * 4 >= load["total"]:
                unloading.begin()
        end = time.monotonic()
        op.free()
        stall = max(stall, end - last if bytes_before else 0)
        result = {"seconds": end - begin, "stall_ms": stall * 1e3, "overlapped": False, "unload_ms": None}
        if unloading:
            result.update(overlapped=unloading.begin() < end, unload_ms=unloading.end())
        raw.close()
        client.close()
        return result

    def op_detach(self):
        self.lease.detach()
        self.client.close()
        self.lease = self.client = None
        return {}

    def op_hangup(self, timeout):
        """Whether the connection's descriptor shows that the daemon has ended."""
        poll = select.poll()
        poll.register(self.client.fd(), select.POLLIN)
        events = [e for _, e in poll.poll(timeout * 1000)]
        return {"hup": any(e & select.POLLHUP for e in events), "readable": any(e & select.POLLIN for e in events)}

    # ---- reading back

    def read(self, to, pointer, size):
        """From the memory of the lease."""
        if self.on_host:
            ctypes.memmove(to, pointer, size)
        else:
            self.driver.read(to, pointer, size)

    def first_byte(self, tensor):
        byte = ctypes.c_char()
        self.on_host = tensor.device_kind != b"cuda"
        self.read(ctypes.addressof(byte), tensor.data, 1)

    def op_write(self):
        """Writes a tensor's first byte to where it was read: None, or how it is refused."""
        tensor, byte = self.last_tensor(self.lease), ctypes.c_char()
        self.driver.read(ctypes.addressof(byte), tensor.data, 1)
        try:
            self.driver.write(tensor.data, ctypes.addressof(byte), 1)
        except cuda.CudaError as e:
            return {"refused": str(e)}
        return {"refused": None}

    def op_write_bare(self, socket, name):
        """Maps a descriptor for writing, as the library does not, and writes the first byte to where it was read."""
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
        """Each nth tensor, the parts that `limit` determines, copied back through this process's context and
        compared with the file."""
        spans = model.tensors_of(path)[::every]
        fd = os.open(path, os.O_RDONLY)
        compared, wrong, differing = 0, 0, []
        for name, at, size in spans:
            parts = parts_of(size, limit)
            n = self.differing(fd, at, pointer_of(name), parts)
            compared += sum(n for _, n in parts)
            wrong += n
            if n > 0:
                differing.append(name)
        os.close(fd)
        facts = {"tensors": len(spans), "bytes": compared, "differing_bytes": wrong}
        return {**facts, "differing": len(differing), "names": differing[:5]}

    def differing(self, fd, offset, pointer, parts):
        return sum([self._differing_part(fd, offset + begin, pointer + begin, n) for begin, n in parts])

    def _buffers(self):
        if "compare" not in self.buffers:
            self.buffers["compare"] = [map_memory(CHUNK) for _ in range(2)]
        return self.buffers["compare"]

    def _differing_part(self, fd, offset, pointer, size):
        (expected, expected_at), (_, actual_at) = self._buffers()
        view, wrong = memoryview(expected), 0
        for at in range(0, size, CHUNK):
            n = min(CHUNK, size - at)
            if os.preadv(fd, [view[:n]], offset + at) != n:
                raise OSError("the model's file is shorter than its header says")
            ctypes.memset(actual_at, FILL, n)
            self.read(actual_at, pointer + at, n)
            wrong += differing_bytes(expected_at, actual_at, n)
        return wrong

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
        """Keeps the descriptors of an attach, maps nothing, and stores where the tensors are."""
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

    # ---- torch, other loaders, a model of transformers

    def op_write_language_model(self, folder, device, tiny):
        language_model.write(folder, device, tiny)
        return {}

    def op_build_language_model(self, folder, device, positions=True):
        self.model = language_model.LanguageModel(folder, device, self.paths["library"], positions)
        return {}

    def op_read_language_model(self):
        return self.model.read()

    def op_open_language_model(self, socket, name):
        return self.model.open(socket, name)

    def op_publish_language_model(self, socket, name):
        return self.model.publish(socket, name)

    def op_take_language_model(self, socket, name):
        return self.model.take(socket, name)

    def op_change_language_model(self):
        return self.model.change()

    def op_put_language_model(self, socket, name):
        return self.model.put(socket, name)

    def op_update_language_model(self, socket, name, generation):
        return self.model.update(socket, name, generation)

    def op_open_compiler(self, folder, device):
        self.compiler = compiled_code.Compiler(folder, device, self.paths["library"])
        return {}

    def op_compile(self):
        return self.compiler.compile()

    def op_publish_compiled(self, socket, name):
        return self.compiler.publish(socket, name)

    def op_restore_compiled(self, socket, name):
        return self.compiler.restore(socket, name)

    def op_tokens(self, count):
        return self.model.tokens(count)

    def op_torch(self, path, device):
        return frameworks.compare_model(self.lease, path, device)

    def op_loader_import(self, name, site, device):
        self.loader = frameworks.Loader(name, site, device)
        return {"version": self.loader.version}

    def op_loader_load(self, path):
        return self.loader.load(path)


class _Unload:
    """Unloads a model in a thread of its own."""

    def __init__(self, client, name):
        self.client, self.name, self.thread, self.ms, self.error = client, name, None, None, None

    def begin(self):
        """When it began."""
        if self.thread is None:
            self.began, self.thread = time.monotonic(), threading.Thread(target=self._run, daemon=True)
            self.thread.start()
        return self.began

    def _run(self):
        try:
            self.client.unload(self.name)
        except Exception as e:
            self.error = e
        self.ms = (time.monotonic() - self.began) * 1e3

    def end(self):
        self.thread.join(30)
        self.client.close()
        if self.error:
            raise self.error
        return self.ms


def _touch(address, size):
    """Reads a byte of each page: a page that is absent from the page table would else be part of what is timed."""
    view = (ctypes.c_ubyte * size).from_address(address)
    for at in range(0, size, 4096):
        view[at]


def enter_namespaces(names):
    """Namespaces of its own for this process. A PID namespace is entered by a child, which continues in its place."""
    libc = ctypes.CDLL(None, use_errno=True)
    flags = sum(NAMESPACES[name] for name in names) | (MOUNTS if "pid" in names else 0)
    if libc.unshare(flags) != 0:
        raise OSError(ctypes.get_errno(), f"unshare: {os.strerror(ctypes.get_errno())}")
    if "pid" not in names:
        return
    pid = os.fork()
    if pid != 0:
        _, status = os.waitpid(pid, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    end_with_parent()
    private = c_uint(1 << 18 | 1 << 14)  # MS_PRIVATE | MS_REC: the mount stays in this namespace
    libc.mount(b"none", b"/", None, private, None)
    libc.mount(b"proc", b"/proc", b"proc", c_uint(0), None)


def answer_requests(library, cudart, requests, answers):
    consumer = Consumer(library, cudart)
    for line in requests:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(consumer, "op_" + request.pop("op"))(**request)}
        except Skip as e:
            answer = {"skip": str(e)}
        except Exception as e:  # the script decides what it means
            traceback.print_exc()
            answer = {"error": f"{type(e).__name__}: {e}" if str(e) else type(e).__name__}
        print(json.dumps(answer), file=answers, flush=True)


def main(library, cudart, *namespaces):
    """Answers go to a copy of standard output, which libraries may print to."""
    faulthandler.enable()
    end_with_parent()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if namespaces:
        enter_namespaces(namespaces)
    answer_requests(library, cudart, sys.stdin, answers)
