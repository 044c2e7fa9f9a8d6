# SPDX-License-Identifier: Apache-2.0
"""The ctypes structures are those of the C declarations: a C compiler compares size and offsets."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from streamerd import _library, _publication

TOP = Path(__file__).parents[3]

NAMES = {
    "ConnectOpts": "streamer_connect_opts",
    "SocketInfo": "streamer_socket_info",
    "LoadOpts": "streamer_load_opts",
    "AttachOpts": "streamer_attach_opts",
    "OpenOpts": "streamer_open_opts",
    "Progress": "streamer_progress",
    "Tensor": "streamer_tensor",
    "PublishOpts": "streamer_publish_opts",
    "FoundModel": "streamer_found",
    "PublishedTensor": "streamer_published_tensor",
    "DLDataType": "struct dl_data_type",
    "DLTensor": "struct dl_tensor",
    "DLManagedTensor": "struct dl_managed_tensor",
    "DLManagedTensorVersioned": "struct dl_managed_tensor_versioned",
}
MEMBERS = {"device_type": "device.type", "device_id": "device.id"}


def structures() -> list[type[ctypes.Structure]]:
    found = {**vars(_library), **vars(_publication)}.values()
    kinds = {kind for kind in found if isinstance(kind, type) and issubclass(kind, ctypes.Structure)}
    return sorted(kinds - {ctypes.Structure}, key=lambda kind: kind.__name__)


def assertions(kind: type[ctypes.Structure]) -> list[str]:
    name = NAMES[kind.__name__]
    lines = [f'_Static_assert(sizeof({name}) == {ctypes.sizeof(kind)}, "{name}");']
    for field in kind._fields_:
        member = MEMBERS.get(field[0], field[0])
        place = getattr(kind, field[0])
        lines.append(f'_Static_assert(offsetof({name}, {member}) == {place.offset}, "{name}.{member}");')
        lines.append(f'_Static_assert(sizeof((({name} *)0)->{member}) == {place.size}, "{name}.{member}");')
    return lines


def compiles(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "structures.c"
    path.write_text(program)
    command = ["cc", "-std=gnu11", f"-I{TOP}", f"-I{TOP}/include", "-fsyntax-only", str(path)]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_structures_are_those_of_the_headers(tmp_path: Path) -> None:
    assert {kind.__name__ for kind in structures()} == NAMES.keys()
    head = '#include "client/dlpack.h"\n#include "streamer/client.h"\n#include <stddef.h>\n'
    lines = [line for kind in structures() for line in assertions(kind)]
    result = compiles(head + "\n".join(lines) + "\n", tmp_path)
    assert result.returncode == 0, result.stderr
    wrong = lines[0].replace("==", "!=")
    assert compiles(head + wrong + "\n", tmp_path).returncode != 0
