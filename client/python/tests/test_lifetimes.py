# SPDX-License-Identifier: Apache-2.0
"""How long tensors, leases, connections and models live."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from checkpoints import small, write
from conftest import Daemon, eventually, in_child, interrupted, open_files
from slow_server import SlowServer

import streamerd


@pytest.fixture
def file(folder: Path, daemon: Daemon) -> Path:
    path = folder / "m.safetensors"
    write(path, small())
    return path


def test_the_lease_ends_with_the_model_and_its_last_tensor(file: Path, daemon: Daemon) -> None:
    with streamerd.open(file) as model:
        tensor = model["layer.0.weight"]
        values = tensor.clone()
    gc.collect()
    assert len(daemon.leases()) == 1
    assert torch.equal(tensor, values)
    part = tensor[1:]
    del tensor
    assert len(daemon.leases()) == 1
    del part
    eventually(lambda: not daemon.leases())


def test_a_model_that_is_dropped_ends_its_lease(file: Path, daemon: Daemon) -> None:
    model = streamerd.open(file)
    iterator = model.stream()
    next(iterator)
    del model, iterator
    eventually(lambda: not daemon.leases())


def test_a_closed_model_says_so(file: Path) -> None:
    model = streamerd.open(file)
    model.close()
    model.close()
    assert model.closed
    for call in (lambda: list(model), model.check, lambda: model["layer.0.weight"], lambda: next(model.stream())):
        with pytest.raises(streamerd.InvalidError, match="m: the model is closed"):
            call()


def is_revoked(model: streamerd.Model[torch.Tensor]) -> bool:
    """The daemon notifies holders of leases after it has answered the unload."""
    try:
        model.check()
    except streamerd.RevokedError:
        return True
    return False


def test_tensors_survive_a_forced_unload(file: Path, daemon: Daemon) -> None:
    with streamerd.open(file) as model:
        tensor = model["layer.0.weight"]
        values = tensor.clone()
        model.check()
        daemon.ctl("unload", "m", "--force")
        eventually(lambda: is_revoked(model))
        assert torch.equal(tensor, values)
        assert torch.equal(model["layer.0.weight"], values)


def test_tensors_survive_the_daemon(file: Path, daemon: Daemon) -> None:
    with streamerd.open(file) as model:
        tensor = model["layer.0.weight"]
        values = tensor.clone()
        daemon.kill()
        assert torch.equal(tensor, values)
        assert torch.equal(model["layer.1.weight"], model["layer.1.weight"])
        with pytest.raises((streamerd.UnreachableError, streamerd.LostError)):
            model.check()
    assert torch.equal(tensor, values)


def test_a_forked_child_reads_tensors_and_opens_models_of_its_own(file: Path, daemon: Daemon) -> None:
    model = streamerd.open(file)
    tensor = model["layer.0.weight"]
    values = tensor.clone()

    def child() -> None:
        assert torch.equal(tensor, values)
        with pytest.raises(streamerd.ForkedError, match="opened by the parent process"):
            list(model)
        assert repr(model) == "<streamerd.Model 'm', opened by the parent process>"
        model.close()
        with streamerd.open(file) as own:
            assert torch.equal(own["layer.0.weight"], values)

    assert in_child(child) == 0
    assert torch.equal(model["layer.0.weight"], values)
    model.check()


def test_threads_share_a_model(file: Path) -> None:
    failures: list[BaseException] = []

    def use(model: streamerd.Model[torch.Tensor]) -> None:
        try:
            for _ in range(50):
                assert len(dict(model)) == 4
                assert model["layer.3.weight"].shape == (4, 8)
        except BaseException as e:
            failures.append(e)

    with streamerd.open(file) as model:
        threads = [threading.Thread(target=use, args=(model,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


def test_closing_while_others_read_is_no_use_after_free(file: Path) -> None:
    for _ in range(50):
        model = streamerd.open(file)
        reader = threading.Thread(target=_read_until_closed, args=(model,))
        reader.start()
        model.close()
        reader.join()


def _read_until_closed(model: streamerd.Model[torch.Tensor]) -> None:
    try:
        while True:
            for _, tensor in model.stream():
                tensor.sum()
    except streamerd.InvalidError:
        pass


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_thousand_opens_leave_nothing(file: Path, daemon: Daemon) -> None:
    def open_once() -> None:
        with streamerd.open(file) as model:
            assert sum(tensor.numel() for _, tensor in model.stream()) == 4 * 32

    for _ in range(100):
        open_once()
    gc.collect()
    files, memory, mappings = open_files(), resident(), len(Path("/proc/self/maps").read_text().splitlines())
    for _ in range(1000):
        open_once()
    gc.collect()
    assert open_files() == files
    assert resident() - memory < 4 << 20
    assert len(Path("/proc/self/maps").read_text().splitlines()) <= mappings + 8
    eventually(lambda: not daemon.leases())


def test_an_interrupt_ends_a_wait_and_leaves_no_lease(folder: Path, daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("slow.safetensors", small(3))
    program = interrupted("streamerd.open(sys.argv[1]).wait()", url, slow_server)
    program.communicate("x")
    assert program.returncode == 0


def test_opening_a_resident_model_starts_no_thread(file: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    streamerd.open(file, framework="numpy", ready=True).close()
    started: list[object] = []
    monkeypatch.setattr("_thread.start_new_thread", lambda *arguments: started.append(arguments))
    with streamerd.open("m", framework="numpy") as model:
        assert len(model) == 4
    assert not started


def test_an_import_imports_no_other_module() -> None:
    program = "import sys; before = set(sys.modules); import streamerd; print(*sorted(set(sys.modules) - before))"
    printed = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert printed.split() == ["streamerd"]
