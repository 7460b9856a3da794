"""An optimizer's state by names of parameters, divided as they are.

The keys are those of torch.distributed.checkpoint.state_dict with flatten_optimizer_state_dict:

    optimizer.state.NAME.exp_avg            a tensor, or another value
    optimizer.param_groups.NAME.lr          a hyper-parameter, stored for each parameter, because
                                            ranks of a pipeline may have different groups
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from horoscale.torch.parallel.checkpoint.flat import RunState, by_name, layout_of
from horoscale.torch.parallel.checkpoint.layout import Layout
from horoscale.torch.parallel.checkpoint.model_tensor import ModelTensor

STATE = "optimizer.state."
GROUPS = "optimizer.param_groups."


@dataclass
class Slot:
    """An optimizer's entry for a parameter.

    Attributes:
        of: the parameter in the model.
        group: its param_group.
        number: the number of that group.
        state: the optimizer's state for it. Loading replaces the values.
        layout: the layout of divided tensors in the state: the parameter's own.
    """

    of: ModelTensor
    group: MutableMapping[str, Any]
    number: int
    state: MutableMapping[str, Any]
    layout: Layout

    def divided(self, key: str, value: torch.Tensor) -> Layout:
        """Return the layout of a tensor of the state.

        Numbers, such as "step", are whole on all ranks, as is all state of undivided parameters.
        Raises ValueError if a tensor's shape differs from that of its divided parameter.
        """
        if tuple(value.shape) == self.layout.shape:
            return self.layout
        if value.dim() == 0 or self.layout == Layout.of_whole(self.layout.whole):
            return Layout.of_whole(value.shape)
        raise ValueError(
            f"the optimizer's {key!r} of {self.of.names[0]} has the shape {tuple(value.shape)}, "
            f"and the rank's shard {self.layout.shape}: how it is divided is not known"
        )


def slots_of(optimizer: Any, tensors: Sequence[ModelTensor]) -> list[Slot]:
    """Return an optimizer's entry for each of its parameters.

    An optimizer of parameters that are divided by elements has them in `runs`, by group.

    Raises ValueError for a parameter that is not in the model.
    """
    by_id = {id(one.of): one for one in tensors}
    if hasattr(optimizer, "runs"):
        return list(_of_runs(optimizer, by_id))
    slots = []
    for number, group in enumerate(optimizer.param_groups):
        for position, parameter in enumerate(group["params"]):
            of = by_id.get(id(parameter))
            if of is None:
                raise ValueError(
                    f"parameter {position} of the optimizer's group {number}, of shape "
                    f"{tuple(parameter.shape)}, is none of the model's"
                )
            # optimizer.state[parameter] would create an empty state.
            state = optimizer.state.get(parameter)
            if state is None:
                state = _Later(optimizer, parameter)
            slots.append(Slot(of, group, number, state, of.layout))
    return slots


def _of_runs(optimizer: Any, by_id: Mapping[int, ModelTensor]) -> Iterator[Slot]:
    """Yield a slot for each parameter, including those of which this rank owns nothing."""
    parameters = {
        name: parameter
        for shards in optimizer.sharded.trained
        for name, parameter in by_name(shards).items()
    }
    for number, (group, runs) in enumerate(
        zip(optimizer.param_groups, optimizer.runs, strict=True)
    ):
        owned = {one.name: (run, one) for run in runs for one in run.owned}
        for name in optimizer.names[number]:
            of = by_id.get(id(parameters[name]))
            if of is None:
                raise ValueError(f"{name} of the optimizer is none of the model's")
            if name in owned:
                state: MutableMapping[str, Any] = RunState(optimizer, *owned[name])
                layout = layout_of(of.layout, owned[name][1])
            else:
                state, layout = {}, of.layout
            yield Slot(of, group, number, state, layout)


class _Later(dict[str, Any]):
    """The state of a parameter that has none yet; the first value adds it to the optimizer."""

    def __init__(self, optimizer: Any, parameter: torch.Tensor) -> None:
        super().__init__()
        self._optimizer, self._parameter = optimizer, parameter

    def __setitem__(self, key: str, value: Any) -> None:
        self._optimizer.state[self._parameter][key] = value


def hyper_parameters(group: MutableMapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the hyper-parameters of a param_group."""
    for key, value in group.items():
        if key != "params":
            yield key, value
