# SPDX-License-Identifier: Apache-2.0
"""Tensors of a process become generations of a model; others watch them, and take them in place."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from checkpoints import small, write
from conftest import Daemon, eventually, in_child
from torch import nn

import streamerd
from streamerd import _put

BF16 = torch.bfloat16


def tensors(step: float = 0) -> dict[str, torch.Tensor]:
    return {
        "plain": torch.arange(12, dtype=torch.float32).reshape(3, 4) + step,
        "transposed": torch.randn(5, 7).t() + step,
        "half": torch.full((2, 2), 1.5 + step, dtype=BF16),
        "scalar": torch.tensor(3 + step, dtype=torch.float64),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
        "eight": torch.tensor([1.0, -2.0]).to(torch.float8_e4m3fn),
        "four": torch.tensor([[0x12, 0xF7, 0x00], [0x89, 3, 4]], dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "phase": torch.randn(3, dtype=torch.complex64).conj(),
    }


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.dtype in (torch.float8_e4m3fn, torch.float4_e2m1fn_x2):
        a, b = a.view(torch.uint8), b.view(torch.uint8)
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.resolve_conj(), b.resolve_conj())


# ---- put ----


def test_a_model_of_these_tensors_is_made(daemon: Daemon) -> None:
    given = tensors()
    with streamerd.put(given, "m", metadata={"step": "1", "quoted": '"é"'}) as model:
        assert model.name == "m" and model.metadata == {"step": "1", "quoted": '"é"'}
        assert set(model) == set(given)
        assert all(same(model[name], tensor) for name, tensor in given.items())
        with streamerd.open("m") as other:
            assert other.digest == model.digest and other.generation == model.generation
            assert all(same(other[name], tensor) for name, tensor in given.items())
            assert other.metadata == model.metadata
            infos = {info.name: (info.dtype, info.shape, info.nbytes) for info in other.infos()}
            assert infos["half"] == ("BF16", (2, 2), 8) and infos["four"] == ("F4", (2, 6), 6)
    del model, other
    eventually(lambda: not daemon.leases())


def test_the_digest_is_that_of_a_file_of_the_same_tensors(daemon: Daemon, folder: Path) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    given = {name: tensor.contiguous() for name, tensor in tensors().items() if name != "phase"}
    safetensors.save_file(given, folder / "f.safetensors")
    with streamerd.open(folder / "f.safetensors") as file, streamerd.put(given, "m") as model:
        assert model.digest == file.digest


def test_arrays_of_numpy(daemon: Daemon) -> None:
    given = {"a": numpy.arange(6, dtype="<i2").reshape(2, 3), "b": numpy.arange(4, dtype=">f8")[::2], "c": numpy.float32(2)}
    model = streamerd.put(given.items(), "m")
    assert model["a"].dtype == numpy.int16 and (model["a"] == given["a"]).all()
    assert model["b"].dtype == numpy.float64 and (model["b"] == [0, 2]).all()
    assert model["c"] == 2 and not model["a"].flags.writeable
    with streamerd.open("m", framework="torch") as other:
        assert torch.equal(other["b"], torch.tensor([0.0, 2.0], dtype=torch.float64))


def test_each_call_is_a_new_generation_and_readers_keep_theirs(daemon: Daemon) -> None:
    first = streamerd.put(tensors(1), "m")
    second = streamerd.put(tensors(2), "m")
    assert second.generation > first.generation
    assert first["scalar"] == 4 and second["scalar"] == 5
    with streamerd.open("m") as other:
        assert other["scalar"] == 5


def test_what_was_put_is_not_changed_by_later_writes(daemon: Daemon) -> None:
    given = {"w": torch.ones(4)}
    model = streamerd.put(given, "m")
    given["w"].zero_()
    model["w"][0] = 7
    with streamerd.open("m") as other:
        assert torch.equal(other["w"], torch.ones(4))


def test_a_third_generation_fails_by_name_or_waits_for_the_readers(daemon: Daemon) -> None:
    held = [streamerd.put(tensors(step), "m") for step in range(2)]
    with pytest.raises(streamerd.LimitError, match=rf"2 generations .*publish.keep: 2.*generation {held[0].generation} has 1 lease"):
        streamerd.put(tensors(2), "m")
    with pytest.raises(streamerd.TimedOutError, match="not admitted in the given time: .*publish.keep"):
        streamerd.put(tensors(2), "m", wait=True, timeout=3)
    made: list[Any] = []
    thread = threading.Thread(target=lambda: made.append(streamerd.put(tensors(2), "m", wait=True)))
    thread.start()
    assert not made
    held.clear()
    thread.join(30)
    assert made[0]["scalar"] == 5


def test_a_timeout_names_the_process_that_publishes(daemon: Daemon) -> None:
    """And not the daemon, which is well."""
    begun, end = threading.Event(), threading.Event()

    def values() -> Iterator[torch.Tensor]:
        begun.set()
        assert end.wait(60)
        yield torch.ones(2)

    part = _put.part_of("w", torch.ones(2))
    thread = threading.Thread(target=lambda: _put.put_parts([part], values(), "m"))
    thread.start()
    assert begun.wait(30)
    why = f"^m: process {os.getpid()} is still publishing it$"
    module = nn.Linear(2, 2)
    with pytest.raises(streamerd.TimedOutError, match=why):
        streamerd.put(tensors(), "m", wait=True, timeout=0.1)
    with pytest.raises(streamerd.TimedOutError, match=why):
        streamerd.open("m", timeout=0.1)
    with pytest.raises(streamerd.TimedOutError, match=why):
        streamerd.publish(module, "m", key={}, timeout=0.1)
    with pytest.raises(streamerd.TimedOutError, match=why):
        streamerd.load_into(module, "m", key={}, timeout=0.1)
    with pytest.raises(streamerd.BusyError, match=why):
        streamerd.put(tensors(), "m")
    end.set()
    thread.join(30)
    assert streamerd.open("m")["w"][0] == 1


@pytest.mark.parametrize("wait", [False, True])
def test_a_model_that_does_not_fit_fails_by_name(daemon: Daemon, wait: bool) -> None:
    """Also where it would wait: no memory that is freed suffices."""
    with pytest.raises(streamerd.OutOfMemoryError, match="more than the whole budget"):
        streamerd.put({"w": torch.empty(2 << 30, dtype=torch.uint8)}, "m", wait=wait, timeout=60)
    assert streamerd.put(tensors(), "m")["scalar"] == 3


BIG = 40 << 20


@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("is_read", [False, True])
def test_a_budget_without_memory_for_two_generations_fails_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch, wait: bool, is_read: bool
) -> None:
    """Also where it would wait: the generation that serves is not dropped before the next one is ready."""
    daemon = Daemon(folder, memory="64MiB")
    monkeypatch.setenv("STREAMERD_SOCKET", daemon.socket)
    try:
        first = streamerd.put({"w": torch.ones(BIG, dtype=torch.uint8)}, "m")
        generation = first.generation
        if not is_read:
            del first
            eventually(lambda: not daemon.leases())
        text = r"two generations do not fit: 4\d.0 MiB needed beside 4\d.0 MiB .*budget is 64.0 MiB, .*unload m first"
        with pytest.raises(streamerd.OutOfMemoryError, match=text):
            streamerd.put({"w": torch.ones(BIG, dtype=torch.uint8)}, "m", wait=wait)
        with streamerd.open("m") as model:
            assert model.generation == generation
    finally:
        daemon.stop()


def test_metadata_and_names_may_be_long(daemon: Daemon) -> None:
    """The table that describes the tensors has a limit of 256 MiB, whatever the tensors are."""
    metadata = {f"text {i}": "x" * 65536 for i in range(40)}
    names = [f"{i} " + "y" * 65000 for i in range(20)]
    model = streamerd.put({name: torch.ones(1) for name in names}, "m", metadata=metadata)
    assert model.metadata == metadata and sorted(model) == sorted(names)


def test_many_generations_leave_no_memory_and_no_lease(daemon: Daemon) -> None:
    def used() -> int:
        result: int = streamerd.status()["devices"][0]["used"]
        return result

    streamerd.put(tensors(), "m")
    eventually(lambda: not daemon.leases())
    one = used()
    for step in range(50):
        streamerd.put(tensors(step), "m")
    eventually(lambda: not daemon.leases() and used() == one)


def freed() -> torch.Tensor:
    tensor = torch.ones(2)
    tensor.untyped_storage().resize_(0)
    return tensor


def refused() -> Iterator[tuple[Any, dict[str, str], type[Exception], str]]:
    w = torch.ones(2)
    yield {"w": torch.ones(2, dtype=torch.complex128)}, {}, streamerd.UnsupportedError, "w: safetensors has no dtype for complex128"
    yield {"w": torch.ones(2, 2).to_sparse()}, {}, streamerd.UnsupportedError, "w has no plain memory"
    yield {"w": torch.empty(2, device="meta")}, {}, streamerd.InvalidError, "w is on the meta device"
    yield {"w": [1, 2]}, {}, streamerd.InvalidError, "w: a tensor of torch or numpy is needed, not list"
    yield {3: w}, {}, streamerd.InvalidError, "a tensor is named by a text, not by 3"
    yield [("w", w), ("w", w)], {}, streamerd.InvalidError, "two tensors are named 'w'"
    yield {"streamerd.table": w}, {}, streamerd.InvalidError, "names that begin with 'streamerd.' are the daemon's"
    yield {"w": w}, {"streamerd.key.x": "1"}, streamerd.InvalidError, "names that begin with 'streamerd.' are the daemon's"
    yield {"w": w}, {"x\0": "1"}, streamerd.InvalidError, "embedded null byte"
    yield {"w": w}, {"x": "\udce9"}, streamerd.InvalidError, "not valid UTF-8"
    yield {"w": w}, [("x", "1")], streamerd.InvalidError, "metadata: it maps names to texts, and is no list"  # type: ignore[misc]
    yield {"w\0": w}, {}, streamerd.InvalidError, "embedded null byte"
    yield {"w" * 65537: w}, {}, streamerd.InvalidError, "a text has 65536 bytes at most"
    yield nn.Linear(2, 2), {}, streamerd.InvalidError, "a mapping of names to tensors, or pairs, are needed, not Linear"
    yield [w], {}, streamerd.InvalidError, "pairs of a name and a tensor are needed, not Tensor"
    yield {"w": numpy.ma.masked_array([1.0, 2.0], [True, False])}, {}, streamerd.UnsupportedError, "w is a masked array"
    yield {"w": numpy.array(["x"])}, {}, streamerd.UnsupportedError, "w: safetensors has no dtype for str"
    yield {"w": nn.UninitializedParameter()}, {}, streamerd.UnsupportedError, "w has no plain memory"
    yield {"w": freed()}, {}, streamerd.InvalidError, "w has no memory: it was freed"
    yield {"w": w}, {"x": "y" * 65537}, streamerd.InvalidError, "a text has 65536 bytes at most"


@pytest.mark.parametrize("given, metadata, kind, text", list(refused()))
def test_what_cannot_be_put_is_named(
    daemon: Daemon, given: Any, metadata: dict[str, str], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        streamerd.put(given, "m", metadata=metadata)
    assert streamerd.put({"w": torch.ones(2)}, "m", metadata={"x": "y" * 65536})["w"][1] == 1


def test_strided_tensors_of_every_dtype_are_copied(daemon: Daemon) -> None:
    four = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    given = {
        "four": four.t(),
        "eight": torch.randn(3, 4).to(torch.float8_e4m3fn).t(),
        "sixteen": torch.arange(12).to(torch.uint16).reshape(3, 4).t(),
        "complex": torch.randn(3, 4, dtype=torch.complex64).t().conj(),
        "negated": torch.randn(3, 4, dtype=torch.complex64).conj().imag,
        "expanded": torch.ones(3).expand(2, 3),
        "steps": torch.arange(20.0)[::3],
    }
    model = streamerd.put(given, "m")
    for name, tensor in given.items():
        expected, bits = tensor.resolve_conj().resolve_neg(), torch.uint8
        assert model[name].shape == tensor.shape and model[name].dtype == tensor.dtype
        if tensor.element_size() == 1:
            assert torch.equal(model[name].view(bits), expected.view(bits)), name
        else:
            assert torch.equal(model[name], expected), name


class Raising(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.Tensor.detach:
            raise OSError("no tensor")
        return super().__torch_function__(function, kinds, arguments, keywords or {})


def test_a_tensor_that_cannot_be_copied_is_named_and_the_name_is_free(daemon: Daemon) -> None:
    given = {"a": torch.ones(2), "b": torch.ones(2).as_subclass(Raising)}
    with pytest.raises(streamerd.FailedError, match="put: b: it cannot be copied: no tensor"):
        streamerd.put(given, "m")
    assert streamerd.put({"a": torch.ones(2)}, "m")["a"][1] == 1
    eventually(lambda: not daemon.leases())


INTERRUPTED = """
import signal, time
import torch, streamerd
signal.signal(signal.SIGALRM, signal.default_int_handler)
given = {"w": torch.ones(64 << 20, dtype=torch.uint8)}
streamerd.put(given, "m")
interrupted = 0
for i in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 * (1 + i))
        streamerd.put(given, "m", wait=True)
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
assert interrupted > 0
assert streamerd.put(given, "m", wait=True)["w"].all()
"""


def test_an_interrupt_ends_no_copy_whose_memory_is_then_unmapped(daemon: Daemon) -> None:
    result = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    eventually(lambda: not daemon.leases())


def test_threads_put_one_name(daemon: Daemon) -> None:
    threads = [
        threading.Thread(target=lambda i=i: streamerd.put({"w": torch.full((4096,), i)}, "m", wait=True)) for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with streamerd.open("m") as model:
        w = model["w"]
        assert (w == w[0]).all()


def test_a_daemon_that_is_killed_while_tensors_are_copied(daemon: Daemon, folder: Path) -> None:
    parts = [_put.part_of(name, torch.ones(2)) for name in ("a", "b")]
    others: list[Daemon] = []

    def values(starts: bool) -> Iterator[torch.Tensor]:
        yield torch.ones(2)
        (others or [daemon])[-1].kill()
        if starts:
            others.append(Daemon(folder))
        yield torch.ones(2)

    try:
        with pytest.raises(streamerd.LostError, match="the publication with it"):
            _put.put_parts(parts, values(True), "m")
        assert streamerd.put({"a": torch.ones(2)}, "m")["a"][1] == 1
        with pytest.raises(streamerd.UnreachableError):
            _put.put_parts(parts, values(False), "m")
    finally:
        others[-1].stop()


def test_a_forked_child_puts_by_a_connection_of_its_own(daemon: Daemon) -> None:
    model = streamerd.put({"a": torch.ones(2)}, "m")
    assert in_child(lambda: streamerd.put({"a": torch.zeros(2)}, "m").close()) == 0
    assert model["a"][1] == 1
    with streamerd.open("m") as other:
        assert other["a"][1] == 0


def test_a_loaded_model_is_not_replaced(daemon: Daemon, folder: Path) -> None:
    write(folder / "m.safetensors", small())
    with streamerd.open(folder / "m.safetensors", name="m") as model:
        with pytest.raises(streamerd.BusyError, match="a model that was loaded has this name"):
            streamerd.put(tensors(), "m", wait=True)
        assert len(model) == 4


class Spread:
    """What torch's DTensor is to put(): its full contents are made when they are asked for."""

    def __init__(self, tensor: torch.Tensor, order: list[str], name: str) -> None:
        self.tensor, self.order, self.name = tensor, order, name

    def full_tensor(self) -> torch.Tensor:
        self.order.append(self.name)
        return self.tensor


def test_tensors_are_gathered_one_after_the_other_in_their_order(daemon: Daemon) -> None:
    given, order = {"b": torch.ones(2), "a": torch.zeros(3)}, []  # type: ignore[var-annotated]
    parts = [_put.part_of(name, tensor) for name, tensor in given.items()]
    values = (Spread(tensor, order, name) for name, tensor in given.items())
    model = _put.put_parts(parts, values, "m")
    assert order == ["b", "a"] and model["b"][1] == 1
    other = iter([torch.ones(3), torch.zeros(3)])
    with pytest.raises(streamerd.InvalidError, match=r"b: \[2\] of float32 was announced, not \[3\] of float32"):
        _put.put_parts(parts, other, "m")


# ---- in place ----


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 4)
        self.head = nn.Linear(4, 6, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mean", torch.zeros(3))


def test_a_generation_is_copied_into_the_parameters_that_the_module_has(daemon: Daemon) -> None:
    module, other = Tied(), Tied()
    before = {name: (tensor, tensor.data_ptr()) for name, tensor in other.state_dict(keep_vars=True).items()}
    generation = streamerd.put(module.state_dict(), "m").generation
    assert streamerd.load_into(other, "m", generation=generation) == ([], [])
    for name, tensor in other.state_dict(keep_vars=True).items():
        assert tensor is before[name][0] and tensor.data_ptr() == before[name][1]
        assert torch.equal(tensor, module.state_dict()[name])
    assert other.head.weight is other.embedding.weight
    eventually(lambda: not daemon.leases())


def test_tied_parameters_need_one_of_their_names_and_other_dtypes_are_converted(daemon: Daemon) -> None:
    module = Tied().to(BF16)
    generation = streamerd.put({"embedding.weight": torch.ones(6, 4), "mean": torch.ones(3)}, "m").generation
    assert streamerd.load_into(module, "m", generation=generation) == ([], [])
    assert module.head.weight.dtype == BF16 and torch.equal(module.head.weight, torch.ones(6, 4, dtype=BF16))


@pytest.mark.parametrize(
    "given, text",
    [
        ({"embedding.weight": torch.ones(6, 5), "mean": torch.ones(3)}, r"embedding.weight: \[6, 5\] resident, \[6, 4\] in the module"),
        ({"mean": torch.ones(3)}, "missing in the checkpoint: .*embedding.weight"),
        ({"embedding.weight": torch.ones(6, 4), "mean": torch.ones(3), "x": torch.ones(1)}, r"not in the module: \['x'\]"),
    ],
)
def test_a_module_that_differs_is_left_as_it_was(daemon: Daemon, given: dict[str, torch.Tensor], text: str) -> None:
    module = Tied()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    generation = streamerd.put(given, "m").generation
    with pytest.raises(streamerd.InvalidError, match=text):
        streamerd.load_into(module, "m", generation=generation)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())


def test_a_module_without_memory_takes_no_contents(daemon: Daemon) -> None:
    with torch.device("meta"):
        module = nn.Linear(2, 2)
    generation = streamerd.put({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, "m").generation
    with pytest.raises(streamerd.InvalidError, match="load_into: weight is on the meta device"):
        streamerd.load_into(module, "m", generation=generation)


def test_a_generation_that_was_replaced_is_not_found(daemon: Daemon) -> None:
    generations = [streamerd.put(Tied().state_dict(), "m").generation for _ in range(2)]
    with pytest.raises(streamerd.NotFoundError, match=f"no generation {generations[0]}"):
        streamerd.load_into(Tied(), "m", generation=generations[0])


def test_the_model_is_found_by_its_name_whatever_else_has_it(daemon: Daemon, folder: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(folder)
    (folder / "m").mkdir()
    generation = streamerd.put({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, "m").generation
    module = nn.Linear(2, 2)
    streamerd.load_into(module, "m", generation=generation)
    assert module.bias[0] == 1


@pytest.mark.parametrize(
    "options, text",
    [
        ({"generation": 0}, "generation: 0 is no number of a generation"),
        ({"generation": True}, "generation: True is no number"),
        ({"generation": "3"}, "generation: '3' is no number"),
        ({"generation": 3, "digest": "x"}, "is not a digest of 32 hexadecimal digits"),
        ({"source": Path("m"), "generation": 3}, "with a generation the source is the name of a resident model"),
        ({"generation": 3, "pin": True}, "load_into: a generation has no option pin"),
    ],
)
def test_options_of_a_generation_are_checked(daemon: Daemon, options: dict[str, Any], text: str) -> None:
    with pytest.raises(streamerd.InvalidError, match=text):
        streamerd.load_into(Tied(), **{"source": "m", **options})
