"""The cost model: what a step takes, however it is divided. Pure functions of measured numbers.

A step is divided into compute, exposed communication, bubble and waiting, which add up:

    compute         what a rank computes, on average; where ranks share cores, their turns as well
    waiting         what the slowest rank computes more than the average one
    bubble          what is left of a step without communication: a rank of a pipeline has nothing
    communication   how much longer a step is because messages take time and are not hidden
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from horoscale.torch.parallel.mesh import ranks_along
from horoscale.torch.parallel.pipeline.schedule import Action, Operation, make_schedule
from horoscale.torch.parallel.pipeline.simulate import simulate
from horoscale.torch.parallel.planning.calibration import Link, Machine, ring_seconds
from horoscale.torch.parallel.planning.dry_run import Unit
from horoscale.torch.parallel.planning.memory import RankMemory, rank_memory
from horoscale.torch.parallel.planning.partition import cut
from horoscale.torch.parallel.planning.profile import Timing
from horoscale.torch.parallel.planning.strategy import Strategy


@dataclass(frozen=True)
class Cost:
    """What a step takes, in seconds; the four parts add up to it.

    Attributes:
        strategy: how it is divided.
        cuts: the units where the stages begin, and where the last one ends.
        compute: see above, as the other parts.
        communication: exposed.
        bubble: of the pipeline.
        waiting: for slower ranks.
        memory: of each stage what its ranks need.
    """

    strategy: Strategy
    cuts: tuple[int, ...]
    compute: float
    communication: float
    bubble: float
    waiting: float
    memory: tuple[RankMemory, ...]

    @property
    def step(self) -> float:
        """How long a step takes."""
        return self.compute + self.communication + self.bubble + self.waiting

    @property
    def efficiency(self) -> float:
        """1 - exposed communication / step."""
        return 1 - self.communication / self.step

    @property
    def most_memory(self) -> int:
        """The bytes of the rank that needs most."""
        return max(one.total for one in self.memory)


@dataclass(frozen=True)
class Group:
    """The ranks of an axis, as far as it matters where they are.

    Attributes:
        local: how many of them are on one host, at most.
        hosts: on how many hosts they are.
        sharing: how many such groups use the link of a host at once.
    """

    local: int
    hosts: int
    sharing: int

    def allreduce(self, nbytes: float, machine: Machine) -> float:
        """Return what an allreduce takes: inside hosts, then between them."""
        seconds = ring_seconds(nbytes, self.local, machine.collective)
        if self.hosts > 1:
            between = between_hosts(machine)
            shared = Link(between.latency, between.bandwidth / self.sharing)
            seconds += ring_seconds(nbytes, self.hosts, shared)
        return seconds

    def allgather(self, nbytes: float, machine: Machine) -> float:
        """Return what an allgather of so many bytes in all takes: half of an allreduce's."""
        return self.allreduce(nbytes, machine) / 2


def between_hosts(machine: Machine) -> Link:
    """Return the link of collectives between hosts; ValueError if none is known."""
    if machine.collective_between is None:
        raise ValueError("the link between hosts was not measured: say bandwidth=")
    return machine.collective_between


def group(strategy: Strategy, names: Sequence[str], ranks_per_host: int) -> Group:
    """Say where the ranks are that differ on these axes alone, numbered host by host."""
    sizes = strategy.sizes
    seen: set[int] = set()
    by_host: list[Counter[int]] = []  # of each group that the first host has ranks of
    for rank in range(ranks_per_host):
        if rank not in seen:
            line = ranks_along(sizes, names, rank)
            seen.update(line)
            by_host.append(Counter(one // ranks_per_host for one in line))
    local = max(max(hosts.values()) for hosts in by_host)
    spanning = sum(len(hosts) > 1 for hosts in by_host)
    return Group(local, max(map(len, by_host)), max(1, spanning))


def cost(
    strategy: Strategy,
    units: Sequence[Unit],
    timings: Sequence[Timing],
    machine: Machine,
    ranks_per_host: int,
    speeds: Sequence[float] | None = None,
    memory: float = float("inf"),
) -> Cost | None:
    """Say what a step takes.

    Args:
        strategy: how the step is divided.
        units: of a dry run of one microbatch on one rank of tp and cp.
        timings: of these units, while the ranks that a host has cores for compute.
        machine: measured.
        ranks_per_host: how many neighbouring ranks a host has.
        speeds: of the stages' ranks, as factors; None: all are alike.
        memory: bytes that a rank has.

    Returns:
        The cost, with the stages cut where the slowest one is fastest among those that have memory
        for it. None: no cut has.
    """
    speed = [1.0] * strategy.pp if speeds is None else list(speeds)
    if len(speed) != strategy.pp or min(speed) <= 0:
        raise ValueError(f"speeds={speed}: {strategy.pp} stages need one above 0 each")
    passes = [
        (one.forward, one.backward + (one.forward if strategy.recompute else 0.0))
        for one in timings
    ]
    sums = [0.0, *accumulate(forward + backward for forward, backward in passes)]

    def stage_cost(begin: int, end: int, stage: int) -> float:
        if rank_memory(units[begin:end], strategy, stage).total > memory:
            return float("inf")
        return (sums[end] - sums[begin]) / speed[stage]

    cuts = cut(len(units), strategy.pp, stage_cost)
    if cuts is None:
        return None
    stages = [
        _Stage(units[begin:end], timings[begin:end], strategy, machine, ranks_per_host, speed[at])
        for at, (begin, end) in enumerate(pairwise(cuts))
    ]
    message = _stage_message(strategy, stages, machine, ranks_per_host)
    with_messages, _ = _play(strategy, stages, True, message)
    silent, busy = _play(strategy, stages, False, 0.0)
    # Ranks that share cores: all of a host's work has to be done by them.
    turns = max(1.0, ranks_per_host / machine.slots)
    mean = sum(busy) / len(busy)
    whole = max(silent, mean * turns)
    compute = min(whole, mean * turns)
    waiting = min(whole - compute, max(busy) - mean)
    return Cost(
        strategy,
        tuple(cuts),
        compute,
        max(0.0, with_messages - silent),
        whole - compute - waiting,
        waiting,
        tuple(
            rank_memory(units[begin:end], strategy, at)
            for at, (begin, end) in enumerate(pairwise(cuts))
        ),
    )


class _Stage:
    """What a stage takes for a microbatch, and at the end of a step."""

    def __init__(
        self,
        units: Sequence[Unit],
        timings: Sequence[Timing],
        strategy: Strategy,
        machine: Machine,
        ranks_per_host: int,
        speed: float,
    ) -> None:
        self.forward = sum(one.forward for one in timings) / speed
        self.backward = sum(one.backward for one in timings) / speed
        if strategy.recompute:
            self.backward += self.forward
        divided = strategy.dp if strategy.stage else 1
        self.update = sum(one.update for one in timings) / speed / divided
        self.sent_forward = self.sent_backward = 0.0
        tp = group(strategy, ["tp"], ranks_per_host)
        for one in (message for unit in units for message in unit.sent):
            send = tp.allreduce if one.kind == "allreduce" else tp.allgather
            seconds = send(one.nbytes, machine)
            if one.forward:
                self.sent_forward += seconds
            if not one.forward or strategy.recompute:
                self.sent_backward += seconds
        self.average = self._averaging(units, strategy, machine, ranks_per_host)
        # ZeRO-3 fetches parameters before each pass, of the next unit while one computes. On one
        # host they are memory that all ranks share.
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
        """Return what averaging gradients adds to the end of a step.

        A gradient is sent when it is there, while those of the units before it are computed. ZeRO
        leaves each rank the averages of its part, which is half of an allreduce, and in stages 1
        and 2 the other half gathers parameters after the update (Rajbhandari et al. 2020, section
        7); on one host they are memory that all ranks share.
        """
        if strategy.dp * strategy.cp == 1:
            return 0.0
        trained = {k: unit.parameters[k] for unit in units for k in unit.trained}
        same = group(strategy, ["dp", "cp"], ranks_per_host)
        seconds = same.allreduce(sum(trained.values()), machine)
        gathered = 0.0
        if strategy.stage and strategy.dp > 1:
            seconds /= 2
            gathered = seconds if strategy.stage < 3 and same.hosts > 1 else 0.0
        left = self.backward * (len(units) - 1) / len(units)
        return seconds - machine.overlap * min(seconds, left) + gathered


def _stage_message(
    strategy: Strategy, stages: Sequence[_Stage], machine: Machine, ranks_per_host: int
) -> float:
    """Return how long the longest message between stages takes."""
    if strategy.pp == 1:
        return 0.0
    nbytes = max(one.output for one in stages[:-1])
    if group(strategy, ["pp"], ranks_per_host).hosts == 1:
        return machine.message.seconds(nbytes)
    if machine.message_between is None:
        raise ValueError("the link between hosts was not measured: say bandwidth=")
    return machine.message_between.seconds(nbytes)


def _play(
    strategy: Strategy, stages: Sequence[_Stage], sends: bool, message: float
) -> tuple[float, list[float]]:
    """Return how long a step takes, and how long each stage's rank is busy with it."""

    def duration(operation: Operation) -> float:
        stage = stages[operation.stage]
        if operation.action is Action.FORWARD:
            return stage.forward + (stage.sent_forward if sends else 0.0)
        return stage.backward + (stage.sent_backward if sends else 0.0)

    schedule = make_schedule("1f1b", strategy.pp, strategy.microbatches)
    played = simulate(schedule, strategy.pp, duration, message)
    ends = [max(played.spans[one].end for one in program) for program in schedule]
    busy = [strategy.microbatches * (one.forward + one.backward) + one.update for one in stages]
    step = max(
        end + one.update + (one.average if sends else 0.0)
        for end, one in zip(ends, stages, strict=True)
    )
    return step, busy
