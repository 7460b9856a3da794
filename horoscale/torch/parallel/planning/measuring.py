"""Measures a job's ranks and links with the operations of training: collectives, messages, steps.

Ranks compute before they communicate, as in training, so they arrive at different times, and
waiting ranks are asleep. The time of the computation is subtracted.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from horoscale.common import allgather_object
from horoscale.common.process_sets import (
    ProcessSet,
    add_process_set,
    global_process_set,
    remove_process_set,
)
from horoscale.common.synchronization import barrier
from horoscale.torch.messages import recv, send
from horoscale.torch.optimizer import DistributedOptimizer
from horoscale.torch.parallel.linear import ColumnParallelLinear, RowParallelLinear
from horoscale.torch.parallel.mesh import Axis, ranks_along
from horoscale.torch.parallel.pipeline.pipeline import Pipeline
from horoscale.torch.parallel.planning.machine import (
    Averages,
    Link,
    Machine,
    Measured,
    Overheads,
    Shape,
    as_ring,
    ring_seconds,
    shape_of_groups,
)
from horoscale.torch.parallel.tags import CALIBRATION

NAME = "horoscale.calibration"
_SIZES = (1 << 10, 16 << 10, 64 << 10, 4 << 20)  # bytes: from latency-bound to bandwidth-bound
_MATRIX, _BETWEEN = 512, 256  # widths of the computation, in operations and between messages
_COPIED = 32 << 20
_MOST_GROUPS = 8
_FEW, _MANY = 2, 34  # numbers of small gradients, to determine the cost of one
_LAYERS, _WIDTH, _ROWS = 4, 512, 64  # layers with large gradients, their width, rows of the input
_MICROBATCHES = 8
_BETWEEN_MATRIX = torch.ones(_BETWEEN, _BETWEEN)


class Rank(NamedTuple):
    """The location of a rank.

    Attributes:
        host: the number of its host.
        name: the name of that host.
        cores: the number of cores that it may use.
        threads: the number of threads with which PyTorch computes.
        machine: a key that is equal for ranks that share cores.
    """

    host: int
    name: str
    cores: int
    threads: int
    machine: str


def this_machine() -> str:
    """Return a key that is equal for processes that share cores, whatever their hosts' names.

    Containers and network namespaces of one machine share its kernel. The key consists of the
    kernel's identity and their cores.
    """
    try:
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        kernel = os.uname().nodename
    return f"{kernel} {sorted(os.sched_getaffinity(0))}"


def slots_of(ranks: Sequence[Rank]) -> list[float]:
    """Return the number of ranks on each rank's host that can compute at the same time.

    Hosts that share a machine's cores have a part of them each. Ranks that are bound to separate
    cores have these to themselves.
    """
    sharing = Counter(one.machine for one in ranks)
    of_hosts: dict[int, float] = defaultdict(float)
    for one in ranks:
        of_hosts[one.host] += max(1.0, one.cores / one.threads) / sharing[one.machine]
    return [of_hosts[one.host] for one in ranks]


def computing(ranks: Sequence[Rank]) -> list[bool]:
    """Return for each rank whether it computes while as many do as there are cores for."""
    taken: dict[str, int] = {}
    found = []
    for rank in ranks:
        before = taken.get(rank.machine, 0)
        taken[rank.machine] = before + 1
        found.append(before < max(1.0, rank.cores / rank.threads))
    return found


def measure(ranks: Sequence[Rank], own: int, dtype: torch.dtype, seconds: float) -> Machine:
    """Measure a job. Collective.

    Args:
        ranks: all ranks.
        own: the number of this rank.
        dtype: the dtype of matrix products.
        seconds: the approximate time limit.
    """
    share = seconds / 10
    hosts = [one.host for one in ranks]
    computes = computing(ranks)[own]
    barrier()
    flops = flops_of(dtype, share) if computes else math.inf
    barrier()
    copied = bandwidth_of(share) if computes else math.inf
    barrier()
    overheads = overheads_of(share) if computes else None
    inside = _pair(len(ranks), lambda a, b: hosts[a] == hosts[b])
    between = _pair(len(ranks), lambda a, b: hosts[a] != hosts[b])
    message = _messages(own, inside, share) if inside else Link(20e-6, copied / 4)
    message_between = _messages(own, between, share) if between else None
    neighbours = inside or between
    handover = _handover(own, neighbours, len(ranks), share) if neighbours else 0.0
    shapes = group_shapes(hosts)
    groups = tuple(
        _group(shape, lines, own, dtype, 4 * share / len(shapes)) for shape, lines in shapes.items()
    )
    said: list[Any] = allgather_object(
        (flops, copied, message, message_between, overheads), name=f"{NAME}.figures"
    )
    able = [one for one in said if math.isfinite(one[0])]
    first = said[0]
    collective, collective_between = _as_links(groups, first[2], first[3])
    return Machine(
        statistics.median(one[0] for one in able),
        statistics.median(one[1] for one in able),
        min(slots_of(ranks)),
        first[2],
        collective,
        first[3],
        collective_between,
        statistics.median(one.averages.overlap for one in groups) if groups else 0.0,
        Overheads(
            statistics.median(one[4].step for one in able),
            statistics.median(one[4].microbatch for one in able),
            handover,
        ),
        groups,
    )


# ---------------------------------------------------------------- groups of ranks


def group_shapes(hosts: Sequence[int]) -> dict[Shape, list[tuple[int, ...]]]:
    """Return the placements that axes of meshes can have on these hosts, and their groups.

    The groups of a placement contain all ranks, and run at the same time, as those of an axis do.
    The largest groups come first; there are only as many placements as there is time to measure.
    """
    number = len(hosts)
    per_host = max(map(hosts.count, hosts), default=1)
    if any(hosts[rank] != rank // per_host for rank in range(number)):  # uneven hosts
        return {Shape(per_host, len(set(hosts)), 1): [tuple(range(number))]} if number > 1 else {}
    found: dict[Shape, list[tuple[int, ...]]] = {}
    for size in sorted((n for n in range(2, number + 1) if number % n == 0), reverse=True):
        for stride in (n for n in range(1, number // size + 1) if number // size % n == 0):
            sizes = {"inner": stride, "group": size, "outer": number // size // stride}
            lines = sorted({ranks_along(sizes, ["group"], rank) for rank in range(number)})
            found.setdefault(shape_of_groups(lines, per_host), lines)
    return dict(list(found.items())[:_MOST_GROUPS])


def _group(
    shape: Shape, lines: Sequence[tuple[int, ...]], own: int, dtype: torch.dtype, seconds: float
) -> Measured:
    """Measure groups with the same placement, all at the same time."""
    line = next(one for one in lines if own in one)
    everyone = len(lines) == 1
    group = global_process_set
    if not everyone:
        group = add_process_set(line, distinct=True, members_only=True)
    name = f"{NAME}.{shape.local}.{shape.hosts}.{shape.sharing}"
    axis = Axis("calibration", line, line.index(own), group)
    times = [(float(n), _typical_of_all(_Layers(n, axis, dtype).run, seconds / 10)) for n in _SIZES]
    averages = _averages(group, len(line), name, dtype, seconds)
    if not everyone:
        barrier()
        remove_process_set(group)
    return Measured(shape, Link.through(times), averages)


def _as_links(
    groups: Sequence[Measured], message: Link, message_between: Link | None
) -> tuple[Link, Link | None]:
    """Return the links inside a host and between hosts with which ring_seconds() gives the times.

    They are derived from the largest measured groups on one host, and on several hosts.
    """

    def ends(allreduce: Link) -> tuple[tuple[float, float], tuple[float, float]]:
        return allreduce.points[0], allreduce.points[-1]

    inside, between = message, message_between
    by_size = sorted(groups, key=lambda one: one.shape.local * one.shape.hosts)
    for one in by_size:
        local, hosts, sharing = one.shape
        if hosts == 1:
            inside = as_ring(*ends(one.allreduce), local)
            continue
        rest = [  # the remaining time is that of the hosts' links
            (n, max(t - ring_seconds(n, local, inside), t / 10)) for n, t in ends(one.allreduce)
        ]
        ring = as_ring(rest[0], rest[1], hosts)
        between = Link(ring.latency, ring.bandwidth * sharing)
    return inside, between


class _Layers:
    """Two layers divided by tensor parallelism: an allreduce in each pass, as in training."""

    def __init__(self, nbytes: int, axis: Axis, dtype: torch.dtype) -> None:
        """Prepare allreduces of `nbytes` bytes."""
        hidden = 32
        self._plain = nn.Sequential(
            nn.Linear(_BETWEEN, hidden, bias=False, dtype=dtype),
            nn.Linear(hidden, _BETWEEN, bias=False, dtype=dtype),
        )
        whole = hidden * axis.size
        self._divided = nn.Sequential(
            ColumnParallelLinear(_BETWEEN, whole, axis, bias=False, dtype=dtype),
            RowParallelLinear(whole, _BETWEEN, axis, bias=False, dtype=dtype),
        )
        rows = nbytes // (_BETWEEN * dtype.itemsize)
        self._x = torch.ones(rows, _BETWEEN, dtype=dtype)

    def run(self) -> tuple[float, float]:
        """Return half of the time of the divided layers, and half of that of undivided ones."""
        alone = self._pass(self._plain)
        return self._pass(self._divided) / 2, alone / 2

    def _pass(self, layers: nn.Module) -> float:
        x = self._x.detach().requires_grad_()
        begin = time.perf_counter()
        layers(x).backward(self._x)
        taken = time.perf_counter() - begin
        layers.zero_grad()
        return taken


# ---------------------------------------------------------------- gradients


class _Chain:
    """Layers whose gradients are averaged as in training, or not averaged."""

    def __init__(
        self, layers: int, width: int, rows: int, dtype: torch.dtype, group: ProcessSet, name: str
    ) -> None:
        made = [nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(layers)]
        self._model = nn.Sequential(*made)
        self._x = torch.ones(rows, width, dtype=dtype)
        named = ((f"{name}.{layers}.{n}", p) for n, p in self._model.named_parameters())
        plain = torch.optim.SGD(self._model.parameters(), lr=0.0)
        self._optimizer = DistributedOptimizer(plain, named, process_set=group)

    def averaged(self) -> tuple[float, float]:
        """Return the time of a backward pass until all gradients are averaged, and without."""
        alone = self.alone()[0]
        self._optimizer.zero_grad()
        loss = self._model(self._x).sum()
        begin = time.perf_counter()
        loss.backward()
        self._optimizer.synchronize()
        taken = time.perf_counter() - begin
        self._optimizer.zero_grad()
        return taken, alone

    def alone(self) -> tuple[float, float]:
        """Return the time of a backward pass without averaging."""
        with self._optimizer.no_sync():
            loss = self._model(self._x).sum()
            begin = time.perf_counter()
            loss.backward()
            taken = time.perf_counter() - begin
        self._model.zero_grad()
        return taken, 0.0


def _averages(
    group: ProcessSet, ranks: int, name: str, dtype: torch.dtype, seconds: float
) -> Averages:
    """Measure the time to average gradients in a group, and how much of it is hidden."""

    def chain(layers: int, width: int, rows: int) -> _Chain:
        return _Chain(layers, width, rows, dtype, group, f"{name}.{width}.{rows}")

    few, many, sent = (
        _typical_of_all(chain(*sizes).averaged, seconds / 8)
        for sizes in ((_FEW, 8, 1), (_MANY, 8, 1), (_LAYERS, _WIDTH, 1))
    )
    gradient = max(0.0, many - few) / (_MANY - _FEW)
    step = max(0.0, few - _FEW * gradient)
    beside = step + _LAYERS * gradient
    nbytes = _LAYERS * _WIDTH**2 * dtype.itemsize
    of_bytes = max(sent - beside, nbytes / 1e11)
    # A backward pass that is twice as long shows how much of the time is hidden.
    some = _typical_of_all(chain(_LAYERS, _WIDTH, _ROWS).alone, seconds / 16)
    rows = min(4096, max(_ROWS, math.ceil(_ROWS * 2 * of_bytes / some)))
    longer = chain(_LAYERS, _WIDTH, rows)
    alone = _typical_of_all(longer.alone, seconds / 16)
    left = _typical_of_all(longer.averaged, seconds / 8)
    hidden = of_bytes - max(0.0, left - beside)
    hideable = min(of_bytes, alone * (_LAYERS - 1) / _LAYERS)
    return Averages(step, gradient, nbytes / of_bytes, min(1.0, max(0.0, hidden / hideable)))


# ---------------------------------------------------------------- messages


def _pair(ranks: int, fits: Callable[[int, int], bool]) -> tuple[int, int] | None:
    """Return two ranks with such a link between them, or None."""
    return next((pair for pair in combinations(range(ranks), 2) if fits(*pair)), None)


def _messages(rank: int, pair: tuple[int, int], seconds: float) -> Link:
    times = [
        (float(n), _typical_of_all(partial(_ping, rank, pair, n), seconds / 4, sum) / 2)
        for n in _SIZES
    ]
    return Link.through(times)


def _ping(rank: int, pair: tuple[int, int], nbytes: int) -> tuple[float, float]:
    """Send a message there and back; one rank computes while the other sleeps."""
    if rank not in pair:
        return 0.0, 0.0
    tensor = torch.zeros(nbytes, dtype=torch.uint8)
    begin = time.perf_counter()
    if rank == pair[0]:
        computed = _compute()
        send(tensor, pair[1], CALIBRATION)
        recv(tensor, pair[1], CALIBRATION)
    else:
        recv(tensor, pair[0], CALIBRATION)
        computed = _compute()
        send(tensor, pair[0], CALIBRATION)
    return time.perf_counter() - begin, computed


def _handover(rank: int, pair: tuple[int, int], ranks: int, seconds: float) -> float:
    """Return a rank's computation to pass a microbatch to a stage and get it back.

    This is processor time; it excludes waiting.
    """
    found = 0.0
    if rank in pair:
        group = global_process_set
        if ranks > 2:
            group = add_process_set(pair, distinct=True, members_only=True)
        axis = Axis("calibration", pair, pair.index(rank), group)
        alone = Axis("calibration", (rank,), 0)
        found = _of_microbatch(axis, seconds / 2) - _of_microbatch(alone, seconds / 2)
        if ranks > 2:
            remove_process_set(group)
    said = allgather_object(found, name=f"{NAME}.handover")
    return float(max(0.0, sum(said[one] for one in pair) / 2))


def _of_microbatch(axis: Axis, seconds: float) -> float:
    """Return the processor time of a microbatch in a pipeline with a small layer in each stage."""
    layer, x = nn.Linear(_BETWEEN, _BETWEEN), torch.ones(64 * _MICROBATCHES, _BETWEEN)
    stages = [layer if at == axis.rank else None for at in range(axis.size)]

    def typical(microbatches: int, rows: int) -> float:
        pipe = Pipeline(stages, axis, loss=lambda y, _: y.sum(), microbatches=microbatches)
        times = []
        for _ in range(max(5, min(20, int(seconds / 2 / 0.01)))):
            begin = time.thread_time()
            pipe.step(x[:rows], x[:rows])
            times.append(time.thread_time() - begin)
            layer.zero_grad()
        return float(statistics.median(times))

    many, one = typical(_MICROBATCHES, 64 * _MICROBATCHES), typical(1, 64)
    return float(many - one) / (_MICROBATCHES - 1)


# ---------------------------------------------------------------- one rank


def flops_of(dtype: torch.dtype, seconds: float) -> float:
    """Return the floating-point operations per second of a matrix product."""
    one = torch.ones(_MATRIX, _MATRIX, dtype=dtype)
    return 2 * _MATRIX**3 / _typical(lambda: torch.mm(one, one), seconds)


def bandwidth_of(seconds: float) -> float:
    """Return the bytes per second that copying reads and writes."""
    source = torch.zeros(_COPIED, dtype=torch.uint8)
    target = torch.zeros_like(source)
    return 2 * _COPIED / _typical(lambda: target.copy_(source), seconds)


def overheads_of(seconds: float) -> Overheads:
    """Return the overheads of par.Pipeline besides its layers, with one stage, on this rank."""
    layer, x = nn.Linear(8, 8), torch.ones(64, 8)
    axis = Axis("calibration", (0,), 0)

    def loss(y: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return y.sum()

    def bare() -> None:
        torch.autograd.backward(loss(layer(x[:8]), x))

    one, many = (
        Pipeline([layer], axis, loss=loss, microbatches=number) for number in (1, _MICROBATCHES)
    )

    def run(pipe: Pipeline) -> None:
        layer.zero_grad()
        pipe.step(x, x)

    shortest, longest = (
        _typical(partial(run, pipe), seconds / 3, most=200) for pipe in (one, many)
    )
    module = _typical(bare, seconds / 3, most=200)
    microbatch = max(0.0, longest - shortest) / (_MICROBATCHES - 1)
    return Overheads(max(0.0, shortest - microbatch), max(0.0, microbatch - module))


def _compute() -> float:
    """Compute about as long as a layer; return the time."""
    begin = time.perf_counter()
    torch.mm(_BETWEEN_MATRIX, _BETWEEN_MATRIX)
    return time.perf_counter() - begin


# ---------------------------------------------------------------- times


def _typical_of_all(
    call: Callable[[], tuple[float, float]],
    seconds: float,
    together: Callable[[Sequence[float]], float] = max,
) -> float:
    """Return the median time of a call on all ranks, over as many calls as fit into the time.

    Args:
        call: returns its time, and how much of it was computation.
        seconds: the time for all calls.
        together: combines the ranks' computation: max if they compute at the same time, sum if in
            turn.
    """

    def once() -> tuple[float, float]:
        barrier()
        return call()

    once()
    first = max(taken for taken, _ in allgather_object(once(), name=f"{NAME}.first"))
    calls = max(5, min(20, int(seconds / max(first, 1e-6))))
    everyone = allgather_object([once() for _ in range(calls)], name=f"{NAME}.times")
    times = [
        max(0.0, max(taken for taken, _ in of_call) - together([one for _, one in of_call]))
        for of_call in zip(*everyone, strict=True)
    ]
    return float(statistics.median(times))


def _typical(call: Callable[[], Any], seconds: float, most: int = 50) -> float:
    """Return the median time of as many calls as fit into the time."""
    call()
    end = time.perf_counter() + seconds
    times = [_seconds(call)]
    while time.perf_counter() < end and len(times) < most:
        times.append(_seconds(call))
    return statistics.median(times)


def _seconds(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
