# SPDX-License-Identifier: Apache-2.0
"""Folders of weights as they occur: with and without an index, shards, variants, and files of other uses beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file

INDEX = "model.safetensors.index.json"


def save(folder: Path, name: str, **tensors: float) -> None:
    """Tensors of four elements, which are the number given; "__" in a name is a dot."""
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    values = {key.replace("__", "."): torch.full((4,), value) for key, value in tensors.items()}
    save_file(values, folder / name, metadata={"format": "pt"})


def index(folder: Path, weight_map: dict[str, str], name: str = INDEX) -> None:
    (folder / name).write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


def _shards(folder: Path, stem: str = "model") -> None:
    save(folder, f"{stem}-00001-of-00002.safetensors", a=1)
    save(folder, f"{stem}-00002-of-00002.safetensors", b=2)


def one_file(folder: Path) -> None:
    save(folder, "model.safetensors", a=1, b=2)


def one_file_of_another_name(folder: Path) -> None:
    save(folder, "weights.safetensors", a=1, b=2)


def shards_with_an_index(folder: Path) -> None:
    _shards(folder)
    index(folder, {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})


def shards_without_an_index(folder: Path) -> None:
    _shards(folder)


def shards_of_which_the_last_sorts_first(folder: Path) -> None:
    save(folder, "part-10.safetensors", a=10, z=10)
    save(folder, "part-9.safetensors", a=9, b=9)


def a_second_file_beside_the_model(folder: Path) -> None:
    one_file(folder)
    save(folder, "lm_head.safetensors", lm_head__weight=3)


def an_adapter_beside_the_model(folder: Path) -> None:
    one_file(folder)
    save(folder, "adapter_model.safetensors", lora=3)


def an_optimizer_beside_the_shards(folder: Path) -> None:
    save(folder, "model-00001-of-00001.safetensors", a=1)
    save(folder, "optimizer.safetensors", a=4, exp_avg=5)


def a_file_that_the_index_does_not_name(folder: Path) -> None:
    shards_with_an_index(folder)
    save(folder, "mtp.safetensors", mtp__w=7)


def a_tensor_that_is_in_two_shards(folder: Path) -> None:
    save(folder, "model-00039-of-00040.safetensors", a=1, q=1)
    save(folder, "model-00040-of-00040.safetensors", q=2, z=2)


def a_tensor_that_is_in_two_shards_of_an_index(folder: Path) -> None:
    save(folder, "model-00001-of-00002.safetensors", a=1, q=1)
    save(folder, "model-00002-of-00002.safetensors", q=2, z=2)
    of = {"a": "model-00001-of-00002.safetensors"}
    index(folder, {**of, "q": "model-00002-of-00002.safetensors", "z": "model-00002-of-00002.safetensors"})


def a_tensor_that_the_index_does_not_name(folder: Path) -> None:
    shards_with_an_index(folder)
    save(folder, "model-00002-of-00002.safetensors", b=2, mtp__w=7)


def an_entry_of_the_index_without_a_tensor(folder: Path) -> None:
    _shards(folder)
    of = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index(folder, {**of, "mtp.w": "model-00002-of-00002.safetensors"})


def a_tensor_that_has_moved_to_another_shard(folder: Path) -> None:
    save(folder, "model-00001-of-00002.safetensors", a=1)
    save(folder, "model-00002-of-00002.safetensors", b=2, c=3)
    of = {"a": "model-00001-of-00002.safetensors", "c": "model-00001-of-00002.safetensors"}
    index(folder, {**of, "b": "model-00002-of-00002.safetensors"})


def an_index_that_names_the_first_of_two_tensors(folder: Path) -> None:
    a_tensor_that_is_in_two_shards_of_an_index(folder)
    of = {"a": "model-00001-of-00002.safetensors", "q": "model-00001-of-00002.safetensors"}
    index(folder, {**of, "z": "model-00002-of-00002.safetensors"})


def an_index_that_names_an_absent_file(folder: Path) -> None:
    shards_with_an_index(folder)
    of = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index(folder, {**of, "gone": "model-00003-of-00003.safetensors"})


def an_index_with_a_key_twice(folder: Path) -> None:
    _shards(folder)
    one, two = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    (folder / INDEX).write_text(f'{{"weight_map": {{"b": "{one}", "a": "{one}", "b": "{two}"}}}}')


def an_index_with_two_maps(folder: Path) -> None:
    _shards(folder)
    one, two = (f"model-0000{i}-of-00002.safetensors" for i in (1, 2))
    (folder / INDEX).write_text(f'{{"weight_map": {{"a": "{one}", "b": "{two}"}}, "weight_map": {{"b": "{two}"}}}}')


def an_index_with_nan(folder: Path) -> None:
    shards_with_an_index(folder)
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace('"total_size": 0', '"total_size": NaN'))


def an_index_of_files_here_and_below(folder: Path) -> None:
    save(folder, "model-00001-of-00002.safetensors", a=1)
    save(folder, "sub/model-00002-of-00002.safetensors", b=2)
    index(folder, {"a": "model-00001-of-00002.safetensors", "b": "sub/model-00002-of-00002.safetensors"})


def one_file_and_an_index_of_others(folder: Path) -> None:
    save(folder, "model.safetensors", a=7, b=7)
    shards_with_an_index(folder)


def consolidated_beside_an_index(folder: Path) -> None:
    shards_with_an_index(folder)
    save(folder, "consolidated.safetensors", x=8)


def consolidated_beside_shards(folder: Path) -> None:
    _shards(folder)
    save(folder, "consolidated.safetensors", x=8)


def consolidated_beside_one_file(folder: Path) -> None:
    one_file(folder)
    save(folder, "consolidated.safetensors", x=8)


def consolidated_alone(folder: Path) -> None:
    _shards(folder, "consolidated")
    files = [f"consolidated-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index(folder, dict(zip("ab", files, strict=True)), "consolidated.safetensors.index.json")


def diffusers_shards_with_their_index(folder: Path) -> None:
    _shards(folder, "diffusion_pytorch_model")
    files = [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index(folder, dict(zip("ab", files, strict=True)), "diffusion_pytorch_model.safetensors.index.json")


def two_splits_of_a_diffusers_model(folder: Path) -> None:
    diffusers_shards_with_their_index(folder)
    save(folder, "diffusion_pytorch_model-00001-of-00003.safetensors", a=11)
    save(folder, "diffusion_pytorch_model-00002-of-00003.safetensors", b=12)


def a_variant_beside_the_model(folder: Path) -> None:
    one_file(folder)
    save(folder, "model.fp16.safetensors", a=21, b=22)


def a_variant_with_an_index_of_its_own(folder: Path) -> None:
    shards_with_an_index(folder)
    _shards(folder, "model.fp16")
    files = [f"model.fp16-0000{i}-of-00002.safetensors" for i in (1, 2)]
    index(folder, dict(zip("ab", files, strict=True)), "model.safetensors.index.fp16.json")


def two_variants(folder: Path) -> None:
    save(folder, "model.bf16.safetensors", a=21)
    save(folder, "model.fp16.safetensors", a=22)


def hidden_files(folder: Path) -> None:
    one_file(folder)
    (folder / "._model.safetensors").write_bytes(b"\0\5\x16\7" + bytes(80))


def a_pickle_beside_the_model(folder: Path) -> None:
    one_file(folder)
    (folder / "pytorch_model.bin").write_bytes(b"x")


def an_unfinished_download(folder: Path) -> None:
    save(folder, "model-00001-of-00002.safetensors", a=1)
    (folder / "model-00002-of-00002.safetensors.incomplete").write_bytes(b"x")


def a_name_of_many_letters(folder: Path) -> None:
    one_file(folder / "My Model (v1.0) – größe")


def a_folder_of_pickles(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"x")


def an_index_without_a_shard(folder: Path) -> None:
    shards_with_an_index(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()


def an_index_of_a_folder_below(folder: Path) -> None:
    _shards(folder / "shards")
    index(folder, {name: f"shards/model-0000{i}-of-00002.safetensors" for i, name in ((1, "a"), (2, "b"))})


def no_weights(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


LAYOUTS: tuple[Callable[[Path], None], ...] = (
    one_file, one_file_of_another_name, shards_with_an_index, shards_without_an_index,
    shards_of_which_the_last_sorts_first, a_second_file_beside_the_model, an_adapter_beside_the_model,
    an_optimizer_beside_the_shards, a_file_that_the_index_does_not_name, a_tensor_that_is_in_two_shards,
    a_tensor_that_is_in_two_shards_of_an_index, a_tensor_that_the_index_does_not_name,
    an_entry_of_the_index_without_a_tensor, one_file_and_an_index_of_others, consolidated_beside_an_index,
    consolidated_beside_shards, consolidated_beside_one_file, consolidated_alone, diffusers_shards_with_their_index,
    two_splits_of_a_diffusers_model, a_variant_beside_the_model, a_variant_with_an_index_of_its_own, two_variants,
    hidden_files, a_pickle_beside_the_model, an_unfinished_download, a_name_of_many_letters,
    an_index_with_a_key_twice, an_index_with_two_maps, an_index_with_nan,
)  # fmt: skip

# Of which the files must be read to know what the index leaves out.
STALE: tuple[Callable[[Path], None], ...] = (
    a_tensor_that_has_moved_to_another_shard, an_index_that_names_the_first_of_two_tensors,
)  # fmt: skip

# Which no loader of safetensors can read.
UNREADABLE: tuple[Callable[[Path], None], ...] = (
    a_folder_of_pickles, an_index_without_a_shard, an_index_that_names_an_absent_file, no_weights,
)  # fmt: skip

# Which the daemon reads, and vLLM does not.
BELOW: tuple[Callable[[Path], None], ...] = (an_index_of_a_folder_below, an_index_of_files_here_and_below)


def write(folder: Path, layout: Callable[[Path], None]) -> Path:
    """The folder of the model: a subfolder, where the layout makes nothing else."""
    place = folder / layout.__name__
    place.mkdir(parents=True)
    layout(place)
    below = list(place.iterdir())
    return below[0] if len(below) == 1 and below[0].is_dir() else place
