"""Divides a list of layers into stages by dynamic programming. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import inf


def cut(layers: int, stages: int, cost: Callable[[int, int, int], float]) -> list[int] | None:
    """Divide layers into consecutive stages so that the most expensive one costs least.

    The cost may depend on the stage, because ranks differ in speed and stages in the activations
    that they hold. Of several optimal divisions, it returns the one with the least sum of squares.
    It compares all divisions that can be optimal, in stages * layers² steps.

    Args:
        layers: the number of layers.
        stages: the number of stages, each of at least one layer.
        cost: a function (begin, end, stage) that returns the cost of the layers from `begin` to
            before `end` as that stage: not negative, and infinite if it is impossible.

    Returns:
        Where the stages begin, and where the last one ends. None: no division has a finite cost.

    Raises:
        ValueError: there are fewer layers than stages, or no stage.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers can't be cut into {stages} stages")
    # best[end]: (largest cost, sum of squares, cuts) of the first `end` layers in the stages so far
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [0])}
    for stage in range(stages):
        following: dict[int, tuple[float, float, list[int]]] = {}
        last = stage == stages - 1
        for end in range(layers if last else stage + 1, layers - (stages - stage - 1) + 1):
            found = []
            for begin, (largest, squares, cuts) in best.items():
                if begin < end and (own := cost(begin, end, stage)) < inf:
                    found.append((max(largest, own), squares + own * own, [*cuts, end]))
            if found:
                following[end] = min(found)
        best = following
    return best[layers][2] if layers in best else None
