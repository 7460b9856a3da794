"""Schedules of pipelines: the list of operations of each rank, in order. Pure data.

A pipeline's stages are numbered from 0. Stage s belongs to rank s % ranks. In every schedule, a
stage processes its microbatches in order, forward and backward, so gradients are summed in the same
order as in one process.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import NamedTuple


class Action(Enum):
    """What an operation computes."""

    FORWARD = "F"
    BACKWARD = "B"  # gradients of inputs and weights
    INPUT = "I"  # gradients of inputs only
    WEIGHT = "W"  # gradients of weights, after INPUT


class Operation(NamedTuple):
    """One stage's part of the forward or backward pass of one microbatch."""

    action: Action
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.action.value}{self.stage}.{self.microbatch}"


Program = tuple[Operation, ...]  # operations of one rank, in order
Schedule = tuple[Program, ...]  # one program for each rank


def gpipe(ranks: int, microbatches: int) -> Schedule:
    """All forward passes, then all backward passes (Huang et al., 2019, arXiv:1811.06965).

    Holds the activations of all microbatches at once.
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

    Takes as long as gpipe(), but rank r holds the activations of at most `ranks` - r microbatches.
    """
    return interleaved(ranks, microbatches, 1)


def interleaved(ranks: int, microbatches: int, chunks: int) -> Schedule:
    """1F1B with `chunks` stages on each rank (Narayanan et al., 2021, arXiv:2104.04473).

    The bubble is shorter by a factor of `chunks`; the number of messages grows by the same factor.
    Any number of microbatches is possible; a multiple of `ranks` is best.
    """
    rounds = -(-microbatches // ranks)
    return tuple(
        tuple(
            # Whole microbatches can be omitted: operations of different ones are independent.
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
    """Return `ahead` forward operations, then one of each in turn, then the rest."""
    program = forward[:ahead]
    for index, operation in enumerate(backward):
        program += forward[ahead + index : ahead + index + 1]
        program.append(operation)
    return tuple(program)


def zero_bubble(ranks: int, microbatches: int) -> Schedule:
    """ZB-H1 (Qi et al., 2024, arXiv:2401.10241): gradients of weights fill the bubble.

    The gradient of the input, for which the preceding rank waits, is computed at once; those of the
    weights are computed when nothing else is urgent. No rank holds more activations than the first
    one in 1F1B. If all three parts take equally long, the bubble is a third of that in 1F1B.
    """

    def program(rank: int) -> Program:
        ahead = ranks - rank - 1
        operations = [Operation(Action.FORWARD, rank, i) for i in range(min(ahead, microbatches))]
        for i in range(microbatches + rank):  # rank: number of weight gradients that wait
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
    """Return the schedule with a name.

    Args:
        name: "gpipe", "1f1b", "interleaved" or "zb-h1".
        ranks: the number of ranks of the pipeline.
        microbatches: the number of microbatches of a step.
        chunks: the number of stages on each rank; more than one only for "interleaved".

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
