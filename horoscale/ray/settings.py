"""What a job on Ray is asked for: how many ranks, and what each takes of the cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RayError(RuntimeError):
    """The cluster can't run this job; the message is for the user."""


@dataclass(frozen=True)
class RaySettings:
    """What RayExecutor.create_settings() returns."""

    timeout_s: float = 30.0  # for the ranks to meet
    placement_group_timeout_s: float = 100.0  # for the cluster to have room
    nics: Sequence[str] = ()  # network interfaces of the ranks' traffic


@dataclass(frozen=True)
class Shape:
    """What one rank takes."""

    cpus: float = 1
    gpus: float = 0

    def bundle(self, ranks: int = 1) -> dict[str, float]:
        """Return what so many ranks take, as Ray names it."""
        resources = {"CPU": self.cpus * ranks, "GPU": self.gpus * ranks}
        return {name: amount for name, amount in resources.items() if amount > 0}

    def fits(self, resources: Mapping[str, float]) -> int:
        """Return how many ranks a node with these resources takes."""
        counts = [int(resources.get(name, 0) // amount) for name, amount in self.bundle().items()]
        return min(counts, default=0)

    def __str__(self) -> str:
        return " and ".join(f"{amount:g} {name}" for name, amount in self.bundle().items())


def count(name: str, value: Any, least: int = 1) -> int:
    """Return an argument that is a number of ranks or hosts; ValueError naming it if it is none."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: expected a number of at least {least}, not {value!r}")
    return value
