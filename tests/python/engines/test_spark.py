"""Real Spark: two executors with two slots each on this machine, in Spark's local cluster."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import process_sets
import pytest
from support.examples import EXAMPLES

_MARKS = [
    pytest.mark.skipif(
        importlib.util.find_spec("pyspark") is None or shutil.which("java") is None,
        reason="needs pyspark and a JRE",
    ),
    # Raised by Spark with other versions of its libraries.
    pytest.mark.filterwarnings("default::FutureWarning", "default::DeprecationWarning"),
    pytest.mark.filterwarnings("default::ResourceWarning", "default::UserWarning"),
]
pytestmark = [*_MARKS, pytest.mark.timeout(180)]
pytestmark_longer = [*_MARKS, pytest.mark.timeout(400)]  # for the files that `make engines` runs
# Two executors on one machine share files that Open MPI considers private to each machine.
MPI_ARGS = "--mca btl self,tcp"


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    yield from new_session()


def new_session(master: str = "local-cluster[2,2,1024]", **configuration: str) -> Iterator[Any]:
    """A session, by default with its own cluster, which is stopped afterwards."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = (
        SparkSession.builder.master(master)
        .config("spark.ui.enabled", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.executorEnv.OMP_NUM_THREADS", "1")
        # Otherwise settings of the session that started the JVM would remain.
        .config("spark.dynamicAllocation.enabled", "false")
        .config("spark.executorEnv.PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    )
    for name, value in configuration.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def last_status(spark: Any) -> str:
    """The status of Spark's last job in its status store, which is updated with a delay."""
    store = spark.sparkContext._jsc.sc().statusStore()
    deadline = time.monotonic() + 20
    while (status := str(store.jobsList(None).apply(0).status())) == "RUNNING":
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return status


def digits(epochs: int) -> str:
    """Runs the unchanged PyTorch example on a rank; returns rank 0's output."""
    import contextlib
    import io
    import runpy

    sys.argv = ["torch_digits.py", "--epochs", str(epochs)]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        runpy.run_path(str(EXAMPLES / "torch_digits.py"), run_name="__main__")
    return said.getvalue()


def test_the_digits_are_learnt_on_two_executors(spark: Any) -> None:
    import horoscale.spark

    said, *others = horoscale.spark.run(digits, (6,), num_proc=4)
    assert float(re.search(r"4 ranks: held-out accuracy ([\d.]+)", said)[1]) > 0.93
    assert int(re.search(r"([\d,]+) bytes went between hosts", said)[1].replace(",", "")) > 1e6
    assert others == ["", "", ""]
    assert last_status(spark) == "SUCCEEDED"


def test_process_sets_named_at_the_start_and_later(spark: Any) -> None:
    import horoscale.spark

    assert horoscale.spark.run(process_sets.main, num_proc=4) == [process_sets.EXPECTED] * 4


def kill_rank_2(folder: Path) -> None:
    import signal

    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()
    began = hvd.allgather_object(time.time(), name="clocks")
    try:
        hvd.barrier()  # all ranks have the clocks
        if hvd.rank() == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        for _ in range(1000):
            hvd.allreduce(np.ones(4), name="loss")
    except hvd.HorovodInternalError as error:
        (folder / str(hvd.rank())).write_text(f"{time.time() - max(began):.3f} {error}")
        raise


def test_a_killed_rank_is_named_by_the_others_and_fails_sparks_job(
    spark: Any, tmp_path: Path
) -> None:
    import horoscale.spark

    with pytest.raises(Exception, match="rank 2 failed") as raised:
        horoscale.spark.run(kill_rank_2, (tmp_path,), num_proc=4)
    assert type(raised.value).__name__ == "RankFailedError"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1", "3"]
    said = [file.read_text() for file in tmp_path.iterdir()]
    print(f"the survivors raised after {', '.join(text.split()[0] for text in said)} s")
    assert all("rank 2 failed" in text for text in said)
    assert last_status(spark) == "FAILED"


def test_what_a_rank_raises_comes_with_its_traceback(spark: Any) -> None:
    import horoscale.spark
    from horoscale.runner.api import RankError

    def raise_on_rank_1() -> None:
        import horoscale.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            raise KeyError("train.csv")
        hvd.barrier()

    with pytest.raises(KeyError, match=r"train\.csv") as raised:
        horoscale.spark.run(raise_on_rank_1, num_proc=2)
    cause = raised.value.__cause__
    assert isinstance(cause, RankError)
    assert cause.rank == 1
    assert "in raise_on_rank_1" in cause.traceback


def test_more_ranks_than_slots_are_refused_at_once(spark: Any) -> None:
    import horoscale.spark
    from horoscale.spark.context import SparkError

    with pytest.raises(
        SparkError, match="5 ranks need 5 slots, and this application has at most 4"
    ):
        horoscale.spark.run(lambda: None, num_proc=5)
    with pytest.raises(ValueError, match="num_proc: expected a positive number"):
        horoscale.spark.run(lambda: None, num_proc=0)


def test_tasks_that_do_not_start_end_the_wait(spark: Any, tmp_path: Path) -> None:
    """Occupied slots are an error after start_timeout, before Spark's own timeout."""
    import threading

    import horoscale.spark
    from horoscale.spark.context import SparkError

    context = spark.sparkContext
    running, enough = tmp_path / "running", tmp_path / "enough"

    def hold(_: Any) -> None:
        running.touch()
        while not enough.exists():
            time.sleep(0.05)

    holder = threading.Thread(target=lambda: context.parallelize([0], 1).foreach(hold))
    holder.start()
    try:
        while not running.exists():
            assert holder.is_alive()
            time.sleep(0.05)
        with pytest.raises(SparkError, match="of 4 tasks have started within 3 s"):
            horoscale.spark.run(lambda: None, num_proc=4, start_timeout=3)
    finally:
        enough.touch()
        holder.join(60)


def who_and_where(folder: Path) -> tuple[int, int, str]:
    """Elastic: rank 3 is lost in the first view; a replacement may or may not start."""
    import signal

    import numpy as np

    import horoscale.elastic as elastic
    import horoscale.numpy as hvd

    hvd.init()
    state = elastic.ObjectState(steps=0)

    @elastic.run
    def train(state: Any) -> tuple[int, int, str]:
        while state.steps < 5:
            hvd.allreduce(np.ones(2), name="loss")
            state.steps += 1
            state.commit()
            if state.steps == 3 and hvd.rank() == 3 and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return hvd.rank(), state.steps, os.environ["HOROSCALE_HOSTNAME"]

    return train(state)


def test_an_elastic_job_goes_on_without_a_rank_that_is_killed(spark: Any, tmp_path: Path) -> None:
    import horoscale.spark

    results = horoscale.spark.run_elastic(
        who_and_where, (tmp_path,), num_proc=4, min_num_proc=2, start_timeout=60
    )
    assert (tmp_path / "killed").exists()
    assert {steps for _, steps, _ in results} == {5}
    assert len(results) >= 3


def mpi_sum() -> tuple[int, float]:
    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()
    return hvd.rank(), float(hvd.allreduce(np.ones(1), op=hvd.Sum)[0])


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs an mpirun")
def test_mpirun_starts_the_ranks_through_the_tasks(spark: Any) -> None:
    import horoscale.spark

    results = horoscale.spark.run(mpi_sum, num_proc=4, use_mpi=True, extra_mpi_args=MPI_ARGS)
    assert results == [(0, 4.0), (1, 4.0), (2, 4.0), (3, 4.0)]
