"""Starts programs under the mpirun of each MPI wheel on PyPI: a column of the tests.

The wheels overwrite each other's files, so each lives in a virtual environment of its own, which is
made when a test first needs it: .venv-mpi-<wheel> beside the sources. It holds the wheel and
mpi4py; everything else, horoscale included, comes from the environment that runs the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from support.ranks import clean_environment

import horoscale

ROOT = Path(__file__).parents[3]
# On small machines ranks outnumber cores, and CI runs as root.
FLAGS = {
    "openmpi": ("--oversubscribe", "--bind-to", "none", "--allow-run-as-root"),
    "mpich": ("--bind-to", "none"),
}


@dataclass(frozen=True)
class Mpi:
    """One column: an MPI with its launcher, and a Python that has mpi4py for it."""

    name: str
    prefix: Path

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    def environment(self, **variables: str) -> dict[str, str]:
        paths = (str(Path(horoscale.__file__).parents[1]), sysconfig.get_path("purelib"))
        return (
            clean_environment()
            | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
            | variables
        )

    def run(
        self, ranks: int, *command: str, seconds: float = 60, python: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments as the ranks of an MPI job, and return how it went."""
        return self.run_program(
            ranks, python or self.python, *command, seconds=seconds, **variables
        )

    def run_program(
        self, ranks: int, *command: str, seconds: float = 60, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        mpirun = (str(self.prefix / "bin" / "mpirun"), *FLAGS[self.name], "-np", str(ranks))
        return subprocess.run(
            [*mpirun, *command],
            env=self.environment(**variables),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def run_script(self, ranks: int, script: str, **options: str) -> None:
        """Run a script whose assertions have to hold on every rank."""
        said = "import sys; sys.stdout.write('this rank is done\\n')"
        ended = self.run(ranks, "-c", f"{dedent(script)}\n{said}", **options)
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        assert ended.stdout.count("this rank is done") == ranks, f"{ended.stdout}\n{ended.stderr}"


def make_environment(wheel: str) -> Path:
    prefix = ROOT / f".venv-mpi-{wheel}"
    stamp = prefix / ".made"
    if not stamp.exists():
        subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True)
        pip = (str(prefix / "bin" / "python"), "-m", "pip", "install", "-q", wheel, "mpi4py")
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
        stamp.touch()
    return prefix


@pytest.fixture(scope="session", params=sorted(FLAGS))
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return Mpi(request.param, make_environment(request.param))


@pytest.fixture(scope="session")
def both() -> dict[str, Mpi]:
    return {name: Mpi(name, make_environment(name)) for name in FLAGS}
