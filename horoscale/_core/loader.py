"""Loads the compiled binding and libhoroscale.so, and checks that they match."""

from __future__ import annotations

import os
import site
import sys

from horoscale._core._binding import lib


def check_abi(found: int, expected: int) -> None:
    """Raise ImportError unless the library has the ABI for which the binding was compiled."""
    if found != expected:
        raise ImportError(
            f"libhoroscale.so has ABI version {found}, but horoscale's Python binding was compiled "
            f"for version {expected}: another build of the library is loaded (LD_LIBRARY_PATH or "
            "LD_PRELOAD?) or the installation is mixed. Install horoscale again."
        )


check_abi(lib.hs_abi_version(), lib.HS_ABI_VERSION)
# MPI's wheels install their library there.
lib.hs_set_library_directory(os.fsencode(os.path.join(sys.prefix, "lib")))
# NCCL's and CUDA's wheels install theirs among the packages.
for _directory in dict.fromkeys([*site.getsitepackages(), site.getusersitepackages()]):
    lib.hs_add_package_directory(os.fsencode(_directory))
