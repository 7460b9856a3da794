"""Predicts steps on many ranks by the planner's cost model. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from horoscale.scaling.runs import Measured
from horoscale.torch.parallel.planning.cost import cost
from horoscale.torch.parallel.planning.dry_run import Unit
from horoscale.torch.parallel.planning.machine import Link, Machine
from horoscale.torch.parallel.planning.profile import Timing
from horoscale.torch.parallel.planning.stand_ins import Collective
from horoscale.torch.parallel.planning.strategy import Strategy

_UNITS = 20  # parts of the model whose gradients become ready one after the other


def data_parallel(
    ranks: int,
    compute: float,
    nbytes: float,
    inside: Link,
    between: Link,
    ranks_per_host: int,
    overlap: float,
) -> Measured:
    """Predict a step whose gradients are averaged over all ranks.

    Args:
        ranks: the number of ranks.
        compute: a rank's computation in a step, in seconds; two thirds are the backward pass.
        nbytes: the bytes of all gradients.
        inside: the link of collectives inside a host.
        between: the link from a host to the others.
        ranks_per_host: the number of ranks that share it.
        overlap: the fraction of a collective that the backward pass hides, if it is long enough.
    """
    units = [_unit(index, round(nbytes / _UNITS)) for index in range(_UNITS)]
    timings = [Timing(compute / _UNITS / 3, compute / _UNITS * 2 / 3, 0.0)] * _UNITS
    local = min(ranks, ranks_per_host)
    machine = Machine(1.0, 1.0, float(local), inside, inside, between, between, overlap)
    found = cost(Strategy(dp=ranks), units, timings, machine, local)
    assert found is not None
    return Measured(ranks, found.parts, nbytes)


def tensor_parallel(
    ranks: int, compute: float, layers: int, nbytes: float, link: Link, recompute: bool
) -> Measured:
    """Predict a step whose layers are divided among the ranks of one host.

    Args:
        ranks: the number of ranks.
        compute: a rank's computation in a step, in seconds, without recomputation.
        layers: the number of transformer layers. In each pass, each layer sums its input's or
            output's values twice.
        nbytes: the bytes of these values.
        link: the link of collectives.
        recompute: whether each layer's forward pass is recomputed, and its messages sent again.
    """
    sent = tuple(Collective("allreduce", round(nbytes), one) for one in (True, True, False, False))
    units = [replace(_unit(index), sent=sent) for index in range(layers)]
    timings = [Timing(compute / layers / 3, compute / layers * 2 / 3, 0.0)] * layers
    machine = Machine(1.0, 1.0, float(ranks), link, link, None, None, 0.0)
    found = cost(Strategy(tp=ranks, recompute=recompute), units, timings, machine, ranks)
    assert found is not None
    return Measured(ranks, found.parts, 0.0)


def _unit(index: int, nbytes: int = 0) -> Unit:
    """Return a unit that has only parameters, of this many bytes."""
    return Unit(
        name=str(index),
        parameters={index: nbytes},
        trained=frozenset([index]),
        optimizer={},
        buffers=0,
        saved={},
        input=0,
        output=0,
        transient=0,
        update=0,
        sent=(),
        forward_flops=0,
        backward_flops=0,
    )


def extrapolate(
    first: Measured,
    mode: Literal["strong", "weak"],
    numbers: Iterable[int],
    inside: Link,
    between: Link,
    ranks_per_host: int,
    overlap: float,
) -> list[Measured]:
    """Predict a program's steps on other numbers of ranks from one measured number.

    Under strong scaling the ranks divide the computation of `first`; under weak scaling each
    computes as much as a rank of `first`. Other arguments are those of data_parallel().
    """
    return [
        data_parallel(
            ranks,
            first.parts.compute * (first.ranks / ranks if mode == "strong" else 1.0),
            first.nbytes,
            inside,
            between,
            ranks_per_host,
            overlap,
        )
        for ranks in numbers
    ]
