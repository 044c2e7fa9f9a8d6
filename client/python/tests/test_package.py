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
    if "libcurl" not in bundled:  # MINIMAL=0: the distribution's
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
        for library in ("libcurl", "libexpat", "libssl", "libuv", "libxxhash"):
            assert any(name.startswith(library) for name in licences), library
        assert all("opyright" in text or "icen" in text for text in licences.values())


def test_the_metadata_describes_what_is_inside() -> None:
    try:
        described = metadata.metadata("streamerd")
    except metadata.PackageNotFoundError:
        pytest.skip("used from the source tree")
    classifiers = described.get_all("Classifier") or []
    assert "Typing :: Typed" in classifiers and "Programming Language :: Python :: 3.14" in classifiers
    assert not any("License" in classifier for classifier in classifiers)  # the expression has its place
    expression = described["License-Expression"].replace("(", "").replace(")", "").split(" AND ")
    assert expression[0] == "Apache-2.0" and {"LGPL-2.1-or-later", "MIT", "curl"} <= set(expression)
    page = described.get_payload()
    assert "streamerd.open(" in page
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert all(target.startswith(("https://", "#")) for target in targets)


def test_links_of_the_readme_lead_to_the_project(tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    page = "[a](sources.md#x), [b](https://example.org/b), [c](#c), [d](../README.md) and `x[0](1)`\n"
    for url, expected in (
        ("", "a, [b](https://example.org/b), [c](#c), d and `x[0](1)`\n"),
        (
            "https://example.org/p.git",
            "[a](https://example.org/p/blob/HEAD/docs/sources.md#x), [b](https://example.org/b), [c](#c), "
            "[d](https://example.org/p/blob/HEAD/README.md) and `x[0](1)`\n",
        ),
    ):
        tree = tmp_path / ("with" if url else "without")
        (tree / "licenses").mkdir(parents=True)
        for name in ("LGPL-2.1", "libuv1", "libzstd1", "libcurl"):
            (tree / "licenses" / name).touch()
        (tree / "pyproject.toml").write_text((here / "pyproject.toml").read_text())
        (tmp_path / "page.md").write_text(page)
        command = [sys.executable, str(here / "describe.py"), str(tree), str(tmp_path / "page.md")]
        subprocess.run(command, check=True, env={"PROJECT_URL": url})
        assert (tree / "README.md").read_text() == expected
        project = (tree / "pyproject.toml").read_text()
        assert 'license = "Apache-2.0 AND (BSD-3-Clause OR GPL-2.0-only) AND MIT AND curl"' in project
        assert ('Homepage = "https://example.org/p"' in project) == bool(url)


def test_a_library_of_unknown_licence_fails_the_wheel(tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    (tmp_path / "licenses").mkdir()
    (tmp_path / "licenses" / "libmystery1").touch()
    (tmp_path / "pyproject.toml").write_text((here / "pyproject.toml").read_text())
    (tmp_path / "page.md").touch()
    command = [sys.executable, str(here / "describe.py"), str(tmp_path), str(tmp_path / "page.md")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and "licences.txt has no line for libmystery1" in done.stderr


def test_the_source_is_not_installed_without_programs(tmp_path: Path) -> None:
    here = Path(__file__).parents[1]
    for name in ("setup.py", "pyproject.toml"):
        (tmp_path / name).write_text((here / name).read_text())
    done = subprocess.run([sys.executable, "setup.py", "--version"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines()[-1].startswith("streamerd: `make wheel` makes the package")
