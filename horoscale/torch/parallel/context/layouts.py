"""Which positions of a sequence each rank of a context axis holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

import torch

import horoscale.torch as hvd
from horoscale.torch.compiling import outside_graph
from horoscale.torch.parallel.division import split_sizes
from horoscale.torch.parallel.mesh import Axis

Layout = Literal["zigzag", "contiguous"]
LAYOUTS: tuple[Layout, ...] = ("zigzag", "contiguous")


class Visible(NamedTuple):
    """Which of a rank's queries see which of another rank's keys, as ranges of rows."""

    queries: slice
    keys: slice
    causal: bool  # each query sees the keys up to its own row; otherwise all of them


_ALL = slice(None)


def set_of(axis: Axis) -> hvd.ProcessSet:
    """Return the process set of an axis of several ranks."""
    assert axis.set is not None
    return axis.set


def check_layout(layout: str, call: str) -> Layout:
    """Return the layout; raise ValueError for an unknown name."""
    if layout not in LAYOUTS:
        raise ValueError(f"{call}: layout={layout!r} is not one of {', '.join(LAYOUTS)}")
    return layout


def spans(length: int, ranks: int, layout: Layout) -> list[list[range]]:
    """Return the positions that each rank holds, in order, as ranges.

    "contiguous": one range each. "zigzag": the sequence is divided into twice as many chunks as
    ranks; rank r holds chunk r and the r-th chunk from the end. Under a causal mask all ranks then
    have equal numbers of pairs of queries and keys.
    """
    chunks = ranks if layout == "contiguous" else 2 * ranks
    ends = [0, *accumulate(split_sizes(length, chunks))]
    ranges = [range(start, end) for start, end in pairwise(ends)]
    if layout == "contiguous":
        return [[one] for one in ranges]
    return [[ranges[rank], ranges[chunks - 1 - rank]] for rank in range(ranks)]


def lengths(length: int, ranks: int, layout: Layout) -> list[int]:
    """Return the number of positions that each rank holds."""
    return [sum(map(len, own)) for own in spans(length, ranks, layout)]


def order(length: int, ranks: int, layout: Layout) -> torch.Tensor:
    """Return the positions of all ranks, in the order of the ranks: a permutation."""
    return torch.cat([_positions(own) for own in spans(length, ranks, layout)])


def _positions(own: Sequence[range]) -> torch.Tensor:
    return torch.cat([torch.arange(one.start, one.stop) for one in own])


def visible(held: Sequence[Sequence[range]], own: int, other: int) -> Visible | None:
    """Return what rank `own` sees of rank `other` under a causal mask, or None for nothing.

    `held` has each rank's positions, as returned by spans().
    """
    if own == other:
        return Visible(_ALL, _ALL, causal=True)
    mine, theirs = held[own], held[other]
    if len(mine) == 1:
        return Visible(_ALL, _ALL, causal=False) if other < own else None
    if other < own:  # this rank's two chunks lie between those of the other rank
        return Visible(_ALL, slice(0, len(theirs[0])), causal=False)
    return Visible(slice(len(mine[0]), None), _ALL, causal=False)


def halves(own: Visible | None, queries: int) -> tuple[list[Visible], list[Visible]]:
    """Divide what a rank sees of its own keys into halves with equal numbers of pairs."""
    if own is None:
        return [], []
    upper, lower = slice(0, queries // 2), slice(queries // 2, None)
    if not own.causal:
        return [Visible(upper, _ALL, causal=False)], [Visible(lower, _ALL, causal=False)]
    # A triangle consists of a square and two triangles with half of its area together.
    triangles = [Visible(half, half, causal=True) for half in (upper, lower)]
    return [Visible(lower, upper, causal=False)], triangles


def position_ids(length: int, axis: Axis, layout: Layout = "zigzag") -> torch.Tensor:
    """Return the positions that this rank holds, for rotary or learned position embeddings.

    Args:
        length: the length of the whole sequence.
        axis: the ranks that divide it.
        layout: the layout; see shard_sequence().

    Returns:
        A 1-d int64 tensor with the positions in this rank's shard.
    """
    layout = check_layout(layout, "position_ids")
    return _positions(spans(length, axis.size, layout)[axis.rank])


@outside_graph
def shard_sequence(
    x: torch.Tensor, axis: Axis, dim: int = 1, layout: Layout = "zigzag"
) -> torch.Tensor:
    """Return this rank's part of a sequence that is replicated on all ranks of the axis.

    Nothing is sent. The length need not be divisible: the first chunks then have one more position.
    The gradient of x is nonzero only in this rank's part. As for parameters, the sum over the axis
    is the gradient of a single process.

    Args:
        x: a tensor with the whole sequence in `dim`.
        axis: the ranks that divide it.
        dim: the dimension to divide.
        layout: with n ranks, "contiguous" gives rank r the r-th of n chunks. "zigzag" gives it the
            r-th of 2n chunks and the r-th from the end, so that under a causal mask all ranks have
            the same amount of work.

    Returns:
        A new contiguous tensor, or x itself if the axis has one rank.
    """
    layout = check_layout(layout, "shard_sequence")
    if axis.size == 1:
        return x
    own = spans(x.shape[dim], axis.size, layout)[axis.rank]
    return torch.cat([x.narrow(dim, one.start, len(one)) for one in own], dim)


@outside_graph
def unshard_sequence(
    x: torch.Tensor, axis: Axis, dim: int = 1, layout: Layout = "zigzag"
) -> torch.Tensor:
    """Return the whole sequence from the ranks' shards, the inverse of shard_sequence().

    Differentiable. The gradient of x is its part of the gradient of the result, which must be the
    same on all ranks. The backward pass sends nothing.

    Args:
        x: this rank's shard. It has the same dtype and shape on all ranks, except for `dim`.
        axis: the ranks that divide the sequence.
        dim: the divided dimension.
        layout: the layout that was passed to shard_sequence().

    Returns:
        A tensor with the whole sequence in `dim`, the same on all ranks.

    Raises:
        ValueError: the shard does not have the expected length.
        MismatchError: dtypes or other dimensions differ.
        RankFailedError: a rank of the axis died or left.
    """
    layout = check_layout(layout, "unshard_sequence")
    if axis.size == 1:
        return x
    return _Unshard.apply(x, axis, dim, layout)  # type: ignore[no-any-return,no-untyped-call]


class _Unshard(torch.autograd.Function):
    """Gathers a sequence. The gradient is divided again."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, dim: int, layout: Layout) -> torch.Tensor:
        ctx.how = axis, dim, layout
        rows = hvd.allgather(x.detach().movedim(dim, 0).contiguous(), process_set=set_of(axis))
        length = rows.shape[0]
        expected = lengths(length, axis.size, layout)[axis.rank]
        if x.shape[dim] != expected:
            raise ValueError(
                f"unshard_sequence: rank {axis.rank} of axis {axis.name!r} has {x.shape[dim]} "
                f"positions; of {length}, {layout}, it holds {expected}"
            )
        if layout == "zigzag":
            rows = rows[order(length, axis.size, layout).argsort().to(rows.device)]
        return rows.movedim(0, dim)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        axis, dim, layout = ctx.how
        return shard_sequence(gradient, axis, dim, layout), None, None, None
