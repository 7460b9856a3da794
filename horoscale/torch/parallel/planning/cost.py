"""The cost model: the time of a step for any strategy. Pure functions of measured numbers.

The parts of a step (horoscale/timeline/parts.py) are here:

    compute         a rank's average computation, including its turns if ranks share cores
    waiting         the computation of the slowest rank beyond the average
    bubble          the rest of a step without communication: a rank of a pipeline is idle
    communication   how much longer the step is because messages take time and are not hidden
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from horoscale.timeline.parts import Parts
from horoscale.torch.parallel.mesh import ranks_along
from horoscale.torch.parallel.pipeline.schedule import Action, Operation, make_schedule
from horoscale.torch.parallel.pipeline.simulate import simulate
from horoscale.torch.parallel.planning.dry_run import Unit
from horoscale.torch.parallel.planning.machine import (
    Link,
    Machine,
    Shape,
    ring_seconds,
    shape_of_groups,
)
from horoscale.torch.parallel.planning.memory import RankMemory, rank_memory
from horoscale.torch.parallel.planning.partition import cut
from horoscale.torch.parallel.planning.profile import Timing
from horoscale.torch.parallel.planning.strategy import Strategy


@dataclass(frozen=True)
class Cost:
    """The cost of a step, in seconds.

    Attributes:
        strategy: the strategy.
        cuts: the units where the stages begin, and where the last one ends.
        parts: the parts of the step.
        memory: the memory of the ranks of each stage.
    """

    strategy: Strategy
    cuts: tuple[int, ...]
    parts: Parts
    memory: tuple[RankMemory, ...]

    @property
    def step(self) -> float:
        """The duration of the step."""
        return self.parts.step

    @property
    def most_memory(self) -> int:
        """The bytes of the rank that needs most."""
        return max(one.total for one in self.memory)


class Group(Shape):
    """The ranks of an axis, and the times of their operations."""

    __slots__ = ()

    def allreduce(self, nbytes: float, machine: Machine) -> float:
        """Return the time of an allreduce: measured, or first inside hosts, then between them."""
        measured = machine.measured(self)
        if measured is not None:
            return measured.allreduce.seconds(nbytes)
        seconds = ring_seconds(nbytes, self.local, machine.collective)
        if self.hosts > 1:
            between = between_hosts(machine).shared(self.sharing)
            seconds += ring_seconds(nbytes, self.hosts, between)
        return seconds

    def allgather(self, nbytes: float, machine: Machine) -> float:
        """Return the time of an allgather of `nbytes` bytes in total: half of an allreduce's."""
        return self.allreduce(nbytes, machine) / 2

    def averages(self, nbytes: float, number: int, machine: Machine) -> tuple[float, float, float]:
        """Return the time to average `number` gradients of `nbytes` bytes in total.

        Returns:
            Seconds that are never hidden; seconds for the bytes; the fraction of the latter that a
            backward pass hides.
        """
        measured = machine.measured(self)
        if measured is None:
            return 0.0, self.allreduce(nbytes, machine), machine.overlap
        found = measured.averages
        return found.step + number * found.gradient, nbytes / found.bandwidth, found.overlap


def between_hosts(machine: Machine) -> Link:
    """Return the link of collectives between hosts; raise ValueError if it is unknown."""
    if machine.collective_between is None:
        raise ValueError("the link between hosts was not measured: say bandwidth=")
    return machine.collective_between


def group(strategy: Strategy, names: Sequence[str], ranks_per_host: int) -> Group:
    """Return the group of ranks that differ only on these axes, numbered host by host."""
    lines = {ranks_along(strategy.sizes, names, rank) for rank in range(ranks_per_host)}
    return Group(*shape_of_groups(lines, ranks_per_host))


def cost(
    strategy: Strategy,
    units: Sequence[Unit],
    timings: Sequence[Timing],
    machine: Machine,
    ranks_per_host: int,
    speeds: Sequence[float] | None = None,
    memory: float = float("inf"),
) -> Cost | None:
    """Compute the cost of a step.

    Args:
        strategy: the strategy.
        units: the units from a dry run of one microbatch on one rank of tp and cp.
        timings: the times of these units while all ranks of a host compute, without the turns of
            others.
        machine: the measurements.
        ranks_per_host: the number of neighboring ranks on a host.
        speeds: the relative speeds of the stages' ranks. None: all are equal.
        memory: the memory limit of a rank in bytes.

    Returns:
        The cost of the cuts whose slowest stage is fastest, among those that fit into memory. None:
        none fits.
    """
    speed = [1.0] * strategy.pp if speeds is None else list(speeds)
    if len(speed) != strategy.pp or min(speed) <= 0:
        raise ValueError(f"speeds={speed}: {strategy.pp} stages need one above 0 each")
    number = strategy.microbatches
    passes = [
        one.forward + again + one.backward + one.accumulate * (number - 1) / number
        for one, again in zip(timings, recomputed(units, timings, strategy, machine), strict=True)
    ]
    sums = [0.0, *accumulate(passes)]

    def stage_cost(begin: int, end: int, stage: int) -> float:
        if rank_memory(units[begin:end], strategy, stage).total > memory:
            return float("inf")
        return (sums[end] - sums[begin]) / speed[stage]

    cuts = cut(len(units), strategy.pp, stage_cost)
    if cuts is None:
        return None
    stages = [
        _Stage(
            units[begin:end], timings[begin:end], strategy, at, machine, ranks_per_host, speed[at]
        )
        for at, (begin, end) in enumerate(pairwise(cuts))
    ]
    message = _stage_message(strategy, stages, machine, ranks_per_host)
    # If ranks share cores, they must do all of a host's work in turns.
    turns = max(1.0, ranks_per_host / machine.slots)
    with_messages, _ = _play(strategy, stages, True, message, turns)
    silent, busy = _play(strategy, stages, False, 0.0, turns)
    mean = sum(busy) / len(busy)
    whole = max(silent, mean * turns)
    compute = min(whole, mean * turns)
    waiting = min(whole - compute, max(busy) - mean)
    return Cost(
        strategy,
        tuple(cuts),
        Parts(compute, max(0.0, with_messages - silent), whole - compute - waiting, waiting),
        tuple(
            rank_memory(units[begin:end], strategy, at)
            for at, (begin, end) in enumerate(pairwise(cuts))
        ),
    )


def recomputed(
    units: Sequence[Unit], timings: Sequence[Timing], strategy: Strategy, machine: Machine
) -> list[float]:
    """Return the time that each unit recomputes in the backward pass, in seconds.

    Selective recomputation omits matrix products. Their time is estimated from their operations.
    """
    if strategy.recompute is False:
        return [0.0] * len(units)
    if strategy.recompute != "selective":
        return [one.forward for one in timings]
    return [
        max(0.0, one.forward - unit.forward_flops / machine.flops)
        for unit, one in zip(units, timings, strict=True)
    ]


class _Stage:
    """The time of a stage for a microbatch, and at the end of a step."""

    def __init__(
        self,
        units: Sequence[Unit],
        timings: Sequence[Timing],
        strategy: Strategy,
        at: int,
        machine: Machine,
        ranks_per_host: int,
        speed: float,
    ) -> None:
        whole = Timing.combined(timings, [1 / speed] * len(timings))
        neighbours = (at > 0) + (at < strategy.pp - 1)
        beside = machine.overheads.microbatch + neighbours * machine.overheads.handover
        beside /= 2 * speed
        self.forward = whole.forward + beside
        self.backward = whole.backward + beside
        self.backward += sum(recomputed(units, timings, strategy, machine)) / speed
        self.accumulate = whole.accumulate
        divided = strategy.dp if strategy.stage else 1
        self.update = whole.update / divided + machine.overheads.step / speed
        self.busy = strategy.microbatches * (self.forward + self.backward) + self.update
        self.busy += (strategy.microbatches - 1) * self.accumulate
        self.sent_forward = self.sent_backward = 0.0
        tp = group(strategy, ["tp"], ranks_per_host)
        self.sends_to_hosts = tp.hosts > 1
        for one in (message for unit in units for message in unit.sent):
            send = tp.allreduce if one.kind == "allreduce" else tp.allgather
            seconds = send(one.nbytes, machine)
            if one.forward:
                self.sent_forward += seconds
            if not one.forward or strategy.recompute:  # recomputation sends messages again
                self.sent_backward += seconds
        self.average = self._averaging(units, strategy, machine, ranks_per_host)
        # ZeRO-3 gathers parameters before each pass, those of the next unit while one computes. On
        # one host they are in shared memory.
        dp = group(strategy, ["dp"], ranks_per_host)
        if strategy.stage == 3 and dp.hosts > 1:
            size = sum({k: v for unit in units for k, v in unit.parameters.items()}.values())
            fetch = dp.allgather(size, machine)
            self.sent_forward += fetch - machine.overlap * min(fetch, self.forward)
            self.sent_backward += fetch - machine.overlap * min(fetch, self.backward)
        self.input, self.output = units[0].input, units[-1].output

    def _averaging(
        self,
        units: Sequence[Unit],
        strategy: Strategy,
        machine: Machine,
        ranks_per_host: int,
    ) -> float:
        """Return the time that averaging gradients adds to the end of a step.

        A gradient is sent when it is ready, while those of the preceding units are computed. ZeRO
        leaves each rank the averages of its part, which is half of an allreduce. In stages 1 and 2
        the other half gathers parameters after the update (Rajbhandari et al. 2020, section 7); on
        one host they are in shared memory.
        """
        if strategy.dp * strategy.cp == 1:
            return 0.0
        trained = {k: unit.parameters[k] for unit in units for k in unit.trained}
        same = group(strategy, ["dp", "cp"], ranks_per_host)
        fixed, seconds, overlap = same.averages(sum(trained.values()), len(trained), machine)
        gathered = 0.0
        if strategy.stage and strategy.dp > 1:
            seconds /= 2
            gathered = seconds if strategy.stage < 3 and same.hosts > 1 else 0.0
        left = self.backward * (len(units) - 1) / len(units)
        return fixed + seconds - overlap * min(seconds, left) + gathered


def _stage_message(
    strategy: Strategy, stages: Sequence[_Stage], machine: Machine, ranks_per_host: int
) -> float:
    """Return the time of the longest message between stages."""
    if strategy.pp == 1:
        return 0.0
    nbytes = max(one.output for one in stages[:-1])
    along = group(strategy, ["pp"], ranks_per_host)
    if along.hosts == 1:
        return machine.message.seconds(nbytes)
    if machine.message_between is None:
        raise ValueError("the link between hosts was not measured: say bandwidth=")
    return machine.message_between.shared(along.sharing).seconds(nbytes)


def _play(
    strategy: Strategy, stages: Sequence[_Stage], sends: bool, message: float, turns: float
) -> tuple[float, list[float]]:
    """Return the duration of a step, and the busy time of each stage's rank.

    `turns`: the number of ranks that share a core.
    """

    def computing(operation: Operation) -> float:
        stage = stages[operation.stage]
        if operation.action is Action.FORWARD:
            return stage.forward
        return stage.backward + (stage.accumulate if operation.microbatch else 0.0)

    def sending(operation: Operation) -> float:
        if not sends:
            return 0.0
        stage = stages[operation.stage]
        is_forward = operation.action is Action.FORWARD
        return stage.sent_forward if is_forward else stage.sent_backward

    def duration(operation: Operation) -> float:
        return computing(operation) + sending(operation)

    # Inside a host the ranks reduce shared memory themselves; a network needs no core.
    on_core = computing if stages[0].sends_to_hosts else duration
    schedule = make_schedule("1f1b", strategy.pp, strategy.microbatches)
    cores = strategy.pp / turns
    played = simulate(schedule, strategy.pp, duration, message, cores, on_core)
    ends = [max(played.spans[one].end for one in program) for program in schedule]
    busy = [one.busy for one in stages]
    step = max(
        end + one.update + (one.average if sends else 0.0)
        for end, one in zip(ends, stages, strict=True)
    )
    return step, busy
