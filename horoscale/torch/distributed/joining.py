"""How init_process_group() joins the job: like hvd.init(), or through torch.distributed's store."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch._C._distributed_c10d as torch_distributed
from torch.distributed import distributed_c10d

import horoscale.common as hvd
from horoscale.common import foreign, job
from horoscale.common.environment import variable
from horoscale.common.identity import Identity

_MPI = ("OMPI_COMM_WORLD_RANK", "PMI_RANK")


_joined = False


def joined_here() -> bool:
    """Return whether a process group has joined the job, which is left with the group."""
    return _joined


def join(store: Any, rank: int, size: int) -> None:
    """Join the job of these ranks, unless hvd.init() was called before.

    Ranks started by a launcher meet as configured by it. Other ranks, which passed a store, an
    init_method or their ranks to init_process_group(), meet through that store. They must be on one
    host.

    Raises ValueError if the job's ranks differ from those passed to torch.distributed.
    """
    if not hvd.is_initialized():
        if size == 1 or _launched(rank, size):
            _init()
        else:
            with foreign.known_as(_meet(store, rank, size)):
                _init()
    if (hvd.rank(), hvd.size()) != (rank, size):
        here = f"rank {hvd.rank()} of {hvd.size()}"
        raise ValueError(
            f"init_process_group() is told that this is rank {rank} of {size}, and the horoscale "
            f"job that it is {here}: start both by the same launcher"
        )


def join_world() -> None:
    """Join the job of a default group that has another backend. All of its ranks call this."""
    group = distributed_c10d._get_default_group()
    store = distributed_c10d._get_default_store()
    join(torch_distributed.PrefixStore("horoscale", store), group.rank(), group.size())


def rendezvous(
    url: str, timeout: timedelta = distributed_c10d.default_pg_timeout, **_: object
) -> Iterator[tuple[Any, int, int]]:
    """Meet like hvd.init(), for init_method="horoscale://", with any launcher that it supports.

    Rank 0 serves torch.distributed's store, which other backends need.
    """
    if not hvd.is_initialized():
        _init()
    store, told = None, None
    if hvd.rank() == 0:
        own = _own_address()
        store = torch_distributed.TCPStore(own, 0, None, True, timeout, wait_for_workers=False)
        told = own, store.port
    host, port = hvd.broadcast_object(told, root_rank=0)
    try:
        if store is None:
            store = torch_distributed.TCPStore(
                host, port, None, False, timeout, wait_for_workers=False
            )
    finally:
        hvd.barrier()  # otherwise rank 0 may stop the store before others connect
    yield store, hvd.rank(), hvd.size()
    raise RuntimeError("ranks of horoscale can't meet again: leave the job first")


def _own_address() -> str:
    """Return this rank's address on the route to the job's store, or else its host name."""
    host, separator, port = (variable("RENDEZVOUS")[1] or "").rpartition(":")
    if separator and port.isdigit():
        return foreign.own_address(host.strip("[]"), int(port))
    return socket.gethostname()


def _init() -> None:
    global _joined
    hvd.init(process_sets="dynamic")
    _joined = True


def _forget() -> None:
    global _joined
    _joined = False


job.at_end(_forget)


def _launched(rank: int, size: int) -> bool:
    """Return whether hvd.init() would find the same rank in the environment."""
    if any(variable(name)[1] is not None for name in ("RANK", "CONTROLLER")):
        return True
    if any(name in os.environ for name in _MPI):
        return True
    own = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    return "MASTER_ADDR" in os.environ and own == (str(rank), str(size))


def _meet(store: Any, rank: int, size: int) -> Identity:
    host = socket.gethostname()
    if rank == 0:
        store.set("host", host)
    first = store.get("host").decode(errors="replace")
    if first != host:
        raise ValueError(
            f"rank 0 is on {first} and rank {rank} on {host}: start ranks of several hosts with "
            "torchrun, horoscalerun or mpirun"
        )
    return foreign.meet_on_one_host(store, rank, size)
