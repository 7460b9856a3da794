"""Builds libhoroscale.so and what TensorFlow, XLA and MXNet load by CMake, then the binding.

With HOROSCALE_BUILD_SIM=1 also the module of horoscale.sim, which makes the wheel one for this
version of Python. CMAKE_ARGS has further arguments for CMake. What is compiled is printed as it
goes, which pip shows with -v. Everything else about the package is in pyproject.toml.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent
BUILD_SIM = os.environ.get("HOROSCALE_BUILD_SIM", "0") == "1"


def cmake(step: str, *arguments: object) -> None:
    """Run CMake; end the installation with a sentence if it fails."""
    environment = {"NINJA_STATUS": "[%f/%t, %e s] "} | os.environ
    try:
        subprocess.run(["cmake", *map(str, arguments)], check=True, env=environment)
    except FileNotFoundError:
        sys.exit("horoscale is built by cmake and ninja, which are not in PATH")
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"horoscale: {step} failed ({error}); what is wrong is printed above. A compiler for "
            "C++20 is needed, such as g++ 12 or clang 14: see docs/installing.md"
        )


class BuildLibraryAndBinding(build_ext):
    """Installs the library and its header below horoscale/_core before the binding is compiled.

    There C programs find them too: python -m horoscale.config tells the flags.
    """

    def run(self) -> None:
        """Build the library, then what setuptools builds."""
        in_source = self.inplace or self.editable_mode
        prefix = (ROOT if in_source else Path(self.build_lib).resolve()) / "horoscale" / "_core"
        build = Path(self.build_temp).resolve() / "library"
        options, targets = (
            [
                "-DCMAKE_BUILD_TYPE=Release",
                "-DHOROSCALE_UNITY=ON",
                f"-DHOROSCALE_BUILD_SIM={BUILD_SIM}",
            ],
            ["horoscale", "horoscale_tensorflow", "horoscale_xla", "horoscale_mxnet"],
        )
        options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        parts = ["tensorflow", "keras", "mxnet"]
        if BUILD_SIM:
            import pybind11

            parts += ["sim"]
            options += [f"-DPython_EXECUTABLE={sys.executable}"]
            options += [f"-Dpybind11_DIR={pybind11.get_cmake_dir()}"]
            targets += ["sim_module"]
        # pip builds in a new environment each time, and CMake's cache has the last one's ninja.
        ninja = f"-DCMAKE_MAKE_PROGRAM={shutil.which('ninja') or 'ninja'}"
        cmake("its configuration", "-G", "Ninja", ninja, "-S", ROOT, "-B", build, *options)
        print(f"horoscale: compiling {', '.join(targets)} (2 minutes on 2 cores)", flush=True)
        cmake("its compilation", "--build", build, "--target", *targets)
        cmake("its installation", "--install", build, "--prefix", prefix)
        for part in parts:
            folder = prefix.parent / part
            cmake("its installation", "--install", build, "--prefix", folder, "--component", part)
        self.library_dirs.append(str(prefix / "lib"))
        super().run()


IN_FLIGHT = Extension(
    "horoscale._core._in_flight",
    ["cpp/python/in_flight.c"],
    include_dirs=["cpp/include"],
    depends=["cpp/include/horoscale/horoscale.h"],
    define_macros=[("Py_LIMITED_API", "0x030A0000")],
    libraries=["horoscale"],
    runtime_library_dirs=["$ORIGIN/lib"],
    py_limited_api=True,
)

setup(
    cmdclass={"build_ext": BuildLibraryAndBinding},
    ext_modules=[IN_FLIGHT],
    cffi_modules=["cmake/binding.py:make_ffi"],
    options={} if BUILD_SIM else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
