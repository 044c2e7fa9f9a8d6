# SPDX-License-Identifier: Apache-2.0
"""watch() and awatch(): what they yield, and what they survive."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from checkpoints import small, write
from conftest import Daemon, eventually, in_child, open_files

import streamerd
from streamerd import _watch
from streamerd._client import Client


def put(value: float) -> int:
    return streamerd.put({"w": numpy.full(4, value, dtype=numpy.float32)}, "m").generation


class Looks:
    """How many looks of a watch have ended, and which generations they have seen ready. `after`: called once, when the
    daemon has answered one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.ready: list[int] = []
        self.after: Callable[[], None] = lambda: None
        look = _watch._Watch.look
        call = Client.call

        def looked(watched: _watch._Watch) -> int | None:
            try:
                return look(watched)
            finally:
                self.count += 1

        def called(client: Client, verb: str, **fields: Any) -> dict[str, Any]:
            reply = call(client, verb, **fields)
            if verb == "show":
                self.ready += [row["generation"] for row in reply["models"] if row["state"] == "ready"]
                after, self.after = self.after, lambda: None
                after()
            return reply

        monkeypatch.setattr(_watch._Watch, "look", looked)
        monkeypatch.setattr(Client, "call", called)

    def await_more(self, count: int) -> None:
        before = self.count
        eventually(lambda: self.count >= before + count)


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    return Looks(monkeypatch)


class Follower:
    """A thread that takes what a watch yields, until it is closed."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.error: BaseException | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for generation in streamerd.watch("m"):
                self.seen.append(generation)
                if self._closed:
                    break
        except streamerd.Error as e:
            self.error = e

    def sees(self, *generations: int) -> None:
        eventually(lambda: self.seen == list(generations) or self.error)
        assert self.error is None, self.error

    def close(self) -> None:
        """It sees one generation more."""
        self._closed = True
        put(-1)
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def follower(daemon: Daemon) -> Iterator[Callable[[], Follower]]:
    followers: list[Follower] = []

    def make() -> Follower:
        followers.append(Follower())
        return followers[-1]

    yield make


# ---- what is yielded ----


def test_the_serving_generation_and_each_that_follows(daemon: Daemon) -> None:
    first = put(1)
    generations = streamerd.watch("m")
    assert next(generations) == first
    second = put(2)
    assert next(generations) == second
    put(3)
    last = put(4)
    assert next(generations) == last  # of several, the latest
    generations.close()  # type: ignore[attr-defined]


def test_a_model_that_does_not_exist_is_waited_for_and_others_are_ignored(daemon: Daemon) -> None:
    seen: list[int] = []
    thread = threading.Thread(target=lambda: seen.append(next(streamerd.watch("m"))))
    thread.start()
    streamerd.put({"w": numpy.ones(1)}, "other")
    made = put(1)
    thread.join(30)
    assert seen == [made]


def test_the_same_tensors_are_another_generation(daemon: Daemon) -> None:
    generations = streamerd.watch("m")
    for _ in range(3):
        made = put(1)
        assert next(generations) == made


def test_a_generation_that_is_made_while_the_first_is_looked_at_is_not_missed(daemon: Daemon, looks: Looks) -> None:
    first = put(1)
    made: list[int] = []
    looks.after = lambda: made.append(put(2))
    generations = streamerd.watch("m")
    assert next(generations) == first and made
    assert next(generations) == made[0]


def test_an_event_of_what_was_seen_already_yields_nothing(daemon: Daemon, looks: Looks) -> None:
    watched = _watch._Watch("m", None, None)
    made = put(1)  # its event comes after the subscription
    assert watched.look() == made
    eventually(lambda: watched.changed(1000))
    assert watched.look() is None


def test_an_older_generation_that_serves_again_is_yielded(daemon: Daemon, folder: Path) -> None:
    for name, rows in (("blue", 1), ("green", 2)):
        write(folder / f"{name}.safetensors", small(rows))
        daemon.ctl("load", str(folder / f"{name}.safetensors"), "--name", name)
    generations = streamerd.watch("m")
    seen = []
    for name in ("blue", "green", "blue"):
        daemon.ctl("load", str(folder / f"{name}.safetensors"), "--name", "m")
        seen.append(next(generations))
    assert seen == [1, 2, 1]


# ---- restarts ----


@pytest.mark.parametrize("end", ["kill", "stop"])
@pytest.mark.parametrize("count", [1, 3])
def test_what_another_daemon_makes_that_counts_anew(daemon: Daemon, folder: Path, count: int, end: str) -> None:
    """After a restart that has restored nothing, the first generation has the number that was reported, or a lower one."""
    generations = streamerd.watch("m")
    for step in range(count):
        made = put(step)
        assert next(generations) == made
    assert made == count
    getattr(daemon, end)()
    other = Daemon(folder)
    try:
        for step in range(count + 1):
            made = put(10 + step)
            assert made == step + 1 and next(generations) == made
    finally:
        other.stop()


def test_the_same_number_and_contents_of_another_daemon_are_not_yielded_again(
    daemon: Daemon, folder: Path, looks: Looks, follower: Callable[[], Follower]
) -> None:
    made = put(1)
    f = follower()
    f.sees(made)
    daemon.kill()
    other = Daemon(folder)
    try:
        looks.ready.clear()
        assert put(1) == made
        eventually(lambda: looks.ready)
        assert f.seen == [made]
        another = put(1)
        f.sees(made, another)
        f.close()
    finally:
        other.stop()


def test_a_daemon_that_is_away_is_waited_for(
    daemon: Daemon, folder: Path, looks: Looks, follower: Callable[[], Follower], caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_watch, "_AWAY_LOG_SECONDS", 0.0)
    f = follower()
    f.sees()
    made = put(1)
    f.sees(made)
    daemon.stop()
    looks.await_more(4)  # the library's own patience is over with the first
    (record,) = caplog.records  # whether the daemon ends before or after a request decides on the reason
    assert record.getMessage().startswith("m: watch: waits for the daemon: ")
    for _ in range(2):
        other = Daemon(folder)
        other.stop()
    other = Daemon(folder)
    try:
        made = put(2)
        eventually(lambda: f.seen[-1:] == [made])
        f.close()
    finally:
        other.stop()


def test_a_request_that_is_lost_with_the_daemon_is_repeated(
    daemon: Daemon, folder: Path, monkeypatch: pytest.MonkeyPatch, follower: Callable[[], Follower]
) -> None:
    """The daemon has it, and ends before it answers."""
    call = Client.call
    asked = threading.Event()

    def called(client: Client, verb: str, **fields: Any) -> dict[str, Any]:
        if verb == "show" and not asked.is_set():
            daemon.process.send_signal(signal.SIGSTOP)
            asked.set()
        return call(client, verb, **fields)

    monkeypatch.setattr(Client, "call", called)
    f = follower()
    assert asked.wait(30)
    thread = next(t for t in threading.enumerate() if t is f._thread)
    eventually(lambda: _is_waiting(thread))
    daemon.kill()
    other = Daemon(folder)
    try:
        made = put(1)
        f.sees(made)
        f.close()
    finally:
        other.stop()


def _is_waiting(thread: threading.Thread) -> bool:
    """Whether it sleeps in poll()."""
    return Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(") ")[2][0] == "S"


def answers(code: str) -> bytes:
    """A frame: {"id": 1, "ok": false, "code": code, "text": "no"}."""

    def text(value: str) -> bytes:
        return bytes([0xA0 | len(value)]) + value.encode()

    body = b"\x84" + text("id") + b"\x01" + text("ok") + b"\xc2" + text("code") + text(code) + text("text") + text("no")
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "reply, kind",
    [
        (answers("denied"), streamerd.DeniedError),
        (answers("protocol"), streamerd.ProtocolError),
        (b"\xff" * 8, streamerd.ProtocolError),
    ],
)
def test_a_daemon_that_refuses_ends_the_watch(daemon: Daemon, reply: bytes, kind: type[Exception]) -> None:
    generations = streamerd.watch("m")
    made = put(1)
    assert next(generations) == made
    daemon.kill()
    os.unlink(daemon.socket)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(daemon.socket)
        listener.listen()

        def serve() -> None:
            connection, _ = listener.accept()
            connection.recv(4096)
            connection.sendall(reply)
            connection.recv(4096)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(kind):
            next(generations)
        thread.join(30)


def test_where_no_daemon_was_there_is_none_to_wait_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STREAMERD_SOCKET", str(folder / "none"))
    with pytest.raises(streamerd.UnreachableError, match="no daemon serves there"):
        next(streamerd.watch("m"))

    async def main() -> None:
        await anext(streamerd.awatch("m"))

    with pytest.raises(streamerd.UnreachableError, match="no daemon serves there"):
        asyncio.run(main())


def test_a_connection_that_the_library_made_again_leaves_nothing_to_read(daemon: Daemon, folder: Path) -> None:
    """Else awatch() would spin."""
    watched = _watch._Watch("m", None, None)
    assert watched.look() is None
    daemon.kill()
    other = Daemon(folder)
    try:
        assert watched.look() is None and watched.pause == 0
        while watched.changed(0):
            pass
        readable = select.poll()
        readable.register(watched.fd, select.POLLIN)
        assert readable.poll(0) == []
        made = put(1)
        assert readable.poll(30000) == [(watched.fd, select.POLLIN)]
        assert watched.changed(0) and watched.look() == made
    finally:
        other.stop()


# ---- ends ----


def test_a_watch_that_is_closed_leaves_no_descriptor(daemon: Daemon) -> None:
    put(1)
    next(streamerd.watch("m"))
    files = open_files()
    generations = [streamerd.watch("m") for _ in range(20)]
    assert [next(g) for g in generations] == [1] * 20
    assert open_files() > files
    generations.pop().close()  # type: ignore[attr-defined]
    del generations
    assert open_files() == files


WATCHING = """
import os, signal, sys, threading
import streamerd
from streamerd._client import Client
signal.signal(signal.SIGINT, signal.default_int_handler)
call = Client.call
def called(client, verb, **fields):
    print(verb, flush=True)
    return call(client, verb, **fields)
Client.call = called
try:
    for generation in streamerd.watch("m"):
        print(generation, flush=True)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    sys.stdin.read(1)
"""


@pytest.mark.parametrize("state", ["idle", "stopped", "away"])
def test_an_interrupt_ends_it(daemon: Daemon, state: str) -> None:
    """While it waits for an event, for a daemon that does not answer, and for one that has ended."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WATCHING], stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdout and program.stdin
        try:
            assert program.stdout.readline() == "show\n"
            if state != "idle":
                assert put(1) == 1
                while program.stdout.readline() == "show\n":
                    pass
            if state == "stopped":
                daemon.process.send_signal(signal.SIGSTOP)
            if state == "away":
                daemon.kill()
            program.send_signal(signal.SIGINT)
            while (line := program.stdout.readline()) == "show\n":
                pass
            assert line == "interrupted\n"
            daemon.process.send_signal(signal.SIGCONT)
            program.communicate("x", timeout=30)
            assert program.returncode == 0
        finally:
            daemon.process.send_signal(signal.SIGCONT)
            program.kill()


def test_a_forked_child_does_not_go_on_with_it(daemon: Daemon) -> None:
    made = put(1)
    generations = streamerd.watch("m")
    assert next(generations) == made

    def child() -> None:
        with pytest.raises(streamerd.ForkedError):
            next(generations)
        assert next(streamerd.watch("m")) == made

    assert in_child(child) == 0
    made = put(2)
    assert next(generations) == made


def test_invalid_names_are_refused(daemon: Daemon) -> None:
    for name, kind in (("", ValueError), ("a\0b", ValueError), ("\udc80", ValueError), (3, TypeError)):
        with pytest.raises(kind):
            next(streamerd.watch(name))  # type: ignore[arg-type]


# ---- asyncio ----


def test_other_tasks_run_meanwhile(daemon: Daemon) -> None:
    async def main() -> None:
        seen: list[int] = []

        async def follow() -> None:
            async for generation in streamerd.awatch("m"):
                seen.append(generation)

        task = asyncio.create_task(follow())
        made = []
        for step in range(3):
            made.append(await asyncio.to_thread(put, step))
            while seen[-1:] != made[-1:]:
                await asyncio.sleep(0.001)
        assert seen == made
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(main(), 60))


def test_many_tasks_follow_over_a_restart(daemon: Daemon, folder: Path) -> None:
    tasks = 40

    async def main() -> None:
        seen: list[list[int]] = [[] for _ in range(tasks)]

        async def follow(mine: list[int]) -> None:
            async for generation in streamerd.awatch("m"):
                mine.append(generation)

        async def all_see(generations: list[int]) -> None:
            while any(mine != generations for mine in seen):
                await asyncio.sleep(0.001)

        following = [asyncio.create_task(follow(mine)) for mine in seen]
        made = [await asyncio.to_thread(put, 1)]
        await all_see(made)
        await asyncio.to_thread(daemon.stop)
        other = await asyncio.to_thread(Daemon, folder)
        try:
            for value in (2, 3):
                made.append(await asyncio.to_thread(put, value))
                await all_see(made)
            assert made == [1, 1, 2]
        finally:
            for task in following:
                task.cancel()
            await asyncio.gather(*following, return_exceptions=True)
            await asyncio.to_thread(other.stop)

    streamerd.status()  # by the process's own connection, which stays
    files = open_files()
    asyncio.run(asyncio.wait_for(main(), 60))
    eventually(lambda: open_files() <= files)


def test_a_task_that_is_cancelled_does_not_wait_for_a_daemon_that_is_stopped(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = threading.Event()
    asked = threading.Event()
    look = _watch._Watch.look

    def looked(watched: _watch._Watch) -> int | None:
        daemon.process.send_signal(signal.SIGSTOP)
        asked.set()
        try:
            return look(watched)
        finally:
            ended.set()

    monkeypatch.setattr(_watch._Watch, "look", looked)

    async def main() -> None:
        task: asyncio.Task[int] = asyncio.ensure_future(anext(streamerd.awatch("m")))  # type: ignore[arg-type]
        while not asked.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    streamerd.status()
    files = open_files()
    try:
        asyncio.run(main())
        assert not ended.is_set()
    finally:
        daemon.process.send_signal(signal.SIGCONT)
    assert ended.wait(30)
    eventually(lambda: open_files() <= files)
