"""mpi4py's communicators: what horoscale needs of them. mpi4py is never imported here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any


def is_communicator(value: object) -> bool:
    """Tell whether a value is a communicator of mpi4py (which need not be installed)."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and isinstance(value, mpi.Comm)


def check(comm: Any, user: str) -> None:
    """Raise ValueError for what is not a group of ranks that holds this one."""
    mpi = sys.modules["mpi4py.MPI"]
    if comm == mpi.COMM_NULL:
        raise ValueError(
            f"{user}: MPI.COMM_NULL, which Split() and Create() give to ranks that they leave out: "
            "such a rank names no process set here"
        )
    if comm.Is_inter():
        raise ValueError(f"{user}: an intercommunicator has two groups; give comm.Merge() of it")


def handle_of(comm: Any) -> int:
    """Return the handle of a communicator as the MPI library has it."""
    mpi: Any = sys.modules["mpi4py.MPI"]
    handle = comm.handle if hasattr(comm, "handle") else mpi._handleof(comm)
    bits: int = 8 * mpi._sizeof(comm)
    return int(handle) & (1 << bits) - 1


def job_group(comm: Any, ranks: Sequence[int]) -> Any:
    """Return the MPI group of a job: of `comm`, or of these ranks of the world; no ranks: all."""
    if comm is not None:
        return comm.Get_group()
    mpi: Any = sys.modules["mpi4py.MPI"]
    world = mpi.COMM_WORLD.Get_group()
    return world.Incl(list(ranks)) if ranks else world


def ranks_in(comm: Any, group: Any) -> list[int]:
    """Return the ranks in a job's group of a communicator's members, in its order.

    Raises ValueError if one of them is not in the job.
    """
    mpi: Any = sys.modules["mpi4py.MPI"]
    members = comm.Get_group()
    ranks = mpi.Group.Translate_ranks(members, list(range(members.Get_size())), group)
    if mpi.UNDEFINED in ranks:
        raise ValueError(f"{comm!r} has ranks that take no part in the job")
    return list(ranks)
