"""`horoscalerun --mpi` and `horoscale.run(use_mpi=True)`: our launcher in front of mpirun."""

from __future__ import annotations

from pathlib import Path

from conftest import Mpi


def test_horoscalerun_finds_mpirun_and_passes_its_arguments(mpi: Mpi) -> None:
    script = """
import os, sys
import horoscale.numpy as hvd
hvd.init()
assert hvd.mpi_enabled() and os.environ["HOROSCALE_CACHE_CAPACITY"] == "7"
sys.stdout.write(f"{hvd.size()} ranks{os.environ['SAID']}\\n")
"""
    mpi_args = "-x SAID=!" if mpi.family == "openmpi" else "-genv SAID !"
    flags = ("-np", "2", "--mpi", "--cache-capacity", "7", f"--mpi-args={mpi_args}")
    ended = mpi.run_launcher(*flags, mpi.python, "-c", script)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("2 ranks!") == 2, ended.stdout


# Replaces ssh: options, a host, and a command that sees none of our variables.
REMOTE_SHELL = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
shift
exec env -i PATH="$PATH" sh -c "$*"
"""


def test_what_looks_like_a_credential_stays_here(both: dict[str, Mpi], tmp_path: Path) -> None:
    """MPICH would pass it to other hosts, which a remote shell plays."""
    mpi = both["mpich"]
    shell = tmp_path / "shell"
    shell.write_text(REMOTE_SHELL)
    shell.chmod(0o755)
    secret = dict.fromkeys(("GITHUB_TOKEN", "HOROVOD_DB_SECRET", "TF_VAR_db"), "hunter2")
    ended = mpi.run_launcher(
        *("--mpi", "-np", "1", "-H", "elsewhere:1", "-x", "MY_TOKEN"),
        *("sh", "-c", "env | grep -E '=(hunter2|wanted)' | sort"),
        MY_TOKEN="wanted",
        ANYTHING="wanted",
        HYDRA_LAUNCHER="ssh",
        HYDRA_LAUNCHER_EXEC=str(shell),
        **secret,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == ["ANYTHING=wanted", "MY_TOKEN=wanted"]
    said, names = ended.stderr.splitlines()[0].rsplit("; ", 1)[0].rsplit(": ", 1)
    assert said.startswith("horoscalerun: not forwarded to other hosts, because their names look")
    assert secret.keys() <= set(names.split(", "))


def test_communicators_under_horoscalerun_say_what_to_use(mpi: Mpi) -> None:
    script = """
from mpi4py import MPI
import horoscale.numpy as hvd
everyone = hvd.ProcessSet(MPI.COMM_WORLD)
for arguments in ({"process_sets": [everyone]}, {"comm": MPI.COMM_WORLD}):
    try:
        hvd.init(**arguments)
        raise AssertionError(arguments)
    except ValueError as error:
        assert "mpirun or horoscalerun --mpi" in str(error), error
hvd.init()
assert hvd.size() == 2 and not hvd.mpi_enabled()
"""
    ended = mpi.run_launcher("-np", "2", mpi.python, "-c", script)
    assert ended.returncode == 0, ended.stderr


def test_run_returns_what_the_function_gave_on_each_rank(mpi: Mpi, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import horoscale

def work(factor, *, large):
    import numpy as np
    import horoscale.numpy as hvd
    hvd.init()
    assert hvd.mpi_enabled()
    total = float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])
    return hvd.rank(), factor * total, bytes([hvd.rank()]) * large  # several pieces

large = 3_000_000
given = horoscale.run(work, (2,), {"large": large}, np=3, use_mpi=True)
assert given == [(rank, 6.0, bytes([rank]) * large) for rank in range(3)]
""")
    ended = mpi.run_alone(mpi.python, str(program))
    assert ended.returncode == 0, ended.stderr


def test_run_raises_what_a_rank_raised_or_says_how_it_ended(mpi: Mpi, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("""
import os
import horoscale

def fail():
    import numpy as np
    import horoscale.numpy as hvd
    hvd.init()
    if hvd.rank() == 1:
        raise KeyError("the cause")
    hvd.allreduce(np.ones(1))

def of(function):
    try:
        horoscale.run(function, np=2, use_mpi=True)
    except Exception as error:
        return error

error = of(fail)
assert isinstance(error, KeyError) and error.__cause__.rank == 1, repr(error)
error = of(lambda: os._exit(3))
assert isinstance(error, RuntimeError) and "mpirun ended with status 3" in str(error), error
""")
    ended = mpi.run_alone(mpi.python, str(program))
    assert ended.returncode == 0, ended.stderr


def test_check_build_tells_the_library_in_a_line(mpi: Mpi) -> None:
    ended = mpi.run(1, "-m", "horoscale.runner", "--check-build")
    (line,) = {line for line in ended.stdout.splitlines() if "[X] MPI" in line}
    name = {"openmpi": "Open MPI v", "mpich": "MPICH "}[mpi.family]
    assert line.startswith(f"    [X] MPI: {name}"), line
    assert "/libmpi" in line, line
