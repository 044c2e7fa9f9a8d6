# SPDX-License-Identifier: Apache-2.0
"""The wheel's tag: with programs in it, it is for one platform and for every Python 3.

There is no source distribution: the programs are not built from here.
"""

import os
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

HAS_PROGRAMS = Path(__file__).with_name("streamerd").joinpath("bin").exists()

if not HAS_PROGRAMS and os.environ.get("STREAMERD_PACKAGE") != "python":
    sys.exit("streamerd: `make wheel` makes the package, with its programs; STREAMERD_PACKAGE=python: without, for the system's")


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        return HAS_PROGRAMS


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=Package, cmdclass={"bdist_wheel": Wheel})
