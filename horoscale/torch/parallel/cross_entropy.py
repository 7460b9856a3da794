"""The cross entropy of logits that are divided by words."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch.autograd.function import once_differentiable

from horoscale.torch.movement import allgather
from horoscale.torch.parallel.division import bounds, split_sizes
from horoscale.torch.parallel.mesh import Axis


def vocab_parallel_cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    axis: Axis,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Literal["mean", "sum", "none"] = "mean",
    vocab_size: int | None = None,
) -> torch.Tensor:
    """Return torch.nn.functional.cross_entropy() of logits of which each rank has some words'.

    No rank ever has all logits: each tells the others, in one allgather, four numbers for each
    token, which are combined as partial softmaxes are (Milakov and Gimelshein 2018). In half
    precision they are computed in float32.

    Args:
        logits: (..., own words), as a ColumnParallelLinear returns them; of all words on each rank
            where the axis has one rank.
        target: (...), the right words, the same on all ranks.
        axis: the ranks, among which the words are divided as by split_sizes().
        label_smoothing: how much of the target is spread over all words, from 0 to 1.
        ignore_index: the target of tokens that don't count.
        reduction: "mean" over the tokens that count, "sum", or "none".
        vocab_size: the number of words; None: all ranks have as many as this one.

    Returns:
        The loss, the same on all ranks: a number, or (...) with "none", of the logits' type, but
        float32 in half precision.

    Raises:
        ValueError: a rank has the logits of other words than split_sizes() says, on all ranks; or
            shapes don't fit, or an argument is invalid, on this rank alone.
        IndexError: a target is no word.
    """
    if logits.dim() == 0 or logits.shape[:-1] != target.shape:
        raise ValueError(
            f"logits of {tuple(logits.shape)} on axis {axis.name} need a target of "
            f"{tuple(logits.shape[:-1])}, not {tuple(target.shape)}"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing={label_smoothing} is not between 0 and 1")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction={reduction!r} is none of "mean", "sum" and "none"')
    losses: torch.Tensor = _CrossEntropy.apply(  # type: ignore[no-untyped-call]
        logits, target, axis, label_smoothing, ignore_index, vocab_size
    )
    if reduction == "none":
        return losses
    if reduction == "sum":
        return losses.sum()
    return losses.sum() / (target != ignore_index).sum()


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        target: torch.Tensor,
        axis: Axis,
        smoothing: float,
        ignored: int,
        words: int | None,
    ) -> torch.Tensor:
        half = logits.dtype in (torch.float16, torch.bfloat16)
        values = logits.float() if half else logits
        counts = target != ignored
        number = words or values.shape[-1] * axis.size
        own = values.shape[-1]
        # What is wrong here comes out where all ranks see it, in _combine().
        first = bounds(split_sizes(number, axis.size), axis.rank)[0]
        end = first + own
        is_own = counts & (target >= first) & (target < end)
        rows = torch.where(is_own, target - first, 0).unsqueeze(-1)
        if end > first:
            highest = values.amax(-1)
            of_target = torch.where(is_own, values.gather(-1, rows).squeeze(-1), 0.0)
        else:
            highest = values.new_full(target.shape, -torch.inf)
            of_target = torch.zeros_like(highest)
        possible = torch.where(highest == -torch.inf, 0.0, highest)
        exponentials = torch.exp(values - possible.unsqueeze(-1))
        total = values.sum(-1) if smoothing else torch.zeros_like(of_target)
        said = torch.stack([highest, exponentials.sum(-1), of_target, total])
        top, denominator, of_target, total = _combine(said, number, own, axis)
        _check_target(target, counts, number)
        normalizer = top + denominator.log()
        losses = normalizer - (1 - smoothing) * of_target
        if smoothing:
            losses -= smoothing / number * total
        if any(ctx.needs_input_grad):
            # In place: the softmax is what is kept, in the exponentials' memory.
            scale = torch.exp(highest - top) / denominator
            softmax = exponentials.mul_(scale.unsqueeze(-1))
            ctx.save_for_backward(softmax, rows, is_own, counts)
            ctx.smoothing, ctx.words, ctx.dtype = smoothing, number, logits.dtype
        return torch.where(counts, losses, 0.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        softmax, rows, is_own, counts = ctx.saved_tensors
        result = softmax.clone()
        if result.shape[-1]:
            right = (is_own.to(result.dtype) * (ctx.smoothing - 1)).unsqueeze(-1)
            result.scatter_add_(-1, rows, right)
        if ctx.smoothing:
            result -= ctx.smoothing / ctx.words
        result *= torch.where(counts, gradient, 0.0).unsqueeze(-1)
        return result.to(ctx.dtype), None, None, None, None, None


def _check_words(believed: list[int], had: list[int], axis: Axis) -> None:
    """Raise ValueError, on all ranks, where they don't have the logits that split_sizes() says."""
    if len(set(believed)) > 1:
        raise ValueError(
            f"the ranks of axis {axis.name} have logits for {believed} words: give vocab_size"
        )
    sizes = split_sizes(believed[0], axis.size)
    for rank, (own, expected) in enumerate(zip(had, sizes, strict=True)):
        if own != expected:
            raise ValueError(
                f"rank {rank} of axis {axis.name} has the logits of {own} words, but of "
                f"vocab_size={believed[0]} it has {expected}"
            )


def _check_target(target: torch.Tensor, counts: torch.Tensor, number: int) -> None:
    """Raise IndexError for what is no word; only on the CPU, where looking costs nothing."""
    if not target.is_cpu:
        return
    wrong = target[counts & ((target < 0) | (target >= number))]
    if wrong.numel():
        raise IndexError(f"target {int(wrong[0])} is no word: there are {number}")


def _combine(said: torch.Tensor, number: int, had: int, axis: Axis) -> tuple[torch.Tensor, ...]:
    """Return the highest logit, the sum of exponentials below it, and the sums of the others."""
    if axis.set is None:
        _check_words([number], [had], axis)
        return tuple(said)
    # Beside their numbers the ranks say how many words they believe in, and how many they have.
    words = said.new_tensor([[number], [had], [0], [0]])
    own = torch.cat([said.flatten(1), words], 1)
    out = own.new_empty((axis.size * own.shape[0], own.shape[1]))
    gathered = allgather(own, process_set=axis.set, out=out).view(axis.size, *own.shape)
    believed, had_by_each = gathered[:, :2, -1].t().int().tolist()
    _check_words(believed, had_by_each, axis)
    everyones = gathered[..., :-1].view(axis.size, *said.shape)
    top = everyones[:, 0].amax(0)
    denominator = (everyones[:, 1] * torch.exp(everyones[:, 0] - top)).sum(0)
    return top, denominator, everyones[:, 2].sum(0), everyones[:, 3].sum(0)
