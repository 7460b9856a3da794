"""Cuts a list of layers into stages by dynamic programming. Pure."""

from __future__ import annotations

from collections.abc import Callable
from math import inf


def cut(layers: int, stages: int, cost: Callable[[int, int, int], float]) -> list[int] | None:
    """Cut layers into consecutive stages so that the dearest one costs least.

    Stages may differ: in the speed of their rank, in the activations that they hold. Among the best
    cuts it is the one with the least sum of squares. All cuts but hopeless ones are compared, in
    stages * layers² steps.

    Args:
        layers: how many.
        stages: how many, each of one layer at least.
        cost: of the layers from `begin` to before `end` as the stage `stage`, called with these
            three; never negative, and infinite where the stage can't have them.

    Returns:
        Where the stages begin, and where the last one ends. None: no cut has a finite cost.

    Raises:
        ValueError: there are fewer layers than stages, or no stage.
    """
    if not 1 <= stages <= layers:
        raise ValueError(f"{layers} layers can't be cut into {stages} stages")
    # best[end]: (largest cost, sum of squares, cuts) of the first `end` layers in so many stages.
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
