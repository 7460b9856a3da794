"""Machine: the performance of ranks and links. Pure data, and the times that follow from it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple


@dataclass(frozen=True)
class Link:
    """A message of n bytes takes latency + n / bandwidth, or a measured time.

    Attributes:
        latency: the latency in seconds.
        bandwidth: the bandwidth in bytes per second.
        points: sizes in bytes, ascending, and their measured times in seconds. Times between them
            are interpolated linearly. A smaller message takes as long as the smallest; the excess
            of a larger one over the largest takes time by `bandwidth`.
    """

    latency: float
    bandwidth: float
    points: tuple[tuple[float, float], ...] = ()

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Link:
        """Return the link with these measured sizes and times: two or more, ascending."""
        (_, latency), (below, before), (above, last) = points[0], points[-2], points[-1]
        bandwidth = (above - below) / max(last - before, 1e-9)
        return cls(latency, bandwidth, tuple(points))

    def seconds(self, nbytes: float) -> float:
        """Return the time of a message."""
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
        """Return the link that remains for each of `number` users at the same time."""
        points = tuple((n, self.latency + number * (t - self.latency)) for n, t in self.points)
        return Link(self.latency, self.bandwidth / number, points)


class Shape(NamedTuple):
    """The placement of the ranks of a group.

    Attributes:
        local: the maximum number of them on one host.
        hosts: the number of hosts.
        sharing: the number of such groups that use a host's link at the same time.
    """

    local: int
    hosts: int
    sharing: int


def shape_of_groups(lines: Iterable[Sequence[int]], ranks_per_host: int) -> Shape:
    """Return the placement of groups of ranks that are numbered host by host.

    `lines` are the groups with ranks on the first host; the others are alike.
    """
    by_host = [Counter(rank // ranks_per_host for rank in line) for line in lines]
    by_host = [hosts for hosts in by_host if 0 in hosts]
    local = max(max(hosts.values()) for hosts in by_host)
    spanning = sum(len(hosts) > 1 for hosts in by_host)
    return Shape(local, max(map(len, by_host)), max(1, spanning))


@dataclass(frozen=True)
class Averages:
    """The time to average gradients as par.DistributedOptimizer() does.

    Attributes:
        step: seconds for each step, whatever its gradients.
        gradient: seconds for each gradient.
        bandwidth: bytes of gradients per second.
        overlap: the fraction of the bytes' time that the backward pass hides, from 0 to 1.
    """

    step: float
    gradient: float
    bandwidth: float
    overlap: float


@dataclass(frozen=True)
class Measured:
    """Measurements of groups with the same placement, all running at the same time.

    Attributes:
        shape: the placement.
        allreduce: the time of an allreduce in a divided layer, by the bytes of the tensor. Includes
            the additional time of the layer over a whole one of its size.
        averages: the time to average gradients.
    """

    shape: Shape
    allreduce: Link
    averages: Averages


@dataclass(frozen=True)
class Overheads:
    """Seconds that a rank computes besides the layers' operations.

    Attributes:
        step: for each step: dividing the batch, clearing gradients.
        microbatch: for each microbatch, half of it in each pass.
        handover: for each microbatch that goes to a neighboring stage and comes back.
    """

    step: float = 0.0
    microbatch: float = 0.0
    handover: float = 0.0


@dataclass(frozen=True)
class Machine:
    """The measurements.

    Attributes:
        flops: floating-point operations per second in a matrix product, of one rank while as many
            compute as there are cores for.
        memory_bandwidth: bytes per second that one rank then copies, read and written.
        slots: the number of ranks on a host that can compute at the same time: its cores divided by
            a rank's threads. Less than one if hosts, such as containers, share a machine's cores.
        message: a message between two ranks of a host, one of which waits for it.
        collective: an allreduce inside a host, with steps and bytes as in ring_seconds().
        message_between: a message between two hosts. None: there is one host.
        collective_between: an allreduce between hosts.
        overlap: the fraction of a collective that computation hides, from 0 to 1.
        overheads: of steps and microbatches.
        groups: measurements of groups. For other groups, ring_seconds() applies.
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
        """Return the measurements of groups with this placement, or None."""
        return next((one for one in self.groups if one.shape == shape), None)


def ring_seconds(nbytes: float, ranks: int, link: Link) -> float:
    """Return the time of an allreduce: log2(ranks) latencies, and the bytes of a ring.

    Each rank sends and receives 2 (ranks - 1) / ranks of them (Patarasuk and Yuan 2009).
    """
    if ranks == 1:
        return 0.0
    steps = math.ceil(math.log2(ranks))
    return steps * link.latency + 2 * (ranks - 1) / ranks * nbytes / link.bandwidth


def as_ring(small: tuple[float, float], large: tuple[float, float], ranks: int) -> Link:
    """Return the link for which ring_seconds() gives these times of two sizes."""
    steps = math.ceil(math.log2(ranks))
    moved = 2 * (ranks - 1) / ranks * (large[0] - small[0])
    return Link(small[1] / steps, moved / max(large[1] - small[1], 1e-9))
