# SPDX-License-Identifier: Apache-2.0
"""What a consumer does with torch: models seen through DLPack, and other loaders of the same files. `device` is
torch's name of the GPU, or "cpu" where the script is tried on fake GPUs, which torch cannot use."""

import ctypes
import gc
import os
import sys
import time

from harness import model
from harness.processes import Skip

CHUNK = 256 << 20


def open_torch(device):
    try:
        import torch
    except ImportError:
        raise Skip("torch is not installed") from None
    if device != "cpu" and not torch.cuda.is_available():
        raise Skip(f"torch {torch.__version__} finds no GPU")
    return torch


def _synchronize(torch, device):
    if device != "cpu":
        torch.cuda.synchronize()


# ---- every tensor of a lease


def _segments(torch, lease):
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return [torch.from_dlpack(new(lease.dlpack(i), b"dltensor", None)) for i in range(lease.segments())]


def _views(torch, lease):
    """{name: tensor} over the memory of the lease: BF16, which is all that model.py writes."""
    segments, views = _segments(torch, lease), {}
    for i in range(lease.count()):
        tensor = lease.get(i)
        shape = [tensor.shape[d] for d in range(tensor.rank)]
        part = segments[tensor.segment][tensor.offset : tensor.offset + tensor.bytes]
        views[tensor.name.decode()] = part.view(torch.bfloat16).view(shape)
        if part.data_ptr() != tensor.data:
            raise ValueError(f"{tensor.name.decode()}: torch sees it at another address than the library")
    return views


class _File:
    """Bytes of a file on the device, by a buffer that is pinned where that helps."""

    def __init__(self, torch, path, device):
        self.torch, self.device, self.fd = torch, device, os.open(path, os.O_RDONLY)
        self.buffer = torch.empty(CHUNK, dtype=torch.uint8, pin_memory=device != "cpu")
        self.view = memoryview(self.buffer.numpy())

    def __del__(self):
        os.close(self.fd)

    def read(self, offset, size):
        for at in range(0, size, CHUNK):
            n = min(CHUNK, size - at)
            if os.preadv(self.fd, [self.view[:n]], offset + at) != n:
                raise OSError("the model's file is shorter than its header says")
            yield at, self.buffer[:n].to(self.device)

    def same(self, tensor, offset, size):
        flat = tensor.flatten().view(self.torch.uint8)
        return all(self.torch.equal(flat[at : at + len(part)], part) for at, part in self.read(offset, size))


def compare_model(lease, path, device):
    """Every tensor, viewed in place, against the file; and one matrix product, of the weights in place and of a copy
    of them that comes from the file."""
    torch = open_torch(device)
    begin = time.monotonic()
    views = _views(torch, lease)
    seconds = time.monotonic() - begin
    file, spans = _File(torch, path, device), model.tensors_of(path)
    differing = [name for name, at, size in spans if not file.same(views[name], at, size)]
    name, at, size = next(span for span in spans if span[0].endswith("q_proj.weight"))
    copy = torch.cat([part.clone() for _, part in file.read(at, size)]).view(torch.bfloat16).view(views[name].shape)
    x = torch.ones(copy.shape[1], 16, dtype=torch.bfloat16, device=device)
    product = torch.equal((views[name] @ x).nan_to_num(), (copy @ x).nan_to_num())
    _synchronize(torch, device)
    return {
        "torch": torch.__version__,
        "tensors": len(spans),
        "bytes": sum(size for _, _, size in spans),
        "differing": len(differing),
        "names": differing[:5],
        "product": product,
        "views_ms": seconds * 1e3,
    }


# ---- other loaders: each returns a function of (path, device) > ({name: tensor}, what to call when they are dropped)


def _instanttensor(mmap):
    import instanttensor

    backend = instanttensor.Backend.MMAP if mmap else instanttensor.BackendPolicy.BUFFERED

    def load(path, device):
        with instanttensor.safe_open(path, framework="pt", device=device, backend=backend) as f:
            return dict(f.tensors()), None

    return load


def _fastsafetensors():
    import fastsafetensors

    def load(path, device):
        """Without GPUDirect Storage; the file stays in the page cache for the loaders that come next."""
        loader = fastsafetensors.SafeTensorsFileLoader(None, device, nogds=True, disable_cache=False)
        loader.add_filenames({0: [path]})
        buffer = loader.copy_files_to_device()

        def close():
            buffer.close()
            loader.close()

        return {name: buffer.get_tensor(name) for name in buffer.key_to_rank_lidx}, close

    return load


def _runai():
    from runai_model_streamer import SafetensorsStreamer

    def load(path, device):
        with SafetensorsStreamer() as streamer:
            streamer.stream_file(path, device=device)
            own = device == "cpu"  # there it yields views of a buffer that it fills again
            return {name: t.clone() if own else t for name, t in streamer.get_tensors()}, None

    return load


def _safetensors():
    from safetensors.torch import load_file

    return lambda path, device: (load_file(path, device=device), None)


LOADERS = {
    "instanttensor_buffered": ("instanttensor", lambda: _instanttensor(False)),
    "instanttensor_mmap": ("instanttensor", lambda: _instanttensor(True)),
    "fastsafetensors": ("fastsafetensors", _fastsafetensors),
    "runai": ("runai_model_streamer", _runai),
    "safetensors": ("safetensors", _safetensors),
}


class Loader:
    """One loader in this process, imported from `site` before Python's own packages, with a context on the GPU."""

    def __init__(self, name, site, device):
        from importlib.metadata import PackageNotFoundError, version

        self.torch, self.device = open_torch(device), device
        if site:
            sys.path.insert(0, site)
        package, make = LOADERS[name]
        try:
            self.function = make()
            self.version = version(package)
        except PackageNotFoundError:
            self.version = "unknown"
        except ImportError as e:
            raise Skip(f"{package} cannot be imported: {e}") from None
        self.torch.ones(1, device=device)
        _synchronize(self.torch, device)

    def load(self, path):
        """Seconds until all tensors are on the device; the first, the middle and the last are compared."""
        begin = time.monotonic()
        tensors, close = self.function(path, self.device)
        _synchronize(self.torch, self.device)
        seconds = time.monotonic() - begin
        file, spans = _File(self.torch, path, self.device), model.tensors_of(path)
        picked = [spans[0], spans[len(spans) // 2], spans[-1]]
        same = len(tensors) == len(spans) and all(file.same(tensors[name], at, size) for name, at, size in picked)
        del tensors, file
        if close:
            close()
        gc.collect()
        if self.device != "cpu":
            self.torch.cuda.empty_cache()
        return {"seconds": seconds, "same": same}
