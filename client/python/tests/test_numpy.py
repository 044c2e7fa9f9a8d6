# SPDX-License-Identifier: Apache-2.0
"""Views with numpy and no other package."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy
import pytest
from checkpoints import every_dtype, small, write
from conftest import Daemon

import streamerd

TYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "U32": "uint32",
    "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64", "C64": "complex64",
}  # fmt: skip


def test_arrays_have_the_bytes_and_types_of_the_file(folder: Path, daemon: Daemon) -> None:
    contents = write(folder / "m.safetensors", [*every_dtype([4, 8]), ("scalar", "F32", []), ("empty", "I64", [0, 2])])
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        for dtype, name in TYPES.items():
            array = model[f"tensor.{dtype}"]
            assert (array.dtype, array.shape) == (numpy.dtype(name), (4, 8))
            assert array.tobytes() == contents[f"tensor.{dtype}"]
        assert model["scalar"].tobytes() == contents["scalar"]
        assert model["empty"].shape == (0, 2)


def test_raw_bytes_are_those_of_the_file(folder: Path, daemon: Daemon) -> None:
    contents = write(folder / "m.safetensors", every_dtype([4, 8]))
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        assert {name: model.raw(name).tobytes() for name in model} == contents


def test_arrays_are_read_only_and_outlive_the_model(folder: Path, daemon: Daemon) -> None:
    contents = write(folder / "m.safetensors", small())
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        array = model["layer.0.weight"]
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array[0] = 1
    daemon.kill()
    assert array.tobytes() == contents["layer.0.weight"]


def test_a_dtype_of_ml_dtypes_names_it(folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "m.safetensors", every_dtype([4, 8]))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        with pytest.raises(NotImplementedError, match=r"numpy cannot represent BF16: install ml_dtypes.*raw\(\)"):
            model["tensor.BF16"]
        assert len(model.raw("tensor.BF16")) == 64


def test_a_dtype_that_no_package_has_names_none(
    folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "m.safetensors", every_dtype([4, 8]))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        with pytest.raises(streamerd.UnsupportedError, match=r"cannot represent F6_E2M3 \(.*\); raw\(\) gives"):
            model["tensor.F6_E2M3"]
        with pytest.raises(streamerd.UnsupportedError, match="represent F4: use framework='torch'; raw"):
            model["tensor.F4"]


def test_iteration_is_the_look_up_of_each_name(folder: Path, daemon: Daemon) -> None:
    contents = write(folder / "m.safetensors", [*small(600), ("empty", "I64", [0, 2]), ("scalar", "F32", [])])
    names = sorted(contents)
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        model.wait()
        assert list(model) == list(model.keys()) == [name for name, _ in model.items()] == names
        assert {name: array.tobytes() for name, array in model.items()} == contents
        assert [array.tobytes() for array in model.values()] == [contents[name] for name in names]
        assert {name: array.tobytes() for name, array in model.stream()} == contents
        assert {info.name: info.nbytes for info in model.infos()} == {name: len(contents[name]) for name in names}
        assert len(model.items()) == len(names) and ("scalar", 1) not in model.items()


def test_iteration_makes_few_calls(folder: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of the library for each tensor would take microseconds."""
    write(folder / "m.safetensors", small(2000))
    calls = [0]
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        model.wait()
        library = model._library

        class Counted:
            def __getattr__(self, name: str) -> object:
                calls[0] += 1
                return getattr(library, name)

        monkeypatch.setattr(model, "_library", Counted())
        assert len(list(model.keys())) == len(list(model.items())) == len(model.state_dict()) == 2000
        assert calls[0] < 50
