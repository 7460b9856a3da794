"""Times the units of a model, whole or as divided for one rank of tp."""

from __future__ import annotations

import copy
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.utils._pytree import tree_map

from horoscale.torch.parallel.planning.dry_run import (
    Batch,
    Loss,
    MakeOptimizer,
    Rehearsal,
    Unit,
    fake,
    shape_of,
    signature,
)
from horoscale.torch.parallel.planning.stand_ins import nbytes_of

Clock: TypeAlias = Callable[[], float]

_WINDOW = 256 << 20  # bytes of state of the units that are run together
_ALIKE = 8  # the number of equal units to run


@dataclass(frozen=True)
class Timing:
    """The time of a unit for one microbatch, in seconds.

    Attributes:
        forward: its forward pass, including the loss for the last unit.
        backward: its backward pass.
        update: the optimizer's step for its parameters, beyond the fixed time of each step.
        accumulate: the difference for a backward pass that adds to existing gradients.
    """

    forward: float
    backward: float
    update: float
    accumulate: float = 0.0

    @staticmethod
    def combined(timings: Sequence[Timing], weights: Sequence[float]) -> Timing:
        """Return the weighted sum of timings."""
        return Timing(
            *(
                sum(w * getattr(one, of.name) for w, one in zip(weights, timings, strict=True))
                for of in fields(Timing)
            )
        )


def profile(
    rehearsal: Rehearsal,
    x: Batch,
    target: Any,
    loss: Loss,
    optimizer: MakeOptimizer,
    repeats: int = 3,
    clock: Clock = time.perf_counter,
) -> list[Timing]:
    """Time the units' forward and backward passes, and the optimizer's step.

    Units run one after the other, as in training, so that caches have realistic contents. As many
    run together as have memory for their state; of equal units only some run. The model, its
    gradients and random states are restored.

    Args:
        rehearsal: the model. Divided parameters and those on the device "meta" get random values.
        x: a microbatch.
        target: its target.
        loss: a function of the last unit's output and the target.
        optimizer: a function from a list of parameters to an optimizer.
        repeats: how often each pass is timed, after a warm-up; the median is used.
        clock: returns seconds; time.thread_time if other ranks use the core in between.
    """
    values: tuple[Any, ...] = (x,) if isinstance(x, torch.Tensor) else tuple(x)
    fakes = list(rehearsal.units.values())
    kinds = _kinds(rehearsal, values)
    states = [4 * sum(map(nbytes_of, one.parameters())) for one in fakes]
    found: dict[Any, list[Timing]] = {}
    passed: dict[Any, tuple[Any, ...]] = {}
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        for window in windows(kinds, states):
            if window[0]:
                values = passed[kinds[window[0] - 1]]
            modules = [_made_real(fakes[index], rehearsal) for index in window]
            ends = None
            if window[-1] == len(fakes) - 1:
                ends = lambda output: loss(output, target)  # noqa: E731
            values = tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in values)
            timings, outputs = _timed(
                modules, values, window[0] > 0, ends, optimizer, repeats, clock
            )
            for index, timing, output in zip(window, timings, outputs, strict=True):
                found.setdefault(kinds[index], []).append(timing)
                passed[kinds[index]] = output
    typical = {
        kind: Timing(*map(statistics.median, zip(*map(astuple, of_kind), strict=True)))
        for kind, of_kind in found.items()
    }
    return [typical[kind] for kind in kinds]


def windows(kinds: Sequence[Any], nbytes: Sequence[int]) -> list[list[int]]:
    """Return the units to run, as lists of consecutive units that have memory together. Pure.

    Args:
        kinds: a key for each unit, equal for equal units.
        nbytes: the bytes of each unit's state.
    """
    found: list[list[int]] = []
    seen: Counter[Any] = Counter()
    for index, kind in enumerate(kinds):
        seen[kind] += 1
        if seen[kind] > _ALIKE:
            continue
        window = found[-1] if found else []
        if (
            window
            and window[-1] == index - 1
            and (sum(nbytes[one] for one in window) + nbytes[index] <= _WINDOW)
        ):
            window.append(index)
        else:
            found.append([index])
    return found


def _kinds(rehearsal: Rehearsal, values: tuple[Any, ...]) -> list[Any]:
    """Return a key for each unit, equal for units that take the same time."""
    kinds = []
    last = len(rehearsal.units) - 1
    with rehearsal.mode, torch.no_grad():
        values = tree_map(fake, values)
        for index, module in enumerate(rehearsal.units.values()):
            ends = (index == 0, index == last)  # no gradient of its input; with the loss
            kinds.append((signature(module), tuple(map(shape_of, values)), ends))
            if index < last:
                result = module(*values)
                values = result if isinstance(result, tuple) else (result,)
    rehearsal.sent.clear()
    return kinds


def by_formula(units: Sequence[Unit], flops: float, memory_bandwidth: float) -> list[Timing]:
    """Return estimated times of units that can't be run.

    Args:
        units: the units from a dry run.
        flops: floating-point operations per second of a rank.
        memory_bandwidth: bytes per second that a rank reads and writes.
    """
    timings = []
    for unit in units:
        moved = (unit.activations + unit.output) / memory_bandwidth
        # AdamW reads parameter, gradient and moments, and writes all except the gradient.
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
    """Return the timings for a number of rows, interpolated between measured numbers. Pure.

    Interpolates linearly between two measured numbers; beyond them, times are proportional.
    """
    if rows in measured:
        return measured[rows]
    known = sorted(measured)
    if rows < known[0] or rows > known[-1]:
        nearest = known[0] if rows < known[0] else known[-1]
        factor = rows / nearest
        return [
            replace(one, forward=one.forward * factor, backward=one.backward * factor)
            for one in measured[nearest]
        ]
    below = max(one for one in known if one < rows)
    above = min(one for one in known if one > rows)
    part = (rows - below) / (above - below)
    return [
        Timing.combined([low, high], [1 - part, part])
        for low, high in zip(measured[below], measured[above], strict=True)
    ]


def _made_real(unit: nn.Module, rehearsal: Rehearsal) -> nn.Module:
    """Return a unit with memory: with the model's values, or random ones."""
    memo: dict[int, Any] = {}
    for one in (*unit.parameters(), *unit.buffers()):
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
    return copy.deepcopy(unit, memo)


def _timed(
    modules: Sequence[nn.Module],
    values: tuple[Any, ...],
    learns: bool,
    loss: Callable[[Any], torch.Tensor] | None,
    make: MakeOptimizer,
    repeats: int,
    clock: Clock,
) -> tuple[list[Timing], list[tuple[Any, ...]]]:
    """Return the timings of consecutive units, and their outputs; see _pass()."""
    parameters = [one for module in modules for one in module.parameters() if one.requires_grad]
    of_units = [[one for one in unit.parameters() if one.requires_grad] for unit in modules]
    optimizers = [make(own) if own else None for own in of_units]
    every_step = step_overhead(make)
    runs: list[list[tuple[float, ...]]] = []
    outputs: list[tuple[Any, ...]] = []
    for _ in range(1 + repeats):
        for one in parameters:
            one.grad = None
        forward, first, outputs = _pass(modules, values, learns, loss, parameters, clock)
        again_forward, again, _ = _pass(modules, values, learns, loss, parameters, clock)
        updates = []
        for optimizer in optimizers:
            begin = _now(parameters, clock)
            if optimizer is not None:
                optimizer.step()
            updates.append(
                max(0.0, _now(parameters, clock) - begin - every_step) if optimizer else 0.0
            )
        runs.append(
            [
                ((f + g) / 2, one, update, more - one)
                for f, g, one, more, update in zip(
                    forward, again_forward, first, again, updates, strict=True
                )
            ]
        )
    timings = [
        Timing(*map(statistics.median, zip(*of_unit, strict=True)))
        for of_unit in zip(*runs[1:], strict=True)
    ]
    return timings, outputs


def _pass(
    modules: Sequence[nn.Module],
    values: tuple[Any, ...],
    learns: bool,
    loss: Callable[[Any], torch.Tensor] | None,
    parameters: Sequence[nn.Parameter],
    clock: Clock,
) -> tuple[list[float], list[float], list[tuple[Any, ...]]]:
    """Run units forward and backward; return the times of both, and the outputs.

    `learns`: whether to compute gradients of the inputs, for preceding units. A unit's backward
    pass ends when the gradients of its inputs are computed.
    """
    inputs = tuple(
        one.detach().requires_grad_().clone()
        if learns and isinstance(one, torch.Tensor) and one.is_floating_point()
        else one
        for one in values
    )
    times = [_now(parameters, clock)]
    ended = [0.0] * len(modules)
    outputs: list[tuple[Any, ...]] = []

    def watch(index: int, tensors: tuple[Any, ...]) -> None:
        def note(_: torch.Tensor) -> None:
            ended[index] = _now(parameters, clock)

        for one in tensors:
            if isinstance(one, torch.Tensor) and one.requires_grad:
                one.register_hook(note)  # type: ignore[no-untyped-call]

    for index, module in enumerate(modules):
        watch(index, inputs)
        result = module(*inputs)
        if loss is not None and index == len(modules) - 1:
            result = loss(result)
        times.append(_now(parameters, clock))
        inputs = result if isinstance(result, tuple) else (result,)
        outputs.append(
            tuple(one.detach() if isinstance(one, torch.Tensor) else one for one in inputs)
        )
    learnt = [one for one in inputs if isinstance(one, torch.Tensor) and one.requires_grad]
    given = [torch.ones_like(one) for one in learnt]
    begin = _now(parameters, clock)
    if learnt:
        torch.autograd.backward(learnt, given)
    end = _now(parameters, clock)
    # If inputs have no gradient, as for an embedding, the pass ends with the unit.
    ends = [end, *ended[1:]]
    backward = []
    for index in reversed(range(len(modules))):
        until = max(begin, ends[index])
        backward.append(until - begin)
        begin = until
    return [b - a for a, b in pairwise(times)], backward[::-1], outputs


def step_overhead(make: MakeOptimizer) -> float:
    """Return the fixed time of an optimizer's step, whatever its parameters, in seconds."""

    def typical(number: int) -> float:
        parameters = [nn.Parameter(torch.zeros(1)) for _ in range(number)]
        optimizer = make(parameters)
        times = []
        for _ in range(10):
            for one in parameters:
                one.grad = torch.zeros(1)
            begin = time.perf_counter()
            optimizer.step()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[2:])

    one, many = typical(1), typical(9)
    return max(0.0, one - (many - one) / 8)


def _now(parameters: Sequence[nn.Parameter], clock: Clock) -> float:
    if parameters and parameters[0].is_cuda:
        torch.cuda.synchronize(parameters[0].device)
    return clock()
