"""How the launcher starts Python processes that run a module of this package."""

from __future__ import annotations

import sys
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def python_command(module: str, *arguments: str, isolated: bool) -> list[str]:
    """The command that runs `main(arguments)` of `module`, wherever the package was imported from.

    An isolated process ignores PYTHON* variables and the working directory, so that a file of the
    user's named like a standard module can't break it.
    """
    code = (
        f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); "
        f"from {module} import main; sys.exit(main(sys.argv[1:]))"
    )
    options = ["-I"] if isolated else []
    return [sys.executable, *options, "-c", code, *arguments]
