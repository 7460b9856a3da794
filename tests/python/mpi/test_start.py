"""Plain `mpirun python train.py`: the ranks meet over MPI, whoever initializes it, and leave it."""

from __future__ import annotations

import re
import subprocess

import pytest
from conftest import ROOT, Mpi

pytestmark = pytest.mark.timeout(300)

IMPORT = "from mpi4py import MPI"
SUM = """
import numpy as np
import horoscale.numpy as hvd
{before}
hvd.init()
{after}
assert hvd.mpi_enabled() and hvd.mpi_built() and hvd.mpi_threads_supported()
assert hvd.size() == hvd.local_size() == {ranks}
assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [{ranks}] * 3
hvd.shutdown()
assert not hvd.mpi_enabled()
hvd.init()
assert hvd.allreduce(np.array([hvd.rank()]), op=hvd.Max).tolist() == [{ranks} - 1]
{end}
"""


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("mpi4py", ["never", "before", "after"])
def test_the_ranks_of_mpirun_meet(mpi: Mpi, ranks: int, mpi4py: str) -> None:
    parts = {
        "before": IMPORT if mpi4py == "before" else "",
        "after": IMPORT if mpi4py == "after" else "",
        "end": ""
        if mpi4py == "never"
        else "assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size",
    }
    mpi.run_script(ranks, SUM.format(ranks=ranks, **parts))


def test_mpi4py_goes_on_while_we_work_and_after_shutdown(mpi: Mpi) -> None:
    mpi.run_script(
        2,
        """
        import threading
        import numpy as np
        from mpi4py import MPI
        import horoscale.numpy as hvd
        hvd.init(MPI.COMM_WORLD)
        def theirs():
            for i in range(300):
                assert MPI.COMM_WORLD.allreduce(i) == 2 * i
        thread = threading.Thread(target=theirs)
        thread.start()
        for i in range(300):
            assert hvd.allreduce(np.full(1000, i), op=hvd.Sum)[0] == 2 * i
        thread.join()
        hvd.shutdown()
        assert MPI.COMM_WORLD.allreduce(1) == 2
        """,
    )


def test_fewer_threads_are_an_error(mpi: Mpi) -> None:
    mpi.run_script(
        2,
        """
        import mpi4py
        mpi4py.rc.threads = False
        from mpi4py import MPI
        import horoscale.numpy as hvd
        try:
            hvd.init()
            raise AssertionError
        except ValueError as error:
            assert "MPI_THREAD_MULTIPLE" in str(error), error
        """,
    )


def test_after_finalize_is_an_error(mpi: Mpi) -> None:
    mpi.run_script(
        2,
        """
        from mpi4py import MPI
        import horoscale.numpy as hvd
        MPI.Finalize()
        try:
            hvd.init()
            raise AssertionError
        except ValueError as error:
            assert "finalized" in str(error), error
        """,
    )


def test_a_rank_that_does_not_come_is_a_timeout(mpi: Mpi) -> None:
    script = """
import sys
from mpi4py import MPI
import horoscale.numpy as hvd
if MPI.COMM_WORLD.rank == 1:
    MPI.COMM_WORLD.recv()  # until the job is aborted
try:
    hvd.init()
except hvd.HorovodInternalError as error:
    sys.stdout.write(f"{error}\\n")
    sys.stdout.flush()
    MPI.COMM_WORLD.Abort(3)
"""
    ended = mpi.run(2, "-c", script, HOROSCALE_START_TIMEOUT="1")
    assert ended.returncode != 0
    assert "START_TIMEOUT" in ended.stdout, ended.stderr


def test_an_error_of_one_rank_ends_the_job(mpi: Mpi) -> None:
    ended = mpi.run(
        2,
        "-c",
        "import time\nimport horoscale.numpy as hvd\nhvd.init()\n"
        "time.sleep(60) if hvd.rank() else 1 / 0",
        seconds=50,
    )
    assert ended.returncode != 0
    assert "ZeroDivisionError" in ended.stderr


def test_launcher_and_library_of_different_mpis(both: dict[str, Mpi]) -> None:
    """mpi4py has loaded a library that knows nothing of the launcher.

    The other way round MPICH itself ends the process: "unsupported PMI version PMIx".
    """
    script = "from mpi4py import MPI; import horoscale.numpy as hvd; hvd.init()"
    ended = both["mpich"].run(2, "-c", script, python=both["openmpi"].python)
    assert ended.returncode != 0
    assert "different MPIs" in ended.stderr, ended.stderr


def test_the_launchers_library_is_taken_where_mpi4py_is_not(both: dict[str, Mpi]) -> None:
    script = """
import sys
import horoscale.numpy as hvd
hvd.init()
sys.stdout.write(f"{hvd.size()}\\n")
"""
    for mpi, other in (both.values(), reversed(both.values())):
        ended = mpi.run(2, "-c", script, python=other.python)
        assert (ended.returncode, ended.stdout) == (0, "2\n2\n"), ended.stderr


def test_the_controller_can_be_chosen(mpi: Mpi) -> None:
    alone = "import horoscale.numpy as hvd; hvd.init(); assert hvd.size() == 1, hvd.size()"
    mpi.run_script(2, alone, HOROVOD_CONTROLLER="gloo")
    mpi.run_script(
        1, "import horoscale.numpy as hvd; hvd.init(); assert hvd.mpi_enabled()",
        HOROVOD_CONTROLLER="mpi",
    )  # fmt: skip


def test_horoscalerun_finds_mpirun_and_passes_its_arguments(mpi: Mpi) -> None:
    script = """
import os, sys
import horoscale.numpy as hvd
hvd.init()
assert hvd.mpi_enabled() and os.environ["HOROSCALE_CACHE_CAPACITY"] == "7"
sys.stdout.write(f"{hvd.size()} ranks{os.environ['SAID']}\\n")
"""
    mpi_args = "-x SAID=!" if mpi.name == "openmpi" else "-genv SAID !"
    flags = ("-np", "2", "--mpi", "--cache-capacity", "7", f"--mpi-args={mpi_args}")
    ended = subprocess.run(
        [mpi.python, "-m", "horoscale.runner", *flags, mpi.python, "-c", script],
        env=mpi.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("2 ranks!") == 2, ended.stdout


def test_the_split_example_learns_both_tasks(mpi: Mpi) -> None:
    ended = mpi.run(4, str(ROOT / "examples" / "process_sets_mpi_split.py"), seconds=150)
    found = dict(re.findall(r"(digit|odd): 2 ranks, held-out accuracy ([01]\.\d+)", ended.stdout))
    assert sorted(found) == ["digit", "odd"], ended.stdout + ended.stderr
    assert min(map(float, found.values())) > 0.93


@pytest.mark.parametrize("flags", [("-m", "mpi4py"), ()], ids=["mpi4py", "without"])
def test_the_digits_example_unmodified(mpi: Mpi, flags: tuple[str, ...]) -> None:
    example = str(ROOT / "examples" / "torch_digits.py")
    ended = mpi.run(4, *flags, example, "--epochs", "2", seconds=150)
    assert "4 ranks: held-out accuracy" in ended.stdout, ended.stdout + ended.stderr


def test_check_build_names_the_library(mpi: Mpi) -> None:
    ended = mpi.run(1, "-m", "horoscale.runner", "--check-build")
    assert "[X] MPI" in ended.stdout, ended.stdout + ended.stderr


@pytest.mark.parametrize("backend", ["native", "mpi"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_parallel_tests_pass_under_mpirun(mpi: Mpi, ranks: int, backend: str) -> None:
    folder = ROOT / "tests" / "python" / "parallel"
    pytest_command = ("-m", "pytest", "-q", "--timeout=60", "--tb=short", str(folder))
    subset = ("-m", "conformance", "-k", "numpy")
    ended = mpi.run(ranks, *pytest_command, *subset, seconds=200, HOROSCALE_BACKEND=backend)
    assert ended.returncode == 0, ended.stdout[-10_000:] + ended.stderr[-2000:]
    assert ended.stdout.count(" passed") == ranks, ended.stdout


def test_ranks_of_several_hosts_use_mpi_and_get_the_same_bits(mpi: Mpi) -> None:
    """Hosts are what HOROSCALE_HOSTNAME says; the sum is what shared memory gives."""
    script = """
import os, sys
import numpy as np
{host}
import horoscale.numpy as hvd
hvd.init()
assert hvd.local_size() == {local}
values = np.random.default_rng(hvd.rank()).standard_normal(300_001).astype(np.float32)
total = hvd.allreduce(values, op=hvd.Sum)
sys.stdout.write(f"bits {{hash(total.tobytes())}}\\n")
"""
    host = "os.environ['HOROSCALE_HOSTNAME'] = str(os.getpid())"
    said = set()
    for options in ({"host": "", "local": 3}, {"host": host, "local": 1}):
        ended = mpi.run(3, "-c", script.format(**options), PYTHONHASHSEED="0")
        assert ended.returncode == 0, ended.stderr
        said.update(re.findall("bits (.*)", ended.stdout))
    assert len(said) == 1
