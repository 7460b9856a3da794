"""Execution: runs one rank's operations of a step on its stages and links."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import torch

from horoscale._core import HorovodInternalError
from horoscale.torch.parallel.mesh import Axis
from horoscale.torch.parallel.pipeline.agreement import Agreed
from horoscale.torch.parallel.pipeline.frames import Tensors
from horoscale.torch.parallel.pipeline.links import Link, Loop, Parcel, Remote
from horoscale.torch.parallel.pipeline.schedule import Action, Operation
from horoscale.torch.parallel.pipeline.stage import Stage

Outputs: TypeAlias = tuple[torch.Tensor, ...]
_AHEAD = 2  # operations whose inputs may be received while another one runs

# Returns the first stage's input for a microbatch, or None if the microbatch has no rows.
Source: TypeAlias = Callable[[int], "Parcel | None"]
# Takes the last stage's outputs for a microbatch and returns the loss.
Sink: TypeAlias = Callable[[int, Outputs], torch.Tensor]


class Wiring:
    """The links of one rank."""

    def __init__(self, axis: Axis, stages: int, microbatches: int, agreed: Agreed) -> None:
        """Link this rank's stages to their neighbors, and all ranks to that of the last stage."""
        self._axis = axis
        self._hosts = agreed.hosts
        first_tag = agreed.first_tag
        self.forward: dict[int, Link] = {}  # by sending stage
        self.backward: dict[int, Link] = {}  # by the stage whose outputs' gradients are sent
        for stage in range(stages - 1):
            ends = (stage % axis.size, (stage + 1) % axis.size)
            if axis.rank in ends:
                other = ends[0] if ends[1] == axis.rank else ends[1]
                tag = first_tag + 2 * stage
                self.forward[stage] = self._link(other, tag, microbatches)
                self.backward[stage] = self._link(other, tag + 1, microbatches)
        last = (stages - 1) % axis.size
        others = range(axis.size) if last == axis.rank else [last]
        tag = first_tag + 2 * stages
        self.results = [self._link(other, tag) for other in others if other != axis.rank]
        self._ties: list[Link] = []

    def tie(self, position: int, tag: int) -> Link:
        """Link this rank to another one with a copy of a tied parameter."""
        self._ties.append(self._link(position, tag))
        return self._ties[-1]

    def _link(self, position: int, tag: int, each_step: int = 1) -> Link:
        """Create this rank's end of a link with `each_step` transfers in each step."""
        if position == self._axis.rank or self._axis.set is None:
            return Loop()
        near = self._hosts[position] == self._hosts[self._axis.rank]
        return Remote(self._axis.ranks[position], tag, self._axis.set, near, each_step)

    def fail(self, reason: str) -> None:
        """Make all ranks that wait for this one raise PipelineError."""
        links = (*self.forward.values(), *self.backward.values(), *self.results, *self._ties)
        for link in links:
            with suppress(HorovodInternalError):  # a rank that has left needs no reason
                link.fail(reason)


class Execution:
    """Runs operations on the stages of this rank."""

    def __init__(self, stages: Mapping[int, Stage], last: int, wiring: Wiring) -> None:
        """`stages` are this rank's by number; `last` is the number of the pipeline's last stage."""
        self._stages = stages
        self._last = last
        self._wiring = wiring
        self._run = {
            Action.FORWARD: self._forward,
            Action.BACKWARD: self._backward,
            Action.INPUT: self._backward_inputs,
            Action.WEIGHT: self._backward_weights,
        }
        self._source: Source = lambda _: None
        self._sink: Sink | None = None

    def run(self, program: Sequence[Operation], source: Source, sink: Sink) -> None:
        """Run the operations in order. Each waits for its inputs from other ranks."""
        self._source, self._sink = source, sink
        for stage in self._stages.values():
            stage.begin_step()
        try:
            for position, operation in enumerate(program):
                self._prepare(program[position + 1 : position + 1 + _AHEAD])
                self._run[operation.action](self._stages[operation.stage], operation.microbatch)
        finally:
            self._source, self._sink = lambda _: None, None

    def _prepare(self, operations: Sequence[Operation]) -> None:
        """Start to receive the inputs of the next operations."""
        for action, number, _ in operations:
            if action is Action.FORWARD and number:
                self._wiring.forward[number - 1].prepare()
            elif action in (Action.BACKWARD, Action.INPUT) and number != self._last:
                self._wiring.backward[number].prepare()

    def _forward(self, stage: Stage, microbatch: int) -> None:
        number = stage.number
        parcel = self._wiring.forward[number - 1].receive() if number else self._source(microbatch)
        if number == self._last:
            if parcel is not None:
                stage.forward(microbatch, parcel, self._finish(microbatch))
        elif parcel is None:
            self._wiring.forward[number].skip()
        else:
            outputs = stage.forward(microbatch, parcel)
            wanted = [one.requires_grad for one in outputs]
            self._wiring.forward[number].send(outputs, wanted)
        if parcel is not None and not torch.is_grad_enabled():
            parcel.release()

    def _finish(self, microbatch: int) -> Callable[[Outputs], torch.Tensor]:
        sink = self._sink
        assert sink is not None
        return lambda outputs: sink(microbatch, outputs)

    def _backward(self, stage: Stage, microbatch: int) -> None:
        self._return(stage, microbatch, stage.backward)
        stage.release(microbatch)

    def _backward_inputs(self, stage: Stage, microbatch: int) -> None:
        self._return(stage, microbatch, stage.backward_inputs)

    def _backward_weights(self, stage: Stage, microbatch: int) -> None:
        stage.backward_weights(microbatch)
        stage.release(microbatch)

    def _return(
        self, stage: Stage, microbatch: int, backward: Callable[[int, Parcel], Tensors]
    ) -> None:
        """Run a backward pass with the gradients from the next stage, if there is one."""
        parcel: Parcel | None = Parcel(())
        if stage.number != self._last:
            parcel = self._wiring.backward[stage.number].receive()
        assert parcel is not None  # microbatches are skipped only in evaluations
        gradients = backward(microbatch, parcel)
        if stage.number:
            wanted = [False] * len(gradients)
            self._wiring.backward[stage.number - 1].send(gradients, wanted)
