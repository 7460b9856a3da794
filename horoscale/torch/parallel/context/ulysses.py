"""Ulysses attention: each rank computes some of the heads, for the whole sequence.

Jacobs et al.: DeepSpeed Ulysses (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch.nn import functional

import horoscale.torch as hvd
from horoscale.torch.compiling import outside_graph
from horoscale.torch.parallel.context.agreement import agree, check_arguments, check_lengths
from horoscale.torch.parallel.context.layouts import (
    Layout,
    check_layout,
    order,
    set_of,
)
from horoscale.torch.parallel.division import split_sizes
from horoscale.torch.parallel.mesh import Axis

Shape = tuple[int, ...]

_TITLE = "ulysses_attention"
# Since PyTorch 2.5.
_HAS_GROUPS = "enable_gqa" in (functional.scaled_dot_product_attention.__doc__ or "")


@outside_graph
def ulysses_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    axis: Axis,
    causal: bool = False,
    layout: Layout = "contiguous",
    scale: float | None = None,
) -> torch.Tensor:
    """Return the attention of this rank's queries to the keys of all ranks. Differentiable.

    The result equals torch.nn.functional.scaled_dot_product_attention of the whole sequence,
    without dropout. An all-to-all exchanges positions for heads, so that each rank computes some
    heads for all positions. A second all-to-all returns the results.

    Args:
        q: (batch, heads, positions, head size), with the positions that this rank holds.
        k: (batch, key heads, positions, head size). If there are fewer heads than in q, each is
            shared by a group of consecutive heads of q (grouped-query attention). There must be at
            least one per rank. They need not divide evenly: the first ranks then have one more.
        v: like k.
        axis: the ranks that divide the sequence.
        causal: whether a position attends only to itself and earlier positions.
        layout: the layout that was passed to shard_sequence().
        scale: the factor for the scores. None: 1 / sqrt(head size).

    Returns:
        A tensor with the shape of q.

    Raises:
        ValueError: shapes or dtypes do not match, or there are fewer key heads than ranks; raised
            on this rank only.
        MismatchError: arguments that must be equal differ between the ranks, or a rank's number of
            positions does not match the layout; raised on all ranks.
        RankFailedError: a rank of the axis died or left.
    """
    check_arguments(q, k, v, causal, _TITLE)
    check_layout(layout, _TITLE)
    if k.shape[1] < axis.size:
        raise ValueError(
            f"{_TITLE}: {k.shape[1]} heads of k and v can't be divided among the {axis.size} "
            f"ranks of axis {axis.name!r}: ring_attention() has no such limit"
        )
    scale = q.shape[3] ** -0.5 if scale is None else scale
    calls = agree(q, k, v, axis, causal, layout, scale, _TITLE)
    if causal:
        check_lengths(calls, axis, layout, _TITLE)
    key_heads = list(split_sizes(k.shape[1], axis.size))
    heads = [one * q.shape[1] // k.shape[1] for one in key_heads]
    queries, keys = [one.queries for one in calls], [one.keys for one in calls]
    q, k, v = _to_heads([(q, heads, queries), (k, key_heads, keys), (v, key_heads, keys)], axis)
    result = _attend(q, k, v, causal, axis.size, layout, scale)
    return _to_positions(result, heads, queries, axis)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    ranks: int,
    layout: Layout,
    scale: float,
) -> torch.Tensor:
    """Return the attention of some heads. Positions are in the order in which ranks hold them."""
    if not q.numel() or not k.numel():  # not supported by the kernels
        return q * (k.sum() + v.sum())
    permuted = order(q.shape[2], ranks, layout).to(q.device)
    if causal and layout != "contiguous":
        back = permuted.argsort()
        q, k, v = (x.index_select(2, back) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    if group > 1 and not _HAS_GROUPS:
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    grouped: Any = {"enable_gqa": True} if group > 1 and _HAS_GROUPS else {}
    result = functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=scale, **grouped
    )
    return result.index_select(2, permuted) if causal and layout != "contiguous" else result


def _to_heads(
    tensors: Sequence[tuple[torch.Tensor, list[int], list[int]]], axis: Axis
) -> list[torch.Tensor]:
    """Exchange this rank's positions of all heads for all positions of this rank's heads.

    Each tensor is paired with the numbers of heads and of positions of each rank.
    """
    pieces = [torch.split(x, heads, 1) for x, heads, _ in tensors]
    shapes = [
        [(x.shape[0], heads[axis.rank], lengths[rank], x.shape[3]) for x, heads, lengths in tensors]
        for rank in range(axis.size)
    ]
    received = _exchange(list(zip(*pieces, strict=True)), shapes, axis)
    return [torch.cat(of_ranks, 2) for of_ranks in zip(*received, strict=True)]


def _to_positions(
    x: torch.Tensor, heads: list[int], lengths: list[int], axis: Axis
) -> torch.Tensor:
    """Exchange all positions of this rank's heads for this rank's positions of all heads."""
    pieces = [(piece,) for piece in torch.split(x, lengths, 2)]
    shapes = [[(x.shape[0], one, lengths[axis.rank], x.shape[3])] for one in heads]
    return torch.cat([piece for (piece,) in _exchange(pieces, shapes, axis)], 1)


def _exchange(
    pieces: Sequence[Sequence[torch.Tensor]], shapes: Sequence[Sequence[Shape]], axis: Axis
) -> list[list[torch.Tensor]]:
    """Send each rank its tensors, and return the tensors received, which have these shapes."""
    if axis.size == 1:
        return [list(of_rank) for of_rank in pieces]
    counts = [sum(piece.numel() for piece in of_rank) for of_rank in pieces]
    flat = torch.cat([piece.reshape(-1) for of_rank in pieces for piece in of_rank])
    received, _ = hvd.alltoall(flat, counts, process_set=set_of(axis))
    parts = iter(received.split([prod(shape) for of_rank in shapes for shape in of_rank]))
    return [[next(parts).view(shape) for shape in of_rank] for of_rank in shapes]
