"""Describes the compiled Python binding to cffi. Called by setup.py when it builds.

The declarations are those of the public header, between its markers: they are typed nowhere else.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI

INCLUDE = Path("cpp/include")  # setup.py runs in the root of the source tree
HEADER = INCLUDE / "horoscale/horoscale.h"


def make_ffi() -> FFI:
    """Describe the module horoscale._core._binding."""
    _, _, rest = HEADER.read_text(encoding="utf-8").partition("/* [declarations] */")
    declarations, end, _ = rest.partition("/* [end of declarations] */")
    if not end:
        raise ValueError(f"{HEADER} has lost the markers around its declarations")
    ffi = FFI()
    ffi.cdef("#define HS_ABI_VERSION ...")
    ffi.cdef(declarations)
    ffi.set_source(
        "horoscale._core._binding",
        "#include <horoscale/horoscale.h>",
        include_dirs=[str(INCLUDE)],
        depends=[str(HEADER)],
        libraries=["horoscale"],
        runtime_library_dirs=["$ORIGIN/lib"],
    )
    return ffi
