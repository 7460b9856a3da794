"""Identity: who this process is in a job, where the core would not know."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    """A rank, and how it meets the others; None: as the core finds out itself."""

    rank: int
    size: int
    rendezvous: str | None = None  # host:port of the job's store
    secret: str | None = None
    served: bool = True  # somebody serves the store at the rendezvous; else rank 0 is to
