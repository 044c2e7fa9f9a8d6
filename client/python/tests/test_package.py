# SPDX-License-Identifier: Apache-2.0
"""The package itself: what importing it costs, and that its versions agree."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from checkpoints import small, write
from conftest import Daemon

import streamerd
from streamerd._library import library


def test_frameworks_are_imported_when_they_are_asked_for(folder: Path, daemon: Daemon) -> None:
    write(folder / "m.safetensors", small())
    program = """
import sys, streamerd
assert not {"torch", "numpy"} & set(sys.modules)
with streamerd.open(sys.argv[1], framework="numpy") as model:
    assert len(dict(model)) == 4
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program, str(folder / "m.safetensors")], check=True)


def test_versions_agree(daemon: Daemon) -> None:
    assert streamerd.__version__ == library().streamer_version().decode() == streamerd.status()["version"]
    try:
        assert metadata.version("streamerd") == streamerd.__version__
    except metadata.PackageNotFoundError:
        pass  # used from the source tree


def test_typing_information_is_installed() -> None:
    assert Path(streamerd.__file__).with_name("py.typed").exists()


def test_every_public_name_exists() -> None:
    assert all(hasattr(streamerd, name) for name in streamerd.__all__)
    assert streamerd.__all__ == sorted(streamerd.__all__)


def test_the_bundled_libraries_are_those_of_the_docs() -> None:
    try:
        files = metadata.files("streamerd") or []
    except metadata.PackageNotFoundError:
        pytest.skip("used from the source tree")
    matches = [re.match(r"(lib.+?)(-[0-9.]+)?-[0-9a-f]{8}[.0-9]*\.so", f.name) for f in files]
    bundled = {match[1] for match in matches if match}
    page = (Path(__file__).parents[3] / "docs" / "python.md").read_text()
    rows = re.findall(r"^\| (lib[^|]*) \|", page.partition("## The wheel")[2], re.M)
    documented = [set(row.split()) for row in rows]
    assert bundled <= set().union(*documented), bundled - set().union(*documented)
    if "libcurl" not in bundled:  # a minimal build
        assert len(bundled) <= 16 and bundled <= set().union(*documented[:3])


def test_the_wheel_has_the_licence_of_every_library_that_it_bundles() -> None:
    try:
        files = metadata.files("streamerd") or []
    except metadata.PackageNotFoundError:
        pytest.skip("used from the source tree")
    bundled = {file.name.partition("-")[0] for file in files if file.parts[0] == "streamerd.libs"}
    licences = {file.name: file.read_text() for file in files if file.parent.name == "licenses"}
    assert "Apache License" in licences["LICENSE"]
    if bundled and Path("/usr/bin/dpkg-query").exists():
        assert len(licences) > 10
        for library in ("libcurl", "libssl", "libuv", "libxxhash"):
            assert any(name.startswith(library) for name in licences), library
        assert all("opyright" in text or "icen" in text for text in licences.values())
    description = metadata.metadata("streamerd")
    assert "streamerd.open(" in description.get_payload()
    assert "Typing :: Typed" in (description.get_all("Classifier") or [])
