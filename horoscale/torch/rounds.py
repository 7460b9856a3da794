"""Rounds: gradients_ready="backward", with which backward() returns averages.

A rank may wait for its gradients at the end of a backward pass only if all ranks have started all
of them: one that a rank has no use for in this pass starts in that rank's step(), which may come
after something else that needs the others. So the ranks agree. A round is what happens from the
first gradient after a reduction to the next reduction. In each one every rank tells once whether
something is incomplete: at the end of the backward pass that has started a gradient, else in
synchronize() or step(). If nothing is incomplete on any rank, all wait for all gradients; otherwise
nobody does, and step() waits, as with gradients_ready="step".

Ranks whose rounds differ, because one has done a backward pass more before its step, must not
meet. Each takes part in at least one agreement for each step, and waits for it, so that two ranks
are never more than one step apart: names that tell even steps from odd ones keep them apart, and
stay in the response cache, as names that are always new would not. Only the agreements need it,
because nobody looks at a gradient before the agreement of its round. The full numbers go along, for
the case that a rank does steps without any agreement, within skip_synchronize().
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

OPTION = "gradients_ready=backward"  # in the names of operations, which stall reports show
_URGENT = 1 << 30  # a priority above all gradients'


class Gradients(Protocol):
    """The gradients of an optimizer, as its rounds know them."""

    def all_started(self) -> bool:
        """Return whether each is in flight or reduced."""

    def all_reduced(self) -> bool:
        """Return whether nothing is left to do for step()."""

    def finish(self) -> None:
        """Wait for the reductions of all."""

    def stay_behind(self) -> None:
        """Take note that a backward pass ends without averages."""


class Rounds:
    """The rounds of one optimizer."""

    def __init__(self, gradients: Gradients, process_set: ProcessSet) -> None:
        """Begin with the first step's first round."""
        self._gradients = weakref.ref(gradients)
        self._process_set = process_set
        self._pass = -1  # autograd's number of the backward pass at whose end to tell the others
        self._age = next(_ages)
        self.rename()
        self.restart()
        _all.add(self)

    def rename(self) -> None:
        """Take the next free name: in a new job the first one, as on a rank that begins there."""
        self._name = unique_name(OPTION, self._process_set)

    def restart(self) -> None:
        """Count steps anew, as all ranks do: in a new job, and where they have joined."""
        self._step = 0
        self._number = 0  # of the round, in this step
        self._told = False  # the others, in this round

    def end(self) -> None:
        """Take note that all gradients are reduced, or that this failed."""
        self._told = False

    def end_step(self) -> None:
        """Take note of the optimizer's step."""
        self._step += 1
        self._number = 0
        self._told = False

    def begin(self) -> None:
        """Have the others told at the end of the backward pass that is running."""
        this_pass = torch._C._current_graph_task_id()
        if not self._told and self._pass != this_pass:
            self._pass = this_pass
            Variable._execution_engine.queue_callback(functools.partial(_end_of_pass, this_pass))

    def settle(self) -> None:
        """Tell the others, if no backward pass has; whoever waits in one learns what to do."""
        gradients = self._gradients()
        if not self._told and gradients is not None and not gradients.all_reduced():
            self.ask(self.tell())

    def tell(self) -> Handle:
        """Tell the others whether something is incomplete on this rank."""
        gradients = self._gradients()
        assert gradients is not None
        self._told = True
        self._number += 1
        state = [int(not gradients.all_started())]
        for number in (self._step, self._number):
            state += [number, -number]  # whose maxima are opposites if all ranks have the same
        call = Call(f"{self._name}.{self._step % 2}", self._process_set, True, _URGENT)
        return collectives.allreduce([torch.tensor(state)], Reduction(ReduceOp.MAX), call)

    def ask(self, handle: Handle) -> bool:
        """Learn whether all gradients can be waited for now.

        Raises MismatchError if the ranks are not in the same round.
        """
        [agreed] = handle.wait()
        incomplete, step, minus_step, number, minus_number = agreed.tolist()
        if step + minus_step or number + minus_number:
            raise MismatchError(
                f"{self._name}: the ranks have done different numbers of backward passes or of "
                f"steps: here this is round {self._number} of step {self._step}, elsewhere round "
                f"{number} or {-minus_number} of step {step} or {-minus_step}"
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
        """Return those that are to tell the others at the end of this backward pass."""
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
    # All are told before any is waited for: other ranks may have another order.
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
    """Have the others told at the end of the backward pass that evaluates `node`.

    That is how re-entrant checkpoints, which run a backward pass within another, count as the outer
    one. Its end can only be waited for from within itself, which is when it evaluates the next
    node. Where there is none, step() tells the others.
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
        rounds.rename()


_all: weakref.WeakSet[Rounds] = weakref.WeakSet()
_ages = itertools.count()
job.at_join(_restart_all)
job.at_end(_restart_all)
job.at_end(_rename_all)
