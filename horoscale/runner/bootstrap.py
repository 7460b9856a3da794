"""How the launcher starts Python processes that run a module of this package.

As a program it runs such a module: bootstrap.py MODULE arguments.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

PACKAGE_ROOT = Path(__file__).resolve().parents[2]


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `main(arguments)` of `module`, wherever the package was imported from.

    The process sees PYTHON* variables and the working directory, as any of the user's does.
    """
    code = (
        f"import sys; sys.path.append({str(PACKAGE_ROOT)!r}); "
        f"from {module} import main; sys.exit(main(sys.argv[1:]))"
    )
    return [sys.executable, "-c", code, *arguments]


def isolated_command(module: str) -> list[str]:
    """The command that runs `main()` of `module` apart from the user's code.

    It ignores PYTHON* variables and the working directory, so that a file of the user's named like
    a standard module can't break it. No word of it needs quoting, if the paths don't, so that it
    means the same to a shell and to a program that executes it.
    """
    return [sys.executable, "-I", str(Path(__file__).resolve()), module]


if __name__ == "__main__":
    sys.path.append(str(PACKAGE_ROOT))
    sys.exit(importlib.import_module(sys.argv[1]).main(sys.argv[2:]))
