"""The core's declarations of NCCL agree with a real nccl.h, if one is available."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).with_name("check_constants.cc")
COMPILER = os.environ.get("CXX") or "g++"


def _header_folder() -> Path | None:
    """The folder of nccl.h: NCCL_INCLUDE, the wheel of this environment, the system's."""
    folders = [Path(os.environ["NCCL_INCLUDE"])] if "NCCL_INCLUDE" in os.environ else []
    try:
        wheel = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        wheel = None
    if wheel is not None:
        folders += [Path(place, "include") for place in wheel.submodule_search_locations or ()]
    folders.append(Path("/usr/include"))
    return next((folder for folder in folders if (folder / "nccl.h").exists()), None)


def test_constants(tmp_path: Path) -> None:
    folder = _header_folder()
    if folder is None:
        pytest.skip("no nccl.h: `make python-nccl` gets it, or set NCCL_INCLUDE")
    # The header includes those of CUDA, of which it needs two types.
    (tmp_path / "cuda_runtime.h").write_text(
        "#include <stddef.h>\n"
        "typedef struct CUstream_st *cudaStream_t;\n"
        "typedef struct CUevent_st *cudaEvent_t;\n"
    )
    (tmp_path / "cuda_fp16.h").write_text("")
    program = tmp_path / "check"
    subprocess.run(
        [
            *(COMPILER, "-std=c++20", f"-I{ROOT / 'cpp'}", f"-I{tmp_path}"),
            *("-isystem", str(folder), str(SOURCE), "-o", str(program)),
        ],
        check=True,
    )
    subprocess.run([program], check=True)
