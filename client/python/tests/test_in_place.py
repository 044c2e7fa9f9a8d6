# SPDX-License-Identifier: Apache-2.0
"""load_into(generation=): a module takes the contents of a generation as a whole, or stays as it was, or the error says
that it is partly updated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Daemon, eventually
from safetensors.torch import save_file
from torch import nn

import streamerd

NAMES = ("a", "b", "c")


def module_of(b: Any, **others: torch.Tensor) -> nn.Module:
    """Its second buffer is the one that matters."""
    module = nn.Module()
    for name, tensor in {"a": torch.zeros(2, 3), "b": b, "c": torch.zeros(2, 3), **others}.items():
        module.register_buffer(name, tensor)
    return module


def ones(**others: torch.Tensor) -> dict[str, torch.Tensor]:
    return {**dict.fromkeys(NAMES, torch.ones(2, 3)), **others}


def in_inference_mode() -> torch.Tensor:
    with torch.inference_mode():
        return torch.zeros(2, 3)


def freed() -> torch.Tensor:
    """As FSDP leaves parameters that other processes have."""
    tensor = torch.zeros(2, 3)
    tensor.untyped_storage().resize_(0)
    return tensor


def of_another_kind() -> torch.Tensor:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        return torch.zeros(2, 3)


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda: torch.zeros(3).expand(2, 3), r"b has elements that share memory: \[2, 3\] with strides \[0, 1\]"),
        (lambda: torch.zeros(8).as_strided((2, 3), (1, 1)), "b has elements that share memory"),
        (in_inference_mode, "b was made in inference mode"),
        (lambda: torch.zeros(2, 3).to_sparse(), "b has no plain memory"),
        (lambda: torch.quantize_per_tensor(torch.zeros(2, 3), 1.0, 0, torch.qint8), "b has no plain memory"),
        (of_another_kind, "b has no (plain )?memory"),
        (lambda: nn.UninitializedBuffer(), "b has no plain memory"),
        (freed, "b has no memory: it was freed"),
        (lambda: torch.zeros(2, 3, dtype=torch.int64), "b: float32 cannot be converted to int64"),
        (lambda: torch.zeros(2, 3, dtype=torch.bool), "b: float32 cannot be converted to bool"),
        (lambda: torch.zeros(2, 3).to(torch.uint8).view(torch.float4_e2m1fn_x2), "b: float32 cannot be converted to float4"),
        (lambda: torch.zeros(3, 3), r"b: \[2, 3\] resident, \[3, 3\] in the module"),
        (lambda: torch.zeros(2, 3, device="meta"), "b is on the meta device"),
    ],
)
def test_a_tensor_that_cannot_take_the_contents_is_refused_before_any_is_changed(
    daemon: Daemon, make: Callable[[], torch.Tensor], text: str
) -> None:
    module = module_of(make())
    generation = streamerd.put(ones(), "m").generation
    with pytest.raises(streamerd.Error, match=f"load_into: (shapes differ: )?{text}"):
        streamerd.load_into(module, "m", generation=generation)
    assert not module.a.any() and not module.c.any()


def test_contents_that_lose_their_kind_are_refused(daemon: Daemon) -> None:
    module = module_of(torch.zeros(2, 3))
    generation = streamerd.put(ones(b=torch.ones(2, 3, dtype=torch.complex64)), "m").generation
    with pytest.raises(streamerd.InvalidError, match="b: complex64 cannot be converted to float32"):
        streamerd.load_into(module, "m", generation=generation)
    assert not module.a.any()


def test_a_tensor_of_inference_mode_is_written_in_that_mode(daemon: Daemon) -> None:
    module = module_of(in_inference_mode())
    generation = streamerd.put(ones(), "m").generation
    with torch.inference_mode():
        streamerd.load_into(module, "m", generation=generation)
    assert module.b.all()


def test_memory_that_is_mapped_for_reading_alone_is_refused(daemon: Daemon, folder: Path) -> None:
    """A write would end the process."""
    save_file({name: tensor.clone() for name, tensor in ones().items()}, folder / "base.safetensors")
    module = module_of(torch.zeros(2, 3))
    streamerd.load_into(module, folder / "base.safetensors", shared=True)
    generation = streamerd.put(ones(), "m").generation
    with pytest.raises(streamerd.InvalidError, match="a lies in memory that is mapped for reading alone"):
        streamerd.load_into(module, "m", generation=generation)


class Raising(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function: Any, kinds: Any, arguments: Any = (), keywords: Any = None) -> Any:
        if function is torch.Tensor.copy_:
            raise RuntimeError("not this\ntensor")
        return super().__torch_function__(function, kinds, arguments, keywords or {})


def test_what_fails_midway_is_named_and_says_that_the_module_is_partly_updated(daemon: Daemon) -> None:
    module = module_of(torch.zeros(2, 3).as_subclass(Raising))
    generation = streamerd.put(ones(), "m").generation
    text = rf'the module is partly updated: generation {generation} of m: .*named "b".*not this'
    with pytest.raises(streamerd.FailedError, match=text):
        streamerd.load_into(module, "m", generation=generation)
    assert module.a.all() and module.c.all()


def test_a_hook_that_raises_is_quoted(daemon: Daemon) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(2))
            self.register_load_state_dict_pre_hook(self._fail)

        @staticmethod
        def _fail(*arguments: Any) -> None:
            raise OSError("no hook")

    module = nn.Sequential(nn.Linear(2, 2, bias=False), Inner())
    generation = streamerd.put({"0.weight": torch.ones(2, 2), "1.w": torch.ones(2)}, "m").generation
    with pytest.raises(streamerd.FailedError, match="the module is partly updated: .*OSError: no hook") as caught:
        streamerd.load_into(module, "m", generation=generation)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("b", [torch.zeros(3, 3), torch.zeros(2, 3).as_subclass(Raising)])
def test_an_error_that_is_kept_keeps_no_lease(daemon: Daemon, b: torch.Tensor) -> None:
    generation = streamerd.put(ones(), "m").generation
    with pytest.raises(streamerd.Error) as caught:
        streamerd.load_into(module_of(b), "m", generation=generation)
    eventually(lambda: not daemon.leases())
    assert caught.value.__traceback__


# ---- tensors that share memory ----


def test_names_of_one_tensor_must_have_one_content(daemon: Daemon) -> None:
    tied = torch.zeros(2, 3)
    module = module_of(tied, d=tied)
    generation = streamerd.put(ones(d=torch.zeros(2, 3)), "m").generation
    with pytest.raises(streamerd.InvalidError, match="b, d share memory in the module, and have different contents"):
        streamerd.load_into(module, "m", generation=generation)
    assert not module.a.any()
    nan = torch.full((2, 3), float("nan"))
    generation = streamerd.put(ones(b=nan, d=nan), "m").generation
    streamerd.load_into(module, "m", generation=generation)
    assert tied.isnan().all()


def test_views_of_one_memory_must_agree(daemon: Daemon) -> None:
    memory = torch.zeros(2, 3)
    module = module_of(memory, d=memory.t(), e=memory[0])
    given = torch.arange(6.0).reshape(2, 3)
    wrong = ones(b=given, d=given.t(), e=given[1])
    generation = streamerd.put(wrong, "m").generation
    with pytest.raises(streamerd.InvalidError, match="b, d, e share memory in the module, and have different contents"):
        streamerd.load_into(module, "m", generation=generation)
    assert not memory.any()
    generation = streamerd.put({**wrong, "e": given[0]}, "m").generation
    streamerd.load_into(module, "m", generation=generation)
    assert torch.equal(memory, given)


# ---- options ----


@pytest.mark.parametrize(
    "options, text",
    [
        ({"generation": 1, "key": {"a": "1"}}, "key and generation exclude each other"),
        ({"generation": 1, "base": "/m"}, "base is that of a published model, which has a key"),
        ({"base": "/m"}, "base is that of a published model, which has a key"),
        ({"key": {"a": "1"}, "strict": False}, "a published model has no option strict"),
        ({"key": "a=1"}, "the key maps names to texts: 'a=1'"),
        ({"generation": 1, "strict": 0}, "strict: 0 is neither True nor False"),
    ],
)
def test_options_that_have_no_effect_are_refused(daemon: Daemon, options: dict[str, Any], text: str) -> None:
    with pytest.raises(streamerd.InvalidError, match=text):
        streamerd.load_into(nn.Linear(2, 2), "m", **options)


def test_an_open_model_has_no_options(daemon: Daemon) -> None:
    model = streamerd.put({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, "m")
    with pytest.raises(streamerd.InvalidError, match="load_into: an open model has no option pin"):
        streamerd.load_into(nn.Linear(2, 2), model, pin=True)
    assert streamerd.load_into(nn.Linear(2, 2), model) == ([], [])


def test_a_failure_without_a_generation_is_named_too(daemon: Daemon) -> None:
    model = streamerd.put({"weight": torch.ones(2, 3), "bias": torch.ones(2)}, "m")
    with pytest.raises(streamerd.FailedError, match="the module is partly updated: m: .*size mismatch for weight"):
        streamerd.load_into(nn.Linear(2, 2), model)
