"""Real Spark, tests with their own sessions: lost executors, dynamic allocation, GPUs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import process_sets
import pytest
import test_spark

pytestmark = test_spark.pytestmark_longer


@pytest.fixture
def spark(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield from test_spark.new_session(**getattr(request, "param", {}))


def which_ranks(folder: Path, wanted: int) -> tuple[int, int]:
    """Elastic: an executor is lost in the middle; ends when this many ranks are back."""
    import numpy as np

    import horoscale.elastic as elastic
    import horoscale.numpy as hvd
    from horoscale.spark import task

    hvd.init()
    state = elastic.ObjectState(steps=0, sizes=[])

    @elastic.run
    def train(state: Any) -> tuple[int, list[int]]:
        while True:
            hvd.allreduce(np.ones(2), name="loss")
            state.steps += 1
            if state.sizes[-1:] != [hvd.size()]:
                state.sizes.append(hvd.size())
            state.commit()
            if state.steps >= 5 and state.sizes[-1] == wanted and len(state.sizes) > 1:
                return state.steps, state.sizes
            if state.steps == 3 and hvd.rank() == 3 and not (folder / "killed").exists():
                (folder / "killed").touch()
                os.kill(task.executor_process(), signal.SIGKILL)
            time.sleep(0.01)

    return train(state)


def test_an_elastic_job_goes_on_without_an_executor_that_is_lost(
    spark: Any, tmp_path: Path
) -> None:
    """Spark starts another executor and restarts the lost tasks, and ranks join."""
    import horoscale.spark

    results = horoscale.spark.run_elastic(
        which_ranks, (tmp_path, 4), num_proc=4, min_num_proc=2, start_timeout=90
    )
    assert (tmp_path / "killed").exists()
    assert len(results) == 4
    _, sizes = results[0]
    assert sizes[0] == 4
    assert 2 in sizes


def test_an_executor_without_horoscale_is_one_message(spark: Any, tmp_path: Path) -> None:
    """On the executors, an empty package with this name comes first on the path."""
    import horoscale.spark
    from horoscale.spark.context import SparkError

    (tmp_path / "horoscale").mkdir()
    (tmp_path / "horoscale" / "__init__.py").touch()
    spark.sparkContext.environment["PYTHONPATH"] = str(tmp_path)
    with pytest.raises(SparkError) as raised:
        horoscale.spark.run(lambda: None, num_proc=2, start_timeout=60)
    assert str(raised.value) == (
        "an executor has no module horoscale.spark: install the same horoscale on all machines, "
        "for the interpreter that Spark uses there (PYSPARK_PYTHON)"
    )


DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.minExecutors": "0",
}


def rank_and_size() -> tuple[int, int]:
    import horoscale.numpy as hvd

    hvd.init()
    return hvd.rank(), hvd.size()


@pytest.mark.parametrize("spark", [DYNAMIC], indirect=True, ids=["dynamic"])
def test_with_dynamic_allocation_elastic_jobs_alone_run(spark: Any) -> None:
    import horoscale.spark
    from horoscale.spark.context import SparkError

    with pytest.raises(SparkError, match="Spark runs no barrier stages with dynamic allocation"):
        horoscale.spark.run(rank_and_size, num_proc=4)
    results = horoscale.spark.run_elastic(
        rank_and_size, num_proc=4, min_num_proc=4, start_timeout=90
    )
    assert results == [(rank, 4) for rank in range(4)]
    with pytest.raises(SparkError, match=r"5 ranks need 5 slots, .* has at most 4"):
        horoscale.spark.run_elastic(rank_and_size, num_proc=5, min_num_proc=5)


class Standalone:
    """A master and two workers with two cores each, started like Spark's `sbin` scripts."""

    def __init__(self, folder: Path) -> None:
        import pyspark

        self._folder = folder
        self._home = Path(pyspark.__file__).parent
        self._processes: list[subprocess.Popen[bytes]] = []
        try:
            log = self._start("master.Master", "--port", "0")
            self.master = self._find(log, r"Starting Spark master at (spark://\S+)")
            for number in range(2):
                work = folder / f"work{number}"
                words = ("--cores", "2", "--memory", "1g", "--work-dir", str(work), self.master)
                self._find(self._start("worker.Worker", *words), r"(Successfully registered)")
        except BaseException:
            self.close()
            raise

    def _start(self, name: str, *words: str) -> Path:
        log = self._folder / f"log{len(self._processes)}"
        program = [self._home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*program, "--host", "127.0.0.1", "--webui-port", "0", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**os.environ, "SPARK_HOME": str(self._home)},
            )
        self._processes.append(process)
        return log

    def _find(self, log: Path, pattern: str) -> str:
        deadline = time.monotonic() + 90
        while not (found := re.search(pattern, log.read_text())):
            assert time.monotonic() < deadline, log.read_text()
            assert all(process.poll() is None for process in self._processes), log.read_text()
            time.sleep(0.1)
        return found[1]

    def close(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_a_standalone_cluster(tmp_path: Path) -> None:
    import horoscale.spark
    from horoscale.spark.context import SparkError

    cluster = Standalone(tmp_path)
    try:
        for session in test_spark.new_session(cluster.master, **{"spark.executor.memory": "512m"}):
            results = horoscale.spark.run(process_sets.main, num_proc=4, start_timeout=90)
            assert results == [process_sets.EXPECTED] * 4
            with pytest.raises(SparkError, match="5 ranks need 5 slots, and after 1 s there are 4"):
                horoscale.spark.run(rank_and_size, num_proc=5, start_timeout=1)
            assert test_spark.last_status(session) == "SUCCEEDED"
    finally:
        cluster.close()


def visible_devices() -> str:
    import horoscale.numpy as hvd

    hvd.init()
    return os.environ["CUDA_VISIBLE_DEVICES"]


def test_ranks_see_the_gpus_that_spark_has_assigned(tmp_path: Path) -> None:
    """Fake GPUs from a discovery script: Spark looks only at addresses."""
    import horoscale.spark

    script = tmp_path / "gpus"
    found = json.dumps({"name": "gpu", "addresses": ["4", "7"]})
    script.write_text(f"#!/bin/sh\necho '{found}'\n")
    script.chmod(0o755)
    configuration = {
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "1",
    }
    for _ in test_spark.new_session(**configuration):
        assert horoscale.spark.run(visible_devices, num_proc=4) == ["4,7"] * 4
