# SPDX-License-Identifier: Apache-2.0
"""use(): from_pretrained() of other packages reads through the daemon."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Daemon, eventually, logits, tiny_llama

import streamerd

pytestmark = pytest.mark.usefixtures("daemon")


def loaded(daemon: Daemon) -> set[str]:
    return {model["name"] for model in json.loads(daemon.ctl("list", "--json").stdout)["models"]}


@pytest.fixture
def llama(folder: Path) -> Any:
    """In three files."""
    model = tiny_llama(num_hidden_layers=4)
    model.save_pretrained(folder / "llama", max_shard_size="250KB")
    return model


@pytest.mark.parametrize("options", [{}, {"device_map": "cpu"}, {"device_map": {"": "cpu"}}, {"dtype": "bfloat16"}])
def test_transformers_reads_every_file_of_a_checkpoint(
    folder: Path, daemon: Daemon, llama: Any, options: dict[str, Any]
) -> None:
    if "device_map" in options:
        pytest.importorskip("accelerate")
    files = {str(path) for path in (folder / "llama").glob("*.safetensors")}
    assert len(files) > 1
    with streamerd.use():
        model = type(llama).from_pretrained(folder / "llama", **options).eval()
    assert loaded(daemon) == files
    assert torch.equal(logits(model), logits(type(llama).from_pretrained(folder / "llama", **options).eval()))


def test_parameters_of_transformers_are_the_resident_memory(folder: Path, daemon: Daemon, llama: Any) -> None:
    with streamerd.use():
        model = type(llama).from_pretrained(folder / "llama")
    path = model.name_or_path
    names = json.loads((folder / "llama" / "model.safetensors.index.json").read_text())["weight_map"]
    for name, parameter in model.named_parameters():
        with streamerd.open(f"{path}/{names[name]}", name=f"{path}/{names[name]}") as resident:
            assert torch.equal(parameter, resident[name])
    assert len(daemon.leases()) == len(set(names.values()))
    del model, parameter
    eventually(lambda: not daemon.leases())


def test_accelerate_dispatches_a_checkpoint(folder: Path, daemon: Daemon, llama: Any) -> None:
    accelerate = pytest.importorskip("accelerate")
    with accelerate.init_empty_weights():
        model = type(llama)(llama.config)
    with streamerd.use():
        model = accelerate.load_checkpoint_and_dispatch(model, folder / "llama", device_map={"": "cpu"}).eval()
    assert len(loaded(daemon)) > 1
    assert torch.equal(model.lm_head.weight, llama.lm_head.weight)


def test_diffusers_reads_its_folders(folder: Path, daemon: Daemon) -> None:
    diffusers = pytest.importorskip("diffusers")
    torch.manual_seed(1)
    unet = diffusers.UNet2DModel(
        sample_size=8,
        block_out_channels=(32, 32),
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        layers_per_block=1,
    )
    unet.save_pretrained(folder / "pipeline" / "unet")
    with streamerd.use():
        other = diffusers.UNet2DModel.from_pretrained(folder / "pipeline", subfolder="unet")
    assert loaded(daemon) == {str(folder / "pipeline" / "unet" / "diffusion_pytorch_model.safetensors")}
    state = other.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in unet.state_dict().items())


def test_what_was_replaced_is_restored() -> None:
    import safetensors
    import safetensors.torch

    own = safetensors.safe_open, safetensors.torch.load_file
    with pytest.raises(KeyError), streamerd.use():
        with streamerd.use():
            pass
        assert safetensors.safe_open is not own[0] and safetensors.torch.load_file is not own[1]
        assert issubclass(safetensors.safe_open, streamerd.safe_open)
        raise KeyError
    assert (safetensors.safe_open, safetensors.torch.load_file) == own


def test_an_error_is_not_hidden_by_another_reader(llama: Any, daemon: Daemon, folder: Path) -> None:
    daemon.kill()
    with streamerd.use(), pytest.raises(Exception, match="daemon|connect"):
        type(llama).from_pretrained(folder / "llama")


def test_what_the_daemon_does_not_serve_is_read_by_safetensors(
    llama: Any,
    tmp_path_factory: pytest.TempPathFactory,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A checkpoint outside the roots."""
    import safetensors
    import safetensors.torch

    monkeypatch.setattr("streamerd._use._logged", set())
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    llama.save_pretrained(elsewhere, max_shard_size="250KB")
    file = min(elsewhere.glob("*.safetensors"))
    with streamerd.use():
        model = type(llama).from_pretrained(elsewhere).eval()
        with safetensors.safe_open(file, "pt") as f:
            names = set(f.keys())
            assert not isinstance(f, streamerd.safe_open)
        assert safetensors.torch.load_file(file).keys() == names
    assert torch.equal(logits(model), logits(llama))
    lines = [record.getMessage() for record in caplog.records if record.name == "streamerd"]
    assert len(lines) == 1 and "safetensors reads" in lines[0] and "outside the roots" in lines[0]
    with pytest.raises(streamerd.FailedError, match="outside the roots"):
        streamerd.load_file(file)


def test_a_model_that_does_not_fit_is_read_by_safetensors(
    folder: Path, llama: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamerd._use._logged", set())
    (folder / "small").mkdir()
    llama.save_pretrained(folder / "small" / "llama")
    small = Daemon(folder / "small", memory="64KiB")
    monkeypatch.setenv("STREAMERD_SOCKET", small.socket)
    with streamerd.use():
        model = type(llama).from_pretrained(folder / "small" / "llama").eval()
    small.stop()
    assert torch.equal(logits(model), logits(llama))
    assert any("safetensors reads" in record.getMessage() for record in caplog.records)


def test_other_frameworks_are_left_to_safetensors(folder: Path, daemon: Daemon) -> None:
    import safetensors
    from checkpoints import small, write

    write(folder / "m.safetensors", small())
    with streamerd.use(), safetensors.safe_open(folder / "m.safetensors", "flax") as file:
        assert len(file.keys()) == 4 and not isinstance(file, streamerd.safe_open)


def test_arrays_can_be_written_to(folder: Path) -> None:
    import safetensors.numpy
    from checkpoints import small, write

    path = folder / "m.safetensors"
    write(path, small())
    with streamerd.use():
        first, second = safetensors.numpy.load_file(path), safetensors.numpy.load_file(path)
        with safetensors.safe_open(path, "np") as file:
            part = file.get_slice("layer.0.weight")[1:]
    torch.from_numpy(first["layer.0.weight"]).zero_()
    part += 1
    assert not first["layer.0.weight"].any() and second["layer.0.weight"].any()


def test_tensors_of_memory_that_is_read_only_are_copies(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch
    from checkpoints import small, write

    path = folder / "m.safetensors"
    write(path, small())
    with streamerd.use():
        with safetensors.safe_open(path, "pt") as file:
            shared = file.get_tensor("layer.0.weight").data_ptr()
        monkeypatch.setattr("streamerd._model.Model.writable", False)
        tensors = safetensors.torch.load_file(path)
        with safetensors.safe_open(path, "pt") as file:
            part = file.get_slice("layer.0.weight")[0:]
    assert shared not in (tensors["layer.0.weight"].data_ptr(), part.data_ptr())
    assert torch.equal(part, tensors["layer.0.weight"])
