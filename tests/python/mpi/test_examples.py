"""The examples under mpirun: the wheels' directly, Debian's through horoscalerun --mpi.

Most of the time is spent importing torch on each rank, so the columns share the cases: each family
of MPI runs each once.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from conftest import ROOT, WHEELS, Mpi

pytestmark = pytest.mark.timeout(200)
EXAMPLES = ROOT / "examples"
DIGITS = (str(EXAMPLES / "torch_digits.py"), "--epochs", "1")


def run(mpi: Mpi, ranks: int, *command: str) -> str:
    """The standard output of an example, which must succeed."""
    if mpi.name in WHEELS:
        ended = mpi.run(ranks, *command, seconds=150)
    else:
        launcher = ("--mpi", "-np", str(ranks), mpi.python)
        ended = mpi.run_launcher(*launcher, *command, seconds=150)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.mark.parametrize("form", ["static", "dynamic"])
def test_parts_of_a_model_in_process_sets(mpi: Mpi, form: str) -> None:
    script = str(EXAMPLES / f"process_sets_{form}.py")
    ranks = 6 if mpi.name in WHEELS else 3
    output = run(mpi, ranks, script, "--epochs", "2", "--batch", "240")
    # The example itself fails if the difference exceeds rounding.
    assert "largest difference from one process" in output


def test_the_split_example_learns_both_tasks(mpi: Mpi) -> None:
    output = run(mpi, 4, str(EXAMPLES / "process_sets_mpi_split.py"), "--epochs", "8")
    found = dict(re.findall(r"(digit|odd): 2 ranks, held-out accuracy ([01]\.\d+)", output))
    assert sorted(found) == ["digit", "odd"], output
    assert min(map(float, found.values())) > 0.9


def test_a_pipeline_of_two_stages(both: dict[str, Mpi]) -> None:
    for mpi in both.values():
        output = run(mpi, 2, str(EXAMPLES / "pipeline_two_stages.py"))
        assert "the same weights as in one process: True" in output


def test_a_mesh_of_ranks_that_mpirun_started(both: dict[str, Mpi]) -> None:
    small = "--tp 2 --pp 2 --dim 16 --layers 2 --length 16 --batch 4 --steps 3 --check"
    for mpi in both.values():
        output = run(mpi, 4, str(EXAMPLES / "gpt_parallel.py"), *small.split())
        assert "largest difference from one process" in output


def test_the_digits_example_unmodified(both: dict[str, Mpi]) -> None:
    for mpi in both.values():
        ended = mpi.run(4, "-m", "mpi4py", *DIGITS, seconds=150)
        assert "4 ranks: held-out accuracy" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_the_digits_example_without_mpi4py(
    columns: dict[str, Mpi], family: str, tmp_path: Path
) -> None:
    mpi = columns[f"{family}-debian"]
    (tmp_path / "mpi4py.py").write_text("raise ModuleNotFoundError(name='mpi4py')")
    path = os.pathsep.join((str(tmp_path), mpi.environment()["PYTHONPATH"]))
    ended = mpi.run(4, *DIGITS, seconds=150, PYTHONPATH=path)
    assert "4 ranks: held-out accuracy" in ended.stdout, ended.stdout + ended.stderr
