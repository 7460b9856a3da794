"""A real Ray cluster of two nodes on this machine: RayExecutor, elastic jobs, Ray Train."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ray = pytest.importorskip("ray", reason="pip install 'horoscale[ray]'")
import cloudpickle  # noqa: E402
import process_sets  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402
from support.examples import EXAMPLES, accuracy_of, run  # noqa: E402

import horoscale.numpy as hvd  # noqa: E402
from horoscale.engines.agents.driver import AgentsError  # noqa: E402
from horoscale.ray import RayError, RayExecutor, elastic, placement, static  # noqa: E402
from horoscale.runner.outcome import RankError  # noqa: E402

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore"),  # raised by Ray itself
]
NODE = {"num_cpus": 2, "object_store_memory": 80 << 20, "include_dashboard": False}
cloudpickle.register_pickle_by_value(process_sets)  # the ranks lack this module
QUICK = RayExecutor.create_settings(timeout_s=60, placement_group_timeout_s=30)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    os.environ["RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"] = "120"
    cluster = Cluster()
    add_node(cluster, **NODE)
    add_node(cluster)
    ray.init(address=cluster.address, logging_level="warning", log_to_driver=True)
    try:
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_node(cluster: Cluster, **arguments: Any) -> Any:
    """Add a node; retry once, because Ray gives up if the machine is very busy."""
    arguments = {"num_cpus": 2, "object_store_memory": 80 << 20, **arguments}
    try:
        return cluster.add_node(**arguments)
    except Exception:
        return cluster.add_node(**arguments)


@pytest.fixture
def executor(cluster: Cluster) -> Iterator[RayExecutor]:
    executor = RayExecutor(QUICK, num_hosts=2, num_workers_per_host=2)
    executor.start(extra_env_vars={"OMP_NUM_THREADS": "1", "HELLO": "there"})
    try:
        yield executor
    finally:
        executor.shutdown()


def train(factor: float, more: float = 0.0) -> tuple[float, int, int, int, str]:
    import numpy as np

    import horoscale.numpy as hvd

    hvd.init()
    mean = hvd.allreduce(np.full(3, float(hvd.rank())), name="x")[0]
    told = os.environ["HELLO"]
    return factor * mean + more, hvd.rank(), hvd.local_rank(), hvd.cross_size(), told


def test_a_function_runs_on_ranks_of_both_nodes_again_and_again(executor: RayExecutor) -> None:
    expected = [(4.0, 0, 0), (4.0, 1, 1), (4.0, 2, 0), (4.0, 3, 1)]
    for _ in range(2):
        results = executor.run(train, (2.0,), {"more": 1.0})
        assert [one[:3] for one in results] == expected
        assert {one[3:] for one in results} == {(2, "there")}
    references = executor.run_remote(train, (2.0,), {"more": 1.0})
    assert [one[:3] for one in ray.get(references)] == expected
    executor.run(hvd.shutdown)
    assert executor.run(process_sets.main) == [process_sets.EXPECTED] * 4


def test_a_rank_that_raises_is_raised_here_with_its_traceback(executor: RayExecutor) -> None:
    def fails() -> None:
        import numpy as np

        import horoscale.numpy as hvd

        hvd.init()
        if hvd.rank() == 2:
            raise KeyError("no such column")
        while True:
            hvd.allreduce(np.ones(3), name="loss")

    with pytest.raises(KeyError, match="no such column") as caught:
        executor.run(fails)
    assert isinstance(caught.value.__cause__, RankError)
    assert caught.value.__cause__.rank == 2
    assert "in fails" in caught.value.__cause__.traceback
    # The actors live on, and the ranks meet again.
    assert [one[1] for one in executor.run(train, (1.0,))] == [0, 1, 2, 3]


def test_a_rank_that_is_killed_is_named_by_the_survivors(executor: RayExecutor) -> None:
    def killed() -> None:
        import numpy as np

        import horoscale.numpy as hvd

        hvd.init()
        hvd.allreduce(np.ones(3), name="first")
        began = max(hvd.allgather_object(time.time(), name="clocks"))
        try:
            hvd.barrier()  # all ranks have the clocks
            if hvd.rank() == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                hvd.allreduce(np.ones(3), name="loss")
        except hvd.HorovodInternalError as error:
            raise RuntimeError(f"after {time.time() - began:.3f} s: {error}") from None

    with pytest.raises(RayError, match="rank 2 died") as caught:
        executor.run(killed)
    told = re.findall(r"RuntimeError: after ([\d.]+) s: rank 2 failed", str(caught.value))
    print(f"the survivors raised after {', '.join(told)} s")
    assert len(told) == 3, caught.value
    with pytest.raises(RayError, match="rank 2 died; shutdown"):
        executor.run(train, (1.0,))


def test_executables_stay_with_their_ranks(cluster: Cluster) -> None:
    class Counter:
        def __init__(self, begin: int) -> None:
            self.value = begin

        def add(self, number: int) -> int:
            self.value += number
            return self.value

    executor = RayExecutor(QUICK, num_workers=2)
    executor.start(Counter, (5,))
    try:
        assert executor.execute(lambda counter: counter.add(2)) == [7, 7]
        assert executor.execute_single(lambda counter: counter.add(1)) == 8
        assert executor.execute(lambda counter: counter.value) == [8, 7]
    finally:
        executor.shutdown()


class Unpicklable:
    """An object from which no actor can be created."""

    lock = threading.Lock()


@pytest.mark.parametrize(
    ("module", "name", "value"),
    [(static, "Worker", Unpicklable), (placement, "placement_group_table", lambda _: {})],
    ids=["actors", "slots"],
)
def test_places_are_given_back_where_a_start_fails(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, value: Any
) -> None:
    executor = RayExecutor(QUICK, num_workers=4)  # all that fit
    with monkeypatch.context() as patch:
        patch.setattr(module, name, value)
        with pytest.raises((TypeError, KeyError)):
            executor.start()
    executor.start()
    executor.shutdown()


def test_a_placement_group_that_the_caller_is_in_is_used(cluster: Cluster) -> None:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.placement_group([{"CPU": 1}] * 3, strategy="PACK")
    assert group.wait(30)

    def tune() -> tuple[list[int], str]:
        executor = RayExecutor(QUICK, num_workers=2)
        executor.start()
        ranks = executor.run(lambda: int(os.environ["HOROSCALE_RANK"]))
        executor.shutdown()
        try:
            RayExecutor(QUICK, num_workers=4).start()
        except RayError as error:
            return ranks, str(error)
        return ranks, ""

    strategy = PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=2, placement_group_capture_child_tasks=True
    )
    try:
        task = ray.remote(tune).options(num_cpus=0, scheduling_strategy=strategy)
        ranks, said = ray.get(task.remote())
        assert ranks == [0, 1]
        assert "the current placement group has: its bundles take 3" in said
    finally:
        ray.util.remove_placement_group(group)


def test_a_place_that_another_actor_holds_is_told(cluster: Cluster) -> None:
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = ray.util.placement_group([{"CPU": 1}] * 2, strategy="PACK")
    assert group.wait(30)

    class Holder:
        def is_there(self) -> bool:
            return True

    def place(bundle: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=bundle, placement_group_capture_child_tasks=True
        )

    def tune() -> str:
        settings = RayExecutor.create_settings(timeout_s=1, placement_group_timeout_s=1)
        try:
            RayExecutor(settings, num_workers=2).start()
        except RayError as error:
            return str(error)
        return ""

    try:
        holder = ray.remote(Holder).options(num_cpus=1, scheduling_strategy=place(0)).remote()
        assert ray.get(holder.is_there.remote(), timeout=60)
        task = ray.remote(tune).options(num_cpus=0, scheduling_strategy=place(1))
        assert "after 2 s not all of 2 actors have started" in ray.get(task.remote(), timeout=90)
    finally:
        ray.util.remove_placement_group(group)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_workers": 5}, r"no room for 5 ranks of 1 CPU each .* take 4 such ranks"),
        ({"num_hosts": 3}, r"no room for 3 ranks of 1 CPU each \(strategy STRICT_SPREAD\)"),
        ({"num_workers": 1, "use_gpu": True}, r"1 ranks of 1 CPU and 1 GPU each"),
    ],
    ids=["ranks", "hosts", "gpus"],
)
def test_more_ranks_than_the_cluster_has_room_for(
    cluster: Cluster, arguments: dict[str, Any], message: str
) -> None:
    settings = RayExecutor.create_settings(placement_group_timeout_s=0.5)
    with pytest.raises(RayError, match=message):
        RayExecutor(settings, **arguments).start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "how many ranks"),
        ({"num_workers": 2, "num_hosts": 1}, "how many ranks"),
        ({"num_workers": 0}, "num_workers: expected a number of at least 1"),
        ({"num_workers": 2, "gpus_per_worker": 1}, "use_gpu"),
        ({"num_workers": 2, "max_workers": 3}, "need min_workers"),
        ({"min_workers": 4, "max_workers": 3}, "ascending order"),
    ],
)
def test_arguments_that_contradict_each_other(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RayExecutor(**arguments)


def test_a_node_without_horoscale_is_told() -> None:
    said = "ray::Worker()\n  File ...\nModuleNotFoundError: No module named 'horoscale.ray'"
    message = static.start_failure(RuntimeError(said))
    assert message.startswith("a node of the cluster has no horoscale: install it there")
    assert message.endswith("ModuleNotFoundError: No module named 'horoscale.ray'")


@pytest.mark.parametrize(
    ("failing", "message"),
    [
        (lambda: os.stat("/no/such/disk"), "an actor failed: FileNotFoundError: .*/no/such/disk"),
        (lambda: os._exit(3), "an actor failed: The actor died"),
    ],
    ids=["raises", "dies"],
)
def test_why_actors_of_an_elastic_job_fail_is_told(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, failing: Callable[[], Any], message: str
) -> None:
    class Place:
        def serve(self, *arguments: Any) -> None:
            failing()

    def wait(self: Any, wanted: int, seconds: float, check: Callable[[], None]) -> None:
        places, deadline = check.__self__, time.monotonic() + 60
        while "an actor failed" not in places.describe():
            assert time.monotonic() < deadline
            time.sleep(0.1)
        raise AgentsError("0 of 2 tasks have started")

    monkeypatch.setattr(elastic, "Place", Place)
    monkeypatch.setattr(elastic.Agents, "wait", wait)
    executor = RayExecutor(QUICK, min_workers=2, max_workers=2)
    executor.start()
    with pytest.raises(RayError, match=f"0 of 2 tasks have started; its nodes .*{message}"):
        executor.run(counts)


def counts(steps: int, folder: str) -> tuple[int, int, int]:
    """An elastic rank: commits steps, slowly until two nodes have joined."""
    import numpy as np

    import horoscale.numpy as hvd
    from horoscale import elastic

    hvd.init()
    state = elastic.ObjectState(step=0, most=0, done=False)

    @elastic.run
    def train(state: elastic.ObjectState) -> None:
        while not state.done:
            enough = float(Path(folder, "enough").exists() and state.step >= steps)
            state.done = hvd.allreduce(np.full(3, enough), op=hvd.Max, name="enough")[0] > 0
            state.step += 1
            state.most = max(state.most, hvd.size())
            state.commit()
            if hvd.rank() == 0:
                Path(folder, f"size{hvd.size()}").touch()
            time.sleep(0.01)

    train(state)
    return state.step, state.most, hvd.size()


def test_ranks_follow_the_nodes_of_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    executor = RayExecutor(QUICK, min_workers=2, max_workers=6)
    executor.start(extra_env_vars={"OMP_NUM_THREADS": "1"})
    with ThreadPoolExecutor() as pool:
        running = pool.submit(executor.run, counts, (20, str(tmp_path)))
        try:
            wait_for(tmp_path / "size4", running)
            node = add_node(cluster)
            wait_for(tmp_path / "size6", running)
            (tmp_path / "size4").unlink()
            cluster.remove_node(node, allow_graceful=False)
            wait_for(tmp_path / "size4", running)
        finally:
            (tmp_path / "enough").touch()
        results = running.result(90)
    executor.shutdown()
    assert len(results) == 4
    assert len(set(results)) == 1
    assert results[0][1:] == (6, 4)


def wait_for(file: Path, running: Any) -> None:
    deadline = time.monotonic() + 90
    while not file.exists():
        if running.done():
            running.result()
        assert time.monotonic() < deadline, f"no {file.name}: {list(file.parent.iterdir())}"
        time.sleep(0.1)


def test_the_digits_are_learnt_by_ray_train_from_ray_data(cluster: Cluster, tmp_path: Path) -> None:
    """As users run it, in its own process that connects to the cluster."""
    program = EXAMPLES / "ray_digits.py"
    python = sys.executable
    said = run(
        python,
        program,
        "--address",
        cluster.address,
        "--cpus-per-worker",
        "0.5",
        "--epochs",
        "6",
        folder=tmp_path,
    )
    assert "4 ranks on 2 nodes" in said
    assert accuracy_of(said) > 0.9
