"""Builds libhoroscale.so with CMake, then the Python binding that links it.

Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent


class BuildLibraryAndBinding(build_ext):
    """Installs the library and its header below horoscale/_core before the binding is compiled.

    There C programs find them too: python -m horoscale.config tells the flags.
    """

    def run(self) -> None:
        """Build the library, then what setuptools builds."""
        in_source = self.inplace or self.editable_mode
        prefix = (ROOT if in_source else Path(self.build_lib).resolve()) / "horoscale" / "_core"
        build = Path(self.build_temp).resolve() / "library"
        # pip builds in a new environment each time, and CMake's cache has the last one's ninja.
        ninja = f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja') or 'ninja'}"
        for command in (
            ["-G", "Ninja", ninja, "-S", ROOT, "-B", build, "-DCMAKE_BUILD_TYPE=Release"],
            ["--build", build, "--target", "horoscale"],
            ["--install", build, "--prefix", prefix],
        ):
            subprocess.run(["cmake", *map(str, command)], check=True)
        self.library_dirs.append(str(prefix / "lib"))
        super().run()


setup(
    cmdclass={"build_ext": BuildLibraryAndBinding},
    cffi_modules=["cmake/binding.py:make_ffi"],
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
