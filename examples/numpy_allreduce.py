"""Collectives on numpy arrays, without a framework: the ranks fit a line to all their points.

    horoscalerun -np 2 python examples/numpy_allreduce.py

The ranks sum the terms of a least-squares fit, so that each rank gets the line through all points,
bitwise identical. Rank 0 prints it, here for 2 ranks; with more ranks there are more points:

    2 ranks, 2000 points: y = 3.00 x + 0.50
"""

from __future__ import annotations

import argparse

import numpy as np

import horoscale.numpy as hvd

POINTS_PER_RANK = 1000


def main() -> None:
    """Fit a line to points that are distributed over the ranks."""
    argparse.ArgumentParser(description=__doc__).parse_args()  # has no options
    hvd.init()
    rng = np.random.default_rng(hvd.rank())
    x = rng.uniform(-1, 1, POINTS_PER_RANK)
    y = 3 * x + 0.5 + rng.normal(0, 0.01, POINTS_PER_RANK)
    design = np.stack([x, np.ones_like(x)], axis=1)

    # Two sums in one operation: they are negotiated and sent together.
    normal, moment = hvd.grouped_allreduce(
        [design.T @ design, design.T @ y], op=hvd.Sum, name="fit"
    )
    line = np.linalg.solve(normal, moment)

    lines = hvd.allgather(line[np.newaxis], name="lines")
    assert (lines == line).all(), "the ranks disagree"
    if hvd.rank() == 0:
        points = hvd.size() * POINTS_PER_RANK
        print(f"{hvd.size()} ranks, {points} points: y = {line[0]:.2f} x + {line[1]:.2f}")
    hvd.shutdown()


if __name__ == "__main__":
    main()
