# SPDX-License-Identifier: Apache-2.0
"""Modules whose tensors are published, and modules that are filled with them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import small
from conftest import Daemon, eventually, interrupted, tiny_llama
from safetensors.torch import save_file
from slow_server import SlowServer
from torch import nn

import streamerd
from streamerd._publish import items_of

KEY = {"engine": "test", "dtype": "float32"}


# ---- modules ----


class Mixed(nn.Module):
    """What a plain layer does not have: transposed, overlapping, expanded, empty and scalar tensors, and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 4).t(), requires_grad=False)
        self.frozen = nn.Parameter(torch.randn(4, dtype=torch.bfloat16), requires_grad=False)
        self.register_buffer("whole", torch.arange(12, dtype=torch.int32))
        self.register_buffer("part", self.whole[4:8])
        self.register_buffer("wide", torch.randn(1, 4).expand(5, 4), persistent=False)
        self.register_buffer("empty", torch.empty(0, 7))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("phase", torch.randn(3, dtype=torch.complex64))
        self.table = torch.randn(8)
        self.tables = {"a": [torch.randn(2)], 1: torch.randn(3)}
        self.captured = [self.weight]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.captured[0] + self.tables["a"][0].sum() + self.table.sum() + self.wide.sum()
        return y * self.flag + self.frozen.float().sum() + self.part.sum() + self.phase.abs().sum() + self.tables[1].sum()


class Quantised(nn.Module):
    """A linear layer with int8 weights in buffers and one scale for each row."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(16, 8)
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight.float() * self.scale).t()


class Residual(nn.Module):
    """A block of an image model, with the running statistics of its normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(3, 2)
        if not self.norm.weight.is_meta:
            self.train()
            for _ in range(3):
                self.forward(torch.randn(4, 3, 8, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.conv(x)) + x).mean((2, 3)))


def llama(tied: bool) -> Any:
    return tiny_llama(num_key_value_heads=2, vocab_size=128, tie_word_embeddings=tied)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, vocab_size=128, n_positions=64)
    return transformers.GPT2LMHeadModel(config)


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "llama": (lambda: llama(False), lambda: torch.arange(12).reshape(1, 12)),
    "llama-tied": (lambda: llama(True), lambda: torch.arange(12).reshape(1, 12)),
    "gpt2": (gpt2, lambda: torch.arange(12).reshape(1, 12)),
    "quantised": (Quantised, lambda: torch.ones(2, 8)),
    "batchnorm": (Residual, lambda: torch.ones(2, 3, 8, 8)),
    "lstm": (lambda: nn.LSTM(8, 6, 2), lambda: torch.ones(3, 8)),
    "mixed": (Mixed, lambda: torch.ones(2, 4)),
}


def output(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        result: Any = module(x)
    if hasattr(result, "logits"):
        return result.logits
    return result[0] if isinstance(result, tuple) else result


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.device("meta"):
        return make().eval()


def linear() -> nn.Linear:
    return nn.Linear(8, 4)


# ---- what is shared ----


@pytest.mark.parametrize("name", MODULES)
def test_outputs_are_the_same_in_the_publisher_and_in_a_module_from_meta(daemon: Daemon, name: str) -> None:
    make, inputs = MODULES[name]
    torch.manual_seed(3)
    module, x = make().eval(), inputs()
    expected = output(module, x)
    streamerd.publish(module, name, key=KEY)
    assert torch.equal(output(module, x), expected)
    other = on_meta(make)
    assert streamerd.load_into(other, name, key=KEY) == ([], [])
    assert torch.equal(output(other, x), expected)
    published = {item.name: item.tensor for item in items_of(module)}
    filled = {item.name: item.tensor for item in items_of(other)}
    assert published.keys() == filled.keys()
    for tensor_name, tensor in published.items():
        assert filled[tensor_name].stride() == tensor.stride(), tensor_name
        assert filled[tensor_name].dtype == tensor.dtype
        assert filled[tensor_name].requires_grad == tensor.requires_grad
        assert type(filled[tensor_name]) is type(tensor)
    assert other.state_dict().keys() == module.state_dict().keys()


def test_a_module_of_many_parts_is_published(daemon: Daemon) -> None:
    """Their classes are a longer text than one of a table may be. All of it is compared."""

    def make(last: type[nn.Module] = nn.Identity) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), *(nn.Identity() for _ in range(8000)), last())

    module = make()
    streamerd.publish(module, "parts", key=KEY)
    other = on_meta(make)
    streamerd.load_into(other, "parts", key=KEY)
    assert torch.equal(other[0].weight, module[0].weight)
    with pytest.raises(streamerd.InvalidError, match="8001: published as Identity, built as ReLU"):
        streamerd.load_into(on_meta(lambda: make(nn.ReLU)), "parts", key=KEY)


def test_what_shares_memory_does_so_on_both_sides(daemon: Daemon) -> None:
    module = Mixed()
    streamerd.publish(module, "m", key=KEY)
    other = on_meta(Mixed)
    streamerd.load_into(other, "m", key=KEY)
    for m in (module, other):
        assert m.captured[0] is m.weight
        m.whole[5] = 77
        assert m.part[1] == 77


def test_tied_weights_are_one_parameter_and_stored_once(daemon: Daemon) -> None:
    module = llama(True)
    size = sum(p.nbytes for p in module.parameters())
    streamerd.publish(module, "tied", key=KEY)
    other = on_meta(lambda: llama(True))
    streamerd.load_into(other, "tied", key=KEY)
    assert other.lm_head.weight is other.model.embed_tokens.weight
    [model] = daemon._client.call("list")["models"]
    assert model["bytes"] < size * 1.1 + (1 << 16)


def test_parameters_that_are_tied_on_one_side_only_follow_the_publisher(daemon: Daemon) -> None:
    class Two(nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4, bias=False)
            self.b = nn.Linear(4, 4, bias=False)
            if tied:
                self.b.weight = self.a.weight

    for tied in (True, False):
        module = Two(tied)
        streamerd.publish(module, f"tied-{tied}", key=KEY)
        other = on_meta(lambda tied=tied: Two(not tied))
        streamerd.load_into(other, f"tied-{tied}", key=KEY)
        assert torch.equal(other.a.weight, module.a.weight)
        assert torch.equal(other.b.weight, module.b.weight)
        assert (other.a.weight is other.b.weight) == tied


def test_a_write_reaches_no_other_process(daemon: Daemon) -> None:
    module = linear()
    before = module.weight.detach().clone()
    streamerd.publish(module, "m", key=KEY)
    others = [on_meta(linear) for _ in range(2)]
    for other in others:
        streamerd.load_into(other, "m", key=KEY)
    with torch.no_grad():
        module.weight.zero_()
        others[0].weight.add_(1)
    assert torch.equal(others[0].weight, before + 1)
    assert torch.equal(others[1].weight, before)
    later = on_meta(linear)
    streamerd.load_into(later, "m", key=KEY)
    assert torch.equal(later.weight, before)


def test_the_lease_ends_with_the_last_tensor(daemon: Daemon) -> None:
    module, other = linear(), on_meta(linear)
    streamerd.publish(module, "m", key=KEY)
    streamerd.load_into(other, "m", key=KEY)
    assert len(daemon.leases()) == 2
    weight = module.weight
    del module, other
    gc.collect()
    eventually(lambda: len(daemon.leases()) == 1)
    assert weight.isfinite().all()
    del weight
    gc.collect()
    eventually(lambda: daemon.leases() == [])


def test_a_published_module_can_be_trained(daemon: Daemon) -> None:
    module = linear()
    streamerd.publish(module, "m", key=KEY)
    before = module.weight.detach().clone()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    module(torch.ones(2, 8)).sum().backward()
    optimizer.step()
    assert not torch.equal(module.weight, before)


# ---- what is refused ----


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ({**KEY, "dtype": "bfloat16"}, "dtype: published with 'float32', needed 'bfloat16'"),
        ({**KEY, "rank": "1"}, "rank: published with nothing, needed '1'"),
        ({"engine": "test"}, "dtype: published with 'float32', needed nothing"),
        ({**KEY, "engine": "other", "dtype": "x"}, "dtype: .*engine: |engine: .*dtype: "),
    ],
)
def test_each_field_of_the_key_that_differs_is_named(daemon: Daemon, key: dict[str, str], text: str) -> None:
    streamerd.publish(linear(), "m", key=KEY)
    other = on_meta(linear)
    with pytest.raises(streamerd.Error, match=text):
        streamerd.load_into(other, "m", key=key)
    assert other.weight.is_meta


def test_no_field_of_a_long_key_is_ignored(daemon: Daemon) -> None:
    """The fields of vLLM's key."""
    fields = (
        "engine plugin torch platform architecture config dtype quantization kv_cache_dtype attention linear tp_size tp_rank "
        "pp_size dp_size ep draft lora max_model_len env.VLLM_ATTENTION_BACKEND"
    ).split()
    key = {field: "right" for field in fields}
    streamerd.publish(linear(), "m", key=key)
    for field in fields:
        with pytest.raises(streamerd.Error, match=f"differs: {field}: published with 'right', needed 'wrong'$"):
            streamerd.load_into(on_meta(linear), "m", key={**key, field: "wrong"})
    streamerd.load_into(on_meta(linear), "m", key=key)


def test_a_model_that_is_not_published_is_not_found(folder: Path, daemon: Daemon) -> None:
    with pytest.raises(FileNotFoundError, match="no published model"):
        streamerd.load_into(on_meta(linear), "m", key=KEY)


@pytest.mark.parametrize("key", [{"a": 1}, {"a=b": "1"}])
def test_a_key_maps_names_to_texts(daemon: Daemon, key: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the key maps names to texts"):
        streamerd.publish(linear(), "m", key=key)


def test_options_that_a_published_model_does_not_have_are_named(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="no option pin"):
        streamerd.load_into(linear(), "m", key=KEY, pin=True)
    with pytest.raises(ValueError, match="the name of a published model"):
        streamerd.load_into(linear(), Path("m"), key=KEY)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: nn.Linear(8, 4, bias=False), r"not in the module: \['bias'\]"),
        (lambda: nn.Linear(8, 5), r"weight: \[4, 8\] published, \[5, 8\] built"),
        (lambda: nn.Bilinear(8, 8, 4), "published as Linear, built as Bilinear"),
        (lambda: nn.Sequential(linear()), "published as Linear, built as Sequential"),
    ],
)
def test_a_module_that_differs_is_left_as_it_was(daemon: Daemon, make: Callable[[], nn.Module], text: str) -> None:
    streamerd.publish(linear(), "m", key=KEY)
    other = on_meta(make)
    with pytest.raises(ValueError, match=text):
        streamerd.load_into(other, "m", key=KEY)
    assert all(p.is_meta for p in other.parameters())


class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))


class Attributes(nn.Module):
    """A parameter, and tensors in attributes that are set later, so that the classes of two are equal."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        vars(self).update(attributes)


def require_unchanged(other: nn.Module, error: type[Exception], text: str) -> None:
    """load_into() refuses, and no tensor of the module is another one, or has other contents."""
    before = {item.name: item.tensor for item in items_of(other)}
    with pytest.raises(error, match=text):
        streamerd.load_into(other, "m", key=KEY)
    after = {item.name: item.tensor for item in items_of(other)}
    assert after.keys() == before.keys()
    assert all(after[name] is tensor and tensor.is_meta for name, tensor in before.items())


def test_a_missing_container_is_refused_before_anything_is_changed(daemon: Daemon) -> None:
    streamerd.publish(Attributes(tables=[torch.ones(3)]), "m", key=KEY)
    other = on_meta(Attributes)
    require_unchanged(other, ValueError, r"not in the module: \['tables\[0\]'\]")


@pytest.mark.parametrize("case", ["weak reference", "several there"])
def test_a_tuple_whose_tensor_cannot_follow_is_refused_before_anything_is_changed(daemon: Daemon, case: str) -> None:
    first, second = torch.ones(3), torch.full((3,), 2.0)
    streamerd.publish(Attributes(pair=(first, second)), "m", key=KEY)
    with torch.device("meta"):
        first = torch.ones(3)
        other = Attributes(pair=(first, first if case == "several there" else torch.ones(3)))
    reference = weakref.ref(first) if case == "weak reference" else None
    require_unchanged(other, streamerd.UnsupportedError, r"pair\[.\]: a tensor of a tuple")
    assert reference is None or reference() is first


def test_an_element_of_a_tuple_gets_the_published_contents(daemon: Daemon) -> None:
    streamerd.publish(Attributes(pair=(torch.full((3,), 2.0), torch.ones(3))), "m", key=KEY)
    with torch.device("meta"):
        other = Attributes(pair=(torch.ones(3), torch.ones(3)))
    streamerd.load_into(other, "m", key=KEY)
    assert other.pair[0].tolist() == [2.0] * 3


def test_a_tensor_that_would_stay_without_memory_is_named(daemon: Daemon) -> None:
    streamerd.publish(Hidden(), "m", key=KEY)
    other = on_meta(Hidden)
    other.extra = torch.empty(2, device="meta")
    with pytest.raises(ValueError, match=r"not published: \['extra'\]"):
        streamerd.load_into(other, "m", key=KEY)
    assert other.weight.is_meta


def test_tensors_without_plain_memory_are_refused_and_the_module_is_unchanged(daemon: Daemon) -> None:
    module = Hidden()
    module.sparse = torch.eye(3).to_sparse()
    address = module.weight.data_ptr()
    with pytest.raises(streamerd.UnsupportedError, match="sparse has no plain memory"):
        streamerd.publish(module, "m", key=KEY)
    assert module.weight.data_ptr() == address
    del module.sparse
    streamerd.publish(module, "m", key=KEY)  # the claim was returned


def test_a_module_on_meta_is_not_published(daemon: Daemon) -> None:
    with pytest.raises(ValueError, match="weight is on the meta device"):
        streamerd.publish(on_meta(linear), "m", key=KEY)


def test_a_commit_that_fails_leaves_the_module_with_memory_of_its_own(daemon: Daemon) -> None:
    """A forked child inherits the writable mapping, and so prevents the seal."""
    module = linear()
    module.again = module.weight.data.t()
    before = module.weight.detach().clone()
    child = 0
    commit = streamerd._publication.Publication.commit

    def fork_first(publication: Any) -> None:
        nonlocal child
        child = os.fork()
        if child == 0:
            signal.pause()
        commit(publication)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamerd._publication.Publication, "commit", fork_first)
        with pytest.raises(streamerd.BusyError):
            streamerd.publish(module, "m", key=KEY)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert torch.equal(module.weight, before)
    with torch.no_grad():
        module.weight.add_(1)
        assert torch.equal(module.again, module.weight.t())
        module.weight.sub_(1)
        module.weight.copy_(before)
    assert daemon._client.call("list")["models"] == []
    streamerd.publish(module, "m", key=KEY)
    assert torch.equal(module.weight, before)


def test_what_is_written_to_protected_memory_is_dropped(daemon: Daemon) -> None:
    module = linear()
    before = module.weight.detach().clone()
    commit = streamerd._publication.Publication.commit

    def write_first(publication: Any) -> None:
        assert publication.protect()
        module.weight.data.add_(1)
        assert publication.protect()
        assert torch.equal(module.weight, before)
        module.weight.data.add_(1)
        commit(publication)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streamerd._publication.Publication, "commit", write_first)
        streamerd.publish(module, "m", key=KEY)
    other = on_meta(linear)
    streamerd.load_into(other, "m", key=KEY)
    assert torch.equal(other.weight, before)


# ---- the base ----


def write(path: Path, value: float) -> Path:
    save_file({"weight": torch.full((4, 8), value), "bias": torch.zeros(4)}, path)
    return path


def test_the_same_headers_with_other_weights_are_another_base(folder: Path, daemon: Daemon) -> None:
    one, two = write(folder / "one.safetensors", 1.0), write(folder / "two.safetensors", 2.0)
    streamerd.publish(linear(), "m", key=KEY, base=one)
    streamerd.load_into(on_meta(linear), "m", key=KEY, base=one)
    with pytest.raises(streamerd.Error, match="base: published with"):
        streamerd.load_into(on_meta(linear), "m", key=KEY, base=two)


def test_a_base_that_changes_makes_the_model_stale_and_mapped_memory_stays(folder: Path, daemon: Daemon) -> None:
    base = write(folder / "one.safetensors", 1.0)
    module, other = linear(), on_meta(linear)
    streamerd.publish(module, "m", key=KEY, base=base)
    streamerd.load_into(other, "m", key=KEY, base=base)
    write(folder / "new.safetensors", 2.0).rename(base)
    with pytest.raises(FileNotFoundError, match="out of date"):
        streamerd.load_into(on_meta(linear), "m", key=KEY, base=base)
    assert torch.equal(other.weight, module.weight)
    streamerd.publish(linear(), "m", key=KEY, base=base)
    streamerd.load_into(on_meta(linear), "m", key=KEY, base=base)
    assert torch.equal(other.weight, module.weight)


def test_a_base_that_is_examined_for_long_is_waited_for(daemon: Daemon, slow_server: SlowServer) -> None:
    """A search that were cut into shorter ones would begin again for ever."""
    base = slow_server.serve("model.safetensors", small(), first=len(small()))
    slow_server.latency = 0.7
    module, other = linear(), on_meta(linear)
    streamerd.publish(module, "m", key=KEY, base=base, timeout=60)
    streamerd.load_into(other, "m", key=KEY, base=base, timeout=60)
    assert torch.equal(other.weight, module.weight)
    with pytest.raises(TimeoutError):
        streamerd.load_into(on_meta(linear), "m", key=KEY, base=base, timeout=0.1)


def test_an_interrupt_ends_a_search(daemon: Daemon, slow_server: SlowServer) -> None:
    """A claim that is granted later is returned, although the process lives on."""
    url = slow_server.serve("model.safetensors", small())
    call = 'import torch; streamerd.publish(torch.nn.Linear(8, 4), "m", key={"a": "1"}, base=sys.argv[1])'
    program = interrupted(call, url, slow_server)
    slow_server.release()
    streamerd.publish(linear(), "m", key={"a": "1"}, timeout=60)
    program.communicate("x")
    assert program.returncode == 0


# ---- processes ----

PUBLISHER = """
import os, signal, sys, torch, streamerd
from streamerd._publication import Publication
seed, when = int(sys.argv[1]), sys.argv[2]
torch.manual_seed(seed)
module = torch.nn.Linear(8, 4)
commit = Publication.commit
def dying(publication):
    if when == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    commit(publication)
    if when == "after":
        os.kill(os.getpid(), signal.SIGKILL)
Publication.commit = dying
streamerd.publish(module, "m", key={"a": "1"})
print(module.weight.sum().item())
"""


def publisher(seed: int, when: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PUBLISHER, str(seed), when], stdout=subprocess.PIPE, text=True)


def test_a_publisher_that_dies_before_its_commit_leaves_nothing(daemon: Daemon) -> None:
    assert publisher(1, "before").wait() == -signal.SIGKILL
    module = linear()
    streamerd.publish(module, "m", key={"a": "1"})
    other = on_meta(linear)
    streamerd.load_into(other, "m", key={"a": "1"})
    assert torch.equal(other.weight, module.weight)


def test_a_publisher_that_dies_after_its_commit_leaves_the_model(daemon: Daemon) -> None:
    assert publisher(1, "after").wait() == -signal.SIGKILL
    torch.manual_seed(1)
    expected = linear().weight
    other = on_meta(linear)
    streamerd.load_into(other, "m", key={"a": "1"})
    assert torch.equal(other.weight, expected)


def test_of_two_publishers_with_one_key_one_publishes_and_both_share(daemon: Daemon) -> None:
    publishers = [publisher(seed) for seed in (1, 2)]
    sums = {process.communicate()[0] for process in publishers}
    assert [process.returncode for process in publishers] == [0, 0]
    assert len(sums) == 1
    [model] = daemon._client.call("list")["models"]
    assert model["generation"] == 1


def test_modules_outlive_the_daemon_and_publish_to_the_next(folder: Path, daemon: Daemon) -> None:
    module, other = linear(), on_meta(linear)
    streamerd.publish(module, "m", key=KEY)
    streamerd.load_into(other, "m", key=KEY)
    daemon.kill()
    assert torch.equal(other.weight, module.weight)
    with pytest.raises(ConnectionError):
        streamerd.publish(linear(), "n", key=KEY)
    again = Daemon(folder)
    try:
        with pytest.raises(FileNotFoundError, match="no published model"):
            streamerd.load_into(on_meta(linear), "m", key=KEY)
        streamerd.publish(module, "m", key=KEY)
        streamerd.load_into(other, "m", key=KEY)
        assert torch.equal(other.weight, module.weight)
    finally:
        again.stop()


def test_show_has_the_publisher_the_base_and_the_key(folder: Path, daemon: Daemon) -> None:
    base = write(folder / "one.safetensors", 1.0)
    streamerd.publish(linear(), "m", key=KEY, base=base)
    [model] = daemon._client.call("show", model="m")["models"]
    assert model["published"]["uid"] == os.getuid()
    assert model["published"]["key"] == KEY
    assert model["published"]["base"].endswith("one.safetensors")


class Overlapping(nn.Module):
    """Views of one storage with elements of several sizes, the first of which begin where the others' do not fit."""

    def __init__(self) -> None:
        super().__init__()
        memory = torch.arange(64, dtype=torch.uint8)
        self.register_buffer("a", memory[2:12].view(torch.int16))
        self.register_buffer("b", memory[4:12].view(torch.float32))
        self.register_buffer("c", memory[3:5])
        self.register_buffer("d", memory[8:16].view(torch.int64))
        self.register_buffer("e", memory[33:35])
        self.register_buffer("f", memory[32:48].view(torch.complex128))


def test_views_of_several_element_sizes_are_published(daemon: Daemon) -> None:
    module, empty = Overlapping(), Overlapping()
    contents = {name: buffer.clone() for name, buffer in module.named_buffers()}
    for buffer in empty.buffers():
        buffer.zero_()
    streamerd.publish(module, "m", key=KEY)
    streamerd.load_into(empty, "m", key=KEY)
    for kind in (module, empty):
        assert {name for name, _ in kind.named_buffers()} == contents.keys()
        for name, buffer in kind.named_buffers():
            assert torch.equal(buffer, contents[name]), name
    empty.get_buffer("c").fill_(7)  # byte 3 and 4
    assert empty.get_buffer("a").view(torch.uint8)[1:3].tolist() == [7, 7]
