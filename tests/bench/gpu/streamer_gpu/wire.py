# SPDX-License-Identifier: Apache-2.0
"""The protocol by hand (docs/protocol.md), for what the client library hides: the handles and the
descriptors of an attach, which are opened here without it to see what the bare calls cost."""

import array
import os
import socket
import struct


def pack(value):
    """msgpack of what requests hold: maps, strings, unsigned integers, booleans."""
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return struct.pack(">BQ", 0xCF, value)
    if isinstance(value, str):
        raw = value.encode()
        return struct.pack(">BH", 0xDA, len(raw)) + raw
    return struct.pack(">BH", 0xDE, len(value)) + b"".join(pack(k) + pack(v) for k, v in value.items())


# Head byte: width of the number that follows.
_NUMBERS = {0xCC: "B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q"}
_LENGTHS = {
    0xC4: ("B", "bin"), 0xC5: (">H", "bin"), 0xC6: (">I", "bin"),
    0xD9: ("B", "str"), 0xDA: (">H", "str"), 0xDB: (">I", "str"),
    0xDC: (">H", "array"), 0xDD: (">I", "array"), 0xDE: (">H", "map"), 0xDF: (">I", "map"),
}  # fmt: skip
_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, n):
        self.at += n
        return self.data[self.at - n : self.at]

    def number(self, form):
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def sized(self, kind, n):
        if kind == "bin":
            return bytes(self.take(n))
        if kind == "str":
            return self.take(n).decode()
        if kind == "array":
            return [self.value() for _ in range(n)]
        return {self.value(): self.value() for _ in range(n)}

    def value(self):
        head = self.number("B")
        if head < 0x80:
            return head
        if head < 0x90:
            return self.sized("map", head & 0x0F)
        if head < 0xA0:
            return self.sized("array", head & 0x0F)
        if head < 0xC0:
            return self.sized("str", head & 0x1F)
        if head in _CONSTANTS:
            return _CONSTANTS[head]
        if head in _NUMBERS:
            return self.number(_NUMBERS[head])
        form, kind = _LENGTHS[head]
        return self.sized(kind, self.number(form))


def unpack(data):
    return _Reader(data).value()


class Connection:
    """One connection; descriptors of replies are stored in `fds`, for attach()."""

    def __init__(self, path, timeout=10):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(path)
        self.pending, self.fds, self.last_id = b"", [], 0
        self.ask("hello", min=2, max=2, client="gpu-test")

    def close(self):
        self.socket.close()

    def _more(self):
        room = socket.CMSG_SPACE(253 * array.array("i").itemsize)
        data, control, _, _ = self.socket.recvmsg(1 << 16, room)
        if not data:
            raise ConnectionError("the daemon closed the connection")
        for level, kind, raw in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(raw[: len(raw) - len(raw) % numbers.itemsize])
                self.fds += numbers
        self.pending += data

    def _frame(self):
        while len(self.pending) < 4:
            self._more()
        end = 4 + struct.unpack(">I", self.pending[:4])[0]
        while len(self.pending) < end:
            self._more()
        frame, self.pending = self.pending[4:end], self.pending[end:]
        return unpack(frame)

    def ask(self, verb, **fields):
        self.last_id += 1
        body = pack({"verb": verb, "id": self.last_id, **fields})
        me = struct.pack("3i", os.getpid(), os.geteuid(), os.getegid())  # gVisor tells the daemon by no other way
        credentials = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS, me)
        self.socket.sendmsg([struct.pack(">I", len(body)) + body], [credentials])
        while True:
            reply = self._frame()
            if reply.get("id") == self.last_id:  # what has none is an event
                break
        if not reply["ok"]:
            raise ConnectionError(f"{verb}: {reply['code']}: {reply['text']}")
        return reply

    def attach(self, model):
        """The reply; each segment's "fd", where it has one, is a descriptor of ours."""
        self.fds = []
        reply = self.ask("attach", model=model, ready=True)
        for segment in reply["segments"]:
            if "fd" in segment:
                segment["fd"] = self.fds[segment["fd"]]
        return reply
