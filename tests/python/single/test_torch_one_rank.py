"""horoscale.torch in one process: without a job, in a job of one rank, and from job to job."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import horoscale.torch as hvd  # noqa: E402
from horoscale._core import DataType, HorovodInternalError  # noqa: E402
from horoscale._core.types import Encoding  # noqa: E402
from horoscale.torch import buckets  # noqa: E402
from horoscale.torch.compression import divide  # noqa: E402
from horoscale.torch.tensors import data_type  # noqa: E402

ONE = torch.ones(3)


def make_optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)


NEED_INIT: dict[str, Callable[[], Any]] = {
    "rank": hvd.rank,
    "size": hvd.size,
    "allreduce": lambda: hvd.allreduce(ONE),
    "allreduce_": lambda: hvd.allreduce_(ONE.clone()),
    "grouped_allreduce": lambda: hvd.grouped_allreduce([ONE]),
    "sparse_allreduce_async": lambda: hvd.sparse_allreduce_async(ONE.to_sparse(), None),
    "allgather": lambda: hvd.allgather(ONE),
    "broadcast": lambda: hvd.broadcast(ONE, 0),
    "alltoall": lambda: hvd.alltoall(ONE),
    "reducescatter": lambda: hvd.reducescatter(ONE),
    "reduce": lambda: hvd.reduce(ONE, 0),
    "gather": lambda: hvd.gather(ONE, 0),
    "scatter": lambda: hvd.scatter(ONE, 0),
    "join": hvd.join,
    "barrier": hvd.barrier,
    "broadcast_parameters": lambda: hvd.broadcast_parameters({"a": ONE}, 0),
    "broadcast_optimizer_state": lambda: hvd.broadcast_optimizer_state(make_optimizer(), 0),
    "DistributedOptimizer": lambda: hvd.DistributedOptimizer(make_optimizer()),
    "SyncBatchNorm": lambda: hvd.SyncBatchNorm(3)(torch.ones(2, 3)),
    "empty_shared": lambda: hvd.empty_shared(3),
}


@pytest.fixture
def job() -> Iterator[None]:
    hvd.init()
    yield
    hvd.shutdown()


@pytest.mark.parametrize("name", NEED_INIT)
def test_before_init(name: str) -> None:
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        NEED_INIT[name]()


@pytest.mark.usefixtures("job")
def test_collectives_on_one_rank() -> None:
    assert hvd.allreduce(ONE).equal(ONE)
    assert hvd.allgather(ONE).equal(ONE)
    assert hvd.broadcast(ONE, 0).equal(ONE)
    assert hvd.alltoall(ONE).equal(ONE)
    assert hvd.reducescatter(ONE).equal(ONE)
    for result in (hvd.reduce(ONE, 0), hvd.gather(ONE, 0), hvd.scatter(ONE, 0)):
        assert result is not None
        assert result.equal(ONE)
    assert hvd.join() == 0


def test_an_optimizer_outlives_its_job() -> None:
    """Hooks, names and shared memory of the first job work in the second."""
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        hvd.shutdown()
        hvd.init()
    assert model.weight.tolist() == [[-1.0, -1.0]]
    hvd.shutdown()


def test_a_job_that_ends_before_the_step() -> None:
    model = torch.nn.Linear(2, 1)
    hvd.init()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model(torch.ones(1, 2)).sum().backward()
    hvd.shutdown()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ValueError, match=r"hvd\.init\(\)"):
        optimizer.step()


def test_a_job_that_ends_during_an_overlapped_step() -> None:
    """Operations of step() complete by the end of the job, whoever reads the weights later."""
    model = torch.nn.Linear(2, 2)
    before = model.weight.detach().clone()
    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 0.5), overlap_step=True
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    hvd.shutdown()
    assert torch.equal(model.weight, before - 0.5)


@pytest.mark.usefixtures("job")
def test_shared_memory_outlives_its_job() -> None:
    shared = hvd.empty_shared(1000)
    hvd.shutdown()
    shared += 1.0
    assert shared.sum().item() == 1000.0


@pytest.mark.usefixtures("job")
def test_no_shared_memory_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise HorovodInternalError("no memory")

    monkeypatch.setattr(buckets, "empty_shared", refuse)
    model = torch.nn.Linear(2, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert model.weight.tolist() == [[0.0, 0.0]]


@pytest.mark.usefixtures("job")
def test_buckets_have_room_for_every_layout() -> None:
    parameters = [
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(0),
        torch.ones(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        torch.tensor(1.0, dtype=torch.complex128),
    ]
    views = buckets.make_bucket(parameters)
    assert views[1] is None
    for parameter, view in zip(parameters, views, strict=True):
        if view is not None:
            assert (view.shape, view.dtype) == (parameter.shape, parameter.dtype)
            assert view.stride() == parameter.stride()
            assert view.data_ptr() % 64 == 0
            view.fill_(1)
    assert all(view is None or view.equal(p) for p, view in zip(parameters, views, strict=True))


class OnGpu(torch.Tensor):
    """Claims to exist."""

    is_cuda = True


def test_tensors_on_a_gpu_are_compressed_there() -> None:
    half = hvd.Compression.fp16
    assert divide(half, [ONE]) == (Encoding.FLOAT16, hvd.Compression.none)
    assert divide(half, [ONE, OnGpu(3)]) == (Encoding.NONE, half)
    assert divide(hvd.Compression.none, [OnGpu(3)]) == (Encoding.NONE, hvd.Compression.none)


def test_every_type_has_its_size() -> None:
    sizes = {
        data_type(dtype): dtype.itemsize
        for dtype in vars(torch).values()
        if isinstance(dtype, torch.dtype) and dtype_is_known(dtype)
    }
    assert sizes.keys() == set(DataType)


def dtype_is_known(dtype: torch.dtype) -> bool:
    try:
        data_type(dtype)
    except ValueError:
        return False
    return True


def test_signatures_begin_as_horovods() -> None:
    """Scripts pass these by position."""
    first = {
        "allreduce": "tensor average name compression op prescale_factor postscale_factor "
        "process_set",
        "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
        "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor "
        "process_set",
        "sparse_allreduce_async": "tensor name op process_set",
        "allgather": "tensor name process_set",
        "broadcast_": "tensor root_rank name process_set",
        "alltoall": "tensor splits name process_set",
        "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
        "broadcast_parameters": "params root_rank process_set",
        "broadcast_optimizer_state": "optimizer root_rank model",
        "broadcast_object": "obj root_rank name process_set",
        "allgather_object": "obj name process_set",
        "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step "
        "op gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    }
    for name, parameters in first.items():
        own = list(inspect.signature(getattr(hvd, name)).parameters)
        assert own[: len(parameters.split())] == parameters.split(), name


def test_all_names_are_there() -> None:
    assert sorted(hvd.__all__) == sorted(set(hvd.__all__))
    assert all(hasattr(hvd, name) for name in hvd.__all__)
