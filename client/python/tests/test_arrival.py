# SPDX-License-Identifier: Apache-2.0
"""A model that loads while it is used, and the errors of one that cannot be loaded."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small, write
from conftest import Daemon, eventually, in_child
from slow_server import SlowServer

import streamerd

MEBIBYTE = [("a", "U8", [1 << 20]), ("b", "U8", [1 << 20]), ("c", "U8", [1 << 20])]


def test_tensors_come_in_order_of_arrival(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)
    with streamerd.open(url) as model:
        tensors = model.stream()
        slow_server.wait_until_held()
        assert len(model) == 3 and "c" in model
        with pytest.raises(streamerd.TimedOutError, match="the load continues"):
            model.wait(timeout=0.2)
        slow_server.release()
        assert {name for name, _ in tensors} == {"a", "b", "c"}
        assert [name for name, _ in model.stream()] == [name for name, _ in model.stream()]


def test_a_tensor_by_name_waits_for_its_arrival(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)
    with streamerd.open(url) as model:
        slow_server.wait_until_held()
        threading.Thread(target=slow_server.release).start()
        assert model["c"].shape == (1 << 20,)


def test_a_timeout_leaves_the_load_to_the_daemon(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)
    with pytest.raises(TimeoutError, match="not loaded in the given time"):
        streamerd.open(url, timeout=0.3, ready=True)
    eventually(lambda: not daemon.leases())
    slow_server.release()
    with streamerd.open("m", ready=True) as model:
        assert len(dict(model)) == 3


def test_the_event_loop_runs_while_a_model_loads(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)

    async def use() -> list[str]:
        async with await streamerd.aopen(url) as model:
            await asyncio.to_thread(slow_server.wait_until_held)
            waiting = asyncio.ensure_future(model.wait_async())
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
            slow_server.release()
            await waiting
            return sorted([name async for name, _ in model.stream_async()])

    assert asyncio.run(use()) == ["a", "b", "c"]
    eventually(lambda: not daemon.leases())


def test_what_aopen_returns_is_a_coroutine_and_a_context_manager(folder: Path, daemon: Daemon) -> None:
    write(folder / "m.safetensors", small())

    def opening() -> Any:
        return streamerd.aopen(folder / "m.safetensors", framework="numpy")

    async def use() -> list[int]:
        counts = []
        async with opening() as model:
            counts.append(len([name async for name, _ in model.stream_async()]))
        assert model.closed
        async with await opening() as model:
            await model.wait_async()
            counts.append(len(dict(model)))
        for model in await asyncio.gather(opening(), asyncio.create_task(opening()), asyncio.wait_for(opening(), 60)):
            counts.append(len(model))
            model.close()
        with pytest.raises(streamerd.NotFoundError):
            async with streamerd.aopen("nosuch", framework="numpy"):
                pass
        return counts

    assert asyncio.run(use()) == [4] * 5
    with asyncio.run(opening()) as model:
        assert len(model) == 4
    eventually(lambda: not daemon.leases())


def test_a_cancelled_task_leaves_no_lease(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)

    async def use() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(streamerd.aopen(url, ready=True), 0.3)

    asyncio.run(use())


def test_the_tasks_of_a_closed_loop_are_forgotten(slow_server: SlowServer, daemon: Daemon) -> None:
    """Nothing of the package refers to a loop that was closed while its tasks waited."""
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[None]:
        model = await streamerd.aopen(url, framework="numpy")
        waiting = asyncio.ensure_future(model.wait_async())
        await asyncio.sleep(0)  # the task waits
        return waiting

    waiting = loop.run_until_complete(begin())
    assert not waiting.done()
    loop.close()
    slow_server.release()

    async def use() -> None:
        async with await streamerd.aopen(url, framework="numpy") as model:
            await model.wait_async()

    asyncio.run(use())
    assert not streamerd._aio._waiting
    reference = weakref.ref(loop)
    del loop, waiting
    gc.collect()
    assert reference() is None
    eventually(lambda: not daemon.leases())


def test_a_progress_bar_shows_the_bytes(
    daemon: Daemon, slow_server: SlowServer, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tqdm")
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)
    with streamerd.open(url, progress=True) as model:
        slow_server.wait_until_held()
        with pytest.raises(streamerd.TimedOutError):
            model.wait(timeout=0.3)
        slow_server.release()
        model.wait()
    assert "/3.00M" in capsys.readouterr().err


# ---- errors say what to do ----


def test_no_daemon(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConnectionError, match="start streamerd, set STREAMERD_SOCKET, or leave autostart on"):
        streamerd.open("m", autostart=False)
    monkeypatch.setenv("STREAMERD_AUTOSTART", "0")
    with pytest.raises(streamerd.UnreachableError):
        streamerd.open("m")
    with pytest.raises(streamerd.UnreachableError, match="no/such/socket"):
        streamerd.open("m", socket="/no/such/socket")


def test_no_permission_for_the_socket(daemon: Daemon) -> None:
    os.chmod(daemon.socket, 0)

    def child() -> None:
        if os.geteuid() == 0:
            os.seteuid(65534)
        with pytest.raises(PermissionError, match="ask to be added to the socket's group"):
            streamerd.open("m")

    assert in_child(child) == 0


def test_wrong_digest(folder: Path, daemon: Daemon) -> None:
    write(folder / "m.safetensors", small())
    with pytest.raises(streamerd.DigestError, match="digest"):
        streamerd.open(folder / "m.safetensors", digest="0" * 32)


def test_wrong_format(folder: Path, daemon: Daemon) -> None:
    (folder / "m.safetensors").write_bytes(b"PK\x03\x04 this is not a safetensors file" * 10)
    with pytest.raises(streamerd.FailedError, match="not a safetensors file: .*m.safetensors"):
        streamerd.open(folder / "m.safetensors", ready=True)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(streamerd.FailedError, match="not a safetensors file: .*config.json"):
        streamerd.open(folder / "config.json", ready=True)


def test_outside_the_roots(daemon: Daemon) -> None:
    with pytest.raises(streamerd.Error, match="roots"):
        streamerd.open("/etc/passwd", ready=True)


def test_no_such_things(folder: Path, daemon: Daemon) -> None:
    with pytest.raises(FileNotFoundError, match="nosuch"):
        streamerd.open(folder / "nosuch.safetensors", ready=True)
    with pytest.raises(FileNotFoundError, match="nosuchmodel: no file .*nosuchmodel, no resident model of that name"):
        streamerd.open("nosuchmodel")
    write(folder / "m.safetensors", small())
    with streamerd.open(folder / "m.safetensors") as model, pytest.raises(KeyError, match="no tensor 'x'"):
        model["x"]


def test_wrong_arguments(folder: Path, daemon: Daemon) -> None:
    with pytest.raises(TypeError, match="no option 'devise'; did you mean 'device'"):
        streamerd.open("m", devise="cpu")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="use 'torch' or 'numpy'"):
        streamerd.open("m", framework="jax")


def test_what_was_looked_for_and_what_was_meant(
    folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("HOME", str(folder))
    (folder / "hub" / "models--Qwen--Qwen3-8B").mkdir(parents=True)
    write(folder / "model.safetensors", small())
    streamerd.open("~/model.safetensors", name="resident", framework="numpy").close()
    (folder / "solitary.safetensors").write_bytes(b"no model")
    with pytest.raises(streamerd.FailedError):
        streamerd.open("./solitary.safetensors", name="failedmodel", ready=True)
    for source, parts in (
        ("modle.safetensors", [f"no file {folder}/modle.safetensors", "did you mean 'model.safetensors'", "or ./"]),
        ("failedmodle", ["no resident model of that name (a path begins", "hf://failedmodle"]),
        ("residnet.safetensors", ["did you mean 'resident'"]),
        ("residnet", ["no resident model", "did you mean 'resident'"]),
        ("Qwen/Qwen3", [f"Hugging Face cache {folder}/hub", "did you mean 'Qwen/Qwen3-8B'", "hf://Qwen/Qwen3"]),
    ):
        with pytest.raises(FileNotFoundError) as caught:
            streamerd.open(source, framework="numpy")
        assert all(part in str(caught.value) for part in parts), caught.value


def test_names_differ_as_the_library_says() -> None:
    """The rule of the library."""
    from streamerd._nearest import nearest

    assert nearest("ab", ["abc", "xb"]) is None
    assert nearest("witnes", ["other", "witness"]) == "witness"
    assert nearest("modle.safetensors", ["x", "model"]) == "model"
    assert nearest("model", []) is None
    assert nearest("x" * 100, ["x" * 100]) is None


@pytest.mark.parametrize(
    "options",
    [
        {"keep_alive": "soon"}, {"keep_alive": -1}, {"keep_alive": float("nan")}, {"timeout": -1}, {"timeout": "1y"},
        {"priority": 0}, {"priority": "high"}, {"digest": "abc"}, {"digest": 7}, {"verify": "md5"}, {"layout": "rows"},
        {"name": ""}, {"pattern": 1}, {"pin": "no"}, {"wait": 1}, {"evict": "false"}, {"shared": 0}, {"ready": "yes"},
        {"autostart": "no"}, {"progress": "no"},
    ],
)  # fmt: skip
def test_a_wrong_option_is_named(daemon: Daemon, options: Any) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name}: "):
        streamerd.open("m", framework="numpy", **options)


def test_flags_of_other_calls_are_checked(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="^autostart: 'no'"):
        streamerd.status(autostart="no")  # type: ignore[arg-type]


@pytest.mark.parametrize(("text", "seconds"), [("1.5h", 5400), ("1d", 86400), ("250ms", 0.25), (90, 90)])
def test_durations_have_units(folder: Path, daemon: Daemon, text: Any, seconds: float) -> None:
    write(folder / "m.safetensors", small())
    path = folder / "m.safetensors"
    with streamerd.open(path, framework="numpy", keep_alive=text, timeout="20s", priority=1, evict=None) as model:
        assert daemon._client.call("list")["models"][0]["keep_alive_ns"] == seconds * 10**9
        with pytest.raises(TypeError, match="not by 0"):
            model[0]  # type: ignore[index]


def test_a_load_that_is_not_admitted_says_so_once(
    folder: Path,
    slow_server: SlowServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("streamerd._open.ADMISSION_LOG_SECONDS", 0.0)
    daemon = Daemon(folder, more="limits: {loads: 1}")
    monkeypatch.setenv("STREAMERD_SOCKET", daemon.socket)
    write(folder / "m.safetensors", small())
    with streamerd.open(slow_server.serve("slow.safetensors", MEBIBYTE, first=1)):
        slow_server.wait_until_held()
        with pytest.raises(streamerd.LimitError, match="1 loads are running"):
            streamerd.open(folder / "m.safetensors", timeout=0.5)
    daemon.stop()
    (text,) = [r.getMessage() for r in caplog.records if "waits" in r.getMessage()]
    assert "m.safetensors: waits until the daemon admits another load: 1 loads are running or waiting" in text


@pytest.mark.parametrize("device", ["cpu", "host", "cpu:0", torch.device("cpu"), torch.device("cpu:0")])
def test_both_words_for_the_host_are_known(folder: Path, daemon: Daemon, device: Any) -> None:
    write(folder / "m.safetensors", small())
    with streamerd.open(folder / "m.safetensors", device=device) as model:
        assert len(dict(model)) == 4


def test_an_error_is_of_the_call_that_failed(folder: Path, daemon: Daemon) -> None:
    with pytest.raises(streamerd.UnreachableError):
        streamerd.open("m", socket="/no/such/socket")
    write(folder / "m.safetensors", [("odd", "F4", [4])])
    with streamerd.open(folder / "m.safetensors") as model:
        tensor = model._struct("odd")[1]
        tensor.rank = 0
        with pytest.raises(streamerd.UnsupportedError, match="last dimension of F4"):
            model._views.view(model._client.handle, model._held(), tensor)


def test_standard_error_may_be_absent(folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "m.safetensors", small())
    monkeypatch.setattr("sys.stderr", None)
    for progress in (None, True):
        with streamerd.open(folder / "m.safetensors", framework="numpy", progress=progress) as model:
            model.wait()


def test_insufficient_memory(folder: Path, daemon: Daemon) -> None:
    path = folder / "large.safetensors"
    size = 2 << 30
    text = b'{"a":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(path, 8 + len(text) + size)
    with pytest.raises(MemoryError):
        streamerd.open(path, ready=True)


def test_a_failed_load_is_reported_to_the_iterator(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("m.safetensors", MEBIBYTE, first=1)
    with streamerd.open(url) as model:
        slow_server.wait_until_held()
        daemon.ctl("cancel", "m")
        with pytest.raises(streamerd.CancelledError):
            list(model.stream())


def test_what_has_arrived_of_a_load_that_fails_is_right_and_the_rest_fails(
    daemon: Daemon, slow_server: SlowServer
) -> None:
    """A reader that does not wait() for the model."""
    blocks = [(name, "U8", [8 << 20]) for name in "abc"]
    url = slow_server.serve("m.safetensors", blocks, first=1)
    expected = slow_server.contents("m.safetensors")
    with streamerd.open(url, framework="numpy") as model:
        tensors = model.stream()
        name, early = next(tensors)
        assert bytes(early) == expected[name]
        slow_server.wait_until_held()
        daemon.ctl("cancel", "m")
        with pytest.raises(streamerd.CancelledError):
            next(tensors)
        assert bytes(early) == bytes(model[name]) == expected[name]
        for other in expected.keys() - {name}:
            with pytest.raises(streamerd.CancelledError):
                model[other]


def test_the_types_of_errors_are_the_table_in_the_docs() -> None:
    page = Path(__file__).parents[3] / "docs" / "errors.md"
    rows = [line.split("|") for line in page.read_text().splitlines() if "`STREAMER_E" in line and line.startswith("|")]
    codes = {int(row[3]) for row in rows} - {-9}
    names = (getattr(streamerd, name) for name in streamerd.__all__)
    kinds = [kind for kind in names if isinstance(kind, type) and issubclass(kind, streamerd.Error)]
    assert {kind.code for kind in kinds} - {0} == codes
