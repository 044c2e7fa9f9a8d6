# SPDX-License-Identifier: Apache-2.0
"""The calls of safetensors and of Run:ai's streamer: the same code on the real packages and on ours."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import safetensors.torch
import torch
from checkpoints import BITS, UNREPRESENTED, every_dtype, small, write
from conftest import Daemon, eventually
from slow_server import SlowServer

import streamerd

pytestmark = pytest.mark.usefixtures("daemon")


@pytest.fixture
def file(folder: Path) -> Path:
    path = folder / "model.safetensors"
    tensors = [tensor for tensor in every_dtype([4, 8]) if tensor[1] not in UNREPRESENTED]
    write(path, [*tensors, ("scalar", "F32", []), ("empty", "F16", [0, 3])], {"format": "pt", "by": "a test"})
    return path


def bits(value: Any) -> tuple[str, tuple[int, ...], bytes]:
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    return str(value.dtype), tuple(value.shape), value.tobytes()


def real(name: str) -> Any:
    import safetensors.numpy
    import safetensors.torch
    from runai_model_streamer import SafetensorsStreamer

    return {
        "safe_open": safetensors.safe_open,
        "load_file": safetensors.torch.load_file,
        "load_file_np": safetensors.numpy.load_file,
        "SafetensorsStreamer": SafetensorsStreamer,
    }[name]


def ours(name: str) -> Any:
    if name == "load_file_np":
        return lambda filename: streamerd.load_file(filename, framework="np")
    return getattr(streamerd, name)


# ---- safetensors ----


def use_safe_open(safe_open: Any, file: Path) -> dict[str, Any]:
    """Everything that safe_open() tells of a file."""
    with safe_open(file, framework="pt", device="cpu") as f:
        part = f.get_slice("tensor.F32")
        return {
            "keys": f.keys(),
            "metadata": f.metadata(),
            "tensors": {name: bits(f.get_tensor(name)) for name in f.keys()},
            "get_tensors": {name: bits(tensor) for name, tensor in f.get_tensors().items()},
            "shape": part.get_shape(),
            "dtype": part.get_dtype(),
            "parts": [bits(part[i]) for i in (0, slice(1, 3), (slice(None), slice(2, 4)), (1, slice(0, 8, 2)), ...)],
            "offsets": sorted(f.offset_keys()),
        }


def test_safe_open_is_that_of_safetensors(file: Path) -> None:
    assert use_safe_open(ours("safe_open"), file) == use_safe_open(real("safe_open"), file)


def use_numpy(safe_open: Any, file: Path) -> dict[str, Any]:
    with safe_open(str(file), "np") as f:
        names = [name for name in f.keys() if name.split(".")[-1] in ("F32", "U8", "I64", "BOOL", "C64")]
        return {name: bits(f.get_tensor(name)) for name in names} | {"part": bits(f.get_slice("tensor.F32")[1:3])}


def test_safe_open_with_numpy_is_that_of_safetensors(file: Path) -> None:
    assert use_numpy(ours("safe_open"), file) == use_numpy(real("safe_open"), file)


def test_offset_keys_are_in_the_order_of_the_file(folder: Path) -> None:
    path = folder / "m.safetensors"
    tensors = [("z", "F32", [4]), ("a", "F32", [3]), ("e", "I64", [0, 3]), ("m", "BF16", [16]), ("b", "U8", [3])]
    write(path, [*tensors, ("f", "F64", [0]), ("c", "U8", [1])])
    for kind in (ours, real):
        with kind("safe_open")(path, "pt") as f:
            assert f.offset_keys() == ["z", "a", "e", "m", "b", "f", "c"]
    for _ in range(2):  # while it loads, and once it has
        assert list(streamerd.load_file(path)) == ["z", "a", "e", "m", "b", "f", "c"]
    with streamerd.use():
        assert list(safetensors.torch.load_file(path)) == ["z", "a", "e", "m", "b", "f", "c"]


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_empty_metadata_differs_from_none(folder: Path, metadata: dict[str, str] | None) -> None:
    path = folder / "m.safetensors"
    write(path, small(), metadata)
    for kind in (ours, real):
        with kind("safe_open")(path, "pt") as f:
            assert f.metadata() == metadata


@pytest.mark.parametrize("kind", [real, ours])
def test_errors_of_safe_open(kind: Any, file: Path) -> None:
    with pytest.raises(FileNotFoundError):
        kind("safe_open")("nosuch.safetensors", "pt")
    with pytest.raises(Exception, match="invalid|not known"):
        kind("safe_open")(file, "nosuch")
    with pytest.raises(Exception, match="backend .nosuch. is invalid"):
        kind("safe_open")(file, "pt", backend="nosuch")
    for framework in ("pytorch", "torch"):
        with kind("safe_open")(file, framework, backend="pread") as f:
            assert isinstance(f.get_tensor("scalar"), torch.Tensor)
    with kind("safe_open")(file, "pt") as f, pytest.raises(Exception, match="nosuch"):
        f.get_tensor("nosuch")
    with pytest.raises(Exception, match="closed"):
        f.get_tensor("scalar")


def test_load_file_is_that_of_safetensors(file: Path, folder: Path) -> None:
    results = [{n: bits(t) for n, t in kind("load_file")(file, device="cpu").items()} for kind in (ours, real)]
    assert results[0] == results[1]
    plain = folder / "plain.safetensors"
    write(plain, small())
    results = [{n: bits(t) for n, t in kind("load_file_np")(plain).items()} for kind in (ours, real)]
    assert results[0] == results[1]


def test_files_of_the_same_name_do_not_replace_each_other(folder: Path, daemon: Daemon) -> None:
    for name, count in (("a", 1), ("b", 2)):
        (folder / name).mkdir()
        write(folder / name / "model.safetensors", small(count))
    assert [len(streamerd.load_file(folder / name / "model.safetensors")) for name in "ab"] == [1, 2]
    models = json.loads(daemon.ctl("list", "--json").stdout)["models"]
    assert [model["name"] for model in models] == [str(folder / name / "model.safetensors") for name in "ab"]


def outcome(value: Callable[[], Any]) -> Any:
    """What a call returns, or the names of the types that it raises."""
    try:
        return bits(value())
    except Exception as e:
        return "SafetensorError" if "SafetensorError" in map(name_of, type(e).__mro__) else name_of(type(e))


def name_of(kind: type) -> str:
    return kind.__name__


# In places where safetensors fails by itself (SystemError, OverflowError), ours gives numpy's result.
INDICES: list[Any] = [
    0, -1, 4, -4, -5, True, numpy.int64(1), slice(1, 3), slice(3, 4), slice(1, 1), slice(0, 5), slice(4, None),
    slice(4, 4),
    slice(None, None, 3), slice(None, None, -1), slice(0, 4, 0), None, [0, 1], [], [9], ..., (), (0, 1),
    (-1, -1), (0, 8), (0, 1, 2), (..., 0), (0, ...), (..., slice(0, 2)), (..., ...), (None, 0), (0, None), (0, [1, 2]),
    (slice(None), slice(None, None, 2)), (slice(2, 2), 0), numpy.array([0, 1]), 1.5, "a",
]  # fmt: skip


@pytest.mark.parametrize("framework", ["np", "pt"])
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_a_slice_is_indexed_as_by_safetensors(file: Path, framework: str, index: Any) -> None:
    """Refused where safetensors refuses it, with its type of error."""
    results = []
    for kind in (ours, real):
        with kind("safe_open")(file, framework) as f:
            part, scalar = f.get_slice("tensor.F32"), f.get_slice("scalar")
            results.append((outcome(lambda part=part: part[index]), outcome(lambda scalar=scalar: scalar[index])))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("framework", "device"),
    [("pt", "foo"), ("pt", "CPU"), ("pt", "meta"), ("pt", -1), ("pt", 1.5)]
    + [("np", device) for device in ("foo", 0, "cuda", "cuda:0", "mps", -1)],
)
def test_a_device_is_refused_as_by_safetensors(file: Path, framework: str, device: Any) -> None:
    import safetensors

    for kind in (ours, real):
        with pytest.raises(safetensors.SafetensorError, match=r"(?i)device .* (is invalid|not supported)"):
            kind("safe_open")(file, framework, device)
    with pytest.raises(streamerd.InvalidError):
        streamerd.safe_open(file, framework, device)


# ---- Run:ai Model Streamer ----


@pytest.fixture
def files(folder: Path) -> list[str]:
    paths = []
    for i in range(3):
        path = folder / f"model-{i}.safetensors"
        write(path, [(f"{i}.{name}", dtype, shape) for name, dtype, shape in every_dtype([4, 8]) if is_common(dtype)])
        paths.append(str(path))
    return paths


def is_common(dtype: str) -> bool:
    """Run:ai's class has no FNUZ types, and takes F4's logical shape for torch's."""
    return dtype not in UNREPRESENTED and "FNUZ" not in dtype and dtype != "F4"


def test_stream_files_is_that_of_runai(files: list[str]) -> None:
    results = []
    for kind in (ours, real):
        with kind("SafetensorsStreamer")() as streamer:
            streamer.stream_files(files, device="cpu")
            total = sum(len(tensors) for tensors in streamer.files_to_tensors_metadata.values())
            results.append((total, {name: bits(tensor) for name, tensor in streamer.get_tensors()}))
    assert results[0] == results[1]
    assert results[0][0] == 3 * len([dtype for dtype in BITS if is_common(dtype)])


def test_stream_file_keeps_tensors_and_may_be_repeated(files: list[str]) -> None:
    results = []
    for kind in (ours, real):
        kept = {}
        with kind("SafetensorsStreamer")() as streamer:
            for path in files:
                streamer.stream_file(path)
                kept.update(streamer.get_tensors())
        results.append({name: bits(tensor) for name, tensor in kept.items()})
    assert results[0] == results[1]


def test_tensor_names_are_those_of_runai(files: list[str]) -> None:
    results = []
    names = {"0.tensor.F32", "2.tensor.BF16"}
    for kind in (ours, real):
        with kind("SafetensorsStreamer")() as streamer:
            streamer.stream_files(files, tensor_names=names)
            results.append({name: bits(tensor) for name, tensor in streamer.get_tensors()})
            for wrong, text in (("0.tensor.F32", "str"), ([], "empty"), (["nosuch"], "nosuch")):
                with pytest.raises(ValueError, match=text):
                    streamer.stream_files(files, tensor_names=wrong)
            with pytest.raises(ValueError, match="0.tensor.F32"):
                streamer.stream_files([files[0], files[0]], tensor_names=["0.tensor.F32"])
    assert results[0] == results[1]
    assert results[0].keys() == names


def test_credentials_of_a_call_are_refused(files: list[str]) -> None:
    with pytest.raises(streamerd.UnsupportedError, match="set AWS_"):
        streamerd.SafetensorsStreamer().stream_file(files[0], s3_credentials=object())


def test_more_files_than_the_daemon_loads_at_once(folder: Path, daemon: Daemon) -> None:
    """More than limits.loads and limits.loads_per_uid, while another client loads as well."""
    paths = []
    for i in range(150):
        path = folder / f"{i}.safetensors"
        write(path, [(f"{i}.{name}", dtype, shape) for name, dtype, shape in small(2)])
        paths.append(str(path))
    with streamerd.SafetensorsStreamer() as one, streamerd.SafetensorsStreamer() as other:
        one.stream_files(paths)
        other.stream_files(paths)
        streamerd.open(paths[-1]).close()
        expected = {f"{i}.layer.{k}.weight" for i in range(150) for k in range(2)}
        for streamer in (one, other):
            found = [name for name, _ in streamer.get_tensors()]
            assert len(found) == 300 and set(found) == expected
            assert sum(len(infos) for infos in streamer.files_to_tensors_metadata.values()) == 300
    eventually(lambda: not daemon.leases())


def test_tensors_of_all_files_come_in_order_of_arrival(slow_server: SlowServer, folder: Path) -> None:
    slow = slow_server.serve("slow.safetensors", [("begin", "U8", [1 << 20]), ("slow", "U8", [1 << 20])], first=1)
    write(folder / "fast.safetensors", [("fast", "U8", [8])])
    with streamerd.SafetensorsStreamer() as streamer:
        streamer.stream_files([slow, str(folder / "fast.safetensors")])
        tensors = streamer.get_tensors()
        names = [next(tensors)[0]]
        while names[-1] != "fast":
            names.append(next(tensors)[0])
        assert "slow" not in names
        slow_server.release()
        assert sorted([*names, *(name for name, _ in tensors)]) == ["begin", "fast", "slow"]


@pytest.mark.parametrize("kind", [real, ours])
def test_a_damaged_file_is_the_originals_error(kind: Any, folder: Path) -> None:
    import safetensors

    path = folder / "damaged.safetensors"
    path.write_bytes(b"PK\x03\x04 no safetensors" * 100)
    with pytest.raises(safetensors.SafetensorError):
        kind("load_file")(path)
    with pytest.raises(ValueError), kind("SafetensorsStreamer")() as streamer:
        streamer.stream_file(str(path))
        list(streamer.get_tensors())
    write(folder / "m.safetensors", small())
    with kind("safe_open")(folder / "m.safetensors", "pt") as f, pytest.raises(safetensors.SafetensorError):
        f.get_tensor("nosuch")


def test_errors_of_the_drop_ins_are_ours_too(folder: Path) -> None:
    path = folder / "damaged.safetensors"
    path.write_bytes(b"PK\x03\x04 no safetensors" * 100)
    with pytest.raises(streamerd.FailedError, match="damaged.safetensors") as caught:
        streamerd.load_file(path)
    assert caught.value.code == streamerd.FailedError.code
    write(folder / "m.safetensors", small())
    with streamerd.safe_open(folder / "m.safetensors", "pt") as f, pytest.raises(KeyError, match="no tensor"):
        f.get_tensor("nosuch")


class Damaged(torch.utils.data.Dataset[Any]):
    def __init__(self, path: Path) -> None:
        self.path = path

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> Any:
        return streamerd.load_file(self.path)


def test_an_error_of_two_types_is_pickled(folder: Path) -> None:
    """Workers of torch's DataLoader pickle the type, others the error."""
    import safetensors

    path = folder / "damaged.safetensors"
    path.write_bytes(b"PK\x03\x04 no safetensors" * 100)
    with pytest.raises(safetensors.SafetensorError) as caught:
        streamerd.load_file(path)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (type(error), error.args, error.code) == (caught.type, caught.value.args, streamerd.FailedError.code)
    loaded = pickle.dumps(caught.value)
    program = "import pickle, sys; e = pickle.load(sys.stdin.buffer); print(e.code, *map(repr, type(e).__bases__))"
    other = subprocess.run([sys.executable, "-c", program], input=loaded, capture_output=True, check=True)
    assert b"-1 <class 'streamerd.errors.FailedError'> <class 'safetensors" in other.stdout.replace(b"_rust", b"")
    workers: Any = torch.utils.data.DataLoader(Damaged(path), num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(streamerd.FailedError, match="damaged.safetensors"):
        list(workers)


def test_a_gpu_that_the_daemon_lacks_gets_copies(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's "meta" device, in place of a GPU, has no memory: a tensor on it was copied by torch."""
    write(folder / "m.safetensors", small())
    monkeypatch.setattr("streamerd._placement.device_name", lambda device: "cuda:0")
    monkeypatch.setattr("streamerd._client._logged", set())
    with streamerd.safe_open(folder / "m.safetensors", "pt", device="meta") as f:
        assert f.get_tensor("layer.0.weight").device.type == "meta"
    with streamerd.SafetensorsStreamer() as streamer:
        streamer.stream_file(str(folder / "m.safetensors"), device="meta")
        assert {tensor.device.type for _, tensor in streamer.get_tensors()} == {"meta"}
    assert [record.getMessage().count("has no GPU") for record in caplog.records] == [1]


def test_the_signatures_are_those_of_runai() -> None:
    import inspect

    import runai_model_streamer

    for name in ("list_safetensors", "pull_files", "ObjectStorageModel", "SafetensorsStreamer.stream_files"):
        theirs: Any = runai_model_streamer
        mine: Any = streamerd
        for part in name.split("."):
            theirs, mine = getattr(theirs, part), getattr(mine, part)
        described = [(p.name, p.default, p.kind) for p in inspect.signature(theirs).parameters.values()]
        assert [(p.name, p.default, p.kind) for p in inspect.signature(mine).parameters.values()] == described, name


def test_files_of_a_folder_are_listed_as_by_runai(folder: Path) -> None:
    import runai_model_streamer

    for name in ("a.safetensors", "b.safetensors", "config.json"):
        (folder / name).touch()
    assert sorted(streamerd.list_safetensors(str(folder))) == sorted(runai_model_streamer.list_safetensors(str(folder)))
