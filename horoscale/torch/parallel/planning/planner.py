"""plan(): finds the fastest way to divide a model among ranks that fits into their memory."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from horoscale.common import allgather_object, job
from horoscale.common.synchronization import barrier
from horoscale.torch.parallel.mesh import ORDER, Place, hosts_of
from horoscale.torch.parallel.planning.calibration import (
    calibrate,
    measure_alone,
    ranks_of_job,
)
from horoscale.torch.parallel.planning.cost import Cost, cost
from horoscale.torch.parallel.planning.dry_run import (
    Batch,
    Loss,
    MakeOptimizer,
    Rehearsal,
    Unit,
    dry_run,
    rehearse,
    units_of,
)
from horoscale.torch.parallel.planning.machine import Link, Machine
from horoscale.torch.parallel.planning.measuring import computing
from horoscale.torch.parallel.planning.memory import rank_memory, share_of
from horoscale.torch.parallel.planning.numbers import bytes_of, readable_bytes
from horoscale.torch.parallel.planning.partition import cut
from horoscale.torch.parallel.planning.planned import Planned, Rejected
from horoscale.torch.parallel.planning.profile import (
    Timing,
    by_formula,
    interpolate,
    profile,
    step_overhead,
)
from horoscale.torch.parallel.planning.recomputation import CHOICES, Recompute
from horoscale.torch.parallel.planning.strategy import Strategy
from horoscale.torch.parallel.styles import Plan

_NAME = "horoscale.plan"
_MOST_MICROBATCHES = 64


def plan(
    model: nn.Module,
    batch: tuple[Batch, Any],
    *,
    loss: Loss,
    optimizer: MakeOptimizer = torch.optim.AdamW,
    tensor_parallel: Plan | None = None,
    ranks: int | None = None,
    hosts: int | None = None,
    memory: int | str | None = None,
    bandwidth: float | Literal["measured"] = "measured",
    latency: float = 50e-6,
    axes: Sequence[str] = ("tp", "pp", "dp"),
    stages: Sequence[int] = (0,),
    microbatches: Sequence[int] | None = None,
    recompute: Sequence[Recompute] = CHOICES,
    speeds: Sequence[float] | None = None,
    machine: Machine | None = None,
) -> Planned:
    """Compare strategies for training a model on some ranks, by step time and memory.

    In a job with this number of ranks, all ranks call it with the same arguments, and it measures
    the ranks and links (see calibrate()). Otherwise it measures this process and assumes that all
    ranks are equal. It times the units of the model one by one, whole and divided over tp. A model
    on the device "meta" is not run: its time is estimated from its operations and bytes.

        planned = par.plan(model, (x, target), loss=nn.functional.cross_entropy, memory="4GiB")
        print(planned)
        mesh = planned.apply()
        pipe = planned.pipeline(mesh)

    Args:
        model: the whole model. An nn.Sequential can be cut into stages between its children.
        batch: (x, target) of the whole job, for one step of the optimizer.
        loss: a function of the output and the target, a mean over rows.
        optimizer: a function from a list of parameters to an optimizer.
        tensor_parallel: the plan for par.tensor_parallel(). Without it, tp is 1.
        ranks: the number of ranks. None: that of the job.
        hosts: the number of hosts, with equal numbers of ranks. None: as in the job.
        memory: the memory limit of a rank in bytes, or as text such as "16GiB". None: no limit.
        bandwidth: the bandwidth of a host's link to the others in bytes per second, which replaces
            the measured one.
        latency: the latency of that link in seconds, if `bandwidth` is given.
        axes: the kinds of parallelism to consider. Add "cp" for a model whose attention divides the
            sequence (par.ring_attention) along the second dimension. Its messages count as hidden.
        stages: the ZeRO stages to consider.
        microbatches: the numbers of microbatches to consider. None: powers of 2.
        recompute: the choices to consider for activations that the backward pass recomputes. False:
            none. "selective": all except the results of matrix products and convolutions, which
            must not be modified in place (so not with tp). "sqrt": those of segments of about
            sqrt(n) of a stage's n units, keeping the segments' inputs. True: those of each unit,
            keeping its input.
        speeds: the ranks' speeds relative to the measured one. None: all are equal. Stages on a
            slower rank get fewer layers.
        machine: the result of an earlier calibrate(), which is then not called.

    Returns:
        The strategies that fit, fastest first, and the reasons why the others do not.

    Raises:
        ValueError: an argument is invalid, no strategy divides rows and units among the ranks, or
            the link between hosts is neither measured nor given.
    """
    in_job = job.is_initialized()
    size = job.current_runtime().topology.size if in_job else 1
    ranks = size if ranks is None else ranks
    if ranks < 1:
        raise ValueError(f"ranks={ranks}: at least 1 is needed")
    measured_here = in_job and size == ranks
    hosts = (_number_of_hosts() if measured_here else 1) if hosts is None else hosts
    if hosts < 1 or ranks % hosts:
        raise ValueError(f"hosts={hosts} can't have the same number of {ranks} ranks each")
    if speeds is not None and (len(speeds) != ranks or min(speeds) <= 0):
        raise ValueError(f"speeds={list(speeds)}: {ranks} ranks need one above 0 each")
    if machine is None:
        dtype = next((one.dtype for one in model.parameters()), torch.float32)
        machine = calibrate(dtype) if measured_here else measure_alone(dtype)
    if bandwidth != "measured":
        if bandwidth <= 0:
            raise ValueError(f"bandwidth={bandwidth}: bytes a second above 0 are needed")
        link = Link(latency, bandwidth)
        groups = tuple(one for one in machine.groups if one.shape.hosts == 1)
        machine = replace(machine, message_between=link, collective_between=link, groups=groups)
    if hosts > 1 and machine.collective_between is None:
        raise ValueError(f"{hosts} hosts, but the link between them was not measured: bandwidth=")
    limit = float("inf") if memory is None else float(bytes_of(memory))
    rows = share_of(batch, Strategy())[0]
    number_of_rows = _rows(rows)
    profiles = _Profiles(model, batch, loss, optimizer, tensor_parallel, machine, measured_here)
    candidates = list(
        _strategies(
            ranks,
            hosts,
            number_of_rows,
            len(units_of(model)),
            axes,
            stages,
            microbatches,
            recompute,
        )
    )
    if tensor_parallel is None:
        candidates = [one for one in candidates if one.tp == 1]
    if not candidates:
        raise ValueError(
            f"no way divides {number_of_rows} rows and {len(units_of(model))} units among {ranks} "
            f"ranks over {', '.join(axes)}, microbatches={microbatches}"
        )
    costs: list[Cost] = []
    rejected: list[Rejected] = []
    profiles.prepare(candidates)
    machine = profiles.machine
    for strategy in candidates:
        if reason := profiles.why_not(strategy.tp):
            rejected.append(Rejected(strategy, reason))
            continue
        units, timings = profiles.at(strategy)
        of_stages = None if speeds is None else _speeds_of_stages(strategy, speeds)
        found = cost(strategy, units, timings, machine, ranks // hosts, of_stages, limit)
        if found is None:
            rejected.append(Rejected(strategy, _lacking(strategy, units, limit)))
        else:
            costs.append(found)
    costs.sort(key=lambda one: (one.step, one.most_memory, str(one.strategy)))
    return Planned(
        model, loss, tensor_parallel, tuple(costs), tuple(rejected), machine, limit, number_of_rows
    )


class _Profiles:
    """The units of a model and their times, for each division of layers and rows."""

    def __init__(
        self,
        model: nn.Module,
        batch: tuple[Batch, Any],
        loss: Loss,
        optimizer: MakeOptimizer,
        plan: Plan | None,
        machine: Machine,
        measured_here: bool,
    ) -> None:
        self._model, self._batch, self._loss, self._optimizer = model, batch, loss, optimizer
        self._plan, self.machine, self._measured_here = plan, machine, measured_here
        self._is_meta = any(one.is_meta for one in model.parameters())
        self._clock: Callable[[], float] = time.perf_counter
        self._rehearsals: dict[int, Rehearsal | str] = {}
        self._units: dict[tuple[int, int, int], list[Unit]] = {}
        self._timings: dict[int, dict[int, list[Timing]]] = {}

    def prepare(self, strategies: Sequence[Strategy]) -> None:
        """Time the units on all ranks of a job at the same time, as in training."""
        if not self._is_meta:
            step = step_overhead(self._optimizer)
            if self._measured_here:
                if not all(computing(ranks_of_job())):  # they take turns; see cost()
                    self._clock = time.thread_time
                step = max(allgather_object(step, name=f"{_NAME}.step"))
            beside = self.machine.overheads
            self.machine = replace(self.machine, overheads=replace(beside, step=beside.step + step))
        by_tp: dict[int, list[Strategy]] = {}
        for one in strategies:
            by_tp.setdefault(one.tp, []).append(one)
        for tp in sorted(by_tp):
            if self.why_not(tp):
                continue
            # cp divides a sequence; the time is divided in proportion.
            whole = {self._rows_of(one): replace(one, cp=1) for one in by_tp[tp]}
            known = sorted(whole)
            chosen = {known[0], known[len(known) // 2], known[-1]}
            self._timings[tp] = {rows: self._time(whole[rows]) for rows in sorted(chosen)}

    def why_not(self, tp: int) -> str:
        """Return why layers can't be divided among `tp` ranks, or ""."""
        if tp not in self._rehearsals:
            try:
                self._rehearsals[tp] = rehearse(self._model, tp, self._plan)
            except ValueError as error:
                self._rehearsals[tp] = str(error)
        found = self._rehearsals[tp]
        return found if isinstance(found, str) else ""

    def at(self, strategy: Strategy) -> tuple[list[Unit], list[Timing]]:
        """Return the units of a rank for one microbatch, and their times."""
        units = self._dry(strategy)
        timings = interpolate(self._rows_of(strategy), self._timings[strategy.tp])
        return units, [
            replace(one, forward=one.forward / strategy.cp, backward=one.backward / strategy.cp)
            for one in timings
        ]

    def _rows_of(self, strategy: Strategy) -> int:
        return _rows(share_of(self._batch, strategy)[0])

    def _dry(self, strategy: Strategy) -> list[Unit]:
        key = (strategy.tp, strategy.cp, self._rows_of(strategy))
        if key not in self._units:
            rehearsal = self._rehearsals[strategy.tp]
            assert isinstance(rehearsal, Rehearsal)
            share = share_of(self._batch, strategy)
            self._units[key] = dry_run(rehearsal, *share, self._loss, self._optimizer)
        return self._units[key]

    def _time(self, strategy: Strategy) -> list[Timing]:
        if self._is_meta:
            return by_formula(
                self._dry(strategy), self.machine.flops, self.machine.memory_bandwidth
            )
        rehearsal = self._rehearsals[strategy.tp]
        assert isinstance(rehearsal, Rehearsal)
        share = share_of(self._batch, strategy)
        if not self._measured_here:
            return profile(rehearsal, *share, self._loss, self._optimizer)
        barrier()
        own = profile(rehearsal, *share, self._loss, self._optimizer, clock=self._clock)
        said = allgather_object(own, name=f"{_NAME}.times")
        weights = [1 / len(said)] * len(said)
        return [Timing.combined(of_unit, weights) for of_unit in zip(*said, strict=True)]


def _strategies(
    ranks: int,
    hosts: int,
    rows: int,
    units: int,
    axes: Sequence[str],
    stages: Sequence[int],
    microbatches: Sequence[int] | None,
    recompute: Sequence[Recompute],
) -> Iterator[Strategy]:
    """Yield all strategies that the numbers of ranks, rows and units allow."""
    if strange := set(axes) - {"tp", "cp", "pp", "dp"}:
        raise ValueError(f"axes={list(axes)}: there is no {', '.join(sorted(strange))}")

    def extents(name: str, of: int) -> list[int]:
        return [one for one in range(1, of + 1) if of % one == 0 and (one == 1 or name in axes)]

    for tp in extents("tp", ranks):
        for cp in extents("cp", ranks // tp):
            for pp in extents("pp", ranks // tp // cp):
                dp = ranks // tp // cp // pp
                if pp > units or rows % dp or (dp > 1 and "dp" not in axes):
                    continue
                sizes = {"tp": tp, "cp": cp, "dp": dp, "pp": pp}
                for number in _microbatches(rows // dp, pp, microbatches):
                    for stage in stages if dp > 1 else (0,):
                        for again in recompute:
                            if again == "selective" and tp > 1:
                                continue  # divided layers sum products in place
                            for order in _orders(sizes, hosts):
                                yield Strategy(
                                    **sizes, stage=stage, microbatches=number, recompute=again,
                                    order=order,
                                )  # fmt: skip


def _microbatches(rows: int, pp: int, given: Sequence[int] | None) -> list[int]:
    if given is not None:
        if any(one < 1 for one in given):
            raise ValueError(f"microbatches={list(given)}: at least 1 is needed")
        return [one for one in given if rows % one == 0]
    powers = [2**i for i in range(_MOST_MICROBATCHES.bit_length())]
    most = 8 * pp if pp > 1 else 8
    return [one for one in powers if rows % one == 0 and one <= most]


def _orders(sizes: dict[str, int], hosts: int) -> list[str]:
    """Return the distinct placements, by which axes are inside hosts."""
    wide = [name for name in ORDER.split("-") if sizes[name] > 1]
    if hosts == 1 or len(wide) < 2:
        return [ORDER]
    thin = [name for name in ORDER.split("-") if sizes[name] == 1]
    return ["-".join([*order, *thin]) for order in permutations(wide)]


def _speeds_of_stages(strategy: Strategy, speeds: Sequence[float]) -> list[float]:
    """Return the speed of each stage: that of its slowest rank."""
    sizes, slowest = strategy.sizes, [float("inf")] * strategy.pp
    for rank, speed in enumerate(speeds):
        rest = rank
        for name, extent in sizes.items():
            rest, position = divmod(rest, extent)
            if name == "pp":
                slowest[position] = min(slowest[position], speed)
    return slowest


def _lacking(strategy: Strategy, units: Sequence[Unit], limit: float) -> str:
    """Describe the least memory that the strategy needs."""

    def total(begin: int, end: int, at: int) -> float:
        return float(rank_memory(units[begin:end], strategy, at).total)

    cuts = cut(len(units), strategy.pp, total)
    assert cuts is not None
    most = max(total(cuts[at], cuts[at + 1], at) for at in range(strategy.pp))
    return f"memory: needs {readable_bytes(most)} of {readable_bytes(limit)}"


def _rows(x: Batch) -> int:
    return next(int(one.shape[0]) for one in tree_leaves(x) if isinstance(one, torch.Tensor))


def _number_of_hosts() -> int:
    topology = job.current_runtime().topology
    place = Place(topology.local_rank, topology.local_size, topology.cross_rank)
    hosts = hosts_of(allgather_object(place, name=f"{_NAME}.hosts"))
    numbers = Counter(hosts)
    if len(set(numbers.values())) > 1 or hosts != sorted(hosts):
        raise ValueError(f"the hosts have different numbers of ranks: {dict(numbers)}")
    return len(numbers)
