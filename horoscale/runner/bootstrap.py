"""Starts Python processes that run a module of this package.

Run as a program, it executes such a module: bootstrap.py MODULE arguments. Before it imports
anything that the interpreter has not loaded already, it ensures that no file in the working
directory, such as argparse.py, can shadow a standard or installed module.
"""

# Do not import anything else here: these two are loaded in every interpreter.
import os
import sys

_THIS_FILE = os.path.realpath(__file__)
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_THIS_FILE)))


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs `main(arguments)` of `module`, for any location of the package.

    The process respects PYTHON* variables. It imports nothing from the working directory unless
    PYTHONPATH names it, and then only modules that are found nowhere else.
    """
    return [sys.executable, _THIS_FILE, module, *arguments]


def isolated_command(module: str) -> list[str]:
    """Return the command that runs `main()` of `module`, isolated from the user's code.

    It also ignores PYTHON* variables, so that no user file named like a standard module can break
    it. No word of it needs quoting (unless a path does), so a shell and a direct exec interpret it
    in the same way.
    """
    return [sys.executable, "-I", _THIS_FILE, module]


def private_path(path: list[str], directory: str) -> list[str]:
    """Return the module search path of such a process, with `directory`, the current one, last.

    The folder of this file, which the interpreter prepends for a program, is omitted.
    """
    private, last = [], []
    for entry in path:
        entry = os.path.join(directory, entry)
        if os.path.realpath(entry) == os.path.realpath(directory):
            last.append(entry)
        elif os.path.realpath(entry) != os.path.dirname(_THIS_FILE):
            private.append(entry)
    return [*private, PACKAGE_ROOT, *last]


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed: nothing can be imported from there
        return os.devnull


if __name__ == "__main__":
    sys.path[:] = private_path(sys.path, _working_directory())
    import importlib

    sys.argv[:] = sys.argv[1:]
    sys.exit(importlib.import_module(sys.argv[0]).main(sys.argv[1:]))
