# SPDX-License-Identifier: Apache-2.0
"""The loader for SGLang, through SGLang's own plug-in registry, configuration and loader; no engine runs.

The published package is installed without its dependencies, of which many exist for GPUs only: modules that only
its models and kernels use are placeholders here.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import layouts
import pytest
from processes import Daemon

ABSENT = ("IPython", "compressed_tensors", "gguf", "sgl_kernel", "torchao", "torchvision", "triton", "xgrammar")


class Placeholders(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def create_module(self, spec):
        module = MagicMock(name=spec.name)
        module.__name__, module.__path__, module.__spec__, module.__version__ = spec.name, [], spec, "9"
        return module

    def exec_module(self, module):
        pass


def check(model: str, socket: str) -> None:
    """Runs in a process of its own, since placeholders stay."""
    sys.meta_path.append(Placeholders())
    import torch
    from sglang.srt.arg_groups.choices import LOAD_FORMAT_CHOICES
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader import loader as loaders
    from sglang.srt.model_loader.loader import get_model_loader
    from sglang.srt.plugins import HookRegistry

    import streamerd.sglang

    streamerd.sglang.register()
    HookRegistry.apply_hooks()
    assert "streamerd" in LOAD_FORMAT_CHOICES
    assert LoadConfig(load_format="auto").load_format == "auto"

    # What a server sets.
    loaders.get_server_args = lambda: None
    loaders.get_model = lambda: SimpleNamespace(
        weight_loader_disable_mmap=False, weight_loader_prefetch_checkpoints=False, weight_loader_prefetch_num_threads=1,
        weight_loader_drop_cache_after_load=False,
    )  # fmt: skip

    def weights(load_format: str, folder: Path, hf_config: Any, **more: Any) -> dict[str, list[float]]:
        extra = {"socket": socket} if load_format == "streamerd" else {"enable_multithread_load": False}
        loader = get_model_loader(LoadConfig(load_format=load_format, model_loader_extra_config=extra, **more))
        config = MagicMock(model_path=str(folder), revision=None, is_draft_model=False, hf_config=hf_config)
        return {name: tensor.tolist() for name, tensor in loader._get_all_weights(config, torch.nn.Module())}

    plain = SimpleNamespace(architectures=["LlamaForCausalLM"])
    place = Path(model).parent / "sglang"
    for layout in (*layouts.LAYOUTS, layouts.an_index_of_files_here_and_below):
        folder = layouts.write(place, layout)
        assert weights("streamerd", folder, plain) == weights("auto", folder, plain), layout.__name__
    # GLM 4 takes a file that its index lacks.
    glm = SimpleNamespace(architectures=["Glm4MoeForCausalLM"], num_nextn_predict_layers=1)
    folder = place / layouts.a_file_that_the_index_does_not_name.__name__
    assert "mtp.w" in weights("auto", folder, glm)
    assert weights("streamerd", folder, glm) == weights("auto", folder, glm)
    # Each of several drafts has a layer of its own, by the name of the first.
    layouts.save(place / "drafts", "model.safetensors", **{f"model__mtp__layers__{i}__w": i for i in (0, 1)}, a=7)
    for i in (None, 0, 1):
        drafts = weights("auto", place / "drafts", plain, draft_model_idx=i)
        assert weights("streamerd", place / "drafts", plain, draft_model_idx=i) == drafts
        assert i is None or drafts == {"model.mtp.layers.0.w": [i] * 4, "a": [7] * 4}

    loader = get_model_loader(LoadConfig(load_format="streamerd", model_loader_extra_config={"socket": socket}))
    config = MagicMock(model_path=model, revision=None, is_draft_model=False)
    loader.download_model(config)
    weights = dict(loader._get_all_weights(config, torch.nn.Module()))
    assert len(weights) == 39
    assert weights["model.norm.weight"].dtype == torch.bfloat16

    # The name and the digest are those of the target.
    named = {"socket": socket, "name": "target", "digest": "0" * 32}
    draft = MagicMock(model_path=model, revision=None, is_draft_model=True)
    loader = get_model_loader(LoadConfig(load_format="streamerd", model_loader_extra_config=named))
    assert len(dict(loader._get_all_weights(draft, torch.nn.Module()))) == 39
    with pytest.raises(streamerd.DigestError):
        dict(loader._get_all_weights(config, torch.nn.Module()))

    for extra, text in (({"alias": True}, "alias is not supported with SGLang"), ({"x": 1}, "unknown key 'x'")):
        with pytest.raises(ValueError, match=text):
            get_model_loader(LoadConfig(load_format="streamerd", model_loader_extra_config=extra))
    streamerd.sglang.USES += (("sglang.srt.configs.load_config:LoadConfig", ("colour",)),)
    with pytest.raises(RuntimeError, match=r"needs sglang\.srt\.configs\.load_config\.LoadConfig\(colour\), which SGLang"):
        LoadConfig(load_format="streamerd")


def test_sglang_takes_the_loader_and_reads_all_weights(models: Path, daemon: Daemon) -> None:
    command = [sys.executable, __file__, str(models / "checkpoint"), daemon.socket]
    subprocess.run(command, check=True, timeout=600)


if __name__ == "__main__":
    check(*sys.argv[1:])
