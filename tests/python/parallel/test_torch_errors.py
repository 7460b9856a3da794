"""Errors with tensors: on one rank alone, or from contradictory calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_reference import check

import horoscale.torch as hvd

first_rank = lambda: hvd.rank() == 0  # noqa: E731
MISMATCHES: dict[str, Callable[[str], Any]] = {
    "shape": lambda name: hvd.allreduce(torch.ones(3 if first_rank() else 4), name=name),
    "dimensions": lambda name: hvd.allreduce(
        torch.ones((3, 1) if first_rank() else (1, 3)), name=name
    ),
    "dtype": lambda name: hvd.allreduce(
        torch.ones(3, dtype=torch.float32 if first_rank() else torch.float64), name=name
    ),
    "op": lambda name: hvd.allreduce(
        torch.ones(3), op=hvd.Sum if first_rank() else hvd.Max, name=name
    ),
    "scale": lambda name: hvd.allreduce(
        torch.ones(3), prescale_factor=1.0 if first_rank() else 2.0, name=name
    ),
    "kind": lambda name: (hvd.allreduce if first_rank() else hvd.allgather)(
        torch.ones(3), name=name
    ),
    "root": lambda name: hvd.broadcast(torch.ones(3), 0 if first_rank() else 1, name=name),
    "broadcast-shape": lambda name: hvd.broadcast_(torch.ones(3 + hvd.rank()), 0, name=name),
    "allgather-shape": lambda name: hvd.allgather(torch.ones(1, 3 + hvd.rank()), name=name),
    "allgather-dtype": lambda name: hvd.allgather(
        torch.ones(3, dtype=torch.int32 if first_rank() else torch.int64), name=name
    ),
    "alltoall-shape": lambda name: hvd.alltoall(torch.ones(hvd.size(), 3 + hvd.rank()), name=name),
    "reduce-root": lambda name: hvd.reduce(torch.ones(3), int(hvd.rank() == 0), name=name),
    "gather-shape": lambda name: hvd.gather(torch.ones(3, 2 + hvd.rank()), 0, name=name),
    "scatter-dtype": lambda name: hvd.scatter(
        torch.ones(3, dtype=torch.int8 if hvd.rank() == 0 else torch.float32), 0, name=name
    ),
    "reducescatter-splits": lambda name: hvd.reducescatter(
        torch.ones(hvd.size()), splits=[1] * hvd.size() if hvd.rank() else None, name=name
    ),
    "reducescatter-shape": lambda name: hvd.reducescatter(torch.ones(3 + hvd.rank(), 2), name=name),
    "group": lambda name: hvd.grouped_allreduce(
        [torch.ones(3)] * (2 if first_rank() else 3), name=name
    ),
}


@pytest.mark.conformance
@pytest.mark.parametrize("kind", MISMATCHES)
def test_mismatch(kind: str, name: str, need_ranks: None) -> None:
    """Every rank's error contains the name and all ranks' arguments; the runtime continues."""
    for _ in range(2):
        with pytest.raises(hvd.MismatchError) as failure:
            MISMATCHES[kind](name)
        assert name in str(failure.value)
        check(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))


def test_duplicate_name(name: str) -> None:
    """Pending on this rank, because the others wait in the subset's barrier."""
    if hvd.rank() == 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name=name)
        if hvd.size() > 1:
            with pytest.raises(ValueError, match="pending") as error:
                hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name=name)
            # A programming error: elastic training must not retry it.
            assert type(error.value) is hvd.DuplicateNameError
            assert not isinstance(error.value, hvd.HorovodInternalError)
    hvd.barrier()
    if hvd.rank() != 0:
        handle = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name=name)
    check(hvd.synchronize(handle), torch.full((3,), float(hvd.size())))


LOCAL: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no-tensor": (lambda: hvd.allreduce([1.0]), ValueError, "torch.Tensor"),
    "device": (lambda: hvd.allreduce(torch.ones(3, device="meta")), NotImplementedError, "meta"),
    "dtype": (
        lambda: hvd.allreduce(torch.ones(3).to(torch.float8_e4m3fn)),
        ValueError,
        "float8_e4m3fn",
    ),
    "sparse": (
        lambda: hvd.allreduce(torch.eye(2).to_sparse()),
        ValueError,
        "sparse_allreduce_async",
    ),
    "not-sparse": (lambda: hvd.sparse_allreduce_async(torch.eye(2), None), ValueError, "sparse"),
    "sparse-op": (
        lambda: hvd.sparse_allreduce_async(torch.eye(2).to_sparse(), None, op=hvd.Max),
        ValueError,
        "Max",
    ),
    "lazy": (lambda: hvd.allreduce(torch.nn.LazyLinear(3).weight), ValueError, "lazy"),
    "average-of-bool": (lambda: hvd.allreduce(torch.ones(3).bool()), ValueError, "bool"),
    "max-of-complex": (
        lambda: hvd.allreduce(torch.ones(3, dtype=torch.complex64), op=hvd.Max),
        ValueError,
        "complex64",
    ),
    "both-ops": (
        lambda: hvd.allreduce(torch.ones(3), average=True, op=hvd.Sum),
        ValueError,
        "average=",
    ),
    "adasum": (
        lambda: hvd.reducescatter(torch.ones(3), op=hvd.Adasum),
        NotImplementedError,
        "Adasum is not supported here, only by allreduce",
    ),
    "adasum-int": (
        lambda: hvd.allreduce(torch.ones(3, dtype=torch.int32), op=hvd.Adasum),
        NotImplementedError,
        "Adasum",
    ),
    "0-d-allgather": (lambda: hvd.allgather(torch.tensor(1.0)), ValueError, "0-d"),
    "0-d-alltoall": (lambda: hvd.alltoall(torch.tensor(1.0)), ValueError, "0-d"),
    "0-d-reducescatter": (lambda: hvd.reducescatter(torch.tensor(1.0)), ValueError, "0-d"),
    "bitwise-float": (
        lambda: hvd.reducescatter(torch.ones(3), op=hvd.BitwiseAnd),
        ValueError,
        "BitwiseAnd of float32",
    ),
    "0-d-gather": (lambda: hvd.gather(torch.tensor(1.0), 0), ValueError, "0-d"),
    "0-d-scatter": (lambda: hvd.scatter(torch.tensor(1.0), 0), ValueError, "0-d"),
    "reduce-root": (lambda: hvd.reduce(torch.ones(3), 99), ValueError, "root_rank=99"),
    "gather-root": (lambda: hvd.gather(torch.ones(3), -1), ValueError, "root_rank=-1"),
    "scatter-root": (lambda: hvd.scatter(torch.ones(3), 99), ValueError, "root_rank=99"),
    "scatter-splits": (
        lambda: hvd.scatter(torch.ones(1), hvd.rank(), [9] * hvd.size()),
        ValueError,
        "rows",
    ),
    "reducescatter-splits": (
        lambda: hvd.reducescatter(torch.ones(hvd.size() + 1), splits=[1] * hvd.size()),
        ValueError,
        "covers",
    ),
    "root": (lambda: hvd.broadcast(torch.ones(3), root_rank=99), ValueError, "root_rank=99"),
    "splits-number": (lambda: hvd.alltoall(torch.ones(99), [1] * 17), ValueError, "17"),
    "splits-sum": (lambda: hvd.alltoall(torch.ones(1), [9] * hvd.size()), ValueError, "rows"),
    "splits-negative": (
        lambda: hvd.alltoall(torch.ones(9), [-1] * hvd.size()),
        ValueError,
        "negative",
    ),
    "splits-dtype": (lambda: hvd.alltoall(torch.ones(9), torch.ones(1)), ValueError, "integers"),
    "splits-2-d": (
        lambda: hvd.alltoall(torch.ones(9), torch.ones((1, 1), dtype=torch.int32)),
        ValueError,
        "integers",
    ),
    "group-of-none": (lambda: hvd.grouped_allreduce([]), ValueError, "at least one"),
    "group-is-a-tensor": (lambda: hvd.grouped_allgather(torch.ones(3)), ValueError, "list"),
    "poll": (lambda: hvd.poll(7), ValueError, "unknown handle"),
    "synchronize": (lambda: hvd.synchronize(None), ValueError, "unknown handle"),
    "unregistered-set": (
        lambda: hvd.allreduce(torch.ones(3), process_set=hvd.ProcessSet([0])),
        ValueError,
        "not registered",
    ),
}


@pytest.mark.parametrize("kind", LOCAL)
def test_wrong_arguments(kind: str) -> None:
    """They raise on this rank without waiting for others, and leave nothing behind."""
    call, exception, message = LOCAL[kind]
    with pytest.raises(exception, match=message):
        call()
    if hvd.rank() == 0:  # on one rank only
        with pytest.raises(exception, match=message):
            call()
    check(hvd.allreduce(torch.ones(3), op=hvd.Sum), torch.full((3,), float(hvd.size())))


@pytest.mark.parametrize(
    "kind",
    [
        "device",
        "dtype",
        "sparse-op",
        "average-of-bool",
        "max-of-complex",
        "adasum",
        "bitwise-float",
    ],
)
def test_what_an_operation_can_not_have(kind: str) -> None:
    """Programs for Horovod catch NotImplementedError, those for horoscale ValueError."""
    call, _, message = LOCAL[kind]
    with pytest.raises(ValueError, match=message) as error:
        call()
    assert isinstance(error.value, NotImplementedError)
    assert not isinstance(error.value, hvd.HorovodInternalError)


def test_uneven_alltoall_without_splits(need_ranks: None) -> None:
    with pytest.raises(ValueError, match="splits="):
        hvd.alltoall(torch.ones(hvd.size() + 1))


def test_outside_of_the_process_set(name: str, need_ranks: None) -> None:
    others = hvd.add_process_set(range(1, hvd.size()))
    model = torch.nn.Linear(2, 2)
    if hvd.rank() == 0:
        for call in (hvd.allreduce, hvd.allgather, hvd.alltoall, hvd.reducescatter):
            with pytest.raises(ValueError, match="does not belong"):
                call(torch.ones(4), process_set=others)
        with pytest.raises(ValueError, match="does not belong"):
            hvd.broadcast(torch.ones(4), root_rank=1, process_set=others)
    else:
        with pytest.raises(ValueError, match="root_rank=0"):
            hvd.broadcast(torch.ones(4), root_rank=0, process_set=others)
    assert hvd.remove_process_set(others)
    with pytest.raises(ValueError, match="not registered"):
        hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.1), process_set=others)
