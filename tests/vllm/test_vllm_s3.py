# SPDX-License-Identifier: Apache-2.0
"""A model whose configuration and weights are in an S3 store; only the daemon has credentials for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from gateway import PROGRAMS, Gateway
from processes import Daemon, EngineError


@pytest.fixture(scope="module")
def cloud(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with credentials for a store that holds the models."""
    if not all(shutil.which(program) for program in PROGRAMS):
        pytest.skip("radosgw is not installed")
    with Gateway() as store:
        for folder in ("checkpoint", "state"):
            for file in (models / folder).iterdir():
                store.put("models", f"{folder}/{file.name}", file)
        with Daemon(tmp_path_factory.mktemp("cloud"), models, environment=store.environment) as daemon:
            yield daemon


@pytest.mark.parametrize(("folder", "load_format"), [("checkpoint", "streamerd"), ("state", "streamerd_sharded")])
def test_a_model_in_s3_needs_no_credentials_in_the_engine(engine, expected, cloud, folder, load_format):
    assert "AWS_ACCESS_KEY_ID" not in os.environ
    assert engine.run(f"s3://models/{folder}/", load_format, {"socket": cloud.socket})[0] == expected


def test_a_missing_bucket_is_named(cloud, engine):
    with pytest.raises(EngineError, match="s3://none/"):
        engine.start("s3://none/model/", "streamerd", {"socket": cloud.socket})
