"""Standby: what a process of an elastic job has instead of a runtime until it gets a place."""

from __future__ import annotations

from typing import Any, NoReturn

from horoscale._core.types import Topology
from horoscale.common.views import Provisional


class Standby:
    """A provisional rank, which is never 0, and no peers. Collectives raise and say so."""

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
        # What hvd.init() was called with, for the first view.
        self.process_sets: list[Any] = []
        self.dynamic = False

    def shutdown(self) -> None:
        """Do nothing: there is nobody to leave."""

    def shutdown_failed(self, reason: str) -> None:
        """Do nothing: nobody waits."""

    def __getattr__(self, name: str) -> NoReturn:
        """Raise ValueError for everything that needs peers."""
        raise ValueError(
            "this process has no place in its elastic job yet, and so no peers: until then only "
            "rank(), size() and their kin work, and give provisional numbers. Collectives belong "
            "into the function that hvd.elastic.run wraps"
        )
