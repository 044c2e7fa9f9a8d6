# SPDX-License-Identifier: Apache-2.0
"""Views: every dtype bit for bit, without a copy, writable or not as promised."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import torch
from checkpoints import BITS, UNREPRESENTED, every_dtype, small, write
from conftest import Daemon

import streamerd

REPRESENTED = [dtype for dtype in BITS if dtype not in UNREPRESENTED]


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture
def file(folder: Path, daemon: Daemon) -> Path:
    path = folder / "all.safetensors"
    shapes = [[4, 8], [0, 8], [8]]
    tensors = [(f"{name}{shape}", dtype, shape) for shape in shapes for name, dtype, shape in every_dtype(shape)]
    write(path, [*tensors, ("scalar", "F32", []), ("flat", "BF16", [2, 3, 4, 5, 6])], {"format": "pt"})
    return path


def test_torch_has_the_bytes_and_types_of_safetensors(file: Path) -> None:
    with streamerd.open(file) as model, safetensors.safe_open(file, "pt") as other:
        names = [name for name in other.keys() if not any(d in name for d in UNREPRESENTED)]
        assert len(names) == 3 * len(REPRESENTED) + 2
        for name in names:
            expected, tensor = other.get_tensor(name), model[name]
            assert (tensor.dtype, tensor.shape) == (expected.dtype, expected.shape), name
            assert tensor.is_contiguous()
            assert bits(tensor.reshape(-1)) == bits(expected.reshape(-1)), name


def test_dtypes_that_numpy_lacks_are_those_of_ml_dtypes(file: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    with streamerd.open(file, framework="numpy") as model, streamerd.open(file) as other:
        for dtype, kind in (("BF16", ml_dtypes.bfloat16), ("F8_E4M3", ml_dtypes.float8_e4m3fn)):
            name = f"tensor.{dtype}[4, 8]"
            assert model[name].dtype == kind
            assert model[name].tobytes() == bits(other[name])


def test_a_dtype_that_torch_lacks_names_the_bytes(file: Path) -> None:
    with streamerd.open(file) as model:
        with pytest.raises(streamerd.UnsupportedError, match=r"cannot represent F6_E2M3.*raw\(\)"):
            model["tensor.F6_E2M3[4, 8]"]
        assert len(model.raw("tensor.F6_E2M3[4, 8]")) == 4 * 8 * 6 // 8


def test_a_write_to_a_torch_tensor_stays_in_the_process(file: Path, daemon: Daemon) -> None:
    with streamerd.open(file) as model, streamerd.open(file) as other:
        tensor = model["flat"]
        before = bits(tensor)
        assert model.writable
        tensor.fill_(1)
        assert bits(model["flat"]) != before
        assert bits(other["flat"]) == before
    assert daemon.ctl("verify", "all").returncode == 0


def test_two_views_are_the_same_memory(file: Path) -> None:
    with streamerd.open(file) as model:
        assert model["flat"].data_ptr() == model["flat"].data_ptr()
        rows = model.get_slice("flat")[1:]
        assert rows.data_ptr() == model["flat"][1:].data_ptr()


def test_shared_memory_is_one_copy(file: Path) -> None:
    with streamerd.open(file, shared=True) as model:
        assert not model.writable
        address = model["flat"].data_ptr()
        lines = Path("/proc/self/maps").read_text().splitlines()
        ranges = [(*(int(end, 16) for end in line.split()[0].split("-")), line.split()[1]) for line in lines]
        assert [mode for begin, end, mode in ranges if begin <= address < end] == ["r--s"]


def test_the_table_describes_the_model(folder: Path, daemon: Daemon) -> None:
    write(folder / "m.safetensors", small(30), {"a": "b", "format": "pt"})
    with streamerd.open(folder / "m.safetensors") as model:
        names = sorted(f"layer.{i}.weight" for i in range(30))
        assert (model.name, len(model), list(model)) == ("m", 30, names)
        assert model.metadata == {"a": "b", "format": "pt"}
        assert model.nbytes == 30 * 4 * 8 * 4
        assert "layer.7.weight" in model and "layer.30.weight" not in model and 7 not in model
        info = model.info("layer.0.weight")
        assert (info.dtype, info.shape, info.nbytes) == ("F32", (4, 8), 128)
        shown = daemon.ctl("show", "m", "--tensors", "--json").stdout
        assert model.digest in shown and info.digest in shown
        text = repr(model).splitlines()
        assert text[1].split() == ["TENSOR", "DTYPE", "SHAPE", "SIZE"]
        assert text[2].split() == ["layer.0.weight", "F32", "[4,", "8]", "128", "B"]
        assert text[-1].strip() == "... and 10 more"
    assert repr(model) == "<streamerd.Model 'm', closed>"


def test_the_last_dimension_of_pairs_is_half(file: Path) -> None:
    with streamerd.open(file) as model:
        assert model["tensor.F4[4, 8]"].shape == (4, 4)
        assert model.info("tensor.F4[4, 8]").shape == (4, 8)
