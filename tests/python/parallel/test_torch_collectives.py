"""Collectives on tensors: every type and size against a reference, on any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.reference import OPS, SIZES, defined
from support.torch_reference import DTYPES, all_values, check, reduced, values

import horoscale.torch as hvd

ALLREDUCE = [
    pytest.param(
        dtype, op, n, id=f"{op}-{dtype}-n{n}", marks=pytest.mark.conformance if n == 3 else ()
    )
    for op in OPS
    for dtype in DTYPES
    for n in SIZES
    if defined(dtype, op)
]
MOVED = pytest.mark.parametrize("dtype", DTYPES)
MEMORY = {  # other memory layouts of a tensor
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "every-other": lambda t: torch.stack([t, t], dim=-1)[..., 0],
    "offset": lambda t: torch.cat([t[:1], t])[1:],
    "channels-last": lambda t: t.contiguous(memory_format=torch.channels_last),
}


def exact(dtype: str, op: str) -> bool:
    rounds = op == "Average" or (op == "Product" and "complex" in dtype)
    return not rounds or "int" in dtype


@pytest.mark.parametrize(("dtype", "op", "n"), ALLREDUCE)
def test_allreduce(dtype: str, op: str, n: int, name: str) -> None:
    inputs = all_values(dtype, n)
    own = inputs[hvd.rank()]
    before = own.clone()
    result = hvd.allreduce(own, op=getattr(hvd, op), name=name)
    check(result, reduced(inputs, op), exact(dtype, op))
    check(own, before)


@MOVED
def test_allreduce_in_place(dtype: str, name: str) -> None:
    inputs = all_values(dtype, 1000)
    own = inputs[hvd.rank()].clone()
    assert hvd.allreduce_(own, op=hvd.Sum, name=name) is own
    check(own, reduced(inputs, "Sum"))


@pytest.mark.conformance
def test_async_and_poll(name: str) -> None:
    inputs = all_values("float32", 1000)
    handles = [
        hvd.allreduce_async(inputs[hvd.rank()] * i, op=hvd.Sum, name=f"{name}.{i}")
        for i in range(20)
    ]
    for i in reversed(range(20)):
        check(hvd.synchronize(handles[i]), reduced([one * i for one in inputs], "Sum"))
        assert hvd.poll(handles[i])
        assert hvd.synchronize(handles[i]) is hvd.synchronize(handles[i])


def test_async_in_place(name: str) -> None:
    inputs = all_values("float32", 1000)
    own = inputs[hvd.rank()].clone()
    handle = hvd.allreduce_async_(own, op=hvd.Sum, name=name)
    assert hvd.synchronize(handle) is own
    check(own, reduced(inputs, "Sum"))


@pytest.mark.conformance
def test_ranks_enqueue_in_different_order(name: str) -> None:
    inputs = all_values("float32", 100)
    order = torch.randperm(50, generator=torch.Generator().manual_seed(hvd.rank())).tolist()
    handles = {
        i: hvd.allreduce_async(inputs[hvd.rank()] + i, op=hvd.Sum, name=f"{name}.{i}", priority=i)
        for i in order
    }
    for i, handle in handles.items():
        check(hvd.synchronize(handle), reduced([one + i for one in inputs], "Sum"))


@pytest.mark.parametrize("kind", MEMORY)
def test_memory_layouts(kind: str, name: str) -> None:
    inputs = all_values("float32", (4, 3, 2, 5))
    own = MEMORY[kind](inputs[hvd.rank()])
    check(own, inputs[hvd.rank()])
    expected = reduced(inputs, "Sum")
    check(hvd.allreduce(own, op=hvd.Sum, name=f"{name}.out"), expected)
    assert hvd.allreduce_(own, op=hvd.Sum, name=f"{name}.in") is own
    check(own, expected)
    own = MEMORY[kind](inputs[hvd.rank()])
    hvd.synchronize(hvd.broadcast_async_(own, root_rank=hvd.size() - 1, name=f"{name}.broadcast"))
    check(own, inputs[-1])


def test_expanded_input(name: str) -> None:
    own = torch.tensor([1.0 + hvd.rank()]).expand(5)
    total = sum(1.0 + rank for rank in range(hvd.size()))
    check(hvd.allreduce(own, op=hvd.Sum, name=name), torch.full((5,), total))


def test_conjugated_and_negated_views(name: str) -> None:
    own = torch.tensor([1.0 + 2.0j])
    n = hvd.size()
    check(hvd.allreduce(own.conj(), op=hvd.Sum, name=f"{name}.c"), torch.tensor([n - 2.0j * n]))
    negated = own.conj().imag
    assert negated.is_neg()
    check(hvd.allreduce(negated, op=hvd.Sum, name=f"{name}.n"), torch.tensor([-2.0 * n]))


@pytest.mark.conformance
@pytest.mark.parametrize("shape", [(), (1,), (2, 0, 3), (3, 5, 7)], ids=str)
def test_shapes(shape: tuple[int, ...], name: str) -> None:
    inputs = all_values("float32", shape)
    check(hvd.allreduce(inputs[hvd.rank()], op=hvd.Sum, name=f"{name}.a"), reduced(inputs, "Sum"))
    check(hvd.broadcast(inputs[hvd.rank()], 0, name=f"{name}.b"), inputs[0])


def test_parameter_and_inference_tensor(name: str) -> None:
    inputs = all_values("float32", 10)
    parameter = torch.nn.Parameter(inputs[hvd.rank()].clone())
    assert hvd.allreduce_(parameter, op=hvd.Sum, name=f"{name}.parameter") is parameter
    check(parameter.detach(), reduced(inputs, "Sum"))
    with torch.inference_mode():
        frozen = inputs[hvd.rank()] * 1
        strided = torch.stack([frozen, frozen], dim=1)[:, 0]
    for one in (frozen, strided):
        hvd.allreduce_(one, op=hvd.Sum, name=f"{name}.{one.stride()}")
        check(one.clone(), reduced(inputs, "Sum"))


def test_in_place_is_seen_by_autograd(name: str) -> None:
    weight = torch.ones(3, requires_grad=True)
    factor = torch.ones(3)
    product = weight * factor  # saves factor for the backward pass
    hvd.allreduce_(factor, op=hvd.Sum, name=name)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


@pytest.mark.conformance
def test_scale_factors(name: str) -> None:
    inputs = all_values("float32", 100)
    result = hvd.allreduce(
        inputs[hvd.rank()], op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0, name=name
    )
    check(result, reduced([one * 0.5 for one in inputs], "Sum") * 3.0, exact=False)


def test_average_argument(name: str) -> None:
    inputs = all_values("float32", 10)
    own = inputs[hvd.rank()]
    with pytest.warns(DeprecationWarning, match="op=Average"):
        check(hvd.allreduce(own, False, f"{name}.sum"), reduced(inputs, "Sum"))
    with pytest.warns(DeprecationWarning, match="op=Average"):
        result = hvd.allreduce(own, average=True, name=f"{name}.average")
    check(result, reduced(inputs, "Average"), exact=False)


@pytest.mark.parametrize("compression", ["none", "fp16", "bf16"])
def test_compression(compression: str, name: str) -> None:
    inputs = all_values("float32", 100)
    own = inputs[hvd.rank()]
    compressor = getattr(hvd.Compression, compression)
    result = hvd.allreduce(own, op=hvd.Sum, compression=compressor, name=f"{name}.f")
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, reduced(inputs, "Sum"), rtol=2e-2, atol=5e-2)
    numbers = torch.arange(3) + hvd.rank()
    kept = hvd.allreduce(numbers, op=hvd.Max, compression=compressor, name=f"{name}.i")
    check(kept, torch.arange(3) + hvd.size() - 1)


@pytest.mark.conformance
@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in-place"])
def test_grouped_allreduce(in_place: bool, name: str) -> None:
    dtypes = ("float32", "int64", "bfloat16", "bool")
    inputs = [all_values(dtype, n) for dtype, n in zip(dtypes, (0, 5, 1000, 7), strict=True)]
    own = [of_ranks[hvd.rank()].clone() for of_ranks in inputs]
    grouped = hvd.grouped_allreduce_ if in_place else hvd.grouped_allreduce
    results = grouped(own, op=hvd.Sum, name=name)
    for result, of_ranks, one in zip(results, inputs, own, strict=True):
        check(result, reduced(of_ranks, "Sum"))
        assert (result is one) == in_place


@pytest.mark.parametrize("in_place", [False, True], ids=["new", "in-place"])
def test_grouped_allreduce_async(in_place: bool, name: str) -> None:
    inputs = [all_values("float32", n) for n in (3, 1000)]
    own = [of_ranks[hvd.rank()].clone() for of_ranks in inputs]
    grouped = hvd.grouped_allreduce_async_ if in_place else hvd.grouped_allreduce_async
    for result, of_ranks in zip(
        hvd.synchronize(grouped(own, op=hvd.Sum, name=name)), inputs, strict=True
    ):
        check(result, reduced(of_ranks, "Sum"))


@MOVED
def test_allgather(dtype: str, name: str) -> None:
    parts = [values(dtype, (2 + rank, 3), rank) for rank in range(hvd.size())]
    check(hvd.allgather(parts[hvd.rank()], name=name), torch.cat(parts))


@pytest.mark.conformance
def test_allgather_with_empty_parts(name: str) -> None:
    rows = [rank % 2 * 3 for rank in range(hvd.size())]
    parts = [values("float32", (n, 4), rank) for rank, n in enumerate(rows)]
    check(hvd.allgather(parts[hvd.rank()], name=f"{name}.some"), torch.cat(parts))
    nothing = hvd.allgather(torch.empty(0, 4), name=f"{name}.all")
    check(nothing, torch.empty(0, 4))


def test_grouped_allgather(name: str) -> None:
    a = [values("float32", (1 + rank, 2), rank) for rank in range(hvd.size())]
    b = [values("int32", (3,), rank) for rank in range(hvd.size())]
    mine = [a[hvd.rank()], b[hvd.rank()]]
    handle = hvd.grouped_allgather_async(mine, name=f"{name}.async")
    for results in (hvd.grouped_allgather(mine, name=name), hvd.synchronize(handle)):
        check(results[0], torch.cat(a))
        check(results[1], torch.cat(b))


@MOVED
def test_broadcast(dtype: str, name: str) -> None:
    inputs = all_values(dtype, (3, 5))
    for root in range(hvd.size()):
        own = inputs[hvd.rank()].clone()
        check(hvd.broadcast(own, root, name=f"{name}.{root}"), inputs[root])
        check(own, inputs[hvd.rank()])
        assert hvd.broadcast_(own, root, name=f"{name}.{root}.in") is own
        check(own, inputs[root])


def test_broadcast_async(name: str) -> None:
    inputs = all_values("float32", 10)
    handle = hvd.broadcast_async(inputs[hvd.rank()], 0, name=name)
    check(hvd.synchronize(handle), inputs[0])


@MOVED
def test_alltoall_evenly(dtype: str, name: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    inputs = [values(dtype, (2 * size, 3), sender) for sender in range(size)]
    result = hvd.alltoall(inputs[rank], name=name)
    check(result, torch.cat([one[2 * rank : 2 * rank + 2] for one in inputs]))


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["list", "tensor", "async"])
def test_alltoall_with_splits(kind: str, name: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    splits = [[(sender + receiver) % 3 for receiver in range(size)] for sender in range(size)]
    inputs = [values("float32", (sum(splits[s]) + 1, 2), s) for s in range(size)]
    own_splits = splits[rank] if kind == "list" else torch.tensor(splits[rank], dtype=torch.int32)
    if kind == "async":
        result, received = hvd.synchronize(hvd.alltoall_async(inputs[rank], own_splits, name=name))
    else:
        result, received = hvd.alltoall(inputs[rank], own_splits, name=name)
    expected = [torch.split(inputs[s], [*splits[s], 1])[rank] for s in range(size)]
    check(result, torch.cat(expected))
    check(received, torch.tensor([splits[s][rank] for s in range(size)], dtype=torch.int32))


@pytest.mark.parametrize(
    "dtype", ["uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
)
def test_alltoall_with_splits_of_any_integer_type(dtype: str, name: str) -> None:
    own = values("float32", (hvd.size() + 1, 2), hvd.rank())
    for splits in (
        np.ones(hvd.size(), dtype),
        torch.ones(hvd.size(), dtype=getattr(torch, dtype)),
        list(np.ones(hvd.size(), dtype)),
    ):
        result, received = hvd.alltoall(own, splits, name=name)
        sent = [values("float32", (hvd.size() + 1, 2), rank) for rank in range(hvd.size())]
        check(result, torch.stack([rows[hvd.rank()] for rows in sent]))
        check(received, torch.ones(hvd.size(), dtype=torch.int32))


@MOVED
@pytest.mark.parametrize("op", OPS)
def test_reducescatter(dtype: str, op: str, name: str) -> None:
    if not defined(dtype, op):
        pytest.skip("not defined")
    inputs = all_values(dtype, (2 * hvd.size() + 1, 3))
    result = hvd.reducescatter(inputs[hvd.rank()], op=getattr(hvd, op), name=name)
    expected = torch.tensor_split(reduced(inputs, op), hvd.size())[hvd.rank()]
    check(result, expected.contiguous(), exact(dtype, op))


@pytest.mark.conformance
@pytest.mark.parametrize("kind", ["list", "tensor"])
def test_reducescatter_with_splits(kind: str, name: str) -> None:
    for giver in range(hvd.size()):
        splits = [(rank + giver) % hvd.size() * 2 for rank in range(hvd.size())]
        inputs = all_values("float32", (sum(splits), 3), seed=giver)
        given = splits if kind == "list" else torch.tensor(splits, dtype=torch.int16)
        own = inputs[hvd.rank()]
        result = hvd.reducescatter(own, op=hvd.Max, splits=given, name=name)
        handle = hvd.reducescatter_async(own, op=hvd.Max, splits=given, name=f"{name}.async")
        group = hvd.grouped_reducescatter_async([own], op=hvd.Max, splits=given, name=name)
        expected = torch.split(reduced(inputs, "Max"), splits)[hvd.rank()].contiguous()
        for one in (result, hvd.synchronize(handle), *hvd.synchronize(group)):
            check(one, expected)


@pytest.mark.conformance
def test_grouped_reducescatter(name: str) -> None:
    inputs = [all_values("float32", (n, 3)) for n in (1, 7, 0)]
    own = [of_ranks[hvd.rank()] for of_ranks in inputs]
    handle = hvd.grouped_reducescatter_async(own, op=hvd.Sum, name=f"{name}.async")
    single = hvd.reducescatter_async(own[1], op=hvd.Sum, name=f"{name}.single")
    results = hvd.grouped_reducescatter(own, op=hvd.Sum, name=name)
    expected = [
        torch.tensor_split(reduced(of_ranks, "Sum"), hvd.size())[hvd.rank()] for of_ranks in inputs
    ]
    for result, again, one in zip(results, hvd.synchronize(handle), expected, strict=True):
        check(result, one)
        check(again, one)
    check(hvd.synchronize(single), expected[1])


def test_reducescatter_compressed_and_scaled(name: str) -> None:
    inputs = all_values("float32", (hvd.size(), 4))
    result = hvd.reducescatter(
        inputs[hvd.rank()],
        op=hvd.Sum,
        compression=hvd.Compression.fp16,
        prescale_factor=0.5,
        postscale_factor=4.0,
        name=name,
    )
    expected = reduced(inputs, "Sum")[hvd.rank() : hvd.rank() + 1] * 2.0
    assert result.dtype == torch.float32
    torch.testing.assert_close(result, expected, rtol=1e-2, atol=2e-2)


@pytest.mark.conformance
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_sparse_allreduce(op: str, name: str) -> None:
    def of_rank(rank: int) -> torch.Tensor:
        indices = torch.tensor([[rank, 0, 2, 2], [0, 1, 1, 1]])  # the last one twice
        return torch.sparse_coo_tensor(
            indices,
            values("float64", (4, 2), rank),
            (hvd.size() + 3, 2, 2),
            check_invariants=True,
        )

    handle = hvd.sparse_allreduce_async(of_rank(hvd.rank()), name=name, op=getattr(hvd, op))
    total = sum(of_rank(rank).to_dense() for rank in range(hvd.size()))
    expected = total / hvd.size() if op == "Average" else total
    check(hvd.synchronize(handle).to_dense(), expected, exact=False)
    assert handle() is hvd.synchronize(handle)  # as Horovod's scripts do


def test_sparse_averages_of_integers_are_true_divisions(name: str) -> None:
    tensor = torch.tensor([[0, 1], [2, 0]]).to_sparse()
    average = hvd.synchronize(hvd.sparse_allreduce_async(tensor, name=name)).to_dense()
    check(average, torch.tensor([[0.0, 1.0], [2.0, 0.0]]), exact=False)


@pytest.mark.conformance
def test_shared_tensors(name: str) -> None:
    inputs = all_values("float32", (3, 7))
    shared = hvd.empty_shared(3, 7, dtype=torch.float32)
    check(shared, torch.zeros(3, 7))
    shared.copy_(inputs[hvd.rank()])
    hvd.allreduce_(shared, op=hvd.Sum, name=name)
    check(shared, reduced(inputs, "Sum"))
    assert hvd.empty_shared((2, 3), dtype=torch.bfloat16).shape == (2, 3)
    assert hvd.empty_shared(0).shape == (0,)
    assert hvd.empty_shared().shape == ()
    with pytest.raises(ValueError, match="-1"):
        hvd.empty_shared(2, -1)


def test_tensor_dropped_before_completion(name: str) -> None:
    handles = []
    for i in range(10):
        own = torch.full((10_000,), float(i))
        handles.append(hvd.allreduce_async(own, op=hvd.Sum, name=f"{name}.{i}"))
        del own
    hvd.allreduce_async(torch.ones(10_000), name=f"{name}.nobody-waits")
    for i, handle in enumerate(handles):
        check(hvd.synchronize(handle), torch.full((10_000,), float(i * hvd.size())))


@pytest.mark.conformance
def test_barrier_and_metrics() -> None:
    hvd.barrier()
    assert hvd.metrics()


@pytest.mark.conformance
def test_unnamed_operations() -> None:
    for i in range(5):
        result = hvd.allreduce(torch.full((3,), float(i)), op=hvd.Sum)
        check(result, torch.full((3,), float(i * hvd.size())))


@pytest.mark.conformance
@pytest.mark.parametrize("rows", [0, 1, 3, 50_001])
def test_into_out(rows: int, name: str) -> None:
    size, rank = hvd.size(), hvd.rank()
    inputs = [torch.arange(rows * size * 3).view(rows * size, 3) + one for one in range(size)]
    gathered = torch.empty(rows * size * size, 3, dtype=torch.int64)
    version = gathered._version
    assert hvd.allgather(inputs[rank], name=name, out=gathered) is gathered
    assert gathered._version > version
    check(gathered, torch.cat(inputs))
    handle = hvd.allgather_async(inputs[rank], name=f"{name}.async", out=gathered.zero_())
    assert hvd.synchronize(handle) is gathered
    check(gathered, torch.cat(inputs))
    [result] = hvd.grouped_allgather([inputs[rank]], name=f"{name}.group", out=[gathered.zero_()])
    assert result is gathered
    check(gathered, torch.cat(inputs))

    moved = torch.empty(rows * size, 3, dtype=torch.int64)
    expected = torch.cat([one[rows * rank :][:rows] for one in inputs])
    assert hvd.alltoall(inputs[rank], name=f"{name}.alltoall", out=moved) is moved
    check(moved, expected)
    splits = [rows] * size
    result, received = hvd.alltoall(inputs[rank], splits, name=f"{name}.splits", out=moved.zero_())
    assert result is moved
    assert received.tolist() == splits
    check(moved, expected)

    own = torch.empty(rows, 3, dtype=torch.int64)
    summed = sum(one[rows * rank :][:rows] for one in inputs)
    scattered = hvd.reducescatter(inputs[rank], op=hvd.Sum, name=f"{name}.scatter", out=own)
    assert scattered is own
    check(own, summed)


def test_out_that_can_not_be(name: str) -> None:
    own = torch.zeros(hvd.size() * 2, 3)
    for operation in (hvd.allgather, hvd.alltoall, hvd.reducescatter):
        for out, message in [
            (torch.zeros(2, 3, dtype=torch.float64), "float64"),
            (torch.zeros(2, 4), "shape"),
            (torch.zeros(2, 6)[:, ::2], "contiguous"),
            (torch.zeros(2, 3, requires_grad=True), "must not require grad"),
            ([1.0], "torch.Tensor"),
        ]:
            with pytest.raises(ValueError, match=message):
                operation(own, name=name, out=out)
        with pytest.raises(ValueError, match="not differentiable"):
            operation(own.clone().requires_grad_(), name=name, out=torch.zeros(2, 3))


def test_out_with_other_rows_fails_on_this_rank_alone(name: str) -> None:
    total = 2 * hvd.size()
    out = torch.full((total + (hvd.rank() == 0), 3), 7.0)
    own = torch.full((2, 3), float(hvd.rank()))
    if hvd.rank() == 0:
        with pytest.raises(ValueError, match=rf"\({total}, 3\).*\({total + 1}, 3\)"):
            hvd.allgather(own, name=name, out=out)
        assert (out == 7).all()
    else:
        assert hvd.allgather(own, name=name, out=out) is out
    assert hvd.allgather(own, name=name).shape == (total, 3)


@pytest.mark.parametrize("shared", [False, True])
def test_large_movement_in_any_memory(shared: bool, name: str) -> None:
    size, rank, rows = hvd.size(), hvd.rank(), 100_003
    inputs = [torch.arange(rows * size, dtype=torch.float64) + one for one in range(size)]
    own, out = inputs[rank].clone(), torch.empty(rows * size, dtype=torch.float64)
    if shared:
        own, out = (hvd.empty_shared(rows * size, dtype=torch.float64) for _ in range(2))
        own.copy_(inputs[rank])
    moved = [one[rows * rank :][:rows] for one in inputs]
    assert hvd.allgather(own[:rows], name=name, out=out) is out
    check(out, torch.cat([one[:rows] for one in inputs]))
    check(hvd.alltoall(own, name=f"{name}.alltoall", out=out), torch.cat(moved))
    scattered = hvd.reducescatter(own, op=hvd.Sum, name=f"{name}.scatter", out=out[:rows])
    check(scattered, sum(moved))
    check(hvd.broadcast_(own, 0, name=f"{name}.broadcast"), inputs[0])
