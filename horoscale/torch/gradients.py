"""The way of gradients from autograd, through an allreduce, to the optimizer.

A GradientGroup is what is reduced in one operation: all its gradients or none; usually it is a
group of one. It belongs to its parameters: optimizers that share parameters share their groups, so
that no gradient is reduced twice.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch.autograd import Variable
from torch.utils.hooks import RemovableHandle
from torch.utils.weak import WeakTensorKeyDictionary

from horoscale._core import Handle as Operation
from horoscale._core import OpKind, Request, Signature
from horoscale.common import job
from horoscale.common.arguments import set_id
from horoscale.common.exceptions import MismatchError
from horoscale.common.process_sets import ProcessSet, at_removal
from horoscale.torch import buckets, collectives
from horoscale.torch.collectives import Call, Reduction, Tensors
from horoscale.torch.compression import Compressor
from horoscale.torch.handles import Handle
from horoscale.torch.priorities import priority_of
from horoscale.torch.sparse import sparse_allreduce_async
from horoscale.torch.tensors import data_type


@dataclass(frozen=True)
class Settings:
    """What a DistributedOptimizer does with each of its gradients."""

    reduction: Reduction
    compression: type[Compressor]  # what of it is done in Python
    process_set: ProcessSet
    sparse_as_dense: bool

    def takes_part(self) -> bool:
        """Tell whether this rank is one of those that train together; ValueError without a job."""
        job.current_runtime()
        return bool(self.process_set.included())


class Layout(IntEnum):
    """How a gradient is stored; the largest that a rank knows is that of all."""

    UNKNOWN = 0  # autograd has not made one yet
    DENSE = 1
    SPARSE = 2


class Gradient:
    """The gradient of one parameter."""

    def __init__(
        self, parameter: torch.Tensor, name: str, priority: int, view: torch.Tensor | None
    ) -> None:
        """Follow a parameter; `view` is the place for its gradient in shared memory, or None."""
        self.parameter = parameter
        self.name = name
        self.passes = 0  # backward passes since the last step
        self.arrival: int | None = None  # how many of this process have come before it
        self.layout = Layout.UNKNOWN
        self.default_priority = priority  # if the user gives none
        self._view = view
        self._moved: torch.Tensor | None = None  # what autograd made, once it is in its place

    @property
    def has_place(self) -> bool:
        """Whether it has a place in shared memory."""
        return self._view is not None

    @property
    def priority(self) -> int:
        """How urgent it is."""
        return priority_of(self.parameter, self.name, self.default_priority)

    def observe(self, sparse_as_dense: bool) -> None:
        """Note the layout of the gradient, if autograd has made one."""
        gradient = self.parameter.grad
        if gradient is not None:
            sparse = gradient.is_sparse and not sparse_as_dense
            self.layout = Layout.SPARSE if sparse else Layout.DENSE

    def settle(self, sparse_as_dense: bool) -> torch.Tensor:
        """Return the gradient as it is to be reduced.

        Autograd makes a gradient anew where there is none, which costs less than adding to zeros.
        """
        self.observe(sparse_as_dense)
        gradient = self.parameter.grad
        if gradient is None:
            gradient = self._nothing()
        elif gradient is self._view:
            self._moved = None
            return gradient
        gradient = gradient.detach()
        if self.layout is not Layout.SPARSE:
            gradient = self._near_place(gradient.to_dense())
        self.parameter.grad = gradient
        return gradient

    def _near_place(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return a gradient that can be moved to its place as it is, if that can be had."""
        view = self._view
        if view is None or not buckets.fits(gradient, view):
            return gradient
        if gradient.data_ptr() == view.data_ptr():
            return view
        self._moved = gradient
        # What autograd has made nobody else writes to; what the user has put there may be.
        if self.passes and buckets.lies_as_in(gradient, view):
            return gradient
        return view.copy_(gradient)

    def can_move(self, value: torch.Tensor) -> bool:
        """Tell whether an operation can take what settle() gave to its place in shared memory."""
        return value is self._view or value is self._moved

    @property
    def place(self) -> torch.Tensor:
        """Its place in shared memory."""
        assert self._view is not None
        return self._view

    def free_moved(self) -> None:
        """Free the memory that the gradient was moved from, which is kept until the step is done.

        Freed earlier it would go back to the system, which would have to clear it for the next.
        """
        self._moved = None

    def _nothing(self) -> torch.Tensor:
        if self.layout is Layout.SPARSE:
            like = self.parameter
            return torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64, device=like.device),
                like.new_empty((0, *like.shape[1:])),
                like.shape,
                check_invariants=True,
            )
        if self._view is None or not buckets.fits(self.parameter, self._view):
            return torch.zeros_like(self.parameter)
        return self._view.zero_()


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
        self.shared = False  # by several optimizers
        self._complete = 0  # gradients that have had their passes
        self._in_place = all(gradient.has_place for gradient in self.gradients)
        self._nbytes = sum(gradient.parameter.nbytes for gradient in self.gradients)
        self._request: tuple[Hashable, Request] | None = None  # the last one that was in place
        self._expected = len(self.gradients)  # of _complete; parameters may be frozen later
        self._in_flight: list[
            tuple[Handle | Operation, Callable[[], None]]
        ] = []  # how each is waited for
        weak_self = weakref.ref(self)
        hooks: list[RemovableHandle] = []
        for gradient in self.gradients:
            hook = _hook(weak_self, gradient)
            register: Any = gradient.parameter.register_post_accumulate_grad_hook
            hooks.append(register(hook))
            _groups[gradient.parameter] = weak_self
        weakref.finalize(self, _remove, hooks)

    @property
    def in_flight(self) -> bool:
        """Whether the reduction was started and not waited for yet."""
        return bool(self._in_flight) or _batch.has(self)

    def done(self) -> bool:
        """Tell whether finish() would return, or raise, at once."""
        return all(handle.done() for handle, _ in self._in_flight)

    @property
    def pending(self) -> bool:
        """Whether a backward pass has put something in that no step has used yet."""
        return self.in_flight or any(gradient.passes for gradient in self.gradients)

    def arrive(self, gradient: Gradient) -> None:
        """Take note of a backward pass; start the reduction when no gradient lacks one.

        Raises AssertionError after more passes than announced.
        """
        if not self.settings.takes_part():
            return
        if self.in_flight or gradient.passes == self.passes:
            raise AssertionError(
                f"the gradient of {gradient.name} was computed more than backward_passes_per_step="
                f"{self.passes} times before step(): give DistributedOptimizer a larger "
                "backward_passes_per_step to accumulate gradients. With overlap_step=True it may "
                "have been read before its update, in another way than through its module: call "
                "optimizer.finish_step() before"
            )
        gradient.passes += 1
        if gradient.arrival is None:
            gradient.arrival = next(_arrivals)
        self._complete += gradient.passes == self.passes
        if self._complete >= self._expected and all(map(self._has_passed, self.gradients)):
            with torch.no_grad():
                if self._in_place:
                    _batch.add(self, self._nbytes)
                else:
                    self.start()

    def forget_arrivals(self) -> None:
        """Have the next backward pass tell again in which order gradients come."""
        for gradient in self.gradients:
            gradient.arrival = None

    def start(self, wake: bool = False) -> None:
        """Start the reduction of whatever gradients there are, which is the same on all ranks.

        Without `wake` one of gradients in shared memory begins with the next operation, or when
        somebody waits. To be called without autograd. A parameter that played no part on this rank
        may have on another: its gradient is zeros.

        The first operation always has the group's name: ranks where a gradient is sparse meet
        those where it is dense, and all of them raise MismatchError.
        """
        active = [g for g in self.gradients if g.passes or g.parameter.requires_grad]
        if not active:  # frozen
            return
        priority = max(gradient.priority for gradient in active)
        settled = [gradient.settle(self.settings.sparse_as_dense) for gradient in active]
        if all(map(Gradient.can_move, active, settled)):
            self._start_in_shared_memory(active, settled, priority, wake)
            return
        dense = [value for value in settled if not value.is_sparse]
        if dense:
            self._start_dense(dense, priority)
        for gradient, value in zip(active, settled, strict=True):
            if value.is_sparse:
                first = not self._in_flight
                name = self.name if first else f"{self.name}.{gradient.name}.sparse"
                self._start_sparse(name, gradient, value, priority)

    def finish(self) -> None:
        """Wait for the reduction. The group is ready for the next step, also after an error.

        To be called without autograd.
        """
        waits, self._in_flight = self._in_flight, []
        self._complete = 0
        self._expected = sum(gradient.parameter.requires_grad for gradient in self.gradients)
        for gradient in self.gradients:
            gradient.passes = 0
        failure = None
        for _, wait in waits:
            try:
                wait()
            except MismatchError:  # the other operations may exist on this rank only
                raise
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def _has_passed(self, gradient: Gradient) -> bool:
        return gradient.passes == self.passes or not gradient.parameter.requires_grad

    def _start_in_shared_memory(
        self, gradients: Sequence[Gradient], values: Tensors, priority: int, wake: bool
    ) -> None:
        """Reduce gradients to their places: what every step does, so that it is made for speed."""
        places = [gradient.place for gradient in gradients]
        which = tuple(map(id, gradients))
        key = set_id(self.settings.process_set), self.settings.reduction, priority, which
        if self._request is None or self._request[0] != key:
            self._request = key, Request(self._signature(values, priority))
        request = self._request[1]
        for index, (value, place) in enumerate(zip(values, places, strict=True)):
            request.place(index, value.data_ptr(), place.data_ptr())
        # Others write to the places, whether this rank's optimizer is still there or not.
        handle = job.current_runtime().start(request, keep_alive=(values, places), wake=wake)
        for gradient, place in zip(gradients, places, strict=True):
            gradient.parameter.grad = place

        def wait() -> None:
            try:
                handle.wait()
            except Exception:  # what is in the places now has no meaning
                for gradient, value in zip(gradients, values, strict=True):
                    gradient.parameter.grad = value
                raise

        self._in_flight.append((handle, wait))

    def _signature(self, values: Tensors, priority: int) -> Signature:
        reduction = self.settings.reduction
        reduction.check(values)
        return Signature(
            OpKind.ALLREDUCE,
            tuple([(data_type(value.dtype), tuple(value.shape)) for value in values]),
            self.name,
            set_id(self.settings.process_set),
            reduction.op,
            reduction.prescale,
            reduction.postscale,
            priority=priority,
            wire_dtype=reduction.wire_dtype,
        )

    def _start_dense(self, values: Tensors, priority: int) -> None:
        compression = self.settings.compression
        in_order = [_in_memory_order(value) for value in values]
        sent, contexts = zip(*map(compression.compress, in_order), strict=True)
        call = Call(self.name, self.settings.process_set, priority=priority)
        handle = collectives.allreduce(sent, self.settings.reduction, call, in_place=True)

        def wait() -> None:
            for value, result, context in zip(in_order, handle.wait(), contexts, strict=True):
                restored = compression.decompress(result, context)
                if restored.data_ptr() != value.data_ptr():
                    value.copy_(restored)

        self._in_flight.append((handle, wait))

    def _start_sparse(
        self, name: str, gradient: Gradient, value: torch.Tensor, priority: int
    ) -> None:
        settings = self.settings
        handle = sparse_allreduce_async(
            value, name, settings.reduction.op, settings.process_set, priority
        )

        def wait() -> None:
            gradient.parameter.grad = handle.wait()

        self._in_flight.append((handle, wait))


class _Batch:
    """Groups in shared memory whose gradients are there, which start together.

    That costs less than each on its own: the caches have not forgotten in between what a start
    needs, and the engine, whose thread may share the core with autograd, is woken once.
    """

    FIRST_BYTES = 1 << 20  # so that the engine has something to do early
    BYTES = 8 << 20  # on one host, whose cores may all be busy: starting often disturbs autograd

    def __init__(self) -> None:
        self._groups: dict[GradientGroup, None] = {}
        self._nbytes = 0
        self._enough = self.FIRST_BYTES
        self._pass = -1  # autograd's number of the backward pass
        self._lock = threading.RLock()

    def has(self, group: GradientGroup) -> bool:
        """Tell whether a group waits to start."""
        return group in self._groups

    def add(self, group: GradientGroup, nbytes: int) -> None:
        """Let a group wait for others, at most to the end of this backward pass, or start them."""
        with self._lock:
            this_pass = torch._C._current_graph_task_id()
            if this_pass != self._pass:
                self._pass = this_pass
                self._enough = self.FIRST_BYTES
                Variable._execution_engine.queue_callback(self._end_of_pass)
            self._groups[group] = None
            self._nbytes += nbytes
            if self._nbytes >= self._enough:
                self.start()
                here = job.current_runtime().topology
                self._enough = self.BYTES if here.size == here.local_size else self.FIRST_BYTES

    def start(self) -> None:
        """Start the groups that wait."""
        with self._lock:
            groups = list(self._groups)
            self.clear()  # where one can't start, its optimizer's step() tries the others
            for group in groups:
                group.start(wake=group is groups[-1])

    def clear(self) -> None:
        """Forget the groups that wait."""
        self._groups.clear()
        self._nbytes = 0

    def _end_of_pass(self) -> None:
        with torch.no_grad():
            self.start()


_batch = _Batch()
job.at_end(_batch.clear)


def start_waiting() -> None:
    """Start the groups that a backward pass has left behind which did not come to its end."""
    _batch.start()


_arrivals = itertools.count()
_groups: WeakTensorKeyDictionary = WeakTensorKeyDictionary()  # weak references, by parameter
_names_used: Counter[tuple[int | None, str]] = Counter()  # by process set
job.at_end(_names_used.clear)


def _forget_names(set_id: int) -> None:
    # The next set of this id has other ranks, which have used other names.
    for key in [key for key in _names_used if key[0] == set_id]:
        del _names_used[key]


at_removal(_forget_names)


def _live_group(parameter: torch.Tensor) -> GradientGroup | None:
    if parameter not in _groups:
        return None
    group: GradientGroup | None = _groups[parameter]()
    return group


def existing_group(
    parameters: Sequence[torch.Tensor], passes: int, settings: Settings
) -> GradientGroup | None:
    """Return the group that another optimizer made for just these parameters.

    Raises ValueError if one of them belongs to another group, or is to be reduced in another way.
    """
    found = {id(group): group for p in parameters if (group := _live_group(p))}
    if not found:
        return None
    [group, *others] = found.values()
    same_parameters = {id(g.parameter) for g in group.gradients} == {id(p) for p in parameters}
    if others or not same_parameters or (group.passes, group.settings) != (passes, settings):
        raise ValueError(
            f"the gradient of {group.gradients[0].name} belongs to another DistributedOptimizer "
            "with other options or groups: optimizers that share parameters need the same ones, "
            "and one that is not used any more has to be deleted"
        )
    return group


def unique_name(name: str, process_set: ProcessSet) -> str:
    """Return a name for operations that no other group of the process set has.

    Models may have parameters of the same names. The ranks make their optimizers in the same order.
    """
    key = process_set.process_set_id, name
    _names_used[key] += 1
    return name if _names_used[key] == 1 else f"{name}#{_names_used[key]}"


def _remove(hooks: Sequence[RemovableHandle]) -> None:
    for hook in hooks:
        hook.remove()


def _hook(
    weak_group: weakref.ref[GradientGroup], gradient: Gradient
) -> Callable[[torch.Tensor], None]:
    def hook(_: torch.Tensor) -> None:
        group = weak_group()
        if group is not None:
            group.arrive(gradient)

    return hook


def _in_memory_order(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view that is contiguous where it can be: channels_last needs no copy then."""
    if tensor.is_contiguous():
        return tensor
    strides = tensor.stride()
    return tensor.permute(sorted(range(tensor.dim()), key=lambda dimension: -strides[dimension]))
