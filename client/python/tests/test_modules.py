# SPDX-License-Identifier: Apache-2.0
"""Resident weights in torch modules and in models of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Daemon, logits, tiny_llama
from safetensors.torch import save_file

import streamerd


def test_parameters_are_the_resident_memory(folder: Path, daemon: Daemon) -> None:
    module = torch.nn.Linear(8, 4)
    save_file(module.state_dict(), folder / "linear.safetensors")
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    other = torch.nn.Linear(8, 4, device="meta")
    assert streamerd.load_into(other, folder / "linear.safetensors") == ([], [])
    assert all(torch.equal(tensor, expected[name]) for name, tensor in other.state_dict().items())
    assert len(daemon.leases()) == 1
    with torch.no_grad():
        other.weight.add_(1)
    with streamerd.open("linear") as model:
        assert torch.equal(model["weight"], expected["weight"])


def test_what_does_not_fit_is_named(folder: Path, daemon: Daemon) -> None:
    save_file({"weight": torch.zeros(4, 8), "other": torch.zeros(1)}, folder / "m.safetensors")
    module = torch.nn.Linear(8, 4)
    with pytest.raises(ValueError, match=r"missing in the checkpoint: \['bias'\]; not in the module: \['other'\]"):
        streamerd.load_into(module, folder / "m.safetensors")
    assert streamerd.load_into(module, folder / "m.safetensors", strict=False) == (["bias"], ["other"])
    with pytest.raises(ValueError, match="name the source"):
        streamerd.load_into(module)


@pytest.fixture
def llama(folder: Path) -> Any:
    model = tiny_llama(tie_word_embeddings=True)
    model.save_pretrained(folder / "llama")
    return model


def test_a_model_of_transformers_computes_the_same(folder: Path, daemon: Daemon, llama: Any) -> None:
    other = type(llama)(llama.config).eval()
    other.name_or_path = str(folder / "llama")
    assert streamerd.load_into(other) == ([], [])
    assert torch.equal(logits(other), logits(llama))
    assert other.lm_head.weight.data_ptr() == other.model.embed_tokens.weight.data_ptr()


def test_from_pretrained_takes_the_resident_state(folder: Path, daemon: Daemon, llama: Any) -> None:
    with streamerd.open(folder / "llama") as resident:
        state = resident.state_dict()
    model = type(llama).from_pretrained(None, config=llama.config, state_dict=state).eval()
    assert torch.equal(logits(model), logits(llama))
    places = {tensor.data_ptr() for tensor in state.values()}
    copied = [name for name, tensor in model.named_parameters() if tensor.data_ptr() not in places]
    assert not copied
