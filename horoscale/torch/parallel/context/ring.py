"""Ring attention: blocks of keys and values are passed around the ranks that divide a sequence.

Liu, Zaharia, Abbeel: Ring Attention with Blockwise Transformers (2023).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

import horoscale.torch as hvd
from horoscale.torch.compiling import outside_graph
from horoscale.torch.handles import Handle
from horoscale.torch.parallel.context.agreement import (
    agree,
    check_arguments,
    check_lengths,
    number_of,
)
from horoscale.torch.parallel.context.block import (
    Softmax,
    attend,
    attend_backward,
    in_rows,
    wide,
)
from horoscale.torch.parallel.context.layouts import (
    Layout,
    Visible,
    check_layout,
    halves,
    set_of,
    spans,
    visible,
)
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.tags import RING_ATTENTION

_TITLE = "ring_attention"
_KEYS, _GRADIENTS, _KINDS = 0, 1, 2


@outside_graph
def ring_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    axis: Axis,
    causal: bool = False,
    layout: Layout = "zigzag",
    scale: float | None = None,
) -> torch.Tensor:
    """Return the attention of this rank's queries to the keys of all ranks. Differentiable.

    The result equals torch.nn.functional.scaled_dot_product_attention of the whole sequence,
    without dropout. Keys and values are passed from rank to rank while the attention to the
    preceding ones is computed. Besides its own, a rank holds those of two other ranks at a time.
    The backward pass sends them around again and recomputes the weights.

    Args:
        q: (batch, heads, positions, head size), with the positions that this rank holds.
        k: (batch, key heads, positions, head size). If there are fewer heads than in q, each is
            shared by a group of consecutive heads of q (grouped-query attention).
        v: like k.
        axis: the ranks that divide the sequence.
        causal: whether a position attends only to itself and earlier positions.
        layout: the layout that was passed to shard_sequence(). Under a causal mask, "zigzag" gives
            all ranks the same amount of work, and "contiguous" gives most to the last rank. Without
            `causal` it makes no difference, and shards may have any lengths.
        scale: the factor for the scores. None: 1 / sqrt(head size).

    Returns:
        A tensor with the shape of q.

    Raises:
        ValueError: shapes or dtypes do not match; raised on this rank only.
        MismatchError: arguments that must be equal differ between the ranks, or a rank's number of
            positions does not match the layout; raised on all ranks.
        RankFailedError: a rank of the axis died or left.
        RuntimeError: from backward(create_graph=True), because there are no second derivatives.
    """
    check_arguments(q, k, v, causal, _TITLE)
    check_layout(layout, _TITLE)
    scale = q.shape[3] ** -0.5 if scale is None else scale
    calls = agree(q, k, v, axis, causal, layout, scale, _TITLE)
    if causal:
        check_lengths(calls, axis, layout, _TITLE)
    lengths = [one.keys for one in calls]
    held = spans(sum(lengths), axis.size, layout) if causal else None
    ring = _Ring(axis, lengths, held, scale, number_of(calls))
    with torch.autocast(q.device.type, enabled=False):
        return _RingAttention.apply(q, k, v, ring)  # type: ignore[no-any-return,no-untyped-call]


@dataclass(frozen=True)
class _Ring:
    """The ranks of one call, and the blocks that are passed around among them."""

    axis: Axis
    lengths: list[int]  # number of keys on each rank
    held: list[list[range]] | None  # positions of each rank's keys; None: no mask
    scale: float
    number: int  # number of the call

    def source(self, step: int) -> int:
        """Return the position of the rank whose block this rank has in a step."""
        return (self.axis.rank - step) % self.axis.size

    def visible(self, source: int) -> Visible | None:
        """Return what this rank's queries see of a rank's block, or None for nothing."""
        if not self.lengths[source]:
            return None
        if self.held is None:
            return Visible(slice(None), slice(None), causal=False)
        return visible(self.held, self.axis.rank, source)

    def send(self, block: torch.Tensor, kind: int) -> Handle:
        """Start to send a block to the next rank."""
        return hvd.send_async(block, self.axis.next, self._tag(kind), set_of(self.axis))

    def receive(self, block: torch.Tensor, kind: int) -> Handle:
        """Start to receive a block from the previous rank."""
        return hvd.recv_async(block, self.axis.prev, self._tag(kind), set_of(self.axis))

    def _tag(self, kind: int) -> int:
        return RING_ATTENTION[self.number * _KINDS + kind]


def _pack(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return keys and values as one block for one message: (2, batch, heads, positions, size)."""
    return torch.stack((k.detach(), v.detach()))


def _room(like: torch.Tensor, length: int) -> torch.Tensor:
    return like.new_empty((*like.shape[:3], length, like.shape[4]))


class _Travel:
    """The blocks of keys and values as they pass this rank, starting with its own."""

    def __init__(self, ring: _Ring, block: torch.Tensor) -> None:
        self._ring = ring
        self._block = block
        self._step = 0
        self._handles: list[Handle] = []

    def begin_step(self) -> tuple[int, torch.Tensor]:
        """Start to pass the current block on; return it with the position of its rank."""
        ring, block, step = self._ring, self._block, self._step
        if step + 1 < ring.axis.size:
            coming = _room(block, ring.lengths[ring.source(step + 1)])
            self._handles = [ring.receive(coming, _KEYS), ring.send(block, _KEYS)]
            self._block = coming
        return ring.source(step), block

    def end_step(self) -> None:
        """Wait until the next block has arrived and the current one is sent."""
        wait_for_all(self._handles)
        self._handles = []
        self._step += 1


def wait_for_all(handles: Sequence[Handle]) -> None:
    """Wait for all handles; raise the first error."""
    for handle in handles:
        handle.wait()


class _RingAttention(torch.autograd.Function):
    """The attention. Its gradients take a second round of the ring."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ring: _Ring
    ) -> torch.Tensor:
        q = in_rows(q.detach())
        # Stored with heads next to features, as layers join them: that avoids a copy.
        batch, heads, length, size = q.shape
        result = q.new_zeros((batch, length, heads, size), dtype=wide(q.dtype)).transpose(1, 2)
        sums = result.new_full(q.shape[:-1], -torch.inf)
        travel = _Travel(ring, _pack(k, v))
        for _ in range(ring.axis.size):
            source, block = travel.begin_step()
            seen = ring.visible(source)
            if seen is not None:
                softmax = Softmax(ring.scale, seen.causal)
                keys, values = block[:, :, :, seen.keys]
                part = attend(q[:, :, seen.queries], keys, values, softmax)
                _merge(result[:, :, seen.queries], sums[:, :, seen.queries], *part)
            travel.end_step()
        result = result.to(q.dtype)
        ctx.ring = ring
        ctx.save_for_backward(q, k, v, result, sums)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # once_differentiable treats some of these as constants
            raise RuntimeError(f"{_TITLE}: its gradients have none: create_graph=True is refused")
        q, k, v, result, sums = ctx.saved_tensors
        backward = _Backward(ctx.ring, gradient, q, k, v, result, sums)
        backward.run()
        for_keys, for_values = backward.for_block.to(k.dtype)
        return backward.for_queries.to(q.dtype), for_keys, for_values, None


def _merge(
    result: torch.Tensor, sums: torch.Tensor, part: torch.Tensor, part_sums: torch.Tensor
) -> None:
    """Add a block's attention, in place, weighted by the softmax's sums."""
    share = torch.sigmoid(part_sums - sums)[..., None]
    result += share * (part - result)
    torch.logaddexp(sums, part_sums, out=sums)


class _Backward:
    """The backward pass of one call. Gradients are summed in at least float32.

    The gradient of a block follows the block, starting at the rank after its owner: each rank adds
    its part, and the last one sends it to the owner. To overlap, a rank computes half of its own
    part while the first block arrives, and the rest while its gradient arrives.
    """

    def __init__(
        self,
        ring: _Ring,
        gradient: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        result: torch.Tensor,
        sums: torch.Tensor,
    ) -> None:
        """Take the tensors saved by forward(), and the gradient of its result."""
        self._ring = ring
        self._of_rows = in_rows(gradient), q, result, sums
        self._own = _pack(k, v)
        self.for_queries = torch.zeros_like(q, dtype=wide(q.dtype))
        self.for_block = torch.zeros_like(self._own, dtype=wide(q.dtype))

    def run(self) -> None:
        """Add all contributions to for_queries and for_block, the gradient of this rank's block."""
        ring = self._ring
        first, rest = halves(ring.visible(ring.axis.rank), self.for_queries.shape[2])
        travel = _Travel(ring, self._own)
        travel.begin_step()
        self._add_own(first)
        travel.end_step()
        sent: list[Handle] = []
        for step in range(1, ring.axis.size):
            source, block = travel.begin_step()
            for_block = torch.zeros_like(block, dtype=self.for_block.dtype)
            coming = [ring.receive(for_block, _GRADIENTS)] if step > 1 else []
            seen = ring.visible(source)
            part = None if seen is None else self._parts(seen, block)
            wait_for_all(coming)
            if seen is not None and part is not None:
                for_block[:, :, :, seen.keys] += part
            wait_for_all(sent)
            sent = [ring.send(for_block, _GRADIENTS)]
            travel.end_step()
        home = torch.zeros_like(self.for_block)
        coming = [ring.receive(home, _GRADIENTS)] if sent else []
        self._add_own(rest)
        wait_for_all([*coming, *sent])
        self.for_block += home

    def _add_own(self, parts: Sequence[Visible]) -> None:
        for seen in parts:
            self.for_block[:, :, :, seen.keys] += self._parts(seen, self._own)

    def _parts(self, seen: Visible, block: torch.Tensor) -> torch.Tensor:
        """Add to the gradient of the queries; return the gradient of the keys and values."""
        gradient, q, result, sums = (x[:, :, seen.queries] for x in self._of_rows)
        keys, values = block[:, :, :, seen.keys]
        softmax = Softmax(self._ring.scale, seen.causal)
        of_queries, *of_block = attend_backward(gradient, q, keys, values, result, sums, softmax)
        self.for_queries[:, :, seen.queries] += of_queries
        return torch.stack(of_block)
