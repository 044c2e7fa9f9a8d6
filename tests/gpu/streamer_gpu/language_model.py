# SPDX-License-Identifier: Apache-2.0
"""A random Llama of transformers, whose parameters are read by safetensors or are the daemon's memory."""

import os
import time
from pathlib import Path

from harness.package import import_package
from harness.processes import Skip

from .frameworks import open_torch

PROMPT = (1, 5, 9)


def _import(device):
    torch = open_torch(device)
    try:
        import safetensors.torch
        import transformers
    except ImportError as e:
        raise Skip(f"{e.name} is not installed") from None
    if device == "cpu":
        torch.set_num_threads(1)  # two processes at once
    return torch, transformers, safetensors.torch


def write(folder, device, tiny):
    """folder/config.json and model.safetensors: 2 GiB, or `tiny` 7 MB."""
    _import(device)
    from harness import llama

    llama.write_checkpoint(Path(folder), llama.SMALL if tiny else llama.LARGE, device)


class LanguageModel:
    def __init__(self, folder, device, library, socket, name):
        self.torch, transformers, safetensors = _import(device)
        self.device, file = device, os.path.join(folder, "model.safetensors")
        self.module = self._build(transformers, folder)
        self._synchronize()
        begin = time.monotonic()
        if socket is None:
            self.module.load_state_dict(safetensors.load_file(file, device=device), assign=True)
            resident = None
        else:
            resident = self._load_into(library, file, socket, name)
        self._synchronize()
        milliseconds = (time.monotonic() - begin) * 1e3
        self.module.eval()
        self.facts = {
            "ms": milliseconds,
            "parameters": len(list(self.module.parameters())),
            "resident": resident,
            "versions": f"torch {self.torch.__version__}, transformers {transformers.__version__}",
        }

    def _build(self, transformers, folder):
        """The module without memory for its parameters. Its table of positions is in no checkpoint: it is computed."""
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        config = transformers.AutoConfig.from_pretrained(folder)
        with self.torch.device("meta"):
            module = transformers.LlamaForCausalLM(config)
        module.model.rotary_emb = LlamaRotaryEmbedding(config).to(self.device)
        return module

    def _load_into(self, library, file, socket, name):
        """How many parameters are at their places in the daemon's memory, and on the device."""
        os.environ["STREAMERD_CLIENT_LIB"] = library
        import_package()
        import streamerd

        with streamerd.open(file, socket=socket, name=name, device=self.device, progress=False) as model:
            streamerd.load_into(self.module, model)
            places = {key: tensor.data_ptr() for key, tensor in model.state_dict().items()}
        on_device = self.torch.device(self.device).type
        named = self.module.named_parameters()
        return sum(p.data_ptr() == places.get(key) and p.device.type == on_device for key, p in named)

    def _synchronize(self):
        if self.device != "cpu":
            self.torch.cuda.synchronize()

    def tokens(self, count):
        """The most probable next tokens; each pass computes the whole sequence."""
        torch, ids = self.torch, list(PROMPT)
        with torch.inference_mode():
            for _ in range(count):
                logits = self.module(torch.tensor([ids], device=self.device), use_cache=False).logits
                ids.append(int(logits[0, -1].argmax()))
        return ids[len(PROMPT) :]
