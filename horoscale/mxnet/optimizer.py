"""DistributedOptimizer: an optimizer for MXNet's Module that averages gradients over the ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import mxnet as mx

from horoscale._core import ReduceOp
from horoscale.common.arguments import members_of, set_id
from horoscale.common.process_sets import ProcessSet, global_process_set
from horoscale.mxnet.arrays import check_arrays
from horoscale.mxnet.reductions import reduce_into

_OWN = frozenset({"_optimizer", "_predivide", "_num_groups", "_process_set"})


def split_evenly(items: Sequence[Any], parts: int) -> list[Sequence[Any]]:
    """Split a sequence into at most `parts` non-empty parts of consecutive items."""
    size, larger = divmod(len(items), parts)
    bounds = [0]
    for i in range(parts):
        bounds.append(bounds[-1] + size + (i < larger))
    return [items[first:last] for first, last in pairwise(bounds) if last > first]


class DistributedOptimizer(mx.optimizer.Optimizer):  # type: ignore[misc]
    """Averages gradients over the ranks before another optimizer uses them.

    For mx.mod.Module: module.init_optimizer(kvstore=None, optimizer=DistributedOptimizer(sgd)). All
    other methods and attributes are those of the wrapped optimizer.
    """

    def __init__(
        self,
        optimizer: Any,
        gradient_predivide_factor: float = 1.0,
        num_groups: int = 0,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: an mx.optimizer.Optimizer. Its rescale_grad applies to one rank's batch.
            gradient_predivide_factor: gradients are divided by this factor before the sum over the
                ranks, and by (number of ranks) / factor after it.
            num_groups: the number of groups of gradients that are reduced together. 0: one by one.
            process_set: the ranks that take part.

        Raises:
            TypeError: `optimizer` is not an optimizer.
            ValueError: before hvd.init(), or the process set or the number of groups is invalid.
        """
        if not isinstance(optimizer, mx.optimizer.Optimizer):
            raise TypeError(f"DistributedOptimizer takes an mx.optimizer.Optimizer: {optimizer!r}")
        if num_groups < 0:
            raise ValueError(f"num_groups={num_groups} is negative")
        set_id(process_set)
        self._optimizer = optimizer
        self._predivide = float(gradient_predivide_factor)
        self._num_groups = num_groups
        self._process_set = process_set

    def __getattr__(self, name: str) -> Any:
        if name in _OWN:  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._optimizer, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _OWN:
            self.__dict__[name] = value
        else:
            setattr(self._optimizer, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    @property
    def aggregate_num(self) -> int:
        """The number of parameters that Module updates at once: all, to allow any groups."""
        return sys.maxsize

    def create_state(self, index: Any, weight: Any) -> Any:
        """Return the optimizer's state for a parameter."""
        return self._optimizer.create_state(index, weight)

    def create_state_multi_precision(self, index: Any, weight: Any) -> Any:
        """Return the optimizer's state for a parameter, which may have 16 bits."""
        return self._optimizer.create_state_multi_precision(index, weight)

    def update(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average gradients, and update the parameters."""
        self._reduce(index, grad)
        self._optimizer.update(index, weight, grad, state)

    def update_multi_precision(self, index: Any, weight: Any, grad: Any, state: Any) -> None:
        """Average gradients, and update the parameters in chunks that the optimizer supports."""
        self._reduce(index, grad)
        update = self._optimizer.update_multi_precision
        if not isinstance(index, list | tuple):
            update(index, weight, grad, state)
            return
        step = self._optimizer.aggregate_num
        if step <= 0:
            for one in zip(index, weight, grad, state, strict=True):
                update(*one)
            return
        for first in range(0, len(index), step):
            update(*(part[first : first + step] for part in (index, weight, grad, state)))

    def set_learning_rate(self, lr: float) -> None:
        """Set the learning rate."""
        self._optimizer.set_learning_rate(lr)

    def set_lr_mult(self, args_lr_mult: dict[Any, float]) -> None:
        """Set the parameters' multipliers for the learning rate."""
        self._optimizer.set_lr_mult(args_lr_mult)

    def set_wd_mult(self, args_wd_mult: dict[Any, float]) -> None:
        """Set the parameters' multipliers for the weight decay."""
        self._optimizer.set_wd_mult(args_wd_mult)

    def _reduce(self, index: Any, grad: Any) -> None:
        """Push the averages of gradients. The first ones are the most urgent."""
        if len(members_of(self._process_set)) == 1:
            return
        indices, gradients = (index, grad) if isinstance(index, list | tuple) else ([index], [grad])
        arrays = check_arrays(gradients)
        names = [str(self._optimizer.idx2name.get(one, one)) for one in indices]
        groups = split_evenly(range(len(arrays)), self._num_groups or len(arrays))
        for i, group in enumerate(groups):
            chosen = [arrays[j] for j in group]
            name = ":".join(dict.fromkeys((names[group[0]], names[group[-1]])))
            scales = 1 / self._predivide, self._predivide
            reduce_into(
                chosen, chosen, ReduceOp.AVERAGE, f"gradient.{name}", -i, scales, self._process_set
            )
