"""CUDA operations through the C ABI, without a GPU: numpy's memory stands in for a device's.

A test double of NCCL and of NVIDIA's driver (tests/cpp/nccl_double) is compiled once, and the ranks
open it instead of the real libraries.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
COMPILER = os.environ.get("CXX") or "g++"


@pytest.fixture(scope="session")
def double(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The double, as a shared library."""
    folder = ROOT / "tests" / "cpp"
    library = tmp_path_factory.mktemp("double") / "libnccl_double.so"
    subprocess.run(
        [
            *(COMPILER, "-std=c++20", "-O1", "-shared", "-fPIC", "-pthread"),
            *(f"-I{folder}", f"-I{ROOT / 'cpp'}", "-o", str(library)),
            *map(str, sorted((folder / "nccl_double").glob("*.cc"))),
        ],
        check=True,
    )
    return library


@pytest.fixture
def variables(double: Path, tmp_path: Path) -> dict[str, str]:
    """The environment in which ranks open the double."""
    return {
        "HOROSCALE_LIBCUDA": str(double),
        "HOROSCALE_LIBNCCL": str(double),
        "TMPDIR": str(tmp_path),
    }
