"""Attention of queries to one block of keys, which can be combined with that to other blocks.

Uses PyTorch's CPU kernel if available: it returns the logarithm of the softmax's sum with the
result and accepts it for the gradients. Otherwise uses matrix products.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Softmax(NamedTuple):
    """How scores are converted to weights."""

    scale: float
    causal: bool  # a query attends to the keys up to its own row


_HAS_KERNEL = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
# PyTorch 2.8's kernels write out of bounds if there are fewer key heads than query heads.
_KERNEL_HAS_GROUPS = torch.__version__ >= "2.13"


def _has_kernel(queries: torch.Tensor) -> bool:
    return _HAS_KERNEL and queries.device.type == "cpu"


def _for_kernel(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return keys or values, with as many heads as the kernel requires."""
    group = queries.shape[1] // keys.shape[1]
    return keys if group == 1 or _KERNEL_HAS_GROUPS else keys.repeat_interleave(group, 1)


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softmax: Softmax
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention to only these keys, and the logarithm of its softmax's sums.

    Args:
        queries: (batch, heads, queries, size).
        keys: (batch, key heads, keys, size). Consecutive query heads share a key head.
        values: like keys.
        softmax: if `causal`, there must be as many keys as queries.

    Returns:
        The result, with the shape of queries, and the logarithms, (batch, heads, queries), of at
        least float32.
    """
    if not queries.numel() or not keys.numel():  # not supported by the kernels
        sums = queries.new_full(queries.shape[:-1], -torch.inf, dtype=wide(queries.dtype))
        return torch.zeros_like(queries), sums
    if _has_kernel(queries):
        keys, values = _for_kernel(queries, keys), _for_kernel(queries, values)
        result, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries, keys, values, 0.0, softmax.causal, scale=softmax.scale
        )
        return result, sums
    scores = _scores(queries, keys, softmax)
    sums = scores.logsumexp(-1)
    weights = (scores - sums[..., None]).exp()
    result = weights @ values.to(weights.dtype)[:, :, None]
    return result.flatten(1, 2).to(queries.dtype), sums.flatten(1, 2)


def attend_backward(
    gradient: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    result: torch.Tensor,
    sums: torch.Tensor,
    softmax: Softmax,
) -> Gradients:
    """Return the contribution of these keys to the gradients of queries, keys and values.

    Args:
        gradient: the gradient of `result`.
        queries: as in attend().
        keys: as in attend().
        values: as in attend().
        result: the attention to all keys, of which these are a part.
        sums: the logarithms of the softmax's sums over all keys.
        softmax: as in attend().
    """
    if not queries.numel() or not keys.numel():
        return torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
    if _has_kernel(queries):
        heads = keys.shape[1]
        keys, values = _for_kernel(queries, keys), _for_kernel(queries, values)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        for_queries, *of_keys = kernel(
            *(gradient, queries, keys, values, result, sums, 0.0, softmax.causal),
            scale=softmax.scale,
        )
        for_keys, for_values = (
            one if one.shape[1] == heads else _grouped(one, heads).sum(2) for one in of_keys
        )
        return for_queries, for_keys, for_values
    return _backward_by_products(gradient, queries, keys, values, result, sums, softmax)


def _backward_by_products(
    gradient: torch.Tensor,
    queries: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    result: torch.Tensor,
    sums: torch.Tensor,
    softmax: Softmax,
) -> Gradients:
    heads = keys.shape[1]
    scores = _scores(queries, keys, softmax)
    weights = (scores - _grouped(sums, heads)[..., None]).exp()
    gradient = _grouped(gradient, heads).to(weights.dtype)
    constant = (gradient * _grouped(result, heads)).sum(-1, keepdim=True)
    for_values = (weights.mT @ gradient).sum(2)
    for_weights = gradient @ values.to(weights.dtype)[:, :, None].mT
    for_scores = weights * (for_weights - constant) * softmax.scale
    for_queries = for_scores @ keys.to(weights.dtype)[:, :, None]
    for_keys = (for_scores.mT @ _grouped(queries, heads).to(weights.dtype)).sum(2)
    return (
        for_queries.flatten(1, 2).to(queries.dtype),
        for_keys.to(keys.dtype),
        for_values.to(values.dtype),
    )


def _grouped(x: torch.Tensor, heads: int) -> torch.Tensor:
    """View (batch, query heads, …) as (batch, key heads, query heads per key head, …)."""
    return x.reshape(x.shape[0], heads, -1, *x.shape[2:])


def _scores(queries: torch.Tensor, keys: torch.Tensor, softmax: Softmax) -> torch.Tensor:
    """Return the scores, (batch, key heads, query heads per key head, queries, keys)."""
    dtype = wide(queries.dtype)
    grouped = _grouped(queries, keys.shape[1]).to(dtype)
    scores = grouped @ keys.to(dtype)[:, :, None].mT * softmax.scale
    if softmax.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores


def in_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x with contiguous features, which the kernel requires."""
    return x if x.stride(-1) == 1 else x.contiguous()


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which results of several blocks are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32
