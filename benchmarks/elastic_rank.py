"""A rank that trains in an elastic job and records events, for benchmarks/elastic.py.

    elastic_rank.py FOLDER [--megabytes 36]

It records the phases of a recovery by name, and the first steps of each view.
"""

from __future__ import annotations

from typing import Any

import torch
from elastic_steps import Training

import horoscale.torch as hvd
from horoscale.elastic import membership as memberships

training = Training()


def note(event: str, **what: object) -> None:
    view = memberships.membership().view
    training.note(event, 0 if view is None else view.number, **what)


class NotedState(hvd.elastic.TorchState):
    """Records when the state is restored from the commit, and when it has been sent."""

    def _go_back(self, number: int) -> None:
        super()._go_back(number)
        note("restored")

    def sync(self) -> None:
        super().sync()
        note("synchronized")


def note_membership() -> None:
    """Record when this rank has left, has received a view, and has met the others."""
    member = memberships.membership()
    leave, next_view, enter = memberships._leave, member.next_view, member.enter

    def noted_leave(error: Exception | None) -> Exception | None:
        note("met", failed=error is not None)
        error = leave(error)
        note("left")
        return error

    def noted_next_view(*given: Any, **named: Any) -> Any:
        view = next_view(*given, **named)
        note("given")
        return view

    def noted_enter(view: Any) -> None:
        enter(view)
        note("entered")

    memberships._leave = noted_leave
    member.next_view, member.enter = noted_next_view, noted_enter  # type: ignore[method-assign]


hvd.init()
optimizer = hvd.DistributedOptimizer(
    training.optimizer, named_parameters=training.model.named_parameters()
)
state = NotedState(training.model, optimizer, step=0)
note_membership()


@hvd.elastic.run
def train(state: NotedState) -> None:
    def after_step(made: int) -> None:
        if made in (1, 5):
            note("step", made=made, size=hvd.size(), rank=hvd.rank(), step=state.step)
        state.step += 1
        state.commit()

    def any_of(finished: torch.Tensor) -> torch.Tensor:
        return hvd.allreduce(finished, op=hvd.Max)

    training.steps(training.model, optimizer, after_step, any_of)


train(state)
