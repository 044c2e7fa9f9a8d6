# SPDX-License-Identifier: Apache-2.0
"""A function that torch compiles for the device, with the caches of inductor and Triton in a folder of its own."""

import os
import time

from harness.package import import_package
from harness.processes import Skip

from .frameworks import open_torch

KEY = {"function": "1"}
SIZE = 1024
FOLDERS = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}


def _function(x, w):
    for _ in range(4):
        x = (x @ w).softmax(-1) * x.sigmoid() + x.square().mean(-1, keepdim=True).rsqrt()
    return x


class Compiler:
    def __init__(self, folder, device, library):
        """Before torch is imported: it reads the variables once."""
        for variable, name in FOLDERS.items():
            os.environ[variable] = os.path.join(folder, name)
        os.environ["STREAMERD_CLIENT_LIB"] = library
        self.folder, self.device = folder, device
        self.torch = open_torch(device)
        import_package()
        import torch._inductor.compile_fx  # noqa: F401: no part of what is timed

        self.torch.ones(1, device=device)

    def compile(self):
        """{"ms", "hits": of inductor's cache, "sum": of the results}"""
        from torch._dynamo.utils import counters

        torch = self.torch
        generator = torch.Generator().manual_seed(1)
        x, w = (torch.rand(SIZE, SIZE, generator=generator).to(self.device) for _ in range(2))
        begin = time.monotonic()
        try:
            with torch.inference_mode():
                result = torch.compile(_function)(x, w)
        except Exception as e:
            if "compiler" in str(e).lower():
                raise Skip(f"torch finds no compiler: {str(e).splitlines()[0]}") from None
            raise
        total = result.double().sum().item()
        ms = (time.monotonic() - begin) * 1e3
        return {"ms": ms, "hits": counters["inductor"]["fxgraph_cache_hit"], "sum": total}

    def publish(self, socket, name):
        """{"ms", "files", "bytes"}"""
        import streamerd

        begin = time.monotonic()
        streamerd.publish_files(self.folder, name, key=KEY, socket=socket)
        ms = (time.monotonic() - begin) * 1e3
        sizes = [os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(self.folder) for name in names]
        return {"ms": ms, "files": len(sizes), "bytes": sum(sizes)}

    def restore(self, socket, name):
        import streamerd

        begin = time.monotonic()
        files = streamerd.restore_files(name, self.folder, key=KEY, socket=socket)
        return {"ms": (time.monotonic() - begin) * 1e3, "files": len(files)}
