"""Real Dask: a scheduler and workers as processes on this machine."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs distributed"),
    pytest.mark.filterwarnings("default::DeprecationWarning", "default::FutureWarning"),
    pytest.mark.filterwarnings("default::ResourceWarning", "default::UserWarning"),
]


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def rank_and_sum(scale: int, *, more: int) -> tuple[int, int, float]:
    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()
    sums = hvd.allreduce(np.full(3, scale + more), op=hvd.Sum)
    return hvd.rank(), hvd.local_size(), float(sums[0])


def test_a_rank_for_each_worker(client: Any) -> None:
    import horoscale.dask

    results = horoscale.dask.run(client, rank_and_sum, (2,), {"more": 1})
    assert results == [(0, 2, 6.0), (1, 2, 6.0)]
    assert client.submit(lambda: "free again").result(timeout=30) == "free again"


def test_a_killed_rank_is_named_and_the_workers_live(client: Any) -> None:
    import horoscale.dask

    def kill_rank_1() -> None:
        import signal

        import horoscale.numpy as hvd

        hvd.init()
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.barrier()

    workers = set(client.scheduler_info()["workers"])
    with pytest.raises(Exception, match="rank 1 failed") as raised:
        horoscale.dask.run(client, kill_rank_1)
    assert type(raised.value).__name__ == "RankFailedError"
    assert set(client.scheduler_info()["workers"]) == workers


def test_mistakes_are_told(client: Any) -> None:
    import horoscale.dask

    with pytest.raises(horoscale.dask.DaskError, match="3 ranks need 3 workers"):
        horoscale.dask.run(client, rank_and_sum, num_proc=3)


def test_a_worker_without_horoscale_is_one_message(tmp_path: Path) -> None:
    """On the worker, an empty package with this name comes first on the path."""
    from distributed import Client, LocalCluster

    import horoscale.dask

    (tmp_path / "horoscale").mkdir()
    (tmp_path / "horoscale" / "__init__.py").touch()
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    with (
        LocalCluster(n_workers=0, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        command = ("-m", "distributed.cli.dask_worker", cluster.scheduler_address, "--no-nanny")
        worker = subprocess.Popen(
            [sys.executable, *command, "--nthreads", "1", "--no-dashboard"],
            env=os.environ | {"PYTHONPATH": path},
            cwd=tmp_path,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            client.wait_for_workers(1, timeout=60)
            with pytest.raises(
                horoscale.dask.DaskError,
                match=r"^a worker has no module horoscale\.engines: install the same horoscale",
            ):
                horoscale.dask.run(client, rank_and_sum, (2,), {"more": 1})
        finally:
            worker.kill()
            worker.wait()


def test_tasks_behind_others_are_not_waited_for(client: Any, tmp_path: Path) -> None:
    import horoscale.dask

    enough = tmp_path / "enough"

    def hold() -> None:
        while not enough.exists():
            time.sleep(0.05)

    workers = list(client.scheduler_info()["workers"])
    held = [client.submit(hold, workers=[worker], pure=False) for worker in workers]
    try:
        with pytest.raises(horoscale.dask.DaskError, match="are the workers busy"):
            horoscale.dask.run(client, rank_and_sum, start_timeout=1)
    finally:
        enough.touch()
    client.gather(held)
