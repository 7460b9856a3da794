"""Identity: this process' rank and rendezvous, if the core cannot determine them itself."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """A rank and its rendezvous. None: determined by the core."""

    rank: int
    size: int
    rendezvous: str | None = None  # host:port of the job's store
    secret: str | None = None
    served: bool = True  # the store is already running; otherwise rank 0 serves it
