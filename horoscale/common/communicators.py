"""Helpers for mpi4py communicators, without importing mpi4py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def is_communicator(value: object) -> bool:
    """Return whether a value is an mpi4py communicator. mpi4py need not be installed."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(value, mpi.Comm)


def check(comm: Any, user: str) -> None:
    """Raise ValueError unless `comm` is an intracommunicator that includes this rank."""
    mpi = sys.modules["mpi4py.MPI"]
    if comm == mpi.COMM_NULL:
        raise ValueError(
            f"{user}: MPI.COMM_NULL is not a group of ranks. Split() and Create() return it on the "
            "ranks that they leave out: on such a rank, omit the process set"
        )
    if comm.Is_inter():
        raise ValueError(f"{user}: an intercommunicator has two groups; give comm.Merge() of it")


def handle_of(comm: Any) -> int:
    """Return the MPI library's handle of a communicator."""
    mpi: Any = sys.modules["mpi4py.MPI"]
    handle = comm.handle if hasattr(comm, "handle") else mpi._handleof(comm)
    bits: int = 8 * mpi._sizeof(comm)
    return int(handle) & (1 << bits) - 1


def job_group(comm: Any, ranks: Sequence[int]) -> Any:
    """Return the MPI group of a job: that of `comm`, or of these world ranks (empty: all)."""
    if comm is not None:
        return comm.Get_group()
    mpi: Any = sys.modules["mpi4py.MPI"]
    world = mpi.COMM_WORLD.Get_group()
    return world.Incl(list(ranks)) if ranks else world


def ranks_in(comm: Any, group: Any) -> list[int]:
    """Return the ranks of a communicator's members in a job's group, in communicator order.

    Raises ValueError if one of them is not in the job.
    """
    mpi: Any = sys.modules["mpi4py.MPI"]
    members = comm.Get_group()
    ranks = mpi.Group.Translate_ranks(members, list(range(members.Get_size())), group)
    if mpi.UNDEFINED in ranks:
        raise ValueError(f"{comm!r} has ranks that take no part in the job")
    return list(ranks)
