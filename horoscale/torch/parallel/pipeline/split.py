"""split(): divides a sequential model into stages of similar cost."""

from __future__ import annotations

import statistics
import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import Any

import torch
from torch import nn

from horoscale.common.objects import broadcast_object
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.planning.partition import cut


def split(
    model: nn.Sequential,
    stages: int,
    sample: torch.Tensor | Sequence[torch.Tensor] | None = None,
    *,
    costs: Sequence[float] | None = None,
    axis: Axis | None = None,
    repeats: int = 5,
) -> list[nn.Sequential]:
    """Cut a model into stages of consecutive layers to minimize the slowest one.

    Layers have different costs: an embedding is cheap, and a loss over a vocabulary is expensive.
    Equal numbers of layers are therefore rarely optimal. This function times each layer's forward
    and backward pass.

    Args:
        model: a module whose children run one after the other. A tuple is passed on as several
            arguments.
        stages: the number of stages, such as mesh.pp.size.
        sample: a microbatch for timing the layers.
        costs: the times of the layers, if they are known. Nothing is timed then.
        axis: the ranks of the pipeline. All of them must call this function, and use the times of
            the first one. Without it, each rank uses its own times, and the cuts may differ.
        repeats: how often each layer is timed; the median is used.

    Returns:
        The stages. Layers keep their names, so parameters have the same names as in the model, and
        state dicts match.

    Raises:
        ValueError: there are fewer layers than stages, neither `sample` nor `costs` is given, or
            the number of costs is not that of the layers.
    """
    layers = list(model.named_children())
    if len(layers) < stages:
        raise ValueError(f"a model of {len(layers)} layers can't have {stages} stages")
    if costs is None:
        if sample is None:
            raise ValueError("split() needs a sample to time the layers with, or their costs")
        if axis is None or axis.rank == 0:
            costs = measure(model, sample, repeats)
        if axis is not None and axis.set is not None:
            costs = broadcast_object(costs, axis.ranks[0], "horoscale.split", axis.set)
        assert costs is not None
    if len(costs) != len(layers):
        raise ValueError(f"{len(costs)} costs for {len(layers)} layers")
    return [nn.Sequential(OrderedDict(layers[a:b])) for a, b in pairwise(partition(costs, stages))]


def partition(costs: Sequence[float], parts: int) -> list[int]:
    """Divide a list into consecutive non-empty parts so that the largest sum is minimal.

    Of several optimal divisions, it returns the one with the least sum of squares of the parts'
    costs.

    Args:
        costs: the costs of the items, finite and not negative.
        parts: the number of parts.

    Returns:
        The beginning of each part, and the end of the last one.

    Raises:
        ValueError: there are fewer items than parts, or a cost is negative or infinite.
    """
    if not 1 <= parts <= len(costs):
        raise ValueError(f"{len(costs)} items can't be cut into {parts} parts")
    if not all(0 <= one < inf for one in costs):
        raise ValueError(f"costs can't be negative or infinite: {list(costs)}")
    sums = [0.0, *accumulate(costs)]
    found = cut(len(costs), parts, lambda begin, end, _: sums[end] - sums[begin])
    assert found is not None
    return found


def measure(
    model: nn.Sequential, sample: torch.Tensor | Sequence[torch.Tensor], repeats: int = 5
) -> list[float]:
    """Return the time of the forward and backward pass of each child, in seconds.

    Gradients of parameters, buffers and random states are restored. The modules must be on the CPU.
    """
    layers = list(model.children())
    values: Any = (sample,) if isinstance(sample, torch.Tensor) else tuple(sample)
    before = [parameter.grad for parameter in model.parameters()]
    buffers = [buffer.clone() for buffer in model.buffers()]
    costs = []
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            for layer in layers:
                runs = [_timed(layer, values) for _ in range(1 + repeats)]
                costs.append(statistics.median(seconds for seconds, _ in runs[1:]))
                values = runs[-1][1]
    finally:
        for parameter, grad in zip(model.parameters(), before, strict=True):
            parameter.grad = grad
        for buffer, value in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(value)
    return costs


def _timed(layer: nn.Module, values: tuple[Any, ...]) -> tuple[float, tuple[Any, ...]]:
    """Return the time that a layer takes, and its outputs."""
    for parameter in layer.parameters():
        parameter.grad = None
    inputs = [
        # Not leaves, which layers that work in place reject.
        value.detach().requires_grad_(value.is_floating_point() or value.is_complex()).clone()
        for value in values
    ]
    begin = time.perf_counter()
    result = layer(*inputs)
    outputs = result if isinstance(result, tuple) else (result,)
    learnt = [one for one in outputs if one.requires_grad]
    if learnt:
        torch.autograd.backward(learnt, [torch.ones_like(one) for one in learnt])
    return time.perf_counter() - begin, tuple(one.detach() for one in outputs)
