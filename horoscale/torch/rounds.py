"""Rounds of gradients_ready="backward", with which backward() returns averages.

A rank can wait for its gradients at the end of a backward pass only if all ranks have started all
of them. A gradient that a rank did not compute in this pass starts in that rank's step(), possibly
after another operation that needs the other ranks. The ranks therefore agree first. A round lasts
from the first gradient after a reduction to the next reduction. In each round every rank reports
once whether a gradient is missing: at the end of the first backward pass that starts a gradient, or
else in synchronize() or step(). If none is missing on any rank, all ranks wait for all gradients.
Otherwise none waits, and step() does, as with gradients_ready="step".

Agreements of different rounds must not match each other, for example if one rank runs an additional
backward pass before its step. Each rank takes part in at least one agreement per step and waits for
it, so two ranks are at most one step apart. Different names for even and odd steps are therefore
sufficient. Unlike unique names, they also stay in the response cache. Gradients need no such names,
because a gradient is not used before the agreement of its round. The agreement includes the full
step and round numbers, in case a rank runs steps without any agreement, within skip_synchronize().
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch.autograd import Variable

from horoscale._core import ReduceOp
from horoscale.common import job
from horoscale.common.exceptions import MismatchError
from horoscale.common.process_sets import ProcessSet
from horoscale.torch import collectives
from horoscale.torch.batching import batch
from horoscale.torch.collectives import Call, Reduction
from horoscale.torch.compiling import outside_graph
from horoscale.torch.handles import Handle
from horoscale.torch.names import unique_name

OPTION = "gradients_ready=backward"  # in operation names, which stall reports show
_URGENT = 1 << 30  # above all gradients' priorities


class Gradients(Protocol):
    """The rounds' interface to the gradients of an optimizer."""

    def all_started(self) -> bool:
        """Return whether each gradient is in flight or reduced."""

    def all_reduced(self) -> bool:
        """Return whether step() has nothing left to reduce."""

    def finish(self) -> None:
        """Wait for all reductions."""

    def stay_behind(self) -> None:
        """Record that a backward pass ends without averages."""


class Rounds:
    """The rounds of one optimizer."""

    def __init__(self, gradients: Gradients, process_set: ProcessSet) -> None:
        """Start with the first round of the first step."""
        self._gradients = weakref.ref(gradients)
        self._process_set = process_set
        self._pass = -1  # autograd's id of the backward pass that ends with a report
        self._age = next(_ages)
        self._retired = False
        self.rename()
        self.restart()
        _all.add(self)

    def rename(self) -> None:
        """Take the next free name. In a new job this is the first one, as on a new rank."""
        self._name = unique_name(OPTION, self._process_set)

    def retire(self) -> None:
        """Take no name in the next job, whose new ranks will not have this optimizer."""
        self._retired = True

    def restart(self) -> None:
        """Restart the count of steps, as all ranks do in a new job and after join()."""
        self._step = 0
        self._number = 0  # of the round in this step
        self._told = False  # this rank has reported in this round

    def end(self) -> None:
        """Record that all gradients are reduced or that their reduction failed."""
        self._told = False

    def end_step(self) -> None:
        """Record the optimizer's step."""
        self._step += 1
        self._number = 0
        self._told = False

    def begin(self) -> None:
        """Schedule a report at the end of the current backward pass."""
        this_pass = torch._C._current_graph_task_id()
        if not self._told and self._pass != this_pass:
            self._pass = this_pass
            Variable._execution_engine.queue_callback(functools.partial(_end_of_pass, this_pass))

    def settle(self) -> None:
        """Report, unless a backward pass has, so that ranks that wait in theirs can proceed."""
        gradients = self._gradients()
        if not self._told and gradients is not None and not gradients.all_reduced():
            self.ask(self.tell())

    def tell(self) -> Handle:
        """Report whether a gradient is missing on this rank."""
        gradients = self._gradients()
        assert gradients is not None
        self._told = True
        self._number += 1
        state = [int(not gradients.all_started())]
        for number in (self._step, self._number):
            state += [number, -number]  # if equal on all ranks, their maxima add up to 0
        call = Call(f"{self._name}.{self._step % 2}", self._process_set, True, _URGENT)
        return collectives.allreduce([torch.tensor(state)], Reduction(ReduceOp.MAX), call)

    def ask(self, handle: Handle) -> bool:
        """Return whether all ranks can wait for all gradients now.

        Raises MismatchError if the ranks are not in the same round.
        """
        [agreed] = handle.wait()
        incomplete, step, minus_step, number, minus_number = agreed.tolist()
        if step + minus_step or number + minus_number:
            raise MismatchError(
                f"{self._name}: the ranks have run different numbers of backward passes or of "
                f"steps. This rank is in round {self._number} of step {self._step}, others are in "
                f"round {number} or {-minus_number} of step {step} or {-minus_step}"
            )
        return not incomplete

    def finish(self, handle: Handle) -> None:
        """Wait for all gradients at the end of a backward pass, if all ranks can."""
        gradients = self._gradients()
        assert gradients is not None
        if self.ask(handle):
            gradients.finish()
        else:
            gradients.stay_behind()

    @classmethod
    def ending(cls, backward_pass: int) -> list[Rounds]:
        """Return the rounds that report at the end of this backward pass."""
        found = [one for one in list(_all) if one._pass == backward_pass]
        return [one for one in found if one._gradients() is not None]


@torch.no_grad()
@outside_graph
def _end_of_pass(backward_pass: int) -> None:
    due = Rounds.ending(backward_pass)
    for rounds in due:
        rounds._pass = -1
    outer = torch._C._current_autograd_node()
    if outer is not None:
        _when_it_goes_on(outer, due)
        return
    batch.start()
    # Report for all before waiting for any: other ranks may have a different order.
    told = [(rounds, rounds.tell()) for rounds in due]
    failure = None
    for rounds, handle in told:
        try:
            rounds.finish(handle)
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure


def _when_it_goes_on(node: Any, due: Sequence[Rounds]) -> None:
    """Report at the end of the backward pass that evaluates `node`.

    A re-entrant checkpoint, which runs a backward pass inside another, then counts as part of the
    outer one. A callback for the outer pass can only be registered while that pass evaluates a
    node, so this happens at its next node. If there is none, step() reports.
    """
    following: Sequence[Any] = [one for one, _ in node.next_functions if one is not None]
    hooks: list[Any] = []

    def go_on(_: Any) -> None:
        if hooks:
            hooks.pop().remove()
            for rounds in due:
                rounds.begin()

    if following:
        hooks.append(following[0].register_prehook(go_on))


def _restart_all() -> None:
    for rounds in list(_all):
        rounds.restart()


def _rename_all() -> None:
    for rounds in sorted(_all, key=lambda one: one._age):
        if not rounds._retired:
            rounds.rename()


_all: weakref.WeakSet[Rounds] = weakref.WeakSet()
_ages = itertools.count()
job.at_join(_restart_all)
job.at_end(_restart_all)
job.at_end(_rename_all)
