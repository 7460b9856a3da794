"""The pairs of functions between whole and divided tensors: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.parallel import MARKS, mesh

import horoscale.torch as hvd
import horoscale.torch.parallel as par

pytestmark = MARKS

Region = Callable[[torch.Tensor], torch.Tensor]


@pytest.fixture
def axis() -> Iterator[par.Axis]:
    with mesh(tp=hvd.size()) as made:
        yield made.tp


def sizes_of(dim: int, kind: str) -> list[int]:
    """The parts of a dimension: as even as possible, or almost everything on the last rank."""
    size = hvd.size()
    if kind == "even":
        return list(par.split_sizes(dim, size))
    return [*([0] * (size - 1)), dim] if kind == "last" else [dim, *([0] * (size - 1))]


def part(x: torch.Tensor, dim: int, sizes: list[int]) -> torch.Tensor:
    return torch.split(x, sizes, dim)[hvd.rank()]


def ranks_own(shape: list[int]) -> list[torch.Tensor]:
    """A tensor for each rank, known to all ranks."""
    return [torch.randn(shape) for _ in range(hvd.size())]


def check(
    region: Region, x: torch.Tensor, y: torch.Tensor, gradient: torch.Tensor, of_x: torch.Tensor
) -> None:
    """The value and the gradient of a function."""
    x = x.clone().requires_grad_()
    result = region(x)
    torch.testing.assert_close(result, y)
    [got] = torch.autograd.grad(result, x, gradient, create_graph=True)
    torch.testing.assert_close(got, of_x)


def test_copy_and_reduce(axis: par.Axis) -> None:
    xs, gradients = ranks_own([3, 2]), ranks_own([3, 2])
    own, total = xs[hvd.rank()], sum(xs)
    check(lambda x: par.copy_to(x, axis), xs[0], xs[0], gradients[hvd.rank()], sum(gradients))
    check(lambda x: par.reduce_from(x, axis), own, total, gradients[0], gradients[0])


@pytest.mark.parametrize("kind", ["even", "last", "first"])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("told", [True, False])
def test_parts(axis: par.Axis, kind: str, dim: int, told: bool) -> None:
    xs, gradients = ranks_own([7, 5, 6]), ranks_own([7, 5, 6])
    sizes = sizes_of(xs[0].shape[dim], kind)
    whole, other = xs[0], gradients[0]
    own, own_other = part(whole, dim, sizes), part(other, dim, sizes)
    arguments = (axis, dim, sizes)
    given = arguments if told else (axis, dim)  # the others' sizes can be queried
    check(lambda x: par.scatter_to(x, *arguments), whole, own, own_other, other)
    check(lambda x: par.gather_from(x, *given), own, whole, other, own_other)
    total = sum(gradients)
    check(
        lambda x: par.sequence_gather(x, *given),
        own,
        whole,
        gradients[hvd.rank()],
        part(total, dim, sizes),
    )
    check(
        lambda x: par.sequence_reduce_scatter(x, *arguments),
        xs[hvd.rank()],
        part(sum(xs), dim, sizes),
        own_other,
        other,
    )
    assert torch.equal(par.start_gather(own, *given).wait(), whole)
    torch.testing.assert_close(
        par.start_reduce_scatter(xs[hvd.rank()], *arguments).wait(), part(sum(xs), dim, sizes)
    )


@pytest.mark.parametrize("dims", [(0, 1), (1, 0), (2, -3), (-1, 1)])
@pytest.mark.parametrize("told", [True, False])
def test_all_to_all(axis: par.Axis, dims: tuple[int, int], told: bool) -> None:
    scatter_dim, gather_dim = dims
    whole, other = torch.randn(9, 10, 11), torch.randn(9, 10, 11)
    to = list(par.split_sizes(whole.shape[scatter_dim], axis.size))
    of = sizes_of(whole.shape[gather_dim], "even")[::-1]
    before, after = part(whole, gather_dim, of), part(whole, scatter_dim, to)
    sizes = (to, of) if told else (None, None)
    check(
        lambda x: par.all_to_all(x, axis, scatter_dim, gather_dim, *sizes),
        before,
        after,
        part(other, scatter_dim, to),
        part(other, gather_dim, of),
    )


def test_twice_differentiable(axis: par.Axis) -> None:
    """The sum of cubes over ranks, through every function; its second derivative is known."""
    x = torch.randn(4 * axis.size, requires_grad=True)
    scattered = par.scatter_to(par.copy_to(x, axis) / axis.size, axis)
    joined = par.sequence_gather(scattered, axis)
    own = par.sequence_reduce_scatter(joined, axis)
    loss = par.reduce_from(own.pow(3).sum(), axis)
    # copy_to() sums the gradients of its copies, one per rank, each with its own part.
    [first] = torch.autograd.grad(loss, x, create_graph=True)
    torch.testing.assert_close(first, 3 * x.detach().square() * axis.size)
    [second] = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(second, 6 * x.detach() * axis.size)


def test_one_rank_needs_no_operation() -> None:
    alone = par.Axis("tp", (hvd.rank(),), 0)
    x = torch.randn(3, 4, requires_grad=True)
    assert par.copy_to(x, alone) is x
    assert par.reduce_from(x, alone) is x
    assert par.scatter_to(x, alone) is x
    assert par.gather_from(x, alone) is x
    assert par.sequence_gather(x, alone) is x
    assert par.sequence_reduce_scatter(x, alone) is x
    assert par.all_to_all(x, alone, 0, 1) is x
    assert par.start_gather(x, alone).wait() is x
    assert par.start_reduce(x, alone).wait() is x
    assert par.start_reduce_scatter(x, alone).wait() is x


def test_errors_name_the_axis_and_the_sizes(axis: par.Axis, need_ranks: None) -> None:
    x = torch.zeros(6, 4)
    ones = [1] * axis.size
    with pytest.raises(ValueError, match=r"scatter_to on axis tp: \(6, 4\) has no dimension 2"):
        par.scatter_to(x, axis, 2)
    with pytest.raises(ValueError, match=r"dimension 0 of \(6, 4\) cannot be divided into \[1, 1"):
        par.sequence_scatter(x[:6], axis, 0, [*ones[:-1], 1, 1])
    with pytest.raises(ValueError, match=r"gather_from on axis tp: rank \d has 6 of dimension 0"):
        par.gather_from(x, axis, 0, ones)
    with pytest.raises(ValueError, match="all_to_all on axis tp: dimension 1 is given as both"):
        par.all_to_all(x, axis, 1, -1)
