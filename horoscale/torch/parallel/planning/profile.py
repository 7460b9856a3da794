"""Times the units of a model, whole or as one rank of tp has them."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from horoscale.torch.parallel.planning.dry_run import (
    Batch,
    Loss,
    MakeOptimizer,
    Rehearsal,
    Unit,
    shape_of,
    signature,
)


@dataclass(frozen=True)
class Timing:
    """How long a unit takes for one microbatch, in seconds.

    Attributes:
        forward: its forward pass; of the last unit the loss is a part.
        backward: its backward pass.
        update: the optimizer's step for its parameters.
    """

    forward: float
    backward: float
    update: float


def profile(
    rehearsal: Rehearsal,
    x: Batch,
    target: Any,
    loss: Loss,
    optimizer: MakeOptimizer,
    repeats: int = 3,
) -> list[Timing]:
    """Run each unit forward and backward, and the optimizer's step, and time them.

    One unit at a time has memory. Units that are alike are timed once. The model, its gradients and
    the state of random numbers are as before.

    Args:
        rehearsal: the model; of what is divided or on the device "meta" values are drawn.
        x: a microbatch.
        target: of it.
        loss: called with the last unit's output and the target.
        optimizer: makes the optimizer of a list of parameters.
        repeats: how often each pass is timed, after a first time; the median counts.
    """
    values: tuple[Any, ...] = (x,) if isinstance(x, torch.Tensor) else tuple(x)
    known: dict[Any, tuple[Timing, tuple[Any, ...]]] = {}
    timings = []
    last = len(rehearsal.units) - 1
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for index, (_, fake) in enumerate(rehearsal.units.items()):
            ends = (lambda output: loss(output, target)) if index == last else None
            alike = (signature(fake), *map(shape_of, values), index == last)
            if alike not in known:
                module = _made_real(fake, rehearsal)
                known[alike] = _timed(module, values, ends, optimizer, repeats)
            timing, values = known[alike]
            timings.append(timing)
    return timings


def by_formula(units: Sequence[Unit], flops: float, memory_bandwidth: float) -> list[Timing]:
    """Return how long units take where they can't be run.

    Args:
        units: of a dry run.
        flops: floating-point operations a second of a rank.
        memory_bandwidth: bytes a second that a rank reads and writes.
    """
    timings = []
    for unit in units:
        moved = (unit.activations + unit.output) / memory_bandwidth
        # AdamW reads parameter, gradient and moments, and writes all but the gradient.
        updated = sum(unit.parameters[one] for one in unit.trained)
        updated_bytes = 3 * updated + 2 * sum(unit.optimizer.values())
        timings.append(
            Timing(
                unit.forward_flops / flops + moved,
                unit.backward_flops / flops + 2 * moved,
                updated_bytes / memory_bandwidth,
            )
        )
    return timings


def interpolate(rows: int, measured: dict[int, list[Timing]]) -> list[Timing]:
    """Return the timings for a number of rows between those that were measured; pure.

    Between two measured numbers it is on the line through them; beyond them, in proportion.
    """
    if rows in measured:
        return measured[rows]
    known = sorted(measured)
    if rows < known[0] or rows > known[-1]:
        nearest = known[0] if rows < known[0] else known[-1]
        factor = rows / nearest
        return [
            Timing(one.forward * factor, one.backward * factor, one.update)
            for one in measured[nearest]
        ]
    below = max(one for one in known if one < rows)
    above = min(one for one in known if one > rows)
    part = (rows - below) / (above - below)

    def between(first: float, second: float) -> float:
        return first + part * (second - first)

    return [
        Timing(
            between(low.forward, high.forward),
            between(low.backward, high.backward),
            between(low.update, high.update),
        )
        for low, high in zip(measured[below], measured[above], strict=True)
    ]


def _made_real(fake: nn.Module, rehearsal: Rehearsal) -> nn.Module:
    """Return a unit with memory: the model's values, or drawn ones."""
    memo: dict[int, Any] = {}
    for one in (*fake.parameters(), *fake.buffers()):
        source = rehearsal.sources.get(id(one))
        if source is not None and not source.is_meta:
            real = source.detach().clone()
        else:
            real = torch.zeros(one.shape, dtype=one.dtype, device=one.device)
            if real.is_floating_point():
                real.normal_(0.0, 0.02)
        if isinstance(one, nn.Parameter):
            real = nn.Parameter(real, requires_grad=one.requires_grad)
        memo[id(one)] = real
    return copy.deepcopy(fake, memo)


def _timed(
    module: nn.Module,
    values: tuple[Any, ...],
    loss: Callable[[Any], torch.Tensor] | None,
    make: MakeOptimizer,
    repeats: int,
) -> tuple[Timing, tuple[Any, ...]]:
    parameters = [one for one in module.parameters() if one.requires_grad]
    optimizer = make(parameters) if parameters else None
    runs = []
    outputs: tuple[Any, ...] = ()
    for _ in range(1 + repeats):
        inputs = [
            one.detach().requires_grad_().clone()
            if isinstance(one, torch.Tensor) and one.is_floating_point()
            else one
            for one in values
        ]
        times = [_now(parameters)]
        result = module(*inputs)
        if loss is not None:
            result = loss(result)
        times.append(_now(parameters))
        outputs = result if isinstance(result, tuple) else (result,)
        learnt = [one for one in outputs if isinstance(one, torch.Tensor) and one.requires_grad]
        given = [torch.ones_like(one) for one in learnt]
        times.append(_now(parameters))
        if learnt:
            torch.autograd.backward(learnt, given)
        times.append(_now(parameters))
        if optimizer is not None:
            optimizer.step()
            times.append(_now(parameters))
            optimizer.zero_grad()
        runs.append((times[1] - times[0], times[3] - times[2], times[-1] - times[3]))
    forward, backward, update = map(statistics.median, zip(*runs[1:], strict=True))
    passed = tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in outputs)
    return Timing(forward, backward, update), passed


def _now(parameters: Sequence[nn.Parameter]) -> float:
    if parameters and parameters[0].is_cuda:
        torch.cuda.synchronize(parameters[0].device)
    return time.perf_counter()
