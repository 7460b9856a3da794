"""Planned: the result of plan(), as a table and for execution."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from torch import nn

from horoscale._tables import milliseconds, table
from horoscale.common import job
from horoscale.torch.parallel.mesh import Mesh, init
from horoscale.torch.parallel.pipeline import Pipeline
from horoscale.torch.parallel.plan import tensor_parallel as divide_layers
from horoscale.torch.parallel.planning.cost import Cost
from horoscale.torch.parallel.planning.dry_run import Loss, units_of
from horoscale.torch.parallel.planning.machine import Machine
from horoscale.torch.parallel.planning.numbers import readable_bytes
from horoscale.torch.parallel.planning.recomputation import recompute_segments, recompute_units
from horoscale.torch.parallel.planning.strategy import Strategy
from horoscale.torch.parallel.styles import Plan
from horoscale.torch.parallel.zero.sharded import shard

_BEST = 8  # rows of the table
_OTHERS = 6
_LOSSES = {
    "compute": "computing",
    "communication": "communication",
    "bubble": "the bubble",
    "waiting": "waiting",
}


@dataclass(frozen=True)
class Rejected:
    """A strategy that is impossible, and the reason."""

    strategy: Strategy
    reason: str


@dataclass
class Planned:
    """Ways to train a model, fastest first. As text, a table of the best ones.

    Attributes:
        model: the model that was passed to plan(); apply() divides it.
        loss: the loss function that was passed to plan().
        tensor_parallel: the plan for the layers that was passed to plan().
        costs: the costs of the strategies that fit, fastest first.
        rejected: the other strategies.
        machine: the measurements.
        memory: the memory limit of a rank in bytes, or infinity.
        rows: the number of rows of the batch.
    """

    model: nn.Module
    loss: Loss
    tensor_parallel: Plan | None
    costs: tuple[Cost, ...]
    rejected: tuple[Rejected, ...]
    machine: Machine
    memory: float
    rows: int
    _applied: Cost | None = field(default=None, init=False, repr=False)

    @property
    def best(self) -> Cost:
        """The fastest strategy. Raises ValueError if none fits."""
        if not self.costs:
            raise ValueError(f"no way fits:\n{self}")
        return self.costs[0]

    def apply(self, choice: int = 0) -> Mesh:
        """Create the mesh for one of `costs`, and divide the model's layers over tp, in place.

        All ranks of the job must call it. It also sets up recomputation of the units' activations.
        pipeline() does the rest.

        Args:
            choice: the index in `costs`; 0 is the fastest.

        Returns:
            The mesh.

        Raises:
            ValueError: there is no such choice, the job has another number of ranks, there already
                is a mesh, or the choice divides the state (`stage`) of parameters that units share,
                over pipeline stages or in stage 3.
            RuntimeError: apply() was already called.
        """
        if self._applied is not None:
            raise RuntimeError(f"the model is divided already: {self._applied.strategy}")
        if not 0 <= choice < len(self.costs):
            raise ValueError(f"choice={choice}: {len(self.costs)} ways fit\n{self}")
        chosen = self.costs[choice]
        strategy = chosen.strategy
        units = list(units_of(self.model).values())
        if strategy.stage and (strategy.pp > 1 or strategy.stage == 3) and _tied(units):
            raise ValueError(
                f"{strategy}: the state of parameters that units share can't be divided"
            )
        if job.is_initialized():
            size = job.current_runtime().topology.size
            if size != strategy.ranks:
                raise ValueError(f"{strategy} is for {strategy.ranks} ranks, but there are {size}")
        mesh = init(strategy.tp, strategy.cp, strategy.pp, strategy.dp, strategy.order)
        if strategy.tp > 1:
            assert self.tensor_parallel is not None
            divide_layers(self.model, mesh.tp, self.tensor_parallel)
        recompute_units(list(units_of(self.model).values()), strategy.recompute)
        self._applied = chosen
        return mesh

    def pipeline(self, mesh: Mesh, **options: Any) -> Pipeline:
        """Create a Pipeline that runs the steps of the model that apply() has divided.

        It works for every strategy: with one stage it sends nothing. pipe.step(x, target) takes
        this rank's rows of the batch, according to its position on dp. If the choice divides the
        training state (`stage`), par.shard() divides `pipe.module`. Its optimizer is then
        par.ZeroOptimizer(torch.optim.AdamW, pipe.module, …).

        Args:
            mesh: the mesh from apply().
            options: options of par.Pipeline, except loss, microbatches and tied.

        Raises:
            RuntimeError: apply() was not called.
        """
        if self._applied is None:
            raise RuntimeError("call apply() first, which makes the mesh")
        cuts = self._applied.cuts
        names = list(units_of(self.model))
        stages: list[nn.Module] = []
        if self._applied.strategy.pp == 1:
            stages = [self.model]
        else:
            stages = [
                nn.Sequential(
                    OrderedDict((name, self.model.get_submodule(name)) for name in names[a:b])
                )
                for a, b in pairwise(cuts)
            ]
        strategy = self._applied.strategy
        if strategy.recompute == "sqrt":
            for stage in stages:
                recompute_segments(stage)
        pipe = Pipeline(
            stages,
            mesh.pp,
            loss=self.loss,
            microbatches=strategy.microbatches,
            tied=_tied(stages),
            **options,
        )
        if strategy.stage:
            units = set(units_of(self.model).values())
            shard(
                pipe.module,
                mesh["dp", "cp"],
                strategy.stage,
                unit=[name for name, one in pipe.module.named_modules() if one in units],
                backward_passes_per_step=strategy.microbatches,
            )
        return pipe

    def __str__(self) -> str:
        parts = []
        if self.costs:
            parts.append(_table_of(self.costs[:_BEST], self.rows))
        if slower := self.costs[_BEST:]:
            parts.append(_why_slower(self.costs[0], slower))
        if self.rejected:
            lines = [f"{one.strategy}: {one.reason}" for one in self.rejected[:_OTHERS]]
            if len(self.rejected) > _OTHERS:
                lines.append(f"… and {len(self.rejected) - _OTHERS} more")
            parts.append("Don't fit:\n" + "\n".join(lines))
        if not math.isinf(self.memory):
            parts.append(f"Memory of a rank: {readable_bytes(self.memory)}")
        return "\n\n".join(parts)


def _table_of(costs: Sequence[Cost], rows: int) -> str:
    heading = [
        "strategy", "step ms", "compute", "communication", "bubble", "waiting", "memory",
        "samples/s",
    ]  # fmt: skip
    lines = [
        [
            str(one.strategy),
            milliseconds(one.step),
            *(f"{share:.0%}" for share in one.parts.shares().values()),
            readable_bytes(one.most_memory),
            f"{rows / one.step:.4g}",
        ]
        for one in costs
    ]
    return table(heading, lines)


def _why_slower(best: Cost, others: Sequence[Cost]) -> str:
    """Explain why other strategies are slower than the best: by the part that costs them most."""
    counts: dict[str, list[float]] = {}
    for one in others:
        more = {
            name: getattr(one.parts, part) - getattr(best.parts, part)
            for part, name in _LOSSES.items()
        }
        counts.setdefault(max(more, key=lambda name: more[name]), []).append(one.step)
    each = (
        f"{len(steps)} by {name} ({milliseconds(min(steps))} ms and more)"
        for name, steps in sorted(counts.items(), key=lambda item: -len(item[1]))
    )
    return f"{len(others)} more are slower: {', '.join(each)}"


def _tied(stages: Sequence[nn.Module]) -> list[list[tuple[int, str]]]:
    """Return the parameters that several stages share, in the form of Pipeline's argument."""
    places: dict[int, list[tuple[int, str]]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            places.setdefault(id(parameter), []).append((number, name))
    return [one for one in places.values() if len(one) > 1]
