"""A real Ray cluster, slower tests: GPUs, output, nodes without horoscale, the end of Ray Train."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import test_ray  # skips if Ray is not installed
from ray import cloudpickle
from ray.cluster_utils import Cluster
from support.ranks import clean_environment
from test_ray import QUICK, add_node

from horoscale.ray import RayExecutor

pytestmark = test_ray.pytestmark
cluster = test_ray.cluster
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers lack this module


@contextmanager
def node_with_gpus(cluster: Cluster, count: int) -> Iterator[None]:
    """Another node with fake GPUs: Ray only counts them and assigns their IDs."""
    node = add_node(cluster, num_gpus=count)
    try:
        yield
    finally:
        cluster.remove_node(node)


def told() -> tuple[int, str]:
    return int(os.environ["HOROSCALE_LOCAL_RANK"]), os.environ["CUDA_VISIBLE_DEVICES"]


def test_ranks_of_a_node_see_all_gpus_that_ray_has_given_them(cluster: Cluster) -> None:
    with node_with_gpus(cluster, 3):
        executor = RayExecutor(QUICK, num_workers=2, use_gpu=True)
        executor.start()
        try:
            devices = executor.run(told)
        finally:
            executor.shutdown()
        elastic = RayExecutor(QUICK, min_workers=2, max_workers=2, use_gpu=True)
        elastic.start()
        elastic_devices = elastic.run(told)
        elastic.shutdown()
    assert [rank for rank, _ in devices] == [0, 1]
    for _, visible in [*devices, *elastic_devices]:
        assert len(set(visible.split(",")) & {"0", "1", "2"}) == 2
    assert len({visible for _, visible in devices}) == 1


PRINTS = """
    import sys
    import ray
    from horoscale.ray import RayExecutor

    ray.init(address=sys.argv[1], logging_level="warning")
    executor = RayExecutor(num_workers=2)
    executor.start()
    executor.run(lambda: print("hello from a rank"))
    sys.stdin.readline()  # Ray sends lines a moment later
    executor.shutdown()
"""


def test_what_ranks_print_comes_to_the_driver_with_their_rank(cluster: Cluster) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", dedent(PRINTS), cluster.address],
        env=clean_environment() | {"RAY_DEDUP_LOGS": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    watchdog = threading.Timer(120, driver.kill)
    watchdog.start()
    wanted, said = {"(rank 0 ", "(rank 1 "}, []
    try:
        for line in driver.stdout:
            said.append(line)
            wanted -= {one for one in wanted if one in line and "hello from a rank" in line}
            if not wanted:
                break
        assert not wanted, said
        driver.communicate("\n", timeout=60)
        assert driver.returncode == 0
    finally:
        watchdog.cancel()
        driver.kill()
        driver.communicate()


LACKS = """
    import sys
    import ray
    from horoscale.ray import RayError, RayExecutor

    variables = {"PYTHONPATH": sys.argv[2]}
    ray.init(address=sys.argv[1], logging_level="error", runtime_env={"env_vars": variables})
    settings = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=60)
    for arguments in ({"num_workers": 1}, {"min_workers": 1, "max_workers": 1}):
        executor = RayExecutor(settings, **arguments)
        try:
            executor.start()
            executor.run(lambda: None)
        except RayError as error:
            print("told:", " ".join(str(error).split()))
        executor.shutdown()
"""


def test_a_node_without_horoscale_is_one_message(cluster: Cluster, tmp_path: Path) -> None:
    """On the nodes, an empty package with this name comes first on the path."""
    (tmp_path / "horoscale").mkdir()
    (tmp_path / "horoscale" / "__init__.py").touch()
    driver = subprocess.run(
        [sys.executable, "-c", dedent(LACKS), cluster.address, tmp_path],
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    said = [line for line in driver.stdout.splitlines() if line.startswith("told:")]
    assert len(said) == 2, driver.stdout + driver.stderr
    for line in said:
        assert line.startswith("told: a node of the cluster has no horoscale: install it there")


def killed(config: dict[str, Any]) -> None:
    """A worker of Ray Train. Number 1 dies, and the other one reports its error."""
    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()
    began = time.time()
    try:
        hvd.allreduce(np.ones(3), name="first")
        if hvd.rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            hvd.allreduce(np.ones(3), name="loss")
    except hvd.HorovodInternalError as error:
        Path(config["file"]).write_text(f"after {time.time() - began:.3f} s: {error}")
        raise


def test_a_worker_of_ray_train_that_is_killed_ends_the_run(
    cluster: Cluster, tmp_path: Path
) -> None:
    import ray.train

    from horoscale.ray.train import HoroscaleTrainer

    said = tmp_path / "said"
    trainer = HoroscaleTrainer(
        killed,
        train_loop_config={"file": str(said)},
        scaling_config=ray.train.ScalingConfig(num_workers=2),
        run_config=ray.train.RunConfig(storage_path=str(tmp_path), name="killed"),
    )
    with pytest.raises(Exception, match=r"rank 1|worker|Worker"):
        trainer.fit()
    print(said.read_text())
    assert "rank 1 failed" in said.read_text()
