# SPDX-License-Identifier: Apache-2.0
"""Where the Python package is."""

import sys
from pathlib import Path


def package_folder() -> str | None:
    """client/python of the checkout that this file is in, or else of the one that the process was started in."""
    here = Path(__file__).resolve()
    for folder in (*here.parents, Path.cwd(), *Path.cwd().parents):
        if (folder / "client/python/streamerd/_library.py").exists():
            return str(folder / "client/python")
    return None


def import_package():
    """streamerd._library; ImportError if there is neither a checkout nor an installed package."""
    folder = package_folder()
    if folder is not None and folder not in sys.path:
        sys.path.insert(0, folder)
    import streamerd._library

    return streamerd._library
