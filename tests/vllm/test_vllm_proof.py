# SPDX-License-Identifier: Apache-2.0
"""Only what is proved equal is published: architectures and quantisations, and each kind of difference."""

from __future__ import annotations

import functools
import json
import mmap
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures import ARCHITECTURES, ONLINE, QUANTISATIONS, write_architecture, write_quantised
from processes import Daemon, Engine, EngineError
from test_vllm_publish import ATTACHED, FROM_FILES, PUBLISHED, published_of, publishing

NOT_PUBLISHED = "was not published: "
LOADED_AGAIN = "the model is loaded again"

# docs/publish.md has this as a table.
REFUSED = {
    "Bloom": "the model cannot be built without memory",
    "compressed-tensors int8": "(CPUDNNLGEMMHandler) has memory of its own that is no tensor",
    "Mamba2": "from run to run",
}

# vLLM has kernels for these on some processors alone.
UNABLE = {
    "fp8 in blocks", "fp8", "fp8_per_block", "mxfp8",
    "Llama, KV cache fp8", "GPTQ", "AWQ", "compressed-tensors w4a16",  # AVX-512 or AMX
}  # fmt: skip

# The head is in float32, in which torch's linear, of engines that share weights on a CPU, rounds otherwise than vLLM's.
ROUNDED = {"Llama, classification"}


@pytest.fixture(scope="module")
def second(logs: Path) -> Iterator[Engine]:
    with Engine(logs / "second") as process:
        yield process


def answers(engine: Engine, model: Path, load_format: str, extra: dict[str, Any], **more: Any) -> tuple[list[Any], str]:
    """The answers of an engine, and what the loader logged."""
    try:
        log = engine.start(model, load_format, extra, **more)["log"]
        return engine.call("answers"), "\n".join(log)
    finally:
        engine.call("stop")


def checkpoint(models: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """A folder, and the options of its engine."""
    folder = models / f"proof {name}"
    if name in ARCHITECTURES:
        write_architecture(folder, ARCHITECTURES[name])
        return folder, ARCHITECTURES[name].engine
    if name in QUANTISATIONS:
        write_quantised(folder, QUANTISATIONS[name])
        return folder, {}
    write_architecture(folder, ARCHITECTURES["Llama"])
    return folder, {"quantization": name}


@pytest.mark.parametrize("name", [*ARCHITECTURES, *QUANTISATIONS, *ONLINE])
def test_a_model_is_published_or_refused_and_answers_as_without(engine, second, models, daemon, name):
    """Tokens and logarithms of probabilities, or vectors, bit for bit: of the engine that publishes, and of the next."""
    folder, more = checkpoint(models, name)
    try:
        expected, _ = answers(engine, folder, "auto", {}, **more)
    except EngineError as error:
        if name not in UNABLE:
            raise
        pytest.skip(f"vLLM cannot run it on this processor: {error}")
    assert len({json.dumps(answer) for answer in expected}) > 1
    found, log = answers(engine, folder, "streamerd", publishing(daemon), **more)
    if name in ROUNDED:
        assert all(one == pytest.approx(two, rel=1e-6) for one, two in zip(found, expected, strict=True))
        expected = found
    assert found == expected
    if name in REFUSED:
        assert NOT_PUBLISHED in log
        assert REFUSED[name] in log
        found, log = answers(second, folder, "streamerd", publishing(daemon), **more)
        assert found == expected
        [line] = [line for line in log.splitlines() if FROM_FILES in line]
        assert REFUSED[name] in line
        return
    assert PUBLISHED in log
    found, log = answers(second, folder, "streamerd", publishing(daemon), **more)
    assert found == expected
    assert ATTACHED in log


DIFFERENCES = {
    "attribute": "1 attributes differ in an engine that attaches: model.norm:colour is 'blue', published absent",
    "class": "model.norm: is OtherNorm, published RMSNorm",
    "bytes": "model.norm.weight has other bytes in an engine that attaches",
    "strides": "model.norm.weight is 1 [256] [2] torch.bfloat16",
    "dtype": "model.norm.weight is 1 [256] [1] torch.float32",
    "alias": "shares memory with other tensors in an engine that attaches than it does here",
    "absent": "model.norm.weight is absent in an engine that attaches",
    "outputs": "the outputs for the same token ids differ",
    "written when it is processed": "an engine that attaches writes to lm_head.weight",
    "written when it is called": "an engine that attaches writes to model.embed_tokens.weight",
}
WRITTEN = [difference for difference in DIFFERENCES if difference.startswith("written")]


@pytest.mark.parametrize("difference", DIFFERENCES)
def test_what_differs_is_named_and_not_published(engine, models, daemon, expected, difference):
    """The engine serves its own model, packed. Once the record of it is unloaded, one that finds no difference publishes."""
    folder = models / f"differs {difference}"
    shutil.copytree(models / "checkpoint", folder)
    with engine.patched("break_proof", difference=difference):
        log = "\n".join(engine.start(folder, "streamerd", publishing(daemon))["log"])
    assert engine.call("tokens") == expected
    assert engine.call("packed") > 0
    assert not engine.call("is_marked")
    engine.call("stop")
    [line] = [line for line in log.splitlines() if NOT_PUBLISHED in line]
    assert DIFFERENCES[difference] in line
    assert LOADED_AGAIN not in log
    [refusal] = published_of(daemon, folder)
    daemon.ctl("unload", refusal["name"])
    assert PUBLISHED in answers(engine, folder, "streamerd", publishing(daemon))[1]


@pytest.mark.parametrize("difference", WRITTEN)
def test_a_write_to_memory_that_is_not_protected_is_found_and_the_model_loaded_again(
    engine, models, daemon, expected, difference
):
    folder = models / f"not protected {difference}"
    shutil.copytree(models / "checkpoint", folder)
    with engine.patched("break_proof", difference=difference, protected=False):
        log = "\n".join(engine.start(folder, "streamerd", publishing(daemon))["log"])
    assert engine.call("tokens") == expected
    engine.call("stop")
    [line] = [line for line in log.splitlines() if NOT_PUBLISHED in line]
    assert DIFFERENCES[difference] in line
    assert LOADED_AGAIN in log


def test_the_table_has_the_proof(engine, models, daemon, expected):
    from streamerd._client import connect
    from streamerd._publication import Published

    folder = models / "proved"
    shutil.copytree(models / "checkpoint", folder)
    _, log = answers(engine, folder, "streamerd", publishing(daemon))
    [line] = [line for line in log.splitlines() if "publish: proved in" in line]
    [model] = published_of(daemon, folder)
    published = Published(connect(daemon.socket, False), model["name"], 0, "host")
    proof = json.loads(published.attributes()["proof"])
    assert proof["vllm"] == model["published"]["key"]["engine"].removeprefix("vllm ")
    assert proof["torch"] == torch.__version__
    assert proof["tensors"] == len(published.entries())
    assert proof["bytes"] > 6 << 20
    assert f"{proof['scalars']} attributes" in line
    assert proof["tokens"] == 2
    assert [output["shape"] for output in proof["outputs"]] == [[2, 256], [2, 1024]]


# ---- parts of a proof ----


def test_a_checksum_tells_any_change_of_a_word_and_words_that_are_exchanged():
    from streamerd._engines.vllm_proof import _checksums

    storage = torch.randint(0, 255, ((1 << 21) + 8 * 5 + 3,), dtype=torch.uint8)
    [before] = _checksums([storage])
    for at in (0, 7, 1 << 20, (1 << 21) + 1, len(storage) - 1):
        storage[at] ^= 1
        assert _checksums([storage]) != [before]
        storage[at] ^= 1
    words = storage[: 1 << 21].view(torch.int64)
    words[[3, 4]] = words[[4, 3]]
    assert _checksums([storage]) != [before]
    words[[3, 4]] = words[[4, 3]]
    assert _checksums([storage, storage[:0]]) == [before, 0]


def test_the_kernel_tells_which_pages_a_process_has_copied(tmp_path):
    from streamerd._engines.vllm_proof import _own_bytes

    path = tmp_path / "memory"
    path.write_bytes(bytes(8 * mmap.PAGESIZE))
    with open(path, "r+b") as f:
        private = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE)
        shared = mmap.mmap(f.fileno(), 0, flags=mmap.MAP_SHARED)
    one, two, empty = (torch.frombuffer(private, dtype=torch.uint8)[part] for part in (slice(9), slice(9, None), slice(0)))
    assert int(one.sum() + two.sum()) == 0
    assert _own_bytes([two, empty, one]) == 0
    two[-1] = 0
    assert _own_bytes([two, empty, one]) == mmap.PAGESIZE
    assert _own_bytes([two, torch.frombuffer(shared, dtype=torch.uint8)]) is None


def test_memory_that_nothing_was_written_to_has_the_value_of_the_pass():
    from streamerd._engines.vllm_proof import _Unwritten

    x = torch.ones(2, 3)
    with _Unwritten(7.0):
        made = [
            torch.empty(2, 3), torch.empty_like(x), torch.empty_strided((2, 3), (3, 1)), x.new_empty((2, 3)),
            x.new_empty_strided((2, 3), (3, 1)), torch.empty(2, 3, dtype=torch.bfloat16),
        ]  # fmt: skip
        assert torch.empty(2, dtype=torch.int32).dtype == torch.int32
        assert torch.equal(torch.zeros_like(x), x - x)
    assert all(torch.equal(tensor.float(), x * 7) for tensor in made)


def test_a_rank_alone_assumes_that_the_others_have_what_it_has():
    from streamerd._engines.vllm_proof import _Alone

    alone, x = _Alone(1, 2), torch.arange(6.0).view(2, 3)
    assert torch.equal(alone.all_reduce(x), x * 2)
    assert torch.equal(alone.all_gather(x, 0), torch.cat([x, x]))
    assert torch.equal(alone.reduce_scatter(x, 0), x[1:] * 2)
    assert alone.gather(x) is None
    assert torch.equal(alone.gather(x, 1, 0), torch.cat([x, x]))
    with pytest.raises(AttributeError, match="dispatch between ranks cannot be judged by one of them"):
        alone.dispatch(x)


def test_scalars_and_classes_that_differ_are_found():
    from streamerd._engines.vllm_state import changed, changes, differences, left_on_meta, scalars_of

    module = torch.nn.Linear(2, 2)
    module.scale, module.act = 1.0, torch.nn.functional.relu
    published = scalars_of(module)
    assert differences(published, scalars_of(module)) == []
    module.scale = 2.0
    assert differences(published, scalars_of(module)) == [":scale is 2.0, published 1.0"]
    del module.scale
    module.extra = None
    module.bias = None
    assert differences(published, scalars_of(module)) == [
        ":scale is absent, published 1.0",
        ":bias is None, published absent",
        ":extra is None, published absent",
    ]
    assert changed(scalars_of(module), changes(published, scalars_of(module))) == published
    assert left_on_meta(module) == []
    module.tables = [torch.empty(1, device="meta")]
    assert left_on_meta(module) == ["tables[0]"]


def test_tensors_of_objects_are_tensors_of_the_model():
    """Of vLLM's own objects, other than configurations; what a module has, too, is listed once."""
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig

    from streamerd._engines.vllm_state import scalars_of, tensors_of

    def made(module: str, **attributes: Any) -> Any:
        value = type("Thing", (), {"__module__": module})()
        vars(value).update(attributes)
        return value

    module = torch.nn.Linear(2, 2)
    kernel = made("vllm.kernels", workspace=torch.zeros(3), weight=module.weight)
    module.method = made("vllm.methods", kernel=kernel, table=torch.ones(1))
    module.config = made("vllm.config.model", tensor=torch.ones(1))
    module.foreign = SimpleNamespace(tensor=torch.ones(1))
    quantised = type("Quantised", (QuantizationConfig,), {"__module__": "vllm.quantised", "__init__": lambda self: None})
    quantised.__abstractmethods__ = frozenset()
    module.quantised = quantised()
    module.quantised.excluded = list({"a", "b"})
    kernel.back = module.method
    items = {item.name: item for item in tensors_of(module)}
    assert items.keys() == {"weight", "bias", ":method.kernel.workspace", ":method.table"}
    assert scalars_of(module)[":quantised"] == "Quantised"
    assert ":quantised.excluded" not in scalars_of(module)
    items[":method.table"].holder[items[":method.table"].place] = None
    assert module.method.table is None


class Handle:
    """As of a C++ library: of memory that it releases."""

    def __del__(self) -> None: ...

    def multiply(self) -> None: ...


def enclosing(value: Any) -> Any:
    return lambda: value


HANDLES = {
    "of a module": lambda handle, address: handle,
    "of a method of it": lambda handle, address: handle.multiply,
    "enclosed": lambda handle, address: enclosing(handle),
    "given": lambda handle, address: functools.partial(print, handle),
    "given to what is enclosed": lambda handle, address: enclosing(functools.partial(print, at=handle)),
    "address": lambda handle, address: address,
    "enclosed address": lambda handle, address: enclosing(address),
    "address in a tensor": lambda handle, address: torch.tensor([1, address]),
}


@pytest.mark.parametrize("kind", HANDLES)
def test_what_refers_to_memory_by_its_address_is_refused_before_a_tensor_is_moved(kind):
    from streamerd._engines.vllm_state import NotPublishable, require_movable, scalars_of, tensors_of

    def require(model: Any) -> None:
        require_movable(model, tensors_of(model), scalars_of(model))

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    model[0].compute = functools.partial(torch.nn.functional.linear, weight=model[0].weight)
    model[0].seed = torch.tensor([1 << 62])
    require(model)
    model[0].held = HANDLES[kind](Handle(), model[0].weight.data_ptr())
    with pytest.raises(NotPublishable, match=r"^0[:.]held .*memory"):
        require(model)


def test_a_method_that_cannot_skip_its_post_processing_is_refused_by_name_on_a_gpu(monkeypatch):
    """Where others map the memory, nothing may write to it. On the host it is not called: the table has what it leaves."""
    from streamerd._engines import vllm_attach
    from streamerd._engines.vllm_state import NotPublishable

    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    class Method(QuantizeMethodBase):
        supports_pre_processed_weights = False
        create_weights = apply = None

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    model[1].quant_method = Method()
    config = SimpleNamespace(device_config=SimpleNamespace(device="cpu"))
    monkeypatch.setattr(vllm_attach, "current_platform", SimpleNamespace(is_cpu=lambda: False))
    with pytest.raises(NotPublishable, match="Method of 1 does not support pre-processed weights"):
        vllm_attach.complete(model, config, SimpleNamespace(dtype=torch.float32), [], [], {})


class Memories:
    """In place of a publication: memory of this process."""

    def begin(self, sizes: list[int]) -> None:
        self.buffers = [torch.zeros(size, dtype=torch.uint8) for size in sizes]

    def storage(self, i: int) -> Any:
        from streamerd._publication import Memory

        return Memory(self.buffers[i].data_ptr(), len(self.buffers[i]), "host", self.buffers[i])

    def tensor(self, entry: Any) -> None: ...

    def attribute(self, name: str, value: str) -> None: ...

    def commit(self) -> None: ...


def test_a_declaration_is_about_the_hook_of_its_class():
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    from streamerd._engines.vllm_attach import _is_declared

    class Declares(QuantizeMethodBase):
        supports_pre_processed_weights = True
        create_weights = apply = None

        def process_weights_after_loading(self, layer: Any) -> None: ...

    class Inherits(Declares): ...

    class Overrides(Declares):
        def process_weights_after_loading(self, layer: Any) -> None: ...

    class DeclaresAgain(Overrides):
        supports_pre_processed_weights = True

    class Declines(Declares):
        supports_pre_processed_weights = False

    made = [kind() for kind in (Declares, Inherits, Overrides, DeclaresAgain, Declines)]
    assert [_is_declared(method) for method in made] == [True, True, False, True, False]
    made[2].supports_pre_processed_weights = True
    assert _is_declared(made[2])


def test_what_a_hook_leaves_is_restored(monkeypatch):
    """Parameters that it removed, replaced or added, and plain attributes of the layer and its objects. It is not called."""
    from streamerd._engines import vllm_attach
    from streamerd._engines.vllm_state import differences, scalars_of, tensors_of
    from streamerd._publish import publish_items

    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase

    class Method(QuantizeMethodBase):
        __module__ = "vllm.methods"
        create_weights = apply = None

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.weight = torch.nn.Parameter(layer.weight.detach().reshape(2, 4).to(torch.int8), requires_grad=False)
            layer.zeros = None
            del layer.scratch
            layer.register_buffer("table", torch.arange(3))
            layer.kind, layer.factor = "vec", 0.5
            self.ready = True

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(8, 1))
            self.zeros = torch.nn.Parameter(torch.ones(2))
            self.scratch = torch.nn.Parameter(torch.ones(2))
            self.quant_method = Method()
            self.quant_method.ready = False

    def process(model: Any, *more: Any) -> None:
        assert model[0].quant_method is None

    first = torch.nn.Sequential(Layer()).eval()
    first[0].quant_method.process_weights_after_loading(first[0])
    with torch.device("meta"):
        second = torch.nn.Sequential(Layer())
    monkeypatch.setattr(vllm_attach, "process_weights_after_loading", process)
    config = SimpleNamespace(device_config=SimpleNamespace(device="cpu"))

    def prove(entries: Any, storages: Any) -> dict[str, str]:
        vllm_attach.complete(second, config, SimpleNamespace(dtype=torch.float32), entries, storages, scalars_of(first))
        return {}

    publish_items(Memories(), tensors_of(first), {}, prove)
    assert differences(scalars_of(first), scalars_of(second)) == []
    assert {item.name for item in tensors_of(second)} == {"0.weight", "0.table"}
    assert torch.equal(second[0].weight, first[0].weight)
    assert second[0].weight.data_ptr() == first[0].weight.data_ptr()
    assert torch.equal(second[0].table, torch.arange(3))
    assert second[0].quant_method.ready
