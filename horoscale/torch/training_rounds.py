"""TrainingRounds: the rounds of local SGD, from one anchor to the next (see local_sgd)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from horoscale._core import Encoding, ReduceOp
from horoscale.common.compression import Selection
from horoscale.common.job import current_runtime
from horoscale.common.process_sets import ProcessSet
from horoscale.torch import collectives
from horoscale.torch.collectives import Call, Reduction
from horoscale.torch.compression import Compressor
from horoscale.torch.low_rank import PowerSGD
from horoscale.torch.names import unique_name

MakeOuter = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


class Travel(NamedTuple):
    """How and over which ranks changes of parameters are averaged."""

    selection: Selection  # the encoding of each parameter
    compressor: type[Compressor] | PowerSGD  # the part that runs in Python
    process_set: ProcessSet


class Anchor:
    """The value of a parameter at the beginning of a round."""

    def __init__(self, parameter: torch.Tensor, name: str, encoding: Encoding) -> None:
        """Copy the parameter. `name` is the name of the operation that averages its change."""
        self.parameter = parameter
        self.value = torch.nn.Parameter(parameter.detach().clone(), requires_grad=False)
        self._name = name
        self._encoding = encoding

    def start(self, travel: Travel, scale: float) -> Callable[[], torch.Tensor]:
        """Start averaging the change times `scale`. Return a function that waits for the result."""
        change = self.value - self.parameter
        if scale != 1.0:
            change *= scale
        sent, context = travel.compressor.compress(change)
        reduction = Reduction(ReduceOp.AVERAGE, encoding=self._encoding)
        call = Call(self._name, travel.process_set)
        handle = collectives.allreduce([sent], reduction, call, in_place=True)

        def finish() -> torch.Tensor:
            [average] = handle.wait()
            return travel.compressor.decompress(average, context)

        return finish


class TrainingRounds:
    """Counts an optimizer's steps, and synchronizes its parameters at the end of each round."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        travel: Travel,
        names: dict[torch.Tensor, str],
        sync_every: int,
        make_outer: MakeOuter | None,
    ) -> None:
        """Begin the first round. Raises ValueError if `make_outer` returns an unsuitable object."""
        self.travel = travel
        self.steps = 0  # in this round
        self.scale = 1.0  # factor of this rank's changes
        self.outer: torch.optim.Optimizer | None = None
        self._optimizer = weakref.ref(optimizer)
        self._names = names
        self._sync_every = sync_every
        self._agreement = unique_name("local_sgd.steps", travel.process_set)
        self._anchors: dict[int, Anchor] = {}  # by parameter id; they keep the parameter alive
        self._moving: list[Anchor] = []  # of the parameters trained in this round
        self._adopt()
        if make_outer is not None:
            self.outer = self._made_by(make_outer)

    def begin_step(self) -> None:
        """Save the parameters' values before the first step that may change them."""
        if not self._takes_part():
            return
        if self.steps == 0:
            self._moving = []
        known = set(map(id, self._moving))
        self._adopt()
        with torch.no_grad():
            for anchor in self._anchors.values():
                if anchor.parameter.requires_grad and id(anchor) not in known:
                    anchor.value.copy_(anchor.parameter)
                    self._moving.append(anchor)

    def end_step(self) -> None:
        """Count a step. Synchronize if it was the last of the round."""
        if not self._takes_part():
            return
        self.steps += 1
        if self.steps >= self._sync_every:
            self.synchronize()

    @torch.no_grad()
    def synchronize(self) -> None:
        """End the round if any rank has taken a step in it. Collective over the process set.

        If it raises HorovodInternalError, the parameters and outer state are unchanged.
        """
        if not self._takes_part():
            return
        # Every synchronization begins with this operation, whether a rank is here because of its
        # last step of a round or because its data has ended.
        steps = torch.tensor([self.steps])
        call = Call(self._agreement, self.travel.process_set, will_wait=True)
        [most] = collectives.allreduce([steps], Reduction(ReduceOp.MAX), call).wait()
        if not most.item():
            return
        if self.steps == 0:
            self.begin_step()
        self._apply(self._averages())
        self.steps = 0

    def save(self) -> dict[str, Any]:
        """Return the steps and anchors of this round, by parameter, and the outer state."""
        index_of = {id(one): index for index, one in enumerate(self._parameters())}
        moving = self._moving if self.steps else []
        return {
            "steps": self.steps,
            "anchors": {index_of[id(one.parameter)]: one.value.detach() for one in moving},
            "outer": None if self.outer is None else self._save_outer(self.outer, index_of),
        }

    @torch.no_grad()
    def load(self, saved: dict[str, Any] | None) -> None:
        """Restore the result of save(). None: begin a new round.

        Raises ValueError if the outer optimizer's parameter groups differ from the saved ones.
        """
        self.steps = 0
        self._moving = []
        if saved is None:
            return
        parameters = self._parameters()
        self._adopt()
        for index, value in sorted(saved["anchors"].items()):
            anchor = self._adopt_one(parameters[index], index)
            anchor.value.copy_(value)
            self._moving.append(anchor)
        self.steps = saved["steps"]
        if self.outer is not None and saved["outer"] is not None:
            self._load_outer(self.outer, saved["outer"], parameters)

    def _takes_part(self) -> bool:
        current_runtime()  # raises ValueError before hvd.init()
        return bool(self.travel.process_set.included())

    def _parameters(self) -> list[torch.Tensor]:
        optimizer = self._optimizer()
        assert optimizer is not None
        return [one for group in optimizer.param_groups for one in group["params"]]

    def _adopt(self) -> None:
        """Create anchors for parameters that are new or now require a gradient."""
        for index, parameter in enumerate(self._parameters()):
            if parameter.requires_grad:
                self._adopt_one(parameter, index)

    def _adopt_one(self, parameter: torch.Tensor, index: int) -> Anchor:
        anchor = self._anchors.get(id(parameter))
        if anchor is None:
            name = self._names.get(parameter) or f"unnamed.{index}"
            encoding = self.travel.selection.of(name, parameter, parameter.numel(), parameter.dim())
            operation = unique_name(f"local_sgd.{name}", self.travel.process_set)
            anchor = self._anchors[id(parameter)] = Anchor(parameter, operation, encoding)
            if self.outer is not None:
                self.outer.param_groups[-1]["params"].append(anchor.value)
        return anchor

    def _averages(self) -> list[torch.Tensor]:
        started = [one.start(self.travel, self.scale) for one in self._moving]
        averages, failure = [], None
        for finish in started:
            try:
                averages.append(finish())
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return averages

    def _apply(self, averages: list[torch.Tensor]) -> None:
        for anchor, average in zip(self._moving, averages, strict=True):
            if self.outer is None:
                anchor.value.sub_(average)
            else:
                anchor.value.grad = average
        if self.outer is not None:
            self.outer.step()
            self.outer.zero_grad()
        for anchor in self._moving:
            anchor.parameter.copy_(anchor.value)

    def _made_by(self, make_outer: MakeOuter) -> torch.optim.Optimizer:
        tensors: list[torch.Tensor] = [one.value for one in self._anchors.values()]
        outer = make_outer(list(tensors))
        if not isinstance(outer, torch.optim.Optimizer):
            raise ValueError(f"outer_optimizer returned {outer!r}, not a torch.optim.Optimizer")
        if sorted(map(id, _tensors_of(outer))) != sorted(map(id, tensors)):
            raise ValueError("outer_optimizer: the optimizer is not one of exactly the tensors")
        return outer

    def _save_outer(self, outer: torch.optim.Optimizer, index_of: dict[int, int]) -> dict[str, Any]:
        """Return the outer state by the parameters' positions in the optimizer."""
        owner = {id(one.value): id(one.parameter) for one in self._anchors.values()}
        places = [index_of[owner[id(one)]] for one in _tensors_of(outer)]
        state = outer.state_dict()
        return {
            "state": {places[place]: value for place, value in state["state"].items()},
            "groups": [
                {key: value for key, value in group.items() if key != "params"}
                for group in state["param_groups"]
            ],
        }

    def _load_outer(
        self, outer: torch.optim.Optimizer, saved: dict[str, Any], parameters: list[torch.Tensor]
    ) -> None:
        for index in sorted(saved["state"]):
            self._adopt_one(parameters[index], index)
        owner = {id(one.value): id(one.parameter) for one in self._anchors.values()}
        index_of = {id(one): index for index, one in enumerate(parameters)}
        places = {index_of[owner[id(one)]]: i for i, one in enumerate(_tensors_of(outer))}
        present = outer.state_dict()["param_groups"]
        if len(present) != len(saved["groups"]):
            raise ValueError(
                f"the saved outer optimizer has {len(saved['groups'])} groups of parameters, "
                f"this one {len(present)}"
            )
        outer.load_state_dict(
            {
                "state": {places[index]: value for index, value in saved["state"].items()},
                "param_groups": [
                    {**options, "params": group["params"]}
                    for options, group in zip(saved["groups"], present, strict=True)
                ],
            }
        )


def _tensors_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [one for group in optimizer.param_groups for one in group["params"]]
