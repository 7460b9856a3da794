"""The messages of errors about groups of gradients."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence


def too_many_passes(name: str, passes: int, ready_in_backward: bool, overlaps: bool) -> str:
    """Return what to do about a gradient that was computed again before step().

    `ready_in_backward` and `overlaps` are options of the optimizers that use the gradient.
    """
    remedies = [_accumulation(passes)]
    if ready_in_backward:
        remedies.append(
            "gradients_ready='backward' reduces them again only if all of the optimizer's "
            "parameters had a gradient on all ranks"
        )
    elif overlaps:
        remedies.append(
            "with overlap_step=True, the parameter may have been read before its update, and "
            "not through its module: call optimizer.finish_step() first"
        )
    else:
        remedies.append(
            "if other models' losses also reach these parameters (GANs), use "
            "DistributedOptimizer(..., gradients_ready='backward')"
        )
    return (
        f"the gradient of {name} was computed more than backward_passes_per_step="
        f"{passes} times before step(): {'; '.join(remedies)}"
    )


def reduced_again(name: str, passes: int) -> str:
    """Return what to do about a backward pass that adds to a reduced gradient."""
    return (
        f"a further backward pass would reduce the gradient of {name} again, which is "
        "already reduced: before step(), that is supported with op=Average only. "
        f"Call optimizer.zero_grad() first, or {_accumulation(passes)}"
    )


def _accumulation(passes: int) -> str:
    return (
        "to accumulate gradients, run all backward passes but the last within optimizer.no_sync(), "
        f"or pass a backward_passes_per_step above {passes} to DistributedOptimizer"
    )


def on_formats(mismatch: str) -> str:
    """Explain the shapes of in_memory_order() in a message about a mismatch."""
    shapes = [
        tuple(map(int, shape.split(", "))) for shape in re.findall(r"\[(\d+(?:, \d+)+)\]", mismatch)
    ]
    if not any(_is_format_of(*pair) for pair in itertools.permutations(shapes, 2)):
        return ""
    return (
        ". Ones at the end of a shape stand for a memory format such as channels_last, and the "
        "dimensions are in memory order: use the same memory format for the model on all ranks"
    )


def _is_format_of(one: Sequence[int], other: Sequence[int]) -> bool:
    extents = [sorted(extent for extent in shape if extent != 1) for shape in (one, other)]
    return one[-1] == 1 and len(one) > len(other) and extents[0] == extents[1]
