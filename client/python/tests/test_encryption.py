# SPDX-License-Identifier: Apache-2.0
"""Checkpoints that the reference package of CryptoTensors has encrypted, as this package's users get them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import cryptotensors
import numpy as np
import pytest
from conftest import Daemon
from cryptotensors.numpy import save_file

import streamerd

# RFC 8032, 7.1, test 1.
SEED = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
SIZES = {"aes128gcm": 16, "aes256gcm": 32, "chacha20poly1305": 32}


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


def data_key(cipher: str, name: str = "") -> dict[str, str]:
    name = name or cipher
    return {"kty": "oct", "alg": cipher, "kid": name, "k": text((name.encode() * 8)[: SIZES[cipher]])}


SIGNER = {"kty": "okp", "alg": "ed25519", "kid": "signer", "x": text(PUBLIC)}


def tensors() -> dict[str, Any]:
    draw = np.random.default_rng(7)
    return {
        "model.a/\"é": draw.standard_normal((700, 1001), dtype=np.float32),
        "b": np.arange(3, dtype=np.uint8),
        "empty": np.zeros((0, 5), dtype=np.int64),
        "large": draw.integers(0, 1 << 30, 3_000_000),
    }


def write(path: Path, cipher: str, **more: Any) -> None:
    config = cryptotensors.SerializeCryptoConfig(
        enc_key=data_key(cipher), sign_key={**SIGNER, "d": text(SEED)}, **more
    )
    save_file(tensors(), str(path), metadata={"format": "np"}, config=config.to_dict())


@pytest.fixture
def daemon(tmp_path: Path) -> Any:
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [*map(data_key, SIZES), SIGNER]}))
    keys.chmod(0o400)
    started = Daemon(tmp_path, more=f'encryption: {{keys: ["file:{keys}"]}}')
    yield started
    started.process.terminate()
    started.process.wait(15)


@pytest.mark.parametrize("cipher", SIZES)
@pytest.mark.parametrize(
    "more", [{"version": "1"}, {}, {"chunk_size": 65536}, {"chunk_size": 1_000_003}, {"chunk_size": 9 << 20}]
)
def test_what_was_encrypted_is_loaded(daemon: Daemon, tmp_path: Path, cipher: str, more: dict[str, Any]) -> None:
    path = tmp_path / "m.safetensors"
    write(path, cipher, **more)
    with streamerd.open(str(path), framework="numpy", socket=daemon.socket) as model:
        expected = tensors()
        assert sorted(model.keys()) == sorted(expected)
        for name, tensor in expected.items():
            got = np.asarray(model[name])
            assert got.dtype == tensor.dtype and got.shape == tensor.shape and np.array_equal(got, tensor)
    shown = json.loads(daemon.ctl("list", "--json").stdout)["models"][0]
    assert shown["encryption"] == {"cipher": cipher, "keys": [cipher], "signer": "signer"}


def test_a_part_of_the_tensors_is_not_enough(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, "aes256gcm", tensors=["large"])
    result = daemon.ctl("load", str(path), check=False)
    assert result.returncode == 1 and "is not encrypted, and so not protected" in result.stderr


def test_a_policy_is_not_evaluated(daemon: Daemon, tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, "aes256gcm", policy={"local": "package model\nallow = false", "remote": ""})
    result = daemon.ctl("load", str(path), check=False)
    assert result.returncode == 1 and "its policy is not the default one" in result.stderr


def test_a_rewrapped_file_has_another_key(daemon: Daemon, tmp_path: Path) -> None:
    """The new key is configured first; the data of the file stays as it is."""
    path = tmp_path / "m.safetensors"
    write(path, "aes256gcm")
    end = path.read_bytes()[-1000:]
    old = cryptotensors.DeserializeCryptoConfig(enc_key=data_key("aes256gcm"), sign_key=SIGNER)
    new = cryptotensors.SerializeCryptoConfig(
        enc_key=data_key("aes256gcm", "next"), sign_key={**SIGNER, "d": text(SEED)}
    )
    cryptotensors.rewrap_file(str(path), new.to_dict(), old.to_dict())
    assert path.read_bytes()[-1000:] == end
    result = daemon.ctl("load", str(path), check=False)
    assert result.returncode == 1 and "encrypted with key 'next'" in result.stderr
    keys = tmp_path / "keys.json"
    keys.chmod(0o600)
    keys.write_text(json.dumps({"keys": [data_key("aes256gcm", "next"), data_key("aes256gcm"), SIGNER]}))
    daemon.ctl("reload")
    daemon.ctl("load", str(path))
    assert json.loads(daemon.ctl("show", "m", "--json").stdout)["models"][0]["encryption"]["keys"] == ["next"]
