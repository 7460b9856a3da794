"""Simulates schedules: checks them for deadlocks, and computes times and memory. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from horoscale.torch.parallel.pipeline.schedule import Action, Operation, Program, Schedule

_LAST_USE = (Action.BACKWARD, Action.WEIGHT)  # the last operations that need the activations


class ScheduleError(ValueError):
    """A schedule cannot be executed."""


class Span(NamedTuple):
    """The start and end of an operation."""

    start: float
    end: float


class Simulation(NamedTuple):
    """The result of a simulation."""

    spans: dict[Operation, Span]
    makespan: float  # from the first operation's start to the last one's end
    bubbles: tuple[float, ...]  # each rank's idle fraction of the makespan


def check(schedule: Schedule, stages: int, microbatches: int) -> None:
    """Raise ScheduleError unless each operation occurs once, on its rank, and none deadlocks."""
    ranks = len(schedule)
    for rank, program in enumerate(schedule):
        own = range(rank, stages, ranks)
        split = any(operation.action is Action.INPUT for operation in program)
        backward = (Action.INPUT, Action.WEIGHT) if split else (Action.BACKWARD,)
        for stage in own:
            for action in (Action.FORWARD, *backward):
                order = [one.microbatch for one in program if one[:2] == (action, stage)]
                if order != list(range(microbatches)):
                    raise ScheduleError(
                        f"rank {rank} has {action.name} of stage {stage} for the microbatches "
                        f"{order}, not for 0 to {microbatches - 1} in order"
                    )
        if len(program) != len(own) * (1 + len(backward)) * microbatches:
            strange = [str(one) for one in program if one.stage not in own]
            raise ScheduleError(f"rank {rank} has operations that are not its own: {strange}")
    simulate(schedule, stages, lambda _: 1.0)


def needs(operation: Operation, stages: int) -> list[Operation]:
    """Return the operations whose results this one uses."""
    action, stage, microbatch = operation
    if action is Action.FORWARD:
        return [Operation(action, stage - 1, microbatch)] if stage else []
    if action is Action.WEIGHT:
        return [Operation(Action.INPUT, stage, microbatch)]
    own = Operation(Action.FORWARD, stage, microbatch)
    if stage == stages - 1:
        return [own]
    return [own, Operation(action, stage + 1, microbatch)]


def simulate(
    schedule: Schedule,
    stages: int,
    duration: Callable[[Operation], float],
    latency: float = 0.0,
    cores: float = math.inf,
    computing: Callable[[Operation], float] | None = None,
) -> Simulation:
    """Simulate a schedule: each rank runs its operations in order, as soon as inputs are ready.

    Args:
        schedule: a program for each rank.
        stages: the number of stages of the pipeline.
        duration: the duration of an operation.
        latency: the latency of a message between two ranks, which blocks neither of them.
        cores: the number of ranks that can run an operation at the same time. With fewer cores than
            ranks, the operation that could start first gets the first free core.
        computing: the part of an operation's duration, at its beginning, that needs the core. None:
            all of it.

    Raises:
        ScheduleError: operations wait for each other; it names the first one of each rank.
    """
    if cores < len(schedule):
        return _on_cores(schedule, stages, duration, latency, cores, computing or duration)
    spans: dict[Operation, Span] = {}
    free = [0.0] * len(schedule)  # the time at which each rank becomes idle
    position = [0] * len(schedule)
    advanced = True
    while advanced:
        advanced = False
        for rank, program in enumerate(schedule):
            while position[rank] < len(program):
                operation = program[position[rank]]
                start = _start(operation, rank, len(schedule), stages, spans, latency)
                if start is None:
                    break
                start = max(start, free[rank])
                spans[operation] = Span(start, start + duration(operation))
                free[rank] = spans[operation].end
                position[rank] += 1
                advanced = True
    _check_done(schedule, position)
    return _result(schedule, spans)


def _on_cores(
    schedule: Schedule,
    stages: int,
    duration: Callable[[Operation], float],
    latency: float,
    cores: float,
    computing: Callable[[Operation], float],
) -> Simulation:
    """Simulate with fewer cores than ranks. A fraction of a core is a slower core."""
    number = max(1, int(cores))
    slower = number / cores
    spans: dict[Operation, Span] = {}
    free = [0.0] * len(schedule)
    position = [0] * len(schedule)
    cores_free = [0.0] * number
    while True:
        ready = []
        for rank, program in enumerate(schedule):
            if position[rank] < len(program):
                operation = program[position[rank]]
                start = _start(operation, rank, len(schedule), stages, spans, latency)
                if start is not None:
                    ready.append((max(start, free[rank]), rank))
        if not ready:
            break
        start, rank = min(ready)
        operation = schedule[rank][position[rank]]
        core = min(range(number), key=cores_free.__getitem__)
        start = max(start, cores_free[core])
        computed = computing(operation)
        cores_free[core] = start + computed * slower
        free[rank] = cores_free[core] + duration(operation) - computed
        spans[operation] = Span(start, free[rank])
        position[rank] += 1
    _check_done(schedule, position)
    return _result(schedule, spans)


def _result(schedule: Schedule, spans: dict[Operation, Span]) -> Simulation:
    makespan = max(one.end for one in spans.values())
    busy = [sum(spans[one].end - spans[one].start for one in program) for program in schedule]
    return Simulation(spans, makespan, tuple(1 - one / makespan for one in busy))


def _start(
    operation: Operation,
    rank: int,
    ranks: int,
    stages: int,
    spans: dict[Operation, Span],
    latency: float,
) -> float | None:
    """Return the time at which an operation's inputs are ready; None if one is not computed yet."""
    start = 0.0
    for needed in needs(operation, stages):
        if needed not in spans:
            return None
        remote = needed.stage % ranks != rank
        start = max(start, spans[needed].end + (latency if remote else 0.0))
    return start


def _check_done(schedule: Schedule, position: list[int]) -> None:
    waiting = [
        f"rank {rank} at {program[at]}"
        for rank, (program, at) in enumerate(zip(schedule, position, strict=True))
        if at < len(program)
    ]
    if waiting:
        raise ScheduleError(f"operations wait for each other: {', '.join(waiting)}")


def peak_activations(program: Program) -> int:
    """Return the maximum number of stages' microbatches whose activations a rank holds."""
    held = peak = 0
    for operation in program:
        if operation.action is Action.FORWARD:
            held += 1
            peak = max(peak, held)
        elif operation.action in _LAST_USE:
            held -= 1
    return peak
