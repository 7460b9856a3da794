"""Settings of a job on Ray: the number of ranks, and the resources of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class RayError(RuntimeError):
    """The cluster can't run this job. The message is for the user."""


@dataclass(frozen=True)
class RaySettings:
    """The result of RayExecutor.create_settings()."""

    timeout_s: float = 30.0  # for the ranks to connect
    placement_group_timeout_s: float = 100.0  # for the cluster to provide resources
    nics: Sequence[str] = ()  # network interfaces of the ranks' traffic


@dataclass(frozen=True)
class Shape:
    """The resources of one rank."""

    cpus: float = 1
    gpus: float = 0

    def bundle(self, ranks: int = 1) -> dict[str, float]:
        """Return the resources of `ranks` ranks, with Ray's names."""
        resources = {"CPU": self.cpus * ranks, "GPU": self.gpus * ranks}
        return {name: amount for name, amount in resources.items() if amount > 0}

    def fits(self, resources: Mapping[str, float]) -> int:
        """Return the number of ranks that fit on a node with these resources."""
        counts = [int(resources.get(name, 0) // amount) for name, amount in self.bundle().items()]
        return min(counts, default=0)

    def __str__(self) -> str:
        return " and ".join(f"{amount:g} {name}" for name, amount in self.bundle().items())


def count(name: str, value: Any, least: int = 1) -> int:
    """Return a valid number of ranks or hosts; raise ValueError, which names the argument."""
    if type(value) is not int or value < least:
        raise ValueError(f"{name}: expected a number of at least {least}, not {value!r}")
    return value
