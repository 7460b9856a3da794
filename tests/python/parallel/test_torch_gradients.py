"""Gradients of the collectives, against one process that computes the losses of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from support.torch_reference import check

import horoscale.torch as hvd

# The equivalent in one process: from the inputs of all ranks to the output of each.
Model = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def inputs_of_all(rows: Sequence[int]) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(7)
    return [torch.randn(n, 3, dtype=torch.float64, generator=random).requires_grad_() for n in rows]


def check_gradient(
    operation: Callable[[torch.Tensor], torch.Tensor],
    model: Model,
    rows: Sequence[int],
    scale: float = 1.0,
) -> None:
    """Each rank's loss weights its output differently.

    Gradients are those of the losses' sum, times the scale that Horovod applies.
    """

    def loss(output: torch.Tensor, rank: int) -> torch.Tensor:
        weights = torch.arange(1.0, 1.0 + output.numel(), dtype=output.dtype).view_as(output)
        return (output.square() * weights).sum() * (rank + 1.0)

    inputs = inputs_of_all(rows)
    sum(loss(output, rank) for rank, output in enumerate(model(inputs))).backward()
    own = inputs[hvd.rank()].detach().clone().requires_grad_()
    output = operation(own)
    check(output.detach(), model(inputs)[hvd.rank()].detach(), exact=False)
    loss(output, hvd.rank()).backward()
    check(own.grad, inputs[hvd.rank()].grad * scale, exact=False)


def even(n: int = 2) -> list[int]:
    return [n] * hvd.size()


def uneven() -> list[int]:
    return [1 + (rank * 2) % 5 for rank in range(hvd.size())]


@pytest.mark.conformance
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_allreduce(op: str, name: str) -> None:
    factor = 1.5 / hvd.size() if op == "Average" else 1.5
    check_gradient(
        lambda x: hvd.allreduce(
            x, op=getattr(hvd, op), prescale_factor=0.5, postscale_factor=3.0, name=name
        ),
        lambda inputs: [sum(inputs) * factor] * hvd.size(),
        even(),
    )


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compressed_allreduce(compression: str, name: str) -> None:
    own = torch.ones(4, requires_grad=True)
    compressor = getattr(hvd.Compression, compression)
    hvd.allreduce(own, op=hvd.Sum, compression=compressor, name=name).sum().backward()
    check(own.grad, torch.full((4,), float(hvd.size())))


@pytest.mark.conformance
@pytest.mark.parametrize("rows", [even, uneven], ids=["even", "uneven"])
def test_allgather(rows: Callable[[], list[int]], name: str) -> None:
    check_gradient(
        lambda x: hvd.allgather(x, name=name),
        lambda inputs: [torch.cat(list(inputs))] * hvd.size(),
        rows(),
        scale=1.0 / hvd.size(),
    )


def test_a_loss_that_all_ranks_compute_alike(name: str) -> None:
    """From gathered tensors: gradients equal those of one process on any number of ranks."""
    inputs = inputs_of_all(uneven())
    torch.cat(inputs).square().sum().backward()
    own = inputs[hvd.rank()].detach().clone().requires_grad_()
    hvd.allgather(own, name=name).square().sum().backward()
    check(own.grad, inputs[hvd.rank()].grad, exact=False)


@pytest.mark.conformance
def test_broadcast(name: str) -> None:
    root = hvd.size() - 1
    check_gradient(
        lambda x: hvd.broadcast(x, root, name=name),
        lambda inputs: [inputs[root] + 0.0 * sum(inputs)] * hvd.size(),
        even(),
        scale=1.0 / hvd.size(),
    )


@pytest.mark.conformance
@pytest.mark.parametrize("op", ["Sum", "Average"])
@pytest.mark.parametrize("rest", [0, 1])
def test_reducescatter(op: str, rest: int, name: str) -> None:
    def model(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        total = sum(inputs) * 2.0 / (hvd.size() if op == "Average" else 1)
        return torch.tensor_split(total, hvd.size())

    check_gradient(
        lambda x: hvd.reducescatter(x, op=getattr(hvd, op), prescale_factor=2.0, name=name),
        model,
        even(hvd.size() * 2 + rest),
        scale=hvd.size(),
    )


@pytest.mark.conformance
def test_reducescatter_with_splits(name: str) -> None:
    splits = [rank * 2 for rank in range(hvd.size())]
    check_gradient(
        lambda x: hvd.reducescatter(x, op=hvd.Sum, splits=splits, name=name),
        lambda inputs: torch.split(sum(inputs), splits),
        even(sum(splits)),
        scale=hvd.size(),
    )


def only(root: int, result: torch.Tensor) -> list[torch.Tensor]:
    """The ranks' results if only the root has one."""
    nothing = result[:0] if result.dim() > 1 else result.new_empty(0)
    return [result if rank == root else nothing for rank in range(hvd.size())]


@pytest.mark.conformance
@pytest.mark.parametrize("op", ["Sum", "Average"])
def test_reduce(op: str, name: str) -> None:
    factor = 1.5 / hvd.size() if op == "Average" else 1.5
    for root in range(hvd.size()):
        check_gradient(
            lambda x, root=root: hvd.reduce(
                x, root, op=getattr(hvd, op), prescale_factor=0.5, postscale_factor=3.0, name=name
            ).view(-1),
            lambda inputs, root=root: only(root, sum(inputs).view(-1) * factor),
            even(),
        )


@pytest.mark.conformance
@pytest.mark.parametrize("rows", [even, uneven], ids=["even", "uneven"])
def test_gather(rows: Callable[[], list[int]], name: str) -> None:
    for root in range(hvd.size()):
        check_gradient(
            lambda x, root=root: hvd.gather(x, root, name=name),
            lambda inputs, root=root: only(root, torch.cat(list(inputs))),
            rows(),
        )


@pytest.mark.conformance
@pytest.mark.parametrize("splits", [None, uneven], ids=["even", "splits"])
def test_scatter(splits: Callable[[], list[int]] | None, name: str) -> None:
    """With splits, one row is left over; the others' rows are ignored."""
    given = None if splits is None else splits()
    rows = 2 * hvd.size() if given is None else sum(given) + 1
    for root in range(hvd.size()):

        def model(inputs: Sequence[torch.Tensor], root: int = root) -> list[torch.Tensor]:
            parts = given or even()
            unused = 0.0 * sum(one.sum() for one in inputs)
            return [part + unused for part in torch.split(inputs[root][: sum(parts)], parts)]

        check_gradient(
            lambda x, root=root: hvd.scatter(x, root, splits=given, name=name), model, even(rows)
        )


@pytest.mark.conformance
def test_alltoall(name: str) -> None:
    size = hvd.size()
    splits = [[(sender * 2 + receiver) % 3 for receiver in range(size)] for sender in range(size)]

    def model(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        parts = [
            torch.split(one, [*splits[s], one.shape[0] - sum(splits[s])])
            for s, one in enumerate(inputs)
        ]
        return [torch.cat([parts[s][r] for s in range(size)]) for r in range(size)]

    check_gradient(
        lambda x: hvd.alltoall(x, splits[hvd.rank()], name=name)[0],
        model,
        [sum(one) + 1 for one in splits],
    )


def test_alltoall_evenly(name: str) -> None:
    size = hvd.size()
    check_gradient(
        lambda x: hvd.alltoall(x, name=name),
        lambda inputs: [torch.cat([x.chunk(size)[r] for x in inputs]) for r in range(size)],
        even(2 * size),
    )


@pytest.mark.parametrize(
    "grouped", [hvd.grouped_allreduce, hvd.grouped_allgather, hvd.grouped_reducescatter]
)
def test_grouped(grouped: Callable[..., list[torch.Tensor]], name: str) -> None:
    own = [torch.ones(hvd.size(), 2, requires_grad=True) for _ in range(2)]
    options = {} if grouped is hvd.grouped_allgather else {"op": hvd.Sum}
    first, _ = grouped(own, name=name, **options)
    (first * 3.0).sum().backward()  # the second is unused
    each = 3.0 if grouped is hvd.grouped_allgather else 3.0 * hvd.size()
    check(own[0].grad, torch.full_like(own[0], each))
    check(own[1].grad, torch.zeros_like(own[1]))


def test_grouped_allgather_uneven(name: str) -> None:
    own = [torch.ones(1 + hvd.rank() * 2, 2, requires_grad=True) for _ in range(2)]
    first, second = hvd.grouped_allgather(own, name=name)
    (first.sum() + 2.0 * second.sum()).backward()
    check(own[0].grad, torch.full_like(own[0], 1.0))
    check(own[1].grad, torch.full_like(own[1], 2.0))


def test_asynchronous(name: str) -> None:
    own = torch.ones(3, requires_grad=True)
    handle = hvd.allreduce_async(own, op=hvd.Sum, name=name)
    with torch.no_grad():  # the mode at the start of the operation counts
        result = hvd.synchronize(handle)
    result.sum().backward()
    check(own.grad, torch.full((3,), float(hvd.size())))


def test_second_derivative(name: str) -> None:
    own = torch.tensor([2.0], requires_grad=True)
    total = hvd.allreduce(own, op=hvd.Sum, name=name)
    (first,) = torch.autograd.grad(total**3, own, create_graph=True)
    (second,) = torch.autograd.grad(first, own)
    n = hvd.size()
    check(first.detach(), torch.tensor([3.0 * (2.0 * n) ** 2 * n]), exact=False)
    check(second, torch.tensor([6.0 * (2.0 * n) * n * n]), exact=False)


def test_nothing_is_recorded_where_nothing_is_needed(name: str) -> None:
    own = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not hvd.allreduce(own, name=f"{name}.no_grad").requires_grad
    assert not hvd.allreduce(own.detach(), name=f"{name}.detached").requires_grad
    handle = hvd.allreduce_async_(own.detach().clone(), name=f"{name}.in_place")
    assert not hvd.synchronize(handle).requires_grad


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product])
def test_operators_without_gradient(op: int, name: str) -> None:
    own = torch.ones(3, requires_grad=True)
    result = hvd.allreduce(own, op=op, name=name)
    with pytest.raises(NotImplementedError, match="has no gradient"):
        result.sum().backward()


def test_within_a_process_set(name: str, need_ranks: None) -> None:
    evens = hvd.add_process_set(range(0, hvd.size(), 2)) if hvd.size() > 2 else None
    if evens is None:
        pytest.skip("needs a set smaller than the job")
    if evens.included():
        own = torch.ones(2, 2, requires_grad=True)
        gathered = hvd.allgather(own, name=f"{name}.allgather", process_set=evens)
        scattered = hvd.reducescatter(gathered, op=hvd.Sum, name=name, process_set=evens)
        moved = hvd.broadcast(scattered, 0, name=f"{name}.b", process_set=evens)
        moved.sum().backward()
        n = evens.size()
        # The gradient of the root's rows, to which all members contribute.
        expected = torch.full((2, 2), float(n)) if hvd.rank() == 0 else torch.zeros(2, 2)
        check(own.grad, expected)
    assert hvd.remove_process_set(evens)


def in_order(order: Sequence[int], model: Model) -> Model:
    """The model of a set with all ranks in this order: inputs and outputs are by position."""

    def of_ranks(inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        outputs = model([inputs[rank] for rank in order])
        return [outputs[order.index(rank)] for rank in range(len(order))]

    return of_ranks


@pytest.mark.conformance
def test_gradients_follow_the_order_of_the_set(name: str) -> None:
    size = hvd.size()
    order = [*range(1, size), 0]
    splits = [2 * position for position in range(size)]
    process_set = hvd.add_process_set(order, ordered=True, distinct=True)
    options = {"process_set": process_set, "name": name}
    check_gradient(
        lambda x: hvd.allgather(x, **options),
        in_order(order, lambda inputs: [torch.cat(list(inputs))] * size),
        uneven(),
        scale=1.0 / size,
    )
    check_gradient(
        lambda x: hvd.reducescatter(x, op=hvd.Sum, splits=splits, **options),
        in_order(order, lambda inputs: torch.split(sum(inputs), splits)),
        even(sum(splits)),
        scale=size,
    )
    check_gradient(
        lambda x: hvd.alltoall(x, splits, **options)[0],
        in_order(
            order,
            lambda inputs: [
                torch.cat([torch.split(one, splits)[to] for one in inputs]) for to in range(size)
            ],
        ),
        even(sum(splits)),
    )
    check_gradient(
        lambda x: hvd.scatter(x, 0, splits=splits, **options),
        lambda inputs: in_order(
            order,
            lambda _: [
                part + 0.0 * sum(one.sum() for one in inputs)
                for part in torch.split(inputs[0], splits)
            ],
        )(inputs),
        even(sum(splits)),
    )
    hvd.remove_process_set(process_set)
