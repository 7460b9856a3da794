"""Machine: what ranks and links can do, as numbers. Pure data, and the times that it implies."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes latency + n / bandwidth, or what was measured.

    Attributes:
        latency: in seconds.
        bandwidth: in bytes a second.
        points: sizes in bytes, ascending, and the seconds that they took. Between them times are on
            lines; a smaller message takes as long as the smallest, and what a larger one has more
            than the largest goes by `bandwidth`.
    """

    latency: float
    bandwidth: float
    points: tuple[tuple[float, float], ...] = ()

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Link:
        """Return the link of which these sizes and times were measured; two or more, ascending."""
        (_, latency), (below, before), (above, last) = points[0], points[-2], points[-1]
        bandwidth = (above - below) / max(last - before, 1e-9)
        return cls(latency, bandwidth, tuple(points))

    def seconds(self, nbytes: float) -> float:
        """Return how long a message takes."""
        if not self.points:
            return self.latency + nbytes / self.bandwidth
        if nbytes <= self.points[0][0]:
            return self.points[0][1]
        for (below, first), (above, second) in pairwise(self.points):
            if nbytes <= above:
                return first + (second - first) * (nbytes - below) / (above - below)
        largest, last = self.points[-1]
        return last + (nbytes - largest) / self.bandwidth

    def shared(self, number: int) -> Link:
        """Return what is left for one of so many that use it at once."""
        points = tuple((n, self.latency + number * (t - self.latency)) for n, t in self.points)
        return Link(self.latency, self.bandwidth / number, points)


class Shape(NamedTuple):
    """How the ranks of a group lie.

    Attributes:
        local: how many of them are on one host, at most.
        hosts: on how many hosts they are.
        sharing: how many such groups use the link of a host at once.
    """

    local: int
    hosts: int
    sharing: int


def shape_of_groups(lines: Iterable[Sequence[int]], ranks_per_host: int) -> Shape:
    """Say how groups of ranks lie, of ranks that are numbered host by host.

    `lines` are the groups that the first host has ranks of; others are like them.
    """
    by_host = [Counter(rank // ranks_per_host for rank in line) for line in lines]
    by_host = [hosts for hosts in by_host if 0 in hosts]
    local = max(max(hosts.values()) for hosts in by_host)
    spanning = sum(len(hosts) > 1 for hosts in by_host)
    return Shape(local, max(map(len, by_host)), max(1, spanning))


@dataclass(frozen=True)
class Averages:
    """What averaging gradients takes, as par.DistributedOptimizer() does it.

    Attributes:
        step: seconds of each step, whatever its gradients are.
        gradient: seconds of each gradient.
        bandwidth: bytes of gradients a second.
        overlap: the part of the bytes' time that the backward pass hides, from 0 to 1.
    """

    step: float
    gradient: float
    bandwidth: float
    overlap: float


@dataclass(frozen=True)
class Measured:
    """What was measured of groups of ranks that lie alike, all of them at once.

    Attributes:
        shape: how they lie.
        allreduce: in a layer that is divided, by the bytes of the tensor; with what the layer
            takes more than a whole one of its size.
        averages: of gradients.
    """

    shape: Shape
    allreduce: Link
    averages: Averages


@dataclass(frozen=True)
class Overheads:
    """Seconds that a rank computes beside the layers' operations.

    Attributes:
        step: for each step: cutting the batch, clearing gradients.
        microbatch: for each microbatch, half of it in each pass.
        handover: for each microbatch that goes to a neighboring stage and comes back.
    """

    step: float = 0.0
    microbatch: float = 0.0
    handover: float = 0.0


@dataclass(frozen=True)
class Machine:
    """What was measured.

    Attributes:
        flops: floating-point operations a second in a product of matrices, of one rank while as
            many compute as there are cores for.
        memory_bandwidth: bytes a second that one rank copies meanwhile, read and written.
        slots: how many ranks of a host can compute at once: its cores by a rank's threads. Less
            than one where hosts, as containers, share a machine's cores.
        message: a message between two ranks of a host, one of which waits for it.
        collective: for an allreduce inside a host, as ring_seconds() counts its steps and bytes.
        message_between: a message between two hosts; None: there is one host.
        collective_between: for an allreduce between hosts.
        overlap: the part of a collective that computing hides, from 0 to 1.
        overheads: of steps and microbatches.
        groups: what was measured of groups. Of others ring_seconds() tells.
    """

    flops: float
    memory_bandwidth: float
    slots: float
    message: Link
    collective: Link
    message_between: Link | None
    collective_between: Link | None
    overlap: float
    overheads: Overheads = field(default_factory=Overheads)
    groups: tuple[Measured, ...] = ()

    def measured(self, shape: Shape) -> Measured | None:
        """Return what was measured of such groups, if they were."""
        return next((one for one in self.groups if one.shape == shape), None)


def ring_seconds(nbytes: float, ranks: int, link: Link) -> float:
    """Return what an allreduce takes: log2(ranks) latencies, and the bytes of a ring.

    Each rank sends and receives 2 (ranks - 1) / ranks of them (Patarasuk and Yuan 2009).
    """
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    return steps * link.latency + 2 * (ranks - 1) / ranks * nbytes / link.bandwidth


def as_ring(small: tuple[float, float], large: tuple[float, float], ranks: int) -> Link:
    """Return the link with which ring_seconds() gives these times of two sizes."""
    steps = math.ceil(math.log2(ranks))
    moved = 2 * (ranks - 1) / ranks * (large[0] - small[0])
    return Link(small[1] / steps, moved / max(large[1] - small[1], 1e-9))
