"""Attention of queries to one block of keys, of which the softmax knows more.

By PyTorch's own kernel for CPUs where there is one, which gives the logarithm of the softmax's sum
beside the result and takes it back for the gradients; otherwise by products of matrices.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

Gradients = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


class Softmax(NamedTuple):
    """How scores become weights."""

    scale: float
    causal: bool  # a query sees the keys up to its own row


_HAS_KERNEL = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
# Those of PyTorch 2.8 write beyond their memory if there are fewer heads of keys than of queries.
_KERNEL_HAS_GROUPS = torch.__version__ >= "2.13"


def _has_kernel(queries: torch.Tensor) -> bool:
    return _HAS_KERNEL and queries.device.type == "cpu"


def _for_kernel(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Return keys, or values, with as many heads as the kernel needs."""
    group = queries.shape[1] // keys.shape[1]
    return keys if group == 1 or _KERNEL_HAS_GROUPS else keys.repeat_interleave(group, 1)


def attend(
    queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, softmax: Softmax
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the attention to these keys alone, and the logarithm of its softmax's sums.

    Args:
        queries: (batch, heads, queries, size).
        keys: (batch, heads of keys, keys, size); each is for as many consecutive heads of queries.
        values: as keys.
        softmax: with `causal` there are as many keys as queries.

    Returns:
        The result, as queries, and the logarithms, (batch, heads, queries), of at least float32.
    """
    if not queries.numel() or not keys.numel():  # for which the kernels are not made
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
    """Return what these keys contribute to the gradients of queries, keys and values.

    Args:
        gradient: of `result`.
        queries: as attend().
        keys: as attend().
        values: as attend().
        result: the attention to all keys, of which these are some.
        sums: the logarithms of the softmax's sums over all keys.
        softmax: as attend().
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
    """View (batch, heads of queries, …) as (batch, heads of keys, heads of queries for each, …)."""
    return x.reshape(x.shape[0], heads, -1, *x.shape[2:])


def _scores(queries: torch.Tensor, keys: torch.Tensor, softmax: Softmax) -> torch.Tensor:
    """Return the scores, (batch, heads of keys, heads of queries for each, queries, keys)."""
    dtype = wide(queries.dtype)
    grouped = _grouped(queries, keys.shape[1]).to(dtype)
    scores = grouped @ keys.to(dtype)[:, :, None].mT * softmax.scale
    if softmax.causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores


def in_rows(x: torch.Tensor) -> torch.Tensor:
    """Return x with neighboring features side by side, which the kernel takes for granted."""
    return x if x.stride(-1) == 1 else x.contiguous()


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which results of several blocks are added up."""
    return torch.float64 if dtype == torch.float64 else torch.float32
