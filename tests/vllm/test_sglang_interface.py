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
from unittest.mock import MagicMock

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
    from sglang.srt.model_loader.loader import get_model_loader
    from sglang.srt.plugins import HookRegistry

    import streamerd.sglang

    streamerd.sglang.register()
    HookRegistry.apply_hooks()
    assert "streamerd" in LOAD_FORMAT_CHOICES
    assert LoadConfig(load_format="auto").load_format == "auto"

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
    subprocess.run(command, check=True, timeout=300)


if __name__ == "__main__":
    check(*sys.argv[1:])
