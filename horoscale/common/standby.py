"""Standby: replaces the runtime in a process of an elastic job that has no view yet."""

from __future__ import annotations

from typing import Any, NoReturn

from horoscale._core.types import Topology
from horoscale.common.views import Provisional


class Standby:
    """A provisional rank, never 0, without peers. Collectives raise an error that says so."""

    def __init__(self, provisional: Provisional) -> None:
        self.topology = Topology(
            rank=provisional.rank,
            size=provisional.size,
            local_rank=provisional.local_rank,
            local_size=provisional.local_size,
            cross_rank=provisional.cross_rank,
            cross_size=provisional.cross_size,
            homogeneous=True,
        )
        self.over_mpi = False
        # The arguments of hvd.init(), for the first view.
        self.process_sets: list[Any] = []
        self.dynamic = False

    def shutdown(self) -> None:
        """Do nothing: there are no peers to leave."""

    def shutdown_failed(self, reason: str) -> None:
        """Do nothing: there are no peers to notify."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raise ValueError for everything that needs peers."""
        raise ValueError(
            "this process has no place in its elastic job yet, and so no peers. Until it has one, "
            "only rank(), size() and similar functions work, and return provisional numbers. Move "
            "collectives into the function that hvd.elastic.run wraps"
        )
