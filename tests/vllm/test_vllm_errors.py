# SPDX-License-Identifier: Apache-2.0
"""What a user reads when a model cannot be loaded: the cause, and what to do."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import Daemon, Engine, EngineError

import streamerd
import streamerd.vllm
from streamerd._engines.options import Options


LOADER = "vllm.model_executor.model_loader"


def refused(engine: Engine, model: Path, extra: dict[str, object], load_format: str = "streamerd") -> str:
    with pytest.raises(EngineError) as caught:
        engine.start(model, load_format, extra)
    engine.call("stop")
    return str(caught.value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"digets": "0" * 32}, r"unknown key 'digets'; did you mean 'digest'\? \(known: name, .*fallback\)"),
        ({"distributed": True}, r"unknown key 'distributed' \(known"),
        ({"alias": 1}, 'alias must be true, false or "auto", not 1'),
        ({"alias": "yes"}, 'alias must be true, false or "auto", not \'yes\''),
        ({"pin": 1}, "pin must be true or false, not 1"),
        ({"evict": "no"}, "evict must be true or false, not 'no'"),
        ({"priority": 0}, "priority must be an integer from 1 to 10000, not 0"),
        ({"priority": True}, "priority must be an integer from 1 to 10000, not True"),
        ({"verify": "md5"}, "verify must be \"none\" or \"sha256\", not 'md5'"),
        ({"timeout": 0}, 'timeout must be a positive number of seconds, or a text such as "30m", not 0'),
        ({"timeout": "3"}, "timeout must be a positive number of seconds, or a text such as \"30m\", not '3'"),
        ({"keep_alive": "half an hour"}, "keep_alive must be a positive number of seconds, or a text such as \"30m\""),
        ({"concurrency": 0}, "concurrency must be a positive integer, not 0"),
        ({"name": ["a"]}, r"name must be a string that is not empty, not \['a'\]"),
        ({"socket": ""}, "socket must be a string that is not empty, not ''"),
        ({"enable_multithread_load": True}, "enable_multithread_load is for the engine's own formats"),
        ({"digest": "abc"}, "digest must be 32 hex digits, not 'abc'"),
        ([], "must be a JSON object, not list"),
    ],
)
def test_invalid_options_are_named(config, message):
    with pytest.raises(ValueError, match=message):
        Options.parse(config, "streamerd")


def test_options_are_checked_before_anything_is_loaded(engine, models):
    assert "unknown key 'nmae'; did you mean 'name'?" in refused(engine, models / "checkpoint", {"nmae": "x"})
    assert "pattern belongs to load format streamerd_sharded" in refused(engine, models / "checkpoint", {"pattern": "x"})
    message = refused(engine, models / "state", {"publish": True}, "streamerd_sharded")
    assert "publish belongs to load format streamerd" in message


def test_another_digest_is_refused(engine, models, daemon):
    message = refused(engine, models / "checkpoint", {"socket": daemon.socket, "digest": "0" * 32})
    assert "DigestError" in message
    assert re.search("the model's digest is [0-9a-f]{32}", message)


def test_a_file_that_is_no_safetensors_is_named(engine, models, daemon):
    folder = models / "broken"
    shutil.copytree(models / "checkpoint", folder, dirs_exist_ok=True)
    (folder / "model.safetensors").write_bytes(b"not a safetensors file" * 100)
    assert "model.safetensors" in refused(engine, folder, {"socket": daemon.socket})


def test_a_folder_without_safetensors_is_named(engine, models, daemon):
    folder = models / "other"
    folder.mkdir(exist_ok=True)
    shutil.copy(models / "checkpoint" / "config.json", folder)
    (folder / "pytorch_model.bin").touch()
    assert "safetensors" in refused(engine, folder, {"socket": daemon.socket})


def test_a_checkpoint_without_saved_state_is_named(engine, models, daemon):
    message = refused(engine, models / "checkpoint", {"socket": daemon.socket}, "streamerd_sharded")
    assert "model-rank-0-part-*.safetensors" in message
    assert "save_sharded_state" in message


def test_without_a_daemon_the_socket_is_named(engine, models, tmp_path):
    socket = str(tmp_path / "none")
    message = refused(engine, models / "checkpoint", {"socket": socket})
    assert "UnreachableError" in message
    assert socket in message


@pytest.mark.parametrize(
    ("error", "options", "advice"),
    [
        (streamerd.OutOfMemoryError("x"), {}, "x: raise the daemon's budget, or unload a model, or set `wait` to wait for memory"),
        (streamerd.OutOfMemoryError("x"), {"wait": True}, "x: raise the daemon's budget, or unload a model"),
        (streamerd.UnreachableError("x"), {}, "x: `fallback` lets the engine load without streamerd"),
        (streamerd.UnreachableError("x"), {"socket": "/s"}, "x: check `socket`; `fallback` lets the engine load without streamerd"),
        (streamerd.DigestError("x"), {}, "x: correct `digest`, or the source"),
        (streamerd.FailedError("x"), {}, "x"),
    ],
)
def test_advice_is_what_is_not_set_yet(monkeypatch, error, options, advice):
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(streamerd, "open", fail)
    with pytest.raises(type(error)) as caught:
        Options.parse(options, "streamerd").open("x")
    assert str(caught.value) == advice


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give up its rights")
def test_without_permission_the_group_of_the_socket_is_named(engine, models):
    with Daemon(models / "daemon", models) as daemon:
        engine.call("become", user=65534)
        try:
            message = refused(engine, models / "checkpoint", {"socket": daemon.socket})
        finally:
            engine.call("become", user=0)
    assert "DeniedError" in message
    assert "group" in message


@pytest.mark.parametrize(
    ("use", "missing"),
    [
        ((f"{LOADER}.default_loader:DefaultModelLoader._no_iterator", ()), "DefaultModelLoader._no_iterator"),
        ((f"{LOADER}.no_module:Loader", ()), f"{LOADER}.no_module.Loader"),
        ((f"{LOADER}:register_model_loader", ("colour",)), "register_model_loader(colour)"),
        (("vllm.config.load:LoadConfig", ("colour",)), "LoadConfig(colour)"),
    ],
)
def test_a_version_that_lacks_something_is_refused_with_its_name(monkeypatch, use, missing):
    import vllm
    from vllm.config.load import LoadConfig
    from vllm.model_executor import model_loader

    from streamerd._engines import vllm_interface

    formats = dict(model_loader._LOAD_FORMAT_TO_MODEL_LOADER)
    monkeypatch.setattr(model_loader, "_LOAD_FORMAT_TO_MODEL_LOADER", formats)
    monkeypatch.setattr(streamerd.vllm, "_registered", False)
    monkeypatch.setattr(vllm, "__version__", "9.1.0")
    for load_format, uses in vllm_interface.USES.items():
        monkeypatch.setitem(vllm_interface.USES, load_format, (*uses, use))
    streamerd.vllm.register()
    for load_format in streamerd.vllm.FORMATS:
        with pytest.raises(RuntimeError) as caught:
            model_loader.get_model_loader(LoadConfig(load_format=load_format))
        assert f"{missing}, which vLLM 9.1.0 does not have" in str(caught.value)
        assert vllm_interface.TESTED[0] in str(caught.value)


def test_a_version_that_has_all_is_taken_whatever_its_number():
    from streamerd._engines import vllm_interface

    assert [vllm_interface.refusal("9.1.0", load_format) for load_format in streamerd.vllm.FORMATS] == [None, None]


@pytest.mark.parametrize(
    ("reason", "message"),
    [
        ("quantization", "quantization fp8"),
        ("lora", "LoRA"),
        ("sleep", "sleep mode"),
        ("offload", "offloading"),
    ],
)
def test_alias_is_refused_where_the_engine_rewrites_parameters(monkeypatch, reason, message):
    from streamerd._engines import vllm_aliases

    offload = SimpleNamespace(
        uva=SimpleNamespace(cpu_offload_gb=int(reason == "offload")), prefetch=SimpleNamespace(offload_group_size=0)
    )
    config = SimpleNamespace(lora_config={} if reason == "lora" else None, offload_config=offload)
    monkeypatch.setattr(vllm_aliases, "get_current_vllm_config", lambda: config)
    model = SimpleNamespace(
        quantization="fp8" if reason == "quantization" else None, enable_sleep_mode=reason == "sleep"
    )
    assert message in vllm_aliases._why_no_alias(model)


def test_memory_of_this_model_on_the_engines_own_gpu_is_counted(monkeypatch):
    """Neither what the daemon holds of other models there, nor of this one on another GPU."""
    import torch
    from vllm.config.load import LoadConfig

    from streamerd._engines import vllm_loaders

    def loader(**extra: object):
        made = vllm_loaders.StreamerdLoader(LoadConfig(model_loader_extra_config=extra))
        monkeypatch.setattr(made, "_made_resident", lambda model_config: ["mine"])
        return made

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234"))
    replies = {
        "status": {"devices": [
            {"device": "host", "uuid": ""}, {"device": "cuda:0", "uuid": "GPU-9999"}, {"device": "cuda:1", "uuid": "GPU-1234"},
        ]},
        "show": {"models": [{"devices": [{"device": "cuda:0", "bytes": 7}, {"device": "cuda:1", "bytes": 11}]}]},
    }  # fmt: skip
    asked = []

    def call(verb, **fields):
        asked.append((verb, fields))
        return replies[verb]

    monkeypatch.setattr(vllm_loaders, "connect", lambda *_: SimpleNamespace(call=call))
    config = SimpleNamespace(model_config=None)
    assert loader(device="cuda:0").get_external_weight_memory(config) == 11
    assert ("show", {"model": "mine"}) in asked
    assert loader().get_external_weight_memory(config) == 0
    published = loader(publish=True)
    monkeypatch.setattr(published, "_published_name", lambda config: "mine/vllm")
    assert published.get_external_weight_memory(config) == 11
    assert ("show", {"model": "mine/vllm"}) in asked
