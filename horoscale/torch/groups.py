"""GradientGroup: gradients that are reduced in one operation, all or none. Usually it has only one.

A group belongs to its parameters. Optimizers that share parameters share their groups, so that no
gradient is reduced twice.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Sequence
from enum import Enum, auto
from typing import Any, Protocol

import torch
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from horoscale._core import Encoding, OpKind, ReduceOp, Request, Signature
from horoscale._core import Handle as Operation
from horoscale.common import job
from horoscale.common.arguments import set_id
from horoscale.common.exceptions import MismatchError
from horoscale.torch import collectives
from horoscale.torch.batching import batch
from horoscale.torch.collectives import Call, Tensors
from horoscale.torch.compiling import outside_graph
from horoscale.torch.gradients import Gradient, Settings
from horoscale.torch.group_errors import on_formats, reduced_again, too_many_passes
from horoscale.torch.handles import Handle
from horoscale.torch.low_rank import states
from horoscale.torch.sparse import sparse_allreduce_async
from horoscale.torch.tensors import data_type, in_memory_order


class State(Enum):
    """The state of a group between a backward pass and a step."""

    EMPTY = auto()  # no gradient has arrived since the last step
    PARTIAL = auto()  # gradients have arrived, but the reduction has not started
    IN_FLIGHT = auto()  # the reduction has started, and was not waited for yet
    REDUCED = auto()  # `.grad` is the result, which no step has used yet


class Owner(Protocol):
    """A group's interface to a reducer."""

    paused: bool  # backward passes are not counted
    overlaps: bool  # overlap_step
    ready_in_backward: bool  # gradients_ready="backward"
    added_to: str | None  # the name of a reduced gradient that the last backward pass has added to

    def look(self) -> None:
        """Set `added_to` before a backward pass changes a reduced gradient."""

    def begin_again(self) -> None:
        """Record a backward pass after the reduction: reduced groups must be reduced again."""

    def complete(self) -> None:
        """Record that a group has had its backward passes."""


class GradientGroup:
    """Gradients that are reduced in one operation, once each has had its backward passes."""

    def __init__(
        self, name: str, gradients: Sequence[Gradient], passes: int, settings: Settings
    ) -> None:
        """Hook the parameters of `gradients`; their reduction starts after `passes` passes."""
        self.name = name
        self.gradients = list(gradients)
        self.passes = passes
        self.settings = settings
        self.reduction = settings.reduction._replace(encoding=self._encoding())
        parameters = [gradient.parameter for gradient in self.gradients]
        self.low_rank = dict(zip(parameters, states(settings.compression, parameters), strict=True))
        self.scale = 1.0  # factor of this rank's gradients
        self.state = State.EMPTY
        self._owners: list[weakref.ref[Owner]] = []
        self._used_by: set[int] = set()  # ids of owners whose step has used the result
        self._arrived = 0  # gradients that have had their passes
        self._in_place = all(gradient.has_place for gradient in self.gradients)
        self._nbytes = sum(gradient.parameter.nbytes for gradient in self.gradients)
        self._request: tuple[Hashable, Request] | None = None  # the last request in place
        # The final value of _arrived; parameters may be frozen later.
        self._expected = len(self.gradients)
        self._taken: list[Gradient] = []  # whose values are in flight
        # What is in flight, and how each operation is waited for.
        self._in_flight: list[tuple[Handle | Operation, Callable[[], None]]] = []
        self._watched = False  # before backward passes, too
        weak_self = weakref.ref(self)
        self._hooks: list[RemovableHandle] = []
        for gradient in self.gradients:
            hook = _hook(weak_self, gradient)
            register: Any = gradient.parameter.register_post_accumulate_grad_hook
            self._hooks.append(register(hook))
            _by_parameter[gradient.parameter] = weak_self
        _all.add(self)
        weakref.finalize(self, _remove, self._hooks)

    def _encoding(self) -> Encoding:
        """Return the common encoding of all gradients; no encoding if they differ."""
        of = self.settings.selection.of
        encodings = {
            of(one.name, one.parameter, one.parameter.numel(), one.parameter.dim())
            for one in self.gradients
        }
        return encodings.pop() if len(encodings) == 1 else Encoding.NONE

    def add_owner(self, owner: Owner) -> None:
        """Let another optimizer use the group."""
        self._owners.append(weakref.ref(owner))
        # Only such owners need to know what a backward pass adds to, and hooks cost time.
        asks = owner.ready_in_backward or self.settings.reduction.op is not ReduceOp.AVERAGE
        if asks and not self._watched:
            self._watch()

    @property
    def shared(self) -> bool:
        """Whether several optimizers use it."""
        return len(self._living_owners()) > 1

    @property
    def active(self) -> bool:
        """Whether there is anything to reduce: not all parameters are frozen."""
        return any(g.passes or g.parameter.requires_grad for g in self.gradients)

    @property
    def in_flight(self) -> bool:
        """Whether the reduction was started, but not waited for."""
        return self.state is State.IN_FLIGHT

    @property
    def pending(self) -> bool:
        """Whether gradients have arrived that are not reduced yet."""
        return self.state in (State.PARTIAL, State.IN_FLIGHT)

    def done(self) -> bool:
        """Return whether finish() would return or raise without waiting."""
        return all(handle.done() for handle, _ in self._in_flight)

    def serves(self, owner: Owner) -> bool:
        """Return whether the gradients are reduced and this optimizer's step has not used them."""
        return self.state is State.REDUCED and id(owner) not in self._used_by

    def use(self, owner: Owner) -> None:
        """Record a step. The result is kept for the other optimizers of a shared group."""
        if self.state is not State.REDUCED:
            return
        self._used_by.add(id(owner))
        if len(self._owners) == 1 or all(id(one) in self._used_by for one in self._living_owners()):
            self.clear()

    def clear(self) -> None:
        """Reset the backward passes and their result."""
        if self.state is not State.REDUCED:
            self._reset_passes()
        self.state = State.EMPTY
        self._used_by.clear()
        for gradient in self.gradients:
            gradient.release()

    def drop(self) -> None:
        """Reset the group, including reductions in flight, because their job has ended."""
        self._in_flight = []
        self.clear()

    def arrive(self, gradient: Gradient) -> None:
        """Record a gradient's backward pass; start the reduction when all have arrived.

        Raises AssertionError after more passes than announced.
        """
        if not self.settings.takes_part():
            return
        owners = self._living_owners()
        if self.state is State.REDUCED:
            self._begin_again(owners)
        paused = any(owner.paused for owner in owners)
        if self.in_flight or (gradient.passes == self.passes and not paused):
            raise AssertionError(
                too_many_passes(
                    gradient.name,
                    self.passes,
                    any(owner.ready_in_backward for owner in owners),
                    any(owner.overlaps for owner in owners),
                )
            )
        if paused:
            return
        self.state = State.PARTIAL
        gradient.passes += 1
        if gradient.arrival is None:
            gradient.arrival = next(_arrivals)
        self._arrived += gradient.passes == self.passes
        if self._arrived >= self._expected and all(map(self._has_passed, self.gradients)):
            for owner in owners:
                owner.complete()
            with torch.no_grad():
                if self._in_place:
                    batch.add(self, self._nbytes)
                else:
                    self.start()

    def look(self) -> None:
        """Notify owners before a backward pass changes a reduced gradient."""
        if self.state is State.REDUCED:
            for owner in self._living_owners():
                owner.look()

    def kept(self) -> str | None:
        """Return the name of a gradient that still has a reduced value, which no step has used.

        Values that the user has assigned count as reduced.
        """
        if self.state is not State.REDUCED or self._used_by:
            return None
        for gradient in self.gradients:
            if gradient.parameter.requires_grad and gradient.has_values():
                return gradient.name
        return None

    def forget_arrivals(self) -> None:
        """Determine the order of arrival again in the next backward pass."""
        for gradient in self.gradients:
            gradient.arrival = None

    def start(self, wake: bool = False) -> None:
        """Start the reduction of the active gradients, which are the same on all ranks.

        Without `wake`, a reduction in shared memory begins with the next operation or the next
        wait. Call this with autograd disabled. A parameter that was not used on this rank may have
        been used on another, so its gradient is zeros.

        The first operation always has the group's name. If a gradient is sparse on some ranks and
        dense on others, they therefore meet in this operation, and all raise MismatchError.
        """
        active = [g for g in self.gradients if g.passes or g.parameter.requires_grad]
        if not active:  # frozen
            return
        priority = max(gradient.priority for gradient in active)
        sparse_as_dense = self.settings.sparse_as_dense
        values = [gradient.take(sparse_as_dense, self.scale) for gradient in active]
        self._taken = active
        try:
            if all(map(Gradient.can_move, active, values)):
                self._start_in_shared_memory(active, values, priority, wake)
            else:
                self._start_elsewhere(active, values, priority)
        finally:
            if self._in_flight:
                self.state = State.IN_FLIGHT

    def changed(self) -> Gradient | None:
        """Return a gradient that was changed since the reduction started, if one was."""
        if not self.in_flight:
            return None
        return next(filter(Gradient.changed, self._taken), None)

    def finish(self) -> None:
        """Wait for the reduction. The group is ready for the next step, even after an error.

        Call this with autograd disabled.
        """
        waits, self._in_flight = self._in_flight, []
        if not waits:
            self.clear()
            return
        try:
            self._wait_for([wait for _, wait in waits])
        except BaseException:
            self.clear()
            raise
        self._reset_passes()
        self._used_by.clear()
        self.state = State.REDUCED

    @staticmethod
    def _wait_for(waits: Sequence[Callable[[], None]]) -> None:
        failure = None
        for wait in waits:
            try:
                wait()
            except MismatchError as error:  # the other operations may exist only on this rank
                raise MismatchError(f"{error}{on_formats(str(error))}") from error
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _reset_passes(self) -> None:
        self._arrived = 0
        self._expected = sum(gradient.parameter.requires_grad for gradient in self.gradients)
        for gradient in self.gradients:
            gradient.passes = 0

    def _living_owners(self) -> list[Owner]:
        return [owner for reference in self._owners if (owner := reference()) is not None]

    def _has_passed(self, gradient: Gradient) -> bool:
        return gradient.passes == self.passes or not gradient.parameter.requires_grad

    def _watch(self) -> None:
        self._watched = True
        hook = _earlier_hook(weakref.ref(self))
        for gradient in self.gradients:
            register: Any = gradient.parameter.register_hook
            self._hooks.append(register(hook))

    def _begin_again(self, owners: Sequence[Owner]) -> None:
        added_to = next((owner.added_to for owner in owners if owner.added_to is not None), None)
        if added_to is not None and self.settings.reduction.op is not ReduceOp.AVERAGE:
            raise AssertionError(reduced_again(added_to, self.passes))
        for owner in owners:
            owner.begin_again()

    def _start_in_shared_memory(
        self, gradients: Sequence[Gradient], values: Tensors, priority: int, wake: bool
    ) -> None:
        """Reduce gradients into their places. This is the hot path of every step."""
        places = [gradient.place for gradient in gradients]
        which = tuple(map(id, gradients))
        key = set_id(self.settings.process_set), self.reduction, priority, which
        if self._request is None or self._request[0] != key:
            self._request = key, Request(self._signature(values, priority))
        request = self._request[1]
        for index, (value, place) in enumerate(zip(values, places, strict=True)):
            request.place(index, value.data_ptr(), place.data_ptr())
        # Others write to the places, even if this rank's optimizer no longer exists.
        handle = job.current_runtime().start(request, keep_alive=(values, places), wake=wake)
        sparse = self.settings.sparse_results

        def wait() -> None:
            handle.wait()
            for gradient, place in zip(gradients, places, strict=True):
                gradient.deliver(place, sparse)

        self._in_flight.append((handle, wait))

    def _signature(self, values: Tensors, priority: int) -> Signature:
        reduction = self.reduction
        reduction.check(values)
        return Signature(
            OpKind.ALLREDUCE,
            tuple([(data_type(one.dtype), tuple(in_memory_order(one).shape)) for one in values]),
            self.name,
            set_id(self.settings.process_set),
            reduction.op,
            reduction.prescale,
            reduction.postscale,
            priority=priority,
            encoding=reduction.encoding,
        )

    def _start_elsewhere(
        self, gradients: Sequence[Gradient], values: Tensors, priority: int
    ) -> None:
        pairs = list(zip(gradients, values, strict=True))
        dense = [
            (gradient, gradient.apart(value)) for gradient, value in pairs if not value.is_sparse
        ]
        if any(self.low_rank[gradient.parameter] for gradient, _ in dense):
            self._start_low_rank(dense, priority)
        elif dense:
            self._start_dense(dense, priority)
        for gradient, value in pairs:
            if value.is_sparse:
                first = not self._in_flight
                name = self.name if first else f"{self.name}.{gradient.name}.sparse"
                self._start_sparse(name, gradient, value, priority)

    def _start_dense(self, pairs: Sequence[tuple[Gradient, torch.Tensor]], priority: int) -> None:
        compression = self.settings.compression
        in_order = [in_memory_order(value) for _, value in pairs]
        sent, contexts = zip(*map(compression.compress, in_order), strict=True)
        call = Call(self.name, self.settings.process_set, priority=priority)
        handle = collectives.allreduce(sent, self.reduction, call, in_place=True)
        sparse = self.settings.sparse_results

        def wait() -> None:
            for value, result, context in zip(in_order, handle.wait(), contexts, strict=True):
                restored = compression.decompress(result, context)
                if restored.data_ptr() != value.data_ptr():
                    value.copy_(restored)
            for gradient, value in pairs:
                gradient.deliver(value, sparse)

        self._in_flight.append((handle, wait))

    def _start_low_rank(
        self, pairs: Sequence[tuple[Gradient, torch.Tensor]], priority: int
    ) -> None:
        """Reduce approximations: one factor now, the other in the wait.

        All ranks wait for their groups in the same order.
        """
        values = [value for _, value in pairs]
        approximations = [self.low_rank[gradient.parameter] for gradient, _ in pairs]
        sent = [
            value if one is None else one.p_of(value)
            for one, value in zip(approximations, values, strict=True)
        ]
        call = Call(self.name, self.settings.process_set, priority=priority)
        handle = collectives.allreduce(
            [in_memory_order(one) for one in sent], self.reduction, call, in_place=True
        )

        def wait() -> None:
            handle.wait()
            low = [
                (one, value, one.q_of(p))
                for one, value, p in zip(approximations, values, sent, strict=True)
                if one is not None
            ]
            call = Call(f"{self.name}.q", self.settings.process_set, True, priority)
            collectives.allreduce([q for *_, q in low], self.reduction, call, in_place=True).wait()
            for one, value, q in low:
                value.copy_(one.approximation(q).reshape(value.shape))
            for gradient, value in pairs:
                gradient.deliver(value, self.settings.sparse_results)

        self._in_flight.append((handle, wait))

    def _start_sparse(
        self, name: str, gradient: Gradient, value: torch.Tensor, priority: int
    ) -> None:
        settings = self.settings
        handle = sparse_allreduce_async(
            value, name, settings.reduction.op, settings.process_set, priority
        )
        self._in_flight.append((handle, lambda: gradient.deliver(handle.wait())))


_arrivals = itertools.count()
_by_parameter: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # weak references to groups
_all: weakref.WeakSet[GradientGroup] = weakref.WeakSet()


def _drop_all() -> None:
    for group in list(_all):
        group.drop()


job.at_end(_drop_all)


def existing_group(
    parameters: Sequence[torch.Tensor], passes: int, settings: Settings
) -> GradientGroup | None:
    """Return the group that another optimizer created for exactly these parameters.

    Raises ValueError if one of them belongs to a different group or has different options.
    """
    found = {id(group): group for p in parameters if (group := _living_group(p))}
    if not found:
        return None
    [group, *others] = found.values()
    same_parameters = {id(g.parameter) for g in group.gradients} == {id(p) for p in parameters}
    if others or not same_parameters or (group.passes, group.settings) != (passes, settings):
        raise ValueError(
            f"the gradient of {group.gradients[0].name} belongs to another DistributedOptimizer "
            "with different options or groups: give optimizers that share parameters the same "
            "ones, and delete an optimizer that is no longer used"
        )
    return group


def _living_group(parameter: torch.Tensor) -> GradientGroup | None:
    if parameter not in _by_parameter:
        return None
    group: GradientGroup | None = _by_parameter[parameter]()
    return group


def _remove(hooks: Sequence[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def _hook(
    weak_group: weakref.ref[GradientGroup], gradient: Gradient
) -> Callable[[torch.Tensor], None]:
    @outside_graph
    def hook(_: torch.Tensor) -> None:
        group = weak_group()
        if group is not None:
            group.arrive(gradient)

    return hook


def _earlier_hook(weak_group: weakref.ref[GradientGroup]) -> Callable[[torch.Tensor], None]:
    """Return a hook that runs when a gradient is computed, but not yet added to `.grad`."""

    @outside_graph
    def hook(_: torch.Tensor) -> None:
        group = weak_group()
        if group is not None:
            group.look()

    return hook
