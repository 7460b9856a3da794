"""The cross entropy of logits that are divided by vocabulary."""

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
    """Return torch.nn.functional.cross_entropy() of logits whose vocabulary is divided.

    No rank ever holds all logits. One allgather exchanges four numbers per token, which are
    combined like partial softmaxes (Milakov and Gimelshein 2018). For half precision they are
    computed in float32.

    Args:
        logits: (..., own words), as returned by a ColumnParallelLinear. If the axis has one rank,
            the logits of all words.
        target: (...), the correct words, the same on all ranks.
        axis: the ranks, among which the words are divided as by split_sizes().
        label_smoothing: the fraction of the target that is spread over all words, from 0 to 1.
        ignore_index: the target value of tokens to ignore.
        reduction: "mean" over the tokens that are not ignored, "sum", or "none".
        vocab_size: the number of words. None: all ranks have as many as this one.

    Returns:
        The loss, the same on all ranks: a scalar, or (...) for "none". It has the logits' dtype,
        but float32 for half precision.

    Raises:
        ValueError: a rank's logits are not for the words that split_sizes() assigns to it (on all
            ranks), or shapes do not match or an argument is invalid (on this rank only).
        IndexError: a target is not a word.
    """
    if logits.dim() == 0 or logits.shape[:-1] != target.shape:
        raise ValueError(
            f"logits of {tuple(logits.shape)} on axis {axis.name} need a target of "
            f"{tuple(logits.shape[:-1])}, not {tuple(target.shape)}"
        )
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"label_smoothing={label_smoothing} must be between 0 and 1")
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f'reduction={reduction!r} must be "mean", "sum" or "none"')
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
        # Errors are detected in _combine(), where all ranks see them.
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
            # In place: the softmax is saved in the memory of the exponentials.
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
    """Raise ValueError on all ranks unless each has the logits that split_sizes() assigns to it."""
    if len(set(believed)) > 1:
        raise ValueError(
            f"the ranks of axis {axis.name} have logits for {believed} words: give vocab_size"
        )
    sizes = split_sizes(believed[0], axis.size)
    for rank, (own, expected) in enumerate(zip(had, sizes, strict=True)):
        if own != expected:
            raise ValueError(
                f"rank {rank} of axis {axis.name} has the logits of {own} words, but its share of "
                f"vocab_size={believed[0]} is {expected}"
            )


def _check_target(target: torch.Tensor, counts: torch.Tensor, number: int) -> None:
    """Raise IndexError for a target that is not a word. CPU only, where the check is cheap."""
    if not target.is_cpu:
        return
    wrong = target[counts & ((target < 0) | (target >= number))]
    if wrong.numel():
        raise IndexError(f"target {int(wrong[0])} is not one of the {number} words")


def _combine(said: torch.Tensor, number: int, had: int, axis: Axis) -> tuple[torch.Tensor, ...]:
    """Return the highest logit, the sum of exponentials below it, and the sums of the others."""
    if axis.set is None:
        _check_words([number], [had], axis)
        return tuple(said)
    # Besides the four numbers, the ranks exchange the vocabulary size and their number of words.
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
