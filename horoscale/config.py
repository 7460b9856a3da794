"""Compiler and linker flags for C and C++ programs: python -m horoscale.config."""

from __future__ import annotations

import sys
from pathlib import Path

PREFIX = Path(__file__).resolve().parent / "_core"
INCLUDE = PREFIX / "include"
LIBRARY = PREFIX / "lib"


def main(arguments: list[str]) -> None:
    """Print flags: cc $(… --cflags) program.c $(… --libs)."""
    flags = {
        "--cflags": f"-I{INCLUDE}",
        "--libs": f"-L{LIBRARY} -Wl,-rpath,{LIBRARY} -lhoroscale",
    }
    if not arguments or any(argument not in flags for argument in arguments):
        sys.exit(f"usage: python -m horoscale.config {' | '.join(flags)}")
    print(*(flags[argument] for argument in arguments))


if __name__ == "__main__":
    main(sys.argv[1:])
