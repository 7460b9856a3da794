"""Calls before init and after shutdown: their errors give advice, and some work without a job."""

from __future__ import annotations

import numpy as np
import pytest

import horoscale.numpy as hvd

ONE = np.ones(3)
NEED_INIT = {
    "rank": hvd.rank,
    "size": hvd.size,
    "local_rank": hvd.local_rank,
    "local_size": hvd.local_size,
    "cross_rank": hvd.cross_rank,
    "cross_size": hvd.cross_size,
    "is_homogeneous": hvd.is_homogeneous,
    "metrics": hvd.metrics,
    "start_timeline": lambda: hvd.start_timeline("/nowhere"),
    "stop_timeline": hvd.stop_timeline,
    "allreduce": lambda: hvd.allreduce(ONE),
    "allreduce_": lambda: hvd.allreduce_(ONE.copy()),
    "allreduce_async": lambda: hvd.allreduce_async(ONE),
    "grouped_allreduce": lambda: hvd.grouped_allreduce([ONE]),
    "allgather": lambda: hvd.allgather(ONE),
    "broadcast": lambda: hvd.broadcast(ONE, 0),
    "broadcast_": lambda: hvd.broadcast_(ONE.copy(), 0),
    "alltoall": lambda: hvd.alltoall(ONE),
    "reducescatter": lambda: hvd.reducescatter(ONE),
    "reduce": lambda: hvd.reduce(ONE, 0),
    "reduce_": lambda: hvd.reduce_(ONE.copy(), 0),
    "gather": lambda: hvd.gather(ONE, 0),
    "scatter": lambda: hvd.scatter(ONE, 0),
    "send": lambda: hvd.send(ONE, 0),
    "send_async": lambda: hvd.send_async(ONE, 0),
    "recv": lambda: hvd.recv(ONE.copy(), 0),
    "recv_async": lambda: hvd.recv_async(ONE.copy(), 0),
    "recv_any": lambda: hvd.recv_any(ONE.copy()),
    "recv_any_async": lambda: hvd.recv_any_async(ONE.copy()),
    "recv_view": lambda: hvd.recv_view(3, np.float64, 0),
    "batch": lambda: hvd.batch([hvd.P2POp(hvd.send, ONE, 0)]),
    "send_object": lambda: hvd.send_object(1, 0),
    "recv_object": lambda: hvd.recv_object(0),
    "barrier": hvd.barrier,
    "join": hvd.join,
    "broadcast_object": lambda: hvd.broadcast_object(1),
    "allgather_object": lambda: hvd.allgather_object(1),
    "empty_shared": lambda: hvd.empty_shared(3),
    "empty_sharded": lambda: hvd.empty_sharded(3),
    "empty_shared of nothing": lambda: hvd.empty_shared(0),
    "add_process_set": lambda: hvd.add_process_set([0]),
    "remove_process_set": lambda: hvd.remove_process_set(hvd.ProcessSet([0])),
    "get_process_set_ids_and_ranks": hvd.get_process_set_ids_and_ranks,
    "size of a set": lambda: hvd.size(hvd.ProcessSet([0])),
    "rank in a set": lambda: hvd.rank(hvd.ProcessSet([0])),
}


@pytest.mark.parametrize("call", NEED_INIT.values(), ids=NEED_INIT.keys())
def test_names_init(call) -> None:
    assert not hvd.is_initialized()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        call()


@pytest.mark.parametrize("call", NEED_INIT.values(), ids=NEED_INIT.keys())
def test_names_init_after_shutdown(call) -> None:
    hvd.init()
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        call()


def test_shutdown_without_init_does_nothing() -> None:
    hvd.shutdown()
    hvd.shutdown()


def test_what_is_built() -> None:
    assert hvd.gloo_built()
    assert hvd.gloo_enabled()
    for absent in ("nccl", "ddl", "ccl", "cuda", "rocm"):
        assert not getattr(hvd, f"{absent}_built")()
    assert not hvd.mpi_enabled()
    assert not hvd.mpi_threads_supported()


def test_operators_have_horovods_numbers() -> None:
    operators = (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
    assert operators == (0, 1, 2, 3, 4, 5)


def test_process_sets() -> None:
    process_set = hvd.ProcessSet([2, 0])
    assert process_set.ranks == [0, 2]
    assert process_set.process_set_id is None
    assert (process_set.size(), process_set.rank(), process_set.included()) == (None, None, None)
    assert str(process_set) == "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)"
    assert process_set == hvd.ProcessSet([0, 2])
    assert process_set != hvd.ProcessSet([0, 1])
    assert process_set != [0, 2]
    everyone = hvd.global_process_set
    assert everyone.process_set_id == 0
    assert (everyone.size(), everyone.rank(), everyone.included()) == (None, None, None)


@pytest.mark.parametrize(
    ("ranks", "error"), [([0, 0], ValueError), ([], ValueError), ([0.5], TypeError)], ids=str
)
def test_process_sets_of_wrong_ranks(ranks: list, error: type[Exception]) -> None:
    with pytest.raises(error):
        hvd.ProcessSet(ranks)


def test_wrong_arguments_of_init() -> None:
    with pytest.raises(TypeError, match="list of ranks"):
        hvd.init("0,1")
    with pytest.raises(ValueError, match="dynamic"):
        hvd.init(process_sets="dynamc")
    with pytest.raises(ValueError, match="list of ProcessSet"):
        hvd.init(process_sets=[[0]])
    assert not hvd.is_initialized()
