"""Writes docs/configuration.md from the library's own table of variables.

python docs/generate_configuration.py           write the file (make docs)
python docs/generate_configuration.py --check   fail if it is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from horoscale._core import config_variables

TARGET = Path(__file__).with_name("configuration.md")
INTRODUCTION = """\
# Configuration

Written by docs/generate_configuration.py from the library's own table: change that, not this.

Every variable is read once, by `init()`. For the variable X below, HOROSCALE_X is taken if it is
set, else HOROVOD_X. A value that does not parse makes `init()` fail with an error that names the
variable. Switches take 0 or 1. Set them alike on all ranks: `horoscalerun` passes its own
environment on, and has a flag for most of them (docs/launching.md).
"""


def document() -> str:
    """The whole document."""
    return "\n".join([INTRODUCTION, *_sections()])


def _sections() -> Iterator[str]:
    for variable in config_variables():
        default = f"`{variable['default']}`" if variable["default"] else "none"
        yield f"## {variable['name']}\n"
        yield f"{variable['type']}; default: {default}\n"
        yield f"{variable['doc']}\n"


def main() -> int:
    """Write the document, or compare it."""
    if "--check" in sys.argv[1:]:
        if TARGET.read_text() == document():
            return 0
        print(f"{TARGET.name} is out of date: run `make docs`", file=sys.stderr)
        return 1
    TARGET.write_text(document())
    return 0


if __name__ == "__main__":
    sys.exit(main())
