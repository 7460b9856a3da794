"""Resources for the ranks of a job: Ray's placement groups."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.placement_group import (
    get_current_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from horoscale.ray.settings import RayError, Shape


@dataclass(frozen=True)
class Slot:
    """The resources of a rank: a bundle of the group, on a node."""

    bundle: int
    node: str


class Placement:
    """A placement group and its slots, one per rank. release() removes a group created here."""

    def __init__(self, group: Any, slots: list[Slot], own: bool) -> None:
        self._group = group
        self._own = own
        self.slots = slots

    def strategy(self, slot: Slot) -> Any:
        """Return the scheduling strategy for the actor of a slot."""
        return PlacementGroupSchedulingStrategy(
            self._group,
            placement_group_bundle_index=slot.bundle,
            placement_group_capture_child_tasks=True,
        )

    def release(self) -> None:
        """Release the resources."""
        if self._own:
            remove_placement_group(self._group)


def place_workers(
    shape: Shape,
    bundles: int,
    ranks_per_bundle: int,
    strategy: str,
    seconds: float,
    use_current: bool,
) -> Placement:
    """Return slots for `bundles` times `ranks_per_bundle` ranks, in the current group.

    If there is none, or `use_current` is false, a group is created with `strategy`; the cluster has
    `seconds` to provide the resources.

    Raises RayError if there are fewer slots.
    """
    wanted = bundles * ranks_per_bundle
    current = get_current_placement_group() if use_current else None
    if current is not None:
        slots = _slots(current, shape, None)
        if len(slots) < wanted:
            raise RayError(
                f"{wanted} ranks of {shape} each need more than the current placement group has: "
                f"its bundles take {len(slots)}"
            )
        return Placement(current, slots[:wanted], own=False)
    group = placement_group([shape.bundle(ranks_per_bundle)] * bundles, strategy=strategy)
    try:
        if not group.wait(seconds):
            raise RayError(
                f"the cluster has no room for {wanted} ranks of {shape} each"
                + (f", {ranks_per_bundle} on a host" if ranks_per_bundle > 1 else "")
                + f" (strategy {strategy}), after {seconds:g} s: {describe_cluster(shape)}"
            )
        return Placement(group, _slots(group, shape, ranks_per_bundle), own=True)
    except BaseException:
        remove_placement_group(group)
        raise


def nodes() -> dict[str, dict[str, float]]:
    """Return the resources of the live nodes by id."""
    return {str(node["NodeID"]): dict(node["Resources"]) for node in ray.nodes() if node["Alive"]}


def describe_cluster(shape: Shape) -> str:
    """Return a description of the nodes' resources, for an error."""
    found = nodes()
    total = sum(shape.fits(resources) for resources in found.values())
    listing = ", ".join(
        f"{node[:8]} has {resources.get('CPU', 0):g} CPU and {resources.get('GPU', 0):g} GPU"
        for node, resources in list(found.items())[:8]
    )
    return f"its nodes take {total} such ranks where nothing else runs ({listing})"


def _slots(group: Any, shape: Shape, ranks_per_bundle: int | None) -> list[Slot]:
    """Return the slots of a group that is ready; bundles of a node are consecutive."""
    deadline = time.monotonic() + 10.0
    while True:  # the table may be updated late
        table = placement_group_table(group)
        nodes_of = {int(one): node for one, node in table["bundles_to_node_id"].items()}
        if all(nodes_of.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    slots = []
    for bundle, resources in enumerate(group.bundle_specs):
        ranks = ranks_per_bundle or shape.fits(resources)
        slots += [Slot(bundle, str(nodes_of[bundle]))] * ranks
    return slots
