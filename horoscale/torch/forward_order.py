"""The order in which the forward pass uses the parameters: the first ones are the most urgent.

The order is derived from autograd. A gradient is complete when the backward pass has processed the
parameter's first use. Gradients therefore arrive in the opposite order, regardless of how the model
reads its parameters. (In a compiled model they arrive all together, when there is nothing left to
overlap.)
"""

from __future__ import annotations

from collections.abc import Iterable

from horoscale.torch.gradients import Gradient
from horoscale.torch.groups import GradientGroup


def rank_by_first_use(groups: Iterable[GradientGroup]) -> list[GradientGroup]:
    """Assign the priorities 0, -1, -2, and so on to gradients. Return the groups in this order.

    A gradient that has not arrived comes after its predecessor in the optimizer.
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
    in_order = sorted(places, key=places.__getitem__)  # ties stay in the optimizer's order
    for position, gradient in enumerate(in_order):
        gradient.default_priority = -position
    return list(dict.fromkeys(owners[gradient] for gradient in in_order))
