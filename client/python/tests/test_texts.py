# SPDX-License-Identifier: Apache-2.0
"""Texts and durations on their way to the C library: neither is cut or wrapped without a word."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checkpoints import small, write
from conftest import Daemon

import streamerd
from streamerd._option_values import KEEP_ALIVE_MS_MAX, TIMEOUT_MS_MAX, milliseconds
from streamerd._safetensors import short_name

CUT = "layer.0.weight\0.gone"


@pytest.fixture
def model(folder: Path, daemon: Daemon) -> Any:
    write(folder / "m.safetensors", small())
    (folder / "config.json").write_text("{}")
    return streamerd.open(folder / "m.safetensors", framework="numpy")


def refuses(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="embedded null"):
        call()


def test_a_text_with_a_nul_names_nothing(folder: Path, model: Any) -> None:
    path = str(folder / "m.safetensors")

    def opened(source: str = path, **options: Any) -> object:
        return streamerd.open(source, framework="numpy", **options)

    for call in (
        lambda: opened(path + "\0.gone"),
        lambda: opened(name="x\0y"),
        lambda: opened(device="host\0x"),
        lambda: opened(pattern="x\0y"),
        lambda: opened(socket=os.environ["STREAMERD_SOCKET"] + "\0"),
        lambda: asyncio.run(streamerd.aopen(path + "\0.gone", framework="numpy")),
        lambda: streamerd.fetch(folder, "config.json\0.x"),
        lambda: streamerd.fetch(f"{folder}\0", "config.json"),
        lambda: streamerd.fetch_list(f"{folder}\0"),
        lambda: streamerd.status(socket=os.environ["STREAMERD_SOCKET"] + "\0"),
        lambda: model[CUT],
        lambda: model.get_tensor(CUT),
        lambda: model.get_slice(CUT),
        lambda: model.info(CUT),
        lambda: model.raw(CUT),
        lambda: streamerd.safe_open(path + "\0", "np"),
        lambda: streamerd.load_file(path + "\0", framework="np"),
        lambda: streamerd.safe_open(path, "np").get_tensor(CUT),
        lambda: streamerd.safe_open(path, "np").get_slice(CUT),
    ):
        refuses(call)
    assert CUT not in model
    assert "layer.0.weight" in model


def test_a_key_or_a_module_with_a_nul_is_not_published(daemon: Daemon) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)
    for name, options in (
        ("m\0x", {"key": {"a": "1"}}),
        ("m", {"key": {"a\0": "1"}}),
        ("m", {"key": {"a": "1\0"}}),
        ("m", {"key": {"a": "1"}, "base": "/x\0"}),
        ("m", {"key": {"a": "1"}, "device": "host\0"}),
    ):
        refuses(lambda name=name, options=options: streamerd.publish(module, name, **options))  # type: ignore[misc]
        refuses(lambda name=name, options=options: streamerd.load_into(module, name, **options))  # type: ignore[misc]
    module.register_buffer("b\0x", torch.zeros(1))
    refuses(lambda: streamerd.publish(module, "m", key={"a": "1"}))
    assert not daemon.leases()


def test_milliseconds_are_within_what_the_library_takes() -> None:
    assert [milliseconds(s) for s in (0, 1e-9, 0.0015, 30)] == [1, 1, 2, 30_000]
    for endless in (2**31 / 1000, 4294967.8, 1e18, 1e308):
        assert milliseconds(endless) == TIMEOUT_MS_MAX
        assert milliseconds(endless, KEEP_ALIVE_MS_MAX) <= KEEP_ALIVE_MS_MAX


ENDLESS = (4294967.8, 2**64 / 1000 + 0.5, 1e300)


@pytest.mark.parametrize("timeout", ENDLESS)
def test_a_timeout_that_an_int_cannot_hold_is_long(
    folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch, timeout: float
) -> None:
    write(folder / "m.safetensors", small())
    given: list[int] = []

    class Client(streamerd._client.Client):
        def __init__(self, socket: str | None = None, flags: int = 0, connect_ms: int = 0) -> None:
            given.append(connect_ms)
            super().__init__(socket, flags, connect_ms)

    monkeypatch.setattr(streamerd._client, "Client", Client)
    with streamerd.open(folder / "m.safetensors", framework="numpy", timeout=timeout, keep_alive=timeout) as model:
        model.wait(timeout)
        assert len(model) == 4
    assert given == [TIMEOUT_MS_MAX]


@pytest.mark.parametrize("timeout", ENDLESS)
def test_long_timeouts_of_publishing(daemon: Daemon, timeout: float) -> None:
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)
    streamerd.publish(module, "m", key={"a": "1"}, timeout=timeout)
    streamerd.load_into(torch.nn.Linear(2, 2), "m", key={"a": "1"}, timeout=timeout)
    for wrong in (-1, "soon", float("nan")):
        with pytest.raises(streamerd.InvalidError, match="timeout: .* is not a duration"):
            streamerd.publish(module, "n", key={"a": "1"}, timeout=wrong)


def test_a_wait_takes_a_duration(model: Any) -> None:
    model.wait("30s")
    for wrong in (-1, "soon", float("nan")):
        with pytest.raises(streamerd.InvalidError, match="timeout: .* is not a duration"):
            model.wait(wrong)


def test_a_call_is_made_where_no_thread_can_be_started(
    folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the interpreter shuts down."""
    (folder / "config.json").write_text("{}")

    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(streamerd._client._thread, "start_new_thread", refuse)
    assert streamerd.fetch(folder, "config.json") == b"{}"


def test_a_path_that_is_not_utf8_is_shown(folder: Path, daemon: Daemon) -> None:
    with pytest.raises(streamerd.InvalidError, match=r"lat.*udce9.*not valid UTF-8"):
        streamerd.open(f"{folder}/lat\udce9n/m.safetensors", framework="numpy")


def test_a_long_path_is_a_short_name() -> None:
    long = "/a" * 1000 + "/m.safetensors"
    name = short_name(long)
    assert len(name) <= 1024 and name.endswith("/m.safetensors")
    assert name != short_name("/b" + long[2:])
    assert short_name("/m.safetensors") == "/m.safetensors"


def test_bytes_are_no_text(daemon: Daemon) -> None:
    with pytest.raises(TypeError, match="a text is expected, not bytes"):
        streamerd.open(b"m")  # type: ignore[arg-type]
