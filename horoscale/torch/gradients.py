"""Gradient: a parameter's `.grad` from autograd through an allreduce to the optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import torch

from horoscale.common import job
from horoscale.common.compression import Selection
from horoscale.common.process_sets import ProcessSet
from horoscale.torch import buckets
from horoscale.torch.collectives import Reduction
from horoscale.torch.compression import Compressor
from horoscale.torch.low_rank import PowerSGD
from horoscale.torch.priorities import priority_of

# Up to this size, a gradient is copied to its place before it is reduced: an allreduce reads small
# inputs twice, and `.grad` may change in between.
_COPIED_BYTES = 64 * 1024


@dataclass(frozen=True)
class Settings:
    """How a DistributedOptimizer processes each of its gradients."""

    reduction: Reduction
    compression: type[Compressor] | PowerSGD  # the part that runs in Python
    selection: Selection  # the encoding of each parameter
    process_set: ProcessSet
    sparse_as_dense: bool
    sparse_results: bool = False  # the optimizer rejects dense gradients

    def takes_part(self) -> bool:
        """Return whether this rank is in the process set. Raises ValueError before hvd.init()."""
        job.current_runtime()
        return bool(self.process_set.included())


class Layout(IntEnum):
    """How a gradient is stored. The largest value over all ranks applies to all."""

    UNKNOWN = 0  # autograd has not created a gradient yet
    DENSE = 1
    SPARSE = 2


class Gradient:
    """The gradient of one parameter.

    Between take() and deliver() the parameter's `.grad` is this rank's local gradient, in memory
    that no other rank writes to. The reduction writes to a place in shared memory, which then
    becomes `.grad`. A gradient that cannot be reduced into a place is copied first. On a device,
    where memory is scarce, it is reduced in place.
    """

    def __init__(
        self, parameter: torch.Tensor, name: str, priority: int, place: torch.Tensor | None
    ) -> None:
        """Track a parameter. `place` is in shared memory, or None."""
        self.parameter = parameter
        self.name = name
        self.passes = 0  # backward passes since the last step
        self.arrival: int | None = None  # number of this process' gradients that arrived before it
        self.layout = Layout.UNKNOWN
        self.default_priority = priority  # unless the user sets one
        self._place = place
        self._moved: torch.Tensor | None = (
            None  # the source of an operation that writes to the place
        )
        # `.grad` and its version at take(). Kept until the step is done: if it were freed earlier,
        # its memory would return to the system, which would zero it again for the next gradient.
        self._own: torch.Tensor | None = None
        self._version = 0
        self.in_place = False  # `.grad` itself is being reduced

    @property
    def has_place(self) -> bool:
        """Whether this gradient has a place in shared memory."""
        return self._place is not None

    @property
    def place(self) -> torch.Tensor:
        """The place in shared memory."""
        assert self._place is not None
        return self._place

    @property
    def priority(self) -> int:
        """The priority of the reduction; higher is more urgent."""
        return priority_of(self.parameter, self.name, self.default_priority)

    def observe(self, sparse_as_dense: bool) -> torch.Tensor | None:
        """Return `.grad` and record its layout, if autograd has created one."""
        gradient = self.parameter.grad
        if gradient is not None:
            sparse = gradient.is_sparse and not sparse_as_dense
            self.layout = Layout.SPARSE if sparse else Layout.DENSE
        return gradient

    def take(self, sparse_as_dense: bool, scale: float = 1.0) -> torch.Tensor:
        """Return the gradient to reduce, multiplied by `scale`; zeros if `scale` is 0.

        A `.grad` of None stays None: autograd creates a gradient faster than it accumulates one.
        """
        self._moved = None
        self._own = own = self.observe(sparse_as_dense)
        value = self._nothing() if own is None or scale == 0.0 else self._values(own, scale)
        self._version = _version(self._own)
        return value

    def can_move(self, value: torch.Tensor) -> bool:
        """Return whether an operation can move a result of take() to the place in shared memory."""
        return value is self._place or value is self._moved

    def apart(self, value: torch.Tensor) -> torch.Tensor:
        """Return a result of take() that an operation may overwrite.

        On the host this is never `.grad` itself.
        """
        own = self._own
        is_own = own is not None and not own.is_sparse and value.data_ptr() == own.data_ptr()
        self.in_place = is_own and value.device.type != "cpu"
        if not is_own or self.in_place:
            return value
        # Including gaps: the shape that ranks compare depends on the memory order.
        copy = torch.empty_strided(
            value.size(), value.stride(), dtype=value.dtype, device=value.device
        )
        return copy.copy_(value)

    def changed(self) -> bool:
        """Return whether `.grad` has changed since take()."""
        gradient = self.parameter.grad
        return gradient is not self._own or _version(gradient) != self._version

    def deliver(self, result: torch.Tensor, sparse: bool = False) -> None:
        """Set `.grad` to the reduced gradient, in sparse form for optimizers that require it."""
        if sparse and not result.is_sparse:
            result = result.to_sparse(1)
        self.parameter.grad = result

    def has_values(self) -> bool:
        """Return whether `.grad` exists and is not all zeros. Reads all of it if it is zero."""
        gradient = self.parameter.grad
        if gradient is None:
            return False
        values = gradient._values() if gradient.is_sparse else gradient
        return bool(values.any())

    def release(self) -> None:
        """Free the memory that was kept until the step."""
        self._own = self._moved = None

    def _values(self, own: torch.Tensor, scale: float) -> torch.Tensor:
        value = own.detach() if own.requires_grad else own
        if self.layout is Layout.SPARSE:
            return _times(value, scale)
        if value.layout is not torch.strided:
            value = value.to_dense()
        place = self._place
        if place is None or not buckets.fits(value, place):
            return _times(value, scale)
        if value.data_ptr() == place.data_ptr():  # the last step's, with this one's added
            self.parameter.grad = self._own = value.clone()
            return place if scale == 1.0 else place.mul_(scale)
        if scale != 1.0:
            return place.copy_(value).mul_(scale)
        # Autograd alone writes to the tensors that it creates. Users may write to those that they
        # assign.
        large = value.nbytes > _COPIED_BYTES
        if large and self.passes and buckets.lies_as_in(value, place):
            self._moved = value
            return value
        return place.copy_(value)

    def _nothing(self) -> torch.Tensor:
        if self.layout is Layout.SPARSE:
            like = self.parameter
            return torch.sparse_coo_tensor(
                torch.empty((1, 0), dtype=torch.int64, device=like.device),
                like.new_empty((0, *like.shape[1:])),
                like.shape,
                check_invariants=True,
            )
        if self._place is None or not buckets.fits(self.parameter, self._place):
            return torch.zeros_like(self.parameter)
        return self._place.zero_()


def _times(value: torch.Tensor, scale: float) -> torch.Tensor:
    return value if scale == 1.0 else value * scale


def _version(tensor: torch.Tensor | None) -> int:
    """Return PyTorch's version counter of a tensor."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version
