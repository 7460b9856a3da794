"""Ranks that somebody else's launcher has started, and how they find each other.

HOROSCALE_ and MPI's variables are the core's business. Here is what torchrun sets, or anything else
that sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as it does, and srun without MPI.
"""

from __future__ import annotations

import importlib
import os
import secrets
import socket
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

from horoscale._core import HorovodInternalError, StoreServer, job_secret
from horoscale.common.environment import switch, variable

_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_MPI = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_SECRET_BYTES = 32
_DEFAULT_TIMEOUT_S = 30.0
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Identity:
    """Who this process is, where the core would not know; None: as the core finds out itself."""

    rank: int
    size: int
    rendezvous: str | None = None
    secret: str | None = None


def identity(ranks: Sequence[int]) -> Identity | None:
    """Return who a foreign launcher says that this process is; None if there is none.

    `ranks` are those that take part in the job, or empty. Under torchrun it blocks until the first
    of them has come, for at most START_TIMEOUT seconds.

    Raises ValueError where a variable does not parse, HorovodInternalError where torchrun's store
    can't be used.
    """
    ours = any(variable(name)[1] is not None for name in ("RANK", "SIZE"))
    if ours or variable("CONTROLLER")[1] == "mpi":
        return None
    rendezvous = variable("RENDEZVOUS")[1] is not None
    if _is_torchrun():
        rank, size = _number("RANK"), _number("WORLD_SIZE")
        # A rank that takes no part is told so by the core.
        if size > 1 and not rendezvous and (not ranks or rank in ranks):
            return _meet_through_torch(rank, size, ranks)
    elif rendezvous and "SLURM_STEP_NUM_TASKS" in os.environ:
        rank, size = _number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS")
    else:
        return None
    return Identity(rank, size) if size > 1 else None


def _is_torchrun() -> bool:
    """Whether these variables start ranks; under mpirun they may be set for torch's sake."""
    if not all(name in os.environ for name in _TORCHRUN):
        return False
    return "TORCHELASTIC_RUN_ID" in os.environ or not any(name in os.environ for name in _MPI)


# Both until the process ends: ranks that come later, and later jobs, use them too.
_store: Any = None
_served: dict[str, tuple[StoreServer, bytes]] = {}


def _meet_through_torch(rank: int, size: int, ranks: Sequence[int]) -> Identity:
    """Have the first rank serve our store, and tell by torch's where.

    Any process that reaches torch's store can read and write there. So ranks of one host take no
    more from it than a port on loopback; their secret is in a file (see LocalSecret in the core).
    Ranks of several hosts learn the secret there too, unless the variables say what it is.
    """
    global _store
    server = ranks[0] if ranks else 0
    key = f"rendezvous/{zlib.crc32(repr(tuple(ranks)).encode()):08x}"
    one_host = _on_one_host(size)
    encrypt = switch("ENCRYPT")  # errors of variables are told on all ranks, before any waits
    if not one_host and encrypt and not job_secret():
        raise ValueError(
            "HOROSCALE_ENCRYPT=1 needs a secret where torchrun starts ranks on several hosts, as "
            "torch's store would send it in clear: set HOROSCALE_SECRET_FILE to the same for all"
        )
    try:
        _store = _store or _torch_store(rank, size)
        if rank == server and key not in _served:
            _served[key] = _serve_here(encrypt) if one_host else _serve_hosts(encrypt)
            _store.set(key, _served[key][1])
        told = _served[key][1] if rank == server else _store.get(key)
    except RuntimeError as error:  # of torch, or ours
        raise HorovodInternalError(
            f"rank {rank} of {size} can't meet rank {server} through torch's store at "
            f"MASTER_ADDR={os.environ['MASTER_ADDR']}, MASTER_PORT={os.environ['MASTER_PORT']}: "
            f"{error}"
        ) from None
    if one_host:
        return Identity(rank, size, f"{_LOOPBACK}:{_port(told)}")
    rendezvous, _, secret = told.decode(errors="replace").partition(" ")
    # What is told here goes for nothing where the variables say what the secret is.
    return Identity(rank, size, rendezvous, job_secret() or secret or None)


def _on_one_host(size: int) -> bool:
    """Whether all ranks are here: torchrun says so, or their meeting point can't be elsewhere."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        return _number("LOCAL_WORLD_SIZE") == size
    try:
        found = socket.getaddrinfo(os.environ["MASTER_ADDR"], None, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return all(ip_address(address[0]).is_loopback for *_, address in found)


def _serve_here(encrypt: bool) -> tuple[StoreServer, bytes]:
    server = StoreServer(_LOOPBACK, 0, job_secret(), encrypt=encrypt)
    return server, str(server.port).encode()


def _serve_hosts(encrypt: bool) -> tuple[StoreServer, bytes]:
    address = _own_address(os.environ["MASTER_ADDR"], _number("MASTER_PORT"))
    given = job_secret()
    secret = given or secrets.token_hex(_SECRET_BYTES)
    server = StoreServer(address, 0, secret, encrypt=encrypt)
    host = f"[{address}]" if ":" in address else address
    told = f"{host}:{server.port}" if given else f"{host}:{server.port} {secret}"
    return server, told.encode()


def _port(told: bytes) -> int:
    if not told.isdigit() or int(told) > 65535:
        raise HorovodInternalError(f"torch's store tells {told[:80]!r} where a port should be")
    return int(told)


def _torch_store(rank: int, size: int) -> Any:
    """Connect to torchrun's store, or where there is none to one that rank 0 serves."""
    try:
        torch: Any = importlib.import_module("torch.distributed")
    except ImportError as error:
        raise HorovodInternalError(
            f"torch.distributed is missing ({error}); start the job with horoscalerun, or set "
            "HOROSCALE_RENDEZVOUS and HOROSCALE_SECRET"
        ) from None
    of_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = torch.TCPStore(
        os.environ["MASTER_ADDR"],
        _number("MASTER_PORT"),
        size,
        is_master=rank == 0 and not of_agent,
        timeout=timedelta(seconds=_start_timeout()),
        wait_for_workers=False,
        multi_tenant=True,  # the user's torch.distributed may serve at this port as well
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return torch.PrefixStore(f"horoscale/attempt{attempt}", store)


def _own_address(peer: str, port: int) -> str:
    """Return the address of this machine on the way to another one, or to itself."""
    error: OSError | None = None
    for family, kind, _, _, address in socket.getaddrinfo(peer, port, type=socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
        except OSError as failed:
            error = failed
    raise HorovodInternalError(f"there is no way to {peer}: {error}")


def _start_timeout() -> float:
    name, text = variable("START_TIMEOUT")
    try:
        return float(text) if text is not None else _DEFAULT_TIMEOUT_S
    except ValueError:
        raise ValueError(f"{name}={text!r} does not parse: expected seconds") from None


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{name}={text!r} does not parse: expected a number")
    return int(text)
