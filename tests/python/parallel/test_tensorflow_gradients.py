"""Gradients through TensorFlow's collectives, checked numerically."""

from __future__ import annotations

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")

from support.tensorflow_reference import all_values, call, check  # noqa: E402

import horoscale.tensorflow as hvd  # noqa: E402

MODES = pytest.mark.parametrize("mode", ["eager", "graph"])


def weights(shape: tuple[int, ...], rank: int) -> np.ndarray:
    return np.random.default_rng(rank + 100).uniform(-1, 1, shape)


def numeric(function, every: list[np.ndarray], rank: int) -> np.ndarray:
    """The derivative of a function of all ranks' inputs by one rank's, by central differences."""
    result = np.zeros_like(every[rank])
    for index in np.ndindex(result.shape):
        difference = 0.0
        for sign in (1, -1):
            moved = [one.copy() for one in every]
            moved[rank][index] += sign * 1e-6
            difference += sign * function(moved)
        result[index] = difference / 2e-6
    return result


# Gradients are those of the sum of all losses, but scaled as in Horovod: a result that is equal on
# all ranks counts once, so that allgather and broadcast give those of the average.
CALLS = {
    "Sum": lambda x, one: hvd.allreduce(x, op=hvd.Sum, process_set=one),
    "Average": lambda x, one: hvd.allreduce(x, process_set=one),
    "scaled": lambda x, one: hvd.allreduce(
        x, op=hvd.Sum, prescale_factor=3.0, postscale_factor=0.5, process_set=one
    ),
    "grouped": lambda x, one: tf.concat(
        hvd.grouped_allreduce([x, x * x], op=hvd.Sum, process_set=one), 0
    ),
    "allgather": lambda x, one: hvd.allgather(x, process_set=one),
    "uneven": lambda x, one: hvd.allgather(x[: one.rank() + 1], process_set=one),
    "broadcast": lambda x, one: hvd.broadcast(x, one.ranks[-1], process_set=one),
    "alltoall": lambda x, one: hvd.alltoall(x, process_set=one),
    "splits": lambda x, one: hvd.alltoall(x, splits_of(one), process_set=one)[0],
    "reducescatter": lambda x, one: hvd.reducescatter(x, op=hvd.Sum, process_set=one),
    "scattered-splits": lambda x, one: hvd.reducescatter(
        x, op=hvd.Sum, splits=[2 * one.size()] + [0] * (one.size() - 1), process_set=one
    ),
    "reduce": lambda x, one: hvd.reduce(x, one.ranks[-1], process_set=one),
    "gather": lambda x, one: hvd.gather(x[: one.rank() + 1], one.ranks[-1], process_set=one),
    "scatter": lambda x, one: hvd.scatter(x, one.ranks[-1], splits_of(one), process_set=one),
}


def splits_of(process_set: hvd.ProcessSet) -> list[int]:
    """The number of rows for each member; some stay."""
    return [i % 2 + 1 for i in range(process_set.size())]


def results(kind: str, every: list[np.ndarray]) -> list[np.ndarray]:
    """The rows that each member receives from the members' inputs."""
    size, total = len(every), sum(every)
    ranks = range(size)
    ends = np.cumsum([0, *(i % 2 + 1 for i in ranks)])
    return {
        "Sum": lambda: [total] * size,
        "Average": lambda: [total / size] * size,
        "scaled": lambda: [1.5 * total] * size,
        "grouped": lambda: [np.concatenate([total, sum(one * one for one in every)])] * size,
        "allgather": lambda: [np.concatenate(every)] * size,
        "uneven": lambda: [np.concatenate([every[r][: r + 1] for r in ranks])] * size,
        "broadcast": lambda: [every[-1]] * size,
        "alltoall": lambda: [
            np.concatenate([np.split(one, size)[r] for one in every]) for r in ranks
        ],
        "splits": lambda: [
            np.concatenate([one[ends[r] : ends[r + 1]] for one in every]) for r in ranks
        ],
        "reducescatter": lambda: np.array_split(total, size),
        "scattered-splits": lambda: [total] + [total[:0]] * (size - 1),
        "reduce": lambda: [np.zeros(0)] * (size - 1) + [total / size],
        "gather": lambda: (
            [total[:0]] * (size - 1) + [np.concatenate([every[r][: r + 1] for r in ranks])]
        ),
        "scatter": lambda: [every[-1][ends[r] : ends[r + 1]] for r in ranks],
    }[kind]()


@MODES
@pytest.mark.parametrize("kind", CALLS)
def test_gradient(kind: str, mode: str, process_set: hvd.ProcessSet) -> None:
    if not process_set.included():
        return
    size, place = process_set.size(), process_set.rank()
    every = [one.numpy() for one in all_values("float64", (2 * size, 2))[:size]]
    factors = [weights(one.shape, r) for r, one in enumerate(results(kind, every))]

    def run(x: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(CALLS[kind](x, process_set) * factors[place])
        return tape.gradient(loss, x)

    def total_loss(moved: list[np.ndarray]) -> float:
        pairs = zip(results(kind, moved), factors, strict=True)
        return sum(float(np.sum(one * factor)) for one, factor in pairs)

    expected = numeric(total_loss, every, place)
    if kind in ("allgather", "uneven", "broadcast"):
        expected /= size
    if kind in ("reducescatter", "scattered-splits"):
        expected *= size
    check(call(mode, run, tf.constant(every[place])), expected, exact=False)
