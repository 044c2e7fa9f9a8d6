# SPDX-License-Identifier: Apache-2.0
"""The wheel's tag: with programs in it, it is for one platform and for every Python 3."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class Package(Distribution):
    def has_ext_modules(self) -> bool:
        return Path(__file__).with_name("streamerd").joinpath("bin").exists()


class Wheel(bdist_wheel):
    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


setup(distclass=Package, cmdclass={"bdist_wheel": Wheel})
