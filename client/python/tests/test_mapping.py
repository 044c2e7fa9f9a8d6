# SPDX-License-Identifier: Apache-2.0
"""A model is a mapping of names to tensors, before all of them have arrived, too."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy
import pytest
from checkpoints import small, write
from conftest import Daemon
from slow_server import SlowServer

import streamerd

NAMES = [f"layer.{i}.weight" for i in range(4)]


@pytest.fixture
def model(folder: Path, daemon: Daemon) -> Iterator[streamerd.Model[Any]]:
    write(folder / "m.safetensors", small())
    with streamerd.open(folder / "m.safetensors", framework="numpy") as model:
        yield model


def test_a_model_is_a_mapping(model: streamerd.Model[Any]) -> None:
    assert isinstance(model, Mapping)
    assert list(model) == list(model.keys()) == sorted(model) == NAMES
    assert len(model) == 4 and NAMES[0] in model and "layer.9.weight" not in model and 7 not in model
    tensors = dict(model)
    assert list(tensors) == NAMES
    assert [name for name, _ in model.items()] == NAMES
    for name, tensor, value in zip(NAMES, tensors.values(), model.values(), strict=True):
        assert numpy.array_equal(tensor, model[name]) and numpy.array_equal(value, model[name])
        assert numpy.shares_memory(tensor, value)
    assert numpy.array_equal(model.get(NAMES[0]), tensors[NAMES[0]])
    assert model.get("nosuch") is None and model.get("nosuch", 1) == 1
    assert {**model}.keys() == tensors.keys() == model.state_dict().keys() == dict(model.stream()).keys()


def test_models_are_equal_if_they_are_the_same(folder: Path, model: streamerd.Model[Any]) -> None:
    with streamerd.open(folder / "m.safetensors", framework="numpy") as other:
        assert model == model and model != other
        assert len({model, other}) == 2


def test_names_are_known_before_tensors_arrive(daemon: Daemon, slow_server: SlowServer) -> None:
    url = slow_server.serve("m.safetensors", [(name, "U8", [1 << 20]) for name in "cab"], first=1)
    with streamerd.open(url, framework="numpy") as model:
        slow_server.wait_until_held()
        assert list(model) == ["a", "b", "c"] and "b" in model and model.get("d") is None
        with pytest.raises(KeyError, match="no tensor 'lm_head'"):
            model["lm_head"]
        slow_server.release()
        assert sorted(name for name, _ in model.stream()) == ["a", "b", "c"]


def test_a_misspelt_tensor_is_told_what_was_meant(model: streamerd.Model[Any]) -> None:
    for call in (lambda name: model[name], model.get_tensor, model.get_slice, model.info, model.raw):
        with pytest.raises(streamerd.TensorNotFoundError, match=r"wieght'; did you mean 'layer\.0\.weight'\?"):
            call("layer.0.wieght")
        with pytest.raises(streamerd.TensorNotFoundError, match="no tensor 'something else'$"):
            call("something else")
    with pytest.raises(KeyError, match="no tensor"):
        model["\ud800"]


def test_names_cannot_control_a_terminal(folder: Path, daemon: Daemon) -> None:
    write(folder / "n.safetensors", [("k\x1b[31ml", "F32", [1]), ("a\u202eb", "F32", [1]), ("n\x9bz", "F32", [1])])
    with streamerd.open(folder / "n.safetensors", framework="numpy") as model:
        text = repr(model)
    assert text.replace("\n", "").isprintable() and r"k\x1b[31ml" in text and r"a\u202eb" in text


def test_slices_say_what_they_are_of(model: streamerd.Model[Any]) -> None:
    part = model.get_slice(NAMES[1])
    assert repr(part) == "<streamerd.Slice 'layer.1.weight' of 'm': F32 [4, 8]>"
    assert (part.get_shape(), part.get_dtype()) == ([4, 8], "F32")


@pytest.mark.parametrize("other_process", [pickle.dumps, copy.copy, copy.deepcopy])
def test_pickling_is_explained(folder: Path, model: streamerd.Model[Any], other_process: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match=r"cannot pickle or copy a streamerd\.Model: .*: open 'm' in the other process"):
        other_process(model)
    with pytest.raises(TypeError, match=r"streamerd\.Slice: .*: pickle what it is indexed to"):
        other_process(model.get_slice(NAMES[0]))
    with streamerd.safe_open(folder / "m.safetensors", "np") as file:
        with pytest.raises(TypeError, match=r"streamerd\.safe_open: .*: open the file in the other process"):
            other_process(file)
    with streamerd.SafetensorsStreamer() as streamer:
        with pytest.raises(TypeError, match=r"streamerd\.SafetensorsStreamer: .*: make one in the other process"):
            other_process(streamer)
