# SPDX-License-Identifier: Apache-2.0
"""A random Llama of transformers, whose parameters are read by safetensors, or are the daemon's memory: loaded from its
file, or published by another process."""

import os
import time
from pathlib import Path

from harness.package import import_package
from harness.processes import Skip

from .frameworks import open_torch

PROMPT = (1, 5, 9)
KEY = {"model": "a random Llama"}


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
    """The module, first without memory for its parameters; then read(), open() or take() gives it some. A context on
    the device exists from the start, so that none is part of what is timed."""

    def __init__(self, folder, device, library, positions=True):
        self.torch, transformers, self.safetensors = _import(device)
        os.environ["STREAMERD_CLIENT_LIB"] = library
        import_package()
        self.device, self.file = device, os.path.join(folder, "model.safetensors")
        self.versions = f"torch {self.torch.__version__}, transformers {transformers.__version__}"
        self.module = self._build(transformers, folder, positions)
        self.torch.ones(1, device=device)
        self._synchronize()

    def _build(self, transformers, folder, positions):
        """The table of positions is in no checkpoint: it is computed, or a published model has it."""
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        config = transformers.AutoConfig.from_pretrained(folder)
        with self.torch.device("meta"):
            module = transformers.LlamaForCausalLM(config)
        if positions:
            module.model.rotary_emb = LlamaRotaryEmbedding(config).to(self.device)
        module.eval()
        return module

    def _timed(self, fill):
        """{"ms", "versions", "parameters", "resident": what fill() returns}"""
        begin = time.monotonic()
        resident = fill()
        self._synchronize()
        ms = (time.monotonic() - begin) * 1e3
        return {"ms": ms, "versions": self.versions, "parameters": len(self._parameters()), "resident": resident}

    def _parameters(self):
        return dict(self.module.named_parameters())

    def _is_on_device(self, parameter):
        return parameter.device.type == self.torch.device(self.device).type

    def read(self):
        """By safetensors, into memory of torch."""

        def load():
            self.module.load_state_dict(self.safetensors.load_file(self.file, device=self.device), assign=True)

        return self._timed(load)

    def open(self, socket, name):
        """From the daemon, which loads the file. `resident`: how many parameters are at their places in its memory, and
        on the device."""
        return self._timed(lambda: self._load_into(socket, name))

    def _load_into(self, socket, name):
        import streamerd

        with streamerd.open(self.file, socket=socket, name=name, device=self.device, progress=False) as model:
            streamerd.load_into(self.module, model)
            places = {key: tensor.data_ptr() for key, tensor in model.state_dict().items()}
        return sum(p.data_ptr() == places.get(key) for key, p in self._parameters().items() if self._is_on_device(p))

    def publish(self, socket, name):
        """Moves the module to the daemon's memory. `resident`: how many parameters have another place than before."""
        import streamerd

        before = {key: parameter.data_ptr() for key, parameter in self._parameters().items()}

        def move():
            streamerd.publish(self.module, name, key=KEY, socket=socket)
            return sum(before[key] != parameter.data_ptr() for key, parameter in self._parameters().items())

        facts = self._timed(move)
        if self.device != "cpu":
            self.torch.cuda.empty_cache()  # the memory that the module had
        return facts

    def take(self, socket, name):
        """From the daemon, as published. `resident`: how many parameters are on the device."""
        import streamerd

        def load():
            streamerd.load_into(self.module, name, key=KEY, socket=socket, device=self.device)
            return sum(self._is_on_device(parameter) for parameter in self._parameters().values())

        return self._timed(load)

    def change(self):
        """Other weights, in place."""
        self.module.model.norm.weight.data.mul_(-1)
        return {}

    def put(self, socket, name):
        """A generation of its weights in the daemon's memory."""
        import streamerd

        begin = time.monotonic()
        with streamerd.put(self.module.state_dict(), name, socket=socket, wait=True) as model:
            generation = model.generation
        return {"ms": (time.monotonic() - begin) * 1e3, "generation": generation}

    def update(self, socket, name, generation):
        """Takes a generation in place. `resident`: how many parameters have stayed where they were."""
        import streamerd

        before = {key: parameter.data_ptr() for key, parameter in self._parameters().items()}

        def take():
            streamerd.load_into(self.module, name, generation=generation, socket=socket, device=self.device)
            return sum(before[key] == parameter.data_ptr() for key, parameter in self._parameters().items())

        return self._timed(take)

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
