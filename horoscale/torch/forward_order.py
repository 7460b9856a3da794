"""In which order the forward pass uses the parameters: what is used first is the most urgent.

Autograd tells it without being asked: a gradient is complete when the backward pass is done with
the parameter's first use, so gradients come in the opposite order, however the model reads its
parameters. (Those of compiled models come all together, when nothing is left to be hidden.)
"""

from __future__ import annotations

from collections.abc import Iterable

from horoscale.torch.gradients import Gradient
from horoscale.torch.groups import GradientGroup


def rank_by_first_use(groups: Iterable[GradientGroup]) -> list[GradientGroup]:
    """Give gradients the priorities 0, -1, -2, and so on; return the groups in this order.

    A gradient that has not come has its place after the one before it in the optimizer.
    """
    places: dict[Gradient, float] = {}
    owners: dict[Gradient, GradientGroup] = {}
    place = -float("inf")
    for group in groups:
        for gradient in group.gradients:
            if gradient.arrival is not None:
                place = -gradient.arrival
            places[gradient] = place
            owners[gradient] = group
    in_order = sorted(places, key=places.__getitem__)  # equals stay in the optimizer's order
    for position, gradient in enumerate(in_order):
        gradient.default_priority = -position
    return list(dict.fromkeys(owners[gradient] for gradient in in_order))
