"""The core's tables of MPI constants agree with the headers of each MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, Mpi

SOURCE = Path(__file__).with_name("check_constants.cc")
COMPILER = os.environ.get("CXX") or "g++"


@pytest.mark.parametrize(
    ("wheel", "header", "flags"),
    [
        ("mpich", "mpi.h", ("-DTABLE=horoscale::kMpichConstants",)),
        ("mpich", "mpi_abi.h", ("-DTABLE=horoscale::kStandardConstants",)),
        (
            "openmpi",
            "mpi.h",
            ("-DTABLE=horoscale::kOpenMpiConstants", "-DHANDLES_ARE_SYMBOLS"),
        ),
    ],
    ids=["mpich", "standard", "openmpi"],
)
@pytest.mark.timeout(300)
def test_constants(
    both: dict[str, Mpi], wheel: str, header: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    include = both[wheel].prefix / "include"
    folder = tmp_path / "include"
    folder.mkdir()
    if header == "mpi.h":
        folder = include
    else:  # the header of the standard's ABI must be found under the usual name
        shutil.copy(include / header, folder / "mpi.h")
    program = tmp_path / "check"
    subprocess.run(
        [
            *(COMPILER, "-std=c++20", "-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", *flags),
            *(f"-I{ROOT / 'cpp'}", "-isystem", str(folder), str(SOURCE), "-o", str(program)),
        ],
        check=True,
    )
    ended = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
