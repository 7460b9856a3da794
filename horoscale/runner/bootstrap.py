"""How Python processes that run a module of this package are started.

As a program it runs such a module: bootstrap.py MODULE arguments. Before it imports anything that
the interpreter has not loaded already, it makes sure that no file of the working directory, such as
one named argparse.py, can take the place of a standard module or of an installed one.
"""

# Nothing else may be imported here: these two are loaded in every interpreter.
import os
import sys

_THIS_FILE = os.path.realpath(__file__)
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(_THIS_FILE)))


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs `main(arguments)` of `module`, wherever the package was imported from.

    The process heeds PYTHON* variables. It imports nothing from the working directory, unless
    PYTHONPATH names it, and then only what is nowhere else.
    """
    return [sys.executable, _THIS_FILE, module, *arguments]


def isolated_command(module: str) -> list[str]:
    """The command that runs `main()` of `module` apart from the user's code.

    It ignores PYTHON* variables too, so that no file of the user's named like a standard module can
    break it. No word of it needs quoting, if the paths don't, so that it means the same to a shell
    and to a program that executes it.
    """
    return [sys.executable, "-I", _THIS_FILE, module]


def private_path(path: list[str], directory: str) -> list[str]:
    """The module search path of such a process: `directory`, the working directory, comes last.

    What the interpreter puts first for a program, the folder of this file, is left out.
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
