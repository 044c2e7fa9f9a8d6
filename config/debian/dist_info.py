#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""dist_info.py SOURCE FOLDER: writes the metadata of the Python package of SOURCE below FOLDER.

pip lists the package by it, and engines find its plugins. The programs of the wheel are not in it: they are of the
package streamerd. Debian 12's setuptools does not know the licence's form in pyproject.toml.
"""

import re
import sys
import tomllib
from pathlib import Path


def main(source: Path, folder: Path) -> None:
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    code = (source / "streamerd" / "__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', code, re.MULTILINE)[1]
    info = folder / f"streamerd-{version}.dist-info"
    info.mkdir()
    fields = {
        "Metadata-Version": "2.1",
        "Name": project["name"],
        "Version": version,
        "Summary": project["description"],
        "License": project["license"],
        "Requires-Python": project["requires-python"],
    }
    lines = [f"{name}: {value}\n" for name, value in fields.items()]
    (info / "METADATA").write_text("".join(lines + [f"Classifier: {c}\n" for c in project["classifiers"]]))
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))
    (info / "INSTALLER").write_text("debian\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
