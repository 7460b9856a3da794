"""Clean environments in which a release is checked: which versions of Python there are, and a job.

An environment has what pip installs with the package and nothing else: no compiler is in its PATH
unless it is asked for, no variable of horoscale's is set, and nothing of this tree can be imported.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

VERSIONS = ("3.10", "3.11", "3.12", "3.13")
_LOOK_S = 60
_INSTALL_S = 1800  # compiling on a slow machine
_JOB_S = 120
_LOOK = "import ensurepip, ssl, sys, venv; print('%d.%d' % sys.version_info[:2])"
_JOB = """
import sys
import numpy
import horoscale
import horoscale.numpy as hvd
from horoscale._core import library_version

hvd.init()
total = hvd.allreduce(numpy.full(5, hvd.rank() + 1.0), op=hvd.Sum, name="x")
assert total.tolist() == [3.0] * 5, total
assert horoscale.__version__ == library_version() == sys.argv[1], library_version()
assert horoscale.__file__.startswith(sys.prefix), horoscale.__file__
print(f"rank {hvd.rank()} of {hvd.size()} is right")
"""


class FailedError(Exception):
    """A command that has failed: what it has printed last."""


def find_python(version: str) -> Path | None:
    """Return a Python of this version ("3.12") that can make environments; None if there is none.

    It is looked for as python3.12 in PATH, among those of pyenv, and where uv says.
    """
    for candidate in _candidates(version):
        try:
            if _run(candidate, "-I", "-c", _LOOK, seconds=_LOOK_S).strip() == version:
                return candidate
        except FailedError:  # a shim of another version, or a Python without venv
            continue
    return None


def _candidates(version: str) -> Iterator[Path]:
    if (found := shutil.which(f"python{version}")) is not None:
        yield Path(found)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}"))
    if (uv := shutil.which("uv")) is not None:
        try:
            given = _run(uv, "python", "find", "--no-python-downloads", version, seconds=_LOOK_S)
        except FailedError:
            return
        yield Path(given.strip())


def check_installed(
    python: Path, package: Path, version: str, folder: Path, *, compiler: bool
) -> None:
    """Install a wheel or a source distribution into a new environment, and run 2 ranks there.

    Raises FailedError with the end of the output of what has failed.
    """
    venv = folder / "venv"
    _run(python, "-m", "venv", venv, seconds=_INSTALL_S)
    bin_folder = venv / "bin"
    path = os.pathsep.join((str(bin_folder), os.environ["PATH"])) if compiler else str(bin_folder)
    variables = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HOROSCALE", "HOROVOD", "PYTHON", "PIP_TARGET", "PIP_PREFIX"))
    } | {"PATH": path}
    only = [] if compiler else ["--only-binary", ":all:"]
    _run(
        *(bin_folder / "python", "-m", "pip", "install", "-q", *only),
        package,
        seconds=_INSTALL_S,
        variables=variables,
    )
    (folder / "job.py").write_text(_JOB, encoding="utf-8")
    printed = _run(
        *(bin_folder / "horoscalerun", "-np", "2", bin_folder / "python", "job.py", version),
        seconds=_JOB_S,
        variables=variables,
        folder=folder,
    )
    for rank in range(2):
        if f"rank {rank} of 2 is right" not in printed:
            raise FailedError(f"rank {rank} did not end well:\n{printed}")


def _run(
    *command: str | Path,
    seconds: float,
    variables: dict[str, str] | None = None,
    folder: Path | None = None,
) -> str:
    try:
        ended = subprocess.run(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=variables,
            cwd=folder,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise FailedError(str(error)) from error
    if ended.returncode != 0:
        last = "\n".join((ended.stdout + ended.stderr).splitlines()[-20:])
        raise FailedError(f"{Path(command[0]).name} ended with {ended.returncode}:\n{last}")
    return ended.stdout
