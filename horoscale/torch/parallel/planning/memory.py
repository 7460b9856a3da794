"""The memory that a rank needs, from a dry run on fake tensors and from formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from horoscale._tables import table
from horoscale.torch.parallel.mesh import Mesh
from horoscale.torch.parallel.pipeline.schedule import make_schedule
from horoscale.torch.parallel.pipeline.simulate import peak_activations
from horoscale.torch.parallel.planning.dry_run import (
    Batch,
    Loss,
    MakeOptimizer,
    Unit,
    dry_run,
    rehearse,
)
from horoscale.torch.parallel.planning.numbers import readable_bytes
from horoscale.torch.parallel.planning.partition import cut
from horoscale.torch.parallel.planning.recomputation import Recompute, segments
from horoscale.torch.parallel.planning.strategy import Strategy
from horoscale.torch.parallel.styles import Plan


@dataclass(frozen=True)
class RankMemory:
    """The memory of the ranks of one stage, in bytes: the maximum of each kind.

    The maxima occur at different times: gradients appear as activations are freed. `total` is the
    peak of the sum.

    Attributes:
        parameters: parameters and buffers. With stage=3, the rank's part and two gathered units.
        gradients: gradients of trained parameters.
        optimizer: the optimizer's state.
        activations: tensors that autograd saves, of all microbatches in flight.
        working: the peak of other tensors of operations, in the passes or the optimizer's step.
        buckets: buffers for gradients, and for messages between stages.
        total: the peak of the sum.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int
    working: int
    buckets: int
    total: int


@dataclass(frozen=True)
class Memory:
    """The result of par.memory(). As text, a table.

    Attributes:
        strategy: how the model is divided.
        cuts: the units where the stages begin, and where the last one ends.
        ranks: the memory of the ranks of each stage: of the first rank of tp, which needs most.
    """

    strategy: Strategy
    cuts: tuple[int, ...]
    ranks: tuple[RankMemory, ...]

    @property
    def most(self) -> int:
        """The bytes of the rank that needs most."""
        return max(one.total for one in self.ranks)

    def __str__(self) -> str:
        heading = ["stage", "units", *RankMemory.__dataclass_fields__]
        rows = [
            [
                str(stage),
                f"{begin} to {end - 1}",
                *map(readable_bytes, astuple(one)),
            ]
            for stage, (one, (begin, end)) in enumerate(
                zip(self.ranks, pairwise(self.cuts), strict=True)
            )
        ]
        return f"{self.strategy}, of each rank:\n\n{table(heading, rows)}"


def memory(
    model: nn.Module,
    batch: tuple[Batch, Any],
    sizes: Mesh | Strategy | Mapping[str, int],
    *,
    loss: Loss,
    optimizer: MakeOptimizer = torch.optim.AdamW,
    tensor_parallel: Plan | None = None,
    stage: int = 0,
    microbatches: int = 1,
    recompute: Recompute = False,
    cuts: Sequence[int] | None = None,
) -> Memory:
    """Estimate the memory that each rank needs to train a model, before anything is allocated.

    The model runs on fake tensors and may be on the device "meta". No job is needed.

    Args:
        model: the whole model. Pipelines cut an nn.Sequential between its children.
        batch: (x, target) of the whole job, divided along the first dimension over dp and
            microbatches, and along the second over cp. Only shapes and dtypes matter.
        sizes: a mesh, or the extents of its axes, such as {"tp": 2, "dp": 4}; or a Strategy, which
            also contains the other arguments.
        loss: a function of the output and the target.
        optimizer: a function from a list of parameters to an optimizer, which also runs on fake
            tensors.
        tensor_parallel: the plan for par.tensor_parallel(); required for tp.
        stage: the ZeRO stage over dp.
        microbatches: the number of parts of a rank's share of the batch. Pipelines run 1F1B.
        recompute: the activations to recompute; see par.plan().
        cuts: the positions where the stages begin and the last one ends. None: minimize the memory
            of the largest stage.

    Returns:
        The table.

    Raises:
        ValueError: the model cannot be divided in this way, or an argument is invalid.
    """
    if isinstance(sizes, Strategy):
        strategy = sizes
    else:
        extents: dict[str, Any] = dict(sizes.sizes if isinstance(sizes, Mesh) else sizes)
        strategy = Strategy(**extents, stage=stage, microbatches=microbatches, recompute=recompute)
    share = share_of(batch, strategy)
    units = dry_run(rehearse(model, strategy.tp, tensor_parallel), *share, loss, optimizer)
    if cuts is None:
        cuts = cut(
            len(units),
            strategy.pp,
            lambda begin, end, at: float(rank_memory(units[begin:end], strategy, at).total),
        )
        assert cuts is not None
    if len(cuts) != strategy.pp + 1 or cuts[0] != 0 or cuts[-1] != len(units):
        raise ValueError(f"cuts={list(cuts)} don't cut {len(units)} units into {strategy.pp}")
    ranks = tuple(
        rank_memory(units[begin:end], strategy, at)
        for at, (begin, end) in enumerate(pairwise(cuts))
    )
    return Memory(strategy, tuple(cuts), ranks)


def share_of(batch: tuple[Batch, Any], strategy: Strategy) -> tuple[Batch, Any]:
    """Return the first microbatch of the first rank, which has most rows.

    Raises:
        ValueError: there are fewer rows than ranks and microbatches.
    """
    rows_of = {one.shape[0] for one in _tensors(batch)}
    if len(rows_of) != 1:
        raise ValueError(f"the tensors of a batch have different numbers of rows: {rows_of}")
    (rows,) = rows_of
    parts = strategy.dp * strategy.microbatches
    if rows < parts:
        raise ValueError(
            f"{rows} rows can't be divided among dp={strategy.dp} ranks with "
            f"{strategy.microbatches} microbatches each"
        )
    own = -(-rows // parts)

    def part(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        value = value[:own]
        if strategy.cp > 1 and value.dim() > 1:
            value = value[:, : -(-value.shape[1] // strategy.cp)]
        return value

    x, target = tree_map(part, batch)
    return x, target


def rank_memory(units: Sequence[Unit], strategy: Strategy, at: int) -> RankMemory:
    """Return the memory of a rank of stage `at` with these units.

    Saved activations are held for as many microbatches as 1F1B has in flight there (Narayanan et
    al. 2021, arXiv:2104.04473, section 2.2). Recomputed ones exist for one unit or segment at a
    time.
    """
    parameters: dict[int, int] = {}
    state: dict[int, int] = {}
    for unit in units:
        parameters |= unit.parameters
        state |= unit.optimizer
    trained = sum(parameters[one] for one in set().union(*(one.trained for one in units)))
    in_flight = peak_activations(make_schedule("1f1b", strategy.pp, strategy.microbatches)[at])
    kept, works = held_and_worked(units, strategy.recompute)
    activations = in_flight * kept[-1]
    working = max(works)
    largest = max(sum(one.parameters.values()) for one in units)
    held, gradients, optimizer = zero_state(
        sum(parameters.values()), trained, sum(state.values()), strategy.dp, strategy.stage,
        gathered=2 * largest,
    )  # fmt: skip
    buckets = _sent_gradients(trained, largest, strategy)
    if at > 0:
        buckets += units[0].input  # of a gradient in transit
    if at < strategy.pp - 1:
        buckets += units[-1].output
    update = max(one.update for one in units)
    held += sum(one.buffers for one in units)
    in_passes = _peak_of_passes(units, strategy, in_flight, gradients)
    # If gradients are averaged, the averages are in the buckets during the step.
    in_step = update + (0 if strategy.dp * strategy.cp > 1 and not strategy.stage else gradients)
    return RankMemory(
        held,
        gradients,
        optimizer,
        activations,
        max(working, update),
        buckets,
        held + optimizer + buckets + max(in_passes, in_step),
    )


def _peak_of_passes(
    units: Sequence[Unit], strategy: Strategy, in_flight: int, gradients: int
) -> int:
    """Return the peak of the sum of activations, gradients and working memory.

    While a unit works, the units before it hold their activations, and those after it already have
    gradients. After the first microbatch all have gradients, and a new gradient exists until it is
    added.
    """
    before, working = held_and_worked(units, strategy.recompute)
    whole = before[-1]
    own = [sum(unit.parameters[one] for one in unit.trained) for unit in units]
    found = 0
    behind = 0
    divided = strategy.stage > 0 and strategy.dp > 1
    for index in reversed(range(len(units))):
        behind += own[index]
        there = own[index] + gradients if divided else behind
        found = max(found, (in_flight - 1) * whole + before[index] + working[index] + there)
    number = strategy.microbatches
    if number > 1:
        others = (in_flight if number > in_flight else in_flight - 1) - 1
        for index, unit in enumerate(units):
            added = max((unit.parameters[one] for one in unit.trained), default=0)
            there = before[index] + working[index] + gradients + added
            found = max(found, max(others, 0) * whole + there)
    return found


def held_and_worked(units: Sequence[Unit], how: Recompute) -> tuple[list[int], list[int]]:
    """Return the memory held while each unit works, and its working memory, in bytes.

    Held memory consists of activations of the units up to this one, or the inputs of those that are
    recomputed. Working memory is that of operations, and of recomputed activations.
    """
    saved: dict[int, int] = {}
    held, working = [], []
    starts = {begin for begin, _ in segments(len(units))} if how == "sqrt" else set()
    of_segment = 0
    for index, unit in enumerate(units):
        again = 0
        if how is False:
            saved |= unit.saved
        elif how == "sqrt":
            of_segment = unit.activations + (0 if index in starts else of_segment)
            if index in starts:
                saved[index] = unit.input
            again = of_segment
        else:
            products = min(unit.products, unit.activations) if how == "selective" else 0
            saved[index] = unit.input + products
            again = unit.activations - products
        held.append(sum(saved.values()))
        working.append(unit.transient + again)
    return held, working


def zero_state(
    parameters: int, gradients: int, optimizer: int, ranks: int, stage: int, gathered: int = 0
) -> tuple[int, int, int]:
    """Return the bytes of parameters, gradients and optimizer's state on one of `ranks`.

    ZeRO divides the optimizer's state (stage 1), gradients too (2), parameters too (3):
    Rajbhandari et al. 2020, arXiv:1910.02054, figure 1. Stage 3 has `gathered` additional bytes of
    whole units: the one that computes, and the next one.
    """

    def share(whole: int) -> int:
        return -(-whole // ranks)

    return (
        min(parameters, share(parameters) + gathered) if stage == 3 and ranks > 1 else parameters,
        share(gradients) if stage >= 2 else gradients,
        share(optimizer) if stage >= 1 else optimizer,
    )


def _sent_gradients(whole: int, largest: int, strategy: Strategy) -> int:
    """Return the bytes of buffers for averaging gradients, besides RankMemory.gradients.

    Each gradient has its own place in shared memory. ZeRO stores the averages there in stage 1, and
    in later stages what is being reduced: two units, or all gradients until the last microbatch.
    """
    if strategy.dp * strategy.cp == 1:
        return 0
    if strategy.stage == 1:
        return -(-whole // strategy.dp)
    if strategy.stage >= 2 and strategy.microbatches == 1:
        return min(whole, 2 * largest)
    return whole


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [tensor for one in value for tensor in _tensors(one)]
    return []
