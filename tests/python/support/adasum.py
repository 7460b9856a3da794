"""Adasum in numpy: the formula of the paper (arXiv 2006.02924) in float64, and its recursion."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def adasum_of_two(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return (1 - a.b / 2 a.a) a + (1 - a.b / 2 b.b) b; zeros leave the other unchanged."""
    dot = np.vdot(a, b)
    of_a, of_b = np.vdot(a, a), np.vdot(b, b)
    weight_a = 1 - dot / (2 * of_a) if of_a else 1.0
    weight_b = 1 - dot / (2 * of_b) if of_b else 1.0
    return weight_a * a + weight_b * b


def adasum(vectors: Sequence[np.ndarray], group: int = 1) -> np.ndarray:
    """Return the Adasum of vectors; each `group` consecutive ones are averaged first.

    Vectors beyond the largest power of two are folded into the first ones. Then neighbors are
    combined repeatedly until one is left.
    """
    wide = [np.asarray(vector).astype(np.float64) for vector in vectors]
    wide = [np.mean(wide[i : i + group], axis=0) for i in range(0, len(wide), group)]
    power = 1 << (len(wide).bit_length() - 1)
    for i, rest in enumerate(wide[power:]):
        wide[i] = adasum_of_two(wide[i], rest)
    wide = wide[:power]
    while len(wide) > 1:
        wide = [adasum_of_two(wide[i], wide[i + 1]) for i in range(0, len(wide), 2)]
    return wide[0]
