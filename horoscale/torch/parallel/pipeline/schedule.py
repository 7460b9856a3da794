"""Schedules of pipelines: for each rank the list of its operations, in order. Pure data.

A pipeline's stages are numbered from 0; stage s belongs to rank s % ranks. A stage processes its
microbatches in order, forward and backward, in every schedule: so gradients add up in the order
in which one process adds them up.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class Action(Enum):
    """What an operation computes."""

    FORWARD = "F"
    BACKWARD = "B"  # the gradients of inputs and weights
    INPUT = "I"  # those of inputs only
    WEIGHT = "W"  # those of weights, after INPUT


class Operation(NamedTuple):
    """One stage's part in the forward or backward pass of one microbatch."""

    action: Action
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.action.value}{self.stage}.{self.microbatch}"


Program = tuple[Operation, ...]  # of one rank, in order
Schedule = tuple[Program, ...]  # one program for each rank


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes (Huang et al., 2019, arXiv:1811.06965).

    The activations of all microbatches are held at once.
    """
    return tuple(
        tuple(
            Operation(action, rank, microbatch)
            for action in (Action.FORWARD, Action.BACKWARD)
            for microbatch in range(microbatches)
        )
        for rank in range(ranks)
    )


def one_forward_one_backward(ranks: int, microbatches: int) -> Schedule:
    """Alternate as soon as possible (PipeDream-Flush: Narayanan et al., 2021, arXiv:2006.09503).

    Takes as long as gpipe(), and rank r holds the activations of no more than `ranks` - r
    microbatches.
    """
    return interleaved(ranks, microbatches, 1)


def interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """1F1B with `chunks` stages on each rank (Narayanan et al., 2021, arXiv:2104.04473).

    The bubble is shorter by the factor `chunks`, for as many times the messages. Any number of
    microbatches is possible; a multiple of `ranks` is best.
    """
    rounds = -(-microbatches // ranks)
    return tuple(
        tuple(
            # Whole microbatches can be left out: an operation waits for none of another one.
            operation
            for operation in _interleaved_program(rank, ranks, rounds, chunks)
            if operation.microbatch < microbatches
        )
        for rank in range(ranks)
    )


def _interleaved_program(rank: int, ranks: int, rounds: int, chunks: int) -> Program:
    """Return the program of one rank for rounds * ranks microbatches."""

    def order(action: Action) -> list[Operation]:
        own = [rank + chunk * ranks for chunk in range(chunks)]
        return [
            Operation(action, stage, first + offset)
            for first in range(0, rounds * ranks, ranks)
            for stage in (own if action is Action.FORWARD else reversed(own))
            for offset in range(ranks)
        ]

    ahead = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
    return _alternate(order(Action.FORWARD), order(Action.BACKWARD), ahead)


def _alternate(forward: list[Operation], backward: list[Operation], ahead: int) -> Program:
    """Do forward operations `ahead`, then one of each by turns, then what is left."""
    program = forward[:ahead]
    for index, operation in enumerate(backward):
        program += forward[ahead + index : ahead + index + 1]
        program.append(operation)
    return tuple(program)


def zero_bubble(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1 (Qi et al., 2024, arXiv:2401.10241): gradients of weights fill the bubble.

    The gradient of the input, which the rank before waits for, is computed at once; those of the
    weights when there is nothing more urgent. No rank holds more activations than the first one
    of 1F1B does, and where all three parts take equally long the bubble is a third of that one's.
    """

    def program(rank: int) -> Program:
        ahead = ranks - rank - 1
        operations = [Operation(Action.FORWARD, rank, i) for i in range(min(ahead, microbatches))]
        for i in range(microbatches + rank):  # rank: how many weights' gradients wait
            if ahead + i < microbatches:
                operations.append(Operation(Action.FORWARD, rank, ahead + i))
            if i < microbatches:
                operations.append(Operation(Action.INPUT, rank, i))
            if i >= rank:
                operations.append(Operation(Action.WEIGHT, rank, i - rank))
        return tuple(operations)

    return tuple(program(rank) for rank in range(ranks))


_ONE_STAGE: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "zb-h1": zero_bubble,
}
NAMES = (*_ONE_STAGE, "interleaved")


def make_schedule(name: str, ranks: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return the schedule of a name.

    Args:
        name: "gpipe", "1f1b", "interleaved" or "zb-h1".
        ranks: that the pipeline has.
        microbatches: that a step has.
        chunks: stages on each rank; only "interleaved" takes more than one.

    Raises:
        ValueError: there is no such schedule.
    """
    if name not in NAMES:
        known = ", ".join(repr(one) for one in NAMES)
        raise ValueError(f"schedule={name!r} is none of {known}")
    for what, number in (("ranks", ranks), ("microbatches", microbatches), ("chunks", chunks)):
        if number < 1:
            raise ValueError(f"a pipeline needs {what} of at least 1, not {number}")
    if name == "interleaved":
        return interleaved(ranks, microbatches, chunks)
    if chunks != 1:
        raise ValueError(
            f"schedule={name!r} has one stage on each rank, not {chunks}: {ranks * chunks} stages "
            f'on {ranks} ranks need schedule="interleaved"'
        )
    return _ONE_STAGE[name](ranks, microbatches)
