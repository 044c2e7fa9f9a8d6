# SPDX-License-Identifier: Apache-2.0
"""What help(), completion, inspect and evaluators of annotations find of the public names."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest

import streamerd

TAKE_OPTIONS = ("open", "aopen", "load_into")


def public() -> Iterator[tuple[str, Any]]:
    """The functions, and the methods of the classes."""
    for name in streamerd.__all__:
        value = getattr(streamerd, name)
        yield name, value
        if not isinstance(value, type) or issubclass(value, Exception) or name in ("Options", "TensorInfo"):
            continue
        for member in dir(value):
            if not member.startswith("_") and inspect.isfunction(method := inspect.getattr_static(value, member)):
                yield f"{name}.{member}", method


def test_completion_finds_every_name() -> None:
    program = "import streamerd; print(*(set(streamerd.__all__) - set(dir(streamerd)))); print(len(streamerd.__all__))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(streamerd.__all__))]


def test_annotations_can_be_evaluated() -> None:
    for name, value in public():
        try:
            typing.get_type_hints(value)
        except NameError as e:
            pytest.fail(f"{name}: {e}")


@pytest.mark.parametrize("name", TAKE_OPTIONS)
def test_options_are_written_out(name: str) -> None:
    function = getattr(streamerd, name)
    parameters = inspect.signature(function).parameters
    assert not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    hints = typing.get_type_hints(function)
    for option, kind in typing.get_type_hints(streamerd.Options).items():
        assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[option].default == inspect.signature(streamerd.open).parameters[option].default
        assert hints[option] == kind
    with pytest.raises(TypeError, match=rf"{name}\(\) has no option 'timeuot'; did you mean 'timeout'\?"):
        function("m", timeuot=1)


OTHERS = ("publish", "publish_files", "restore_files", "put", "watch", "awatch", "fetch", "fetch_list", "status", "load_file", "pull_files")  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_misspelt_option_is_named(name: str) -> None:
    function = getattr(streamerd, name)
    option = list(inspect.signature(function).parameters)[-1]
    misspelt = option[:-2] + option[-1] + option[-2]
    with pytest.raises(TypeError, match=rf"{name}\(\) has no option '{misspelt}'; did you mean '{option}'\?"):
        function(**{misspelt: 1})


def test_help_describes_every_option() -> None:
    text = pydoc.render_doc(streamerd.open, renderer=pydoc.plaintext)
    for option in ("source", "framework", *streamerd.Options.__annotations__):
        assert f"{option}:" in text.partition("Args:")[2], option
    assert "Raises:" in text and "Example:" in text


def test_every_public_function_and_method_is_documented() -> None:
    inherited = {"items", "values", "keys"}  # of Mapping
    missing = [n for n, value in public() if not value.__doc__ and n.rpartition(".")[2] not in inherited]
    assert not missing
    for name in ("open", "aopen", "load_into", "publish", "publish_files", "restore_files", "put", "watch", "awatch", "fetch", "fetch_list", "status", "load_file",
                 "pull_files"):  # fmt: skip
        doc = getattr(streamerd, name).__doc__
        assert all(part in doc for part in ("Args:", "Raises:", "Example:")), name


def test_importing_the_package_imports_nothing_else() -> None:
    """Whose import would take longer than the package's own."""
    program = "import sys; before = set(sys.modules); import streamerd; print(*(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["streamerd"]
